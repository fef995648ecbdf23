// SPDX-License-Identifier: Apache-2.0

package nvml

import "errors"

// Source answers for a whole host. *Library is one; package gonvml makes
// another of a go-nvml interface.
//
// Every error of a query is an *Error, which names the function and its code.
// A Source and its devices are safe for concurrent use.
type Source interface {
	// Library says where the answers come from: the file that was loaded, or
	// the name of another binding.
	Library() string
	// DriverVersion is the kernel driver's version, "580.159.04"
	// (nvmlSystemGetDriverVersion).
	DriverVersion() (string, error)
	// NVMLVersion is the library's own version, "13.580.159.04"
	// (nvmlSystemGetNVMLVersion).
	NVMLVersion() (string, error)
	// CUDAVersion is the newest CUDA version that the driver takes, as CUDA
	// writes it: 13000 is 13.0 (nvmlSystemGetCudaDriverVersion_v2).
	CUDAVersion() (int, error)
	// ConfCompute is the state of confidential computing
	// (nvmlSystemGetConfComputeSettings, or nvmlSystemGetConfComputeState where
	// the library or the driver is older than that).
	ConfCompute() (ConfCompute, error)

	// Count is the number of GPUs that the process may ask for
	// (nvmlDeviceGetCount_v2).
	Count() (int, error)
	// Device is GPU i of Count, in NVML's order. One that fell off the bus
	// still counts and answers ErrGPULost (nvmlDeviceGetHandleByIndex_v2).
	Device(i int) (Device, error)
	// DeviceByBusID finds a GPU by its bus id, in any form that NormalBusID
	// takes (nvmlDeviceGetHandleByPciBusId_v2).
	DeviceByBusID(busID string) (Device, error)
	// DeviceByUUID finds a GPU by "GPU-..." (nvmlDeviceGetHandleByUUID).
	DeviceByUUID(uuid string) (Device, error)

	// Close ends the use of the library. Queries after it answer
	// ErrUninitialized. Closing again does nothing.
	Close() error
}

// Device is one GPU of a Source.
type Device interface {
	// Name is the product's name (nvmlDeviceGetName).
	Name() (string, error)
	// UUID is "GPU-..." (nvmlDeviceGetUUID).
	UUID() (string, error)
	// Serial is the board's serial number, which GeForce cards do not have
	// (nvmlDeviceGetSerial).
	Serial() (string, error)
	// VBIOS is the version of the board's firmware (nvmlDeviceGetVbiosVersion).
	VBIOS() (string, error)
	// Architecture is the chip's generation (nvmlDeviceGetArchitecture).
	Architecture() (Architecture, error)
	// Minor is the N of /dev/nvidiaN (nvmlDeviceGetMinorNumber).
	Minor() (int, error)
	// DisplayActive tells whether the GPU holds a display's memory, even if none
	// is attached (nvmlDeviceGetDisplayActive).
	DisplayActive() (bool, error)
	// PCI is where the GPU sits (nvmlDeviceGetPciInfo_v3).
	PCI() (PCI, error)
	// Memory is the frame buffer, in bytes (nvmlDeviceGetMemoryInfo).
	Memory() (Memory, error)
	// BAR1 is the window through which the bus sees the frame buffer, in bytes
	// (nvmlDeviceGetBAR1MemoryInfo).
	BAR1() (Memory, error)

	// CurrentLinkGeneration is the PCIe generation at this moment. An idle link
	// runs at 1 (nvmlDeviceGetCurrPcieLinkGeneration).
	CurrentLinkGeneration() (int, error)
	// MaxLinkGeneration is the highest that GPU and system can do together
	// (nvmlDeviceGetMaxPcieLinkGeneration).
	MaxLinkGeneration() (int, error)
	// CurrentLinkWidth is the number of PCIe lanes in use
	// (nvmlDeviceGetCurrPcieLinkWidth).
	CurrentLinkWidth() (int, error)
	// MaxLinkWidth is the card's number of lanes, not the slot's
	// (nvmlDeviceGetMaxPcieLinkWidth).
	MaxLinkWidth() (int, error)

	// DriverModel is Windows's; elsewhere it is ErrNotSupported
	// (nvmlDeviceGetDriverModel_v2, or nvmlDeviceGetDriverModel where the
	// library is older than that).
	DriverModel() (current, pending DriverModel, err error)
	// Virtualization says what kind of guest or host the GPU is in. A guest with
	// plain VFIO may read VirtualizationNone
	// (nvmlDeviceGetVirtualizationMode).
	Virtualization() (Virtualization, error)
	// MIG tells whether the GPU is split into instances, now and after the next
	// reset (nvmlDeviceGetMigMode).
	MIG() (current, pending bool, err error)
	// GSPFirmware is the version of the firmware on the GPU's own processor;
	// "" or ErrNotSupported is a driver that runs without
	// (nvmlDeviceGetGspFirmwareVersion).
	GSPFirmware() (string, error)
	// Persistence tells whether the driver keeps the GPU initialised while
	// nobody uses it (nvmlDeviceGetPersistenceMode).
	Persistence() (bool, error)
	// PerformanceState is how fast the GPU runs at this moment
	// (nvmlDeviceGetPerformanceState).
	PerformanceState() (PState, error)
	// PowerState is the older name of the same (nvmlDeviceGetPowerState).
	PowerState() (PState, error)

	// NVLinkActive tells whether a link is up. ErrNotSupported is a GPU without
	// NVLink, ErrInvalidArgument a link that this GPU does not have
	// (nvmlDeviceGetNvLinkState).
	NVLinkActive(link int) (bool, error)
	// NVLinkVersion is nvmlNvlinkVersion_t of nvml.h (nvmlDeviceGetNvLinkVersion).
	NVLinkVersion(link int) (NVLinkVersion, error)
	// NVLinkRemoteType says what is at the other end
	// (nvmlDeviceGetNvLinkRemoteDeviceType).
	NVLinkRemoteType(link int) (NVLinkDevice, error)
	// NVLinkRemotePCI says where the other end sits
	// (nvmlDeviceGetNvLinkRemotePciInfo_v2).
	NVLinkRemotePCI(link int) (PCI, error)

	// P2PStatus is what the driver says of one ability from this GPU to peer, a
	// device of the same Source; it need not be the same the other way
	// (nvmlDeviceGetP2PStatus).
	P2PStatus(peer Device, ability P2PAbility) (P2PStatus, error)
	// CommonAncestor is the closest thing that joins this GPU and peer, a device
	// of the same Source (nvmlDeviceGetTopologyCommonAncestor).
	CommonAncestor(peer Device) (Topology, error)
}

