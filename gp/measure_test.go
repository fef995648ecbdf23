// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// figuresAsked is the driver to take figures of, and the folder that they go to. The
// test is skipped where nobody asks for any, there is no GPU, or the build is one for
// checking.
func figuresAsked(t *testing.T) (d *cuda.Driver, dir string) {
	t.Helper()
	if dir = os.Getenv("GP_MEASURE_DIR"); dir == "" {
		t.Skip("GP_MEASURE_DIR is not set: no figures asked for")
	}
	if testenv.Race || !testenv.Optimized() {
		t.Skip("built for checking, not for figuresAsked")
	}
	return gputest.Hardware(t), dir
}

// measuring skips unless figures are asked for and there is a GPU to take them
// from. It returns a group of two ranks, on one card if there is only one.
func measuring(t *testing.T) (*cuda.Driver, *gp.Group, func(name string, v any)) {
	d, dir := figuresAsked(t)
	n, err := d.DeviceCount()
	require.NoError(t, err)
	o := gp.Options{Driver: d, Devices: []int{0, min(1, n-1)}, AllowSameGPU: n == 1, P2P: gp.P2POff}
	g, err := gp.Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	return d, g, func(name string, v any) {
		b, err := json.MarshalIndent(v, "", "  ")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".json"), b, 0o666))
		t.Logf("%s: %s", name, b)
	}
}

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}

// link measures one card's link with plain large copies: one way each, and
// both ways enqueued together, as bytes a second.
type link struct {
	t        *testing.T
	n        int
	up, down *cuda.Stream
	dev      [2]*cuda.Memory
	host     [2]*cuda.HostMem
}

func newLink(t *testing.T, cc *cuda.Context, n int) *link {
	l := &link{t: t, n: n}
	var err error
	for i := range 2 {
		l.dev[i], err = cc.Alloc(n)
		require.NoError(t, err)
		l.host[i], err = cc.HostAlloc(n, 0)
		require.NoError(t, err)
		fillRandom(l.host[i].Bytes(), uint64(i))
	}
	l.up, err = cc.NewStream()
	require.NoError(t, err)
	l.down, err = cc.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() {
		for i := range 2 {
			require.NoError(t, l.dev[i].Close())
			require.NoError(t, l.host[i].Close())
		}
		require.NoError(t, l.up.Close())
		require.NoError(t, l.down.Close())
	})
	return l
}

// ceiling is the both-ways rate, of large copies or of a queue of 8 MiB pieces
// each way, whichever is more: on some days the host does better with pieces.
func (l *link) ceiling() float64 {
	whole := l.run(true, true)
	start := time.Now()
	const piece = 8 << 20
	for off := 0; off+piece <= l.n; off += piece {
		require.NoError(l.t, l.up.MemcpyDtoH(unsafe.Add(l.host[0].Pointer(), off), l.dev[0].Ptr()+cuda.Ptr(off), piece))
		require.NoError(l.t, l.down.MemcpyHtoD(l.dev[1].Ptr()+cuda.Ptr(off), unsafe.Add(l.host[1].Pointer(), off), piece))
	}
	require.NoError(l.t, l.up.Synchronize())
	require.NoError(l.t, l.down.Synchronize())
	return max(whole, float64(2*l.n)/time.Since(start).Seconds())
}

// run copies in the directions asked for and returns the bytes a second of
// their sum, from the enqueueing to the last.
func (l *link) run(d2h, h2d bool) float64 {
	start := time.Now()
	moved := 0
	if d2h {
		require.NoError(l.t, l.up.MemcpyDtoH(unsafe.Pointer(l.host[0].Pointer()), l.dev[0].Ptr(), l.n))
		moved += l.n
	}
	if h2d {
		require.NoError(l.t, l.down.MemcpyHtoD(l.dev[1].Ptr(), unsafe.Pointer(l.host[1].Pointer()), l.n))
		moved += l.n
	}
	require.NoError(l.t, l.up.Synchronize())
	require.NoError(l.t, l.down.Synchronize())
	return float64(moved) / time.Since(start).Seconds()
}

