// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

func init() {
	// gp_test_fill and gp_test_sum write and read what their parameters say; the
	// first says so, the second does not.
	RegisterKernel("gp_test_fill", Kernel{
		Run: func(p []byte, m Memory) error {
			k, _ := kernel.ParseCopy(p)
			b, err := m.Bytes(k.Dst, k.Bytes)
			fill(b, 0x77)
			return err
		},
		Touches: func(p []byte) []Touch {
			k, _ := kernel.ParseCopy(p)
			return []Touch{{k.Dst, k.Bytes, true}}
		},
	})
	RegisterKernel("gp_test_silent", Kernel{Run: func(p []byte, m Memory) error {
		k, _ := kernel.ParseCopy(p)
		b, err := m.Bytes(k.Dst, k.Bytes)
		fill(b, 0x78)
		return err
	}})
}

// A yard is what the watch's programs work with.
type yard struct {
	*rig
	a, b   api.Stream // of GPU 0, non-blocking
	far    api.Stream // of GPU 1
	c      api.Stream // of GPU 0, blocking
	e, e2  api.Event  // of GPU 0
	ef     api.Event  // of GPU 1
	p, q   api.Ptr    // of GPU 0
	pf     api.Ptr    // of GPU 1
	host   unsafe.Pointer
	alias  api.Ptr
	copier api.Function
	filler api.Function
	silent api.Function
}

const yardBytes = 4096

func newYard(t testing.TB, opts ...Option) *yard {
	r := newRig(t, opts...)
	y := &yard{rig: r, far: r.stream(1), ef: r.event(1), pf: r.device(1, yardBytes)}
	y.a, y.b, y.e, y.e2, y.p, y.q = r.stream(0), r.stream(0), r.event(0), r.event(0), r.device(0, yardBytes), r.device(0, yardBytes)
	var c api.Code
	y.c, c = r.d.StreamCreate(api.StreamDefault)
	r.ok(c)
	_, y.host = r.pinned(yardBytes)
	y.alias, c = r.d.MemHostGetDevicePointer(y.host)
	r.ok(c)
	y.copier, y.filler, y.silent = r.function(kernel.CopyEntry), r.function("gp_test_fill"), r.function("gp_test_silent")
	return y
}

func (y *yard) out(s api.Stream, off, n uint64) api.Code { // reads p, writes host
	return y.d.MemcpyDtoHAsync(unsafe.Add(y.host, off), y.p+api.Ptr(off), n, s)
}

func (y *yard) in(s api.Stream, off, n uint64) api.Code { // reads host, writes q
	return y.d.MemcpyHtoDAsync(y.q+api.Ptr(off), unsafe.Add(y.host, off), n, s)
}

func (y *yard) set(s api.Stream, off, n uint64) api.Code { // writes p
	return y.d.MemsetD8Async(y.p+api.Ptr(off), 1, n, s)
}

func (y *yard) kernel(f api.Function, s api.Stream, dst, src api.Ptr, n uint64) api.Code {
	return y.d.LaunchKernel(f, launch(s, copyParams(dst, src, n)...))
}

