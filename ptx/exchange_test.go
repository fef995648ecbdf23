// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
	"github.com/geforce-p2p/geforce-p2p/internal/ptxvm"
)

// A crew is the ranks of a group and what they exchange by, in one memory.
type crew struct {
	t       testing.TB
	n       int
	most    int // bytes of a rank's part
	mem     *arena
	area    [kernel.MaxInputs]uint64
	bytes   uint64 // of an area
	control []uint64
	in, out []uint64
	epoch   uint64
	patient time.Duration // how long a kernel waits for its peers
}

// newCrew lays out n ranks with buffers of so many bytes at In and at Out, off
// bytes behind a multiple of 256. Device memory has these, host memory the rest.
func newCrew(t testing.TB, n, most, outBytes, off int, mem *arena) *crew {
	c := &crew{t: t, n: n, most: most, mem: mem, bytes: crewArea(n, most), patient: crewDeadline}
	mem.reset()
	for r := range n {
		in, _ := mem.place(most, off, false)
		out, _ := mem.place(outBytes, off, false)
		page, b := mem.place(kernel.ControlBytes, 0, true)
		clear(b)
		c.area[r], b = mem.place(int(c.bytes), 0, true)
		clear(b)
		c.in, c.out, c.control = append(c.in, in), append(c.out, out), append(c.control, page)
	}
	return c
}

// crewDeadline is how long a kernel of a crew waits for its peers.
const crewDeadline = 2 * time.Second

// crewMost is the most bytes of a crew's messages by LL words.
const crewMost = 256 << 10

// crewArea is the size of a crew's areas.
func crewArea(n, most int) uint64 {
	return max(kernel.AreaNeed(kernel.OneShot, uint64(min(most, crewMost)), n), kernel.AreaNeed(kernel.TwoShot, uint64(most), n))
}

// crewArena is memory for a crew.
func crewArena(n, most, out int) *arena {
	return &arena{
		devAt: 0x7f0000000000, hostAt: 0x10000000000,
		dev: make([]byte, n*(most+out+2048)), host: make([]byte, n*(int(crewArea(n, most))+2048)),
	}
}

func (c *crew) exchange(k kernel.Kind, op dtype.Op, count int, divisor uint64, r int) kernel.Exchange {
	return kernel.Exchange{
		Kind: k, Op: op, In: c.in[r], Out: c.out[r], Count: uint64(count), Divisor: divisor, Rank: uint64(r), N: uint64(c.n),
		Epoch: c.epoch, DeadlineNs: uint64(c.patient), Control: c.control[r], AreaBytes: c.bytes, Area: c.area,
	}
}

func (c *crew) at(addr uint64, n int) []byte {
	b, err := c.mem.Bytes(addr, uint64(n))
	require.NoError(c.t, err)
	return b
}

func (c *crew) status(r int) kernel.Status {
	return kernel.ParseStatus(binary.LittleEndian.Uint64(c.at(c.control[r]+kernel.StatusWord, 8)))
}

// together runs all ranks' launches but the missing one's.
func (c *crew) together(r *rand.Rand, p *ptxvm.Program, grid, block, missing int, typ dtype.Type, x func(r int) kernel.Exchange) error {
	var ls []ptxvm.Launch
	for i := range c.n {
		if i != missing {
			e := x(i)
			ls = append(ls, ptxvm.Launch{Program: p, Grid: [3]uint32{uint32(grid)}, Block: [3]uint32{uint32(block)}, Params: e.Append(nil, typ)})
		}
	}
	_, err := ptxvm.Together(r, c.mem, 2*uint64(c.patient), ls...)
	return err
}

var reducing = []kernel.Kind{kernel.OneShot, kernel.TwoShotLL, kernel.TwoShot}

