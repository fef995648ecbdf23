// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"
	"strings"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// A Code is a result code of the driver (CUresult). It is an error, so that
// errors.Is(err, ErrOutOfMemory) works on everything that this package returns.
// Codes that say "not on this machine" match errors.ErrUnsupported too.
type Code int32

// The codes by name, with cuda.h's values.
const (
	ErrInvalidValue             = Code(api.InvalidValue)
	ErrOutOfMemory              = Code(api.OutOfMemory)
	ErrNotInitialized           = Code(api.NotInitialized)
	ErrDeinitialized            = Code(api.Deinitialized)
	ErrStubLibrary              = Code(api.StubLibrary)
	ErrDeviceUnavailable        = Code(api.DeviceUnavailable)
	ErrNoDevice                 = Code(api.NoDevice)
	ErrInvalidDevice            = Code(api.InvalidDevice)
	ErrInvalidImage             = Code(api.InvalidImage)
	ErrInvalidContext           = Code(api.InvalidContext)
	ErrNoBinaryForGPU           = Code(api.NoBinaryForGPU)
	ErrPeerAccessUnsupported    = Code(api.PeerAccessUnsupported)
	ErrInvalidPTX               = Code(api.InvalidPTX)
	ErrJITCompilerNotFound      = Code(api.JITCompilerNotFound)
	ErrUnsupportedPTXVersion    = Code(api.UnsupportedPTXVersion)
	ErrFileNotFound             = Code(api.FileNotFound)
	ErrOperatingSystem          = Code(api.OperatingSystem)
	ErrInvalidHandle            = Code(api.InvalidHandle)
	ErrIllegalState             = Code(api.IllegalState)
	ErrNotFound                 = Code(api.NotFound)
	ErrNotReady                 = Code(api.NotReady)
	ErrIllegalAddress           = Code(api.IllegalAddress)
	ErrLaunchOutOfResources     = Code(api.LaunchOutOfResources)
	ErrLaunchTimeout            = Code(api.LaunchTimeout)
	ErrPeerAccessAlreadyEnabled = Code(api.PeerAccessAlreadyEnabled)
	ErrPeerAccessNotEnabled     = Code(api.PeerAccessNotEnabled)
	ErrPrimaryContextActive     = Code(api.PrimaryContextActive)
	ErrContextIsDestroyed       = Code(api.ContextIsDestroyed)
	ErrAssert                   = Code(api.Assert)
	ErrTooManyPeers             = Code(api.TooManyPeers)
	ErrHostMemoryAlreadyReg     = Code(api.HostMemoryAlreadyReg)
	ErrHostMemoryNotRegistered  = Code(api.HostMemoryNotRegistered)
	ErrHardwareStackError       = Code(api.HardwareStackError)
	ErrIllegalInstruction       = Code(api.IllegalInstruction)
	ErrMisalignedAddress        = Code(api.MisalignedAddress)
	ErrInvalidAddressSpace      = Code(api.InvalidAddressSpace)
	ErrInvalidPC                = Code(api.InvalidPC)
	ErrLaunchFailed             = Code(api.LaunchFailed)
	ErrNotPermitted             = Code(api.NotPermitted)
	ErrNotSupported             = Code(api.NotSupported)
	ErrSystemDriverMismatch     = Code(api.SystemDriverMismatch)
	ErrCompatNotSupported       = Code(api.CompatNotSupported)
	ErrMPSConnectionFailed      = Code(api.MPSConnectionFailed)
	ErrCaptureUnsupported       = Code(api.CaptureUnsupported)
	ErrCaptureInvalid           = Code(api.CaptureInvalid)
	ErrCaptureMerge             = Code(api.CaptureMerge)
	ErrCaptureUnmatched         = Code(api.CaptureUnmatched)
	ErrCaptureUnjoined          = Code(api.CaptureUnjoined)
	ErrCaptureIsolation         = Code(api.CaptureIsolation)
	ErrCaptureImplicit          = Code(api.CaptureImplicit)
	ErrCapturedEvent            = Code(api.CapturedEvent)
	ErrCaptureWrongThread       = Code(api.CaptureWrongThread)
	ErrUnknown                  = Code(api.Unknown)

	// ErrSymbolMissing says that the loaded driver library is too old to have
	// the function. It is this package's own: no CUresult is negative.
	ErrSymbolMissing = Code(api.CodeSymbolMissing)
)

// ErrWrongContext says that values of two contexts were brought together in a
// call that takes them from one.
var ErrWrongContext = errors.New("values of different contexts")

