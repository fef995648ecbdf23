// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Diagnose judges facts. It reads nothing but its arguments and changes
// neither; the same facts give the same report. branches may be nil for
// PublishedBranches.
func Diagnose(f *Facts, branches *Branches) *Report {
	if branches == nil {
		branches = PublishedBranches()
	}
	d := &diagnosis{f: f, branches: branches, unknown: map[[2]string]int{}, minSeries: 0}
	d.report = &Report{
		Schema: Schema, Status: StatusJudged, Note: f.Note, Taken: f.Taken,
		Driver: describeDriver(f), CUDA: describeLibrary(&f.CUDA), NVML: describeLibrary(&f.NVML),
		Devices: []DeviceReport{}, Pairs: []PairReport{}, Causes: []Cause{}, Topology: [][]string{},
	}
	d.machine()
	for i := range f.Devices {
		d.device(i)
	}
	d.pairs()
	d.finish()
	return d.report
}

type diagnosis struct {
	f        *Facts
	branches *Branches
	report   *Report
	gpus     []gpu
	// blocked is the first thing of the machine that keeps CUDA from being
	// asked, or "".
	blocked   CauseID
	unknown   map[[2]string]int
	order     [][2]string
	minSeries int
}

// A gpu is what a device's facts come to before it is paired.
type gpu struct {
	*Device
	label   string
	chip    *chip
	lost    bool
	foreign bool
	geforce bool
	known   bool // geforce could be told
	bar1    barState
	blocks  []Finding // each of them blocks every pair of the device that is off
	notes   []Finding
	missing []signal // signals that a refusal wants and that could not be read
	iommu   *Finding
}

type signal struct{ name, why string }

type barState uint8

const (
	barUnknown barState = iota
	barFull
	barSmall
)

func find(id CauseID, ev ...Evidence) Finding {
	c := &causes[causeIndex[id]]
	return Finding{Cause: id, Kind: c.Kind, Patch: c.Patch, Do: c.Do, Evidence: ev}
}

// seen is the evidence of a value that was read.
func seen[T any](v Value[T], format string, args ...any) Evidence {
	return Evidence{Text: fmt.Sprintf(format, args...), Source: v.Source, Assumed: v.Assumed}
}

func (d *diagnosis) lacks(signal, why string) {
	k := [2]string{signal, why}
	if d.unknown[k] == 0 {
		d.order = append(d.order, k)
	}
	d.unknown[k]++
}

func (d *diagnosis) add(f Finding) { d.report.Machine = append(d.report.Machine, f) }

// CUresults and nvmlReturn_t values that have a cause of their own.
const (
	cudaStub        = 34
	cudaUnavailable = 46
	cudaNoDevice    = 100
	cudaLaunch      = 719
	cudaMismatch    = 803
	cudaCompat      = 804
	cudaMPS         = 805
	cudaUnknown     = 999
	nvmlNotLoaded   = 9
	nvmlLost        = 15
	nvmlReset       = 16
	nvmlMismatch    = 18
)

// machine finds what concerns the host as a whole.
func (d *diagnosis) machine() {
	f := d.f
	block := func(fi Finding) {
		d.add(fi)
		if d.blocked == "" && !f.CUDA.Usable {
			d.blocked = fi.Cause
		}
	}
	cuda, nvml := &f.CUDA, &f.NVML
	if v, ok := f.Environment.WSL2.Get(); ok && v {
		d.add(find(WSL2, seen(f.Environment.WSL2, "/dev/dxg or a Microsoft kernel")))
	}

	switch {
	case cuda.Usable || cuda.Skipped:
	case cuda.Path == "":
		ev := Evidence{Text: "libcuda: " + cuda.Error}
		if cuda.Error == "" { // the error tells what was tried
			ev = Evidence{Text: "libcuda: not found", Source: strings.Join(cuda.Tried, ", ")}
		}
		block(find(DriverMissing, ev))
	case cuda.Code == cudaStub:
		block(find(StubLibrary, Evidence{Text: "cuInit answers 34 (CUDA_ERROR_STUB_LIBRARY)", Source: cuda.Path}))
	case cuda.Code == cudaMPS:
		fi := find(MPS, Evidence{Text: "cuInit answers 805 (CUDA_ERROR_MPS_CONNECTION_FAILED)", Source: cuda.Path})
		if p, ok := f.Environment.MPSPipe.Get(); ok && p != "" {
			fi.Evidence = append(fi.Evidence, seen(f.Environment.MPSPipe, "pipe directory %s", p))
		}
		if p := f.Environment.Variables["CUDA_MPS_PIPE_DIRECTORY"]; p != "" {
			fi.Evidence = append(fi.Evidence, Evidence{Text: "CUDA_MPS_PIPE_DIRECTORY=" + p, Source: "environment"})
		}
		block(fi)
	}

	// The versions: a mismatch explains most of what else may be wrong.
	module, haveModule := f.Driver.Version.Get()
	user, haveUser := f.Driver.UserVersion.Get()
	differ := haveModule && haveUser && module != user
	if differ || nvml.Code == nvmlMismatch || cuda.Code == cudaMismatch {
		var ev []Evidence
		if haveModule {
			ev = append(ev, seen(f.Driver.Version, "kernel module %s", module))
		}
		if haveUser {
			ev = append(ev, seen(f.Driver.UserVersion, "user space %s", user))
		}
		if nvml.Code == nvmlMismatch {
			ev = append(ev, Evidence{Text: "nvmlInit answers 18 (LIB_RM_VERSION_MISMATCH)", Source: nvml.Path})
		}
		if cuda.Code == cudaMismatch {
			ev = append(ev, Evidence{Text: "cuInit answers 803 (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)", Source: cuda.Path})
		}
		block(find(VersionSkew, ev...))
	}

	if loaded, ok := f.Driver.Loaded.Get(); ok && !loaded && f.Machine.OS == "linux" && !f.Environment.WSL2.Or(false) {
		block(find(DriverMissing, seen(f.Driver.Loaded, "the kernel module is not loaded")))
	} else if nvml.Code == nvmlNotLoaded && !cuda.Usable {
		block(find(DriverMissing, Evidence{Text: "nvmlInit answers 9 (DRIVER_NOT_LOADED)", Source: nvml.Path}))
	}
	d.nodes(block)

	if !cuda.Usable && !cuda.Skipped && d.blocked == "" {
		ev := Evidence{Text: "cuInit: " + orElse(cuda.Error, "failed"), Source: cuda.Path}
		if cuda.Code != 0 {
			ev.Text = fmt.Sprintf("cuInit answers %d: %s", cuda.Code, orElse(cuda.Error, "failed"))
		}
		if cuda.Code == cudaNoDevice && len(f.Devices) == 0 {
			block(find(NoGPU, ev))
		} else if cuda.Code == cudaNoDevice && visibility(f) != "" {
			block(find(HiddenFromCUDA, ev, Evidence{Text: visibility(f), Source: "environment"}))
		} else {
			block(find(CUDAUnusable, ev))
		}
	}
	if len(f.Devices) == 0 {
		d.add(find(NoGPU))
	}
	if cuda.Skipped {
		d.lacks("CUDA", "not asked")
	}
	if !nvml.Usable {
		why := orElse(nvml.Error, "not asked")
		if nvml.Code != 0 {
			why = fmt.Sprintf("nvmlInit answers %d: %s", nvml.Code, why)
		}
		d.lacks("NVML", why)
		if nvml.Code != nvmlMismatch && !nvml.Skipped && (nvml.Path != "" || nvml.Error != "") && d.blocked != DriverMissing {
			d.add(find(NVMLUnusable, Evidence{Text: why, Source: orElse(nvml.Path, strings.Join(nvml.Tried, ", "))}))
		}
	}

	if on, ok := f.Driver.ConfidentialCompute.Get(); ok && on {
		d.add(find(Confidential, seen(f.Driver.ConfidentialCompute, "confidential computing is on")))
	}
	d.registry()
}

