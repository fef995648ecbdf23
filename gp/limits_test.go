// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
)

// TestGPUFallsOff: of a machine's GPUs one is lost while groups work. The groups it
// belongs to fail with that, all their calls return and they can be closed; a group
// of other GPUs notices nothing, and so does a new one.
func TestGPUFallsOff(t *testing.T) {
	for _, code := range []cuda.Code{cuda.ErrUnknown, cuda.ErrLaunchFailed} {
		t.Run(code.Error(), func(t *testing.T) {
			m, err := sim.Open("8x4090", sim.Watch(), sim.KeepSites())
			require.NoError(t, err)
			d := m.Driver() // what is lost cannot be given back, so nobody asks for leaks
			openOn := func(gpus ...int) *gp.Group {
				g, err := gp.Open(gp.Options{Driver: d, Devices: gpus, PinnedBytes: small, P2P: gp.P2POff, Logger: discard})
				require.NoError(t, err)
				return g
			}
			struck, beside, apart := openOn(0, 1, 2), openOn(5, 1), openOn(3, 4, 6)
			var lost atomic.Bool
			var wg sync.WaitGroup
			begun := make(chan struct{}, 100)
			// until makes rounds of calls until one fails, or for some more if none does.
			until := func(g *gp.Group, round func() error, errs *error) {
				wg.Go(func() {
					for left := 5; left > 0 && *errs == nil; {
						if *errs = round(); lost.Load() {
							left--
						}
						select {
						case begun <- struct{}{}:
						default:
						}
					}
				})
			}
			workers := map[*gp.Group][]*error{}
			for _, g := range []*gp.Group{struck, beside, apart} {
				ranks := g.Ranks()
				for k := range 3 {
					var bufs []gp.Buffer
					want := int64(0)
					for i, r := range ranks {
						v := []int64{int64(i), int64(k)}
						want = max(want, v[0])
						b, err := gp.Upload(background, r, v)
						require.NoError(t, err)
						bufs = append(bufs, b)
					}
					errs := new(error)
					workers[g] = append(workers[g], errs)
					until(g, func() error {
						w, err := g.AllReduce(bufs, gp.Max)
						if err = errors.Join(err, w.Wait(background)); err != nil {
							return err
						}
						if w, err = g.Copy(bufs[0], bufs[1]); err != nil {
							return err
						}
						got := make([]int64, 2)
						if err := gp.Download(background, got, bufs[0]); err != nil {
							return err
						}
						// Reading is ordered behind the copy, but what a lost GPU was to deliver
						// never came: only the Work tells.
						if err := w.Wait(background); err != nil {
							return err
						}
						if got[0] != want || got[1] != int64(k) {
							return fmt.Errorf("wrong data: %v", got)
						}
						return nil
					}, errs)
				}
				// One rank's goroutine waits for the others, who never come.
				errs := new(error)
				ctx, cancel := context.WithCancel(background)
				defer cancel()
				b := alloc(t, ranks[0], gp.TypeInt64, 2)
				workers[g] = append(workers[g], errs)
				wg.Go(func() { _, *errs = ranks[0].AllReduce(ctx, b, gp.Sum) })
				if g == apart {
					defer func() { require.ErrorIs(t, *errs, context.Canceled) }()
					workers[g] = workers[g][:3]
					wg.Go(func() {
						for !lost.Load() {
							time.Sleep(time.Millisecond)
						}
						time.Sleep(20 * time.Millisecond)
						cancel()
					})
				}
			}
			for range 30 {
				<-begun
			}
			m.Lose(1, code)
			lost.Store(true)
			within(t, "some call", wg.Wait)
			for _, g := range []*gp.Group{struck, beside} {
				require.ErrorIs(t, g.Err(), code)
				for _, err := range workers[g] {
					require.ErrorIs(t, *err, code)
				}
				var e *gp.Error
				require.ErrorAs(t, g.Err(), &e)
				require.Equal(t, 1, e.Rank, "%v", e)
				within(t, "Close", func() { _ = g.Close() })
			}
			for _, err := range workers[apart] {
				require.NoError(t, *err)
			}
			require.NoError(t, apart.Close())
			fresh := openOn(0, 2, 5, 7)
			var bufs []gp.Buffer
			for _, r := range fresh.Ranks() {
				b, err := gp.Upload(background, r, []int32{int32(r.Index())})
				require.NoError(t, err)
				bufs = append(bufs, b)
			}
			w, err := fresh.AllReduce(bufs, gp.Sum)
			wait(t, w, err)
			got := make([]int32, 1)
			require.NoError(t, gp.Download(background, got, bufs[3]))
			require.EqualValues(t, 6, got[0])
			require.NoError(t, fresh.Close())
			require.NoError(t, m.Race())
		})
	}
}

