// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/api/tap"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
)

// wrapped is the simulated machine with something of the test's in front.
func wrapped(wrap func(api.Driver) api.Driver) func(string) (*cuda.Driver, func() error, error) {
	return func(name string) (*cuda.Driver, func() error, error) {
		m, err := sim.Open(name)
		if err != nil {
			return nil, nil, err
		}
		d, err := hook.NewDriver(wrap(hook.Seam(m.Driver())))
		if err != nil {
			return nil, nil, err
		}
		return d.(*cuda.Driver), m.Close, nil
	}
}

// withTap runs the selftest with a tap that arm has set up.
func withTap(t *testing.T, arm func(*tap.Tap) *tap.Rule, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var rule *tap.Rule
	world := noHost()
	world.openSim = wrapped(func(d api.Driver) api.Driver {
		tp := tap.New(d)
		rule = arm(tp)
		return tp
	})
	code, stdout, stderr = world.run(append([]string{"selftest", "--bytes", "20KiB"}, args...)...)
	require.Positive(t, rule.Hits(), "the fault never came into play")
	return code, stdout, stderr
}

// Kernels that do nothing: every all_reduce is wrong, and nothing else.
func TestSelftestSeesAWrongReduction(t *testing.T) {
	code, out, errs := withTap(t, func(tp *tap.Tap) *tap.Rule { return tp.SkipFrom("LaunchKernel", 1) })
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "16 of 24 operations gave wrong data")
	require.NotContains(t, out, "operations verified")
	for _, l := range strings.Split(out, "\n") {
		switch {
		case strings.HasPrefix(l, "all_reduce"):
			require.Contains(t, l, "NO: ")
			require.Contains(t, l, "bytes differ, the first at offset")
		case strings.HasPrefix(l, "copy"), strings.HasPrefix(l, "all_gather"):
			require.Contains(t, l, " yes")
		}
	}

	code, out, _ = withTap(t, func(tp *tap.Tap) *tap.Rule { return tp.SkipFrom("LaunchKernel", 1) }, "--json")
	require.Equal(t, exitFailed, code)
	var doc report
	require.NoError(t, json.Unmarshal([]byte(out), &doc))
	require.Len(t, doc.Results, 24)
	for _, r := range doc.Results {
		require.Equal(t, r.Op != "all_reduce", r.Verified)
		require.Equal(t, r.Verified, r.Error == "")
	}
	require.Empty(t, doc.Error, "the run did not end early")
}

// One single copy that moves nothing is found, wherever it is.
func TestSelftestSeesOneLostCopy(t *testing.T) {
	for _, k := range []int{1, 2, 5, 17, 40} {
		code, _, errs := withTap(t, func(tp *tap.Tap) *tap.Rule { return tp.Skip("MemcpyHtoDAsync", k) })
		require.Equal(t, exitFailed, code, "copy %d to a device was left out", k)
		require.Contains(t, errs, "wrong data")
		code, _, errs = withTap(t, func(tp *tap.Tap) *tap.Rule { return tp.Skip("MemcpyDtoHAsync", k) })
		require.Equal(t, exitFailed, code, "copy %d from a device was left out", k)
		require.Contains(t, errs, "wrong data")
	}
}

// A driver call that fails ends the run; what was done until then is reported.
func TestSelftestReportsAFailingCall(t *testing.T) {
	arm := func(tp *tap.Tap) *tap.Rule { return tp.Fail("LaunchKernel", 9, api.LaunchOutOfResources) }
	code, out, errs := withTap(t, arm)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")
	require.NotContains(t, out, "operations verified")

	code, out, errs = withTap(t, arm, "--json")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")
	var doc report
	require.NoError(t, json.Unmarshal([]byte(out), &doc))
	require.Contains(t, doc.Error, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")
	require.NotEmpty(t, doc.Results)
}

// No host memory can be pinned: no result, but valid JSON.
func TestSelftestThatCannotOpen(t *testing.T) {
	code, out, errs := withTap(t, func(tp *tap.Tap) *tap.Rule { return tp.FailFrom("MemHostAlloc", 1, api.OutOfMemory) }, "--json")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "cuMemHostAlloc")
	var doc map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &doc))
	require.Equal(t, []any{}, doc["results"])
	require.Contains(t, doc["error"], "cuMemHostAlloc")
}

// realGPUs passes a simulated machine off as a real one with n GPUs.
type realGPUs struct {
	api.Driver
	n int
}

type realHost struct{ api.Host }

func (realHost) Modelled() bool { return false }

func (r realGPUs) Host() api.Host                  { return realHost{r.Driver.Host()} }
func (r realGPUs) DeviceGetCount() (int, api.Code) { return r.n, api.Success }

func onRealGPUs(t *testing.T, n int) call {
	open := wrapped(func(d api.Driver) api.Driver { return realGPUs{d, n} })
	d, done, err := open("2x4090")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, done()) })
	world := noHost()
	world.openDriver = func() (*cuda.Driver, error) { return d, nil }
	world.openSim = func(string) (*cuda.Driver, func() error, error) { panic("a simulated machine instead of the GPUs") }
	world.root = fstest.MapFS{"proc/driver/nvidia/version": {Data: []byte(
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (builder@host)\nGCC version:  gcc version 12.2.0\n")}}
	return world
}

func TestSelftestOnOneGPU(t *testing.T) {
	code, out, errs := onRealGPUs(t, 1).run("selftest", "--bytes", "1KiB")
	require.Equal(t, exitOK, code, errs)
	first, _, _ := strings.Cut(out, "\n")
	require.Contains(t, first, "2 ranks share 1 GPU")
	require.Contains(t, first, "1x NVIDIA GeForce RTX 4090, driver 580.159.04, CUDA ")
	require.NotContains(t, out, "modelled")
	require.Contains(t, out, "all 24 operations verified")
}

func TestSelftestOnTwoGPUs(t *testing.T) {
	code, out, errs := onRealGPUs(t, 2).run("selftest", "--bytes", "1KiB", "--json")
	require.Equal(t, exitOK, code, errs)
	var doc report
	require.NoError(t, json.Unmarshal([]byte(out), &doc))
	require.False(t, doc.Machine.Modelled)
	require.Equal(t, "2x NVIDIA GeForce RTX 4090", doc.Machine.Name)
	require.Empty(t, doc.Machine.Note)
	require.Equal(t, []int{0, 1}, doc.Machine.Ranks)
	require.Len(t, doc.Results, 24)

	code, out, errs = onRealGPUs(t, 2).run("selftest", "--bytes", "1KiB", "--ranks", "4")
	require.Equal(t, exitOK, code, errs)
	require.Contains(t, out, "4 ranks share 2 GPU")
}

// A driver that initialises and shows no device is like NO_DEVICE.
func TestSelftestOnADriverWithoutDevices(t *testing.T) {
	world := onRealGPUs(t, 0)
	world.openSim = openSim
	code, out, errs := world.run("selftest", "--bytes", "1KiB")
	require.Equal(t, exitOK, code, errs)
	require.Contains(t, out, "simulated machine 2x4090")
}

func TestDriverVersion(t *testing.T) {
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build  (u@h)  Thu Oct 10":  "565.57.01",
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  590.48.01  Mon Dec  8 13:05:00 UTC 2025\nGCC version:": "590.48.01",
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.169  Release Build":                       "570.169",
		"GCC version: gcc version 12.2.0": "",
		"":                                "",
	} {
		m := versionPattern.FindStringSubmatch(text)
		if want == "" {
			require.Nil(t, m, text)
			continue
		}
		require.NotNil(t, m, text)
		require.Equal(t, want, m[1])
	}
}
