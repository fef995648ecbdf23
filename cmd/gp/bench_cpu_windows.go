// SPDX-License-Identifier: Apache-2.0

package main

import (
	"syscall"
	"time"
)

// processorTime is what the process has used of the processors so far, all
// threads, user and kernel (GetProcessTimes: units of 100 ns).
func processorTime() (time.Duration, bool) {
	h, err := syscall.GetCurrentProcess()
	if err != nil {
		return 0, false
	}
	var made, ended, kernel, user syscall.Filetime
	if err := syscall.GetProcessTimes(h, &made, &ended, &kernel, &user); err != nil {
		return 0, false
	}
	of := func(f syscall.Filetime) int64 { return int64(f.HighDateTime)<<32 | int64(f.LowDateTime) }
	return time.Duration(of(kernel)+of(user)) * 100, true
}
