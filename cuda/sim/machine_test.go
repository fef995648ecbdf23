// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMachines(t *testing.T) {
	require.Equal(t, []string{"1xh200", "2x4090", "2x5090", "4x4090", "8x4090", "8x4090-p2p"}, Names())
	for _, name := range Names() {
		s, err := Builtin(name)
		require.NoError(t, err)
		require.Equal(t, name, s.Name)
		require.NotEmpty(t, s.About)
		require.NotEmpty(t, s.System.Source)
		require.NotEmpty(t, s.Module.Source)
		// Every figure says where it is from, and is in the list.
		b, err := json.Marshal(s)
		require.NoError(t, err)
		listed := map[string]bool{}
		for _, f := range s.Figures() {
			require.False(t, listed[f.Name], "%s is there twice", f.Name)
			listed[f.Name] = true
		}
		var v any
		require.NoError(t, json.Unmarshal(b, &v))
		figures := 0
		var walk func(at string, v any)
		walk = func(at string, v any) {
			switch v := v.(type) {
			case map[string]any:
				if unit, ok := v["unit"]; ok && v["value"] != 0.0 {
					figures++
					require.NotEmpty(t, unit, at)
					require.NotEmpty(t, v["source"], at)
					require.True(t, listed[at] || strings.HasPrefix(at, "peer."), "%s of %s is not listed", at, name)
				}
				for k, x := range v {
					below := k
					if at != "" {
						below = at + "." + k
					}
					walk(below, x)
				}
			case []any:
				for _, x := range v {
					walk(at+"[]", x)
				}
			}
		}
		walk("", v)
		require.Greater(t, figures, 25)
		for i, g := range s.GPUs {
			require.NotEmpty(t, g.PCI.Source)
			for _, o := range s.GPUs[:i] {
				require.NotEqual(t, o.UUID, g.UUID)
				require.NotEqual(t, o.PCIBusID, g.PCIBusID)
			}
		}
		// What is written can be read: the form without shorthands.
		again, err := ParseSpec(b)
		require.NoError(t, err)
		require.Equal(t, s, again)
	}
	_, err := Open("nosuch")
	require.ErrorContains(t, err, `"nosuch"`)
	require.ErrorContains(t, err, "2x4090")
}

