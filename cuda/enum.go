// SPDX-License-Identifier: Apache-2.0

package cuda

import "github.com/geforce-p2p/geforce-p2p/internal/api"

// Ptr is a device address (CUdeviceptr). Mapped host memory has one too.
type Ptr = api.Ptr

// Handles of the driver, for exchange with other libraries of the process.
type (
	ContextHandle  = api.Context
	StreamHandle   = api.Stream
	EventHandle    = api.Event
	FunctionHandle = api.Function
)

// Copy2D is what Stream.Memcpy2D takes: exactly one of SrcHost and SrcDevice,
// and exactly one of DstHost and DstDevice; Width bytes a row, Height rows.
type Copy2D = api.Copy2D

// DeviceAttribute is a CUdevice_attribute.
type DeviceAttribute = api.DeviceAttribute

// Device attributes, with cuda.h's values.
const (
	AttrMaxThreadsPerBlock     = api.AttrMaxThreadsPerBlock
	AttrMaxPitch               = api.AttrMaxPitch
	AttrMultiprocessorCount    = api.AttrMultiprocessorCount
	AttrKernelExecTimeout      = api.AttrKernelExecTimeout
	AttrIntegrated             = api.AttrIntegrated
	AttrCanMapHostMemory       = api.AttrCanMapHostMemory
	AttrComputeMode            = api.AttrComputeMode
	AttrConcurrentKernels      = api.AttrConcurrentKernels
	AttrPCIBusID               = api.AttrPCIBusID
	AttrPCIDeviceID            = api.AttrPCIDeviceID
	AttrTCCDriver              = api.AttrTCCDriver
	AttrAsyncEngineCount       = api.AttrAsyncEngineCount
	AttrUnifiedAddressing      = api.AttrUnifiedAddressing
	AttrPCIDomainID            = api.AttrPCIDomainID
	AttrComputeCapabilityMajor = api.AttrComputeCapabilityMajor
	AttrComputeCapabilityMinor = api.AttrComputeCapabilityMinor
	AttrHostNativeAtomic       = api.AttrHostNativeAtomic
	AttrPageableMemoryAccess   = api.AttrPageableMemoryAccess
	AttrCanUseHostPointer      = api.AttrCanUseHostPointer
	AttrHostNUMAID             = api.AttrHostNUMAID
)

// P2PAttribute is a CUdevice_P2PAttribute.
type P2PAttribute = api.P2PAttribute

// Attributes of a link between two devices.
const (
	P2PPerformanceRank = api.P2PPerformanceRank
	P2PAccessSupported = api.P2PAccessSupported
	P2PNativeAtomic    = api.P2PNativeAtomic
	P2PArrayAccess     = api.P2PArrayAccess
)

// FunctionAttribute is a CUfunction_attribute.
type FunctionAttribute = api.FunctionAttribute

// Function attributes.
const (
	FuncMaxThreadsPerBlock = api.FuncMaxThreadsPerBlock
	FuncNumRegs            = api.FuncNumRegs
	FuncPTXVersion         = api.FuncPTXVersion
	FuncBinaryVersion      = api.FuncBinaryVersion
)

// HostAllocFlag is a set of CU_MEMHOSTALLOC_ bits.
type HostAllocFlag = api.HostAllocFlag

// Bits for Context.HostAlloc. Write-combined memory is no faster for copies and
// very slow for the CPU to read.
const (
	HostPortable      = api.HostPortable
	HostDeviceMap     = api.HostDeviceMap
	HostWriteCombined = api.HostWriteCombined
)

// HostRegisterFlag is a set of CU_MEMHOSTREGISTER_ bits.
type HostRegisterFlag = api.HostRegisterFlag

// What Context.Register asks for.
const (
	RegisterPortable  = api.RegisterPortable
	RegisterDeviceMap = api.RegisterDeviceMap
)

// StreamFlag is a CUstream_flags.
type StreamFlag = api.StreamFlag

// Kinds of stream: Context.NewBlockingStream and Context.NewStream.
const (
	StreamDefault     = api.StreamDefault
	StreamNonBlocking = api.StreamNonBlocking
)

// EventFlag is a set of CUevent_flags.
type EventFlag = api.EventFlag

// Bits for Context.NewEvent.
const (
	EventDefault       = api.EventDefault
	EventBlockingSync  = api.EventBlockingSync
	EventDisableTiming = api.EventDisableTiming
)
