// SPDX-License-Identifier: Apache-2.0

package libcuda

import (
	"bytes"
	"sync"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/dl"
)

// frame holds what one call needs in memory that the driver reads or writes:
// out-cells, names, structs. It lives on the heap, which does not move, and in
// a pool, so that a call allocates nothing. Addresses of it are taken in the
// argument list of a dl.Call and nowhere else.
type frame struct {
	a, b uint64  // handles, addresses, sizes
	i, j int32   // int, unsigned int and enum cells
	ms   float32 // cuEventElapsedTime
	uuid api.UUID
	name [256]byte
	copy memcpy2D
	jit  jitOptions
	args dl.Args
}

var frames = sync.Pool{New: func() any { return new(frame) }}

// getFrame returns a frame whose cells are zero; the rest is as it was left.
func getFrame() *frame {
	f := frames.Get().(*frame)
	f.a, f.b, f.i, f.j, f.ms = 0, 0, 0, 0, 0
	return f
}

func putFrame(f *frame) { frames.Put(f) }

// text is the C string in name.
func (f *frame) text() string {
	if n := bytes.IndexByte(f.name[:], 0); n >= 0 {
		return string(f.name[:n])
	}
	return string(f.name[:])
}

// cstring returns s with a NUL, in name if it fits. A string that holds a NUL
// itself is refused: C would see another name.
func (f *frame) cstring(s string) (p *byte, ok bool) {
	for i := range len(s) {
		if s[i] == 0 {
			return nil, false
		}
	}
	buf := f.name[:]
	if len(s) >= len(buf) {
		buf = make([]byte, len(s)+1)
	}
	buf[copy(buf, s)] = 0
	return &buf[0], true
}

// memcpy2D is CUDA_MEMCPY2D_v2 of cuda.h.
type memcpy2D struct {
	srcX, srcY uint64
	srcType    uint32
	srcHost    unsafe.Pointer
	srcDevice  api.Ptr
	srcArray   uint64
	srcPitch   uint64

	dstX, dstY uint64
	dstType    uint32
	dstHost    unsafe.Pointer
	dstDevice  api.Ptr
	dstArray   uint64
	dstPitch   uint64

	width, height uint64
}

// jitOptions is the pair of arrays that cuModuleLoadDataEx takes: the option
// numbers, and for each a word that is a pointer or a number.
type jitOptions struct {
	option [2]int32
	log    unsafe.Pointer
	size   uint64
}

// CUjit_option of cuda.h.
const (
	jitErrorLogBuffer     = 5
	jitErrorLogBufferSize = 6
)

// maxParams is how many bytes of kernel parameters every driver takes.
const maxParams = 4096

// launchFrame is the extra[] list of cuLaunchKernel and what it points to. The
// list is words of which two are pointers; the struct keeps them typed, so
// that the garbage collector never meets CUDA's small numbers as pointers.
type launchFrame struct {
	extra struct {
		bufferTag uint64
		buffer    *[maxParams / 8]uint64
		sizeTag   uint64
		size      *uint64
		end       uint64
	}
	size   uint64
	params [maxParams / 8]uint64 // words, for the alignment
	args   dl.Args
}

// CU_LAUNCH_PARAM_ of cuda.h.
const (
	launchParamEnd     = 0
	launchParamPointer = 1
	launchParamSize    = 2
)

var launchFrames = sync.Pool{New: func() any {
	f := new(launchFrame)
	f.extra.bufferTag, f.extra.buffer = launchParamPointer, &f.params
	f.extra.sizeTag, f.extra.size = launchParamSize, &f.size
	f.extra.end = launchParamEnd
	return f
}}
