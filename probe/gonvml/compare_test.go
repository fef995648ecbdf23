// SPDX-License-Identifier: Apache-2.0

//go:build cgo && linux

package gonvml_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
	adapter "github.com/geforce-p2p/geforce-p2p/probe/gonvml"
	"github.com/geforce-p2p/geforce-p2p/probe/nvml"
)

// answer is what a query said: its results, and its error taken apart.
type answer struct {
	Values []any
	Op     string
	Code   nvml.Return
	Text   string // of an error that is no *nvml.Error
}

func take(results []reflect.Value) (a answer) {
	last := len(results) - 1
	for _, r := range results[:last] {
		a.Values = append(a.Values, r.Interface())
	}
	if err, _ := results[last].Interface().(error); err != nil {
		var e *nvml.Error
		if !errors.As(err, &e) {
			a.Text = err.Error()
			return a
		}
		a.Op, a.Code = e.Op, e.Code
	}
	return a
}

// agree asks both until they say the same: clocks, links and memory in use
// change between two calls.
func agree(t *testing.T, what string, ours, theirs func() answer) answer {
	t.Helper()
	var a, b answer
	for range 20 {
		a, b = ours(), theirs()
		if reflect.DeepEqual(a, b) {
			return a
		}
		time.Sleep(10 * time.Millisecond)
	}
	require.Equal(t, b, a, "%s: go-nvml and our binding", what)
	return a
}

// compare asks two sources everything that the interfaces have, by reflection,
// so that a method added to them is compared as well. It returns how many
// queries were answered with a value, and how many with an error.
func compare(t *testing.T, ours, theirs nvml.Source) (values, failures int) {
	note := func(what string, a answer) {
		require.Empty(t, a.Text, what)
		t.Logf("%-34s %v %v", what, a.Values, a.Code)
		if a.Code == 0 {
			values++
		} else {
			failures++
		}
	}
	call := func(on any, method string, args ...any) func() answer {
		var in []reflect.Value
		for _, a := range args {
			in = append(in, reflect.ValueOf(a))
		}
		return func() answer { return take(reflect.ValueOf(on).MethodByName(method).Call(in)) }
	}

	source := reflect.TypeFor[nvml.Source]()
	for i := range source.NumMethod() {
		m := source.Method(i)
		// Library and Close are no queries; the devices are asked below.
		if m.Type.NumIn() > 0 || m.Name == "Library" || m.Name == "Close" {
			continue
		}
		note(m.Name, agree(t, m.Name, call(ours, m.Name), call(theirs, m.Name)))
	}

	n, err := ours.Count()
	require.NoError(t, err)
	type both struct{ ours, theirs nvml.Device }
	var devices []both
	for i := range n + 1 { // and one that is not there
		a, errA := ours.Device(i)
		b, errB := theirs.Device(i)
		codeA, _ := nvml.CodeOf(errA)
		codeB, _ := nvml.CodeOf(errB)
		require.Equal(t, codeB, codeA, "GPU %d", i)
		if errA == nil {
			devices = append(devices, both{a, b})
		}
	}

	device := reflect.TypeFor[nvml.Device]()
	for i, d := range devices {
		for k := range device.NumMethod() {
			m := device.Method(k)
			what := fmt.Sprintf("GPU %d %s", i, m.Name)
			switch {
			case m.Type.NumIn() == 0:
				note(what, agree(t, what, call(d.ours, m.Name), call(d.theirs, m.Name)))
			case m.Type.NumIn() == 1 && m.Type.In(0).Kind() == reflect.Int:
				for link := range nvml.MaxNVLinks + 1 { // and one that no GPU has
					note(fmt.Sprintf("%s(%d)", what, link), agree(t, what, call(d.ours, m.Name, link), call(d.theirs, m.Name, link)))
				}
			case m.Name == "P2PStatus":
				for j, to := range devices {
					for _, ability := range nvml.P2PAbilities {
						what := fmt.Sprintf("%s to %d %v", what, j, ability)
						note(what, agree(t, what, call(d.ours, m.Name, to.ours, ability), call(d.theirs, m.Name, to.theirs, ability)))
					}
				}
			case m.Name == "CommonAncestor":
				for j, to := range devices {
					what := fmt.Sprintf("%s to %d", what, j)
					note(what, agree(t, what, call(d.ours, m.Name, to.ours), call(d.theirs, m.Name, to.theirs)))
				}
			default:
				t.Fatalf("no comparison for %s", m.Name)
			}
		}

		// By bus id and by UUID both find the same GPU, and neither finds another.
		uuid, err := d.ours.UUID()
		require.NoError(t, err)
		pci, err := d.ours.PCI()
		require.NoError(t, err)
		for _, s := range []nvml.Source{ours, theirs} {
			for what, find := range map[string]func() (nvml.Device, error){
				"bus id": func() (nvml.Device, error) { return s.DeviceByBusID(pci.BusID) },
				"UUID":   func() (nvml.Device, error) { return s.DeviceByUUID(uuid) },
			} {
				found, err := find()
				require.NoError(t, err, what)
				got, err := found.UUID()
				require.NoError(t, err)
				require.Equal(t, uuid, got, what)
			}
		}
	}
	return values, failures
}

