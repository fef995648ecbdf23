// SPDX-License-Identifier: Apache-2.0

package dtype

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// format describes a 16-bit float for the slow reference.
type format struct {
	name     string
	manBits  uint
	bias     int
	toF32    func(uint16) float32
	fromF32  func(float32) uint16
	infinity uint16
}

var formats = []format{
	{"float16", 10, 15, Float16ToFloat32, Float16FromFloat32, 0x7c00},
	{"bfloat16", 7, 127, BFloat16ToFloat32, BFloat16FromFloat32, 0x7f80},
}

// value is the number that h stands for, from the definition.
func (f format) value(h uint16) *big.Float {
	exp := int(h&0x7fff) >> f.manBits
	man := int64(h) & (1<<f.manBits - 1)
	if exp == 0 {
		exp = 1
	} else {
		man |= 1 << f.manBits
	}
	v := new(big.Float).SetMantExp(new(big.Float).SetInt64(man), exp-f.bias-int(f.manBits))
	if h&0x8000 != 0 {
		v.Neg(v)
	}
	return v
}

// nearest rounds x, which is finite, by searching all finite values of its
// sign and comparing exact distances.
func (f format) nearest(x float32) uint16 {
	sign := uint16(math.Float32bits(x) >> 16 & 0x8000)
	abs := new(big.Float).SetFloat64(math.Abs(float64(x)))
	lo, hi := uint16(0), f.infinity // value(lo) <= abs < value(hi), infinity taken as the next power of two
	for hi-lo > 1 {
		mid := lo + (hi-lo)/2
		if f.value(mid).Cmp(abs) <= 0 {
			lo = mid
		} else {
			hi = mid
		}
	}
	below := new(big.Float).SetPrec(400).Sub(abs, f.value(lo))
	above := new(big.Float).SetPrec(400).Sub(f.value(lo+1), abs)
	switch c := below.Cmp(above); {
	case c < 0 || c == 0 && lo&1 == 0:
		return sign | lo
	default:
		return sign | (lo + 1)
	}
}

func TestHalfRoundTrip(t *testing.T) {
	for _, f := range formats {
		t.Run(f.name, func(t *testing.T) {
			for i := range 1 << 16 {
				h := uint16(i)
				x := f.toF32(h)
				if h&0x7fff > f.infinity {
					require.True(t, x != x, "%#04x", h)
					require.Equal(t, uint16(0x7fff), f.fromF32(x), "%#04x", h)
					continue
				}
				if h&0x7fff == f.infinity {
					require.True(t, math.IsInf(float64(x), 1-2*int(h>>15)), "%#04x", h)
				} else {
					want, _ := f.value(h).Float64()
					require.Equal(t, want, float64(x), "%#04x", h)
					require.Equal(t, h>>15 != 0, math.Signbit(float64(x)), "%#04x", h)
				}
				require.Equal(t, h, f.fromF32(x), "%#04x", h)
			}
		})
	}
}

func TestHalfRounding(t *testing.T) {
	for _, f := range formats {
		t.Run(f.name, func(t *testing.T) {
			check := func(x float32) {
				if x != x || math.IsInf(float64(x), 0) {
					return
				}
				if got, want := f.fromF32(x), f.nearest(x); got != want {
					t.Fatalf("%v (%#08x): got %#04x, want %#04x", x, math.Float32bits(x), got, want)
				}
			}
			// Around every value and around every midpoint between neighbours:
			// the tie itself and the float32 on either side of it.
			step := 1
			if testing.Short() {
				step = 7
			}
			for i := 0; i < int(f.infinity); i += step {
				h := uint16(i)
				x := f.toF32(h)
				mid := float32((float64(x) + valueAbove(f, h)) / 2)
				for _, y := range []float32{x, mid} {
					for _, z := range []float32{y, math.Nextafter32(y, 0), math.Nextafter32(y, float32(math.Inf(1)))} {
						check(z)
						check(-z)
					}
				}
			}
			r := rand.New(rand.NewPCG(1, 2))
			for range 20000 {
				check(math.Float32frombits(r.Uint32()))
			}
			check(0)
			check(float32(math.Copysign(0, -1)))
			check(math.SmallestNonzeroFloat32)
			check(math.MaxFloat32)
		})
	}
	require.Equal(t, uint16(0x7bff), Float16FromFloat32(65519.996))
	require.Equal(t, uint16(0x7c00), Float16FromFloat32(65520))
	require.Equal(t, uint16(0x7c00), Float16FromFloat32(float32(math.Inf(1))))
	require.Equal(t, uint16(0xfc00), Float16FromFloat32(float32(math.Inf(-1))))
	require.Equal(t, uint16(0x0001), Float16FromFloat32(1.0/(1<<24)))
	require.Equal(t, uint16(0x0000), Float16FromFloat32(1.0/(1<<25)))
	require.Equal(t, NaNFloat16, Float16FromFloat32(math.Float32frombits(0xff800001)))
	require.Equal(t, NaNBFloat16, BFloat16FromFloat32(math.Float32frombits(0xffffffff)))
}

// valueAbove is the next finite value's number, infinity taken as the next
// power of two.
func valueAbove(f format, h uint16) float64 {
	v, _ := f.value(h + 1).Float64()
	return v
}
