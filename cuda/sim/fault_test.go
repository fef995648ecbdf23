// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// peers is a rig whose two GPUs may reach each other, and do.
func peers(t testing.TB, opts ...Option) *rig {
	spec, err := Builtin("2x4090")
	require.NoError(t, err)
	spec.PeerAccess = [][]bool{{false, true}, {true, false}}
	m, err := New(spec, opts...)
	require.NoError(t, err)
	r := newRigOf(t, m)
	for i := range 2 {
		r.use(i)
		r.ok(r.d.CtxEnablePeerAccess(r.ctx[1-i]))
	}
	return r
}

// holds reads device memory by its owner's own copy to the host.
func (r *rig) holds(gpu int, p api.Ptr, n int) []byte {
	r.use(gpu)
	b := make([]byte, n)
	r.ok(r.d.CtxSynchronize())
	r.ok(r.d.MemcpyDtoH(unsafe.Pointer(&b[0]), p, uint64(n)))
	return b
}

func TestPeerZeros(t *testing.T) {
	r := peers(t, PeerZeros())
	src, dst, back := r.device(0, 64), r.device(1, 64), r.device(0, 64)
	s := r.stream(0)
	r.ok(r.d.MemsetD8Async(src, 7, 64, s))
	r.ok(r.d.MemsetD8Async(dst, 9, 64, r.stream(1)))
	r.holds(1, dst, 1)
	r.ok(r.d.MemcpyPeerAsync(dst, r.ctx[1], src, r.ctx[0], 32, s))
	r.ok(r.d.StreamSynchronize(s))
	require.Equal(t, append(make([]byte, 32), bytes.Repeat([]byte{9}, 32)...), r.holds(1, dst, 64))
	r.use(0)
	f := r.function(kernel.CopyEntry)
	r.ok(r.d.LaunchKernel(f, launch(s, copyParams(back, dst, 64)...)))
	r.ok(r.d.LaunchKernel(f, launch(s, copyParams(dst, src, 64)...)))
	require.Equal(t, make([]byte, 64), r.holds(0, back, 64), "kernels read zeros")
	require.Equal(t, byte(9), r.holds(1, dst, 64)[63], "and write in vain")

	// What the driver stages arrives.
	r.use(0)
	r.ok(r.d.CtxDisablePeerAccess(r.ctx[1]))
	r.use(1)
	r.ok(r.d.CtxDisablePeerAccess(r.ctx[0]))
	r.ok(r.d.MemcpyPeerAsync(dst, r.ctx[1], src, r.ctx[0], 64, s))
	require.Equal(t, byte(7), r.holds(1, dst, 64)[63])
}

func TestPeerMirror(t *testing.T) {
	r := peers(t, PeerMirror())
	src, dst, back := r.device(0, 64), r.device(1, 64), r.device(0, 64)
	s, far := r.stream(0), r.stream(1)
	r.ok(r.d.MemsetD8Async(src, 7, 64, s))
	r.ok(r.d.MemsetD8Async(dst, 9, 64, far))
	r.ok(r.d.StreamSynchronize(far))
	r.ok(r.d.MemcpyPeerAsync(dst, r.ctx[1], src, r.ctx[0], 32, s))
	r.ok(r.d.MemcpyPeerAsync(back, r.ctx[0], dst, r.ctx[1], 64, s))
	want := append(bytes.Repeat([]byte{7}, 32), bytes.Repeat([]byte{9}, 32)...)
	require.Equal(t, want, r.holds(0, back, 64), "a round trip shows nothing")
	require.Equal(t, bytes.Repeat([]byte{9}, 64), r.holds(1, dst, 64), "the owner never sees it")
	// A kernel of the writer's sees what the writer wrote.
	r.use(0)
	f := r.function(kernel.CopyEntry)
	r.ok(r.d.LaunchKernel(f, launch(s, copyParams(back, dst+31, 33)...)))
	require.Equal(t, byte(7), r.holds(0, back, 1)[0])
}

