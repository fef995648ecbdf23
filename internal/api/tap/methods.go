// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// The methods that are counted: every one of api.Driver but Host, which calls
// no driver.
const (
	mInit method = iota
	mDriverGetVersion
	mGetErrorName
	mGetErrorString
	mDeviceGetCount
	mDeviceGet
	mDeviceGetName
	mDeviceGetAttribute
	mDeviceTotalMem
	mDeviceGetUuid
	mDeviceGetPCIBusId
	mDeviceGetByPCIBusId
	mDeviceCanAccessPeer
	mDeviceGetP2PAttribute
	mDevicePrimaryCtxRetain
	mDevicePrimaryCtxRelease
	mDevicePrimaryCtxGetState
	mCtxGetCurrent
	mCtxSetCurrent
	mCtxPushCurrent
	mCtxPopCurrent
	mCtxGetDevice
	mCtxSynchronize
	mCtxEnablePeerAccess
	mCtxDisablePeerAccess
	mMemGetInfo
	mMemAlloc
	mMemFree
	mMemHostAlloc
	mMemFreeHost
	mMemHostRegister
	mMemHostUnregister
	mMemHostGetDevicePointer
	mMemHostGetFlags
	mMemGetAddressRange
	mPointerGetAttribute
	mMemcpyHtoD
	mMemcpyDtoH
	mMemcpyHtoDAsync
	mMemcpyDtoHAsync
	mMemcpyDtoDAsync
	mMemcpyPeerAsync
	mMemcpy2DAsync
	mMemsetD8Async
	mMemsetD32Async
	mStreamCreate
	mStreamDestroy
	mStreamQuery
	mStreamSynchronize
	mStreamWaitEvent
	mStreamGetCtx
	mStreamIsCapturing
	mStreamBeginCapture
	mStreamEndCapture
	mThreadExchangeStreamCaptureMode
	mGraphDestroy
	mEventCreate
	mEventDestroy
	mEventRecord
	mEventQuery
	mEventSynchronize
	mEventElapsedTime
	mModuleLoadData
	mModuleUnload
	mModuleGetFunction
	mFuncGetAttribute
	mLaunchKernel
	methods
)

var methodNames = [methods]string{
	mInit:                            "Init",
	mDriverGetVersion:                "DriverGetVersion",
	mGetErrorName:                    "GetErrorName",
	mGetErrorString:                  "GetErrorString",
	mDeviceGetCount:                  "DeviceGetCount",
	mDeviceGet:                       "DeviceGet",
	mDeviceGetName:                   "DeviceGetName",
	mDeviceGetAttribute:              "DeviceGetAttribute",
	mDeviceTotalMem:                  "DeviceTotalMem",
	mDeviceGetUuid:                   "DeviceGetUuid",
	mDeviceGetPCIBusId:               "DeviceGetPCIBusId",
	mDeviceGetByPCIBusId:             "DeviceGetByPCIBusId",
	mDeviceCanAccessPeer:             "DeviceCanAccessPeer",
	mDeviceGetP2PAttribute:           "DeviceGetP2PAttribute",
	mDevicePrimaryCtxRetain:          "DevicePrimaryCtxRetain",
	mDevicePrimaryCtxRelease:         "DevicePrimaryCtxRelease",
	mDevicePrimaryCtxGetState:        "DevicePrimaryCtxGetState",
	mCtxGetCurrent:                   "CtxGetCurrent",
	mCtxSetCurrent:                   "CtxSetCurrent",
	mCtxPushCurrent:                  "CtxPushCurrent",
	mCtxPopCurrent:                   "CtxPopCurrent",
	mCtxGetDevice:                    "CtxGetDevice",
	mCtxSynchronize:                  "CtxSynchronize",
	mCtxEnablePeerAccess:             "CtxEnablePeerAccess",
	mCtxDisablePeerAccess:            "CtxDisablePeerAccess",
	mMemGetInfo:                      "MemGetInfo",
	mMemAlloc:                        "MemAlloc",
	mMemFree:                         "MemFree",
	mMemHostAlloc:                    "MemHostAlloc",
	mMemFreeHost:                     "MemFreeHost",
	mMemHostRegister:                 "MemHostRegister",
	mMemHostUnregister:               "MemHostUnregister",
	mMemHostGetDevicePointer:         "MemHostGetDevicePointer",
	mMemHostGetFlags:                 "MemHostGetFlags",
	mMemGetAddressRange:              "MemGetAddressRange",
	mPointerGetAttribute:             "PointerGetAttribute",
	mMemcpyHtoD:                      "MemcpyHtoD",
	mMemcpyDtoH:                      "MemcpyDtoH",
	mMemcpyHtoDAsync:                 "MemcpyHtoDAsync",
	mMemcpyDtoHAsync:                 "MemcpyDtoHAsync",
	mMemcpyDtoDAsync:                 "MemcpyDtoDAsync",
	mMemcpyPeerAsync:                 "MemcpyPeerAsync",
	mMemcpy2DAsync:                   "Memcpy2DAsync",
	mMemsetD8Async:                   "MemsetD8Async",
	mMemsetD32Async:                  "MemsetD32Async",
	mStreamCreate:                    "StreamCreate",
	mStreamDestroy:                   "StreamDestroy",
	mStreamQuery:                     "StreamQuery",
	mStreamSynchronize:               "StreamSynchronize",
	mStreamWaitEvent:                 "StreamWaitEvent",
	mStreamGetCtx:                    "StreamGetCtx",
	mStreamIsCapturing:               "StreamIsCapturing",
	mStreamBeginCapture:              "StreamBeginCapture",
	mStreamEndCapture:                "StreamEndCapture",
	mThreadExchangeStreamCaptureMode: "ThreadExchangeStreamCaptureMode",
	mGraphDestroy:                    "GraphDestroy",
	mEventCreate:                     "EventCreate",
	mEventDestroy:                    "EventDestroy",
	mEventRecord:                     "EventRecord",
	mEventQuery:                      "EventQuery",
	mEventSynchronize:                "EventSynchronize",
	mEventElapsedTime:                "EventElapsedTime",
	mModuleLoadData:                  "ModuleLoadData",
	mModuleUnload:                    "ModuleUnload",
	mModuleGetFunction:               "ModuleGetFunction",
	mFuncGetAttribute:                "FuncGetAttribute",
	mLaunchKernel:                    "LaunchKernel",
}

