// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// A rule is a sentence about the driver and a sequence of calls that shows it.
type rule struct {
	name string
	show func(r *rig)
}

// is fails the test unless a call answered a code.
func (r *rig) is(want, got api.Code) { r.t.Helper(); require.Equal(r.t, want, got) }

var rules = []rule{
	{"without a current context, what needs one answers 201", func(r *rig) {
		r.ok(r.d.CtxSetCurrent(0))
		cur, c := r.d.CtxGetCurrent()
		r.ok(c)
		require.Zero(r.t, cur)
		_, c = r.d.MemAlloc(1)
		r.is(api.InvalidContext, c)
		_, c = r.d.StreamCreate(0)
		r.is(api.InvalidContext, c)
		_, c = r.d.EventCreate(0)
		r.is(api.InvalidContext, c)
		_, c = r.d.CtxGetDevice()
		r.is(api.InvalidContext, c)
		_, c = r.d.CtxPopCurrent()
		r.is(api.InvalidContext, c)
		r.is(api.InvalidContext, r.d.CtxSynchronize())
		r.is(api.InvalidContext, r.d.StreamSynchronize(api.StreamNull))
		_, c = r.d.ModuleLoadData(PTX("gp_copy"), nil)
		r.is(api.InvalidContext, c)
	}},
	{"push, pop and set work on a stack", func(r *rig) {
		a, b := r.ctx[0], r.ctx[1]
		r.ok(r.d.CtxPushCurrent(b))
		r.ok(r.d.CtxPushCurrent(a))
		r.ok(r.d.CtxSetCurrent(b))
		for _, want := range []api.Context{b, b, a} {
			got, c := r.d.CtxPopCurrent()
			r.ok(c)
			require.Equal(r.t, want, got)
		}
		r.is(api.InvalidContext, r.d.CtxPushCurrent(12345))
	}},
	{"explicit streams work with another context current and with none", func(r *rig) {
		s, e := r.stream(0), r.event(0)
		p := r.device(0, 64)
		h, hp := r.pinned(64)
		for _, cur := range []api.Context{r.ctx[1], 0} {
			r.ok(r.d.CtxSetCurrent(cur))
			r.ok(r.d.MemcpyHtoDAsync(p, hp, 64, s))
			r.ok(r.d.MemcpyDtoHAsync(hp, p, 64, s))
			r.ok(r.d.EventRecord(e, s))
			r.ok(r.d.StreamWaitEvent(s, e))
			r.ok(r.d.EventSynchronize(e))
			r.ok(r.d.StreamSynchronize(s))
			r.ok(r.d.StreamQuery(s))
		}
		require.Len(r.t, h, 64)
	}},
	{"an event is recorded in its own context only, and waited for in any", func(r *rig) {
		s0, s1, e := r.stream(0), r.stream(1), r.event(0)
		r.is(api.InvalidHandle, r.d.EventRecord(e, s1))
		r.ok(r.d.EventRecord(e, s0))
		r.ok(r.d.StreamWaitEvent(s1, e))
		r.ok(r.d.StreamSynchronize(s1))
	}},
	{"an event that was never recorded is done, and waiting for it is no wait", func(r *rig) {
		s, e := r.stream(0), r.event(0)
		r.ok(r.d.EventQuery(e))
		r.ok(r.d.EventSynchronize(e))
		r.ok(r.d.StreamWaitEvent(s, e))
		r.ok(r.d.StreamQuery(s))
	}},
	{"a wait takes the latest record at the time of the call", func(r *rig) {
		a, b, c := r.stream(0), r.stream(0), r.stream(0)
		e := r.event(0)
		f := r.function("gp_test_spin")
		r.ok(r.d.LaunchKernel(f, launch(a, 100)))
		r.ok(r.d.StreamWaitEvent(b, e)) // before the record: no wait
		r.ok(r.d.EventRecord(e, a))
		r.ok(r.d.StreamWaitEvent(c, e))
		r.ok(r.d.StreamQuery(b))
		r.is(api.NotReady, r.d.StreamQuery(c))
		r.is(api.NotReady, r.d.EventQuery(e))
		r.ok(r.d.EventSynchronize(e))
		r.ok(r.d.StreamQuery(c))
	}},
	{"unknown, destroyed and foreign handles answer 400", func(r *rig) {
		other := newRig(r.t)
		foreign := other.stream(0)
		r.use(0)
		s, e := r.stream(0), r.event(0)
		r.ok(r.d.StreamDestroy(s))
		r.ok(r.d.EventDestroy(e))
		for _, h := range []api.Stream{s, 777, foreign} {
			r.is(api.InvalidHandle, r.d.StreamSynchronize(h))
			r.is(api.InvalidHandle, r.d.StreamQuery(h))
			r.is(api.InvalidHandle, r.d.StreamDestroy(h))
			_, c := r.d.StreamGetCtx(h)
			r.is(api.InvalidHandle, c)
			r.is(api.InvalidHandle, r.d.MemsetD8Async(r.device(0, 8), 0, 8, h))
		}
		r.is(api.InvalidHandle, r.d.EventQuery(e))
		r.is(api.InvalidHandle, r.d.EventSynchronize(e))
		r.is(api.InvalidHandle, r.d.EventRecord(e, api.StreamNull))
		r.is(api.InvalidHandle, r.d.StreamWaitEvent(api.StreamNull, e))
		r.is(api.InvalidHandle, r.d.LaunchKernel(5, launch(0)))
		r.is(api.InvalidHandle, r.d.ModuleUnload(5))
		_, c := r.d.ModuleGetFunction(5, "x")
		r.is(api.InvalidHandle, c)
		other.ok(other.d.CtxSetCurrent(0))
	}},
	{"a destroyed stream's work and a destroyed event's wait still happen", func(r *rig) {
		s, w, e := r.stream(0), r.stream(0), r.event(0)
		p := r.device(0, 64)
		r.ok(r.d.MemsetD8Async(p, 9, 64, s))
		r.ok(r.d.EventRecord(e, s))
		r.ok(r.d.StreamWaitEvent(w, e))
		r.ok(r.d.EventDestroy(e))
		r.ok(r.d.StreamDestroy(s))
		r.ok(r.d.StreamSynchronize(w))
		var got [64]byte
		r.ok(r.d.MemcpyDtoH(unsafe.Pointer(&got), p, 64))
		require.Equal(r.t, byte(9), got[63])
	}},
	{"the per-thread default stream is not supported", func(r *rig) {
		r.is(api.NotSupported, r.d.StreamSynchronize(api.StreamPerThread))
	}},
	{"the legacy default stream and blocking streams wait for each other", func(r *rig) {
		f := r.function("gp_test_spin")
		blocking, c := r.d.StreamCreate(api.StreamDefault)
		r.ok(c)
		free := r.stream(0)
		r.ok(r.d.LaunchKernel(f, launch(blocking, 50)))
		r.ok(r.d.LaunchKernel(f, launch(api.StreamNull, 50)))
		r.ok(r.d.LaunchKernel(f, launch(free, 1)))
		r.ok(r.d.LaunchKernel(f, launch(blocking, 1)))
		t0 := r.d.Host().Now()
		r.ok(r.d.StreamSynchronize(free))
		t1 := r.d.Host().Now()
		require.Less(r.t, us(t1-t0), 20.0)
		r.is(api.NotReady, r.d.StreamQuery(api.StreamLegacy))
		r.ok(r.d.StreamSynchronize(blocking))
		require.Greater(r.t, us(r.d.Host().Now()-t0), 80.0)
		r.ok(r.d.StreamQuery(api.StreamNull))
	}},
	{"events: elapsed time needs two timed records in one context", func(r *rig) {
		s, a, b := r.stream(0), r.event(0), r.event(0)
		f := r.function("gp_test_spin")
		_, c := r.d.EventElapsedTime(a, b)
		r.is(api.InvalidHandle, c)
		r.ok(r.d.EventRecord(a, s))
		r.ok(r.d.LaunchKernel(f, launch(s, 200)))
		r.ok(r.d.EventRecord(b, s))
		_, c = r.d.EventElapsedTime(a, b)
		r.is(api.NotReady, c)
		r.ok(r.d.EventSynchronize(b))
		ms, c := r.d.EventElapsedTime(a, b)
		r.ok(c)
		require.InDelta(r.t, 0.2, ms, 0.01)
		quiet, c := r.d.EventCreate(api.EventDisableTiming | api.EventBlockingSync)
		r.ok(c)
		r.ok(r.d.EventRecord(quiet, s))
		_, c = r.d.EventElapsedTime(a, quiet)
		r.is(api.InvalidHandle, c)
		_, c = r.d.EventCreate(4)
		r.is(api.InvalidValue, c)
	}},
	{"copies out of bounds answer 1 and enqueue nothing", func(r *rig) {
		s := r.stream(0)
		p, q := r.device(0, 100), r.device(0, 100)
		h, hp := r.pinned(100)
		fill(h, 3)
		r.is(api.InvalidValue, r.d.MemcpyHtoDAsync(p, hp, 101, s))
		r.is(api.InvalidValue, r.d.MemcpyHtoDAsync(p+1, hp, 100, s))
		r.is(api.InvalidValue, r.d.MemcpyDtoHAsync(hp, p, 1<<40, s))
		r.is(api.InvalidValue, r.d.MemcpyDtoHAsync(unsafe.Add(hp, 1), p, 100, s))
		r.is(api.InvalidValue, r.d.MemcpyDtoHAsync(nil, p, 1, s))
		r.is(api.InvalidValue, r.d.MemcpyDtoDAsync(p+50, q, 51, s))
		r.is(api.InvalidValue, r.d.MemcpyHtoD(0, hp, 1))
		r.is(api.InvalidValue, r.d.MemsetD8Async(p, 0, 101, s))
		r.is(api.InvalidValue, r.d.MemsetD32Async(p, 0, 1<<62, s))
		r.is(api.InvalidValue, r.d.MemsetD32Async(p+1, 0, 1, s))
		r.ok(r.d.MemcpyHtoDAsync(0, nil, 0, s))
		r.ok(r.d.StreamSynchronize(s))
		var got [1]byte
		r.ok(r.d.MemcpyDtoH(unsafe.Pointer(&got), p, 1))
		require.Equal(r.t, byte(poison), got[0])
	}},
	{"freed memory is unknown, and only its start can be freed", func(r *rig) {
		p := r.device(0, 4096)
		r.is(api.InvalidValue, r.d.MemFree(p+1))
		r.ok(r.d.MemFree(p))
		r.is(api.InvalidValue, r.d.MemFree(p))
		r.is(api.InvalidValue, r.d.MemsetD8Async(p, 0, 1, 0))
		_, hp := r.pinned(64)
		r.is(api.InvalidValue, r.d.MemFreeHost(unsafe.Add(hp, 1)))
		r.ok(r.d.MemFreeHost(hp))
		r.is(api.InvalidValue, r.d.MemFreeHost(hp))
	}},
	{"freeing waits for the work in flight", func(r *rig) {
		s, f := r.stream(0), r.function("gp_test_spin")
		p := r.device(0, 64)
		r.ok(r.d.LaunchKernel(f, launch(s, 100)))
		r.ok(r.d.MemsetD8Async(p, 1, 64, s))
		r.ok(r.d.MemFree(p))
		r.ok(r.d.StreamQuery(s))
	}},
	{"out of memory answers 2 and touches nothing", func(r *rig) {
		free, total, c := r.d.MemGetInfo()
		r.ok(c)
		require.Equal(r.t, total, free)
		p := r.device(0, free-512)
		_, c = r.d.MemAlloc(513)
		r.is(api.OutOfMemory, c)
		r.ok(r.d.MemFree(p))
		r.device(0, 513)
		_, c = r.d.MemAlloc(0)
		r.is(api.InvalidValue, c)
		_, c = r.d.MemHostAlloc(1<<50, 0)
		r.is(api.OutOfMemory, c)
		_, c = r.d.MemHostAlloc(0, 0)
		r.ok(c)
		_, c = r.d.MemHostAlloc(1, 8)
		r.is(api.InvalidValue, c)
	}},
	{"pointers tell what they are", func(r *rig) {
		p := r.device(1, 1000)
		get := func(a api.PointerAttribute, p api.Ptr) uint64 {
			v, c := r.d.PointerGetAttribute(a, p)
			r.ok(c)
			return v
		}
		require.Equal(r.t, uint64(api.MemTypeDevice), get(api.PtrMemoryType, p+10))
		require.Equal(r.t, uint64(1), get(api.PtrDeviceOrdinal, p))
		require.Equal(r.t, uint64(r.ctx[1]), get(api.PtrContext, p))
		require.Equal(r.t, uint64(p), get(api.PtrRangeStart, p+10))
		require.Equal(r.t, uint64(1000), get(api.PtrRangeSize, p+10))
		require.Zero(r.t, get(api.PtrIsManaged, p))
		_, c := r.d.PointerGetAttribute(api.PtrHostPointer, p)
		r.is(api.InvalidValue, c)
		base, n, c := r.d.MemGetAddressRange(p + 999)
		r.ok(c)
		require.Equal(r.t, p, base)
		require.Equal(r.t, uint64(1000), n)
		_, _, c = r.d.MemGetAddressRange(p + 1000)
		r.is(api.NotFound, c)
		_, c = r.d.PointerGetAttribute(api.PtrMemoryType, p+1000)
		r.is(api.InvalidValue, c)

		_, hp := r.pinned(64)
		addr := uint64(uintptr(hp))
		dp, c := r.d.MemHostGetDevicePointer(unsafe.Add(hp, 5))
		r.ok(c)
		require.Equal(r.t, uint64(api.MemTypeHost), get(api.PtrMemoryType, dp))
		require.Equal(r.t, addr+5, get(api.PtrHostPointer, dp))
		require.Equal(r.t, uint64(dp), get(api.PtrDevicePointer, api.Ptr(addr+5)))
		require.NotEqual(r.t, addr+5, uint64(dp), "device pointers of host memory are not its addresses")
		flags, c := r.d.MemHostGetFlags(hp)
		r.ok(c)
		require.Equal(r.t, api.HostPortable|api.HostDeviceMap, flags)
	}},
	{"host memory is registered once", func(r *rig) {
		b := make([]byte, 4096)
		p := unsafe.Pointer(&b[0])
		r.is(api.HostMemoryNotRegistered, r.d.MemHostUnregister(p))
		r.ok(r.d.MemHostRegister(p, 2048, api.RegisterPortable))
		r.is(api.HostMemoryAlreadyReg, r.d.MemHostRegister(unsafe.Add(p, 1024), 2048, 0))
		r.is(api.InvalidValue, r.d.MemFreeHost(p))
		d := r.device(0, 4096)
		s := r.stream(0)
		r.is(api.InvalidValue, r.d.MemcpyHtoDAsync(d, p, 4096, s)) // pinned in part
		r.is(api.InvalidValue, r.d.MemcpyHtoDAsync(d, unsafe.Add(p, 2048-1), 2, s))
		r.ok(r.d.MemcpyHtoDAsync(d, p, 2048, s))
		_, c := r.d.MemHostGetDevicePointer(p)
		r.ok(c)
		r.ok(r.d.MemHostUnregister(p))
		_, c = r.d.MemHostGetDevicePointer(p)
		r.is(api.InvalidValue, c)
		r.is(api.InvalidValue, r.d.MemHostRegister(nil, 1, 0))
	}},
	{"peer access is refused", func(r *rig) {
		can, c := r.d.DeviceCanAccessPeer(0, 1)
		r.ok(c)
		require.False(r.t, can)
		v, c := r.d.DeviceGetP2PAttribute(api.P2PAccessSupported, 0, 1)
		r.ok(c)
		require.Zero(r.t, v)
		_, c = r.d.DeviceGetP2PAttribute(api.P2PAccessSupported, 0, 0)
		r.is(api.InvalidDevice, c)
		r.is(api.PeerAccessUnsupported, r.d.CtxEnablePeerAccess(r.ctx[1]))
		r.is(api.PeerAccessUnsupported, r.d.CtxEnablePeerAccess(r.ctx[0]))
		r.is(api.PeerAccessNotEnabled, r.d.CtxDisablePeerAccess(r.ctx[1]))
		r.is(api.InvalidContext, r.d.CtxEnablePeerAccess(99))
	}},
	{"a peer copy blocks its caller and moves the bytes", func(r *rig) {
		src, dst := r.device(0, 4096), r.device(1, 4096)
		s := r.stream(0)
		r.ok(r.d.MemsetD8Async(src, 6, 4096, s))
		r.ok(r.d.MemcpyPeerAsync(dst, r.ctx[1], src, r.ctx[0], 4096, s))
		r.ok(r.d.StreamQuery(s))
		var got [4096]byte
		r.ok(r.d.MemcpyDtoH(unsafe.Pointer(&got), dst, 4096))
		require.Equal(r.t, byte(6), got[4095])
		r.is(api.InvalidValue, r.d.MemcpyPeerAsync(dst, r.ctx[0], src, r.ctx[0], 1, s))
		r.is(api.InvalidContext, r.d.MemcpyPeerAsync(dst, 5, src, r.ctx[0], 1, s))
	}},
	{"2D copies take rows by their pitches", func(r *rig) {
		const w, h, dp, sp = 3, 4, 8, 5
		host, hp := r.pinned(sp*(h-1) + w)
		for i := range host {
			host[i] = byte(i)
		}
		d, s := r.device(0, dp*(h-1)+w), r.stream(0)
		r.ok(r.d.MemsetD8Async(d, 0xff, dp*(h-1)+w, s))
		c := api.Copy2D{SrcHost: hp, SrcPitch: sp, DstDevice: d, DstPitch: dp, Width: w, Height: h}
		r.ok(r.d.Memcpy2DAsync(&c, s))
		r.ok(r.d.StreamSynchronize(s))
		got := make([]byte, dp*(h-1)+w)
		r.ok(r.d.MemcpyDtoH(unsafe.Pointer(&got[0]), d, uint64(len(got))))
		require.Equal(r.t, []byte{
			0, 1, 2, 255, 255, 255, 255, 255,
			5, 6, 7, 255, 255, 255, 255, 255,
			10, 11, 12, 255, 255, 255, 255, 255,
			15, 16, 17}, got)
		for _, wrong := range []func(c *api.Copy2D){
			func(c *api.Copy2D) { c.SrcPitch = w - 1 },
			func(c *api.Copy2D) { c.DstPitch = maxPitch + 1 },
			func(c *api.Copy2D) { c.Height++ },
			func(c *api.Copy2D) { c.SrcHost = nil },
			func(c *api.Copy2D) { c.DstHost = hp },
		} {
			bad := c
			wrong(&bad)
			r.is(api.InvalidValue, r.d.Memcpy2DAsync(&bad, s))
		}
		c.Height, c.SrcPitch = 0, 0
		r.ok(r.d.Memcpy2DAsync(&c, s))
	}},
	{"pageable memory: small copies to a device take the bytes at once, others block", func(r *rig) {
		s, f := r.stream(0), r.function("gp_test_spin")
		d := r.device(0, 1<<20)
		b := make([]byte, 1<<20)
		p := unsafe.Pointer(&b[0])
		r.ok(r.d.LaunchKernel(f, launch(s, 200)))
		b[0] = 1
		r.ok(r.d.MemcpyHtoDAsync(d, p, 100, s))
		b[0] = 2
		r.is(api.NotReady, r.d.StreamQuery(s))
		r.ok(r.d.MemcpyDtoHAsync(p, d, 1, s))
		require.Equal(r.t, byte(1), b[0])
		r.ok(r.d.StreamQuery(s))
		r.ok(r.d.LaunchKernel(f, launch(s, 200)))
		r.ok(r.d.MemcpyHtoDAsync(d, p, 1<<20, s))
		r.ok(r.d.StreamQuery(s))
	}},
	{"a small synchronous copy from pageable memory is not ordered before a non-blocking stream", func(r *rig) {
		// The driver promises no more than that the source may be used again.
		seen := map[byte]bool{}
		for seed := range uint64(20) {
			r := newRig(r.t, Seed(seed))
			s, d := r.stream(0), r.device(0, 16)
			_, hp := r.pinned(16)
			b := [16]byte{42}
			r.ok(r.d.MemcpyHtoD(d, unsafe.Pointer(&b), 16))
			r.ok(r.d.MemcpyDtoHAsync(hp, d, 16, s))
			r.ok(r.d.StreamSynchronize(s))
			seen[*(*byte)(hp)] = true
		}
		require.Equal(r.t, map[byte]bool{42: true, poison: true}, seen)
	}},
	{"images: CUBIN 209, newer PTX 222, unknown entries and text without NUL 218", func(r *rig) {
		log := make([]byte, 64)
		load := func(image string) api.Code {
			_, c := r.d.ModuleLoadData([]byte(image), log)
			return c
		}
		r.is(api.NoBinaryForGPU, load("\x7fELF and more\x00"))
		r.is(api.UnsupportedPTXVersion, load(".version 9.0\n.target sm_80\n\x00"))
		r.ok(load(".version 8.4\n.target sm_89\n\x00"))
		r.is(api.InvalidPTX, load(".version 7.8\n.target sm_90\n\x00"))
		r.is(api.InvalidPTX, load(string(PTX("nobody_knows_it"))))
		require.Contains(r.t, string(log), "nobody_knows_it")
		r.is(api.InvalidPTX, load(".version 7.0\n.target sm_80\n"))
		r.is(api.InvalidImage, load("hello\x00"))
		r.is(api.InvalidValue, load(""))
		mod, c := r.d.ModuleLoadData(PTX(kernel.CopyEntry), nil)
		r.ok(c)
		_, c = r.d.ModuleGetFunction(mod, "gp_copi")
		r.is(api.NotFound, c)
		f, c := r.d.ModuleGetFunction(mod, kernel.CopyEntry)
		r.ok(c)
		v, c := r.d.FuncGetAttribute(api.FuncPTXVersion, f)
		r.ok(c)
		require.Equal(r.t, 70, v)
		r.ok(r.d.ModuleUnload(mod))
		r.is(api.InvalidHandle, r.d.LaunchKernel(f, launch(0)))
	}},
	{"launches with a bad shape, or in a stream of another context, are refused", func(r *rig) {
		f := r.function("gp_test_spin")
		l := launch(r.stream(0), 1)
		l.Block[1] = 33
		r.is(api.InvalidValue, r.d.LaunchKernel(f, l))
		l = launch(r.stream(0), 1)
		l.Grid[2] = 0
		r.is(api.InvalidValue, r.d.LaunchKernel(f, l))
		r.is(api.InvalidHandle, r.d.LaunchKernel(f, launch(r.stream(1), 1)))
	}},
	{"primary contexts are counted", func(r *rig) {
		again, c := r.d.DevicePrimaryCtxRetain(1)
		r.ok(c)
		require.Equal(r.t, r.ctx[1], again)
		r.ok(r.d.DevicePrimaryCtxRelease(1))
		_, active, c := r.d.DevicePrimaryCtxGetState(1)
		r.ok(c)
		require.True(r.t, active)
		r.ok(r.d.CtxPushCurrent(r.ctx[1]))
		r.ok(r.d.DevicePrimaryCtxRelease(1))
		_, active, c = r.d.DevicePrimaryCtxGetState(1)
		r.ok(c)
		require.False(r.t, active)
		_, c = r.d.MemAlloc(1)
		r.is(api.ContextIsDestroyed, c)
		r.is(api.InvalidContext, r.d.CtxSetCurrent(r.ctx[1]))
		r.is(api.InvalidContext, r.d.DevicePrimaryCtxRelease(1))
	}},
	{"devices are told by attribute, bus id and UUID", func(r *rig) {
		n, c := r.d.DeviceGetCount()
		r.ok(c)
		require.Equal(r.t, 2, n)
		_, c = r.d.DeviceGet(2)
		r.is(api.InvalidDevice, c)
		_, c = r.d.DeviceGet(-1)
		r.is(api.InvalidDevice, c)
		name, c := r.d.DeviceGetName(0)
		r.ok(c)
		require.Equal(r.t, "NVIDIA GeForce RTX 4090", name)
		for i := range api.Device(2) {
			id, c := r.d.DeviceGetPCIBusId(i)
			r.ok(c)
			back, c := r.d.DeviceGetByPCIBusId(id)
			r.ok(c)
			require.Equal(r.t, i, back)
		}
		_, c = r.d.DeviceGetByPCIBusId("0000:7f:00.0")
		r.is(api.InvalidDevice, c)
		_, c = r.d.DeviceGetByPCIBusId("no")
		r.is(api.InvalidValue, c)
		major, c := r.d.DeviceGetAttribute(api.AttrComputeCapabilityMajor, 0)
		r.ok(c)
		require.Equal(r.t, 8, major)
		_, c = r.d.DeviceGetAttribute(9999, 0)
		r.is(api.InvalidValue, c)
		a, c := r.d.DeviceGetUuid(0)
		r.ok(c)
		b, c := r.d.DeviceGetUuid(1)
		r.ok(c)
		require.NotEqual(r.t, a, b)
	}},
	{"an illegal access is sticky, and no new primary context gets out of it", func(r *rig) {
		f := r.function("gp_test_wild")
		s, e := r.stream(0), r.event(0)
		p := r.device(0, 64)
		r.ok(r.d.LaunchKernel(f, launch(s)))
		r.ok(r.d.EventRecord(e, s))
		r.is(api.IllegalAddress, r.d.StreamSynchronize(s))
		r.is(api.IllegalAddress, r.d.StreamQuery(s))
		r.is(api.IllegalAddress, r.d.EventQuery(e))
		_, c := r.d.MemAlloc(1)
		r.is(api.IllegalAddress, c)
		r.is(api.IllegalAddress, r.d.MemsetD8Async(p, 0, 1, s))
		r.is(api.IllegalAddress, r.d.CtxSynchronize())
		r.use(1) // the other GPUs of the process are lost with it
		_, c = r.d.MemAlloc(1)
		r.is(api.IllegalAddress, c)
		r.ok(r.d.DevicePrimaryCtxRelease(0))
		_, c = r.d.DevicePrimaryCtxRetain(0)
		r.is(api.IllegalAddress, c)
	}},
	{"a kernel reaches its own GPU's memory and pinned memory, not another GPU's", func(r *rig) {
		near, far := r.device(0, 64), r.device(1, 64)
		host, hp := r.pinned(64)
		r.use(0)
		alias, c := r.d.MemHostGetDevicePointer(hp)
		r.ok(c)
		f := r.function(kernel.CopyEntry)
		s := r.stream(0)
		fill(host, 4)
		run := func(dst, src api.Ptr) {
			k := kernel.Copy{Dst: uint64(dst), Src: uint64(src), Bytes: 32}
			r.ok(r.d.LaunchKernel(f, launch(s, k.Append(nil)...)))
		}
		run(near, alias)
		run(alias+32, near)
		r.ok(r.d.StreamSynchronize(s))
		require.Equal(r.t, byte(4), host[63])
		run(far, near)
		r.is(api.IllegalAddress, r.d.StreamSynchronize(s))
	}},
	{"a misaligned access is 716", func(r *rig) {
		p := r.device(0, 64)
		f := r.function("gp_fold_f32_sum")
		k := kernel.Fold{Dst: uint64(p) + 2, Count: 1, N: 1, In: [kernel.MaxInputs]uint64{uint64(p)}}
		r.ok(r.d.LaunchKernel(f, launch(0, k.Append(nil)...)))
		r.is(api.MisalignedAddress, r.d.CtxSynchronize())
	}},
	{"capture: enqueueing is legal and does nothing, status is told, the graph can be destroyed", func(r *rig) {
		s := r.stream(0)
		p := r.device(0, 64)
		r.ok(r.d.StreamBeginCapture(s, api.CaptureThreadLocal))
		r.is(api.IllegalState, r.d.StreamBeginCapture(s, api.CaptureThreadLocal))
		st, c := r.d.StreamIsCapturing(s)
		r.ok(c)
		require.Equal(r.t, api.CaptureActive, st)
		r.ok(r.d.MemsetD8Async(p, 1, 64, s))
		g, c := r.d.StreamEndCapture(s)
		r.ok(c)
		st, c = r.d.StreamIsCapturing(s)
		r.ok(c)
		require.Equal(r.t, api.CaptureNone, st)
		r.ok(r.d.StreamSynchronize(s))
		var got [1]byte
		r.ok(r.d.MemcpyDtoH(unsafe.Pointer(&got), p, 1))
		require.Equal(r.t, byte(poison), got[0])
		r.ok(r.d.GraphDestroy(g))
		r.is(api.InvalidValue, r.d.GraphDestroy(g))
		_, c = r.d.StreamEndCapture(s)
		r.is(api.IllegalState, c)
		r.is(api.CaptureUnsupported, r.d.StreamBeginCapture(api.StreamNull, api.CaptureGlobal))
	}},
	{"capture: unsafe calls answer 900 and invalidate it, unless the thread is relaxed", func(r *rig) {
		for _, mode := range []api.CaptureMode{api.CaptureGlobal, api.CaptureThreadLocal} {
			r := newRig(r.t)
			s, other, e := r.stream(0), r.stream(0), r.event(0)
			calls := map[string]func() api.Code{
				"MemAlloc":          func() api.Code { _, c := r.d.MemAlloc(64); return c },
				"MemHostAlloc":      func() api.Code { _, c := r.d.MemHostAlloc(64, 0); return c },
				"ModuleLoadData":    func() api.Code { _, c := r.d.ModuleLoadData(PTX(kernel.CopyEntry), nil); return c },
				"EventQuery":        func() api.Code { return r.d.EventQuery(e) },
				"EventSynchronize":  func() api.Code { return r.d.EventSynchronize(e) },
				"StreamQuery":       func() api.Code { return r.d.StreamQuery(other) },
				"StreamSynchronize": func() api.Code { return r.d.StreamSynchronize(other) },
				"CtxSynchronize":    func() api.Code { return r.d.CtxSynchronize() },
			}
			for name, call := range calls {
				r.ok(r.d.StreamBeginCapture(s, mode))
				old, c := r.d.ThreadExchangeStreamCaptureMode(api.CaptureRelaxed)
				r.ok(c)
				require.Equal(r.t, api.CaptureGlobal, old)
				if name == "CtxSynchronize" { // of the whole context, whatever the thread's mode
					r.is(api.CaptureUnsupported, call())
				} else {
					r.ok(call())
				}
				old, c = r.d.ThreadExchangeStreamCaptureMode(api.CaptureGlobal)
				r.ok(c)
				require.Equal(r.t, api.CaptureRelaxed, old)
				st, c := r.d.StreamIsCapturing(s)
				r.ok(c)
				require.Equal(r.t, api.CaptureActive, st, name)
				require.Equal(r.t, api.CaptureUnsupported, call(), name)
				st, c = r.d.StreamIsCapturing(s)
				r.ok(c)
				require.Equal(r.t, api.CaptureInvalidated, st, name)
				r.is(api.CaptureInvalid, r.d.EventRecord(e, s))
				_, c = r.d.StreamEndCapture(s)
				r.is(api.CaptureInvalid, c)
				r.ok(call())
			}
		}
	}},
	{"capture: another thread is only hindered by a global one", func(r *rig) {
		for mode, want := range map[api.CaptureMode]api.Code{
			api.CaptureGlobal: api.CaptureUnsupported, api.CaptureThreadLocal: api.Success, api.CaptureRelaxed: api.Success,
		} {
			s := r.stream(0)
			r.ok(r.d.StreamBeginCapture(s, mode))
			done := make(chan [2]api.Code)
			go func() {
				var c [2]api.Code
				onThread(func() {
					r.d.CtxSetCurrent(r.ctx[0])
					_, c[0] = r.d.MemAlloc(64)
					_, c[1] = r.d.StreamEndCapture(s)
					r.d.CtxSetCurrent(0)
				})
				done <- c
			}()
			got := <-done
			r.is(want, got[0])
			switch mode {
			case api.CaptureGlobal: // MemAlloc spoilt it
				r.is(api.CaptureInvalid, got[1])
			case api.CaptureThreadLocal:
				r.is(api.CaptureWrongThread, got[1])
				r.d.StreamEndCapture(s)
			}
		}
	}},
	{"capture: the legacy stream beside a captured blocking stream is 906", func(r *rig) {
		p := r.device(0, 64)
		s, c := r.d.StreamCreate(api.StreamDefault)
		r.ok(c)
		r.ok(r.d.StreamBeginCapture(s, api.CaptureGlobal))
		_, c = r.d.StreamIsCapturing(api.StreamNull)
		r.is(api.CaptureImplicit, c)
		st, c := r.d.StreamIsCapturing(s)
		r.ok(c)
		require.Equal(r.t, api.CaptureActive, st, "asking does not invalidate")
		r.is(api.CaptureImplicit, r.d.MemsetD8Async(p, 1, 64, api.StreamNull))
		_, c = r.d.StreamEndCapture(s)
		r.is(api.CaptureInvalid, c)
		// A non-blocking stream's capture does not concern the legacy stream.
		nb := r.stream(0)
		r.ok(r.d.StreamBeginCapture(nb, api.CaptureGlobal))
		st, c = r.d.StreamIsCapturing(api.StreamNull)
		r.ok(c)
		require.Equal(r.t, api.CaptureNone, st)
		r.ok(r.d.MemsetD8Async(p, 1, 64, api.StreamNull))
		_, c = r.d.StreamEndCapture(nb)
		r.ok(c)
	}},
	{"capture: the captured stream itself cannot be waited for, nor the legacy stream beside it", func(r *rig) {
		s, c := r.d.StreamCreate(api.StreamDefault)
		r.ok(c)
		for _, wait := range []func(api.Stream) api.Code{r.d.StreamQuery, r.d.StreamSynchronize} {
			for at, want := range map[api.Stream]api.Code{s: api.CaptureUnsupported, api.StreamNull: api.CaptureImplicit} {
				r.ok(r.d.StreamBeginCapture(s, api.CaptureRelaxed))
				r.is(want, wait(at))
				_, c := r.d.StreamEndCapture(s)
				r.is(api.CaptureInvalid, c)
			}
		}
	}},
	{"capture: two captures do not merge, and a captured event does not reach the legacy stream", func(r *rig) {
		a, b, e := r.stream(0), r.stream(0), r.event(0)
		r.ok(r.d.StreamBeginCapture(a, api.CaptureRelaxed))
		r.ok(r.d.StreamBeginCapture(b, api.CaptureRelaxed))
		r.ok(r.d.EventRecord(e, a))
		r.is(api.CaptureMerge, r.d.StreamWaitEvent(b, e))
		for _, s := range []api.Stream{a, b} {
			_, c := r.d.StreamEndCapture(s)
			r.is(api.CaptureInvalid, c)
		}
		r.ok(r.d.StreamBeginCapture(a, api.CaptureRelaxed))
		r.ok(r.d.EventRecord(e, a))
		r.is(api.CaptureImplicit, r.d.StreamWaitEvent(api.StreamNull, e))
		_, c := r.d.StreamEndCapture(a)
		r.is(api.CaptureInvalid, c)
	}},
	{"capture: destroying the stream ends it", func(r *rig) {
		s, p := r.stream(0), r.device(0, 64)
		r.ok(r.d.StreamBeginCapture(s, api.CaptureGlobal))
		r.is(api.CaptureUnsupported, r.d.MemFree(p))
		r.ok(r.d.StreamDestroy(s))
		r.ok(r.d.MemFree(p))
	}},
	{"capture: work that was not joined is 904 at the end", func(r *rig) {
		a, b := r.stream(0), r.stream(0)
		fork, join := r.event(0), r.event(0)
		p := r.device(0, 64)
		for _, c := range []struct {
			work, joined, late bool
			want               api.Code
		}{
			{false, false, false, api.Success},
			{true, false, false, api.CaptureUnjoined},
			{true, true, false, api.Success},
			{true, true, true, api.CaptureUnjoined},
		} {
			r.ok(r.d.StreamBeginCapture(a, api.CaptureRelaxed))
			r.ok(r.d.MemsetD8Async(p, 1, 64, a))
			r.ok(r.d.EventRecord(fork, a))
			r.ok(r.d.StreamWaitEvent(b, fork))
			if c.work {
				r.ok(r.d.MemsetD8Async(p, 2, 64, b))
			}
			if c.joined {
				r.ok(r.d.EventRecord(join, b))
				r.ok(r.d.StreamWaitEvent(a, join))
			}
			if c.late {
				r.ok(r.d.MemsetD8Async(p, 3, 64, b))
			}
			_, code := r.d.StreamEndCapture(a)
			r.is(c.want, code)
			st, code := r.d.StreamIsCapturing(b)
			r.ok(code)
			require.Equal(r.t, api.CaptureNone, st)
		}
	}},
	{"capture: events join streams, and keep what is captured apart from what is not", func(r *rig) {
		a, b, c := r.stream(0), r.stream(0), r.stream(0)
		in, out := r.event(0), r.event(0)
		r.ok(r.d.EventRecord(out, c))
		r.ok(r.d.StreamBeginCapture(a, api.CaptureRelaxed))
		r.ok(r.d.EventRecord(in, a))
		r.ok(r.d.StreamWaitEvent(b, in))
		st, code := r.d.StreamIsCapturing(b)
		r.ok(code)
		require.Equal(r.t, api.CaptureActive, st)
		_, code = r.d.StreamEndCapture(b)
		r.is(api.CaptureUnmatched, code)
		r.is(api.CaptureIsolation, r.d.StreamWaitEvent(a, out))
		_, code = r.d.StreamEndCapture(a)
		r.is(api.CaptureInvalid, code)
		r.is(api.InvalidValue, r.d.EventQuery(in))
		r.is(api.CapturedEvent, r.d.StreamWaitEvent(c, in))
		for _, s := range []api.Stream{a, b, c} {
			st, code := r.d.StreamIsCapturing(s)
			r.ok(code)
			require.Equal(r.t, api.CaptureNone, st)
		}
		r.ok(r.d.EventRecord(in, a))
		r.ok(r.d.EventSynchronize(in))
	}},
}

