// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/geforce-p2p/geforce-p2p/internal/pci"
)

// Device numbers of NVIDIA's nodes. That of the memory manager is given out when
// its module is loaded: this is one that it has been seen to have.
const (
	majorNVIDIA = 195
	minorCtl    = 255
	majorUVM    = 510
)

// linkSpeeds is what sysfs writes for a generation.
var linkSpeeds = [...]string{1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}

// portTypes is what the PCI Express capability calls the kinds of bridge.
var portTypes = map[string]pci.PortType{"root-port": pci.PortRoot, "upstream": pci.PortUpstream, "downstream": pci.PortDownstream}

// newHost lays out the files of the machine: /sys as far as it concerns its
// GPUs, and, where the description has a system and a module, /proc and /dev.
func newHost(m *Machine) *host {
	h := &host{m: m, files: newTree()}
	s := &m.spec
	var bases bars
	for _, g := range m.gpus {
		h.gpu(g, &bases)
	}
	var nodes []string
	for _, n := range s.Host.Nodes {
		nodes = append(nodes, fmt.Sprint(n.ID))
	}
	h.files.file("sys/devices/system/node/online", strings.Join(nodes, ",")+"\n")
	if s.System.CPU != "" {
		h.system()
	}
	if s.Module.Version != "" {
		h.module()
	}
	return h
}

const pciDevices = "sys/bus/pci/devices/"

// gpu is a GPU's directory, those of the bridges above it, and the links.
func (h *host) gpu(g *gpu, bases *bars) {
	t, p := h.files, &g.spec.PCI
	dir := "sys/devices/" + g.root()
	speed := linkSpeeds[g.spec.PCIeGen] + " GT/s PCIe\n"
	width := fmt.Sprintln(g.spec.PCIeWidth)
	linkFiles := func(dir string) {
		t.file(dir+"/max_link_speed", speed)
		t.file(dir+"/current_link_speed", speed)
		t.file(dir+"/max_link_width", width)
		t.file(dir+"/current_link_width", width)
	}
	for _, b := range p.Path {
		dir += "/" + b.BusID
		t.link(pciDevices+b.BusID, dir)
		t.file(dir+"/vendor", b.VendorID+"\n")
		t.file(dir+"/device", b.DeviceID+"\n")
		t.file(dir+"/class", "0x060400\n")
		t.file(dir+"/config", string(b.config()))
		linkFiles(dir)
	}
	dir += "/" + g.busID()
	t.link(pciDevices+g.busID(), dir)
	t.file(dir+"/vendor", "0x10de\n")
	class := p.Class
	if class == "" {
		class = "0x030000"
	}
	t.file(dir+"/class", class+"\n")
	t.file(dir+"/numa_node", fmt.Sprintln(g.spec.NUMANode))
	linkFiles(dir)
	if p.DeviceID == "" {
		return
	}
	t.file(dir+"/device", p.DeviceID+"\n")
	if p.SubsystemDevice != "" {
		t.file(dir+"/subsystem_device", p.SubsystemDevice+"\n")
		t.file(dir+"/subsystem_vendor", p.SubsystemVendor+"\n")
	}
	t.file(dir+"/power_state", "D0\n")
	lines, regions := bases.place(p.BARs)
	t.file(dir+"/resource", lines)
	if bar1, err := pci.BAR1(regions); err == nil && p.ResizeMask != "" {
		mask, _ := parseHex(p.ResizeMask)
		t.file(dir+"/"+pci.ResizeFile(bar1.Line), fmt.Sprintf("%016x\n", mask))
	}
	if h.m.spec.Module.Version != "" {
		t.directory("sys/bus/pci/drivers/nvidia")
		t.link(dir+"/driver", "sys/bus/pci/drivers/nvidia")
	}
	if kind := h.m.spec.System.IOMMU; kind != "" && kind != "off" {
		group := fmt.Sprintf("sys/kernel/iommu_groups/%d", 16+g.ordinal)
		t.file(group+"/type", kind+"\n")
		t.link(dir+"/iommu_group", group)
	}
}

// root is the GPU's root bus.
func (g *gpu) root() string {
	if r := g.spec.PCI.Root; r != "" {
		return r
	}
	return fmt.Sprintf("pci%04x:%02x", g.bus.domain, g.bus.bus&0xe0)
}

// config is as much of a bridge's configuration space as tells its kind and its
// Access Control Services.
func (b *Bridge) config() []byte {
	const (
		capList, express         = 0x34, 0x40
		extended                 = 0x100
		idExpress, idACS, verACS = 0x10, 0x0d, 1
	)
	c := make([]byte, 4096)
	id := func(at int, s string) {
		n, _ := parseHex(s)
		binary.LittleEndian.PutUint16(c[at:], uint16(n))
	}
	id(0, b.VendorID)
	id(2, b.DeviceID)
	c[6] = 0x10 // there is a list of capabilities
	c[0x0a], c[0x0b] = 0x04, 0x06
	c[capList], c[express] = express, idExpress
	binary.LittleEndian.PutUint16(c[express+2:], uint16(portTypes[b.Kind])<<4|2)
	if b.ACS != "" {
		binary.LittleEndian.PutUint32(c[extended:], verACS<<16|idACS)
		id(extended+6, b.ACS)
	}
	return c
}

