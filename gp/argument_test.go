// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"context"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/api/tap"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
)

// enqueuing sums the calls that enqueue or allocate something.
func enqueuing(tp *tap.Tap) (n uint64) {
	for name, k := range tp.Counts() {
		if strings.HasPrefix(name, "Memcpy") || strings.HasPrefix(name, "Memset") || strings.HasPrefix(name, "MemAlloc") || strings.HasPrefix(name, "MemHost") && name != "MemHostGetDevicePointer" ||
			name == "LaunchKernel" || name == "EventRecord" || name == "StreamWaitEvent" {
			n += k
		}
	}
	return n
}

// A bench is a group of two ranks behind a tap, with buffers for good calls.
type bench struct {
	t      testing.TB
	d      *cuda.Driver // the tapped one
	tap    *tap.Tap
	g      *gp.Group
	r0, r1 *gp.Rank
	a, b   gp.Buffer // float32, on rank 0 and rank 1
	n      int
}

func newBench(t testing.TB, d *cuda.Driver, edit ...func(*gp.Options)) *bench {
	tapped, tp := gputest.Tapped(t, d)
	o := options(t, tapped, 2)
	for _, e := range edit {
		e(&o)
	}
	g := open(t, o)
	x := &bench{t: t, d: tapped, tap: tp, g: g, r0: g.Ranks()[0], r1: g.Ranks()[1], n: 1000}
	x.a, x.b = alloc(t, x.r0, gp.TypeFloat32, x.n), alloc(t, x.r1, gp.TypeFloat32, x.n)
	x.works("at first")
	return x
}

// works shows that good calls still give the right bytes.
func (x *bench) works(when string) {
	x.t.Helper()
	v := randomBytes(generator(when), 4*x.n)
	for i := 3; i < len(v); i += 4 {
		v[i] = 0x40 // numbers between 2 and 32
	}
	require.NoError(x.t, x.a.Write(background, v), when)
	require.NoError(x.t, x.b.Write(background, make([]byte, 4*x.n)), when)
	w, err := x.g.Copy(x.b, x.a)
	require.NoError(x.t, err, when)
	require.NoError(x.t, w.Wait(background), when)
	got := make([]byte, 4*x.n)
	require.NoError(x.t, x.b.Read(background, got), when)
	requireBytes(x.t, v, got, "copy %s", when)
	w, err = x.g.AllReduce([]gp.Buffer{x.a, x.b}, gp.Sum)
	require.NoError(x.t, err, when)
	require.NoError(x.t, w.Wait(background), when)
	want := folded(x.t, [][]byte{v, v}, gp.TypeFloat32, gp.Sum)
	for _, b := range []gp.Buffer{x.a, x.b} {
		require.NoError(x.t, b.Read(background, got), when)
		requireBytes(x.t, want, got, "all_reduce %s", when)
	}
	require.NoError(x.t, x.g.Err(), when)
	require.NoError(x.t, x.r0.Context().Err(), when)
	require.NoError(x.t, x.r1.Context().Err(), when)
}

// refused holds a bad call to its error, to having enqueued nothing, and to
// leaving a group that works.
func (x *bench) refused(name string, want error, says string, f func() error) {
	x.t.Helper()
	before := enqueuing(x.tap)
	err := f()
	require.ErrorIs(x.t, err, want, name)
	require.ErrorContains(x.t, err, says, name)
	var e *gp.Error
	require.ErrorAs(x.t, err, &e, name)
	require.Equal(x.t, before, enqueuing(x.tap), "%s: calls that enqueue", name)
	require.NoError(x.t, x.g.Err(), name)
	x.works("after " + name)
}

func only(_ gp.Work, err error) error { return err }

func onlyBuffer(_ gp.Buffer, err error) error { return err }