// races are programs whose last call races, and those next to them that do not.
var races = []struct {
	name string
	race bool
	run  func(y *yard) api.Code
}{
	{"write and read on two streams", true, func(y *yard) api.Code {
		y.ok(y.set(y.a, 0, 64))
		return y.out(y.b, 63, 1)
	}},
	{"write and read of neighbouring bytes", false, func(y *yard) api.Code {
		y.ok(y.set(y.a, 0, 64))
		return y.out(y.b, 64, 64)
	}},
	{"two reads", false, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 64))
		return y.d.MemcpyDtoDAsync(y.q, y.p, 64, y.b)
	}},
	{"two writes", true, func(y *yard) api.Code {
		y.ok(y.set(y.a, 10, 10))
		return y.set(y.b, 0, 11)
	}},
	{"read and then write", true, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 64))
		return y.set(y.b, 0, 1)
	}},
	{"one of many readers is not waited for", true, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 32))
		y.ok(y.d.MemcpyDtoDAsync(y.q, y.p, 64, y.c))
		y.ok(y.d.EventRecord(y.e, y.a))
		y.ok(y.d.StreamWaitEvent(y.b, y.e))
		return y.set(y.b, 0, 64)
	}},
	{"all readers are waited for", false, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 32))
		y.ok(y.d.MemcpyDtoDAsync(y.q, y.p, 64, y.c))
		y.ok(y.d.EventRecord(y.e, y.a))
		y.ok(y.d.EventRecord(y.e2, y.c))
		y.ok(y.d.StreamWaitEvent(y.b, y.e))
		y.ok(y.d.StreamWaitEvent(y.b, y.e2))
		return y.set(y.b, 0, 64)
	}},
	{"a wait after the record orders, also across GPUs", false, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 64))
		y.ok(y.d.EventRecord(y.e, y.a))
		y.ok(y.d.StreamWaitEvent(y.far, y.e))
		return y.d.MemcpyHtoDAsync(y.pf, y.host, 64, y.far)
	}},
	{"across GPUs without the wait", true, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 64))
		y.ok(y.d.EventRecord(y.e, y.a))
		return y.d.MemcpyHtoDAsync(y.pf, y.host, 64, y.far)
	}},
	{"a wait before the record does not", true, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 64))
		y.ok(y.d.StreamWaitEvent(y.b, y.e))
		y.ok(y.d.EventRecord(y.e, y.a))
		return y.in(y.b, 0, 64)
	}},
	{"a record does not cover what comes behind it", true, func(y *yard) api.Code {
		y.ok(y.d.EventRecord(y.e, y.a))
		y.ok(y.out(y.a, 0, 64))
		y.ok(y.d.StreamWaitEvent(y.b, y.e))
		return y.in(y.b, 0, 64)
	}},
	{"a later record of the event replaces the earlier", true, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 64))
		y.ok(y.d.EventRecord(y.e, y.a))
		y.ok(y.d.EventRecord(y.e, y.c))
		y.ok(y.d.StreamWaitEvent(y.b, y.e))
		return y.in(y.b, 0, 64)
	}},
	{"a wait keeps the record of its time", false, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 64))
		y.ok(y.d.EventRecord(y.e, y.a))
		y.ok(y.d.StreamWaitEvent(y.b, y.e))
		y.ok(y.d.EventRecord(y.e, y.c))
		return y.in(y.b, 0, 64)
	}},
	{"order passes from stream to stream", false, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 64))
		y.ok(y.d.EventRecord(y.e, y.a))
		y.ok(y.d.StreamWaitEvent(y.far, y.e))
		y.ok(y.d.EventRecord(y.ef, y.far))
		y.ok(y.d.StreamWaitEvent(y.b, y.ef))
		return y.in(y.b, 0, 64)
	}},
	{"an event that is done still orders", false, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 64))
		y.ok(y.d.EventRecord(y.e, y.a))
		y.d.Host().Sleep(1e6)
		y.ok(y.d.StreamWaitEvent(y.b, y.e))
		return y.in(y.b, 0, 64)
	}},
	{"having long been done is not order", true, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 64))
		y.d.Host().Sleep(1e9)
		return y.in(y.b, 0, 64)
	}},
	{"a host that has waited for the stream", false, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 64))
		y.ok(y.d.StreamSynchronize(y.a))
		return y.in(y.b, 0, 64)
	}},
	{"a host that has waited for another stream", true, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 64))
		y.ok(y.d.StreamSynchronize(y.c))
		return y.in(y.b, 0, 64)
	}},
	{"a host that has waited for the event", false, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 64))
		y.ok(y.d.EventRecord(y.e, y.a))
		y.ok(y.d.EventSynchronize(y.e))
		return y.in(y.b, 0, 64)
	}},
	{"a host that has found the event done", false, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 64))
		y.ok(y.d.EventRecord(y.e, y.a))
		y.d.Host().Sleep(1e6)
		y.ok(y.d.EventQuery(y.e))
		return y.in(y.b, 0, 64)
	}},
	{"a host that has found the event not done", true, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 64))
		y.ok(y.d.EventRecord(y.e, y.a))
		y.is(api.NotReady, y.d.EventQuery(y.e))
		return y.in(y.b, 0, 64)
	}},
	{"a host that has found the stream done", false, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 64))
		y.d.Host().Sleep(1e6)
		y.ok(y.d.StreamQuery(y.a))
		return y.in(y.b, 0, 64)
	}},
	{"a host that has waited for the context", false, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 64))
		y.ok(y.d.CtxSynchronize())
		return y.in(y.b, 0, 64)
	}},
	{"a host that has waited for the context of a destroyed stream", false, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 64))
		y.ok(y.d.StreamDestroy(y.a))
		y.ok(y.d.CtxSynchronize())
		return y.in(y.b, 0, 64)
	}},
	{"a host that has waited for the other context", true, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 64))
		y.use(1)
		y.ok(y.d.CtxSynchronize())
		return y.in(y.b, 0, 64)
	}},
	{"destroying a stream orders nothing", true, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 64))
		y.ok(y.d.StreamDestroy(y.a))
		return y.in(y.b, 0, 64)
	}},
	{"the legacy default stream waits for blocking streams", false, func(y *yard) api.Code {
		y.ok(y.set(y.c, 0, 64))
		return y.d.MemcpyDtoDAsync(y.q, y.p, 64, api.StreamNull)
	}},
	{"blocking streams wait for the legacy default stream", false, func(y *yard) api.Code {
		y.ok(y.set(api.StreamNull, 0, 64))
		return y.out(y.c, 0, 64)
	}},
	{"a blocking stream that is gone counts too", false, func(y *yard) api.Code {
		y.ok(y.set(y.c, 0, 64))
		y.ok(y.d.StreamDestroy(y.c))
		return y.d.MemcpyDtoDAsync(y.q, y.p, 64, api.StreamNull)
	}},
	{"the legacy default stream does not wait for non-blocking streams", true, func(y *yard) api.Code {
		y.ok(y.set(y.a, 0, 64))
		return y.d.MemcpyDtoDAsync(y.q, y.p, 64, api.StreamLegacy)
	}},
	{"non-blocking streams do not wait for the legacy default stream", true, func(y *yard) api.Code {
		y.ok(y.set(api.StreamNull, 0, 64))
		return y.out(y.a, 0, 64)
	}},
	{"a synchronous read is seen by the host", false, func(y *yard) api.Code {
		var b [64]byte
		y.ok(y.set(api.StreamNull, 0, 64))
		y.ok(y.d.MemcpyDtoH(unsafe.Pointer(&b), y.p, 64))
		return y.set(y.a, 0, 64)
	}},
	{"a synchronous read does not wait for a non-blocking stream", true, func(y *yard) api.Code {
		var b [64]byte
		y.ok(y.set(y.a, 0, 64))
		return y.d.MemcpyDtoH(unsafe.Pointer(&b), y.p, 64)
	}},
	{"a synchronous write from pageable memory is not ordered before a non-blocking stream", true, func(y *yard) api.Code {
		var b [64]byte
		y.ok(y.d.MemcpyHtoD(y.p, unsafe.Pointer(&b), 64))
		return y.out(y.a, 0, 64)
	}},
	{"a synchronous write from pinned memory is", false, func(y *yard) api.Code {
		y.ok(y.d.MemcpyHtoD(y.q, y.host, 64))
		return y.d.MemsetD8Async(y.q, 0, 64, y.a)
	}},
	{"an asynchronous read into pageable memory waits", false, func(y *yard) api.Code {
		var b [64]byte
		y.ok(y.set(y.a, 0, 64))
		y.ok(y.d.MemcpyDtoHAsync(unsafe.Pointer(&b), y.p, 64, y.a))
		return y.out(y.b, 0, 64)
	}},
	{"kernels that ship are known by their parameters", true, func(y *yard) api.Code {
		y.ok(y.kernel(y.copier, y.a, y.q, y.p, 64))
		return y.set(y.b, 63, 1)
	}},
	{"a kernel's reads do not race with each other", false, func(y *yard) api.Code {
		y.ok(y.kernel(y.copier, y.a, y.q, y.p, 64))
		return y.kernel(y.copier, y.b, y.q+64, y.p, 64)
	}},
	{"a kernel reaches pinned memory by another address", true, func(y *yard) api.Code {
		y.ok(y.kernel(y.copier, y.a, y.alias+100, y.p, 64))
		return y.in(y.b, 163, 1)
	}},
	{"a kernel of a test that says what it touches", true, func(y *yard) api.Code {
		y.ok(y.kernel(y.filler, y.a, y.p, 0, 64))
		return y.out(y.b, 0, 64)
	}},
	{"a fold's inputs and output", true, func(y *yard) api.Code {
		k := kernel.Fold{Dst: uint64(y.q), Count: 16, N: 2, In: [kernel.MaxInputs]uint64{uint64(y.p), uint64(y.alias)}}
		y.ok(y.d.LaunchKernel(y.function("gp_fold_f32_sum"), launch(y.a, k.Append(nil)...)))
		return y.d.MemcpyDtoHAsync(unsafe.Add(y.host, 60), y.p+1000, 8, y.b)
	}},
	{"rows of a copy, and what is between them", false, func(y *yard) api.Code {
		y.ok(y.d.Memcpy2DAsync(&api.Copy2D{SrcDevice: y.p, SrcPitch: 64, DstHost: y.host, DstPitch: 64, Width: 16, Height: 8}, y.a))
		return y.d.Memcpy2DAsync(&api.Copy2D{SrcDevice: y.q + 16, SrcPitch: 64, DstHost: unsafe.Add(y.host, 16), DstPitch: 64, Width: 48, Height: 8}, y.b)
	}},
	{"rows of copies that overlap by a byte", true, func(y *yard) api.Code {
		y.ok(y.d.Memcpy2DAsync(&api.Copy2D{SrcDevice: y.p, SrcPitch: 64, DstHost: y.host, DstPitch: 64, Width: 16, Height: 8}, y.a))
		return y.d.Memcpy2DAsync(&api.Copy2D{SrcDevice: y.q, SrcPitch: 64, DstHost: unsafe.Add(y.host, 64+15), DstPitch: 64, Width: 2, Height: 4}, y.b)
	}},
	{"a peer copy's destination", true, func(y *yard) api.Code {
		y.ok(y.d.MemcpyPeerAsync(y.pf, y.ctx[1], y.p, y.ctx[0], 64, y.a))
		return y.d.MemsetD8Async(y.pf, 0, 64, y.far)
	}},
	{"memory that was freed and comes again is new", false, func(y *yard) api.Code {
		y.ok(y.set(y.a, 0, 64))
		y.ok(y.d.MemFree(y.p))
		y.p = y.device(0, yardBytes)
		return y.set(y.b, 0, 64)
	}},
	{"what the host declares it reads", true, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 64))
		_ = y.m.HostRead(y.host, 64)
		return y.d.StreamSynchronize(y.a)
	}},
	{"what the host declares after it has waited", false, func(y *yard) api.Code {
		y.ok(y.out(y.a, 0, 64))
		y.ok(y.d.StreamSynchronize(y.a))
		require.NoError(y.t, y.m.HostRead(y.host, 64))
		require.NoError(y.t, y.m.HostWrite(y.host, 64))
		return y.in(y.b, 0, 64)
	}},
	{"what the host declares it writes while it is read", true, func(y *yard) api.Code {
		y.ok(y.in(y.a, 0, 64))
		_ = y.m.HostWrite(unsafe.Add(y.host, 63), 1)
		return y.d.StreamSynchronize(y.a)
	}},
}

