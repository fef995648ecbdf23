// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
)

// A call is the command run in a world of the test's making.
type call struct {
	root       fs.FS
	openDriver func() (*cuda.Driver, error)
	openSim    func(string) (*cuda.Driver, func() error, error)
}

// noHost is a machine without a GPU.
func noHost() call {
	return call{
		root:       fstest.MapFS{},
		openDriver: func() (*cuda.Driver, error) { return nil, fmt.Errorf("tried libcuda.so.1: %w", cuda.ErrNoLibrary) },
		openSim:    openSim,
	}
}

func (c call) environment(stdout, stderr io.Writer) *environment {
	return &environment{stdout: stdout, stderr: stderr, root: c.root, openDriver: c.openDriver, openSim: c.openSim}
}

func (c call) run(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	e := c.environment(&out, &errs)
	code = e.run(context.Background(), args)
	return code, out.String(), errs.String()
}

func TestDispatch(t *testing.T) {
	code, out, errs := noHost().run()
	require.Equal(t, exitUsage, code)
	require.Empty(t, out)
	require.Contains(t, errs, "selftest")

	code, out, errs = noHost().run("frobnicate")
	require.Equal(t, exitUsage, code)
	require.Empty(t, out)
	require.Contains(t, errs, `no subcommand "frobnicate"`)
	require.Contains(t, errs, "selftest")

	for _, args := range [][]string{{"help"}, {"-h"}, {"--help"}} {
		code, out, errs = noHost().run(args...)
		require.Equal(t, exitOK, code)
		require.Contains(t, out, "selftest")
		require.Empty(t, errs)
	}
	for _, args := range [][]string{{"help", "selftest"}, {"selftest", "-h"}, {"selftest", "--help"}} {
		code, out, errs = noHost().run(args...)
		require.Equal(t, exitOK, code)
		for _, f := range []string{"-sim", "-ranks", "-bytes", "-json", "64MiB"} {
			require.Contains(t, out, f)
		}
		require.Empty(t, errs)
	}
	code, _, errs = noHost().run("help", "frobnicate")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, `no subcommand "frobnicate"`)

	// Under another name, as in a release, help says what gp stands for.
	for name, says := range map[string]bool{"geforce-p2p": true, "gp": false} {
		var stdout, stderr bytes.Buffer
		e := noHost().environment(&stdout, &stderr)
		e.name = name
		require.Equal(t, exitOK, e.run(context.Background(), []string{"help"}))
		require.Equal(t, says, strings.Contains(stdout.String(), "gp stands for this program, geforce-p2p.\n"), name)
	}
}

// full is a disk with room for left bytes.
type full struct{ left int }

func (f *full) Write(b []byte) (int, error) {
	n := min(len(b), f.left)
	f.left -= n
	if n < len(b) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

// What could not be written was not said: exit 1, with one sentence.
func TestOutputThatCannotBeWritten(t *testing.T) {
	for _, c := range []struct {
		left int
		args []string
	}{
		{0, []string{"help"}},
		{0, []string{"help", "sim"}},
		{0, []string{"sim", "--help"}},
		{0, []string{"sim", "list"}},
		{0, []string{"sim", "show", "2x4090"}},
		{0, []string{"sim", "show", "2x4090", "--json"}},
		{0, []string{"probe", "--facts", factsFile("04-different-chips")}},
		{0, []string{"selftest", "--bytes", "1KiB"}},
		{300, []string{"selftest", "--bytes", "1KiB"}},
		{0, []string{"selftest", "--bytes", "1KiB", "--json"}},
	} {
		var errs bytes.Buffer
		e := noHost().environment(&full{c.left}, &errs)
		require.Equal(t, exitFailed, e.run(context.Background(), c.args), c.args)
		require.Equal(t, 1, strings.Count(errs.String(), syscall.ENOSPC.Error()), "%v: %s", c.args, &errs)
		require.Equal(t, 1, strings.Count(errs.String(), "\n"), "%v: %s", c.args, &errs)
	}
}

func TestSelftestRefusesBadFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		why  string
	}{
		{[]string{"--bytes", "-1"}, "negative"},
		{[]string{"--bytes", "3XB"}, "3XB"},
		{[]string{"--bytes", "0"}, "at least 1 byte"},
		{[]string{"--bytes"}, "needs an argument"},
		{[]string{"--ranks", "1"}, "--ranks 1: copies and collectives need 2 to 16 ranks"},
		{[]string{"--ranks", "0"}, "--ranks 0"},
		{[]string{"--ranks", "-3"}, "--ranks -3"},
		{[]string{"--ranks", "17"}, "--ranks 17"},
		{[]string{"--ranks", "two"}, "two"},
		{[]string{"--frobnicate"}, "frobnicate"},
		{[]string{"2x4090"}, `unexpected argument "2x4090"`},
		{[]string{"--sim", "nosuch"}, "nosuch"},
		{[]string{"--sim", "nosuch"}, "2x4090"}, // the list of names
	} {
		world := noHost()
		world.openDriver = func() (*cuda.Driver, error) { panic("a driver was opened for a call that cannot be right") }
		code, out, errs := world.run(append([]string{"selftest"}, c.args...)...)
		require.Equal(t, exitUsage, code, c.args)
		require.Empty(t, out, c.args)
		require.Contains(t, errs, c.why, c.args)
		require.True(t, strings.HasPrefix(errs, "gp selftest: "), errs)
		require.Contains(t, errs, "usage: gp selftest")
		require.Equal(t, 1, strings.Count(errs, "gp selftest: "), "one message: %s", errs)
	}
}

