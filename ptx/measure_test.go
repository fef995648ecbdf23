// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// An exchangePoint is one place of the sweep.
type exchangePoint struct {
	Kind   string `json:"kind"`
	N      int    `json:"ranks"`
	Bytes  int    `json:"bytes"`
	Blocks uint32 `json:"blocks"`
	Thread uint32 `json:"threads"` // a block
	// From the first launch until all have been waited for, and an operation's
	// part of many that were enqueued without a wait between.
	Median     float64 `json:"median_us"`
	Lowest     float64 `json:"lowest_us"`
	BackToBack float64 `json:"back_to_back_us"`
	Enqueue    float64 `json:"enqueue_us"` // of Median, the launches
	Rounds     int     `json:"rounds"`
	Default    bool    `json:"default,omitempty"` // the shape that ExchangeShape says
	Wrong      string  `json:"wrong,omitempty"`   // what was not as it should be
}

// A boundPoint is what the same bytes cost as bare copies: for all_reduce of n
// ranks over one link, n parts up and 2(n-1) down, started together.
type boundPoint struct {
	N      int     `json:"ranks"`
	Bytes  int     `json:"bytes"`
	Median float64 `json:"bare_traffic_us"`
}

func microseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

func medianOf(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// TestMeasureExchange sweeps kinds, ranks, sizes and grids, on one card with the
// ranks as streams of one context, f32 sum of random data. Every result is
// verified, of a destination that held something else before. It takes some ten
// seconds, prints a line a point, and writes what it has after each.
func TestMeasureExchange(t *testing.T) {
	dir := os.Getenv("GP_MEASURE_DIR")
	if dir == "" {
		t.Skip("GP_MEASURE_DIR is not set: no figures asked for")
	}
	if testenv.Race || !testenv.Optimized() {
		t.Skip("built for checking, not for measuring")
	}
	d := gputest.Hardware(t)
	const most, budget, whole = 4 << 20, 6 * time.Millisecond, 20 * time.Second // the budget is each median's
	var points []exchangePoint
	var bounds []boundPoint
	launches := map[string]float64{}
	name := ""
	begin := time.Now()
	write := func() {
		b, err := json.MarshalIndent(map[string]any{
			"gpu": name, "type": "float32", "reduction": "sum", "points": points, "bare_traffic": bounds,
			"launches_of_nothing_us": launches, "seconds": time.Since(begin).Seconds(),
		}, "", "  ")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "exchange.json"), b, 0o666))
	}
	for _, n := range []int{2, 4, 8} {
		s := newStage(t, d, Auto, n, most, most*n, 0)
		var err error
		name, err = s.cc.Device().Name()
		require.NoError(t, err)
		r := rand.New(rand.NewPCG(uint64(n), 31))
		var ins [][]byte
		var gathered []byte
		for rank := range n {
			b := s.at(s.in[rank], most)
			for i := 0; i < most; i += 4 {
				binary.LittleEndian.PutUint32(b[i:], math.Float32bits(float32(r.NormFloat64())))
			}
			ins = append(ins, b)
		}
		sums := make([]byte, most)
		kernel.Reduce(dtype.Float32, dtype.Sum, sums, false, ins, 0, 0)
		s.upload()
		got := make([]byte, most*n)

		// What n launches of a kernel that does nothing cost.
		empty, err := s.loader.Function(s.cc, kernel.CopyModule(), kernel.CopyEntry)
		require.NoError(t, err)
		nothing := (&kernel.Copy{}).Append(nil)
		var alone []float64
		for range 20 {
			start := time.Now()
			for i := range 20 * n {
				s.launch(empty, 1, kernel.BlockThreads, i%n, nothing)
			}
			s.wait()
			alone = append(alone, microseconds(time.Since(start))/20)
		}
		launches[map[int]string{2: "2", 4: "4", 8: "8"}[n]] = medianOf(alone)

		for _, size := range []int{64 << 10, 1 << 20, 4 << 20} {
			bounds = append(bounds, boundPoint{n, size, s.bareTraffic(n*size, 2*(n-1)*size)})
		}
		for _, k := range []kernel.Kind{kernel.OneShot, kernel.TwoShotLL, kernel.TwoShot, kernel.Gather} {
			typ, largest := dtype.Float32, 256<<10
			switch k {
			case kernel.OneShot:
				largest = 64 << 10
			case kernel.TwoShot:
				largest = most
			case kernel.Gather:
				typ, largest = 0, 64<<10
			}
			f := s.function(k, typ)
			for _, size := range []int{8, 1 << 10, 8 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20} {
				if size > largest || k == kernel.TwoShot && size < 16<<10 {
					continue
				}
				want := sums[:size]
				count, length := size/4, size
				if k == kernel.Gather {
					gathered = gathered[:0]
					for _, in := range ins {
						gathered = append(gathered, in[:size]...)
					}
					want, count, length = gathered, size, size*n
				}
				params := make([][]byte, n)
				usual, threads := kernel.ExchangeShape(k, uint64(size), n, n)
				once := func(grid uint32) {
					s.epoch++
					for rank := range n {
						x := s.exchange(k, 0, count, 0, rank)
						params[rank] = x.Append(params[rank][:0], typ)
						s.launch(f, grid, threads, rank, params[rank])
					}
				}
				grids := []uint32{usual}
				if k != kernel.Gather && size > 8<<10 {
					for _, g := range []uint32{usual / 2, usual * 2, usual * 4} {
						// Blocks without a unit are of no interest.
						if g >= 1 && g <= kernel.MaxExchangeBlocks && int(g/2)*kernel.BlockThreads*8 < size {
							grids = append(grids, g)
						}
					}
				}
				for _, grid := range grids {
					if time.Since(begin) > whole {
						t.Fatalf("not done after %v", whole)
					}
					s.doing = fmt.Sprintf("%v of %d bytes by %d ranks, %d blocks of %d", k, size, n, grid, threads)
					for rank := range n {
						require.NoError(t, s.streams[rank].MemsetD8(cuda.Ptr(s.out[rank]), 0xc3, length))
					}
					s.wait()
					p := exchangePoint{Kind: k.String(), N: n, Bytes: size, Blocks: grid, Thread: threads, Default: grid == usual}
					var all, enqueue []float64
					for end := time.Now().Add(budget); len(all) < 9 || time.Now().Before(end) && len(all) < 200; {
						start := time.Now()
						once(grid)
						mid := time.Now()
						s.wait()
						all = append(all, microseconds(time.Since(start)))
						enqueue = append(enqueue, microseconds(mid.Sub(start)))
					}
					p.Median, p.Lowest, p.Enqueue, p.Rounds = medianOf(all), slices.Min(all), medianOf(enqueue), len(all)
					in := max(4, min(100, int(float64(budget.Microseconds())/p.Median)))
					start := time.Now()
					for range in {
						once(grid)
					}
					s.wait()
					p.BackToBack = microseconds(time.Since(start)) / float64(in)
					for rank := range n {
						require.NoError(t, s.cc.MemcpyDtoH(got[:length], cuda.Ptr(s.out[rank])))
						if st := s.status(rank); st != (kernel.Status{}) {
							p.Wrong += fmt.Sprintf("rank %d ended with %+v; ", rank, st)
						}
						if !bytes.Equal(want, got[:length]) {
							p.Wrong += fmt.Sprintf("rank %d's result; ", rank)
						}
					}
					t.Logf("%s: %.1f us (lowest %.1f, enqueue %.1f), back to back %.1f %s", s.doing, p.Median, p.Lowest, p.Enqueue, p.BackToBack, p.Wrong)
					points = append(points, p)
					write()
					if p.Wrong != "" {
						t.FailNow()
					}
				}
			}
		}
	}
	t.Logf("%d points in %v", len(points), time.Since(begin))
}

