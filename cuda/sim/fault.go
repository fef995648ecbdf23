// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// What is wrong with a machine on purpose. Calls that fail at a given place are
// the tap's business, which works in front of any driver.

// A peerFault is how direct transfers between GPUs go wrong while the driver
// says that all is well.
type peerFault uint8

const (
	peerZeros peerFault = iota + 1
	peerMirror
)

// PeerZeros makes direct transfers between GPUs go wrong as where an IOMMU
// translates: peer copies write zeros once access is enabled, and kernels find
// zeros in another GPU's memory and write there in vain. Copies that the driver
// stages itself arrive.
func PeerZeros() Option { return func(o *options) { o.peer = peerZeros } }

// PeerMirror gives each GPU a private mirror of the others' memory, as some
// virtual machines do: it reads back there what it has written, and the owner of
// the memory never sees it. Copies that the driver stages itself arrive.
func PeerMirror() Option { return func(o *options) { o.peer = peerMirror } }

// reach is the memory that a GPU finds where n bytes at a span should be. Only
// what lies in another GPU's memory can be anything else.
func (m *Machine) reach(by *gpu, s span, n uint64) []byte {
	at := s.gpu()
	if m.options.peer == 0 || at == nil || at == by {
		return s.bytes(n)
	}
	if m.options.peer == peerZeros {
		return make([]byte, n)
	}
	b := s.a.mirrors[by]
	if b == nil {
		b = bytes.Clone(s.a.bytes())
		if s.a.mirrors == nil {
			s.a.mirrors = map[*gpu][]byte{}
		}
		s.a.mirrors[by] = b
	}
	return b[s.off:][:n:n]
}

// Lose takes a GPU off the bus: what it has not done yet it never does, and
// every call on its context, and every new one, answers the code; as the driver
// does, ErrLaunchFailed or ErrUnknown for instance. The other GPUs go on, and
// what waits there for an event of the lost one goes on too.
func (m *Machine) Lose(gpu int, code cuda.Code) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.gpus[gpu]
	g.lost = api.Code(code)
	if g.primary != nil && g.primary.fault == api.Success {
		g.primary.fault = g.lost
	}
}

// Fault is a kernel's that shows with the next call that a context answers for, by its
// stream or event or as the thread's current one: that call answers the code, and
// so does every later one, on all GPUs. Other calls (cuCtxGetCurrent, cuDeviceGet)
// do not find out. The code 0 takes back a fault that has not shown.
func (m *Machine) Fault(code cuda.Code) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faulting = api.Code(code)
}

// answer is the context's answer to a call that concerns it.
func (m *Machine) answer(c *context) api.Code {
	if m.faulting != api.Success {
		m.lose(m.faulting)
		m.faulting = api.Success
	}
	return c.fault
}

// Held is what the machine has given out and not got back.
type Held struct {
	Contexts, Streams, Events, Modules int
	Device, Pinned                     uint64 // bytes, of all GPUs and of the host
}

// Held counts what is in use now. What was lost with a context counts until the
// last reference to the context is given up.
func (m *Machine) Held() Held {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := Held{Contexts: len(m.contexts), Streams: len(m.streams), Events: len(m.events), Modules: len(m.modules), Pinned: m.locked}
	for _, g := range m.gpus {
		h.Device += g.used
	}
	return h
}

// Stall keeps a GPU from starting anything that is enqueued from now on, as one
// that hangs or never gets a turn, until Resume or Close. What is in flight
// goes on. Enqueueing does not block, waiting does: a thread that waits for the
// GPU by a driver call stays in it.
func (m *Machine) Stall(gpu int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g := m.gpus[gpu]; g.gate == nil {
		g.gate = &node{}
		m.gates++
	}
}

// Resume ends what Stall began.
func (m *Machine) Resume(gpu int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.resume(m.gpus[gpu])
}

func (m *Machine) resume(g *gpu) {
	if g.gate == nil {
		return
	}
	n := g.gate
	g.gate = nil
	m.gates--
	n.ran = true
	m.line.advance(m.clock)
	m.line.finish(n, m.clock)
	m.opened.Broadcast()
}

// stalled tells whether a command waits, by whatever way, for a GPU that stalls.
func (m *Machine) stalled(n *node) bool {
	if m.gates == 0 {
		return false
	}
	seen := map[*node]bool{}
	var find func(n *node) bool
	find = func(n *node) bool {
		if n.ran || seen[n] {
			return false
		}
		seen[n] = true
		for _, g := range m.gpus {
			if n == g.gate {
				return true
			}
		}
		for _, d := range n.deps {
			if find(d) {
				return true
			}
		}
		return false
	}
	return find(n)
}
