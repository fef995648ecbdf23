// SPDX-License-Identifier: Apache-2.0

package cuda_test

import (
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// A file that is named and missing is reported by name.
func TestOpenNamesWhatItTried(t *testing.T) {
	t.Setenv("GP_CUDA_LIBRARY", t.TempDir()+"/libcuda.so.1")
	_, err := cuda.Open()
	require.NotErrorIs(t, err, cuda.ErrNoLibrary, "who names a file wants that driver")
	require.ErrorContains(t, err, "/libcuda.so.1")
}

// Without a driver, every name of this system is listed.
func TestOpenWithoutADriver(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the names are Linux's")
	}
	t.Setenv("GP_CUDA_LIBRARY", "")
	_, err := cuda.Open()
	if !errors.Is(err, cuda.ErrNoLibrary) {
		t.Skip("this machine has a driver library")
	}
	require.ErrorContains(t, err, "libcuda.so.1")
	require.ErrorContains(t, err, "/usr/lib/wsl/lib/libcuda.so.1")
	require.ErrorContains(t, err, "install the NVIDIA driver")
}

// The toolkit's stub exports every function, and each answers 34.
func TestOpenFindsTheStub(t *testing.T) {
	path := testenv.CompileC(t, `
int cuInit(unsigned flags) { (void)flags; return 34; }
int cuGetErrorName(int c, const char **s) { (void)c; *s = 0; return 34; }
int cuGetErrorString(int c, const char **s) { (void)c; *s = 0; return 34; }
`, "libcuda.so.1")
	t.Setenv("GP_CUDA_LIBRARY", path)
	_, err := cuda.Open()
	require.ErrorIs(t, err, cuda.ErrStubLibrary)
	require.ErrorContains(t, err, path+" is not a driver")
	require.ErrorContains(t, err, "CUDA_ERROR_STUB_LIBRARY (34)")
}

// A library that is there and is no library is not "no library": the machine is
// broken, and a program must not take it for one without a GPU.
func TestOpenOfABrokenLibrary(t *testing.T) {
	path := testenv.CompileC(t, `int nothing;`, "libcuda.so.1")
	t.Setenv("GP_CUDA_LIBRARY", path)
	_, err := cuda.Open()
	require.ErrorIs(t, err, cuda.ErrSymbolMissing)
	require.NotErrorIs(t, err, cuda.ErrNoLibrary)
}
