// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// onThread runs f locked to its thread.
func onThread(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f()
}

// timed is the virtual time that f takes.
func (r *rig) timed(f func()) time.Duration {
	t := r.d.Host().Now()
	f()
	return r.d.Host().Now() - t
}

const mib = 1 << 20

func TestRates(t *testing.T) {
	r := newRig(t)
	const n = 64 * mib
	spec := r.m.spec.GPUs[0]
	d0, d0b, d1 := r.device(0, n), r.device(0, n), r.device(1, n)
	_, h := r.pinned(n)
	_, h2 := r.pinned(n)
	out, out2, in, far := r.stream(0), r.stream(0), r.stream(0), r.stream(1)
	sync := func(ss ...api.Stream) {
		for _, s := range ss {
			r.ok(r.d.StreamSynchronize(s))
		}
	}
	seconds := func(rate float64) float64 { return n / (rate * 1e9) }

	one := r.timed(func() { r.ok(r.d.MemcpyDtoHAsync(h, d0, n, out)); sync(out) })
	require.InEpsilon(t, seconds(spec.D2H.Value), one.Seconds(), 0.01)
	one = r.timed(func() { r.ok(r.d.MemcpyHtoDAsync(d0, h, n, in)); sync(in) })
	require.InEpsilon(t, seconds(spec.H2D.Value), one.Seconds(), 0.01)

	both := r.timed(func() {
		r.ok(r.d.MemcpyDtoHAsync(h, d0, n, out))
		r.ok(r.d.MemcpyHtoDAsync(d0b, h2, n, in))
		sync(out, in)
	})
	require.InEpsilon(t, 2*seconds(spec.Duplex.Value*(spec.D2H.Value+spec.H2D.Value)), both.Seconds(), 0.02, "two directions overlap")

	same := r.timed(func() {
		r.ok(r.d.MemcpyDtoHAsync(h, d0, n, out))
		r.ok(r.d.MemcpyDtoHAsync(h2, d0b, n, out2))
		sync(out, out2)
	})
	require.InEpsilon(t, 2*seconds(spec.D2H.Value), same.Seconds(), 0.01, "two streams in one direction share it")

	apart := r.timed(func() {
		r.ok(r.d.MemcpyDtoHAsync(h, d0, n, out))
		r.ok(r.d.MemcpyDtoHAsync(h2, d1, n, far))
		sync(out, far)
	})
	require.InEpsilon(t, seconds(spec.D2H.Value), apart.Seconds(), 0.01, "two cards have a link each")

	within := r.stream(0)
	local := r.timed(func() { r.ok(r.d.MemcpyDtoDAsync(d0, d0b, n, within)); sync(within) })
	require.InEpsilon(t, 2*seconds(spec.Memory.Value), local.Seconds(), 0.05)

	staged := r.timed(func() { r.ok(r.d.MemcpyPeerAsync(d1, r.ctx[1], d0, r.ctx[0], n, out)) })
	require.InEpsilon(t, seconds(r.m.spec.Staging.Rate.Value), staged.Seconds(), 0.01, "the driver's own staging blocks its caller")

	enqueue := r.timed(func() { r.ok(r.d.MemcpyDtoHAsync(h, d0, n, out2)) })
	require.Equal(t, r.m.spec.Calls.Memcpy.us(), enqueue)
	r.is(api.NotReady, r.d.StreamQuery(out2))
	r.d.Host().Sleep(2 * time.Millisecond)
	r.is(api.NotReady, r.d.StreamQuery(out2))
	r.d.Host().Sleep(time.Millisecond)
	r.ok(r.d.StreamQuery(out2))
	require.True(t, r.d.Host().Modelled())
}

func TestStagingTakesTurns(t *testing.T) {
	// The second direction gains nothing: the first call returns when its copy
	// is done.
	r := newRig(t)
	const n = 16 * mib
	d0, d1 := r.device(0, n), r.device(1, n)
	s0, s1 := r.stream(0), r.stream(1)
	both := r.timed(func() {
		r.ok(r.d.MemcpyPeerAsync(d1, r.ctx[1], d0, r.ctx[0], n, s0))
		r.ok(r.d.MemcpyPeerAsync(d0, r.ctx[0], d1, r.ctx[1], n, s1))
	})
	require.InEpsilon(t, 2*n/(r.m.spec.Staging.Rate.Value*1e9), both.Seconds(), 0.03)
}

