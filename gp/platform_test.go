// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/ptx"
)

// stingy is a driver that pins so many bytes and no more. It counts them.
type stingy struct {
	api.Driver
	left uint64
	code api.Code
	have map[uintptr]uint64
}

func newStingy(d api.Driver, limit uint64, code api.Code) *stingy {
	return &stingy{Driver: d, left: limit, code: code, have: map[uintptr]uint64{}}
}

func (s *stingy) MemHostAlloc(n uint64, flags api.HostAllocFlag) (p unsafe.Pointer, c api.Code) {
	if n > s.left {
		return nil, s.code
	}
	if p, c = s.Driver.MemHostAlloc(n, flags); c == api.Success {
		s.left -= n
		s.have[uintptr(p)] = n
	}
	return p, c
}

func (s *stingy) MemFreeHost(p unsafe.Pointer) api.Code {
	s.left += s.have[uintptr(p)]
	delete(s.have, uintptr(p))
	return s.Driver.MemFreeHost(p)
}

// TestPinnedRefusal: where the driver pins less than the budget, every rank
// makes do with an equal share of less; where it pins next to nothing, the
// error says what to look at, and nothing leaks.
func TestPinnedRefusal(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		n := 20 << 20
		if fewer {
			n = 4 << 20
		}
		for _, limit := range []uint64{32 << 20, 9 << 20, 2 * gp.MinPinnedBytes} {
			for _, code := range []api.Code{api.OutOfMemory, api.OperatingSystem} {
				if fewer && (code == api.OutOfMemory) != (limit == 9<<20) {
					continue
				}
				s := newStingy(seam(d), limit, code)
				var log buffer
				o := options(t, over(t, s), 2)
				o.PinnedBytes = 0 // the default, 32 MiB a rank
				o.Logger = slog.New(slog.NewTextHandler(&log, nil))
				g, err := gp.Open(o)
				require.NoError(t, err, "of %d bytes", limit)
				require.Eventually(t, func() bool { return strings.Contains(log.String(), "less pinned memory") }, 5*time.Second, time.Millisecond)
				have := g.Stats().PinnedBytes
				require.GreaterOrEqual(t, have, uint64(2<<20))
				require.LessOrEqual(t, have, limit)
				data := randomBytes(generator(limit), n)
				r0, r1 := g.Ranks()[0], g.Ranks()[1]
				src, dst := alloc(t, r0, gp.TypeUint8, n), alloc(t, r1, gp.TypeUint8, n)
				require.NoError(t, src.Write(background, data))
				for _, pair := range [][2]gp.Buffer{{dst, src}, {src, dst}} { // both have their share
					w, err := g.With(gp.CallOptions{Chunk: 8 << 20}).Copy(pair[0], pair[1])
					wait(t, w, err)
				}
				holds(t, dst, data)
				w, err := g.AllReduce([]gp.Buffer{src, dst}, gp.Max)
				wait(t, w, err)
				holds(t, dst, data)
				require.NoError(t, g.Close())
				require.Empty(t, s.have, "pinned memory after Close")
			}
		}
		for _, limit := range []uint64{0, 1 << 20, gp.MinPinnedBytes, 2*gp.MinPinnedBytes - 1} {
			s := newStingy(seam(d), limit, api.OutOfMemory)
			o := options(t, over(t, s), 2)
			o.PinnedBytes = 0
			g, err := gp.Open(o)
			require.Nil(t, g)
			require.ErrorIs(t, err, cuda.ErrOutOfMemory)
			for _, hint := range []string{"pinned", "RLIMIT_MEMLOCK", "memory.max", "WDDM"} {
				require.ErrorContains(t, err, hint)
			}
			require.Empty(t, s.have, "pinned memory after a refusal")
		}
	})
	// The machine's own limit, and its own report of what is left.
	d := simulated(t, sim.PinnedLimit(10<<20))
	o := options(t, d, 2)
	o.PinnedBytes = 0
	g := open(t, o)
	there, back := routes(t, g, gp.CallOptions{})
	require.Equal(t, []string{"staged", "staged"}, []string{there, back})
}

