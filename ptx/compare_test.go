// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
	"github.com/geforce-p2p/geforce-p2p/internal/ptxvm"
)

// clone is an arena with the same buffers at the same addresses and memory of
// its own.
func (a *arena) clone() *arena {
	c := *a
	c.dev, c.host, c.regions = bytes.Clone(a.dev[:a.devN]), bytes.Clone(a.host[:a.hostN]), nil
	for _, g := range a.regions {
		n, mem, at := uint64(len(g.Bytes)), c.host, c.hostAt
		if g.Base-a.devAt < uint64(len(a.dev)) {
			mem, at = c.dev, c.devAt
		}
		c.regions = append(c.regions, ptxvm.Region{Base: g.Base, Bytes: mem[g.Base-at:][:n:n]})
	}
	return &c
}

// A comparison is what a kernel left on a device, held against what the
// interpreter of its PTX left on a copy of the memory.
type comparison struct {
	Kernel   string `json:"kernel"`
	Type     string `json:"type,omitempty"`
	Op       string `json:"op,omitempty"`
	Cases    int    `json:"cases"`
	Elements int    `json:"elements"`
	// Elements that are not alike: those of which one is a number, or whose NaN
	// must have certain bits; and those that are two NaNs of other bits, which sum,
	// prod and avg leave open.
	Different int `json:"different"`
	OtherNaN  int `json:"other_nan_bits"`
}

// add compares a destination.
func (c *comparison) add(t dtype.Type, exact bool, device, interpreted []byte) {
	n := t.Size()
	c.Elements += len(device) / n
	for i := 0; i+n <= len(device); i += n {
		x, y := bytes.Clone(device[i:i+n]), bytes.Clone(interpreted[i:i+n])
		if bytes.Equal(x, y) {
			continue
		}
		settle(x, t)
		settle(y, t)
		if !exact && bytes.Equal(x, y) {
			c.OtherNaN++
		} else {
			c.Different++
		}
	}
}

// extent is what is compared: counts of elements of a size, and in which shapes
// or of which kernels; and what random data is drawn from.
type extent struct {
	counts func(size int) []int
	some   func(count int, parts ...int) bool
	seed   uint64
}

// everything is up to 64 KiB a buffer, from a seed.
func everything(seed uint64) extent {
	return extent{
		counts: func(size int) []int { return []int{1, 37, 4 << 10 / size, 8<<10/size + 3, 64 << 10 / size} },
		some:   func(int, ...int) bool { return true },
		seed:   seed,
	}
}

// little is every kernel at a small size, and some at 64 KiB.
func little() extent {
	return extent{
		counts: func(size int) []int { return []int{19, 64 << 10 / size} },
		some: func(count int, parts ...int) bool {
			sum := 0
			for _, p := range parts {
				sum += p
			}
			return count == 19 || sum%37 == 0
		},
	}
}

// compareFolds is all types and ops, in all shapes.
func compareFolds(t *testing.T, b *bench, e extent) (all []comparison) {
	for _, typ := range dtype.Types {
		for _, op := range dtype.Ops {
			entry := kernel.FoldEntry(typ, op)
			p := compileEmbedded(t, kernel.FoldModule(typ), entry)
			r := rand.New(rand.NewPCG(e.seed<<8|uint64(typ), 200+uint64(op)))
			sum := comparison{Kernel: entry, Type: typ.String(), Op: op.String()}
			for _, count := range e.counts(typ.Size()) {
				for i, s := range shapes(typ) {
					if !e.some(count, i, int(typ), 3*int(op)) {
						continue
					}
					c := b.arena.newFold(typ, op, count, s, true, r)
					mine := b.arena.clone()
					b.launch(kernel.FoldModule(typ), entry, uint64(len(c.dst)), c.f.Append(nil))
					require.NoError(t, mine.runOn(p, int(kernel.Blocks(uint64(len(c.dst)))), kernel.BlockThreads, c.f.Append(nil)))
					at := int(c.f.Dst - b.arena.devAt)
					of := typ
					if s.dstWide {
						of = typ.Wide()
					}
					sum.Cases++
					sum.add(of, c.exact, c.dst, mine.dev[at:at+len(c.dst)])
					copy(mine.dev[at:], c.dst)
					require.True(t, bytes.Equal(b.arena.dev[:b.arena.devN], mine.dev) && bytes.Equal(b.arena.host[:b.arena.hostN], mine.host), "%s, %d elements, %s: beside the destination", entry, count, s.name)
				}
			}
			all = append(all, sum)
		}
	}
	return all
}

