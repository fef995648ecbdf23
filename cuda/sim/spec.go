// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// A Spec describes a machine. Its JSON form is what the files of machines/ hold.
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
	Calls      Calls    `json:"calls"`
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
	NUMANode        int    `json:"numa_node"`
	CopyEngines     int    `json:"copy_engines"`
	PCIeGen         int    `json:"pcie_gen"`
	PCIeWidth       int    `json:"pcie_width"`
	D2H             Figure `json:"d2h"`      // GB/s, one way alone
	H2D             Figure `json:"h2d"`      // GB/s, one way alone
	Duplex          Figure `json:"duplex"`   // both ways at once, as a part of D2H + H2D
	Memory          Figure `json:"memory"`   // GB/s, reads and writes together
	PerCopy         Figure `json:"per_copy"` // us that a copy takes beside its bytes
	Launch          Figure `json:"launch"`   // us that a kernel takes beside its bytes
}

// HostSpec describes the memory of the host.
type HostSpec struct {
	MemoryBytes uint64 `json:"memory_bytes"`
	Memory      Figure `json:"memory"`    // GB/s, reads and writes together
	PageCopy    Figure `json:"page_copy"` // GB/s at which the driver copies pageable memory
}

// Staging describes how the driver itself copies between GPUs that may not
// reach each other: through buffers of its own, one direction at a time.
type Staging struct {
	Rate    Figure `json:"rate"`     // GB/s
	PerCopy Figure `json:"per_copy"` // us
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
	Query          Figure `json:"query"`
	Synchronize    Figure `json:"synchronize"`
	Launch         Figure `json:"launch"`
	ModuleLoad     Figure `json:"module_load"`
	HostAlloc      Figure `json:"host_alloc"` // us/byte
	Other          Figure `json:"other"`
}

// A Figure is a number of the model, with where it is from.
type Figure struct {
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	Source string  `json:"source"`
}

// us reads a figure in microseconds.
func (f Figure) us() time.Duration { return time.Duration(f.Value * 1e3) }

// perSecond reads a figure in GB/s, as bytes a second.
func (f Figure) perSecond() float64 { return f.Value * 1e9 }

//go:embed machines/*.json
var machines embed.FS

// Names lists the machines that Open knows.
func Names() []string {
	files, _ := machines.ReadDir("machines")
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f.Name(), ".json"))
	}
	slices.Sort(names)
	return names
}

// Builtin returns the description of a machine that Open knows. An unknown
// name's error lists the names.
func Builtin(name string) (Spec, error) {
	if !slices.Contains(Names(), name) {
		return Spec{}, fmt.Errorf("sim: no machine %q (known: %s)", name, strings.Join(Names(), " "))
	}
	b, err := machines.ReadFile(path.Join("machines", name+".json"))
	if err != nil {
		return Spec{}, fmt.Errorf("sim: machine %q: %w", name, err)
	}
	s, err := ParseSpec(b)
	if err != nil {
		return Spec{}, fmt.Errorf("sim: machine %q: %w", name, err)
	}
	return s, nil
}

// ParseSpec reads a machine's JSON form. A field that is unknown, missing or
// out of range is named in the error.
func ParseSpec(b []byte) (Spec, error) {
	var s Spec
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return Spec{}, err
	}
	return s, s.check()
}

func (s *Spec) check() error {
	if len(s.GPUs) == 0 {
		return fmt.Errorf("gpus: there are none")
	}
	if s.DriverVersion < 10000 {
		return fmt.Errorf("driver_version: %d is not 1000*major + 10*minor", s.DriverVersion)
	}
	if len(s.PeerAccess) != len(s.GPUs) {
		return fmt.Errorf("peer_access: %d rows for %d GPUs", len(s.PeerAccess), len(s.GPUs))
	}
	for i, row := range s.PeerAccess {
		if len(row) != len(s.GPUs) {
			return fmt.Errorf("peer_access[%d]: %d columns for %d GPUs", i, len(row), len(s.GPUs))
		}
	}
	positive := func(name, unit string, f Figure) error {
		if !(f.Value > 0) {
			return fmt.Errorf("%s: %v is not a positive number", name, f.Value)
		}
		if !strings.HasPrefix(f.Unit, unit) {
			return fmt.Errorf("%s: unit %q, want %q", name, f.Unit, unit)
		}
		return nil
	}
	type named struct {
		name, unit string
		f          Figure
	}
	figures := []named{
		{"host.memory", "GB/s", s.Host.Memory}, {"host.page_copy", "GB/s", s.Host.PageCopy},
		{"staging.rate", "GB/s", s.Staging.Rate}, {"staging.per_copy", "us", s.Staging.PerCopy},
		{"calls.init", "us", s.Calls.Init}, {"calls.context_create", "us", s.Calls.ContextCreate},
		{"calls.context_current", "us", s.Calls.ContextCurrent}, {"calls.context_set", "us", s.Calls.ContextSet},
		{"calls.context_push_pop", "us", s.Calls.ContextPushPop}, {"calls.memcpy", "us", s.Calls.Memcpy},
		{"calls.event_record", "us", s.Calls.EventRecord}, {"calls.stream_wait", "us", s.Calls.StreamWait},
		{"calls.query", "us", s.Calls.Query}, {"calls.synchronize", "us", s.Calls.Synchronize},
		{"calls.launch", "us", s.Calls.Launch}, {"calls.module_load", "us", s.Calls.ModuleLoad},
		{"calls.host_alloc", "us/byte", s.Calls.HostAlloc}, {"calls.other", "us", s.Calls.Other},
	}
	for i, g := range s.GPUs {
		at := func(field string) string { return fmt.Sprintf("gpus[%d].%s", i, field) }
		if g.MemoryBytes == 0 {
			return fmt.Errorf("%s: 0 bytes", at("memory_bytes"))
		}
		if g.ComputeMajor < 1 || g.ComputeMinor < 0 {
			return fmt.Errorf("%s: %d.%d", at("compute_major"), g.ComputeMajor, g.ComputeMinor)
		}
		if _, err := parseBusID(g.PCIBusID); err != nil {
			return fmt.Errorf("%s: %w", at("pci_bus_id"), err)
		}
		if _, err := parseUUID(g.UUID); err != nil {
			return fmt.Errorf("%s: %w", at("uuid"), err)
		}
		if g.CopyEngines < 1 {
			return fmt.Errorf("%s: %d", at("copy_engines"), g.CopyEngines)
		}
		if g.Duplex.Value > 1 {
			return fmt.Errorf("%s: %v is above 1", at("duplex"), g.Duplex.Value)
		}
		figures = append(figures,
			named{at("d2h"), "GB/s", g.D2H}, named{at("h2d"), "GB/s", g.H2D}, named{at("duplex"), "", g.Duplex},
			named{at("memory"), "GB/s", g.Memory}, named{at("per_copy"), "us", g.PerCopy}, named{at("launch"), "us", g.Launch})
	}
	for _, f := range figures {
		if err := positive(f.name, f.unit, f.f); err != nil {
			return err
		}
	}
	return nil
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
