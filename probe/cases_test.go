// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"strings"
)

// A made machine: the facts of public reports, rebuilt. testdata/facts holds
// them as files, made by TestFactsFiles -update, which are what the tests read.

const gib = uint64(1) << 30

type card struct {
	name   string
	id     Hex
	cc     string
	memory uint64 // MiB, as NVML tells it
	bar1   uint64 // MiB
	mask   Hex
}

var (
	rtx4090      = card{"NVIDIA GeForce RTX 4090", 0x2684, "8.9", 24564, 32768, 0xffc0}
	rtx4090of48  = card{"NVIDIA GeForce RTX 4090", 0x2684, "8.9", 49140, 32768, 0xffc0}
	rtx3090      = card{"NVIDIA GeForce RTX 3090", 0x2204, "8.6", 24576, 32768, 0xffc0}
	rtx5070Ti    = card{"NVIDIA GeForce RTX 5070 Ti", 0x2c05, "12.0", 16303, 16384, 0x7fc0}
	rtx5060Ti    = card{"NVIDIA GeForce RTX 5060 Ti", 0x2d04, "12.0", 16311, 16384, 0x7fc0}
	rtx6000Ada   = card{"NVIDIA RTX 6000 Ada Generation", 0x26b1, "8.9", 49140, 65536, 0x1ffc0}
	rtxA6000     = card{"NVIDIA RTX A6000", 0x2230, "8.6", 49140, 65536, 0x1ffc0}
	gtx1080Ti    = card{"NVIDIA GeForce GTX 1080 Ti", 0x1b06, "6.1", 11264, 256, 0}
	rtx2080Ti    = card{"NVIDIA GeForce RTX 2080 Ti", 0x1e04, "7.5", 11264, 16384, 0x7fc0}
	unlistedCard = card{"NVIDIA GeForce RTX 9090", 0x3184, "13.0", 24000, 32768, 0xffc0}
)

// with is the card with another BAR1 of MiB and other sizes on offer.
func (c card) with(bar1 uint64, mask Hex) card {
	c.bar1, c.mask = bar1, mask
	return c
}