// compareExchanges is all kinds that move data, their types and ops, by two
// ranks or four.
func compareExchanges(t *testing.T, d *cuda.Driver, e extent) (all []comparison) {
	most := 256
	for _, size := range []int{1, 2, 4, 8} {
		for _, count := range e.counts(size) {
			most = max(most, count*size+256)
		}
	}
	for _, n := range []int{2, 4} {
		s := newStage(t, d, PTX, n, most, most*n, 0)
		r := rand.New(rand.NewPCG(e.seed<<8|uint64(n), 300))
		compare := func(k kernel.Kind, typ dtype.Type, op dtype.Op, size int) {
			sum := comparison{Kernel: fmt.Sprintf("%v of %d ranks", k, n)}
			of, exact := dtype.Uint8, true
			if k.Reduces() {
				of, exact = typ, !typ.Float() || op == dtype.Min || op == dtype.Max
				sum.Type, sum.Op = typ.String(), op.String()
			}
			p := compileEmbedded(t, kernel.ExchangeModule(k, typ), kernel.ExchangeEntry(k, typ))
			f := s.function(k, typ)
			for _, count := range e.counts(size) {
				if !e.some(count, n, int(k), 2*int(typ), 5*int(op)) || n > 2 && count*size == 64<<10 && int(op) != int(typ)%len(dtype.Ops) {
					continue // of many ranks and threads some are enough
				}
				s.epoch++
				for rank := range n {
					fill(s.at(s.in[rank], count*size), of, r)
				}
				s.upload()
				mine := s.mem.clone()
				grid, block := kernel.ExchangeShape(k, uint64(count*size), n, n)
				s.doing = fmt.Sprintf("%v of %d by %d ranks", k, count, n)
				var members []kernel.Coop
				for rank := range n {
					x := s.exchange(k, op, count, 0, rank)
					params := x.Append(nil, typ)
					s.launch(f, grid, block, rank, params)
					members = append(members, ptxvm.NewMember(ptxvm.Launch{Program: p, Grid: [3]uint32{grid}, Block: [3]uint32{block}, Params: params}, x.DeadlineNs))
				}
				s.wait()
				s.download()
				for len(members) > 0 {
					left := members[:0]
					moved := false
					for _, m := range members {
						done, on, err := m.Step(mine)
						require.NoError(t, err)
						moved = moved || on
						if !done {
							left = append(left, m)
						}
					}
					members = left
					require.True(t, moved || len(left) == 0, "the interpreted ranks wait for each other")
				}
				out := count * size
				if k == kernel.Gather {
					out *= n
				}
				sum.Cases++
				for rank := range n {
					require.Zero(t, s.status(rank))
					at := s.out[rank] - s.mem.devAt
					got := s.device()[at : int(at)+out]
					sum.add(of, exact, got, mine.dev[at:])
					copy(mine.dev[at:], got)
				}
				require.True(t, bytes.Equal(s.device(), mine.dev), "%s: beside the destination", sum.Kernel)
			}
			all = append(all, sum)
		}
		for _, typ := range dtype.Types {
			for _, op := range dtype.Ops {
				for _, k := range reducing {
					compare(k, typ, op, typ.Size())
				}
			}
		}
		compare(kernel.Gather, 0, 0, 1)
	}
	return all
}

// What the interpreter does is what the device does, for every kernel, type and
// op; and what a twin does. The comparison with a GPU is written where figures
// are asked for.
func TestInterpreterAgrees(t *testing.T) {
	t.Run("sim", func(t *testing.T) {
		if slow {
			t.Skip("hundreds of comparisons")
		}
		e := little()
		if os.Getenv("GP_SOAK") != "" {
			e = everything(uint64(time.Now().UnixNano()))
			t.Logf("seed %d", e.seed)
		}
		for _, c := range append(compareFolds(t, newBench(t, gputest.Sim(t, "1xh200"), PTX), e), compareExchanges(t, gputest.Sim(t, "1xh200"), e)...) {
			require.Zero(t, c.Different, "%+v", c)
			require.NotZero(t, c.Elements)
		}
	})
	t.Run("gpu", func(t *testing.T) {
		d := gputest.Hardware(t)
		b := newBench(t, d, PTX)
		name, err := b.cc.Device().Name()
		require.NoError(t, err)
		start := time.Now()
		folds := compareFolds(t, b, everything(0))
		exchanges := compareExchanges(t, d, everything(0))
		all := append(folds, exchanges...)
		t.Logf("%d kernels in %v", len(all), time.Since(start))
		if dir := os.Getenv("GP_MEASURE_DIR"); dir != "" {
			b, err := json.MarshalIndent(map[string]any{"gpu": name, "ptx": "embedded", "seconds": time.Since(start).Seconds(), "comparisons": all}, "", " ")
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "interpreter.json"), b, 0o666))
		}
		for _, c := range all {
			require.Zero(t, c.Different, "%+v", c)
		}
	})
}