// Host is the host of the driver behind the tap.
func (t *Tap) Host() api.Host { return t.next.Host() }

func (t *Tap) Init(flags uint32) api.Code {
	if c, stop := t.enter(mInit); stop {
		return c
	}
	return t.next.Init(flags)
}

func (t *Tap) DriverGetVersion() (int, api.Code) {
	if c, stop := t.enter(mDriverGetVersion); stop {
		return 0, c
	}
	return t.next.DriverGetVersion()
}

func (t *Tap) GetErrorName(c api.Code) string {
	t.enter(mGetErrorName)
	return t.next.GetErrorName(c)
}

func (t *Tap) GetErrorString(c api.Code) string {
	t.enter(mGetErrorString)
	return t.next.GetErrorString(c)
}

func (t *Tap) DeviceGetCount() (int, api.Code) {
	if c, stop := t.enter(mDeviceGetCount); stop {
		return 0, c
	}
	return t.next.DeviceGetCount()
}

func (t *Tap) DeviceGet(ordinal int) (api.Device, api.Code) {
	if c, stop := t.enter(mDeviceGet); stop {
		return 0, c
	}
	return t.next.DeviceGet(ordinal)
}

func (t *Tap) DeviceGetName(d api.Device) (string, api.Code) {
	if c, stop := t.enter(mDeviceGetName); stop {
		return "", c
	}
	return t.next.DeviceGetName(d)
}

func (t *Tap) DeviceGetAttribute(a api.DeviceAttribute, d api.Device) (int, api.Code) {
	if c, stop := t.enter(mDeviceGetAttribute); stop {
		return 0, c
	}
	return t.next.DeviceGetAttribute(a, d)
}

func (t *Tap) DeviceTotalMem(d api.Device) (uint64, api.Code) {
	if c, stop := t.enter(mDeviceTotalMem); stop {
		return 0, c
	}
	return t.next.DeviceTotalMem(d)
}

func (t *Tap) DeviceGetUuid(d api.Device) (api.UUID, api.Code) {
	if c, stop := t.enter(mDeviceGetUuid); stop {
		return api.UUID{}, c
	}
	return t.next.DeviceGetUuid(d)
}

func (t *Tap) DeviceGetPCIBusId(d api.Device) (string, api.Code) {
	if c, stop := t.enter(mDeviceGetPCIBusId); stop {
		return "", c
	}
	return t.next.DeviceGetPCIBusId(d)
}

func (t *Tap) DeviceGetByPCIBusId(id string) (api.Device, api.Code) {
	if c, stop := t.enter(mDeviceGetByPCIBusId); stop {
		return 0, c
	}
	return t.next.DeviceGetByPCIBusId(id)
}

