// SPDX-License-Identifier: Apache-2.0

package libcuda_test

import (
	"encoding/binary"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/libcuda"
	"github.com/geforce-p2p/geforce-p2p/internal/libcuda/fakelib"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

const megabyte = 1 << 20

// standIn opens a fresh stand-in, initialised, through the interface. The
// goroutine is locked to its thread until the test ends.
func standIn(t testing.TB, defines ...string) (api.Driver, *fakelib.CUDA) {
	t.Helper()
	path := fakelib.Build(t, defines...)
	d, err := libcuda.OpenPath(path)
	require.NoError(t, err)
	require.Equal(t, api.Success, d.Init(0))
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	return d, fakelib.Hooks(t, path)
}

// current makes a device's primary context current.
func current(t testing.TB, d api.Driver, dev api.Device) api.Context {
	t.Helper()
	ctx, c := d.DevicePrimaryCtxRetain(dev)
	require.Equal(t, api.Success, c)
	require.Equal(t, api.Success, d.CtxSetCurrent(ctx))
	t.Cleanup(func() { d.CtxSetCurrent(0) })
	return ctx
}

func ok[T any](t testing.TB) func(T, api.Code) T {
	return func(v T, c api.Code) T {
		t.Helper()
		require.Equal(t, api.Success, c)
		return v
	}
}

func TestDevices(t *testing.T) {
	d, _ := standIn(t)
	require.Equal(t, 13000, ok[int](t)(d.DriverGetVersion()))
	require.Equal(t, 2, ok[int](t)(d.DeviceGetCount()))
	dev := ok[api.Device](t)(d.DeviceGet(1))
	require.Equal(t, api.Device(1), dev)
	_, c := d.DeviceGet(-1)
	require.Equal(t, api.InvalidDevice, c)
	require.Equal(t, "Stand-in GPU 1", ok[string](t)(d.DeviceGetName(dev)))
	require.Equal(t, "0000:02:00.0", ok[string](t)(d.DeviceGetPCIBusId(dev)))
	require.Equal(t, dev, ok[api.Device](t)(d.DeviceGetByPCIBusId("0000:02:00.0")))
	_, c = d.DeviceGetByPCIBusId("0000:77:00.0")
	require.Equal(t, api.InvalidDevice, c)
	_, c = d.DeviceGetByPCIBusId("0000:02:00.0\x00junk")
	require.Equal(t, api.InvalidValue, c)
	require.Equal(t, 0x7fffffff, ok[int](t)(d.DeviceGetAttribute(api.AttrMaxPitch, dev)))
	require.Equal(t, uint64(24<<30), ok[uint64](t)(d.DeviceTotalMem(dev)))
	require.Equal(t, api.UUID{16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 2}, ok[api.UUID](t)(d.DeviceGetUuid(dev)))
	require.True(t, ok[bool](t)(d.DeviceCanAccessPeer(0, 1)))
	require.False(t, ok[bool](t)(d.DeviceCanAccessPeer(1, 1)))
	require.Equal(t, 21, ok[int](t)(d.DeviceGetP2PAttribute(api.P2PAccessSupported, 0, 1)))

	require.Equal(t, "CUDA_ERROR_INVALID_HANDLE", d.GetErrorName(api.InvalidHandle))
	require.Equal(t, "invalid resource handle", d.GetErrorString(api.InvalidHandle))
	require.Equal(t, "", d.GetErrorName(12345))
	require.Equal(t, "", d.GetErrorString(api.CodeSymbolMissing))
}

func TestContexts(t *testing.T) {
	d, hooks := standIn(t)
	_, active, c := d.DevicePrimaryCtxGetState(1)
	require.Equal(t, api.Success, c)
	require.False(t, active)
	_, c = d.MemAlloc(16)
	require.Equal(t, api.InvalidContext, c, "without a current context")
	_, c = d.CtxGetDevice()
	require.Equal(t, api.InvalidContext, c)

	a, b := ok[api.Context](t)(d.DevicePrimaryCtxRetain(0)), ok[api.Context](t)(d.DevicePrimaryCtxRetain(1))
	require.NotEqual(t, a, b)
	_, active, c = d.DevicePrimaryCtxGetState(1)
	require.Equal(t, api.Success, c)
	require.True(t, active)

	require.Zero(t, ok[api.Context](t)(d.CtxGetCurrent()))
	require.Equal(t, api.Success, d.CtxSetCurrent(a))
	require.Equal(t, api.Success, d.CtxPushCurrent(b))
	require.Equal(t, b, ok[api.Context](t)(d.CtxGetCurrent()))
	require.Equal(t, api.Device(1), ok[api.Device](t)(d.CtxGetDevice()))
	require.Equal(t, b, ok[api.Context](t)(d.CtxPopCurrent()))
	require.Equal(t, a, ok[api.Context](t)(d.CtxGetCurrent()))
	require.Equal(t, api.Success, d.CtxSynchronize())

	require.Equal(t, api.Success, d.CtxEnablePeerAccess(b))
	require.Equal(t, api.PeerAccessAlreadyEnabled, d.CtxEnablePeerAccess(b))
	require.Equal(t, api.PeerAccessUnsupported, d.CtxEnablePeerAccess(a))
	require.Equal(t, api.Success, d.CtxDisablePeerAccess(b))
	require.Equal(t, api.PeerAccessNotEnabled, d.CtxDisablePeerAccess(b))

	require.Equal(t, api.Success, d.CtxSetCurrent(0))
	require.Equal(t, api.Success, d.DevicePrimaryCtxRelease(0))
	require.Equal(t, api.Success, d.DevicePrimaryCtxRelease(1))
	require.Zero(t, hooks.Live("context"))
	require.Equal(t, api.InvalidContext, d.CtxPushCurrent(a), "a context that is gone")
}

// Two contexts at once: what belongs to one is refused where the driver
// refuses it, and taken where it takes it.
func TestForeignHandles(t *testing.T) {
	d, _ := standIn(t)
	a, b := ok[api.Context](t)(d.DevicePrimaryCtxRetain(0)), ok[api.Context](t)(d.DevicePrimaryCtxRetain(1))
	type set struct {
		s  api.Stream
		e  api.Event
		fn api.Function
	}
	in := func(ctx api.Context) set {
		require.Equal(t, api.Success, d.CtxSetCurrent(ctx))
		m := ok[api.Module](t)(d.ModuleLoadData([]byte(".version 7.0\x00"), nil))
		return set{
			ok[api.Stream](t)(d.StreamCreate(api.StreamNonBlocking)),
			ok[api.Event](t)(d.EventCreate(api.EventDisableTiming)),
			ok[api.Function](t)(d.ModuleGetFunction(m, "fold")),
		}
	}
	one, two := in(a), in(b)

	for _, now := range []api.Context{a, b, 0} {
		require.Equal(t, api.Success, d.CtxSetCurrent(now))
		require.Equal(t, api.Success, d.EventRecord(one.e, one.s))
		require.Equal(t, api.Success, d.EventRecord(two.e, two.s))
		require.Equal(t, api.InvalidHandle, d.EventRecord(one.e, two.s), "an event of another context")
		require.Equal(t, api.Success, d.StreamWaitEvent(two.s, one.e), "a wait may cross")
		require.Equal(t, api.Success, d.LaunchKernel(one.fn, &api.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Stream: one.s}))
		require.Equal(t, api.InvalidHandle, d.LaunchKernel(one.fn, &api.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Stream: two.s}))
		require.Equal(t, b, ok[api.Context](t)(d.StreamGetCtx(two.s)))
		// Leave nothing of this round to the next: 0 pops.
		require.Equal(t, api.Success, d.CtxSetCurrent(0))
	}
	require.Equal(t, api.InvalidContext, d.EventRecord(one.e, api.StreamNull), "stream 0 needs a current context")
	require.Equal(t, api.Success, d.CtxSetCurrent(b))
	require.Equal(t, api.InvalidHandle, d.EventRecord(one.e, api.StreamLegacy), "and is the current context's")
	require.Equal(t, api.Success, d.EventRecord(two.e, api.StreamLegacy))
	require.Equal(t, api.Success, d.StreamDestroy(one.s))
	require.Equal(t, api.InvalidHandle, d.StreamDestroy(one.s))
	require.Equal(t, api.InvalidHandle, d.StreamQuery(one.s))
}