func TestBadArguments(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		x := newBench(t, d)
		g, a, b := x.g, x.a, x.b
		other := open(t, options(t, x.d, 2))
		foreign := alloc(t, other.Ranks()[0], gp.TypeFloat32, x.n)
		ints := alloc(t, x.r1, gp.TypeInt32, x.n)
		freed := alloc(t, x.r1, gp.TypeFloat32, x.n)
		require.NoError(t, freed.Free())
		require.NoError(t, freed.Free(), "a second Free")
		big := alloc(t, x.r0, gp.TypeFloat32, 4*x.n)
		out0, out1 := alloc(t, x.r0, gp.TypeFloat32, 2*x.n), alloc(t, x.r1, gp.TypeFloat32, 2*x.n)
		pair := []gp.Buffer{a, b}
		var zero gp.Buffer
		with := func(o gp.CallOptions) gp.Ops { return g.With(o) }

		for _, c := range []struct {
			name, says string
			f          func() error
		}{
			{"copy: types differ", "float32", func() error { return only(g.Copy(ints, a)) }},
			{"copy: lengths differ", "999", func() error { return only(g.Copy(b.Sub(0, 999), a)) }},
			{"copy: overlap", "overlap", func() error { return only(g.Copy(big.Sub(0, 10), big.Sub(9, 19))) }},
			{"copy: same", "overlap", func() error { return only(g.Copy(a, a)) }},
			{"copy: zero destination", "zero Buffer", func() error { return only(g.Copy(zero, a)) }},
			{"copy: zero source", "zero Buffer", func() error { return only(g.Copy(a, zero)) }},
			{"copy: another group", "another group", func() error { return only(g.Copy(b, foreign)) }},
			{"copy: freed", "closed", func() error { return only(g.Copy(freed, a)) }},
			{"copy: freed source", "closed", func() error { return only(g.Copy(a, freed)) }},
			{"copy: freed part", "closed", func() error { return only(g.Copy(freed.Sub(0, 5), a.Sub(0, 5))) }},
			{"copy: negative chunk", "-1", func() error { return only(with(gp.CallOptions{Chunk: -1}).Copy(b, a)) }},
			{"copy: algorithm", `"ring"`, func() error { return only(with(gp.CallOptions{Algorithm: gp.AlgorithmRing}).Copy(b, a)) }},
			{"copy: unknown route", `"carrier pigeon"`, func() error { return only(with(gp.CallOptions{Route: "carrier pigeon"}).Copy(b, a)) }},
			{"copy: local between ranks", `"local"`, func() error { return only(with(gp.CallOptions{Route: gp.RouteLocal}).Copy(b, a)) }},
			{"copy: direct without P2P", "P2P", func() error { return only(with(gp.CallOptions{Route: gp.RouteDirect}).Copy(b, a)) }},
			{"copy: staged on one rank", `"staged"`, func() error {
				return only(with(gp.CallOptions{Route: gp.RouteStaged}).Copy(big.Sub(0, 5), big.Sub(5, 10)))
			}},
			{"copy: nil stream", "nil stream", func() error { return only(g.Copy(b.On(nil), a)) }},

			{"all_reduce: one buffer", "1 ", func() error { return only(g.AllReduce(pair[:1], gp.Sum)) }},
			{"all_reduce: none", "0 ", func() error { return only(g.AllReduce(nil, gp.Sum)) }},
			{"all_reduce: three", "3 ", func() error { return only(g.AllReduce([]gp.Buffer{a, b, a}, gp.Sum)) }},
			{"all_reduce: two of one rank", "two buffers", func() error { return only(g.AllReduce([]gp.Buffer{a, big.Sub(0, x.n)}, gp.Sum)) }},
			{"all_reduce: types differ", "int32", func() error { return only(g.AllReduce([]gp.Buffer{a, ints}, gp.Sum)) }},
			{"all_reduce: lengths differ", "999", func() error { return only(g.AllReduce([]gp.Buffer{a, b.Sub(1, x.n)}, gp.Sum)) }},
			{"all_reduce: reduction", "Op(9)", func() error { return only(g.AllReduce(pair, gp.Op(9))) }},
			{"all_reduce: algorithm", `"tree"`, func() error { return only(with(gp.CallOptions{Algorithm: "tree"}).AllReduce(pair, gp.Sum)) }},
			{"reduce_scatter: algorithm", `"one_shot"`, func() error {
				return only(with(gp.CallOptions{Algorithm: gp.AlgorithmOneShot}).ReduceScatter(pair, pair, gp.Sum))
			}},
			{"all_reduce: unknown algorithm", `"tree"`, func() error { return only(with(gp.CallOptions{Algorithm: "tree"}).AllReduce(pair, gp.Sum)) }},
			{"all_reduce: route", `"staged"`, func() error { return only(with(gp.CallOptions{Route: gp.RouteStaged}).AllReduce(pair, gp.Sum)) }},
			{"all_reduce: negative chunk", "-16", func() error { return only(with(gp.CallOptions{Chunk: -16}).AllReduce(pair, gp.Sum)) }},
			{"all_reduce: zero", "zero Buffer", func() error { return only(g.AllReduce([]gp.Buffer{a, zero}, gp.Sum)) }},
			{"all_reduce: freed", "closed", func() error { return only(g.AllReduce([]gp.Buffer{a, freed}, gp.Sum)) }},
			{"all_reduce: another group", "another group", func() error { return only(g.AllReduce([]gp.Buffer{foreign, b}, gp.Sum)) }},
			{"all_reduce: partly the same", "overlap", func() error {
				return only(g.AllReduceTo([]gp.Buffer{big.Sub(1, x.n+1), out1.Sub(0, x.n)}, []gp.Buffer{big.Sub(0, x.n), b}, gp.Sum))
			}},
			{"all_reduce: in place on one rank", "in place", func() error {
				return only(g.AllReduceTo([]gp.Buffer{a, out1.Sub(0, x.n)}, []gp.Buffer{a, b}, gp.Sum))
			}},
			{"all_reduce: destination's type", "int32", func() error { return only(g.AllReduceTo([]gp.Buffer{a, ints}, []gp.Buffer{a, b}, gp.Sum)) }},

			{"all_gather: lengths", "2000", func() error { return only(g.AllGather([]gp.Buffer{out0, out1.Sub(0, 1999)}, pair)) }},
			{"all_gather: not its own part", "overlap", func() error {
				return only(g.AllGather([]gp.Buffer{out0, out1}, []gp.Buffer{out0.Sub(x.n, 2*x.n), b}))
			}},
			{"all_gather: algorithm", `"ring_zero_copy"`, func() error {
				return only(with(gp.CallOptions{Algorithm: gp.AlgorithmRingZeroCopy}).AllGather([]gp.Buffer{out0, out1}, pair))
			}},
			{"all_gather: one destination", "1 ", func() error { return only(g.AllGather([]gp.Buffer{out0}, pair)) }},

			{"joined all_reduce: another rank's buffer", "rank 1", func() error { return only(x.r0.AllReduce(background, b, gp.Sum)) }},
			{"joined all_reduce: reduction", "Op(7)", func() error { return only(x.r0.AllReduce(background, a, gp.Op(7))) }},
			{"joined all_reduce: freed", "closed", func() error { return only(x.r1.AllReduce(background, freed, gp.Sum)) }},

			{"alloc: negative", "-1", func() error { return onlyBuffer(x.r0.Alloc(gp.TypeInt8, -1)) }},
			{"alloc: type", "Type(77)", func() error { return onlyBuffer(x.r0.Alloc(gp.Type(77), 1)) }},
			{"alloc: too large to count", "", func() error { return onlyBuffer(x.r0.Alloc(gp.TypeInt64, math.MaxInt/8)) }},
			{"write: length", "3999", func() error { return a.Write(background, make([]byte, 3999)) }},
			{"read: length", "4001", func() error { return a.Read(background, make([]byte, 4001)) }},
			{"download: type", "float32", func() error { return gp.Download(background, make([]int32, x.n), a) }},
			{"upload: type", "float32", func() error { return gp.UploadTo(background, a, make([]int32, x.n)) }},
			{"write: zero", "zero Buffer", func() error { return zero.Write(background, nil) }},
			{"write: freed", "closed", func() error { return freed.Write(background, make([]byte, 4*x.n)) }},
			{"free: zero", "zero Buffer", func() error { return zero.Free() }},
		} {
			x.refused(c.name, gp.ErrArgument, c.says, c.f)
		}
		err := only(g.Copy(freed, a))
		require.ErrorIs(t, err, gp.ErrClosed, "a freed buffer is closed, too")
		require.Panics(t, func() { a.Sub(1, x.n+1) })
		require.Panics(t, func() { a.Sub(-1, 1) })
		require.Panics(t, func() { a.Sub(2, 1) })

		w, err := g.Copy(b, a)
		wait(t, w, err)
		x.refused("before: nil", gp.ErrArgument, "nil", func() error { return w.Before(nil) })
	})
}