// bareTraffic is the median time in microseconds of so many bytes to the host
// and from it, as copies of at most 64 MiB started together.
func (s *stage) bareTraffic(up, down int) float64 {
	dev, err := s.cc.Alloc(128 << 20)
	require.NoError(s.t, err)
	defer func() { require.NoError(s.t, dev.Close()) }()
	host, err := s.cc.HostAlloc(128<<20, 0)
	require.NoError(s.t, err)
	defer func() { require.NoError(s.t, host.Close()) }()
	r := rand.New(rand.NewPCG(1, 32))
	for i := 0; i < 128<<20; i += 8 {
		binary.LittleEndian.PutUint64(host.Bytes()[i:], r.Uint64())
	}
	require.NoError(s.t, s.cc.MemcpyHtoD(dev.Ptr(), host.Bytes()))
	var times []float64
	for range 15 {
		start := time.Now()
		require.NoError(s.t, s.streams[0].MemcpyDtoH(host.Pointer(), dev.Ptr(), up))
		require.NoError(s.t, s.streams[1].MemcpyHtoD(dev.Ptr()+64<<20, unsafe.Add(host.Pointer(), 64<<20), down))
		require.NoError(s.t, s.streams[0].Synchronize())
		require.NoError(s.t, s.streams[1].Synchronize())
		times = append(times, microseconds(time.Since(start)))
	}
	return medianOf(times)
}
