// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
)

// TestExplain: an explanation enqueues nothing, and its figures are those of the
// call that follows.
func TestExplain(t *testing.T) {
	gputest.Parallel(t)
	each(t, func(t *testing.T, d *cuda.Driver) {
		tapped, tp := gputest.Tapped(t, d)
		o := options(t, tapped, 3)
		g := open(t, o)
		var b []gp.Buffer
		for _, r := range g.Ranks() {
			b = append(b, alloc(t, r, gp.TypeUint8, 3<<20))
		}
		cut := func(n int) (s []gp.Buffer) {
			for _, x := range b {
				s = append(s, x.Sub(0, n))
			}
			return s
		}
		halves := func(n int) (dst, src []gp.Buffer) {
			for _, x := range b {
				dst, src = append(dst, x.Sub(0, 3*n)), append(src, x.Sub(1<<20, 1<<20+n))
			}
			return dst, src
		}
		for name, call := range map[string]func(gp.Ops) (gp.Work, error){
			"copy":         func(o gp.Ops) (gp.Work, error) { return o.Copy(b[1], b[0]) },
			"small copy":   func(o gp.Ops) (gp.Work, error) { return o.Copy(b[1].Sub(0, 100), b[0].Sub(0, 100)) },
			"empty copy":   func(o gp.Ops) (gp.Work, error) { return o.Copy(b[1].Sub(0, 0), b[0].Sub(0, 0)) },
			"local copy":   func(o gp.Ops) (gp.Work, error) { return o.Copy(b[1].Sub(0, 100), b[1].Sub(100, 200)) },
			"ring":         func(o gp.Ops) (gp.Work, error) { return o.AllReduce(b, gp.Sum) },
			"small ring":   func(o gp.Ops) (gp.Work, error) { return o.AllReduce(cut(1000), gp.Max) },
			"empty reduce": func(o gp.Ops) (gp.Work, error) { return o.AllReduce(cut(0), gp.Max) },
			"gather":       func(o gp.Ops) (gp.Work, error) { dst, src := halves(1000); return o.AllGather(dst, src) },
			"large gather": func(o gp.Ops) (gp.Work, error) { dst, src := halves(300 << 10); return o.AllGather(dst, src) },
		} {
			t.Run(name, func(t *testing.T) {
				before := g.Stats()
				tp.Reset()
				var e gp.Explanation
				w, err := call(g.With(gp.CallOptions{Explain: &e}))
				require.NoError(t, err)
				require.True(t, w.Done())
				require.Zero(t, tp.Total())
				require.Equal(t, before, g.Stats())
				require.NotEmpty(t, e.Op)
				for range 3 { // events and kernels are there behind this
					w, err := call(g.Ops)
					wait(t, w, err)
					require.NoError(t, g.Synchronize(background))
				}
				tp.Reset()
				w, err = call(g.Ops)
				require.NoError(t, err)
				var calls uint64
				for what, n := range tp.Counts() {
					if what != "ThreadExchangeStreamCaptureMode" && what != "EventQuery" && what != "EventCreate" {
						calls += n
					}
				}
				require.EqualValues(t, calls, e.DriverCalls, "%+v: %v", e, tp.Counts())
				require.EqualValues(t, tp.Count("LaunchKernel"), e.Kernels)
				require.EqualValues(t, tp.Count("EventRecord"), e.Records)
				require.EqualValues(t, tp.Count("StreamWaitEvent"), e.Waits)
				require.EqualValues(t, tp.Count("MemcpyDtoHAsync")+tp.Count("MemcpyHtoDAsync")+tp.Count("MemcpyDtoDAsync")+tp.Count("Memcpy2DAsync"), e.Copies)
				wait(t, w, nil)
				require.NoError(t, g.Synchronize(background))
			})
		}
		var e gp.Explanation
		_, err := g.With(gp.CallOptions{Explain: &e, Chunk: 64 << 10}).Copy(b[1].Sub(0, 1<<20), b[0].Sub(0, 1<<20))
		require.NoError(t, err)
		require.Equal(t, gp.RouteStaged, e.Route)
		require.Contains(t, []string{"P2P is off by option", "P2P is not used between ranks of one GPU"}, e.Why)
		require.Equal(t, 64<<10, e.Chunk)
		require.Equal(t, 3, e.Slots)
		require.False(t, e.OwnStreams)
		require.Equal(t, []uint64{1 << 20, 0, 0}, e.D2H)
		require.Equal(t, []uint64{0, 1 << 20, 0}, e.H2D)
		require.Equal(t, []uint64{192 << 10, 0, 0}, e.Pinned)
		require.Equal(t, []uint64{0, 0, 0}, e.Peer)
		require.Equal(t, 32, e.Copies)
		_, err = g.With(gp.CallOptions{Explain: &e}).Copy(b[1], b[0].Sub(0, 1))
		require.ErrorIs(t, err, gp.ErrArgument)
	})
}

// slowPeers is a driver whose peer copies take eight times as long.
type slowPeers struct{ api.Driver }

