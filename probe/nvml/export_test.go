// SPDX-License-Identifier: Apache-2.0

package nvml

import "unsafe"

// Candidates is candidates.
var Candidates = candidates

// Layouts are the structs of this package in the order of the stand-in's
// fake_layout: the offset of each field, then the size.
var Layouts = [][]uintptr{
	{
		unsafe.Offsetof(pciInfo{}.busIDLegacy), unsafe.Offsetof(pciInfo{}.domain), unsafe.Offsetof(pciInfo{}.bus),
		unsafe.Offsetof(pciInfo{}.device), unsafe.Offsetof(pciInfo{}.pciDeviceID), unsafe.Offsetof(pciInfo{}.pciSubsystem),
		unsafe.Offsetof(pciInfo{}.busID), unsafe.Sizeof(pciInfo{}),
	},
	{unsafe.Offsetof(memory{}.total), unsafe.Offsetof(memory{}.free), unsafe.Offsetof(memory{}.used), unsafe.Sizeof(memory{})},
	{unsafe.Offsetof(memory{}.total), unsafe.Offsetof(memory{}.free), unsafe.Offsetof(memory{}.used), unsafe.Sizeof(memory{})}, // BAR1
	{
		unsafe.Offsetof(settings{}.version), unsafe.Offsetof(settings{}.environment), unsafe.Offsetof(settings{}.feature),
		unsafe.Offsetof(settings{}.devTools), unsafe.Offsetof(settings{}.multiGPU), unsafe.Sizeof(settings{}),
	},
	{unsafe.Offsetof(state{}.environment), unsafe.Offsetof(state{}.feature), unsafe.Offsetof(state{}.devTools), unsafe.Sizeof(state{})},
}
