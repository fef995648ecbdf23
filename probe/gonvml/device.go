// SPDX-License-Identifier: Apache-2.0

//go:build cgo && linux

package gonvml

import (
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/geforce-p2p/geforce-p2p/probe/nvml"
)

// device is a Device of a source. What each method asks is documented on
// nvml.Device.
type device struct {
	s *source
	d gonvml.Device
}

// as is get with the result converted.
func as[T, G any](s *source, convert func(G) T, query func() (G, gonvml.Return), symbols ...string) (T, error) {
	v, err := get(s, query, symbols...)
	if err != nil {
		var none T
		return none, err
	}
	return convert(v), nil
}

func enabled(e gonvml.EnableState) bool { return e == gonvml.FEATURE_ENABLED }

func pci(p gonvml.PciInfo) nvml.PCI {
	var id []byte
	for _, c := range p.BusId {
		if c == 0 {
			break
		}
		id = append(id, byte(c))
	}
	return nvml.NewPCI(string(id), p.PciDeviceId, p.PciSubSystemId)
}

func (d *device) Name() (string, error)   { return get(d.s, d.d.GetName, "nvmlDeviceGetName") }
func (d *device) UUID() (string, error)   { return get(d.s, d.d.GetUUID, "nvmlDeviceGetUUID") }
func (d *device) Serial() (string, error) { return get(d.s, d.d.GetSerial, "nvmlDeviceGetSerial") }
func (d *device) VBIOS() (string, error) {
	return get(d.s, d.d.GetVbiosVersion, "nvmlDeviceGetVbiosVersion")
}
func (d *device) Minor() (int, error) {
	return get(d.s, d.d.GetMinorNumber, "nvmlDeviceGetMinorNumber")
}

func (d *device) Architecture() (nvml.Architecture, error) {
	return as(d.s, func(a gonvml.DeviceArchitecture) nvml.Architecture { return nvml.Architecture(a) },
		d.d.GetArchitecture, "nvmlDeviceGetArchitecture")
}

func (d *device) DisplayActive() (bool, error) {
	return as(d.s, enabled, d.d.GetDisplayActive, "nvmlDeviceGetDisplayActive")
}

func (d *device) PCI() (nvml.PCI, error) {
	return as(d.s, pci, d.d.GetPciInfo, "nvmlDeviceGetPciInfo_v3")
}

func (d *device) Memory() (nvml.Memory, error) {
	return as(d.s, func(m gonvml.Memory) nvml.Memory { return nvml.Memory{Total: m.Total, Free: m.Free, Used: m.Used} },
		d.d.GetMemoryInfo, "nvmlDeviceGetMemoryInfo")
}

func (d *device) BAR1() (nvml.Memory, error) {
	return as(d.s, func(m gonvml.BAR1Memory) nvml.Memory {
		return nvml.Memory{Total: m.Bar1Total, Free: m.Bar1Free, Used: m.Bar1Used}
	}, d.d.GetBAR1MemoryInfo, "nvmlDeviceGetBAR1MemoryInfo")
}

func (d *device) CurrentLinkGeneration() (int, error) {
	return get(d.s, d.d.GetCurrPcieLinkGeneration, "nvmlDeviceGetCurrPcieLinkGeneration")
}

func (d *device) MaxLinkGeneration() (int, error) {
	return get(d.s, d.d.GetMaxPcieLinkGeneration, "nvmlDeviceGetMaxPcieLinkGeneration")
}

func (d *device) CurrentLinkWidth() (int, error) {
	return get(d.s, d.d.GetCurrPcieLinkWidth, "nvmlDeviceGetCurrPcieLinkWidth")
}

func (d *device) MaxLinkWidth() (int, error) {
	return get(d.s, d.d.GetMaxPcieLinkWidth, "nvmlDeviceGetMaxPcieLinkWidth")
}

func (d *device) DriverModel() (current, pending nvml.DriverModel, err error) {
	// go-nvml calls whichever of the two the library has.
	v, err := get(d.s, func() (v [2]gonvml.DriverModel, r gonvml.Return) {
		v[0], v[1], r = d.d.GetDriverModel()
		return v, r
	}, "nvmlDeviceGetDriverModel_v2", "nvmlDeviceGetDriverModel")
	return nvml.DriverModel(v[0]), nvml.DriverModel(v[1]), err
}

