// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// TestCaptureOfEveryOperation: each operation refuses a stream that is being
// captured, of a source or of a destination, by every algorithm, and leaves the
// capture valid; once it is over the operation goes on.
func TestCaptureOfEveryOperation(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		runtime.LockOSThread() // a capture ends on the thread where it began
		defer runtime.UnlockOSThread()
		x := newBench(t, d, func(o *gp.Options) { o.PinnedBytes = roomy })
		captured := newStream(t, x.r1)
		const n = 64
		var long, other, short []gp.Buffer
		for i, r := range x.g.Ranks() {
			m := alloc(t, r, gp.TypeInt32, 5*n)
			long, other, short = append(long, m.Sub(0, 2*n)), append(other, m.Sub(2*n, 4*n)), append(short, m.Sub(4*n, 5*n))
			require.NoError(t, m.Write(background, make([]byte, 4*5*n)))
			if i == 1 {
				long[1], other[1], short[1] = long[1].On(captured), other[1].On(captured), short[1].On(captured)
			}
		}
		own := func(b gp.Buffer) gp.Buffer { return b.On(x.r1.Stream()) }
		calls := map[string]func(o gp.Ops) error{
			"all_reduce": func(o gp.Ops) error { return only(o.AllReduce(long, gp.Sum)) },
			"all_reduce from": func(o gp.Ops) error {
				return only(o.AllReduceTo([]gp.Buffer{other[0], own(other[1])}, long, gp.Sum))
			},
			"all_gather":       func(o gp.Ops) error { return only(o.AllGather(long, short)) },
			"all_gather from":  func(o gp.Ops) error { return only(o.AllGather([]gp.Buffer{long[0], own(long[1])}, short)) },
			"reduce_scatter":   func(o gp.Ops) error { return only(o.ReduceScatter(short, long, gp.Max)) },
			"broadcast to":     func(o gp.Ops) error { return only(o.Broadcast(other, long[0])) },
			"broadcast from":   func(o gp.Ops) error { return only(o.Broadcast([]gp.Buffer{other[0], own(other[1])}, long[1])) },
			"reduce from":      func(o gp.Ops) error { return only(o.Reduce(other[0], long, gp.Min)) },
			"reduce to":        func(o gp.Ops) error { return only(o.Reduce(other[1], []gp.Buffer{long[0], own(long[1])}, gp.Min)) },
			"all_to_all":       func(o gp.Ops) error { return only(o.AllToAll(other, long)) },
			"send_recv":        func(o gp.Ops) error { return only(o.SendRecv(gp.Transfer{Dst: other[1], Src: long[0]})) },
			"send_recv itself": func(o gp.Ops) error { return only(o.SendRecv(gp.Transfer{Dst: other[1], Src: long[1]})) },
			"empty send_recv": func(o gp.Ops) error {
				return only(o.SendRecv(gp.Transfer{Dst: other[1].Sub(0, 0), Src: long[0].Sub(0, 0)}))
			},
			"joined all_reduce": func(o gp.Ops) error {
				return errors.Join(together(x.g, func(r *gp.Rank) error {
					return only(r.AllReduce(background, long[r.Index()], gp.Sum))
				})...)
			},
		}
		for _, exchanged := range []bool{false, true} { // before the handshake and behind it
			for name, call := range calls {
				for _, alg := range []gp.Algorithm{gp.AlgorithmAuto, gp.AlgorithmDirect, gp.AlgorithmRing, gp.AlgorithmOneShot} {
					o := x.g.With(gp.CallOptions{Algorithm: alg})
					explain := x.g.With(gp.CallOptions{Algorithm: alg, Explain: &gp.Explanation{}})
					if name == "joined all_reduce" && alg != "" || alg == gp.AlgorithmOneShot && !exchanged {
						continue
					}
					if name != "joined all_reduce" && call(explain) != nil {
						continue // an operation without that algorithm
					}
					cc := x.r1.Context()
					require.NoError(t, cc.Do(func() error {
						require.Equal(t, api.Success, seam(d).StreamBeginCapture(captured.Handle(), api.CaptureGlobal))
						return nil
					}))
					before := enqueuing(x.tap)
					err := call(o)
					require.ErrorIs(t, err, gp.ErrCapturing, "%s %q", name, alg)
					require.Equal(t, before, enqueuing(x.tap), "%s %q", name, alg)
					require.NoError(t, cc.Do(func() error {
						graph, c := seam(d).StreamEndCapture(captured.Handle())
						require.Equal(t, api.Success, c, "%s %q: the capture is still valid", name, alg)
						if graph != 0 {
							require.Equal(t, api.Success, seam(d).GraphDestroy(graph))
						}
						return nil
					}))
					require.NoError(t, call(o), "%s %q", name, alg)
					require.NoError(t, x.g.Synchronize(background))
				}
			}
			w, err := x.g.With(gp.CallOptions{Algorithm: gp.AlgorithmOneShot}).AllReduce(long, gp.Sum)
			wait(t, w, err)
		}
		x.works("after all captures")
	})
}
