// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// testCache is where the hardware tests keep CUBINs, so that each is compiled once.
var testCache string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "gp-ptx-test")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testCache = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// bench is a device set up to run kernels of one rung.
type bench struct {
	t      *testing.T
	cc     *cuda.Context
	s      *cuda.Stream
	loader *Loader
	arena  *arena
	mem    *cuda.Memory
}

// longBytes holds three wide buffers of longLength elements, or seventeen of
// 4096.
const longBytes = 3*8*longLength + 1<<20

func newBench(t *testing.T, d *cuda.Driver, mode Mode) *bench {
	cc := gputest.Primary(t, gputest.Devices(t, d, 1)[0])
	s, err := cc.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	l := New(d, Options{Mode: mode, CacheDir: testCache, Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	if _, err := l.Function(cc, f32, f32Sum); mode == NVRTC && errors.Is(err, ErrNoKernels) {
		t.Skipf("no NVRTC rung here: %v", err)
	}
	mem, err := cc.Alloc(longBytes)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, mem.Close()) })
	host, err := cc.HostAlloc(longBytes, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, host.Close()) })
	hostAt, err := host.DevicePtr(cc)
	require.NoError(t, err)
	a := &arena{devAt: uint64(mem.Ptr()), hostAt: uint64(hostAt), dev: make([]byte, longBytes), host: host.Bytes()}
	paint(a.dev)
	paint(a.host)
	return &bench{t, cc, s, l, a, mem}
}

// launch uploads the arena's device half, runs the kernel, and downloads it
// again. It returns what both halves held before.
func (b *bench) launch(m kernel.Module, entry string, bytesOut uint64, params []byte) (dev, host []byte) {
	a := b.arena
	dev, host = bytes.Clone(a.dev[:a.devN]), bytes.Clone(a.host[:a.hostN])
	f, err := b.loader.Function(b.cc, m, entry)
	require.NoError(b.t, err)
	// From pageable memory this returns before the bytes have arrived, and the
	// stream does not wait for them.
	require.NoError(b.t, b.cc.MemcpyHtoD(b.mem.Ptr(), a.dev[:a.devN]))
	require.NoError(b.t, b.cc.Synchronize())
	cfg := cuda.LaunchConfig{Grid: [3]uint32{kernel.Blocks(bytesOut)}, Block: [3]uint32{kernel.BlockThreads}}
	require.NoError(b.t, f.Launch(cfg, b.s, params))
	require.NoError(b.t, b.s.Synchronize())
	require.NoError(b.t, b.cc.MemcpyDtoH(a.dev[:a.devN], b.mem.Ptr()))
	return dev, host
}

// fold runs one case and checks it, and that nothing else was written.
func (b *bench) fold(c *foldCase, name string) []byte {
	dev, host := b.launch(kernel.FoldModule(c.t), kernel.FoldEntry(c.t, c.op), uint64(len(c.dst)), c.f.Append(nil))
	out := bytes.Clone(c.dst)
	c.check(b.t, name)
	a := b.arena
	copy(c.dst, dev[c.f.Dst-a.devAt:])
	require.True(b.t, bytes.Equal(dev, a.dev[:a.devN]) && bytes.Equal(host, a.host[:a.hostN]), "%s: wrote outside of the destination", name)
	paint(a.dev[:a.devN])
	paint(a.host[:a.hostN])
	return out
}

// interpreted is a simulated machine that runs PTX itself, which is slow.
func interpreted(t *testing.T, machine string) *cuda.Driver {
	d := gputest.Interpreted(t, machine)
	interpreters.Store(d, true)
	t.Cleanup(func() { interpreters.Delete(d) })
	return d
}

var interpreters sync.Map // *cuda.Driver -> true

func isInterpreted(d *cuda.Driver) bool { _, is := interpreters.Load(d); return is }

// eachRung runs f on the simulated machine, which takes PTX only, on twins and
// on the PTX itself, and on the hardware by both rungs.
func eachRung(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Run("sim", func(t *testing.T) { f(t, newBench(t, gputest.Sim(t, "2x4090"), PTX)) })
	t.Run("interpreted", func(t *testing.T) { f(t, newBench(t, interpreted(t, "2x4090"), PTX)) })
	t.Run("gpu ptx", func(t *testing.T) { f(t, newBench(t, gputest.Hardware(t), PTX)) })
	t.Run("gpu nvrtc", func(t *testing.T) { f(t, newBench(t, gputest.Hardware(t), NVRTC)) })
}