func (d *device) Virtualization() (nvml.Virtualization, error) {
	return as(d.s, func(v gonvml.GpuVirtualizationMode) nvml.Virtualization { return nvml.Virtualization(v) },
		d.d.GetVirtualizationMode, "nvmlDeviceGetVirtualizationMode")
}

func (d *device) MIG() (current, pending bool, err error) {
	v, err := get(d.s, func() (v [2]int, r gonvml.Return) {
		v[0], v[1], r = d.d.GetMigMode()
		return v, r
	}, "nvmlDeviceGetMigMode")
	return v[0] != 0, v[1] != 0, err
}

func (d *device) GSPFirmware() (string, error) {
	return get(d.s, d.d.GetGspFirmwareVersion, "nvmlDeviceGetGspFirmwareVersion")
}

func (d *device) Persistence() (bool, error) {
	return as(d.s, enabled, d.d.GetPersistenceMode, "nvmlDeviceGetPersistenceMode")
}

func pstate(p gonvml.Pstates) nvml.PState { return nvml.PState(p) }

func (d *device) PerformanceState() (nvml.PState, error) {
	return as(d.s, pstate, d.d.GetPerformanceState, "nvmlDeviceGetPerformanceState")
}

func (d *device) PowerState() (nvml.PState, error) {
	return as(d.s, pstate, d.d.GetPowerState, "nvmlDeviceGetPowerState")
}

// ofLink makes a query about one link of one about a GPU.
func ofLink[T any](query func(link int) (T, gonvml.Return), link int) func() (T, gonvml.Return) {
	return func() (v T, r gonvml.Return) {
		if link < 0 {
			return v, gonvml.ERROR_INVALID_ARGUMENT
		}
		return query(link)
	}
}

func (d *device) NVLinkActive(link int) (bool, error) {
	return as(d.s, enabled, ofLink(d.d.GetNvLinkState, link), "nvmlDeviceGetNvLinkState")
}

func (d *device) NVLinkVersion(link int) (nvml.NVLinkVersion, error) {
	return as(d.s, func(v uint32) nvml.NVLinkVersion { return nvml.NVLinkVersion(v) },
		ofLink(d.d.GetNvLinkVersion, link), "nvmlDeviceGetNvLinkVersion")
}

func (d *device) NVLinkRemoteType(link int) (nvml.NVLinkDevice, error) {
	return as(d.s, func(v gonvml.IntNvLinkDeviceType) nvml.NVLinkDevice { return nvml.NVLinkDevice(v) },
		ofLink(d.d.GetNvLinkRemoteDeviceType, link), "nvmlDeviceGetNvLinkRemoteDeviceType")
}

func (d *device) NVLinkRemotePCI(link int) (nvml.PCI, error) {
	return as(d.s, pci, ofLink(d.d.GetNvLinkRemotePciInfo, link), "nvmlDeviceGetNvLinkRemotePciInfo_v2")
}

// peer is the go-nvml device behind a device of the same source; go-nvml panics
// on what is no device of its own.
func (d *device) peer(p nvml.Device) (gonvml.Device, gonvml.Return) {
	if q, ok := p.(*device); ok && q.s == d.s {
		return q.d, gonvml.SUCCESS
	}
	return nil, gonvml.ERROR_INVALID_ARGUMENT
}

func (d *device) P2PStatus(peer nvml.Device, ability nvml.P2PAbility) (nvml.P2PStatus, error) {
	v, err := get(d.s, func() (gonvml.GpuP2PStatus, gonvml.Return) {
		to, r := d.peer(peer)
		if r != gonvml.SUCCESS {
			return 0, r
		}
		return d.d.GetP2PStatus(to, gonvml.GpuP2PCapsIndex(ability))
	}, "nvmlDeviceGetP2PStatus")
	if err != nil {
		return nvml.P2PUnknown, err
	}
	return nvml.P2PStatus(v), nil
}

func (d *device) CommonAncestor(peer nvml.Device) (nvml.Topology, error) {
	return as(d.s, func(v gonvml.GpuTopologyLevel) nvml.Topology { return nvml.Topology(v) },
		func() (gonvml.GpuTopologyLevel, gonvml.Return) {
			to, r := d.peer(peer)
			if r != gonvml.SUCCESS {
				return 0, r
			}
			return d.d.GetTopologyCommonAncestor(to)
		}, "nvmlDeviceGetTopologyCommonAncestor")
}
