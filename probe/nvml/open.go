// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/dl"
)

// EnvLibrary is the environment variable that names the NVML library to load,
// by absolute path, instead of the system's.
const EnvLibrary = "GP_NVML_LIBRARY"

const what = "NVIDIA's management library (NVML)"

// Attempt is one name that was tried, and why it did not load.
type Attempt struct {
	Name string
	Err  error
	// Exists is set where the name is a path and a file is there: then it is
	// broken or of the wrong kind, not absent.
	Exists bool
}

// LoadError lists everything that was tried to find the library. It matches
// ErrLibraryNotFound, and errors.ErrUnsupported on a system for which NVIDIA
// has none.
type LoadError struct{ Tried []Attempt }

// Error is one line.
func (e *LoadError) Error() string {
	o := dl.OpenError{What: what}
	for _, a := range e.Tried {
		o.Tried = append(o.Tried, dl.Attempt{Name: a.Name, Err: a.Err})
	}
	return o.Error()
}

// Unwrap gives the reasons, and ErrLibraryNotFound.
func (e *LoadError) Unwrap() []error {
	errs := []error{ErrLibraryNotFound}
	for _, a := range e.Tried {
		errs = append(errs, a.Err)
	}
	return errs
}

// InitError is a library that loaded and refused to start. ErrVersionMismatch,
// ErrDriverNotLoaded and ErrUnknown are the usual reasons: they mean that NVML
// cannot be asked, not that there is no GPU.
type InitError struct {
	Library     string // the file
	NVMLVersion string // the library's own version, which it tells all the same; "" if it did not
	Err         *Error
}

// Error is one line.
func (e *InitError) Error() string {
	version := ""
	if e.NVMLVersion != "" {
		version = ", version " + e.NVMLVersion
	}
	return fmt.Sprintf("%v (%s%s)", e.Err, e.Library, version)
}

// Unwrap is the error of nvmlInit_v2.
func (e *InitError) Unwrap() error { return e.Err }

// candidates are the names to try, in order. The name without a version comes
// last on Linux: containers do not have it, and the toolkit has a stub of that
// name.
func candidates(goos string, getenv func(string) string) []string {
	switch goos {
	case "linux":
		return []string{"libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1", "libnvidia-ml.so"}
	case "windows":
		// Drivers until about 2018 kept it beside nvidia-smi only.
		programs := getenv("ProgramFiles")
		if len(programs) < 3 || programs[1:3] != `:\` {
			programs = `C:\Program Files`
		}
		return []string{"nvml.dll", strings.TrimRight(programs, `\`) + `\NVIDIA Corporation\NVSMI\nvml.dll`}
	}
	return nil
}

// Open loads NVML and starts it (nvmlInit_v2): libnvidia-ml.so.1 as the loader
// finds it, WSL's directory, then libnvidia-ml.so; nvml.dll of the system
// directory and then of the NVSMI directory on Windows; or the file that
// GP_NVML_LIBRARY names, and then nothing else. It needs no GPU context and
// makes none.
//
// The error is a *LoadError or an *InitError; both have a code (CodeOf).
func Open() (*Library, error) {
	if path := os.Getenv(EnvLibrary); path != "" {
		return OpenPath(path)
	}
	names := candidates(runtime.GOOS, os.Getenv)
	if len(names) == 0 {
		err := fmt.Errorf("NVIDIA has no driver for %s: %w", runtime.GOOS, errors.ErrUnsupported)
		return nil, &LoadError{Tried: []Attempt{{Name: "nothing", Err: err}}}
	}
	return open(names...)
}

// OpenPath is Open for one file, by absolute path.
func OpenPath(path string) (*Library, error) {
	if !filepath.IsAbs(path) {
		return nil, &LoadError{Tried: []Attempt{{Name: path, Err: errors.New("not an absolute path")}}}
	}
	return open(path)
}

func open(names ...string) (*Library, error) {
	lib, err := dl.Open(what, names...)
	if err != nil {
		e := new(LoadError)
		var o *dl.OpenError
		if errors.As(err, &o) {
			for _, a := range o.Tried {
				e.Tried = append(e.Tried, Attempt(a))
			}
		}
		return nil, e
	}
	l := &Library{lib: lib, procs: map[string]dl.Proc{}}
	err = l.call(nvmlInit, func(p dl.Proc) uintptr { return dl.Call0(p) })
	var e *Error
	if errors.As(err, &e) {
		version, _ := l.NVMLVersion()
		return nil, &InitError{Library: l.Library(), NVMLVersion: version, Err: e}
	}
	return l, nil
}

// Close ends the use of the library (nvmlShutdown); NVML counts, so others in
// the process go on. The library stays loaded.
func (l *Library) Close() error {
	err := l.call(nvmlShutdown, func(p dl.Proc) uintptr {
		l.closed = true
		return dl.Call0(p)
	})
	if errors.Is(err, ErrUninitialized) {
		return nil
	}
	return err
}

// Library is NVML, loaded and started. It is safe for concurrent use.
type Library struct {
	lib *dl.Library

	// Under mu:
	procs  map[string]dl.Proc // 0: looked up, not there
	closed bool
}

var _ Source = (*Library)(nil)

// proc is the address of a function, 0 if the library lacks it. The caller
// holds mu.
func (l *Library) proc(symbol string) dl.Proc {
	p, known := l.procs[symbol]
	if !known {
		p, _ = l.lib.Lookup(symbol) // a missing one is an answer, not a failure
		l.procs[symbol] = p
	}
	return p
}

// call runs one function under the lock. do passes its own arguments, in the
// argument list of a dl.Call: only there are addresses safe.
func (l *Library) call(symbol string, do func(dl.Proc) uintptr) error {
	mu.Lock()
	defer mu.Unlock()
	if l.closed {
		return &Error{Op: symbol, Code: ErrUninitialized}
	}
	p := l.proc(symbol)
	if p == 0 {
		return &Error{Op: symbol, Code: ErrFunctionNotFound}
	}
	r := Return(int32(do(p)))
	if r == success {
		return nil
	}
	e := &Error{Op: symbol, Code: r}
	if _, known := texts[r]; !known {
		if words := l.proc(nvmlErrorString); words != 0 {
			e.Text = dl.GoString(dl.Call1(words, uintptr(uint32(r))))
		}
	}
	return e
}

// text calls a function that writes a C string into a buffer.
func (l *Library) text(symbol string, do func(p dl.Proc, buf *byte, size uintptr) uintptr) (string, error) {
	// nvml.h's buffers have 96 bytes at most.
	buf := make([]byte, 256)
	err := l.call(symbol, func(p dl.Proc) uintptr { return do(p, unsafe.SliceData(buf), uintptr(len(buf))) })
	if err != nil {
		return "", err
	}
	return cut(buf), nil
}

// cut is the C string at the front of b, which need not end in NUL.
func cut(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

// cstring is s with a NUL; false for a string that holds one: C would see
// another name.
func cstring(s string) (*byte, bool) {
	if strings.IndexByte(s, 0) >= 0 {
		return nil, false
	}
	return unsafe.SliceData(append([]byte(s), 0)), true
}
