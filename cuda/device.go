// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// A Device is a GPU (or a MIG instance) that the process can see. It is a
// small value and comparable. Its methods need no context.
type Device struct {
	d *Driver
	h api.Device
}

// UUID is a device's identity. It stays the same across processes, reboots and
// slots.
type UUID [16]byte

// String is the form that nvidia-smi prints:
// "GPU-01234567-89ab-cdef-0123-456789abcdef".
func (u UUID) String() string {
	h := hex.EncodeToString(u[:])
	return "GPU-" + h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// Driver is the driver that the device belongs to.
func (v Device) Driver() *Driver { return v.d }

// Ordinal is the device's index in Driver.Devices.
func (v Device) Ordinal() int { return int(v.h) }

// String names the device for messages: "device 0".
func (v Device) String() string { return fmt.Sprintf("device %d", v.h) }

// Name is the product name, "NVIDIA GeForce RTX 4090" (cuDeviceGetName).
func (v Device) Name() (string, error) {
	s, c := v.d.seam.DeviceGetName(v.h)
	return s, v.d.check("cuDeviceGetName", c)
}

// Attribute asks for one attribute (cuDeviceGetAttribute). An attribute that
// the driver does not know is ErrInvalidValue.
func (v Device) Attribute(a DeviceAttribute) (int, error) {
	n, c := v.d.seam.DeviceGetAttribute(a, v.h)
	return n, v.d.check("cuDeviceGetAttribute", c)
}

// ComputeCapability is the device's architecture: 8, 9 for sm_89.
func (v Device) ComputeCapability() (major, minor int, err error) {
	if major, err = v.Attribute(AttrComputeCapabilityMajor); err != nil {
		return 0, 0, err
	}
	if minor, err = v.Attribute(AttrComputeCapabilityMinor); err != nil {
		return 0, 0, err
	}
	return major, minor, nil
}

// TotalMem is the device's memory in bytes (cuDeviceTotalMem).
func (v Device) TotalMem() (uint64, error) {
	n, c := v.d.seam.DeviceTotalMem(v.h)
	return n, v.d.check("cuDeviceTotalMem", c)
}

// UUID is the device's identity (cuDeviceGetUuid).
func (v Device) UUID() (UUID, error) {
	u, c := v.d.seam.DeviceGetUuid(v.h)
	return UUID(u), v.d.check("cuDeviceGetUuid", c)
}

// PCIBusID is the device's PCI address as sysfs writes it: "0000:c1:00.0", lower
// case, domain of four digits where it fits (cuDeviceGetPCIBusId).
func (v Device) PCIBusID() (string, error) {
	s, c := v.d.seam.DeviceGetPCIBusId(v.h)
	if c != api.Success {
		return "", v.d.check("cuDeviceGetPCIBusId", c)
	}
	return normalBusID(s), nil
}

// normalBusID brings the driver's forms of a PCI address to the one of sysfs:
// some drivers write upper case, and NVIDIA's tools an eight-digit domain.
func normalBusID(s string) string {
	s = strings.ToLower(strings.TrimSpace(s))
	domain, rest, ok := strings.Cut(s, ":")
	if !ok {
		return s
	}
	if !strings.Contains(rest, ":") { // "bb:dd.f"
		return "0000:" + s
	}
	domain = strings.TrimLeft(domain, "0")
	if len(domain) < 4 {
		domain = strings.Repeat("0", 4-len(domain)) + domain
	}
	return domain + ":" + rest
}

// CanAccessPeer tells whether the driver would let this device read and write
// the memory of peer (cuDeviceCanAccessPeer). It is the driver's word only:
// machines exist where it says yes and the data never arrive.
func (v Device) CanAccessPeer(peer Device) (bool, error) {
	ok, c := v.d.seam.DeviceCanAccessPeer(v.h, peer.h)
	return ok, v.d.check("cuDeviceCanAccessPeer", c)
}

// P2PAttribute asks for an attribute of the link from this device to dst
// (cuDeviceGetP2PAttribute). Two equal devices are ErrInvalidDevice.
func (v Device) P2PAttribute(a P2PAttribute, dst Device) (int, error) {
	n, c := v.d.seam.DeviceGetP2PAttribute(a, v.h, dst.h)
	return n, v.d.check("cuDeviceGetP2PAttribute", c)
}

// Primary retains the device's primary context (cuDevicePrimaryCtxRetain), the
// one that the CUDA runtime, and so every framework in the process, uses too.
// Its flags are left alone and it is never reset.
//
// The driver retains it once, however often Primary is called; every call
// returns a Context of its own to close, so that closing twice takes nothing
// from another caller. Compare two with Context.Same.
func (v Device) Primary() (*Context, error) {
	d := v.d
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, st := range d.contexts {
		if st.primary && st.dev == v.h {
			st.refs++
			return &Context{st: st}, nil
		}
	}
	h, c := d.seam.DevicePrimaryCtxRetain(v.h)
	if c != api.Success {
		return nil, d.check("cuDevicePrimaryCtxRetain", c)
	}
	st := d.contexts[h]
	if st == nil {
		st = &contextState{d: d, h: h, dev: v.h}
		d.contexts[h] = st
	}
	// A state made by the wrap of a foreign stream becomes one that we hold.
	st.primary = true
	st.refs++
	return &Context{st: st}, nil
}
