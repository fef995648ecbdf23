// SPDX-License-Identifier: Apache-2.0

package libcuda

import "unsafe"

// Memcpy2DLayout gives the offsets of memcpy2D's fields and its size.
func Memcpy2DLayout() []int {
	var c memcpy2D
	at := []uintptr{
		unsafe.Offsetof(c.srcX), unsafe.Offsetof(c.srcY), unsafe.Offsetof(c.srcType), unsafe.Offsetof(c.srcHost),
		unsafe.Offsetof(c.srcDevice), unsafe.Offsetof(c.srcArray), unsafe.Offsetof(c.srcPitch),
		unsafe.Offsetof(c.dstX), unsafe.Offsetof(c.dstY), unsafe.Offsetof(c.dstType), unsafe.Offsetof(c.dstHost),
		unsafe.Offsetof(c.dstDevice), unsafe.Offsetof(c.dstArray), unsafe.Offsetof(c.dstPitch),
		unsafe.Offsetof(c.width), unsafe.Offsetof(c.height), unsafe.Sizeof(c),
	}
	layout := make([]int, len(at))
	for i := range at {
		layout[i] = int(at[i])
	}
	return layout
}

// Candidates are the names that Open tries on an operating system.
var Candidates = candidates
