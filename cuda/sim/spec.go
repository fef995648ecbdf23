// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/pci"
)

// A Spec describes a machine. Its JSON form is what the files of machines/ and
// those of users hold; see ParseSpec.
type Spec struct {
	Name string `json:"name"`
	// About says what machine this is and where its figures are from.
	About string `json:"about"`
	// DriverVersion is 1000*major + 10*minor, as cuDriverGetVersion answers.
	DriverVersion int   `json:"driver_version"`
	GPUs          []GPU `json:"gpus"`
	// PeerAccess[i][j] tells whether the driver lets GPU i reach GPU j's memory.
	PeerAccess [][]bool `json:"peer_access"`
	Host       HostSpec `json:"host"`
	Staging    Staging  `json:"staging"`
	// Peer is needed if any of PeerAccess is true.
	Peer   Peer   `json:"peer,omitzero"`
	Calls  Calls  `json:"calls"`
	System System `json:"system,omitzero"`
	Module Module `json:"module,omitzero"`
}

// GPU describes one GPU and the link that it sits on.
type GPU struct {
	Name            string `json:"name"`
	ComputeMajor    int    `json:"compute_major"`
	ComputeMinor    int    `json:"compute_minor"`
	Multiprocessors int    `json:"multiprocessors"`
	MemoryBytes     uint64 `json:"memory_bytes"`
	PCIBusID        string `json:"pci_bus_id"`
	UUID            string `json:"uuid"`
	// NUMANode is one of the host's, or -1 where the firmware names none. A GPU
	// whose node is not described hangs off the first.
	NUMANode    int    `json:"numa_node"`
	CopyEngines int    `json:"copy_engines"`
	PCIeGen     int    `json:"pcie_gen"`
	PCIeWidth   int    `json:"pcie_width"`
	D2H         Figure `json:"d2h"`      // GB/s, one way alone
	H2D         Figure `json:"h2d"`      // GB/s, one way alone
	Duplex      Figure `json:"duplex"`   // both ways at once, as a part of D2H + H2D
	Memory      Figure `json:"memory"`   // GB/s, reads and writes together
	PerCopy     Figure `json:"per_copy"` // us that a copy takes beside its bytes
	Event       Figure `json:"event"`    // us that waiting for an event takes in its stream; recording one takes none
	Poll        Figure `json:"poll"`     // us between two looks at an event of another GPU that was not there at the first
	Launch      Figure `json:"launch"`   // us that a kernel takes beside its bytes
	// PCI is what /sys shows of the GPU; without it, only where it is.
	PCI PCI `json:"pci,omitzero"`
}

// HostSpec describes the memory of the host.
type HostSpec struct {
	MemoryBytes uint64 `json:"memory_bytes"`
	// Nodes are the NUMA nodes. Pinned memory lies on the one that the thread
	// prefers which allocates it, else on the first.
	Nodes []Node `json:"nodes"`
	// SocketLink is each way between any two sockets, GB/s. It is needed where
	// there are two.
	SocketLink Figure `json:"socket_link,omitzero"`
	PageCopy   Figure `json:"page_copy"` // GB/s at which the driver copies pageable memory
}

// Node is a NUMA node.
type Node struct {
	ID     int    `json:"id"`
	Socket int    `json:"socket"`
	Memory Figure `json:"memory"` // GB/s, reads and writes together
}

// Staging describes how the driver itself copies between GPUs that may not
// reach each other: through buffers of its own. Without a Duplex it copies one
// direction at a time, and holds the caller until it is done.
type Staging struct {
	Rate    Figure `json:"rate"`            // GB/s one way
	PerCopy Figure `json:"per_copy"`        // us
	Duplex  Figure `json:"duplex,omitzero"` // both ways at once, as a part of twice the one-way rate
}

// Peer describes copies between GPUs that may reach each other, over PCIe.
type Peer struct {
	Near   Figure `json:"near"`   // GB/s one way, both GPUs on one socket
	Far    Figure `json:"far"`    // GB/s one way, across sockets
	Duplex Figure `json:"duplex"` // both ways at once, as a part of twice the one-way rate
}

