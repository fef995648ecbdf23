// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"encoding/json"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
	"github.com/geforce-p2p/geforce-p2p/ptx"
)

// A traffic is the bytes that a collective must move over one card's link when
// all its ranks share that card.
type traffic struct{ up, down int }

// bare is the time of so much traffic as large independent copies, started
// together: the bound of a collective.
type bare struct {
	t        *testing.T
	up, down *cuda.Stream
	dev      [2]*cuda.Memory
	host     [2]*cuda.HostMem
}

// barePiece is the bytes of the largest of those copies.
const barePiece = 64 << 20

func newBare(t *testing.T, cc *cuda.Context) *bare {
	l := newLink(t, cc, barePiece)
	return &bare{t: t, up: l.up, down: l.down, dev: l.dev, host: l.host}
}

func (b *bare) run(x traffic) float64 {
	start := time.Now()
	for x.up > 0 || x.down > 0 {
		if n := min(x.up, barePiece); n > 0 {
			require.NoError(b.t, b.up.MemcpyDtoH(b.host[0].Pointer(), b.dev[0].Ptr(), n))
			x.up -= n
		}
		if n := min(x.down, barePiece); n > 0 {
			require.NoError(b.t, b.down.MemcpyHtoD(b.dev[1].Ptr(), b.host[1].Pointer(), n))
			x.down -= n
		}
	}
	require.NoError(b.t, b.up.Synchronize())
	require.NoError(b.t, b.down.Synchronize())
	return time.Since(start).Seconds()
}

// card is a group of n ranks on one card, with a source and a destination of most
// bytes each.
type card struct {
	t        *testing.T
	g        *gp.Group
	n        int
	src, dst []gp.Buffer
	want     []float32 // the sum of all sources
	in       [][]float32
	got      []float32
	noise    []float32
}

func newCard(t *testing.T, d *cuda.Driver, n, most int) *card { return newCardOf(t, d, n, most, 0) }

func newCardOf(t *testing.T, d *cuda.Driver, n, most int, pinned int64) *card {
	return newRanks(t, d, make([]int, n), most, pinned)
}

// newRanks is that with a GPU for each rank.
func newRanks(t *testing.T, d *cuda.Driver, gpus []int, most int, pinned int64) *card {
	n := len(gpus)
	o := gp.Options{Driver: d, Devices: gpus, AllowSameGPU: true, P2P: gp.P2POff, Logger: discard, PinnedBytes: pinned}
	g, err := gp.Open(o)
	require.NoError(t, err)
	c := &card{t: t, g: g, n: n, got: make([]float32, most/4), want: make([]float32, most/4), noise: make([]float32, most/4)}
	fillRandom(unsafe.Slice((*byte)(unsafe.Pointer(&c.noise[0])), most), 1)
	for r, rk := range g.Ranks() {
		v := make([]float32, most/4)
		rng := rand.New(rand.NewPCG(uint64(r), 5))
		for i := range v {
			v[i] = float32(int32(rng.Uint32()) >> 16) // any order of the sum is exact
			c.want[i] += v[i]
		}
		b, err := gp.Upload(background, rk, v)
		require.NoError(t, err)
		c.src, c.in = append(c.src, b), append(c.in, v)
		b, err = rk.Alloc(gp.TypeFloat32, most/4)
		require.NoError(t, err)
		c.dst = append(c.dst, b)
	}
	return c
}

func (c *card) cut(bufs []gp.Buffer, n int) (s []gp.Buffer) {
	for _, b := range bufs {
		s = append(s, b.Sub(0, n))
	}
	return s
}

// A job is a collective over buffers of s elements: how it is called, what it
// must move, and what rank r must have at element i afterwards.
type job struct {
	call func(o gp.Ops) (gp.Work, error)
	move traffic
	out  int // elements of a destination
	at   func(r, i int) float32
}

