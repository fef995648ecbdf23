// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/api/tap"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
)

// A victim is an operation one of whose driver calls fails.
type victim struct {
	name string
	p2p  gp.P2PMode
	bufs func(t testing.TB, g *gp.Group) (dst, src []gp.Buffer)
	call func(g *gp.Group, dst, src []gp.Buffer) (gp.Work, error)
	want func(t testing.TB, ins [][]byte) []byte
}

func inPlace(n int) func(t testing.TB, g *gp.Group) (dst, src []gp.Buffer) {
	return func(t testing.TB, g *gp.Group) (dst, src []gp.Buffer) {
		for _, r := range g.Ranks() {
			src = append(src, alloc(t, r, gp.TypeInt32, n))
		}
		return src, src
	}
}

func apart(n, times int) func(t testing.TB, g *gp.Group) (dst, src []gp.Buffer) {
	return func(t testing.TB, g *gp.Group) (dst, src []gp.Buffer) {
		for _, r := range g.Ranks() {
			src = append(src, alloc(t, r, gp.TypeInt32, n))
			dst = append(dst, alloc(t, r, gp.TypeInt32, times*n).On(r.Context().LegacyStream()))
		}
		return dst, src
	}
}

func copyVictim(name string, n int, p2p gp.P2PMode) victim {
	return victim{name, p2p, apart(n, 1),
		func(g *gp.Group, dst, src []gp.Buffer) (gp.Work, error) {
			return g.With(gp.CallOptions{Chunk: 16 << 10}).Copy(dst[1], src[0])
		}, func(_ testing.TB, ins [][]byte) []byte { return ins[0] }}
}

func reduceVictim(name string, n int, alg gp.Algorithm, bufs func(testing.TB, *gp.Group) (_, _ []gp.Buffer)) victim {
	return victim{name, gp.P2POff, bufs,
		func(g *gp.Group, dst, src []gp.Buffer) (gp.Work, error) {
			return g.With(gp.CallOptions{Chunk: 128 << 10, Algorithm: alg}).AllReduceTo(dst, src, gp.Sum)
		}, func(t testing.TB, ins [][]byte) []byte { return folded(t, ins, gp.TypeInt32, gp.Sum) }}
}

var victims = []victim{
	copyVictim("copy of one chunk", 1000, gp.P2POff),
	copyVictim("copy of chunks", 20_000, gp.P2POff),
	copyVictim("direct copy", 1000, gp.P2PTrust),
	{"copy within a rank", gp.P2POff, apart(500, 1), func(g *gp.Group, dst, src []gp.Buffer) (gp.Work, error) {
		return g.Copy(dst[1], src[1])
	}, func(_ testing.TB, ins [][]byte) []byte { return ins[1] }},
	reduceVictim("all_reduce on the callers' streams", 1000, gp.AlgorithmRing, inPlace(1000)),
	reduceVictim("all_reduce on lanes", 40_000, gp.AlgorithmRing, apart(40_000, 1)),
	reduceVictim("all_reduce, zero copy", 40_000, gp.AlgorithmRingZeroCopy, inPlace(40_000)),
	{"all_gather", gp.P2POff, apart(20_000, 2), func(g *gp.Group, dst, src []gp.Buffer) (gp.Work, error) {
		return g.AllGather(dst, src)
	}, func(_ testing.TB, ins [][]byte) []byte { return append(append([]byte(nil), ins[0]...), ins[1]...) }},
	{"empty all_reduce", gp.P2POff, apart(0, 1), func(g *gp.Group, dst, src []gp.Buffer) (gp.Work, error) {
		return g.AllReduceTo(dst, src, gp.Sum)
	}, func(testing.TB, [][]byte) []byte { return nil }},
}

// run fills the sources, makes the call and waits for it. The check that it
// returns is for when that went well.
func (v victim) run(t testing.TB, g *gp.Group, before func()) (check func(), err error) {
	dst, src := v.bufs(t, g)
	r := generator(v.name)
	var ins [][]byte
	for _, b := range src {
		ins = append(ins, randomBytes(r, b.Bytes()))
		require.NoError(t, b.Write(background, ins[len(ins)-1]))
	}
	before()
	w, err := v.call(g, dst, src)
	if err == nil {
		err = w.Wait(background)
	}
	return func() { t.Helper(); holds(t, dst[len(dst)-1], v.want(t, ins)) }, err
}

// works is run that has to go well.
func (v victim) works(t testing.TB, g *gp.Group, when string) {
	t.Helper()
	check, err := v.run(t, g, func() {})
	require.NoError(t, err, when)
	check()
}

// within fails the test if f hangs.
func within(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatalf("%s hangs", what)
	}
}

