// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/geforce-p2p/geforce-p2p/internal/pci"
	"github.com/geforce-p2p/geforce-p2p/probe/nvml"
)

// nvmlResult is all that NVML told.
type nvmlResult struct {
	lib          Library
	driver       Value[string]
	confidential Value[bool]
	devices      []nvmlDevice // by NVML's index
	pairs        map[[2]int]nvmlPair
}

// nvmlDevice is what NVML says of a device.
type nvmlDevice struct {
	handle         Handle
	busID, uuid    string // "" where not told
	name           Value[string]
	serial         Value[string]
	pci            Value[nvml.PCI]
	architecture   Value[string]
	vbios          Value[string]
	minor          Value[int]
	memory         Value[uint64]
	bar1, bar1Used Value[uint64]
	link           Link
	mig            Value[bool]
	gsp            Value[string]
	virtualization Value[string]
	driverModel    Value[string]
	nvlinks        Value[[]NVLink]
	persistence    Value[bool]
	pstate         Value[int]
	display        Value[bool]
}

// nvmlPair is what NVML says of the direction from one device to another.
type nvmlPair struct {
	abilities [len(nvml.P2PAbilities)]Value[P2PStatus]
	ancestor  Value[Ancestor]
}

// openAndAskNVML opens NVML unless it is open, and asks.
func openAndAskNVML(o *Options) (r nvmlResult) {
	if o.NVML != nil {
		return askNVML(o.NVML)
	}
	start := time.Now()
	src, err := o.openNVML()
	took := time.Since(start).Seconds()
	if err != nil {
		r.lib.Error = short(err.Error(), maxText)
		var load *nvml.LoadError
		var init *nvml.InitError
		switch {
		case errors.As(err, &load):
			for _, a := range load.Tried {
				r.lib.Tried = append(r.lib.Tried, attempt(a.Name, a.Err))
			}
			return r
		case errors.As(err, &init):
			r.lib.Path = init.Library
			if init.NVMLVersion != "" {
				r.lib.Version = Known(init.NVMLVersion, "nvmlSystemGetNVMLVersion")
			}
		}
		if code, ok := nvml.CodeOf(err); ok {
			r.lib.Code = int(code)
		}
		r.lib.InitSeconds = took
		return r
	}
	r = askNVML(src)
	r.lib.InitSeconds = took
	_ = src.Close() // everything was read; the process is not done with the driver
	return r
}

// askNVML asks an initialised library.
func askNVML(src nvml.Source) (r nvmlResult) {
	r.lib.Path, r.lib.Usable = src.Library(), true
	version, err := src.NVMLVersion()
	r.lib.Version = valueOf(version, err, "nvmlSystemGetNVMLVersion")
	driver, err := src.DriverVersion()
	r.driver = valueOf(driver, err, "nvmlSystemGetDriverVersion")
	conf, err := src.ConfCompute()
	r.confidential = valueOf(conf.Enabled, err, "nvmlSystemGetConfComputeState")
	n, err := src.Count()
	r.lib.Devices = valueOf(n, err, "nvmlDeviceGetCount")
	if err != nil || n > maxDevices {
		return r // too many: the joiner says so, by the count
	}
	devs := make([]nvml.Device, n)
	for i := range n {
		one := nvmlDevice{handle: Handle{Index: i, Seen: true}}
		dev, err := src.Device(i)
		if err == nil {
			devs[i] = dev
			one = askNVMLDevice(i, dev)
		} else {
			// Without a handle nothing else can be asked: whatever the code is, it
			// is the device's.
			v := failed[int](err, "nvmlDeviceGetHandleByIndex")
			one.handle.Code, one.handle.Error = v.Code, v.Source+": "+v.Error
		}
		r.devices = append(r.devices, one)
	}
	r.pairs = map[[2]int]nvmlPair{}
	for i := range n {
		for j := range n {
			if i != j && devs[i] != nil && devs[j] != nil {
				r.pairs[[2]int{i, j}] = askNVMLPair(devs[i], devs[j])
			}
		}
	}
	return r
}

