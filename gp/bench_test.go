// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"context"
	"log/slog"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// idle is a simulated driver on which, while it is on, the calls of a warm
// operation do nothing: what is left is this package's own time and garbage.
type idle struct {
	api.Driver
	on bool
}

func (d *idle) CtxGetCurrent() (api.Context, api.Code) {
	if d.on {
		return 0, api.Success
	}
	return d.Driver.CtxGetCurrent()
}

func (d *idle) CtxPopCurrent() (api.Context, api.Code) {
	if d.on {
		return 0, api.Success
	}
	return d.Driver.CtxPopCurrent()
}

func (d *idle) CtxPushCurrent(c api.Context) api.Code {
	if d.on {
		return api.Success
	}
	return d.Driver.CtxPushCurrent(c)
}

func (d *idle) CtxSetCurrent(c api.Context) api.Code {
	if d.on {
		return api.Success
	}
	return d.Driver.CtxSetCurrent(c)
}

func (d *idle) ThreadExchangeStreamCaptureMode(m api.CaptureMode) (api.CaptureMode, api.Code) {
	if d.on {
		return m, api.Success
	}
	return d.Driver.ThreadExchangeStreamCaptureMode(m)
}

func (d *idle) StreamIsCapturing(s api.Stream) (api.CaptureStatus, api.Code) {
	if d.on {
		return api.CaptureNone, api.Success
	}
	return d.Driver.StreamIsCapturing(s)
}

// An event that is made while the driver is idle is no event.
const noEvent api.Event = 1 << 62

func (d *idle) EventCreate(f api.EventFlag) (api.Event, api.Code) {
	if d.on {
		return noEvent, api.Success
	}
	return d.Driver.EventCreate(f)
}

func (d *idle) EventDestroy(e api.Event) api.Code {
	if e == noEvent {
		return api.Success
	}
	return d.Driver.EventDestroy(e)
}

func (d *idle) EventRecord(e api.Event, s api.Stream) api.Code {
	if d.on {
		return api.Success
	}
	return d.Driver.EventRecord(e, s)
}

func (d *idle) EventQuery(e api.Event) api.Code {
	if d.on {
		return api.Success
	}
	return d.Driver.EventQuery(e)
}

func (d *idle) StreamWaitEvent(s api.Stream, e api.Event) api.Code {
	if d.on {
		return api.Success
	}
	return d.Driver.StreamWaitEvent(s, e)
}

func (d *idle) MemcpyDtoHAsync(dst unsafe.Pointer, src api.Ptr, n uint64, s api.Stream) api.Code {
	if d.on {
		return api.Success
	}
	return d.Driver.MemcpyDtoHAsync(dst, src, n, s)
}

func (d *idle) MemcpyHtoDAsync(dst api.Ptr, src unsafe.Pointer, n uint64, s api.Stream) api.Code {
	if d.on {
		return api.Success
	}
	return d.Driver.MemcpyHtoDAsync(dst, src, n, s)
}

func (d *idle) LaunchKernel(f api.Function, l *api.Launch) api.Code {
	if d.on {
		return api.Success
	}
	return d.Driver.LaunchKernel(f, l)
}

// idleGroup is a group of two ranks with a buffer on each, and a function that
// copies and one that reduces, both warm. The driver is idle until the test ends.
func idleGroup(tb testing.TB, bytes int) (cp, reduce func()) {
	_, cp, reduce = idleGroupThatLogs(tb, bytes, slog.DiscardHandler)
	return cp, reduce
}

func idleGroupThatLogs(tb testing.TB, bytes int, h slog.Handler) (g *gp.Group, cp, reduce func()) {
	m, err := sim.Open("2x4090")
	require.NoError(tb, err)
	seam := &idle{Driver: hook.Seam(m.Driver())}
	d, err := hook.NewDriver(seam)
	require.NoError(tb, err)
	g, err = gp.Open(gp.Options{Driver: d.(*cuda.Driver), Logger: slog.New(h)})
	require.NoError(tb, err)
	var bufs []gp.Buffer
	for _, r := range g.Ranks() {
		b, err := r.Alloc(gp.TypeFloat32, bytes/4)
		require.NoError(tb, err)
		bufs = append(bufs, b)
	}
	ctx := context.Background()
	check := func(w gp.Work, err error) {
		if err == nil {
			err = w.Wait(ctx)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	cp = func() { check(g.Copy(bufs[1], bufs[0])) }
	reduce = func() { check(g.AllReduce(bufs, gp.Sum)) }
	cp()
	reduce()
	seam.on = true
	for range 200 { // lists grow to their size
		cp()
		reduce()
	}
	tb.Cleanup(func() {
		seam.on = false
		require.NoError(tb, g.Close())
		require.NoError(tb, m.Close())
	})
	return g, cp, reduce
}

// TestNoGarbage: a warm operation allocates nothing, in one piece or in many.
func TestNoGarbage(t *testing.T) {
	testenv.SkipUnlessOptimized(t)
	for _, bytes := range []int{4096, 16 << 20} {
		cp, reduce := idleGroup(t, bytes)
		require.Zero(t, testing.AllocsPerRun(500, cp), "copy of %d bytes", bytes)
		require.Zero(t, testing.AllocsPerRun(500, reduce), "all_reduce of %d bytes", bytes)
	}
}

func BenchmarkCopyOwnTime(b *testing.B) {
	cp, _ := idleGroup(b, 4096)
	b.ReportAllocs()
	for b.Loop() {
		cp()
	}
}

func BenchmarkAllReduceOwnTime(b *testing.B) {
	_, reduce := idleGroup(b, 4096)
	b.ReportAllocs()
	for b.Loop() {
		reduce()
	}
}
