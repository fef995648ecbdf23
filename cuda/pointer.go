// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"fmt"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// MemoryType is where memory lies (CUmemorytype).
type MemoryType int

// The memory types in use.
const (
	MemoryHost    MemoryType = api.MemTypeHost
	MemoryDevice  MemoryType = api.MemTypeDevice
	MemoryUnified MemoryType = api.MemTypeUnified
)

// String is "host", "device" or "unified".
func (t MemoryType) String() string {
	switch t {
	case MemoryHost:
		return "host"
	case MemoryDevice:
		return "device"
	case MemoryUnified:
		return "unified"
	}
	return fmt.Sprintf("MemoryType(%d)", int(t))
}

// PointerInfo is what the driver knows of an address. What it does not tell is
// 0: Context for memory of a pool, Base and Size on old drivers.
type PointerInfo struct {
	Type    MemoryType
	Managed bool          // moves between host and device on its own
	Device  int           // ordinal of the device that it was allocated on, -1 if not told
	Context ContextHandle // that it was allocated in
	Base    Ptr           // start of the allocation
	Size    uint64        // bytes of the allocation
}

// PointerInfo asks the driver about a device address, or about the address of
// pinned host memory (cuPointerGetAttribute). An address that the driver does
// not know, such as that of pageable memory, is ErrInvalidValue.
func (d *Driver) PointerInfo(p Ptr) (PointerInfo, error) {
	const op = "cuPointerGetAttribute"
	kind, code := d.seam.PointerGetAttribute(api.PtrMemoryType, p)
	if code != api.Success {
		e := d.newError(op, code, "")
		if code == api.InvalidValue {
			e.addDetail(fmt.Sprintf("%#x is neither device memory nor pinned host memory", uint64(p)))
		}
		return PointerInfo{}, e
	}
	info := PointerInfo{Type: MemoryType(kind), Device: -1}
	ask := func(a api.PointerAttribute) uint64 {
		v, code := d.seam.PointerGetAttribute(a, p)
		if code != api.Success {
			return 0
		}
		return v
	}
	if v, code := d.seam.PointerGetAttribute(api.PtrDeviceOrdinal, p); code == api.Success {
		info.Device = int(int32(v))
	}
	info.Managed = ask(api.PtrIsManaged) != 0
	info.Context = ContextHandle(ask(api.PtrContext))
	info.Base = Ptr(ask(api.PtrRangeStart))
	info.Size = ask(api.PtrRangeSize)
	return info, nil
}

// AddressRange is the allocation that a device address lies in
// (cuMemGetAddressRange).
func (c *Context) AddressRange(p Ptr) (base Ptr, size uint64, err error) {
	const op = "cuMemGetAddressRange"
	b, err := c.enter(op)
	if err != nil {
		return 0, 0, err
	}
	defer b.exit(&err)
	base, size, code := b.seam().MemGetAddressRange(p)
	return base, size, b.check(op, code)
}