func TestSelftestWithoutGPU(t *testing.T) {
	code, out, errs := noHost().run("selftest", "--bytes", "100KiB")
	require.Equal(t, exitOK, code, errs)
	require.Empty(t, errs)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Contains(t, lines[0], "2x4090")
	require.Contains(t, lines[0], "simulated")
	require.Contains(t, lines[0], "every figure is modelled")
	require.Contains(t, lines[0], "no NVIDIA GPU here")
	require.NotContains(t, lines[0], "share")
	var results int
	for _, l := range lines[1:] {
		switch strings.Fields(l)[0] {
		case "copy", "all_reduce", "all_gather":
			results++
			require.Equal(t, 2, strings.Count(l, "modelled"), "time and rate: %s", l)
			require.Contains(t, l, " yes")
		case "open":
			require.Equal(t, 2, strings.Count(l, "modelled"), l)
		}
	}
	require.Equal(t, 4*2*2+2+3*2, results)
	require.Equal(t, fmt.Sprintf("all %d operations verified", results), lines[len(lines)-1])
}

func TestSelftestJSON(t *testing.T) {
	code, out, errs := noHost().run("selftest", "--json", "--sim", "2x4090", "--ranks", "3", "--bytes", "40KiB")
	require.Equal(t, exitOK, code, errs)
	require.Empty(t, errs)

	// By the names that are promised, not by the struct that wrote them.
	var doc map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &doc))
	machine := doc["machine"].(map[string]any)
	require.Equal(t, "2x4090", machine["name"])
	require.Len(t, machine["gpus"], 2)
	require.Contains(t, machine["gpus"].([]any)[0], "4090")
	require.IsType(t, "", machine["driver"])
	require.Equal(t, true, machine["modelled"])
	timing := doc["timing"].(map[string]any)
	require.IsType(t, 0.0, timing["open_seconds"])
	require.Positive(t, timing["first_all_reduce_seconds"])

	seen := map[string]int{}
	for _, x := range doc["results"].([]any) {
		r := x.(map[string]any)
		require.Equal(t, true, r["verified"])
		for _, k := range []string{"op", "algorithm", "type", "reduction"} {
			require.IsType(t, "", r[k], k)
		}
		require.NotEmpty(t, r["algorithm"])
		require.NotEmpty(t, r["type"])
		require.Positive(t, r["seconds"])
		require.InEpsilon(t, r["bytes"].(float64)/r["seconds"].(float64)/1e9, r["gb_per_s"], 1e-9)
		switch r["op"] {
		case "copy":
			require.Equal(t, 2.0, r["ranks"])
			require.Equal(t, "", r["reduction"])
		case "all_gather":
			require.Equal(t, 3.0, r["ranks"])
			require.Equal(t, "", r["reduction"])
		case "all_reduce":
			require.Equal(t, 3.0, r["ranks"])
			require.Contains(t, []string{"sum", "avg", "max"}, r["reduction"])
			require.Contains(t, []string{"ring", "ring_zero_copy"}, r["algorithm"])
		}
		seen[r["op"].(string)]++
	}
	require.Equal(t, map[string]int{"copy": 3 * 3 * 2, "all_reduce": 4 * 2 * 2, "all_gather": 2}, seen)
}

