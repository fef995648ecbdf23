// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
)

// blockElems is the elements that a fold keeps in its accumulator: enough to
// make the calls between its loops cheap, few enough to stay in the L1 cache.
const blockElems = 512

type number interface {
	~float64 | ~float32 | ~int64 | ~uint64
}

// Reduce is the arithmetic of the fold kernels on plain byte slices, the
// reference that results are compared with:
//
//	acc = wide(ins[0]); acc = op(acc, wide(ins[k])) for k = 1, 2, ...
//	if op is Avg and divisor != 0: acc = acc / divisor
//	dst = round(acc)
//
// Elements are little-endian. len(dst) counts the elements: t.Size() bytes
// each, or t.Wide().Size() if dstWide. An input whose bit in inWide is set
// holds elements of t.Wide(), and every input must be as long as dst has
// elements. It may be dst itself if the two hold elements of one type.
//
// Multiplications, additions and divisions are each rounded on their own: no
// two are contracted, on any architecture.
func Reduce(t dtype.Type, op dtype.Op, dst []byte, dstWide bool, ins [][]byte, inWide uint32, divisor uint64) {
	count := len(dst) / size(t, dstWide)
	if len(dst)%size(t, dstWide) != 0 || len(ins) == 0 {
		panic(fmt.Sprintf("kernel: %d bytes of %v (wide: %t) from %d inputs", len(dst), t, dstWide, len(ins)))
	}
	for k, in := range ins {
		if len(in) != count*size(t, inWide>>k&1 != 0) {
			panic(fmt.Sprintf("kernel: input %d has %d bytes for %d elements of %v (wide: %t)", k, len(in), count, t, inWide>>k&1 != 0))
		}
	}
	switch t.Wide() {
	case dtype.Float64:
		reduce(t, op, dst, dstWide, ins, inWide, count, float64(divisor), canonical64)
	case dtype.Float32:
		reduce(t, op, dst, dstWide, ins, inWide, count, float32(divisor), canonical32)
	case dtype.Int64:
		reduce(t, op, dst, dstWide, ins, inWide, count, int64(divisor), nil)
	case dtype.Uint64:
		reduce(t, op, dst, dstWide, ins, inWide, count, divisor, nil)
	}
}

// size is the bytes of an element of t, or of its wide type.
func size(t dtype.Type, wide bool) int {
	if wide {
		t = t.Wide()
	}
	return t.Size()
}

func reduce[W number](t dtype.Type, op dtype.Op, dst []byte, dstWide bool, ins [][]byte, inWide uint32, count int, divisor W, canonical func([]W)) {
	var accs, nexts [blockElems]W
	dstSize := size(t, dstWide)
	for at := 0; at < count; at += blockElems {
		n := min(blockElems, count-at)
		acc := accs[:n]
		for k, in := range ins {
			wide := inWide>>k&1 != 0
			s := size(t, wide)
			part := in[at*s : (at+n)*s]
			if k == 0 {
				load(acc, part, t, wide)
				continue
			}
			next := nexts[:n]
			load(next, part, t, wide)
			combine(op, acc, next)
		}
		if op == dtype.Avg && divisor != 0 {
			for i := range acc {
				acc[i] /= divisor
			}
		}
		if canonical != nil && (op == dtype.Min || op == dtype.Max) {
			canonical(acc)
		}
		store(dst[at*dstSize:(at+n)*dstSize], acc, t, dstWide)
	}
}

// combine is acc = op(acc, next). Go's min and max are the ones wanted: a NaN
// among the operands gives a NaN, and -0 is below +0.
func combine[W number](op dtype.Op, acc, next []W) {
	next = next[:len(acc)]
	switch op {
	case dtype.Sum, dtype.Avg:
		for i, x := range next {
			acc[i] += x
		}
	case dtype.Prod:
		for i, x := range next {
			acc[i] *= x
		}
	case dtype.Min:
		for i, x := range next {
			acc[i] = min(acc[i], x)
		}
	case dtype.Max:
		for i, x := range next {
			acc[i] = max(acc[i], x)
		}
	}
}

func canonical64(a []float64) {
	for i, x := range a {
		if x != x {
			a[i] = math.Float64frombits(dtype.NaNFloat64)
		}
	}
}

func canonical32(a []float32) {
	for i, x := range a {
		if x != x {
			a[i] = math.Float32frombits(dtype.NaNFloat32)
		}
	}
}

// load widens the elements in src. W is t.Wide().
func load[W number](dst []W, src []byte, t dtype.Type, wide bool) {
	if wide {
		t = t.Wide()
	}
	le := binary.LittleEndian
	switch t {
	case dtype.Float64:
		for i := range dst {
			dst[i] = W(math.Float64frombits(le.Uint64(src[8*i:])))
		}
	case dtype.Float32:
		for i := range dst {
			dst[i] = W(math.Float32frombits(le.Uint32(src[4*i:])))
		}
	case dtype.Float16:
		for i := range dst {
			dst[i] = W(dtype.Float16ToFloat32(le.Uint16(src[2*i:])))
		}
	case dtype.BFloat16:
		for i := range dst {
			dst[i] = W(dtype.BFloat16ToFloat32(le.Uint16(src[2*i:])))
		}
	case dtype.Int8:
		for i, x := range src[:len(dst)] {
			dst[i] = W(int8(x))
		}
	case dtype.Uint8:
		for i, x := range src[:len(dst)] {
			dst[i] = W(x)
		}
	case dtype.Int32:
		for i := range dst {
			dst[i] = W(int32(le.Uint32(src[4*i:])))
		}
	case dtype.Uint32:
		for i := range dst {
			dst[i] = W(le.Uint32(src[4*i:]))
		}
	case dtype.Int64:
		for i := range dst {
			dst[i] = W(int64(le.Uint64(src[8*i:])))
		}
	case dtype.Uint64:
		for i := range dst {
			dst[i] = W(le.Uint64(src[8*i:]))
		}
	}
}

// store rounds or truncates src into elements. W is t.Wide().
func store[W number](dst []byte, src []W, t dtype.Type, wide bool) {
	if wide {
		t = t.Wide()
	}
	le := binary.LittleEndian
	switch t {
	case dtype.Float64:
		for i, x := range src {
			le.PutUint64(dst[8*i:], math.Float64bits(float64(x)))
		}
	case dtype.Float32:
		for i, x := range src {
			le.PutUint32(dst[4*i:], math.Float32bits(float32(x)))
		}
	case dtype.Float16:
		for i, x := range src {
			le.PutUint16(dst[2*i:], dtype.Float16FromFloat32(float32(x)))
		}
	case dtype.BFloat16:
		for i, x := range src {
			le.PutUint16(dst[2*i:], dtype.BFloat16FromFloat32(float32(x)))
		}
	case dtype.Int8, dtype.Uint8:
		for i, x := range src {
			dst[i] = byte(int64(x))
		}
	case dtype.Int32, dtype.Uint32:
		for i, x := range src {
			le.PutUint32(dst[4*i:], uint32(int64(x)))
		}
	case dtype.Int64, dtype.Uint64:
		for i, x := range src {
			le.PutUint64(dst[8*i:], uint64(x))
		}
	}
}