func visibility(f *Facts) string {
	if v, ok := f.Environment.Variables["CUDA_VISIBLE_DEVICES"]; ok {
		return "CUDA_VISIBLE_DEVICES=" + v
	}
	return ""
}

func orElse(s, d string) string {
	if s != "" {
		return s
	}
	return d
}

// nodes looks at /dev. A node that is not right matters where CUDA does not
// start; else it is left alone.
func (d *diagnosis) nodes(block func(Finding)) {
	if d.f.CUDA.Usable || d.f.CUDA.Path == "" && len(d.f.Devices) == 0 {
		return
	}
	var ev []Evidence
	var cure []string
	lxc := d.f.Environment.Container.Or("") == "lxc"
	for _, n := range d.f.Nodes {
		name := n.Path
		needed := strings.HasSuffix(name, "/nvidiactl") || strings.HasSuffix(name, "/nvidia-uvm") || isCardNode(name)
		want, haveWant := n.WantMajor.Get()
		say := func(do, format string, args ...any) {
			ev = append(ev, Evidence{Text: name + ": " + fmt.Sprintf(format, args...), Source: "/dev"})
			if do != "" && !slices.Contains(cure, do) {
				cure = append(cure, do)
			}
		}
		major := "its major number in /proc/devices"
		if haveWant {
			major = fmt.Sprintf("major %d, as /proc/devices says", want)
		}
		allow := "give the container the node and allow its " + major
		if lxc && haveWant {
			allow = fmt.Sprintf("in the container's configuration: lxc.cgroup2.devices.allow: c %d:* rwm (lxc.cgroup. on a host with cgroup 1), and lxc.mount.entry for %s", want, name)
		}
		switch {
		case !n.Exists && needed:
			do := "nvidia-modprobe -u -c 0, or nvidia-smi once as root, creates the nodes; in a container: pass the node in"
			if lxc {
				do = "run nvidia-modprobe -u on the host before the container starts, then " + allow
			}
			say(do, "does not exist (%s)", orElse(n.OpenError, "ENOENT"))
		case !n.Exists:
		case !n.Char:
			say("remove the file and pass the real node in: "+allow+"; the host's node must exist before the container starts (nvidia-modprobe -u), or the mount leaves an empty file",
				"is not a character device but a file of mode %s: a placeholder that a mount left", orElse(n.Mode, "unknown"))
		case haveWant && n.Major != want:
			say("recreate the node with the right number: rm "+name+"; nvidia-modprobe -u -c 0; "+allow,
				"has major %d, and /proc/devices gives %d to the driver", n.Major, want)
		case n.OpenError == "EPERM" && needed:
			say(allow, "cannot be opened: EPERM, the device cgroup denies it")
		case n.OpenError == "EACCES" && needed:
			say("look at the mode and owner of the node (crw-rw-rw- is usual) and at the groups of the user", "cannot be opened: EACCES, mode %s", orElse(n.Mode, "unknown"))
		case (n.OpenError == "ENXIO" || n.OpenError == "ENODEV") && needed:
			say("modprobe nvidia nvidia-uvm on the host", "cannot be opened: %s, no driver behind it", n.OpenError)
		case n.OpenError != "" && needed:
			say("", "cannot be opened: %s", n.OpenError)
		}
	}
	if len(ev) == 0 {
		return
	}
	fi := find(BadNode, ev...)
	if len(cure) > 0 {
		fi.Do = strings.Join(cure, "; ") + "."
	}
	block(fi)
}

func isCardNode(path string) bool {
	digits, ok := strings.CutPrefix(path[strings.LastIndexByte(path, '/')+1:], "nvidia")
	_, err := strconv.ParseUint(digits, 10, 16)
	return ok && err == nil
}

// registry reads the driver's registry keys.
func (d *diagnosis) registry() {
	params, ok := d.f.Driver.Params.Get()
	if !ok {
		return
	}
	keys := registryKeys(params["RegistryDwords"])
	v := parseVersion(d.f.Driver.Version.Or(""))
	if t, ok := keys["rmforcep2ptype"]; ok && t != 0 {
		ev := seen(d.f.Driver.Params, "RMForceP2PType=%d", t)
		if v != nil {
			ev.Text += fmt.Sprintf(", which in series %d means %s", v[0], forceType(v[0], t))
		}
		d.add(find(RegistrySeries, ev))
	}
}

