// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp/internal/plan"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
	"github.com/geforce-p2p/geforce-p2p/ptx"
)

// A Group is a set of ranks that exchange data. It is safe for concurrent use:
// calls take effect in the order in which they take the group's lock, and
// return when their work is enqueued.
type Group struct {
	Ops

	drv     *cuda.Driver
	api     api.Driver
	host    api.Host
	log     *slog.Logger // by way of logs
	debug   bool         // log says what each call does
	logs    logQueue
	opts    Options
	kernels *ptx.Loader
	ranks   []*Rank
	gates   []*gate // of their GPUs
	blocks  []*block
	// oneBlock says that the ranks' pinned memory lies in one block, stride bytes
	// from rank to rank.
	oneBlock bool
	stride   uint64
	p2p      [][]direction // [source][destination]
	allPeers bool          // between all pairs, both ways
	peerRate float64       // bytes a second of the slowest of them
	rate     float64       // bytes a second of the slowest link one way; 0: not known
	share    int           // the most ranks on one link, which are those of one GPU

	// closing is set first, so that calls that wait for the lock see it.
	closing atomic.Bool
	closed  chan struct{} // closed when Close has freed all
	failure atomic.Pointer[failure]

	mu     sync.Mutex // orders enqueueing; guards all below
	plans  map[planKey]*program
	latest latest
	code   int // instructions of all plans
	// Of SendRecv: the latest first, and the shape of the one in progress.
	batches   []batch
	transfers []plan.Transfer
	rankings  map[rankingKey][]estimate
	runs      uint64
	run       run
	stats     counters

	exchanges exchanges
	patience  atomic.Int64 // while the group closes, the host's time at which kernels are told to give up

	ops     operations
	waiters waiters
	joins   joins
}

