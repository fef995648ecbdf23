// SPDX-License-Identifier: Apache-2.0

package nvrtc

import (
	"fmt"
	"path/filepath"
	"sync"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/dl"
)

// Library is a loaded NVRTC. It is safe for concurrent use; NVRTC itself
// decides what runs at once.
type Library struct {
	lib          *dl.Library
	path         string
	major, minor int
	archs        []int
	// note says what went wrong with the builtins library that lies beside
	// NVRTC; it is told when a compilation fails.
	note string

	getErrorString    dl.Proc // optional: there is a table of our own
	createProgram     dl.Proc
	destroyProgram    dl.Proc
	compileProgram    dl.Proc
	getProgramLogSize dl.Proc
	getProgramLog     dl.Proc
	getCUBINSize      dl.Proc
	getCUBIN          dl.Proc
}

var load = sync.OnceValues(func() (*Library, error) { return find(system()) })

// Load opens NVRTC once in a process; later calls give the same answer. It
// tries, in this order:
//
//   - the file that GP_NVRTC_LIBRARY names, and then nothing else;
//   - the plain library names, newest first, as the system's loader finds them
//     (not on Windows);
//   - the toolkit's directories: CUDA_HOME, CUDA_PATH, /usr/local/cuda;
//   - on Windows, the directories of PATH;
//   - NVIDIA's wheels in the active Python environment (VIRTUAL_ENV,
//     CONDA_PREFIX), and CONDA_PREFIX's own libraries.
//
// A library that loads but lacks a function that Compile needs (before CUDA
// 11.1) is passed over. The error is a *LoadError, which matches ErrNoLibrary.
func Load() (*Library, error) { return load() }

// Open opens one file as NVRTC, by absolute path.
func Open(path string) (*Library, error) {
	if !filepath.IsAbs(path) {
		return nil, &LoadError{Tried: []Attempt{{path, fmt.Errorf("not an absolute path")}}}
	}
	l, err := open(path)
	if err != nil {
		return nil, &LoadError{Tried: []Attempt{{path, err}}}
	}
	return l, nil
}

// open opens a library by bare name or absolute path and resolves what it
// needs of it.
func open(name string) (*Library, error) {
	note := ""
	if filepath.IsAbs(name) {
		note = openBuiltins(name)
	}
	lib, err := dl.OpenOne(name)
	if err != nil {
		return nil, err
	}
	l := &Library{lib: lib, note: note}
	var version dl.Proc
	for _, s := range []struct {
		to     *dl.Proc
		symbol string
	}{
		{&version, "nvrtcVersion"},
		{&l.createProgram, "nvrtcCreateProgram"},
		{&l.destroyProgram, "nvrtcDestroyProgram"},
		{&l.compileProgram, "nvrtcCompileProgram"},
		{&l.getProgramLogSize, "nvrtcGetProgramLogSize"},
		{&l.getProgramLog, "nvrtcGetProgramLog"},
		{&l.getCUBINSize, "nvrtcGetCUBINSize"}, // 11.1
		{&l.getCUBIN, "nvrtcGetCUBIN"},         // 11.1
	} {
		if *s.to, err = lib.Lookup(s.symbol); err != nil {
			return nil, fmt.Errorf("loaded, but has no %s (CUDA 11.1 or later is needed): %w", s.symbol, err)
		}
	}
	l.getErrorString, _ = lib.Lookup("nvrtcGetErrorString")
	l.path = lib.File("nvrtcVersion")

	v := new(struct{ major, minor int32 })
	if r := result(dl.Call2(version, uintptr(unsafe.Pointer(&v.major)), uintptr(unsafe.Pointer(&v.minor)))); r != success {
		return nil, l.fail("nvrtcVersion", r)
	}
	l.major, l.minor = int(v.major), int(v.minor)
	l.archs = supportedArchs(lib)
	return l, nil
}

// supportedArchs asks for the architectures; nvrtcGetSupportedArchs came with
// CUDA 11.2, and an older library is not asked.
func supportedArchs(lib *dl.Library) []int {
	number, err1 := lib.Lookup("nvrtcGetNumSupportedArchs")
	list, err2 := lib.Lookup("nvrtcGetSupportedArchs")
	if err1 != nil || err2 != nil {
		return nil
	}
	n := new(int32)
	if result(dl.Call1(number, uintptr(unsafe.Pointer(n)))) != success || *n <= 0 {
		return nil
	}
	got := make([]int32, *n)
	if result(dl.Call1(list, uintptr(unsafe.Pointer(&got[0])))) != success {
		return nil
	}
	archs := make([]int, len(got))
	for i, a := range got {
		archs[i] = int(a)
	}
	return archs
}

// Path is the file that was loaded, with links resolved where the system says.
func (l *Library) Path() string { return l.path }

// Version is NVRTC's, which is the CUDA version it came with.
func (l *Library) Version() (major, minor int) { return l.major, l.minor }

// Archs lists the architectures that can be compiled for, ascending, as 89 for
// sm_89; nil if the library cannot say (CUDA 11.1).
func (l *Library) Archs() []int { return append([]int(nil), l.archs...) }
