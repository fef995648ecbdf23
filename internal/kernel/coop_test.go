// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
)

// A troupe is the ranks of one group, all in one memory.
type troupe struct {
	memory
	n         int
	areaBytes uint64
	area      [MaxInputs]uint64
	control   [MaxInputs]uint64
	in, out   [MaxInputs]uint64
	epoch     uint64
}

// newTroupe lays out n ranks with areas, control pages, and In and Out of so
// many bytes, shift behind a multiple of 64. Areas are zero, the rest is not.
func newTroupe(n int, areaBytes, in, out, shift uint64) *troupe {
	tr := &troupe{n: n, areaBytes: areaBytes, memory: memory{base: 1 << 40}}
	at := uint64(0)
	place := func(n uint64) uint64 {
		p := at
		at = (at + n + 127) &^ 63
		return tr.base + p
	}
	for r := range n {
		tr.area[r], tr.control[r] = place(areaBytes), place(ControlBytes)
	}
	zeros := at
	for r := range n {
		tr.in[r], tr.out[r] = place(in+shift)+shift, place(out+shift)+shift
	}
	tr.b = make([]byte, at)
	for i := zeros; i < at; i++ {
		tr.b[i] = 0xee
	}
	return tr
}

func (tr *troupe) bytes(addr uint64, n int) []byte { return tr.b[addr-tr.base:][:n] }

func (tr *troupe) exchange(k Kind, op dtype.Op, count, divisor uint64, r int) Exchange {
	return Exchange{
		Kind: k, Op: op, In: tr.in[r], Out: tr.out[r], Count: count, Divisor: divisor, Rank: uint64(r), N: uint64(tr.n),
		Epoch: tr.epoch, DeadlineNs: 1, Control: tr.control[r], AreaBytes: tr.areaBytes, Area: tr.area,
	}
}

// run runs all ranks' twins but the missing one, step by step in random order,
// until none goes on. It tells which have ended.
func (tr *troupe) run(t testing.TB, r *rand.Rand, typ dtype.Type, missing int, x func(r int) Exchange) (coops []Coop, ended []bool) {
	ended = make([]bool, tr.n)
	for i := range tr.n {
		e := x(i)
		make, ok := CoopTwin(ExchangeEntry(e.Kind, typ))
		require.True(t, ok)
		coops = append(coops, make(e.Append(nil, typ)))
	}
	for moved := true; moved; {
		moved = false
		for _, i := range r.Perm(tr.n) {
			if i == missing || ended[i] {
				continue
			}
			done, on, err := coops[i].Step(tr)
			require.NoError(t, err)
			ended[i], moved = done, moved || on
		}
	}
	return coops, ended
}

// Every kind that reduces, type, op and number of ranks against Reduce: odd
// lengths, at any element's address, in place or not, one epoch after the other.
func TestExchangeTwins(t *testing.T) {
	for _, typ := range dtype.Types {
		t.Run(typ.String(), func(t *testing.T) {
			t.Parallel()
			s := uint64(typ.Size())
			r := rand.New(rand.NewPCG(uint64(typ), 1))
			for _, n := range []int{1, 2, 3, 4, 5, 8, 16} {
				const most = 301
				need := max(AreaNeed(OneShot, most*s, n), AreaNeed(TwoShot, most*s, n))
				for _, shift := range []uint64{0, s} {
					tr := newTroupe(n, need, most*s, most*s, shift)
					tr.epoch = 1<<32 - 5
					for i, op := range append(dtype.Ops, dtype.Ops...) {
						k := []Kind{OneShot, TwoShotLL, TwoShot}[(i+n)%3]
						count := []uint64{1, 2, 3, 7, 64, 300, most}[(i+int(shift/s))%7]
						divisor := uint64(0)
						if op == dtype.Avg && i > 5 {
							divisor = uint64(n)
						}
						tr.epoch++
						if tr.epoch == 1<<32 {
							// As the contract has it.
							tr.epoch = 1
							for r := range n {
								clear(tr.bytes(tr.area[r], int(tr.areaBytes)))
							}
						}
						ins := make([][]byte, n)
						inPlace := i%2 == 0
						for r := range n {
							copy(tr.bytes(tr.in[r], int(count*s)), random(rand.New(rand.NewPCG(uint64(r), tr.epoch)), typ, false, int(count)))
							ins[r] = append([]byte(nil), tr.bytes(tr.in[r], int(count*s))...)
						}
						want := make([]byte, count*s)
						Reduce(typ, op, want, false, ins, 0, divisor)
						_, ended := tr.run(t, r, typ, -1, func(r int) Exchange {
							x := tr.exchange(k, op, count, divisor, r)
							if inPlace {
								x.Out = x.In
							}
							return x
						})
						for r := range n {
							require.True(t, ended[r])
							out := tr.out[r]
							if inPlace {
								out = tr.in[r]
							}
							require.Equal(t, want, tr.bytes(out, int(count*s)), "%v of %d %v by %d ranks", k, count, op, n)
							require.Equal(t, make([]byte, ControlBytes), tr.bytes(tr.control[r], ControlBytes))
						}
					}
				}
			}
		})
	}
}