// TestJoinEndsWithTheGroup: who waits for other ranks, in a collective that has a
// goroutine a rank, is told when the group fails: they will not come.
func TestJoinEndsWithTheGroup(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		x := newBench(t, d)
		waits := make(chan error, 1)
		go func() { waits <- only(x.r0.AllReduce(background, x.a, gp.Sum)) }()
		time.Sleep(10 * time.Millisecond)
		x.tap.Fail("MemcpyHtoDAsync", 1, api.OutOfMemory)
		require.ErrorIs(t, only(x.g.Copy(x.b, x.a)), cuda.ErrOutOfMemory)
		select {
		case err := <-waits:
			require.ErrorIs(t, err, gp.ErrFailed)
			require.ErrorIs(t, err, cuda.ErrOutOfMemory)
		case <-time.After(10 * time.Second):
			t.Fatal("it still waits")
		}
	})
}

// leaver is what the child of TestExitWithoutClose does.
const leaver = "GP_TEST_LEAVER"

// TestLeaver is the child: it enqueues, waits in goroutines, and returns or exits.
func TestLeaver(t *testing.T) {
	how := os.Getenv(leaver)
	if how == "" {
		t.Skip("the child of another test")
	}
	var d *cuda.Driver
	if os.Getenv(leaver+"_GPU") != "" {
		d = gputest.Hardware(t)
	} else {
		m, err := sim.Open(machine)
		require.NoError(t, err)
		d = m.Driver()
	}
	g, err := gp.Open(options(t, d, 2))
	require.NoError(t, err)
	w, _ := slowCopy(t, d, g, 3<<20, 1)
	go w.Wait(background)
	go g.Ranks()[0].AllReduce(background, alloc(t, g.Ranks()[0], gp.TypeInt8, 100), gp.Sum)
	for range 20 {
		_, _ = slowCopy(t, d, g, 1<<20, 2)
	}
	fmt.Println("enqueued")
	if how == "exit" {
		os.Exit(3)
	}
	select {} // killed
}

// TestExitWithoutClose: a process that ends with work in flight, in whatever way,
// ends at once, and leaves the GPUs to others.
func TestExitWithoutClose(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		for _, how := range []string{"exit", "kill"} {
			cmd := exec.Command(os.Args[0], "-test.run=^TestLeaver$")
			cmd.Env = append(os.Environ(), leaver+"="+how)
			if !d.Modelled() {
				cmd.Env = append(cmd.Env, leaver+"_GPU=1")
			}
			var errs bytes.Buffer
			cmd.Stderr = &errs
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			line := make([]byte, len("enqueued\n"))
			within(t, "the child", func() { _, _ = out.Read(line) })
			require.Equal(t, "enqueued\n", string(line))
			if how == "kill" {
				require.NoError(t, cmd.Process.Kill())
			}
			within(t, "its end", func() { err = cmd.Wait() })
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			if how == "exit" {
				require.Equal(t, 3, exit.ExitCode())
			}
			require.Empty(t, errs.String())
		}
		g := group(t, d, 2)
		w, dst := slowCopyFor(t, g, 100_000, 4, time.Millisecond)
		require.NoError(t, w.Wait(background))
		holds(t, dst, pattern(100_000, 4))
	})
}

// TestExecBeside: processes are started while a group works; neither pinned memory
// nor what is in flight minds.
func TestExecBeside(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		g := group(t, d, 2)
		r0, r1 := g.Ranks()[0], g.Ranks()[1]
		const n = 700_000
		a, b := alloc(t, r0, gp.TypeUint8, n), alloc(t, r1, gp.TypeUint8, n)
		var over atomic.Bool
		var wg sync.WaitGroup
		var worked error
		rounds := 0
		wg.Go(func() {
			r := generator("exec")
			got := make([]byte, n)
			for (!over.Load() || rounds == 0) && worked == nil {
				data := randomBytes(r, n)
				worked = a.Write(background, data)
				if worked != nil {
					return
				}
				var w gp.Work
				if w, worked = g.Copy(b, a); worked != nil {
					return
				}
				worked = errors.Join(w.Wait(background), b.Read(background, got))
				if at, wrong := differ(data, got); wrong > 0 && worked == nil {
					worked = fmt.Errorf("round %d: %d bytes differ, the first at %d", rounds, wrong, at)
				}
				rounds++
			}
		})
		started := 0
		for range 8 {
			out, err := exec.Command(os.Args[0], "-test.list=^TestExecBeside$").CombinedOutput()
			require.NoError(t, err)
			require.Equal(t, "TestExecBeside\n", string(out))
			started++
		}
		over.Store(true)
		wg.Wait()
		require.NoError(t, worked)
		require.NotZero(t, rounds)
		require.NoError(t, g.Err())
		require.Equal(t, 8, started)
	})
}
