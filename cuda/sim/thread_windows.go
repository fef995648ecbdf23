// SPDX-License-Identifier: Apache-2.0

package sim

import "golang.org/x/sys/windows"

// threadID names the calling OS thread. The caller has locked its goroutine
// to it.
func threadID() uint64 { return uint64(windows.GetCurrentThreadId()) }
