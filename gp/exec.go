// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"fmt"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/gp/internal/plan"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// A run is one execution of a program: the ranks, addresses and streams that
// fill it in. The group keeps one and reuses it under its lock.
type run struct {
	op     string
	number uint64 // of the group's runs
	prog   *program
	api    api.Driver // the group's, or one that only counts: see Explanation
	dry    bool       // it is the latter: nothing is enqueued
	// in and out are by plan rank, or by transfer where the plan has any.
	in, out []api.Ptr
	// By plan rank:
	rank []*Rank
	// stream is the caller's stream of the rank: of the destination buffer,
	// where it has one. other, if its rank is set, is a second caller's stream
	// that the rank's work must be ordered with, and whose it is.
	stream    []api.Stream
	other     []api.Stream
	otherRank []*Rank

	host    []unsafe.Pointer // the region of the rank's pinned memory
	hostOff []uint64
	scratch []api.Ptr
	fences  [][]*mark // who used the rank's regions before
	regions []*region // by rank, of pinned memory and of scratch
	// Of kernels that wait for each other, which have no program:
	kind  kernel.Kind
	typ   Type
	red   Op
	count uint64
	// staging says that host holds the caller's own memory, not regions.
	staging bool
	// refused says that the driver did not take a peer copy, and that the
	// context is as good as before: nothing has moved, streams were ordered.
	refused bool

	g    *Group
	bind binder
}

func (x *run) reset(op string, pr *program, n int) {
	x.op, x.prog, x.staging, x.refused = op, pr, false, false
	x.kind, x.typ, x.red, x.count = 0, 0, 0, 0
	x.number++
	buffers := n
	if pr != nil && pr.plan.Transfers != nil {
		buffers = len(pr.plan.Transfers)
	}
	// What a run has is filled in anew; what it may not have is cleared.
	x.rank, x.stream, x.in, x.out = length(x.rank, n), length(x.stream, n), length(x.in, buffers), length(x.out, buffers)
	x.host, x.hostOff, x.scratch = length(x.host, n), length(x.hostOff, n), length(x.scratch, n)
	x.other, x.otherRank, x.regions = length(x.other, n), length(x.otherRank, n), length(x.regions, 2*n)
	clear(x.otherRank)
	clear(x.regions)
	for len(x.fences) < 2*n {
		x.fences = append(x.fences, nil)
	}
}

