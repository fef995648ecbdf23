// SPDX-License-Identifier: Apache-2.0

// Package api is the seam between the library and a CUDA driver.
//
// Everything above it (packages cuda, ptx, gp, probe) speaks to a Driver and
// nothing else, so that the real libcuda, the simulator and the tap are
// interchangeable.
//
// Rules that hold for every signature here, and why:
//
//   - A host address is an unsafe.Pointer and a device address is a Ptr. No
//     uintptr appears: the go:uintptrescapes pragma is ignored for calls
//     through an interface, so a stack address would dangle when the stack
//     moves. A test parses this package for it.
//   - Handles are distinct uint64 types, never pointers: CUDA's own special
//     handles (stream 1 and 2) are not addresses, and the garbage collector
//     kills a process in which such a value is held as a pointer.
//   - Results come back by value, with the driver's result code last.
//   - A method is one driver call. Nothing is retried, cached or checked here.
//
// Calls that need a current context take it from the calling OS thread, as the
// driver does. The caller has locked its goroutine to the thread.
package api

import "unsafe"

// Ptr is a device address (CUdeviceptr). Mapped host memory has one too.
type Ptr uint64

// Device is a CUdevice: an ordinal of this process, after CUDA_VISIBLE_DEVICES.
type Device int32

// Context is a CUcontext.
type Context uint64

// Stream is a CUstream. The values 0, 1 and 2 are the driver's special
// streams: see StreamLegacy and StreamPerThread.
type Stream uint64

// Event is a CUevent.
type Event uint64

// Module is a CUmodule.
type Module uint64

// Function is a CUfunction.
type Function uint64

// Graph is a CUgraph. It is only ever destroyed: the library does not build
// graphs, it must know how to leave one alone that a caller is capturing.
type Graph uint64

// The driver's special stream handles.
const (
	StreamNull      Stream = 0 // the legacy default stream of the current context
	StreamLegacy    Stream = 1 // the same, by an explicit handle
	StreamPerThread Stream = 2 // the per-thread default stream
)

// UUID is a device's CUuuid, in the driver's byte order.
type UUID [16]byte

// Copy2D mirrors CUDA_MEMCPY2D for the two memory kinds in use. Exactly one of
// SrcHost and SrcDevice is set, and exactly one of DstHost and DstDevice.
type Copy2D struct {
	SrcHost   unsafe.Pointer
	SrcDevice Ptr
	SrcPitch  uint64
	DstHost   unsafe.Pointer
	DstDevice Ptr
	DstPitch  uint64
	Width     uint64 // bytes a row
	Height    uint64 // rows
}

// Launch is what cuLaunchKernel takes. Params is the packed parameter buffer
// (CU_LAUNCH_PARAM_BUFFER_POINTER): each parameter at its natural alignment,
// little-endian, as the kernel's ABI lays them out. It is read before the call
// returns.
type Launch struct {
	Grid, Block [3]uint32
	Shared      uint32 // dynamic shared memory, bytes
	Stream      Stream
	Params      []byte
}

