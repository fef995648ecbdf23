// SPDX-License-Identifier: Apache-2.0

// Package dl opens shared libraries at run time and calls into them without
// cgo. It is the only importer of purego in this module.
//
// Where purego does not reach (anything but linux, darwin and windows on amd64
// and arm64) the package compiles all the same, and Open answers
// errors.ErrUnsupported.
//
// A library is never closed: a driver keeps threads and exit handlers of its
// own, and a function address that outlives its library is a crash.
package dl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"
)

// Proc is the address of a C function in a loaded library; 0 is none.
type Proc uintptr

// Library is a loaded shared library. It is safe for concurrent use.
type Library struct {
	handle uintptr
	name   string
}

// Attempt is one name that was tried, and why it did not load.
type Attempt struct {
	Name string // as given to the loader: a bare name or an absolute path
	Err  error
	// Exists is set where a file of that name is there: then the
	// library is broken or of the wrong kind, not absent. Of a bare name that is
	// the loader's word.
	Exists bool
}

// OpenError lists everything that was tried.
type OpenError struct {
	What  string // what was looked for, in words
	Tried []Attempt
}

// Error names each thing tried with its reason, on one line.
func (e *OpenError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "cannot load %s", e.What)
	for i, a := range e.Tried {
		if i == 0 {
			b.WriteString("; tried ")
		} else {
			b.WriteString(", ")
		}
		// The loader's text often starts with the name; once is enough.
		reason := strings.TrimPrefix(a.Err.Error(), a.Name+": ")
		fmt.Fprintf(&b, "%s (%s)", a.Name, reason)
	}
	return b.String()
}

// Unwrap gives the reasons, so that errors.Is finds errors.ErrUnsupported on a
// target that cannot load libraries at all.
func (e *OpenError) Unwrap() []error {
	errs := make([]error, len(e.Tried))
	for i, a := range e.Tried {
		errs[i] = a.Err
	}
	return errs
}

// Absent tells whether nothing that was tried is there at all, as far as can
// be known: false if a path that was tried names a file that would not load.
func (e *OpenError) Absent() bool {
	for _, a := range e.Tried {
		if a.Exists {
			return false
		}
	}
	return true
}

// Open loads the first of names that loads. A bare name goes through the
// system's search (on Windows: the system directory only), a name with a
// directory is opened where it points. what says in words what is looked for.
// The error is an *OpenError.
func Open(what string, names ...string) (*Library, error) {
	e := &OpenError{What: what}
	for _, name := range names {
		lib, err := OpenOne(name)
		if err == nil {
			return lib, nil
		}
		e.Tried = append(e.Tried, Attempt{Name: name, Err: err, Exists: exists(name, err)})
	}
	return nil, e
}

// OpenOne loads one library by bare name or path. The error is the system's
// own text.
func OpenOne(name string) (*Library, error) {
	h, err := load(name)
	if err != nil {
		return nil, err
	}
	return &Library{handle: h, name: name}, nil
}

// exists tells whether what did not load is there. A path can be looked at. Of a
// bare name only the loader knows where it looked: what it does not call absent,
// by the very name, counts as there. A library whose dependency is absent is
// reported by the dependency's name, and is there.
func exists(name string, err error) bool {
	if errors.Is(err, errors.ErrUnsupported) {
		return false
	}
	if filepath.IsAbs(name) {
		_, err := os.Stat(name)
		return err == nil
	}
	return !saysAbsent(name, err)
}

// Name is the name under which the library was opened.
func (l *Library) Name() string { return l.name }

// Lookup finds a function by its exact exported name. Keep the result: each
// look-up asks the system's loader.
func (l *Library) Lookup(symbol string) (Proc, error) {
	p, err := find(l.handle, symbol)
	if err != nil {
		return 0, err
	}
	if p == 0 {
		return 0, fmt.Errorf("%s: symbol %s is null", l.name, symbol)
	}
	return Proc(p), nil
}

// File is the file that the loader mapped, found through a symbol that the
// library exports. It falls back to Name where the system does not say.
func (l *Library) File(symbol string) string {
	p, _ := find(l.handle, symbol)
	if f := fileOf(l.handle, p); f != "" {
		return f
	}
	return l.name
}

// GoString copies a NUL-terminated C string of at most 4096 bytes. Address 0
// is the empty string.
func GoString(addr uintptr) string {
	if addr == 0 {
		return ""
	}
	// The address is C's, not the Go heap's: reinterpreting it through its own
	// variable says so to vet.
	p := *(**[4096]byte)(unsafe.Pointer(&addr))
	for n := range p {
		if p[n] == 0 {
			return string(p[:n])
		}
	}
	return string(p[:])
}
