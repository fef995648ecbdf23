// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || freebsd

package main

import (
	"syscall"
	"time"
)

// processorTime is what the process has used of the processors so far, all
// threads, user and system.
func processorTime() (time.Duration, bool) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}