// Driver is the CUDA driver API, a method a call. The comment of each method
// names the exported symbol where it is not "cu" + the method's name.
//
// A symbol that the loaded library lacks is answered with CodeSymbolMissing by
// the one method that needs it.
type Driver interface {
	// Host is the machine the driver runs on: its files, clock and memory policy.
	Host() Host

	Init(flags uint32) Code
	DriverGetVersion() (int, Code)
	GetErrorName(c Code) string   // "" if the driver does not know the code
	GetErrorString(c Code) string // likewise

	DeviceGetCount() (int, Code)
	DeviceGet(ordinal int) (Device, Code)
	DeviceGetName(d Device) (string, Code)
	DeviceGetAttribute(a DeviceAttribute, d Device) (int, Code)
	DeviceTotalMem(d Device) (uint64, Code) // cuDeviceTotalMem_v2
	DeviceGetUuid(d Device) (UUID, Code)    // cuDeviceGetUuid_v2, else cuDeviceGetUuid
	DeviceGetPCIBusId(d Device) (string, Code)
	DeviceGetByPCIBusId(id string) (Device, Code)
	DeviceCanAccessPeer(d, peer Device) (bool, Code)
	DeviceGetP2PAttribute(a P2PAttribute, src, dst Device) (int, Code)

	DevicePrimaryCtxRetain(d Device) (Context, Code)
	DevicePrimaryCtxRelease(d Device) Code // _v2
	DevicePrimaryCtxGetState(d Device) (flags uint32, active bool, c Code)
	CtxGetCurrent() (Context, Code)
	CtxSetCurrent(c Context) Code
	CtxPushCurrent(c Context) Code      // _v2
	CtxPopCurrent() (Context, Code)     // _v2
	CtxGetDevice() (Device, Code)       // of the current context
	CtxSynchronize() Code               // the current context
	CtxEnablePeerAccess(c Context) Code // current context -> c, one way; flags 0
	CtxDisablePeerAccess(c Context) Code

	MemGetInfo() (free, total uint64, c Code)                          // _v2
	MemAlloc(n uint64) (Ptr, Code)                                     // _v2
	MemFree(p Ptr) Code                                                // _v2
	MemHostAlloc(n uint64, flags HostAllocFlag) (unsafe.Pointer, Code) //
	MemFreeHost(p unsafe.Pointer) Code
	MemHostRegister(p unsafe.Pointer, n uint64, flags HostRegisterFlag) Code // _v2
	MemHostUnregister(p unsafe.Pointer) Code
	MemHostGetDevicePointer(p unsafe.Pointer) (Ptr, Code) // _v2, flags 0
	MemHostGetFlags(p unsafe.Pointer) (HostAllocFlag, Code)
	MemGetAddressRange(p Ptr) (base Ptr, n uint64, c Code) // _v2
	// PointerGetAttribute asks one attribute of at most eight bytes, zero-extended.
	PointerGetAttribute(a PointerAttribute, p Ptr) (uint64, Code)

	MemcpyHtoD(dst Ptr, src unsafe.Pointer, n uint64) Code                // _v2, synchronous
	MemcpyDtoH(dst unsafe.Pointer, src Ptr, n uint64) Code                // _v2, synchronous
	MemcpyHtoDAsync(dst Ptr, src unsafe.Pointer, n uint64, s Stream) Code // _v2
	MemcpyDtoHAsync(dst unsafe.Pointer, src Ptr, n uint64, s Stream) Code // _v2
	MemcpyDtoDAsync(dst, src Ptr, n uint64, s Stream) Code                // _v2
	MemcpyPeerAsync(dst Ptr, dctx Context, src Ptr, sctx Context, n uint64, s Stream) Code
	Memcpy2DAsync(c *Copy2D, s Stream) Code // _v2
	MemsetD8Async(dst Ptr, v byte, n uint64, s Stream) Code
	MemsetD32Async(dst Ptr, v uint32, n uint64, s Stream) Code // n words

	StreamCreate(flags StreamFlag) (Stream, Code)
	StreamDestroy(s Stream) Code // _v2
	StreamQuery(s Stream) Code
	StreamSynchronize(s Stream) Code
	StreamWaitEvent(s Stream, e Event) Code // flags 0
	StreamGetCtx(s Stream) (Context, Code)
	StreamIsCapturing(s Stream) (CaptureStatus, Code)
	StreamBeginCapture(s Stream, m CaptureMode) Code // _v2
	StreamEndCapture(s Stream) (Graph, Code)
	ThreadExchangeStreamCaptureMode(m CaptureMode) (old CaptureMode, c Code)
	GraphDestroy(g Graph) Code

	EventCreate(flags EventFlag) (Event, Code)
	EventDestroy(e Event) Code // _v2
	EventRecord(e Event, s Stream) Code
	EventQuery(e Event) Code
	EventSynchronize(e Event) Code
	EventElapsedTime(start, end Event) (ms float32, c Code)

	// ModuleLoadData loads a CUBIN, or PTX text with its terminating NUL, into
	// the current context (cuModuleLoadDataEx). errorLog, which may be empty,
	// receives the JIT's error log, NUL-terminated.
	ModuleLoadData(image []byte, errorLog []byte) (Module, Code)
	ModuleUnload(m Module) Code
	ModuleGetFunction(m Module, name string) (Function, Code)
	FuncGetAttribute(a FunctionAttribute, f Function) (int, Code)
	LaunchKernel(f Function, l *Launch) Code
}