func TestGatherTwin(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	for _, n := range []int{1, 2, 3, 8, 16} {
		for _, count := range []uint64{1, 7, 8, 9, 100} {
			tr := newTroupe(n, AreaNeed(Gather, 100, n), count, count*uint64(n), 3)
			for tr.epoch = 1; tr.epoch < 5; tr.epoch++ {
				var want []byte
				for r := range n {
					b := random(rand.New(rand.NewPCG(uint64(r), tr.epoch)), dtype.Uint8, false, int(count))
					if tr.epoch%2 == 0 {
						tr.in[r] = tr.out[r] + uint64(r)*count
					}
					copy(tr.bytes(tr.in[r], len(b)), b)
					want = append(want, b...)
				}
				_, ended := tr.run(t, r, 0, -1, func(r int) Exchange { return tr.exchange(Gather, 0, count, 0, r) })
				for r := range n {
					require.True(t, ended[r])
					require.Equal(t, want, tr.bytes(tr.out[r], len(want)))
				}
			}
		}
	}
}

func TestHandshakeTwin(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 9))
	tr := newTroupe(5, AreaNeed(Handshake, 1, 5), 0, 0, 0)
	status := func(r int) Status {
		return ParseStatus(binary.LittleEndian.Uint64(tr.bytes(tr.control[r]+StatusWord, 8)))
	}
	for tr.epoch = 1; tr.epoch < 4; tr.epoch++ {
		_, ended := tr.run(t, r, 0, -1, func(r int) Exchange { return tr.exchange(Handshake, 0, 1, 0, r) })
		for r := range 5 {
			require.True(t, ended[r])
			require.Equal(t, Status{StatusDone, 0, uint32(tr.epoch)}, status(r))
		}
	}
}

// A missing rank: those that need it do not end, and say for whom they waited.
func TestTwinsGiveUp(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 10))
	for _, k := range []Kind{OneShot, TwoShotLL, TwoShot, Gather, Handshake} {
		for missing := range 3 {
			tr := newTroupe(3, 1<<16, 64, 256, 0)
			tr.epoch = 9
			typ := dtype.Type(0)
			if k.Reduces() {
				typ = dtype.Int32
			}
			coops, ended := tr.run(t, r, typ, missing, func(r int) Exchange { return tr.exchange(k, 0, 16, 0, r) })
			for r, c := range coops {
				if r == missing {
					continue
				}
				require.False(t, ended[r], "%v", k)
				require.NoError(t, c.GiveUp(tr, StatusAborted))
				w := binary.LittleEndian.Uint64(tr.bytes(tr.control[r]+StatusWord, 8))
				require.Equal(t, Status{StatusAborted, uint8(missing), 9}, ParseStatus(w), "%v", k)
			}
		}
	}
}

func TestTwinsRefuse(t *testing.T) {
	tr := newTroupe(2, 1<<16, 64, 64, 0)
	tr.epoch = 1
	step := func(entry string, params []byte) error {
		make, ok := CoopTwin(entry)
		require.True(t, ok)
		_, _, err := make(params).Step(tr)
		return err
	}
	good := tr.exchange(OneShot, dtype.Sum, 16, 0, 0)
	require.NoError(t, step("gp_ll_f32", good.Append(nil, dtype.Float32)))
	for i, f := range []func(x *Exchange){
		func(x *Exchange) { x.Count = 0 },
		func(x *Exchange) { x.Epoch = 0 },
		func(x *Exchange) { x.Epoch = 1 << 32 },
		func(x *Exchange) { x.Rank = 2 },
		func(x *Exchange) { x.N = 17 },
		func(x *Exchange) { x.AreaBytes = 4096 },
		func(x *Exchange) { x.AreaBytes++ },
		func(x *Exchange) { x.Op = 5 },
		func(x *Exchange) { x.Kind = TwoShot }, // of another module
		func(x *Exchange) { x.Count = 1 << 20 },
	} {
		x := good
		f(&x)
		require.ErrorIs(t, step("gp_ll_f32", x.Append(nil, dtype.Float32)), ErrParams, "%d", i)
	}
	require.ErrorIs(t, step("gp_ll_f32", nil), ErrParams)
	// Packed for another type: the shard says so.
	require.ErrorIs(t, step("gp_ll_f64", good.Append(nil, dtype.Float32)), ErrParams)
	for _, f := range []func(x *Exchange){
		func(x *Exchange) { x.In++ }, func(x *Exchange) { x.Out++ }, func(x *Exchange) { x.Area[1] += 8 }, func(x *Exchange) { x.Control++ },
	} {
		x := good
		f(&x)
		require.ErrorIs(t, step("gp_ll_f32", x.Append(nil, dtype.Float32)), ErrMisaligned)
	}
	x := good
	x.Out = x.In + 4
	require.ErrorIs(t, step("gp_ll_f32", x.Append(nil, dtype.Float32)), ErrOverlap)
	x = good
	x.In = 4
	require.ErrorIs(t, step("gp_ll_f32", x.Append(nil, dtype.Float32)), errRange)
	_, ok := CoopTwin("gp_fold_f32_sum")
	require.False(t, ok)
}