// length is s with n elements, whatever they hold.
func length[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// A binder makes contexts current on the calling OS thread, which the caller
// has locked, and puts the thread's own context back. It asks the thread once,
// pushes at the first context that differs and only sets after that.
type binder struct {
	api    api.Driver
	was    api.Context // the thread's own
	cur    api.Context
	want   api.Context // the last that was asked for
	asked  bool
	pushed bool
}

func (b *binder) to(c api.Context) (call string, code api.Code) {
	b.want = c
	if !b.asked {
		cur, code := b.api.CtxGetCurrent()
		if code != api.Success {
			return "cuCtxGetCurrent", code
		}
		b.was, b.cur, b.asked = cur, cur, true
	}
	if b.cur == c {
		return "", api.Success
	}
	if b.pushed {
		call, code = "cuCtxSetCurrent", b.api.CtxSetCurrent(c)
	} else {
		call, code = "cuCtxPushCurrent", b.api.CtxPushCurrent(c)
		b.pushed = code == api.Success
	}
	if code == api.Success {
		b.cur = c
	}
	return call, code
}

func (b *binder) restore() api.Code {
	pushed, was := b.pushed, b.was
	b.asked, b.pushed, b.was, b.cur = false, false, 0, 0
	if !pushed {
		return api.Success
	}
	_, code := b.api.CtxPopCurrent()
	if code != api.Success {
		// It may report the error of earlier work, popped or not.
		if cur, c := b.api.CtxGetCurrent(); c != api.Success || cur != was {
			b.api.CtxSetCurrent(was)
		}
	}
	return code
}

// execute enqueues the run and fills o with its final marks. The group's lock
// is held and the thread is locked. Before the first driver call that enqueues
// nothing has happened, and an error leaves the group as it was; after it, an
// error means that the group has failed, which the caller sees to, as to
// putting the thread's context back.
func (g *Group) execute(x *run, o *operation) (enqueued bool, err error) {
	if x.kind != 0 {
		return g.exchange(x, o)
	}
	pr := x.prog
	p := pr.plan

	// What can fail without harm comes first: kernels, events, regions.
	if !x.dry {
		if err := g.prepare(x); err != nil {
			return false, err
		}
		x.takeRegions()
	}
	defer func() {
		for i := range 2 * p.Ranks {
			for _, m := range x.fences[i] {
				m.release()
			}
			x.fences[i] = x.fences[i][:0]
		}
	}()

	fail := func(r int, call string, c api.Code) (bool, error) {
		return true, g.callError(x.op, x.at(r), call, c)
	}

	for r := range p.Ranks {
		if call, c := g.enter(x, r); c != api.Success {
			return fail(r, call, c)
		}
	}
	for i := range pr.code {
		in := &pr.code[i]
		if call, c := g.step(x, in); c != api.Success {
			_, err := fail(int(in.rank), call, c)
			return true, fmt.Errorf("%w (step %d of %d)", err, in.step, pr.steps)
		}
	}
	for r := range p.Ranks {
		if call, c := g.leave(x, r, o); c != api.Success {
			return fail(r, call, c)
		}
	}
	return true, nil
}

// at is the rank on whose context the run's last call was made: r, but where a
// stream of another rank is fenced or the thread gets its own context back.
func (x *run) at(r int) *Rank {
	rk, on := x.rank[r], x.bind.want
	if on == 0 || on == rk.ctx {
		return rk
	}
	for i, o := range x.rank {
		if o.ctx == on {
			return o
		}
		if o = x.otherRank[i]; o != nil && o.ctx == on {
			return o
		}
	}
	return rk
}

// takeRegions gives the ranks their regions of pinned memory and of scratch.
func (x *run) takeRegions() {
	p := x.prog.plan
	// Rows that lie across the ranks' memory need regions at one offset: where the
	// last of the ranks has its next.
	together := uint64(0)
	for r, n := range p.HostBytes {
		if a := &x.rank[r].pinned; p.Across && a.head+a.span(n) > a.size {
			together = 0
			break
		} else if p.Across {
			together = max(together, a.head)
		}
	}
	for r, n := range p.HostBytes {
		if a := &x.rank[r].pinned; p.Across && together+a.span(n) > a.size {
			together = 0
		}
	}
	for r := range p.Ranks {
		rk := x.rank[r]
		x.fences[2*r], x.fences[2*r+1] = x.fences[2*r][:0], x.fences[2*r+1][:0]
		if n := p.HostBytes[r]; n > 0 && !x.staging {
			off := together
			if !p.Across {
				off = rk.pinned.next(n)
			}
			x.regions[2*r], x.fences[2*r] = rk.pinned.take(off, n, x.fences[2*r])
			x.host[r], x.hostOff[r] = unsafe.Add(rk.pinnedBase, off), off
		}
		if n := p.ScratchBytes[r]; n > 0 {
			off := rk.scratch.next(n)
			x.regions[2*r+1], x.fences[2*r+1] = rk.scratch.take(off, n, x.fences[2*r+1])
			x.scratch[r] = rk.scratchBase + api.Ptr(off)
		}
	}
}

// queue is the stream that (rank, lane) of the run stands for.
func (x *run) queue(r int, lane uint8) api.Stream {
	if x.prog.inline {
		return x.stream[r]
	}
	return x.rank[r].lanes[lane]
}

// prepare resolves kernels, on every rank before anything is launched, and
// makes sure that events are there.
func (g *Group) prepare(x *run) error {
	pr := x.prog
	for i := range pr.folds {
		f := &pr.folds[i]
		if rk := x.rank[f.rank]; f.fnOwner != rk {
			var fn api.Function
			var err error
			g.relaxed(func() { fn, err = g.function(rk, f.module, f.entry) })
			if err != nil {
				return g.rankError(x.op, rk, err)
			}
			f.fn, f.fnOwner = fn, rk
		}
	}
	for r, n := range pr.events {
		rk := x.rank[r]
		for len(rk.planEvents) < n {
			if call, c := x.bind.to(rk.ctx); c != api.Success {
				return g.callError(x.op, rk, call, c)
			}
			ev, c := g.api.EventCreate(api.EventDisableTiming)
			if c != api.Success {
				return g.callError(x.op, rk, "cuEventCreate", c)
			}
			rk.planEvents = append(rk.planEvents, ev)
		}
	}
	for r, u := range pr.uses {
		for l, used := range u.queue {
			if rk := x.rank[r]; used && !pr.inline && rk.lane[l] == nil {
				var err error
				g.relaxed(func() { err = rk.openLane(plan.Lane(l)) })
				if err != nil {
					return g.rankError(x.op, rk, err)
				}
			}
		}
	}
	for r, n := range pr.plan.ScratchBytes {
		if n > 0 {
			if err := x.rank[r].needScratch(x); err != nil {
				return err
			}
		}
	}
	return nil
}

// enter makes the queues of rank r wait for what they must: the caller's
// streams, and whoever used the regions before.
func (g *Group) enter(x *run, r int) (string, api.Code) {
	pr, rk := x.prog, x.rank[r]
	used := pr.uses[r].queue
	if used == [plan.Lanes]bool{} {
		return "", api.Success
	}
	if o := x.otherRank[r]; o != nil {
		if call, c := g.fence(x, r, o, x.other[r]); c != api.Success {
			return call, c
		}
	}
	if !pr.inline {
		if call, c := g.fence(x, r, rk, x.stream[r]); c != api.Success {
			return call, c
		}
	}
	for lane := range uint8(plan.Lanes) {
		if !used[lane] {
			continue
		}
		for o := range pr.plan.Ranks {
			if pr.uses[r].writesHost[lane]&(1<<o) != 0 {
				if call, c := x.waitMarks(r, lane, x.fences[2*o]); c != api.Success {
					return call, c
				}
			}
		}
		if pr.uses[r].writesToScratch[lane] {
			if call, c := x.waitMarks(r, lane, x.fences[2*r+1]); c != api.Success {
				return call, c
			}
		}
	}
	return "", api.Success
}

// fence makes rank r's queues wait for all that stream s of rank owner holds
// now. The event is recorded before the waits are enqueued, so it can serve
// again at once.
func (g *Group) fence(x *run, r int, owner *Rank, s api.Stream) (string, api.Code) {
	d := x.api
	if call, c := x.bind.to(owner.ctx); c != api.Success {
		return call, c
	}
	if c := d.EventRecord(owner.fenceEvent, s); c != api.Success {
		return "cuEventRecord", c
	}
	if call, c := x.bind.to(x.rank[r].ctx); c != api.Success {
		return call, c
	}
	for lane, enters := range x.prog.uses[r].enters {
		if enters {
			if c := d.StreamWaitEvent(x.queue(r, uint8(lane)), owner.fenceEvent); c != api.Success {
				return "cuStreamWaitEvent", c
			}
		}
	}
	return "", api.Success
}

// waitMarks makes a queue of rank r wait for marks. It leaves out what is known
// to be done, what the queue has been told before, and what its own order implies.
func (x *run) waitMarks(r int, lane uint8, ms []*mark) (string, api.Code) {
	rk, q, bit := x.rank[r], x.queue(r, lane), uint64(1)<<(r*plan.Lanes+int(lane))
	for _, m := range ms {
		if m.isDone() || m.queue == q && rk.owns(q) {
			continue
		}
		if m.awaitedIn != x.number {
			m.awaitedIn, m.awaitedBy = x.number, 0
		}
		if m.awaitedBy&bit != 0 {
			continue
		}
		m.awaitedBy |= bit
		if call, c := x.bind.to(rk.ctx); c != api.Success {
			return call, c
		}
		if c := x.bind.api.StreamWaitEvent(q, m.ev); c != api.Success {
			return "cuStreamWaitEvent", c
		}
	}
	return "", api.Success
}

// owns tells whether a stream is one that the rank made. Only of those does the
// handle alone say which stream it is: 0 is another stream in each context, and
// the handle of a stream that its owner has destroyed may name a new one while
// the old one's work is still going on.
func (r *Rank) owns(q api.Stream) bool {
	for l, own := range r.lanes {
		if q == own && r.lane[l] != nil {
			return true
		}
	}
	return q == r.queue()
}

// step makes one driver call.
func (g *Group) step(x *run, in *instr) (string, api.Code) {
	d, rk := x.api, x.rank[in.rank]
	if call, c := x.bind.to(rk.ctx); c != api.Success {
		return call, c
	}
	q := x.queue(int(in.rank), in.lane)
	switch in.kind {
	case iWait:
		return "cuStreamWaitEvent", d.StreamWaitEvent(q, x.planEvent(in))
	case iRecord:
		return "cuEventRecord", d.EventRecord(x.planEvent(in), q)
	case iToHost:
		return "cuMemcpyDtoHAsync", d.MemcpyDtoHAsync(x.hostAddr(in.dst), x.deviceAddr(in.src), in.n, q)
	case iFromHost:
		return "cuMemcpyHtoDAsync", d.MemcpyHtoDAsync(x.deviceAddr(in.dst), x.hostAddr(in.src), in.n, q)
	case iLocal:
		return "cuMemcpyDtoDAsync", d.MemcpyDtoDAsync(x.deviceAddr(in.dst), x.deviceAddr(in.src), in.n, q)
	case iPeer:
		c := d.MemcpyPeerAsync(x.deviceAddr(in.dst), x.rank[in.dst.rank].ctx, x.deviceAddr(in.src), rk.ctx, in.n, q)
		x.refused = c != api.Success && !c.Sticky() && x.prog.steps == 1
		return "cuMemcpyPeerAsync", c
	case iRows:
		w := &x.prog.rows[in.idx]
		if w.toHost {
			w.copy.DstHost, w.copy.SrcDevice = x.hostAddr(w.dst), x.deviceAddr(w.src)
		} else {
			w.copy.DstDevice, w.copy.SrcHost = x.deviceAddr(w.dst), x.hostAddr(w.src)
		}
		return "cuMemcpy2DAsync", d.Memcpy2DAsync(&w.copy, q)
	case iFold:
		f := &x.prog.folds[in.idx]
		f.params.Dst = uint64(x.mapped(in.dst, rk))
		for k, s := range f.src {
			f.params.In[k] = uint64(x.mapped(s, rk))
		}
		f.buf = f.params.Append(f.buf[:0])
		f.launch.Params, f.launch.Stream = f.buf, q
		return "cuLaunchKernel", d.LaunchKernel(f.fn, &f.launch)
	}
	panic(fmt.Sprintf("gp: instruction of kind %d", in.kind))
}

// planEvent is the event of a record or wait, which a dry run need not have.
func (x *run) planEvent(in *instr) api.Event {
	if x.dry {
		return 0
	}
	return x.rank[in.evRank].planEvents[in.event]
}

// hostAddr is an address in a rank's region, which a dry run has none of.
func (x *run) hostAddr(r ref) unsafe.Pointer {
	if x.dry {
		return nil
	}
	return unsafe.Add(x.host[r.rank], r.off)
}

func (x *run) deviceAddr(r ref) api.Ptr {
	switch r.space {
	case plan.In:
		return x.in[r.buf] + api.Ptr(r.off)
	case plan.Out:
		return x.out[r.buf] + api.Ptr(r.off)
	case plan.Scratch:
		return x.scratch[r.rank] + api.Ptr(r.off)
	}
	panic("gp: host memory where device memory is due")
}

// mapped is the address by which a kernel of rank rk reads or writes r.
func (x *run) mapped(r ref, rk *Rank) api.Ptr {
	if r.space == plan.Host {
		return x.rank[r.rank].mappedPinned(rk, x.hostOff[r.rank]+r.off)
	}
	return x.deviceAddr(r)
}

// leave records the ends of rank r's queues, makes the caller's streams wait
// for them, and leaves the marks with the operation and with the regions.
func (g *Group) leave(x *run, r int, o *operation) (string, api.Code) {
	d, pr, rk := x.api, x.prog, x.rank[r]
	for lane := range uint8(plan.Lanes) {
		if !pr.uses[r].queue[lane] {
			continue
		}
		q := x.queue(r, lane)
		implied, beside := pr.implied[r][lane], pr.beside[r][lane]
		if implied && (beside || q == x.stream[r] && x.otherRank[r] == nil) {
			continue
		}
		if call, c := x.bind.to(rk.ctx); c != api.Success {
			return call, c
		}
		m, c := x.newMark(rk)
		if c != api.Success {
			return "cuEventCreate", c
		}
		m.on(q)
		if c := d.EventRecord(m.ev, q); c != api.Success {
			return "cuEventRecord", c
		}
		if !beside {
			if call, c := x.release(r, m); c != api.Success {
				return call, c
			}
		}
		if implied {
			m.release()
			continue
		}
		o.marks = append(o.marks, m)
		h := pr.holds[r][lane]
		for owner := range pr.plan.Ranks {
			if h.host&(1<<owner) != 0 {
				x.hold(2*owner, m)
			}
			if h.scratch&(1<<owner) != 0 {
				x.hold(2*owner+1, m)
			}
		}
	}
	return "", api.Success
}

// release makes the streams of rank r's caller wait for a mark.
func (x *run) release(r int, m *mark) (string, api.Code) {
	if x.stream[r] != m.queue || x.rank[r].ctx != m.rank.ctx {
		if c := x.api.StreamWaitEvent(x.stream[r], m.ev); c != api.Success {
			return "cuStreamWaitEvent", c
		}
	}
	if other := x.otherRank[r]; other != nil {
		if call, c := x.bind.to(other.ctx); c != api.Success {
			return call, c
		}
		if c := x.api.StreamWaitEvent(x.other[r], m.ev); c != api.Success {
			return "cuStreamWaitEvent", c
		}
	}
	return "", api.Success
}

// hold leaves a mark with the region that the run has at i, if it has one.
func (x *run) hold(i int, m *mark) {
	if reg := x.regions[i]; reg != nil {
		reg.hold(m)
	}
}

// newMark is a mark of a rank, whose context is current. Of a dry run it is one
// that is never free, and regions that nobody was given do not keep it.
func (x *run) newMark(rk *Rank) (*mark, api.Code) {
	if x.dry {
		return &mark{rank: rk, refs: 1 << 30}, api.Success
	}
	return rk.newMark()
}

// bound runs f with rank r's context current and the thread's capture checks
// relaxed.
func (r *Rank) bound(f func(d api.Driver) (string, api.Code)) (call string, code api.Code) {
	r.g.relaxed(func() {
		b := binder{api: r.g.api}
		if call, code = b.to(r.ctx); code != api.Success {
			return
		}
		call, code = f(r.g.api)
		if c := b.restore(); code == api.Success && c != api.Success {
			call, code = "cuCtxPopCurrent", c
		}
	})
	return call, code
}

// boundToFree is bound for what frees: if the context cannot be made current it
// tries once more, for what is not freed now never is.
func (r *Rank) boundToFree(f func(d api.Driver) (string, api.Code)) (call string, code api.Code) {
	ran := false
	once := func(d api.Driver) (string, api.Code) {
		ran = true
		return f(d)
	}
	if call, code = r.bound(once); !ran && !r.g.lost(r) {
		call, code = r.bound(once)
	}
	return call, code
}