// Calls is what driver calls cost the thread that makes them.
type Calls struct {
	Init           Figure `json:"init"`
	ContextCreate  Figure `json:"context_create"`
	ContextCurrent Figure `json:"context_current"`
	ContextSet     Figure `json:"context_set"`
	ContextPushPop Figure `json:"context_push_pop"`
	Memcpy         Figure `json:"memcpy"`
	EventRecord    Figure `json:"event_record"`
	StreamWait     Figure `json:"stream_wait"`
	Couple         Figure `json:"couple"` // beside, of a wait for another GPU's event, and of work on another engine than its stream's last
	Query          Figure `json:"query"`
	Synchronize    Figure `json:"synchronize"` // of what is done already
	Wake           Figure `json:"wake"`        // from the end of work until a call can tell that it has ended
	Launch         Figure `json:"launch"`
	ModuleLoad     Figure `json:"module_load"`
	HostAlloc      Figure `json:"host_alloc"` // us/byte
	Other          Figure `json:"other"`
}

// System is what files show of the host beside its GPUs. Without a CPU there
// are no such files.
type System struct {
	CPU        string `json:"cpu"`        // model name
	Vendor     string `json:"vendor"`     // of the board
	Product    string `json:"product"`    // of the board
	Kernel     string `json:"kernel"`     // release
	CmdLine    string `json:"cmdline"`    // kernel arguments
	Hypervisor bool   `json:"hypervisor"` // the processor says that this is a guest
	// IOMMU is the type of the GPUs' groups, "DMA", "DMA-FQ" or "identity", or
	// "off".
	IOMMU  string `json:"iommu"`
	Source string `json:"source"`
}

// Module is NVIDIA's kernel module. Without a version there are no files of it.
type Module struct {
	Version string            `json:"version"` // "550.90.07"
	Flavour string            `json:"flavour"` // "open" or "proprietary"
	Params  map[string]string `json:"params,omitempty"`
	// P2PStatus is what NVML answers for a pair without peer access, in the
	// letters of nvidia-smi: "CNS", "GNS", "TNS", "DR", "NS" or "U". Without it
	// the machine has no NVML.
	P2PStatus string `json:"p2p_status,omitempty"`
	Source    string `json:"source"`
}

// PCI is what /sys shows of a GPU.
type PCI struct {
	DeviceID        string `json:"device_id"` // "0x2684"
	SubsystemDevice string `json:"subsystem_device,omitempty"`
	SubsystemVendor string `json:"subsystem_vendor,omitempty"`
	Class           string `json:"class"` // "0x030000"
	VBIOS           string `json:"vbios,omitempty"`
	BARs            []BAR  `json:"bars"`
	// ResizeMask has bit n set if BAR1 can have 2^n MiB; "" is a GPU without
	// the capability, or a guest that hides it.
	ResizeMask string `json:"resize_mask,omitempty"`
	// Root is the root bus, "pci0000:40"; "" stands for the bus that the GPU's
	// own number begins with.
	Root string `json:"root,omitempty"`
	// Path is the bridges from the root port down to the GPU.
	Path   []Bridge `json:"path,omitempty"`
	Source string   `json:"source"`
}

// BAR is a line of "resource".
type BAR struct {
	Line  int    `json:"line"`
	Bytes uint64 `json:"bytes"`
	Flags string `json:"flags"` // as in linux/ioport.h, "0x14220c"
}

// Bridge is a PCI bridge above a GPU.
type Bridge struct {
	BusID    string `json:"bus_id"`
	VendorID string `json:"vendor_id"`
	DeviceID string `json:"device_id"`
	Kind     string `json:"kind"` // "root-port", "upstream" or "downstream"
	// ACS is the control word of Access Control Services; "" is a bridge
	// without.
	ACS string `json:"acs,omitempty"`
}

// A Figure is a number of the model, with where it is from.
type Figure struct {
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	Source string  `json:"source"`
	// Fitted marks a number that was set so that this very machine's published
	// or measured figures come out: a free parameter of the model. A number that
	// one measurement gives by arithmetic alone is a constant.
	Fitted bool `json:"fitted,omitempty"`
}

