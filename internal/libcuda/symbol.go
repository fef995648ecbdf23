// SPDX-License-Identifier: Apache-2.0

package libcuda

import (
	"github.com/geforce-p2p/geforce-p2p/internal/dl"
)

// sym is a row of the symbol table.
type sym uint8

const (
	cuInit sym = iota
	cuDriverGetVersion
	cuGetErrorName
	cuGetErrorString
	cuDeviceGetCount
	cuDeviceGet
	cuDeviceGetName
	cuDeviceGetAttribute
	cuDeviceTotalMem
	cuDeviceGetUuidV2
	cuDeviceGetUuid
	cuDeviceGetPCIBusId
	cuDeviceGetByPCIBusId
	cuDeviceCanAccessPeer
	cuDeviceGetP2PAttribute
	cuDevicePrimaryCtxRetain
	cuDevicePrimaryCtxRelease
	cuDevicePrimaryCtxGetState
	cuCtxGetCurrent
	cuCtxSetCurrent
	cuCtxPushCurrent
	cuCtxPopCurrent
	cuCtxGetDevice
	cuCtxSynchronize
	cuCtxEnablePeerAccess
	cuCtxDisablePeerAccess
	cuMemGetInfo
	cuMemAlloc
	cuMemFree
	cuMemHostAlloc
	cuMemFreeHost
	cuMemHostRegister
	cuMemHostUnregister
	cuMemHostGetDevicePointer
	cuMemHostGetFlags
	cuMemGetAddressRange
	cuPointerGetAttribute
	cuMemcpyHtoD
	cuMemcpyDtoH
	cuMemcpyHtoDAsync
	cuMemcpyDtoHAsync
	cuMemcpyDtoDAsync
	cuMemcpyPeerAsync
	cuMemcpy2DAsync
	cuMemsetD8Async
	cuMemsetD32Async
	cuStreamCreate
	cuStreamDestroy
	cuStreamQuery
	cuStreamSynchronize
	cuStreamWaitEvent
	cuStreamGetCtx
	cuStreamIsCapturing
	cuStreamBeginCapture
	cuStreamEndCapture
	cuThreadExchangeStreamCaptureMode
	cuGraphDestroy
	cuEventCreate
	cuEventDestroy
	cuEventRecord
	cuEventQuery
	cuEventSynchronize
	cuEventElapsedTime
	cuModuleLoadDataEx
	cuModuleUnload
	cuModuleGetFunction
	cuFuncGetAttribute
	cuLaunchKernel
	symCount
)

