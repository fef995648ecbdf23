// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"sync/atomic"

	"github.com/geforce-p2p/geforce-p2p/gp/internal/plan"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// A mark is a point in a queue that has been recorded with an event: what was
// enqueued before it has run once the event is done. Marks are counted: a Work
// holds those at the end of its plan, and the regions that the plan used hold
// them until they are reused. The event goes back to its rank when the last
// holder lets go; it may be recorded again then, since a wait that was enqueued
// took the record that was the latest at that time.
type mark struct {
	rank  *Rank
	ev    api.Event
	queue api.Stream // the stream it was recorded on
	// Of a stream of the rank's own, by number from 1 on: marks there are done in
	// the order in which they were recorded.
	own  int
	turn uint64
	done atomic.Bool
	// Under the group's lock:
	refs      int
	awaitedIn uint64 // the run in which queues waited for it last,
	awaitedBy uint64 // and which: a bit for each of the run's queues
}

// newMark takes a mark from the rank's free list. Its one reference is the
// caller's. The group's lock is held and the rank's context is current.
func (r *Rank) newMark() (*mark, api.Code) {
	if n := len(r.freeMarks); n > 0 {
		m := r.freeMarks[n-1]
		r.freeMarks = r.freeMarks[:n-1]
		m.refs = 1
		m.done.Store(false)
		return m, api.Success
	}
	ev, c := r.g.api.EventCreate(api.EventDisableTiming)
	if c != api.Success {
		return nil, c
	}
	m := &mark{rank: r, ev: ev, refs: 1}
	r.marks = append(r.marks, m)
	return m, api.Success
}

// on says on which stream the mark is about to be recorded. The group's lock is
// held.
func (m *mark) on(q api.Stream) {
	m.queue, m.own = q, 0
	r := m.rank
	for i, have := range r.lanes {
		if q == have && r.lane[i] != nil {
			m.own = 1 + i
		}
	}
	if q == r.queue() {
		m.own = ownStreams - 1
	}
	if m.own > 0 {
		r.recorded[m.own]++
		m.turn = r.recorded[m.own]
	}
}

// ownStreams is one more than the streams that a rank makes.
const ownStreams = plan.Lanes + 2

// isDone tells whether the mark is known to be done without asking the driver.
func (m *mark) isDone() bool {
	return m.done.Load() || m.own > 0 && m.rank.reached[m.own].Load() >= m.turn
}

// finish notes that the driver has said so.
func (m *mark) finish() {
	m.done.Store(true)
	if m.own == 0 {
		return
	}
	at := &m.rank.reached[m.own]
	for {
		was := at.Load()
		if was >= m.turn || at.CompareAndSwap(was, m.turn) {
			return
		}
	}
}

// release drops one reference. The group's lock is held.
func (m *mark) release() {
	if m.refs--; m.refs == 0 {
		m.rank.freeMarks = append(m.rank.freeMarks, m)
	}
}
