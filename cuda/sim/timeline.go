// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"container/heap"
	"math"
	"time"

	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// A timeline knows when work starts and ends in virtual time. It says nothing
// about bytes: see queue.go.
//
// Work is a latency and then a flow of bytes over links. Flows that cross the
// same link at the same time share it (max-min fair). An engine takes one piece
// of work at a time, in the order in which they became ready.
//
// The timeline lags behind the host's clock and is only advanced as far as that
// has come, since the host may still enqueue work that is ready then; only while
// the host is blocked may it run ahead.
type timeline struct {
	now   time.Duration
	marks marks
	flows []*node
	seq   uint64
	gangs gangs
}

// A link carries bytes.
type link struct {
	rate float64 // bytes a second

	// Of the sharing in progress.
	left float64
	n    int
}

// An engine does one piece of work at a time.
type engine struct {
	busy  bool
	queue []*node
}

// A load is what a piece of work moves over one link.
type load struct {
	l     *link
	bytes float64
}

// work is what a node costs in time.
type work struct {
	engine  *engine
	latency time.Duration
	loads   []load
}

// load adds bytes that cross a link.
func (w *work) load(l *link, bytes float64) {
	if bytes == 0 {
		return
	}
	for i := range w.loads {
		if w.loads[i].l == l {
			w.loads[i].bytes += bytes
			return
		}
	}
	w.loads = append(w.loads, load{l, bytes})
}

// A mark is a point in time at which a node goes on, and why it does.
type mark struct {
	at   time.Duration
	seq  uint64
	n    *node
	why  reason
	code kernel.StatusCode // of an expiry
}

type reason uint8

const (
	ready  reason = iota // what it depends on has ended
	poured               // its latency is over
	over                 // of a kernel that waited for others: it ends
	expiry               // likewise: it gives up, if it still waits
)

type marks []mark

func (m marks) Len() int { return len(m) }
func (m marks) Less(i, j int) bool {
	return m[i].at < m[j].at || m[i].at == m[j].at && m[i].seq < m[j].seq
}
func (m marks) Swap(i, j int) { m[i], m[j] = m[j], m[i] }
func (m *marks) Push(x any)   { *m = append(*m, x.(mark)) }
func (m *marks) Pop() any {
	old := *m
	x := old[len(old)-1]
	old[len(old)-1] = mark{}
	*m = old[:len(old)-1]
	return x
}

func (t *timeline) mark(at time.Duration, n *node, why reason) { t.push(mark{at: at, n: n, why: why}) }

func (t *timeline) push(m mark) {
	t.seq++
	m.seq = t.seq
	heap.Push(&t.marks, m)
}

// add takes in a node whose deps are set. It is ready when they have ended, and
// not before now, the host's time.
func (t *timeline) add(n *node, now time.Duration) {
	n.ready, n.look = now, now
	if n.held {
		n.unended++
	}
	for _, d := range n.deps {
		if d.ended {
			n.follow(d, d.end)
		} else {
			n.unended++
			d.next = append(d.next, n)
		}
	}
	if n.unended == 0 {
		t.mark(n.turn(), n, ready)
	}
}

// follow notes that a command which n must come behind ended.
func (n *node) follow(d *node, at time.Duration) {
	n.ready = max(n.ready, at)
	if d != n.awaits {
		n.look = max(n.look, at)
	}
}

// turn is when a node of which nothing is outstanding goes on. A GPU that does
// not find another's event reached looks again at intervals.
func (n *node) turn() time.Duration {
	if n.awaits == nil || n.ready <= n.look {
		return n.ready
	}
	poll := n.s.ctx.g.spec.Poll.us()
	return n.look + (n.ready-n.look+poll-1)/poll*poll
}

// advance brings the timeline up to a time of the host's clock.
func (t *timeline) advance(to time.Duration) {
	for {
		at, ok := t.peek()
		if !ok || at > to {
			break
		}
		t.turn(at)
	}
	if to > t.now {
		t.flow(to)
	}
}

// until runs the timeline until n has ended. The host is blocked meanwhile. It
// stops, and is false, where a kernel is about to give up on one that another
// thread may be about to launch.
func (t *timeline) until(n *node) bool {
	for !n.ended {
		at, ok := t.peek()
		if !ok {
			panic("sim: a node can never end")
		}
		if t.impatient() {
			return false
		}
		t.turn(at)
	}
	return true
}

