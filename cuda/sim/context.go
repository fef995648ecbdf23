// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// context is a GPU's primary context.
type context struct {
	h       api.Context
	g       *gpu
	legacy  *stream
	streams []*stream // in the order in which they were made
	gone    []*stream // destroyed with work left
	peers   map[*context]bool
	fault   api.Code // the sticky error that lost it
	dead    bool
	site    site

	goneClock    clock // of the destroyed streams
	goneBlocking clock // of those that were not non-blocking
}

// ctx is the calling thread's current context: INVALID_CONTEXT if there is
// none, and the error of a context that is lost.
func (m *Machine) ctx() (*context, api.Code) {
	if c := m.up(); c != api.Success {
		return nil, c
	}
	c := m.top(threadID())
	switch {
	case c == nil:
		return nil, api.InvalidContext
	case c.dead:
		return nil, api.ContextIsDestroyed
	}
	if code := m.answer(c); code != api.Success {
		return nil, code
	}
	return c, api.Success
}

// lose makes the error of a kernel sticky: in all contexts of the process, peers or
// not, and for good: who asks for a new one gets the error too. Measured on two
// H200, for ILLEGAL_ADDRESS and for LAUNCH_FAILED of a trap; the process has to end.
func (m *Machine) lose(code api.Code) {
	if m.fault == api.Success {
		m.fault = code
	}
	for _, g := range m.gpus {
		if c := g.primary; c != nil && c.fault == api.Success {
			c.fault = code
		}
	}
}

func (m *Machine) top(thread uint64) *context {
	if s := m.current[thread]; len(s) > 0 {
		return s[len(s)-1]
	}
	return nil
}

// lookup finds a context by its handle.
func (m *Machine) lookup(h api.Context) (*context, api.Code) {
	if c := m.contexts[h]; c != nil {
		return c, api.Success
	}
	return nil, api.InvalidContext
}

func (s seam) DevicePrimaryCtxRetain(d api.Device) (api.Context, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	g, c := m.gpu(d)
	if c != api.Success {
		return 0, c
	}
	if g.lost != api.Success {
		return 0, g.lost
	}
	if m.fault != api.Success {
		return 0, m.fault
	}
	if g.primary == nil {
		m.charge(m.spec.Calls.ContextCreate)
		c := &context{h: api.Context(newHandle()), g: g, peers: map[*context]bool{}, site: m.site()}
		c.legacy = &stream{ctx: c, priority: m.rng.Uint32(), actor: m.watch.newActor()}
		if m.race != nil {
			c.fault = raceCode
		}
		g.primary, m.contexts[c.h] = c, c
	}
	g.retained++
	return g.primary.h, api.Success
}

func (s seam) DevicePrimaryCtxRelease(d api.Device) api.Code {
	m := s.other()
	defer m.mu.Unlock()
	g, c := m.gpu(d)
	switch {
	case c != api.Success:
		return c
	case g.primary == nil:
		return api.InvalidContext
	}
	if g.retained--; g.retained == 0 {
		m.drain(g.primary)
		m.watch.knowsContext(g.primary)
		m.destroy(g.primary)
	}
	return api.Success
}

// destroy ends a context and all that was made in it, which is what leaked; of
// a context that was lost nothing could be given back. It stays current where
// it is, and calls there answer CONTEXT_IS_DESTROYED.
func (m *Machine) destroy(c *context) {
	report := func(what string) {
		if c.fault == api.Success {
			m.leaks = append(m.leaks, what)
		}
	}
	leak := func(what string, at site) { report(fmt.Sprintf("%s of GPU %d%s", what, c.g.ordinal, at)) }
	for _, s := range c.streams {
		leak("stream", s.site)
		delete(m.streams, s.h)
	}
	for _, e := range sorted(m.events) {
		if e.ctx == c {
			leak("event", e.site)
			delete(m.events, e.h)
		}
	}
	for _, mod := range sorted(m.modules) {
		if mod.ctx == c {
			leak("module", mod.site)
			m.unload(mod)
		}
	}
	for _, a := range slices.Clone(m.memory) {
		if a.ctx == c {
			report(a.String())
			m.release(a)
		}
	}
	for _, k := range slices.Clone(m.captures) {
		if k.origin.ctx == c {
			m.end(k)
		}
	}
	for o := range c.peers {
		delete(o.peers, c)
	}
	delete(m.contexts, c.h)
	c.dead, c.g.primary, c.g.retained = true, nil, 0
	c.streams, c.gone, c.peers = nil, nil, nil
}

