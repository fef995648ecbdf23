// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/dl"
)

// Library is the file that was loaded, with links resolved where the system
// says.
func (l *Library) Library() string { return l.lib.File(nvmlInit) }

// DriverVersion is documented on Source.
func (l *Library) DriverVersion() (string, error) {
	return l.text(nvmlSystemGetDriverVersion, func(p dl.Proc, buf *byte, size uintptr) uintptr {
		return dl.Call2(p, uintptr(unsafe.Pointer(buf)), size)
	})
}

// NVMLVersion is documented on Source.
func (l *Library) NVMLVersion() (string, error) {
	return l.text(nvmlSystemGetNVMLVersion, func(p dl.Proc, buf *byte, size uintptr) uintptr {
		return dl.Call2(p, uintptr(unsafe.Pointer(buf)), size)
	})
}

// CUDAVersion is documented on Source.
func (l *Library) CUDAVersion() (int, error) {
	v := new(int32)
	err := l.call(nvmlSystemGetCudaDriverVersion, func(p dl.Proc) uintptr {
		return dl.Call1(p, uintptr(unsafe.Pointer(v)))
	})
	if err != nil {
		return 0, err
	}
	return int(*v), nil
}

// settings is nvmlSystemConfComputeSettings_v1_t.
type settings struct {
	version, environment, feature, devTools, multiGPU uint32
}

// state is nvmlConfComputeSystemState_t.
type state struct {
	environment, feature, devTools uint32
}

// versioned is what nvml.h's NVML_STRUCT_VERSION makes for the version field of
// a struct.
func versioned(size uintptr, version uint32) uint32 { return uint32(size) | version<<24 }

// ConfCompute is documented on Source.
func (l *Library) ConfCompute() (ConfCompute, error) {
	s := &settings{version: versioned(unsafe.Sizeof(settings{}), 1)}
	err := l.call(nvmlSystemGetConfComputeSettings, func(p dl.Proc) uintptr {
		return dl.Call1(p, uintptr(unsafe.Pointer(s)))
	})
	if err == nil {
		return ConfCompute{Enabled: s.feature != 0, Environment: s.environment, DevTools: s.devTools != 0, MultiGPU: s.multiGPU}, nil
	}
	if !errors.Is(err, ErrFunctionNotFound) && !errors.Is(err, ErrArgumentVersion) {
		return ConfCompute{}, err
	}
	o := new(state)
	err = l.call(nvmlSystemGetConfComputeState, func(p dl.Proc) uintptr {
		return dl.Call1(p, uintptr(unsafe.Pointer(o)))
	})
	if err != nil {
		return ConfCompute{}, err
	}
	return ConfCompute{Enabled: o.feature != 0, Environment: o.environment, DevTools: o.devTools != 0}, nil
}

// Count is documented on Source.
func (l *Library) Count() (int, error) {
	n := new(uint32)
	err := l.call(nvmlDeviceGetCount, func(p dl.Proc) uintptr {
		return dl.Call1(p, uintptr(unsafe.Pointer(n)))
	})
	if err != nil {
		return 0, err
	}
	return int(*n), nil
}

// Device is documented on Source.
func (l *Library) Device(i int) (Device, error) {
	if i < 0 {
		return nil, &Error{Op: nvmlDeviceGetHandleByIndex, Code: ErrInvalidArgument}
	}
	h := new(uint64)
	return l.device(h, l.call(nvmlDeviceGetHandleByIndex, func(p dl.Proc) uintptr {
		return dl.Call2(p, uintptr(uint32(i)), uintptr(unsafe.Pointer(h)))
	}))
}

// DeviceByBusID is documented on Source.
func (l *Library) DeviceByBusID(busID string) (Device, error) {
	id, ok := NormalBusID(busID)
	if !ok {
		return nil, &Error{Op: nvmlDeviceGetHandleByPciBusId, Code: ErrInvalidArgument}
	}
	return l.find(nvmlDeviceGetHandleByPciBusId, id)
}

// DeviceByUUID is documented on Source.
func (l *Library) DeviceByUUID(uuid string) (Device, error) {
	return l.find(nvmlDeviceGetHandleByUUID, uuid)
}

func (l *Library) find(symbol, name string) (Device, error) {
	c, ok := cstring(name)
	if !ok {
		return nil, &Error{Op: symbol, Code: ErrInvalidArgument}
	}
	h := new(uint64)
	return l.device(h, l.call(symbol, func(p dl.Proc) uintptr {
		return dl.Call2(p, uintptr(unsafe.Pointer(c)), uintptr(unsafe.Pointer(h)))
	}))
}

func (l *Library) device(handle *uint64, err error) (Device, error) {
	if err != nil {
		return nil, err
	}
	return &gpu{l: l, handle: uintptr(*handle)}, nil
}
