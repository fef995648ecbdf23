// SPDX-License-Identifier: Apache-2.0

package dtype

import "math"

// The bits that a NaN comes out as wherever the project says which: min and
// max of every float type, and every rounding of a NaN to a 16-bit float. They
// are what the GPU's min.NaN, max.NaN and cvt.rn instructions give; for
// float64, which has no such instruction, the quiet NaN that a compare and
// select writes.
const (
	NaNFloat64  uint64 = 0x7ff8000000000000
	NaNFloat32  uint32 = 0x7fffffff
	NaNFloat16  uint16 = 0x7fff
	NaNBFloat16 uint16 = 0x7fff
)

// Float16ToFloat32 widens the bits of an IEEE 754 binary16 number. It is exact;
// a NaN keeps its sign and payload.
func Float16ToFloat32(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	if h&0x7c00 == 0x7c00 {
		return math.Float32frombits(sign | 0x7f800000 | uint32(h&0x3ff)<<13)
	}
	// The exponent's bias differs by 112. Scaling is exact, and makes of a
	// subnormal, which looks like one of float32, the number that it is.
	f := math.Float32frombits(uint32(h&0x7fff)<<13) * 0x1p112
	return math.Float32frombits(math.Float32bits(f) | sign)
}

// Float16FromFloat32 rounds to the nearest binary16 number, ties to even, as
// cvt.rn.f16.f32 does: what is 65520 or more becomes infinite, subnormals are
// kept, and every NaN becomes NaNFloat16.
func Float16FromFloat32(f float32) uint16 {
	b := math.Float32bits(f)
	sign, abs := uint16(b>>16&0x8000), b&0x7fffffff
	switch {
	case abs > 0x7f800000:
		return NaNFloat16
	case abs >= 0x47800000: // 65536 and up, infinity
		return sign | 0x7c00
	case abs >= 0x38800000: // 2^-14 and up: normal
		r := abs - 112<<23
		return sign | uint16((r+0xfff+r>>13&1)>>13)
	case abs <= 0x33000000: // up to 2^-25, which ties to zero
		return sign
	}
	// Subnormal: the significand in units of 2^-24.
	man, shift := abs&0x7fffff|0x800000, 126-abs>>23
	r, rest, half := man>>shift, man&(1<<shift-1), uint32(1)<<(shift-1)
	if rest > half || rest == half && r&1 != 0 {
		r++
	}
	return sign | uint16(r)
}

// BFloat16ToFloat32 widens the bits of a bfloat16 number. It is exact.
func BFloat16ToFloat32(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// BFloat16FromFloat32 rounds to the nearest bfloat16 number, ties to even, as
// cvt.rn.bf16.f32 does; every NaN becomes NaNBFloat16.
func BFloat16FromFloat32(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return NaNBFloat16
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
