// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"io/fs"
	"slices"

	"github.com/geforce-p2p/geforce-p2p/internal/pci"
)

// sysfs fills in what the kernel knows of each device.
func (c *collector) sysfs() {
	bridges := map[string]Bridge{} // several GPUs share those near the root
	iommus := c.facts.Machine.IOMMUs
	for _, d := range c.join.devices {
		if d.busID == "" {
			continue
		}
		dev, err := pci.At(c.files.fsys, d.busID)
		if err != nil {
			continue // ids of the joiner are in the normal form
		}
		fillFromSysfs(&d.device, dev, iommus)
		d.device.Path = c.bridgePath(dev, bridges)
	}
}

func fillFromSysfs(v *Device, dev pci.Device, iommus Value[int]) {
	vendor, err := dev.Vendor()
	v.VendorID = first(valueOf(Hex(vendor), err, dev.Path("vendor")), v.VendorID)
	device, err := dev.DeviceID()
	v.DeviceID = first(valueOf(Hex(device), err, dev.Path("device")), v.DeviceID)
	sub, subVendor, err := dev.Subsystem()
	v.SubsystemID = first(valueOf(Hex(sub)<<16|Hex(subVendor), err, dev.Path("subsystem_device")), v.SubsystemID)
	class, err := dev.Class()
	v.Class = valueOf(Hex(class), err, dev.Path("class"))

	regions, err := dev.Regions()
	bars := make([]BAR, 0, len(regions))
	for _, r := range regions {
		bars = append(bars, BAR{Line: r.Line, Start: Hex(r.Start), Size: r.Size,
			Memory: r.Memory(), Prefetch: r.Prefetch(), Is64: r.Is64()})
	}
	v.BARs = valueOf(bars, err, dev.Path("resource"))
	if err == nil {
		bar1, err := pci.BAR1(regions)
		v.BAR1 = first(v.BAR1, valueOf(bar1.Size, err, dev.Path("resource")))
		if err == nil {
			mask, err := dev.ResizeMask(bar1.Line)
			if errors.Is(err, fs.ErrNotExist) {
				mask, err = 0, nil // no size is on offer, or the kernel is too old to tell
			}
			v.ResizeMask = valueOf(Hex(mask), err, dev.Path(pci.ResizeFile(bar1.Line)))
		}
	} else {
		v.BAR1 = first(v.BAR1, failed[uint64](err, dev.Path("resource")))
	}

	link := sysfsLink(dev)
	v.Link = Link{
		Gen: first(link.Gen, v.Link.Gen), GenMax: first(link.GenMax, v.Link.GenMax),
		Width: first(link.Width, v.Link.Width), WidthMax: first(link.WidthMax, v.Link.WidthMax),
	}
	node, err := dev.NUMANode()
	v.NUMA = first(valueOf(node, err, dev.Path("numa_node")), v.NUMA)
	power, err := dev.PowerState()
	v.RuntimePower = valueOf(power, err, dev.Path("power_state"))
	driver, err := dev.Driver()
	v.BoundDriver = valueOf(driver, err, dev.Path("driver"))

	group, kind, err := dev.IOMMU()
	source := "/sys/kernel/iommu_groups/" + group + "/type"
	if group == "" {
		source = dev.Path("iommu_group")
	} else {
		v.IOMMUGroup = Known(group, dev.Path("iommu_group"))
	}
	v.IOMMUType = valueOf(kind, err, source)
	if err == nil && group == "" && !iommus.IsKnown() {
		// A container may hide the links of devices and the list of IOMMUs.
		v.IOMMUType = Unknown[string](source, "there is no group, and whether there is an IOMMU is not known")
	}
}

func sysfsLink(dev pci.Device) Link {
	value := func(get func() (int, error), file string) Value[int] {
		n, err := get()
		return valueOf(n, err, dev.Path(file))
	}
	return Link{
		Gen: value(dev.LinkGen, "current_link_speed"), GenMax: value(dev.MaxLinkGen, "max_link_speed"),
		Width: value(dev.LinkWidth, "current_link_width"), WidthMax: value(dev.MaxLinkWidth, "max_link_width"),
	}
}

