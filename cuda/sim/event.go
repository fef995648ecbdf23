// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"maps"
	"time"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// event is a point in a stream, once it has been recorded.
type event struct {
	h        api.Event
	ctx      *context
	flags    api.EventFlag
	site     site
	node     *node    // the latest record
	captured *capture // the latest record was into a capture
	frontier frontier // likewise: what lies behind it there
	clock    clock    // what the latest record stands for, if the machine watches
}

// event finds an event by its handle.
func (m *Machine) event(h api.Event) (*event, api.Code) {
	if c := m.up(); c != api.Success {
		return nil, c
	}
	e := m.events[h]
	if e == nil {
		return nil, api.InvalidHandle
	}
	return e, m.answer(e.ctx)
}

func (s seam) EventCreate(flags api.EventFlag) (api.Event, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	c, code := m.ctx()
	if code != api.Success {
		return 0, code
	}
	if flags&^(api.EventBlockingSync|api.EventDisableTiming) != 0 {
		return 0, api.InvalidValue
	}
	e := &event{h: api.Event(newHandle()), ctx: c, flags: flags, site: m.site()}
	m.events[e.h] = e
	return e.h, api.Success
}

// EventDestroy forgets the event at once; who waits for it still does.
func (s seam) EventDestroy(h api.Event) api.Code {
	m := s.other()
	defer m.mu.Unlock()
	if c := m.up(); c != api.Success {
		return c
	}
	e := m.events[h]
	if e == nil {
		return api.InvalidHandle
	}
	delete(m.events, h)
	return m.answer(e.ctx)
}

func (s seam) EventRecord(h api.Event, sh api.Stream) api.Code {
	m := s.lock(s.m.spec.Calls.EventRecord)
	defer m.mu.Unlock()
	e, code := m.event(h)
	if code != api.Success {
		return code
	}
	st, code := m.stream(sh)
	switch {
	case code != api.Success:
		return code
	case e.ctx != st.ctx:
		return api.InvalidHandle
	}
	if skip, code := m.admit(st); skip {
		if code == api.Success {
			st.captured[st]-- // a record is no work
			e.node, e.captured, e.frontier = nil, st.capture, maps.Clone(st.captured)
		}
		return code
	}
	// A record takes its stream no time: the next command does not wait for it.
	n := &node{}
	m.enqueue(st, n)
	e.node, e.captured, e.frontier = n, nil, nil
	m.watch.recorded(e, st)
	return st.ctx.fault
}

// waitable answers a call that waits for an event or asks after it.
func (m *Machine) waitable(h api.Event) (*event, api.Code) {
	e, code := m.event(h)
	switch {
	case code != api.Success:
		return nil, code
	case e.captured != nil && e.captured.ended:
		return nil, api.InvalidValue // as measured
	case e.captured != nil:
		e.captured.invalid = true
		return nil, api.CapturedEvent
	}
	return e, m.unsafeCall()
}

func (s seam) EventQuery(h api.Event) api.Code {
	m := s.lock(s.m.spec.Calls.Query)
	defer m.mu.Unlock()
	e, code := m.waitable(h)
	if code != api.Success {
		return code
	}
	if !m.done(e.node) {
		return api.NotReady
	}
	m.watch.knows(e.clock)
	return e.ctx.fault
}

func (s seam) EventSynchronize(h api.Event) api.Code {
	m := s.lock(s.m.spec.Calls.Synchronize)
	defer m.mu.Unlock()
	e, code := m.waitable(h)
	if code != api.Success {
		return code
	}
	m.wait(e.node)
	m.watch.knows(e.clock)
	return e.ctx.fault
}

func (s seam) EventElapsedTime(start, end api.Event) (ms float32, code api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	a, code := m.event(start)
	if code != api.Success {
		return 0, code
	}
	b, code := m.event(end)
	switch {
	case code != api.Success:
		return 0, code
	case a.ctx != b.ctx, a.node == nil, b.node == nil, (a.flags|b.flags)&api.EventDisableTiming != 0:
		return 0, api.InvalidHandle
	}
	if !m.done(a.node) || !m.done(b.node) {
		return 0, api.NotReady
	}
	m.watch.knows(a.clock)
	m.watch.knows(b.clock)
	return float32(b.node.end-a.node.end) / float32(time.Millisecond), a.ctx.fault
}