func fillRandom(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 99))
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), len(b)/8)
	for i := range words {
		words[i] = r.Uint64()
	}
	for i := len(words) * 8; i < len(b); i++ {
		b[i] = byte(r.Uint32())
	}
}

// TestMeasureCopy takes the figures of the staged copy between two ranks: its
// link traffic against the link's both-ways ceiling of the same rounds, and the
// time of a small copy.
func TestMeasureCopy(t *testing.T) {
	_, g, report := measuring(t)
	ctx := context.Background()
	r0, r1 := g.Ranks()[0], g.Ranks()[1]
	sameCard := r0.Device().Ordinal() == r1.Device().Ordinal()
	const big = 1 << 30
	l := newLink(t, r0.Context(), big/4)
	want := make([]byte, big)
	fillRandom(want, 7)
	src, err := r0.Alloc(gp.TypeUint8, big)
	require.NoError(t, err)
	require.NoError(t, src.Write(ctx, want))
	dst, err := r1.Alloc(gp.TypeUint8, big)
	require.NoError(t, err)

	type point struct {
		Bytes          int     `json:"bytes"`
		MedianSeconds  float64 `json:"median_seconds"`
		PayloadGBPerS  float64 `json:"payload_gb_per_s"`
		EnqueueSeconds float64 `json:"enqueue_seconds"`
		Rounds         int     `json:"rounds"`
	}
	var points []point
	got := make([]byte, big)
	poison := make([]byte, big)
	fillRandom(poison, 8)
	for _, n := range []int{4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20} {
		d, s := dst.Sub(0, n), src.Sub(0, n)
		require.NoError(t, d.Write(ctx, poison[:n]))
		var times, enq []float64
		rounds := 400
		if n > 1<<20 {
			rounds = 40
		}
		for i := range rounds + rounds/10 {
			start := time.Now()
			w, err := g.Copy(d, s)
			mid := time.Now()
			require.NoError(t, err)
			require.NoError(t, w.Wait(ctx))
			if i >= rounds/10 {
				times = append(times, time.Since(start).Seconds())
				enq = append(enq, mid.Sub(start).Seconds())
			}
		}
		require.NoError(t, d.Read(ctx, got[:n]))
		require.True(t, slices.Equal(want[:n], got[:n]), "copy of %d bytes", n)
		m := median(times)
		points = append(points, point{n, m, float64(n) / m / 1e9, median(enq), rounds})
	}

	require.NoError(t, dst.Write(ctx, poison))
	var ratio, both, up, down, rate, enq []float64
	for i := range 9 {
		u, dn, b := l.run(true, false), l.run(false, true), l.ceiling()
		start := time.Now()
		w, err := g.Copy(dst, src)
		mid := time.Now()
		require.NoError(t, err)
		require.NoError(t, w.Wait(ctx))
		took := time.Since(start).Seconds()
		if i < 2 {
			continue
		}
		up, down, both = append(up, u), append(down, dn), append(both, b)
		rate = append(rate, big/took)
		enq = append(enq, mid.Sub(start).Seconds())
		if sameCard { // each byte crosses the one link twice, once each way
			ratio = append(ratio, 2*big/took/b)
		} else {
			ratio = append(ratio, big/took/min(u, dn))
		}
	}
	require.NoError(t, dst.Read(ctx, got))
	require.True(t, slices.Equal(want, got), "copy of 1 GiB")
	report("copy", map[string]any{
		"gpu": r0.Name(), "same_card": sameCard,
		"d2h_gb_per_s": median(up) / 1e9, "h2d_gb_per_s": median(down) / 1e9, "both_ways_gb_per_s": median(both) / 1e9,
		"copy_1gib_payload_gb_per_s": median(rate) / 1e9, "copy_1gib_ratio_to_ceiling": median(ratio),
		"copy_1gib_enqueue_seconds": median(enq), "ceiling": map[bool]string{true: "both ways at once", false: "slower direction"}[sameCard],
		"rounds": len(ratio), "points": points,
	})
	// The bounds that are held; what they were measured on is in the record.
	require.GreaterOrEqual(t, median(ratio), 0.95, "link traffic of the staged copy over the ceiling")
	if sameCard && strings.Contains(r0.Name(), "H200") {
		require.LessOrEqual(t, points[0].MedianSeconds, 14e-6, "4 KiB from call to done")
	}
}