// symbols is everything that is bound: the method of api.Driver that needs it,
// the exact exported name, and the CUDA version whose driver exported it first.
//
// The exported names matter: libcuda also exports cuMemAlloc, cuStreamDestroy
// and others without a suffix, with the argument sizes of 32-bit days, and
// calling those by mistake is no error but a wrong result.
var symbols = [symCount]struct{ method, name, since string }{
	cuInit:                            {"Init", "cuInit", "2.0"},
	cuDriverGetVersion:                {"DriverGetVersion", "cuDriverGetVersion", "2.2"},
	cuGetErrorName:                    {"GetErrorName", "cuGetErrorName", "6.0"},
	cuGetErrorString:                  {"GetErrorString", "cuGetErrorString", "6.0"},
	cuDeviceGetCount:                  {"DeviceGetCount", "cuDeviceGetCount", "2.0"},
	cuDeviceGet:                       {"DeviceGet", "cuDeviceGet", "2.0"},
	cuDeviceGetName:                   {"DeviceGetName", "cuDeviceGetName", "2.0"},
	cuDeviceGetAttribute:              {"DeviceGetAttribute", "cuDeviceGetAttribute", "2.0"},
	cuDeviceTotalMem:                  {"DeviceTotalMem", "cuDeviceTotalMem_v2", "3.2"},
	cuDeviceGetUuidV2:                 {"DeviceGetUuid", "cuDeviceGetUuid_v2", "11.4"},
	cuDeviceGetUuid:                   {"DeviceGetUuid", "cuDeviceGetUuid", "9.2"},
	cuDeviceGetPCIBusId:               {"DeviceGetPCIBusId", "cuDeviceGetPCIBusId", "4.1"},
	cuDeviceGetByPCIBusId:             {"DeviceGetByPCIBusId", "cuDeviceGetByPCIBusId", "4.1"},
	cuDeviceCanAccessPeer:             {"DeviceCanAccessPeer", "cuDeviceCanAccessPeer", "4.0"},
	cuDeviceGetP2PAttribute:           {"DeviceGetP2PAttribute", "cuDeviceGetP2PAttribute", "8.0"},
	cuDevicePrimaryCtxRetain:          {"DevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", "7.0"},
	cuDevicePrimaryCtxRelease:         {"DevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2", "11.0"},
	cuDevicePrimaryCtxGetState:        {"DevicePrimaryCtxGetState", "cuDevicePrimaryCtxGetState", "7.0"},
	cuCtxGetCurrent:                   {"CtxGetCurrent", "cuCtxGetCurrent", "4.0"},
	cuCtxSetCurrent:                   {"CtxSetCurrent", "cuCtxSetCurrent", "4.0"},
	cuCtxPushCurrent:                  {"CtxPushCurrent", "cuCtxPushCurrent_v2", "4.0"},
	cuCtxPopCurrent:                   {"CtxPopCurrent", "cuCtxPopCurrent_v2", "4.0"},
	cuCtxGetDevice:                    {"CtxGetDevice", "cuCtxGetDevice", "2.0"},
	cuCtxSynchronize:                  {"CtxSynchronize", "cuCtxSynchronize", "2.0"},
	cuCtxEnablePeerAccess:             {"CtxEnablePeerAccess", "cuCtxEnablePeerAccess", "4.0"},
	cuCtxDisablePeerAccess:            {"CtxDisablePeerAccess", "cuCtxDisablePeerAccess", "4.0"},
	cuMemGetInfo:                      {"MemGetInfo", "cuMemGetInfo_v2", "3.2"},
	cuMemAlloc:                        {"MemAlloc", "cuMemAlloc_v2", "3.2"},
	cuMemFree:                         {"MemFree", "cuMemFree_v2", "3.2"},
	cuMemHostAlloc:                    {"MemHostAlloc", "cuMemHostAlloc", "2.2"},
	cuMemFreeHost:                     {"MemFreeHost", "cuMemFreeHost", "2.0"},
	cuMemHostRegister:                 {"MemHostRegister", "cuMemHostRegister_v2", "6.5"},
	cuMemHostUnregister:               {"MemHostUnregister", "cuMemHostUnregister", "4.0"},
	cuMemHostGetDevicePointer:         {"MemHostGetDevicePointer", "cuMemHostGetDevicePointer_v2", "3.2"},
	cuMemHostGetFlags:                 {"MemHostGetFlags", "cuMemHostGetFlags", "2.3"},
	cuMemGetAddressRange:              {"MemGetAddressRange", "cuMemGetAddressRange_v2", "3.2"},
	cuPointerGetAttribute:             {"PointerGetAttribute", "cuPointerGetAttribute", "4.0"},
	cuMemcpyHtoD:                      {"MemcpyHtoD", "cuMemcpyHtoD_v2", "3.2"},
	cuMemcpyDtoH:                      {"MemcpyDtoH", "cuMemcpyDtoH_v2", "3.2"},
	cuMemcpyHtoDAsync:                 {"MemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2", "3.2"},
	cuMemcpyDtoHAsync:                 {"MemcpyDtoHAsync", "cuMemcpyDtoHAsync_v2", "3.2"},
	cuMemcpyDtoDAsync:                 {"MemcpyDtoDAsync", "cuMemcpyDtoDAsync_v2", "3.2"},
	cuMemcpyPeerAsync:                 {"MemcpyPeerAsync", "cuMemcpyPeerAsync", "4.0"},
	cuMemcpy2DAsync:                   {"Memcpy2DAsync", "cuMemcpy2DAsync_v2", "3.2"},
	cuMemsetD8Async:                   {"MemsetD8Async", "cuMemsetD8Async", "3.2"},
	cuMemsetD32Async:                  {"MemsetD32Async", "cuMemsetD32Async", "3.2"},
	cuStreamCreate:                    {"StreamCreate", "cuStreamCreate", "2.0"},
	cuStreamDestroy:                   {"StreamDestroy", "cuStreamDestroy_v2", "4.0"},
	cuStreamQuery:                     {"StreamQuery", "cuStreamQuery", "2.0"},
	cuStreamSynchronize:               {"StreamSynchronize", "cuStreamSynchronize", "2.0"},
	cuStreamWaitEvent:                 {"StreamWaitEvent", "cuStreamWaitEvent", "3.2"},
	cuStreamGetCtx:                    {"StreamGetCtx", "cuStreamGetCtx", "9.2"},
	cuStreamIsCapturing:               {"StreamIsCapturing", "cuStreamIsCapturing", "10.0"},
	cuStreamBeginCapture:              {"StreamBeginCapture", "cuStreamBeginCapture_v2", "10.1"},
	cuStreamEndCapture:                {"StreamEndCapture", "cuStreamEndCapture", "10.0"},
	cuThreadExchangeStreamCaptureMode: {"ThreadExchangeStreamCaptureMode", "cuThreadExchangeStreamCaptureMode", "10.1"},
	cuGraphDestroy:                    {"GraphDestroy", "cuGraphDestroy", "10.0"},
	cuEventCreate:                     {"EventCreate", "cuEventCreate", "2.0"},
	cuEventDestroy:                    {"EventDestroy", "cuEventDestroy_v2", "4.0"},
	cuEventRecord:                     {"EventRecord", "cuEventRecord", "2.0"},
	cuEventQuery:                      {"EventQuery", "cuEventQuery", "2.0"},
	cuEventSynchronize:                {"EventSynchronize", "cuEventSynchronize", "2.0"},
	cuEventElapsedTime:                {"EventElapsedTime", "cuEventElapsedTime", "2.0"},
	cuModuleLoadDataEx:                {"ModuleLoadData", "cuModuleLoadDataEx", "2.1"},
	cuModuleUnload:                    {"ModuleUnload", "cuModuleUnload", "2.0"},
	cuModuleGetFunction:               {"ModuleGetFunction", "cuModuleGetFunction", "2.0"},
	cuFuncGetAttribute:                {"FuncGetAttribute", "cuFuncGetAttribute", "2.2"},
	cuLaunchKernel:                    {"LaunchKernel", "cuLaunchKernel", "4.0"},
}

