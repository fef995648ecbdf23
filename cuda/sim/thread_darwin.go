// SPDX-License-Identifier: Apache-2.0

package sim

import "syscall"

// threadID names the calling OS thread (thread_selfid). The caller has locked
// its goroutine to it.
func threadID() uint64 {
	id, _, _ := syscall.RawSyscall(syscall.SYS_THREAD_SELFID, 0, 0, 0)
	return uint64(id)
}
