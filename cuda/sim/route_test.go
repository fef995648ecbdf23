// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// eight is a rig on eight GPUs, one a NUMA node, four nodes a socket, with 8 MiB
// on each and as much pinned memory on each node.
type eight struct {
	*rig
	dev     []api.Ptr
	host    map[int]unsafe.Pointer // by node
	streams []api.Stream
}

const eightBytes = 8 * mib

func newEight(t *testing.T, change func(*Spec)) *eight {
	s, err := Builtin("8x4090-p2p")
	require.NoError(t, err)
	if change != nil {
		change(&s)
	}
	m, err := New(s)
	require.NoError(t, err)
	e := &eight{rig: newRigOf(t, m), host: map[int]unsafe.Pointer{}}
	for i := range m.gpus {
		e.streams = append(e.streams, e.stream(i))
		e.dev = append(e.dev, e.device(i, eightBytes))
	}
	for _, n := range m.nodes {
		restore, err := e.d.Host().PreferNode(n.id)
		require.NoError(t, err)
		_, e.host[n.id] = e.pinned(eightBytes)
		restore()
	}
	return e
}

// rate is GB/s of all that f enqueues on the given GPUs' streams, copies of
// eightBytes each.
func (e *eight) rate(copies int, f func()) float64 {
	took := e.timed(func() {
		f()
		for _, s := range e.streams {
			e.ok(e.d.StreamSynchronize(s))
		}
	})
	return float64(copies) * eightBytes / took.Seconds() / 1e9
}

func TestNodesAndSockets(t *testing.T) {
	e := newEight(t, nil)
	spec := e.m.spec
	// Four cards write to memory of their own nodes, each as fast as its link, or
	// all to that of one, whose memory they share.
	write := func(node func(gpu int) int) float64 {
		return e.rate(4, func() {
			for i := range 4 {
				e.ok(e.d.MemcpyDtoHAsync(e.host[node(i)], e.dev[i], eightBytes, e.streams[i]))
			}
		})
	}
	own := func(gpu int) int { return spec.GPUs[gpu].NUMANode }
	require.InEpsilon(t, 4*spec.GPUs[0].D2H.Value, write(own), 0.05)
	shared := write(func(int) int { return 2 })
	require.InEpsilon(t, spec.Host.Nodes[2].Memory.Value, shared, 0.05)

	// A narrow link between the sockets holds up what crosses it, each way by
	// itself, and nothing else.
	narrow := Figure{Value: 10, Unit: "GB/s", Source: "a test"}
	e = newEight(t, func(s *Spec) { s.Host.SocketLink = narrow })
	out := e.rate(1, func() { e.ok(e.d.MemcpyDtoHAsync(e.host[7], e.dev[0], eightBytes, e.streams[0])) })
	require.InEpsilon(t, 10, out, 0.05)
	in := e.rate(1, func() { e.ok(e.d.MemcpyHtoDAsync(e.dev[0], e.host[7], eightBytes, e.streams[0])) })
	require.InEpsilon(t, 10, in, 0.05)
	both := e.rate(2, func() {
		e.ok(e.d.MemcpyDtoHAsync(e.host[7], e.dev[0], eightBytes, e.streams[0]))
		e.ok(e.d.MemcpyDtoHAsync(e.host[0], e.dev[4], eightBytes, e.streams[4]))
	})
	require.InEpsilon(t, 20, both, 0.05, "one crosses each way")
	same := e.rate(2, func() {
		e.ok(e.d.MemcpyDtoHAsync(e.host[7], e.dev[0], eightBytes, e.streams[0]))
		e.ok(e.d.MemcpyDtoHAsync(e.host[6], e.dev[1], eightBytes, e.streams[1]))
	})
	require.InEpsilon(t, 10, same, 0.05, "both cross the same way")
	require.InEpsilon(t, 4*spec.GPUs[0].D2H.Value, write(own), 0.05)
}

func TestPeersShareLinks(t *testing.T) {
	e := newEight(t, nil)
	spec := e.m.spec
	for i := range e.dev {
		e.use(i)
		for j := range e.dev {
			if i != j {
				e.ok(e.d.CtxEnablePeerAccess(e.ctx[j]))
			}
		}
	}
	send := func(i, j int) {
		e.ok(e.d.MemcpyPeerAsync(e.dev[j], e.ctx[j], e.dev[i], e.ctx[i], eightBytes, e.streams[i]))
	}
	near, far := spec.Peer.Near.Value, spec.Peer.Far.Value
	require.InEpsilon(t, near, e.rate(1, func() { send(0, 1) }), 0.05)
	require.InEpsilon(t, far, e.rate(1, func() { send(0, 5) }), 0.05)
	require.InEpsilon(t, 2*near, e.rate(2, func() { send(0, 1); send(1, 0) }), 0.05)
	require.InEpsilon(t, near, e.rate(2, func() { send(0, 2); send(1, 2) }), 0.05, "two into one card share its link")
	require.InEpsilon(t, 2*near, e.rate(2, func() { send(0, 2); send(1, 3) }), 0.05)
	// One into a card, while the host writes to it too: each gets half of the time.
	both := e.rate(2, func() {
		send(0, 2)
		e.ok(e.d.MemcpyHtoDAsync(e.dev[2], e.host[1], eightBytes, e.streams[2]))
	})
	require.InEpsilon(t, 2/(1/near+1/spec.GPUs[2].H2D.Value), both, 0.05)
	// The call returns before the copy is done.
	took := e.timed(func() { e.use(0); send(0, 1) })
	require.Less(t, took, 5*time.Microsecond)
}