// What a kind says of its areas is what its twin writes there, and no LL word
// lies where another epoch's bulk or flags are.
func TestExchangeAreas(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 11))
	for _, k := range []Kind{OneShot, TwoShotLL, TwoShot} {
		for _, n := range []int{2, 3, 8, 16} {
			for _, bytes := range []uint64{1, 8, 16, 17, 1000, 4096} {
				need := AreaNeed(k, bytes, n)
				tr := newTroupe(n, need, bytes, bytes, 0)
				tr.epoch = 6 + bytes%2
				for i := range n {
					for j := range tr.bytes(tr.area[i], int(need)) {
						tr.bytes(tr.area[i], int(need))[j] = 0xdd
					}
				}
				x := tr.exchange(k, dtype.Max, bytes, 0, 0)
				_, ended := tr.run(t, r, dtype.Uint8, -1, func(r int) Exchange { return tr.exchange(k, dtype.Max, bytes, 0, r) })
				require.NotContains(t, ended, false)
				allowed := make([]bool, need)
				for _, s := range x.Touched(dtype.Uint8) {
					require.LessOrEqual(t, s.Off+s.Bytes, need)
					require.Equal(t, x.Epoch&1, s.Off/(need/2))
					require.Equal(t, x.Epoch&1, (s.Off+s.Bytes-1)/(need/2))
					for i := range s.Bytes {
						allowed[s.Off+i] = true
					}
				}
				for i, b := range tr.bytes(tr.area[0], int(need)) {
					require.True(t, allowed[i] || b == 0xdd, "%v of %d bytes: byte %d", k, bytes, i)
				}
				write, read := x.Traffic(dtype.Uint8)
				require.GreaterOrEqual(t, write, bytes)
				require.Positive(t, read)
				blocks, threads := ExchangeShape(k, bytes, n, n)
				require.LessOrEqual(t, blocks, uint32(MaxExchangeBlocks))
				require.Positive(t, blocks)
				require.LessOrEqual(t, threads, uint32(BlockThreads))
				require.GreaterOrEqual(t, threads, uint32(max(n, 32)))
				require.Zero(t, threads%32)
				require.LessOrEqual(t, AreaNeed(k, bytes, n), AreaNeed(k, bytes+1, n))
			}
		}
	}
	require.Len(t, fmt.Sprint(Kinds), len("[one_shot two_shot_ll two_shot gather handshake echo_words echo_bulk]"))
}

func TestEchoTwin(t *testing.T) {
	for _, k := range []Kind{EchoWords, EchoBulk} {
		tr := newTroupe(2, 1<<16, 0, 0, 0)
		tr.epoch = 4
		x := tr.exchange(k, 0, 16, 0, 1)
		x.In = 3
		make, ok := CoopTwin(ExchangeEntry(k, 0))
		require.True(t, ok)
		c := make(x.Append(nil, 0))
		for i := range uint64(3) {
			done, _, err := c.Step(tr)
			require.NoError(t, err)
			require.False(t, done)
			flags, words, bulk := Half(x.AreaBytes, 4+i)
			put := func(off, v uint64) { binary.LittleEndian.PutUint64(tr.bytes(tr.area[0]+off, 8), v) }
			get := func(off uint64) uint64 { return binary.LittleEndian.Uint64(tr.bytes(tr.area[1]+off, 8)) }
			if k == EchoWords {
				for w := range uint64(4) {
					put(words+8*w, (4+i)<<32|w)
				}
			} else {
				put(bulk, i)
				put(bulk+8, 77)
				put(flags, (4+i)<<32|1)
			}
			done, moved, err := c.Step(tr)
			require.NoError(t, err)
			require.True(t, moved)
			require.Equal(t, i == 2, done)
			if k == EchoWords {
				require.Equal(t, (4+i)<<32|uint64(^uint32(3)), get(words+24))
			} else {
				require.Equal(t, ^i, get(bulk))
				require.Equal(t, (4+i)<<32|1, get(flags+5*FlagStride))
			}
		}
	}
}