func TestRaces(t *testing.T) {
	for _, c := range races {
		t.Run(c.name, func(t *testing.T) {
			// Whatever the seed: what happens in which order does not matter.
			for seed := range uint64(3) {
				y := newYard(t, Watch(), Seed(seed))
				code := c.run(y)
				var re *RaceError
				if !c.race {
					y.ok(code)
					require.NoError(t, y.m.Race())
					require.False(t, errors.As(y.m.Close(), &re))
					continue
				}
				y.is(raceCode, code)
				y.is(raceCode, y.d.StreamSynchronize(y.b))
				y.is(raceCode, y.d.StreamQuery(y.far))
				require.ErrorAs(t, y.m.Race(), &re)
				require.ErrorAs(t, y.m.Close(), &re)
				for _, a := range []Access{re.First, re.Second} {
					require.Contains(t, a.Site, "watch_test.go:")
					require.NotContains(t, a.Site, "cuda/sim/watch.go")
				}
				require.True(t, re.First.Write || re.Second.Write)
				require.Positive(t, re.Bytes)
			}
		})
	}
	t.Run("nobody watches", func(t *testing.T) {
		for _, c := range races {
			y := newYard(t)
			y.ok(c.run(y))
			require.NoError(t, y.m.Race())
		}
	})
}

