// SPDX-License-Identifier: Apache-2.0

package libcuda

import (
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/dl"
)

func (d *Driver) EventCreate(flags api.EventFlag) (api.Event, api.Code) {
	p := d.proc(cuEventCreate)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call2(p, uintptr(unsafe.Pointer(&f.a)), uintptr(flags)))
	v := api.Event(f.a)
	putFrame(f)
	return v, c
}

func (d *Driver) EventDestroy(e api.Event) api.Code {
	p := d.proc(cuEventDestroy)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call1(p, uintptr(e)))
}

func (d *Driver) EventRecord(e api.Event, s api.Stream) api.Code {
	p := d.proc(cuEventRecord)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call2(p, uintptr(e), uintptr(s)))
}

func (d *Driver) EventQuery(e api.Event) api.Code {
	p := d.proc(cuEventQuery)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call1(p, uintptr(e)))
}

func (d *Driver) EventSynchronize(e api.Event) api.Code {
	p := d.proc(cuEventSynchronize)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call1(p, uintptr(e)))
}

func (d *Driver) EventElapsedTime(start, end api.Event) (ms float32, result api.Code) {
	p := d.proc(cuEventElapsedTime)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call3(p, uintptr(unsafe.Pointer(&f.ms)), uintptr(start), uintptr(end)))
	v := f.ms
	putFrame(f)
	return v, c
}
