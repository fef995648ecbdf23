// SPDX-License-Identifier: Apache-2.0

package libcuda

import (
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/dl"
	"github.com/geforce-p2p/geforce-p2p/internal/gang"
)

func (d *Driver) MemGetInfo() (free, total uint64, result api.Code) {
	p := d.proc(cuMemGetInfo)
	if p == 0 {
		return 0, 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call2(p, uintptr(unsafe.Pointer(&f.a)), uintptr(unsafe.Pointer(&f.b))))
	v0, v1 := f.a, f.b
	putFrame(f)
	return v0, v1, c
}

func (d *Driver) MemAlloc(n uint64) (api.Ptr, api.Code) {
	gang.Enter()
	defer gang.Leave()
	p := d.proc(cuMemAlloc)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call2(p, uintptr(unsafe.Pointer(&f.a)), uintptr(n)))
	v := api.Ptr(f.a)
	putFrame(f)
	return v, c
}

func (d *Driver) MemFree(ptr api.Ptr) api.Code {
	gang.Enter()
	defer gang.Leave()
	p := d.proc(cuMemFree)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call1(p, uintptr(ptr)))
}

func (d *Driver) MemHostAlloc(n uint64, flags api.HostAllocFlag) (unsafe.Pointer, api.Code) {
	gang.Enter()
	defer gang.Leave()
	p := d.proc(cuMemHostAlloc)
	if p == 0 {
		return nil, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call3(p, uintptr(unsafe.Pointer(&f.a)), uintptr(n), uintptr(flags)))
	v := *(*unsafe.Pointer)(unsafe.Pointer(&f.a))
	putFrame(f)
	return v, c
}

func (d *Driver) MemFreeHost(h unsafe.Pointer) api.Code {
	gang.Enter()
	defer gang.Leave()
	p := d.proc(cuMemFreeHost)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call1(p, uintptr(h)))
}

func (d *Driver) MemHostRegister(h unsafe.Pointer, n uint64, flags api.HostRegisterFlag) api.Code {
	gang.Enter()
	defer gang.Leave()
	p := d.proc(cuMemHostRegister)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call3(p, uintptr(h), uintptr(n), uintptr(flags)))
}

func (d *Driver) MemHostUnregister(h unsafe.Pointer) api.Code {
	gang.Enter()
	defer gang.Leave()
	p := d.proc(cuMemHostUnregister)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call1(p, uintptr(h)))
}

func (d *Driver) MemHostGetDevicePointer(h unsafe.Pointer) (api.Ptr, api.Code) {
	p := d.proc(cuMemHostGetDevicePointer)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call3(p, uintptr(unsafe.Pointer(&f.a)), uintptr(h), 0))
	v := api.Ptr(f.a)
	putFrame(f)
	return v, c
}

func (d *Driver) MemHostGetFlags(h unsafe.Pointer) (api.HostAllocFlag, api.Code) {
	p := d.proc(cuMemHostGetFlags)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call2(p, uintptr(unsafe.Pointer(&f.i)), uintptr(h)))
	v := api.HostAllocFlag(f.i)
	putFrame(f)
	return v, c
}

func (d *Driver) MemGetAddressRange(ptr api.Ptr) (base api.Ptr, n uint64, result api.Code) {
	p := d.proc(cuMemGetAddressRange)
	if p == 0 {
		return 0, 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call3(p, uintptr(unsafe.Pointer(&f.a)), uintptr(unsafe.Pointer(&f.b)), uintptr(ptr)))
	v0, v1 := api.Ptr(f.a), f.b
	putFrame(f)
	return v0, v1, c
}

// PointerGetAttribute lets the driver write one to eight bytes into a zeroed
// cell: all targets are little-endian.
func (d *Driver) PointerGetAttribute(a api.PointerAttribute, ptr api.Ptr) (uint64, api.Code) {
	p := d.proc(cuPointerGetAttribute)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call3(p, uintptr(unsafe.Pointer(&f.a)), uintptr(uint32(a)), uintptr(ptr)))
	v := f.a
	putFrame(f)
	return v, c
}
