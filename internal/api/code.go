// SPDX-License-Identifier: Apache-2.0

package api

// Code is a CUresult.
type Code int32

// The codes that the library names, with cuda.h's values. CodeSymbolMissing is
// our own: no CUresult is negative.
const (
	Success                  Code = 0
	InvalidValue             Code = 1
	OutOfMemory              Code = 2
	NotInitialized           Code = 3
	Deinitialized            Code = 4
	StubLibrary              Code = 34
	DeviceUnavailable        Code = 46
	NoDevice                 Code = 100
	InvalidDevice            Code = 101
	InvalidImage             Code = 200
	InvalidContext           Code = 201
	NoBinaryForGPU           Code = 209
	PeerAccessUnsupported    Code = 217
	InvalidPTX               Code = 218
	JITCompilerNotFound      Code = 221
	UnsupportedPTXVersion    Code = 222
	FileNotFound             Code = 301
	OperatingSystem          Code = 304
	InvalidHandle            Code = 400
	IllegalState             Code = 401
	NotFound                 Code = 500
	NotReady                 Code = 600
	IllegalAddress           Code = 700
	LaunchOutOfResources     Code = 701
	LaunchTimeout            Code = 702
	PeerAccessAlreadyEnabled Code = 704
	PeerAccessNotEnabled     Code = 705
	PrimaryContextActive     Code = 708
	ContextIsDestroyed       Code = 709
	Assert                   Code = 710
	TooManyPeers             Code = 711
	HostMemoryAlreadyReg     Code = 712
	HostMemoryNotRegistered  Code = 713
	HardwareStackError       Code = 714
	IllegalInstruction       Code = 715
	MisalignedAddress        Code = 716
	InvalidAddressSpace      Code = 717
	InvalidPC                Code = 718
	LaunchFailed             Code = 719
	NotPermitted             Code = 800
	NotSupported             Code = 801
	SystemDriverMismatch     Code = 803
	CompatNotSupported       Code = 804
	MPSConnectionFailed      Code = 805
	CaptureUnsupported       Code = 900
	CaptureInvalid           Code = 901
	CaptureMerge             Code = 902
	CaptureUnmatched         Code = 903
	CaptureUnjoined          Code = 904
	CaptureIsolation         Code = 905
	CaptureImplicit          Code = 906
	CapturedEvent            Code = 907
	CaptureWrongThread       Code = 908
	Unknown                  Code = 999

	// CodeSymbolMissing says that the loaded driver library does not export
	// the function that the call needs.
	CodeSymbolMissing Code = -1
)

// Sticky tells whether a code means that the context is lost: every later call
// on it answers the same, and only a new process (or a new primary context)
// gets out of it.
func (c Code) Sticky() bool {
	switch c {
	case IllegalAddress, LaunchTimeout, Assert, HardwareStackError, IllegalInstruction,
		MisalignedAddress, InvalidAddressSpace, InvalidPC, LaunchFailed, ContextIsDestroyed:
		return true
	}
	return false
}
