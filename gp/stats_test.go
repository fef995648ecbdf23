// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// TestStats holds the counters to calls whose bytes and ways are known, and what
// is held to the driver's own count.
func TestStats(t *testing.T) {
	m := newStingy(seam(simulated(t)), 1<<40, api.OutOfMemory)
	o := options(t, over(t, m), 2)
	o.PinnedBytes = gp.DefaultPinnedBytes
	g := open(t, o)
	held := func() (sum uint64) {
		for _, n := range m.have {
			sum += n
		}
		return sum
	}
	require.Equal(t, gp.Stats{PinnedBytes: held()}, g.Stats(), "of a group that did nothing")
	require.EqualValues(t, 2*gp.DefaultPinnedBytes, held())

	r0, r1 := g.Ranks()[0], g.Ranks()[1]
	a, b, c := alloc(t, r0, gp.TypeUint8, 1000), alloc(t, r1, gp.TypeUint8, 1000), alloc(t, r0, gp.TypeUint8, 1000)
	must := func(w gp.Work, err error) { wait(t, w, err) }
	must(g.Copy(b, a))
	must(g.Copy(b.Sub(0, 10), a.Sub(0, 10)))
	must(g.Copy(a, b))
	must(g.Copy(c, a))
	must(g.Copy(c.Sub(0, 0), a.Sub(0, 0))) // moves nothing
	must(g.SendRecv(gp.Transfer{Dst: b.Sub(0, 7), Src: a.Sub(0, 7)}, gp.Transfer{Dst: c.Sub(0, 5), Src: a.Sub(10, 15)}))
	must(g.With(gp.CallOptions{Algorithm: gp.AlgorithmRing}).AllReduce([]gp.Buffer{a, b}, gp.Sum))
	_, err := g.Copy(a, a)
	require.ErrorIs(t, err, gp.ErrArgument) // counts for nothing

	s := g.Stats()
	require.NotZero(t, s.ScratchBytes)
	require.NotZero(t, s.PlansCached)
	require.LessOrEqual(t, s.LongWaits, s.Waits)
	want := gp.Stats{
		Copies: 4, Collectives: 2, StagedBytes: 2017, LocalBytes: 1005, CollectiveBytes: 1000, Waits: 7, PinnedBytes: held(),
		LongWaits: s.LongWaits, ScratchBytes: s.ScratchBytes, PlansCached: s.PlansCached, OperationsOpen: s.OperationsOpen,
		Pairs: []gp.PairStats{
			{From: 0, To: 0, LocalBytes: 1005},
			{From: 0, To: 1, StagedBytes: 1017},
			{From: 1, To: 0, StagedBytes: 1000},
		},
	}
	require.Equal(t, want, s)
	s.Pairs[0].LocalBytes = 0 // it is the caller's own
	require.Equal(t, want, g.Stats())

	require.NoError(t, g.Close())
	require.Zero(t, held())
	after := g.Stats()
	require.Zero(t, after.PinnedBytes)
	require.Zero(t, after.ScratchBytes)
	require.Equal(t, want.Pairs, after.Pairs)
}

// TestStatsOfFallbacks: what the driver refuses is counted where it is refused, and
// not again afterwards.
func TestStatsOfFallbacks(t *testing.T) {
	tapped, tp := gputest.Tapped(t, peeredMachine(t))
	o := options(t, tapped, 2)
	o.P2P, o.PinnedBytes = gp.P2PTrust, 0
	tp.Fail("MemHostAlloc", 1, api.OutOfMemory)
	g := open(t, o)
	require.EqualValues(t, 1, g.Stats().Retries)
	require.EqualValues(t, gp.DefaultPinnedBytes, g.Stats().PinnedBytes, "half of the budget of two ranks")
	tp.Reset()
	tp.Fail("MemcpyPeerAsync", 1, api.PeerAccessNotEnabled)
	a, b := alloc(t, g.Ranks()[0], gp.TypeInt8, 4), alloc(t, g.Ranks()[1], gp.TypeInt8, 4)
	for range 2 {
		w, err := g.Copy(b, a)
		wait(t, w, err)
		w, err = g.SendRecv(gp.Transfer{Dst: a, Src: b})
		wait(t, w, err)
	}
	s := g.Stats()
	require.EqualValues(t, 1, s.Fallbacks)
	require.EqualValues(t, 2, s.Copies)
	require.Equal(t, []gp.PairStats{{From: 0, To: 1, StagedBytes: 8}, {From: 1, To: 0, DirectBytes: 8}}, s.Pairs)
}