// us reads a figure in microseconds.
func (f Figure) us() time.Duration { return time.Duration(f.Value * 1e3) }

// perSecond reads a figure in GB/s, as bytes a second.
func (f Figure) perSecond() float64 { return f.Value * 1e9 }

// A NamedFigure is a figure by its path in the JSON form.
type NamedFigure struct {
	Name string // "gpus[0].d2h"
	Figure
	unit string // that it must have
}

// Figures lists all figures of the machine. Those that are the same for all
// GPUs, or for all NUMA nodes, are listed once, as "gpus[].d2h".
func (s *Spec) Figures() []NamedFigure {
	var out []NamedFigure
	all := s.figures()
	for i := 0; i < len(all); i++ {
		f := all[i]
		name, of, ok := collapse(f.Name)
		same := ok
		for _, g := range all {
			if n, _, ok := collapse(g.Name); ok && n == name {
				same = same && g.Figure.Value == f.Figure.Value
			}
		}
		if same {
			if of != 0 {
				continue
			}
			f.Name = name
		}
		out = append(out, f)
	}
	return out
}

// collapse takes the index out of a name.
func collapse(name string) (without string, index int, ok bool) {
	before, rest, found := strings.Cut(name, "[")
	if !found {
		return "", 0, false
	}
	number, after, _ := strings.Cut(rest, "]")
	_, err := fmt.Sscan(number, &index)
	return before + "[]" + after, index, err == nil
}

// figures lists all figures that the machine must have.
func (s *Spec) figures() []NamedFigure {
	var out []NamedFigure
	add := func(name, unit string, f Figure) { out = append(out, NamedFigure{name, f, unit}) }
	for i, g := range s.GPUs {
		at := fmt.Sprintf("gpus[%d].", i)
		add(at+"d2h", "GB/s", g.D2H)
		add(at+"h2d", "GB/s", g.H2D)
		add(at+"duplex", "of ", g.Duplex)
		add(at+"memory", "GB/s", g.Memory)
		add(at+"per_copy", "us", g.PerCopy)
		add(at+"event", "us", g.Event)
		add(at+"poll", "us", g.Poll)
		add(at+"launch", "us", g.Launch)
	}
	for i, n := range s.Host.Nodes {
		add(fmt.Sprintf("host.nodes[%d].memory", i), "GB/s", n.Memory)
	}
	if s.sockets() > 1 {
		add("host.socket_link", "GB/s", s.Host.SocketLink)
	}
	add("host.page_copy", "GB/s", s.Host.PageCopy)
	add("staging.rate", "GB/s", s.Staging.Rate)
	add("staging.per_copy", "us", s.Staging.PerCopy)
	if s.Staging.Duplex != (Figure{}) {
		add("staging.duplex", "of ", s.Staging.Duplex)
	}
	if s.peers() {
		add("peer.near", "GB/s", s.Peer.Near)
		if s.sockets() > 1 {
			add("peer.far", "GB/s", s.Peer.Far)
		}
		add("peer.duplex", "of ", s.Peer.Duplex)
	}
	c := &s.Calls
	add("calls.init", "us", c.Init)
	add("calls.context_create", "us", c.ContextCreate)
	add("calls.context_current", "us", c.ContextCurrent)
	add("calls.context_set", "us", c.ContextSet)
	add("calls.context_push_pop", "us", c.ContextPushPop)
	add("calls.memcpy", "us", c.Memcpy)
	add("calls.event_record", "us", c.EventRecord)
	add("calls.stream_wait", "us", c.StreamWait)
	add("calls.couple", "us", c.Couple)
	add("calls.query", "us", c.Query)
	add("calls.synchronize", "us", c.Synchronize)
	add("calls.wake", "us", c.Wake)
	add("calls.launch", "us", c.Launch)
	add("calls.module_load", "us", c.ModuleLoad)
	add("calls.host_alloc", "us/byte", c.HostAlloc)
	add("calls.other", "us", c.Other)
	return out
}