func forceType(series int, t uint64) string {
	names := []string{"default", "mailbox", "BAR1", "NVLink", "C2C"}
	if series >= 575 {
		names = []string{"default", "PCIe", "NVLink", "C2C"}
	}
	if t < uint64(len(names)) {
		return names[t]
	}
	return "nothing"
}

// registryKeys reads "k=v;k=v"; names in lower case, as the driver compares.
func registryKeys(s string) map[string]uint64 {
	keys := map[string]uint64{}
	for part := range strings.SplitSeq(s, ";") {
		k, v, ok := strings.Cut(part, "=")
		if !ok {
			continue
		}
		if n, err := strconv.ParseUint(strings.TrimSpace(v), 0, 64); err == nil {
			keys[strings.ToLower(strings.TrimSpace(k))] = n
		}
	}
	return keys
}

// disabledByKey tells which of read and write ForceP2P switches off.
func disabledByKey(f *Facts) (what []string, value uint64) {
	params, _ := f.Driver.Params.Get()
	v, ok := registryKeys(params["RegistryDwords"])["forcep2p"]
	if !ok {
		return nil, 0
	}
	if v&3 == 0 {
		what = append(what, "read")
	}
	if v>>4&3 == 0 {
		what = append(what, "write")
	}
	return what, v
}

// device works out one GPU.
func (d *diagnosis) device(i int) {
	dev := &d.f.Devices[i]
	g := gpu{Device: dev, label: fmt.Sprintf("GPU%d", i)}
	r := DeviceReport{Device: i, Label: g.label, BusID: dev.BusID, Name: dev.Name.Or("")}
	if id, ok := dev.DeviceID.Get(); ok {
		if g.chip = chipOf(id); g.chip != nil {
			r.Chip = g.chip.name
			d.minSeries = max(d.minSeries, g.chip.minSeries)
		}
	}
	if dev.CUDA.Seen {
		r.CUDA = &dev.CUDA.Index
	}
	if dev.NVML.Seen {
		r.NVML = &dev.NVML.Index
	}
	if n, ok := dev.NUMA.Get(); ok {
		r.NUMA = &n
	}
	if name, ok := dev.Name.Get(); ok {
		g.known = true
		g.geforce = strings.Contains(name, "GeForce") || strings.Contains(name, "TITAN")
	}

	var findings []Finding
	if lost := lostBy(dev); lost != "" {
		g.lost = true
		findings = append(findings, find(DeviceLost, Evidence{Text: g.label + ": " + lost}))
	}
	if drv, ok := dev.BoundDriver.Get(); ok && drv != "" && drv != "nvidia" {
		g.foreign = true
		findings = append(findings, find(ForeignDriver, seen(dev.BoundDriver, "%s is bound to %s", g.label, drv)))
	}
	if d.f.CUDA.Usable && !dev.CUDA.Seen && !g.lost && !g.foreign {
		fi := find(HiddenFromCUDA, Evidence{Text: g.label + " is not among CUDA's devices"})
		if v := visibility(d.f); v != "" {
			fi.Evidence = append(fi.Evidence, Evidence{Text: v, Source: "environment"})
		}
		findings = append(findings, fi)
	}
	if !g.lost && !g.foreign {
		d.condition(&g)
		findings = append(findings, g.blocks...)
		findings = append(findings, g.notes...)
	}
	r.Memory = memoryOf(dev).Or(0)
	r.BAR1 = dev.BAR1.Or(0)
	r.Link = linkOf(dev)
	r.Findings = ordered(findings)
	d.gpus = append(d.gpus, g)
	d.report.Devices = append(d.report.Devices, r)
}

func memoryOf(dev *Device) Value[uint64] {
	if dev.Memory.IsKnown() || !dev.CUDAMemory.IsKnown() {
		return dev.Memory
	}
	return dev.CUDAMemory
}

// lostBy says why a device counts as lost, "" if it does not.
func lostBy(dev *Device) string {
	switch c := dev.NVML.Code; c {
	case nvmlLost:
		return "NVML answers 15 (GPU_IS_LOST)"
	case nvmlReset:
		return "NVML answers 16 (RESET_REQUIRED)"
	}
	switch c := dev.CUDA.Code; c {
	case cudaUnavailable, cudaLaunch, cudaUnknown:
		return fmt.Sprintf("CUDA answers %d: %s", c, orElse(dev.CUDA.Error, "no text"))
	}
	return ""
}

// linkOf is the lower of the card's maximum and that of each bridge above it.
func linkOf(dev *Device) LinkRate {
	gen, width := dev.Link.GenMax.Or(0), dev.Link.WidthMax.Or(0)
	path, _ := dev.Path.Get()
	for _, b := range path {
		if g, ok := b.Link.GenMax.Get(); ok && g > 0 && gen > 0 {
			gen = min(gen, g)
		}
		if w, ok := b.Link.WidthMax.Get(); ok && w > 0 && width > 0 {
			width = min(width, w)
		}
	}
	return rateOf(gen, width)
}

// iommuGroupType is a signal without which the patch is not advised.
const iommuGroupType = "IOMMU group type"

