// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"fmt"
	"slices"
	"sort"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// A trace is what some callers have enqueued, in the order of the calls: enough
// to tell, without running any of it again, which bytes would be raced for if
// one wait were missing. It knows nothing of the simulator's own race detector,
// nor of how a group keeps track of its memory: only calls that were made.
//
// All streams must be non-blocking, or the legacy default stream beside such
// ones, and nothing may wait for the device: then a stream's order, records and
// waits are all the order that there is.
type trace struct {
	ops     []op
	queues  map[queue]int
	records map[api.Event]int // the latest record: an index of ops
	entries map[api.Function]string
	pinned  []touch // host memory that kernels may reach
	mapped  []mapping
	gang    []member // of an exchange that is being launched
	call    int      // which the callers are at
	whole   bool     // none of its waits is left out
	waits   int      // of the group's
	blind   error    // what the trace does not understand
}

// queue is a stream. The legacy default stream has the same handle in each context.
type queue struct {
	cc api.Context
	s  api.Stream
}

// An op is one command.
type op struct {
	queue   int
	call    int
	after   int   // of a wait: the record that it waits for, else -1
	joins   []int // of the end of a kernel that waits for others: their begins, its own included
	wait    int   // of a wait of the group's: its number from 1 on
	record  bool
	touches []touch
}

// A touch is bytes [lo, hi) that an op reads or writes. Host memory goes by its
// host address, which no device address is like.
type touch struct {
	lo, hi uint64
	write  bool
}

// mapping is pinned memory and the address by which kernels know it.
type mapping struct{ dev, host, n uint64 }

// A member is one launch of kernels that wait for each other.
type member struct {
	x     kernel.Exchange
	queue int
	begin int // its op
	peers []touch
}

func newTrace() *trace {
	return &trace{queues: map[queue]int{}, records: map[api.Event]int{}, entries: map[api.Function]string{}}
}

// traced is a driver whose calls a trace takes down. The group has one and the
// test another.
type traced struct {
	api.Driver
	t     *trace
	group bool
}

func (d *traced) queue(s api.Stream) int {
	q := queue{s: s}
	switch s {
	case api.StreamNull, api.StreamLegacy:
		q.s = api.StreamLegacy
		q.cc, _ = d.Driver.CtxGetCurrent()
	}
	n, ok := d.t.queues[q]
	if !ok {
		n = len(d.t.queues)
		d.t.queues[q] = n
	}
	return n
}

// enqueued takes down a command that the driver has taken.
func (d *traced) enqueued(c api.Code, s api.Stream, o op) api.Code {
	if c == api.Success {
		o.queue, o.call = d.queue(s), d.t.call
		d.t.ops = append(d.t.ops, o)
	}
	return c
}

func (t *trace) device(p api.Ptr, n uint64, write bool) touch {
	return touch{uint64(p), uint64(p) + n, write}
}

func (t *trace) host(p unsafe.Pointer, n uint64, write bool) touch {
	return touch{uint64(uintptr(p)), uint64(uintptr(p)) + n, write}
}

// reached is what a kernel touches: host memory under its host address.
func (t *trace) reached(p, n uint64, write bool) touch {
	for _, m := range t.mapped {
		if p >= m.dev && p-m.dev < m.n {
			p = p - m.dev + m.host
			break
		}
	}
	return touch{p, p + n, write}
}

func (d *traced) MemHostAlloc(n uint64, flags api.HostAllocFlag) (unsafe.Pointer, api.Code) {
	p, c := d.Driver.MemHostAlloc(n, flags)
	if c == api.Success {
		d.t.pinned = append(d.t.pinned, d.t.host(p, n, true))
	}
	return p, c
}

func (d *traced) MemHostGetDevicePointer(p unsafe.Pointer) (api.Ptr, api.Code) {
	dev, c := d.Driver.MemHostGetDevicePointer(p)
	at := uint64(uintptr(p))
	if i := slices.IndexFunc(d.t.pinned, func(x touch) bool { return x.lo <= at && at < x.hi }); c == api.Success && i >= 0 {
		d.t.mapped = append(d.t.mapped, mapping{uint64(dev), at, d.t.pinned[i].hi - at})
	}
	return dev, c
}