func TestRules(t *testing.T) {
	for _, rule := range rules {
		t.Run(rule.name, func(t *testing.T) { rule.show(newRig(t)) })
	}
}

func TestUninitialised(t *testing.T) {
	m, err := Open("2x4090")
	require.NoError(t, err)
	m.inited = false
	_, c := seam{m}.DeviceGetCount()
	require.Equal(t, api.NotInitialized, c)
	require.Equal(t, api.InvalidValue, seam{m}.Init(1))
	require.Equal(t, api.Success, seam{m}.Init(0))
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	_, c = seam{m}.DeviceGetCount()
	require.Equal(t, api.Deinitialized, c)
	_, c = seam{m}.CtxGetCurrent()
	require.Equal(t, api.Deinitialized, c)
}

func TestNewestPTX(t *testing.T) {
	for driver, want := range map[int]int{10020: 65, 11000: 70, 11080: 78, 12000: 80, 12040: 84, 12050: 85, 12060: 85, 12080: 87, 12090: 88, 13000: 90} {
		require.Equal(t, want, ptxOf(driver), "%d", driver)
	}
}

func TestPinnedLimit(t *testing.T) {
	r := newRig(t, PinnedLimit(1<<20))
	_, p := r.pinned(1 << 19)
	_, c := r.d.MemHostAlloc(1<<19+1, 0)
	r.is(api.OutOfMemory, c)
	r.ok(r.d.MemFreeHost(p))
	r.pinned(1 << 20)
}

