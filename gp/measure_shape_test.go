// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

type shapePoint struct {
	Op        string       `json:"op"`
	Ranks     int          `json:"ranks"`
	GPUs      int          `json:"gpus"`
	Bytes     int          `json:"bytes"`
	Algorithm gp.Algorithm `json:"algorithm"`
	Blocks    uint32       `json:"blocks,omitempty"` // of each kernel, where that was asked for
	Seconds   float64      `json:"median_seconds"`
	P5        float64      `json:"p5_seconds"`
	Enqueue   float64      `json:"enqueue_seconds"`
	Rounds    int          `json:"rounds"`
}

// TestMeasureShapes takes the times of the kernels that wait for each other over
// their grids, beside the copies that do the same: where each rank has a GPU of
// its own, and where two share one. Every point is verified.
func TestMeasureShapes(t *testing.T) {
	d, dir := figuresAsked(t)
	dev, err := d.Device(0)
	require.NoError(t, err)
	devs, err := d.Devices()
	require.NoError(t, err)
	layouts := [][]int{{0, 0}}
	for n := 2; n <= len(devs); n *= 2 {
		var gpus []int
		for i := range n {
			gpus = append(gpus, i)
		}
		layouts = append(layouts, gpus)
	}
	var points []shapePoint
	for _, gpus := range layouts {
		const most = 8 << 20
		n := len(gpus)
		distinct := 1
		if gpus[1] != 0 {
			distinct = n
		}
		c := newRanks(t, d, gpus, most, 0)
		for _, k := range []struct {
			op    string
			alg   gp.Algorithm
			least int
			most  int
			grids []uint32
		}{
			{"all_reduce", gp.AlgorithmOneShot, 8, 512 << 10, []uint32{0, 4, 8, 16, 32}},
			{"all_reduce", gp.AlgorithmTwoShot, 64 << 10, most, []uint32{0, 4, 8, 16, 24, 32}},
			{"all_reduce", gp.AlgorithmDirect, 128 << 10, most, []uint32{0}},
			{"all_reduce", gp.AlgorithmRing, 128 << 10, most, []uint32{0}},
			{"all_gather", gp.AlgorithmOneShot, 8, 1 << 20, []uint32{0, 4, 8, 16, 32}},
			{"all_gather", gp.AlgorithmDirect, 64 << 10, 4 << 20, []uint32{0}},
			{"all_gather", gp.AlgorithmRing, 64 << 10, 4 << 20, []uint32{0}},
			{"reduce_scatter", gp.AlgorithmDirect, 64 << 10, 4 << 20, []uint32{0}},
			{"reduce_scatter", gp.AlgorithmRing, 64 << 10, 4 << 20, []uint32{0}},
		} {
			for _, bytes := range []int{8, 4 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20} {
				if bytes < k.least || bytes > k.most {
					continue
				}
				j := c.job(k.op, max(bytes/4, n))
				o := c.g.With(gp.CallOptions{Algorithm: k.alg})
				if _, err := j.call(c.g.With(gp.CallOptions{Algorithm: k.alg, Explain: &gp.Explanation{}})); err != nil {
					continue // longer than the areas hold
				}
				for _, grid := range k.grids {
					// A block without anything to do tells nothing.
					if grid > 1 && int(grid/2)*kernel.BlockThreads*8 >= bytes {
						continue
					}
					c.g.SetGrid(grid)
					c.verify("shape", o, j)
					p := shapePoint{Op: k.op, Ranks: n, GPUs: distinct, Bytes: bytes, Algorithm: k.alg, Blocks: grid}
					var times, enq []float64
					for end := time.Now().Add(12 * time.Millisecond); len(times) < 15 || time.Now().Before(end) && len(times) < 200; {
						start := time.Now()
						w, err := j.call(o)
						mid := time.Now()
						wait(t, w, err)
						times, enq = append(times, time.Since(start).Seconds()), append(enq, mid.Sub(start).Seconds())
					}
					p.Seconds, p.P5, p.Enqueue, p.Rounds = median(times), percentile(times, 5), median(enq), len(times)
					points = append(points, p)
					t.Logf("%-14s %d ranks on %d GPUs, %8d B, %-9s %2d blocks: %8.1f us (p5 %.1f, enqueue %.1f)", p.Op, n, distinct, bytes, k.alg, grid, p.Seconds*1e6, p.P5*1e6, p.Enqueue*1e6)
				}
				c.g.SetGrid(0)
			}
		}
		require.NoError(t, c.g.Close())
	}
	writeMeasured(t, dir, "shapes", map[string]any{"gpu": name(t, dev), "type": "float32", "reduction": "sum", "points": points})
}