// machineOf is a healthy Linux host with the stock open module, one card a slot,
// that refuses P2P as a stock driver does.
func machineOf(cards ...card) *Facts {
	f := &Facts{
		Schema: Schema,
		Machine: Machine{
			OS: "linux", Arch: "amd64",
			Kernel: Known("Linux version 6.8.0-60-generic", "/proc/version"),
			IOMMUs: Known(0, "/sys/class/iommu"),
			Kargs:  Known("", "/proc/cmdline"),
		},
		Environment: Environment{
			Container: Known("", "/proc/1/environ"),
			VM:        Known("", "/proc/cpuinfo"),
			WSL2:      Known(false, "/dev/dxg"),
			MPSPipe:   Known("", "/tmp/nvidia-mps"),
		},
		Driver: Driver{
			Loaded:      Known(true, "/sys/module/nvidia"),
			UserVersion: Known("565.57.01", "nvmlSystemGetDriverVersion"),
			Params:      Known(map[string]string{"EnableResizableBar": "0", "RegistryDwords": ""}, "/proc/driver/nvidia/params"),
			UVMLoaded:   Known(true, "/sys/module/nvidia_uvm"),
		},
		CUDA: Library{Path: "/usr/lib/x86_64-linux-gnu/libcuda.so.1", Usable: true, Version: Known("12.7", "cuDriverGetVersion"), Devices: Known(len(cards), "cuDeviceGetCount")},
		NVML: Library{Path: "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", Usable: true, Version: Known("12.565.57.01", "nvmlSystemGetNVMLVersion"), Devices: Known(len(cards), "nvmlDeviceGetCount_v2")},
	}
	module(f, Open, "565.57.01")
	for i, c := range cards {
		bus := fmt.Sprintf("0000:%02x:00.0", 1+0x24*i)
		sys := "/sys/bus/pci/devices/" + bus
		f.Devices = append(f.Devices, Device{
			BusID: bus, UUID: fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i+1),
			CUDA: Handle{Index: i, Seen: true}, NVML: Handle{Index: i, Seen: true},
			Name:     Known(c.name, "nvmlDeviceGetName"),
			VendorID: Known(Hex(0x10de), sys+"/vendor"), DeviceID: Known(c.id, sys+"/device"), Class: Known(Hex(0x030000), sys+"/class"),
			ComputeCapability: Known(c.cc, "cuDeviceGetAttribute"),
			Memory:            Known(c.memory<<20, "nvmlDeviceGetMemoryInfo"),
			CUDAMemory:        Known(c.memory<<20-400<<20, "cuDeviceTotalMem"),
			BAR1:              Known(c.bar1<<20, "nvmlDeviceGetBAR1MemoryInfo"),
			ResizeMask:        Known(c.mask, sys+"/resource1_resize"),
			Link: Link{Gen: Known(1, "nvmlDeviceGetCurrPcieLinkGeneration"), GenMax: Known(4, "nvmlDeviceGetMaxPcieLinkGeneration"),
				Width: Known(16, "nvmlDeviceGetCurrPcieLinkWidth"), WidthMax: Known(16, "nvmlDeviceGetMaxPcieLinkWidth")},
			NUMA:           Known(0, sys+"/numa_node"),
			IOMMUType:      Known("", sys+"/iommu_group"),
			BoundDriver:    Known("nvidia", sys+"/driver"),
			MIG:            Known(false, "nvmlDeviceGetMigMode"),
			GSP:            Known("565.57.01", "nvmlDeviceGetGspFirmwareVersion"),
			Virtualization: Known("none", "nvmlDeviceGetVirtualizationMode"),
			NVLinks:        Known([]NVLink{}, "nvmlDeviceGetNvLinkState"),
			Display:        Known(false, "nvmlDeviceGetDisplayActive"),
		})
	}
	for i := range cards {
		for j := range cards {
			if i != j {
				f.Pairs = append(f.Pairs, Pair{From: i, To: j})
			}
		}
	}
	everyPair(f, func(p *Pair) {
		p.CanAccess = Known(false, "cuDeviceCanAccessPeer")
		p.Ancestor = Known(AncestorHostBridge, "nvmlDeviceGetTopologyCommonAncestor")
		setStatus(p, P2PChipset)
	})
	return f
}

func module(f *Facts, fl Flavour, version string) {
	const proc = "/proc/driver/nvidia/version"
	f.Driver.Flavour, f.Driver.Version = Known(fl, proc), Known(version, proc)
	if fl == Open {
		f.Driver.Line = Known("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "+version+"  Release Build", proc)
	} else {
		f.Driver.Line = Known("NVRM version: NVIDIA UNIX x86_64 Kernel Module  "+version, proc)
	}
	f.Driver.UserVersion = Known(version, "nvmlSystemGetDriverVersion")
}

func everyPair(f *Facts, do func(*Pair)) {
	for i := range f.Pairs {
		do(&f.Pairs[i])
	}
}

func everyDevice(f *Facts, do func(i int, d *Device)) {
	for i := range f.Devices {
		do(i, &f.Devices[i])
	}
}

func setStatus(p *Pair, s P2PStatus) {
	const source = "nvmlDeviceGetP2PStatus"
	p.Read, p.Write = Known(s, source), Known(s, source)
	p.NVLink, p.Atomics, p.PCI = Known(P2PNotSupported, source), Known(P2PNotSupported, source), Known(s, source)
}

func grant(f *Facts) {
	everyPair(f, func(p *Pair) {
		p.CanAccess = Known(true, "cuDeviceCanAccessPeer")
		setStatus(p, P2POK)
	})
}