func (d *traced) ModuleGetFunction(m api.Module, name string) (api.Function, api.Code) {
	f, c := d.Driver.ModuleGetFunction(m, name)
	if c == api.Success {
		d.t.entries[f] = name
	}
	return f, c
}

func (d *traced) StreamCreate(f api.StreamFlag) (api.Stream, api.Code) {
	if f != api.StreamNonBlocking {
		d.t.blind = fmt.Errorf("a blocking stream")
	}
	return d.Driver.StreamCreate(f)
}

func (d *traced) EventRecord(e api.Event, s api.Stream) api.Code {
	d.t.records[e] = len(d.t.ops)
	return d.enqueued(d.Driver.EventRecord(e, s), s, op{after: -1, record: true})
}

func (d *traced) StreamWaitEvent(s api.Stream, e api.Event) api.Code {
	o := op{after: -1}
	if r, ok := d.t.records[e]; ok {
		o.after = r
	}
	if d.group && !d.t.whole {
		d.t.waits++
		o.wait = d.t.waits
	}
	return d.enqueued(d.Driver.StreamWaitEvent(s, e), s, o)
}

func (d *traced) MemcpyHtoDAsync(dst api.Ptr, src unsafe.Pointer, n uint64, s api.Stream) api.Code {
	return d.enqueued(d.Driver.MemcpyHtoDAsync(dst, src, n, s), s, op{after: -1, touches: []touch{d.t.host(src, n, false), d.t.device(dst, n, true)}})
}

func (d *traced) MemcpyDtoHAsync(dst unsafe.Pointer, src api.Ptr, n uint64, s api.Stream) api.Code {
	return d.enqueued(d.Driver.MemcpyDtoHAsync(dst, src, n, s), s, op{after: -1, touches: []touch{d.t.device(src, n, false), d.t.host(dst, n, true)}})
}

func (d *traced) MemcpyDtoDAsync(dst, src api.Ptr, n uint64, s api.Stream) api.Code {
	return d.enqueued(d.Driver.MemcpyDtoDAsync(dst, src, n, s), s, op{after: -1, touches: []touch{d.t.device(src, n, false), d.t.device(dst, n, true)}})
}

func (d *traced) MemcpyPeerAsync(dst api.Ptr, dctx api.Context, src api.Ptr, sctx api.Context, n uint64, s api.Stream) api.Code {
	return d.enqueued(d.Driver.MemcpyPeerAsync(dst, dctx, src, sctx, n, s), s, op{after: -1, touches: []touch{d.t.device(src, n, false), d.t.device(dst, n, true)}})
}

func (d *traced) Memcpy2DAsync(c *api.Copy2D, s api.Stream) api.Code {
	var ts []touch
	for i := range c.Height {
		row := func(host unsafe.Pointer, dev api.Ptr, pitch uint64, write bool) touch {
			if host != nil {
				return d.t.host(unsafe.Add(host, i*pitch), c.Width, write)
			}
			return d.t.device(dev+api.Ptr(i*pitch), c.Width, write)
		}
		ts = append(ts, row(c.SrcHost, c.SrcDevice, c.SrcPitch, false), row(c.DstHost, c.DstDevice, c.DstPitch, true))
	}
	return d.enqueued(d.Driver.Memcpy2DAsync(c, s), s, op{after: -1, touches: ts})
}

func (d *traced) LaunchKernel(f api.Function, l *api.Launch) api.Code {
	o := op{after: -1}
	entry := d.t.entries[f]
	if x, typ, ok := kernel.ParseCoop(entry, l.Params); ok {
		c := d.Driver.LaunchKernel(f, l)
		if c == api.Success && x.Kind != kernel.Handshake { // which the group waits for on the spot
			d.exchanged(x, typ, l.Stream)
		}
		return c
	}
	typ, _, ok := kernel.ParseEntry(entry)
	p, parsed := kernel.ParseFold(l.Params)
	if !ok || !parsed {
		d.t.blind = fmt.Errorf("kernel %q", entry)
		return d.enqueued(d.Driver.LaunchKernel(f, l), l.Stream, o)
	}
	bytes := func(wide bool) uint64 {
		if wide {
			return p.Count * uint64(typ.Wide().Size())
		}
		return p.Count * uint64(typ.Size())
	}
	for k, in := range p.In[:p.N] {
		o.touches = append(o.touches, d.t.reached(in, bytes(p.InWide>>k&1 != 0), false))
	}
	o.touches = append(o.touches, d.t.reached(p.Dst, bytes(p.DstWide), true))
	return d.enqueued(d.Driver.LaunchKernel(f, l), l.Stream, o)
}

