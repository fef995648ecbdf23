// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
)

// ErrClosed is what a method of a closed value answers.
var ErrClosed = errors.New("cuda: closed")

// A Driver is an initialised CUDA driver: the real one from Open, or a
// simulated one from package sim. It is safe for concurrent use and is never
// closed: the driver library stays loaded as long as the process lives.
type Driver struct {
	seam api.Driver

	mu       sync.Mutex
	contexts map[api.Context]*contextState // by handle; every state that has references
}

func init() {
	hook.NewDriver = func(seam api.Driver) (any, error) {
		d, err := newDriver(seam)
		if err != nil {
			return nil, err
		}
		return d, nil
	}
	hook.Seam = func(driver any) api.Driver { return driver.(*Driver).seam }
	hook.ContextHandle = func(ctx any) api.Context { return ctx.(*Context).Handle() }
	hook.StreamHandle = func(stream any) api.Stream { return stream.(*Stream).Handle() }
	hook.Error = func(driver any, ctx any, op string, c api.Code) error {
		if cc, _ := ctx.(*Context); cc != nil {
			return cc.st.check(op, c)
		}
		d, _ := driver.(*Driver)
		return d.check(op, c)
	}
	hook.Lose = func(driver, ctx any, op string, c api.Code) {
		ctx.(*Context).st.lost.CompareAndSwap(nil, driver.(*Driver).newError(op, c, ""))
	}
}

// newDriver runs cuInit.
func newDriver(seam api.Driver) (*Driver, error) {
	d := &Driver{seam: seam, contexts: map[api.Context]*contextState{}}
	if c := seam.Init(0); c != api.Success {
		e := d.newError("cuInit", c, "")
		e.addDetail(d.initDetail(c))
		return nil, e
	}
	return d, nil
}

// initDetail looks for what explains a cuInit that failed. It reads a few
// names below /dev, through the driver's own host.
func (d *Driver) initDetail(c api.Code) string {
	var out []string
	host := d.seam.Host()
	if host == nil {
		return ""
	}
	if !host.Modelled() && c == api.NoDevice {
		if v, set := os.LookupEnv("CUDA_VISIBLE_DEVICES"); set {
			out = append(out, "CUDA_VISIBLE_DEVICES is set to \""+v+"\"")
		}
	}
	if fsys := host.FS(); fsys != nil {
		has := func(name string) bool { _, err := fs.Stat(fsys, name); return err == nil }
		if has("dev/nvidiactl") && !has("dev/nvidia-uvm") {
			out = append(out, "/dev/nvidia-uvm is missing although /dev/nvidiactl is there: "+
				"load the module (modprobe nvidia-uvm, or nvidia-modprobe -u -c 0), and pass the node into the container")
		}
	}
	return strings.Join(out, "; ")
}

// Path is the driver library that was loaded; "" for a simulated driver.
func (d *Driver) Path() string {
	if p, ok := d.seam.(interface{ Path() string }); ok {
		return p.Path()
	}
	return ""
}

// Modelled tells whether the GPUs are simulated, so that every time taken on
// them is a model's.
func (d *Driver) Modelled() bool { return d.seam.Host().Modelled() }

// Version is the CUDA version that the driver supports, as 1000*major +
// 10*minor: 13000 is CUDA 13.0 (cuDriverGetVersion).
func (d *Driver) Version() (int, error) {
	v, c := d.seam.DriverGetVersion()
	return v, d.check("cuDriverGetVersion", c)
}

// DeviceCount is the number of devices visible to the process
// (cuDeviceGetCount).
func (d *Driver) DeviceCount() (int, error) {
	n, c := d.seam.DeviceGetCount()
	return n, d.check("cuDeviceGetCount", c)
}

// Devices lists the devices visible to the process, by ordinal.
func (d *Driver) Devices() ([]Device, error) {
	n, err := d.DeviceCount()
	if err != nil {
		return nil, err
	}
	devs := make([]Device, 0, n)
	for i := range n {
		dev, err := d.Device(i)
		if err != nil {
			return nil, err
		}
		devs = append(devs, dev)
	}
	return devs, nil
}

// Device is the device of an ordinal: an index into the devices that are
// visible to the process, in the driver's order (cuDeviceGet). Ordinals say
// nothing about NVML's or nvidia-smi's indices: join by UUID or PCIBusID.
func (d *Driver) Device(ordinal int) (Device, error) {
	h, c := d.seam.DeviceGet(ordinal)
	if c != api.Success {
		return Device{}, d.check("cuDeviceGet", c)
	}
	return Device{d: d, h: h}, nil
}

// DeviceByPCIBusID finds a device by its PCI address, "dddd:bb:dd.f" or
// shorter (cuDeviceGetByPCIBusId).
func (d *Driver) DeviceByPCIBusID(id string) (Device, error) {
	h, c := d.seam.DeviceGetByPCIBusId(id)
	if c != api.Success {
		return Device{}, d.check("cuDeviceGetByPCIBusId", c)
	}
	return Device{d: d, h: h}, nil
}