func withoutNVML(f *Facts, code int, why string) {
	f.NVML = Library{Path: f.NVML.Path, Code: code, Error: why}
	if code == 0 {
		f.NVML.Path, f.NVML.Tried = "", []string{"libnvidia-ml.so.1", "libnvidia-ml.so"}
	}
	f.Driver.UserVersion = Unknown[string]("nvmlSystemGetDriverVersion", why)
	everyDevice(f, func(i int, d *Device) {
		sys := "/sys/bus/pci/devices/" + d.BusID
		d.NVML = Handle{}
		d.Name = Known(d.Name.Or(""), "cuDeviceGetName")
		d.Memory = Unknown[uint64]("nvmlDeviceGetMemoryInfo", "NVML is not usable")
		d.BAR1 = Known(d.BAR1.Or(0), sys+"/resource")
		d.MIG, d.GSP, d.Virtualization = Value[bool]{}, Value[string]{}, Value[string]{}
		d.NVLinks, d.Display = Value[[]NVLink]{}, Value[bool]{}
		d.Link = Link{Gen: Known(1, sys+"/current_link_speed"), GenMax: Known(4, sys+"/max_link_speed"),
			Width: Known(16, sys+"/current_link_width"), WidthMax: Known(16, sys+"/max_link_width")}
	})
	everyPair(f, func(p *Pair) {
		no := Unknown[P2PStatus]("nvmlDeviceGetP2PStatus", "NVML is not usable")
		p.Read, p.Write, p.NVLink, p.Atomics, p.PCI = no, no, no, no, no
		p.Ancestor = Unknown[Ancestor]("nvmlDeviceGetTopologyCommonAncestor", "NVML is not usable")
	})
}

func withoutCUDA(f *Facts, path string, code int, why string) {
	f.CUDA = Library{Path: path, Code: code, Error: why}
	everyDevice(f, func(i int, d *Device) {
		d.CUDA = Handle{}
		d.CUDAMemory = Unknown[uint64]("cuDeviceTotalMem", "CUDA is not usable")
		d.ComputeCapability = Known(d.ComputeCapability.Or(""), "nvmlDeviceGetCudaComputeCapability")
	})
	everyPair(f, func(p *Pair) { p.CanAccess = Unknown[bool]("cuDeviceCanAccessPeer", "CUDA is not usable") })
}

func translating(f *Facts, kind string) {
	f.Machine.IOMMUs = Known(1, "/sys/class/iommu")
	everyDevice(f, func(i int, d *Device) {
		group := fmt.Sprint(20 + i)
		d.IOMMUGroup = Known(group, "/sys/bus/pci/devices/"+d.BusID+"/iommu_group")
		d.IOMMUType = Known(kind, "/sys/kernel/iommu_groups/"+group+"/type")
	})
}

func inLXC(f *Facts) {
	f.Environment.Container = Known("lxc", "/proc/1/environ")
	withoutCUDA(f, f.CUDA.Path, 999, "unknown error")
	for i := range f.Devices {
		f.Nodes = append(f.Nodes, DeviceNode{Path: fmt.Sprintf("/dev/nvidia%d", i), Exists: true, Char: true, Mode: "crw-rw-rw-", Major: 195, Minor: i, WantMajor: Known(195, "/proc/devices")})
	}
	f.Nodes = append(f.Nodes, DeviceNode{Path: "/dev/nvidiactl", Exists: true, Char: true, Mode: "crw-rw-rw-", Major: 195, Minor: 255, WantMajor: Known(195, "/proc/devices")})
}