// condition finds what of a GPU would be in the way of P2P.
func (d *diagnosis) condition(g *gpu) {
	f, dev := d.f, g.Device
	want := func(name string, asked bool, why string) {
		if asked || f.Machine.OS == "linux" {
			g.missing = append(g.missing, signal{name, why})
		}
	}

	if m, ok := dev.DriverModel.Get(); ok && m == "wddm" {
		g.blocks = append(g.blocks, find(WDDM, seen(dev.DriverModel, "%s: driver model WDDM", g.label)))
	}
	if v, ok := dev.MIG.Get(); ok && v {
		g.blocks = append(g.blocks, find(MIG, seen(dev.MIG, "%s is in MIG mode", g.label)))
	}
	if cc, ok := dev.ComputeCapability.Get(); g.chip != nil && !g.chip.open || ok && olderThanTuring(cc) {
		ev := seen(dev.DeviceID, "%s: %s", g.label, chipText(g))
		if ok {
			ev = seen(dev.ComputeCapability, "%s: compute capability %s", g.label, cc)
		}
		g.blocks = append(g.blocks, find(NoOpenModule, ev))
	}

	d.bar1(g, want)

	guest := d.guest() != nil
	switch t, ok := dev.IOMMUType.Get(); {
	case ok && strings.HasPrefix(t, "DMA"):
		fi := find(IOMMUTranslating, seen(dev.IOMMUType, "%s: IOMMU group %s is of type %s", g.label, dev.IOMMUGroup.Or("?"), t))
		if k, ok := f.Machine.Kargs.Get(); ok && k != "" {
			fi.Evidence = append(fi.Evidence, seen(f.Machine.Kargs, "kernel command line: %s", k))
		}
		g.iommu = &fi
	case ok:
	case f.Machine.IOMMUs.IsKnown() && f.Machine.IOMMUs.Or(1) == 0:
	case !guest && !f.Environment.WSL2.Or(false):
		want(iommuGroupType, dev.IOMMUType.Asked(), dev.IOMMUType.Why())
	}

	if path, ok := dev.Path.Get(); ok {
		var ev []Evidence
		for _, b := range path {
			if a, ok := b.ACS.Get(); ok && a.Redirects() {
				ev = append(ev, seen(b.ACS, "%s, above %s: ACS control %s", b.BusID, g.label, a.Control))
			} else if !ok && b.ACS.Asked() {
				want("ACS of the bridges", true, b.ACS.Error)
			}
		}
		if len(ev) > 0 {
			g.notes = append(g.notes, find(ACSRedirect, ev...))
		}
	}
	if v, ok := dev.Display.Get(); ok && v && g.geforce {
		g.notes = append(g.notes, find(Display, seen(dev.Display, "%s has a display", g.label)))
	}
	if r := linkOf(dev); r.Width > 0 {
		if w, g2 := dev.Link.WidthMax.Or(0), dev.Link.GenMax.Or(0); r.Width < w || r.Gen < g2 {
			g.notes = append(g.notes, find(NarrowLink, seen(dev.Link.WidthMax,
				"%s: the card has PCIe %d.0 x%d, its slot %d.0 x%d", g.label, g2, w, r.Gen, r.Width)))
		}
	}
}

func chipText(g *gpu) string {
	if g.chip != nil {
		return g.chip.name
	}
	if id, ok := g.DeviceID.Get(); ok {
		return "device id " + id.String()
	}
	return "chip unknown"
}

func olderThanTuring(cc string) bool {
	major, minor, _ := strings.Cut(cc, ".")
	a, err := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	return err == nil && err2 == nil && (a < 7 || a == 7 && b < 5)
}

func mib(n uint64) string { return fmt.Sprintf("%d MiB", n>>20) }

// bar1 compares BAR1 with the memory, and says what would make it larger.
func (d *diagnosis) bar1(g *gpu, want func(string, bool, string)) {
	dev := g.Device
	memory := memoryOf(dev)
	size, ok := dev.BAR1.Get()
	mem, ok2 := memory.Get()
	if !ok {
		want("BAR1 size", dev.BAR1.Asked(), dev.BAR1.Why())
	}
	if !ok2 {
		want("memory size", memory.Asked(), memory.Why())
	}
	if !ok || !ok2 {
		return
	}
	if size >= mem {
		g.bar1 = barFull
		// The total that drivers tell is less than what the chips hold by some
		// hundred MiB, and a mapping must cover the latter.
		if size-mem < 1<<30 {
			g.notes = append(g.notes, find(BAR1Tight, seen(dev.BAR1, "%s: BAR1 %s, memory %s", g.label, mib(size), mib(mem))))
		}
		return
	}
	g.bar1 = barSmall
	ev := []Evidence{
		seen(dev.BAR1, "%s: BAR1 %s", g.label, mib(size)),
		seen(memory, "%s: memory %s", g.label, mib(mem)),
	}
	mask, ok := dev.ResizeMask.Get()
	why := dev.ResizeMask.Why()
	if ok && mask == 0 && !tellsSizes(d.f.Machine.Kernel.Or("")) {
		ok, why = false, dev.ResizeMask.Source+": Linux has this file from 6.1 on, and this one is older or unknown"
	}
	var fi Finding
	switch largest := largestOf(mask); {
	case !ok:
		fi = find(BAR1Small, ev...)
		fi.Do = "whether the card can have a larger one could not be read (" + why + "): sudo lspci -vvv -s " + orElse(dev.BusID, "BUS") +
			" | grep -A4 'Resizable BAR' shows the sizes. If they reach the memory: " + fi.Do + " If there are none: firmware (\"Above 4G decoding\", \"Resizable BAR\") and the card maker's vBIOS update first."
		want("sizes that BAR1 can have", true, why)
	case mask == 0 || largest <= size && size < 1<<30:
		ev = append(ev, seen(dev.ResizeMask, "%s: it offers no larger BAR1", g.label))
		fi = find(BAR1Firmware, ev...)
	case largest < mem:
		ev = append(ev, seen(dev.ResizeMask, "%s: the largest BAR1 that it offers is %s", g.label, mib(largest)))
		fi = find(BAR1Card, ev...)
	default:
		ev = append(ev, seen(dev.ResizeMask, "%s: it offers BAR1 up to %s", g.label, mib(largest)))
		fi = find(BAR1Small, ev...)
	}
	g.blocks = append(g.blocks, fi)
}

var kernelPattern = regexp.MustCompile(`^Linux version (\d{1,4})\.(\d{1,4})`)

