// SPDX-License-Identifier: Apache-2.0

// Package fakelib builds the C libraries that stand in for NVIDIA's in tests:
// one for libcuda and one for NVRTC. Only tests import it; they are skipped
// where there is no gcc.
package fakelib

import (
	_ "embed"
	"runtime"
	"testing"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/dl"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

//go:embed testdata/fakecuda.c
var cudaSource string

//go:embed testdata/fakenvrtc.c
var nvrtcSource string

// Build compiles the stand-in for libcuda and returns its absolute path, for
// libcuda.OpenPath or GP_CUDA_LIBRARY. defines are preprocessor definitions
// ("FAKE_CUINIT=34"; the source lists them) or come from Without. Each call
// gives a library with state of its own.
func Build(t testing.TB, defines ...string) (path string) {
	t.Helper()
	return testenv.CompileC(t, cudaSource, "libcuda.so.1", flags(defines)...)
}

// BuildNVRTC compiles the stand-in for NVRTC under the file name that a major
// version has on Linux ("libnvrtc.so.13") and returns its absolute path, for
// nvrtc.Open or GP_NVRTC_LIBRARY. defines are as for Build.
func BuildNVRTC(t testing.TB, file string, defines ...string) (path string) {
	t.Helper()
	return testenv.CompileC(t, nvrtcSource, file, flags(defines)...)
}

// Without is the define that takes a symbol out of a library.
func Without(symbol string) string { return symbol + "=lacks_" + symbol }

func flags(defines []string) []string {
	var f []string
	for _, d := range defines {
		f = append(f, "-D"+d)
	}
	return f
}

// CUDA steers and watches a stand-in that Build made.
type CUDA struct {
	t   testing.TB
	lib *dl.Library
}

// Hooks opens the test side of the stand-in at path: the same library that
// libcuda.OpenPath(path) opens, with the same state.
func Hooks(t testing.TB, path string) *CUDA {
	t.Helper()
	lib, err := dl.OpenOne(path)
	if err != nil {
		t.Fatal(err)
	}
	return &CUDA{t: t, lib: lib}
}

// Proc is the address of any exported function of the stand-in.
func (c *CUDA) Proc(symbol string) dl.Proc {
	c.t.Helper()
	p, err := c.lib.Lookup(symbol)
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

// Fail makes a driver function ("cuMemAlloc_v2") answer code once it has been
// called after more times; code 0 makes it work again.
func (c *CUDA) Fail(symbol string, code, after int) {
	name := append([]byte(symbol), 0)
	dl.Call3(c.Proc("fake_fail"), uintptr(unsafe.Pointer(&name[0])), uintptr(code), uintptr(after))
}

// Calls counts the calls of a driver function so far.
func (c *CUDA) Calls(symbol string) int {
	name := append([]byte(symbol), 0)
	return int(dl.Call1(c.Proc("fake_calls"), uintptr(unsafe.Pointer(&name[0]))))
}

// Live counts live objects: kind is context, stream, event, module, graph,
// memory or host.
func (c *CUDA) Live(kind string) int {
	name := append([]byte(kind), 0)
	return int(int32(dl.Call1(c.Proc("fake_live"), uintptr(unsafe.Pointer(&name[0])))))
}

// Arg is argument i of the last driver call of any thread, as a whole word.
func (c *CUDA) Arg(i int) uint64 {
	return uint64(dl.Call1(c.Proc("fake_arg"), uintptr(i)))
}

// Launched is what the last cuLaunchKernel was given: grid, block and shared
// bytes, and the parameter buffer.
func (c *CUDA) Launched() (dims [7]uint32, params []byte) {
	d, p := new([7]uint32), make([]byte, 4096)
	n := dl.Call3(c.Proc("fake_launched"), uintptr(unsafe.Pointer(d)), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
	return *d, p[:n]
}

// NewContext makes a context that is no primary one and leaves the thread's
// current context as it was: what a foreign library in the process would own.
func (c *CUDA) NewContext(device int) uint64 {
	c.t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out := new(uint64)
	if r := int32(dl.Call3(c.Proc("cuCtxCreate_v2"), uintptr(unsafe.Pointer(out)), 0, uintptr(device))); r != 0 {
		c.t.Fatalf("cuCtxCreate_v2: %d", r)
	}
	popped := new(uint64)
	dl.Call1(c.Proc("cuCtxPopCurrent_v2"), uintptr(unsafe.Pointer(popped)))
	return *out
}

// Memcpy2DLayout is the offset of field i of CUDA_MEMCPY2D as the C compiler
// lays it out, the size of the whole after the last field, and then -1.
func (c *CUDA) Memcpy2DLayout(i int) int {
	return int(int64(dl.Call1(c.Proc("fake_memcpy2d_layout"), uintptr(i))))
}

// LoopNs is how long C itself takes for n calls of a function with one word as
// argument, in nanoseconds.
func (c *CUDA) LoopNs(symbol string, n int, arg uint64) float64 {
	return float64(int64(dl.Call3(c.Proc("fake_loop"), uintptr(c.Proc(symbol)), uintptr(n), uintptr(arg))))
}