// blogHost is the host of a blog on the patch: two EPYC 7542, eight RTX 4090,
// one a NUMA node, no switch.
func blogHost() *Facts {
	f := machineOf(rtx4090, rtx4090, rtx4090, rtx4090, rtx4090, rtx4090, rtx4090, rtx4090)
	const blog = "blog of 2025-02-07 on an 8x RTX 4090 host"
	f.Machine.CPU = Known("AMD EPYC 7542 32-Core Processor", blog)
	f.Machine.Kernel = Value[string]{}
	f.Machine.Kargs = Value[string]{}
	f.Machine.IOMMUs = Known(0, blog+": /sys/class/iommu is empty")
	f.CUDA.Version, f.NVML.Version = Value[string]{}, Value[string]{}
	nodes := []int{3, 2, 1, 0, 7, 6, 5, 4}
	buses := []int{0x01, 0x25, 0x41, 0x61, 0x81, 0xa1, 0xc1, 0xe1}
	assumed := "the card's usual value, not in the blog"
	everyDevice(f, func(i int, d *Device) {
		d.BusID = fmt.Sprintf("0000:%02x:00.0", buses[i])
		d.UUID = ""
		d.Name = Known(d.Name.Or(""), blog)
		d.VendorID, d.Class = assume(d.VendorID, assumed), assume(d.Class, assumed)
		d.DeviceID = assume(d.DeviceID, assumed)
		d.ComputeCapability = assume(d.ComputeCapability, assumed)
		d.Memory = Known(uint64(24564)<<20, blog)
		d.CUDAMemory = Value[uint64]{}
		d.NUMA = Known(nodes[i], blog)
		d.Link.GenMax, d.Link.WidthMax = assume(d.Link.GenMax, assumed), assume(d.Link.WidthMax, assumed)
		d.Link.Gen, d.Link.Width = Value[int]{}, Value[int]{}
		d.IOMMUType = Value[string]{}
		d.BoundDriver = Value[string]{}
		d.GSP = Value[string]{}
		d.MIG, d.Virtualization = Value[bool]{}, Value[string]{}
		d.NVLinks, d.Display = Value[[]NVLink]{}, Value[bool]{}
		d.BAR1 = Known(uint64(32768)<<20, blog+": nvidia-smi -q")
		d.ResizeMask = assume(Known(rtx4090.mask, ""), "not in the blog; the same cards had 32768 MiB after the patch")
	})
	everyPair(f, func(p *Pair) {
		p.CanAccess = Known(false, blog+": p2pBandwidthLatencyTest")
		no := Unknown[P2PStatus]("nvmlDeviceGetP2PStatus", "not in the blog")
		p.Read, p.Write, p.NVLink, p.Atomics, p.PCI = no, no, Value[P2PStatus]{}, Value[P2PStatus]{}, Value[P2PStatus]{}
		p.Ancestor = Known(AncestorSystem, blog+": nvidia-smi topo -m")
	})
	module(f, Open, "550.90.07")
	f.Driver.Line = Value[string]{}
	f.Driver.Loaded, f.Driver.UVMLoaded = Value[bool]{}, Value[bool]{}
	f.Driver.Params, f.Driver.UserVersion = Value[map[string]string]{}, Value[string]{}
	f.Environment = Environment{}
	return f
}

func assume[T any](v Value[T], why string) Value[T] {
	v.Source, v.Assumed = why, true
	return v
}

func blogBefore() *Facts {
	f := blogHost()
	f.Note = "Rebuilt from a blog: the host before the patch, with Resizable BAR on in the firmware. The blog names neither the version nor the flavour of the module before; both are assumptions of this file, as is what the source of a value calls so."
	f.Driver.Version = assume(f.Driver.Version, "the version of the patched driver that followed")
	f.Driver.Flavour = assume(f.Driver.Flavour, "assumed: the blog does not tell")
	everyDevice(f, func(i int, d *Device) {
		d.BAR1 = Known(uint64(256)<<20, "blog of 2025-02-07 on an 8x RTX 4090 host: nvidia-smi -q")
	})
	return f
}

func blogAfter() *Facts {
	f := blogHost()
	f.Note = "Rebuilt from a blog: the host with the patched modules 550.90.07-p2p. That its module calls itself open follows from the patch, which there is for open modules only."
	f.Driver.Version = Known("550.90.07", "blog of 2025-02-07 on an 8x RTX 4090 host")
	f.Driver.Flavour = assume(f.Driver.Flavour, "the patch is one of the open modules")
	everyPair(f, func(p *Pair) {
		p.CanAccess = Known(true, "blog of 2025-02-07 on an 8x RTX 4090 host: p2pBandwidthLatencyTest")
	})
	return f
}

// A factsCase is a file of testdata/facts.
type factsCase struct {
	name string
	make func() *Facts
	// What every direction of the file comes to, unless check says otherwise.
	state    State
	headline CauseID
	patch    Patch
	status   Status
}

func rebuilt(f *Facts, s string) *Facts {
	f.Note = strings.TrimSpace("Rebuilt from public reports, which give the fields that matter; the rest is a healthy host's. " + s)
	return f
}

