// SPDX-License-Identifier: Apache-2.0

package cuda_test

import (
	"fmt"
	"io/fs"
	"sync"
	"testing"
	"testing/fstest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/api/tap"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
)

// fake is a driver of three devices that moves no bytes: it keeps the books on
// contexts, and is stricter than the real one. Every call that concerns a
// context wants that context to be current to the calling thread, and is
// refused with INVALID_CONTEXT (none) or INVALID_HANDLE (another) otherwise.
type fake struct {
	api.Driver // what is not written out below panics

	host fakeHost
	path string
	init api.Code

	mu       sync.Mutex
	stacks   map[int][]api.Context // by thread
	retained map[api.Device]int
	owner    map[uint64]api.Context // of streams, events, modules, functions, device memory, host memory
	next     uint64
	live     map[uint64]string
	async    api.Code // what synchronising answers
	host0    [64]byte
	launched api.Launch
	params   []byte
	image    []byte
	capture  api.CaptureStatus
	capCode  api.Code
	popCode  api.Code // what a pop answers that popped all the same
	texts    bool
	jitLog   string
	loadCode api.Code
	pciID    string
	peer     map[api.Context]bool
	onUse    func() // runs once, in the next call that concerns a context
}

type fakeHost struct{ files fstest.MapFS }

func (h fakeHost) FS() fs.FS                    { return h.files }
func (fakeHost) Now() time.Duration             { return 0 }
func (fakeHost) Sleep(time.Duration)            {}
func (fakeHost) Modelled() bool                 { return true }
func (fakeHost) PreferNode(int) (func(), error) { return func() {}, nil }

func newFake() *fake {
	return &fake{stacks: map[int][]api.Context{}, retained: map[api.Device]int{}, owner: map[uint64]api.Context{},
		live: map[uint64]string{}, peer: map[api.Context]bool{}, next: 1000, texts: true}
}

// open makes a *cuda.Driver of a seam.
func open(t testing.TB, seam api.Driver) *cuda.Driver {
	t.Helper()
	d, err := hook.NewDriver(seam)
	require.NoError(t, err)
	return d.(*cuda.Driver)
}

// rig is a driver over a tap over a fake, with contexts on two devices.
type rig struct {
	f    *fake
	tap  *tap.Tap
	d    *cuda.Driver
	a, b *cuda.Context
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{f: newFake()}
	r.tap = tap.New(r.f)
	r.d = open(t, r.tap)
	r.a, r.b = r.primary(t, 0), r.primary(t, 1)
	return r
}

func (r *rig) primary(t testing.TB, i int) *cuda.Context {
	t.Helper()
	dev, err := r.d.Device(i)
	require.NoError(t, err)
	c, err := dev.Primary()
	require.NoError(t, err)
	return c
}

func handleOf(d api.Device) api.Context { return api.Context(0xc0 + uint64(d)) }

func (f *fake) Path() string   { return f.path }
func (f *fake) Host() api.Host { return f.host }
func (f *fake) Init(uint32) api.Code {
	return f.init
}
func (f *fake) DriverGetVersion() (int, api.Code) { return 13000, api.Success }
func (f *fake) GetErrorName(c api.Code) string {
	if !f.texts {
		return ""
	}
	return fmt.Sprintf("DRIVER_NAME_%d", c)
}
func (f *fake) GetErrorString(c api.Code) string {
	if !f.texts {
		return ""
	}
	return "the driver's words"
}
func (f *fake) DeviceGetCount() (int, api.Code) { return 3, api.Success }
func (f *fake) DeviceGet(i int) (api.Device, api.Code) {
	if i < 0 || i > 2 {
		return 0, api.InvalidDevice
	}
	return api.Device(i), api.Success
}
func (f *fake) DeviceGetByPCIBusId(id string) (api.Device, api.Code) {
	if id != "0000:02:00.0" {
		return 0, api.InvalidValue
	}
	return 1, api.Success
}
func (f *fake) DeviceGetName(api.Device) (string, api.Code) { return "Fake GPU", api.Success }
func (f *fake) DeviceGetAttribute(a api.DeviceAttribute, _ api.Device) (int, api.Code) {
	switch a {
	case api.AttrComputeCapabilityMajor:
		return 8, api.Success
	case api.AttrComputeCapabilityMinor:
		return 9, api.Success
	}
	return 0, api.InvalidValue
}
func (f *fake) DeviceTotalMem(api.Device) (uint64, api.Code) { return 24 << 30, api.Success }
func (f *fake) DeviceGetUuid(api.Device) (api.UUID, api.Code) {
	var u api.UUID
	for i := range u {
		u[i] = byte(i*16 + i)
	}
	return u, api.Success
}
func (f *fake) DeviceGetPCIBusId(api.Device) (string, api.Code) { return f.pciID, api.Success }
func (f *fake) DeviceCanAccessPeer(d, p api.Device) (bool, api.Code) {
	return d == 0 && p == 1, api.Success
}
func (f *fake) DeviceGetP2PAttribute(_ api.P2PAttribute, s, d api.Device) (int, api.Code) {
	if s == d {
		return 0, api.InvalidDevice
	}
	return int(10*s) + int(d), api.Success
}