// TestCollectivesAfterRefusal: once the driver has refused a copy between two ranks,
// collectives do not go that way either, where they would fail in the middle.
func TestCollectivesAfterRefusal(t *testing.T) {
	tapped, tp := gputest.Tapped(t, peeredMachine(t))
	o := options(t, tapped, 2)
	o.P2P = gp.P2PTrust
	g := open(t, o)
	a, b := alloc(t, g.Ranks()[0], gp.TypeInt32, 1<<16), alloc(t, g.Ranks()[1], gp.TypeInt32, 1<<16)
	peer := g.With(gp.CallOptions{Algorithm: gp.AlgorithmPeer})
	bufs := []gp.Buffer{a, b}
	require.NoError(t, only(peer.Broadcast(bufs, a)))
	w, err := g.Broadcast(bufs, a)
	wait(t, w, err)
	tp.Fail("MemcpyPeerAsync", 1, api.PeerAccessNotEnabled)
	w, err = g.Copy(b, a)
	wait(t, w, err)
	require.EqualValues(t, 1, g.Stats().Fallbacks)
	err = only(peer.Broadcast(bufs, a))
	require.ErrorIs(t, err, gp.ErrArgument)
	require.ErrorContains(t, err, "P2P is not proven")
	w, err = g.Broadcast(bufs, a)
	require.Equal(t, string(gp.AlgorithmDirect), w.Algorithm())
	wait(t, w, err)
}

func TestStatsLogValue(t *testing.T) {
	var b bytes.Buffer
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "stats", gp.Stats{Copies: 3, PinnedBytes: 1 << 40})
	var r struct{ Stats map[string]uint64 }
	require.NoError(t, json.Unmarshal(b.Bytes(), &r))
	require.Len(t, r.Stats, 14)
	require.EqualValues(t, 3, r.Stats["copies"])
	require.Equal(t, uint64(1<<40), r.Stats["pinned_bytes"])
}

// TestStatsBesideCalls: the counters may be read while others call.
func TestStatsBesideCalls(t *testing.T) {
	g := group(t, simulated(t), 2)
	a, b := alloc(t, g.Ranks()[0], gp.TypeUint8, 100), alloc(t, g.Ranks()[1], gp.TypeUint8, 100)
	const calls = 200
	var wg sync.WaitGroup
	var last atomic.Bool
	wg.Go(func() {
		defer last.Store(true)
		for range calls {
			w, err := g.Copy(b, a)
			if err == nil {
				err = w.Wait(background)
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	seen := uint64(0)
	for !last.Load() {
		s := g.Stats()
		require.GreaterOrEqual(t, s.Copies, seen)
		require.Equal(t, 100*s.Copies, s.StagedBytes)
		seen = s.Copies
	}
	wg.Wait()
	require.EqualValues(t, calls, g.Stats().Copies)
	require.EqualValues(t, calls, g.Stats().Waits)
}

// TestObservingIsCheap: counting allocates nothing, nor does a logger whose level
// leaves the calls out (see TestNoGarbage); reading the counters takes one list.
func TestObservingIsCheap(t *testing.T) {
	testenv.SkipUnlessOptimized(t)
	g, cp, _ := idleGroupThatLogs(t, 4096, slog.NewTextHandler(new(buffer), &slog.HandlerOptions{Level: slog.LevelInfo}))
	before := g.Stats()
	require.Zero(t, testing.AllocsPerRun(100, cp))
	require.Greater(t, g.Stats().StagedBytes, before.StagedBytes)
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { g.Stats() }), 1.0)
}

// BenchmarkObserved is a copy's own time by who looks on: nobody, a logger at its
// usual level, one that wants to know of each call, and a reader of the counters
// after each copy.
func BenchmarkObserved(b *testing.B) {
	for _, c := range []struct {
		name  string
		h     slog.Handler
		stats bool
	}{
		{"by_nobody", slog.DiscardHandler, false},
		{"by_a_logger_at_info", slog.NewTextHandler(nowhere{}, nil), false},
		{"by_a_logger_at_debug", slog.NewTextHandler(nowhere{}, &slog.HandlerOptions{Level: slog.LevelDebug}), false},
		{"by_a_reader_of_stats", slog.DiscardHandler, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			g, cp, _ := idleGroupThatLogs(b, 4096, c.h)
			b.ReportAllocs()
			for b.Loop() {
				cp()
				if c.stats {
					g.Stats()
				}
			}
		})
	}
}

type nowhere struct{}

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
