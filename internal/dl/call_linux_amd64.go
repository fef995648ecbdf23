// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64 && !go1.27 && !android

package dl

import "unsafe"

// On Linux on x86-64, where nearly all GPU hosts are, a call goes from Go to C
// by the runtime's own way and a trampoline that loads the eleven arguments and
// nothing else. purego.SyscallN takes 50 to 100 ns more: it fills and copies
// three blocks of 32 integers and 32 floats. A small copy is a dozen calls.
//
// The runtime keeps cgocall for packages that reach it by linkname and says so
// at its declaration; purego, which sets up the threads that it needs, does so
// too. A Go version on which this has not been tried gets purego's way, by the
// build tag: a linker that refuses would break every program that imports this.

//go:linkname cgocall runtime.cgocall
func cgocall(fn uintptr, arg unsafe.Pointer) int32

// trampoline is the address of callC, in call_linux_amd64.s.
var trampoline uintptr

func (a *Args) call(fn Proc, _ int) uintptr {
	a.fn = uintptr(fn)
	cgocall(trampoline, unsafe.Pointer(a))
	return a.r
}
