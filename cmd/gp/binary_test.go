// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// A binary that is built without cgo asks for no version of any symbol, so it
// has no lowest glibc: it can be copied to a host of any age. GP_TEST_BINARY
// names one to look at, for whatever machine it is; without it, one is built for
// this machine.
func TestBinaryHasNoGlibcFloor(t *testing.T) {
	file := os.Getenv("GP_TEST_BINARY")
	if file == "" {
		file = buildBinary(t)
	}
	f, err := elf.Open(file)
	require.NoError(t, err)
	defer f.Close()
	libs, err := f.ImportedLibraries()
	require.NoError(t, err)
	require.NotEmpty(t, libs, "a static binary cannot open libcuda")
	symbols, err := f.ImportedSymbols()
	require.NoError(t, err)
	require.NotEmpty(t, symbols)
	for _, s := range symbols {
		require.Empty(t, s.Version, "%s of %s", s.Name, s.Library)
	}
}

func buildBinary(t *testing.T) string {
	if testenv.Race || !testenv.Optimized() {
		t.Skip("another build of the test changes nothing about the binary")
	}
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skip("no driver library is opened here")
	}
	goCommand, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command")
	}
	file := filepath.Join(t.TempDir(), "gp")
	build := exec.Command(goCommand, "build", "-buildvcs=false", "-o", file, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return file
}
