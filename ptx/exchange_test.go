// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
	"github.com/geforce-p2p/geforce-p2p/ptx/internal/emu"
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
}

// newCrew lays out n ranks with buffers of so many bytes, off bytes behind a
// multiple of 256. Device memory has In and Out, host memory the rest.
func newCrew(t testing.TB, n, most, off int, mem *arena) *crew {
	c := &crew{t: t, n: n, most: most, mem: mem}
	for _, k := range []kernel.Kind{kernel.OneShot, kernel.TwoShotLL, kernel.TwoShot, kernel.Gather} {
		c.bytes = max(c.bytes, kernel.AreaNeed(k, uint64(most), n))
	}
	mem.devN, mem.hostN = 0, 0
	for r := range n {
		in, _ := mem.place(most, off, false)
		out, _ := mem.place(most*n, off, false)
		page, b := mem.place(kernel.ControlBytes, 0, true)
		clear(b)
		c.area[r], b = mem.place(int(c.bytes), 0, true)
		clear(b)
		c.in, c.out, c.control = append(c.in, in), append(c.out, out), append(c.control, page)
	}
	return c
}

// crewArena is memory for a crew.
func crewArena(n, most int) *arena {
	b := int(max(kernel.AreaNeed(kernel.OneShot, uint64(most), n), kernel.AreaNeed(kernel.TwoShot, uint64(most), n)))
	return &arena{
		devAt: 0x7f0000000000, hostAt: 0x10000000000,
		dev: make([]byte, n*(most*(n+1)+2048)), host: make([]byte, n*(b+2048)),
	}
}

func (c *crew) exchange(k kernel.Kind, op dtype.Op, count int, divisor uint64, r int) kernel.Exchange {
	return kernel.Exchange{
		Kind: k, Op: op, In: c.in[r], Out: c.out[r], Count: uint64(count), Divisor: divisor, Rank: uint64(r), N: uint64(c.n),
		Epoch: c.epoch, DeadlineNs: 1e12, Control: c.control[r], AreaBytes: c.bytes, Area: c.area,
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

// emulate runs all ranks' launches but the missing one's.
func (c *crew) emulate(r *rand.Rand, k *emu.Kernel, grid, block, missing int, typ dtype.Type, x func(r int) kernel.Exchange) error {
	var ls []emu.Launch
	for i := range c.n {
		if i != missing {
			e := x(i)
			ls = append(ls, emu.Launch{Kernel: k, Grid: grid, Block: block, Params: e.Append(nil, typ)})
		}
	}
	return emu.Together(r, c.mem, ls...)
}

var reducing = []kernel.Kind{kernel.OneShot, kernel.TwoShotLL, kernel.TwoShot}

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
						c := newCrew(t, n, count*s, off, crewArena(n, count*s+32))
						c.epoch = 1<<32 - 3
						for e := range 2 {
							op := dtype.Ops[(i+j+3*e)%5]
							divisor := uint64(0)
							if op == dtype.Avg && j > 0 {
								divisor = uint64(n)
							}
							c.epoch++
							ins := make([][]byte, n)
							for r2 := range n {
								fill(c.at(c.in[r2], count*s), typ, r)
								ins[r2] = bytes.Clone(c.at(c.in[r2], count*s))
							}
							want := make([]byte, count*s)
							kernel.Reduce(typ, op, want, false, ins, 0, divisor)
							inPlace := (i+j+e)%2 == 0
							before := bytes.Clone(c.mem.dev)
							name := fmt.Sprintf("%v %v of %d %v by %d ranks, offset %d, in place %t", k, op, count, typ, n, off, inPlace)
							require.NoError(t, c.emulate(r, prog, 1+j%2, 32*(1+j%3%2), -1, typ, func(r int) kernel.Exchange {
								x := c.exchange(k, op, count, divisor, r)
								if inPlace {
									x.Out = x.In
								}
								return x
							}), name)
							for r2 := range n {
								out := c.out[r2]
								if inPlace {
									out = c.in[r2]
								}
								got := c.at(out, count*s)
								if typ.Float() && op != dtype.Min && op != dtype.Max {
									settle(got, typ)
									settle(want, typ)
								}
								require.True(t, bytes.Equal(want, got), "%s: rank %d", name, r2)
								require.Zero(t, c.status(r2), name)
								copy(got, before[out-c.mem.devAt:])
							}
							require.True(t, bytes.Equal(before, c.mem.dev), "%s: wrote outside", name)
						}
					}
				}
			})
		}
	}
}
