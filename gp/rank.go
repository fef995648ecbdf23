// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp/internal/plan"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

type module = kernel.Module

// A Rank is one GPU's place in a group: its context, two lanes of its own (one
// from the device to host memory, one back, reductions included), its share of
// pinned host memory, and a stream that orders its buffers unless they are
// given another.
type Rank struct {
	g      *Group
	index  int
	device cuda.Device
	name   string
	cc     *cuda.Context
	ctx    api.Context
	stream *cuda.Stream
	lane   [plan.Lanes]*cuda.Stream
	lanes  [plan.Lanes]api.Stream

	pinnedBase unsafe.Pointer
	pinnedDev  []api.Ptr // by which each rank's kernels reach this rank's pinned memory
	bounce     *bounce

	// Under the group's lock.
	pinned      arena
	scratch     arena
	scratchBase api.Ptr
	fenceEvent  api.Event
	planEvents  []api.Event
	marks       []*mark // all that were made
	freeMarks   []*mark

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
	seen[uuid.String()] = index
	cc, err := dev.Primary()
	if err != nil {
		return nil, wrap(err)
	}
	r := &Rank{g: g, index: index, device: dev, name: name, cc: cc, ctx: api.Context(cc.Handle()), mem: map[*memory]struct{}{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	for l := range r.lane {
		if r.lane[l], err = cc.NewStream(); err != nil {
			return nil, wrap(err)
		}
		r.lanes[l] = api.Stream(r.lane[l].Handle())
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

// minRing is the least pinned memory for the slots.
const minRing = 1 << 20

// takePinned takes the pinned memory of all ranks: the budget of each, or an
// equal share of less where the driver refuses that, half and half again. Less
// is slower, but it works. The first rank must not leave the last one without.
func (g *Group) takePinned(op string) error {
	budget := alignUp(uint64(g.opts.PinnedBytes), arenaAlign)
	var first error
	for n := budget; ; n = max(alignUp(n/2, arenaAlign), MinPinnedBytes) {
		var err error
		for _, r := range g.ranks {
			if err = r.takePinned(op, n); err != nil {
				break
			}
		}
		if err == nil {
			if n < budget {
				g.log.Warn("gp: less pinned memory than asked for", "asked", budget, "got", n, "error", first)
			}
			return nil
		}
		for _, r := range g.ranks {
			if e := r.freePinned(); e != nil {
				return errors.Join(err, e)
			}
		}
		if !errors.Is(err, cuda.ErrOutOfMemory) && !errors.Is(err, cuda.ErrOperatingSystem) && !errors.Is(err, cuda.ErrInvalidValue) {
			return err
		}
		if first == nil {
			first = err
		}
		if n == MinPinnedBytes {
			return &Error{op, -1, fmt.Errorf("the driver gives no pinned host memory, not even %d bytes a rank where %d are the budget: look at RLIMIT_MEMLOCK (ulimit -l), "+
				"the cgroup's memory.max and, on Windows, the share of RAM that WDDM pins: %w", n, budget, first)}
		}
	}
}

// takePinned takes n bytes for the rank: the bounce, and the rest for the slots.
func (r *Rank) takePinned(op string, n uint64) (err error) {
	if r.bounce, err = newBounce(r.cc); err != nil {
		return &Error{op, r.index, err}
	}
	n -= 2 * bounceHalf
	call, c := r.bound(func(d api.Driver) (string, api.Code) {
		p, c := d.MemHostAlloc(n, api.HostPortable|api.HostDeviceMap)
		if c == api.Success {
			r.pinnedBase, r.pinned.size = p, n
		}
		return "cuMemHostAlloc", c
	})
	if c != api.Success {
		return r.g.callError(op, r, call, c)
	}
	return nil
}

// freePinned gives back what takePinned took. Nothing uses it any more.
func (r *Rank) freePinned() error {
	var errs []error
	if r.pinnedBase != nil {
		call, c := r.bound(func(d api.Driver) (string, api.Code) { return "cuMemFreeHost", d.MemFreeHost(r.pinnedBase) })
		if c != api.Success {
			errs = append(errs, r.g.callError("close", r, call, c))
		}
		r.pinnedBase, r.pinned.size = nil, 0
	}
	if r.bounce != nil {
		r.g.relaxed(func() { errs = append(errs, r.bounce.close()) })
	}
	return errors.Join(errs...)
}

// mapPinned asks, for each pair, by which address a rank's kernels reach
// another's pinned memory. It is not assumed to be the host address.
func (g *Group) mapPinned() error {
	for _, owner := range g.ranks {
		owner.pinnedDev = make([]api.Ptr, len(g.ranks))
	}
	for _, reader := range g.ranks {
		call, c := reader.bound(func(d api.Driver) (string, api.Code) {
			for _, owner := range g.ranks {
				p, c := d.MemHostGetDevicePointer(owner.pinnedBase)
				if c != api.Success {
					return "cuMemHostGetDevicePointer", c
				}
				owner.pinnedDev[reader.index] = p
			}
			return "", api.Success
		})
		if c != api.Success {
			return g.callError("open", reader, call, c)
		}
	}
	return nil
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
// A lost context answers at once.
func (r *Rank) quiesce() error {
	var errs []error
	for _, s := range []*cuda.Stream{r.lane[0], r.lane[1], r.stream} {
		errs = append(errs, s.Synchronize())
	}
	if r.bounce != nil {
		// A transfer that was given up may have left a copy on a caller's stream.
		for i, busy := range r.bounce.busy {
			if busy {
				errs = append(errs, r.bounce.ev[i].Synchronize())
			}
		}
	}
	return errors.Join(errs...)
}

// close frees all that the rank holds, in the reverse order of its making. The
// first error is kept and freeing goes on.
func (r *Rank) close() error {
	var errs []error
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
	call, c := r.bound(func(d api.Driver) (string, api.Code) {
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
	if c != api.Success {
		errs = append(errs, r.g.callError("close", r, call, c))
	}
	r.marks, r.freeMarks, r.planEvents, r.fenceEvent, r.scratchBase = nil, nil, nil, 0, 0
	errs = append(errs, r.freePinned())
	for _, s := range []*cuda.Stream{r.stream, r.lane[1], r.lane[0]} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	errs = append(errs, r.cc.Close())
	return errors.Join(errs...)
}