// bars gives out bus addresses as firmware does, each aligned to its size.
type bars struct{ ports, low, high uint64 }

// place writes the BARs of a GPU as sysfs "resource" does.
func (b *bars) place(list []BAR) (text string, regions []pci.Region) {
	const (
		lines = 13
		// Flags of linux/ioport.h: ports, and a memory BAR that takes 64 bits.
		flagIO, flag64 = 0x100, 0x100000
	)
	var rs [lines]pci.Region
	for _, x := range list {
		flags, _ := parseHex(x.Flags)
		next := &b.low
		switch {
		case flags&flagIO != 0:
			next = &b.ports
			*next = max(*next, 0x1000)
		case flags&flag64 != 0:
			next = &b.high
			*next = max(*next, 1<<40)
		default:
			*next = max(*next, 1<<31)
		}
		start := (*next + x.Bytes - 1) / x.Bytes * x.Bytes
		*next = start + x.Bytes
		rs[x.Line] = pci.Region{Line: x.Line, Start: start, Size: x.Bytes, Flags: flags}
	}
	var s strings.Builder
	for _, r := range rs {
		end := uint64(0)
		if r.Size > 0 {
			end = r.Start + r.Size - 1
			regions = append(regions, r)
		}
		fmt.Fprintf(&s, "0x%016x 0x%016x 0x%016x\n", r.Start, end, r.Flags)
	}
	return s.String(), regions
}

// system is what files tell of the host.
func (h *host) system() {
	t, s := h.files, &h.m.spec.System
	t.file("proc/version", fmt.Sprintf("Linux version %s\n", s.Kernel))
	t.file("proc/cmdline", s.CmdLine+"\n")
	flags := "fpu sse2 avx2"
	if s.Hypervisor {
		flags += " hypervisor"
	}
	t.file("proc/cpuinfo", fmt.Sprintf("processor\t: 0\nmodel name\t: %s\nflags\t\t: %s\n", s.CPU, flags))
	t.file("proc/self/cgroup", "0::/\n")
	t.file("sys/fs/cgroup/cgroup.controllers", "memory\n")
	t.file("proc/self/limits", "Limit                     Soft Limit           Hard Limit           Units\n"+
		"Max locked memory         unlimited            unlimited            bytes\n")
	t.file("sys/class/dmi/id/sys_vendor", s.Vendor+"\n")
	t.file("sys/class/dmi/id/product_name", s.Product+"\n")
	t.directory("sys/class/iommu")
	if s.IOMMU != "" && s.IOMMU != "off" {
		t.directory("sys/class/iommu/ivhd0")
	}
}

// module is what NVIDIA's kernel module shows of itself and its GPUs, and the
// device nodes.
func (h *host) module() {
	t, mod := h.files, &h.m.spec.Module
	const proc = "proc/driver/nvidia/"
	kind, firmware := "Kernel Module for x86_64", "N/A"
	if mod.Flavour == "open" {
		kind, firmware = "Open Kernel Module for x86_64", mod.Version
	}
	t.file(proc+"version", fmt.Sprintf("NVRM version: NVIDIA UNIX %s  %s  Release Build\n", kind, mod.Version))
	t.file("sys/module/nvidia/version", mod.Version+"\n")
	t.directory("sys/module/nvidia_uvm")
	var params strings.Builder
	for _, k := range slices.Sorted(maps.Keys(mod.Params)) {
		fmt.Fprintf(&params, "%s: %s\n", k, mod.Params[k])
	}
	if params.Len() > 0 {
		t.file(proc+"params", params.String())
	}
	for _, g := range h.m.gpus {
		vbios := g.spec.PCI.VBIOS
		if vbios == "" {
			vbios = "??.??.??.??.??" // what the module writes of a GPU that it has not started
		}
		t.file(proc+"gpus/"+g.busID()+"/information", fmt.Sprintf(
			"Model: \t\t %s\nGPU UUID: \t GPU-%s\nVideo BIOS: \t %s\nBus Type: \t PCIe\nBus Location: \t %s\nDevice Minor: \t %d\nGPU Firmware: \t %s\nGPU Excluded:\t No\n",
			g.spec.Name, g.spec.UUID, vbios, g.busID(), g.ordinal, firmware))
		t.node(fmt.Sprintf("dev/nvidia%d", g.ordinal), majorNVIDIA, uint32(g.ordinal))
	}
	t.node("dev/nvidiactl", majorNVIDIA, minorCtl)
	t.node("dev/nvidia-uvm", majorUVM, 0)
	t.node("dev/nvidia-uvm-tools", majorUVM, 1)
	t.file("proc/devices", fmt.Sprintf("Character devices:\n  1 mem\n%d nvidia\n%d nvidiactl\n%d nvidia-uvm\n\nBlock devices:\n  8 sd\n", majorNVIDIA, majorNVIDIA, majorUVM))
}