func (f *fake) DevicePrimaryCtxRetain(d api.Device) (api.Context, api.Code) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.retained[d]++
	return handleOf(d), api.Success
}

func (f *fake) DevicePrimaryCtxRelease(d api.Device) api.Code {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.retained[d] == 0 {
		return api.InvalidContext
	}
	f.retained[d]--
	return api.Success
}

func (f *fake) current() api.Context {
	s := f.stacks[threadID()]
	if len(s) == 0 {
		return 0
	}
	return s[len(s)-1]
}

func (f *fake) CtxGetCurrent() (api.Context, api.Code) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current(), api.Success
}

func (f *fake) CtxSetCurrent(c api.Context) api.Code {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := threadID()
	s := f.stacks[id]
	if len(s) > 0 {
		s = s[:len(s)-1]
	}
	if c != 0 {
		s = append(s, c)
	}
	f.stacks[id] = s
	return api.Success
}

func (f *fake) CtxPushCurrent(c api.Context) api.Code {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := threadID()
	f.stacks[id] = append(f.stacks[id], c)
	return api.Success
}

func (f *fake) CtxPopCurrent() (api.Context, api.Code) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := threadID()
	s := f.stacks[id]
	if len(s) == 0 {
		return 0, api.InvalidContext
	}
	f.stacks[id] = s[:len(s)-1]
	return s[len(s)-1], f.popCode
}

// depth is the calling thread's stack.
func (f *fake) depth() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.stacks[threadID()])
}

