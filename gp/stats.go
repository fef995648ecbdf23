// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"log/slog"
	"sync/atomic"
)

// Stats are what a group has done since it was opened: see Group.Stats. Work is
// counted when it is enqueued. What Open does to prove and to time P2P counts for
// nothing.
type Stats struct {
	// Copies are the calls of Copy, and Collectives those of everything else, that
	// enqueued work which moves data.
	Copies, Collectives uint64
	// Bytes of copies and of the messages of SendRecv, by the way that they took:
	// through pinned host memory, by peer copies, within a rank's memory. Pairs has
	// the same for each pair.
	StagedBytes, DirectBytes, LocalBytes uint64
	// CollectiveBytes are the bytes a rank of all other collectives, as nccl-tests
	// count a message, summed over calls.
	CollectiveBytes uint64
	// Waits are the calls of Work.Wait, and LongWaits those among them that were
	// not over within 50 us.
	Waits, LongWaits uint64
	// Fallbacks are copies that were to go directly, were refused by the driver and
	// went through host memory.
	Fallbacks uint64
	// Retries are how often the driver refused pinned memory and Open asked for
	// less.
	Retries uint64
	// Bytes held now, of all ranks: pinned host memory, device scratch. Buffers are
	// not among them.
	PinnedBytes, ScratchBytes uint64
	// PlansCached are plans that are kept for the next call of their shape, and
	// OperationsOpen those that are not known to have run.
	PlansCached, OperationsOpen int
	// Pairs are the pairs between which bytes have gone, by From and then To.
	Pairs []PairStats
}

// PairStats are the bytes of copies, and of the messages of SendRecv, from a rank
// to another or to itself.
type PairStats struct {
	From, To                             int // ranks
	StagedBytes, DirectBytes, LocalBytes uint64
}

// Stats returns the counters. It may be called at any time, also once the group is
// closed, and costs the group's calls nothing but its lock while it reads.
func (g *Group) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.stats.Stats
	s.Waits, s.LongWaits = g.stats.waits.Load(), g.stats.longWaits.Load()
	for _, b := range g.blocks {
		s.PinnedBytes += b.n
	}
	for _, r := range g.ranks {
		if r.block != nil { // not closed
			s.PinnedBytes += uint64(r.bounce.mem.Len())
		}
		if r.scratchBase != 0 {
			s.ScratchBytes += r.scratch.size
		}
	}
	s.PlansCached = len(g.plans)
	s.OperationsOpen = len(g.ops.open)
	n := len(g.ranks)
	for i := range g.stats.pairs {
		p := g.stats.pairs[i]
		if p.StagedBytes != 0 || p.DirectBytes != 0 || p.LocalBytes != 0 {
			p.From, p.To = i/n, i%n
			s.Pairs = append(s.Pairs, p)
		}
	}
	return s
}

// LogValue is the counters as attributes of a log record: slog.Info("gpus",
// "stats", g.Stats()). Pairs are left out.
func (s Stats) LogValue() slog.Value {
	return slog.GroupValue(
		slog.Uint64("copies", s.Copies),
		slog.Uint64("collectives", s.Collectives),
		slog.Uint64("staged_bytes", s.StagedBytes),
		slog.Uint64("direct_bytes", s.DirectBytes),
		slog.Uint64("local_bytes", s.LocalBytes),
		slog.Uint64("collective_bytes", s.CollectiveBytes),
		slog.Uint64("waits", s.Waits),
		slog.Uint64("long_waits", s.LongWaits),
		slog.Uint64("fallbacks", s.Fallbacks),
		slog.Uint64("retries", s.Retries),
		slog.Uint64("pinned_bytes", s.PinnedBytes),
		slog.Uint64("scratch_bytes", s.ScratchBytes),
		slog.Int("plans_cached", s.PlansCached),
		slog.Int("operations_open", s.OperationsOpen),
	)
}

// counters are the Stats of a group as they are counted: some additions a call,
// under the lock that the call holds anyway, and one without it a wait.
type counters struct {
	Stats
	pairs            []PairStats // [source * ranks + destination]
	waits, longWaits atomic.Uint64
}

// begin forgets all that was counted but the retries of Open.
func (c *counters) begin(ranks int) {
	c.Stats = Stats{Retries: c.Retries}
	c.pairs = make([]PairStats, ranks*ranks)
	c.waits.Store(0)
	c.longWaits.Store(0)
}

// moved counts bytes that go from one rank to another. The group's lock is held.
func (g *Group) moved(from, to int, route Route, bytes uint64) {
	s := &g.stats
	if s.pairs == nil {
		return // Open is timing the routes
	}
	p := &s.pairs[from*len(g.ranks)+to]
	switch route {
	case RouteStaged:
		s.StagedBytes += bytes
		p.StagedBytes += bytes
	case RouteDirect:
		s.DirectBytes += bytes
		p.DirectBytes += bytes
	default:
		s.LocalBytes += bytes
		p.LocalBytes += bytes
	}
}