// A race's error says everything that is needed to find it, also to those who
// only see what the driver answers.
func TestRaceError(t *testing.T) {
	y := newYard(t, Watch(), KeepSites())
	y.ok(y.set(y.a, 8, 64))
	y.is(raceCode, y.d.LaunchKernel(y.copier, launch(y.b, copyParams(y.q, y.p, 16)...)))
	text := y.d.GetErrorString(raceCode)
	require.Equal(t, y.m.Race().Error(), text)
	for _, want := range []string{
		"sim: 2x4090: race for bytes 8 to 16 of device memory of GPU 0, 4096 bytes", "newYard",
		fmt.Sprintf("between the write by a fill of 64 bytes on stream %#x of GPU 0", uint64(y.a)), "(*yard).set",
		fmt.Sprintf("and the read by a kernel gp_copy on stream %#x of GPU 0", uint64(y.b)), "TestRaceError",
	} {
		require.Contains(t, text, want)
	}
	require.Empty(t, y.d.GetErrorString(api.IllegalAddress))

	// Through package cuda the call is an error that wraps it all.
	m, err := Open("2x4090", Watch())
	require.NoError(t, err)
	dev, err := m.Driver().Device(0)
	require.NoError(t, err)
	cc, err := dev.Primary()
	require.NoError(t, err)
	mem, err := cc.Alloc(64)
	require.NoError(t, err)
	s, err := cc.NewStream()
	require.NoError(t, err)
	require.NoError(t, s.MemsetD8(mem.Ptr(), 0, 64))
	err = cc.LegacyStream().MemsetD8(mem.Ptr(), 0, 64)
	require.ErrorIs(t, err, cuda.ErrAssert)
	require.ErrorContains(t, err, "race for bytes 0 to 64")
	require.ErrorContains(t, cc.Synchronize(), "race")
	require.NoError(t, cc.Close(), "leftovers of a run that a race ended are nobody's fault")
	var re *RaceError
	require.ErrorAs(t, m.Close(), &re)
	require.Contains(t, re.First.Site, "TestRaceError")
	require.NotContains(t, re.First.Site, "geforce-p2p/cuda.(")
}

