// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"
)

// environment fills in what stands between the process and the machine.
func (c *collector) environment() {
	e := &c.facts.Environment
	e.WSL2 = c.wsl2()
	e.Container = c.container()
	e.VM = c.vm()
	e.MPSPipe = c.mps()
	e.Memlock = c.memlock()
	e.MemoryMax = c.memoryMax()
}

// wsl2 tells Windows's Linux by its paravirtual GPU and its kernel's name.
func (c *collector) wsl2() Value[bool] {
	dxg, err := c.files.has("dev/dxg")
	if dxg {
		return Known(true, "/dev/dxg")
	}
	kernel := c.facts.Machine.Kernel
	if s, ok := kernel.Get(); ok {
		s = strings.ToLower(s)
		return Known(strings.Contains(s, "wsl2") || strings.Contains(s, "microsoft-standard"), kernel.Source)
	}
	return valueOf(false, err, "/dev/dxg")
}

// container finds the kind of container that the process runs in.
func (c *collector) container() Value[string] {
	if _, set := c.o.LookupEnv("KUBERNETES_SERVICE_HOST"); set {
		return Known("kubernetes", "KUBERNETES_SERVICE_HOST")
	}
	groups, _, groupErr := c.files.head("proc/self/cgroup", maxTable)
	if strings.Contains(groups, "kubepods") {
		return Known("kubernetes", "/proc/self/cgroup")
	}
	for _, mark := range []struct{ file, kind string }{
		{"run/.containerenv", "podman"},
		{".dockerenv", "docker"},
	} {
		if ok, _ := c.files.has(mark.file); ok {
			return Known(mark.kind, "/"+mark.file)
		}
	}
	// systemd writes what its manager told it, and every manager tells the first
	// process.
	word := func(source, kind string) (Value[string], bool) {
		switch kind = strings.TrimSpace(kind); {
		case kind == "" || kind == "wsl":
			return Value[string]{}, false
		case strings.HasPrefix(kind, "lxc"):
			return Known("lxc", source), true
		case kind == "docker" || kind == "podman":
			return Known(kind, source), true
		}
		return Known("other", source), true
	}
	if s, err := c.files.text("run/systemd/container", maxText); err == nil {
		if v, ok := word("/run/systemd/container", s); ok {
			return v
		}
	}
	if s, set := c.o.LookupEnv("container"); set {
		if v, ok := word("the variable container", s); ok {
			return v
		}
	}
	environ, _, environErr := c.files.head("proc/1/environ", maxTable)
	for s := range strings.SplitSeq(environ, "\x00") {
		if kind, ok := strings.CutPrefix(s, "container="); ok {
			if v, ok := word("/proc/1/environ", kind); ok {
				return v
			}
		}
	}
	for _, mark := range []struct{ part, kind string }{
		{"/docker/", "docker"}, {"/docker-", "docker"}, {"/libpod", "podman"}, {"/lxc/", "lxc"}, {"/lxc.payload", "lxc"},
		{"/machine.slice/", "other"}, // where systemd keeps containers, and nothing of the host's own
	} {
		if strings.Contains(groups, mark.part) {
			return Known(mark.kind, "/proc/self/cgroup")
		}
	}
	for _, mark := range []string{"dev/.lxc", "dev/.lxc-boot-id"} {
		if ok, _ := c.files.has(mark); ok {
			return Known("lxc", "/"+mark)
		}
	}
	// lxcfs puts a file of its own over these.
	if mounts, _, err := c.files.head("proc/self/mounts", maxTable); err == nil && strings.Contains(mounts, "lxcfs /proc/") {
		return Known("lxc", "/proc/self/mounts")
	}
	if groupErr != nil && environErr != nil {
		return failed[string](groupErr, "/proc/self/cgroup")
	}
	return Known("", "/proc/self/cgroup")
}

// hypervisors are words of the firmware's names, in lower case. A cloud's own
// bare machines bear its name too: those need the processor's word.
var hypervisors = []struct {
	word, name string
	certain    bool
}{
	{"qemu", "qemu", true}, {"standard pc (", "qemu", true}, {"kvm", "kvm", true}, {"bochs", "qemu", true},
	{"vmware", "vmware", true}, {"virtualbox", "virtualbox", true}, {"innotek", "virtualbox", true},
	{"parallels", "parallels", true}, {"apple virtualization", "apple", true}, {"bhyve", "bhyve", true},
	{"xen", "xen", true}, {"virtual machine", "hyper-v", true}, {"rhev", "kvm", true}, {"nutanix ahv", "kvm", true},
	{"openstack", "kvm", true}, {"amazon ec2", "amazon", false}, {"google", "google", false},
	{"alibaba cloud", "kvm", false}, {"digitalocean", "kvm", false}, {"hetzner", "kvm", false},
	{"oraclecloud", "kvm", false}, {"microsoft corporation", "hyper-v", false},
}

