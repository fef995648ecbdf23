// SPDX-License-Identifier: Apache-2.0

//go:build cgo && linux

package gonvml

import (
	"errors"
	"strings"
	"sync/atomic"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/geforce-p2p/geforce-p2p/probe/nvml"
)

// From makes a Source of a go-nvml library that the caller has initialised and
// goes on owning: Close ends the Source and does not shut the library down.
//
// go-nvml binds its functions when they are first called, and one that the
// library lacks ends the process. So each is looked up before, and a missing
// one is nvml.ErrFunctionNotFound, as it is in probe/nvml. The same is what a
// mock answers that has no function for a query.
func From(lib gonvml.Interface) nvml.Source { return &source{lib: lib} }

type source struct {
	lib    gonvml.Interface
	closed atomic.Bool
}

// ask runs one query under the lock that probe/nvml holds around NVML. symbols
// are the functions behind it: go-nvml calls the first that the library has,
// which names the query in errors.
func (s *source) ask(query func() gonvml.Return, symbols ...string) (err error) {
	op := symbols[len(symbols)-1]
	fail := func(code nvml.Return) error { return &nvml.Error{Op: op, Code: code} }
	if s.closed.Load() {
		return fail(nvml.ErrUninitialized)
	}
	nvml.Serialized(func() {
		defer func() {
			// moq's mocks panic where they were given no function.
			p := recover()
			if p == nil {
				return
			}
			if text, ok := p.(string); !ok || !strings.Contains(text, "method is nil but") {
				panic(p)
			}
			err = fail(nvml.ErrFunctionNotFound)
		}()
		found, code := s.lookup(symbols)
		if found == "" {
			err = fail(code)
			return
		}
		op = found
		if r := query(); r != gonvml.SUCCESS {
			err = fail(nvml.Return(r))
		}
	})
	return err
}

// lookup finds the first function that the library has, or says why there is
// none.
func (s *source) lookup(symbols []string) (found string, code nvml.Return) {
	extensions := s.lib.Extensions()
	if extensions == nil {
		return symbols[0], 0 // a library of the caller's own that cannot tell
	}
	for _, symbol := range symbols {
		if extensions.LookupSymbol(symbol) == nil {
			return symbol, 0
		}
	}
	// It finds nothing in a library that is not loaded.
	if extensions.LookupSymbol("nvmlInit_v2") != nil && extensions.LookupSymbol("nvmlInit") != nil {
		return "", nvml.ErrUninitialized
	}
	return "", nvml.ErrFunctionNotFound
}

// get is ask for a query with one result, which counts only without an error.
func get[T any](s *source, query func() (T, gonvml.Return), symbols ...string) (T, error) {
	var v T
	err := s.ask(func() (r gonvml.Return) { v, r = query(); return r }, symbols...)
	if err != nil {
		var none T
		return none, err
	}
	return v, nil
}

func (s *source) Library() string { return "github.com/NVIDIA/go-nvml" }

func (s *source) Close() error {
	s.closed.Store(true)
	return nil
}

func (s *source) DriverVersion() (string, error) {
	return get(s, s.lib.SystemGetDriverVersion, "nvmlSystemGetDriverVersion")
}

func (s *source) NVMLVersion() (string, error) {
	return get(s, s.lib.SystemGetNVMLVersion, "nvmlSystemGetNVMLVersion")
}

func (s *source) CUDAVersion() (int, error) {
	v, err := get(s, s.lib.SystemGetCudaDriverVersion_v2, "nvmlSystemGetCudaDriverVersion_v2")
	if errors.Is(err, nvml.ErrFunctionNotFound) {
		// go-nvml's mock machines have only the plain one.
		v, err = get(s, s.lib.SystemGetCudaDriverVersion, "nvmlSystemGetCudaDriverVersion")
	}
	return v, err
}

func (s *source) ConfCompute() (nvml.ConfCompute, error) {
	v, err := get(s, s.lib.SystemGetConfComputeSettings, "nvmlSystemGetConfComputeSettings")
	if err == nil {
		return nvml.ConfCompute{Enabled: v.CcFeature != 0, Environment: v.Environment, DevTools: v.DevToolsMode != 0, MultiGPU: v.MultiGpuMode}, nil
	}
	if !errors.Is(err, nvml.ErrFunctionNotFound) && !errors.Is(err, nvml.ErrArgumentVersion) {
		return nvml.ConfCompute{}, err
	}
	o, err := get(s, s.lib.SystemGetConfComputeState, "nvmlSystemGetConfComputeState")
	if err != nil {
		return nvml.ConfCompute{}, err
	}
	return nvml.ConfCompute{Enabled: o.CcFeature != 0, Environment: o.Environment, DevTools: o.DevToolsMode != 0}, nil
}

func (s *source) Count() (int, error) {
	return get(s, s.lib.DeviceGetCount, "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount")
}

func (s *source) Device(i int) (nvml.Device, error) {
	return s.device(func() (gonvml.Device, gonvml.Return) {
		if i < 0 {
			return nil, gonvml.ERROR_INVALID_ARGUMENT
		}
		return s.lib.DeviceGetHandleByIndex(i)
	}, "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex")
}

func (s *source) DeviceByBusID(busID string) (nvml.Device, error) {
	return s.device(func() (gonvml.Device, gonvml.Return) {
		id, ok := nvml.NormalBusID(busID)
		if !ok {
			return nil, gonvml.ERROR_INVALID_ARGUMENT
		}
		return s.lib.DeviceGetHandleByPciBusId(id)
	}, "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetHandleByPciBusId")
}

func (s *source) DeviceByUUID(uuid string) (nvml.Device, error) {
	return s.device(func() (gonvml.Device, gonvml.Return) {
		if strings.IndexByte(uuid, 0) >= 0 {
			return nil, gonvml.ERROR_INVALID_ARGUMENT
		}
		return s.lib.DeviceGetHandleByUUID(uuid)
	}, "nvmlDeviceGetHandleByUUID")
}

func (s *source) device(find func() (gonvml.Device, gonvml.Return), symbols ...string) (nvml.Device, error) {
	d, err := get(s, find, symbols...)
	if err != nil {
		return nil, err
	}
	return &device{s: s, d: d}, nil
}
