// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
	"github.com/geforce-p2p/geforce-p2p/ptx/internal/emu"
	"github.com/geforce-p2p/geforce-p2p/ptx/internal/isa"
)

var parsed = struct {
	sync.Mutex
	modules map[kernel.Module]*isa.Module
}{modules: map[kernel.Module]*isa.Module{}}

func compileEmbedded(t *testing.T, m kernel.Module, entry string) *emu.Kernel {
	t.Helper()
	parsed.Lock()
	defer parsed.Unlock()
	mod := parsed.modules[m]
	if mod == nil {
		text, err := Embedded(m)
		require.NoError(t, err)
		mod, err = isa.Parse(text)
		require.NoError(t, err)
		parsed.modules[m] = mod
	}
	k, err := emu.Compile(mod, entry)
	require.NoError(t, err)
	return k
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
						paint(a.dev)
						paint(a.host)
						name := fmt.Sprintf("%s, %d elements, %s", entry, count, s.name)
						c := a.newFold(typ, op, count, s, true, r)
						before, host := bytes.Clone(a.dev), bytes.Clone(a.host)
						require.NoError(t, k.Run(2, threads, c.f.Append(nil), a), name)
						c.check(t, name)
						copy(c.dst, before[c.f.Dst-a.devAt:])
						require.True(t, bytes.Equal(before, a.dev) && bytes.Equal(host, a.host), "%s: wrote outside of the destination", name)
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
				require.NoError(t, k.Run(g[0], g[1], c.f.Append(nil), a))
				c.check(t, fmt.Sprint(typ, g, s.name))
			}
		}
	}
}

// copyCase lays out a copy of n bytes and returns its parameters and slices.
func (a *arena) newCopy(n, dstOff, srcOff int, fromHost, toHost bool, r *rand.Rand) (c kernel.Copy, dst, src []byte) {
	a.devN, a.hostN = 0, 0
	c.Bytes = uint64(n)
	c.Src, src = a.place(n, srcOff, fromHost)
	c.Dst, dst = a.place(n, dstOff, toHost)
	fill(src, dtype.Uint8, r)
	return c, dst, src
}

func TestEmbeddedCopy(t *testing.T) {
	k := compileEmbedded(t, kernel.CopyModule(), kernel.CopyEntry)
	r := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 255, 4096, 4099} {
		a := newArena(n)
		for _, off := range [][2]int{{0, 0}, {1, 1}, {15, 15}, {8, 0}, {3, 11}, {4, 0}, {1, 5}, {2, 0}, {1, 3}, {0, 1}, {5, 2}} {
			paint(a.dev)
			paint(a.host)
			c, dst, src := a.newCopy(n, off[0], off[1], true, false, r)
			before, host := bytes.Clone(a.dev), bytes.Clone(a.host)
			require.NoError(t, k.Run(2, 40, c.Append(nil), a))
			require.True(t, bytes.Equal(src, dst), "%d bytes, offsets %v", n, off)
			copy(dst, before[c.Dst-a.devAt:])
			require.True(t, bytes.Equal(before, a.dev) && bytes.Equal(host, a.host), "%d bytes, offsets %v: wrote outside", n, off)
		}
	}
}
