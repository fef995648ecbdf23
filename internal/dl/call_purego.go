// SPDX-License-Identifier: Apache-2.0

//go:build (linux || darwin || windows) && (amd64 || arm64) && !android && !ios

package dl

import "github.com/ebitengine/purego"

// call drops purego's second and third result: no library that is called here
// answers through errno or GetLastError.
func call(fn Proc, args []uintptr) uintptr {
	r, _, _ := purego.SyscallN(uintptr(fn), args...)
	return r
}
