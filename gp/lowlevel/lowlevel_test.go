// SPDX-License-Identifier: Apache-2.0

package lowlevel_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/gp/lowlevel"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/api/tap"
	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

var background = context.Background()

// A rig is a group of two ranks behind a tap.
type rig struct {
	t   *testing.T
	tap *tap.Tap
	g   *gp.Group
	r   []*gp.Rank
	rng *rand.Rand
}

// each runs f on a simulated machine with two GPUs, and on the machine's own;
// where that has one GPU, both ranks are on it.
func each(t *testing.T, f func(t *testing.T, x *rig)) {
	t.Helper()
	gputest.Each(t, "2x4090", func(t *testing.T, d *cuda.Driver) {
		tapped, tp := gputest.Tapped(t, d)
		n, err := d.DeviceCount()
		require.NoError(t, err)
		g, err := gp.Open(gp.Options{
			Driver: tapped, Devices: []int{0, min(1, n-1)}, AllowSameGPU: n == 1,
			PinnedBytes: gp.MinPinnedBytes, P2P: gp.P2POff, Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, g.Close()) })
		f(t, &rig{t, tp, g, g.Ranks(), rand.New(rand.NewPCG(1, 2))})
	})
}

func (x *rig) bytes(n int) []byte {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], x.rng.Uint64())
	b := make([]byte, n)
	rand.NewChaCha8(seed).Read(b)
	return b
}

func (x *rig) pinned(n int) []byte {
	x.t.Helper()
	h, err := x.r[0].Context().HostAlloc(n, 0)
	require.NoError(x.t, err)
	x.t.Cleanup(func() { require.NoError(x.t, h.Close()) })
	return h.Bytes()
}

func (x *rig) alloc(rank int, typ gp.Type, n int) gp.Buffer {
	x.t.Helper()
	b, err := x.r[rank].Alloc(typ, n)
	require.NoError(x.t, err)
	return b
}

func (x *rig) wait(w gp.Work, err error) {
	x.t.Helper()
	require.NoError(x.t, err)
	require.NoError(x.t, w.Wait(background))
}

func (x *rig) holds(b gp.Buffer, want []byte, what string, args ...any) {
	x.t.Helper()
	got := make([]byte, len(want))
	require.NoError(x.t, b.Read(background, got))
	if !bytes.Equal(want, got) {
		x.t.Fatalf("%s: wrong bytes", fmt.Sprintf(what, args...))
	}
}

func TestStagedCopy(t *testing.T) {
	each(t, func(t *testing.T, x *rig) {
		const guard = 37
		for _, chunk := range []int{16, 64, 4096} {
			for _, slots := range []int{2, 3, 5} {
				if chunk == 4096 && slots == 5 {
					continue
				}
				staging := x.pinned(chunk*slots + 2*guard)
				for _, n := range []int{0, 1, chunk - 1, chunk, chunk + 1, 2*chunk*slots + 7} {
					data, img := x.bytes(n), x.bytes(n+2*guard)
					around := x.bytes(len(staging))
					copy(staging, around)
					src, dst := x.alloc(0, gp.TypeUint8, n+1), x.alloc(1, gp.TypeUint8, n+2*guard)
					require.NoError(t, src.Sub(1, n+1).Write(background, data))
					require.NoError(t, dst.Write(background, img))
					w, err := lowlevel.StagedCopy(dst.Sub(guard, guard+n), src.Sub(1, n+1), staging[guard:guard+chunk*slots], chunk)
					require.NoError(t, err)
					require.NoError(t, src.Stream().MemsetD8(src.Ptr(), 0xee, n+1), "the source may be overwritten in its order")
					copy(img[guard:], data)
					x.holds(dst, img, "%d bytes by %d slots of %d", n, slots, chunk)
					require.NoError(t, w.Wait(background))
					require.Equal(t, around[:guard], staging[:guard], "before the staging")
					require.Equal(t, around[guard+chunk*slots:], staging[guard+chunk*slots:], "behind the staging")
					require.NoError(t, src.Free())
					require.NoError(t, dst.Free())
				}
			}
		}
	})
}

