// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// fields are one allocation a rank and side, in which each case lies somewhere
// else. Bytes around a case must stay as they are.
type fields struct {
	t     testing.TB
	g     *gp.Group
	bytes int
	mem   [2][]gp.Buffer      // [destination, source][rank]
	by    [2][][]*cuda.Stream // streams to order a buffer by
	img   [2][][]byte         // what the allocation was filled with
	lo    [2][]int            // where in it the buffer lies
	r     *rand.Rand
}

func newFields(t testing.TB, g *gp.Group, bytes int) *fields {
	f := &fields{t: t, g: g, bytes: bytes, r: generator(t.Name())}
	for side := range 2 {
		for _, r := range g.Ranks() {
			f.mem[side] = append(f.mem[side], alloc(t, r, gp.TypeUint8, bytes))
			f.by[side] = append(f.by[side], []*cuda.Stream{r.Stream(), r.Context().LegacyStream(), newStream(t, r)})
		}
	}
	return f
}

// place fills the side's allocation of a rank with random bytes and data in
// between, at an element offset of any alignment, and returns the buffer of it.
func (f *fields) place(side, rank int, typ gp.Type, data []byte, img []byte) gp.Buffer {
	size := typ.Size()
	n := len(data) / size
	head := f.r.IntN(19)
	room := (head + n + 5) * size
	require.LessOrEqual(f.t, room, f.bytes)
	lo := head * size
	copy(img[lo:], data)
	mem := f.mem[side][rank]
	require.NoError(f.t, mem.Sub(0, room).Write(background, img[:room]))
	for len(f.img[side]) <= rank {
		f.img[side], f.lo[side] = append(f.img[side], nil), append(f.lo[side], 0)
	}
	f.img[side][rank], f.lo[side][rank] = img[:room], lo
	streams := f.by[side][rank]
	return as(f.t, mem, typ, 0, room/size).Sub(head, head+n).On(streams[f.r.IntN(len(streams))])
}

// result reads the side's allocation of a rank back, behind buffer's stream,
// holds what surrounds the buffer to what it was, and returns the buffer.
func (f *fields) result(side, rank int, b gp.Buffer, what string) []byte {
	img, lo := f.img[side][rank], f.lo[side][rank]
	got := make([]byte, len(img))
	require.NoError(f.t, f.mem[side][rank].Sub(0, len(img)).On(b.Stream()).Read(background, got))
	hi := lo + b.Bytes()
	requireBytes(f.t, img[:lo], got[:lo], "%s: before the buffer of rank %d", what, rank)
	requireBytes(f.t, img[hi:], got[hi:], "%s: behind the buffer of rank %d", what, rank)
	return got[lo:hi]
}

type reduceCase struct {
	alg     gp.Algorithm
	typ     gp.Type
	op      gp.Op
	n       int
	chunk   int
	inPlace bool
}

func (c reduceCase) String() string {
	return fmt.Sprintf("%s %v %v of %d, chunk %d, in place %t", c.alg, c.typ, c.op, c.n, c.chunk, c.inPlace)
}

func (f *fields) allReduce(c reduceCase) {
	t, ranks := f.t, len(f.g.Ranks())
	size := c.typ.Size()
	var ins [][]byte
	var dst, src []gp.Buffer
	for r := range ranks {
		in := randomElements(f.r, c.typ, c.n)
		ins = append(ins, in)
		room := c.n*size + 24*size
		if c.inPlace {
			b := f.place(0, r, c.typ, in, randomBytes(f.r, room))
			dst, src = append(dst, b), append(src, b)
		} else {
			src = append(src, f.place(1, r, c.typ, in, randomBytes(f.r, room)))
			dst = append(dst, f.place(0, r, c.typ, randomBytes(f.r, c.n*size), randomBytes(f.r, room)))
		}
	}
	w, err := f.g.With(gp.CallOptions{Algorithm: c.alg, Chunk: c.chunk}).AllReduceTo(dst, src, c.op)
	require.NoError(t, err, "%v", c)
	if f.r.IntN(2) == 0 { // else the streams alone order what follows
		require.NoError(t, w.Wait(background), "%v", c)
	}
	want := folded(t, ins, c.typ, c.op)
	var first []byte
	for r := range ranks {
		got := f.result(0, r, dst[r], c.String())
		requireElements(t, c.typ, c.op, want, got, "%v: rank %d", c, r)
		if r == 0 {
			first = got
		} else {
			requireBytes(t, first, got, "%v: rank %d beside rank 0", c, r)
		}
		if !c.inPlace {
			requireBytes(t, ins[r], f.result(1, r, src[r], c.String()), "%v: source of rank %d", c, r)
		}
	}
}