// peers tells whether any GPU may reach another's memory.
func (s *Spec) peers() bool {
	for i, row := range s.PeerAccess {
		for j, may := range row {
			if may && i != j {
				return true
			}
		}
	}
	return false
}

// sockets is how many sockets the host has.
func (s *Spec) sockets() int {
	seen := map[int]bool{}
	for _, n := range s.Host.Nodes {
		seen[n.Socket] = true
	}
	return len(seen)
}

func (s *Spec) check() error {
	if s.Name == "" {
		return fmt.Errorf("name: there is none")
	}
	if len(s.GPUs) == 0 {
		return fmt.Errorf("gpus: there are none")
	}
	if s.DriverVersion < 10000 {
		return fmt.Errorf("driver_version: %d is not 1000*major + 10*minor", s.DriverVersion)
	}
	if err := s.checkHost(); err != nil {
		return err
	}
	if len(s.PeerAccess) != len(s.GPUs) {
		return fmt.Errorf("peer_access: %d rows for %d GPUs", len(s.PeerAccess), len(s.GPUs))
	}
	for i, row := range s.PeerAccess {
		if len(row) != len(s.GPUs) {
			return fmt.Errorf("peer_access[%d]: %d columns for %d GPUs", i, len(row), len(s.GPUs))
		}
	}
	for i := range s.GPUs {
		if err := s.checkGPU(i); err != nil {
			return fmt.Errorf("gpus[%d].%w", i, err)
		}
	}
	for _, f := range s.figures() {
		switch {
		case f.Figure == Figure{}:
			return fmt.Errorf("%s: missing", f.Name)
		case !(f.Value > 0):
			return fmt.Errorf("%s: %v is not a positive number", f.Name, f.Value)
		case !strings.HasPrefix(f.Unit, f.unit):
			return fmt.Errorf("%s: unit %q, want %q", f.Name, f.Unit, strings.TrimSpace(f.unit))
		case f.unit == "of " && f.Value > 1:
			return fmt.Errorf("%s: %v is above 1", f.Name, f.Value)
		case f.Source == "":
			return fmt.Errorf("%s: no source", f.Name)
		}
	}
	return s.checkFacts()
}

func (s *Spec) checkHost() error {
	if len(s.Host.Nodes) == 0 {
		return fmt.Errorf("host.nodes: there are none")
	}
	seen := map[int]bool{}
	for i, n := range s.Host.Nodes {
		if n.ID < 0 || seen[n.ID] {
			return fmt.Errorf("host.nodes[%d].id: %d is negative or there twice", i, n.ID)
		}
		seen[n.ID] = true
	}
	if s.Host.MemoryBytes == 0 {
		return fmt.Errorf("host.memory_bytes: 0 bytes")
	}
	return nil
}

func (s *Spec) checkGPU(i int) error {
	g := &s.GPUs[i]
	if g.MemoryBytes == 0 {
		return fmt.Errorf("memory_bytes: 0 bytes")
	}
	if g.ComputeMajor < 1 || g.ComputeMinor < 0 {
		return fmt.Errorf("compute_major: %d.%d", g.ComputeMajor, g.ComputeMinor)
	}
	if _, err := parseBusID(g.PCIBusID); err != nil {
		return fmt.Errorf("pci_bus_id: %w", err)
	}
	if _, err := parseUUID(g.UUID); err != nil {
		return fmt.Errorf("uuid: %w", err)
	}
	if g.CopyEngines < 1 {
		return fmt.Errorf("copy_engines: %d", g.CopyEngines)
	}
	if g.PCIeGen < 1 || g.PCIeGen >= len(linkSpeeds) {
		return fmt.Errorf("pcie_gen: %d", g.PCIeGen)
	}
	if g.PCIeWidth < 1 || g.PCIeWidth > 32 {
		return fmt.Errorf("pcie_width: %d", g.PCIeWidth)
	}
	return nil
}