// TestStagedCopyBackToBack uses one staging for copies in both directions, each
// ordered behind the one before by the stream that they share.
func TestStagedCopyBackToBack(t *testing.T) {
	each(t, func(t *testing.T, x *rig) {
		const n, chunk = 100_003, 4096
		staging := x.pinned(2 * chunk)
		data := x.bytes(n)
		a, b := x.alloc(0, gp.TypeUint8, n), x.alloc(1, gp.TypeUint8, n)
		require.NoError(t, a.Write(background, data))
		for range 6 {
			_, err := lowlevel.StagedCopy(b, a, staging, chunk)
			require.NoError(t, err)
			require.NoError(t, a.Stream().MemsetD8(a.Ptr(), 0x77, n))
			_, err = lowlevel.StagedCopy(a, b, staging, chunk)
			require.NoError(t, err)
			require.NoError(t, b.Stream().MemsetD8(b.Ptr(), 0x66, n))
		}
		x.holds(a, data, "there and back six times")
		require.NoError(t, x.g.Synchronize(background))
	})
}

// TestShortStaging: less than two chunks will do if all of the data fits.
func TestShortStaging(t *testing.T) {
	each(t, func(t *testing.T, x *rig) {
		for _, n := range []int{1, 10, 16, 17, 40, 100} {
			staging := x.pinned(n + 1)
			staging[n] = 0x5a
			data := x.bytes(n)
			a, b := x.alloc(0, gp.TypeUint8, n), x.alloc(1, gp.TypeUint8, n)
			require.NoError(t, a.Write(background, data))
			for _, chunk := range []int{16, 32, 48, 128, 1 << 20} {
				require.NoError(t, b.Write(background, x.bytes(n)))
				x.wait(lowlevel.StagedCopy(b, a, staging[:n], chunk))
				x.holds(b, data, "%d bytes in chunks of %d", n, chunk)
				require.EqualValues(t, 0x5a, staging[n])
			}
		}
	})
}

var lengths = []int{0, 1, 2, 3, 7, 17, 255, 4097}

func TestReduceFromHost(t *testing.T) {
	each(t, func(t *testing.T, x *rig) {
		host := x.pinned(5000 * 8)
		for _, typ := range dtype.Types {
			size := typ.Size()
			dev := x.alloc(0, typ, 4200)
			for _, op := range dtype.Ops {
				for _, n := range lengths {
					// Any whole element's address, on either side.
					at, hostAt := x.rng.IntN(17), size*x.rng.IntN(17)
					img := x.elements(typ, 4200)
					require.NoError(t, dev.Write(background, img))
					in := x.elements(typ, n)
					around := x.bytes(len(host))
					copy(host, around)
					copy(host[hostAt:], in)
					dst := dev.Sub(at, at+n)
					x.wait(lowlevel.ReduceFromHost(dst, host[hostAt:hostAt+n*size], op))

					own := bytes.Clone(img[at*size : (at+n)*size])
					divisor := uint64(0)
					if op == gp.Avg {
						divisor = 2
					}
					want := make([]byte, n*size)
					kernel.Reduce(typ, op, want, false, [][]byte{own, in}, 0, divisor)
					got := make([]byte, len(img))
					require.NoError(t, dev.Read(background, got))
					what := fmt.Sprintf("%v of %d %v", op, n, typ)
					require.True(t, bytes.Equal(img[:at*size], got[:at*size]), "%s: before", what)
					require.True(t, bytes.Equal(img[(at+n)*size:], got[(at+n)*size:]), "%s: behind", what)
					for i := range n {
						w, g := want[i*size:(i+1)*size], got[(at+i)*size:(at+i+1)*size]
						if !bytes.Equal(w, g) && (op == gp.Min || op == gp.Max || !isNaN(typ, w) || !isNaN(typ, g)) {
							t.Fatalf("%s: element %d: got %x, want %x", what, i, g, w)
						}
					}
					require.True(t, bytes.Equal(in, host[hostAt:hostAt+n*size]), "%s: the host's part", what)
				}
			}
		}
	})
}

// elements are everyday numbers, any bits, and special floats.
func (x *rig) elements(typ gp.Type, n int) []byte {
	size := typ.Size()
	b := x.bytes(n * size)
	specials := []float64{0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(), 1, -1, 1e-40}
	for i := range n {
		f := x.rng.NormFloat64() * 3
		switch x.rng.IntN(8) {
		case 0:
			continue
		case 1:
			f = specials[x.rng.IntN(len(specials))]
		}
		e := b[i*size:]
		switch typ {
		case gp.TypeFloat64:
			binary.LittleEndian.PutUint64(e, math.Float64bits(f))
		case gp.TypeFloat32:
			binary.LittleEndian.PutUint32(e, math.Float32bits(float32(f)))
		case gp.TypeFloat16:
			binary.LittleEndian.PutUint16(e, uint16(gp.ToFloat16(float32(f))))
		case gp.TypeBFloat16:
			binary.LittleEndian.PutUint16(e, uint16(gp.ToBFloat16(float32(f))))
		}
	}
	return b
}