func TestStagingBothWays(t *testing.T) {
	s, err := Builtin("2x4090")
	require.NoError(t, err)
	s.Staging.Duplex = Figure{Value: 0.75, Unit: "of twice one way", Source: "here"}
	m, err := New(s)
	require.NoError(t, err)
	r := newRigOf(t, m)
	const n = 16 * mib
	d0, d1 := r.device(0, n), r.device(1, n)
	s0, s1 := r.stream(0), r.stream(1)
	rate := s.Staging.Rate.Value * 1e9
	there := func() { r.ok(r.d.MemcpyPeerAsync(d1, r.ctx[1], d0, r.ctx[0], n, s0)) }
	back := func() { r.ok(r.d.MemcpyPeerAsync(d0, r.ctx[0], d1, r.ctx[1], n, s1)) }
	sync := func() { r.ok(r.d.StreamSynchronize(s0)); r.ok(r.d.StreamSynchronize(s1)) }
	require.Equal(t, s.Calls.Memcpy.us(), r.timed(there), "the call does not hold its caller")
	sync()
	require.InEpsilon(t, n/rate, r.timed(func() { there(); sync() }).Seconds(), 0.04)
	require.InEpsilon(t, 2*n/rate, r.timed(func() { there(); there(); sync() }).Seconds(), 0.04, "one way they take turns")
	require.InEpsilon(t, 2*n/(2*rate*0.75), r.timed(func() { there(); back(); sync() }).Seconds(), 0.04, "both ways they share")
}

// What has ended is known to a thread a while later, however it asks.
func TestEndsAreSeenLate(t *testing.T) {
	r := newRig(t)
	s, e, f := r.stream(0), r.event(0), r.function("gp_test_spin")
	wake, query := r.m.spec.Calls.Wake.us(), r.m.spec.Calls.Query.us()
	spin := func() {
		r.ok(r.d.LaunchKernel(f, launch(s, 50)))
		r.ok(r.d.EventRecord(e, s))
	}
	ends := r.m.spec.Calls.Launch.us() + r.m.spec.GPUs[0].Launch.us() + 50*time.Microsecond
	spin()
	r.ok(r.d.StreamSynchronize(s)) // as it is when streams were used before
	require.Equal(t, ends+wake, r.timed(func() { spin(); r.ok(r.d.EventSynchronize(e)) }), "asleep")
	polled := r.timed(func() {
		for spin(); r.d.EventQuery(e) == api.NotReady; {
		}
	})
	require.InDelta(t, ends+wake, polled, float64(query), "polling")
	require.GreaterOrEqual(t, polled, ends+wake)
}

// A stream that goes to another engine waits there as for an event, and the call
// takes longer.
func TestEnginesAreCoupled(t *testing.T) {
	r := newRig(t)
	const n = 4096
	_, h := r.pinned(n)
	d, out, turn := r.device(0, n), r.stream(0), r.stream(0)
	move := func(s api.Stream, up bool) func() {
		return func() {
			if up {
				r.ok(r.d.MemcpyDtoHAsync(h, d, n, s))
			} else {
				r.ok(r.d.MemcpyHtoDAsync(d, h, n, s))
			}
		}
	}
	done := func(s api.Stream, f func()) time.Duration {
		return r.timed(func() { f(); r.ok(r.d.StreamSynchronize(s)) })
	}
	move(out, true)()
	move(turn, false)()
	r.ok(r.d.CtxSynchronize())
	couple, event := r.m.spec.Calls.Couple.us(), r.m.spec.GPUs[0].Event.us()
	same := done(out, move(out, true))
	require.Equal(t, same+couple+event, done(turn, move(turn, true)), "after a copy the other way")
	require.Equal(t, same, done(turn, move(turn, true)), "and then it is there")
	r.ok(r.d.CtxSynchronize())
	require.Equal(t, r.m.spec.Calls.Memcpy.us()+couple, r.timed(move(turn, false)))
}