// SymbolOf gives the exported name that a method of api.Driver calls, and ""
// for a method that is no driver call. Where a method takes the first of two,
// it is the older one: the driver that lacks it lacks both.
func SymbolOf(method string) string {
	name := ""
	for i := range symbols {
		if symbols[i].method == method {
			name = symbols[i].name
		}
	}
	return name
}

// Introduced gives the CUDA version whose driver exported a symbol first, as
// "11.0"; ok is false for a symbol that is not bound.
func Introduced(symbol string) (version string, ok bool) {
	for i := range symbols {
		if symbols[i].name == symbol {
			return symbols[i].since, true
		}
	}
	return "", false
}

// missing marks a symbol that was looked for and is not there. No function can
// be at this address.
const missing = 1

// proc finds the function of a symbol, asking the loader on first use only; 0
// if the library lacks it.
func (d *Driver) proc(s sym) dl.Proc {
	if p := d.procs[s].Load(); p > missing {
		return dl.Proc(p)
	}
	return d.resolve(s)
}

func (d *Driver) resolve(s sym) dl.Proc {
	if d.procs[s].Load() == missing {
		return 0
	}
	p, err := d.lib.Lookup(symbols[s].name)
	if err != nil {
		d.procs[s].Store(missing)
		return 0
	}
	d.procs[s].Store(uintptr(p))
	return p
}