func (s slowPeers) MemcpyPeerAsync(dst api.Ptr, dctx api.Context, src api.Ptr, sctx api.Context, n uint64, st api.Stream) (c api.Code) {
	for range 8 {
		if c = s.Driver.MemcpyPeerAsync(dst, dctx, src, sctx, n, st); c != api.Success {
			break
		}
	}
	return c
}

// TestSlowP2P: what is proven is used only if it is faster, and Trust does not ask.
func TestSlowP2P(t *testing.T) {
	if fewer {
		t.Skip("one thread, and nothing that other tests do not do")
	}
	d := peeredMachine(t)
	var log buffer
	o := gp.Options{Driver: over(t, slowPeers{seam(d)}), Logger: slog.New(slog.NewTextHandler(&log, nil))}
	g := open(t, o)
	there, back := routes(t, g, gp.CallOptions{})
	require.Equal(t, [2]string{"staged", "staged"}, [2]string{there, back})
	require.Contains(t, log.String(), "proven but slower than staging")
	require.Zero(t, g.Stats().DirectBytes)
	o.P2P = gp.P2PTrust
	there, back = routes(t, open(t, o), gp.CallOptions{})
	require.Equal(t, [2]string{"direct", "direct"}, [2]string{there, back})

	o = gp.Options{Driver: d, Logger: discard}
	g = open(t, o)
	require.Zero(t, g.Stats().Copies, "timing counts for nothing")
	var e gp.Explanation
	a, b := alloc(t, g.Ranks()[0], gp.TypeUint8, 100), alloc(t, g.Ranks()[1], gp.TypeUint8, 100)
	_, err := g.With(gp.CallOptions{Explain: &e}).Copy(a, b)
	require.NoError(t, err)
	require.Equal(t, gp.RouteDirect, e.Route)
	require.Contains(t, e.Why, "proven and faster")
	require.Equal(t, []uint64{0, 100}, e.Peer)
}

// TestEnvironment: what the variables say is taken, and what they cannot say is
// an error that names them.
func TestEnvironment(t *testing.T) {
	if fewer {
		t.Skip("one goroutine, which opens groups that time their routes")
	}
	d := peeredMachine(t)
	route := func(o gp.Options) string {
		o.Driver, o.Logger, o.PinnedBytes = d, discard, small
		there, _ := routes(t, open(t, o), gp.CallOptions{})
		return there
	}
	require.Equal(t, "direct", route(gp.Options{}))
	for _, v := range []string{"1", "true"} {
		t.Setenv(gp.EnvP2POff, v)
		require.Equal(t, "staged", route(gp.Options{P2P: gp.P2PTrust}))
	}
	for _, v := range []string{"0", "false"} {
		t.Setenv(gp.EnvP2POff, v)
		require.Equal(t, "direct", route(gp.Options{}))
	}
	for _, name := range []string{gp.EnvP2POff, gp.EnvP2PTrust, gp.EnvLowLatency, gp.EnvNoExchange} {
		for _, v := range []string{"", "yes", "True", " 1", "2", "off"} {
			t.Setenv(name, v)
			_, err := gp.Open(gp.Options{Driver: d})
			require.ErrorIs(t, err, gp.ErrArgument)
			require.ErrorContains(t, err, name)
		}
		t.Setenv(name, "0")
	}
	t.Setenv(gp.EnvP2POff, "1")
	t.Setenv(gp.EnvP2PTrust, "1")
	_, err := gp.Open(gp.Options{Driver: d})
	require.ErrorContains(t, err, "both set")
	// The word of the driver is enough with Trust only: this machine's peer copies
	// arrive nowhere that a check would find.
	t.Setenv(gp.EnvP2POff, "0")
	tapped, tp := gputest.Tapped(t, d)
	g := open(t, gp.Options{Driver: tapped, Logger: discard, PinnedBytes: small})
	require.Zero(t, tp.Count("MemcpyPeerAsync"), "no check, no timing")
	there, _ := routes(t, g, gp.CallOptions{})
	require.Equal(t, "direct", there)
	t.Setenv(gp.EnvLowLatency, "true")
	require.Equal(t, "direct", route(gp.Options{}))
}

// TestDebugLog: at debug level each call says how it is done.
func TestDebugLog(t *testing.T) {
	d := simulated(t)
	var log buffer
	o := options(t, d, 2)
	o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	g := open(t, o)
	b := []gp.Buffer{alloc(t, g.Ranks()[0], gp.TypeFloat32, 5000), alloc(t, g.Ranks()[1], gp.TypeFloat32, 5000)}
	w, err := g.Copy(b[1], b[0])
	wait(t, w, err)
	require.Contains(t, log.String(), "gp: copy")
	require.Contains(t, log.String(), "route=staged")
	w, err = g.AllReduce(b, gp.Sum)
	wait(t, w, err)
	require.Contains(t, log.String(), "gp: all_reduce")
	require.Contains(t, log.String(), "algorithm=direct")
}
