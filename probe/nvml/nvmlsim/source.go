// SPDX-License-Identifier: Apache-2.0

// Package nvmlsim is NVML of the simulated machines of cuda/sim, so that the probe
// has of them what it has of real ones:
//
//	m, err := sim.Open("2x4090")
//	...
//	facts, err := probe.Collect(ctx, probe.Options{Driver: m.Driver(), NVML: nvmlsim.New(m.Spec())})
package nvmlsim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/probe/nvml"
)

// p2pStatuses are the letters of a machine's file for what NVML answers.
var p2pStatuses = map[string]nvml.P2PStatus{
	"CNS": nvml.P2PChipsetNotSupported, "GNS": nvml.P2PGPUNotSupported, "TNS": nvml.P2PTopologyNotSupported,
	"DR": nvml.P2PDisabledByRegistry, "NS": nvml.P2PNotSupported, "U": nvml.P2PUnknown,
}

// New returns NVML as a machine's description has it. What that does not say is
// answered with nvml.ErrNotSupported. It returns nil, which is no source at all,
// where the description does not say what NVML answers for a pair.
func New(s sim.Spec) nvml.Source {
	status, ok := p2pStatuses[s.Module.P2PStatus]
	if !ok || s.Module.Version == "" {
		return nil
	}
	return &source{&s, status}
}

type source struct {
	spec   *sim.Spec
	denied nvml.P2PStatus // for pairs without peer access
}

func unsupported(op string) error { return &nvml.Error{Op: op, Code: nvml.ErrNotSupported} }

func (s *source) Library() string                { return "simulated" }
func (s *source) DriverVersion() (string, error) { return s.spec.Module.Version, nil }
func (s *source) NVMLVersion() (string, error) {
	return fmt.Sprintf("%d.%s", s.spec.DriverVersion/1000, s.spec.Module.Version), nil
}
func (s *source) CUDAVersion() (int, error) { return s.spec.DriverVersion, nil }
func (s *source) ConfCompute() (nvml.ConfCompute, error) {
	return nvml.ConfCompute{}, nil
}
func (s *source) Count() (int, error) { return len(s.spec.GPUs), nil }
func (s *source) Close() error        { return nil }

func (s *source) Device(i int) (nvml.Device, error) {
	if i < 0 || i >= len(s.spec.GPUs) {
		return nil, &nvml.Error{Op: "nvmlDeviceGetHandleByIndex_v2", Code: nvml.ErrInvalidArgument}
	}
	return &device{s, i}, nil
}

// find is the first GPU for which is holds.
func (s *source) find(op string, is func(g *sim.GPU) bool) (nvml.Device, error) {
	i := slices.IndexFunc(s.spec.GPUs, func(g sim.GPU) bool { return is(&g) })
	if i < 0 {
		return nil, &nvml.Error{Op: op, Code: nvml.ErrNotFound}
	}
	return s.Device(i)
}

func (s *source) DeviceByBusID(id string) (nvml.Device, error) {
	want, _ := nvml.NormalBusID(id)
	return s.find("nvmlDeviceGetHandleByPciBusId_v2", func(g *sim.GPU) bool {
		got, ok := nvml.NormalBusID(g.PCIBusID)
		return ok && got == want
	})
}

func (s *source) DeviceByUUID(uuid string) (nvml.Device, error) {
	return s.find("nvmlDeviceGetHandleByUUID", func(g *sim.GPU) bool { return "GPU-"+g.UUID == uuid })
}

// device is a GPU of a source. What a description does not say is not
// supported.
type device struct {
	s *source
	i int
}

func (d *device) gpu() *sim.GPU { return &d.s.spec.GPUs[d.i] }

func (d *device) Name() (string, error)   { return d.gpu().Name, nil }
func (d *device) UUID() (string, error)   { return "GPU-" + d.gpu().UUID, nil }
func (d *device) Serial() (string, error) { return "", unsupported("nvmlDeviceGetSerial") }
func (d *device) VBIOS() (string, error) {
	if v := d.gpu().PCI.VBIOS; v != "" {
		return v, nil
	}
	return "", unsupported("nvmlDeviceGetVbiosVersion")
}
func (d *device) Architecture() (nvml.Architecture, error) {
	// By the compute capability: nvml.h counts Turing as 6, Ampere as 7, Ada as 8,
	// Hopper as 9 and Blackwell as 10.
	switch g := d.gpu(); {
	case g.ComputeMajor >= 10:
		return 10, nil
	case g.ComputeMajor == 9:
		return 9, nil
	case g.ComputeMajor == 8 && g.ComputeMinor == 9:
		return 8, nil
	case g.ComputeMajor == 8:
		return 7, nil
	case g.ComputeMajor == 7 && g.ComputeMinor == 5:
		return 6, nil
	}
	return nvml.ArchitectureUnknown, nil
}
func (d *device) Minor() (int, error)          { return d.i, nil }
func (d *device) DisplayActive() (bool, error) { return false, nil }