var counts = []int{0, 1, 2, 3, 7, 17, 255, 4096}

var reduceAlgorithms = []gp.Algorithm{gp.AlgorithmRing, gp.AlgorithmRingZeroCopy}

// fewer is set where a test shows the race detector ways through the code, and
// not results for every input once more.
const fewer = testenv.Race

func TestAllReduce(t *testing.T) {
	gputest.Parallel(t)
	for _, ranks := range []int{2, 3, 4} {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			each(t, func(t *testing.T, d *cuda.Driver) {
				g := group(t, d, ranks)
				f := newFields(t, g, (4096+64)*8)
				chunks := []int{0, 16, 48, 256, 2048}
				for _, typ := range allTypes {
					for _, op := range allOps {
						for _, n := range counts {
							for _, alg := range reduceAlgorithms {
								for _, inPlace := range []bool{false, true} {
									if ranks > 2 && f.r.IntN(6) != 0 || fewer && f.r.IntN(5) != 0 {
										continue
									}
									chunk := chunks[f.r.IntN(len(chunks))]
									if n == 4096 { // thousands of steps are enough elsewhere
										chunk = max(chunk, 2048)
									}
									f.allReduce(reduceCase{alg, typ, op, n, chunk, inPlace})
								}
							}
						}
					}
				}
				require.NoError(t, g.Err())
			})
		})
	}
}

func TestAllReduceLarge(t *testing.T) {
	gputest.Parallel(t)
	const n = 1<<20 + 3
	for _, ranks := range []int{2, 3} {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			each(t, func(t *testing.T, d *cuda.Driver) {
				g := group(t, d, ranks)
				f := newFields(t, g, (n+64)*8)
				chunks := []int{0, 16 << 10, 100_000, 1 << 20}
				for ti, typ := range allTypes {
					for oi, op := range allOps {
						// The simulator takes one reduction of each type, or some.
						if (d.Modelled() || ranks > 2) && oi != ti*3%len(allOps) || d.Modelled() && (ranks > 2 || fewer) && ti%4 != 2 {
							continue
						}
						alg := reduceAlgorithms[f.r.IntN(2)]
						f.allReduce(reduceCase{alg, typ, op, n, chunks[f.r.IntN(len(chunks))], f.r.IntN(2) == 0})
					}
				}
			})
		})
	}
}