func TestMemory(t *testing.T) {
	d, hooks := standIn(t)
	ctx := current(t, d, 1)
	free, total, c := d.MemGetInfo()
	require.Equal(t, api.Success, c)
	require.Equal(t, [2]uint64{23 << 30, 24 << 30}, [2]uint64{free, total})

	p := ok[api.Ptr](t)(d.MemAlloc(megabyte))
	base, n, c := d.MemGetAddressRange(p + 100)
	require.Equal(t, api.Success, c)
	require.Equal(t, p, base)
	require.Equal(t, uint64(megabyte), n)
	require.Equal(t, uint64(api.MemTypeDevice), ok[uint64](t)(d.PointerGetAttribute(api.PtrMemoryType, p)))
	require.Equal(t, uint64(ctx), ok[uint64](t)(d.PointerGetAttribute(api.PtrContext, p)))
	require.Equal(t, uint64(1), ok[uint64](t)(d.PointerGetAttribute(api.PtrDeviceOrdinal, p)), "a 4-byte answer, zero-extended")
	require.Equal(t, uint64(0), ok[uint64](t)(d.PointerGetAttribute(api.PtrIsManaged, p)), "a 1-byte answer, zero-extended")
	_, c = d.MemAlloc(1 << 60)
	require.Equal(t, api.OutOfMemory, c)

	h := ok[unsafe.Pointer](t)(d.MemHostAlloc(4096, api.HostPortable|api.HostDeviceMap))
	require.NotNil(t, h)
	require.Equal(t, api.HostPortable|api.HostDeviceMap, ok[api.HostAllocFlag](t)(d.MemHostGetFlags(h)))
	hd := ok[api.Ptr](t)(d.MemHostGetDevicePointer(h))
	require.NotEqual(t, api.Ptr(uintptr(h)), hd, "the device's address of host memory is the driver's to say")
	require.Equal(t, uint64(uintptr(h)), ok[uint64](t)(d.PointerGetAttribute(api.PtrHostPointer, hd)))

	own := make([]byte, 8192)
	require.Equal(t, api.Success, d.MemHostRegister(unsafe.Pointer(&own[0]), 8192, api.RegisterPortable|api.RegisterDeviceMap))
	require.Equal(t, uint64(3), hooks.Arg(2))
	require.Equal(t, api.HostMemoryAlreadyReg, d.MemHostRegister(unsafe.Pointer(&own[0]), 8192, 0))
	require.Equal(t, api.Success, d.MemHostUnregister(unsafe.Pointer(&own[0])))
	require.Equal(t, api.HostMemoryNotRegistered, d.MemHostUnregister(unsafe.Pointer(&own[0])))

	require.Equal(t, api.Success, d.MemFreeHost(h))
	require.Equal(t, api.Success, d.MemFree(p))
	require.Equal(t, api.InvalidValue, d.MemFree(p))
	require.Zero(t, hooks.Live("memory"))
	require.Zero(t, hooks.Live("host"))
}

