// SPDX-License-Identifier: Apache-2.0

package libcuda

import (
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/dl"
)

// code narrows a result register to the CUresult that C declares.
func code(r uintptr) api.Code { return api.Code(int32(r)) }

func (d *Driver) Init(flags uint32) api.Code {
	p := d.proc(cuInit)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call1(p, uintptr(flags)))
}

func (d *Driver) DriverGetVersion() (int, api.Code) {
	p := d.proc(cuDriverGetVersion)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call1(p, uintptr(unsafe.Pointer(&f.i))))
	v := int(f.i)
	putFrame(f)
	return v, c
}

func (d *Driver) GetErrorName(c api.Code) string   { return d.errorText(cuGetErrorName, c) }
func (d *Driver) GetErrorString(c api.Code) string { return d.errorText(cuGetErrorString, c) }

// errorText calls a function of the shape CUresult f(CUresult, const char **).
// The text is the driver's own static string.
func (d *Driver) errorText(s sym, c api.Code) string {
	p := d.proc(s)
	if p == 0 {
		return ""
	}
	f := getFrame()
	defer putFrame(f)
	if code(f.args.Call2(p, uintptr(uint32(c)), uintptr(unsafe.Pointer(&f.a)))) != api.Success {
		return ""
	}
	return dl.GoString(uintptr(f.a))
}

func (d *Driver) DeviceGetCount() (int, api.Code) {
	p := d.proc(cuDeviceGetCount)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call1(p, uintptr(unsafe.Pointer(&f.i))))
	v := int(f.i)
	putFrame(f)
	return v, c
}

func (d *Driver) DeviceGet(ordinal int) (api.Device, api.Code) {
	p := d.proc(cuDeviceGet)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call2(p, uintptr(unsafe.Pointer(&f.i)), uintptr(uint32(ordinal))))
	v := api.Device(f.i)
	putFrame(f)
	return v, c
}

func (d *Driver) DeviceGetName(dev api.Device) (string, api.Code) {
	return d.deviceText(cuDeviceGetName, dev)
}

func (d *Driver) DeviceGetPCIBusId(dev api.Device) (string, api.Code) {
	return d.deviceText(cuDeviceGetPCIBusId, dev)
}

// deviceText calls a function of the shape CUresult f(char *, int len, CUdevice).
func (d *Driver) deviceText(s sym, dev api.Device) (string, api.Code) {
	p := d.proc(s)
	if p == 0 {
		return "", api.CodeSymbolMissing
	}
	f := getFrame()
	defer putFrame(f)
	f.name[0] = 0
	c := code(f.args.Call3(p, uintptr(unsafe.Pointer(&f.name)), uintptr(len(f.name)), uintptr(uint32(dev))))
	if c != api.Success {
		return "", c
	}
	return f.text(), c
}

func (d *Driver) DeviceGetByPCIBusId(id string) (api.Device, api.Code) {
	p := d.proc(cuDeviceGetByPCIBusId)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	defer putFrame(f)
	s, ok := f.cstring(id)
	if !ok {
		return 0, api.InvalidValue
	}
	c := code(f.args.Call2(p, uintptr(unsafe.Pointer(&f.i)), uintptr(unsafe.Pointer(s))))
	return api.Device(f.i), c
}

func (d *Driver) DeviceGetAttribute(a api.DeviceAttribute, dev api.Device) (int, api.Code) {
	p := d.proc(cuDeviceGetAttribute)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call3(p, uintptr(unsafe.Pointer(&f.i)), uintptr(uint32(a)), uintptr(uint32(dev))))
	v := int(f.i)
	putFrame(f)
	return v, c
}

func (d *Driver) DeviceTotalMem(dev api.Device) (uint64, api.Code) {
	p := d.proc(cuDeviceTotalMem)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call2(p, uintptr(unsafe.Pointer(&f.a)), uintptr(uint32(dev))))
	v := f.a
	putFrame(f)
	return v, c
}

func (d *Driver) DeviceGetUuid(dev api.Device) (api.UUID, api.Code) {
	// The second version gives a MIG slice its own UUID; older drivers have
	// only the first.
	p := d.proc(cuDeviceGetUuidV2)
	if p == 0 {
		p = d.proc(cuDeviceGetUuid)
	}
	if p == 0 {
		return api.UUID{}, api.CodeSymbolMissing
	}
	f := getFrame()
	f.uuid = api.UUID{}
	c := code(f.args.Call2(p, uintptr(unsafe.Pointer(&f.uuid)), uintptr(uint32(dev))))
	v := f.uuid
	putFrame(f)
	return v, c
}

func (d *Driver) DeviceCanAccessPeer(dev, peer api.Device) (bool, api.Code) {
	p := d.proc(cuDeviceCanAccessPeer)
	if p == 0 {
		return false, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call3(p, uintptr(unsafe.Pointer(&f.i)), uintptr(uint32(dev)), uintptr(uint32(peer))))
	v := f.i != 0
	putFrame(f)
	return v, c
}

func (d *Driver) DeviceGetP2PAttribute(a api.P2PAttribute, src, dst api.Device) (int, api.Code) {
	p := d.proc(cuDeviceGetP2PAttribute)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call4(p, uintptr(unsafe.Pointer(&f.i)), uintptr(uint32(a)), uintptr(uint32(src)), uintptr(uint32(dst))))
	v := int(f.i)
	putFrame(f)
	return v, c
}
