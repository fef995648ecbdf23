// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"
)

// Return is nvmlReturn_t as an error. errors.Is(err, ErrNotSupported) works on
// every error of this package; CodeOf takes the code out of one.
type Return int32

// The codes that a caller decides on, with nvml.h's numbers.
const (
	ErrUninitialized    Return = 1
	ErrInvalidArgument  Return = 2
	ErrNotSupported     Return = 3
	ErrNoPermission     Return = 4
	ErrNotFound         Return = 6
	ErrInsufficientSize Return = 7
	ErrDriverNotLoaded  Return = 9
	ErrLibraryNotFound  Return = 12
	ErrFunctionNotFound Return = 13
	ErrGPULost          Return = 15
	ErrResetRequired    Return = 16
	ErrOperatingSystem  Return = 17
	ErrVersionMismatch  Return = 18 // the library and the kernel driver are of different versions
	ErrArgumentVersion  Return = 25
	ErrGPUNotFound      Return = 28
	ErrUnknown          Return = 999

	success Return = 0
)

// texts are nvml.h's names of the codes, and what each says.
var texts = map[Return]string{
	0:   "SUCCESS",
	1:   "UNINITIALIZED: the library was not initialised, or was closed",
	2:   "INVALID_ARGUMENT",
	3:   "NOT_SUPPORTED: not for this GPU, driver or system",
	4:   "NO_PERMISSION: the user may not ask that",
	5:   "ALREADY_INITIALIZED",
	6:   "NOT_FOUND",
	7:   "INSUFFICIENT_SIZE",
	8:   "INSUFFICIENT_POWER: a power cable of the GPU is not attached",
	9:   "DRIVER_NOT_LOADED: the kernel driver is not loaded",
	10:  "TIMEOUT",
	11:  "IRQ_ISSUE: the kernel found an interrupt problem with a GPU",
	12:  "LIBRARY_NOT_FOUND",
	13:  "FUNCTION_NOT_FOUND: the library or the driver is too old for that",
	14:  "CORRUPTED_INFOROM",
	15:  "GPU_IS_LOST: the GPU has fallen off the bus",
	16:  "RESET_REQUIRED: the GPU must be reset before it can be used",
	17:  "OPERATING_SYSTEM: the system or a cgroup blocks the GPU's control device",
	18:  "LIB_RM_VERSION_MISMATCH: the library and the kernel driver are of different versions",
	19:  "IN_USE",
	20:  "MEMORY: out of memory",
	21:  "NO_DATA",
	22:  "VGPU_ECC_NOT_SUPPORTED",
	23:  "INSUFFICIENT_RESOURCES",
	24:  "FREQ_NOT_SUPPORTED",
	25:  "ARGUMENT_VERSION_MISMATCH: the library does not know that version of a struct",
	26:  "DEPRECATED",
	27:  "NOT_READY",
	28:  "GPU_NOT_FOUND: no GPU was found",
	29:  "INVALID_STATE",
	30:  "RESET_TYPE_NOT_SUPPORTED",
	999: "UNKNOWN: an internal error of the driver",
}

// Error is nvml.h's name of the code with its number.
func (r Return) Error() string {
	if s, ok := texts[r]; ok {
		return fmt.Sprintf("NVML error %d, %s", int32(r), s)
	}
	return fmt.Sprintf("NVML error %d", int32(r))
}

// Is matches errors.ErrUnsupported for what the GPU, the driver or the library
// cannot tell.
func (r Return) Is(target error) bool {
	return target == errors.ErrUnsupported && (r == ErrNotSupported || r == ErrFunctionNotFound)
}

// Error is a failed call.
type Error struct {
	Op   string // the function, by its exported name
	Code Return
	Text string // the library's own words, only for a code that is not known here
}

// Error is one line.
func (e *Error) Error() string {
	if e.Text != "" {
		return fmt.Sprintf("%s: %v (%s)", e.Op, e.Code, e.Text)
	}
	return fmt.Sprintf("%s: %v", e.Op, e.Code)
}

// Unwrap is the code.
func (e *Error) Unwrap() error { return e.Code }

// CodeOf is the NVML code in an error; false where there is none.
func CodeOf(err error) (code Return, ok bool) {
	ok = errors.As(err, &code)
	return code, ok
}