// reduceOn runs the next epoch's all_reduce of random data and compares
// everything that device memory holds then, and that no rank gave up.
func (c *crew) reduceOn(r *rand.Rand, p *ptxvm.Program, k kernel.Kind, typ dtype.Type, op dtype.Op, count, grid, block int, inPlace, divide bool) error {
	size := count * typ.Size()
	c.epoch++
	divisor := uint64(0)
	if op == dtype.Avg && divide {
		divisor = uint64(c.n)
	}
	ins := make([][]byte, c.n)
	out := slices.Clone(c.out)
	for rank := range c.n {
		in := c.at(c.in[rank], size)
		fill(in, typ, r)
		ins[rank] = bytes.Clone(in)
		if inPlace {
			out[rank] = c.in[rank]
		} else {
			c.mem.unwritten(out[rank])
		}
	}
	want := make([]byte, size)
	kernel.Reduce(typ, op, want, false, ins, 0, divisor)
	before := bytes.Clone(c.mem.dev)
	err := c.together(r, p, grid, block, -1, typ, func(rank int) kernel.Exchange {
		x := c.exchange(k, op, count, divisor, rank)
		x.Out = out[rank]
		return x
	})
	if err != nil {
		return err
	}
	for rank := range c.n {
		got := c.at(out[rank], size)
		if typ.Float() && op != dtype.Min && op != dtype.Max {
			settle(got, typ)
			settle(want, typ)
		}
		switch s := c.status(rank); {
		case s != kernel.Status{}:
			return fmt.Errorf("rank %d gave up: %+v", rank, s)
		case !bytes.Equal(want, got):
			return fmt.Errorf("rank %d: wrong result", rank)
		}
		copy(got, before[out[rank]-c.mem.devAt:])
	}
	if !bytes.Equal(before, c.mem.dev) {
		return errors.New("wrote outside of the destination")
	}
	return nil
}

// gatherOn is reduceOn for all_gather, each rank's part at its own place or not.
func (c *crew) gatherOn(r *rand.Rand, p *ptxvm.Program, count, grid int, inPlace bool) error {
	c.epoch++
	in := slices.Clone(c.in)
	var want []byte
	for rank := range c.n {
		if inPlace {
			in[rank] = c.out[rank] + uint64(rank*count)
		} else {
			c.mem.unwritten(c.out[rank])
		}
		b := c.at(in[rank], count)
		fill(b, dtype.Uint8, r)
		want = append(want, b...)
	}
	before := bytes.Clone(c.mem.dev)
	err := c.together(r, p, grid, 32, -1, 0, func(rank int) kernel.Exchange {
		x := c.exchange(kernel.Gather, 0, count, 0, rank)
		x.In = in[rank]
		return x
	})
	if err != nil {
		return err
	}
	for rank := range c.n {
		got := c.at(c.out[rank], len(want))
		switch s := c.status(rank); {
		case s != kernel.Status{}:
			return fmt.Errorf("rank %d gave up: %+v", rank, s)
		case !bytes.Equal(want, got):
			return fmt.Errorf("rank %d: wrong result", rank)
		}
		copy(got, before[c.out[rank]-c.mem.devAt:])
	}
	if !bytes.Equal(before, c.mem.dev) {
		return errors.New("wrote outside of the destination")
	}
	return nil
}

// The PTX that ships, all ranks at once, instruction by instruction, against the
// reference: every kind, type and op, odd lengths, any element's address, in
// place and not, several rounds of a block.
func TestEmbeddedExchange(t *testing.T) {
	for _, typ := range dtype.Types {
		for _, k := range reducing {
			t.Run(fmt.Sprint(k, " ", typ), func(t *testing.T) {
				t.Parallel()
				prog := compileEmbedded(t, kernel.ExchangeModule(k, typ), kernel.ExchangeEntry(k, typ))
				s := typ.Size()
				r := rand.New(rand.NewPCG(uint64(typ), uint64(k)))
				for i, n := range []int{1, 2, 3, 8, 16} {
					for j, count := range []int{1, 19, 37, 2600/s + 1} {
						// The last is three rounds of a block; sixteen ranks are two batches
						// of peers. Both cost much here.
						if count*s > 2000 && n != 2 || n == 16 && (i+j+int(typ))%3 != 0 || slow && (n > 2 || count > 19) {
							continue
						}
						off := []int{0, s, 16 - s}[(i+j)%3]
						c := newCrew(t, n, count*s, count*s, off, crewArena(n, count*s+32, count*s+32))
						c.epoch = 1<<32 - 3
						for e := range 2 {
							op := dtype.Ops[(i+j+3*e)%5]
							inPlace := (i+j+e)%2 == 0
							require.NoError(t, c.reduceOn(r, prog, k, typ, op, count, 1+j%2, 32*(1+j%3%2), inPlace, j > 0),
								"%v %v of %d %v by %d ranks, offset %d, in place %t", k, op, count, typ, n, off, inPlace)
						}
					}
				}
			})
		}
	}
}