// TestEveryCallMayFail lets some driver calls of each operation fail, on hardware
// too. It answers with the name of the call and leaves a group that either works or
// says why it does not, Close frees everything, and a new group works.
func TestEveryCallMayFail(t *testing.T) {
	gputest.Parallel(t)
	for _, v := range victims {
		t.Run(v.name, func(t *testing.T) {
			each(t, func(t *testing.T, d *cuda.Driver) {
				if v.p2p != gp.P2POff {
					if !d.Modelled() {
						t.Skip("simulated P2P only")
					}
					d = peeredMachine(t)
				}
				opts := func(d *cuda.Driver) gp.Options {
					o := options(t, d, 2)
					o.P2P = v.p2p
					return o
				}
				tapped, tp := gputest.Tapped(t, d)
				g := open(t, opts(tapped))
				check, err := v.run(t, g, func() {
					tp.Reset()
					tp.Log()
				})
				calls := tp.Calls()
				require.NoError(t, err)
				check()
				require.NoError(t, g.Close())
				require.Greater(t, len(calls), 5)

				codes := []api.Code{api.OutOfMemory, api.LaunchFailed}
				step := 1 + len(calls)/12 // TestEveryCallFailsOnce has all of them
				if fewer {
					step *= 10
				}
				queries := 0
				for k := 1; k <= len(calls); k += step {
					if calls[k-1] == "EventQuery" { // of many, some
						if queries++; queries > 4 {
							continue
						}
					}
					for _, code := range codes {
						t.Run(fmt.Sprintf("call %d, code %d", k, code), func(t *testing.T) {
							failOne(t, d, v, opts, k, code)
						})
					}
				}
			})
		})
	}
}

func failOne(t *testing.T, d *cuda.Driver, v victim, opts func(*cuda.Driver) gp.Options, k int, code api.Code) {
	if d.Modelled() { // one of its own, that reports its own leaks
		if v.p2p != gp.P2POff {
			d = peeredMachine(t)
		} else {
			d = simulated(t)
		}
	}
	// Somebody else who uses the GPUs keeps the contexts, so that a thread may
	// have one of them current.
	for _, dev := range gputest.Devices(t, d, 1) {
		gputest.Primary(t, dev)
	}
	tapped, tp := gputest.Tapped(t, d)
	g, err := gp.Open(opts(tapped))
	require.NoError(t, err)
	var rule *tap.Rule
	var check func()
	within(t, "the call", func() {
		err = keeps(seam(d), 0, func() (err error) {
			check, err = v.run(t, g, func() {
				tp.Reset()
				tp.Log()
				rule = tp.Fail("", k, code)
			})
			return err
		})
	})
	calls, hits := tp.Calls(), rule.Hits()
	rule.Remove()
	if hits == 0 { // how often a wait asks is a matter of time
		require.NoError(t, err)
		return
	}
	failed := calls[k-1]
	if err == nil {
		require.Contains(t, []string{"ThreadExchangeStreamCaptureMode", "MemcpyPeerAsync"}, failed, "that it failed went unnoticed")
		require.NoError(t, g.Err())
		check()
	} else {
		require.ErrorIs(t, err, cuda.Code(code), "%s failed", failed)
		var e *gp.Error
		require.ErrorAs(t, err, &e)
		require.Contains(t, err.Error(), "cu"+failed, "the error names the call")
	}
	lost := code.Sticky() && err != nil
	switch {
	case g.Err() != nil:
		require.ErrorIs(t, g.Err(), cuda.Code(code))
		before := enqueuing(tp)
		next := v.runOn(t, g)
		require.ErrorIs(t, next, gp.ErrFailed, "%s failed, and then", failed)
		require.ErrorIs(t, next, cuda.Code(code), "%s failed, and then", failed)
		require.Equal(t, before, enqueuing(tp))
	case !lost:
		v.works(t, g, failed+" failed, the group did not")
	}
	within(t, "Close", func() {
		err := g.Close()
		if !lost || g.Err() != nil {
			require.NoError(t, err, "%s failed", failed)
		}
	})
	require.NoError(t, g.Close())
	if k%4 != 1 {
		return
	}
	// The driver behind the tap: ours may hold a context for lost.
	g, err = gp.Open(opts(d))
	require.NoError(t, err)
	v.works(t, g, "on a new group")
	require.NoError(t, g.Close())
}

// runOn makes the call on a group that has failed.
func (v victim) runOn(t testing.TB, g *gp.Group) error {
	dst := make([]gp.Buffer, len(g.Ranks()))
	src := make([]gp.Buffer, len(dst))
	w, err := v.call(g, dst, src)
	if err != nil {
		return err
	}
	return w.Wait(background)
}