func TestLostGPU(t *testing.T) {
	for _, code := range []api.Code{api.LaunchFailed, api.Unknown} {
		r := newRig(t)
		a, b := r.stream(0), r.stream(1)
		e := r.event(0)
		p, q := r.device(0, 64), r.device(1, 64)
		r.ok(r.d.MemsetD8Async(q, 5, 64, b))
		r.ok(r.d.EventRecord(e, a))
		r.ok(r.d.StreamWaitEvent(b, e))
		r.m.Lose(0, cuda.Code(code))
		r.is(code, r.d.MemsetD8Async(p, 1, 64, a))
		r.is(code, r.d.StreamSynchronize(a))
		r.is(code, r.d.StreamQuery(a))
		r.is(code, r.d.EventQuery(e))
		_, c := r.d.DevicePrimaryCtxRetain(0)
		r.is(code, c)
		r.use(0)
		_, c = r.d.MemAlloc(64)
		r.is(code, c)
		// The other one is as good as before.
		r.ok(r.d.StreamSynchronize(b))
		require.Equal(t, byte(5), r.holds(1, q, 64)[0])
	}
}

func TestStalledGPU(t *testing.T) {
	r := newRig(t)
	a, b := r.stream(0), r.stream(1)
	e := r.event(0)
	p, q := r.device(0, 64), r.device(1, 64)
	r.ok(r.d.MemsetD8Async(p, 1, 64, a))
	r.m.Stall(0)
	r.m.Stall(0)
	r.ok(r.d.MemsetD8Async(p, 2, 64, a))
	r.ok(r.d.EventRecord(e, a))
	r.d.Host().Sleep(time.Hour)
	r.is(api.NotReady, r.d.StreamQuery(a))
	r.is(api.NotReady, r.d.EventQuery(e))
	// The other GPU goes on, until it waits for the one that stalls.
	r.ok(r.d.MemsetD8Async(q, 3, 64, b))
	r.ok(r.d.StreamSynchronize(b))
	r.ok(r.d.StreamWaitEvent(b, e))
	r.d.Host().Sleep(time.Hour)
	r.is(api.NotReady, r.d.StreamQuery(b))

	done := make(chan api.Code)
	go onThread(func() { done <- r.d.StreamSynchronize(b) })
	select {
	case <-done:
		t.Fatal("a wait came back from a GPU that stalls")
	case <-time.After(20 * time.Millisecond):
	}
	// The machine answers meanwhile.
	r.is(api.NotReady, r.d.StreamQuery(b))
	r.m.Resume(1)
	r.is(api.NotReady, r.d.StreamQuery(b))
	r.m.Resume(0)
	r.ok(<-done)
	require.Equal(t, byte(2), r.holds(0, p, 1)[0])

	// Close does not wait for anybody.
	r.m.Stall(1)
	r.ok(r.d.MemsetD8Async(q, 3, 64, b))
	require.ErrorContains(t, r.m.Close(), "leaked")
}

// The ninth peer is refused, whoever asks, and a place that becomes free can be
// taken again.
func TestPeerLimit(t *testing.T) {
	spec, err := Builtin("2x4090")
	require.NoError(t, err)
	const n = maxPeers + 2
	one := spec.GPUs[0]
	spec.GPUs, spec.PeerAccess = nil, nil
	for i := range n {
		g := one
		g.PCIBusID = fmt.Sprintf("0000:%02x:00.0", i+1)
		g.UUID = fmt.Sprintf("%032x", i+1)
		spec.GPUs = append(spec.GPUs, g)
		row := make([]bool, n)
		for j := range row {
			row[j] = i != j
		}
		spec.PeerAccess = append(spec.PeerAccess, row)
	}
	m, err := New(spec)
	require.NoError(t, err)
	r := newRigOf(t, m)
	for i := 1; i <= maxPeers; i++ {
		r.ok(r.d.CtxEnablePeerAccess(r.ctx[i]))
	}
	r.is(api.TooManyPeers, r.d.CtxEnablePeerAccess(r.ctx[n-1]))
	r.is(api.PeerAccessAlreadyEnabled, r.d.CtxEnablePeerAccess(r.ctx[1]))
	r.use(1)
	r.ok(r.d.CtxEnablePeerAccess(r.ctx[0])) // the same connection, the other way
	r.use(n - 1)
	r.is(api.TooManyPeers, r.d.CtxEnablePeerAccess(r.ctx[0]))
	r.use(0)
	r.ok(r.d.CtxDisablePeerAccess(r.ctx[2]))
	r.ok(r.d.CtxEnablePeerAccess(r.ctx[n-1]))
}

