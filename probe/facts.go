// SPDX-License-Identifier: Apache-2.0

package probe

import "fmt"

// Schema is the version of the facts' JSON that this package writes. A file
// with a higher one is refused; unknown fields of the same one are ignored.
const Schema = 1

// Facts is what could be read about a machine, each value with its source or
// with the reason why it could not be read. A field that nobody asked for is
// the zero Value, and absent from the JSON.
//
// Facts are data: they can be written to a file, sent to somebody else and
// diagnosed there. Nothing in here is a conclusion.
type Facts struct {
	Schema int    `json:"schema"`
	Taken  string `json:"taken,omitzero"` // RFC 3339, UTC
	Note   string `json:"note,omitzero"`  // what a reader of the file must know, such as "rebuilt from a report"

	Machine     Machine     `json:"machine,omitzero"`
	Environment Environment `json:"environment,omitzero"`
	Driver      Driver      `json:"driver,omitzero"`
	CUDA        Library     `json:"cuda,omitzero"`
	NVML        Library     `json:"nvml,omitzero"`

	// Devices is ordered by bus id. A device is one physical GPU, joined from
	// CUDA, NVML and sysfs by bus id and, where that is missing, by UUID.
	Devices []Device `json:"devices"`
	// Pairs holds one entry a direction. An absent entry is a pair of which
	// nothing is known.
	Pairs []Pair       `json:"pairs"`
	Nodes []DeviceNode `json:"nodes,omitempty"`
}

// Pair returns the facts of the direction in which device from accesses the
// memory of device to, or an empty Pair if there are none.
func (f *Facts) Pair(from, to int) Pair {
	for i := range f.Pairs {
		if p := &f.Pairs[i]; p.From == from && p.To == to {
			return *p
		}
	}
	return Pair{From: from, To: to}
}

// Value is one fact: a value and where it comes from, or why there is none.
// Make one with Known or Unknown.
type Value[T any] struct {
	value T
	known bool

	// Source is a path, or the name of the function that answered, such as
	// "/proc/driver/nvidia/version" or "nvmlDeviceGetBAR1MemoryInfo".
	Source string
	// Error says why the value could not be read; "" where it was.
	Error string
	// Code is the error code that the function in Source answered (an
	// nvmlReturn_t or a CUresult), or 0.
	Code int
	// Assumed marks a value that nobody read: whoever wrote the file put it in.
	Assumed bool
}

// Known is a value that was read from source.
func Known[T any](v T, source string) Value[T] {
	return Value[T]{value: v, known: true, Source: source}
}

// Unknown is a value that could not be read from source; why is for people.
func Unknown[T any](source, why string) Value[T] {
	return Value[T]{Source: source, Error: why}
}

// Failed is Unknown with the code that the function named by source answered.
func Failed[T any](source, why string, code int) Value[T] {
	return Value[T]{Source: source, Error: why, Code: code}
}

// Get returns the value, and whether there is one.
func (v Value[T]) Get() (T, bool) { return v.value, v.known }

// Or returns the value, or d if there is none.
func (v Value[T]) Or(d T) T {
	if v.known {
		return v.value
	}
	return d
}

// IsKnown tells whether there is a value.
func (v Value[T]) IsKnown() bool { return v.known }

// Asked tells whether somebody tried to read the value.
func (v Value[T]) Asked() bool { return v.known || v.Source != "" || v.Error != "" }

// Why says why there is no value.
func (v Value[T]) Why() string {
	switch {
	case v.known:
		return ""
	case v.Error != "" && v.Source != "":
		return v.Source + ": " + v.Error
	case v.Error != "":
		return v.Error
	}
	return "not read"
}

// String is for evidence: the value or why there is none.
func (v Value[T]) String() string {
	if v.known {
		return fmt.Sprint(v.value)
	}
	return "unknown (" + v.Why() + ")"
}

// Machine is the host, as the processor and the operating system see it.
type Machine struct {
	OS     string        `json:"os,omitzero"`      // runtime.GOOS
	Arch   string        `json:"arch,omitzero"`    // runtime.GOARCH
	Kernel Value[string] `json:"kernel,omitzero"`  // first line of /proc/version
	CPU    Value[string] `json:"cpu,omitzero"`     // model name
	Board  Value[string] `json:"board,omitzero"`   // DMI vendor and product
	Nodes  Value[[]int]  `json:"nodes,omitzero"`   // NUMA nodes online
	IOMMUs Value[int]    `json:"iommus,omitzero"`  // entries of /sys/class/iommu; 0 means off
	Kargs  Value[string] `json:"cmdline,omitzero"` // of /proc/cmdline only the words about iommu, pci and nvidia
}