func TestWrapRefuses(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		x := newBench(t, d)
		cc := x.r0.Context()
		mem, err := cc.Alloc(4096)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, mem.Close()) })
		host, err := cc.HostAlloc(4096, 0)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, host.Close()) })
		hostDev, err := host.DevicePtr(cc)
		require.NoError(t, err)
		gone, err := cc.Alloc(1 << 20)
		require.NoError(t, err)
		stale := gone.Ptr()
		require.NoError(t, gone.Close())
		pageable := make([]byte, 4096)
		p := mem.Ptr()
		wrap := func(p cuda.Ptr, typ gp.Type, n int) func() error {
			return func() error { return onlyBuffer(x.r0.Wrap(p, typ, n, nil)) }
		}
		for _, c := range []struct {
			name, says string
			f          func() error
		}{
			{"misaligned", "not aligned", wrap(p+2, gp.TypeFloat32, 10)},
			{"misaligned by one", "not aligned", wrap(p+1, gp.TypeBFloat16, 10)},
			{"misaligned and empty", "not aligned", wrap(p+4, gp.TypeFloat64, 0)},
			{"behind the end", "1 bytes behind", wrap(p, gp.TypeUint8, 4097)},
			{"far behind the end", "behind", wrap(p+4088, gp.TypeFloat64, 2)},
			{"pinned memory", "host memory", wrap(hostDev, gp.TypeUint8, 16)},
			{"pinned memory's host address", "host memory", wrap(cuda.Ptr(uintptr(host.Pointer())), gp.TypeUint8, 16)},
			{"pageable memory", "not memory that the driver knows", wrap(cuda.Ptr(uintptr(unsafe.Pointer(&pageable[0]))), gp.TypeUint8, 16)},
			{"freed memory", "not memory that the driver knows", wrap(stale, gp.TypeUint8, 16)},
			{"null", "not memory that the driver knows", wrap(0, gp.TypeUint8, 16)},
			{"negative", "-5", wrap(p, gp.TypeUint8, -5)},
			{"too many", "", wrap(p, gp.TypeFloat64, math.MaxInt/4)},
			{"type", "Type(0)", wrap(p, 0, 1)},
		} {
			x.refused(c.name, gp.ErrArgument, c.says, c.f)
		}
		runtime.KeepAlive(pageable)

		// To the last byte it fits, at any offset that is aligned.
		b, err := x.r0.Wrap(p+12, gp.TypeFloat32, 1021, nil)
		require.NoError(t, err)
		require.Equal(t, 4084, b.Bytes())
		require.NoError(t, b.Write(background, make([]byte, 4084)))
		require.NoError(t, b.Free(), "foreign memory is only forgotten")
		require.NoError(t, mem.Context().MemcpyDtoH(make([]byte, 16), p), "and still there")

		_, err = cc.WrapStream(api.StreamPerThread)
		require.ErrorContains(t, err, "per-thread")
	})
}