// vm finds the hypervisor. On x86 the processor says whether there is one, unless
// it was told to hide; the firmware says which.
func (c *collector) vm() Value[string] {
	const flags = "/proc/cpuinfo"
	cpu, cpuErr := c.cpu()
	board := c.facts.Machine.Board
	name := strings.ToLower(board.Or(""))
	for _, h := range hypervisors {
		if strings.Contains(name, h.word) && (h.certain || cpu.hypervisor) {
			return Known(h.name, board.Source)
		}
	}
	switch {
	case cpu.hypervisor:
		return Known("other", flags)
	case cpuErr != nil:
		return failed[string](cpuErr, flags)
	case cpu.flags:
		return Known("", flags)
	case board.IsKnown():
		return Known("", board.Source) // ARM: only the firmware can tell
	}
	return Unknown[string](flags, "it has no flags, and the firmware's names cannot be read")
}

// defaultMPS is where the daemon puts its pipes unless told otherwise.
const defaultMPS = "/tmp/nvidia-mps"

// mps finds the pipe directory of an MPS daemon.
func (c *collector) mps() Value[string] {
	const variable = "CUDA_MPS_PIPE_DIRECTORY"
	if dir, set := c.o.LookupEnv(variable); set && dir != "" {
		return Known(short(dir, maxText), variable)
	}
	const control = defaultMPS + "/control"
	ok, err := c.files.has(control[1:])
	if ok {
		return Known(defaultMPS, control)
	}
	return valueOf("", err, control)
}

// unlimited is a limit that is none.
const unlimited = math.MaxUint64

// memlock is the soft limit of locked memory.
func (c *collector) memlock() Value[uint64] {
	const name = "proc/self/limits"
	s, err := c.files.text(name, maxTable)
	var n uint64
	if err == nil {
		n, err = parseLimit(s, "Max locked memory")
	}
	return valueOf(n, err, "/"+name)
}

// parseLimit finds the soft limit of a line of /proc/self/limits.
func parseLimit(text, name string) (uint64, error) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			break
		}
		if fields[0] == "unlimited" {
			return unlimited, nil
		}
		n, err := strconv.ParseUint(fields[0], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("not a limit: %.40q", fields[0])
		}
		return n, nil
	}
	return 0, fmt.Errorf("it has no line of %s", name)
}

// memoryMax is the lowest memory limit of the process's cgroup and those above
// it, of version 2 or 1.
func (c *collector) memoryMax() Value[uint64] {
	const name = "proc/self/cgroup"
	s, err := c.files.text(name, maxTable)
	if err != nil {
		return failed[uint64](err, "/"+name)
	}
	var known bool
	lowest, source := uint64(unlimited), "/"+name
	look := func(mount, group, file string) {
		// A container sees its own group as the root, whatever its path is: so
		// every directory upwards is tried, and those that are missing are none.
		group = path.Clean("/" + group)
		for depth := 0; depth < 64; depth++ {
			at := path.Join(mount, group, file)
			if text, err := c.files.text(at, maxText); err == nil {
				n, err := strconv.ParseUint(text, 10, 64)
				if text == "max" || err == nil && n >= 1<<62 { // version 1 writes a huge number for none
					n, err = unlimited, nil
				}
				if err == nil && (!known || n < lowest) {
					known, lowest, source = true, n, "/"+at
				}
			}
			if group == "/" {
				return
			}
			group = path.Dir(group)
		}
	}
	for line := range strings.Lines(s) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, ok := strings.Cut(rest, ":")
		if !ok || len(group) > maxText {
			continue
		}
		if controllers == "" {
			look("sys/fs/cgroup", group, "memory.max")
			continue
		}
		for controller := range strings.SplitSeq(controllers, ",") {
			if controller == "memory" {
				look("sys/fs/cgroup/memory", group, "memory.limit_in_bytes")
			}
		}
	}
	if !known {
		// The root group of version 2 has no such file: it has no limit.
		if ok, _ := c.files.has("sys/fs/cgroup/cgroup.controllers"); ok {
			return Known(uint64(unlimited), "/sys/fs/cgroup")
		}
		return Unknown[uint64](source, "no memory limit is found below /sys/fs/cgroup")
	}
	return Known(lowest, source)
}
