// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// hop is what it takes from a kernel's store of a flag to host memory until
// another kernel that polls has seen it: 2.4 us on an H200 over PCIe 5.0. The
// model has it for all machines.
const hop = 2400 * time.Nanosecond

// window is the bytes that a thread of an exchange has under way: it waits a hop
// for each 16 that it loads.
const window = 16

// mostThreads is how many threads of an exchange make it faster. Of two H200, 16
// to 32 blocks of 512 took longer than 8: what polls takes the link from what it
// waits for.
const mostThreads = 8 * 512

// While a kernel waits for one that is not launched, a thread that waits too, or
// sleeps, does not take virtual time to the kernel's deadline before the others
// have had real time to launch it: grace by grace, until they have made no call
// for as long as quiet, or for mostWait at most. A thread that is about to launch
// may not be running, where there are more threads than processors.
const (
	grace    = 2 * time.Millisecond
	quiet    = 40 * time.Millisecond
	mostWait = 10 * time.Second
)

// longest bounds deadlines, which are any 64-bit number.
const longest = 1000 * time.Hour

// A gang is the launches of one exchange: kernels that wait for each other.
//
// In time, a member begins when its stream lets it. What the members move flows
// from when the last has begun, and all end together. A member that waits in
// vain ends at its deadline, or when it sees its abort word; then the gang is
// broken, and those that come later wait in vain too.
//
// In bytes, a member runs once it has begun in time: in steps, which wait for
// what the others' steps leave in memory.
type gang struct {
	n       int
	members []*member
	begun   int
	flowing int // that still move bytes
	broken  bool
	awaited awaited

	order *order // if the machine watches
	seq   int    // of the order
}

// awaited is how long other threads were given to launch what a gang lacks.
type awaited struct {
	asked, heard time.Time // for the first time, and when there was a new call
	calls        uint64
}

// enough tells whether it was long enough, when they have made so many calls.
func (a *awaited) enough(calls uint64) bool {
	now := time.Now()
	if a.asked.IsZero() {
		a.asked = now
	}
	if a.heard.IsZero() || a.calls != calls {
		a.heard, a.calls = now, calls
	}
	return now.Sub(a.heard) >= quiet || now.Sub(a.asked) >= mostWait
}

// A member is one launch.
type member struct {
	g    *gang
	n    *node
	x    kernel.Exchange
	t    dtype.Type
	coop kernel.Coop
	v    view

	abort    *uint32 // the word in its control page
	begun    bool    // in time
	waiting  bool    // likewise, and others have not
	deadline time.Duration
	gaveUp   kernel.StatusCode
	tried    uint64 // the step at which it could not go on

	start clock    // what its launch is ordered behind, its own step included
	reads *toucher // of the peers' areas
}

// gangKey is what the launches of one exchange have in common.
type gangKey struct {
	entry       string
	grid, block [3]uint32       // of others, blocks would wait for what other blocks write
	x           kernel.Exchange // without what is the rank's own
}

// gangs is the kernels that wait for each other.
type gangs struct {
	open    map[gangKey]*gang // not all launched
	waiting []*member
	gaveUp  func(*node) // runs the bytes of one that has just given up
	stamp   uint64      // counts what is done to bytes
	calls   uint64      // counts the host's
}

// launch enqueues a kernel that waits for its peers.
func (m *Machine) launch(st *stream, f *function, l *api.Launch, params []byte, w work) api.Code {
	g := st.ctx.g
	m.line.gangs.gaveUp = m.flush
	v := view{m: m, g: g}
	x, t, ok := kernel.ParseCoop(f.name, params)
	coop := f.coops(l, params)
	if !ok {
		m.enqueue(st, &node{runs: true, work: w, run: func() api.Code {
			_, _, err := coop.Step(v)
			return m.fail(err)
		}})
		return st.ctx.fault
	}
	k := &member{n: &node{runs: true}, x: x, t: t, coop: coop, v: v, tried: math.MaxUint64}
	k.n.member = k
	if s, c := m.device(api.Ptr(x.Control), kernel.ControlBytes); c == api.Success && s.gpu() == nil {
		k.abort = (*uint32)(unsafe.Pointer(unsafe.SliceData(s.bytes(kernel.ControlBytes)[kernel.AbortWord:])))
	}
	m.charges(&w, k, l)
	k.n.work = w
	m.enlist(k, gangKey{entry: f.name, grid: l.Grid, block: l.Block})
	m.enqueue(st, k.n)
	m.watch.launched(m, st, k, f.name)
	return st.ctx.fault
}

