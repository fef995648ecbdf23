// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
)

// slow folds one element by other means than Reduce: integers in math/big and
// cut to 64 bits, float32 in float64 rounded after each operation (which gives
// the same as one correct rounding), min and max by comparing bits.
func slow(t dtype.Type, op dtype.Op, vals []any, divisor uint64) any {
	acc := vals[0]
	for _, v := range vals[1:] {
		acc = slowOp(op, acc, v)
	}
	if op == dtype.Avg && divisor != 0 {
		switch a := acc.(type) {
		case float64:
			acc = a / float64(divisor)
		case float32:
			acc = float32(float64(a) / float64(divisor))
		case int64:
			acc = new(big.Int).Quo(big.NewInt(a), new(big.Int).SetUint64(divisor)).Int64()
		case uint64:
			acc = new(big.Int).Quo(new(big.Int).SetUint64(a), new(big.Int).SetUint64(divisor)).Uint64()
		}
	}
	if op == dtype.Min || op == dtype.Max {
		switch a := acc.(type) {
		case float64:
			if a != a {
				acc = math.Float64frombits(0x7ff8000000000000)
			}
		case float32:
			if a != a {
				acc = math.Float32frombits(0x7fffffff)
			}
		}
	}
	return acc
}

var mod64 = new(big.Int).Lsh(big.NewInt(1), 64)

func slowOp(op dtype.Op, a, b any) any {
	switch x := a.(type) {
	case float64:
		y := b.(float64)
		switch op {
		case dtype.Prod:
			return x * y
		case dtype.Min, dtype.Max:
			return slowPick(op, x, y)
		}
		return x + y
	case float32:
		y := b.(float32)
		switch op {
		case dtype.Prod:
			return float32(float64(x) * float64(y))
		case dtype.Min, dtype.Max:
			return float32(slowPick(op, float64(x), float64(y)))
		}
		return float32(float64(x) + float64(y))
	case int64:
		r := slowInt(op, big.NewInt(x), big.NewInt(b.(int64)))
		r.Mod(r, mod64)
		return int64(r.Uint64())
	case uint64:
		r := slowInt(op, new(big.Int).SetUint64(x), new(big.Int).SetUint64(b.(uint64)))
		return r.Mod(r, mod64).Uint64()
	}
	panic("unreachable")
}

func slowInt(op dtype.Op, x, y *big.Int) *big.Int {
	r := new(big.Int)
	switch op {
	case dtype.Prod:
		return r.Mul(x, y)
	case dtype.Min, dtype.Max:
		if (x.Cmp(y) < 0) == (op == dtype.Min) {
			return r.Set(x)
		}
		return r.Set(y)
	}
	return r.Add(x, y)
}

func slowPick(op dtype.Op, x, y float64) float64 {
	if math.IsNaN(x) || math.IsNaN(y) {
		return math.NaN()
	}
	less := x < y || x == y && math.Signbit(x) && !math.Signbit(y)
	if less == (op == dtype.Min) {
		return x
	}
	return y
}

// read is an element as its accumulator's value.
func read(t dtype.Type, wide bool, b []byte) any {
	if wide {
		t = t.Wide()
	}
	le := binary.LittleEndian
	switch t {
	case dtype.Float64:
		return math.Float64frombits(le.Uint64(b))
	case dtype.Float32:
		return math.Float32frombits(le.Uint32(b))
	case dtype.Float16:
		return dtype.Float16ToFloat32(le.Uint16(b))
	case dtype.BFloat16:
		return dtype.BFloat16ToFloat32(le.Uint16(b))
	case dtype.Int8:
		return int64(int8(b[0]))
	case dtype.Uint8:
		return uint64(b[0])
	case dtype.Int32:
		return int64(int32(le.Uint32(b)))
	case dtype.Uint32:
		return uint64(le.Uint32(b))
	case dtype.Int64:
		return int64(le.Uint64(b))
	}
	return le.Uint64(b)
}

