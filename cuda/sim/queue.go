// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"time"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// queueLimit is the commands that a stream holds before enqueueing blocks, as
// it does with the driver.
const queueLimit = 1024

// A node is one command in a stream: a copy, a fill, a kernel, or nothing at
// all (a record or a wait). It lives twice, and both lives obey deps alone:
//
//   - in bytes, it runs when the machine feels like it: see (*Machine).step;
//   - in time, it starts and ends on the timeline.
//
// The host learns that a node is done when both say so.
type node struct {
	s    *stream
	deps []*node // earlier commands that must precede this one

	run    func() api.Code // what it does to bytes; nil for nothing
	member *member         // of a kernel that waits for others, in place of run
	ran    bool

	work       work
	runs       bool          // a copy or a kernel: it has an engine
	awaits     *node         // of a wait for an event of another GPU: the event
	held       bool          // likewise: it is not with the GPU yet
	look       time.Duration // likewise: when the GPU looks first
	next       []*node       // those that wait for its end
	unended    int           // deps that have not ended
	ready      time.Duration
	start, end time.Duration
	ended      bool

	// As a flow.
	left, rate float64
	eta        time.Duration
}

// enqueue puts a command into a stream, behind the stream's last one and
// whatever the legacy default stream's rule adds. It blocks the host, in
// virtual time, while the stream is full.
func (m *Machine) enqueue(s *stream, n *node, after ...*node) {
	for len(s.flight) >= queueLimit {
		if m.land(s); len(s.flight) >= queueLimit {
			m.until(s.flight[0])
		}
	}
	n.s = s
	if n.runs {
		m.couple(s, n)
	}
	dep := func(d *node) {
		m.hand(d)
		if d != nil && !(d.ran && d.ended && d.end <= m.clock) {
			n.deps = append(n.deps, d)
		}
	}
	dep(s.tail)
	dep(s.ctx.g.gate)
	for _, d := range after {
		dep(d)
	}
	switch c := s.ctx; {
	case s == c.legacy:
		for _, o := range c.streams {
			if !o.nonBlocking {
				dep(o.tail)
			}
		}
	case !s.nonBlocking:
		dep(c.legacy.tail)
	}
	m.watch.enqueued(s)
	s.tail = n
	if len(s.pending) == 0 {
		m.active = append(m.active, s)
	}
	s.pending = append(s.pending, n)
	s.flight = append(s.flight, n)
	m.line.add(n, m.clock)
}

// couple puts a copy or a kernel behind its stream's last one: another engine
// has another queue to the hardware, which waits as a stream does for an event.
func (m *Machine) couple(s *stream, n *node) {
	if s.ran && s.engine != n.work.engine {
		m.charge(m.spec.Calls.Couple)
		n.work.latency += s.ctx.g.spec.Event.us()
	}
	s.ran, s.engine = true, n.work.engine
}

// hand gives a wait for another GPU's event to the waiting GPU, as the driver
// does in the midst of the next call for the stream, unless the host knows by
// then that the event was reached: then nothing is left of it.
func (m *Machine) hand(n *node) {
	if n == nil || !n.held {
		return
	}
	n.held = false
	if m.seen(n.awaits) {
		n.work.latency = 0
	}
	n.look = max(n.look, (m.called+m.clock)/2)
	n.ready = max(n.ready, n.look)
	if n.unended--; n.unended == 0 {
		m.line.mark(n.turn(), n, ready)
	}
}

// seenAt is when the host can know that a command has ended, in time. What a
// wait takes its stream is no work: it is over for the host when its event is.
func (m *Machine) seenAt(n *node) time.Duration {
	wake := m.spec.Calls.Wake.us()
	if n.runs {
		return n.end + wake
	}
	return max(n.end, n.start+wake)
}

// seen tells whether the host can know that a command is done, in bytes too.
func (m *Machine) seen(n *node) bool { return n.ran && n.ended && m.seenAt(n) <= m.clock }

// land forgets the commands at a stream's front that the host may know to be done.
func (m *Machine) land(s *stream) {
	i := 0
	for i < len(s.flight) && s.flight[i].ran && s.flight[i].ended && s.flight[i].end <= m.clock {
		i++
	}
	s.flight = append(s.flight[:0], s.flight[i:]...)
}

// wait blocks the host until n is done, in time and in bytes.
func (m *Machine) wait(n *node) {
	if n == nil {
		return
	}
	m.until(n)
	m.clock = max(m.clock, m.seenAt(n))
}

// until blocks the host to the very end of n, which it cannot see yet.
func (m *Machine) until(n *node) {
	m.hand(n)
	for m.stalled(n) {
		m.opened.Wait()
	}
	for m.look(); !m.line.until(n); m.look() {
		m.giveWay()
	}
	m.clock = max(m.clock, n.end)
	m.flush(n)
}

// flush runs the bytes of a command that has ended in time.
func (m *Machine) flush(n *node) {
	for !n.ran {
		if !m.step() {
			m.yield()
		}
	}
}

// done tells whether the host would find n done now. If so its bytes are there.
func (m *Machine) done(n *node) bool {
	if n == nil {
		return true
	}
	m.hand(n)
	m.advance()
	if !n.ended || m.seenAt(n) > m.clock {
		// Some of what is still running may already have done its work.
		for range m.rng.IntN(4) {
			m.step()
		}
		return false
	}
	m.flush(n)
	return true
}

// step runs the bytes of one command: of those whose predecessors have run, one
// in the stream that has the highest priority. Priorities are drawn from the
// seed, and drawn again now and then, so that one stream may get far ahead of
// another, which choosing evenly would hardly ever do. It is false where there is
// none. A kernel that waits for others runs in steps, between which others have
// their turns.
func (m *Machine) step() bool {
	var pick *stream
	for _, s := range m.active {
		if (pick == nil || s.priority > pick.priority) && s.pending[0].free() && !m.stuck(s.pending[0]) {
			pick = s
		}
	}
	if pick == nil {
		return false
	}
	n := pick.pending[0]
	if m.rng.IntN(4) == 0 {
		pick.priority = m.rng.Uint32()
	}
	code := api.Success
	switch {
	case pick.ctx.fault != api.Success:
	case n.member != nil:
		var ended bool
		if ended, code = m.tryStep(n.member); !ended {
			return true
		}
	case n.run != nil:
		code = n.run()
	}
	m.retire(pick, code)
	return true
}

// retire takes a command off a stream's front, whose bytes have run.
func (m *Machine) retire(s *stream, code api.Code) {
	if code != api.Success {
		m.lose(code)
	}
	m.line.gangs.stamp++
	n := s.pending[0]
	s.pending[0] = nil
	s.pending = s.pending[1:]
	if len(s.pending) == 0 {
		m.active = slices.DeleteFunc(m.active, func(o *stream) bool { return o == s })
	}
	n.ran, n.run, n.deps = true, nil, nil
}

// free tells whether a command's bytes may run. A kernel that waits for others
// must have begun in time too.
func (n *node) free() bool {
	if n.member != nil && !n.member.begun {
		return false
	}
	for _, d := range n.deps {
		if !d.ran {
			return false
		}
	}
	return true
}

// drain blocks the host until a context has nothing left to do.
func (m *Machine) drain(c *context) {
	m.wait(c.legacy.tail)
	for _, s := range c.streams {
		m.wait(s.tail)
	}
	for _, s := range c.gone {
		m.wait(s.tail)
	}
	c.gone = c.gone[:0]
}
