// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/pci"
	"github.com/geforce-p2p/geforce-p2p/probe/nvml"
)

// note is valueOf that keeps a grave error as the device's.
func note[T any](h *Handle, v T, err error, source string) Value[T] {
	f := valueOf(v, err, source)
	// Other errors are of one call: a question that this device does not answer.
	switch f.Code {
	case int(nvml.ErrGPULost), int(nvml.ErrResetRequired),
		int(cuda.ErrDeviceUnavailable), int(cuda.ErrLaunchFailed), int(cuda.ErrUnknown):
		if h.Code == 0 {
			h.Code, h.Error = f.Code, source+": "+f.Error
		}
	}
	return f
}

// An origin is one of those that name devices.
type origin int

const (
	fromNVML origin = iota
	fromProc
	fromSysfs
	fromCUDA
	origins
)

// joined is one device and what each origin calls it.
type joined struct {
	busID, uuid string
	has         [origins]bool
	cuda        cudaDevice
	nvml        nvmlDevice
	proc        map[string]string // of /proc/driver/nvidia/gpus/*/information
	procPath    string
	device      Device
}

// joiner brings together what the origins say of the same device: by bus id,
// then by UUID, never by their indices, which differ.
type joiner struct {
	devices []*joined
	windows bool
}

// errTooMany is the one thing that Collect refuses.
func errTooMany(n int, where string) error {
	return fmt.Errorf("%s has %d GPUs: at most %d are judged", where, n, maxDevices)
}

// nowhere is the bus id of devices that sit on no PCI bus (Tegra): all of them
// have it.
const nowhere = "0000:00:00.0"

// place finds the device that an origin means, or adds one. An origin means a
// device once: two MIG instances of one GPU stay two.
func (j *joiner) place(s origin, busID, uuid string) *joined {
	if busID == nowhere {
		busID = ""
	}
	uuid = normalUUID(uuid)
	match := func(fits func(d *joined) bool) *joined {
		for _, d := range j.devices {
			if !d.has[s] && fits(d) {
				return d
			}
		}
		return nil
	}
	d := match(func(d *joined) bool { return busID != "" && d.busID == busID })
	if d == nil {
		d = match(func(d *joined) bool { return uuid != "" && d.uuid == uuid })
	}
	if d == nil {
		d = &joined{}
		j.devices = append(j.devices, d)
	}
	d.has[s] = true
	if d.busID == "" {
		d.busID = busID
	}
	if d.uuid == "" {
		d.uuid = uuid
	}
	return d
}

// normalUUID is "GPU-" and lower case digits, or what was given.
func normalUUID(s string) string {
	s = strings.TrimSpace(s)
	if kind, digits, ok := strings.Cut(s, "-"); ok {
		return kind + "-" + strings.ToLower(digits)
	}
	return s
}

func (j *joiner) nvml(r nvmlResult) error {
	if n := r.lib.Devices.Or(0); n > maxDevices {
		return errTooMany(n, "NVML")
	}
	for _, d := range r.devices {
		j.place(fromNVML, d.busID, d.uuid).nvml = d
	}
	return nil
}

func (j *joiner) cuda(r cudaResult) error {
	if n := r.lib.Devices.Or(0); n > maxDevices {
		return errTooMany(n, "CUDA")
	}
	for _, d := range r.devices {
		j.place(fromCUDA, d.busID, d.uuid).cuda = d
	}
	return nil
}

func (j *joiner) proc(gpus []procGPU) error {
	if len(gpus) > maxDevices {
		return errTooMany(len(gpus), "/"+procGPUs)
	}
	for _, g := range gpus {
		d := j.place(fromProc, g.busID, g.keys["GPU UUID"])
		d.proc, d.procPath = g.keys, g.path
	}
	return nil
}

func (j *joiner) sysfs(fsys fs.FS) error {
	gpus, err := pci.GPUs(fsys)
	if err != nil {
		return nil // unknown: each value of a device says so
	}
	if len(gpus) > maxDevices {
		return errTooMany(len(gpus), "sysfs")
	}
	for _, g := range gpus {
		j.place(fromSysfs, g.BusID(), "")
	}
	return nil
}

// finish joins what is left, orders the devices by bus id, and fills in what the
// libraries said.
func (j *joiner) finish() {
	j.lost()
	slices.SortStableFunc(j.devices, func(a, b *joined) int {
		switch {
		case a.busID == "" || b.busID == "":
			return strings.Compare(b.busID, a.busID) // those without last
		default:
			return pci.CompareBusID(a.busID, b.busID)
		}
	})
	for _, d := range j.devices {
		d.fill()
		if j.windows && d.has[fromCUDA] {
			d.device.DriverModel = first(d.nvml.driverModel, d.cuda.driverModel())
		}
	}
}

// lost joins by elimination: NVML does not say where a GPU sits that fell off
// the bus. If NVML and the kernel module count the same devices, and all but one
// were joined, then the one that is left over on each side is the same.
func (j *joiner) lost() {
	var inNVML, inProc int
	var anonymous, unclaimed []*joined
	for _, d := range j.devices {
		if d.has[fromNVML] {
			inNVML++
			if d.busID == "" && d.uuid == "" {
				anonymous = append(anonymous, d)
			}
		}
		if d.has[fromProc] {
			inProc++
			if !d.has[fromNVML] {
				unclaimed = append(unclaimed, d)
			}
		}
	}
	if inNVML != inProc || len(anonymous) != 1 || len(unclaimed) != 1 {
		return
	}
	unclaimed[0].has[fromNVML], unclaimed[0].nvml = true, anonymous[0].nvml
	j.devices = slices.DeleteFunc(j.devices, func(d *joined) bool { return d == anonymous[0] })
}