func TestCopies(t *testing.T) {
	d, _ := standIn(t)
	a := current(t, d, 0)
	b := ok[api.Context](t)(d.DevicePrimaryCtxRetain(1))
	s := ok[api.Stream](t)(d.StreamCreate(api.StreamNonBlocking))
	const n = 1000
	p, q := ok[api.Ptr](t)(d.MemAlloc(n)), ok[api.Ptr](t)(d.MemAlloc(n))
	src, dst := make([]byte, n), make([]byte, n)
	for i := range src {
		src[i] = byte(i*7 + 1)
	}
	back := func(p api.Ptr) []byte {
		clear(dst)
		require.Equal(t, api.Success, d.MemcpyDtoH(unsafe.Pointer(&dst[0]), p, n))
		return dst
	}
	require.Equal(t, api.Success, d.MemcpyHtoD(p, unsafe.Pointer(&src[0]), n))
	require.Equal(t, src, back(p))
	require.Equal(t, api.Success, d.MemcpyDtoDAsync(q, p, n, s))
	require.Equal(t, src, back(q))
	require.Equal(t, api.Success, d.MemsetD8Async(q, 0xab, 10, s))
	require.Equal(t, api.Success, d.MemsetD32Async(q+12, 0x01020304, 2, s))
	require.Equal(t, []byte{0xab, 0xab, src[10], src[11], 4, 3, 2, 1, 4, 3, 2, 1, src[20]}, back(q)[8:21])
	require.Equal(t, api.Success, d.MemcpyPeerAsync(q, b, p, a, n, s))
	require.Equal(t, src, back(q))
	require.Equal(t, api.InvalidContext, d.MemcpyPeerAsync(q, 77, p, a, n, s))
	require.Equal(t, api.Success, d.MemcpyDtoHAsync(unsafe.Pointer(&dst[10]), p+5, 100, s))
	require.Equal(t, src[5:105], dst[10:110])
	require.Equal(t, api.Success, d.MemcpyHtoDAsync(q+1, unsafe.Pointer(&src[0]), 3, s))
	require.Equal(t, src[:3], back(q)[1:4])
	require.Equal(t, api.InvalidValue, d.MemcpyHtoDAsync(q+n, unsafe.Pointer(&src[0]), 1, s))
}

