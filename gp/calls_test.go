// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
)

// TestDriverCalls counts what a warm call asks of the driver: enqueueing is the
// time of small messages. How often a wait asks is a matter of time, so only one
// that finds the work done is counted.
func TestDriverCalls(t *testing.T) {
	gputest.Parallel(t)
	each(t, func(t *testing.T, d *cuda.Driver) {
		for _, c := range []struct {
			name    string
			devices []int
			bytes   int
			call    func(g *gp.Group, b []gp.Buffer) (gp.Work, error)
			queries uint64 // to find the work done
			want    map[string]uint64
		}{
			{"copy of a chunk between GPUs", []int{0, 1}, 4096, copyCall, 2, map[string]uint64{
				"CtxGetCurrent": 1, "CtxPushCurrent": 1, "CtxSetCurrent": 2, "CtxPopCurrent": 1,
				"StreamIsCapturing": 2, "MemcpyDtoHAsync": 1, "MemcpyHtoDAsync": 1,
				"EventRecord": 2, "StreamWaitEvent": 1,
			}},
			{"copy of a chunk on one card", []int{0, 0}, 4096, copyCall, 1, map[string]uint64{
				"CtxGetCurrent": 1, "CtxPushCurrent": 1, "CtxPopCurrent": 1,
				"StreamIsCapturing": 2, "MemcpyDtoHAsync": 1, "MemcpyHtoDAsync": 1,
				"EventRecord": 2, "StreamWaitEvent": 1,
			}},
			{"all_reduce between GPUs", []int{0, 1}, 4096, reduceCall, 2, map[string]uint64{
				"CtxGetCurrent": 1, "CtxPushCurrent": 1, "CtxSetCurrent": 8, "CtxPopCurrent": 1, "StreamIsCapturing": 2,
				"MemcpyDtoHAsync": 2, "MemcpyHtoDAsync": 2, "LaunchKernel": 2, "EventRecord": 4, "StreamWaitEvent": 2,
			}},
			{"all_reduce on one card", []int{0, 0}, 4096, reduceCall, 2, map[string]uint64{
				"CtxGetCurrent": 1, "CtxPushCurrent": 1, "CtxPopCurrent": 1, "StreamIsCapturing": 2,
				"MemcpyDtoHAsync": 2, "MemcpyHtoDAsync": 2, "LaunchKernel": 2, "EventRecord": 4, "StreamWaitEvent": 2,
			}},
		} {
			t.Run(c.name, func(t *testing.T) {
				if c.devices[1] != 0 {
					gputest.Devices(t, d, 2)
				}
				tapped, tp := gputest.Tapped(t, d)
				o := options(t, tapped, 2)
				o.Devices, o.AllowSameGPU = c.devices, true
				g := open(t, o)
				var b []gp.Buffer
				for _, r := range g.Ranks() {
					b = append(b, alloc(t, r, gp.TypeUint8, c.bytes))
				}
				// No context is current before, as on a new thread.
				require.NoError(t, keeps(seam(d), 0, func() error {
					for range 200 { // once around the pinned memory and the events
						w, err := c.call(g, b)
						wait(t, w, err)
					}
					tp.Reset()
					w, err := c.call(g, b)
					require.Equal(t, c.want, tp.Counts())
					wait(t, w, err)
					return nil
				}))
				require.NoError(t, g.Synchronize(background))
				// To ask once after a work that has run takes a call for each context
				// that may have been lost, and two for the thread's capture mode.
				w, err := c.call(g, b)
				require.NoError(t, err)
				for _, r := range g.Ranks() {
					require.NoError(t, r.Context().Synchronize())
				}
				tp.Reset()
				require.NoError(t, w.Wait(background))
				require.Equal(t, map[string]uint64{"EventQuery": c.queries, "ThreadExchangeStreamCaptureMode": 2}, tp.Counts())
			})
		}
	})
}

func copyCall(g *gp.Group, b []gp.Buffer) (gp.Work, error) { return g.Copy(b[1], b[0]) }

func reduceCall(g *gp.Group, b []gp.Buffer) (gp.Work, error) { return g.AllReduce(b, gp.Sum) }