// PCI is a place on the bus and what sits there.
type PCI struct {
	BusID     string // as NormalBusID writes it; "" where NVML gave none that can be read
	VendorID  uint16 // 0x10de
	DeviceID  uint16
	Subsystem uint32 // device id in the upper half, vendor id in the lower
}

// Memory is a size in bytes and what of it is in use.
type Memory struct{ Total, Free, Used uint64 }

// ConfCompute is the state of confidential computing, with nvml.h's numbers.
type ConfCompute struct {
	Enabled     bool
	Environment uint32 // 0 unavailable, 1 simulation, 2 production
	DevTools    bool
	MultiGPU    uint32 // 0 none, 1 protected PCIe, 2 NVLink encryption; 0 where the library does not say
}

// MaxNVLinks is how many links of a GPU the newest nvml.h knows.
const MaxNVLinks = 36

// NVLink is one link of a GPU. A value that could not be read has its error
// beside it; only Active is always there.
type NVLink struct {
	Link   int
	Active bool

	Version    NVLinkVersion
	VersionErr error

	Remote    NVLinkDevice
	RemoteErr error

	RemotePCI    PCI
	RemotePCIErr error
}

// NVLinks reads all links of a GPU; what is at the other end only of those
// that are up. A GPU that has none is an error that matches ErrNotSupported.
func NVLinks(d Device) ([]NVLink, error) {
	var links []NVLink
	for i := range MaxNVLinks {
		active, err := d.NVLinkActive(i)
		// The number of links is not told: they end where NVML knows no more.
		if i > 0 && (errors.Is(err, ErrInvalidArgument) || errors.Is(err, ErrNotSupported)) {
			break
		}
		if err != nil {
			return links, err
		}
		l := NVLink{Link: i, Active: active}
		if active {
			l.Version, l.VersionErr = d.NVLinkVersion(i)
			l.Remote, l.RemoteErr = d.NVLinkRemoteType(i)
			l.RemotePCI, l.RemotePCIErr = d.NVLinkRemotePCI(i)
		}
		links = append(links, l)
	}
	return links, nil
}
