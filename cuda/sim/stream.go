// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// stream is a queue of commands of one context.
type stream struct {
	h           api.Stream
	ctx         *context
	nonBlocking bool
	site        site
	capture     *capture
	captured    frontier // of the capture
	actor       int      // of the watch
	clock       clock    // likewise: what has happened once the last command has

	tail     *node   // the last command
	ran      bool    // it has had a copy or a kernel
	engine   *engine // of the last one of these; nil for a kernel
	pending  []*node // whose bytes have not run
	flight   []*node // that the host may not know to be done
	priority uint32
}

func (s *stream) String() string {
	kind := "blocking stream"
	switch {
	case s == s.ctx.legacy:
		return fmt.Sprintf("the legacy default stream of GPU %d", s.ctx.g.ordinal)
	case s.nonBlocking:
		kind = "stream"
	}
	return fmt.Sprintf("%s %#x of GPU %d", kind, uint64(s.h), s.ctx.g.ordinal)
}

// stream finds a stream by its handle. 0 and 1 are the legacy default stream of
// the current context.
func (m *Machine) stream(h api.Stream) (*stream, api.Code) {
	switch h {
	case api.StreamNull, api.StreamLegacy:
		c, code := m.ctx()
		if code != api.Success {
			return nil, code
		}
		return c.legacy, api.Success
	case api.StreamPerThread:
		return nil, api.NotSupported
	}
	if c := m.up(); c != api.Success {
		return nil, c
	}
	s := m.streams[h]
	if s == nil {
		return nil, api.InvalidHandle
	}
	return s, m.answer(s.ctx)
}

func (s seam) StreamCreate(flags api.StreamFlag) (api.Stream, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	c, code := m.ctx()
	if code != api.Success {
		return 0, code
	}
	if flags&^api.StreamNonBlocking != 0 {
		return 0, api.InvalidValue
	}
	st := &stream{h: api.Stream(newHandle()), ctx: c, nonBlocking: flags == api.StreamNonBlocking, priority: m.rng.Uint32(), actor: m.watch.newActor(), site: m.site()}
	m.streams[st.h] = st
	c.streams = append(c.streams, st)
	return st.h, api.Success
}

// StreamDestroy forgets the stream at once; what it holds still runs.
func (s seam) StreamDestroy(h api.Stream) api.Code {
	m := s.other()
	defer m.mu.Unlock()
	if c := m.up(); c != api.Success {
		return c
	}
	st := m.streams[h]
	if st == nil {
		return api.InvalidHandle
	}
	if c := st.capture; c != nil {
		c.invalid = true
		if c.origin == st {
			m.end(c)
		}
	}
	delete(m.streams, h)
	m.watch.gone(st)
	st.ctx.streams = slices.DeleteFunc(st.ctx.streams, func(o *stream) bool { return o == st })
	if !m.done(st.tail) {
		st.ctx.gone = append(slices.DeleteFunc(st.ctx.gone, func(o *stream) bool { return m.done(o.tail) }), st)
	}
	return m.answer(st.ctx)
}

// mayWait answers a call that waits for a stream or asks after it: never for
// one that is being captured, nor where a capture forbids it.
func (m *Machine) mayWait(s *stream) api.Code {
	if s.capture != nil {
		s.capture.invalid = true
		return api.CaptureUnsupported
	}
	if s == s.ctx.legacy {
		if c := s.ctx.implicit(); c != nil {
			c.invalid = true
			return api.CaptureImplicit
		}
	}
	return m.unsafeCall()
}

func (s seam) StreamQuery(h api.Stream) api.Code {
	m := s.lock(s.m.spec.Calls.Query)
	defer m.mu.Unlock()
	st, code := m.stream(h)
	if code != api.Success {
		return code
	}
	if code := m.mayWait(st); code != api.Success {
		return code
	}
	if !m.quiet(st, m.done) {
		return api.NotReady
	}
	m.watch.knowsStream(st)
	return st.ctx.fault
}

// quiet tells whether all of a stream's commands are done. The legacy default
// stream's are also those of the blocking streams.
func (m *Machine) quiet(s *stream, done func(*node) bool) bool {
	ok := done(s.tail)
	if s == s.ctx.legacy {
		for _, o := range s.ctx.streams {
			if !o.nonBlocking {
				ok = done(o.tail) && ok
			}
		}
	}
	return ok
}

func (s seam) StreamSynchronize(h api.Stream) api.Code {
	m := s.lock(s.m.spec.Calls.Synchronize)
	defer m.mu.Unlock()
	st, code := m.stream(h)
	if code != api.Success {
		return code
	}
	if code := m.mayWait(st); code != api.Success {
		return code
	}
	m.quiet(st, func(n *node) bool { m.wait(n); return true })
	m.watch.knowsStream(st)
	return st.ctx.fault
}

func (s seam) StreamWaitEvent(h api.Stream, eh api.Event) api.Code {
	m := s.lock(s.m.spec.Calls.StreamWait)
	defer m.mu.Unlock()
	st, code := m.stream(h)
	if code != api.Success {
		return code
	}
	e := m.events[eh]
	if e == nil {
		return api.InvalidHandle
	}
	switch {
	case e.captured != nil && e.captured.ended:
		return api.CapturedEvent
	case st.capture != nil && st.capture.invalid, e.captured != nil && e.captured.invalid:
		return api.CaptureInvalid
	case st.capture != nil && e.captured == nil && e.node != nil:
		st.capture.invalid = true
		return api.CaptureIsolation
	case st.capture != nil && e.captured != nil && st.capture != e.captured:
		st.capture.invalid, e.captured.invalid = true, true
		return api.CaptureMerge
	case st.capture != nil:
		st.captured.join(e.frontier)
		return api.Success
	case e.captured != nil:
		if st == st.ctx.legacy {
			e.captured.invalid = true
			return api.CaptureImplicit
		}
		// The stream joins the capture.
		st.joins(e.captured)
		st.captured.join(e.frontier)
		return api.Success
	}
	if skip, code := m.admit(st); skip {
		return code
	}
	m.watch.follows(st, e)
	// The latest record at the time of the call; one that is known to be done,
	// or none, is no wait.
	if e.node == nil || m.seen(e.node) {
		return api.Success
	}
	n := &node{work: work{latency: st.ctx.g.spec.Event.us()}}
	if e.ctx.g != st.ctx.g {
		m.charge(m.spec.Calls.Couple)
		if !m.peered(st.ctx.g, e.ctx.g) && !m.peered(e.ctx.g, st.ctx.g) {
			n.awaits, n.held = e.node, true
		}
	}
	m.enqueue(st, n, e.node)
	return st.ctx.fault
}

func (s seam) StreamGetCtx(h api.Stream) (api.Context, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	st, code := m.stream(h)
	if code != api.Success {
		return 0, code
	}
	return st.ctx.h, code
}
