// SPDX-License-Identifier: Apache-2.0

package libcuda

import (
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/dl"
	"github.com/geforce-p2p/geforce-p2p/internal/gang"
)

// ModuleLoadData asks for the JIT's error log if there is room for one.
func (d *Driver) ModuleLoadData(image, errorLog []byte) (api.Module, api.Code) {
	gang.Enter()
	defer gang.Leave()
	p := d.proc(cuModuleLoadDataEx)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	if len(image) == 0 {
		return 0, api.InvalidValue
	}
	f := getFrame()
	n := 0
	if len(errorLog) > 0 {
		errorLog[0] = 0
		f.jit = jitOptions{
			option: [2]int32{jitErrorLogBuffer, jitErrorLogBufferSize},
			log:    unsafe.Pointer(&errorLog[0]),
			size:   uint64(len(errorLog)),
		}
		n = 2
	}
	c := code(f.args.Call5(p, uintptr(unsafe.Pointer(&f.a)), uintptr(unsafe.Pointer(&image[0])), uintptr(n),
		uintptr(unsafe.Pointer(&f.jit.option)), uintptr(unsafe.Pointer(&f.jit.log))))
	v := api.Module(f.a)
	f.jit.log = nil // the pool keeps nobody's memory alive
	putFrame(f)
	return v, c
}

func (d *Driver) ModuleUnload(m api.Module) api.Code {
	gang.Enter()
	defer gang.Leave()
	p := d.proc(cuModuleUnload)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	return code(dl.Call1(p, uintptr(m)))
}

func (d *Driver) ModuleGetFunction(m api.Module, name string) (api.Function, api.Code) {
	gang.Enter()
	defer gang.Leave()
	p := d.proc(cuModuleGetFunction)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	defer putFrame(f)
	s, ok := f.cstring(name)
	if !ok {
		return 0, api.InvalidValue
	}
	c := code(f.args.Call3(p, uintptr(unsafe.Pointer(&f.a)), uintptr(m), uintptr(unsafe.Pointer(s))))
	return api.Function(f.a), c
}

func (d *Driver) FuncGetAttribute(a api.FunctionAttribute, fn api.Function) (int, api.Code) {
	p := d.proc(cuFuncGetAttribute)
	if p == 0 {
		return 0, api.CodeSymbolMissing
	}
	f := getFrame()
	c := code(f.args.Call3(p, uintptr(unsafe.Pointer(&f.i)), uintptr(uint32(a)), uintptr(fn)))
	v := int(f.i)
	putFrame(f)
	return v, c
}

// LaunchKernel hands the parameters over as one buffer
// (CU_LAUNCH_PARAM_BUFFER_POINTER), which the driver copies before it returns.
// More than 4096 bytes are CUDA_ERROR_INVALID_VALUE.
func (d *Driver) LaunchKernel(fn api.Function, l *api.Launch) api.Code {
	p := d.proc(cuLaunchKernel)
	if p == 0 {
		return api.CodeSymbolMissing
	}
	if len(l.Params) > maxParams {
		return api.InvalidValue
	}
	if len(l.Params) == 0 {
		return code(dl.Call11(p, uintptr(fn),
			uintptr(l.Grid[0]), uintptr(l.Grid[1]), uintptr(l.Grid[2]),
			uintptr(l.Block[0]), uintptr(l.Block[1]), uintptr(l.Block[2]),
			uintptr(l.Shared), uintptr(l.Stream), 0, 0))
	}
	f := launchFrames.Get().(*launchFrame)
	f.size = uint64(copy(unsafe.Slice((*byte)(unsafe.Pointer(&f.params)), maxParams), l.Params))
	c := code(f.args.Call11(p, uintptr(fn),
		uintptr(l.Grid[0]), uintptr(l.Grid[1]), uintptr(l.Grid[2]),
		uintptr(l.Block[0]), uintptr(l.Block[1]), uintptr(l.Block[2]),
		uintptr(l.Shared), uintptr(l.Stream), 0, uintptr(unsafe.Pointer(&f.extra))))
	launchFrames.Put(f)
	return c
}
