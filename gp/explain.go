// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"time"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/gp/internal/plan"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// An Explanation is what a call would do: see CallOptions.Explain. Slices are by
// rank of the group.
type Explanation struct {
	Op string
	// Route is a copy's, Algorithm a collective's. Why says in a sentence what
	// the choice rests on.
	Route     Route
	Algorithm Algorithm
	Why       string
	// Estimates are what the cost model expects of a collective's algorithms.
	Estimates map[Algorithm]time.Duration
	// Chunk is the bytes of a piece and Slots the pieces in flight. A call of one
	// piece runs on the buffers' own streams, without the ranks' lanes.
	Chunk, Slots int
	OwnStreams   bool
	// DriverCalls is how many calls of the driver it takes to enqueue once events
	// and kernels are there, if nothing is still under way that must be waited for.
	// The others are those among them: events recorded, and waits for events.
	DriverCalls                     int
	Copies, Kernels, Records, Waits int
	// Bytes that cross each rank's link to the host and from it, that leave it for
	// a peer, and that stay in its memory.
	D2H, H2D, Peer, Local []uint64
	// Bytes of pinned host memory and of device scratch that it takes of each rank.
	Pinned, Scratch []uint64
}

// explain fills in what a run of a plan would do. The run's ranks, addresses and
// streams are set. The group's lock is held.
func (g *Group) explain(e *Explanation, x *run, p *plan.Plan, why string) {
	s := plan.Describe(p)
	n := len(g.ranks)
	*e = Explanation{
		Op: x.op, Why: why, Chunk: int(p.Chunk), Slots: p.Slots, OwnStreams: x.prog.inline,
		D2H: make([]uint64, n), H2D: make([]uint64, n), Peer: make([]uint64, n), Local: make([]uint64, n),
		Pinned: make([]uint64, n), Scratch: make([]uint64, n),
	}
	for r, rk := range x.rank {
		i := rk.index
		e.D2H[i] += s.D2H[r]
		e.H2D[i] += s.H2D[r]
		e.Peer[i] += s.Peer[r]
		e.Local[i] += s.Local[r]
		e.Pinned[i] += p.HostBytes[r]
		e.Scratch[i] += p.ScratchBytes[r]
	}
	e.count(g.dry(x, func(o *operation) { _, _ = g.execute(x, o) }))
}

// explainExchange is explain of kernels that wait for each other.
func (g *Group) explainExchange(e *Explanation, x *run, c *call) {
	n := len(g.ranks)
	*e = Explanation{
		Op: x.op, OwnStreams: true,
		D2H: make([]uint64, n), H2D: make([]uint64, n), Peer: make([]uint64, n), Local: make([]uint64, n),
		Pinned: make([]uint64, n), Scratch: make([]uint64, n),
	}
	bytes := uint64(c.count) * uint64(c.typ.Size())
	up, down := bytes, uint64(n-1)*bytes
	if x.kind == kernel.TwoShot || x.kind == kernel.TwoShotLL {
		down = 2 * uint64(n-1) * bytes / uint64(n)
	}
	if x.kind != kernel.TwoShot { // a word of flag for each word of data
		up, down = 2*up, 2*down
	}
	for r, rk := range g.ranks {
		e.D2H[r], e.H2D[r], e.Pinned[r] = up, down, g.area()
		e.OwnStreams = e.OwnStreams && (!rk.shared || x.stream[r] == api.Stream(rk.stream.Handle()))
	}
	e.count(g.dry(x, func(o *operation) { _, _ = g.execute(x, o) }))
}

// explainOrder is explain of a call that moves nothing and orders streams.
func (g *Group) explainOrder(e *Explanation, x *run, hub int) {
	n := len(g.ranks)
	*e = Explanation{
		Op: x.op, Why: "nothing to move: the streams are ordered",
		D2H: make([]uint64, n), H2D: make([]uint64, n), Peer: make([]uint64, n), Local: make([]uint64, n),
		Pinned: make([]uint64, n), Scratch: make([]uint64, n),
	}
	e.count(g.dry(x, func(o *operation) { g.orderCalls(x, hub, o) }))
}

// dry goes through the motions of a run on a driver that counts calls and makes
// none, so that what is said of a run is what a run does.
func (g *Group) dry(x *run, f func(o *operation)) *counter {
	c := &counter{}
	x.api, x.bind.api, x.dry = c, c, true
	defer func() { x.api, x.bind.api, x.dry = g.api, g.api, false }()
	_ = g.refuseCapture(x)
	f(&operation{g: g})
	x.bind.restore()
	return c
}

// add adds the calls of another explanation.
func (e *Explanation) add(o *Explanation) {
	e.DriverCalls, e.Copies, e.Kernels, e.Records, e.Waits = e.DriverCalls+o.DriverCalls, e.Copies+o.Copies, e.Kernels+o.Kernels, e.Records+o.Records, e.Waits+o.Waits
}

func (e *Explanation) count(c *counter) {
	e.DriverCalls, e.Copies, e.Kernels, e.Records, e.Waits = c.others+c.copies+c.kernels+c.records+c.waits, c.copies, c.kernels, c.records, c.waits
}

// A counter is a driver that does nothing, for the calls that a run makes. The
// others are nil, and a run that makes one panics.
type counter struct {
	api.Driver
	copies, kernels, records, waits, others int
}

func count(n *int) api.Code { *n++; return api.Success }

func (c *counter) CtxGetCurrent() (api.Context, api.Code)         { return 0, count(&c.others) }
func (c *counter) CtxSetCurrent(api.Context) api.Code             { return count(&c.others) }
func (c *counter) CtxPushCurrent(api.Context) api.Code            { return count(&c.others) }
func (c *counter) CtxPopCurrent() (api.Context, api.Code)         { return 0, count(&c.others) }
func (c *counter) EventRecord(api.Event, api.Stream) api.Code     { return count(&c.records) }
func (c *counter) StreamWaitEvent(api.Stream, api.Event) api.Code { return count(&c.waits) }
func (c *counter) StreamIsCapturing(api.Stream) (api.CaptureStatus, api.Code) {
	return api.CaptureNone, count(&c.others)
}
func (c *counter) MemcpyDtoHAsync(unsafe.Pointer, api.Ptr, uint64, api.Stream) api.Code {
	return count(&c.copies)
}
func (c *counter) MemcpyHtoDAsync(api.Ptr, unsafe.Pointer, uint64, api.Stream) api.Code {
	return count(&c.copies)
}
func (c *counter) MemcpyDtoDAsync(api.Ptr, api.Ptr, uint64, api.Stream) api.Code {
	return count(&c.copies)
}
func (c *counter) MemcpyPeerAsync(api.Ptr, api.Context, api.Ptr, api.Context, uint64, api.Stream) api.Code {
	return count(&c.copies)
}
func (c *counter) Memcpy2DAsync(*api.Copy2D, api.Stream) api.Code  { return count(&c.copies) }
func (c *counter) LaunchKernel(api.Function, *api.Launch) api.Code { return count(&c.kernels) }