// Every kernel, type and op against the reference, on inputs of device and of
// mapped host memory.
func TestFold(t *testing.T) {
	eachRung(t, func(t *testing.T, b *bench) {
		for _, typ := range dtype.Types {
			for _, op := range dtype.Ops {
				r := rand.New(rand.NewPCG(uint64(typ), uint64(op)))
				for _, hosts := range []bool{false, true} {
					for _, s := range shapes(typ) {
						for _, count := range lengths {
							if slow && count > 17 && b.cc.Driver().Modelled() {
								continue
							}
							// TestEmbeddedFold has them all.
							if isInterpreted(b.cc.Driver()) && (count != 17 || hosts || slow && (int(typ)+int(op))%5 != 0) {
								continue
							}
							name := fmt.Sprintf("%s, %d elements, %s, host inputs %t", kernel.FoldEntry(typ, op), count, s.name, hosts)
							b.fold(b.arena.newFold(typ, op, count, s, hosts, r), name)
						}
					}
				}
			}
		}
	})
}

// The same for a length of many blocks that is no multiple of anything.
func TestFoldLong(t *testing.T) {
	if testing.Short() || slow {
		t.Skip("half a gigabyte of folds")
	}
	eachRung(t, func(t *testing.T, b *bench) {
		if isInterpreted(b.cc.Driver()) {
			t.Skip("millions of elements are too many to interpret")
		}
		for _, typ := range dtype.Types {
			for _, op := range dtype.Ops {
				r := rand.New(rand.NewPCG(uint64(typ), 100+uint64(op)))
				for i, s := range shapes(typ) {
					// What fits, and of that every second one, another half for each op.
					if s.inputs > 2 || i%2 != int(op)%2 {
						continue
					}
					name := fmt.Sprintf("%s, %d elements, %s", kernel.FoldEntry(typ, op), longLength, s.name)
					b.fold(b.arena.newFold(typ, op, longLength, s, i%2 == 0, r), name)
				}
			}
		}
	})
}

// Both rungs give the same bits. A NaN of sum, prod or avg only has to be one.
func TestRungsAgree(t *testing.T) {
	d := gputest.Hardware(t)
	compiled, embedded := newBench(t, d, NVRTC), newBench(t, d, PTX)
	require.Equal(t, RungPTX, embedded.loader.Rung(embedded.cc, f32))
	require.Contains(t, []string{RungCompiled, RungCached}, compiled.loader.Rung(compiled.cc, f32))
	for _, typ := range dtype.Types {
		for _, op := range dtype.Ops {
			for _, s := range shapes(typ) {
				var outs [2][]byte
				for i, b := range []*bench{compiled, embedded} {
					c := b.arena.newFold(typ, op, 4096, s, true, rand.New(rand.NewPCG(7, uint64(op))))
					outs[i] = b.fold(c, s.name)
					if !c.exact {
						to := typ
						if s.dstWide {
							to = typ.Wide()
						}
						settle(outs[i], to)
					}
				}
				require.True(t, bytes.Equal(outs[0], outs[1]), "%s, %s", kernel.FoldEntry(typ, op), s.name)
			}
		}
	}
}

func TestCopy(t *testing.T) {
	eachRung(t, func(t *testing.T, b *bench) {
		r := rand.New(rand.NewPCG(5, 6))
		a := b.arena
		for _, n := range []int{0, 1, 2, 3, 7, 15, 16, 17, 255, 4096, 4099, longLength} {
			for _, off := range [][2]int{{0, 0}, {1, 1}, {15, 15}, {8, 0}, {4, 0}, {3, 11}, {2, 0}, {1, 3}, {0, 1}, {5, 2}} {
				for _, hosts := range [][2]bool{{false, false}, {true, false}, {false, true}} {
					if isInterpreted(b.cc.Driver()) && n > 255 {
						continue
					}
					c, dst, src := a.newCopy(n, off[0], off[1], hosts[0], hosts[1], r)
					name := fmt.Sprintf("%d bytes, offsets %v, from host %t, to host %t", n, off, hosts[0], hosts[1])
					dev, host := b.launch(kernel.CopyModule(), kernel.CopyEntry, uint64(n), c.Append(nil))
					require.True(t, bytes.Equal(src, dst), name)
					if hosts[1] {
						copy(dst, host[c.Dst-a.hostAt:])
					} else {
						copy(dst, dev[c.Dst-a.devAt:])
					}
					require.True(t, bytes.Equal(dev, a.dev[:a.devN]) && bytes.Equal(host, a.host[:a.hostN]), "%s: wrote outside", name)
				}
			}
		}
	})
}