// A kernel that does not say what it touches is seen when it runs, whether the
// other side was enqueued before it or behind it.
func TestRaceOfSilentKernels(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		for _, kernelFirst := range []bool{false, true} {
			for seed := range uint64(8) {
				y := newYard(t, Watch(), Seed(seed))
				first, second := y.a, y.b
				run := func(kernel bool, s api.Stream) api.Code {
					if kernel {
						return y.kernel(y.silent, s, y.p, 0, 64)
					}
					return y.out(s, 0, 64)
				}
				y.ok(run(kernelFirst, first))
				if ordered {
					y.ok(y.d.EventRecord(y.e, first))
					y.ok(y.d.StreamWaitEvent(second, y.e))
				}
				y.ok(run(!kernelFirst, second))
				y.d.CtxSynchronize()
				if ordered {
					require.NoError(t, y.m.Race())
				} else {
					require.Error(t, y.m.Race())
					y.is(raceCode, y.d.CtxSynchronize())
				}
			}
		}
	}
}

// Threads count as one host, unless each is asked to be one of its own.
func TestWatchThreads(t *testing.T) {
	for _, c := range []struct {
		watch Option
		race  bool
	}{{Watch(), false}, {WatchThreads(), true}} {
		y := newYard(t, c.watch)
		y.ok(y.out(y.a, 0, 64))
		done := make(chan api.Code)
		go onThread(func() { done <- y.d.StreamSynchronize(y.a) })
		y.ok(<-done)
		if c.race {
			y.is(raceCode, y.in(y.b, 0, 64))
		} else {
			y.ok(y.in(y.b, 0, 64))
		}
	}
	// Through an event two hosts are in order.
	y := newYard(t, WatchThreads())
	y.ok(y.out(y.a, 0, 64))
	y.ok(y.d.EventRecord(y.e, y.a))
	done := make(chan api.Code)
	go onThread(func() {
		y.d.StreamWaitEvent(y.b, y.e)
		done <- y.in(y.b, 0, 64)
	})
	y.ok(<-done)
}

