// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
	"github.com/geforce-p2p/geforce-p2p/internal/ptxvm"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

var compiled = struct {
	sync.Mutex
	modules map[kernel.Module]map[string]*ptxvm.Program
}{modules: map[kernel.Module]map[string]*ptxvm.Program{}}

// compileEmbedded is an entry point of the PTX that ships.
func compileEmbedded(t testing.TB, m kernel.Module, entry string) *ptxvm.Program {
	t.Helper()
	compiled.Lock()
	defer compiled.Unlock()
	mod := compiled.modules[m]
	if mod == nil {
		text, err := Embedded(m)
		require.NoError(t, err)
		mod, err = ptxvm.Load(text)
		require.NoError(t, err)
		compiled.modules[m] = mod
	}
	require.NotNil(t, mod[entry], entry)
	return mod[entry]
}

// runOn runs a launch on an arena.
func (a *arena) runOn(p *ptxvm.Program, grid, block int, params []byte) error {
	_, err := ptxvm.Run(ptxvm.Launch{Program: p, Grid: [3]uint32{uint32(grid)}, Block: [3]uint32{uint32(block)}, Params: params}, a)
	return err
}

// foldOn runs a fold on the arena and compares everything that it holds then.
func (a *arena) foldOn(p *ptxvm.Program, c *foldCase, grid, block int) error {
	dev, host := bytes.Clone(a.dev[:a.devN]), bytes.Clone(a.host[:a.hostN])
	if err := a.runOn(p, grid, block, c.f.Append(nil)); err != nil {
		return err
	}
	if err := c.compare(); err != nil {
		return err
	}
	copy(c.dst, dev[c.f.Dst-a.devAt:])
	if !bytes.Equal(dev, a.dev[:a.devN]) || !bytes.Equal(host, a.host[:a.hostN]) {
		return errors.New("wrote outside of the destination")
	}
	return nil
}

// newArena is memory for cases of up to count elements, filled with the guard's
// byte, at addresses that no Go pointer has.
func newArena(count int) *arena {
	n := (kernel.MaxInputs + 1) * (count*8 + 1024)
	return &arena{devAt: 0x7f0000000000, hostAt: 0x10000000000, dev: make([]byte, n), host: make([]byte, n)}
}

func paint(b []byte) {
	if len(b) == 0 {
		return
	}
	b[0] = guardByte
	repeat(b, 1)
}

// slow is where a test costs ten times as much and can find little that it does
// not find elsewhere: a single thread runs each of these, without races.
var slow = testenv.Race || !testenv.Optimized()

// The PTX that ships, instruction by instruction, against the reference.
func TestEmbeddedFold(t *testing.T) {
	threads := 96
	if slow {
		threads = 5
	}
	for _, typ := range dtype.Types {
		for _, op := range dtype.Ops {
			entry := kernel.FoldEntry(typ, op)
			t.Run(entry, func(t *testing.T) {
				t.Parallel()
				k := compileEmbedded(t, kernel.FoldModule(typ), entry)
				r := rand.New(rand.NewPCG(uint64(typ), uint64(op)))
				for _, count := range lengths {
					if slow && count > 17 {
						continue
					}
					a := newArena(count)
					for i, s := range shapes(typ) {
						if count == 4096 && (i+int(op))%5 != 0 {
							continue // long ones are slow here
						}
						c := a.newFold(typ, op, count, s, true, r)
						require.NoError(t, a.foldOn(k, c, 2, threads), "%s, %d elements, %s", entry, count, s.name)
					}
				}
			})
		}
	}
}

// Every kernel takes any grid: also one thread, and more threads than elements.
func TestEmbeddedFoldGrids(t *testing.T) {
	types := []dtype.Type{dtype.Float32, dtype.Int8, dtype.BFloat16}
	if slow {
		types = types[:1]
	}
	for _, typ := range types {
		k := compileEmbedded(t, kernel.FoldModule(typ), kernel.FoldEntry(typ, dtype.Sum))
		r := rand.New(rand.NewPCG(1, 2))
		a := newArena(333)
		for _, g := range [][2]int{{1, 1}, {1, 32}, {7, 3}, {4, 512}} {
			for _, s := range shapes(typ) {
				c := a.newFold(typ, dtype.Sum, 333, s, false, r)
				require.NoError(t, a.foldOn(k, c, g[0], g[1]), "%v %v %s", typ, g, s.name)
			}
		}
	}
}

// copyCase lays out a copy of n bytes and returns its parameters and slices.
func (a *arena) newCopy(n, dstOff, srcOff int, fromHost, toHost bool, r *rand.Rand) (c kernel.Copy, dst, src []byte) {
	a.reset()
	c.Bytes = uint64(n)
	c.Src, src = a.place(n, srcOff, fromHost)
	c.Dst, dst = a.place(n, dstOff, toHost)
	fill(src, dtype.Uint8, r)
	return c, dst, src
}

// copyOn runs a copy on the arena, as foldOn does a fold.
func (a *arena) copyOn(p *ptxvm.Program, n int, off [2]int, r *rand.Rand) error {
	c, dst, src := a.newCopy(n, off[0], off[1], true, false, r)
	a.unwritten(c.Dst)
	dev, host := bytes.Clone(a.dev[:a.devN]), bytes.Clone(a.host[:a.hostN])
	if err := a.runOn(p, 2, 40, c.Append(nil)); err != nil {
		return err
	}
	if !bytes.Equal(src, dst) {
		return errors.New("other bytes")
	}
	copy(dst, dev[c.Dst-a.devAt:])
	if !bytes.Equal(dev, a.dev[:a.devN]) || !bytes.Equal(host, a.host[:a.hostN]) {
		return errors.New("wrote outside of the destination")
	}
	return nil
}

var copyOffsets = [][2]int{{0, 0}, {1, 1}, {15, 15}, {8, 0}, {3, 11}, {4, 0}, {1, 5}, {2, 0}, {1, 3}, {0, 1}, {5, 2}}

func TestEmbeddedCopy(t *testing.T) {
	p := compileEmbedded(t, kernel.CopyModule(), kernel.CopyEntry)
	r := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 255, 4096, 4099, 64 << 10} {
		a := newArena(n/8 + 2)
		for _, off := range copyOffsets {
			require.NoError(t, a.copyOn(p, n, off, r), "%d bytes, offsets %v", n, off)
		}
	}
}