// Access is one way: who enabled it reaches the other, and not the other way.
func TestPeerAccessIsOneWay(t *testing.T) {
	spec, err := Builtin("2x4090")
	require.NoError(t, err)
	spec.PeerAccess = [][]bool{{false, true}, {true, false}}
	m, err := New(spec)
	require.NoError(t, err)
	r := newRigOf(t, m)
	near, far := r.device(0, 64), r.device(1, 64)
	f1 := r.function(kernel.CopyEntry)
	s1 := r.stream(1)
	r.use(0)
	f0 := r.function(kernel.CopyEntry)
	s0 := r.stream(0)
	r.ok(r.d.CtxEnablePeerAccess(r.ctx[1]))
	r.ok(r.d.LaunchKernel(f0, launch(s0, copyParams(far, near, 64)...)))
	r.ok(r.d.StreamSynchronize(s0))
	r.ok(r.d.LaunchKernel(f1, launch(s1, copyParams(far, near, 64)...)))
	r.is(api.IllegalAddress, r.d.StreamSynchronize(s1))
	r.is(api.IllegalAddress, r.d.StreamSynchronize(s0))
}

// A fault loses the contexts of all GPUs, and there are no more.
func TestFaultReachesAllContexts(t *testing.T) {
	m, err := Open("4x4090")
	require.NoError(t, err)
	r := newRigOf(t, m)
	own, strange := r.device(2, 64), r.device(3, 64)
	s := r.stream(2)
	r.use(2)
	f := r.function(kernel.CopyEntry)
	r.ok(r.d.DevicePrimaryCtxRelease(1))
	r.ok(r.d.LaunchKernel(f, launch(s, copyParams(strange, own, 64)...)))
	r.is(api.IllegalAddress, r.d.StreamSynchronize(s))
	for _, i := range []int{0, 2, 3} {
		r.use(i)
		r.is(api.IllegalAddress, r.d.CtxSynchronize())
	}
	_, code := r.d.DevicePrimaryCtxRetain(1)
	r.is(api.IllegalAddress, code)
}

// Machines share nothing: many at once, each with its own seed and faults,
// behave as each does alone.
func TestManyMachinesAtOnce(t *testing.T) {
	run := func(seed uint64) string {
		var log string
		onThread(func() { log = program(t, seed) })
		return log
	}
	want := make([]string, 8)
	for i := range want {
		want[i] = run(uint64(i))
	}
	var wg sync.WaitGroup
	got := make([]string, 3*len(want))
	for i := range got {
		wg.Go(func() {
			if i%3 == 2 {
				onThread(func() {
					m, _ := Open("2x4090", Watch(), Seed(uint64(i)), PeerZeros())
					m.Stall(0)
					m.Lose(1, cuda.ErrUnknown)
					_ = m.Close()
				})
			}
			got[i] = run(uint64(i % len(want)))
		})
	}
	wg.Wait()
	for i := range got {
		require.Equal(t, want[i%len(want)], got[i])
	}
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			require.Equal(t, want[i], run(uint64(i)))
		})
	}
}

// Fault shows with the next call that a context answers for, and not before.
func TestFaultShowsWithTheNextCall(t *testing.T) {
	m, err := Open("2x4090")
	require.NoError(t, err)
	r := newRigOf(t, m)
	s := r.stream(0)
	m.Fault(cuda.ErrLaunchFailed)
	m.Fault(0)
	r.ok(r.d.StreamSynchronize(s))
	m.Fault(cuda.ErrLaunchFailed)
	_, code := r.d.CtxGetCurrent()
	r.ok(code)
	r.is(api.LaunchFailed, r.d.StreamQuery(s))
	r.is(api.LaunchFailed, r.d.StreamSynchronize(s))
	r.use(1)
	r.is(api.LaunchFailed, r.d.CtxSynchronize())
}

// Held follows what is given out and given back.
func TestHeld(t *testing.T) {
	m, err := Open("2x4090")
	require.NoError(t, err)
	cc, err := m.Driver().Device(0)
	require.NoError(t, err)
	require.Equal(t, Held{}, m.Held())
	c, err := cc.Primary()
	require.NoError(t, err)
	d, err := c.Alloc(1000)
	require.NoError(t, err)
	h, err := c.HostAlloc(4096, 0)
	require.NoError(t, err)
	s, err := c.NewStream()
	require.NoError(t, err)
	e, err := c.NewEvent(0)
	require.NoError(t, err)
	require.Equal(t, Held{Contexts: 1, Streams: 1, Events: 1, Device: 1000, Pinned: 4096}, m.Held())
	for _, x := range []interface{ Close() error }{d, h, s, e, c} {
		require.NoError(t, x.Close())
	}
	require.Equal(t, Held{}, m.Held())
	require.NoError(t, m.Close())
}