// TestOtherContext: a stream, or memory, of another GPU than the rank's.
func TestOtherContext(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		gputest.Devices(t, d, 2)
		x := newBench(t, d)
		theirs := newStream(t, x.r1)
		x.refused("copy", gp.ErrArgument, "another context", func() error { return only(x.g.Copy(x.b, x.a.On(theirs))) })
		x.refused("copy, legacy", gp.ErrArgument, "another context", func() error {
			return only(x.g.Copy(x.b.On(x.r0.Context().LegacyStream()), x.a))
		})
		x.refused("all_reduce", gp.ErrArgument, "another context", func() error {
			return only(x.g.AllReduce([]gp.Buffer{x.a.On(theirs), x.b}, gp.Sum))
		})
		x.refused("write", gp.ErrArgument, "another context", func() error { return x.a.On(theirs).Write(background, make([]byte, 4*x.n)) })
		x.refused("wrap", gp.ErrArgument, "another context", func() error { return onlyBuffer(x.r0.Wrap(x.a.Ptr(), gp.TypeUint8, 4, theirs)) })
		x.refused("wrap memory", gp.ErrArgument, "memory of GPU 1", func() error { return onlyBuffer(x.r0.Wrap(x.b.Ptr(), gp.TypeUint8, 4, nil)) })
	})
}

