// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/dl"
)

// gpu is a Device of a Library. What each method asks is documented on Device.
type gpu struct {
	l      *Library
	handle uintptr // nvmlDevice_t, a pointer of the library's own
}

func (g *gpu) text(symbol string) (string, error) {
	return g.l.text(symbol, func(p dl.Proc, buf *byte, size uintptr) uintptr {
		return dl.Call3(p, g.handle, uintptr(unsafe.Pointer(buf)), size)
	})
}

// number calls a function that writes one int or enum.
func (g *gpu) number(symbol string) (uint32, error) {
	n := new(uint32)
	err := g.l.call(symbol, func(p dl.Proc) uintptr {
		return dl.Call2(p, g.handle, uintptr(unsafe.Pointer(n)))
	})
	if err != nil {
		return 0, err
	}
	return *n, nil
}

// numbers calls a function that writes two.
func (g *gpu) numbers(symbol string) (a, b uint32, err error) {
	n := new([2]uint32)
	err = g.l.call(symbol, func(p dl.Proc) uintptr {
		return dl.Call3(p, g.handle, uintptr(unsafe.Pointer(&n[0])), uintptr(unsafe.Pointer(&n[1])))
	})
	if err != nil {
		return 0, 0, err
	}
	return n[0], n[1], nil
}

func (g *gpu) count(symbol string) (int, error) {
	n, err := g.number(symbol)
	return int(n), err
}

func (g *gpu) yes(symbol string) (bool, error) {
	n, err := g.number(symbol)
	return n != 0, err
}

func (g *gpu) Name() (string, error)        { return g.text(nvmlDeviceGetName) }
func (g *gpu) UUID() (string, error)        { return g.text(nvmlDeviceGetUUID) }
func (g *gpu) Serial() (string, error)      { return g.text(nvmlDeviceGetSerial) }
func (g *gpu) VBIOS() (string, error)       { return g.text(nvmlDeviceGetVbiosVersion) }
func (g *gpu) Minor() (int, error)          { return g.count(nvmlDeviceGetMinorNumber) }
func (g *gpu) DisplayActive() (bool, error) { return g.yes(nvmlDeviceGetDisplayActive) }
func (g *gpu) Persistence() (bool, error)   { return g.yes(nvmlDeviceGetPersistenceMode) }

func (g *gpu) Architecture() (Architecture, error) {
	n, err := g.number(nvmlDeviceGetArchitecture)
	return Architecture(n), err
}

// pciInfo is nvmlPciInfo_t.
type pciInfo struct {
	busIDLegacy  [16]byte
	domain       uint32
	bus          uint32
	device       uint32
	pciDeviceID  uint32
	pciSubsystem uint32
	busID        [32]byte
}

func (i *pciInfo) pci() PCI {
	return NewPCI(cut(i.busID[:]), i.pciDeviceID, i.pciSubsystem)
}

// NewPCI makes a PCI of the fields of nvml.h's nvmlPciInfo_t, whose pciDeviceId
// has the device in its upper half and the vendor in the lower.
func NewPCI(busID string, pciDeviceID, pciSubSystemID uint32) PCI {
	id, _ := NormalBusID(busID)
	return PCI{
		BusID:     id,
		VendorID:  uint16(pciDeviceID),
		DeviceID:  uint16(pciDeviceID >> 16),
		Subsystem: pciSubSystemID,
	}
}

func (g *gpu) PCI() (PCI, error) {
	i := new(pciInfo)
	err := g.l.call(nvmlDeviceGetPciInfo, func(p dl.Proc) uintptr {
		return dl.Call2(p, g.handle, uintptr(unsafe.Pointer(i)))
	})
	if err != nil {
		return PCI{}, err
	}
	return i.pci(), nil
}

// memory is nvmlMemory_t, and nvmlBAR1Memory_t.
type memory struct{ total, free, used uint64 }

func (g *gpu) memory(symbol string) (Memory, error) {
	m := new(memory)
	err := g.l.call(symbol, func(p dl.Proc) uintptr {
		return dl.Call2(p, g.handle, uintptr(unsafe.Pointer(m)))
	})
	if err != nil {
		return Memory{}, err
	}
	return Memory{Total: m.total, Free: m.free, Used: m.used}, nil
}

func (g *gpu) Memory() (Memory, error) { return g.memory(nvmlDeviceGetMemoryInfo) }
func (g *gpu) BAR1() (Memory, error)   { return g.memory(nvmlDeviceGetBAR1MemoryInfo) }

func (g *gpu) CurrentLinkGeneration() (int, error) {
	return g.count(nvmlDeviceGetCurrPcieLinkGeneration)
}
func (g *gpu) MaxLinkGeneration() (int, error) { return g.count(nvmlDeviceGetMaxPcieLinkGeneration) }
func (g *gpu) CurrentLinkWidth() (int, error)  { return g.count(nvmlDeviceGetCurrPcieLinkWidth) }
func (g *gpu) MaxLinkWidth() (int, error)      { return g.count(nvmlDeviceGetMaxPcieLinkWidth) }

