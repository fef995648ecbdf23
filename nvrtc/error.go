// SPDX-License-Identifier: Apache-2.0

package nvrtc

import (
	"errors"
	"fmt"
	"strings"

	"github.com/geforce-p2p/geforce-p2p/internal/dl"
)

// ErrNoLibrary is matched (errors.Is) by every error of Load and Open: there is
// no NVRTC that can be used.
var ErrNoLibrary = errors.New("no NVRTC library")

// Attempt is a name, path or pattern that was tried, and why it was of no use.
type Attempt struct {
	Name string
	Err  error
}

// LoadError lists everything that was tried to find NVRTC.
type LoadError struct {
	Tried []Attempt
}

// Error is one line.
func (e *LoadError) Error() string {
	o := dl.OpenError{What: "NVRTC"}
	for _, a := range e.Tried {
		o.Tried = append(o.Tried, dl.Attempt{Name: a.Name, Err: a.Err})
	}
	return o.Error() + "; install the CUDA toolkit's NVRTC (Debian and Ubuntu: cuda-nvrtc-13-0 or libnvrtc12, Python: nvidia-cuda-nvrtc), or name the file in " + EnvLibrary
}

// Is matches ErrNoLibrary.
func (e *LoadError) Is(target error) bool { return target == ErrNoLibrary }

// Unwrap gives the reasons.
func (e *LoadError) Unwrap() []error {
	errs := make([]error, len(e.Tried))
	for i, a := range e.Tried {
		errs[i] = a.Err
	}
	return errs
}

// Code is an nvrtcResult.
type Code int32

const (
	success                 Code = 0
	invalidInput            Code = 3
	invalidOption           Code = 5
	builtinOperationFailure Code = 7
)

// names are nvrtc.h's, for a library that does not give them.
var names = map[Code]string{
	0:  "NVRTC_SUCCESS",
	1:  "NVRTC_ERROR_OUT_OF_MEMORY",
	2:  "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
	3:  "NVRTC_ERROR_INVALID_INPUT",
	4:  "NVRTC_ERROR_INVALID_PROGRAM",
	5:  "NVRTC_ERROR_INVALID_OPTION",
	6:  "NVRTC_ERROR_COMPILATION",
	7:  "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
	8:  "NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION",
	9:  "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION",
	10: "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID",
	11: "NVRTC_ERROR_INTERNAL_ERROR",
	12: "NVRTC_ERROR_TIME_FILE_WRITE_FAILED",
}

func (c Code) String() string {
	if s, ok := names[c]; ok {
		return s
	}
	return fmt.Sprintf("NVRTC_ERROR_%d", int32(c))
}

// Error is a failed call of NVRTC.
type Error struct {
	Op      string // the function
	Code    Code
	Text    string // the library's name of the code, and advice
	Log     string // the compiler's log, "" where there is none
	Library string // the file
}

// Error gives the code on the first line and the log below it.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s (%d), %s", e.Op, e.Text, int32(e.Code), e.Library)
	if e.Log != "" {
		b.WriteString("\n")
		b.WriteString(e.Log)
	}
	return b.String()
}

func result(r uintptr) Code { return Code(int32(r)) }

// fail makes the error of a call, with the library's own text of the code.
func (l *Library) fail(op string, c Code) *Error {
	text := ""
	if l.getErrorString != 0 {
		text = dl.GoString(dl.Call1(l.getErrorString, uintptr(uint32(c))))
	}
	if text == "" {
		text = c.String()
	}
	if c == builtinOperationFailure {
		text += ": NVRTC did not find its builtins library (libnvrtc-builtins, nvrtc-builtins64) of the same version beside it"
	}
	return &Error{Op: op, Code: c, Text: text, Library: l.path}
}