// Environment is what stands between this process and the machine.
type Environment struct {
	// Container is "docker", "podman", "lxc", "kubernetes", "other", or "" for none.
	Container Value[string] `json:"container,omitzero"`
	// VM is the hypervisor's name, "other", or "" for bare metal.
	VM   Value[string] `json:"vm,omitzero"`
	WSL2 Value[bool]   `json:"wsl2,omitzero"`
	// MPSPipe is the pipe directory of an MPS control daemon whose pipe exists
	// or which the environment names, or "" for none.
	MPSPipe Value[string] `json:"mps_pipe,omitzero"`
	// Variables holds CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER and the like, the
	// ones that are set.
	Variables map[string]string `json:"variables,omitempty"`
	// Memlock is RLIMIT_MEMLOCK (soft), MemoryMax the cgroup's limit, both in
	// bytes; the largest uint64 means none.
	Memlock   Value[uint64] `json:"memlock,omitzero"`
	MemoryMax Value[uint64] `json:"memory_max,omitzero"`
}

// Flavour is a kind of kernel module.
type Flavour string

// The flavours of the NVIDIA kernel module.
const (
	Open        Flavour = "open"
	Proprietary Flavour = "proprietary"
)

// Driver is the kernel module and the versions of its user space.
type Driver struct {
	Loaded  Value[bool]    `json:"loaded,omitzero"`  // /proc/modules, /sys/module/nvidia or /proc/driver/nvidia
	Flavour Value[Flavour] `json:"flavour,omitzero"` // of the loaded module
	Version Value[string]  `json:"version,omitzero"` // of the loaded module, "565.57.01"
	Line    Value[string]  `json:"line,omitzero"`    // the NVRM line of /proc/driver/nvidia/version

	UserVersion Value[string] `json:"user_version,omitzero"` // nvmlSystemGetDriverVersion
	// Params are the lines of /proc/driver/nvidia/params, without quotes;
	// RegistryDwords among them as it stands there ("k=v;k=v").
	Params Value[map[string]string] `json:"params,omitzero"`

	UVMLoaded           Value[bool] `json:"uvm_loaded,omitzero"`
	ConfidentialCompute Value[bool] `json:"confidential_compute,omitzero"`
}

// Library is a driver library: libcuda or NVML.
type Library struct {
	Path    string   `json:"path,omitzero"` // "" if none was opened
	Tried   []string `json:"tried,omitempty"`
	Usable  bool     `json:"usable"`         // it was opened and its init succeeded
	Code    int      `json:"code,omitzero"`  // what its init answered, 0 for success or if none was opened
	Error   string   `json:"error,omitzero"` // why it is not usable
	Skipped bool     `json:"skipped,omitzero"`

	Version     Value[string] `json:"version,omitzero"` // cuDriverGetVersion as "12.8", nvmlSystemGetNVMLVersion
	Devices     Value[int]    `json:"devices,omitzero"` // how many it counts
	InitSeconds float64       `json:"init_seconds,omitzero"`
}

// Handle is a device as one library sees it.
type Handle struct {
	// Index is the library's own number of the device. CUDA's and NVML's differ
	// on mixed machines and with CUDA_VISIBLE_DEVICES.
	Index int  `json:"index"`
	Seen  bool `json:"seen"` // the library lists the device
	// Code is the gravest error that a call on this device answered, 0 for none:
	// in NVML 15 (GPU_IS_LOST) and 16 (RESET_REQUIRED) mean a lost device, in
	// CUDA 46, 719 and 999. Errors of one call are in the Value of that call.
	Code  int    `json:"code,omitzero"`
	Error string `json:"error,omitzero"`
}