func TestCopy2D(t *testing.T) {
	d, hooks := standIn(t)
	current(t, d, 0)
	s := ok[api.Stream](t)(d.StreamCreate(api.StreamNonBlocking))
	p, q := ok[api.Ptr](t)(d.MemAlloc(megabyte)), ok[api.Ptr](t)(d.MemAlloc(megabyte))
	src, dst := make([]byte, 10*100), make([]byte, 10*70)
	for i := range src {
		src[i] = byte(i % 251)
	}
	// Three hops with four pitches: host to device, device to device, device to host.
	require.Equal(t, api.Success, d.Memcpy2DAsync(&api.Copy2D{
		SrcHost: unsafe.Pointer(&src[0]), SrcPitch: 100, DstDevice: p, DstPitch: 128, Width: 60, Height: 10}, s))
	require.Equal(t, api.Success, d.Memcpy2DAsync(&api.Copy2D{
		SrcDevice: p, SrcPitch: 128, DstDevice: q, DstPitch: 64, Width: 60, Height: 10}, s))
	require.Equal(t, uint64(s), hooks.Arg(1))
	require.Equal(t, api.Success, d.Memcpy2DAsync(&api.Copy2D{
		SrcDevice: q, SrcPitch: 64, DstHost: unsafe.Pointer(&dst[0]), DstPitch: 70, Width: 60, Height: 10}, s))
	for y := range 10 {
		require.Equal(t, src[y*100:y*100+60], dst[y*70:y*70+60], "row %d", y)
		require.Equal(t, make([]byte, 10), dst[y*70+60:y*70+70], "the gap after row %d", y)
	}
	require.Equal(t, api.InvalidValue, d.Memcpy2DAsync(&api.Copy2D{SrcDevice: p, SrcPitch: 8, DstDevice: q, DstPitch: 64, Width: 60, Height: 1}, s))
}

func TestStreamsAndEvents(t *testing.T) {
	d, _ := standIn(t)
	current(t, d, 0)
	s := ok[api.Stream](t)(d.StreamCreate(api.StreamNonBlocking))
	require.Equal(t, api.Success, d.StreamQuery(s))
	require.Equal(t, api.Success, d.StreamSynchronize(s))
	e, f := ok[api.Event](t)(d.EventCreate(api.EventDefault)), ok[api.Event](t)(d.EventCreate(api.EventDefault))
	require.Equal(t, api.Success, d.EventRecord(e, s))
	d.Host().Sleep(2e6)
	require.Equal(t, api.Success, d.EventRecord(f, s))
	require.Equal(t, api.Success, d.EventQuery(f))
	require.Equal(t, api.Success, d.EventSynchronize(f))
	ms, c := d.EventElapsedTime(e, f)
	require.Equal(t, api.Success, c)
	require.GreaterOrEqual(t, ms, float32(2))
	require.Less(t, ms, float32(60e3))
	require.Equal(t, api.Success, d.EventDestroy(e))
	require.Equal(t, api.InvalidHandle, d.EventDestroy(e))
}

