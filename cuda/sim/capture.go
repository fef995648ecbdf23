// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// A capture is a stream capture in progress. What is enqueued meanwhile is not
// recorded: the graph at its end is an empty one.
type capture struct {
	origin  *stream
	mode    api.CaptureMode
	thread  uint64
	invalid bool
	ended   bool
}

// A frontier is how much of what streams captured lies behind a point of a
// capture, by stream.
type frontier map[*stream]int

// join takes in another point's.
func (f frontier) join(o frontier) {
	for s, n := range o {
		f[s] = max(f[s], n)
	}
}

// joins makes a stream part of a capture.
func (s *stream) joins(c *capture) { s.capture, s.captured = c, frontier{} }

// joined tells whether all that the capture's streams hold lies behind the end
// of the stream where it began.
func (m *Machine) joined(c *capture) bool {
	for _, s := range m.streams {
		if s.capture == c && s.captured[s] > c.origin.captured[s] {
			return false
		}
	}
	return true
}

// end ends a capture: its streams are streams again.
func (m *Machine) end(c *capture) {
	c.ended = true
	m.captures = slices.DeleteFunc(m.captures, func(o *capture) bool { return o == c })
	for _, s := range m.streams {
		if s.capture == c {
			s.capture, s.captured = nil, nil
		}
	}
}

// unsafeCall answers a call that could disturb a capture: CAPTURE_UNSUPPORTED
// if the calling thread's mode and the captures in progress forbid it, and then
// those captures are invalid.
func (m *Machine) unsafeCall() api.Code {
	if len(m.captures) == 0 {
		return api.Success
	}
	t := threadID()
	mode := m.modes[t]
	if mode == api.CaptureRelaxed {
		return api.Success
	}
	code := api.Success
	for _, c := range m.captures {
		if c.mode == api.CaptureRelaxed {
			continue
		}
		if c.thread == t || mode == api.CaptureGlobal && c.mode == api.CaptureGlobal {
			c.invalid = true
			code = api.CaptureUnsupported
		}
	}
	return code
}

// implicit tells whether a blocking stream of the context is being captured,
// which the legacy default stream would have to wait for.
func (c *context) implicit() *capture {
	for _, s := range c.streams {
		if s.capture != nil && !s.nonBlocking {
			return s.capture
		}
	}
	return nil
}

// admit decides about a command for a stream: skip says that the stream is
// being captured, so that nothing is to be enqueued.
func (m *Machine) admit(s *stream) (skip bool, code api.Code) {
	if s.capture != nil {
		if s.capture.invalid {
			return true, api.CaptureInvalid
		}
		s.captured[s]++
		return true, api.Success
	}
	if s == s.ctx.legacy {
		if c := s.ctx.implicit(); c != nil {
			c.invalid = true
			return true, api.CaptureImplicit
		}
	}
	return false, api.Success
}

func (s seam) StreamIsCapturing(h api.Stream) (api.CaptureStatus, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	st, code := m.stream(h)
	if code != api.Success {
		return api.CaptureNone, code
	}
	switch {
	case st == st.ctx.legacy && st.ctx.implicit() != nil:
		return api.CaptureNone, api.CaptureImplicit
	case st.capture == nil:
		return api.CaptureNone, api.Success
	case st.capture.invalid:
		return api.CaptureInvalidated, api.Success
	}
	return api.CaptureActive, api.Success
}

func (s seam) StreamBeginCapture(h api.Stream, mode api.CaptureMode) api.Code {
	m := s.other()
	defer m.mu.Unlock()
	st, code := m.stream(h)
	switch {
	case code != api.Success:
		return code
	case mode < api.CaptureGlobal || mode > api.CaptureRelaxed:
		return api.InvalidValue
	case st == st.ctx.legacy:
		return api.CaptureUnsupported
	case st.capture != nil:
		return api.IllegalState
	}
	st.joins(&capture{origin: st, mode: mode, thread: threadID()})
	m.captures = append(m.captures, st.capture)
	return api.Success
}

func (s seam) StreamEndCapture(h api.Stream) (api.Graph, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	st, code := m.stream(h)
	if code != api.Success {
		return 0, code
	}
	c := st.capture
	switch {
	case c == nil:
		return 0, api.IllegalState
	case c.origin != st:
		return 0, api.CaptureUnmatched
	case c.mode != api.CaptureRelaxed && c.thread != threadID() && !c.invalid: // as measured
		return 0, api.CaptureWrongThread
	}
	joined := m.joined(c)
	m.end(c)
	switch {
	case c.invalid:
		return 0, api.CaptureInvalid
	case !joined:
		return 0, api.CaptureUnjoined
	}
	g := api.Graph(newHandle())
	m.graphs[g] = true
	return g, api.Success
}

func (s seam) ThreadExchangeStreamCaptureMode(mode api.CaptureMode) (old api.CaptureMode, code api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	if c := m.up(); c != api.Success {
		return 0, c
	}
	// As measured, any mode is taken.
	t := threadID()
	old = m.modes[t]
	if mode == api.CaptureGlobal {
		delete(m.modes, t)
	} else {
		m.modes[t] = mode
	}
	return old, api.Success
}

func (s seam) GraphDestroy(g api.Graph) api.Code {
	m := s.other()
	defer m.mu.Unlock()
	if c := m.up(); c != api.Success {
		return c
	}
	if !m.graphs[g] {
		return api.InvalidValue
	}
	delete(m.graphs, g)
	return api.Success
}
