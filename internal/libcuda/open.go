// SPDX-License-Identifier: Apache-2.0

// Package libcuda is the driver seam over the real driver library, libcuda
// (nvcuda.dll on Windows), opened at run time.
package libcuda

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/dl"
)

// EnvLibrary is the environment variable that names the driver library to
// load, by absolute path, instead of the system's.
const EnvLibrary = "GP_CUDA_LIBRARY"

// ErrNoLibrary is matched (errors.Is) by the error of Open where there is no
// driver library at all: this is a machine without an NVIDIA driver, or a
// system that has none. A library that is there and does not load is another
// error: that is a broken machine.
var ErrNoLibrary = errors.New("no CUDA driver library")

// LoadError says why no driver library was loaded: every name tried with its
// reason, and what to do.
type LoadError struct {
	Tried  []dl.Attempt
	Advice string
	absent bool
}

// Error is one line.
func (e *LoadError) Error() string {
	return (&dl.OpenError{What: "the CUDA driver library", Tried: e.Tried}).Error() + "; " + e.Advice
}

// Is matches ErrNoLibrary if nothing that was tried exists.
func (e *LoadError) Is(target error) bool { return target == ErrNoLibrary && e.absent }

// Unwrap gives the reasons: errors.Is finds errors.ErrUnsupported on a target
// where libraries cannot be loaded or no driver exists.
func (e *LoadError) Unwrap() []error {
	return (&dl.OpenError{Tried: e.Tried}).Unwrap()
}

// Driver is api.Driver over a loaded driver library. It is safe for concurrent
// use; what the driver keeps per OS thread (the current context, the capture
// mode) stays the caller's business.
type Driver struct {
	lib   *dl.Library
	host  api.Host
	path  func() string
	procs [symCount]atomic.Uintptr
}

var _ api.Driver = (*Driver)(nil)

// candidates are the names to try, in order. Only names with a version suffix
// on Linux: libcuda.so is what the toolkit calls its stub.
func candidates(goos string) []string {
	switch goos {
	case "linux":
		return []string{"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"}
	case "windows":
		return []string{"nvcuda.dll"}
	}
	return nil
}

// Open loads the driver library of this system: libcuda.so.1 as the loader
// finds it, then WSL's directory; nvcuda.dll of the system directory on
// Windows; or the file that GP_CUDA_LIBRARY names, and then nothing else. It
// does not call cuInit. The error is a *LoadError.
func Open() (*Driver, error) {
	if path := os.Getenv(EnvLibrary); path != "" {
		return OpenPath(path)
	}
	names := candidates(runtime.GOOS)
	if len(names) == 0 {
		return nil, &LoadError{
			Tried:  []dl.Attempt{{Name: "nothing", Err: unsupportedError("NVIDIA has no CUDA driver for " + runtime.GOOS)}},
			Advice: "run on Linux or Windows, or on a simulated machine",
			absent: true,
		}
	}
	lib, err := dl.Open("the CUDA driver library", names...)
	if err != nil {
		var open *dl.OpenError
		errors.As(err, &open)
		return nil, &LoadError{Tried: open.Tried, Advice: advice(runtime.GOOS), absent: open.Absent()}
	}
	return newDriver(lib), nil
}

// OpenPath loads one file as the driver library, by absolute path.
func OpenPath(path string) (*Driver, error) {
	const advice = "set " + EnvLibrary + " to the absolute path of a driver library, or unset it"
	if !filepath.IsAbs(path) {
		return nil, &LoadError{
			Tried:  []dl.Attempt{{Name: path, Err: errors.New("not an absolute path")}},
			Advice: advice,
		}
	}
	lib, err := dl.Open("the CUDA driver library", path)
	if err != nil {
		// Also where the file is not there: who names one wants that driver,
		// and no machine without one.
		var open *dl.OpenError
		errors.As(err, &open)
		return nil, &LoadError{Tried: open.Tried, Advice: advice}
	}
	return newDriver(lib), nil
}

func newDriver(lib *dl.Library) *Driver {
	return &Driver{
		lib:  lib,
		host: newHost(),
		path: sync.OnceValue(func() string { return lib.File(symbols[cuInit].name) }),
	}
}

func advice(goos string) string {
	if goos == "windows" {
		return "install the NVIDIA display driver, which puts nvcuda.dll into the system directory"
	}
	return "install the NVIDIA driver (its package with the CUDA library: libcuda1 on Debian, libnvidia-compute-NNN on Ubuntu)," +
		" in a container start with --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility, or name the file in " + EnvLibrary
}

// unsupportedError is a text that matches errors.ErrUnsupported.
type unsupportedError string

func (e unsupportedError) Error() string        { return string(e) }
func (e unsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

// Host is the machine that the process runs on.
func (d *Driver) Host() api.Host { return d.host }

// Path is the file that was loaded, with links resolved where the system says.
func (d *Driver) Path() string { return d.path() }

// SymbolOf is the function SymbolOf: it is a method too so that whoever holds
// only an api.Driver can ask for it.
func (d *Driver) SymbolOf(method string) string { return SymbolOf(method) }

// MissingSymbol explains api.CodeSymbolMissing for a method of api.Driver:
// which symbol the loaded file lacks, and which CUDA version has it.
func (d *Driver) MissingSymbol(method string) string {
	symbol := SymbolOf(method)
	since, _ := Introduced(symbol)
	return fmt.Sprintf("libcuda (%s) has no symbol %s (since CUDA %s): the driver is too old", d.Path(), symbol, since)
}

// MissingSymbols lists the bound symbols that the loaded file lacks, each
// looked up now.
func (d *Driver) MissingSymbols() []string {
	var names []string
	for s := range symCount {
		if d.proc(s) == 0 {
			names = append(names, symbols[s].name)
		}
	}
	return names
}