// TestOpenMayFail lets each call of Open fail in turn.
func TestOpenMayFail(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		opts := func(d *cuda.Driver) gp.Options {
			o := options(t, d, 2)
			o.P2P = gp.P2PTrust
			return o
		}
		newMachine := func(t testing.TB) *cuda.Driver {
			if d.Modelled() {
				return peeredMachine(t)
			}
			return d
		}
		tapped, tp := gputest.Tapped(t, newMachine(t))
		o := opts(tapped)
		tp.Reset()
		g := open(t, o)
		total := int(tp.Total())
		require.NoError(t, g.Close())
		step := 1
		if !d.Modelled() || fewer {
			step = 1 + total/15
		}
		for k := 1; k <= total; k += step {
			for _, code := range []api.Code{api.OutOfMemory, api.LaunchFailed} {
				t.Run(fmt.Sprintf("call %d, code %d", k, code), func(t *testing.T) {
					d := newMachine(t)
					gputest.Primary(t, gputest.Devices(t, d, 1)[0])
					tapped, tp := gputest.Tapped(t, d)
					o := opts(tapped)
					tp.Reset()
					tp.Log()
					rule := tp.Fail("", k, code)
					var g *gp.Group
					err := keeps(seam(d), 0, func() (err error) { g, err = gp.Open(o); return err })
					if rule.Hits() == 0 {
						t.Skip("no such call this time")
					}
					failed := tp.Calls()[k-1]
					if err != nil {
						require.ErrorIs(t, err, cuda.Code(code), "%s failed", failed)
						require.Contains(t, err.Error(), "cu"+failed)
						require.Nil(t, g)
						return
					}
					if !code.Sticky() {
						there, _ := routes(t, g, gp.CallOptions{})
						require.NotEmpty(t, there)
						require.NoError(t, g.Close(), "%s failed", failed)
						return
					}
					_ = g.Close()
				})
			}
		}
	})
}

// TestOpenWithProofMayFail: whichever call fails while P2P is proven and timed, Open
// fails with it, or what it gives works, over P2P or not. Of each driver function that
// the proof calls it fails the first call or the last; in soak runs every one, but
// for the thousands of polls.
func TestOpenWithProofMayFail(t *testing.T) {
	gputest.Parallel(t)
	opened := func(p2p gp.P2PMode, edit func(*tap.Tap)) (*gp.Group, *tap.Tap, error) {
		tapped, tp := gputest.Tapped(t, peeredMachine(t))
		o := options(t, tapped, 2)
		o.P2P = p2p
		tp.Reset()
		edit(tp)
		g, err := gp.Open(o)
		return g, tp, err
	}
	counts := func(p2p gp.P2PMode) map[string]uint64 {
		g, tp, err := opened(p2p, func(*tap.Tap) {})
		require.NoError(t, err)
		all := tp.Counts()
		require.NoError(t, g.Close())
		return all
	}
	without, with := counts(gp.P2POff), counts(gp.P2PAuto)
	failed, direct, staged := 0, 0, 0
	try := func(call string, k int, code api.Code) {
		var rule *tap.Rule
		g, _, err := opened(gp.P2PAuto, func(tp *tap.Tap) { rule = tp.Fail(call, k, code) })
		what := fmt.Sprintf("call %d of cu%s, code %d", k, call, code)
		switch {
		case err != nil:
			require.ErrorIs(t, err, cuda.Code(code), what)
			require.Nil(t, g)
			failed++
			return
		case rule.Hits() == 0: // no such call this time
			require.NoError(t, g.Close())
			return
		}
		require.NoError(t, g.Err(), "%s: Open gives a group that has failed", what)
		var e gp.Explanation
		a, b := alloc(t, g.Ranks()[0], gp.TypeUint8, 1<<20), alloc(t, g.Ranks()[1], gp.TypeUint8, 1<<20)
		want, got := make([]byte, 1<<20), make([]byte, 1<<20)
		fillRandom(want, uint64(k))
		require.NoError(t, a.Write(background, want))
		_, err = g.With(gp.CallOptions{Explain: &e}).Copy(b, a)
		require.NoError(t, err)
		w, err := g.Copy(b, a)
		require.NoError(t, err)
		require.NoError(t, w.Wait(background))
		require.NoError(t, b.Read(background, got))
		require.Equal(t, want, got, what)
		if e.Route == gp.RouteDirect {
			direct++
		} else {
			staged++
		}
		require.NoError(t, g.Close(), what)
	}
	for i, call := range slices.Sorted(maps.Keys(with)) {
		first, last := int(without[call])+1, int(with[call])
		if first > last {
			continue // the proof does not call it
		}
		if slices.Contains([]string{"StreamDestroy", "EventDestroy", "MemFree", "MemFreeHost", "ModuleUnload"}, call) {
			continue // what the driver refuses to take back stays with it
		}
		codes := [2]api.Code{api.InvalidValue, api.OutOfMemory}
		ks := []int{last, first}[i%2:][:1]
		switch {
		case fewer && i%4 != 1:
			continue
		case os.Getenv("GP_SOAK") != "":
			ks = nil
			for k := first; k <= min(last, first+100); k++ {
				ks = append(ks, k)
			}
		}
		for n, k := range ks {
			try(call, k, codes[(i+n)%2])
			if os.Getenv("GP_SOAK") != "" {
				try(call, k, codes[(i+n+1)%2])
			}
		}
	}
	t.Logf("Open failed %d times, and gave a group that copies directly %d times and staged %d times", failed, direct, staged)
	if !fewer {
		require.NotZero(t, failed)
		require.NotZero(t, staged)
	}
}