func (c *card) job(op string, s int) job {
	n := c.n
	part := s / n
	switch op {
	case "all_reduce":
		dst, src := c.cut(c.dst, s), c.cut(c.src, s)
		return job{func(o gp.Ops) (gp.Work, error) { return o.AllReduceTo(dst, src, gp.Sum) }, traffic{4 * n * s, 8 * (n - 1) * s}, s,
			func(_, i int) float32 { return c.want[i] }}
	case "all_gather":
		dst, src := c.cut(c.dst, s), c.cut(c.src, part)
		return job{func(o gp.Ops) (gp.Work, error) { return o.AllGather(dst, src) }, traffic{4 * s, 4 * (n - 1) * s}, s,
			func(_, i int) float32 { return c.in[i/part][i%part] }}
	case "reduce_scatter":
		dst, src := c.cut(c.dst, part), c.cut(c.src, s)
		return job{func(o gp.Ops) (gp.Work, error) { return o.ReduceScatter(dst, src, gp.Sum) }, traffic{4 * (n - 1) * s, 4 * (n - 1) * s}, part,
			func(r, i int) float32 { return c.want[r*part+i] }}
	case "broadcast":
		dst, src := c.cut(c.dst, s), c.src[0].Sub(0, s)
		return job{func(o gp.Ops) (gp.Work, error) { return o.Broadcast(dst, src) }, traffic{4 * s, 4 * (n - 1) * s}, s,
			func(_, i int) float32 { return c.in[0][i] }}
	case "all_to_all":
		dst, src := c.cut(c.dst, s), c.cut(c.src, s)
		return job{func(o gp.Ops) (gp.Work, error) { return o.AllToAll(dst, src) }, traffic{4 * (n - 1) * s, 4 * (n - 1) * s}, s,
			func(r, i int) float32 { return c.in[i/part][r*part+i%part] }}
	}
	panic(op)
}

// verify poisons the destinations, runs the job once and holds every element.
func (c *card) verify(name string, o gp.Ops, j job) {
	for _, b := range c.dst {
		d := b.Sub(0, j.out)
		require.NoError(c.t, d.Write(background, unsafe.Slice((*byte)(unsafe.Pointer(&c.noise[0])), 4*j.out)))
	}
	w, err := j.call(o)
	wait(c.t, w, err)
	for r, b := range c.dst {
		require.NoError(c.t, gp.Download(background, c.got[:j.out], b.Sub(0, j.out)))
		for i, v := range c.got[:j.out] {
			if v != j.at(r, i) {
				c.t.Fatalf("%s: rank %d, element %d is %v instead of %v", name, r, i, v, j.at(r, i))
			}
		}
	}
}

type collectivePoint struct {
	Op        string       `json:"op"`
	Ranks     int          `json:"ranks"`
	Bytes     int          `json:"bytes"`
	Algorithm gp.Algorithm `json:"algorithm"`
	// Auto says that the library chooses this algorithm here.
	Auto    bool    `json:"auto"`
	Seconds float64 `json:"median_seconds"`
	P5      float64 `json:"p5_seconds"`
	P95     float64 `json:"p95_seconds"`
	Enqueue float64 `json:"enqueue_seconds"`
	Bound   float64 `json:"bound_seconds"`
	// Of each round, the bound's time over the call's.
	Ratio  float64 `json:"bound_over_time"`
	Rounds int     `json:"rounds"`
}