func (t *Tap) DeviceCanAccessPeer(d, peer api.Device) (bool, api.Code) {
	if c, stop := t.enter(mDeviceCanAccessPeer); stop {
		return false, c
	}
	return t.next.DeviceCanAccessPeer(d, peer)
}

func (t *Tap) DeviceGetP2PAttribute(a api.P2PAttribute, src, dst api.Device) (int, api.Code) {
	if c, stop := t.enter(mDeviceGetP2PAttribute); stop {
		return 0, c
	}
	return t.next.DeviceGetP2PAttribute(a, src, dst)
}

func (t *Tap) DevicePrimaryCtxRetain(d api.Device) (api.Context, api.Code) {
	if c, stop := t.enter(mDevicePrimaryCtxRetain); stop {
		return 0, c
	}
	return t.next.DevicePrimaryCtxRetain(d)
}

func (t *Tap) DevicePrimaryCtxRelease(d api.Device) api.Code {
	if c, stop := t.enter(mDevicePrimaryCtxRelease); stop {
		return c
	}
	return t.next.DevicePrimaryCtxRelease(d)
}

func (t *Tap) DevicePrimaryCtxGetState(d api.Device) (flags uint32, active bool, c api.Code) {
	if c, stop := t.enter(mDevicePrimaryCtxGetState); stop {
		return 0, false, c
	}
	return t.next.DevicePrimaryCtxGetState(d)
}

func (t *Tap) CtxGetCurrent() (api.Context, api.Code) {
	if c, stop := t.enter(mCtxGetCurrent); stop {
		return 0, c
	}
	return t.next.CtxGetCurrent()
}

func (t *Tap) CtxSetCurrent(c api.Context) api.Code {
	if c, stop := t.enter(mCtxSetCurrent); stop {
		return c
	}
	return t.next.CtxSetCurrent(c)
}

func (t *Tap) CtxPushCurrent(c api.Context) api.Code {
	if c, stop := t.enter(mCtxPushCurrent); stop {
		return c
	}
	return t.next.CtxPushCurrent(c)
}

func (t *Tap) CtxPopCurrent() (api.Context, api.Code) {
	if c, stop := t.enter(mCtxPopCurrent); stop {
		return 0, c
	}
	return t.next.CtxPopCurrent()
}

func (t *Tap) CtxGetDevice() (api.Device, api.Code) {
	if c, stop := t.enter(mCtxGetDevice); stop {
		return 0, c
	}
	return t.next.CtxGetDevice()
}

func (t *Tap) CtxSynchronize() api.Code {
	if c, stop := t.enter(mCtxSynchronize); stop {
		return c
	}
	return t.next.CtxSynchronize()
}

func (t *Tap) CtxEnablePeerAccess(c api.Context) api.Code {
	if c, stop := t.enter(mCtxEnablePeerAccess); stop {
		return c
	}
	return t.next.CtxEnablePeerAccess(c)
}

func (t *Tap) CtxDisablePeerAccess(c api.Context) api.Code {
	if c, stop := t.enter(mCtxDisablePeerAccess); stop {
		return c
	}
	return t.next.CtxDisablePeerAccess(c)
}

func (t *Tap) MemGetInfo() (free, total uint64, c api.Code) {
	if c, stop := t.enter(mMemGetInfo); stop {
		return 0, 0, c
	}
	return t.next.MemGetInfo()
}

func (t *Tap) MemAlloc(n uint64) (api.Ptr, api.Code) {
	if c, stop := t.enter(mMemAlloc); stop {
		return 0, c
	}
	return t.next.MemAlloc(n)
}

func (t *Tap) MemFree(p api.Ptr) api.Code {
	if c, stop := t.enter(mMemFree); stop {
		return c
	}
	return t.next.MemFree(p)
}

func (t *Tap) MemHostAlloc(n uint64, flags api.HostAllocFlag) (unsafe.Pointer, api.Code) {
	if c, stop := t.enter(mMemHostAlloc); stop {
		return nil, c
	}
	return t.next.MemHostAlloc(n, flags)
}

func (t *Tap) MemFreeHost(p unsafe.Pointer) api.Code {
	if c, stop := t.enter(mMemFreeHost); stop {
		return c
	}
	return t.next.MemFreeHost(p)
}

func (t *Tap) MemHostRegister(p unsafe.Pointer, n uint64, flags api.HostRegisterFlag) api.Code {
	if c, stop := t.enter(mMemHostRegister); stop {
		return c
	}
	return t.next.MemHostRegister(p, n, flags)
}