// managed is a driver to which all memory is managed.
type managed struct{ api.Driver }

func (m managed) PointerGetAttribute(a api.PointerAttribute, p api.Ptr) (uint64, api.Code) {
	if a == api.PtrIsManaged {
		return 1, api.Success
	}
	return m.Driver.PointerGetAttribute(a, p)
}

// sizeless is a driver that does not tell where an allocation ends.
type sizeless struct{ api.Driver }

func (s sizeless) PointerGetAttribute(a api.PointerAttribute, p api.Ptr) (uint64, api.Code) {
	if a == api.PtrRangeSize || a == api.PtrRangeStart {
		return 0, api.InvalidValue
	}
	return s.Driver.PointerGetAttribute(a, p)
}

func over(t testing.TB, d api.Driver) *cuda.Driver {
	t.Helper()
	v, err := hook.NewDriver(d)
	require.NoError(t, err)
	return v.(*cuda.Driver)
}

func TestWrapAsksTheDriver(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		g := group(t, over(t, managed{seam(d)}), 2)
		b := alloc(t, g.Ranks()[0], gp.TypeUint8, 64)
		_, err := g.Ranks()[0].Wrap(b.Ptr(), gp.TypeUint8, 64, nil)
		require.ErrorIs(t, err, gp.ErrArgument)
		require.ErrorContains(t, err, "managed")

		g = group(t, over(t, sizeless{seam(d)}), 2)
		b = alloc(t, g.Ranks()[0], gp.TypeUint8, 64)
		_, err = g.Ranks()[0].Wrap(b.Ptr(), gp.TypeUint8, 64, nil)
		require.NoError(t, err)
	})
}

// TestOneCard: what can only be wrong where ranks share a GPU.
func TestOneCard(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		x := newBench(t, d, func(o *gp.Options) { o.Devices, o.AllowSameGPU = []int{0, 0}, true })
		n := x.n
		mem := alloc(t, x.r0, gp.TypeFloat32, 4*n)
		twin, err := x.r1.Wrap(mem.Ptr(), gp.TypeFloat32, 4*n, nil)
		require.NoError(t, err)
		x.refused("copy onto itself", gp.ErrArgument, "overlap", func() error { return only(x.g.Copy(twin, mem)) })
		x.refused("copy onto itself in part", gp.ErrArgument, "overlap", func() error { return only(x.g.Copy(twin.Sub(0, n), mem.Sub(n-1, 2*n-1))) })
		x.refused("results in one place", gp.ErrArgument, "overlap", func() error {
			return only(x.g.AllReduce([]gp.Buffer{mem.Sub(0, n), twin.Sub(n-1, 2*n-1)}, gp.Sum))
		})
		x.refused("a result on another's source", gp.ErrArgument, "overlap", func() error {
			return only(x.g.AllReduceTo([]gp.Buffer{mem.Sub(0, n), x.b}, []gp.Buffer{mem.Sub(2*n, 3*n), twin.Sub(0, n)}, gp.Sum))
		})
		out := alloc(t, x.r1, gp.TypeFloat32, 2*n)
		x.refused("gathered on another's source", gp.ErrArgument, "overlap", func() error {
			return only(x.g.AllGather([]gp.Buffer{mem.Sub(0, 2*n), out}, []gp.Buffer{mem.Sub(3*n, 4*n), twin.Sub(2*n-1, 3*n-1)}))
		})
		// Reading the same memory twice is no overlap.
		out0, out1 := alloc(t, x.r0, gp.TypeFloat32, n), alloc(t, x.r1, gp.TypeFloat32, n)
		require.NoError(t, mem.Write(background, make([]byte, 16*n)))
		w, err := x.g.AllReduceTo([]gp.Buffer{out0, out1}, []gp.Buffer{mem.Sub(0, n), twin.Sub(0, n)}, gp.Sum)
		wait(t, w, err)
	})
}

