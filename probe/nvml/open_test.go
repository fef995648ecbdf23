// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/probe/nvml"
)

func TestCandidates(t *testing.T) {
	none := func(string) string { return "" }
	require.Equal(t, []string{"libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1", "libnvidia-ml.so"}, nvml.Candidates("linux", none))
	require.Empty(t, nvml.Candidates("darwin", none))
	require.Empty(t, nvml.Candidates("freebsd", none))

	for env, dir := range map[string]string{
		"":                   `C:\Program Files`,
		`D:\Programme`:       `D:\Programme`,
		`D:\`:                `D:`,
		`..\somewhere`:       `C:\Program Files`, // not beside the working directory
		`\\server\share\dir`: `C:\Program Files`,
	} {
		got := nvml.Candidates("windows", func(name string) string {
			require.Equal(t, "ProgramFiles", name)
			return env
		})
		require.Equal(t, []string{"nvml.dll", dir + `\NVIDIA Corporation\NVSMI\nvml.dll`}, got, env)
	}
}

const childEnv = "GP_TEST_NVML_CHILD"

// TestChild is not a test of its own: TestOnlyTheVersionedName runs it in a
// process whose library path has been set.
func TestChild(t *testing.T) {
	if os.Getenv(childEnv) == "" {
		t.Skip("run by TestOnlyTheVersionedName")
	}
	l, err := nvml.Open()
	require.NoError(t, err)
	fmt.Printf("child opened %s\n", l.Library())
	require.NoError(t, l.Close())
}

// Containers have libnvidia-ml.so.1 and no libnvidia-ml.so.
func TestOnlyTheVersionedName(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("a rule of Linux's loader")
	}
	path := build(t)
	dir := filepath.Dir(path)
	require.NoFileExists(t, filepath.Join(dir, "libnvidia-ml.so"))

	cmd := exec.Command(os.Args[0], "-test.run=^TestChild$", "-test.v")
	cmd.Env = append(os.Environ(), childEnv+"=1", nvml.EnvLibrary+"=", "LD_LIBRARY_PATH="+dir)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	real, err := filepath.EvalSymlinks(path)
	require.NoError(t, err)
	require.Contains(t, string(out), "child opened "+real+"\n")
}

func TestNothingToOpen(t *testing.T) {
	absent := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	_, err := nvml.OpenPath(absent)
	var load *nvml.LoadError
	require.ErrorAs(t, err, &load)
	require.ErrorIs(t, err, nvml.ErrLibraryNotFound)
	code, ok := nvml.CodeOf(err)
	require.True(t, ok)
	require.Equal(t, nvml.ErrLibraryNotFound, code)
	require.Len(t, load.Tried, 1)
	require.Equal(t, absent, load.Tried[0].Name)
	require.False(t, load.Tried[0].Exists)
	require.ErrorContains(t, err, absent)

	broken := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	require.NoError(t, os.WriteFile(broken, []byte("not a library"), 0o600))
	_, err = nvml.OpenPath(broken)
	require.ErrorAs(t, err, &load)
	require.True(t, load.Tried[0].Exists)

	_, err = nvml.OpenPath("libnvidia-ml.so.1")
	require.ErrorContains(t, err, "not an absolute path")

	t.Setenv(nvml.EnvLibrary, absent)
	_, err = nvml.Open()
	require.ErrorAs(t, err, &load)
	require.Len(t, load.Tried, 1, "the variable's file and nothing else")

	t.Setenv(nvml.EnvLibrary, "")
	if runtime.GOOS != "linux" && runtime.GOOS != "windows" {
		_, err = nvml.Open()
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorIs(t, err, nvml.ErrLibraryNotFound)
	}
}

// What nvmlInit_v2 answers is kept, with the library's version beside it.
func TestInitFails(t *testing.T) {
	for code, words := range map[nvml.Return]string{
		nvml.ErrVersionMismatch: "LIB_RM_VERSION_MISMATCH",
		nvml.ErrUnknown:         "UNKNOWN",
		nvml.ErrDriverNotLoaded: "DRIVER_NOT_LOADED",
	} {
		s := hooks(t, build(t))
		s.call("fake_start", uintptr(code))
		l, err := nvml.OpenPath(s.path)
		require.Nil(t, l)
		var failed *nvml.InitError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, &nvml.Error{Op: "nvmlInit_v2", Code: code}, failed.Err)
		require.Equal(t, "13.580.65.06", failed.NVMLVersion)
		require.ErrorIs(t, err, code)
		got, ok := nvml.CodeOf(err)
		require.True(t, ok)
		require.Equal(t, code, got)
		require.ErrorContains(t, err, words)
		require.ErrorContains(t, err, "13.580.65.06")
		require.ErrorContains(t, err, failed.Library)
	}

	s := hooks(t, build(t, "FAKE_BARE"))
	s.call("fake_start", uintptr(nvml.ErrDriverNotLoaded))
	_, err := nvml.OpenPath(s.path)
	var failed *nvml.InitError
	require.ErrorAs(t, err, &failed)
	require.Empty(t, failed.NVMLVersion)

	_, err = nvml.OpenPath(build(t, without("nvmlInit_v2")))
	require.ErrorAs(t, err, &failed)
	require.ErrorIs(t, err, nvml.ErrFunctionNotFound)
}

func TestClose(t *testing.T) {
	s := hooks(t, build(t))
	a, err := nvml.OpenPath(s.path)
	require.NoError(t, err)
	b, err := nvml.OpenPath(s.path)
	require.NoError(t, err)
	require.Equal(t, int64(2), s.call("fake_inits"))
	d := device(t, a, 0)

	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	require.Equal(t, int64(1), s.call("fake_inits"), "ended once")
	before := s.call("fake_calls")
	_, err = a.Count()
	require.ErrorIs(t, err, nvml.ErrUninitialized)
	_, err = d.Name()
	require.ErrorIs(t, err, nvml.ErrUninitialized, "although the library itself still runs for another")
	require.Equal(t, before, s.call("fake_calls"), "nothing was called")

	_, err = b.Count()
	require.NoError(t, err)
	require.NoError(t, b.Close())
	require.Zero(t, s.call("fake_inits"))
}

func TestReturn(t *testing.T) {
	for code, unsupported := range map[nvml.Return]bool{
		nvml.ErrNotSupported: true, nvml.ErrFunctionNotFound: true, nvml.ErrGPULost: false, nvml.ErrUnknown: false,
	} {
		err := fmt.Errorf("reading: %w", &nvml.Error{Op: "nvmlX", Code: code})
		require.ErrorIs(t, err, code)
		require.Equal(t, unsupported, errors.Is(err, errors.ErrUnsupported), "%v", code)
		got, ok := nvml.CodeOf(err)
		require.True(t, ok)
		require.Equal(t, code, got)
		require.ErrorContains(t, err, fmt.Sprintf("NVML error %d, ", int(code)))
	}
	_, ok := nvml.CodeOf(errors.New("something else"))
	require.False(t, ok)
	require.Equal(t, "NVML error 12345", nvml.Return(12345).Error())

	// A code that is newer than this package is put into the library's words.
	l, s := start(t)
	defer s.call("fake_fail", 0)
	s.call("fake_fail", 777)
	_, err := l.Count()
	require.Equal(t, &nvml.Error{Op: "nvmlDeviceGetCount_v2", Code: 777, Text: "stand-in's words for 777"}, err)
	require.EqualError(t, err, "nvmlDeviceGetCount_v2: NVML error 777 (stand-in's words for 777)")
	s.call("fake_fail", 999)
	_, err = l.DriverVersion()
	require.Equal(t, &nvml.Error{Op: "nvmlSystemGetDriverVersion", Code: nvml.ErrUnknown}, err)
}

func TestNames(t *testing.T) {
	for want, got := range map[string]fmt.Stringer{
		"read": nvml.P2PRead, "pci": nvml.P2PPCI, "ability 9": nvml.P2PAbility(9),
		"OK": nvml.P2POK, "CNS": nvml.P2PChipsetNotSupported, "GNS": nvml.P2PGPUNotSupported, "TNS": nvml.P2PTopologyNotSupported,
		"DR": nvml.P2PDisabledByRegistry, "NS": nvml.P2PNotSupported, "U": nvml.P2PUnknown, "status 7": nvml.P2PStatus(7),
		"INT": nvml.TopologyInternal, "PIX": nvml.TopologySingle, "PXB": nvml.TopologyMultiple, "PHB": nvml.TopologyHostBridge,
		"NODE": nvml.TopologyNode, "SYS": nvml.TopologySystem, "level 15": nvml.Topology(15), "level 60": nvml.Topology(60),
		"wddm": nvml.WDDM, "tcc": nvml.TCC, "mcdm": nvml.MCDM,
		"none": nvml.VirtualizationNone, "passthrough": nvml.VirtualizationPassthrough, "host-vsga": nvml.VirtualizationHostVSGA,
		"P0": nvml.PState(0), "unknown": nvml.PStateUnknown, "4.0": nvml.NVLinkVersion(6), "switch": nvml.NVLinkSwitch,
		"ada": nvml.Architecture(8), "blackwell": nvml.Architecture(10), "architecture 1": nvml.Architecture(1),
	} {
		require.Equal(t, want, got.String())
	}
	require.Equal(t, "unknown", nvml.NVLinkUnknown.String())
	require.Equal(t, "unknown", nvml.ArchitectureUnknown.String())
}

func TestNormalBusID(t *testing.T) {
	for in, want := range map[string]string{
		"00000000:C1:00.0": "0000:c1:00.0",
		"0000:01:00.0":     "0000:01:00.0",
		"1:0.0":            "0000:01:00.0",
		"01:1f.7":          "0000:01:1f.7",
		"00010000:e1:00.0": "10000:e1:00.0",
		"10000:e1:00.0":    "10000:e1:00.0",
		"0000:01:00":       "0000:01:00.0",
		" 0000:01:00.0\n":  "0000:01:00.0",
	} {
		got, ok := nvml.NormalBusID(in)
		require.True(t, ok, in)
		require.Equal(t, want, got)
	}
	for _, in := range []string{"", ":", "::", "0000:01", "0000:100:00.0", "0000:01:20.0", "0000:01:00.8", "0000:01:00.", "0000:01:00.0.0",
		"100000000:01:00.0", "0000:0g:00.0", "-1:01:00.0", "+0:01:00.0", "0x0:01:00.0", "0000:01:00.0:0", "GPU-1", "0000:01:00.0\x00"} {
		got, ok := nvml.NormalBusID(in)
		require.False(t, ok, in)
		require.Empty(t, got, in)
	}
}

func FuzzNormalBusID(f *testing.F) {
	f.Add("00000000:C1:00.0")
	f.Add("10000:e1:1f.7")
	f.Fuzz(func(t *testing.T, s string) {
		id, ok := nvml.NormalBusID(s)
		if !ok {
			require.Empty(t, id)
			return
		}
		require.Less(t, len(id), 20)
		require.Equal(t, strings.ToLower(id), id)
		again, ok := nvml.NormalBusID(id)
		require.True(t, ok, id)
		require.Equal(t, id, again)
	})
}
