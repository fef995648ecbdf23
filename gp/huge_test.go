// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"fmt"
	"strconv"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/gp/internal/plan"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// bounds is a driver that, while it is idle, holds every copy and fold to the
// memory there is and counts the bytes, which do not move: there are too many.
type bounds struct {
	idle
	t      testing.TB
	device []touch
	host   []touch
	moved  uint64
}

func (b *bounds) MemAlloc(n uint64) (api.Ptr, api.Code) {
	p, c := b.idle.MemAlloc(n)
	b.device = append(b.device, touch{lo: uint64(p), hi: uint64(p) + n})
	return p, c
}

func (b *bounds) MemHostAlloc(n uint64, f api.HostAllocFlag) (unsafe.Pointer, api.Code) {
	p, c := b.idle.MemHostAlloc(n, f)
	b.host = append(b.host, touch{lo: uint64(uintptr(p)), hi: uint64(uintptr(p)) + n})
	return p, c
}

func (b *bounds) within(in []touch, at, n uint64) {
	for _, m := range in {
		if m.lo <= at && at < m.hi {
			require.LessOrEqual(b.t, at+n, m.hi)
			return
		}
	}
	b.t.Fatalf("%d bytes at %#x, where no memory is", n, at)
}

func (b *bounds) copies(dev api.Ptr, host unsafe.Pointer, n uint64) {
	b.within(b.device, uint64(dev), n)
	b.within(b.host, uint64(uintptr(host)), n)
	b.moved += n
}

func (b *bounds) MemcpyDtoHAsync(dst unsafe.Pointer, src api.Ptr, n uint64, s api.Stream) api.Code {
	if b.on {
		b.copies(src, dst, n)
	}
	return b.idle.MemcpyDtoHAsync(dst, src, n, s)
}

func (b *bounds) MemcpyHtoDAsync(dst api.Ptr, src unsafe.Pointer, n uint64, s api.Stream) api.Code {
	if b.on {
		b.copies(dst, src, n)
	}
	return b.idle.MemcpyHtoDAsync(dst, src, n, s)
}

func (b *bounds) MemcpyDtoDAsync(dst, src api.Ptr, n uint64, s api.Stream) api.Code {
	if b.on {
		b.within(b.device, uint64(dst), n)
		b.within(b.device, uint64(src), n)
	}
	return b.idle.MemcpyDtoDAsync(dst, src, n, s)
}

func (b *bounds) Memcpy2DAsync(c *api.Copy2D, s api.Stream) api.Code {
	if b.on {
		require.LessOrEqual(b.t, max(c.SrcPitch, c.DstPitch), uint64(plan.MaxPitch))
		for i := range c.Height {
			if c.SrcHost != nil {
				b.copies(c.DstDevice+api.Ptr(i*c.DstPitch), unsafe.Add(c.SrcHost, i*c.SrcPitch), c.Width)
			} else {
				b.copies(c.SrcDevice+api.Ptr(i*c.SrcPitch), unsafe.Add(c.DstHost, i*c.DstPitch), c.Width)
			}
		}
	}
	return b.idle.Memcpy2DAsync(c, s)
}

func (b *bounds) LaunchKernel(f api.Function, l *api.Launch) api.Code {
	if p, ok := kernel.ParseFold(l.Params); b.on && ok {
		// Of uint8: what a fold reads and writes is as long as it has elements.
		b.within(b.device, p.Dst, p.Count)
		for _, in := range p.In[:p.N] {
			b.within(b.device, in, p.Count)
		}
	}
	return b.idle.LaunchKernel(f, l)
}