func TestCapture(t *testing.T) {
	d, _ := standIn(t)
	current(t, d, 0)
	s := ok[api.Stream](t)(d.StreamCreate(api.StreamNonBlocking))
	require.Equal(t, api.CaptureNone, ok[api.CaptureStatus](t)(d.StreamIsCapturing(s)))
	require.Equal(t, api.Success, d.StreamBeginCapture(s, api.CaptureGlobal))
	require.Equal(t, api.CaptureActive, ok[api.CaptureStatus](t)(d.StreamIsCapturing(s)))

	require.Equal(t, api.CaptureGlobal, ok[api.CaptureMode](t)(d.ThreadExchangeStreamCaptureMode(api.CaptureRelaxed)))
	p := ok[api.Ptr](t)(d.MemAlloc(16))
	require.Equal(t, api.CaptureRelaxed, ok[api.CaptureMode](t)(d.ThreadExchangeStreamCaptureMode(api.CaptureGlobal)))
	g := ok[api.Graph](t)(d.StreamEndCapture(s))
	require.Equal(t, api.Success, d.GraphDestroy(g))

	require.Equal(t, api.Success, d.StreamBeginCapture(s, api.CaptureGlobal))
	require.Equal(t, api.CaptureUnsupported, d.MemFree(p))
	require.Equal(t, api.CaptureInvalidated, ok[api.CaptureStatus](t)(d.StreamIsCapturing(s)))
	_, c := d.StreamEndCapture(s)
	require.Equal(t, api.CaptureInvalid, c)
}

func TestModules(t *testing.T) {
	d, hooks := standIn(t)
	current(t, d, 0)
	log := make([]byte, 256)
	_, c := d.ModuleLoadData([]byte("nonsense\x00"), log)
	require.Equal(t, api.InvalidPTX, c)
	require.Equal(t, "stand-in: fatal : not PTX\x00", string(log[:26]))
	_, c = d.ModuleLoadData([]byte{0, 1, 2, 3, 4}, nil)
	require.Equal(t, api.InvalidImage, c)
	require.Zero(t, hooks.Arg(2), "no options without a log")
	_, c = d.ModuleLoadData(nil, log)
	require.Equal(t, api.InvalidValue, c)

	m := ok[api.Module](t)(d.ModuleLoadData([]byte("\x7fELF..."), log))
	require.Zero(t, log[0], "no error, no text of an earlier one")
	f := ok[api.Function](t)(d.ModuleGetFunction(m, "fold_f32_sum"))
	require.Equal(t, 70, ok[int](t)(d.FuncGetAttribute(api.FuncPTXVersion, f)))
	_, c = d.ModuleGetFunction(m, "nope")
	require.Equal(t, api.NotFound, c)
	_, c = d.ModuleGetFunction(m, "a\x00b")
	require.Equal(t, api.InvalidValue, c)
	long := make([]byte, 1000)
	for i := range long {
		long[i] = 'x'
	}
	_, c = d.ModuleGetFunction(m, string(long))
	require.Equal(t, api.Success, c, "a name longer than the pooled buffer")
	require.Equal(t, api.Success, d.ModuleUnload(m))
	require.Equal(t, api.InvalidHandle, d.ModuleUnload(m))
}

func TestLaunch(t *testing.T) {
	d, hooks := standIn(t)
	current(t, d, 0)
	s := ok[api.Stream](t)(d.StreamCreate(api.StreamNonBlocking))
	m := ok[api.Module](t)(d.ModuleLoadData([]byte(".version 7.0\x00"), nil))
	fn := ok[api.Function](t)(d.ModuleGetFunction(m, "fold"))

	l := api.Launch{Grid: [3]uint32{1, 2, 3}, Block: [3]uint32{4, 5, 6}, Shared: 7, Stream: s}
	for _, n := range []int{1, 8, 44, 4096, 0, 12} {
		l.Params = make([]byte, n)
		for i := range l.Params {
			l.Params[i] = byte(i*3 + n)
		}
		require.Equal(t, api.Success, d.LaunchKernel(fn, &l))
		dims, params := hooks.Launched()
		require.Equal(t, [7]uint32{1, 2, 3, 4, 5, 6, 7}, dims)
		require.Equal(t, l.Params, params)
	}
	l.Params = make([]byte, 4097)
	require.Equal(t, api.InvalidValue, d.LaunchKernel(fn, &l))
	l.Params, l.Grid[1] = nil, 0
	require.Equal(t, api.InvalidValue, d.LaunchKernel(fn, &l))
}