// TestMeasureCollectives takes the times of the collectives with all ranks on one
// card, each beside its bound of the same round.
func TestMeasureCollectives(t *testing.T) {
	d, dir := figuresAsked(t)
	dev, err := d.Device(0)
	require.NoError(t, err)
	cc, err := dev.Primary()
	require.NoError(t, err)
	defer func() { require.NoError(t, cc.Close()) }()
	b := newBare(t, cc)
	var points []collectivePoint
	for _, n := range []int{2, 4, 8} {
		const most = 256 << 20
		c := newCard(t, d, n, most)
		for _, k := range []struct {
			op    string
			sizes []int
			algs  []gp.Algorithm
		}{
			{"all_reduce", []int{4, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20}, []gp.Algorithm{gp.AlgorithmOneShot, gp.AlgorithmTwoShot, gp.AlgorithmDirect, gp.AlgorithmRing}},
			{"all_reduce", []int{16 << 20, 64 << 20, most}, []gp.Algorithm{gp.AlgorithmDirect, gp.AlgorithmRing}},
			{"all_gather", []int{64 << 10, 1 << 20, 64 << 20}, []gp.Algorithm{gp.AlgorithmOneShot, gp.AlgorithmDirect}},
			{"reduce_scatter", []int{64 << 10, 1 << 20, 64 << 20}, []gp.Algorithm{gp.AlgorithmDirect}},
			{"broadcast", []int{64 << 10, 1 << 20, 64 << 20}, []gp.Algorithm{gp.AlgorithmDirect}},
			{"all_to_all", []int{64 << 10, 1 << 20, 64 << 20}, []gp.Algorithm{gp.AlgorithmDirect}},
		} {
			for _, bytes := range k.sizes {
				j := c.job(k.op, bytes/4)
				var e gp.Explanation
				_, err := j.call(c.g.With(gp.CallOptions{Explain: &e}))
				require.NoError(t, err)
				algs := k.algs[:0:0]
				for _, alg := range k.algs {
					o := c.g.With(gp.CallOptions{Algorithm: alg})
					if _, err := j.call(c.g.With(gp.CallOptions{Algorithm: alg, Explain: &gp.Explanation{}})); err != nil {
						t.Logf("%s of %d bytes on %d ranks: %v", k.op, bytes, n, err)
						continue
					}
					algs = append(algs, alg)
					c.verify(fmt.Sprintf("%s %s of %d bytes on %d ranks", k.op, alg, bytes, n), o, j)
				}
				rounds := 60
				switch {
				case bytes > 64<<20:
					rounds = 7
				case bytes > 4<<20:
					rounds = 11
				case bytes >= 1<<20:
					rounds = 25
				}
				times, enq, ratio := make([][]float64, len(algs)), make([][]float64, len(algs)), make([][]float64, len(algs))
				var bound []float64
				for i := range rounds + 2 {
					at := b.run(j.move)
					if i >= 2 {
						bound = append(bound, at)
					}
					for a, alg := range algs {
						start := time.Now()
						w, err := j.call(c.g.With(gp.CallOptions{Algorithm: alg}))
						mid := time.Now()
						wait(t, w, err)
						took := time.Since(start).Seconds()
						if i >= 2 {
							times[a], enq[a], ratio[a] = append(times[a], took), append(enq[a], mid.Sub(start).Seconds()), append(ratio[a], at/took)
						}
					}
				}
				for a, alg := range algs {
					p := collectivePoint{k.op, n, bytes, alg, alg == e.Algorithm, median(times[a]), percentile(times[a], 5), percentile(times[a], 95), median(enq[a]), median(bound), median(ratio[a]), rounds}
					points = append(points, p)
					t.Logf("%-14s N=%d %9d B %-9s %10.1f us (enqueue %8.1f) bound %10.1f us ratio %.3f auto=%v", p.Op, p.Ranks, p.Bytes, p.Algorithm, p.Seconds*1e6, p.Enqueue*1e6, p.Bound*1e6, p.Ratio, p.Auto)
				}
			}
		}
		require.NoError(t, c.g.Close())
	}
	writeMeasured(t, dir, "collectives", map[string]any{"gpu": name(t, dev), "type": "float32", "one_card": true, "points": points})
}

func name(t *testing.T, d cuda.Device) string {
	s, err := d.Name()
	require.NoError(t, err)
	return s
}

func percentile(v []float64, p int) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[min(len(v)*p/100, len(v)-1)]
}

func writeMeasured(t *testing.T, dir, name string, v any) {
	b, err := json.MarshalIndent(v, "", "  ")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, name+".json"), b, 0o666))
}

// TestMeasureSmallAllReduce takes the time of small all_reduces back to back
// beside that of as many bare launches, and what it is worth to have a goroutine
// a rank.
func TestMeasureSmallAllReduce(t *testing.T) {
	d, dir := figuresAsked(t)
	dev, err := d.Device(0)
	require.NoError(t, err)
	type point struct {
		Ranks    int     `json:"ranks"`
		Bytes    int     `json:"bytes"`
		Seconds  float64 `json:"back_to_back_seconds"`
		Launches float64 `json:"launches_seconds"` // N launches that do nothing, likewise
		Waited   float64 `json:"waited_seconds"`   // from call to done
		Joined   float64 `json:"waited_by_a_goroutine_a_rank_seconds"`
	}
	var points []point
	for _, n := range []int{2, 4, 8} {
		c := newCard(t, d, n, 1<<20)
		for _, bytes := range []int{8, 1 << 10, 4 << 10, 16 << 10} {
			j := c.job("all_reduce", bytes/4)
			var back, bare, waited, joined []float64
			for range 9 {
				const many = 300
				bare = append(bare, launches(t, c.g, many))
				start := time.Now()
				var w gp.Work
				for range many {
					w, err = j.call(c.g.Ops)
					require.NoError(t, err)
				}
				wait(t, w, nil)
				back = append(back, time.Since(start).Seconds()/many)
				for range 20 {
					start = time.Now()
					w, err = j.call(c.g.Ops)
					wait(t, w, err)
					waited = append(waited, time.Since(start).Seconds())
				}
				joined = append(joined, aGoroutineARank(t, c, bytes/4))
			}
			p := point{n, bytes, median(back), median(bare), median(waited), median(joined)}
			points = append(points, p)
			t.Logf("N=%d %6d B: back to back %.2f us, %d launches %.2f us, waited %.2f us, a goroutine a rank %.2f us", n, bytes, p.Seconds*1e6, n, p.Launches*1e6, p.Waited*1e6, p.Joined*1e6)
			c.verify("small", c.g.Ops, j)
		}
		require.NoError(t, c.g.Close())
	}
	writeMeasured(t, dir, "small_all_reduce", map[string]any{"gpu": name(t, dev), "type": "float32", "one_card": true, "points": points})
}

