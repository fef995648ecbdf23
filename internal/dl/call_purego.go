// SPDX-License-Identifier: Apache-2.0

//go:build (linux || darwin || windows) && (amd64 || arm64) && !android && !ios && !(linux && amd64 && !go1.27)

package dl

import "github.com/ebitengine/purego"

// call drops purego's second and third result: no library that is called here
// answers through errno or GetLastError.
func (a *Args) call(fn Proc, n int) uintptr {
	r, _, _ := purego.SyscallN(uintptr(fn), a.a[:n]...)
	return r
}