func TestEqualHostPointers(t *testing.T) {
	r := newRig(t, EqualHostPointers())
	_, p := r.pinned(64)
	q, c := r.d.MemHostGetDevicePointer(p)
	r.ok(c)
	require.Equal(t, uint64(uintptr(p)), uint64(q))
	d := r.device(0, 64)
	r.ok(r.d.MemsetD8Async(q, 5, 64, 0))
	r.ok(r.d.MemcpyDtoDAsync(d, q, 64, 0))
	r.ok(r.d.CtxSynchronize())
	require.Equal(t, byte(5), *(*byte)(p))
}

func TestPeerAccessAllowed(t *testing.T) {
	spec, err := Builtin("2x4090")
	require.NoError(t, err)
	spec.PeerAccess = [][]bool{{false, true}, {true, false}}
	m, err := New(spec)
	require.NoError(t, err)
	r := newRigOf(t, m)
	src, dst := r.device(0, 1<<20), r.device(1, 1<<20)
	s := r.stream(0)
	r.ok(r.d.CtxEnablePeerAccess(r.ctx[1]))
	r.is(api.PeerAccessAlreadyEnabled, r.d.CtxEnablePeerAccess(r.ctx[1]))
	r.ok(r.d.MemsetD8Async(src, 3, 1<<20, s))
	r.ok(r.d.MemcpyPeerAsync(dst, r.ctx[1], src, r.ctx[0], 1<<20, s))
	r.is(api.NotReady, r.d.StreamQuery(s))
	r.ok(r.d.StreamSynchronize(s))
	f := r.function(kernel.CopyEntry)
	k := kernel.Copy{Dst: uint64(dst), Src: uint64(src), Bytes: 32}
	r.ok(r.d.LaunchKernel(f, launch(s, k.Append(nil)...)))
	r.ok(r.d.StreamSynchronize(s))
	r.ok(r.d.CtxDisablePeerAccess(r.ctx[1]))
	r.is(api.PeerAccessNotEnabled, r.d.CtxDisablePeerAccess(r.ctx[1]))
}
