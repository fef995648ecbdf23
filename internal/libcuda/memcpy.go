// SPDX-License-Identifier: Apache-2.0

package libcuda

import (
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/dl"
)

func (d *Driver) MemcpyHtoD(dst api.Ptr, src unsafe.Pointer, n uint64) api.Code {
	p := d.proc(cuMemcpyHtoD)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call3(p, uintptr(dst), uintptr(src), uintptr(n)))
}

func (d *Driver) MemcpyDtoH(dst unsafe.Pointer, src api.Ptr, n uint64) api.Code {
	p := d.proc(cuMemcpyDtoH)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call3(p, uintptr(dst), uintptr(src), uintptr(n)))
}

func (d *Driver) MemcpyHtoDAsync(dst api.Ptr, src unsafe.Pointer, n uint64, s api.Stream) api.Code {
	p := d.proc(cuMemcpyHtoDAsync)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call4(p, uintptr(dst), uintptr(src), uintptr(n), uintptr(s)))
}

func (d *Driver) MemcpyDtoHAsync(dst unsafe.Pointer, src api.Ptr, n uint64, s api.Stream) api.Code {
	p := d.proc(cuMemcpyDtoHAsync)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call4(p, uintptr(dst), uintptr(src), uintptr(n), uintptr(s)))
}

func (d *Driver) MemcpyDtoDAsync(dst, src api.Ptr, n uint64, s api.Stream) api.Code {
	p := d.proc(cuMemcpyDtoDAsync)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call4(p, uintptr(dst), uintptr(src), uintptr(n), uintptr(s)))
}

func (d *Driver) MemcpyPeerAsync(dst api.Ptr, dctx api.Context, src api.Ptr, sctx api.Context, n uint64, s api.Stream) api.Code {
	p := d.proc(cuMemcpyPeerAsync)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call6(p, uintptr(dst), uintptr(dctx), uintptr(src), uintptr(sctx), uintptr(n), uintptr(s)))
}

// Memcpy2DAsync fills in CUDA_MEMCPY2D: of source and destination each, a host
// pointer that is set makes it host memory, else it is device memory.
func (d *Driver) Memcpy2DAsync(c *api.Copy2D, s api.Stream) api.Code {
	p := d.proc(cuMemcpy2DAsync)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	f := getFrame()
	f.copy = memcpy2D{
		srcType: memType(c.SrcHost), srcHost: c.SrcHost, srcDevice: c.SrcDevice, srcPitch: c.SrcPitch,
		dstType: memType(c.DstHost), dstHost: c.DstHost, dstDevice: c.DstDevice, dstPitch: c.DstPitch,
		width: c.Width, height: c.Height,
	}
	r := code(f.args.Call2(p, uintptr(unsafe.Pointer(&f.copy)), uintptr(s)))
	f.copy.srcHost, f.copy.dstHost = nil, nil // the pool keeps nobody's memory alive
	putFrame(f)
	return r
}

func memType(host unsafe.Pointer) uint32 {
	if host != nil {
		return api.MemTypeHost
	}
	return api.MemTypeDevice
}

func (d *Driver) MemsetD8Async(dst api.Ptr, v byte, n uint64, s api.Stream) api.Code {
	p := d.proc(cuMemsetD8Async)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call4(p, uintptr(dst), uintptr(v), uintptr(n), uintptr(s)))
}

func (d *Driver) MemsetD32Async(dst api.Ptr, v uint32, n uint64, s api.Stream) api.Code {
	p := d.proc(cuMemsetD32Async)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call4(p, uintptr(dst), uintptr(v), uintptr(n), uintptr(s)))
}
