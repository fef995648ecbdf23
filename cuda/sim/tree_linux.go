// SPDX-License-Identifier: Apache-2.0

package sim

import "syscall"

// deviceNumber is what a device node's information says of its numbers, as
// Linux encodes them.
func deviceNumber(major, minor uint32) any {
	var st syscall.Stat_t
	set(&st.Rdev, uint64(minor&0xff|(major&0xfff)<<8|(minor&^0xff)<<12))
	return &st
}

// set is for a field whose width depends on the processor.
func set[T uint32 | uint64](p *T, v uint64) { *p = T(v) }
