// SPDX-License-Identifier: Apache-2.0

package nvml

import "fmt"

// P2PAbility is what nvmlDeviceGetP2PStatus can be asked about
// (nvmlGpuP2PCapsIndex_t).
type P2PAbility uint32

// The abilities, with nvml.h's numbers.
const (
	P2PRead    P2PAbility = 0
	P2PWrite   P2PAbility = 1
	P2PNVLink  P2PAbility = 2
	P2PAtomics P2PAbility = 3
	P2PPCI     P2PAbility = 4
)

// P2PAbilities are all of them, in nvml.h's order.
var P2PAbilities = [...]P2PAbility{P2PRead, P2PWrite, P2PNVLink, P2PAtomics, P2PPCI}

func (a P2PAbility) String() string {
	return name(uint32(a), "ability", "read", "write", "nvlink", "atomics", "pci")
}

// P2PStatus is nvmlGpuP2PStatus_t.
type P2PStatus uint32

// The answers, with nvml.h's numbers.
const (
	P2POK                   P2PStatus = 0
	P2PChipsetNotSupported  P2PStatus = 1
	P2PGPUNotSupported      P2PStatus = 2
	P2PTopologyNotSupported P2PStatus = 3 // of the I/O hub
	P2PDisabledByRegistry   P2PStatus = 4 // by a registry key of the driver
	P2PNotSupported         P2PStatus = 5
	P2PUnknown              P2PStatus = 6
)

// String gives the letters of nvidia-smi topo -p2p.
func (s P2PStatus) String() string {
	return name(uint32(s), "status", "OK", "CNS", "GNS", "TNS", "DR", "NS", "U")
}

// Topology is nvmlGpuTopologyLevel_t: the closest thing that joins two GPUs.
type Topology uint32

// The levels, with nvml.h's numbers.
const (
	TopologyInternal   Topology = 0  // the same board
	TopologySingle     Topology = 10 // one PCIe switch
	TopologyMultiple   Topology = 20 // several PCIe switches, no host bridge
	TopologyHostBridge Topology = 30 // one host bridge
	TopologyNode       Topology = 40 // several host bridges of a NUMA node
	TopologySystem     Topology = 50 // several NUMA nodes
)

// String gives the letters of nvidia-smi topo -m.
func (t Topology) String() string {
	levels := [...]string{"INT", "PIX", "PXB", "PHB", "NODE", "SYS"}
	if t%10 != 0 || t/10 >= Topology(len(levels)) {
		return fmt.Sprintf("level %d", uint32(t))
	}
	return levels[t/10]
}

// DriverModel is nvmlDriverModel_t, of Windows.
type DriverModel uint32

// The models, with nvml.h's numbers.
const (
	WDDM DriverModel = 0
	TCC  DriverModel = 1 // nvml.h: WDM
	MCDM DriverModel = 2
)

func (m DriverModel) String() string { return name(uint32(m), "driver model", "wddm", "tcc", "mcdm") }

// Architecture is nvmlDeviceArchitecture_t.
type Architecture uint32

// ArchitectureUnknown is NVML's own word for one that it does not know.
const ArchitectureUnknown Architecture = 0xffffffff

// String gives the name in lower case, "ada".
func (a Architecture) String() string {
	if a == ArchitectureUnknown {
		return "unknown"
	}
	return name(uint32(a), "architecture", "architecture 0", "architecture 1",
		"kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell", "dla", "dla2", "rubin")
}

// Virtualization is nvmlGpuVirtualizationMode_t.
type Virtualization uint32

// The modes, with nvml.h's numbers.
const (
	VirtualizationNone        Virtualization = 0
	VirtualizationPassthrough Virtualization = 1 // a guest that owns the GPU
	VirtualizationVGPU        Virtualization = 2 // a guest that has a share of it
	VirtualizationHostVGPU    Virtualization = 3 // the host of such guests
	VirtualizationHostVSGA    Virtualization = 4
)

func (v Virtualization) String() string {
	return name(uint32(v), "mode", "none", "passthrough", "vgpu", "host-vgpu", "host-vsga")
}

// PState is nvmlPstates_t: 0 is the fastest, 15 the slowest.
type PState uint32

// PStateUnknown is NVML's own word for a state that it does not know.
const PStateUnknown PState = 32

func (p PState) String() string {
	if p == PStateUnknown {
		return "unknown"
	}
	return fmt.Sprintf("P%d", uint32(p))
}

// NVLinkVersion is nvmlNvlinkVersion_t, which counts versions, it does not
// write them: String does.
type NVLinkVersion uint32

func (v NVLinkVersion) String() string {
	return name(uint32(v), "version", "invalid", "1.0", "2.0", "2.2", "3.0", "3.1", "4.0", "5.0", "6.0")
}

// NVLinkDevice is nvmlIntNvLinkDeviceType_t: what is at the other end of a link.
type NVLinkDevice uint32

// The kinds, with nvml.h's numbers.
const (
	NVLinkGPU     NVLinkDevice = 0
	NVLinkIBMNPU  NVLinkDevice = 1
	NVLinkSwitch  NVLinkDevice = 2
	NVLinkUnknown NVLinkDevice = 0xff
)

func (d NVLinkDevice) String() string {
	if d == NVLinkUnknown {
		return "unknown"
	}
	return name(uint32(d), "device", "gpu", "ibm-npu", "switch")
}

// name is names[v], or the number where a newer library gives one that is not
// known here.
func name(v uint32, what string, names ...string) string {
	if v < uint32(len(names)) {
		return names[v]
	}
	return fmt.Sprintf("%s %d", what, v)
}