// Open makes a group. It retains each GPU's primary context, allocates the
// ranks' pinned host memory, and proves P2P where the driver claims it.
func Open(o Options) (*Group, error) {
	const op = "open"
	if o.PinnedBytes == 0 {
		o.PinnedBytes = DefaultPinnedBytes
	}
	if o.PinnedBytes < MinPinnedBytes {
		return nil, argument(op, -1, "PinnedBytes is %d: the least is %d", o.PinnedBytes, MinPinnedBytes)
	}
	if o.P2P > P2PTrust {
		return nil, argument(op, -1, "P2P mode %d is not known", o.P2P)
	}
	if o.PerCopy < 0 {
		return nil, argument(op, -1, "PerCopy is %v", o.PerCopy)
	}
	if err := o.environment(); err != nil {
		return nil, argument(op, -1, "%w", err)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	drv := o.Driver
	if drv == nil {
		var err error
		if drv, err = cuda.Open(); err != nil {
			return nil, &Error{op, -1, err}
		}
	}
	ordinals := o.Devices
	if ordinals == nil {
		n, err := drv.DeviceCount()
		if err != nil {
			return nil, &Error{op, -1, err}
		}
		for i := range n {
			ordinals = append(ordinals, i)
		}
	}
	if len(ordinals) == 0 {
		return nil, argument(op, -1, "no devices")
	}
	if len(ordinals) > MaxRanks {
		return nil, argument(op, -1, "%d ranks: the most is %d", len(ordinals), MaxRanks)
	}
	g := &Group{drv: drv, opts: o, plans: map[planKey]*program{}, closed: make(chan struct{})}
	g.Ops.g = g
	g.api = hook.Seam(drv)
	g.host = g.api.Host()
	g.waiters.g = g
	g.run.g, g.run.api, g.run.bind.api = g, g.api, g.api
	g.log = g.logs.logger(o.Logger)
	defer g.logs.flush()
	g.kernels = ptx.New(drv, ptx.Options{Logger: g.log})
	var err error
	g.relaxed(func() { err = g.openRanks(op, ordinals) })
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	g.debug = g.log.Enabled(context.Background(), slog.LevelDebug)
	g.proveP2P()
	if err := g.Err(); err != nil {
		// P2P is timed by copies like any other, and one that is cut off in the middle
		// leaves its streams in no known order.
		return nil, errors.Join(err, g.Close())
	}
	g.survey()
	g.stats.begin(len(g.ranks))
	g.joins.init(len(g.ranks))
	return g, nil
}

func (g *Group) openRanks(op string, ordinals []int) error {
	seen := map[string]int{}
	for i, ord := range ordinals {
		r, err := openRank(g, i, ord, seen)
		if err != nil {
			return err
		}
		g.ranks = append(g.ranks, r)
	}
	if err := g.needGates(); err != nil {
		return err
	}
	return g.takePinned(op)
}

// survey sums up what the cost model needs of the ranks.
func (g *Group) survey() {
	g.allPeers = len(g.ranks) > 1
	for i, r := range g.ranks {
		if i == 0 || r.rate < g.rate {
			g.rate = r.rate
		}
		on := 0
		for j, o := range g.ranks {
			if r.ctx == o.ctx {
				on++
			}
			if i == j {
				continue
			}
			d := g.p2p[i][j]
			g.allPeers = g.allPeers && d.use
			if d.rate > 0 && (g.peerRate == 0 || d.rate < g.peerRate) {
				g.peerRate = d.rate
			}
		}
		g.share = max(g.share, on)
	}
}

// MaxRanks is the most ranks of a group.
const MaxRanks = 16

// Ranks are the group's ranks, in order.
func (g *Group) Ranks() []*Rank { return append([]*Rank(nil), g.ranks...) }

// Driver is the driver that the group works with.
func (g *Group) Driver() *cuda.Driver { return g.drv }

// Now is the machine's clock: time since some fixed point, monotonic. On a
// simulated machine it is virtual, and the only clock that means anything.
func (g *Group) Now() time.Duration { return g.host.Now() }

// lock takes the group's lock and then the thread, in that order: a goroutine
// that waits while it is locked to a thread costs a thread hand-over.
func (g *Group) lock() {
	g.mu.Lock()
	runtime.LockOSThread()
}

func (g *Group) unlock() {
	runtime.UnlockOSThread()
	g.mu.Unlock()
	g.logs.flush()
}

// Synchronize waits until all work that was enqueued before it has run, or ctx
// is done; the work goes on then.
func (g *Group) Synchronize(ctx context.Context) error {
	const op = "synchronize"
	if err := g.usable(op); err != nil {
		return err
	}
	for _, w := range g.ops.pending(g) {
		if err := w.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// function is a kernel of a rank, loaded if it is not.
func (g *Group) function(r *Rank, m module, entry string) (api.Function, error) {
	f, err := g.kernels.Function(r.cc, m, entry)
	if err != nil {
		return 0, err
	}
	return api.Function(f.Handle()), nil
}

// closeGrace is how long Close waits for kernels that wait for each other before it
// has them give up. What they wait for may be behind what a caller's stream waits
// for, and never come.
const closeGrace = time.Second

// Close waits for what is in flight, then frees what the group holds, buffers
// from Alloc included. It is idempotent. Kernels that wait for each other are
// given a second for it, and then give up. What a group that has failed was still
// doing is waited for as well, and what comes of it is not reported again.
func (g *Group) Close() error {
	if g.closing.Swap(true) {
		<-g.closed
		return nil
	}
	defer g.logs.flush()
	defer close(g.closed)
	g.joins.end(fmt.Errorf("group: %w", ErrClosed))
	g.patience.Store(int64(g.host.Now() + closeGrace))
	var errs []error
	for _, w := range g.ops.pending(g) {
		if err := w.Wait(context.Background()); err != nil {
			errs = append(errs, err)
			break
		}
	}
	for _, r := range g.ranks {
		// Transfers notice that the group closes and let go of their bounce. Who
		// waits for it behind them finds that out when it is let go of here. A
		// transfer takes the group's lock while it has its bounce, and so in this
		// order here too.
		if r.bounce != nil {
			r.bounce.turn <- struct{}{}
			defer func() { <-r.bounce.turn }()
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.dropGates()
	failed := g.Err() != nil
	g.relaxed(func() {
		for _, r := range g.ranks {
			errs = append(errs, r.quiesce())
			if failed {
				// The call that failed in the middle may have left work on the
				// callers' streams that uses the pinned memory.
				_ = r.cc.Synchronize()
			}
		}
		if failed {
			errs = nil
		}
		g.ops.closed()
		for _, r := range g.ranks {
			errs = append(errs, r.close())
		}
		errs = append(errs, g.kernels.Close(), g.freePinned())
		for _, r := range g.ranks {
			if err := r.cc.Close(); err != nil {
				errs = append(errs, &Error{"close", r.index, err})
			}
		}
	})
	return closeError(errs)
}

// closeError is the errors of closing as one, of the rank of the first.
func closeError(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	var first *Error
	switch {
	case len(errs) == 0:
		return nil
	case !errors.As(errs[0], &first):
		return &Error{"close", -1, errors.Join(errs...)}
	case len(errs) == 1:
		return first
	}
	return &Error{"close", first.Rank, errors.Join(errs...)}
}
