// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp/internal/plan"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

type module = kernel.Module

// A Rank is one GPU's place in a group: its context, two lanes of its own (one
// from the device to host memory, one back, with reductions on either), its
// share of pinned host memory, and a stream that orders its buffers unless they
// are given another.
type Rank struct {
	RankOps

	g      *Group
	index  int
	device cuda.Device
	name   string
	cc     *cuda.Context
	ctx    api.Context
	stream *cuda.Stream
	lane   [plan.Lanes]*cuda.Stream // those of copies; others once they are needed, that of the joins on rank 0 only
	lanes  [plan.Lanes]api.Stream

	shared bool    // another rank is on the same GPU
	node   int     // the NUMA node of the GPU, or anyNode
	rate   float64 // bytes a second that its link can carry one way; 0: not known

	block      *block // where the rank's pinned memory is, from blockOff on
	blockOff   uint64
	pinnedBase unsafe.Pointer
	bounce     *bounce

	// Under the group's lock.
	pinned      arena
	scratch     arena
	scratchBase api.Ptr
	fenceEvent  api.Event
	planEvents  []api.Event
	marks       []*mark // all that were made
	freeMarks   []*mark
	recorded    [ownStreams]uint64 // marks, by stream of the rank's own: see mark
	reached     [ownStreams]atomic.Uint64

	memMu   sync.Mutex
	mem     map[*memory]struct{} // from Alloc, not freed
	orphans []orphan
}

// Index is the rank's number in its group.
func (r *Rank) Index() int { return r.index }

// Group is the rank's group.
func (r *Rank) Group() *Group { return r.g }

// Device is the rank's GPU.
func (r *Rank) Device() cuda.Device { return r.device }

// Name is the GPU's name: "NVIDIA GeForce RTX 4090".
func (r *Rank) Name() string { return r.name }

// Context is the primary context of the rank's GPU. Do not close it.
func (r *Rank) Context() *cuda.Context { return r.cc }

// Stream is the stream that orders the buffers of Alloc and Upload unless On
// says otherwise: non-blocking, the rank's own.
func (r *Rank) Stream() *cuda.Stream { return r.stream }

// queue is the rank's own stream as the seam has it.
func (r *Rank) queue() api.Stream { return api.Stream(r.stream.Handle()) }

// openRank retains the device's primary context and makes what a rank needs.
// seen maps the UUIDs of the ranks so far to their index.
func openRank(g *Group, index, ordinal int, seen map[string]int) (_ *Rank, err error) {
	const op = "open"
	wrap := func(err error) error { return &Error{op, index, err} }
	dev, err := g.drv.Device(ordinal)
	if err != nil {
		return nil, wrap(err)
	}
	name, err := dev.Name()
	if err != nil {
		return nil, wrap(err)
	}
	uuid, err := dev.UUID()
	if err != nil {
		return nil, wrap(err)
	}
	if first, twice := seen[uuid.String()]; twice && !g.opts.AllowSameGPU {
		return nil, argument(op, index, "GPU %d (%s) is already rank %d: Options.AllowSameGPU permits it", ordinal, name, first)
	}
	first, shared := seen[uuid.String()]
	if shared {
		g.ranks[first].shared = true
	} else {
		seen[uuid.String()] = index
	}
	cc, err := dev.Primary()
	if err != nil {
		return nil, wrap(err)
	}
	r := &Rank{g: g, index: index, device: dev, name: name, cc: cc, ctx: api.Context(cc.Handle()), shared: shared, mem: map[*memory]struct{}{}}
	r.RankOps.r = r
	r.locate()
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close(), r.cc.Close())
		}
	}()
	for _, l := range [...]plan.Lane{plan.LaneOut, plan.LaneIn} {
		if err = r.openLane(l); err != nil {
			return nil, wrap(err)
		}
	}
	if r.stream, err = cc.NewStream(); err != nil {
		return nil, wrap(err)
	}
	call, c := r.bound(func(d api.Driver) (string, api.Code) {
		ev, c := d.EventCreate(api.EventDisableTiming)
		r.fenceEvent = ev
		return "cuEventCreate", c
	})
	if c != api.Success {
		return nil, g.callError(op, r, call, c)
	}
	return r, nil
}

// openLane makes a lane's stream.
func (r *Rank) openLane(l plan.Lane) (err error) {
	if r.lane[l], err = r.cc.NewStream(); err == nil {
		r.lanes[l] = api.Stream(r.lane[l].Handle())
	}
	return err
}

// needScratch allocates the rank's device scratch before its first use. The
// group's lock is held.
func (r *Rank) needScratch(x *run) error {
	if r.scratchBase != 0 {
		return nil
	}
	n := alignUp(uint64(r.g.opts.PinnedBytes), arenaAlign)
	call, c := r.bound(func(d api.Driver) (string, api.Code) {
		p, c := d.MemAlloc(n)
		if c == api.Success {
			r.scratchBase, r.scratch.size = p, n
		}
		return "cuMemAlloc", c
	})
	if c != api.Success {
		return r.g.callError(x.op, r, call, c)
	}
	return nil
}

// quiesce waits until the rank's streams are idle and its bounce is not in use.
// A lost context answers at once, by its first error.
func (r *Rank) quiesce() error {
	var errs []error
	for _, s := range append(slices.Clone(r.lane[:]), r.stream) {
		if s != nil {
			errs = append(errs, s.Synchronize())
		}
	}
	if r.bounce != nil {
		// A transfer that was given up may have left a copy on a caller's stream.
		for i, busy := range r.bounce.busy {
			if busy {
				errs = append(errs, r.bounce.ev[i].Synchronize())
			}
		}
	}
	for _, err := range errs {
		if err != nil {
			return r.g.rankError("close", r, err)
		}
	}
	return nil
}

// close frees all that the rank holds of its own, in the reverse order of its
// making: all but its pinned memory, which is the group's, and its context. The
// first error is kept and freeing goes on.
func (r *Rank) close() error {
	errs := []error{r.g.kernels.Release(r.cc)}
	r.memMu.Lock()
	for m := range r.mem {
		m.freed.Store(true)
		m.settle()
		errs = append(errs, m.mem.Close())
	}
	for _, o := range r.orphans {
		errs = append(errs, o.ev.Close())
	}
	r.mem, r.orphans = nil, nil
	r.memMu.Unlock()
	call, c := r.boundToFree(func(d api.Driver) (string, api.Code) {
		var call string
		var first api.Code
		keep := func(what string, c api.Code) {
			if first == api.Success && c != api.Success {
				call, first = what, c
			}
		}
		for _, m := range r.marks {
			keep("cuEventDestroy", d.EventDestroy(m.ev))
		}
		for _, ev := range r.planEvents {
			keep("cuEventDestroy", d.EventDestroy(ev))
		}
		if r.fenceEvent != 0 {
			keep("cuEventDestroy", d.EventDestroy(r.fenceEvent))
		}
		if r.scratchBase != 0 {
			keep("cuMemFree", d.MemFree(r.scratchBase))
		}
		return call, first
	})
	// What a lost context answers was reported by the call that found the loss.
	if c != api.Success && r.cc.Err() == nil {
		errs = append(errs, hook.Error(r.g.drv, r.cc, call, c))
	}
	r.marks, r.freeMarks, r.planEvents, r.fenceEvent, r.scratchBase = nil, nil, nil, 0, 0
	for _, s := range [...]*cuda.Stream{r.stream, r.lane[plan.LaneFold], r.lane[plan.LaneJoin], r.lane[plan.LaneIn], r.lane[plan.LaneOut]} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return &Error{"close", r.index, err}
	}
	return nil
}