// bits is how an accumulator's value lies in memory, as an integer.
func bits(t dtype.Type, wide bool, v any) uint64 {
	if wide {
		t = t.Wide()
	}
	switch x := v.(type) {
	case float64:
		return math.Float64bits(x)
	case float32:
		switch t {
		case dtype.Float16:
			return uint64(dtype.Float16FromFloat32(x))
		case dtype.BFloat16:
			return uint64(dtype.BFloat16FromFloat32(x))
		}
		return uint64(math.Float32bits(x))
	case int64:
		return uint64(x) & (1<<(8*t.Size()-1)<<1 - 1)
	}
	return v.(uint64) & (1<<(8*t.Size()-1)<<1 - 1)
}

// specials are bit patterns that every type should meet, cut to its size.
var specials = []uint64{
	0, 1, 2, 1 << 15, 1 << 31, 1 << 63, 0x7fff, 0x7c00, 0xfc00, 0x7c01, 0x7f80, 0xff80, 0x7f800000, 0xff800000, 0x7f800001,
	0x7fc00000, 0xffffffff, 0x7fffffff, 0x7ff0000000000000, 0xfff0000000000000, 0x7ff0000000000001, 0xfff8000000000000,
	math.MaxUint64, math.MaxInt64, 0x0400, 0x03ff, 0x00800000, 0x007fffff, 0x80000001, 0x3c00, 0x3f80, 0x3f800000,
	0x3ff0000000000000, 0x7bff, 0x7f7f, 0x7f7fffff, 0x7fefffffffffffff, 0x80, 0x7f, 0xff,
}

func random(r *rand.Rand, t dtype.Type, wide bool, n int) []byte {
	if wide {
		t = t.Wide()
	}
	b := make([]byte, 0, n*t.Size())
	var e [8]byte
	for range n {
		v := r.Uint64()
		switch r.IntN(3) {
		case 0:
			v = specials[r.IntN(len(specials))]
		case 1: // values near each other, so that sums round
			switch t {
			case dtype.Float64:
				v = math.Float64bits(r.NormFloat64())
			case dtype.Float32:
				v = uint64(math.Float32bits(float32(r.NormFloat64())))
			case dtype.Float16:
				v = uint64(dtype.Float16FromFloat32(float32(r.NormFloat64())))
			case dtype.BFloat16:
				v = uint64(dtype.BFloat16FromFloat32(float32(r.NormFloat64())))
			}
		}
		binary.LittleEndian.PutUint64(e[:], v)
		b = append(b, e[:t.Size()]...)
	}
	return b
}

func isNaN(t dtype.Type, v any) bool {
	switch x := v.(type) {
	case float64:
		return x != x
	case float32:
		return x != x
	}
	return false
}

func TestReduce(t *testing.T) {
	for _, typ := range dtype.Types {
		for _, op := range dtype.Ops {
			t.Run(fmt.Sprint(typ, "_", op), func(t *testing.T) {
				for n, inputCounts := range map[int][]int{
					0: {1, 2}, 1: {1, 2, 3, 5, MaxInputs}, 7: {1, 2, 5, MaxInputs}, 100: {1, 2, MaxInputs},
					blockElems: {2}, 2*blockElems + 5: {3},
				} {
					for _, inputs := range inputCounts {
						r := rand.New(rand.NewPCG(uint64(typ)<<8|uint64(op), uint64(n)<<8|uint64(inputs)))
						dstWide, inWide := r.IntN(2) == 1, r.Uint32N(1<<inputs)
						divisor := uint64(0)
						if op == dtype.Avg && r.IntN(4) != 0 {
							divisor = r.Uint64N(16) + 1
						}
						ins := make([][]byte, inputs)
						for k := range ins {
							ins[k] = random(r, typ, inWide>>k&1 != 0, n)
						}
						dst := make([]byte, n*size(typ, dstWide))
						Reduce(typ, op, dst, dstWide, ins, inWide, divisor)
						for i := range n {
							vals := make([]any, inputs)
							for k := range ins {
								w := inWide>>k&1 != 0
								vals[k] = read(typ, w, ins[k][i*size(typ, w):])
							}
							want := slow(typ, op, vals, divisor)
							s := size(typ, dstWide)
							var e [8]byte
							copy(e[:], dst[i*s:(i+1)*s])
							got := binary.LittleEndian.Uint64(e[:])
							if isNaN(typ, want) && op != dtype.Min && op != dtype.Max {
								if !isNaN(typ, read(typ, dstWide, e[:])) {
									t.Fatalf("element %d of %d, %v: got %#x, want a NaN", i, n, vals, got)
								}
								continue
							}
							if w := bits(typ, dstWide, want); got != w {
								t.Fatalf("element %d of %d, %v, inputs wide %b, divisor %d: got %#x, want %#x", i, n, vals, inWide, divisor, got, w)
							}
						}
					}
				}
			})
		}
	}
}