func (d *device) PCI() (nvml.PCI, error) {
	p := &d.gpu().PCI
	id, _ := nvml.NormalBusID(d.gpu().PCIBusID)
	hex := func(s string) uint64 { // the description was checked
		n, _ := strconv.ParseUint(strings.TrimPrefix(s, "0x"), 16, 64)
		return n
	}
	return nvml.PCI{BusID: id, VendorID: 0x10de, DeviceID: uint16(hex(p.DeviceID)),
		Subsystem: uint32(hex(p.SubsystemDevice)<<16 | hex(p.SubsystemVendor))}, nil
}

func (d *device) Memory() (nvml.Memory, error) {
	n := d.gpu().MemoryBytes
	return nvml.Memory{Total: n, Free: n}, nil
}
func (d *device) BAR1() (nvml.Memory, error) {
	n, ok := d.gpu().BAR1()
	if !ok {
		return nvml.Memory{}, unsupported("nvmlDeviceGetBAR1MemoryInfo")
	}
	return nvml.Memory{Total: n, Free: n}, nil
}

func (d *device) CurrentLinkGeneration() (int, error) { return d.gpu().PCIeGen, nil }
func (d *device) MaxLinkGeneration() (int, error)     { return d.gpu().PCIeGen, nil }
func (d *device) CurrentLinkWidth() (int, error)      { return d.gpu().PCIeWidth, nil }
func (d *device) MaxLinkWidth() (int, error)          { return d.gpu().PCIeWidth, nil }

func (d *device) DriverModel() (current, pending nvml.DriverModel, err error) {
	return 0, 0, unsupported("nvmlDeviceGetDriverModel_v2")
}
func (d *device) Virtualization() (nvml.Virtualization, error) {
	if d.s.spec.System.Hypervisor {
		return nvml.VirtualizationPassthrough, nil
	}
	return nvml.VirtualizationNone, nil
}
func (d *device) MIG() (current, pending bool, err error) {
	return false, false, unsupported("nvmlDeviceGetMigMode")
}
func (d *device) GSPFirmware() (string, error) {
	if d.s.spec.Module.Flavour == "open" { // which does not run without
		return d.s.spec.Module.Version, nil
	}
	return "", unsupported("nvmlDeviceGetGspFirmwareVersion")
}
func (d *device) Persistence() (bool, error)             { return true, nil }
func (d *device) PerformanceState() (nvml.PState, error) { return 0, nil }
func (d *device) PowerState() (nvml.PState, error)       { return 0, nil }

func (d *device) NVLinkActive(int) (bool, error) {
	return false, unsupported("nvmlDeviceGetNvLinkState")
}
func (d *device) NVLinkVersion(int) (nvml.NVLinkVersion, error) {
	return 0, unsupported("nvmlDeviceGetNvLinkVersion")
}
func (d *device) NVLinkRemoteType(int) (nvml.NVLinkDevice, error) {
	return 0, unsupported("nvmlDeviceGetNvLinkRemoteDeviceType")
}
func (d *device) NVLinkRemotePCI(int) (nvml.PCI, error) {
	return nvml.PCI{}, unsupported("nvmlDeviceGetNvLinkRemotePciInfo_v2")
}

func (d *device) P2PStatus(peer nvml.Device, a nvml.P2PAbility) (nvml.P2PStatus, error) {
	const op = "nvmlDeviceGetP2PStatus"
	other, ok := peer.(*device)
	if !ok || other.s != d.s || other.i == d.i {
		return nvml.P2PUnknown, &nvml.Error{Op: op, Code: nvml.ErrInvalidArgument}
	}
	switch {
	case a == nvml.P2PNVLink || a == nvml.P2PAtomics:
		return nvml.P2PNotSupported, nil
	case d.s.spec.PeerAccess[d.i][other.i]:
		return nvml.P2POK, nil
	}
	return d.s.denied, nil
}

// CommonAncestor is what the files tell better.
func (d *device) CommonAncestor(nvml.Device) (nvml.Topology, error) {
	return 0, unsupported("nvmlDeviceGetTopologyCommonAncestor")
}