// checkFacts looks at what becomes files.
func (s *Spec) checkFacts() error {
	switch s.System.IOMMU {
	case "", "off", "identity", "DMA", "DMA-FQ":
	default:
		return fmt.Errorf("system.iommu: %q is none of off, identity, DMA, DMA-FQ", s.System.IOMMU)
	}
	switch s.Module.Flavour {
	case "", "open", "proprietary":
	default:
		return fmt.Errorf("module.flavour: %q is neither open nor proprietary", s.Module.Flavour)
	}
	switch s.Module.P2PStatus {
	case "", "CNS", "GNS", "TNS", "DR", "NS", "U":
	default:
		return fmt.Errorf("module.p2p_status: %q is none of CNS, GNS, TNS, DR, NS, U", s.Module.P2PStatus)
	}
	for i, g := range s.GPUs {
		if err := g.PCI.check(); err != nil {
			return fmt.Errorf("gpus[%d].pci.%w", i, err)
		}
	}
	return nil
}

// BAR1 is the size in bytes of the window through which peers reach the GPU's
// memory, if the description has one.
func (g *GPU) BAR1() (bytes uint64, ok bool) {
	var b bars
	_, regions := b.place(g.PCI.BARs)
	r, err := pci.BAR1(regions)
	return r.Size, err == nil
}

func (p *PCI) check() error {
	hexes := []struct{ name, value string }{
		{"device_id", p.DeviceID}, {"subsystem_device", p.SubsystemDevice}, {"subsystem_vendor", p.SubsystemVendor},
		{"class", p.Class}, {"resize_mask", p.ResizeMask},
	}
	for i, b := range p.BARs {
		if b.Line < 0 || b.Line > 6 {
			return fmt.Errorf("bars[%d].line: %d is none of 0 to 6", i, b.Line)
		}
		if b.Bytes == 0 || b.Bytes&(b.Bytes-1) != 0 {
			return fmt.Errorf("bars[%d].bytes: %d is no power of two", i, b.Bytes)
		}
		hexes = append(hexes, struct{ name, value string }{fmt.Sprintf("bars[%d].flags", i), b.Flags})
	}
	for i, b := range p.Path {
		if !pci.IsBusID(b.BusID) {
			return fmt.Errorf("path[%d].bus_id: %q is not a PCI address", i, b.BusID)
		}
		if _, ok := portTypes[b.Kind]; !ok {
			return fmt.Errorf("path[%d].kind: %q is none of root-port, upstream, downstream", i, b.Kind)
		}
		at := fmt.Sprintf("path[%d].", i)
		hexes = append(hexes, []struct{ name, value string }{{at + "vendor_id", b.VendorID}, {at + "device_id", b.DeviceID}, {at + "acs", b.ACS}}...)
	}
	for _, h := range hexes {
		if _, err := parseHex(h.value); err != nil {
			return fmt.Errorf("%s: %w", h.name, err)
		}
	}
	if bus, ok := strings.CutPrefix(p.Root, "pci"); p.Root != "" && (!ok || !pci.IsBusID(bus+":00.0")) {
		return fmt.Errorf("root: %q is no root bus such as pci0000:40", p.Root)
	}
	return nil
}

// parseHex reads "0x2684"; "" is 0.
func parseHex(s string) (uint64, error) {
	if s == "" {
		return 0, nil
	}
	digits, ok := strings.CutPrefix(s, "0x")
	n, err := strconv.ParseUint(digits, 16, 64)
	if !ok || err != nil {
		return 0, fmt.Errorf("%q is not a number such as 0x2684", s)
	}
	return n, nil
}

// busID is a PCI address.
type busID struct{ domain, bus, device, function int }

// parseBusID reads "dddd:bb:dd.f" or "bb:dd.f".
func parseBusID(s string) (busID, error) {
	var b busID
	full := s
	if strings.Count(full, ":") == 1 {
		full = "0:" + full
	}
	if n, err := fmt.Sscanf(full, "%x:%x:%x.%x", &b.domain, &b.bus, &b.device, &b.function); n != 4 || err != nil {
		return b, fmt.Errorf("%q is not a PCI address", s)
	}
	return b, nil
}

func parseUUID(s string) (u api.UUID, err error) {
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(b) != len(u) {
		return u, fmt.Errorf("%q is not a UUID", s)
	}
	return api.UUID(b), nil
}