// TestHugeRanges: calls on buffers beyond 2 and 4 GiB stay within them, move all
// bytes, and ask for no row that lies farther behind another than the driver takes.
func TestHugeRanges(t *testing.T) {
	testenv.SkipUnlessOptimized(t)
	if strconv.IntSize < 64 {
		t.Skip("no slice is that long")
	}
	const ranks = 3
	n := 436908
	n *= 3 * 4096 // 5 GiB
	for _, block := range []bool{true, false} {
		t.Run(fmt.Sprintf("block=%t", block), func(t *testing.T) {
			d := machineOf(t, "8x4090")
			if block {
				d = oneNode(t, "8x4090")
			}
			b := &bounds{idle: idle{Driver: seam(d)}, t: t}
			opts := options(t, over(t, b), ranks)
			opts.PinnedBytes = 34 << 20
			g := open(t, opts)
			t.Cleanup(func() { b.on = false })
			var long, other, wide []gp.Buffer
			for _, r := range g.Ranks() {
				m := alloc(t, r, gp.TypeUint8, 2*n+3*(n/2))
				long, other = append(long, m.Sub(0, n)), append(other, m.Sub(n, 2*n))
				wide = append(wide, m.Sub(2*n, 2*n+3*(n/2)))
			}
			o := g.With(gp.CallOptions{Chunk: 16 << 20})
			direct := g.With(gp.CallOptions{Chunk: 16 << 20, Algorithm: gp.AlgorithmDirect})
			ring := g.With(gp.CallOptions{Chunk: 16 << 20, Algorithm: gp.AlgorithmRing})
			// Kernels are loaded, and lanes and scratch memory are there, by buffers of
			// their own: memory that nobody touches is none, and must stay so.
			var little, third []gp.Buffer
			for _, r := range g.Ranks() {
				little, third = append(little, alloc(t, r, gp.TypeUint8, 999)), append(third, alloc(t, r, gp.TypeUint8, 333))
			}
			for _, o := range []gp.Ops{direct, ring} {
				w, err := o.AllReduce(little, gp.Max)
				wait(t, w, err)
			}
			_, err := direct.With(gp.CallOptions{Chunk: 99}).ReduceScatter(third, little, gp.Max)
			require.NoError(t, err)
			require.NoError(t, g.Synchronize(background))
			b.on = true
			for _, c := range []struct {
				name  string
				call  func() (gp.Work, error)
				bytes int // up and down, of all ranks
			}{
				{"copy", func() (gp.Work, error) { return o.Copy(other[1], long[0]) }, 2 * n},
				{"all_reduce", func() (gp.Work, error) { return direct.AllReduce(long, gp.Max) }, 3*n + 2*2*n},
				{"ring all_reduce", func() (gp.Work, error) { return ring.AllReduce(long, gp.Max) }, 2 * 2 * 2 * n},
				{"all_gather", func() (gp.Work, error) { return direct.AllGather(wide, sub(long, n/2)) }, (3 + 6) * (n / 2)},
				{"reduce_scatter", func() (gp.Work, error) { return direct.ReduceScatter(sub(other, n/2), wide, gp.Max) }, 2 * 6 * (n / 2)},
				{"all_to_all", func() (gp.Work, error) { return o.AllToAll(other, long) }, 2 * 6 * (n / 3)},
				{"broadcast", func() (gp.Work, error) { return o.Broadcast(other, long[1]) }, n + 2*n},
				{"reduce", func() (gp.Work, error) { return o.Reduce(other[2], long, gp.Max) }, 2*n + 2*n + 2*(n/3)*2},
			} {
				b.moved = 0
				_, err := c.call()
				require.NoError(t, err, c.name)
				require.InDelta(t, float64(c.bytes), float64(b.moved), 64<<10, c.name)
			}
			require.NoError(t, g.Err())
		})
	}
}

func sub(bufs []gp.Buffer, n int) (s []gp.Buffer) {
	for _, b := range bufs {
		s = append(s, b.Sub(0, n))
	}
	return s
}

// TestOddRows: parts of odd lengths, at odd distances, by strided copies.
func TestOddRows(t *testing.T) {
	gputest.Parallel(t)
	for _, ranks := range []int{3, 4, 5} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			g := group(t, machineOf(t, "2x4090"), ranks)
			f := newFields(t, g, 150_000)
			for _, c := range operations(ranks) {
				if c.alg != gp.AlgorithmDirect {
					continue
				}
				c.typ, c.red = gp.TypeUint8, gp.Max
				for _, n := range []int{513, 4099, 20_001} {
					c.n, c.root, c.chunk = n, 1, 6*1024
					c.inPlace = c.op != "all_to_all" && n == 4099
					f.run(c)
				}
			}
		})
	}
}