// enlist makes a launch a member of its gang.
func (m *Machine) enlist(k *member, key gangKey) {
	key.x = k.x
	key.x.In, key.x.Out, key.x.Rank, key.x.Control, key.x.DeadlineNs = 0, 0, 0, 0, 0
	all := &m.line.gangs
	g := all.open[key]
	if g == nil || slices.ContainsFunc(g.members, func(o *member) bool { return o.x.Rank == k.x.Rank }) {
		g = &gang{n: int(k.x.N)}
		if echo(k.x.Kind) {
			g.n = 1 // the other is the CPU
		}
		if all.open == nil {
			all.open = map[gangKey]*gang{}
		}
		all.open[key] = g
	}
	k.g = g
	g.members = append(g.members, k)
	if len(g.members) == g.n {
		delete(all.open, key)
	}
}

func echo(k kernel.Kind) bool { return k == kernel.EchoWords || k == kernel.EchoBulk }

// charges adds what a member's bytes cost: its own memory, its area over its
// link up, the peers' areas down. The one comes after the other, and its threads
// bound the rate at which it loads; in bulk, that at which it stores too: measured
// on two H200, two_shot of 64 KiB to 1 MiB.
func (m *Machine) charges(w *work, k *member, l *api.Launch) {
	touch := func(addr, n uint64, write bool) {
		if a := m.find(api.Ptr(addr)); a != nil && n > 0 {
			m.touch(w, k.v.g, a.place(), n, write)
		}
	}
	in, out := k.x.Bytes(k.t)
	touch(k.x.In, in, false)
	touch(k.x.Out, out, true)
	up, down := k.x.Traffic(k.t)
	for i, a := range k.x.Area[:k.x.N] {
		if uint64(i) == k.x.Rank {
			touch(a, up, true)
		} else {
			touch(a, down, false)
		}
	}
	g, stored, loaded := k.v.g, float64(up), float64(down*(k.x.N-1))
	most := min(float64(l.Grid[0])*float64(l.Block[0]), mostThreads) * window / hop.Seconds() // bytes a second
	storing, loading := stored/g.d2h.rate, loaded/most
	if k.x.Kind == kernel.TwoShot {
		storing = max(storing, stored/most)
	} else {
		// LL words are their own flags: who has waited for the first has loaded it.
		loading -= (time.Duration(k.x.Kind.Rounds()) * hop).Seconds()
	}
	loading = max(loading, loaded/g.h2d.rate)
	w.load(&link{rate: 1e9}, (storing+loading)*1e9) // a link of its own, in ns
}

// hops is how often a member waits for a store to be seen. In bulk a flag is
// stored when what is before it has come to be seen.
func (k *member) hops() time.Duration {
	n := time.Duration(k.x.Kind.Rounds())
	if k.x.Kind == kernel.TwoShot {
		n *= 2
	}
	return n
}

// begin is a member's launch latency over: it waits, or it was the last and all
// go on.
func (t *timeline) begin(k *member, at time.Duration) {
	g := k.g
	k.begun = true
	if k.n.s.ctx.fault != api.Success {
		g.broken = true
		t.finish(k.n, at)
		return
	}
	g.begun++
	if g.begun == g.n && !g.broken {
		g.flowing = g.n
		for _, o := range g.members {
			o.waiting = false
			if len(o.n.work.loads) == 0 {
				t.flown(o, at)
				continue
			}
			o.n.left = 1
			t.flows = append(t.flows, o.n)
		}
		t.gangs.waiting = slices.DeleteFunc(t.gangs.waiting, func(o *member) bool { return o.g == g })
		return
	}
	k.waiting = true
	t.gangs.waiting = append(t.gangs.waiting, k)
	k.deadline = at + k.patience()
	t.expire(k, k.deadline, kernel.StatusTimedOut)
	if k.aborted() {
		t.expire(k, at+kernel.LookNs, kernel.StatusAborted)
	}
}