// Device is one GPU.
type Device struct {
	BusID string `json:"bus_id,omitzero"` // "0000:01:00.0", lower case; "" if not known (a lost GPU, Tegra)
	UUID  string `json:"uuid,omitzero"`   // "GPU-..."
	CUDA  Handle `json:"cuda,omitzero"`
	NVML  Handle `json:"nvml,omitzero"`

	Name        Value[string] `json:"name,omitzero"`
	Serial      Value[string] `json:"serial,omitzero"`
	VendorID    Value[Hex]    `json:"vendor_id,omitzero"`    // 0x10de
	DeviceID    Value[Hex]    `json:"device_id,omitzero"`    // 0x2684
	SubsystemID Value[Hex]    `json:"subsystem_id,omitzero"` // subsystem device << 16 | subsystem vendor, as NVML gives it
	Class       Value[Hex]    `json:"class,omitzero"`        // 0x030000 with display, 0x030200 without

	ComputeCapability Value[string] `json:"compute_capability,omitzero"` // "8.9"
	Architecture      Value[string] `json:"architecture,omitzero"`       // "ada", as NVML names it
	VBIOS             Value[string] `json:"vbios,omitzero"`
	Minor             Value[int]    `json:"minor,omitzero"` // of /dev/nvidiaN

	// Memory is what NVML calls total, a little less than the chips hold;
	// CUDAMemory is cuDeviceTotalMem. Bytes.
	Memory     Value[uint64] `json:"memory,omitzero"`
	CUDAMemory Value[uint64] `json:"cuda_memory,omitzero"`
	// BAR1 is the size of the second memory BAR in bytes, from NVML or, where
	// that is missing, from sysfs; BAR1Used from NVML.
	BAR1     Value[uint64] `json:"bar1,omitzero"`
	BAR1Used Value[uint64] `json:"bar1_used,omitzero"`
	// BARs are the memory and port regions of sysfs "resource", without empty ones.
	BARs Value[[]BAR] `json:"bars,omitzero"`
	// ResizeMask is sysfs resourceN_resize of BAR1: bit n set means that the
	// device can have a BAR of 2^n MiB. Known and 0 where the device's directory
	// was read and has no such file: no capability, a guest that hides it, or a
	// kernel before 6.1, which does not have the file for any device.
	ResizeMask Value[Hex] `json:"resize_mask,omitzero"`

	Link Link `json:"link,omitzero"`
	// Path is the bridges from the root port down to the device, without it.
	Path Value[[]Bridge] `json:"path,omitzero"`
	NUMA Value[int]      `json:"numa,omitzero"` // -1: the firmware names none

	IOMMUGroup  Value[string] `json:"iommu_group,omitzero"`
	IOMMUType   Value[string] `json:"iommu_type,omitzero"`   // "DMA", "DMA-FQ", "identity"; "" with no IOMMU
	BoundDriver Value[string] `json:"bound_driver,omitzero"` // "nvidia", "vfio-pci", "nouveau"; "" for none

	MIG            Value[bool]     `json:"mig,omitzero"`            // enabled now
	GSP            Value[string]   `json:"gsp,omitzero"`            // firmware version; "" when off
	Virtualization Value[string]   `json:"virtualization,omitzero"` // "none", "passthrough", "vgpu", "host-vgpu", "host-vsga"
	DriverModel    Value[string]   `json:"driver_model,omitzero"`   // Windows: "wddm", "tcc", "mcdm"
	NVLinks        Value[[]NVLink] `json:"nvlinks,omitzero"`        // empty: none
	Persistence    Value[bool]     `json:"persistence,omitzero"`
	PState         Value[int]      `json:"pstate,omitzero"`        // 0 is fastest
	RuntimePower   Value[string]   `json:"runtime_power,omitzero"` // sysfs power_state: "D0", "D3cold"
	Display        Value[bool]     `json:"display,omitzero"`       // a display is attached or active
	Integrated     Value[bool]     `json:"integrated,omitzero"`
}

// BAR is one region of a PCI device.
type BAR struct {
	Line     int    `json:"line"` // of sysfs "resource", from 0
	Start    Hex    `json:"start"`
	Size     uint64 `json:"size"` // bytes
	Memory   bool   `json:"memory,omitzero"`
	Prefetch bool   `json:"prefetch,omitzero"`
	Is64     bool   `json:"is64,omitzero"`
}

// Link is a PCIe link as one of its ends tells it. Generations are 1 to 7,
// widths are lanes. The current generation of an idle GPU is 1: compare the
// maximum.
type Link struct {
	Gen      Value[int] `json:"gen,omitzero"`
	GenMax   Value[int] `json:"gen_max,omitzero"`
	Width    Value[int] `json:"width,omitzero"`
	WidthMax Value[int] `json:"width_max,omitzero"`
}

// Bridge is a PCI bridge on the way from the root port to a device.
type Bridge struct {
	BusID    string     `json:"bus_id"`
	VendorID Value[Hex] `json:"vendor_id,omitzero"`
	DeviceID Value[Hex] `json:"device_id,omitzero"`
	// Kind is "root-port", "upstream", "downstream" (of a switch), or "bridge"
	// where the PCIe capability could not be read.
	Kind string     `json:"kind,omitzero"`
	Link Link       `json:"link,omitzero"`
	ACS  Value[ACS] `json:"acs,omitzero"`
}

// ACS is the control word of a bridge's Access Control Services.
type ACS struct {
	Present bool `json:"present"` // the bridge has the capability
	Control Hex  `json:"control,omitzero"`
}