func TestOpenRefuses(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		count, err := d.DeviceCount()
		require.NoError(t, err)
		for _, c := range []struct {
			name string
			want error
			says string
			o    gp.Options
		}{
			{"one GPU twice", gp.ErrArgument, "AllowSameGPU", gp.Options{Devices: []int{0, 0}}},
			{"pinned", gp.ErrArgument, "PinnedBytes", gp.Options{PinnedBytes: gp.MinPinnedBytes - 1}},
			{"pinned negative", gp.ErrArgument, "PinnedBytes", gp.Options{PinnedBytes: -1}},
			{"P2P", gp.ErrArgument, "P2P mode 7", gp.Options{P2P: 7}},
			{"no devices", gp.ErrArgument, "no devices", gp.Options{Devices: []int{}}},
			{"too many", gp.ErrArgument, "17 ranks", gp.Options{Devices: make([]int, 17), AllowSameGPU: true}},
			{"no such device", cuda.ErrInvalidDevice, "rank 1", gp.Options{Devices: []int{0, count}}},
			{"negative device", cuda.ErrInvalidDevice, "rank 0", gp.Options{Devices: []int{-1}}},
		} {
			c.o.Driver, c.o.Logger = d, discard
			g, err := gp.Open(c.o)
			require.ErrorIs(t, err, c.want, c.name)
			require.ErrorContains(t, err, c.says, c.name)
			require.Nil(t, g, c.name)
		}
		g := group(t, d, 2)
		require.Len(t, g.Ranks(), 2)
	})
}

func TestClosedGroup(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		x := newBench(t, d)
		g, a, b := x.g, x.a, x.b
		w, err := g.Copy(b, a)
		require.NoError(t, err)
		require.NoError(t, g.Close())
		before := x.tap.Total()
		for name, f := range map[string]func() error{
			"copy":           func() error { return only(g.Copy(b, a)) },
			"all_reduce":     func() error { return only(g.AllReduce([]gp.Buffer{a, b}, gp.Sum)) },
			"all_gather":     func() error { return only(g.AllGather([]gp.Buffer{a, b}, []gp.Buffer{a, b})) },
			"joined":         func() error { return only(x.r0.AllReduce(background, a, gp.Sum)) },
			"alloc":          func() error { return onlyBuffer(x.r0.Alloc(gp.TypeInt8, 1)) },
			"wrap":           func() error { return onlyBuffer(x.r0.Wrap(4096, gp.TypeInt8, 1, nil)) },
			"write":          func() error { return a.Write(background, make([]byte, 4*x.n)) },
			"read":           func() error { return a.Read(background, make([]byte, 4*x.n)) },
			"synchronize":    func() error { return g.Synchronize(background) },
			"upload nothing": func() error { return onlyBuffer(gp.Upload[int8](background, x.r0, nil)) },
		} {
			require.ErrorIs(t, f(), gp.ErrClosed, name)
		}
		require.Equal(t, before, x.tap.Total(), "driver calls of a closed group")
		require.NoError(t, w.Wait(background), "Close waited for it")
		require.True(t, w.Done())
		require.NoError(t, a.Free())
		require.NoError(t, g.Close())
	})
}