// tellsSizes tells whether a kernel has the files resourceN_resize.
func tellsSizes(kernel string) bool {
	m := kernelPattern.FindStringSubmatch(kernel)
	if m == nil {
		return false
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	return major > 6 || major == 6 && minor >= 1
}

// largestOf is the largest BAR in bytes that a resize mask offers: bit n stands
// for 2^n MiB.
func largestOf(mask Hex) uint64 {
	for n := 43; n >= 0; n-- {
		if mask>>n&1 == 1 {
			return 1 << (20 + n)
		}
	}
	return 0
}

// guest is the finding that this is a virtual machine, nil if it is none.
func (d *diagnosis) guest() *Finding {
	var ev []Evidence
	env := &d.f.Environment
	if v, ok := env.WSL2.Get(); ok && v {
		return nil // has a cause of its own
	}
	if v, ok := env.VM.Get(); ok && v != "" {
		ev = append(ev, seen(env.VM, "hypervisor: %s", v))
	}
	for i := range d.f.Devices {
		switch v := d.f.Devices[i].Virtualization; v.Or("") {
		case "passthrough", "vgpu":
			ev = append(ev, seen(v, "GPU%d: virtualisation mode %s", i, v.Or("")))
		}
	}
	if len(ev) == 0 {
		return nil
	}
	fi := find(VMGuest, ev...)
	return &fi
}

// pairs judges every direction.
func (d *diagnosis) pairs() {
	n := len(d.gpus)
	facts := make(map[[2]int]*Pair, len(d.f.Pairs))
	for i := range d.f.Pairs {
		p := &d.f.Pairs[i]
		facts[[2]int{p.From, p.To}] = p
	}
	at := func(i, j int) *Pair {
		if p := facts[[2]int{i, j}]; p != nil {
			return p
		}
		return &Pair{From: i, To: j}
	}
	guest := d.guest()
	for i := range n {
		row := make([]string, n)
		for j := range n {
			if i == j {
				row[j] = "X"
				continue
			}
			p := at(i, j)
			d.report.Pairs = append(d.report.Pairs, d.pair(p, at(j, i), guest))
			row[j] = d.between(p, at(j, i))
		}
		d.report.Topology = append(d.report.Topology, row)
	}
}

// between is a cell of the topology matrix.
func (d *diagnosis) between(p, back *Pair) string {
	a, b := &d.gpus[p.From], &d.gpus[p.To]
	links, _ := a.NVLinks.Get()
	count := 0
	for _, l := range links {
		if l.Active && (b.BusID != "" && l.Remote == b.BusID || p.NVLink.Or("") == P2POK && !d.isGPU(l.Remote)) {
			count++
		}
	}
	if count > 0 {
		return fmt.Sprintf("NV%d", count)
	}
	if v, ok := p.Ancestor.Get(); ok {
		return string(v)
	}
	return string(back.Ancestor.Or("?"))
}

func (d *diagnosis) isGPU(bus string) bool {
	return bus != "" && slices.ContainsFunc(d.f.Devices, func(x Device) bool { return x.BusID == bus })
}

func sameDevice(a, b *gpu) bool {
	return a.UUID != "" && a.UUID == b.UUID || a.UUID == "" && b.UUID == "" && a.BusID != "" && a.BusID == b.BusID
}

// A judgement is a direction while it is worked out.
type judgement struct {
	d        *diagnosis
	a, b     *gpu
	p, back  *Pair
	findings []Finding
	missing  []string
}

func (j *judgement) found(f Finding) { j.findings = append(j.findings, f) }

func (j *judgement) lacks(s signal) {
	if !slices.Contains(j.missing, s.name) {
		j.missing = append(j.missing, s.name)
	}
	j.d.lacks(s.name, s.why)
}

func (d *diagnosis) pair(p, back *Pair, guest *Finding) PairReport {
	j := &judgement{d: d, a: &d.gpus[p.From], b: &d.gpus[p.To], p: p, back: back}
	r := PairReport{From: p.From, To: p.To, Read: p.Read.Or(""), Write: p.Write.Or("")}
	can, asked := p.CanAccess.Get()
	if asked {
		r.CanAccess = &can
	}
	if t, ok := p.Transfer.Get(); ok {
		r.Transfer = &t
	}
	switch {
	case sameDevice(j.a, j.b):
		r.State = StateSame
		j.found(find(SameDevice))
	case j.a.lost || j.b.lost:
		r.State = StateUnknown
		for _, g := range []*gpu{j.a, j.b} {
			if g.lost {
				j.found(find(DeviceLost, Evidence{Text: g.label + ": " + lostBy(g.Device)}))
			}
		}
	case asked && can:
		r.State, r.Verified = j.granted(guest)
	case asked:
		r.State = StateOff
		j.refused(guest)
	default:
		r.State = StateUnknown
		j.unasked(guest)
	}
	if back, ok := back.CanAccess.Get(); ok && asked && back != can {
		j.found(find(OneWay, Evidence{
			Text:   fmt.Sprintf("%s to %s: %s, %s to %s: %s", j.a.label, j.b.label, yes(can), j.b.label, j.a.label, yes(back)),
			Source: p.CanAccess.Source,
		}))
	} else if t, ok := p.Transfer.Get(); ok {
		if u, ok := j.back.Transfer.Get(); ok && (t.Outcome == "proven") != (u.Outcome == "proven") {
			j.found(find(OneWay, Evidence{
				Text: fmt.Sprintf("checked transfer %s to %s: %s, %s to %s: %s", j.a.label, j.b.label, t.Outcome, j.b.label, j.a.label, u.Outcome)}))
		}
	}
	r.Findings, r.Unknown = ordered(j.findings), j.missing
	r.Headline = headline(r.State, r.Findings)
	if at := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Cause == r.Headline }); at > 0 {
		f := r.Findings[at]
		r.Findings = slices.Insert(slices.Delete(r.Findings, at, at+1), 0, f)
	}
	r.Patch, r.PatchWhy = j.patch(r.State, r.Headline, r.Findings)
	r.Verdict = verdict(&r)
	return r
}

func yes(b bool) string {
	if b {
		return "granted"
	}
	return "refused"
}

