// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"syscall"
)

// numa is a NUMA node of the host.
type numa struct {
	id, socket int
	mem        link
}

// layout makes the host's memory and the links between its sockets, and puts
// the GPUs where they are.
func (m *Machine) layout() {
	byID := map[int]*numa{}
	for _, n := range m.spec.Host.Nodes {
		node := &numa{id: n.ID, socket: n.Socket, mem: link{rate: n.Memory.perSecond()}}
		m.nodes = append(m.nodes, node)
		byID[n.ID] = node
	}
	m.sockets = map[[2]int]*link{}
	for _, a := range m.nodes {
		for _, b := range m.nodes {
			if a.socket != b.socket {
				m.sockets[[2]int{a.socket, b.socket}] = &link{rate: m.spec.Host.SocketLink.perSecond()}
			}
		}
	}
	for _, g := range m.gpus {
		if g.node = byID[g.spec.NUMANode]; g.node == nil {
			g.node = m.nodes[0]
		}
	}
	m.prefer = map[uint64]*numa{}
}

// preferred is the node from which the calling thread gets memory.
func (m *Machine) preferred() *numa {
	if n := m.prefer[threadID()]; n != nil {
		return n
	}
	return m.nodes[0]
}

// preferNode sets the calling thread's node and returns what undoes it.
func (m *Machine) preferNode(id int) (restore func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.nodes {
		if n.id != id {
			continue
		}
		t := threadID()
		old := m.prefer[t]
		m.prefer[t] = n
		return func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			if old == nil {
				delete(m.prefer, t) // threads come and go
			} else {
				m.prefer[t] = old
			}
		}, nil
	}
	return nil, fmt.Errorf("sim: NUMA node %d: %w", id, syscall.EINVAL)
}

// A place is where bytes are: in a GPU's memory, or in that of a node.
type place struct {
	g    *gpu
	node *numa
}

// place finds where a span is. Pageable memory counts as the first node's.
func (m *Machine) place(s span) place {
	if s.a == nil {
		return place{node: m.nodes[0]}
	}
	return s.a.place()
}

func (a *alloc) place() place {
	if a.g != nil {
		return place{g: a.g}
	}
	return place{node: a.node}
}

// cross adds the link between two sockets, if bytes cross one.
func (m *Machine) cross(w *work, from, to *numa, n float64) {
	if from.socket != to.socket {
		w.load(m.sockets[[2]int{from.socket, to.socket}], n)
	}
}

// toHost adds what it takes to write n bytes of a GPU's into host memory, and
// fromHost to read them.
func (m *Machine) toHost(w *work, g *gpu, to *numa, n float64) {
	w.load(&g.d2h, n)
	w.load(&g.duplex, n)
	m.cross(w, g.node, to, n)
	w.load(&to.mem, n)
}

func (m *Machine) fromHost(w *work, g *gpu, from *numa, n float64) {
	w.load(&g.h2d, n)
	w.load(&g.duplex, n)
	m.cross(w, from, g.node, n)
	w.load(&from.mem, n)
}

// toPeer adds what it takes to move n bytes from one GPU over its link and the
// other's. Such a flow is alone faster or slower than one to host memory, which
// is what a link's rate says: it takes as much more or less of the link.
func (m *Machine) toPeer(w *work, from, to *gpu, n float64) {
	rate := m.spec.Peer.Near
	if from.node.socket != to.node.socket {
		rate = m.spec.Peer.Far
	}
	r := rate.perSecond()
	both := 2 * r * m.spec.Peer.Duplex.Value
	w.load(&from.d2h, n*from.d2h.rate/r)
	w.load(&from.duplex, n*from.duplex.rate/both)
	m.cross(w, from.node, to.node, n)
	w.load(&to.h2d, n*to.h2d.rate/r)
	w.load(&to.duplex, n*to.duplex.rate/both)
}

// route works out what a copy costs. It tells whether the copy is asynchronous.
func (m *Machine) route(w *work, dst, src place, bytes uint64, by *context) (async bool) {
	n := float64(bytes)
	engine := func(e *engine, g *gpu) { w.engine, w.latency = e, w.latency+g.spec.PerCopy.us() }
	switch {
	case src.g == nil && dst.g == nil:
		w.load(&src.node.mem, n)
		m.cross(w, src.node, dst.node, n)
		w.load(&dst.node.mem, n)
		engine(by.g.cpEngine, by.g)
	case src.g == nil:
		m.fromHost(w, dst.g, src.node, n)
		w.load(&dst.g.mem, n)
		engine(dst.g.inEngine, dst.g)
	case dst.g == nil:
		w.load(&src.g.mem, n)
		m.toHost(w, src.g, dst.node, n)
		engine(src.g.outEngine, src.g)
	case src.g == dst.g:
		w.load(&src.g.mem, 2*n)
		engine(src.g.cpEngine, src.g)
	case m.peered(src.g, dst.g) || m.peered(dst.g, src.g):
		w.load(&src.g.mem, n)
		m.toPeer(w, src.g, dst.g, n)
		w.load(&dst.g.mem, n)
		engine(src.g.outEngine, src.g)
	default:
		return m.stage(w, src.g, dst.g, n)
	}
	return true
}

// stagedInOne is the most bytes that the driver, where it stages both
// directions at once, has in host memory by the time the other GPU first looks
// for them. Measured on two H200: 16 KiB are, and 64 KiB are not.
const stagedInOne = 32 << 10

// stage works out what a copy costs that the driver stages: through buffers,
// taken to be near the source, that all such copies take turns at, or all of one
// direction. It tells whether the copy is asynchronous.
func (m *Machine) stage(w *work, src, dst *gpu, n float64) (async bool) {
	w.load(&src.mem, n)
	m.toHost(w, src, src.node, n)
	m.fromHost(w, dst, src.node, n)
	w.load(&dst.mem, n)
	w.load(&m.stageway, n)
	w.latency += m.spec.Staging.PerCopy.us()
	w.engine = &m.staging
	if m.spec.Staging.Duplex == (Figure{}) {
		return false
	}
	m.advance()
	there, back := m.stager(src, dst), m.stager(dst, src)
	w.load(&there.way, n)
	w.engine = &there.engine
	if n > stagedInOne || back.engine.busy {
		w.latency += dst.spec.Poll.us()
	}
	return true
}

// A stager is the driver's staging in one direction, where that is independent
// of the other.
type stager struct {
	engine engine
	way    link
}

func (m *Machine) stager(from, to *gpu) *stager {
	at := [2]int{from.ordinal, to.ordinal}
	s := m.stagers[at]
	if s == nil {
		s = &stager{way: link{rate: m.spec.Staging.Rate.perSecond()}}
		m.stagers[at] = s
	}
	return s
}

// peered tells whether one GPU's context may reach another's memory.
func (m *Machine) peered(from, to *gpu) bool {
	return from.primary != nil && to.primary != nil && from.primary.peers[to.primary]
}

// touch adds what it costs when a kernel on by reads or writes n bytes.
func (m *Machine) touch(w *work, by *gpu, at place, bytes uint64, write bool) {
	n := float64(bytes)
	switch {
	case at.g == by:
		w.load(&by.mem, n)
	case at.g == nil && write:
		m.toHost(w, by, at.node, n)
	case at.g == nil:
		m.fromHost(w, by, at.node, n)
	case !m.peered(by, at.g): // it will fault
	case write:
		m.toPeer(w, by, at.g, n)
		w.load(&at.g.mem, n)
	default:
		m.toPeer(w, at.g, by, n)
		w.load(&at.g.mem, n)
	}
}