func (g *gpu) DriverModel() (current, pending DriverModel, err error) {
	a, b, err := g.numbers(nvmlDeviceGetDriverModel)
	if errors.Is(err, ErrFunctionNotFound) {
		a, b, err = g.numbers(nvmlDeviceGetDriverModelPlain)
	}
	return DriverModel(a), DriverModel(b), err
}

func (g *gpu) Virtualization() (Virtualization, error) {
	n, err := g.number(nvmlDeviceGetVirtualizationMode)
	return Virtualization(n), err
}

func (g *gpu) MIG() (current, pending bool, err error) {
	a, b, err := g.numbers(nvmlDeviceGetMigMode)
	return a != 0, b != 0, err
}

func (g *gpu) GSPFirmware() (string, error) {
	// This one takes no size: nvml.h asks for 64 bytes, text has more.
	return g.l.text(nvmlDeviceGetGspFirmwareVersion, func(p dl.Proc, buf *byte, _ uintptr) uintptr {
		return dl.Call2(p, g.handle, uintptr(unsafe.Pointer(buf)))
	})
}

func (g *gpu) PerformanceState() (PState, error) {
	n, err := g.number(nvmlDeviceGetPerformanceState)
	return PState(n), err
}

func (g *gpu) PowerState() (PState, error) {
	n, err := g.number(nvmlDeviceGetPowerState)
	return PState(n), err
}

// ofLink calls a function that writes one int or enum about a link.
func (g *gpu) ofLink(symbol string, link int) (uint32, error) {
	if link < 0 {
		return 0, &Error{Op: symbol, Code: ErrInvalidArgument}
	}
	n := new(uint32)
	err := g.l.call(symbol, func(p dl.Proc) uintptr {
		return dl.Call3(p, g.handle, uintptr(uint32(link)), uintptr(unsafe.Pointer(n)))
	})
	if err != nil {
		return 0, err
	}
	return *n, nil
}

func (g *gpu) NVLinkActive(link int) (bool, error) {
	n, err := g.ofLink(nvmlDeviceGetNvLinkState, link)
	return n != 0, err
}

func (g *gpu) NVLinkVersion(link int) (NVLinkVersion, error) {
	n, err := g.ofLink(nvmlDeviceGetNvLinkVersion, link)
	return NVLinkVersion(n), err
}

func (g *gpu) NVLinkRemoteType(link int) (NVLinkDevice, error) {
	n, err := g.ofLink(nvmlDeviceGetNvLinkRemoteDeviceType, link)
	return NVLinkDevice(n), err
}

func (g *gpu) NVLinkRemotePCI(link int) (PCI, error) {
	if link < 0 {
		return PCI{}, &Error{Op: nvmlDeviceGetNvLinkRemotePciInfo, Code: ErrInvalidArgument}
	}
	i := new(pciInfo)
	err := g.l.call(nvmlDeviceGetNvLinkRemotePciInfo, func(p dl.Proc) uintptr {
		return dl.Call3(p, g.handle, uintptr(uint32(link)), uintptr(unsafe.Pointer(i)))
	})
	if err != nil {
		return PCI{}, err
	}
	return i.pci(), nil
}

// peer is the handle of a device of the same library; another's means nothing
// to it.
func (g *gpu) peer(symbol string, d Device) (uintptr, error) {
	if p, ok := d.(*gpu); ok && p.l == g.l {
		return p.handle, nil
	}
	return 0, &Error{Op: symbol, Code: ErrInvalidArgument}
}

func (g *gpu) P2PStatus(peer Device, ability P2PAbility) (P2PStatus, error) {
	to, err := g.peer(nvmlDeviceGetP2PStatus, peer)
	if err != nil {
		return P2PUnknown, err
	}
	n := new(uint32)
	err = g.l.call(nvmlDeviceGetP2PStatus, func(p dl.Proc) uintptr {
		return dl.Call4(p, g.handle, to, uintptr(ability), uintptr(unsafe.Pointer(n)))
	})
	if err != nil {
		return P2PUnknown, err
	}
	return P2PStatus(*n), nil
}

func (g *gpu) CommonAncestor(peer Device) (Topology, error) {
	to, err := g.peer(nvmlDeviceGetTopologyCommonAncestor, peer)
	if err != nil {
		return 0, err
	}
	n := new(uint32)
	err = g.l.call(nvmlDeviceGetTopologyCommonAncestor, func(p dl.Proc) uintptr {
		return dl.Call3(p, g.handle, to, uintptr(unsafe.Pointer(n)))
	})
	if err != nil {
		return 0, err
	}
	return Topology(*n), nil
}