// use is what every call that concerns a context passes: the handles must be of
// the current one.
func (f *fake) use(handles ...uint64) api.Code {
	if on := f.onUse; on != nil {
		f.onUse = nil
		on()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	cur := f.current()
	if cur == 0 {
		return api.InvalidContext
	}
	for _, h := range handles {
		if h > 2 && f.owner[h] != cur {
			return api.InvalidHandle
		}
	}
	return api.Success
}

func (f *fake) make(what string) (uint64, api.Code) {
	if c := f.use(); c != api.Success {
		return 0, c
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next += 1000
	f.owner[f.next], f.live[f.next] = f.current(), what
	return f.next, api.Success
}

func (f *fake) free(h uint64, what string) api.Code {
	if c := f.use(h); c != api.Success {
		return c
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.live[h] != what {
		return api.InvalidHandle
	}
	delete(f.live, h)
	return api.Success
}

func (f *fake) CtxGetDevice() (api.Device, api.Code) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return api.Device(f.current() - handleOf(0)), api.Success
}
func (f *fake) CtxSynchronize() api.Code { return first(f.use(), f.async) }
func (f *fake) CtxEnablePeerAccess(c api.Context) api.Code {
	if code := f.use(); code != api.Success {
		return code
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.peer[c] {
		return api.PeerAccessAlreadyEnabled
	}
	f.peer[c] = true
	return api.Success
}
func (f *fake) CtxDisablePeerAccess(c api.Context) api.Code {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.peer[c] {
		return api.PeerAccessNotEnabled
	}
	delete(f.peer, c)
	return api.Success
}

func (f *fake) MemGetInfo() (uint64, uint64, api.Code) { return 1, 2, f.use() }
func (f *fake) MemAlloc(uint64) (api.Ptr, api.Code) {
	h, c := f.make("memory")
	return api.Ptr(h), c
}
func (f *fake) MemFree(p api.Ptr) api.Code { return f.free(uint64(p), "memory") }
func (f *fake) MemHostAlloc(_ uint64, flags api.HostAllocFlag) (unsafe.Pointer, api.Code) {
	if flags&3 != api.HostPortable|api.HostDeviceMap {
		return nil, api.InvalidValue
	}
	return unsafe.Pointer(&f.host0), f.use()
}
func (f *fake) MemFreeHost(unsafe.Pointer) api.Code { return f.use() }
func (f *fake) MemHostRegister(unsafe.Pointer, uint64, api.HostRegisterFlag) api.Code {
	return f.use()
}
func (f *fake) MemHostUnregister(unsafe.Pointer) api.Code { return f.use() }
func (f *fake) MemHostGetDevicePointer(unsafe.Pointer) (api.Ptr, api.Code) {
	c := f.use()
	f.mu.Lock()
	defer f.mu.Unlock()
	return api.Ptr(0xd0000000 + uint64(f.current())), c // unlike the host address, and by device
}
func (f *fake) MemGetAddressRange(p api.Ptr) (api.Ptr, uint64, api.Code) {
	return p &^ 0xff, 4096, f.use()
}
func (f *fake) PointerGetAttribute(a api.PointerAttribute, p api.Ptr) (uint64, api.Code) {
	if p == 0xbad {
		return 0, api.InvalidValue
	}
	switch a {
	case api.PtrMemoryType:
		return api.MemTypeDevice, api.Success
	case api.PtrDeviceOrdinal:
		return 1, api.Success
	case api.PtrIsManaged:
		return 1, api.Success
	case api.PtrRangeStart:
		return uint64(p &^ 0xff), api.Success
	}
	return 0, api.NotSupported
}
func (f *fake) MemcpyHtoD(api.Ptr, unsafe.Pointer, uint64) api.Code { return f.use() }
func (f *fake) MemcpyDtoH(unsafe.Pointer, api.Ptr, uint64) api.Code { return f.use() }
func (f *fake) MemcpyHtoDAsync(_ api.Ptr, _ unsafe.Pointer, _ uint64, s api.Stream) api.Code {
	return f.use(uint64(s))
}
func (f *fake) MemcpyDtoHAsync(_ unsafe.Pointer, _ api.Ptr, _ uint64, s api.Stream) api.Code {
	return f.use(uint64(s))
}
func (f *fake) MemcpyDtoDAsync(_, _ api.Ptr, _ uint64, s api.Stream) api.Code {
	return f.use(uint64(s))
}
func (f *fake) MemcpyPeerAsync(_ api.Ptr, _ api.Context, _ api.Ptr, _ api.Context, _ uint64, s api.Stream) api.Code {
	return f.use(uint64(s))
}
func (f *fake) Memcpy2DAsync(_ *api.Copy2D, s api.Stream) api.Code { return f.use(uint64(s)) }
func (f *fake) MemsetD8Async(_ api.Ptr, _ byte, _ uint64, s api.Stream) api.Code {
	return f.use(uint64(s))
}
func (f *fake) MemsetD32Async(_ api.Ptr, _ uint32, _ uint64, s api.Stream) api.Code {
	return f.use(uint64(s))
}

func (f *fake) StreamCreate(api.StreamFlag) (api.Stream, api.Code) {
	h, c := f.make("stream")
	return api.Stream(h), c
}
func (f *fake) StreamDestroy(s api.Stream) api.Code     { return f.free(uint64(s), "stream") }
func (f *fake) StreamQuery(s api.Stream) api.Code       { return first(f.use(uint64(s)), f.async) }
func (f *fake) StreamSynchronize(s api.Stream) api.Code { return first(f.use(uint64(s)), f.async) }
func (f *fake) StreamWaitEvent(s api.Stream, _ api.Event) api.Code {
	return f.use(uint64(s))
}
func (f *fake) StreamGetCtx(s api.Stream) (api.Context, api.Code) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.owner[uint64(s)]
	if !ok {
		return 0, api.InvalidHandle
	}
	return c, api.Success
}
func (f *fake) StreamIsCapturing(s api.Stream) (api.CaptureStatus, api.Code) {
	return f.capture, first(f.use(uint64(s)), f.capCode)
}
func (f *fake) EventCreate(api.EventFlag) (api.Event, api.Code) {
	h, c := f.make("event")
	return api.Event(h), c
}
func (f *fake) EventDestroy(e api.Event) api.Code { return f.free(uint64(e), "event") }
func (f *fake) EventRecord(e api.Event, s api.Stream) api.Code {
	return f.use(uint64(e), uint64(s))
}
func (f *fake) EventQuery(e api.Event) api.Code       { return first(f.use(uint64(e)), f.async) }
func (f *fake) EventSynchronize(e api.Event) api.Code { return first(f.use(uint64(e)), f.async) }
func (f *fake) EventElapsedTime(a, b api.Event) (float32, api.Code) {
	return 1.5, first(f.use(uint64(a), uint64(b)), f.async)
}
func (f *fake) ModuleLoadData(image, log []byte) (api.Module, api.Code) {
	f.image = append([]byte(nil), image...)
	copy(log, f.jitLog+"\x00")
	if f.loadCode != api.Success {
		return 0, f.loadCode
	}
	h, c := f.make("module")
	return api.Module(h), c
}
func (f *fake) ModuleUnload(m api.Module) api.Code { return f.free(uint64(m), "module") }
func (f *fake) ModuleGetFunction(m api.Module, name string) (api.Function, api.Code) {
	if c := f.use(uint64(m)); c != api.Success {
		return 0, c
	}
	if name != "kernel" {
		return 0, api.NotFound
	}
	h, c := f.make("function")
	return api.Function(h), c
}
func (f *fake) FuncGetAttribute(_ api.FunctionAttribute, fn api.Function) (int, api.Code) {
	return 32, f.use(uint64(fn))
}
func (f *fake) LaunchKernel(fn api.Function, l *api.Launch) api.Code {
	c := f.use(uint64(fn), uint64(l.Stream))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.launched, f.params = *l, append(f.params[:0], l.Params...)
	return c
}

func first(codes ...api.Code) api.Code {
	for _, c := range codes {
		if c != api.Success {
			return c
		}
	}
	return api.Success
}
