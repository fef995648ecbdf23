// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"time"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
	"github.com/geforce-p2p/geforce-p2p/internal/libcuda"
)

// cudaResult is all that CUDA told.
type cudaResult struct {
	lib     Library
	devices []cudaDevice // by CUDA's index
	pairs   map[[2]int]cudaPair
}

// cudaDevice is what CUDA says of a device.
type cudaDevice struct {
	handle            Handle
	busID, uuid       string // "" where not told
	name              Value[string]
	computeCapability Value[string]
	memory            Value[uint64]
	integrated        Value[bool]
	tcc               Value[bool]
	hostNUMA          Value[int]
}

// cudaPair is what CUDA says of the direction from one device to another.
type cudaPair struct {
	canAccess       Value[bool]
	performanceRank Value[int]
	accessSupported Value[bool]
	nativeAtomic    Value[bool]
	arrayAccess     Value[bool]
}

// openAndAskCUDA opens CUDA unless it is open, and asks.
func openAndAskCUDA(o *Options) (r cudaResult) {
	d := o.Driver
	var took time.Duration
	if d == nil {
		seam, err := o.openSeam()
		if err != nil {
			r.lib.Error = short(err.Error(), maxText)
			var load *libcuda.LoadError
			if errors.As(err, &load) {
				for _, a := range load.Tried {
					r.lib.Tried = append(r.lib.Tried, attempt(a.Name, a.Err))
				}
			}
			return r
		}
		// Not cuda.Open: the path must be known also when cuInit fails, and its
		// time is cuInit's alone.
		if p, ok := seam.(interface{ Path() string }); ok {
			r.lib.Path = p.Path()
		}
		start := time.Now()
		made, err := hook.NewDriver(seam)
		took = time.Since(start)
		r.lib.InitSeconds = took.Seconds()
		if err != nil {
			r.lib.Error = short(err.Error(), maxText)
			var e *cuda.Error
			if errors.As(err, &e) && e.Code != cuda.ErrSymbolMissing {
				r.lib.Code = int(e.Code)
			}
			return r
		}
		d = made.(*cuda.Driver)
	}
	r = askCUDA(d)
	r.lib.InitSeconds = took.Seconds()
	return r
}

// askCUDA asks an initialised driver.
func askCUDA(d *cuda.Driver) (r cudaResult) {
	r.lib.Path, r.lib.Usable = d.Path(), true
	version, err := d.Version()
	r.lib.Version = valueOf(fmt.Sprintf("%d.%d", version/1000, version%1000/10), err, "cuDriverGetVersion")
	n, err := d.DeviceCount()
	r.lib.Devices = valueOf(n, err, "cuDeviceGetCount")
	if err != nil || n > maxDevices {
		return r // too many: the joiner says so, by the count
	}
	devs := make([]cuda.Device, n)
	ok := make([]bool, n)
	for i := range n {
		dev, err := d.Device(i)
		one := cudaDevice{handle: Handle{Index: i, Seen: true}}
		if err == nil {
			devs[i], ok[i] = dev, true
			one = askCUDADevice(dev)
		} else {
			_ = note(&one.handle, 0, err, "cuDeviceGet")
		}
		r.devices = append(r.devices, one)
	}
	r.pairs = map[[2]int]cudaPair{}
	for i := range n {
		for j := range n {
			if i != j && ok[i] && ok[j] {
				r.pairs[[2]int{i, j}] = askCUDAPair(devs[i], devs[j])
			}
		}
	}
	return r
}

func askCUDADevice(dev cuda.Device) cudaDevice {
	c := cudaDevice{handle: Handle{Index: dev.Ordinal(), Seen: true}}
	name, err := dev.Name()
	c.name = note(&c.handle, short(name, maxReason), err, "cuDeviceGetName")
	id, err := dev.PCIBusID()
	c.busID = note(&c.handle, id, err, "cuDeviceGetPCIBusId").Or("")
	uuid, err := dev.UUID()
	c.uuid = note(&c.handle, uuid.String(), err, "cuDeviceGetUuid").Or("")
	if uuid == (cuda.UUID{}) {
		c.uuid = ""
	}
	memory, err := dev.TotalMem()
	c.memory = note(&c.handle, memory, err, "cuDeviceTotalMem")
	major, minor, err := dev.ComputeCapability()
	c.computeCapability = note(&c.handle, fmt.Sprintf("%d.%d", major, minor), err, "cuDeviceGetAttribute")
	yes := func(a cuda.DeviceAttribute, source string) Value[bool] {
		n, err := dev.Attribute(a)
		return note(&c.handle, n != 0, err, source)
	}
	c.integrated = yes(cuda.AttrIntegrated, "cuDeviceGetAttribute INTEGRATED")
	c.tcc = yes(cuda.AttrTCCDriver, "cuDeviceGetAttribute TCC_DRIVER")
	// Since CUDA 12.2: INVALID_VALUE from an older driver.
	node, err := dev.Attribute(cuda.AttrHostNUMAID)
	c.hostNUMA = note(&c.handle, node, err, "cuDeviceGetAttribute HOST_NUMA_ID")
	return c
}

func askCUDAPair(from, to cuda.Device) (p cudaPair) {
	can, err := from.CanAccessPeer(to)
	p.canAccess = valueOf(can, err, "cuDeviceCanAccessPeer")
	attribute := func(a cuda.P2PAttribute, name string) Value[int] {
		n, err := from.P2PAttribute(a, to)
		return valueOf(n, err, "cuDeviceGetP2PAttribute "+name)
	}
	yes := func(n int) bool { return n != 0 }
	p.performanceRank = attribute(cuda.P2PPerformanceRank, "PERFORMANCE_RANK")
	p.accessSupported = as(attribute(cuda.P2PAccessSupported, "ACCESS_SUPPORTED"), yes)
	p.nativeAtomic = as(attribute(cuda.P2PNativeAtomic, "NATIVE_ATOMIC_SUPPORTED"), yes)
	p.arrayAccess = as(attribute(cuda.P2PArrayAccess, "CUDA_ARRAY_ACCESS_SUPPORTED"), yes)
	return p
}

// driverModel is what CUDA alone tells of it, on Windows.
func (c cudaDevice) driverModel() Value[string] {
	tcc, known := c.tcc.Get()
	switch {
	case !known:
		return as(c.tcc, func(bool) string { return "" })
	case tcc:
		return Known("tcc", c.tcc.Source)
	}
	return Unknown[string](c.tcc.Source, "it tells WDDM and MCDM not apart")
}
