// SPDX-License-Identifier: Apache-2.0

package libcuda

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// shortSleep is where a timer of Go's becomes exact enough: the runtime's poller
// rounds waits up to milliseconds.
const shortSleep = 2 * time.Millisecond

// sleep is exact to some microseconds: it sleeps in the kernel, on a thread
// whose timers may not be put off by the usual 50 us.
func sleep(d time.Duration) {
	if d <= 0 {
		return
	}
	if d >= shortSleep {
		time.Sleep(d)
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err == nil && unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) == nil {
		defer unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0)
	}
	t := unix.NsecToTimespec(int64(d))
	for unix.Nanosleep(&t, &t) == unix.EINTR {
	}
}
