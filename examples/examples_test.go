// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// Each example runs on a simulated machine, and without a GPU says what is missing
// and what else can be done. The service has a test in its own module.
func TestExamples(t *testing.T) {
	if testenv.Race || !testenv.Optimized() {
		t.Skip("another build of the test changes nothing about the examples")
	}
	goCommand, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command")
	}
	dir := t.TempDir()
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"copy", []string{"-sim", "2x4090", "-bytes", "1000003"}, []string{
			"1000003 bytes each way", "GB/s each way, modelled", "from rank 1 to rank 0: 2000006 bytes through host memory, 0 directly"}},
		{"copy", []string{"-sim", "1xh200", "-bytes", "1000003"}, []string{"from rank 0 to rank 1: 2000006 bytes through host memory"}},
		{"allreduce", []string{"-sim", "4x4090", "-steps", "200"}, []string{"loss 0.0", "equal weights on all 4 ranks after 200 steps"}},
		{"foreign", []string{"-sim", "2x4090"}, []string{"1048576 elements of value 2 passed from GPU 0 to GPU 1"}},
		{"probe", []string{"-sim", "2x4090"}, []string{"GPU 0 reaches GPU 1: off", "GPU 1 reaches GPU 0: off", "driver-refusal: read PATCH.md", "the driver patch: likely helps"}},
	} {
		binary := filepath.Join(dir, c.name)
		if runtime.GOOS == "windows" {
			binary += ".exe"
		}
		build := exec.Command(goCommand, "build", "-buildvcs=false", "-o", binary, "./"+c.name)
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		out, err := build.CombinedOutput()
		require.NoError(t, err, "%s", out)

		out, err = exec.Command(binary, c.args...).CombinedOutput()
		require.NoError(t, err, "%s %q: %s", c.name, c.args, out)
		for _, w := range c.want {
			require.Contains(t, string(out), w, "%s %q", c.name, c.args)
		}

		without := exec.Command(binary)
		none := filepath.Join(dir, "libcuda.so.1")
		without.Env = append(os.Environ(), "GP_CUDA_LIBRARY="+none, "GP_NVML_LIBRARY="+none)
		out, err = without.CombinedOutput()
		require.Error(t, err, "%s: %s", c.name, out)
		require.Contains(t, string(out), "-sim ", c.name)
		require.Contains(t, string(out), "library", c.name)
		require.NotContains(t, string(out), "panic", c.name)
	}
}

// An example is read from top to bottom.
func TestExamplesAreShort(t *testing.T) {
	files, err := filepath.Glob("*/main.go")
	require.NoError(t, err)
	require.Len(t, files, 5)
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		require.Less(t, bytes.Count(b, []byte("\n")), 150, "lines of %s", f)
	}
}