// slow is a shadow that remembers of each byte all that ever touched it.
type slow [64][]access

func (s *slow) touch(t *toucher, lo, hi uint64, write bool) bool {
	race := false
	for i := lo; i < hi; i++ {
		for _, o := range s[i] {
			race = race || (write || o.write) && o.t != t && !o.t.before(t)
		}
	}
	if !race {
		for i := lo; i < hi; i++ {
			s[i] = append(s[i], access{t, write})
		}
	}
	return race
}

// The shadow finds a race exactly when one is there, for random touches in
// random orders.
func TestShadowFindsWhatIsThere(t *testing.T) {
	found := 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var fast shadow
		var exact slow
		clocks := make([]clock, 1+rng.IntN(4))
		for range 60 {
			actor := rng.IntN(len(clocks))
			if rng.IntN(2) == 0 {
				clocks[actor].join(clocks[rng.IntN(len(clocks))])
			}
			clocks[actor].tick(actor)
			tr := &toucher{actor: actor, clock: append(clock(nil), clocks[actor]...)}
			for range 1 + rng.IntN(3) {
				lo := rng.Uint64N(60)
				hi := lo + 1 + rng.Uint64N(64-lo)
				write := rng.IntN(3) == 0
				want, f := exact.touch(tr, lo, hi, write), fast.touch(tr, lo, hi, write)
				require.Equal(t, want, f != nil, "seed %d", seed)
				if f != nil {
					found++
					require.Less(t, f.lo, f.hi)
					require.GreaterOrEqual(t, f.lo, lo)
					require.LessOrEqual(t, f.hi, hi)
				}
			}
			for i, p := range fast.parts {
				require.Less(t, p.lo, p.hi)
				if i > 0 {
					require.LessOrEqual(t, fast.parts[i-1].hi, p.lo)
				}
			}
		}
	}
	require.Greater(t, found, 500)
}

func TestSitesAreShort(t *testing.T) {
	y := newYard(t, Watch())
	y.ok(y.set(y.a, 0, 64))
	y.is(raceCode, y.set(y.b, 0, 64))
	var re *RaceError
	require.ErrorAs(t, y.m.Race(), &re)
	require.LessOrEqual(t, strings.Count(re.Second.Site, "\n"), 6)
}