// theirs is go-nvml over one file ("" is the system's), started.
func theirs(t *testing.T, path string) nvml.Source {
	var options []gonvml.LibraryOption
	if path != "" {
		options = append(options, gonvml.WithLibraryPath(path))
	}
	lib := gonvml.New(options...)

	early := adapter.From(lib)
	_, err := early.Count()
	require.ErrorIs(t, err, nvml.ErrUninitialized, "before it is loaded, and without ending the process")

	require.Equal(t, gonvml.SUCCESS, lib.Init())
	t.Cleanup(func() { require.Equal(t, gonvml.SUCCESS, lib.Shutdown()) })
	return adapter.From(lib)
}

// On a GPU host both bindings read the same values.
func TestBindingsAgreeOnHost(t *testing.T) {
	ours, err := nvml.Open()
	if err != nil {
		t.Skipf("no NVML to compare on: %v", err)
	}
	defer func() { require.NoError(t, ours.Close()) }()
	n, err := ours.Count()
	require.NoError(t, err)
	if n == 0 {
		t.Skip("NVML works and has no GPU to compare on")
	}
	values, failures := compare(t, ours, theirs(t, os.Getenv(nvml.EnvLibrary)))
	t.Logf("%d GPUs, %d values equal, %d errors equal", n, values, failures)
}

const childEnv = "GP_TEST_GONVML_LIBRARY"

// TestChild is not a test of its own: TestBindingsAgreeOnStandIn runs it in a
// process of its own for each library, because go-nvml's function table
// belongs to the process.
func TestChild(t *testing.T) {
	path := os.Getenv(childEnv)
	if path == "" {
		t.Skip("run by TestBindingsAgreeOnStandIn")
	}
	ours, err := nvml.OpenPath(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, ours.Close()) }()
	values, failures := compare(t, ours, theirs(t, path))
	fmt.Printf("child: %d values and %d errors equal\n", values, failures)
}

// The same on the C stand-in, which has what no one host has: several GPUs with
// and without NVLink, Windows's driver models, functions that are missing.
func TestBindingsAgreeOnStandIn(t *testing.T) {
	source, err := os.ReadFile(filepath.Join("..", "nvml", "testdata", "fakenvml.c"))
	if err != nil {
		t.Skipf("the stand-in's source is not beside this test: %v", err)
	}
	lacks := func(symbol string) string { return "-D" + symbol + "=lacks_" + symbol }
	for name, flags := range map[string][]string{
		"whole":     nil,
		"no second": {lacks("nvmlDeviceGetDriverModel_v2"), lacks("nvmlSystemGetConfComputeSettings")},
		"old": {lacks("nvmlDeviceGetDriverModel_v2"), lacks("nvmlDeviceGetDriverModel"), lacks("nvmlSystemGetConfComputeSettings"),
			lacks("nvmlSystemGetConfComputeState"), lacks("nvmlDeviceGetGspFirmwareVersion"), lacks("nvmlDeviceGetP2PStatus"),
			lacks("nvmlDeviceGetNvLinkState"), lacks("nvmlDeviceGetMigMode"), lacks("nvmlDeviceGetBAR1MemoryInfo")},
	} {
		t.Run(name, func(t *testing.T) {
			path := testenv.CompileC(t, string(source), "libnvidia-ml.so.1", flags...)
			cmd := exec.Command(os.Args[0], "-test.run=^TestChild$", "-test.v")
			cmd.Env = append(os.Environ(), childEnv+"="+path)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			var values, failures int
			_, line, _ := cutLine(string(out), "child: ")
			_, err = fmt.Sscanf(line, "%d values and %d errors equal", &values, &failures)
			require.NoError(t, err, "%s", out)
			t.Logf("%d values and %d errors equal", values, failures)
			require.Greater(t, values, 100)
			require.Greater(t, failures, 100) // links that are not there
		})
	}
}