// Redirects tells whether requests or completions between peers are sent up to
// the root complex instead of across the switch.
func (a ACS) Redirects() bool { return a.Present && a.Control&(1<<2|1<<3) != 0 }

// NVLink is one link of a device.
type NVLink struct {
	Link   int    `json:"link"`
	Active bool   `json:"active"`
	Remote string `json:"remote,omitzero"` // bus id of the other end, a GPU or a switch
}

// P2PStatus is NVML's answer for a capability of a pair, in the letters of
// nvidia-smi.
type P2PStatus string

// The statuses, with nvmlGpuP2PStatus_t's values in this order from 0.
const (
	P2POK                 P2PStatus = "OK"
	P2PChipset            P2PStatus = "CNS" // chipset not supported
	P2PGPU                P2PStatus = "GNS" // GPU not supported
	P2PTopology           P2PStatus = "TNS" // IOH topology not supported
	P2PDisabledByRegistry P2PStatus = "DR"
	P2PNotSupported       P2PStatus = "NS"
	P2PUnknownStatus      P2PStatus = "U"
)

// Ancestor is where two devices' paths meet, in the letters of nvidia-smi.
type Ancestor string

// The common ancestors. NVML's values are 0, 10, 20, 30, 40 and 50.
const (
	AncestorInternal   Ancestor = "INT"  // on one board
	AncestorSingle     Ancestor = "PIX"  // one switch
	AncestorMultiple   Ancestor = "PXB"  // several switches, no host bridge
	AncestorHostBridge Ancestor = "PHB"  // a host bridge
	AncestorNode       Ancestor = "NODE" // several host bridges of one NUMA node
	AncestorSystem     Ancestor = "SYS"  // across NUMA nodes
)

// Pair is one direction of two devices, numbered as in Facts.Devices: From
// accesses the memory of To.
type Pair struct {
	From int `json:"from"`
	To   int `json:"to"`

	CanAccess       Value[bool] `json:"can_access,omitzero"`       // cuDeviceCanAccessPeer
	PerformanceRank Value[int]  `json:"performance_rank,omitzero"` // cuDeviceGetP2PAttribute; 0 is best
	AccessSupported Value[bool] `json:"access_supported,omitzero"`
	NativeAtomic    Value[bool] `json:"native_atomic,omitzero"`
	ArrayAccess     Value[bool] `json:"array_access,omitzero"`

	Read    Value[P2PStatus] `json:"read,omitzero"` // nvmlDeviceGetP2PStatus, a capability each
	Write   Value[P2PStatus] `json:"write,omitzero"`
	NVLink  Value[P2PStatus] `json:"nvlink,omitzero"`
	Atomics Value[P2PStatus] `json:"atomics,omitzero"`
	PCI     Value[P2PStatus] `json:"pci,omitzero"`

	// Ancestor is nvmlDeviceGetTopologyCommonAncestor, else from the sysfs paths.
	Ancestor Value[Ancestor] `json:"ancestor,omitzero"`

	// Transfer is what a checked transfer from From's memory to To's showed.
	Transfer Value[Transfer] `json:"transfer,omitzero"`
}

// Transfer is the outcome of a checked one-way transfer.
type Transfer struct {
	// Outcome is "proven", "mismatch", "refused", "failed", "timed-out", "hang"
	// (the checking process had to be given up) or "killed" (it died).
	Outcome string `json:"outcome"`
	Detail  string `json:"detail,omitzero"`
	// Rates are in bytes a second, Latency is the time of a small transfer in
	// seconds; 0 where they were not taken.
	BytesPerSecond       float64 `json:"bytes_per_second,omitzero"`
	StagedBytesPerSecond float64 `json:"staged_bytes_per_second,omitzero"`
	Latency              float64 `json:"latency_seconds,omitzero"`
	Modelled             bool    `json:"modelled,omitzero"` // the figures are a simulator's
}

// DeviceNode is a file of /dev that the driver's user space opens.
type DeviceNode struct {
	Path   string `json:"path"`
	Exists bool   `json:"exists"`
	Char   bool   `json:"char,omitzero"` // it is a character device
	Mode   string `json:"mode,omitzero"` // as ls writes it
	Major  int    `json:"major,omitzero"`
	Minor  int    `json:"minor,omitzero"`
	// WantMajor is the major number that /proc/devices gives to its driver.
	WantMajor Value[int] `json:"want_major,omitzero"`
	// OpenError is "" if it could be opened for reading and writing, else the
	// name of the error: "EPERM", "EACCES", "ENOENT", "ENXIO", "ENODEV" or its text.
	OpenError string `json:"open_error,omitzero"`
}
