// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
)

// inRankOrder are the algorithms that fold in the order of the ranks.
var inRankOrder = []gp.Algorithm{gp.AlgorithmDirect, gp.AlgorithmOneShot, gp.AlgorithmTwoShot}

// sums are all that an all_reduce can be done by without P2P.
var sums = append([]gp.Algorithm{gp.AlgorithmRing, gp.AlgorithmRingZeroCopy}, inRankOrder...)

// A folder is a group with room for an all_reduce of many elements of any type.
type folder struct {
	t        testing.TB
	g        *gp.Group
	dst, src []gp.Buffer // of uint8
}

func newFolder(t testing.TB, ranks, bytes int, opts ...sim.Option) *folder {
	o := options(t, machineOf(t, "8x4090", opts...), ranks)
	o.PinnedBytes = roomy
	f := &folder{t: t, g: open(t, o)}
	for _, r := range f.g.Ranks() {
		f.dst, f.src = append(f.dst, alloc(t, r, gp.TypeUint8, bytes)), append(f.src, alloc(t, r, gp.TypeUint8, bytes))
	}
	return f
}

// give sets the inputs, by rank.
func (f *folder) give(ins [][]byte) {
	for r, in := range ins {
		require.NoError(f.t, f.src[r].Sub(0, len(in)).Write(background, in))
	}
}

// fold is the bits that all ranks get of so many bytes of the inputs.
func (f *folder) fold(alg gp.Algorithm, typ gp.Type, op gp.Op, n int) []byte {
	f.t.Helper()
	var dst, src []gp.Buffer
	for r := range f.src {
		dst, src = append(dst, as(f.t, f.dst[r], typ, 0, n/typ.Size())), append(src, as(f.t, f.src[r], typ, 0, n/typ.Size()))
	}
	w, err := f.g.With(gp.CallOptions{Algorithm: alg}).AllReduceTo(dst, src, op)
	require.NoError(f.t, err)
	require.NoError(f.t, w.Wait(background))
	require.Equal(f.t, string(alg), w.Algorithm())
	var first []byte
	for r := range dst {
		got := make([]byte, n)
		require.NoError(f.t, dst[r].Read(background, got))
		if r == 0 {
			first = got
		} else {
			requireBytes(f.t, first, got, "%s %v of %v: rank %d beside rank 0", alg, op, typ, r)
		}
	}
	return first
}

// TestSameBits: the algorithms that fold in the order of the ranks give the same
// bits as each other, on every rank and in every run, whichever of their kernels
// it is.
func TestSameBits(t *testing.T) {
	gputest.Parallel(t)
	for _, ranks := range []int{2, 3, 5, 8} {
		const n = 41 * 8
		const large = 112 << 10 // more than goes in words that carry their flags
		var runs [2]*folder     // of machines that differ in what runs first
		for i := range runs {
			runs[i] = newFolder(t, ranks, large, sim.Seed(uint64(i+1)))
		}
		r := generator(t.Name(), ranks)
		for _, typ := range allTypes {
			for oi, op := range allOps {
				if fewer && r.IntN(5) != 0 {
					continue
				}
				bytes := n
				if typ == gp.TypeBFloat16 && oi == ranks%len(allOps) {
					bytes = large
				}
				var ins [][]byte
				for range ranks {
					ins = append(ins, randomElements(r, typ, bytes/typ.Size()))
				}
				var first []byte
				for _, f := range runs {
					f.give(ins)
					for _, alg := range inRankOrder {
						if bytes == large && alg == gp.AlgorithmOneShot {
							continue
						}
						got := f.fold(alg, typ, op, bytes)
						if first == nil {
							first = got
						}
						requireElements(t, typ, op, first, got, "%s %v of %v on %d ranks", alg, op, typ, ranks)
					}
				}
			}
		}
	}
}

// A half is one of the floats of 16 bits.
type half struct {
	typ      gp.Type
	mantissa int // bits behind the point
	least    int // exponent of the least normal number
	bits     func(f float32) uint16
	value    func(h uint16) float32
}