func TestSpecIsChecked(t *testing.T) {
	for field, change := range map[string]func(s *Spec){
		"name":                 func(s *Spec) { s.Name = "" },
		"gpus":                 func(s *Spec) { s.GPUs = nil },
		"gpus[1].d2h":          func(s *Spec) { s.GPUs[1].D2H.Value = 0 },
		"gpus[0].h2d":          func(s *Spec) { s.GPUs[0].H2D.Unit = "GiB/s" },
		"gpus[1].pci_bus_id":   func(s *Spec) { s.GPUs[1].PCIBusID = "one" },
		"gpus[0].uuid":         func(s *Spec) { s.GPUs[0].UUID = "1" },
		"gpus[0].duplex":       func(s *Spec) { s.GPUs[0].Duplex.Value = 1.1 },
		"gpus[0].event":        func(s *Spec) { s.GPUs[0].Event = Figure{} },
		"gpus[1].poll":         func(s *Spec) { s.GPUs[1].Poll = Figure{} },
		"calls.couple":         func(s *Spec) { s.Calls.Couple.Unit = "ns" },
		"staging.duplex":       func(s *Spec) { s.Staging.Duplex = Figure{Value: 1.2, Unit: "of twice one way", Source: "here"} },
		"gpus[0].pcie_gen":     func(s *Spec) { s.GPUs[0].PCIeGen = 0 },
		"gpus[0].pcie_width":   func(s *Spec) { s.GPUs[0].PCIeWidth = 33 },
		"gpus[0].copy_engines": func(s *Spec) { s.GPUs[0].CopyEngines = 0 },
		"peer_access":          func(s *Spec) { s.PeerAccess = nil },
		"peer_access[0]":       func(s *Spec) { s.PeerAccess[0] = nil },
		"peer.near":            func(s *Spec) { s.PeerAccess[0][1], s.Peer = true, Peer{} },
		"calls.event_record":   func(s *Spec) { s.Calls.EventRecord.Value = -1 },
		"calls.wake":           func(s *Spec) { s.Calls.Wake.Source = "" },
		"driver_version":       func(s *Spec) { s.DriverVersion = 12 },
		"gpus[0].memory_bytes": func(s *Spec) { s.GPUs[0].MemoryBytes = 0 },
		"host.nodes":           func(s *Spec) { s.Host.Nodes = nil },
		"host.nodes[0].memory": func(s *Spec) { s.Host.Nodes[0].Memory.Value = 0 },
		"host.nodes[1].id":     func(s *Spec) { s.Host.Nodes = append(s.Host.Nodes, s.Host.Nodes[0]) },
		"host.memory_bytes":    func(s *Spec) { s.Host.MemoryBytes = 0 },
		"host.socket_link": func(s *Spec) {
			n := s.Host.Nodes[0]
			n.ID, n.Socket = 1, 1
			s.Host.Nodes = append(s.Host.Nodes, n)
		},
		"system.iommu":              func(s *Spec) { s.System.IOMMU = "on" },
		"module.p2p_status":         func(s *Spec) { s.Module.P2PStatus = "OK" },
		"module.flavour":            func(s *Spec) { s.Module.Flavour = "closed" },
		"gpus[0].pci.device_id":     func(s *Spec) { s.GPUs[0].PCI.DeviceID = "2684" },
		"gpus[0].pci.bars[1].bytes": func(s *Spec) { s.GPUs[0].PCI.BARs[1].Bytes = 3 },
		"gpus[0].pci.bars[0].line":  func(s *Spec) { s.GPUs[0].PCI.BARs[0].Line = 9 },
		"gpus[0].pci.bars[0].flags": func(s *Spec) { s.GPUs[0].PCI.BARs[0].Flags = "0xg" },
		"gpus[1].pci.path[0].kind":  func(s *Spec) { s.GPUs[1].PCI.Path[0].Kind = "switch" },
		"gpus[1].pci.path[0].acs":   func(s *Spec) { s.GPUs[1].PCI.Path[0].ACS = "on" },
		"gpus[1].pci.root":          func(s *Spec) { s.GPUs[1].PCI.Root = "pci" },
	} {
		s, err := Builtin("2x4090")
		require.NoError(t, err)
		change(&s)
		_, err = New(s)
		require.ErrorContains(t, err, ": "+field+":")
	}
}