// TestMinMaxSpecials: NaN wins in whatever order, as its canonical bits, and -0
// lies below +0, on every rank and for every permutation of ranks.
func TestMinMaxSpecials(t *testing.T) {
	gputest.Parallel(t)
	each(t, func(t *testing.T, d *cuda.Driver) {
		for _, ranks := range []int{2, 4} {
			g := group(t, d, ranks)
			f := newFields(t, g, 4096)
			for _, typ := range []gp.Type{gp.TypeFloat64, gp.TypeFloat32, gp.TypeFloat16, gp.TypeBFloat16} {
				bits := map[gp.Type]struct{ nan, otherNaN, one, zero, minus uint64 }{
					gp.TypeFloat64:  {dtype.NaNFloat64, 0xfff0000000000123, 0x3ff0000000000000, 0, 1 << 63},
					gp.TypeFloat32:  {uint64(dtype.NaNFloat32), 0xff800123, 0x3f800000, 0, 1 << 31},
					gp.TypeFloat16:  {uint64(dtype.NaNFloat16), 0xfc12, 0x3c00, 0, 1 << 15},
					gp.TypeBFloat16: {uint64(dtype.NaNBFloat16), 0xff92, 0x3f80, 0, 1 << 15},
				}[typ]
				// One element a position of the odd one out.
				row := func(odd, rest uint64) (ins [][]byte) {
					for r := range ranks {
						var b []byte
						for at := range ranks {
							v := rest
							if at == r {
								v = odd
							}
							b = append(b, element(typ, v)...)
						}
						ins = append(ins, b)
					}
					return ins
				}
				for _, c := range []struct {
					name      string
					op        gp.Op
					odd, rest uint64
					want      uint64
				}{
					{"NaN among ones", gp.Min, bits.otherNaN, bits.one, bits.nan},
					{"NaN among ones", gp.Max, bits.otherNaN, bits.one, bits.nan},
					{"one among NaNs", gp.Min, bits.one, bits.otherNaN, bits.nan},
					{"one among NaNs", gp.Max, bits.one, bits.otherNaN, bits.nan},
					{"-0 among 0", gp.Min, bits.minus, bits.zero, bits.minus},
					{"0 among -0", gp.Min, bits.zero, bits.minus, bits.minus},
					{"-0 among 0", gp.Max, bits.minus, bits.zero, bits.zero},
					{"0 among -0", gp.Max, bits.zero, bits.minus, bits.zero},
				} {
					for _, alg := range reduceAlgorithms {
						var bufs []gp.Buffer
						for r, in := range row(c.odd, c.rest) {
							bufs = append(bufs, f.place(0, r, typ, in, randomBytes(f.r, 512)))
						}
						w, err := g.With(gp.CallOptions{Algorithm: alg}).AllReduce(bufs, c.op)
						wait(t, w, err)
						want := bytes.Repeat(element(typ, c.want), ranks)
						for r, b := range bufs {
							what := fmt.Sprintf("%s: %v of %v by %s", c.name, c.op, typ, alg)
							requireBytes(t, want, f.result(0, r, b, what), "%s: rank %d of %d", what, r, ranks)
						}
					}
				}
			}
		}
	})
}

func element(typ gp.Type, v uint64) []byte {
	return binary.LittleEndian.AppendUint64(nil, v)[:typ.Size()]
}

func TestAllGather(t *testing.T) {
	gputest.Parallel(t)
	for _, ranks := range []int{2, 3, 4} {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			each(t, func(t *testing.T, d *cuda.Driver) {
				g := group(t, d, ranks)
				bytes := ranks * (1<<20 + 64) * 8
				if d.Modelled() {
					bytes /= 2
				}
				f := newFields(t, g, bytes)
				chunks := []int{0, 16, 48, 256, 4096, 100_000}
				for _, typ := range allTypes {
					for _, n := range append(counts, 1<<20+3) {
						large := n > 4096
						if large && (d.Modelled() || ranks > 2) && typ != gp.TypeUint8 && (typ != gp.TypeFloat32 || ranks > 2 || fewer) {
							continue
						}
						for _, alg := range []gp.Algorithm{gp.AlgorithmAuto, gp.AlgorithmDirect, gp.AlgorithmRing} {
							for _, inPlace := range []bool{false, true} {
								if large && (alg == gp.AlgorithmAuto || fewer && ranks > 2) || !large && fewer && f.r.IntN(4) != 0 {
									continue
								}
								chunk := chunks[f.r.IntN(len(chunks))]
								if n >= 4096 {
									chunk = max(chunk, n/8)
								}
								f.allGather(alg, typ, n, chunk, inPlace)
							}
						}
					}
				}
			})
		})
	}
}