// A GPU looks for another's event when the next call for the stream comes, and
// then again at intervals; with peer access it is told.
func TestAnotherGPUsEventIsPolled(t *testing.T) {
	took := func(machine string, late byte, access bool) time.Duration {
		m, err := Open(machine)
		require.NoError(t, err)
		r := newRigOf(t, m)
		if access {
			r.use(1)
			r.ok(r.d.CtxEnablePeerAccess(r.ctx[0]))
		}
		s0, s1, e := r.stream(0), r.stream(1), r.event(0)
		r.use(0)
		f := r.function("gp_test_spin")
		r.use(1)
		g := r.function("gp_test_spin")
		return r.timed(func() {
			r.ok(r.d.LaunchKernel(f, launch(s0, late)))
			r.ok(r.d.EventRecord(e, s0))
			r.ok(r.d.StreamWaitEvent(s1, e))
			r.ok(r.d.LaunchKernel(g, launch(s1, 0)))
			r.ok(r.d.StreamSynchronize(s1))
		})
	}
	s, err := Builtin("2x4090")
	require.NoError(t, err)
	poll := s.GPUs[1].Poll.us()
	early := took("2x4090", 0, false)
	require.Equal(t, early+poll, took("2x4090", 5, false), "it is not there at the first look, and is at the second")
	require.Equal(t, early+poll, took("2x4090", 8, false))
	require.Equal(t, early+4*poll, took("2x4090", byte(3*poll/time.Microsecond)+5, false))
	require.Less(t, took("8x4090-p2p", 30, true), took("8x4090-p2p", 30, false))
	require.Equal(t, 10*time.Microsecond, took("8x4090-p2p", 40, true)-took("8x4090-p2p", 30, true), "with peer access nobody polls")
}

func TestKernelReadsOverTheLink(t *testing.T) {
	r := newRig(t)
	const n = 16 * mib
	d := r.device(0, n)
	_, hp := r.pinned(n)
	alias, c := r.d.MemHostGetDevicePointer(hp)
	r.ok(c)
	f := r.function("gp_copy")
	s := r.stream(0)
	run := func(dst, src api.Ptr) time.Duration {
		k := copyParams(dst, src, n)
		return r.timed(func() { r.ok(r.d.LaunchKernel(f, launch(s, k...))); r.ok(r.d.StreamSynchronize(s)) })
	}
	spec := r.m.spec.GPUs[0]
	require.InEpsilon(t, n/(spec.H2D.Value*1e9), run(d, alias).Seconds(), 0.03)
	require.InEpsilon(t, n/(spec.D2H.Value*1e9), run(alias, d).Seconds(), 0.03)
}

func TestQueueIsBounded(t *testing.T) {
	r := newRig(t)
	f, s := r.function("gp_test_spin"), r.stream(0)
	took := r.timed(func() {
		for range queueLimit {
			r.ok(r.d.LaunchKernel(f, launch(s, 200)))
		}
	})
	require.Less(t, took, 10*time.Millisecond)
	took = r.timed(func() {
		for range 100 {
			r.ok(r.d.LaunchKernel(f, launch(s, 200)))
		}
	})
	require.Greater(t, took, 10*time.Millisecond, "a full stream blocks who enqueues")
	r.ok(r.d.StreamSynchronize(s))
}

// program runs some unordered work and tells all that can be seen of it.
func program(t *testing.T, seed uint64) string {
	r := newRig(t, Seed(seed))
	var log strings.Builder
	const n = 64 << 10
	host, hp := r.pinned(n)
	d := r.device(0, n)
	var ss []api.Stream
	for range 4 {
		ss = append(ss, r.stream(0))
	}
	for i := range 40 {
		s := ss[i%len(ss)]
		r.ok(r.d.MemsetD8Async(d, byte(i), n, s))
		r.ok(r.d.MemcpyDtoHAsync(hp, d, n, s))
		if i%7 == 0 {
			fmt.Fprintln(&log, r.d.StreamQuery(s), host[0], r.d.Host().Now())
		}
	}
	r.ok(r.d.CtxSynchronize())
	fmt.Fprintln(&log, host[0], r.d.Host().Now())
	return log.String()
}

func TestDeterminism(t *testing.T) {
	runs := map[string]bool{}
	for seed := range uint64(10) {
		a, b := program(t, seed), program(t, seed)
		require.Equal(t, a, b, "seed %d", seed)
		runs[a] = true
	}
	require.Greater(t, len(runs), 1, "seeds differ")
}