func TestReduceOrder(t *testing.T) {
	// (2^24 + 1) + 1 is 2^24 in float32, 2^24 + (1 + 1) is not.
	f := func(vals ...float32) []byte {
		var ins [][]byte
		for _, v := range vals {
			ins = append(ins, binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)))
		}
		dst := make([]byte, 4)
		Reduce(dtype.Float32, dtype.Sum, dst, false, ins, 0, 0)
		return dst
	}
	require.Equal(t, f(1<<24), f(1<<24, 1, 1))
	require.Equal(t, f(1<<24+2), f(1, 1, 1<<24))
}

func TestReduceSigns(t *testing.T) {
	one := func(typ dtype.Type, op dtype.Op, in ...uint64) uint64 {
		var ins [][]byte
		for _, v := range in {
			ins = append(ins, binary.LittleEndian.AppendUint64(nil, v)[:typ.Size()])
		}
		dst := make([]byte, 8)
		Reduce(typ, op, dst[:typ.Size()], false, ins, 0, 0)
		return binary.LittleEndian.Uint64(dst)
	}
	for typ, z := range map[dtype.Type]struct{ neg, nan, canonical uint64 }{
		dtype.Float64:  {1 << 63, 0xfff0000000000001, 0x7ff8000000000000},
		dtype.Float32:  {1 << 31, 0xff800001, 0x7fffffff},
		dtype.Float16:  {1 << 15, 0xfc01, 0x7fff},
		dtype.BFloat16: {1 << 15, 0xff81, 0x7fff},
	} {
		require.Equal(t, z.neg, one(typ, dtype.Min, 0, z.neg), "%v", typ)
		require.Equal(t, z.neg, one(typ, dtype.Min, z.neg, 0), "%v", typ)
		require.Equal(t, uint64(0), one(typ, dtype.Max, 0, z.neg), "%v", typ)
		require.Equal(t, uint64(0), one(typ, dtype.Max, z.neg, 0), "%v", typ)
		for _, op := range []dtype.Op{dtype.Min, dtype.Max} {
			require.Equal(t, z.canonical, one(typ, op, z.nan), "%v", typ)
			require.Equal(t, z.canonical, one(typ, op, 1, z.nan), "%v", typ)
			require.Equal(t, z.canonical, one(typ, op, z.nan, 1), "%v", typ)
			require.Equal(t, z.neg, one(typ, op, z.neg), "%v", typ)
		}
		require.Equal(t, z.neg, one(typ, dtype.Sum, z.neg, z.neg), "%v", typ)
	}
	// Truncation toward zero, of the sum and not of each.
	i8 := func(v int8) []byte { return []byte{byte(v)} }
	dst := make([]byte, 1)
	Reduce(dtype.Int8, dtype.Avg, dst, false, [][]byte{i8(-4), i8(-3)}, 0, 2)
	require.Equal(t, int8(-3), int8(dst[0]))
	Reduce(dtype.Int8, dtype.Avg, dst, false, [][]byte{i8(127), i8(127)}, 0, 2)
	require.Equal(t, int8(127), int8(dst[0]))
	Reduce(dtype.Uint8, dtype.Avg, dst, false, [][]byte{{255}, {255}, {254}}, 0, 3)
	require.Equal(t, byte(254), dst[0])
}