// aGoroutineARank is the time of an all_reduce that a goroutine a rank calls and waits
// for.
func aGoroutineARank(t *testing.T, c *card, s int) float64 {
	const many = 50
	var wg sync.WaitGroup
	start := time.Now()
	for r, rk := range c.g.Ranks() {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range many {
				w, err := rk.AllReduceTo(background, c.dst[r].Sub(0, s), c.src[r].Sub(0, s), gp.Sum)
				if err == nil {
					err = w.Wait(background)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		}()
	}
	wg.Wait()
	return time.Since(start).Seconds() / many
}

// launches is the time of a launch on every rank's stream, of a kernel that does
// nothing, many times back to back.
func launches(t *testing.T, g *gp.Group, many int) float64 {
	seam := hook.Seam(g.Driver())
	cc := g.Ranks()[0].Context()
	loader := ptx.New(g.Driver(), ptx.Options{Logger: discard})
	defer func() { require.NoError(t, loader.Close()) }()
	f, err := loader.Function(cc, kernel.CopyModule(), kernel.CopyEntry)
	require.NoError(t, err)
	l := &api.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}, Params: (&kernel.Copy{}).Append(nil)}
	var took float64
	require.NoError(t, cc.Do(func() error {
		for range 2 {
			start := time.Now()
			for range many {
				for _, r := range g.Ranks() {
					l.Stream = api.Stream(r.Stream().Handle())
					require.Zero(t, seam.LaunchKernel(api.Function(f.Handle()), l))
				}
			}
			for _, r := range g.Ranks() {
				require.Zero(t, seam.StreamSynchronize(api.Stream(r.Stream().Handle())))
			}
			took = time.Since(start).Seconds() / float64(many)
		}
		return nil
	}))
	return took
}

// TestMeasureRows takes the time of strided copies beside that of a copy a row:
// for what rows the one is worth the other.
func TestMeasureRows(t *testing.T) {
	dir := os.Getenv("GP_MEASURE_DIR")
	if dir == "" {
		t.Skip("GP_MEASURE_DIR is not set: no figures asked for")
	}
	d := gputest.Hardware(t)
	dev, err := d.Device(0)
	require.NoError(t, err)
	cc, err := dev.Primary()
	require.NoError(t, err)
	defer func() { require.NoError(t, cc.Close()) }()
	l := newLink(t, cc, 64<<20)
	type point struct {
		Width, Rows, Offset int
		Strided, Rowwise    float64 // seconds, to the host
		Back, BackRowwise   float64 // from it
	}
	var points []point
	const pitch = 1 << 20
	time1 := func(f func()) float64 {
		var v []float64
		for i := range 60 {
			start := time.Now()
			f()
			require.NoError(t, l.up.Synchronize())
			if i >= 10 {
				v = append(v, time.Since(start).Seconds())
			}
		}
		return median(v)
	}
	for _, rows := range []int{3, 7} {
		for _, width := range []int{4, 16, 60, 64, 256, 500, 512, 4096, 4100, 65536, 1 << 20} {
			for _, off := range []int{0, 4} {
				host, dev := unsafe.Add(l.host[0].Pointer(), off), l.dev[0].Ptr()+cuda.Ptr(off)
				p := point{Width: width, Rows: rows, Offset: off}
				p.Strided = time1(func() {
					require.NoError(t, l.up.Memcpy2D(&cuda.Copy2D{DstHost: host, DstPitch: pitch + 4096, SrcDevice: dev, SrcPitch: uint64(width), Width: uint64(width), Height: uint64(rows)}))
				})
				p.Back = time1(func() {
					require.NoError(t, l.up.Memcpy2D(&cuda.Copy2D{SrcHost: host, SrcPitch: pitch + 4096, DstDevice: dev, DstPitch: uint64(width), Width: uint64(width), Height: uint64(rows)}))
				})
				p.Rowwise = time1(func() {
					for r := range rows {
						require.NoError(t, l.up.MemcpyDtoH(unsafe.Add(host, r*(pitch+4096)), dev+cuda.Ptr(r*width), width))
					}
				})
				p.BackRowwise = time1(func() {
					for r := range rows {
						require.NoError(t, l.up.MemcpyHtoD(dev+cuda.Ptr(r*width), unsafe.Add(host, r*(pitch+4096)), width))
					}
				})
				points = append(points, p)
				t.Logf("%d rows of %7d at +%d: to host %.1f us, a copy a row %.1f us; from host %.1f us, %.1f us", rows, width, off, p.Strided*1e6, p.Rowwise*1e6, p.Back*1e6, p.BackRowwise*1e6)
			}
		}
	}
	writeMeasured(t, dir, "rows", map[string]any{"gpu": name(t, dev), "points": points})
}