func askNVMLDevice(index int, dev nvml.Device) nvmlDevice {
	d := nvmlDevice{handle: Handle{Index: index, Seen: true}}
	h := &d.handle
	place, err := dev.PCI()
	d.pci = note(h, place, err, "nvmlDeviceGetPciInfo")
	if id, err := pci.ParseBusID(place.BusID); err == nil {
		d.busID = id
	}
	text := func(get func() (string, error), source string) Value[string] {
		s, err := get()
		return note(h, short(s, maxReason), err, source)
	}
	number := func(get func() (int, error), source string) Value[int] {
		n, err := get()
		return note(h, n, err, source)
	}
	yes := func(get func() (bool, error), source string) Value[bool] {
		b, err := get()
		return note(h, b, err, source)
	}
	d.uuid = text(dev.UUID, "nvmlDeviceGetUUID").Or("")
	d.name = text(dev.Name, "nvmlDeviceGetName")
	d.serial = text(dev.Serial, "nvmlDeviceGetSerial")
	d.vbios = text(dev.VBIOS, "nvmlDeviceGetVbiosVersion")
	d.gsp = text(dev.GSPFirmware, "nvmlDeviceGetGspFirmwareVersion")
	d.minor = number(dev.Minor, "nvmlDeviceGetMinorNumber")
	d.link = Link{
		Gen:      number(dev.CurrentLinkGeneration, "nvmlDeviceGetCurrPcieLinkGeneration"),
		GenMax:   number(dev.MaxLinkGeneration, "nvmlDeviceGetMaxPcieLinkGeneration"),
		Width:    number(dev.CurrentLinkWidth, "nvmlDeviceGetCurrPcieLinkWidth"),
		WidthMax: number(dev.MaxLinkWidth, "nvmlDeviceGetMaxPcieLinkWidth"),
	}
	d.persistence = yes(dev.Persistence, "nvmlDeviceGetPersistenceMode")
	d.display = yes(dev.DisplayActive, "nvmlDeviceGetDisplayActive")

	arch, err := dev.Architecture()
	d.architecture = note(h, arch.String(), err, "nvmlDeviceGetArchitecture")
	memory, err := dev.Memory()
	d.memory = note(h, memory.Total, err, "nvmlDeviceGetMemoryInfo")
	bar1, err := dev.BAR1()
	d.bar1 = note(h, bar1.Total, err, "nvmlDeviceGetBAR1MemoryInfo")
	d.bar1Used = note(h, bar1.Used, err, "nvmlDeviceGetBAR1MemoryInfo")
	mig, _, err := dev.MIG()
	d.mig = note(h, mig, err, "nvmlDeviceGetMigMode")
	virt, err := dev.Virtualization()
	d.virtualization = note(h, virt.String(), err, "nvmlDeviceGetVirtualizationMode")
	model, _, err := dev.DriverModel()
	d.driverModel = note(h, model.String(), err, "nvmlDeviceGetDriverModel")

	const pstate = "nvmlDeviceGetPerformanceState"
	p, err := dev.PerformanceState()
	d.pstate = note(h, int(p), err, pstate)
	if err == nil && p == nvml.PStateUnknown {
		d.pstate = Unknown[int](pstate, "NVML does not know")
	}
	d.nvlinks = askNVLinks(h, dev)
	return d
}

func askNVLinks(h *Handle, dev nvml.Device) Value[[]NVLink] {
	const source = "nvmlDeviceGetNvLinkState"
	links, err := nvml.NVLinks(dev)
	if errors.Is(err, nvml.ErrNotSupported) {
		return Known([]NVLink{}, source) // its word for a GPU without NVLink
	}
	out := []NVLink{}
	for _, l := range links {
		one := NVLink{Link: l.Link, Active: l.Active}
		if l.RemotePCIErr == nil {
			one.Remote = l.RemotePCI.BusID
		}
		out = append(out, one)
	}
	return note(h, out, err, source)
}

// statuses are P2PStatus's values by NVML's numbers.
var statuses = [...]P2PStatus{P2POK, P2PChipset, P2PGPU, P2PTopology, P2PDisabledByRegistry, P2PNotSupported, P2PUnknownStatus}

// ancestors are Ancestor's values by NVML's numbers.
var ancestors = map[nvml.Topology]Ancestor{
	nvml.TopologyInternal: AncestorInternal, nvml.TopologySingle: AncestorSingle, nvml.TopologyMultiple: AncestorMultiple,
	nvml.TopologyHostBridge: AncestorHostBridge, nvml.TopologyNode: AncestorNode, nvml.TopologySystem: AncestorSystem,
}

func askNVMLPair(from, to nvml.Device) (p nvmlPair) {
	for i, ability := range nvml.P2PAbilities {
		source := "nvmlDeviceGetP2PStatus " + strings.ToUpper(ability.String())
		status, err := from.P2PStatus(to, ability)
		if err == nil && int(status) >= len(statuses) {
			err = fmt.Errorf("status %d, which is not known here", status)
		}
		if err != nil {
			p.abilities[i] = failed[P2PStatus](err, source)
			continue
		}
		p.abilities[i] = Known(statuses[status], source)
	}
	const source = "nvmlDeviceGetTopologyCommonAncestor"
	level, err := from.CommonAncestor(to)
	ancestor, known := ancestors[level]
	if err == nil && !known {
		err = fmt.Errorf("level %d, which is not known here", level)
	}
	p.ancestor = valueOf(ancestor, err, source)
	return p
}

// libraryVersion is the driver version in the name of a library's file.
var libraryVersion = regexp.MustCompile(`^lib(?:cuda|nvidia-ml)\.so\.(\d{3,4}\.\d{2,3}(?:\.\d{2})?)$`)

// userVersion is the version of the driver's user space. NVML tells it; where it
// does not start because it is of another version than the kernel's module, its
// own version ends with it ("12.570.124.04"), and files bear it in their names.
func userVersion(nv nvmlResult, cu cudaResult) Value[string] {
	if nv.driver.IsKnown() {
		return nv.driver
	}
	if v, ok := nv.lib.Version.Get(); ok {
		if _, rest, ok := strings.Cut(v, "."); ok && versionPattern.MatchString(rest) {
			return Known(rest, nv.lib.Version.Source)
		}
	}
	for _, p := range []string{nv.lib.Path, cu.lib.Path} {
		if m := libraryVersion.FindStringSubmatch(path.Base(p)); m != nil {
			return Known(m[1], p)
		}
	}
	return nv.driver
}