// What loading costs on this machine. Figures, not a bound.
func TestLoadTimes(t *testing.T) {
	d := gputest.Hardware(t)
	cc := gputest.Primary(t, gputest.Devices(t, d, 1)[0])
	start := time.Now()
	lib, err := openNVRTC()
	if err != nil {
		t.Skipf("no NVRTC: %v", err)
	}
	t.Logf("NVRTC %s (%s): loaded in %v", lib.Version(), lib.Path(), time.Since(start))
	dir := t.TempDir()
	for _, m := range []kernel.Module{f32, kernel.FoldModule(dtype.BFloat16), kernel.FoldModule(dtype.Int8), kernel.CopyModule()} {
		for _, c := range []struct {
			what string
			mode Mode
		}{{"compiled", NVRTC}, {"out of the cache", NVRTC}, {"embedded PTX (the driver's own cache may help)", PTX}} {
			l := New(d, Options{Mode: c.mode, CacheDir: dir, Logger: slog.New(slog.DiscardHandler)})
			start := time.Now()
			f, err := l.Function(cc, m, Entries(m)[0])
			took := time.Since(start)
			require.NoError(t, err)
			regs, err := f.Attribute(cuda.FuncNumRegs)
			require.NoError(t, err)
			t.Logf("%s: %s: %v, rung %s, %d registers", m.Name(), c.what, took, l.Rung(cc, m), regs)
			require.NoError(t, l.Close())
		}
	}
}

// BenchmarkFold is the rate at which bytes of the destination are made out of
// two inputs, both in device memory or the second in mapped host memory.
func BenchmarkFold(b *testing.B) {
	d := gputest.Hardware(b)
	for _, typ := range []dtype.Type{dtype.Float32, dtype.BFloat16, dtype.Int8} {
		for _, where := range []string{"device", "host"} {
			b.Run(typ.Tag()+"/"+where, func(b *testing.B) {
				const n = 64 << 20
				cc := gputest.Primary(b, gputest.Devices(b, d, 1)[0])
				s, err := cc.NewStream()
				require.NoError(b, err)
				defer s.Close()
				l := New(d, Options{CacheDir: testCache})
				defer l.Close()
				f, err := l.Function(cc, kernel.FoldModule(typ), kernel.FoldEntry(typ, dtype.Sum))
				require.NoError(b, err)
				mem, err := cc.Alloc(2 * n)
				require.NoError(b, err)
				defer mem.Close()
				require.NoError(b, s.MemsetD8(mem.Ptr(), 0, 2*n))
				second := uint64(mem.Ptr()) + n
				if where == "host" {
					host, err := cc.HostAlloc(n, 0)
					require.NoError(b, err)
					defer host.Close()
					p, err := host.DevicePtr(cc)
					require.NoError(b, err)
					second = uint64(p)
				}
				k := kernel.Fold{Dst: uint64(mem.Ptr()), Count: uint64(n / typ.Size()), N: 2, In: [kernel.MaxInputs]uint64{uint64(mem.Ptr()), second}}
				params := k.Append(nil)
				cfg := cuda.LaunchConfig{Grid: [3]uint32{kernel.Blocks(n)}, Block: [3]uint32{kernel.BlockThreads}}
				require.NoError(b, f.Launch(cfg, s, params))
				require.NoError(b, s.Synchronize())
				b.SetBytes(n)
				for b.Loop() {
					if err := f.Launch(cfg, s, params); err != nil {
						b.Fatal(err)
					}
					if err := s.Synchronize(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
