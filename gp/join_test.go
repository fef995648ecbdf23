// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp"
)

// together calls f once a rank, each in a goroutine of its own, and returns
// what they answered.
func together(g *gp.Group, f func(r *gp.Rank) error) []error {
	ranks := g.Ranks()
	errs := make([]error, len(ranks))
	var wg sync.WaitGroup
	for i, r := range ranks {
		wg.Go(func() { errs[i] = f(r) })
	}
	wg.Wait()
	return errs
}

// TestJoinedAllReduce runs many rounds in which every rank's goroutine goes its
// own way: nothing but the calls themselves keeps them together.
func TestJoinedAllReduce(t *testing.T) {
	cores(t, 8)
	each(t, func(t *testing.T, d *cuda.Driver) {
		for _, n := range []int{2, 4} {
			g := group(t, d, n)
			const rounds, count = 60, 300
			errs := together(g, func(r *gp.Rank) error {
				i := r.Index()
				v := make([]int64, count)
				for k := range v {
					v[k] = int64(i*1000 + k)
				}
				b, err := gp.Upload(background, r, v)
				if err != nil {
					return err
				}
				want := append([]int64(nil), v...) // of rank 0 .. n-1, by rank
				all := make([][]int64, n)
				for j := range all {
					all[j] = make([]int64, count)
					for k := range all[j] {
						all[j][k] = int64(j*1000 + k)
					}
				}
				for round := range rounds {
					op := []gp.Op{gp.Sum, gp.Max, gp.Min}[round%3]
					for k := range want {
						acc := all[0][k]
						for j := 1; j < n; j++ {
							switch op {
							case gp.Sum:
								acc += all[j][k]
							case gp.Max:
								acc = max(acc, all[j][k])
							default:
								acc = min(acc, all[j][k])
							}
						}
						for j := range all {
							all[j][k] = acc
						}
						want[k] = acc
					}
					w, err := r.AllReduce(background, b, op)
					if err != nil {
						return err
					}
					if round%5 == i { // not everybody waits every time
						if err := w.Wait(background); err != nil {
							return err
						}
					}
					if round%20 == 19 {
						got := make([]int64, count)
						if err := gp.Download(background, got, b); err != nil {
							return err
						}
						for k := range got {
							if got[k] != want[k] {
								t.Errorf("rank %d, round %d, element %d: got %d, want %d", i, round, k, got[k], want[k])
								return errors.New("wrong")
							}
						}
					}
				}
				return b.Free()
			})
			require.NoError(t, errors.Join(errs...))
			require.EqualValues(t, rounds, g.Stats().Collectives)
		}
	})
}

// TestJoinedMismatch: what does not fit fails every rank and enqueues nothing,
// and the next round works.
func TestJoinedMismatch(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		x := newBench(t, d)
		floats := func(r *gp.Rank) gp.Buffer { return []gp.Buffer{x.a, x.b}[r.Index()] }
		ints := alloc(t, x.r1, gp.TypeInt32, x.n)
		for name, f := range map[string]func(r *gp.Rank) error{
			"types": func(r *gp.Rank) error {
				b := floats(r)
				if r.Index() == 1 {
					b = ints
				}
				return only(r.AllReduce(background, b, gp.Sum))
			},
			"lengths": func(r *gp.Rank) error { return only(r.AllReduce(background, floats(r).Sub(0, 10+r.Index()), gp.Sum)) },
			"reductions": func(r *gp.Rank) error {
				return only(r.AllReduce(background, floats(r), []gp.Op{gp.Sum, gp.Max}[r.Index()]))
			},
		} {
			before := enqueuing(x.tap)
			for i, err := range together(x.g, f) {
				require.ErrorIs(t, err, gp.ErrArgument, "%s: rank %d", name, i)
			}
			require.Equal(t, before, enqueuing(x.tap), name)
			for i, err := range together(x.g, func(r *gp.Rank) error {
				w, err := r.AllReduce(background, floats(r).Sub(0, 100), gp.Max)
				if err != nil {
					return err
				}
				return w.Wait(background)
			}) {
				require.NoError(t, err, "after %s: rank %d", name, i)
			}
			x.works("after " + name)
		}
	})
}

// TestJoinedCancel: a rank that gives up takes its buffer back, and the round
// that it left can still come together.
func TestJoinedCancel(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		x := newBench(t, d)
		before := enqueuing(x.tap)
		ctx, cancel := context.WithTimeout(background, 20*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, only(x.r0.AllReduce(ctx, x.a, gp.Sum)), context.DeadlineExceeded)
		require.ErrorIs(t, only(x.r0.AllReduce(ctx, x.a, gp.Sum)), context.DeadlineExceeded, "ended before")

		// Rank 1 waits, rank 0 has left and comes back with another buffer.
		small := x.b.Sub(0, 10)
		first := make(chan error, 1)
		go func() { first <- only(x.r1.AllReduce(background, small, gp.Max)) }()
		// Of a rank's two calls the second waits for the first one's round.
		ctx2, cancel2 := context.WithCancel(background)
		second := make(chan error, 1)
		go func() {
			time.Sleep(5 * time.Millisecond)
			second <- only(x.r1.AllReduce(ctx2, small, gp.Max))
		}()
		select {
		case err := <-first:
			t.Fatalf("a round of one: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		require.Equal(t, before, enqueuing(x.tap), "nothing was enqueued")
		require.NoError(t, only(x.r0.AllReduce(background, x.a.Sub(0, 10), gp.Max)))
		require.NoError(t, <-first)
		cancel2()
		require.ErrorIs(t, <-second, context.Canceled)
		x.works("after canceled joins")

		// Many that come and go, while others go through with it.
		var wg sync.WaitGroup
		stop := make(chan struct{})
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(background, time.Millisecond)
				if err := only(x.r0.AllReduce(ctx, x.a, gp.Max)); err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("coming and going: %v", err)
				}
				cancel()
			}
		})
		for range 20 {
			ctx, cancel := context.WithTimeout(background, 10*time.Second)
			require.NoError(t, only(x.r1.AllReduce(ctx, x.b, gp.Max)))
			cancel()
			time.Sleep(2 * time.Millisecond)
		}
		close(stop)
		wg.Wait()
		x.works("after many")
	})
}

// TestJoinedClose: Close wakes who waits for others that will not come.
func TestJoinedClose(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		x := newBench(t, d)
		got := make(chan error, 2)
		go func() { got <- only(x.r0.AllReduce(background, x.a, gp.Sum)) }()
		go func() { got <- only(x.r0.AllReduce(background, x.a, gp.Sum)) }()
		time.Sleep(20 * time.Millisecond)
		require.NoError(t, x.g.Close())
		for range 2 {
			select {
			case err := <-got:
				require.ErrorIs(t, err, gp.ErrClosed)
			case <-time.After(10 * time.Second):
				t.Fatal("Close left a rank waiting")
			}
		}
	})
}