// TestWithoutNVRTC: the embedded PTX gives the same results, and where that is
// refused too, the error says so and copies still work.
func TestWithoutNVRTC(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		t.Setenv(ptx.EnvKernels, "ptx")
		g := group(t, d, 2)
		f := newFields(t, g, (5000+64)*8)
		for i, typ := range allTypes {
			f.allReduce(reduceCase{reduceAlgorithms[i%2], typ, allOps[i%len(allOps)], 4999, 2048, i%3 == 0})
		}

		for _, code := range []api.Code{api.UnsupportedPTXVersion, api.InvalidPTX, api.NoBinaryForGPU, api.JITCompilerNotFound} {
			tapped, tp := gputest.Tapped(t, d)
			g := group(t, tapped, 2)
			rule := tp.FailFrom("ModuleLoadData", 1, code)
			var bufs []gp.Buffer
			for _, r := range g.Ranks() {
				b, err := gp.Upload(background, r, []float32{1, 2, 3, 4})
				require.NoError(t, err)
				bufs = append(bufs, b)
			}
			before := enqueuing(tp)
			_, err := g.AllReduce(bufs, gp.Sum)
			require.ErrorIs(t, err, ptx.ErrNoKernels)
			require.ErrorIs(t, err, errors.ErrUnsupported)
			require.ErrorIs(t, err, cuda.Code(code))
			require.ErrorContains(t, err, "fold_f32")
			require.Equal(t, before, enqueuing(tp), "nothing was enqueued")
			require.NotZero(t, rule.Hits())
			require.NoError(t, g.Err(), "the group is as good as before")

			there, back := routes(t, g, gp.CallOptions{})
			require.Equal(t, []string{"staged", "staged"}, []string{there, back})
			out := []gp.Buffer{alloc(t, g.Ranks()[0], gp.TypeFloat32, 8), alloc(t, g.Ranks()[1], gp.TypeFloat32, 8)}
			w, err := g.AllGather(out, bufs)
			wait(t, w, err)
			got := make([]float32, 8)
			require.NoError(t, gp.Download(background, got, out[1]))
			require.Equal(t, []float32{1, 2, 3, 4, 1, 2, 3, 4}, got)

			rule.Remove() // a driver that takes it after all is asked again
			w, err = g.AllReduce(bufs, gp.Sum)
			wait(t, w, err)
			require.NoError(t, gp.Download(background, got[:4], bufs[0]))
			require.Equal(t, []float32{2, 4, 6, 8}, got[:4])
		}
	})
}

// TestNoRoomForKernels: memory that runs out while kernels load is no verdict
// on them.
func TestNoRoomForKernels(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		x := newBench(t, d)
		b := []gp.Buffer{alloc(t, x.r0, gp.TypeUint64, 5), alloc(t, x.r1, gp.TypeUint64, 5)}
		x.tap.Reset()
		x.tap.Fail("ModuleLoadData", 1, api.OutOfMemory)
		_, err := x.g.AllReduce(b, gp.Sum)
		require.ErrorIs(t, err, cuda.ErrOutOfMemory)
		require.NotErrorIs(t, err, ptx.ErrNoKernels)
		w, err := x.g.AllReduce(b, gp.Sum)
		wait(t, w, err)
	})
}

// TestNoRoomForScratch: a ring that finds no device memory for its scratch has
// enqueued nothing; zero copy needs none.
func TestNoRoomForScratch(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		tapped, tp := gputest.Tapped(t, d)
		g := group(t, tapped, 2)
		var b []gp.Buffer
		for _, r := range g.Ranks() {
			v, err := gp.Upload(background, r, []uint64{1, 2, 3, 1 << 60})
			require.NoError(t, err)
			b = append(b, v)
		}
		rule := tp.FailFrom("MemAlloc", 1, api.OutOfMemory)
		_, err := g.AllReduce(b, gp.Sum)
		require.ErrorIs(t, err, cuda.ErrOutOfMemory)
		require.ErrorContains(t, err, "cuMemAlloc")
		require.NoError(t, g.Err())
		w, err := g.With(gp.CallOptions{Algorithm: gp.AlgorithmRingZeroCopy}).AllReduce(b, gp.Sum)
		wait(t, w, err)
		rule.Remove()
		w, err = g.AllReduce(b, gp.Sum)
		wait(t, w, err)
		got := make([]uint64, 4)
		require.NoError(t, gp.Download(background, got, b[1]))
		require.Equal(t, []uint64{4, 8, 12, 1 << 62}, got)
	})
}