// memory is a Memory of one buffer at an address.
type memory struct {
	base uint64
	b    []byte
}

var errRange = errors.New("out of range")

func (m memory) Bytes(addr, n uint64) ([]byte, error) {
	if addr < m.base || addr-m.base > uint64(len(m.b)) || n > uint64(len(m.b))-(addr-m.base) {
		return nil, errRange
	}
	return m.b[addr-m.base:][:n:n], nil
}

func TestTwins(t *testing.T) {
	for _, typ := range dtype.Types {
		for _, op := range dtype.Ops {
			run, ok := Twin(FoldEntry(typ, op))
			require.True(t, ok)
			gt, gop, ok := ParseEntry(FoldEntry(typ, op))
			require.True(t, ok)
			require.Equal(t, typ, gt)
			require.Equal(t, op, gop)

			r := rand.New(rand.NewPCG(uint64(typ), uint64(op)))
			const n, base = 37, 0x2000000000000
			s := uint64(typ.Size())
			a, b := random(r, typ, false, n), random(r, typ, true, n)
			m := memory{base, make([]byte, 1024)}
			copy(m.b, a)
			copy(m.b[400:], b)
			want := make([]byte, n*s)
			Reduce(typ, op, want, false, [][]byte{a, b}, 2, 3)
			// In place over the first input, which leaves the second alone.
			f := Fold{Dst: base, Count: n, Divisor: 3, InWide: 2, N: 2, In: [MaxInputs]uint64{base, base + 400}}
			require.NoError(t, run(f.Append(nil), m))
			require.Equal(t, want, m.b[:n*s])
			require.Equal(t, b, m.b[400:400+len(b)])

			f.Count = 0
			f.Dst = 1
			require.NoError(t, run(f.Append(nil), m), "nothing is touched at length 0")
			f.Count, f.Dst = 1, base+2000
			require.ErrorIs(t, run(f.Append(nil), m), errRange)
			if s > 1 {
				f.Dst = base + 1
				require.ErrorIs(t, run(f.Append(nil), m), ErrMisaligned)
			}
			f.Dst, f.Count = base+s, 2
			require.ErrorIs(t, run(f.Append(nil), m), ErrOverlap)
			require.ErrorIs(t, run(make([]byte, FoldBytes-1), m), ErrParams)
			require.ErrorIs(t, run(make([]byte, FoldBytes), m), ErrParams, "no inputs")
		}
	}
	_, ok := Twin("gp_fold_f32_xor")
	require.False(t, ok)
}

func TestCopyTwin(t *testing.T) {
	run, ok := Twin(CopyEntry)
	require.True(t, ok)
	m := memory{1 << 50, []byte("0123456789")}
	c := Copy{Dst: 1<<50 + 5, Src: 1<<50 + 1, Bytes: 3}
	require.NoError(t, run(c.Append(nil), m))
	require.Equal(t, "0123412389", string(m.b))
	c.Bytes = 5
	require.ErrorIs(t, run(c.Append(nil), m), ErrOverlap)
	c = Copy{Dst: 1 << 50, Src: 1<<50 + 9, Bytes: 2}
	require.ErrorIs(t, run(c.Append(nil), m), errRange)
	require.NoError(t, run((&Copy{}).Append(nil), m))
	require.ErrorIs(t, run(nil, m), ErrParams)
}

func BenchmarkReduce(b *testing.B) {
	for _, typ := range dtype.Types {
		b.Run(typ.String(), func(b *testing.B) {
			const n = 1 << 18
			ins := [][]byte{make([]byte, n), make([]byte, n)}
			dst := make([]byte, n)
			b.SetBytes(n)
			for b.Loop() {
				Reduce(typ, dtype.Sum, dst, false, ins, 0, 0)
			}
		})
	}
}