// granted judges a direction for which CUDA grants access. No refusal applies
// here: a guest or a card under TCC may well have P2P.
func (j *judgement) granted(guest *Finding) (State, bool) {
	p := j.p
	ev := []Evidence{seen(p.CanAccess, "CUDA grants access from %s to %s", j.a.label, j.b.label)}
	var bad []Evidence
	for _, s := range []struct {
		what string
		v    Value[P2PStatus]
	}{{"read", p.Read}, {"write", p.Write}} {
		switch st, ok := s.v.Get(); {
		case !ok:
			j.lacks(signal{"NVML's status of " + s.what, s.v.Why()})
		case st == P2POK:
			ev = append(ev, seen(s.v, "NVML: %s %s", s.what, st))
		default:
			bad = append(bad, seen(s.v, "NVML: %s %s (%s)", s.what, st, statusText(st)))
		}
	}
	nvlink := p.NVLink.Or("") == P2POK && active(j.a) && active(j.b)
	state := StateOn
	if nvlink {
		j.found(find(NVLinkOn, append(ev, seen(p.NVLink, "NVML: NVLink OK, and links are active"))...))
	} else {
		j.found(find(P2POn, ev...))
		for _, g := range []*gpu{j.a, j.b} {
			if g.iommu != nil {
				fi := *g.iommu
				fi.Patch = PatchNA
				j.found(fi)
				state = StateRisk
			}
			for _, fi := range g.notes {
				if fi.Cause == ACSRedirect || fi.Cause == NarrowLink || fi.Cause == Display {
					j.found(fi)
				}
			}
			for _, s := range g.missing {
				if s.name == iommuGroupType {
					j.lacks(s)
				}
			}
		}
	}
	if len(bad) > 0 {
		j.found(find(NVMLDisagree, bad...))
		state = StateRisk
	}
	if guest != nil {
		j.found(find(GuestGrant, guest.Evidence...))
	}

	t, ok := p.Transfer.Get()
	if !ok {
		return state, false
	}
	te := Evidence{Text: fmt.Sprintf("checked transfer %s to %s: %s", j.a.label, j.b.label, t.Outcome), Source: p.Transfer.Source}
	if t.Detail != "" {
		te.Text += ": " + t.Detail
	}
	switch t.Outcome {
	case "proven":
		return StateOn, true
	case "mismatch":
		j.found(find(BadData, te))
		return StateBad, false
	case "refused":
		j.found(find(EnableFails, te))
		return StateBad, false
	}
	j.found(find(Hangs, te))
	return StateBad, false
}

func active(g *gpu) bool {
	links, _ := g.NVLinks.Get()
	return slices.ContainsFunc(links, func(l NVLink) bool { return l.Active })
}

func statusText(s P2PStatus) string {
	switch s {
	case P2POK:
		return "supported"
	case P2PChipset:
		return "chipset not supported"
	case P2PGPU:
		return "GPU not supported"
	case P2PTopology:
		return "I/O hub topology not supported"
	case P2PDisabledByRegistry:
		return "disabled by a registry key"
	case P2PNotSupported:
		return "not supported"
	}
	return "unknown"
}

// refused finds all that keeps a direction off for which CUDA says no.
func (j *judgement) refused(guest *Finding) {
	d, p := j.d, j.p
	no := seen(p.CanAccess, "CUDA refuses access from %s to %s", j.a.label, j.b.label)
	if v, ok := d.f.Environment.WSL2.Get(); ok && v {
		j.found(find(WSL2, seen(d.f.Environment.WSL2, "/dev/dxg or a Microsoft kernel")))
		return // nothing else can be told from here
	}
	j.obstacles(guest)

	// What NVML says of reading and writing.
	statuses := []struct {
		what string
		v    Value[P2PStatus]
	}{{"read", p.Read}, {"write", p.Write}}
	said := map[P2PStatus][]Evidence{}
	known := 0
	for _, s := range statuses {
		if st, ok := s.v.Get(); ok {
			known++
			said[st] = append(said[st], seen(s.v, "NVML: %s %s (%s)", s.what, st, statusText(st)))
		} else {
			j.lacks(signal{"NVML's status of " + s.what, s.v.Why()})
		}
	}
	j.chips(no, said)
	if ev := said[P2PTopology]; len(ev) > 0 {
		j.found(find(IOHTopology, append([]Evidence{no}, ev...)...))
	}
	key, value := disabledByKey(d.f)
	if ev := said[P2PDisabledByRegistry]; len(ev) > 0 || len(key) > 0 {
		ev = append([]Evidence{no}, ev...)
		if len(key) > 0 {
			ev = append(ev, seen(d.f.Driver.Params, "RegistryDwords has ForceP2P=%#x: %s disabled", value, strings.Join(key, " and ")))
		}
		j.found(find(RegistryKey, ev...))
	}
	for _, g := range []*gpu{j.a, j.b} {
		for _, s := range g.missing {
			j.lacks(s)
		}
	}

	if slices.ContainsFunc(j.findings, func(f Finding) bool { return f.Kind == KindBlock }) {
		return
	}
	ev := []Evidence{no}
	for _, s := range statuses {
		if st, ok := s.v.Get(); ok {
			ev = append(ev, seen(s.v, "NVML: %s %s (%s)", s.what, st, statusText(st)))
		}
	}
	flavour, haveFlavour := d.f.Driver.Flavour.Get()
	if haveFlavour {
		ev = append(ev, seen(d.f.Driver.Flavour, "%s kernel module", flavour))
	}
	for _, g := range []*gpu{j.a, j.b} {
		if g.bar1 == barFull {
			ev = append(ev, seen(g.BAR1, "%s: BAR1 %s, memory %s", g.label, mib(g.BAR1.Or(0)), mib(memoryOf(g.Device).Or(0))))
		}
	}
	// Only with words of NVML's that mean a refusal, and where nothing is unread
	// that could be its reason. "Unknown" is no such word, and "not supported"
	// has other reasons.
	denied := len(said[P2PChipset])+len(said[P2PGPU]) > 0
	if haveFlavour && denied && j.a.bar1 == barFull && j.b.bar1 == barFull && j.sameChip() {
		j.found(find(DriverRefusal, ev...))
		for _, g := range []*gpu{j.a, j.b} {
			for _, s := range g.missing {
				if s.name == iommuGroupType {
					j.found(find(IOMMUUnread, Evidence{Text: g.label + ": " + s.name + ": " + s.why}))
				}
			}
		}
		return
	}
	fi := find(UnknownWhy, ev...)
	if !haveFlavour || known == 0 || !j.sameChip() || j.a.bar1 == barUnknown || j.b.bar1 == barUnknown {
		fi.Evidence = append(fi.Evidence, Evidence{Text: "what could be read leaves the driver's own refusal, but it is not all"})
	}
	j.found(fi)
}