func TestSelftestOfOneByte(t *testing.T) {
	code, _, errs := noHost().run("selftest", "--bytes", "1")
	require.Equal(t, exitOK, code, errs)
}

// A broken host must not be taken for one without GPUs.
func TestMachineSelection(t *testing.T) {
	gpu := fstest.MapFS{
		"sys/bus/pci/devices/0000:00:02.0/vendor": {Data: []byte("0x8086\n")},
		"sys/bus/pci/devices/0000:00:02.0/class":  {Data: []byte("0x030000\n")},
		"sys/bus/pci/devices/0000:01:00.0/vendor": {Data: []byte("0x10de\n")},
		"sys/bus/pci/devices/0000:01:00.0/class":  {Data: []byte("0x030200\n")},
	}
	noGPU := fstest.MapFS{
		"sys/bus/pci/devices/0000:00:02.0/vendor": {Data: []byte("0x8086\n")},
		"sys/bus/pci/devices/0000:00:02.0/class":  {Data: []byte("0x030000\n")},
		// An NVIDIA network card and a sound function are no GPUs.
		"sys/bus/pci/devices/0000:02:00.0/vendor": {Data: []byte("0x10de\n")},
		"sys/bus/pci/devices/0000:02:00.0/class":  {Data: []byte("0x020000\n")},
		"sys/bus/pci/devices/0000:01:00.1/vendor": {Data: []byte("0x10de\n")},
		"sys/bus/pci/devices/0000:01:00.1/class":  {Data: []byte("0x040300\n")},
	}
	noLibrary := fmt.Errorf("tried /usr/lib/libcuda.so.1: %w", cuda.ErrNoLibrary)
	noDevice := &cuda.Error{Op: "cuInit", Code: cuda.ErrNoDevice}
	stub := &cuda.Error{Op: "cuInit", Code: cuda.ErrStubLibrary}
	for _, c := range []struct {
		name     string
		root     fs.FS
		err      error
		code     int
		contains []string
	}{
		{"no library, no GPU", noGPU, noLibrary, exitOK, nil},
		{"no library, no sysfs", fstest.MapFS{}, noLibrary, exitOK, nil},
		{"no device, no GPU", noGPU, noDevice, exitOK, nil},
		{"no library, a GPU", gpu, noLibrary, exitFailed, []string{"0000:01:00.0", "tried /usr/lib/libcuda.so.1", "--sim"}},
		{"no device, a GPU", gpu, noDevice, exitFailed, []string{"0000:01:00.0", "CUDA_ERROR_NO_DEVICE"}},
		{"stub, no GPU", noGPU, stub, exitFailed, []string{"CUDA_ERROR_STUB_LIBRARY"}},
		{"stub, a GPU", gpu, stub, exitFailed, []string{"CUDA_ERROR_STUB_LIBRARY"}},
		{"out of memory", noGPU, &cuda.Error{Op: "cuInit", Code: cuda.ErrOutOfMemory}, exitFailed, []string{"OUT_OF_MEMORY"}},
		{"library missing a symbol", noGPU, &cuda.Error{Op: "cuInit", Code: cuda.ErrSymbolMissing}, exitFailed, []string{"cuInit"}},
		{"anything else", noGPU, errors.New("bus error"), exitFailed, []string{"bus error"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			world := noHost()
			world.root = c.root
			world.openDriver = func() (*cuda.Driver, error) { return nil, c.err }
			code, out, errs := world.run("selftest", "--bytes", "1KiB")
			require.Equal(t, c.code, code, errs)
			if c.code == exitOK {
				require.Contains(t, out, "simulated machine 2x4090")
				return
			}
			require.Empty(t, out)
			for _, s := range c.contains {
				require.Contains(t, errs, s)
			}
			require.NotContains(t, errs, "usage:")
		})
	}
	// --sim asks nothing of the host, however broken it is.
	world := noHost()
	world.root = gpu
	world.openDriver = func() (*cuda.Driver, error) { panic("opened") }
	code, _, errs := world.run("selftest", "--sim", "2x4090", "--bytes", "1KiB")
	require.Equal(t, exitOK, code, errs)
}