var halves = []half{
	{gp.TypeFloat16, 10, -14, dtype.Float16FromFloat32, dtype.Float16ToFloat32},
	{gp.TypeBFloat16, 7, -126, dtype.BFloat16FromFloat32, dtype.BFloat16ToFloat32},
}

// ulp is the distance of the numbers around x.
func (h half) ulp(x float64) float64 {
	_, e := math.Frexp(x)
	return math.Ldexp(1, max(e-1, h.least)-h.mantissa)
}

func (h half) encode(v []float32) (b []byte) {
	for _, x := range v {
		b = binary.LittleEndian.AppendUint16(b, h.bits(x))
	}
	return b
}

// TestSumsOfHalves holds sums of 16-bit floats to the exact ones: half an ulp for
// the rounding at the end, and what float32 loses on the way.
func TestSumsOfHalves(t *testing.T) {
	gputest.Parallel(t)
	const n = 400
	for _, ranks := range []int{2, 3, 4, 5, 8} {
		f := newFolder(t, ranks, 2*n)
		r := generator(t.Name(), ranks)
		for _, h := range halves {
			exact, size := make([]float64, n), make([]float64, n)
			var ins [][]byte
			for range ranks {
				v := make([]float32, n)
				for i := range v {
					// Of very different sizes, so that bits are lost, but all in the 53 of
					// a float64.
					x := h.value(h.bits(float32(math.Ldexp(r.Float64()*2-1, r.IntN(24)-12))))
					if i < n/4 {
						x = h.value(h.bits(1 + x/4096)) // nearly all the same
					}
					v[i] = x
					exact[i] += float64(x)
					size[i] += math.Abs(float64(x))
				}
				ins = append(ins, h.encode(v))
			}
			f.give(ins)
			for _, alg := range sums {
				got := f.fold(alg, h.typ, gp.Sum, 2*n)
				for i := range n {
					out := float64(h.value(binary.LittleEndian.Uint16(got[2*i:])))
					// Where the result rounds across a power of two, the finer side counts.
					limit := 0.5*h.ulp(math.Max(math.Abs(exact[i]), math.Abs(out))) + float64(ranks-1)*math.Ldexp(size[i], -24)
					require.LessOrEqual(t, math.Abs(out-exact[i]), limit, "%s of %v on %d ranks, element %d: %v for %v", alg, h.typ, ranks, i, out, exact[i])
				}
			}
		}
	}
}

// TestSumOfBFloat16ByEight: eight ranks' numbers a little above one lose nothing to
// their number, as they would if each hop rounded.
func TestSumOfBFloat16ByEight(t *testing.T) {
	const n = 128
	h := halves[1]
	f := newFolder(t, 8, 2*n)
	exact := make([]float64, n)
	var ins [][]byte
	for r := range 8 {
		v := make([]float32, n)
		for i := range v {
			v[i] = 1 + float32((r+i)%3)/128
			exact[i] += float64(v[i])
		}
		ins = append(ins, h.encode(v))
	}
	f.give(ins)
	for _, alg := range sums {
		got := f.fold(alg, h.typ, gp.Sum, 2*n)
		for i := range n {
			out := float64(h.value(binary.LittleEndian.Uint16(got[2*i:])))
			require.LessOrEqual(t, math.Abs(out-exact[i]), h.ulp(exact[i])/2, "%s, element %d", alg, i)
		}
	}
}

// TestAverageNearTheEnd: an average of numbers near the largest is none the worse
// for their sum being beyond it.
func TestAverageNearTheEnd(t *testing.T) {
	gputest.Parallel(t)
	const n = 64
	for _, ranks := range []int{1, 2, 3, 4, 5, 8} {
		f := newFolder(t, ranks, 2*n)
		in := halves[0].encode(repeated(n, 60000))
		var ins [][]byte
		for range ranks {
			ins = append(ins, in)
		}
		f.give(ins)
		for _, alg := range sums {
			if ranks == 1 && (alg == gp.AlgorithmOneShot || alg == gp.AlgorithmTwoShot) {
				continue
			}
			requireBytes(t, in, f.fold(alg, gp.TypeFloat16, gp.Avg, 2*n), "%s on %d ranks", alg, ranks)
		}
	}
}

