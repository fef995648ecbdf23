// SPDX-License-Identifier: Apache-2.0

package cuda_test

import (
	"errors"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
)

// source parses a file of this repository. The test is skipped where only its
// binary is, as on a GPU host.
func source(t *testing.T, fset *token.FileSet, name string) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(fset, name, nil, 0)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the source is not here")
	}
	require.NoError(t, err)
	return file
}

// apiCodes reads the codes out of the seam's source.
func apiCodes(t *testing.T) map[string]api.Code {
	t.Helper()
	fset := token.NewFileSet()
	file := source(t, fset, "../internal/api/code.go")
	conf := types.Config{}
	pkg, err := conf.Check("api", fset, []*ast.File{file}, nil)
	require.NoError(t, err)
	codes := map[string]api.Code{}
	for _, name := range pkg.Scope().Names() {
		if c, ok := pkg.Scope().Lookup(name).(*types.Const); ok {
			v, exact := constant.Int64Val(c.Val())
			require.True(t, exact)
			codes[name] = api.Code(v)
		}
	}
	require.Greater(t, len(codes), 50)
	return codes
}

// Every code that the seam names has a constant here and a text of its own.
func TestEveryCodeIsNamed(t *testing.T) {
	file := source(t, token.NewFileSet(), "errors.go")
	constants := map[string]string{} // api name -> cuda name
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		call, ok := spec.Values[0].(*ast.CallExpr)
		if !ok || len(call.Args) != 1 {
			return true
		}
		if sel, ok := call.Args[0].(*ast.SelectorExpr); ok {
			constants[sel.Sel.Name] = spec.Names[0].Name
		}
		return true
	})
	names := map[string]bool{}
	for name, c := range apiCodes(t) {
		if name != "Success" {
			want := "Err" + strings.TrimPrefix(name, "Code")
			require.Equal(t, want, constants[name])
		}
		text := cuda.Code(c).Error()
		require.NotContains(t, text, "neither the driver nor this library", name)
		require.False(t, names[cuda.Code(c).Name()], "two codes named %s", cuda.Code(c).Name())
		names[cuda.Code(c).Name()] = true
		require.Equal(t, c.Sticky(), cuda.Code(c).Sticky())
	}
	require.Equal(t, "CUDA error 4711", cuda.Code(4711).Name())
	require.Contains(t, cuda.Code(4711).Error(), "4711")
}

func TestErrorText(t *testing.T) {
	f := newFake()
	d := open(t, f)
	err := hook.Error(d, nil, "cuThing", api.OutOfMemory)
	require.EqualError(t, err, "cuda: cuThing: DRIVER_NAME_2 (2): the driver's words")
	f.texts = false
	err = hook.Error(d, nil, "cuThing", api.OutOfMemory)
	require.EqualError(t, err, "cuda: cuThing: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory")
	require.EqualError(t, hook.Error(d, nil, "cuThing", 4711), "cuda: cuThing: CUDA error 4711, which neither the driver nor this library knows by name")
	require.NoError(t, hook.Error(d, nil, "cuThing", api.Success))
	require.EqualError(t, hook.Error(nil, nil, "cuThing", api.OutOfMemory), "cuda: cuThing: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory")
	require.EqualError(t, hook.Error(d, nil, "cuStreamGetCtx", api.CodeSymbolMissing),
		"cuda: cuStreamGetCtx: the loaded driver library does not export the function")

	var e *cuda.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "cuThing", e.Op)
	var c cuda.Code
	require.ErrorAs(t, err, &c)
	require.Equal(t, cuda.ErrOutOfMemory, c)
	require.ErrorIs(t, err, cuda.ErrOutOfMemory)
	require.NotErrorIs(t, err, cuda.ErrNoDevice)
}

func TestUnsupportedCodes(t *testing.T) {
	unsupported := map[cuda.Code]bool{cuda.ErrNotSupported: true, cuda.ErrPeerAccessUnsupported: true, cuda.ErrNoBinaryForGPU: true,
		cuda.ErrUnsupportedPTXVersion: true, cuda.ErrSymbolMissing: true}
	for name, c := range apiCodes(t) {
		require.Equal(t, unsupported[cuda.Code(c)], errors.Is(hook.Error(nil, nil, "x", c), errors.ErrUnsupported), name)
	}
}

func TestAdvice(t *testing.T) {
	f := newFake()
	d := open(t, f)
	for c, want := range map[api.Code]string{
		api.UnsupportedPTXVersion: "load a CUBIN",
		api.MPSConnectionFailed:   "CUDA_MPS_PIPE_DIRECTORY",
		api.LaunchTimeout:         "display watchdog",
		api.SystemDriverMismatch:  "/proc/driver/nvidia/version",
		api.CompatNotSupported:    "LD_LIBRARY_PATH",
		api.JITCompilerNotFound:   "libnvidia-ptxjitcompiler",
		api.Unknown:               "nvidia-uvm",
		api.NoDevice:              "CUDA_VISIBLE_DEVICES",
		api.IllegalAddress:        "the context is lost",
	} {
		require.ErrorContains(t, hook.Error(d, nil, "cuThing", c), want)
	}
}

