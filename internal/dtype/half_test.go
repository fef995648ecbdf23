// SPDX-License-Identifier: Apache-2.0

package dtype

import (
	"math"
	"math/rand/v2"
	"sort"
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
	values   []float64 // by bits, from 0 to infinity
}

var formats = []format{
	{"float16", 10, 15, Float16ToFloat32, Float16FromFloat32, 0x7c00, nil},
	{"bfloat16", 7, 127, BFloat16ToFloat32, BFloat16FromFloat32, 0x7f80, nil},
}

// value is the number that h stands for, from the definition. Infinity counts
// as the next power of two. A float64 holds all of them.
func (f format) value(h uint16) float64 {
	exp, man := int(h&0x7fff)>>f.manBits, int(h)&(1<<f.manBits-1)
	if exp == 0 {
		exp = 1
	} else {
		man |= 1 << f.manBits
	}
	v := math.Ldexp(float64(man), exp-f.bias-int(f.manBits))
	if h&0x8000 != 0 {
		return -v
	}
	return v
}

// nearest rounds x, which is finite, by searching all values of its sign and
// comparing distances. The distances are exact: x and the values beside it have
// 24 bits at most, at exponents close to each other.
func (f format) nearest(x float32) uint16 {
	sign := uint16(math.Float32bits(x) >> 16 & 0x8000)
	abs := math.Abs(float64(x))
	lo := uint16(sort.Search(int(f.infinity), func(h int) bool { return f.values[h] > abs }) - 1)
	below, above := abs-f.values[lo], f.values[lo+1]-abs
	if below < above || below == above && lo&1 == 0 {
		return sign | lo
	}
	return sign | (lo + 1)
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
					if float64(x) != f.value(h) || math.Signbit(float64(x)) != (h>>15 != 0) {
						t.Fatalf("%#04x: got %v, want %v", h, x, f.value(h))
					}
				}
				if got := f.fromF32(x); got != h {
					t.Fatalf("%#04x: got %#04x back", h, got)
				}
			}
		})
	}
}

func TestHalfRounding(t *testing.T) {
	for _, f := range formats {
		for h := range f.infinity + 1 {
			f.values = append(f.values, f.value(h))
		}
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
			for i := range int(f.infinity) {
				h := uint16(i)
				x := f.toF32(h)
				mid := float32((f.value(h) + f.value(h+1)) / 2)
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
