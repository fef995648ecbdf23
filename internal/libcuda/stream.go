// SPDX-License-Identifier: Apache-2.0

package libcuda

import (
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/dl"
	"github.com/geforce-p2p/geforce-p2p/internal/gang"
)

func (d *Driver) StreamCreate(flags api.StreamFlag) (api.Stream, api.Code) {
	gang.Enter()
	defer gang.Leave()
	p := d.proc(cuStreamCreate)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call2(p, uintptr(unsafe.Pointer(&f.a)), uintptr(flags)))
	v := api.Stream(f.a)
	putFrame(f)
	return v, c
}

func (d *Driver) StreamDestroy(s api.Stream) api.Code {
	gang.Enter()
	defer gang.Leave()
	p := d.proc(cuStreamDestroy)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call1(p, uintptr(s)))
}

func (d *Driver) StreamQuery(s api.Stream) api.Code {
	p := d.proc(cuStreamQuery)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call1(p, uintptr(s)))
}

func (d *Driver) StreamSynchronize(s api.Stream) api.Code {
	p := d.proc(cuStreamSynchronize)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call1(p, uintptr(s)))
}

func (d *Driver) StreamWaitEvent(s api.Stream, e api.Event) api.Code {
	p := d.proc(cuStreamWaitEvent)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call3(p, uintptr(s), uintptr(e), 0))
}

func (d *Driver) StreamGetCtx(s api.Stream) (api.Context, api.Code) {
	p := d.proc(cuStreamGetCtx)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call2(p, uintptr(s), uintptr(unsafe.Pointer(&f.a))))
	v := api.Context(f.a)
	putFrame(f)
	return v, c
}

func (d *Driver) StreamIsCapturing(s api.Stream) (api.CaptureStatus, api.Code) {
	p := d.proc(cuStreamIsCapturing)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call2(p, uintptr(s), uintptr(unsafe.Pointer(&f.i))))
	v := api.CaptureStatus(f.i)
	putFrame(f)
	return v, c
}

func (d *Driver) StreamBeginCapture(s api.Stream, m api.CaptureMode) api.Code {
	p := d.proc(cuStreamBeginCapture)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call2(p, uintptr(s), uintptr(uint32(m))))
}

func (d *Driver) StreamEndCapture(s api.Stream) (api.Graph, api.Code) {
	p := d.proc(cuStreamEndCapture)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call2(p, uintptr(s), uintptr(unsafe.Pointer(&f.a))))
	v := api.Graph(f.a)
	putFrame(f)
	return v, c
}

func (d *Driver) ThreadExchangeStreamCaptureMode(m api.CaptureMode) (old api.CaptureMode, result api.Code) {
	p := d.proc(cuThreadExchangeStreamCaptureMode)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	f.i = int32(m) // in and out
	c := code(f.args.Call1(p, uintptr(unsafe.Pointer(&f.i))))
	v := api.CaptureMode(f.i)
	putFrame(f)
	return v, c
}

func (d *Driver) GraphDestroy(g api.Graph) api.Code {
	p := d.proc(cuGraphDestroy)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call1(p, uintptr(g)))
}