var factsCases = []factsCase{
	{"01-iommu-translating", func() *Facts {
		f := machineOf(rtx6000Ada, rtx6000Ada)
		grant(f)
		translating(f, "DMA-FQ")
		return rebuilt(f, "open-gpu-kernel-modules issue 1257: P2P granted, copies silently wrong with an IOMMU that translates.")
	}, StateRisk, IOMMUTranslating, PatchNotNeeded, StatusJudged},
	{"04-different-chips", func() *Facts {
		f := machineOf(rtx5070Ti, rtx5060Ti)
		module(f, Open, "610.43.02")
		everyPair(f, func(p *Pair) { setStatus(p, P2POK) })
		return rebuilt(f, "NVML says OK and CUDA cannot, between different chips.")
	}, StateOff, DifferentChips, PatchNo, StatusJudged},
	{"06-order-differs", func() *Facts {
		f := machineOf(rtx3090.with(256, 0xffc0), rtx3090)
		f.Devices[0].BusID, f.Devices[1].BusID = "0000:01:00.0", "0000:82:00.0"
		f.Devices[0].CUDA.Index, f.Devices[1].CUDA.Index = 1, 0
		return rebuilt(f, "CUDA orders the GPUs otherwise than NVML; one of them has a small BAR1.")
	}, StateOff, BAR1Small, PatchAfter, StatusJudged},
	{"11-4090-of-48-gb", func() *Facts {
		return rebuilt(machineOf(rtx4090of48, rtx4090of48), "RTX 4090 rebuilt with 48 GB: the largest BAR1 is 32 GiB.")
	}, StateOff, BAR1Card, PatchNo, StatusJudged},
	{"13-small-bar-without-nvml", func() *Facts {
		f := machineOf(rtx3090.with(256, 0), rtx3090.with(256, 0))
		withoutNVML(f, 0, "no such library")
		return rebuilt(f, "BAR1 of 256 MiB, known from sysfs alone; the vBIOS offers no other size.")
	}, StateOff, BAR1Firmware, PatchAfter, StatusJudged},
	{"16-version-mismatch", func() *Facts {
		f := machineOf(rtx4090, rtx4090)
		module(f, Open, "570.124.06")
		withoutNVML(f, 18, "Driver/library version mismatch")
		withoutCUDA(f, f.CUDA.Path, 803, "system has unsupported display driver / cuda driver combination")
		f.Driver.UserVersion = Known("570.124.04", "libnvidia-ml.so.570.124.04")
		return rebuilt(f, "Module 570.124.06 under user space 570.124.04.")
	}, StateUnknown, VersionSkew, PatchNo, StatusUnusable},
	{"17-nvml-unknown-error", func() *Facts {
		f := machineOf(rtx4090, rtx4090)
		withoutNVML(f, 999, "Unknown Error")
		f.Environment.Container = Known("docker", "/proc/1/cgroup")
		everyDevice(f, func(i int, d *Device) {
			d.IOMMUType = Unknown[string]("/sys/kernel/iommu_groups", "not there inside the container")
		})
		f.Machine.IOMMUs = Unknown[int]("/sys/class/iommu", "not there inside the container")
		return rebuilt(f, "A container whose NVML stopped after a daemon-reload; CUDA goes on.")
	}, StateOff, UnknownWhy, PatchMaybe, StatusJudged},
	{"18-lxc-placeholder-file", func() *Facts {
		f := machineOf(rtx4090, rtx4090)
		inLXC(f)
		f.Nodes = append(f.Nodes, DeviceNode{Path: "/dev/nvidia-uvm", Exists: true, Mode: "----------", WantMajor: Known(509, "/proc/devices"), OpenError: "EACCES"})
		return rebuilt(f, "An LXC container whose nvidia-uvm is the empty file that a mount left.")
	}, StateUnknown, BadNode, PatchNo, StatusUnusable},
	{"18-lxc-wrong-major", func() *Facts {
		f := machineOf(rtx4090, rtx4090)
		inLXC(f)
		f.Nodes = append(f.Nodes, DeviceNode{Path: "/dev/nvidia-uvm", Exists: true, Char: true, Mode: "crw-rw-rw-", Major: 507, WantMajor: Known(509, "/proc/devices"), OpenError: "ENXIO"})
		return rebuilt(f, "An LXC container whose nvidia-uvm has the major number of an earlier boot.")
	}, StateUnknown, BadNode, PatchNo, StatusUnusable},
	{"20-wsl2", func() *Facts {
		f := machineOf(rtx4090, rtx4090)
		f.Environment.WSL2 = Known(true, "/dev/dxg")
		f.Environment.VM = Known("microsoft", "/proc/version")
		f.CUDA.Path = "/usr/lib/wsl/lib/libcuda.so.1"
		f.NVML.Path = "/usr/lib/wsl/lib/libnvidia-ml.so.1"
		missing := "no such file or directory"
		f.Driver = Driver{
			Loaded:  Known(false, "/proc/driver/nvidia"),
			Flavour: Unknown[Flavour]("/proc/driver/nvidia/version", missing), Version: Unknown[string]("/proc/driver/nvidia/version", missing),
			UserVersion: Known("565.90", "nvmlSystemGetDriverVersion"),
		}
		everyDevice(f, func(i int, d *Device) {
			no := Unknown[Hex]("/sys/bus/pci/devices", missing)
			d.DeviceID, d.VendorID, d.Class, d.ResizeMask = no, no, no, no
			d.NUMA, d.IOMMUType, d.BoundDriver = Value[int]{}, Value[string]{}, Value[string]{}
		})
		everyPair(f, func(p *Pair) {
			setStatus(p, P2PNotSupported)
			p.Ancestor = Unknown[Ancestor]("nvmlDeviceGetTopologyCommonAncestor", "not supported")
		})
		return rebuilt(f, "WSL2: no module, no PCI topology.")
	}, StateOff, WSL2, PatchNever, StatusJudged},
	{"25-no-nvlink-yet-p2p", func() *Facts {
		f := machineOf(rtxA6000, rtxA6000)
		grant(f)
		everyDevice(f, func(i int, d *Device) {
			d.NVLinks = Failed[[]NVLink]("nvmlDeviceGetNvLinkState", "not supported", 3)
		})
		return rebuilt(f, "No NVLink, and P2P over PCIe all the same.")
	}, StateOn, P2POn, PatchNotNeeded, StatusJudged},
	{"32-gpu-lost", func() *Facts {
		f := machineOf(rtx3090, rtx3090, rtx3090)
		lost := &f.Devices[1]
		lost.NVML = Handle{Index: 1, Code: 15, Error: "GPU is lost"}
		lost.CUDA = Handle{}
		lost.UUID = ""
		lost.Name = Failed[string]("nvmlDeviceGetName", "GPU is lost", 15)
		lost.Memory, lost.CUDAMemory, lost.BAR1 = Value[uint64]{}, Value[uint64]{}, Value[uint64]{}
		f.Devices[2].CUDA.Index = 1
		everyPair(f, func(p *Pair) {
			if p.From == 1 || p.To == 1 {
				*p = Pair{From: p.From, To: p.To, CanAccess: Unknown[bool]("cuDeviceCanAccessPeer", "CUDA does not list the GPU")}
			}
		})
		return rebuilt(f, "Xid 79: the second of three GPUs has fallen off the bus.")
	}, StateUnknown, DeviceLost, PatchNo, StatusLost},
	{"35-mps", func() *Facts {
		f := machineOf(rtx4090, rtx4090)
		withoutCUDA(f, f.CUDA.Path, 805, "MPS client failed to connect to the MPS control daemon or the MPS server")
		f.Environment.Variables = map[string]string{"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"}
		f.Environment.MPSPipe = Known("/tmp/nvidia-mps", "CUDA_MPS_PIPE_DIRECTORY")
		return rebuilt(f, "MPS is asked for and its daemon does not run.")
	}, StateUnknown, MPS, PatchNo, StatusUnusable},
	{"blog-8x4090-before", blogBefore, StateOff, BAR1Small, PatchAfter, StatusJudged},
	{"blog-8x4090-after", blogAfter, StateOn, P2POn, PatchNotNeeded, StatusJudged},
}