func isNaN(typ gp.Type, e []byte) bool {
	switch typ {
	case gp.TypeFloat64:
		return math.IsNaN(math.Float64frombits(binary.LittleEndian.Uint64(e)))
	case gp.TypeFloat32:
		return binary.LittleEndian.Uint32(e)&0x7fffffff > 0x7f800000
	case gp.TypeFloat16:
		return binary.LittleEndian.Uint16(e)&0x7fff > 0x7c00
	case gp.TypeBFloat16:
		return binary.LittleEndian.Uint16(e)&0x7fff > 0x7f80
	}
	return false
}

func TestHostRoundTrips(t *testing.T) {
	each(t, func(t *testing.T, x *rig) {
		const room = 1<<20 + 100
		host := x.pinned(room)
		a, b := x.alloc(0, gp.TypeUint8, room), x.alloc(1, gp.TypeUint8, room)
		for _, n := range append(lengths, 1<<20+3) {
			for _, off := range [][3]int{{0, 0, 0}, {1, 2, 3}, {7, 16, 1}} { // any alignment of source, host and destination
				data, img, around := x.bytes(n), x.bytes(room), x.bytes(room)
				src, dst := a.Sub(off[0], off[0]+n), b.Sub(off[2], off[2]+n)
				require.NoError(t, src.Write(background, data))
				require.NoError(t, b.Write(background, img))
				copy(host, around)
				h := host[off[1] : off[1]+n]
				w, err := lowlevel.CopyToHost(h, src)
				require.NoError(t, err)
				// The other rank's stream knows nothing of it but by this.
				require.NoError(t, w.Before(dst.Stream()))
				x.wait(lowlevel.CopyFromHost(dst, h))
				copy(img[off[2]:], data)
				x.holds(b, img, "%d bytes at %v", n, off)
				copy(around[off[1]:], data)
				require.True(t, bytes.Equal(around, host), "%d bytes at %v: host memory", n, off)
			}
		}
		// Elements of a type are bytes here.
		c := x.alloc(0, gp.TypeFloat64, 100)
		data := x.bytes(800)
		copy(host, data)
		x.wait(lowlevel.CopyFromHost(c, host[:800]))
		x.holds(c, data, "float64")
	})
}

// TestRegisteredMemory: memory that the caller pinned will do.
func TestRegisteredMemory(t *testing.T) {
	each(t, func(t *testing.T, x *rig) {
		mem := make([]byte, 1<<20)
		h, err := x.r[0].Context().Register(unsafe.Pointer(&mem[0]), len(mem))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, h.Close()) })
		data := x.bytes(5001)
		a, b := x.alloc(0, gp.TypeUint8, 5001), x.alloc(1, gp.TypeUint8, 5001)
		require.NoError(t, a.Write(background, data))
		x.wait(lowlevel.StagedCopy(b, a, mem[100:100+3*1024], 1024))
		x.holds(b, data, "staged")
		x.wait(lowlevel.CopyToHost(mem[:5001], b))
		require.True(t, bytes.Equal(data, mem[:5001]))
		runtime.KeepAlive(mem)
	})
}

// enqueued sums the calls that enqueue something.
func (x *rig) enqueued() (n uint64) {
	for name, k := range x.tap.Counts() {
		if strings.HasPrefix(name, "Memcpy") || name == "LaunchKernel" || name == "EventRecord" || name == "StreamWaitEvent" {
			n += k
		}
	}
	return n
}