func (j *joiner) list() []Device {
	list := make([]Device, len(j.devices))
	for i, d := range j.devices {
		list[i] = d.device
	}
	return list
}

// fill writes what CUDA, NVML and /proc said into the device; sysfs is read
// after that.
func (d *joined) fill() {
	v := &d.device
	c, n := d.cuda, d.nvml
	v.BusID, v.UUID = d.busID, d.uuid
	v.CUDA, v.NVML = c.handle, n.handle

	v.Name = first(n.name, c.name, d.key("Model"))
	v.Serial = n.serial
	v.VendorID = as(n.pci, func(p nvml.PCI) Hex { return Hex(p.VendorID) })
	v.DeviceID = as(n.pci, func(p nvml.PCI) Hex { return Hex(p.DeviceID) })
	v.SubsystemID = as(n.pci, func(p nvml.PCI) Hex { return Hex(p.Subsystem) })
	v.ComputeCapability = c.computeCapability
	v.Architecture = n.architecture
	v.VBIOS = first(n.vbios, d.key("Video BIOS"))
	v.Minor = first(n.minor, d.number("Device Minor"))
	v.Memory, v.CUDAMemory = n.memory, c.memory
	v.BAR1, v.BAR1Used = n.bar1, n.bar1Used
	v.Link = n.link
	v.NUMA = c.hostNUMA
	v.MIG = n.mig
	v.Virtualization = n.virtualization
	v.DriverModel = n.driverModel
	v.NVLinks = n.nvlinks
	v.Persistence = n.persistence
	v.PState = n.pstate
	v.Display = n.display
	v.Integrated = c.integrated

	// The kernel module says "N/A" for a GPU that runs without its firmware;
	// NVML says "not supported" for that and for not knowing.
	firmware := d.key("GPU Firmware")
	if firmware.Or("") == "N/A" {
		firmware = Known("", firmware.Source)
	}
	v.GSP = first(n.gsp, firmware)
}

// key is one line of the kernel module's information.
func (d *joined) key(name string) Value[string] {
	if d.proc == nil {
		return Value[string]{}
	}
	s, ok := d.proc[name]
	if !ok {
		return Unknown[string](d.procPath, "it has no "+name)
	}
	return Known(s, d.procPath)
}

func (d *joined) number(name string) Value[int] {
	v := d.key(name)
	s, ok := v.Get()
	if !ok {
		return as(v, func(string) int { return 0 })
	}
	n, err := parseCount(s)
	return valueOf(n, err, d.procPath)
}

// pairs writes what the libraries said of each direction.
func (c *collector) pairs(cu cudaResult, nv nvmlResult) {
	roots := c.roots()
	for i, a := range c.join.devices {
		for j, b := range c.join.devices {
			if i == j {
				continue
			}
			p := Pair{From: i, To: j}
			if q, ok := cu.pairs[[2]int{a.cuda.handle.Index, b.cuda.handle.Index}]; ok && a.has[fromCUDA] && b.has[fromCUDA] {
				p.CanAccess, p.PerformanceRank = q.canAccess, q.performanceRank
				p.AccessSupported, p.NativeAtomic, p.ArrayAccess = q.accessSupported, q.nativeAtomic, q.arrayAccess
			} else {
				p.CanAccess = Unknown[bool]("cuDeviceCanAccessPeer", notShown("CUDA", cu.lib, fromCUDA, a, b))
			}
			if q, ok := nv.pairs[[2]int{a.nvml.handle.Index, b.nvml.handle.Index}]; ok && a.has[fromNVML] && b.has[fromNVML] {
				p.Read, p.Write, p.NVLink = q.abilities[0], q.abilities[1], q.abilities[2]
				p.Atomics, p.PCI = q.abilities[3], q.abilities[4]
				p.Ancestor = q.ancestor
			} else {
				why := notShown("NVML", nv.lib, fromNVML, a, b)
				p.Read = Unknown[P2PStatus]("nvmlDeviceGetP2PStatus READ", why)
				p.Write = Unknown[P2PStatus]("nvmlDeviceGetP2PStatus WRITE", why)
			}
			p.Ancestor = first(p.Ancestor, ancestor(roots[i], roots[j], a.device.NUMA, b.device.NUMA))
			c.facts.Pairs = append(c.facts.Pairs, p)
		}
	}
}

// notShown says why a library tells nothing of a pair.
func notShown(library string, l Library, s origin, devices ...*joined) string {
	switch {
	case l.Skipped:
		return library + " was not asked"
	case !l.Usable:
		return library + " is not usable"
	}
	var without, broken []string
	for _, d := range devices {
		name := d.busID
		if name == "" {
			name = "a GPU"
		}
		if !d.has[s] {
			without = append(without, name)
		} else {
			broken = append(broken, name)
		}
	}
	if len(without) == 0 {
		return library + " gives no handle of " + strings.Join(broken, " or ")
	}
	return library + " does not show " + strings.Join(without, " and ") + " to this process"
}