func (t *Tap) MemHostUnregister(p unsafe.Pointer) api.Code {
	if c, stop := t.enter(mMemHostUnregister); stop {
		return c
	}
	return t.next.MemHostUnregister(p)
}

func (t *Tap) MemHostGetDevicePointer(p unsafe.Pointer) (api.Ptr, api.Code) {
	if c, stop := t.enter(mMemHostGetDevicePointer); stop {
		return 0, c
	}
	return t.next.MemHostGetDevicePointer(p)
}

func (t *Tap) MemHostGetFlags(p unsafe.Pointer) (api.HostAllocFlag, api.Code) {
	if c, stop := t.enter(mMemHostGetFlags); stop {
		return 0, c
	}
	return t.next.MemHostGetFlags(p)
}

func (t *Tap) MemGetAddressRange(p api.Ptr) (base api.Ptr, n uint64, c api.Code) {
	if c, stop := t.enter(mMemGetAddressRange); stop {
		return 0, 0, c
	}
	return t.next.MemGetAddressRange(p)
}

func (t *Tap) PointerGetAttribute(a api.PointerAttribute, p api.Ptr) (uint64, api.Code) {
	if c, stop := t.enter(mPointerGetAttribute); stop {
		return 0, c
	}
	return t.next.PointerGetAttribute(a, p)
}

func (t *Tap) MemcpyHtoD(dst api.Ptr, src unsafe.Pointer, n uint64) api.Code {
	if c, stop := t.enter(mMemcpyHtoD); stop {
		return c
	}
	return t.next.MemcpyHtoD(dst, src, n)
}

func (t *Tap) MemcpyDtoH(dst unsafe.Pointer, src api.Ptr, n uint64) api.Code {
	if c, stop := t.enter(mMemcpyDtoH); stop {
		return c
	}
	return t.next.MemcpyDtoH(dst, src, n)
}

func (t *Tap) MemcpyHtoDAsync(dst api.Ptr, src unsafe.Pointer, n uint64, s api.Stream) api.Code {
	if c, stop := t.enter(mMemcpyHtoDAsync); stop {
		return c
	}
	return t.next.MemcpyHtoDAsync(dst, src, n, s)
}

func (t *Tap) MemcpyDtoHAsync(dst unsafe.Pointer, src api.Ptr, n uint64, s api.Stream) api.Code {
	if c, stop := t.enter(mMemcpyDtoHAsync); stop {
		return c
	}
	return t.next.MemcpyDtoHAsync(dst, src, n, s)
}

func (t *Tap) MemcpyDtoDAsync(dst, src api.Ptr, n uint64, s api.Stream) api.Code {
	if c, stop := t.enter(mMemcpyDtoDAsync); stop {
		return c
	}
	return t.next.MemcpyDtoDAsync(dst, src, n, s)
}

func (t *Tap) MemcpyPeerAsync(dst api.Ptr, dctx api.Context, src api.Ptr, sctx api.Context, n uint64, s api.Stream) api.Code {
	if c, stop := t.enter(mMemcpyPeerAsync); stop {
		return c
	}
	return t.next.MemcpyPeerAsync(dst, dctx, src, sctx, n, s)
}

func (t *Tap) Memcpy2DAsync(c *api.Copy2D, s api.Stream) api.Code {
	if c, stop := t.enter(mMemcpy2DAsync); stop {
		return c
	}
	return t.next.Memcpy2DAsync(c, s)
}

func (t *Tap) MemsetD8Async(dst api.Ptr, v byte, n uint64, s api.Stream) api.Code {
	if c, stop := t.enter(mMemsetD8Async); stop {
		return c
	}
	return t.next.MemsetD8Async(dst, v, n, s)
}

func (t *Tap) MemsetD32Async(dst api.Ptr, v uint32, n uint64, s api.Stream) api.Code {
	if c, stop := t.enter(mMemsetD32Async); stop {
		return c
	}
	return t.next.MemsetD32Async(dst, v, n, s)
}

func (t *Tap) StreamCreate(flags api.StreamFlag) (api.Stream, api.Code) {
	if c, stop := t.enter(mStreamCreate); stop {
		return 0, c
	}
	return t.next.StreamCreate(flags)
}

func (t *Tap) StreamDestroy(s api.Stream) api.Code {
	if c, stop := t.enter(mStreamDestroy); stop {
		return c
	}
	return t.next.StreamDestroy(s)
}

