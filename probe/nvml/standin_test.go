// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	_ "embed"
	"errors"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/dl"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
	"github.com/geforce-p2p/geforce-p2p/probe/nvml"
)

//go:embed testdata/fakenvml.c
var source string

// build compiles the stand-in and returns its path. defines are preprocessor
// definitions, which the source lists.
func build(t testing.TB, defines ...string) string {
	t.Helper()
	var flags []string
	for _, d := range defines {
		flags = append(flags, "-D"+d)
	}
	return testenv.CompileC(t, source, "libnvidia-ml.so.1", flags...)
}

// without is the define that takes a function out of the library.
func without(symbol string) string { return symbol + "=lacks_" + symbol }

// standin is the test's side of a stand-in: the same library, with the same
// state, that the package opens by path.
type standin struct {
	t    testing.TB
	path string
	lib  *dl.Library
}

func hooks(t testing.TB, path string) *standin {
	t.Helper()
	lib, err := dl.OpenOne(path)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("libraries cannot be loaded here")
	}
	require.NoError(t, err)
	return &standin{t: t, path: path, lib: lib}
}

func (s *standin) call(name string, args ...uintptr) int64 {
	s.t.Helper()
	p, err := s.lib.Lookup(name)
	require.NoError(s.t, err)
	switch len(args) {
	case 0:
		return int64(int32(dl.Call0(p)))
	case 1:
		return int64(int32(dl.Call1(p, args[0])))
	}
	return int64(dl.Call2(p, args[0], args[1]))
}

func (s *standin) has(name string) bool {
	_, err := s.lib.Lookup(name)
	return err == nil
}

// start compiles a stand-in, opens it, and closes it when the test ends.
func start(t testing.TB, defines ...string) (*nvml.Library, *standin) {
	t.Helper()
	s := hooks(t, build(t, defines...))
	l, err := nvml.OpenPath(s.path)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		require.Zero(t, s.call("fake_inits"), "each start is ended")
	})
	return l, s
}

// device is GPU i of a library.
func device(t testing.TB, l nvml.Source, i int) nvml.Device {
	t.Helper()
	d, err := l.Device(i)
	require.NoError(t, err)
	return d
}

// counter is the address of a cell that no test reads; it is never freed.
func counter() uintptr { return uintptr(unsafe.Pointer(&sink)) }

var sink uint32