//go:noinline
func deep(n int) byte {
	var pad [256]byte
	if n == 0 {
		return pad[1]
	}
	pad[n%256] = byte(n)
	return deep(n-1) + pad[n%256]
}

// The out-values of a call through the interface survive a stack that grows
// on the way into it: each new goroutine starts with a small one.
func TestStackGrowth(t *testing.T) {
	d, _ := standIn(t)
	ctx := current(t, d, 0)
	var wg sync.WaitGroup
	var wrong [200]int
	for i := range wrong {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			check := func(good bool) {
				if !good {
					wrong[i]++
				}
			}
			d.CtxSetCurrent(ctx)
			deep(i)
			free, total, c := d.MemGetInfo()
			check(c == api.Success && free == 23<<30 && total == 24<<30)
			p, c := d.MemAlloc(64)
			check(c == api.Success && p != 0)
			var in, out [64]byte // on this stack, as far as the compiler lets them
			for k := range in {
				in[k] = byte(i + k)
			}
			deep(i / 2)
			check(d.MemcpyHtoD(p, unsafe.Pointer(&in), 64) == api.Success)
			deep(i * 2)
			check(d.MemcpyDtoH(unsafe.Pointer(&out), p, 64) == api.Success)
			check(in == out)
			got, c := d.CtxGetCurrent()
			check(c == api.Success && got == ctx)
			name, c := d.DeviceGetName(1)
			check(c == api.Success && name == "Stand-in GPU 1")
			check(d.MemFree(p) == api.Success)
			d.CtxSetCurrent(0)
		})
	}
	wg.Wait()
	require.Equal(t, [200]int{}, wrong)
}

func TestConcurrentCalls(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	d, hooks := standIn(t)
	ctxs := []api.Context{ok[api.Context](t)(d.DevicePrimaryCtxRetain(0)), ok[api.Context](t)(d.DevicePrimaryCtxRetain(1))}
	var wg sync.WaitGroup
	var wrong [64]int
	for g := range wrong {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			check := func(good bool) {
				if !good {
					wrong[g]++
				}
			}
			own := ctxs[g%2]
			check(d.CtxPushCurrent(own) == api.Success)
			s, c := d.StreamCreate(api.StreamNonBlocking)
			check(c == api.Success)
			m, c := d.ModuleLoadData([]byte(".version 7.0\x00"), nil)
			check(c == api.Success)
			fn, c := d.ModuleGetFunction(m, "fold")
			check(c == api.Success)
			p, c := d.MemAlloc(8)
			check(c == api.Success)
			l := api.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Stream: s, Params: make([]byte, 8)}
			for i := range 50 {
				dev, c := d.CtxGetDevice()
				check(c == api.Success && int(dev) == g%2)
				var in, out [8]byte
				binary.LittleEndian.PutUint64(in[:], uint64(g)<<32|uint64(i))
				check(d.MemcpyHtoDAsync(p, unsafe.Pointer(&in), 8, s) == api.Success)
				check(d.LaunchKernel(fn, &l) == api.Success)
				check(d.MemcpyDtoHAsync(unsafe.Pointer(&out), p, 8, s) == api.Success)
				check(in == out)
				got, c := d.StreamGetCtx(s)
				check(c == api.Success && got == own)
			}
			check(d.MemFree(p) == api.Success)
			check(d.StreamDestroy(s) == api.Success)
			popped, c := d.CtxPopCurrent()
			check(c == api.Success && popped == own)
		})
	}
	wg.Wait()
	require.Equal(t, [64]int{}, wrong)
	require.Zero(t, hooks.Live("stream"))
	require.Zero(t, hooks.Live("memory"))
}