func TestParseSpec(t *testing.T) {
	for text, why := range map[string]string{
		``:                                     "line 1, column 1: EOF",
		`[]`:                                   "line 1, column 1: want an object, not array",
		"{\n \"name\": \"é\", }":               "line 2, column 15: invalid character '}'",
		"{\n\t\"name\" \"x\"\n}":               `line 2, column 9: invalid character '"'`,
		"\n{\"gpus\": [{\r\n":                  "line 3, column 1: unexpected EOF",
		"{\"name\": \"x\"}\n\n  {}":            "line 3, column 3: there is something behind",
		"{\"name\": \"x\"}\n]":                 "line 2, column 1: there is something behind",
		`{"name":"x","gpu":[]}`:                `gpu: unknown field "gpu"`,
		`{"name":1}`:                           "name: want a string",
		`{"base":1}`:                           "base: want",
		`{"base":"3x4090"}`:                    `no machine "3x4090"`,
		`{"base":"2x4090","card":1}`:           "card: want an object",
		`{"base":"2x4090","card":{"x":{}}}`:    `gpus[0].x: unknown field "x"`,
		`{"base":"2x4090","host":{"nodes":1}}`: "host.nodes: want a list",
		`{"base":"2x4090","gpus":[{"pci_bus_id":"0000:01:00.0","uuid":"x","numa_node":0}],"peer_access":[[false]]}`: "gpus[0].uuid",
		`{"base":"2x4090","staging":{"rate":{"value":20,"unit":"GB/s"}}}`:                                           "staging.rate: no source",
		`{"base":"2x4090","staging":{"rate":{"value":"20","unit":"GB/s"}}}`:                                         "staging.rate.value: want a number",
		`{"base":"2x4090","staging":{"rate":{"value":20,"unit":"GB/s","spurce":"x"}}}`:                              `staging.rate.spurce: unknown field`,
		`{"base":"2x4090","staging":{"rate":null}}`:                                                                 "staging.rate: missing",
		`{"base":"2x4090","host":{"memory_bytes":-1}}`:                                                              "host.memory_bytes: want a number of type uint64",
		`{"base":"2x4090","peer_access":[[false,1],[false,false]]}`:                                                 "peer_access[0][1]: want true or false",
	} {
		_, err := ParseSpec([]byte(text))
		require.ErrorContains(t, err, why, text)
	}

	// A figure is replaced as a whole, everything else is merged.
	s, err := ParseSpec([]byte(`{"base":"2x4090","name":"mine","card":{"h2d":{"value":12,"unit":"GB/s","source":"a slot of eight lanes"},"pcie_width":8}}`))
	require.NoError(t, err)
	require.Equal(t, "mine", s.Name)
	require.Len(t, s.GPUs, 2)
	for _, g := range s.GPUs {
		require.Equal(t, Figure{Value: 12, Unit: "GB/s", Source: "a slot of eight lanes"}, g.H2D)
		require.Equal(t, 8, g.PCIeWidth)
		require.Equal(t, "NVIDIA GeForce RTX 4090", g.Name)
	}
	_, err = ParseSpec([]byte(`{"base":"2x4090","card":{"h2d":{"value":12}}}`))
	require.ErrorContains(t, err, "gpus[0].h2d: unit")
	_, err = ParseSpec([]byte(`{"base":"1xh200","gpus":[{"pci_bus_id":"0000:00:06.0","uuid":"00000000-0000-0000-0000-000000000001","numa_node":3}]}`))
	require.ErrorContains(t, err, "gpus[0].numa_node: the host has no node 3")
}

func TestLoad(t *testing.T) {
	s, err := Load("8x4090")
	require.NoError(t, err)
	require.Len(t, s.GPUs, 8)
	_, err = Load("nosuch")
	require.ErrorContains(t, err, "8x4090")

	file := filepath.Join(t.TempDir(), "mine.json")
	_, err = Load(file)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(file, []byte(`{"base":"2x4090","name":"mine"}`), 0o600))
	s, err = Load(file)
	require.NoError(t, err)
	require.Equal(t, "mine", s.Name)
	require.NoError(t, os.WriteFile(file, []byte(`{"base":"2x4090","name":"mine","staging":{"rate":{"value":0,"unit":"GB/s","source":"none"}}}`), 0o600))
	_, err = Load(file)
	require.ErrorContains(t, err, "mine.json: staging.rate: 0 is not a positive number")
}

func TestFigures(t *testing.T) {
	s, err := Builtin("8x4090")
	require.NoError(t, err)
	names := map[string]bool{}
	for _, f := range s.Figures() {
		names[f.Name] = true
	}
	require.True(t, names["gpus[].d2h"])
	require.False(t, names["gpus[0].d2h"])
	require.False(t, names["peer.near"], "there is no peer access")
	s.GPUs[3].D2H.Value = 13
	names = map[string]bool{}
	for _, f := range s.Figures() {
		names[f.Name] = true
	}
	require.False(t, names["gpus[].d2h"])
	require.True(t, names["gpus[0].d2h"])
	require.True(t, names["gpus[3].d2h"])
	require.True(t, names["gpus[].h2d"])
}
