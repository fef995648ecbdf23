// SPDX-License-Identifier: Apache-2.0

package cuda_test

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// A call is one driver function: through the bare seam and through the public
// method over it.
type call struct {
	name   string
	seam   func() api.Code
	method func() error
}

// bench is a stream of one context, and the calls that are cheap enough for
// what surrounds them to show.
type bench struct {
	seam  api.Driver
	own   api.Context
	calls []call
}

func newBench(tb testing.TB, d *cuda.Driver) *bench {
	tb.Helper()
	cc := gputest.Primary(tb, gputest.Devices(tb, d, 1)[0])
	s, err := cc.NewStream()
	require.NoError(tb, err)
	e, err := cc.NewEvent(0)
	require.NoError(tb, err)
	tb.Cleanup(func() {
		require.NoError(tb, e.Close())
		require.NoError(tb, s.Close())
	})
	seam := hook.Seam(d)
	return &bench{seam: seam, own: cc.Handle(), calls: []call{
		{"StreamQuery", func() api.Code { return seam.StreamQuery(s.Handle()) }, func() error { _, err := s.Query(); return err }},
		{"EventRecord", func() api.Code { return seam.EventRecord(e.Handle(), s.Handle()) }, func() error { return e.Record(s) }},
	}}
}

// on runs f with ctx current to the calling thread.
func (x *bench) on(ctx api.Context, f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, _ := x.seam.CtxGetCurrent()
	x.seam.CtxSetCurrent(ctx)
	defer x.seam.CtxSetCurrent(before)
	f()
}

// eachDriver runs a benchmark on the real driver where there is one, and over
// the stand-in in C, which says what this package adds and nothing of a driver.
func eachDriver(b *testing.B, f func(b *testing.B, x *bench)) {
	b.Run("gpu", func(b *testing.B) { f(b, newBench(b, gputest.Hardware(b))) })
	b.Run("C", func(b *testing.B) { f(b, newBench(b, standIn(b, "FAKE_QUIET"))) })
}

// BenchmarkSeam is the bare driver call, with its context current.
func BenchmarkSeam(b *testing.B) {
	eachDriver(b, func(b *testing.B, x *bench) {
		for _, c := range x.calls {
			b.Run(c.name, func(b *testing.B) {
				b.ReportAllocs()
				x.on(x.own, func() {
					for b.Loop() {
						c.seam()
					}
				})
			})
		}
	})
}

// BenchmarkMethodOwn is the public method with its context current already.
func BenchmarkMethodOwn(b *testing.B) { benchMethod(b, true) }

// BenchmarkMethodOther is the public method with no or another context current,
// which it puts back.
func BenchmarkMethodOther(b *testing.B) { benchMethod(b, false) }

func benchMethod(b *testing.B, own bool) {
	eachDriver(b, func(b *testing.B, x *bench) {
		var current api.Context
		if own {
			current = x.own
		}
		for _, c := range x.calls {
			b.Run(c.name, func(b *testing.B) {
				b.ReportAllocs()
				x.on(current, func() {
					for b.Loop() {
						if err := c.method(); err != nil {
							b.Fatal(err)
						}
					}
				})
			})
		}
	})
}

// What a public method costs beyond the bare call, on a real driver: at most
// 200 ns with its context current, 500 ns with another one.
func TestMethodCostOnHardware(t *testing.T) {
	testenv.SkipUnlessOptimized(t)
	x := newBench(t, gputest.Hardware(t))
	per := func(n int, f func()) float64 {
		start := time.Now()
		for range n {
			f()
		}
		return float64(time.Since(start).Nanoseconds()) / float64(n)
	}
	for _, c := range x.calls {
		for _, current := range []struct {
			name  string
			ctx   api.Context
			limit float64
		}{{"own", x.own, 200}, {"none", 0, 500}} {
			var over []float64
			for range 31 {
				var bare, method float64
				x.on(x.own, func() { bare = per(1000, func() { c.seam() }) })
				x.on(current.ctx, func() { method = per(1000, func() { _ = c.method() }) })
				over = append(over, method-bare)
			}
			slices.Sort(over)
			median := over[len(over)/2]
			t.Logf("%s with %s context current: %.0f ns over the bare call", c.name, current.name, median)
			require.LessOrEqual(t, median, current.limit, "%s, %s", c.name, current.name)
		}
	}
}