// The toolkit's stub library is named with its path.
func TestStubLibrary(t *testing.T) {
	f := newFake()
	f.init, f.texts, f.path = api.StubLibrary, false, "/usr/local/cuda/lib64/stubs/libcuda.so.1"
	_, err := hook.NewDriver(f)
	require.ErrorIs(t, err, cuda.ErrStubLibrary)
	require.ErrorContains(t, err, "cuInit: CUDA_ERROR_STUB_LIBRARY (34)")
	require.ErrorContains(t, err, "/usr/local/cuda/lib64/stubs/libcuda.so.1 is not a driver; what was loaded is the toolkit's stub for linking")

	// And so is a library of another kind, which GP_CUDA_LIBRARY may name.
	f.init, f.path = api.CodeSymbolMissing, "/usr/local/cuda/lib64/libcudart.so.13"
	_, err = hook.NewDriver(f)
	require.ErrorContains(t, err, "does not export the function; /usr/local/cuda/lib64/libcudart.so.13 is not a driver")
}

func TestInitLooksAtTheDeviceNodes(t *testing.T) {
	f := newFake()
	f.init = api.Unknown
	f.host.files = fstest.MapFS{"dev/nvidiactl": {}, "dev/nvidia0": {}}
	_, err := hook.NewDriver(f)
	require.ErrorIs(t, err, cuda.ErrUnknown)
	require.ErrorContains(t, err, "/dev/nvidia-uvm is missing although /dev/nvidiactl is there")
	f.host.files["dev/nvidia-uvm"] = &fstest.MapFile{}
	_, err = hook.NewDriver(f)
	require.NotContains(t, err.Error(), "is missing although")
	f.init = api.NoDevice
	_, err = hook.NewDriver(f)
	require.ErrorIs(t, err, cuda.ErrNoDevice)
}

// An asynchronous launch succeeds, the next synchronisation finds that it
// failed. From then on every call answers with that first error and is not
// made; what frees still is, and says nothing again.
func TestTheFirstLossIsKept(t *testing.T) {
	r := newRig(t)
	va, vb := make1(t, r.a), make1(t, r.b)
	require.NoError(t, va.fn.Launch(cuda.LaunchConfig{}, va.s, nil))
	require.NoError(t, r.a.Err())
	r.f.async = api.IllegalAddress
	err := va.s.Synchronize()
	require.ErrorIs(t, err, cuda.ErrIllegalAddress)
	require.ErrorContains(t, err, "the context is lost")
	first := r.a.Err()
	require.Equal(t, err, first)

	r.f.async = api.LaunchFailed // a later symptom of the same loss
	calls := r.tap.Total()
	for _, m := range methods {
		err := m.f(r.a, r.b, va)
		require.ErrorIs(t, err, first, m.seam)
		require.ErrorIs(t, err, cuda.ErrIllegalAddress, m.seam)
		require.NotErrorIs(t, err, cuda.ErrLaunchFailed, m.seam)
		require.ErrorContains(t, err, "cause: cuda: cuStreamSynchronize", m.seam)
	}
	require.ErrorIs(t, r.a.Do(func() error { t.Error("called"); return nil }), first)
	require.Equal(t, calls, r.tap.Total(), "nothing reaches the driver")
	require.Same(t, first, r.a.Err())

	// Enqueued through the seam, the loss is the same one.
	err = hook.Error(r.d, r.a, "cuLaunchKernel", api.LaunchFailed)
	require.ErrorIs(t, err, first)

	r.f.async = api.Success
	require.NoError(t, vb.s.Synchronize(), "the other context is untouched")
	require.NoError(t, r.b.Err())

	r.tap.FailFrom("MemFree", 1, api.IllegalAddress)
	va.close(t)
	require.EqualValues(t, 1, r.tap.Count("MemFree"))
	require.EqualValues(t, 1, r.tap.Count("MemFreeHost"))
	require.NoError(t, r.a.Close())
	require.Zero(t, r.f.retained[0])

	again := r.primary(t, 0)
	require.NoError(t, again.Err(), "a context retained anew starts anew")
}

// A refused call leaves nothing behind.
func TestOrdinaryErrorsDoNotStick(t *testing.T) {
	r := newRig(t)
	v := make1(t, r.a)
	for name, c := range apiCodes(t) {
		if c.Sticky() || c == api.Success || c == api.NotReady {
			continue
		}
		r.tap.Fail("EventRecord", 1, c)
		require.ErrorIs(t, v.e.Record(v.s), cuda.Code(c), name)
		require.NoError(t, r.a.Err(), name)
		require.NoError(t, v.e.Record(v.s), "the next call works after "+name)
	}
}