func (t *Tap) StreamQuery(s api.Stream) api.Code {
	if c, stop := t.enter(mStreamQuery); stop {
		return c
	}
	return t.next.StreamQuery(s)
}

func (t *Tap) StreamSynchronize(s api.Stream) api.Code {
	if c, stop := t.enter(mStreamSynchronize); stop {
		return c
	}
	return t.next.StreamSynchronize(s)
}

func (t *Tap) StreamWaitEvent(s api.Stream, e api.Event) api.Code {
	if c, stop := t.enter(mStreamWaitEvent); stop {
		return c
	}
	return t.next.StreamWaitEvent(s, e)
}

func (t *Tap) StreamGetCtx(s api.Stream) (api.Context, api.Code) {
	if c, stop := t.enter(mStreamGetCtx); stop {
		return 0, c
	}
	return t.next.StreamGetCtx(s)
}

func (t *Tap) StreamIsCapturing(s api.Stream) (api.CaptureStatus, api.Code) {
	if c, stop := t.enter(mStreamIsCapturing); stop {
		return 0, c
	}
	return t.next.StreamIsCapturing(s)
}

func (t *Tap) StreamBeginCapture(s api.Stream, m api.CaptureMode) api.Code {
	if c, stop := t.enter(mStreamBeginCapture); stop {
		return c
	}
	return t.next.StreamBeginCapture(s, m)
}

func (t *Tap) StreamEndCapture(s api.Stream) (api.Graph, api.Code) {
	if c, stop := t.enter(mStreamEndCapture); stop {
		return 0, c
	}
	return t.next.StreamEndCapture(s)
}

func (t *Tap) ThreadExchangeStreamCaptureMode(m api.CaptureMode) (old api.CaptureMode, c api.Code) {
	if c, stop := t.enter(mThreadExchangeStreamCaptureMode); stop {
		return 0, c
	}
	return t.next.ThreadExchangeStreamCaptureMode(m)
}

func (t *Tap) GraphDestroy(g api.Graph) api.Code {
	if c, stop := t.enter(mGraphDestroy); stop {
		return c
	}
	return t.next.GraphDestroy(g)
}

func (t *Tap) EventCreate(flags api.EventFlag) (api.Event, api.Code) {
	if c, stop := t.enter(mEventCreate); stop {
		return 0, c
	}
	return t.next.EventCreate(flags)
}

func (t *Tap) EventDestroy(e api.Event) api.Code {
	if c, stop := t.enter(mEventDestroy); stop {
		return c
	}
	return t.next.EventDestroy(e)
}

func (t *Tap) EventRecord(e api.Event, s api.Stream) api.Code {
	if c, stop := t.enter(mEventRecord); stop {
		return c
	}
	return t.next.EventRecord(e, s)
}

func (t *Tap) EventQuery(e api.Event) api.Code {
	if c, stop := t.enter(mEventQuery); stop {
		return c
	}
	return t.next.EventQuery(e)
}

func (t *Tap) EventSynchronize(e api.Event) api.Code {
	if c, stop := t.enter(mEventSynchronize); stop {
		return c
	}
	return t.next.EventSynchronize(e)
}

func (t *Tap) EventElapsedTime(start, end api.Event) (ms float32, c api.Code) {
	if c, stop := t.enter(mEventElapsedTime); stop {
		return 0, c
	}
	return t.next.EventElapsedTime(start, end)
}

func (t *Tap) ModuleLoadData(image []byte, errorLog []byte) (api.Module, api.Code) {
	if c, stop := t.enter(mModuleLoadData); stop {
		return 0, c
	}
	return t.next.ModuleLoadData(image, errorLog)
}

func (t *Tap) ModuleUnload(m api.Module) api.Code {
	if c, stop := t.enter(mModuleUnload); stop {
		return c
	}
	return t.next.ModuleUnload(m)
}

func (t *Tap) ModuleGetFunction(m api.Module, name string) (api.Function, api.Code) {
	if c, stop := t.enter(mModuleGetFunction); stop {
		return 0, c
	}
	return t.next.ModuleGetFunction(m, name)
}

func (t *Tap) FuncGetAttribute(a api.FunctionAttribute, f api.Function) (int, api.Code) {
	if c, stop := t.enter(mFuncGetAttribute); stop {
		return 0, c
	}
	return t.next.FuncGetAttribute(a, f)
}

func (t *Tap) LaunchKernel(f api.Function, l *api.Launch) api.Code {
	if c, stop := t.enter(mLaunchKernel); stop {
		return c
	}
	return t.next.LaunchKernel(f, l)
}