func (s seam) DevicePrimaryCtxGetState(d api.Device) (flags uint32, active bool, code api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	g, code := m.gpu(d)
	if code != api.Success {
		return 0, false, code
	}
	return 0, g.primary != nil, code
}

func (s seam) CtxGetCurrent() (api.Context, api.Code) {
	m := s.lock(s.m.spec.Calls.ContextCurrent)
	defer m.mu.Unlock()
	if c := m.up(); c != api.Success {
		return 0, c
	}
	if c := m.top(threadID()); c != nil {
		return c.h, api.Success
	}
	return 0, api.Success
}

func (s seam) CtxSetCurrent(h api.Context) api.Code {
	m := s.lock(s.m.spec.Calls.ContextSet)
	defer m.mu.Unlock()
	if c := m.up(); c != api.Success {
		return c
	}
	if h == 0 {
		m.pop(threadID())
		return api.Success
	}
	c, code := m.lookup(h)
	if code != api.Success {
		return code
	}
	t := threadID()
	if s := m.current[t]; len(s) > 0 {
		s[len(s)-1] = c
	} else {
		m.current[t] = append(s, c)
	}
	return api.Success
}

func (s seam) CtxPushCurrent(h api.Context) api.Code {
	m := s.lock(s.m.spec.Calls.ContextPushPop)
	defer m.mu.Unlock()
	if c := m.up(); c != api.Success {
		return c
	}
	if h == 0 {
		return api.InvalidValue // as measured; cuCtxSetCurrent takes it
	}
	c, code := m.lookup(h)
	if code != api.Success {
		return code
	}
	t := threadID()
	m.current[t] = append(m.current[t], c)
	return api.Success
}

func (s seam) CtxPopCurrent() (api.Context, api.Code) {
	m := s.lock(s.m.spec.Calls.ContextPushPop)
	defer m.mu.Unlock()
	if c := m.up(); c != api.Success {
		return 0, c
	}
	c := m.pop(threadID())
	if c == nil {
		return 0, api.InvalidContext
	}
	return c.h, api.Success
}

func (m *Machine) pop(thread uint64) *context {
	s := m.current[thread]
	if len(s) == 0 {
		return nil
	}
	c := s[len(s)-1]
	if len(s) == 1 {
		delete(m.current, thread) // threads come and go
	} else {
		s[len(s)-1] = nil
		m.current[thread] = s[:len(s)-1]
	}
	return c
}

func (s seam) CtxGetDevice() (api.Device, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	c, code := m.ctx()
	if code != api.Success {
		return 0, code
	}
	return api.Device(c.g.ordinal), api.Success
}

func (s seam) CtxSynchronize() api.Code {
	m := s.lock(s.m.spec.Calls.Synchronize)
	defer m.mu.Unlock()
	c, code := m.ctx()
	if code != api.Success {
		return code
	}
	// As measured, a relaxed thread may not do this either.
	if len(m.captures) > 0 {
		m.unsafeCall()
		return api.CaptureUnsupported
	}
	m.drain(c)
	m.watch.knowsContext(c)
	return c.fault
}

// maxPeers is how many others a GPU can be connected to at a time, in whichever
// direction: the driver's limit where there is no NVSwitch.
const maxPeers = 8

// connections counts the contexts that this one reaches or that reach it, other
// than one of them.
func (m *Machine) connections(c, but *context) int {
	n := 0
	for _, g := range m.gpus {
		if o := g.primary; o != nil && o != but && (c.peers[o] || o.peers[c]) {
			n++
		}
	}
	return n
}

func (s seam) CtxEnablePeerAccess(h api.Context) api.Code {
	m := s.other()
	defer m.mu.Unlock()
	c, code := m.ctx()
	if code != api.Success {
		return code
	}
	peer, code := m.lookup(h)
	switch {
	case code != api.Success:
		return code
	case !m.canAccess(c.g.ordinal, peer.g.ordinal):
		return api.PeerAccessUnsupported
	case c.peers[peer]:
		return api.PeerAccessAlreadyEnabled
	case m.connections(c, peer) >= maxPeers || m.connections(peer, c) >= maxPeers:
		return api.TooManyPeers
	}
	c.peers[peer] = true
	return api.Success
}

func (s seam) CtxDisablePeerAccess(h api.Context) api.Code {
	m := s.other()
	defer m.mu.Unlock()
	c, code := m.ctx()
	if code != api.Success {
		return code
	}
	peer, code := m.lookup(h)
	switch {
	case code != api.Success:
		return code
	case !c.peers[peer]:
		return api.PeerAccessNotEnabled
	}
	m.drain(c)
	delete(c.peers, peer)
	return api.Success
}
