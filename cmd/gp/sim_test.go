// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
)

func TestSimList(t *testing.T) {
	code, out, errs := noHost().run("sim", "list")
	require.Equal(t, exitOK, code, errs)
	require.Empty(t, errs)
	code, same, errs := noHost().run("sim")
	require.Equal(t, exitOK, code, errs)
	require.Equal(t, out, same)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, len(sim.Names()))
	for i, name := range sim.Names() {
		require.True(t, strings.HasPrefix(lines[i], name+" "), lines[i])
	}
}

func TestSimShow(t *testing.T) {
	for _, name := range sim.Names() {
		code, out, errs := noHost().run("sim", "show", name)
		require.Equal(t, exitOK, code, errs)
		require.Empty(t, errs)
		s, err := sim.Builtin(name)
		require.NoError(t, err)
		free, names := 0, ""
		for _, f := range s.Figures() {
			require.Contains(t, out, f.Name)
			require.Contains(t, out, f.Source)
			if f.Fitted {
				free++
				names += " " + f.Name
			}
		}
		require.Contains(t, out, fmt.Sprintf("model    %d figures, %d of them free parameters", len(s.Figures()), free))
		require.Contains(t, out, names+"\n")
		require.Contains(t, out, s.About)
		require.Contains(t, out, s.GPUs[0].PCI.Source)

		// As JSON it is a file that shows the same.
		for _, args := range [][]string{{"sim", "show", name, "--json"}, {"sim", "--json", "show", name}, {"sim", "show", "--json", name}} {
			code, doc, errs := noHost().run(args...)
			require.Equal(t, exitOK, code, errs)
			file := filepath.Join(t.TempDir(), "machine.json")
			require.NoError(t, os.WriteFile(file, []byte(doc), 0o600))
			code, again, errs := noHost().run("sim", "show", file)
			require.Equal(t, exitOK, code, errs)
			require.Equal(t, out, again)
		}
	}
}

func TestSimRefuses(t *testing.T) {
	for _, c := range []struct {
		args []string
		why  string
	}{
		{[]string{"show"}, "8x4090-p2p"},
		{[]string{"show", "nosuch"}, "8x4090-p2p"},
		{[]string{"show", "./nosuch.json"}, "nosuch.json"},
		{[]string{"list", "2x4090"}, "list, or show"},
		{[]string{"list", "--json"}, "list, or show"},
		{[]string{"show", "2x4090", "--frobnicate"}, "frobnicate"},
		{[]string{"show", "2x4090", "4x4090"}, "list, or show"},
	} {
		code, out, errs := noHost().run(append([]string{"sim"}, c.args...)...)
		require.Equal(t, exitUsage, code, c.args)
		require.Empty(t, out)
		require.Contains(t, errs, c.why)
		require.Contains(t, errs, "usage: gp sim")
	}
}

// machineFile writes a machine of one's own.
func machineFile(t *testing.T, text string) string {
	file := filepath.Join(t.TempDir(), "mine.json")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func TestOwnMachine(t *testing.T) {
	file := machineFile(t, `{"base": "2x4090", "name": "mine", "card": {"name": "Card of mine",
		"h2d": {"value": 5, "unit": "GB/s", "source": "a slow slot"}, "d2h": {"value": 5, "unit": "GB/s", "source": "a slow slot"}}}`)
	code, out, errs := noHost().run("selftest", "--sim", file, "--bytes", "4MiB", "--json")
	require.Equal(t, exitOK, code, errs)
	var doc struct {
		Machine struct {
			GPUs     []string
			Modelled bool
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &doc))
	require.True(t, doc.Machine.Modelled)
	require.Equal(t, []string{"Card of mine", "Card of mine"}, doc.Machine.GPUs)

	file = machineFile(t, `{"base": "2x4090", "card": {"h2d": {"value": "fast"}}}`)
	code, out, errs = noHost().run("selftest", "--sim", file)
	require.Equal(t, exitUsage, code)
	require.Empty(t, out)
	require.Contains(t, errs, "gpus[0].h2d.value: want a number")

	// What is wrong in a file is said, and nothing of how the command is called.
	broken := machineFile(t, "{\"base\": \"2x4090\",\n  \"name\": mine}")
	for _, args := range [][]string{{"sim", "show"}, {"selftest", "--sim"}, {"probe", "--sim"}} {
		for name, why := range map[string]string{file: "gpus[0].h2d.value: want a number", broken: "mine.json: line 2, column 11: invalid character"} {
			code, out, errs = noHost().run(append(args, name)...)
			require.Equal(t, exitUsage, code)
			require.Empty(t, out)
			require.Contains(t, errs, why)
			require.NotContains(t, errs, "usage:")
		}
	}
}

func TestProbeOfSimulatedMachines(t *testing.T) {
	for name, want := range map[string][]string{
		"1xh200":     {"NVIDIA H200", "580.159.04, open kernel module"},
		"2x4090":     {"NVIDIA GeForce RTX 4090", "550.90.07, open kernel module", "GPU0 <-> GPU1   off", "[driver-refusal]; the patch: likely helps", "BAR1 32768 MiB", "NODE"},
		"4x4090":     {"GPU2 <-> GPU3   off"},
		"8x4090":     {"[bar1-small]", "BAR1 256 MiB", "GPU6 <-> GPU7   off", "SYS"},
		"8x4090-p2p": {"GPU0 <-> GPU7   on (PCIe)", "BAR1 32768 MiB"},
		"2x5090":     {"NVIDIA GeForce RTX 5090", "580.82.09", "[driver-refusal]"},
	} {
		code, out, errs := noHost().run("probe", "--sim", name)
		require.Equal(t, exitOK, code, "%s: %s", name, errs)
		for _, w := range want {
			require.Contains(t, out, w, name)
		}
	}
	// A file of one's own is probed as it says.
	file := machineFile(t, `{"base": "8x4090-p2p", "name": "mine", "system": {"iommu": "DMA", "source": "a test"}}`)
	code, out, errs := noHost().run("probe", "--sim", file)
	require.Equal(t, exitOK, code, errs)
	require.Contains(t, out, "iommu")
}
