// SPDX-License-Identifier: Apache-2.0

package cuda_test

import "syscall"

// threadID names the OS thread, for fakes that keep a context a thread.
func threadID() int { return syscall.Gettid() }

const threads = true