// flown is the end of a member's flow: after the last, all end.
func (t *timeline) flown(k *member, at time.Duration) {
	if k.g.flowing--; k.g.flowing > 0 {
		return
	}
	for _, o := range k.g.members {
		t.push(mark{at: at + k.hops()*hop, n: o.n, why: over})
	}
}

// expire lets a member give up at a time, if it still waits then.
func (t *timeline) expire(k *member, at time.Duration, c kernel.StatusCode) {
	t.push(mark{at: at, n: k.n, why: expiry, code: c})
}

// expired is that time.
func (t *timeline) expired(k *member, at time.Duration, c kernel.StatusCode) {
	if !k.waiting {
		return
	}
	k.waiting, k.gaveUp, k.g.broken = false, c, true
	t.gangs.waiting = slices.DeleteFunc(t.gangs.waiting, func(o *member) bool { return o == k })
	t.finish(k.n, at)
	t.gangs.gaveUp(k.n)
}

// aborted reads the abort word, which the host writes when it likes.
func (k *member) aborted() bool { return k.abort != nil && atomic.LoadUint32(k.abort) != 0 }

// look sees what the host has stored to abort words. All that is known is that
// it was not before the timeline was last brought up to the host's clock.
func (m *Machine) look() {
	t := &m.line
	for _, k := range t.gangs.waiting {
		if k.aborted() {
			began := k.n.start + k.n.work.latency
			t.expire(k, max(began, t.now)+kernel.LookNs, kernel.StatusAborted)
		}
	}
}

// impatient tells whether the next event is a deadline that another thread can
// still prevent, and has not been given the time to.
func (t *timeline) impatient() bool {
	if len(t.marks) == 0 {
		return false
	}
	next := t.marks[0]
	if next.why != expiry || next.code != kernel.StatusTimedOut || !next.n.member.waiting {
		return false
	}
	for _, f := range t.flows {
		if f.eta <= next.at {
			return false
		}
	}
	return t.gangs.await(next.n.member.g)
}

// await tells whether others are to be given time to launch what a gang lacks.
func (all *gangs) await(g *gang) bool {
	return !g.broken && len(g.members) < g.n && !g.awaited.enough(all.calls)
}

// hold is for a thread that is about to let virtual time pass without a call.
func (m *Machine) hold(pass time.Duration) {
	if len(m.line.gangs.open) == 0 {
		return
	}
	for m.advance(); m.line.gangs.late(m.clock, pass); m.advance() {
		m.giveWay()
	}
}

// late tells whether a kernel would reach its deadline within a time from now, and
// others are to be given time to launch what it waits for.
func (all *gangs) late(now, pass time.Duration) bool {
	for _, g := range all.open {
		for _, k := range g.members {
			over := k.deadline
			if !k.begun {
				over = now + k.patience()
			}
			if over <= now+pass && all.await(g) {
				return true
			}
		}
	}
	return false
}

// patience is how long the kernel waits for its peers.
func (k *member) patience() time.Duration { return time.Duration(min(k.x.DeadlineNs, uint64(longest))) }

// giveWay lets other threads make their calls, while this one waits.
func (m *Machine) giveWay() {
	m.clock = max(m.clock, m.line.now)
	m.mu.Unlock()
	time.Sleep(grace)
	m.mu.Lock()
}

// advance brings the timeline up to the host's clock.
func (m *Machine) advance() {
	m.look()
	m.line.advance(m.clock)
}

// tryStep runs a member's bytes as far as they go: false if it is not at its end.
func (m *Machine) tryStep(k *member) (ended bool, code api.Code) {
	all := &m.line.gangs
	done, moved, err := k.coop.Step(k.v)
	if moved {
		all.stamp++
	}
	k.tried = all.stamp
	return done || err != nil, m.fail(err)
}

// stuck tells whether a stream's next command is a member whose last step found
// nothing that it waits for, and nothing has been done since.
func (m *Machine) stuck(n *node) bool {
	return n.member != nil && n.member.tried == m.line.gangs.stamp
}