// obstacles finds what is in the way whatever NVML's words for it are.
func (j *judgement) obstacles(guest *Finding) {
	d := j.d
	if guest != nil {
		j.found(*guest)
	}
	if on, ok := d.f.Driver.ConfidentialCompute.Get(); ok && on {
		j.found(find(Confidential, seen(d.f.Driver.ConfidentialCompute, "confidential computing is on")))
	}
	for _, g := range []*gpu{j.a, j.b} {
		for _, fi := range g.blocks {
			j.found(fi)
		}
		for _, fi := range g.notes {
			j.found(fi)
		}
		if g.iommu != nil {
			fi := *g.iommu
			fi.Kind = KindBlock
			j.found(fi)
		}
	}
	switch v, ok := d.f.Driver.Flavour.Get(); {
	case ok && v == Proprietary:
		j.found(find(ProprietaryModule, seen(d.f.Driver.Flavour, "%s", orElse(d.f.Driver.Line.Or(""), "proprietary kernel module"))))
	case !ok && d.f.Machine.OS == "linux" && !d.f.Environment.WSL2.Or(false):
		j.lacks(signal{"flavour of the kernel module", d.f.Driver.Flavour.Why()})
	}
}

// sameChip tells whether both are known to be of one chip.
func (j *judgement) sameChip() bool {
	x, ok := j.a.DeviceID.Get()
	y, ok2 := j.b.DeviceID.Get()
	if !ok || !ok2 {
		return false
	}
	return x == y || j.a.chip != nil && j.a.chip == j.b.chip
}

// chips compares the silicon of a pair that is refused.
func (j *judgement) chips(no Evidence, said map[P2PStatus][]Evidence) {
	x, ok := j.a.DeviceID.Get()
	y, ok2 := j.b.DeviceID.Get()
	if !ok {
		j.lacks(signal{"PCI device id", j.a.DeviceID.Why()})
	}
	if !ok2 {
		j.lacks(signal{"PCI device id", j.b.DeviceID.Why()})
	}
	ids := func() []Evidence {
		return append([]Evidence{no,
			seen(j.a.DeviceID, "%s: device id %s, %s", j.a.label, x, chipText(j.a)),
			seen(j.b.DeviceID, "%s: device id %s, %s", j.b.label, y, chipText(j.b)),
		}, slices.Concat(said[P2POK], said[P2PNotSupported])...)
	}
	differ := false
	if ok && ok2 && x != y {
		ca, ok := j.a.ComputeCapability.Get()
		cb, ok2 := j.b.ComputeCapability.Get()
		switch {
		case j.a.chip != nil && j.b.chip != nil:
			differ = j.a.chip != j.b.chip
		case ok && ok2 && ca != cb:
			differ = true
		case len(said[P2POK]) == 2 || len(said[P2PNotSupported]) > 0:
			differ = true // the words by which NVML and libcuda refuse such a pair
		default:
			j.lacks(signal{"whether the two device ids are of one chip", "the ids are not in the table of chips"})
		}
		if !differ && j.a.chip != nil && j.a.chip == j.b.chip {
			j.found(find(SameDie, ids()...))
		}
	}
	switch {
	case differ:
		j.found(find(DifferentChips, ids()...))
	case len(said[P2POK]) == 2 && ok && ok2:
		j.found(find(LibcudaRefusal, append([]Evidence{no}, said[P2POK]...)...))
	}
}

// unasked judges a direction of which CUDA could say nothing.
func (j *judgement) unasked(guest *Finding) {
	d := j.d
	if v, ok := d.f.Environment.WSL2.Get(); ok && v {
		j.found(find(WSL2, seen(d.f.Environment.WSL2, "/dev/dxg or a Microsoft kernel")))
	} else {
		j.obstacles(guest)
	}
	reason := false
	for _, g := range []*gpu{j.a, j.b} {
		if g.foreign {
			j.found(find(ForeignDriver, seen(g.BoundDriver, "%s is bound to %s", g.label, g.BoundDriver.Or(""))))
			reason = true
		} else if d.f.CUDA.Usable && !g.CUDA.Seen {
			fi := find(HiddenFromCUDA, Evidence{Text: g.label + " is not among CUDA's devices"})
			if v := visibility(d.f); v != "" {
				fi.Evidence = append(fi.Evidence, Evidence{Text: v, Source: "environment"})
			}
			j.found(fi)
			reason = true
		}
	}
	if !reason && d.blocked != "" {
		for _, fi := range d.report.Machine {
			if fi.Cause == d.blocked {
				j.found(fi)
			}
		}
		reason = true
	}
	j.lacks(signal{"CUDA's word on access", j.p.CanAccess.Why()})
	if !reason {
		fi := find(UnknownWhy, Evidence{Text: "CUDA could not be asked: " + j.p.CanAccess.Why()})
		j.found(fi)
	}
}