// TestMeasureBareCopy takes the time of a 4 KiB copy made with bare calls on the
// seam, in the order in which Copy makes them, and of each call: what there is
// to reach, and whether an event that a thread may sleep on costs more.
func TestMeasureBareCopy(t *testing.T) {
	d, g, report := measuring(t)
	seam := hook.Seam(d)
	r0, r1 := g.Ranks()[0], g.Ranks()[1]
	src, err := r0.Alloc(gp.TypeUint8, 4096)
	require.NoError(t, err)
	dst, err := r1.Alloc(gp.TypeUint8, 4096)
	require.NoError(t, err)
	hm, err := r0.Context().HostAlloc(4096, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, hm.Close()) }()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	same := r0.Context().Same(r1.Context())
	bind := func(r *gp.Rank) {
		if !same {
			require.Zero(t, seam.CtxSetCurrent(r.Context().Handle()))
		}
	}
	require.Zero(t, seam.CtxPushCurrent(r0.Context().Handle()))
	defer seam.CtxPopCurrent()
	out := map[string]any{"gpu": r0.Name(), "same_card": same}
	for name, flags := range map[string]api.EventFlag{"polled": api.EventDisableTiming, "blocking": api.EventDisableTiming | api.EventBlockingSync} {
		bind(r0)
		landed, c := seam.EventCreate(api.EventDisableTiming)
		require.Zero(t, c)
		bind(r1)
		end, c := seam.EventCreate(flags)
		require.Zero(t, c)
		s0, s1 := r0.Stream().Handle(), r1.Stream().Handle()
		names := []string{"d2h", "record", "wait", "h2d", "record_end", "done"}
		times := make([][]float64, len(names)+1)
		for i := range 600 {
			var at [7]time.Duration
			h := seam.Host()
			bind(r0)
			at[0] = h.Now()
			c0 := seam.MemcpyDtoHAsync(hm.Pointer(), api.Ptr(src.Ptr()), 4096, s0)
			at[1] = h.Now()
			c1 := seam.EventRecord(landed, s0)
			at[2] = h.Now()
			bind(r1)
			c2 := seam.StreamWaitEvent(s1, landed)
			at[3] = h.Now()
			c3 := seam.MemcpyHtoDAsync(api.Ptr(dst.Ptr()), hm.Pointer(), 4096, s1)
			at[4] = h.Now()
			c4 := seam.EventRecord(end, s1)
			at[5] = h.Now()
			for seam.EventQuery(end) == api.NotReady {
			}
			at[6] = h.Now()
			require.Zero(t, c0|c1|c2|c3|c4)
			if i < 100 {
				continue
			}
			for k := range names {
				times[k] = append(times[k], (at[k+1] - at[k]).Seconds())
			}
			times[len(names)] = append(times[len(names)], (at[6] - at[0]).Seconds())
		}
		for k, n := range names {
			out[name+"_"+n+"_seconds"] = median(times[k])
		}
		out[name+"_total_seconds"] = median(times[len(names)])
		require.Zero(t, seam.EventDestroy(landed))
		require.Zero(t, seam.EventDestroy(end))
	}
	bind(r0)
	report("bare_copy_4kib", out)
}

