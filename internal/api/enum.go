// SPDX-License-Identifier: Apache-2.0

package api

// DeviceAttribute is a CUdevice_attribute.
type DeviceAttribute int32

// The attributes in use, with cuda.h's values.
const (
	AttrMaxThreadsPerBlock     DeviceAttribute = 1
	AttrMaxPitch               DeviceAttribute = 11
	AttrMultiprocessorCount    DeviceAttribute = 16
	AttrKernelExecTimeout      DeviceAttribute = 17
	AttrIntegrated             DeviceAttribute = 18
	AttrCanMapHostMemory       DeviceAttribute = 19
	AttrComputeMode            DeviceAttribute = 20
	AttrConcurrentKernels      DeviceAttribute = 31
	AttrPCIBusID               DeviceAttribute = 33
	AttrPCIDeviceID            DeviceAttribute = 34
	AttrTCCDriver              DeviceAttribute = 35
	AttrAsyncEngineCount       DeviceAttribute = 40
	AttrUnifiedAddressing      DeviceAttribute = 41
	AttrPCIDomainID            DeviceAttribute = 50
	AttrComputeCapabilityMajor DeviceAttribute = 75
	AttrComputeCapabilityMinor DeviceAttribute = 76
	AttrHostNativeAtomic       DeviceAttribute = 86
	AttrPageableMemoryAccess   DeviceAttribute = 88
	AttrCanUseHostPointer      DeviceAttribute = 91
	AttrHostNUMAID             DeviceAttribute = 134
)

// P2PAttribute is a CUdevice_P2PAttribute.
type P2PAttribute int32

const (
	P2PPerformanceRank P2PAttribute = 1
	P2PAccessSupported P2PAttribute = 2
	P2PNativeAtomic    P2PAttribute = 3
	P2PArrayAccess     P2PAttribute = 4
)

// PointerAttribute is a CUpointer_attribute.
type PointerAttribute int32

const (
	PtrContext       PointerAttribute = 1
	PtrMemoryType    PointerAttribute = 2 // 1 host, 2 device, 3 array, 4 unified
	PtrDevicePointer PointerAttribute = 3
	PtrHostPointer   PointerAttribute = 4
	PtrIsManaged     PointerAttribute = 8
	PtrDeviceOrdinal PointerAttribute = 9
	PtrRangeStart    PointerAttribute = 11
	PtrRangeSize     PointerAttribute = 12
)

// Values of PtrMemoryType (CUmemorytype).
const (
	MemTypeHost    = 1
	MemTypeDevice  = 2
	MemTypeUnified = 4
)

// HostAllocFlag is a set of CU_MEMHOSTALLOC_ bits.
type HostAllocFlag uint32

const (
	HostPortable      HostAllocFlag = 1
	HostDeviceMap     HostAllocFlag = 2
	HostWriteCombined HostAllocFlag = 4
)

// HostRegisterFlag is a set of CU_MEMHOSTREGISTER_ bits.
type HostRegisterFlag uint32

const (
	RegisterPortable  HostRegisterFlag = 1
	RegisterDeviceMap HostRegisterFlag = 2
)

// StreamFlag is a CUstream_flags.
type StreamFlag uint32

const (
	StreamDefault     StreamFlag = 0
	StreamNonBlocking StreamFlag = 1
)

// EventFlag is a set of CUevent_flags.
type EventFlag uint32

const (
	EventDefault       EventFlag = 0
	EventBlockingSync  EventFlag = 1
	EventDisableTiming EventFlag = 2
)

// CaptureStatus is a CUstreamCaptureStatus.
type CaptureStatus int32

const (
	CaptureNone        CaptureStatus = 0
	CaptureActive      CaptureStatus = 1
	CaptureInvalidated CaptureStatus = 2
)

// CaptureMode is a CUstreamCaptureMode.
type CaptureMode int32

const (
	CaptureGlobal      CaptureMode = 0
	CaptureThreadLocal CaptureMode = 1
	CaptureRelaxed     CaptureMode = 2
)

// FunctionAttribute is a CUfunction_attribute.
type FunctionAttribute int32

const (
	FuncMaxThreadsPerBlock FunctionAttribute = 0
	FuncNumRegs            FunctionAttribute = 4
	FuncPTXVersion         FunctionAttribute = 5
	FuncBinaryVersion      FunctionAttribute = 6
)