// TestCapturedStreams: a stream that is being captured is refused, and neither
// that nor anything else the group does spoils the capture.
func TestCapturedStreams(t *testing.T) {
	gputest.Parallel(t)
	each(t, func(t *testing.T, d *cuda.Driver) {
		runtime.LockOSThread() // a capture ends on the thread where it began
		defer runtime.UnlockOSThread()
		x := newBench(t, d)
		cc := x.r0.Context()
		captured := newStream(t, x.r0)
		blocking, err := cc.NewBlockingStream()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, blocking.Close()) })
		done, err := x.g.Copy(x.b, x.a)
		wait(t, done, err)
		n := 0
		capture := func(s *cuda.Stream, mode api.CaptureMode, f func()) {
			t.Helper()
			require.NoError(t, cc.Do(func() error {
				require.Equal(t, api.Success, seam(d).StreamBeginCapture(s.Handle(), mode))
				return nil
			}))
			f()
			require.NoError(t, cc.Do(func() error {
				graph, c := seam(d).StreamEndCapture(s.Handle())
				require.Equal(t, api.Success, c, "the capture is still valid")
				if graph != 0 {
					require.Equal(t, api.Success, seam(d).GraphDestroy(graph))
				}
				return nil
			}))
			n++
		}
		for _, mode := range []api.CaptureMode{api.CaptureGlobal, api.CaptureThreadLocal, api.CaptureRelaxed} {
			for _, s := range []struct {
				name    string
				capture *cuda.Stream
				use     *cuda.Stream
			}{
				{"the stream itself", captured, captured},
				{"a blocking stream", blocking, blocking},
				{"the legacy stream beside a blocking one", blocking, cc.LegacyStream()},
			} {
				capture(s.capture, mode, func() {
					a := x.a.On(s.use)
					for name, f := range map[string]func() error{
						"copy from":    func() error { return only(x.g.Copy(x.b, a)) },
						"copy to":      func() error { return only(x.g.Copy(a, x.b)) },
						"empty copy":   func() error { return only(x.g.Copy(x.b.Sub(0, 0), a.Sub(0, 0))) },
						"all_reduce":   func() error { return only(x.g.AllReduce([]gp.Buffer{a, x.b}, gp.Sum)) },
						"empty reduce": func() error { return only(x.g.AllReduce([]gp.Buffer{a.Sub(0, 0), x.b.Sub(0, 0)}, gp.Sum)) },
						"all_gather": func() error {
							return only(x.g.AllGather([]gp.Buffer{a.Sub(0, 20), x.b.Sub(0, 20)}, []gp.Buffer{x.a.Sub(0, 10), x.b.Sub(10, 20)}))
						},
						"write": func() error { return a.Write(background, make([]byte, 4*x.n)) },
						"read":  func() error { return a.Read(background, make([]byte, 4*x.n)) },
					} {
						x.refused(s.name+": "+name, gp.ErrCapturing, "captured", f)
					}
				})
			}
			// The first AllReduce of a type loads kernels; the ring takes scratch.
			capture(captured, mode, func() {
				g := open(t, options(t, x.d, 2))
				var bufs []gp.Buffer
				for _, r := range g.Ranks() {
					b, err := gp.Upload(background, r, []int64{1, 2, 3})
					require.NoError(t, err)
					bufs = append(bufs, b)
				}
				w, err := g.AllReduce(bufs, gp.Max)
				require.NoError(t, err)
				require.NoError(t, w.Wait(background))
				require.True(t, w.Done())
				got := make([]int64, 3)
				require.NoError(t, gp.Download(background, got, bufs[1]))
				require.Equal(t, []int64{1, 2, 3}, got)
				require.NoError(t, g.Synchronize(background))
				require.NoError(t, bufs[0].Free())
				require.NoError(t, g.Close())
			})
			capture(captured, mode, func() {
				w, err := x.g.Copy(x.b, x.a)
				require.NoError(t, err)
				x.refusedBefore(w, captured)
				ctx, cancel := context.WithTimeout(background, time.Minute)
				defer cancel()
				require.NoError(t, w.Wait(ctx))
			})
		}
		require.Equal(t, 15, n)
		x.works("after all captures")
	})
}

func (x *bench) refusedBefore(w gp.Work, s *cuda.Stream) {
	x.t.Helper()
	before := enqueuing(x.tap)
	require.ErrorIs(x.t, w.Before(s), gp.ErrCapturing)
	require.Equal(x.t, before, enqueuing(x.tap))
}
