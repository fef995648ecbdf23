// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"context"
	"fmt"
	"runtime"
	"runtime/pprof"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

func (d *idle) Memcpy2DAsync(c *api.Copy2D, s api.Stream) api.Code {
	if d.on {
		return api.Success
	}
	return d.Driver.Memcpy2DAsync(c, s)
}

func (d *idle) MemcpyDtoDAsync(dst, src api.Ptr, n uint64, s api.Stream) api.Code {
	if d.on {
		return api.Success
	}
	return d.Driver.MemcpyDtoDAsync(dst, src, n, s)
}

func (d *idle) MemcpyPeerAsync(dst api.Ptr, dctx api.Context, src api.Ptr, sctx api.Context, n uint64, s api.Stream) api.Code {
	if d.on {
		return api.Success
	}
	return d.Driver.MemcpyPeerAsync(dst, dctx, src, sctx, n, s)
}

// TestNoGarbageOfAnyOperation: warm, every operation allocates nothing, by every
// algorithm, on the callers' streams and on lanes.
func TestNoGarbageOfAnyOperation(t *testing.T) {
	testenv.SkipUnlessOptimized(t)
	for _, machine := range []string{"8x4090", "8x4090-p2p"} {
		for _, bytes := range []int{8 << 10, 600 << 10} {
			t.Run(fmt.Sprintf("%s, %d bytes", machine, bytes), func(t *testing.T) {
				d := &idle{Driver: seam(machineOf(t, machine))}
				o := options(t, over(t, d), 4)
				o.PinnedBytes = 20 << 20
				algorithms := []gp.Algorithm{gp.AlgorithmAuto, gp.AlgorithmDirect, gp.AlgorithmRing, gp.AlgorithmOneShot, gp.AlgorithmTwoShot}
				if machine == "8x4090-p2p" {
					o.P2P = gp.P2PTrust
					algorithms = []gp.Algorithm{gp.AlgorithmPeer, gp.AlgorithmAuto}
				}
				g := open(t, o)
				t.Cleanup(func() { d.on = false })
				type warm struct {
					name string
					run  func()
				}
				var all []warm
				for _, c := range collectives(t, g, bytes) {
					for _, alg := range algorithms {
						ops := g.With(gp.CallOptions{Algorithm: alg, Chunk: 256 << 10})
						if _, err := c.call(g.With(gp.CallOptions{Algorithm: alg, Explain: &gp.Explanation{}})); err != nil {
							require.ErrorIs(t, err, gp.ErrArgument)
							continue // an operation without that algorithm
						}
						run := func() {
							w, err := c.call(ops)
							if err == nil {
								err = w.Wait(background)
							}
							if err != nil {
								t.Fatal(err)
							}
						}
						run()
						all = append(all, warm{fmt.Sprintf("%s %q", c.name, alg), run})
					}
				}
				require.NoError(t, g.Synchronize(background))
				require.Greater(t, len(all), 12)
				d.on = true // from now on: its events are none
				for _, w := range all {
					for range 100 { // lists grow to their size
						w.run()
					}
					require.Zero(t, testing.AllocsPerRun(20, w.run), w.name)
				}
			})
		}
	}
}

// TestAThousandCanceledWaits on work that does not come leave no goroutine and no
// thread behind.
func TestAThousandCanceledWaits(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		g := group(t, d, 2)
		w, dst := slowCopy(t, d, g, 5000, 1)
		gone, cancel := context.WithCancel(background)
		cancel()
		require.ErrorIs(t, w.Wait(gone), context.Canceled)
		goroutines, threads := runtime.NumGoroutine(), pprof.Lookup("threadcreate").Count()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				for range 100 {
					if err := w.Wait(gone); err == nil {
						t.Error("the work came")
					}
				}
			})
		}
		wg.Wait()
		require.False(t, w.Done())
		// The last of them may not be quite gone yet.
		require.Eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines+1 }, 5*time.Second, time.Millisecond)
		require.LessOrEqual(t, pprof.Lookup("threadcreate").Count(), threads+30, "hardly more than the goroutines took at once")
		pass(d)
		require.NoError(t, w.Wait(background))
		holds(t, dst, pattern(5000, 1))
	})
}
