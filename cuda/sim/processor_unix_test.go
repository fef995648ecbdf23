// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin

package sim_test

import (
	"syscall"
	"time"
)

// processorTime is what the process has used: it does not grow while other
// processes have the processors.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