// all_gather at every alignment of both sides, which the count decides too.
func TestEmbeddedGather(t *testing.T) {
	prog := compileEmbedded(t, kernel.ExchangeModule(kernel.Gather, 0), kernel.ExchangeEntry(kernel.Gather, 0))
	r := rand.New(rand.NewPCG(11, 12))
	for _, n := range []int{1, 2, 3, 9} {
		for i, count := range []int{1, 4, 7, 8, 20, 64, 333, 720} {
			if (n > 2 || slow) && count > 64 {
				continue
			}
			off := []int{0, 4, 1, 8}[i%4]
			c := newCrew(t, n, count, count*n, off, crewArena(n, count+32, count*n+32))
			for e := range 3 {
				// A buffer that nothing wrote stays one until the end of a case.
				require.NoError(t, c.gatherOn(r, prog, count, 1+i%2, e == 0), "%d bytes of %d ranks, offset %d", count, n, off)
			}
		}
	}
}

func TestEmbeddedHandshake(t *testing.T) {
	prog := compileEmbedded(t, kernel.ExchangeModule(kernel.Handshake, 0), kernel.ExchangeEntry(kernel.Handshake, 0))
	r := rand.New(rand.NewPCG(13, 14))
	for _, n := range []int{1, 2, 16} {
		c := newCrew(t, n, 64, 64, 0, crewArena(n, 64, 64))
		for c.epoch = 1; c.epoch < 4; c.epoch++ {
			require.NoError(t, c.together(r, prog, 1, 64, -1, 0, func(r int) kernel.Exchange {
				return c.exchange(kernel.Handshake, 0, 1, 0, r)
			}))
			for r := range n {
				require.Equal(t, kernel.Status{Code: kernel.StatusDone, Epoch: uint32(c.epoch)}, c.status(r))
			}
		}
	}
}

// A rank that is missing: all threads of the others leave, at the deadline or
// when the host says so, and say for whom they waited.
func TestEmbeddedGivesUp(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 16))
	for _, k := range []kernel.Kind{kernel.OneShot, kernel.TwoShotLL, kernel.TwoShot, kernel.Gather, kernel.Handshake} {
		typ, count := dtype.Type(0), 100
		if k.Reduces() {
			typ = dtype.Float32
		}
		if k == kernel.Handshake {
			count = 1
		}
		prog := compileEmbedded(t, kernel.ExchangeModule(k, typ), kernel.ExchangeEntry(k, typ))
		for _, want := range []kernel.StatusCode{kernel.StatusTimedOut, kernel.StatusAborted} {
			const n, missing = 3, 1
			c := newCrew(t, n, 400, 1200, 0, crewArena(n, 400, 1200))
			c.epoch = 77
			deadline := uint64(40_000)
			if want == kernel.StatusAborted {
				deadline = 1e12
				for r := range n {
					c.at(c.control[r]+kernel.AbortWord, 4)[0] = 1
				}
			}
			require.NoError(t, c.together(r, prog, 1, 64, missing, typ, func(r int) kernel.Exchange {
				x := c.exchange(k, 0, count, 0, r)
				x.DeadlineNs = deadline
				return x
			}))
			for r := range n {
				if r != missing {
					require.Equal(t, kernel.Status{Code: want, Peer: missing, Epoch: 77}, c.status(r), "%v", k)
				}
			}
		}
	}
}

// The echo's answers to two batches, in either half.
func TestEmbeddedEcho(t *testing.T) {
	prog := compileEmbedded(t, kernel.ExchangeModule(kernel.EchoBulk, 0), kernel.ExchangeEntry(kernel.EchoBulk, 0))
	r := rand.New(rand.NewPCG(17, 18))
	for _, k := range []kernel.Kind{kernel.EchoWords, kernel.EchoBulk} {
		c := newCrew(t, 2, 1600, 0, 0, crewArena(2, 1600, 0))
		c.epoch = 5
		e := newEcho(c.exchange(k, 0, 1600, 0, 1), 2, 2, c.at(c.area[0], int(c.bytes)), c.at(c.area[1], int(c.bytes)))
		for b := range uint64(2) {
			e.post(b)
		}
		_, err := ptxvm.Together(r, c.mem, uint64(crewDeadline), ptxvm.Launch{Program: prog, Grid: [3]uint32{2}, Block: [3]uint32{64}, Params: e.x.Append(nil, 0)})
		require.NoError(t, err)
		for b := range uint64(2) {
			all, wrong := e.take(b)
			require.True(t, all)
			require.Equal(t, -1, wrong)
		}
		require.Zero(t, c.status(1))
	}
}