func TestFairShares(t *testing.T) {
	// Three flows over two links: two cross the narrow one, the third gets what
	// they leave of the wide one.
	narrow, wide := &link{rate: 10}, &link{rate: 30}
	mk := func(ls ...*link) *node {
		n := &node{left: 1}
		for _, l := range ls {
			n.work.load(l, 100)
		}
		return n
	}
	a, b, c := mk(narrow, wide), mk(narrow, wide), mk(wide)
	tl := timeline{flows: []*node{c, a, b}}
	tl.share()
	require.InDelta(t, 5, a.rate*100, 1e-9)
	require.InDelta(t, 5, b.rate*100, 1e-9)
	require.InDelta(t, 20, c.rate*100, 1e-9)
	// Double the bytes over a link are double the use of it.
	d := mk()
	d.work.load(narrow, 100)
	d.work.load(narrow, 100)
	tl = timeline{flows: []*node{d}}
	tl.share()
	require.InDelta(t, 10, d.rate*200, 1e-9)
}

func TestThreads(t *testing.T) {
	r := newRig(t)
	done := make(chan api.Context)
	go onThread(func() {
		c, _ := r.d.CtxGetCurrent()
		done <- c
	})
	require.Zero(t, <-done, "the current context is the thread's")
	c, code := r.d.CtxGetCurrent()
	r.ok(code)
	require.Equal(t, r.ctx[0], c)
}

func TestConcurrentUse(t *testing.T) {
	r := newRig(t)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			onThread(func() {
				ok := func(c api.Code) {
					if c != api.Success {
						t.Errorf("goroutine %d: code %d", g, c)
					}
				}
				ok(r.d.CtxPushCurrent(r.ctx[g%2]))
				s, c := r.d.StreamCreate(api.StreamNonBlocking)
				ok(c)
				p, c := r.d.MemAlloc(4096)
				ok(c)
				hp, c := r.d.MemHostAlloc(4096, 0)
				ok(c)
				host := unsafe.Slice((*byte)(hp), 4096)
				for i := range 50 {
					fill(host, byte(i+g))
					ok(r.d.MemcpyHtoDAsync(p, hp, 4096, s))
					ok(r.d.StreamSynchronize(s))
					fill(host, 0)
					ok(r.d.MemcpyDtoHAsync(hp, p, 4096, s))
					for r.d.StreamQuery(s) == api.NotReady {
						r.d.Host().Sleep(time.Microsecond)
					}
					if host[17] != byte(i+g) {
						t.Errorf("goroutine %d, round %d: %d", g, i, host[17])
					}
				}
				ok(r.d.MemFreeHost(hp))
				ok(r.d.MemFree(p))
				ok(r.d.StreamDestroy(s))
				_, c = r.d.CtxPopCurrent()
				ok(c)
			})
		})
	}
	wg.Wait()
	r.ok(r.d.DevicePrimaryCtxRelease(0))
	r.ok(r.d.DevicePrimaryCtxRelease(1))
	require.NoError(t, r.m.Close())
}

func TestLeaks(t *testing.T) {
	r := newRig(t, KeepSites())
	r.stream(0)
	r.event(1)
	r.device(0, 1000)
	r.pinned(2000)
	r.function("gp_copy")
	b := make([]byte, 100)
	r.ok(r.d.MemHostRegister(unsafe.Pointer(&b[0]), 100, 0))
	r.ok(r.d.DevicePrimaryCtxRelease(1))
	err := r.m.Close()
	require.Error(t, err)
	for _, want := range []string{
		"7 leaked", "stream of GPU 0", "event of GPU 1", "module of GPU 0", "device memory of GPU 0, 1000 bytes",
		"pinned host memory, 2000 bytes", "registered host memory, 100 bytes", "context of GPU 0, retained 1 times", "time_test.go", "TestLeaks",
	} {
		require.Contains(t, err.Error(), want)
	}
	require.NotContains(t, err.Error(), "sim.seam.")

	// A lost context's leftovers are nobody's fault.
	r = newRig(t)
	r.device(0, 10)
	f := r.function("gp_test_wild")
	r.ok(r.d.LaunchKernel(f, launch(0)))
	r.is(api.IllegalAddress, r.d.CtxSynchronize())
	r.ok(r.d.DevicePrimaryCtxRelease(0))
	r.ok(r.d.DevicePrimaryCtxRelease(1))
	require.NoError(t, r.m.Close())
}

func TestDriver(t *testing.T) {
	m, err := Open("2x4090")
	require.NoError(t, err)
	require.True(t, m.Driver().Modelled())
	v, err := m.Driver().Version()
	require.NoError(t, err)
	require.Equal(t, 12040, v)
	ds, err := m.Driver().Devices()
	require.NoError(t, err)
	require.Len(t, ds, 2)
	require.NoError(t, m.Close())
}
