// SPDX-License-Identifier: Apache-2.0

package cuda_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

func TestModuleImage(t *testing.T) {
	r := newRig(t)
	text := []byte(".version 7.0\nxx")[:13]
	_, err := r.a.LoadModule(text)
	require.NoError(t, err)
	require.Equal(t, ".version 7.0\n\x00", string(r.f.image), "PTX ends with a NUL for the driver")
	require.Equal(t, "xx", string(text[:15][13:]), "the caller's memory is not written")
	_, err = r.a.LoadModule([]byte(".version\x00"))
	require.NoError(t, err)
	require.Equal(t, ".version\x00", string(r.f.image))
	_, err = r.a.LoadModule([]byte("\x7fELFxyz"))
	require.NoError(t, err)
	require.Equal(t, "\x7fELFxyz", string(r.f.image), "a CUBIN is passed as it is")
	_, err = r.a.LoadModule(nil)
	require.ErrorIs(t, err, cuda.ErrInvalidImage)
}

func TestModuleErrorsCarryTheJITLog(t *testing.T) {
	r := newRig(t)
	r.f.jitLog = "ptxas application ptx input, line 1; fatal: Unsupported .version 9.1; current version is '9.0'\n"
	r.f.loadCode = api.UnsupportedPTXVersion
	_, err := r.a.LoadModule([]byte(".version 9.1"))
	require.ErrorIs(t, err, cuda.ErrUnsupportedPTXVersion)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	var e *cuda.Error
	require.ErrorAs(t, err, &e)
	require.Contains(t, e.Detail, "Unsupported .version 9.1; current version is '9.0'")
	require.Contains(t, e.Detail, "load a CUBIN")
	require.NotContains(t, e.Detail, "\x00")
	require.NoError(t, r.a.Err(), "the context is as good as before")
}

func TestFunction(t *testing.T) {
	r := newRig(t)
	v := make1(t, r.a)
	require.Equal(t, "kernel", v.fn.Name())
	require.Same(t, v.mod, v.fn.Module())
	_, err := v.mod.Function("nosuch")
	require.ErrorIs(t, err, cuda.ErrNotFound)
	require.ErrorContains(t, err, "nosuch")

	var p cuda.Params
	params := p.Uint8(1).Uint16(0x2222).Uint8(3).Uint32(0x44444444).Uint8(5).Ptr(0x8888888888888888).Float32(1).Float64(1).Bytes()
	require.Equal(t, []byte{
		1, 0, 0x22, 0x22, // u16 at 2
		3, 0, 0, 0, // u32 at 8
		0x44, 0x44, 0x44, 0x44, 5, 0, 0, 0, // pointer at 16
		0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88,
		0, 0, 0x80, 0x3f, 0, 0, 0, 0, // double at 32
		0, 0, 0, 0, 0, 0, 0xf0, 0x3f,
	}, params)
	cfg := cuda.LaunchConfig{Grid: [3]uint32{7}, Block: [3]uint32{128, 2}, Shared: 48}
	require.NoError(t, v.fn.Launch(cfg, v.s, params))
	require.Equal(t, [3]uint32{7, 1, 1}, r.f.launched.Grid)
	require.Equal(t, [3]uint32{128, 2, 1}, r.f.launched.Block)
	require.EqualValues(t, 48, r.f.launched.Shared)
	require.Equal(t, v.s.Handle(), r.f.launched.Stream)
	require.Equal(t, params, r.f.params)
	require.Equal(t, 0, len(p.Reset().Bytes()))

	r.tap.Fail("LaunchKernel", 1, api.LaunchOutOfResources)
	err = v.fn.Launch(cfg, v.s, params)
	require.ErrorIs(t, err, cuda.ErrLaunchOutOfResources)
	require.ErrorContains(t, err, "kernel kernel, grid [7 0 0], block [128 2 0], 48 bytes of shared memory")
	require.NoError(t, r.a.Err())
}