// wildEntry is a kernel that writes where nothing is.
const wildEntry = "gp_test_wild"

func init() {
	sim.RegisterKernel(wildEntry, sim.Kernel{Run: func(_ []byte, m sim.Memory) error {
		_, err := m.Bytes(1<<49-8, 8)
		return err
	}})
}

// TestContextLostMeanwhile: a caller's kernel faults before a copy reads its
// result. Enqueueing went well, so the wait reports it, once and with the first
// cause; later calls refer to that.
func TestContextLostMeanwhile(t *testing.T) {
	m, err := sim.Open(machine)
	require.NoError(t, err)
	d := m.Driver() // what a lost context holds cannot be given back, so nobody asks
	g, err := gp.Open(options(t, d, 2))
	require.NoError(t, err)
	r0, r1 := g.Ranks()[0], g.Ranks()[1]
	a, b := alloc(t, r0, gp.TypeUint8, 100), alloc(t, r1, gp.TypeUint8, 100)
	mod, err := r0.Context().LoadModule([]byte(".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry " + wildEntry + "()\n{\n\tret;\n}\n"))
	require.NoError(t, err)
	fn, err := mod.Function(wildEntry)
	require.NoError(t, err)
	require.NoError(t, fn.Launch(cuda.LaunchConfig{}, a.Stream(), nil))
	w, err := g.Copy(b, a)
	if err == nil {
		err = w.Wait(background)
		require.ErrorIs(t, w.Wait(background), cuda.ErrIllegalAddress, "asked again")
		require.True(t, w.Done())
		require.ErrorIs(t, w.Before(r1.Stream()), cuda.ErrIllegalAddress)
	}
	require.ErrorIs(t, err, cuda.ErrIllegalAddress)
	first := g.Err()
	require.ErrorIs(t, first, cuda.ErrIllegalAddress)
	for range 3 {
		_, err = g.Copy(b, a)
		require.ErrorIs(t, err, gp.ErrFailed)
		require.ErrorIs(t, err, cuda.ErrIllegalAddress)
		require.ErrorContains(t, err, first.Error())
	}
	require.Error(t, a.Write(background, make([]byte, 100)))
	require.ErrorIs(t, g.Synchronize(background), gp.ErrFailed)
	within(t, "Close", func() { _ = g.Close() })
	require.ErrorIs(t, only(g.Copy(b, a)), gp.ErrClosed)
	require.ErrorIs(t, w.Wait(background), cuda.ErrIllegalAddress, "after Close")
}

// TestFailureIsFirst: of two failures the first is kept.
func TestFailureIsFirst(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		x := newBench(t, d)
		x.tap.Reset()
		x.tap.Fail("MemcpyHtoDAsync", 1, api.OutOfMemory)
		_, err := x.g.Copy(x.b, x.a)
		require.ErrorIs(t, err, cuda.ErrOutOfMemory)
		require.ErrorContains(t, err, "cuMemcpyHtoDAsync")
		require.True(t, errors.Is(x.g.Err(), err) || x.g.Err().Error() == err.Error())
		for range 2 {
			err := only(x.g.AllReduce([]gp.Buffer{x.a, x.b}, gp.Sum))
			require.ErrorIs(t, err, gp.ErrFailed)
			require.ErrorIs(t, err, cuda.ErrOutOfMemory)
		}
		require.ErrorIs(t, onlyBuffer(x.r0.Alloc(gp.TypeInt8, 4)), gp.ErrFailed)
		require.NoError(t, x.b.Free(), "freeing goes on")
	})
}