func repeated(n int, x float32) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = x
	}
	return v
}

// extremes are bits of a float type: NaNs of either sign, quiet and not, with
// payloads, infinities, zeros, numbers that are not normal, and some that are.
func extremes(typ gp.Type) []uint64 {
	size := 8 * typ.Size()
	mantissa := map[gp.Type]int{gp.TypeFloat64: 52, gp.TypeFloat32: 23, gp.TypeFloat16: 10, gp.TypeBFloat16: 7}[typ]
	inf := uint64(1)<<(size-1) - uint64(1)<<mantissa
	quiet := uint64(1) << (mantissa - 1)
	var all []uint64
	for _, v := range []uint64{inf | quiet, inf | quiet | 5, inf | 1, inf, inf - 1, 0, 1, uint64(1)<<mantissa - 1, uint64(1) << mantissa, inf / 2 &^ (uint64(1)<<mantissa - 1)} {
		all = append(all, v, v|1<<(size-1))
	}
	return all
}

// least is the minimum, or the maximum, of bits: a NaN is less and more than
// anything, and comes out as the canonical one; -0 lies below +0.
func least(typ gp.Type, op gp.Op, vs []uint64) uint64 {
	sign := uint64(1) << (8*typ.Size() - 1)
	nan := map[gp.Type]uint64{
		gp.TypeFloat64: dtype.NaNFloat64, gp.TypeFloat32: uint64(dtype.NaNFloat32),
		gp.TypeFloat16: uint64(dtype.NaNFloat16), gp.TypeBFloat16: uint64(dtype.NaNBFloat16),
	}[typ]
	key := func(v uint64) uint64 { // in the order of the numbers
		if v&sign != 0 {
			return ^v & (sign<<1 - 1)
		}
		return v | sign
	}
	best := vs[0]
	for _, v := range vs {
		if isNaN(typ, element(typ, v)) {
			return nan
		}
		if op == gp.Min && key(v) < key(best) || op == gp.Max && key(v) > key(best) {
			best = v
		}
	}
	return best
}

// TestMinMaxOfExtremes: whatever ranks the extremes of a type are on, each rank
// gets the same bits by every algorithm.
func TestMinMaxOfExtremes(t *testing.T) {
	gputest.Parallel(t)
	for _, ranks := range []int{2, 3, 5, 8} {
		f := newFolder(t, ranks, 8*1024)
		r := generator(t.Name(), ranks)
		for _, typ := range []gp.Type{gp.TypeFloat64, gp.TypeFloat32, gp.TypeFloat16, gp.TypeBFloat16} {
			all := extremes(typ)
			// Each pair of extremes, in both orders, among ranks that have one of the two
			// or anything; then any at all.
			var rows [][]uint64
			for _, a := range all {
				for _, b := range all {
					row := make([]uint64, ranks)
					for i := range row {
						row[i] = []uint64{a, b}[r.IntN(2)]
					}
					at := r.Perm(ranks)
					row[at[0]], row[at[1]] = a, b
					if ranks > 2 && r.IntN(4) == 0 {
						row[at[2]] = all[r.IntN(len(all))]
					}
					rows = append(rows, row)
				}
			}
			ins := make([][]byte, ranks)
			want := map[gp.Op][]byte{}
			for _, row := range rows {
				for i, v := range row {
					ins[i] = append(ins[i], element(typ, v)...)
				}
				for _, op := range []gp.Op{gp.Min, gp.Max} {
					want[op] = append(want[op], element(typ, least(typ, op, row))...)
				}
			}
			f.give(ins)
			for op, want := range want {
				for _, alg := range sums {
					got := f.fold(alg, typ, op, len(want))
					if !bytes.Equal(want, got) {
						requireElements(t, typ, op, want, got, "%s %v on %d ranks", alg, op, ranks)
					}
				}
			}
		}
	}
}