// TestMeasureFirstAllReduce takes the time of a process's first AllReduce from
// its call to its end. It means something only when it runs alone; who wants it
// cold or warm sets XDG_CACHE_HOME.
func TestMeasureFirstAllReduce(t *testing.T) {
	if os.Getenv("GP_MEASURE_FIRST") == "" {
		t.Skip("GP_MEASURE_FIRST is not set: it has to run alone in its process")
	}
	opened := time.Now()
	_, g, report := measuring(t)
	open := time.Since(opened).Seconds()
	ctx := context.Background()
	const n = 1 << 20
	var bufs []gp.Buffer
	for i, r := range g.Ranks() {
		v := make([]float32, n)
		for k := range v {
			v[k] = float32((k + i) % 251)
		}
		b, err := gp.Upload(ctx, r, v)
		require.NoError(t, err)
		bufs = append(bufs, b)
	}
	times := make([]float64, 3)
	for i := range times {
		start := time.Now()
		w, err := g.AllReduce(bufs, gp.Max)
		require.NoError(t, err)
		require.NoError(t, w.Wait(ctx))
		times[i] = time.Since(start).Seconds()
	}
	got := make([]float32, n)
	require.NoError(t, gp.Download(ctx, got, bufs[1]))
	for k := range got {
		require.Equal(t, float32(max(k%251, (k+1)%251)), got[k])
	}
	report("first_all_reduce_"+os.Getenv("GP_MEASURE_FIRST"), map[string]any{
		"gpu": g.Ranks()[0].Name(), "open_seconds": open, "first_seconds": times[0], "second_seconds": times[1], "third_seconds": times[2],
	})
	most := 0.5 // seconds
	if strings.HasSuffix(os.Getenv("GP_MEASURE_FIRST"), "_warm") {
		most = 0.06
	}
	require.LessOrEqual(t, times[0], most, "the first all_reduce of the process")
}

// TestMeasureAllReduce takes the times of the ring at some sizes.
func TestMeasureAllReduce(t *testing.T) {
	_, g, report := measuring(t)
	ctx := context.Background()
	type point struct {
		Algorithm     gp.Algorithm `json:"algorithm"`
		Bytes         int          `json:"bytes"`
		MedianSeconds float64      `json:"median_seconds"`
		Enqueue       float64      `json:"enqueue_seconds"`
		BoundRatio    float64      `json:"link_traffic_to_both_ways_ceiling"`
	}
	var points []point
	l := newLink(t, g.Ranks()[0].Context(), 256<<20)
	const most = 64 << 20
	var bufs []gp.Buffer
	for i, r := range g.Ranks() {
		b := make([]byte, most)
		fillRandom(b, uint64(i))
		v := unsafe.Slice((*int32)(unsafe.Pointer(&b[0])), most/4)
		u, err := gp.Upload(ctx, r, v)
		require.NoError(t, err)
		bufs = append(bufs, u)
	}
	for _, alg := range []gp.Algorithm{gp.AlgorithmRing, gp.AlgorithmRingZeroCopy} {
		for _, n := range []int{64 << 10, 1 << 20, 16 << 20, most} {
			var times, enq, ceil []float64
			for i := range 30 {
				if n == most && i%5 == 0 {
					ceil = append(ceil, l.ceiling())
				}
				start := time.Now()
				w, err := g.With(gp.CallOptions{Algorithm: alg}).AllReduce([]gp.Buffer{bufs[0].Sub(0, n/4), bufs[1].Sub(0, n/4)}, gp.Sum)
				mid := time.Now()
				require.NoError(t, err)
				require.NoError(t, w.Wait(ctx))
				if i >= 5 {
					times = append(times, time.Since(start).Seconds())
					enq = append(enq, mid.Sub(start).Seconds())
				}
			}
			p := point{Algorithm: alg, Bytes: n, MedianSeconds: median(times), Enqueue: median(enq)}
			if len(ceil) > 0 {
				// Two ranks on one card: each sends and receives the buffer once, over one link.
				p.BoundRatio = 4 * float64(n) / p.MedianSeconds / median(ceil)
			}
			points = append(points, p)
		}
	}
	report("all_reduce", map[string]any{"gpu": g.Ranks()[0].Name(), "type": "int32", "reduction": "sum", "ranks": 2, "points": points})
}