// peek is the time of the next event. The deadline of a kernel that no longer
// waits is none: time would run to it while nothing else happens.
func (t *timeline) peek() (at time.Duration, ok bool) {
	for len(t.marks) > 0 && t.marks[0].why == expiry && !t.marks[0].n.member.waiting {
		heap.Pop(&t.marks)
	}
	at = math.MaxInt64
	if len(t.marks) > 0 {
		at, ok = t.marks[0].at, true
	}
	for _, f := range t.flows {
		if f.eta < at {
			at = f.eta
		}
		ok = true
	}
	return at, ok
}

// turn handles everything that happens at the time of the next event.
func (t *timeline) turn(at time.Duration) {
	t.flow(at)
	changed := false
	// Ends first: what they free can start at the same time.
	for i := 0; i < len(t.flows); {
		f := t.flows[i]
		if f.eta > at {
			i++
			continue
		}
		t.flows = append(t.flows[:i], t.flows[i+1:]...)
		changed = true
		if f.member != nil {
			t.flown(f.member, at)
			continue
		}
		t.finish(f, at)
	}
	for len(t.marks) > 0 && t.marks[0].at <= at {
		m := heap.Pop(&t.marks).(mark)
		switch {
		case m.why == expiry:
			t.expired(m.n.member, at, m.code)
		case m.why == over:
			t.finish(m.n, at)
		case m.why == poured:
			changed = t.pour(m.n, at) || changed
		case m.n.work.engine == nil:
			changed = t.start(m.n, at) || changed
		case m.n.work.engine.busy:
			m.n.work.engine.queue = append(m.n.work.engine.queue, m.n)
		default:
			m.n.work.engine.busy = true
			changed = t.start(m.n, at) || changed
		}
	}
	if changed {
		t.share()
	}
}

// start begins a node's latency. It tells whether a flow began.
func (t *timeline) start(n *node, at time.Duration) bool {
	n.start = at
	if n.work.latency > 0 {
		t.mark(at+n.work.latency, n, poured)
		return false
	}
	return t.pour(n, at)
}

// pour begins a node's flow, or ends the node if it moves nothing.
func (t *timeline) pour(n *node, at time.Duration) bool {
	if n.member != nil {
		before := len(t.flows)
		t.begin(n.member, at)
		return len(t.flows) > before
	}
	if len(n.work.loads) == 0 {
		t.finish(n, at)
		return false
	}
	n.left = 1
	t.flows = append(t.flows, n)
	return true
}

func (t *timeline) finish(n *node, at time.Duration) {
	n.ended, n.end = true, at
	for _, s := range n.next {
		s.follow(n, at)
		s.unended--
		if s.unended == 0 {
			t.mark(s.turn(), s, ready)
		}
	}
	n.next = nil
	if e := n.work.engine; e != nil {
		e.busy = false
		if len(e.queue) > 0 {
			next := e.queue[0]
			e.queue[0] = nil
			e.queue = e.queue[1:]
			e.busy = true
			next.start = at
			t.mark(at+next.work.latency, next, poured)
		}
	}
}

// flow moves the flows' bytes up to a time before or at the next event.
func (t *timeline) flow(to time.Duration) {
	if dt := (to - t.now).Seconds(); dt > 0 {
		for _, f := range t.flows {
			f.left -= f.rate * dt
		}
	}
	t.now = to
}

// share gives each flow its rate, in parts of itself a second: the links' rates
// divided max-min fairly among the flows that cross them.
func (t *timeline) share() {
	for _, f := range t.flows {
		f.rate = 0
		for _, ld := range f.work.loads {
			ld.l.left, ld.l.n = ld.l.rate, 0
		}
	}
	for _, f := range t.flows {
		for _, ld := range f.work.loads {
			ld.l.n++
		}
	}
	// One flow after another, the one first that has the least to hope for. An
	// equal part of a link is what remains an equal part for those that follow.
	for range t.flows {
		var worst *node
		var least float64
		for _, f := range t.flows {
			if f.rate > 0 {
				continue
			}
			if part, _ := f.tightest(); worst == nil || part < least {
				worst, least = f, part
			}
		}
		_, worst.rate = worst.tightest()
		for _, ld := range worst.work.loads {
			ld.l.left = max(ld.l.left-worst.rate*ld.bytes, 0)
			ld.l.n--
		}
	}
	for _, f := range t.flows {
		f.eta = t.now + time.Duration(math.Ceil(max(f.left, 0)/f.rate*1e9))
	}
}

// tightest is the part, in bytes a second, that the link leaves the flow which
// limits it most, and the rate that follows.
func (n *node) tightest() (part, rate float64) {
	rate = math.Inf(1)
	for _, ld := range n.work.loads {
		p := max(ld.l.left/float64(ld.l.n), 1)
		if r := p / ld.bytes; r < rate {
			part, rate = p, r
		}
	}
	return part, rate
}