// exchanged takes down a kernel that waits for others, as up to three ops: it
// writes its own area when it has begun, its own memory is in use until it ends,
// and the peers' areas are read when all have begun. What follows it is behind
// all that.
func (d *traced) exchanged(x kernel.Exchange, typ gp.Type, s api.Stream) {
	t := d.t
	if len(t.gang) > 0 && (t.gang[0].x.Area != x.Area || t.gang[0].x.Epoch != x.Epoch) {
		t.blind = fmt.Errorf("an exchange of %d ranks with %d of them", t.gang[0].x.N, len(t.gang))
	}
	m := member{x: x, queue: d.queue(s), begin: len(t.ops)}
	begin, end := op{after: -1}, op{after: -1}
	for i, area := range x.Area[:x.N] {
		for _, part := range x.Touched(typ) {
			if uint64(i) == x.Rank {
				begin.touches = append(begin.touches, t.reached(area+part.Off, part.Bytes, true))
			} else {
				m.peers = append(m.peers, t.reached(area+part.Off, part.Bytes, false))
			}
		}
	}
	in, out := x.Bytes(typ)
	end.touches = []touch{t.reached(x.In, in, false), t.reached(x.Out, out, true)}
	d.enqueued(api.Success, s, begin)
	d.enqueued(api.Success, s, end)
	if t.gang = append(t.gang, m); uint64(len(t.gang)) < x.N {
		return
	}
	var begins []int
	for _, m := range t.gang {
		begins = append(begins, m.begin)
	}
	for _, m := range t.gang {
		t.ops = append(t.ops, op{queue: m.queue, call: t.call, after: -1, joins: begins, touches: m.peers})
	}
	t.gang = nil
}

// A pair is two ops of different streams, by index, that touch a byte in common
// which one of them writes.
type pair struct{ first, second int }

// conflicts finds all pairs.
func (t *trace) conflicts() []pair {
	type at struct {
		touch
		op int
	}
	var all []at
	for i, o := range t.ops {
		for _, x := range o.touches {
			if x.lo < x.hi {
				all = append(all, at{x, i})
			}
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].lo < all[j].lo })
	found := map[pair]bool{}
	var open []at
	for _, x := range all {
		open = slices.DeleteFunc(open, func(o at) bool { return o.hi <= x.lo })
		for _, o := range open {
			if (o.write || x.write) && t.ops[o.op].queue != t.ops[x.op].queue {
				found[pair{min(o.op, x.op), max(o.op, x.op)}] = true
			}
		}
		open = append(open, x)
	}
	ps := make([]pair, 0, len(found))
	for p := range found {
		ps = append(ps, p)
	}
	return ps
}

// order is what each op knows to have happened when it begins, by queue: the
// index of the last such op, plus one.
type order [][]int32

// order works it out, without the group's k-th wait if k is not 0. How far its
// memory goes is reused.
func (t *trace) order(k int, was order) order {
	n := len(t.queues)
	known := make([][]int32, n)
	for q := range known {
		known[q] = make([]int32, n)
	}
	if was == nil {
		was = make(order, len(t.ops))
	}
	for i := range t.ops {
		o := &t.ops[i]
		mine := known[o.queue]
		if o.after >= 0 && (k == 0 || o.wait != k) {
			for q, v := range was[o.after] {
				mine[q] = max(mine[q], v)
			}
		}
		for _, begin := range o.joins {
			for q, v := range was[begin] {
				mine[q] = max(mine[q], v)
			}
		}
		mine[o.queue] = int32(i + 1)
		if o.record || len(o.touches) > 0 || o.wait > 0 {
			was[i] = append(was[i][:0], mine...)
		}
	}
	return was
}

// before tells whether op i has happened when op j begins.
func (o order) before(t *trace, i, j int) bool { return o[j][t.ops[i].queue] > int32(i) }

// wait is the op that is the group's k-th wait.
func (t *trace) wait(k int) int {
	return slices.IndexFunc(t.ops, func(o op) bool { return o.wait == k })
}
