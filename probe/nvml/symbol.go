// SPDX-License-Identifier: Apache-2.0

package nvml

// The functions by their exported names. nvml.h renames most of them with
// macros (nvmlInit is nvmlInit_v2 there); the plain names are older functions
// with other structs. Which version of the library brought which is not
// written in the header: each may be missing.
const (
	nvmlInit        = "nvmlInit_v2"
	nvmlShutdown    = "nvmlShutdown"
	nvmlErrorString = "nvmlErrorString"

	nvmlSystemGetDriverVersion       = "nvmlSystemGetDriverVersion"
	nvmlSystemGetNVMLVersion         = "nvmlSystemGetNVMLVersion"
	nvmlSystemGetCudaDriverVersion   = "nvmlSystemGetCudaDriverVersion_v2"
	nvmlSystemGetConfComputeSettings = "nvmlSystemGetConfComputeSettings"
	nvmlSystemGetConfComputeState    = "nvmlSystemGetConfComputeState"

	nvmlDeviceGetCount            = "nvmlDeviceGetCount_v2"
	nvmlDeviceGetHandleByIndex    = "nvmlDeviceGetHandleByIndex_v2"
	nvmlDeviceGetHandleByPciBusId = "nvmlDeviceGetHandleByPciBusId_v2"
	nvmlDeviceGetHandleByUUID     = "nvmlDeviceGetHandleByUUID"

	nvmlDeviceGetName                   = "nvmlDeviceGetName"
	nvmlDeviceGetUUID                   = "nvmlDeviceGetUUID"
	nvmlDeviceGetSerial                 = "nvmlDeviceGetSerial"
	nvmlDeviceGetVbiosVersion           = "nvmlDeviceGetVbiosVersion"
	nvmlDeviceGetArchitecture           = "nvmlDeviceGetArchitecture"
	nvmlDeviceGetMinorNumber            = "nvmlDeviceGetMinorNumber"
	nvmlDeviceGetDisplayActive          = "nvmlDeviceGetDisplayActive"
	nvmlDeviceGetPciInfo                = "nvmlDeviceGetPciInfo_v3"
	nvmlDeviceGetMemoryInfo             = "nvmlDeviceGetMemoryInfo"
	nvmlDeviceGetBAR1MemoryInfo         = "nvmlDeviceGetBAR1MemoryInfo"
	nvmlDeviceGetCurrPcieLinkGeneration = "nvmlDeviceGetCurrPcieLinkGeneration"
	nvmlDeviceGetMaxPcieLinkGeneration  = "nvmlDeviceGetMaxPcieLinkGeneration"
	nvmlDeviceGetCurrPcieLinkWidth      = "nvmlDeviceGetCurrPcieLinkWidth"
	nvmlDeviceGetMaxPcieLinkWidth       = "nvmlDeviceGetMaxPcieLinkWidth"
	nvmlDeviceGetDriverModel            = "nvmlDeviceGetDriverModel_v2"
	nvmlDeviceGetDriverModelPlain       = "nvmlDeviceGetDriverModel"
	nvmlDeviceGetVirtualizationMode     = "nvmlDeviceGetVirtualizationMode"
	nvmlDeviceGetMigMode                = "nvmlDeviceGetMigMode"
	nvmlDeviceGetGspFirmwareVersion     = "nvmlDeviceGetGspFirmwareVersion"
	nvmlDeviceGetPersistenceMode        = "nvmlDeviceGetPersistenceMode"
	nvmlDeviceGetPerformanceState       = "nvmlDeviceGetPerformanceState"
	nvmlDeviceGetPowerState             = "nvmlDeviceGetPowerState"

	nvmlDeviceGetNvLinkState            = "nvmlDeviceGetNvLinkState"
	nvmlDeviceGetNvLinkVersion          = "nvmlDeviceGetNvLinkVersion"
	nvmlDeviceGetNvLinkRemoteDeviceType = "nvmlDeviceGetNvLinkRemoteDeviceType"
	nvmlDeviceGetNvLinkRemotePciInfo    = "nvmlDeviceGetNvLinkRemotePciInfo_v2"

	nvmlDeviceGetP2PStatus              = "nvmlDeviceGetP2PStatus"
	nvmlDeviceGetTopologyCommonAncestor = "nvmlDeviceGetTopologyCommonAncestor"
)