func (f *fields) allGather(alg gp.Algorithm, typ gp.Type, n, chunk int, inPlace bool) {
	t, ranks, size := f.t, len(f.g.Ranks()), typ.Size()
	what := fmt.Sprintf("%q of %d %v, chunk %d, in place %t", alg, n, typ, chunk, inPlace)
	var want []byte
	var dst, src []gp.Buffer
	var ins [][]byte
	for r := range ranks {
		in := randomBytes(f.r, n*size)
		ins = append(ins, in)
		want = append(want, in...)
		before := randomBytes(f.r, ranks*n*size)
		if inPlace {
			copy(before[r*n*size:], in)
		}
		d := f.place(0, r, typ, before, randomBytes(f.r, (ranks*n+24)*size))
		dst = append(dst, d)
		if inPlace {
			src = append(src, d.Sub(r*n, (r+1)*n))
		} else {
			src = append(src, f.place(1, r, typ, in, randomBytes(f.r, (n+24)*size)))
		}
	}
	w, err := f.g.With(gp.CallOptions{Algorithm: alg, Chunk: chunk}).AllGather(dst, src)
	require.NoError(t, err, what)
	if f.r.IntN(2) == 0 {
		require.NoError(t, w.Wait(background), what)
	}
	for r := range ranks {
		requireBytes(t, want, f.result(0, r, dst[r], what), "%s: rank %d", what, r)
		if !inPlace {
			requireBytes(t, ins[r], f.result(1, r, src[r], what), "%s: source of rank %d", what, r)
		}
	}
}

// TestShuffledBuffers: buffers may come in any order of ranks.
func TestShuffledBuffers(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		g := group(t, d, 3)
		var dst, src []gp.Buffer
		for r, rank := range g.Ranks() {
			b, err := gp.Upload(background, rank, []int32{int32(r + 1), int32(10 * r)})
			require.NoError(t, err)
			src = append(src, b)
			dst = append(dst, alloc(t, rank, gp.TypeInt32, 6))
		}
		w, err := g.AllGather([]gp.Buffer{dst[2], dst[0], dst[1]}, []gp.Buffer{src[1], src[2], src[0]})
		wait(t, w, err)
		got := make([]int32, 6)
		for r := range dst {
			require.NoError(t, gp.Download(background, got, dst[r]))
			require.Equal(t, []int32{1, 0, 2, 10, 3, 20}, got, "rank %d", r)
		}
		w, err = g.AllReduce([]gp.Buffer{src[2], src[0], src[1]}, gp.Sum)
		wait(t, w, err)
		for r := range src {
			require.NoError(t, gp.Download(background, got[:2], src[r]))
			require.Equal(t, []int32{6, 30}, got[:2], "rank %d", r)
		}
	})
}

// TestOneRank: a group of one GPU takes the same calls.
func TestOneRank(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		g := group(t, d, 1)
		r := g.Ranks()[0]
		v := []float32{1, -2, 3.5, 4, 5}
		src, err := gp.Upload(background, r, v)
		require.NoError(t, err)
		dst := alloc(t, r, gp.TypeFloat32, len(v))
		got := make([]float32, len(v))
		check := func(w gp.Work, err error, b gp.Buffer) {
			t.Helper()
			wait(t, w, err)
			require.NoError(t, gp.Download(background, got, b))
			require.Equal(t, v, got)
		}
		w, err := g.AllReduce([]gp.Buffer{src}, gp.Sum)
		check(w, err, src)
		w, err = g.AllReduceTo([]gp.Buffer{dst}, []gp.Buffer{src}, gp.Avg)
		check(w, err, dst)
		require.NoError(t, dst.Stream().MemsetD8(dst.Ptr(), 0, dst.Bytes()))
		w, err = g.AllGather([]gp.Buffer{dst}, []gp.Buffer{src})
		check(w, err, dst)
		require.NoError(t, dst.Stream().MemsetD8(dst.Ptr(), 0, dst.Bytes()))
		w, err = g.Copy(dst, src)
		check(w, err, dst)
		w, err = r.AllReduce(background, src, gp.Sum)
		check(w, err, src)
	})
}