// ordered sorts by the table and joins findings of one cause.
func ordered(list []Finding) []Finding {
	var out []Finding
	for _, f := range list {
		at := slices.IndexFunc(out, func(o Finding) bool { return o.Cause == f.Cause })
		if at < 0 {
			f.Evidence = slices.Clone(f.Evidence)
			out = append(out, f)
			continue
		}
		for _, e := range f.Evidence {
			if !slices.Contains(out[at].Evidence, e) {
				out[at].Evidence = append(out[at].Evidence, e)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Finding) int { return causeIndex[a.Cause] - causeIndex[b.Cause] })
	return out
}

// headline is the cause that a verdict line names.
func headline(s State, list []Finding) CauseID {
	first := func(ok func(*Finding) bool) CauseID {
		for i := range list {
			if ok(&list[i]) {
				return list[i].Cause
			}
		}
		return ""
	}
	kind := func(k Kind) CauseID { return first(func(f *Finding) bool { return f.Kind == k }) }
	switch s {
	case StateRisk: // what puts the data at risk comes before the grant
		if c := kind(KindRisk); c != "" {
			return c
		}
	case StateUnknown:
		// Why it could not be judged, before what would be in the way.
		c := first(func(f *Finding) bool {
			return f.Kind == KindBlock && (causeIndex[f.Cause] < causeIndex[BadData] || f.Cause == WSL2)
		})
		if c == "" {
			c = first(func(f *Finding) bool { return f.Cause == UnknownWhy })
		}
		if c != "" {
			return c
		}
	}
	if c := kind(KindVerdict); c != "" {
		return c
	}
	if c := kind(KindBlock); c != "" {
		return c
	}
	return UnknownWhy
}

// patch says whether the patch would turn a direction on.
func (j *judgement) patch(s State, head CauseID, list []Finding) (Patch, string) {
	switch s {
	case StateSame:
		return PatchNA, ""
	case StateOn, StateRisk:
		return PatchNotNeeded, ""
	case StateBad:
		return PatchNo, "P2P is on; what is wrong is elsewhere"
	case StateUnknown:
		if p := causes[causeIndex[head]].Patch; p != PatchNA && p != PatchMaybe {
			for _, f := range list {
				if f.Kind == KindBlock && f.Patch == PatchNever {
					return PatchNever, sentence(f.Cause)
				}
			}
			return p, sentence(head)
		}
		return PatchMaybe, "it is not known whether P2P is off"
	}
	answer := PatchLikely
	var because CauseID
	var after []string
	for _, f := range list {
		if f.Kind == KindBlock || f.Cause == SameDie || f.Cause == IOMMUUnread {
			if worst[f.Patch] > worst[answer] {
				answer, because = f.Patch, f.Cause
			}
			if f.Patch == PatchAfter {
				after = append(after, string(f.Cause))
			}
		}
	}
	if answer == PatchNo || answer == PatchNever {
		return answer, sentence(because)
	}
	// What the reports say about such cards.
	for _, g := range []*gpu{j.a, j.b} {
		switch {
		case g.known && !g.geforce:
			return PatchMaybe, g.label + " (" + g.Name.Or("") + ") is no GeForce: the driver has P2P for most such cards without a patch, so look for another reason"
		case g.chip != nil && strings.HasPrefix(g.chip.name, "TU"):
			return PatchNo, g.label + " is of the Turing generation, for which the patched modules are reported to fail (BAR1 not large enough, GSP)"
		}
	}
	if answer == PatchMaybe {
		return answer, sentence(because)
	}
	why := "reported to work for such cards"
	if j.a.chip == nil || !j.a.chip.reported || j.b.chip == nil || !j.b.chip.reported {
		why = "nothing known speaks against it, but no report for this chip is known either"
	}
	if len(after) > 0 {
		why = "after " + strings.Join(after, ", ") + " is cured: " + why
	}
	return answer, why
}

func sentence(id CauseID) string { return causes[causeIndex[id]].Sentence }

// verdict is a pair's line without its names.
func verdict(r *PairReport) string {
	short := causes[causeIndex[r.Headline]].Short
	switch r.State {
	case StateSame:
		return short
	case StateOn:
		if r.Verified {
			return short + ", verified"
		}
		return short + ", not yet verified"
	case StateRisk:
		return "granted, not verified: " + short
	case StateBad:
		return short
	case StateOff:
		return "off: " + short
	}
	return "unknown: " + short
}

// finish fills in what concerns the whole report.
func (d *diagnosis) finish() {
	r := d.report
	r.Machine = ordered(r.Machine)
	if !d.f.CUDA.Usable || len(d.f.Devices) == 0 {
		r.Status = StatusUnusable
	}
	found := map[CauseID]bool{}
	mark := func(list []Finding) {
		for _, f := range list {
			found[f.Cause] = true
		}
	}
	mark(r.Machine)
	useful := false
	for i := range r.Devices {
		mark(r.Devices[i].Findings)
		if has(r.Devices[i].Findings, DeviceLost) {
			r.Status = StatusLost
		}
	}
	for i := range r.Pairs {
		mark(r.Pairs[i].Findings)
		p := r.Pairs[i].Patch
		useful = useful || p == PatchLikely || p == PatchAfter || p == PatchMaybe && r.Pairs[i].State == StateOff
	}
	for _, c := range causes {
		if found[c.ID] {
			r.Causes = append(r.Causes, c)
		}
	}
	for _, k := range d.order {
		r.Unknown = append(r.Unknown, Missing{Signal: k[0], Why: k[1], Count: d.unknown[k]})
	}
	if useful {
		a := d.branches.Advise(d.f.Driver.Version.Or(""), d.minSeries)
		r.Branch = &a
	}
}

func describeDriver(f *Facts) string {
	v, ok := f.Driver.Version.Get()
	if !ok {
		return "unknown version"
	}
	fl, ok := f.Driver.Flavour.Get()
	switch {
	case !ok:
		return v + ", flavour unknown"
	case f.Driver.Flavour.Assumed:
		return v + ", " + string(fl) + " kernel module (assumed)"
	}
	return v + ", " + string(fl) + " kernel module"
}

func describeLibrary(l *Library) string {
	switch {
	case l.Usable:
		text := l.Version.Or("version unknown")
		if l.InitSeconds > 0 {
			text += fmt.Sprintf(", started in %.0f ms", l.InitSeconds*1e3)
		}
		return text
	case l.Skipped:
		return "not asked"
	case l.Code != 0:
		return fmt.Sprintf("unusable, error %d: %s", l.Code, orElse(l.Error, "no text"))
	}
	text, _, _ := strings.Cut(l.Error, "; tried")
	return orElse(text, "not found")
}