// codeTexts is what the codes mean, for when no driver is there to ask.
var codeTexts = map[Code]struct{ name, text string }{
	0:                           {"CUDA_SUCCESS", "no error"},
	ErrInvalidValue:             {"CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	ErrOutOfMemory:              {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	ErrNotInitialized:           {"CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	ErrDeinitialized:            {"CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
	ErrStubLibrary:              {"CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
	ErrDeviceUnavailable:        {"CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
	ErrNoDevice:                 {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	ErrInvalidDevice:            {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	ErrInvalidImage:             {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
	ErrInvalidContext:           {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	ErrNoBinaryForGPU:           {"CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
	ErrPeerAccessUnsupported:    {"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
	ErrInvalidPTX:               {"CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
	ErrJITCompilerNotFound:      {"CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "PTX JIT compiler library not found"},
	ErrUnsupportedPTXVersion:    {"CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain"},
	ErrFileNotFound:             {"CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
	ErrOperatingSystem:          {"CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
	ErrInvalidHandle:            {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	ErrIllegalState:             {"CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
	ErrNotFound:                 {"CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	ErrNotReady:                 {"CUDA_ERROR_NOT_READY", "device not ready"},
	ErrIllegalAddress:           {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
	ErrLaunchOutOfResources:     {"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
	ErrLaunchTimeout:            {"CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
	ErrPeerAccessAlreadyEnabled: {"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
	ErrPeerAccessNotEnabled:     {"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
	ErrPrimaryContextActive:     {"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "cannot set while device is active in this process"},
	ErrContextIsDestroyed:       {"CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
	ErrAssert:                   {"CUDA_ERROR_ASSERT", "device-side assert triggered"},
	ErrTooManyPeers:             {"CUDA_ERROR_TOO_MANY_PEERS", "peer mapping resources exhausted"},
	ErrHostMemoryAlreadyReg:     {"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
	ErrHostMemoryNotRegistered:  {"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
	ErrHardwareStackError:       {"CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error"},
	ErrIllegalInstruction:       {"CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"},
	ErrMisalignedAddress:        {"CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
	ErrInvalidAddressSpace:      {"CUDA_ERROR_INVALID_ADDRESS_SPACE", "operation not supported on global/shared address space"},
	ErrInvalidPC:                {"CUDA_ERROR_INVALID_PC", "invalid program counter"},
	ErrLaunchFailed:             {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
	ErrNotPermitted:             {"CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
	ErrNotSupported:             {"CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	ErrSystemDriverMismatch:     {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
	ErrCompatNotSupported:       {"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility was attempted on non supported HW"},
	ErrMPSConnectionFailed:      {"CUDA_ERROR_MPS_CONNECTION_FAILED", "MPS client failed to connect to the MPS control daemon or the MPS server"},
	ErrCaptureUnsupported:       {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
	ErrCaptureInvalid:           {"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
	ErrCaptureMerge:             {"CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"},
	ErrCaptureUnmatched:         {"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
	ErrCaptureUnjoined:          {"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
	ErrCaptureIsolation:         {"CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
	ErrCaptureImplicit:          {"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"},
	ErrCapturedEvent:            {"CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
	ErrCaptureWrongThread:       {"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread"},
	ErrUnknown:                  {"CUDA_ERROR_UNKNOWN", "unknown error"},
	ErrSymbolMissing:            {"function missing", "the loaded driver library does not export the function"},
}

// Name is the code's name in cuda.h, "CUDA_ERROR_OUT_OF_MEMORY".
func (c Code) Name() string {
	if t, ok := codeTexts[c]; ok {
		return t.name
	}
	return fmt.Sprintf("CUDA error %d", int32(c))
}

// Error is the name, the number and a short text.
func (c Code) Error() string { return describe(c, "", "") }

// Is lets codes that say "not on this machine" match errors.ErrUnsupported.
func (c Code) Is(target error) bool {
	if target == errors.ErrUnsupported {
		switch c {
		case ErrNotSupported, ErrPeerAccessUnsupported, ErrNoBinaryForGPU, ErrUnsupportedPTXVersion, ErrSymbolMissing:
			return true
		}
	}
	return false
}

// Sticky tells whether the code means that the context is lost.
func (c Code) Sticky() bool { return api.Code(c).Sticky() }

// describe puts a code into words: the driver's if it has any, else ours.
func describe(c Code, name, text string) string {
	if t, ok := codeTexts[c]; ok {
		if name == "" {
			name = t.name
		}
		if text == "" {
			text = t.text
		}
	}
	switch {
	case c == ErrSymbolMissing:
		return text
	case name == "":
		return fmt.Sprintf("CUDA error %d, which neither the driver nor this library knows by name", int32(c))
	case text == "":
		return fmt.Sprintf("%s (%d)", name, int32(c))
	}
	return fmt.Sprintf("%s (%d): %s", name, int32(c), text)
}

// An Error is a driver call that failed. errors.Is matches its Code and
// whatever Cause wraps.
type Error struct {
	Op     string // the driver function, "cuMemAlloc", or the method where none was called
	Code   Code
	Detail string // sizes, the JIT's log, advice; may be empty
	Cause  error  // what lies behind, such as the error that lost the context; may be nil

	name, text string // as the driver has them
}

// Error is one line but for a JIT log in Detail.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("cuda: ")
	if e.Op != "" {
		b.WriteString(e.Op + ": ")
	}
	b.WriteString(describe(e.Code, e.name, e.text))
	if e.Detail != "" {
		b.WriteString("; " + e.Detail)
	}
	if e.Cause != nil {
		b.WriteString("; cause: " + e.Cause.Error())
	}
	return b.String()
}

// Unwrap gives the code and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Code}
	}
	return []error{e.Code, e.Cause}
}

func (e *Error) addDetail(s string) {
	switch {
	case s == "":
	case e.Detail == "":
		e.Detail = s
	default:
		e.Detail += "; " + s
	}
}

// newError describes a code. It calls nothing but cuGetErrorName and
// cuGetErrorString.
func (d *Driver) newError(op string, c api.Code, detail string) *Error {
	e := &Error{Op: op, Code: Code(c)}
	if d != nil && c != api.CodeSymbolMissing {
		e.name, e.text = d.seam.GetErrorName(c), d.seam.GetErrorString(c)
	}
	e.addDetail(detail)
	// A library without cuInit is another one, such as the runtime's libcudart.
	if (e.Code == ErrStubLibrary || e.Code == ErrSymbolMissing && op == "cuInit") && d != nil && d.Path() != "" {
		e.addDetail(d.Path() + " is not a driver")
	}
	e.addDetail(advice(e.Code))
	return e
}

// check turns a result code into an error.
func (d *Driver) check(op string, c api.Code) error {
	if c == api.Success {
		return nil
	}
	return d.newError(op, c, "")
}

func (d *Driver) wrongContext(op, detail string) error {
	return &Error{Op: op, Code: ErrInvalidHandle, Detail: detail, Cause: ErrWrongContext}
}

func closedError(op, what string) error {
	return &Error{Op: op, Code: ErrInvalidHandle, Detail: "the " + what + " is closed", Cause: ErrClosed}
}

// check turns a result code into an error; a sticky code is kept as the cause
// of the context's loss if it is the first.
func (st *contextState) check(op string, c api.Code) error {
	if c == api.Success {
		return nil
	}
	return st.checkDetail(op, c, "")
}

func (st *contextState) checkDetail(op string, c api.Code, detail string) error {
	if c == api.Success {
		return nil
	}
	e := st.d.newError(op, c, detail)
	if c.Sticky() && !st.lost.CompareAndSwap(nil, e) {
		// The same loss, seen again.
		e.Detail, e.Cause = detail, st.lost.Load()
	}
	return e
}

// lostError is what a call on a lost context answers.
func (st *contextState) lostError(op string) error {
	first := st.lost.Load()
	return &Error{Op: op, Code: first.Code, name: first.name, text: first.text,
		Detail: "not called: the context was lost before", Cause: first}
}

// advice says what to do about codes whose own text misleads.
func advice(c Code) string {
	switch c {
	case ErrStubLibrary:
		return "what was loaded is the toolkit's stub for linking: take its directory out of LD_LIBRARY_PATH, " +
			"and make the driver's own libcuda visible (in a container: run it with the NVIDIA runtime)"
	case ErrNoDevice:
		return "the driver library is there but shows no GPU: look at nvidia-smi, CUDA_VISIBLE_DEVICES, the GPUs passed to the container, and /dev/nvidia*"
	case ErrDeviceUnavailable:
		return "another process holds the device in exclusive mode, or it is prohibited: see the compute mode in nvidia-smi -q"
	case ErrNoBinaryForGPU:
		return "the image was built for another architecture"
	case ErrUnsupportedPTXVersion:
		return "the PTX is of a newer version than this driver takes; lowering the target architecture does not help: load a CUBIN, use older PTX, or update the driver"
	case ErrJITCompilerNotFound:
		return "libnvidia-ptxjitcompiler is missing beside libcuda, as in containers that were given only part of the driver; a CUBIN needs no JIT"
	case ErrLaunchTimeout:
		return "a display watchdog ended the kernel because the GPU also drives a screen: the context is lost; keep kernels short there, or use another GPU"
	case ErrSystemDriverMismatch:
		return "the kernel module and the driver library are of different versions: reload the module or reboot after the update, and compare /proc/driver/nvidia/version"
	case ErrCompatNotSupported:
		return "a libcuda of the forward-compatibility package is loaded, which GeForce cards do not take: take its directory (cuda-*/compat) out of LD_LIBRARY_PATH"
	case ErrMPSConnectionFailed:
		return "the process is set to use MPS but its daemon does not answer: start nvidia-cuda-mps-control, or check CUDA_MPS_PIPE_DIRECTORY"
	case ErrUnknown:
		return "often the nvidia-uvm module or its device node is missing or changed: see /dev/nvidia-uvm, dmesg and nvidia-smi"
	}
	if c.Sticky() {
		return "the context is lost: every later call on it fails, and only a new process is sure to help"
	}
	return ""
}
