// SPDX-License-Identifier: Apache-2.0

package libcuda

import (
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/dl"
	"github.com/geforce-p2p/geforce-p2p/internal/gang"
)

func (d *Driver) DevicePrimaryCtxRetain(dev api.Device) (api.Context, api.Code) {
	gang.Enter()
	defer gang.Leave()
	p := d.proc(cuDevicePrimaryCtxRetain)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call2(p, uintptr(unsafe.Pointer(&f.a)), uintptr(uint32(dev))))
	v := api.Context(f.a)
	putFrame(f)
	return v, c
}

func (d *Driver) DevicePrimaryCtxRelease(dev api.Device) api.Code {
	gang.Enter()
	defer gang.Leave()
	p := d.proc(cuDevicePrimaryCtxRelease)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call1(p, uintptr(uint32(dev))))
}

func (d *Driver) DevicePrimaryCtxGetState(dev api.Device) (flags uint32, active bool, result api.Code) {
	p := d.proc(cuDevicePrimaryCtxGetState)
	if p == 0 {
		return 0, false, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call3(p, uintptr(uint32(dev)), uintptr(unsafe.Pointer(&f.i)), uintptr(unsafe.Pointer(&f.j))))
	v0, v1 := uint32(f.i), f.j != 0
	putFrame(f)
	return v0, v1, c
}

func (d *Driver) CtxGetCurrent() (api.Context, api.Code) {
	p := d.proc(cuCtxGetCurrent)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call1(p, uintptr(unsafe.Pointer(&f.a))))
	v := api.Context(f.a)
	putFrame(f)
	return v, c
}

func (d *Driver) CtxSetCurrent(ctx api.Context) api.Code {
	p := d.proc(cuCtxSetCurrent)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call1(p, uintptr(ctx)))
}

func (d *Driver) CtxPushCurrent(ctx api.Context) api.Code {
	p := d.proc(cuCtxPushCurrent)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call1(p, uintptr(ctx)))
}

func (d *Driver) CtxPopCurrent() (api.Context, api.Code) {
	p := d.proc(cuCtxPopCurrent)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call1(p, uintptr(unsafe.Pointer(&f.a))))
	v := api.Context(f.a)
	putFrame(f)
	return v, c
}

func (d *Driver) CtxGetDevice() (api.Device, api.Code) {
	p := d.proc(cuCtxGetDevice)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call1(p, uintptr(unsafe.Pointer(&f.i))))
	v := api.Device(f.i)
	putFrame(f)
	return v, c
}

func (d *Driver) CtxSynchronize() api.Code {
	p := d.proc(cuCtxSynchronize)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call0(p))
}

func (d *Driver) CtxEnablePeerAccess(ctx api.Context) api.Code {
	gang.Enter()
	defer gang.Leave()
	p := d.proc(cuCtxEnablePeerAccess)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call2(p, uintptr(ctx), 0))
}

func (d *Driver) CtxDisablePeerAccess(ctx api.Context) api.Code {
	gang.Enter()
	defer gang.Leave()
	p := d.proc(cuCtxDisablePeerAccess)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call1(p, uintptr(ctx)))
}
