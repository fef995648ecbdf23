// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"syscall"
	"testing"
)

func needDeviceNumbers(testing.TB) {}

// stat is what the system tells of a device node.
func stat(major, minor uint64) any {
	return &syscall.Stat_t{Rdev: minor&0xff | major&0xfff<<8 | minor&^0xff<<12 | major&^0xfff<<32}
}