// yield lets a member give up where nothing goes on: one that has done so in
// time, else one whose gang has ended there, but that does not find what the
// others left in memory, because another command has written there.
func (m *Machine) yield() {
	var front *stream
	for _, s := range m.active {
		k := s.pending[0].member
		if k == nil || !s.pending[0].free() || k.waiting {
			continue
		}
		if front == nil || k.gaveUp != kernel.StatusNone {
			front = s
		}
	}
	if front == nil {
		panic("sim: the bytes of a command can never run")
	}
	k := front.pending[0].member
	if k.gaveUp == kernel.StatusNone {
		k.gaveUp = kernel.StatusTimedOut
	}
	m.retire(front, m.fail(k.coop.GiveUp(k.v, k.gaveUp)))
}

// An order is how the exchanges over the same areas follow each other, for a
// machine that watches. It is an actor, whose step is the number of an exchange:
// who knows of it that the exchange has ended on one rank knows that it has begun
// on all.
type order struct {
	actor int
	joins []clock // by number: all members' starts; nil while one is not launched
}

// keep is how many exchanges back an order remembers.
const keep = 1024

// expand adds to a clock what the ends of exchanges in it stand for. The launch
// that completes an exchange may come after commands that follow another's end,
// so that this cannot be done when such an end is enqueued.
func (w *watch) expand(c *clock) {
	for _, o := range w.orders {
		for i := min(int(c.at(o.actor)), len(o.joins)) - 1; i >= 0 && i >= len(o.joins)-keep; i-- {
			if o.joins[i] != nil {
				c.join(o.joins[i])
				break
			}
		}
	}
}

// launched notes what a member does to memory: it writes its area once it has
// begun, reads and writes its own memory, and reads the others' areas when all
// have begun. It has two steps of its stream's clock, the begin and the end.
func (w *watch) launched(m *Machine, st *stream, k *member, name string) {
	if w == nil {
		return
	}
	g := k.g
	if g.order == nil {
		areas := k.x.Area
		if g.order = w.orders[areas]; g.order == nil {
			g.order = &order{actor: w.newActor()}
			w.orders[areas] = g.order
		}
		g.order.joins = append(g.order.joins, nil)
		g.seq = len(g.order.joins)
	}
	op := func() string {
		return fmt.Sprintf("kernel %s (%v, rank %d of %d, epoch %d)", name, k.x.Kind, k.x.Rank, k.x.N, k.x.Epoch)
	}
	begin := w.toucher(st, op)
	k.start = begin.clock
	st.clock.tick(st.actor)
	end := *begin
	end.clock = slices.Clone(begin.clock)
	end.clock[st.actor]++
	reads := *begin
	k.reads = &reads
	st.clock.raise(g.order.actor, uint32(g.seq))

	touch := func(t *toucher, addr, n uint64, write bool) {
		if at, c := m.device(api.Ptr(addr), n); c == api.Success {
			m.touched(t, at, n, write)
		}
	}
	for _, s := range k.x.Touched(k.t) {
		touch(begin, k.x.Area[k.x.Rank]+s.Off, s.Bytes, true)
	}
	in, out := k.x.Bytes(k.t)
	touch(&end, k.x.In, in, false)
	touch(&end, k.x.Out, out, true)
	if len(g.members) < g.n || echo(k.x.Kind) {
		return
	}
	var join clock
	for _, o := range g.members {
		join.join(o.start)
	}
	g.order.joins[g.seq-1] = join
	if old := g.seq - 1 - keep; old >= 0 {
		g.order.joins[old] = nil
	}
	for _, o := range g.members {
		o.reads.clock = slices.Clone(join)
		w.expand(&o.reads.clock)
		o.reads.clock[o.reads.actor] = o.start[o.reads.actor] + 1
		for _, s := range o.x.Touched(o.t) {
			for i, a := range o.x.Area[:o.x.N] {
				if uint64(i) != o.x.Rank {
					touch(o.reads, a+s.Off, s.Bytes, false)
				}
			}
		}
	}
}

// raise sets an actor's step, unless the clock knows a later one.
func (c *clock) raise(actor int, step uint32) {
	if len(*c) <= actor {
		*c = append(*c, make(clock, actor+1-len(*c))...)
	}
	(*c)[actor] = max((*c)[actor], step)
}