func TestRefused(t *testing.T) {
	each(t, func(t *testing.T, x *rig) {
		host := x.pinned(8192)
		a, b, a2 := x.alloc(0, gp.TypeFloat32, 1000), x.alloc(1, gp.TypeFloat32, 1000), x.alloc(0, gp.TypeFloat32, 1000)
		ints := x.alloc(1, gp.TypeInt32, 1000)
		freed := x.alloc(1, gp.TypeFloat32, 1000)
		require.NoError(t, freed.Free())
		pageable := make([]byte, 4000)
		var stack [16]byte
		half := make([]byte, 256<<10) // of which the first part is pinned
		reg, err := x.r[0].Context().Register(unsafe.Pointer(&half[0]), 64<<10)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, reg.Close()) })
		works := func(when string) {
			t.Helper()
			data := x.bytes(4000)
			require.NoError(t, a.Write(background, data))
			x.wait(lowlevel.StagedCopy(b, a, host, 1024))
			x.holds(b, data, "staged copy %s", when)
			x.wait(lowlevel.CopyToHost(host[:4000], a))
			require.True(t, bytes.Equal(data, host[:4000]), when)
			x.wait(lowlevel.ReduceFromHost(b, host[:4000], gp.Max))
			require.NoError(t, x.g.Err(), when)
			for _, r := range x.r {
				require.NoError(t, r.Context().Err(), when)
				require.NoError(t, r.Context().Synchronize(), "no sticky error %s", when)
			}
		}
		works("at first")
		only := func(_ gp.Work, err error) error { return err }
		for _, c := range []struct {
			name, says string
			f          func() error
		}{
			{"staging not pinned", "not pinned", func() error { return only(lowlevel.StagedCopy(b, a, pageable, 1024)) }},
			{"staging pinned in part", "not pinned", func() error {
				return only(lowlevel.StagedCopy(b, a, half, 1024))
			}},
			{"no staging", "staging", func() error { return only(lowlevel.StagedCopy(b, a, nil, 1024)) }},
			{"staging of one chunk", "two chunks", func() error { return only(lowlevel.StagedCopy(b, a, host[:1024], 1024)) }},
			{"chunk of 0", "chunk", func() error { return only(lowlevel.StagedCopy(b, a, host, 0)) }},
			{"negative chunk", "chunk", func() error { return only(lowlevel.StagedCopy(b, a, host, -16)) }},
			{"odd chunk", "chunk", func() error { return only(lowlevel.StagedCopy(b, a, host, 1000)) }},
			{"one rank", "one rank", func() error { return only(lowlevel.StagedCopy(a2, a, host, 1024)) }},
			{"types", "int32", func() error { return only(lowlevel.StagedCopy(ints, a, host, 1024)) }},
			{"lengths", "999", func() error { return only(lowlevel.StagedCopy(b.Sub(0, 999), a, host, 1024)) }},
			{"zero source", "zero Buffer", func() error { return only(lowlevel.StagedCopy(b, gp.Buffer{}, host, 1024)) }},
			{"zero destination", "zero Buffer", func() error { return only(lowlevel.StagedCopy(gp.Buffer{}, a, host, 1024)) }},
			{"freed", "closed", func() error { return only(lowlevel.StagedCopy(freed, a, host, 1024)) }},

			{"reduce: not pinned", "not pinned", func() error { return only(lowlevel.ReduceFromHost(a, pageable, gp.Sum)) }},
			{"reduce: the stack", "not pinned", func() error { return only(lowlevel.ReduceFromHost(a.Sub(0, 4), stack[:], gp.Sum)) }},
			{"reduce: nothing", "0 bytes", func() error { return only(lowlevel.ReduceFromHost(a, nil, gp.Sum)) }},
			{"reduce: length", "4004 bytes", func() error { return only(lowlevel.ReduceFromHost(a, host[:4004], gp.Sum)) }},
			{"reduce: misaligned", "not aligned", func() error { return only(lowlevel.ReduceFromHost(a, host[2:4002], gp.Sum)) }},
			{"reduce: reduction", "Op(8)", func() error { return only(lowlevel.ReduceFromHost(a, host[:4000], gp.Op(8))) }},
			{"reduce: zero", "zero Buffer", func() error { return only(lowlevel.ReduceFromHost(gp.Buffer{}, host[:4], gp.Sum)) }},
			{"reduce: freed", "closed", func() error { return only(lowlevel.ReduceFromHost(freed, host[:4000], gp.Sum)) }},
			{"to host: not pinned", "not pinned", func() error { return only(lowlevel.CopyToHost(pageable, a)) }},
			{"to host: length", "3999 bytes", func() error { return only(lowlevel.CopyToHost(host[:3999], a)) }},
			{"from host: not pinned", "not pinned", func() error { return only(lowlevel.CopyFromHost(a, pageable)) }},
			{"from host: ends behind the pinned", "not pinned", func() error {
				c := x.alloc(0, gp.TypeUint8, 100<<10)
				return only(lowlevel.CopyFromHost(c, half[:100<<10]))
			}},
		} {
			before := x.enqueued()
			err := c.f()
			require.ErrorIs(t, err, gp.ErrArgument, c.name)
			require.ErrorContains(t, err, c.says, c.name)
			require.Equal(t, before, x.enqueued(), "%s: calls that enqueue", c.name)
			works("after " + c.name)
		}
		runtime.KeepAlive(pageable)
		runtime.KeepAlive(half)
	})
}

