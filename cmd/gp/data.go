// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/geforce-p2p/geforce-p2p/gp"
)

// The selftest's data and its reference, written without the library's own
// arithmetic: what it checks must not check itself.
//
// A sum of floats depends on the order of the additions unless every partial
// sum is exact. So the data of a float reduction are small whole numbers: any
// order gives the same bits, and the check needs neither a tolerance nor the
// algorithm's order.

// splitmix is the generator SplitMix64 (Steele, Lea, Flood 2014).
type splitmix uint64

func (s *splitmix) next() uint64 {
	*s += 0x9e3779b97f4a7c15
	z := uint64(*s)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// randomBytes fills b with any bits, also those of NaNs and infinities.
func randomBytes(b []byte, r *splitmix) {
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, r.next())
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], r.next())
		copy(b, last[:])
	}
}

// limits of the whole numbers in float data: sums of them over gp.MaxRanks
// ranks are exact in float32, and each is exact in its own type.
const (
	limitFloat32  = 100_000
	limitBFloat16 = 256
)

// randomElems fills b with elements of type t that suit an exact reduction.
func randomElems(b []byte, t gp.Type, r *splitmix) {
	switch t {
	case gp.TypeFloat32:
		for i := 0; i+4 <= len(b); i += 4 {
			binary.LittleEndian.PutUint32(b[i:], math.Float32bits(float32(whole(r, limitFloat32))))
		}
	case gp.TypeBFloat16:
		for i := 0; i+2 <= len(b); i += 2 {
			binary.LittleEndian.PutUint16(b[i:], uint16(math.Float32bits(float32(whole(r, limitBFloat16)))>>16))
		}
	default:
		randomBytes(b, r)
	}
}

// whole draws from -limit to limit.
func whole(r *splitmix, limit int64) int64 { return int64(r.next()%uint64(2*limit+1)) - limit }

// reduced is the reference: the reduction of the ranks' data, element by element.
func reduced(ranks [][]byte, t gp.Type, op gp.Op) ([]byte, error) {
	out := make([]byte, len(ranks[0]))
	n := len(ranks)
	switch {
	case t == gp.TypeFloat32 && (op == gp.Sum || op == gp.Avg):
		for i := 0; i+4 <= len(out); i += 4 {
			var sum int64
			for _, b := range ranks {
				sum += int64(math.Float32frombits(binary.LittleEndian.Uint32(b[i:])))
			}
			v := float32(sum)
			if op == gp.Avg {
				v /= float32(n)
			}
			binary.LittleEndian.PutUint32(out[i:], math.Float32bits(v))
		}
	case t == gp.TypeBFloat16 && op == gp.Sum:
		for i := 0; i+2 <= len(out); i += 2 {
			var sum int64
			for _, b := range ranks {
				sum += int64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[i:])) << 16))
			}
			binary.LittleEndian.PutUint16(out[i:], bfloat16Bits(float32(sum)))
		}
	case t == gp.TypeInt32 && op == gp.Max:
		for i := 0; i+4 <= len(out); i += 4 {
			m := int32(math.MinInt32)
			for _, b := range ranks {
				m = max(m, int32(binary.LittleEndian.Uint32(b[i:])))
			}
			binary.LittleEndian.PutUint32(out[i:], uint32(m))
		}
	default:
		return nil, fmt.Errorf("no reference for %v of %v", op, t)
	}
	return out, nil
}

// bfloat16Bits rounds a finite float32 to the nearest bfloat16, ties to even.
func bfloat16Bits(f float32) uint16 {
	u := math.Float32bits(f)
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

// complement writes the complement of src over dst: a destination that differs
// from the right answer in every byte.
func complement(dst, src []byte) {
	for len(src) >= 8 {
		binary.LittleEndian.PutUint64(dst, ^binary.LittleEndian.Uint64(src))
		dst, src = dst[8:], src[8:]
	}
	for i, b := range src {
		dst[i] = ^b
	}
}

// firstDifference is the offset of the first byte in which a and b differ, and
// how many differ.
func firstDifference(a, b []byte) (first, count int) {
	first = -1
	for i := range a {
		if a[i] != b[i] {
			if first < 0 {
				first = i
			}
			count++
		}
	}
	return first, count
}