// TestMeasureSegments takes the times of direct collectives over lengths of their
// segments and budgets of pinned memory.
func TestMeasureSegments(t *testing.T) {
	dir := os.Getenv("GP_MEASURE_DIR")
	if dir == "" || os.Getenv("GP_MEASURE_SEGMENTS") == "" {
		t.Skip("GP_MEASURE_SEGMENTS is not set: no figures asked for")
	}
	d := gputest.Hardware(t)
	dev, err := d.Device(0)
	require.NoError(t, err)
	cc, err := dev.Primary()
	require.NoError(t, err)
	defer func() { require.NoError(t, cc.Close()) }()
	b := newBare(t, cc)
	type point struct {
		Op                   string
		Ranks, Bytes, Pinned int
		Chunk, Took, Slots   int
		Seconds, Ratio       float64
	}
	var points []point
	for _, n := range []int{2, 8} {
		for _, pinned := range []int64{32 << 20, 64 << 20} {
			c := newCardOf(t, d, n, 256<<20, pinned)
			for _, k := range []struct {
				op    string
				bytes int
			}{{"all_reduce", 64 << 20}, {"all_reduce", 256 << 20}, {"reduce_scatter", 64 << 20}, {"all_to_all", 64 << 20}} {
				j := c.job(k.op, k.bytes/4)
				chunks := []int{0, 2 << 20, 4 << 20, 6 << 20, 8 << 20, 12 << 20, 16 << 20}
				times, ratio := make([][]float64, len(chunks)), make([][]float64, len(chunks))
				for i := range 6 {
					bound := b.run(j.move)
					for a, chunk := range chunks {
						start := time.Now()
						w, err := j.call(c.g.With(gp.CallOptions{Algorithm: gp.AlgorithmDirect, Chunk: chunk}))
						wait(t, w, err)
						if took := time.Since(start).Seconds(); i > 0 {
							times[a], ratio[a] = append(times[a], took), append(ratio[a], bound/took)
						}
					}
				}
				for a, chunk := range chunks {
					var e gp.Explanation
					_, err := j.call(c.g.With(gp.CallOptions{Algorithm: gp.AlgorithmDirect, Chunk: chunk, Explain: &e}))
					require.NoError(t, err)
					p := point{k.op, n, k.bytes, int(pinned), chunk, e.Chunk, e.Slots, median(times[a]), median(ratio[a])}
					points = append(points, p)
					t.Logf("segments %-14s N=%d %9d B pinned %d chunk %8d (%8d x %d): %.1f us, ratio %.3f", p.Op, n, p.Bytes, pinned>>20, chunk, e.Chunk, e.Slots, p.Seconds*1e6, p.Ratio)
				}
			}
			require.NoError(t, c.g.Close())
		}
	}
	writeMeasured(t, dir, "segments", map[string]any{"gpu": name(t, dev), "points": points})
}