func TestClosed(t *testing.T) {
	each(t, func(t *testing.T, x *rig) {
		host := x.pinned(4096)
		a, b := x.alloc(0, gp.TypeUint8, 100), x.alloc(1, gp.TypeUint8, 100)
		require.NoError(t, x.g.Close())
		for name, f := range map[string]func() (gp.Work, error){
			"staged copy": func() (gp.Work, error) { return lowlevel.StagedCopy(b, a, host, 1024) },
			"reduce":      func() (gp.Work, error) { return lowlevel.ReduceFromHost(a, host[:100], gp.Sum) },
			"to host":     func() (gp.Work, error) { return lowlevel.CopyToHost(host[:100], a) },
			"from host":   func() (gp.Work, error) { return lowlevel.CopyFromHost(a, host[:100]) },
		} {
			w, err := f()
			require.ErrorIs(t, err, gp.ErrClosed, name)
			require.True(t, w.Done(), "the Work of an error is none")
		}
	})
}

// TestCaptured: the kernels and the staged copy refuse streams that are being
// captured, and loading a kernel beside a capture does not spoil it.
func TestCaptured(t *testing.T) {
	each(t, func(t *testing.T, x *rig) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cc := x.r[0].Context()
		s, err := cc.NewStream()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		host := x.pinned(8192)
		b, other := x.alloc(1, gp.TypeInt64, 100), x.alloc(0, gp.TypeInt64, 100)
		a := other.On(s)
		d := hook.Seam(x.g.Driver())
		require.NoError(t, cc.Do(func() error {
			require.Equal(t, api.Success, d.StreamBeginCapture(s.Handle(), api.CaptureGlobal))
			return nil
		}))
		before := x.enqueued()
		for name, f := range map[string]func() (gp.Work, error){
			"staged copy":       func() (gp.Work, error) { return lowlevel.StagedCopy(b, a, host, 1024) },
			"empty staged copy": func() (gp.Work, error) { return lowlevel.StagedCopy(b.Sub(0, 0), a.Sub(0, 0), host, 1024) },
			"reduce":            func() (gp.Work, error) { return lowlevel.ReduceFromHost(a, host[:800], gp.Sum) },
			"to host":           func() (gp.Work, error) { return lowlevel.CopyToHost(host[:800], a) },
			"from host":         func() (gp.Work, error) { return lowlevel.CopyFromHost(a, host[:800]) },
		} {
			_, err := f()
			require.ErrorIs(t, err, gp.ErrCapturing, name)
		}
		require.Equal(t, before, x.enqueued())
		x.wait(lowlevel.ReduceFromHost(b, host[:800], gp.Prod))
		x.wait(lowlevel.CopyFromHost(b, host[:800]))
		require.NoError(t, cc.Do(func() error {
			graph, c := d.StreamEndCapture(s.Handle())
			require.Equal(t, api.Success, c, "the capture is still valid")
			require.Equal(t, api.Success, d.GraphDestroy(graph))
			return nil
		}))
		x.wait(lowlevel.ReduceFromHost(a, host[:800], gp.Sum))
	})
}

// TestKernelFails: a launch that the driver refuses leaves the group usable;
// one rank's kernel leaves nobody in disagreement.
func TestKernelFails(t *testing.T) {
	each(t, func(t *testing.T, x *rig) {
		host := x.pinned(4096)
		a := x.alloc(0, gp.TypeUint8, 100)
		require.NoError(t, a.Write(background, make([]byte, 100)))
		x.tap.Reset()
		for _, call := range []string{"ModuleLoadData", "MemHostGetDevicePointer", "LaunchKernel"} {
			rule := x.tap.Fail(call, 1, api.OutOfMemory)
			_, err := lowlevel.CopyFromHost(a, host[:100])
			require.ErrorIs(t, err, cuda.ErrOutOfMemory, call)
			var e *gp.Error
			require.True(t, errors.As(err, &e), call)
			require.Equal(t, 1, rule.Hits(), call)
			require.NoError(t, x.g.Err(), call)
			rule.Remove()
		}
		copy(host, strings.Repeat("ab", 50))
		x.wait(lowlevel.CopyFromHost(a, host[:100]))
		x.holds(a, []byte(strings.Repeat("ab", 50)), "after failures")
	})
}