// TestAliases: kernels reach pinned memory by the address that the driver gives,
// whether that is the host's or, as the simulator has it by default, another.
func TestAliases(t *testing.T) {
	for name, opts := range map[string][]sim.Option{"other address": nil, "same address": {sim.EqualHostPointers()}} {
		t.Run(name, func(t *testing.T) {
			d := simulated(t, opts...)
			g := group(t, d, 2)
			cc := g.Ranks()[0].Context()
			h, err := cc.HostAlloc(4096, 0)
			require.NoError(t, err)
			p, err := h.DevicePtr(cc)
			require.NoError(t, err)
			require.Equal(t, name == "same address", uintptr(p) == uintptr(h.Pointer()), "what the machine is for")
			require.NoError(t, h.Close())
			f := newFields(t, g, (5000+64)*8)
			for _, typ := range []gp.Type{gp.TypeFloat32, gp.TypeBFloat16, gp.TypeInt8} {
				f.allReduce(reduceCase{gp.AlgorithmRingZeroCopy, typ, gp.Sum, 5000, 1024, true})
				f.allReduce(reduceCase{gp.AlgorithmRingZeroCopy, typ, gp.Max, 5000, 0, false})
			}
		})
	}
	each(t, func(t *testing.T, d *cuda.Driver) {
		tapped, tp := gputest.Tapped(t, d)
		group(t, tapped, 3)
		require.EqualValues(t, 3, tp.Count("MemHostGetDevicePointer"), "asked by each rank, on its own context")
	})
}

// placing is a driver that notes which NUMA node each pinned allocation prefers.
type placing struct {
	api.Driver
	node  int // of the thread, which is the only one
	nodes []int
}

type placingHost struct {
	api.Host
	p *placing
}

func (p *placing) Host() api.Host { return placingHost{p.Driver.Host(), p} }

func (p *placing) MemHostAlloc(n uint64, flags api.HostAllocFlag) (unsafe.Pointer, api.Code) {
	p.nodes = append(p.nodes, p.node)
	return p.Driver.MemHostAlloc(n, flags)
}

func (h placingHost) PreferNode(node int) (func(), error) {
	restore, err := h.Host.PreferNode(node)
	h.p.node = node
	return func() { restore(); h.p.node = -1 }, err
}

// TestPinnedPlacement: ranks whose GPUs hang off one NUMA node have their pinned
// memory in one allocation on that node, others each one on its own; the first
// half of the allocations are the bounces.
func TestPinnedPlacement(t *testing.T) {
	for _, k := range []struct {
		machine string
		ranks   int
		nodes   []int
	}{
		{"2x4090", 2, []int{-1, -1, -1}}, // one node: nothing to choose
		{"8x4090", 3, []int{3, 2, 1, 3, 2, 1}},
		{"8x4090", 1, []int{3, 3}},
	} {
		t.Run(fmt.Sprintf("%s, %d", k.machine, k.ranks), func(t *testing.T) {
			m, err := sim.Open(k.machine)
			require.NoError(t, err)
			closeMachine(t, m)
			p := &placing{Driver: seam(m.Driver()), node: -1}
			g := open(t, options(t, over(t, p), k.ranks))
			require.Equal(t, k.nodes, p.nodes)
			f := newFields(t, g, 8192)
			f.allReduce(reduceCase{gp.AlgorithmRing, gp.TypeFloat32, gp.Sum, 2000, 0, true})
		})
	}
}

// TestMisalignedBytes: copies of bytes take any address, and reductions any
// address of a whole element.
func TestMisalignedBytes(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		g := group(t, d, 2)
		r0, r1 := g.Ranks()[0], g.Ranks()[1]
		src, dst := alloc(t, r0, gp.TypeUint8, 70_000), alloc(t, r1, gp.TypeUint8, 70_000)
		r := generator("misaligned")
		for _, n := range []int{1, 2, 3, 7, 17, 4097, 65_537} {
			for _, off := range [][2]int{{1, 0}, {0, 1}, {1, 1}, {3, 14}, {15, 1}} {
				data, img := randomBytes(r, n), randomBytes(r, 70_000)
				require.NoError(t, dst.Write(background, img))
				require.NoError(t, src.Sub(off[0], off[0]+n).Write(background, data))
				w, err := g.With(gp.CallOptions{Chunk: 4096}).Copy(as(t, dst, gp.TypeUint8, off[1], n), as(t, src, gp.TypeUint8, off[0], n))
				wait(t, w, err)
				copy(img[off[1]:], data)
				holds(t, dst, img)
			}
		}
		f := newFields(t, g, 4096)
		for _, n := range []int{1, 2, 3, 7, 17} {
			for range 8 { // place draws odd offsets, of two bytes here
				f.allReduce(reduceCase{gp.AlgorithmRing, gp.TypeBFloat16, gp.Sum, n, 0, true})
				f.allReduce(reduceCase{gp.AlgorithmRingZeroCopy, gp.TypeFloat16, gp.Sum, n, 0, false})
				f.allReduce(reduceCase{gp.AlgorithmRingZeroCopy, gp.TypeInt8, gp.Sum, n, 0, true})
			}
		}
	})
}

// buffer is a bytes.Buffer that a logger may write to meanwhile.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