// bridgePath is the bridges above a device.
func (c *collector) bridgePath(dev pci.Device, known map[string]Bridge) Value[[]Bridge] {
	up, err := dev.Upstream()
	out := make([]Bridge, 0, len(up))
	for _, b := range up {
		bridge, ok := known[b.BusID()]
		if !ok {
			bridge = sysfsBridge(b)
			known[b.BusID()] = bridge
		}
		out = append(out, bridge)
	}
	return valueOf(out, err, dev.Path(""))
}

// kinds are the words for the types of port.
var kinds = map[pci.PortType]string{pci.PortRoot: "root-port", pci.PortUpstream: "upstream", pci.PortDownstream: "downstream"}

func sysfsBridge(dev pci.Device) Bridge {
	b := Bridge{BusID: dev.BusID(), Kind: "bridge", Link: sysfsLink(dev)}
	vendor, err := dev.Vendor()
	b.VendorID = valueOf(Hex(vendor), err, dev.Path("vendor"))
	device, err := dev.DeviceID()
	b.DeviceID = valueOf(Hex(device), err, dev.Path("device"))

	config, err := dev.Config()
	source := dev.Path("config")
	if err != nil {
		b.ACS = failed[ACS](err, source)
		return b
	}
	if t, ok, err := config.PortType(); err == nil && ok && kinds[t] != "" {
		b.Kind = kinds[t]
	}
	control, present, err := config.ACS()
	b.ACS = valueOf(ACS{Present: present, Control: Hex(control)}, err, source)
	return b
}

// root is where a device hangs in the tree of buses.
type root struct {
	bus     string   // "pci0000:40"; "" if not known
	bridges []string // bus ids, from the root port down
	why     string   // why it is not known
}

// roots finds the place of each joined device.
func (c *collector) roots() []root {
	out := make([]root, len(c.join.devices))
	for i, d := range c.join.devices {
		r := &out[i]
		if !c.linux || d.busID == "" {
			r.why = "no sysfs path"
			continue
		}
		dev, err := pci.At(c.files.fsys, d.busID)
		if err == nil {
			var up []pci.Device
			r.bus, up, err = dev.Route()
			for _, b := range up {
				r.bridges = append(r.bridges, b.BusID())
			}
		}
		if err != nil {
			r.why = failed[int](err, "sysfs").Error
		}
	}
	return out
}

// ancestor is where the paths of two devices meet, as NVML would say it.
func ancestor(a, b root, nodeA, nodeB Value[int]) Value[Ancestor] {
	const source = "the paths of /sys/bus/pci/devices"
	switch {
	case a.bus == "":
		return Unknown[Ancestor](source, a.why)
	case b.bus == "":
		return Unknown[Ancestor](source, b.why)
	case a.bus != b.bus:
		x, y := nodeA.Or(-1), nodeB.Or(-1)
		switch {
		case x < 0 || y < 0:
			return Unknown[Ancestor](source, "two host bridges, and their NUMA nodes are not known")
		case x == y:
			return Known(AncestorNode, source)
		}
		return Known(AncestorSystem, source)
	}
	common := 0
	for common < min(len(a.bridges), len(b.bridges)) && a.bridges[common] == b.bridges[common] {
		common++
	}
	switch {
	case common == 0:
		return Known(AncestorHostBridge, source)
	case len(a.bridges)-common <= 1 && len(b.bridges)-common <= 1:
		return Known(AncestorSingle, source) // below ports of one switch
	}
	return Known(AncestorMultiple, source)
}

// iommus counts the IOMMUs that the kernel drives; 0 means that they are off.
func (c *collector) iommus() Value[int] {
	const dir = "sys/class/iommu"
	entries, err := fs.ReadDir(c.files.fsys, dir)
	if errors.Is(err, fs.ErrNotExist) {
		// A kernel built without any has no such class. Without other classes
		// beside it, it is sysfs that is missing.
		if others, err := fs.ReadDir(c.files.fsys, "sys/class"); err == nil && len(others) > 0 {
			return Known(0, "/sys/class")
		}
	}
	return valueOf(len(entries), err, "/"+dir)
}

// numaNodes is the NUMA nodes that are online.
func (c *collector) numaNodes() Value[[]int] {
	const name = "sys/devices/system/node/online"
	s, err := c.files.text(name, maxText)
	if err != nil {
		return failed[[]int](err, "/"+name)
	}
	nodes, err := parseList(s)
	slices.Sort(nodes)
	return valueOf(nodes, err, "/"+name)
}