func TestCallsDoNotAllocate(t *testing.T) {
	testenv.SkipUnlessOptimized(t)
	d, _ := standIn(t)
	ctx := current(t, d, 0)
	s := ok[api.Stream](t)(d.StreamCreate(api.StreamNonBlocking))
	e := ok[api.Event](t)(d.EventCreate(api.EventDisableTiming))
	m := ok[api.Module](t)(d.ModuleLoadData([]byte(".version 7.0\x00"), nil))
	fn := ok[api.Function](t)(d.ModuleGetFunction(m, "fold"))
	p := ok[api.Ptr](t)(d.MemAlloc(megabyte))
	h := ok[unsafe.Pointer](t)(d.MemHostAlloc(megabyte, 0))
	l := &api.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Stream: s, Params: make([]byte, 40)}
	c2 := &api.Copy2D{SrcDevice: p, SrcPitch: 64, DstHost: h, DstPitch: 32, Width: 16, Height: 4}
	calls := map[string]func() api.Code{
		"CtxGetCurrent":       func() api.Code { _, c := d.CtxGetCurrent(); return c },
		"CtxPush and Pop":     func() api.Code { d.CtxPushCurrent(ctx); _, c := d.CtxPopCurrent(); return c },
		"MemGetInfo":          func() api.Code { _, _, c := d.MemGetInfo(); return c },
		"MemcpyHtoDAsync":     func() api.Code { return d.MemcpyHtoDAsync(p, h, 64, s) },
		"MemcpyDtoHAsync":     func() api.Code { return d.MemcpyDtoHAsync(h, p, 64, s) },
		"MemcpyPeerAsync":     func() api.Code { return d.MemcpyPeerAsync(p, ctx, p+512, ctx, 64, s) },
		"Memcpy2DAsync":       func() api.Code { return d.Memcpy2DAsync(c2, s) },
		"LaunchKernel":        func() api.Code { return d.LaunchKernel(fn, l) },
		"EventRecord":         func() api.Code { return d.EventRecord(e, s) },
		"StreamWaitEvent":     func() api.Code { return d.StreamWaitEvent(s, e) },
		"StreamQuery":         func() api.Code { return d.StreamQuery(s) },
		"StreamIsCapturing":   func() api.Code { _, c := d.StreamIsCapturing(s); return c },
		"PointerGetAttribute": func() api.Code { _, c := d.PointerGetAttribute(api.PtrMemoryType, p); return c },
		"DeviceGetAttribute":  func() api.Code { _, c := d.DeviceGetAttribute(api.AttrMaxPitch, 0); return c },
		"ModuleGetFunction":   func() api.Code { _, c := d.ModuleGetFunction(m, "no such kernel, and a name"); return c - api.NotFound },
	}
	for name, call := range calls {
		require.Equal(t, api.Success, call(), name)
		require.Zero(t, testing.AllocsPerRun(200, func() { call() }), name)
	}
}

// The price of the seam: a call through the interface over the same C function
// called by C.
func BenchmarkSeamCall(b *testing.B) {
	d, hooks := standIn(b, "FAKE_QUIET")
	b.ReportAllocs()
	for b.Loop() {
		d.StreamQuery(0)
	}
	seam := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
	c := hooks.LoopNs("cuStreamQuery", 1_000_000, 0) / 1e6
	b.ReportMetric(c, "ns/C-call")
	b.ReportMetric(seam-c, "ns/over-C")
}

func BenchmarkSeamCallWithResult(b *testing.B) {
	d, hooks := standIn(b, "FAKE_QUIET")
	b.ReportAllocs()
	for b.Loop() {
		d.DriverGetVersion()
	}
	seam := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
	current(b, d, 0)
	out := ok[unsafe.Pointer](b)(d.MemHostAlloc(8, 0)) // C's memory: it does not move
	c := hooks.LoopNs("cuDriverGetVersion", 1_000_000, uint64(uintptr(out))) / 1e6
	b.ReportMetric(c, "ns/C-call")
	b.ReportMetric(seam-c, "ns/over-C")
}
