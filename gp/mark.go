// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"sync/atomic"

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
	done  atomic.Bool
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

// release drops one reference. The group's lock is held.
func (m *mark) release() {
	if m.refs--; m.refs == 0 {
		m.rank.freeMarks = append(m.rank.freeMarks, m)
	}
}
