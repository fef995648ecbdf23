// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
)

// late is a time that nobody waits for by accident.
func late(d *cuda.Driver) time.Duration {
	if d.Modelled() {
		return time.Hour
	}
	return 150 * time.Millisecond
}

// pass lets it pass on a simulated machine, where only the host's calls move
// the clock.
func pass(d *cuda.Driver) {
	if d.Modelled() {
		seam(d).Host().Sleep(time.Hour)
	}
}

// slowCopy enqueues a copy of a pattern that its producer leaves late.
func slowCopy(t testing.TB, d *cuda.Driver, g *gp.Group, n, seed int) (w gp.Work, dst gp.Buffer) {
	t.Helper()
	r0, r1 := g.Ranks()[0], g.Ranks()[1]
	src, dst := alloc(t, r0, gp.TypeUint8, n), alloc(t, r1, gp.TypeUint8, n)
	newProducer(t, r0.Context()).fill(src.Stream(), src.Ptr(), n, seed, late(d))
	w, err := g.Copy(dst, src)
	require.NoError(t, err)
	return w, dst
}

func holds(t testing.TB, b gp.Buffer, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	require.NoError(t, b.Read(background, got))
	requireBytes(t, want, got, "buffer of rank %d", b.Rank().Index())
}

func TestWaitCanceled(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		leaks := goleak.IgnoreCurrent()
		g := group(t, d, 2)
		for _, n := range []int{1000, 3 << 20} { // on the callers' streams, and on lanes
			w, dst := slowCopy(t, d, g, n, n)
			require.False(t, w.Done())
			gone, cancel := context.WithCancel(background)
			cancel()
			require.ErrorIs(t, w.Wait(gone), context.Canceled)
			short, cancel := context.WithTimeout(background, time.Millisecond)
			require.ErrorIs(t, w.Wait(short), context.DeadlineExceeded)
			require.ErrorIs(t, g.Synchronize(short), context.DeadlineExceeded)
			cancel()
			require.False(t, w.Done(), "cancelling stops the waiting, not the work")
			pass(d)
			require.NoError(t, w.Wait(background))
			require.True(t, w.Done())
			require.NoError(t, w.Wait(gone), "what is done is no longer waited for")
			holds(t, dst, pattern(n, n))
		}
		require.NoError(t, g.Close())
		goleak.VerifyNone(t, leaks)
	})
}

func TestTransferCanceled(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		g := group(t, d, 2)
		w, dst := slowCopy(t, d, g, 3<<20, 1)
		short, cancel := context.WithTimeout(background, time.Millisecond)
		defer cancel()
		got := make([]byte, 3<<20)
		require.ErrorIs(t, dst.Read(short, got), context.DeadlineExceeded, "the copy is still on its way")
		require.ErrorIs(t, dst.Read(short, got), context.DeadlineExceeded, "ended before")
		require.False(t, w.Done())
		pass(d)
		// The next one finds the halves as the given up one left them.
		holds(t, dst, pattern(3<<20, 1))
		require.True(t, w.Done())
		require.NoError(t, dst.Write(background, pattern(3<<20, 2)))
		holds(t, dst, pattern(3<<20, 2))
	})
}

func TestWaitFromMany(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		leaks := goleak.IgnoreCurrent()
		g := group(t, d, 2)
		var wg sync.WaitGroup
		var returned atomic.Int32
		for i := range 4 {
			w, dst := slowCopy(t, d, g, 1000*(i+1), i)
			for k := range 16 {
				wg.Go(func() {
					ctx := background
					if k%4 == 3 {
						var cancel func()
						ctx, cancel = context.WithTimeout(background, time.Millisecond)
						defer cancel()
					}
					if err := w.Wait(ctx); err != nil && (k%4 != 3 || !errors.Is(err, context.DeadlineExceeded)) {
						t.Errorf("wait: %v", err)
					}
					returned.Add(1)
				})
			}
			defer holds(t, dst, pattern(1000*(i+1), i))
		}
		time.Sleep(20 * time.Millisecond)
		for range 4 {
			pass(d)
		}
		wg.Wait()
		require.EqualValues(t, 64, returned.Load())
		goleak.VerifyNone(t, leaks)
	})
}

func TestLowLatencyWait(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		o := options(t, d, 2)
		o.LowLatency = true
		g := open(t, o)
		w, dst := slowCopyFor(t, g, 5000, 3, 2*time.Millisecond)
		gone, cancel := context.WithCancel(background)
		cancel()
		require.ErrorIs(t, w.Wait(gone), context.Canceled)
		require.NoError(t, w.Wait(background))
		holds(t, dst, pattern(5000, 3))
	})
}

func slowCopyFor(t testing.TB, g *gp.Group, n, seed int, after time.Duration) (w gp.Work, dst gp.Buffer) {
	t.Helper()
	r0, r1 := g.Ranks()[0], g.Ranks()[1]
	src, dst := alloc(t, r0, gp.TypeUint8, n), alloc(t, r1, gp.TypeUint8, n)
	newProducer(t, r0.Context()).fill(src.Stream(), src.Ptr(), n, seed, after)
	w, err := g.Copy(dst, src)
	require.NoError(t, err)
	return w, dst
}

// TestBefore: a stream that has nothing to do with the buffers runs behind the
// work, of whichever GPU it is.
func TestBefore(t *testing.T) {
	eachSeed(t, 4, func(t *testing.T, d *cuda.Driver) {
		g := group(t, d, 2)
		r1 := g.Ranks()[1]
		for _, n := range []int{500, 400_000} {
			other := newStream(t, r1)
			w, dst := slowCopyFor(t, g, n, n, 100*time.Microsecond)
			seen := alloc(t, r1, gp.TypeUint8, n).On(other)
			require.NoError(t, other.MemsetD8(seen.Ptr(), 0, n))
			require.NoError(t, w.Before(other))
			require.NoError(t, other.MemcpyDtoD(seen.Ptr(), dst.Ptr(), n))
			holds(t, seen, pattern(n, n))

			// All of a collective, not only the stream's own rank.
			var bufs []gp.Buffer
			for i, r := range g.Ranks() {
				b := alloc(t, r, gp.TypeUint8, n)
				newProducer(t, r.Context()).fill(b.Stream(), b.Ptr(), n, i, time.Duration(i)*100*time.Microsecond)
				bufs = append(bufs, b)
			}
			w, err := g.AllReduce(bufs, gp.Sum)
			require.NoError(t, err)
			for i, r := range g.Ranks() {
				s := newStream(t, r)
				seen := alloc(t, r, gp.TypeUint8, n).On(s)
				require.NoError(t, w.Before(s))
				require.NoError(t, s.MemcpyDtoD(seen.Ptr(), bufs[i].Ptr(), n))
				holds(t, seen, folded(t, [][]byte{pattern(n, 0), pattern(n, 1)}, gp.TypeUint8, gp.Sum))
			}
			require.NoError(t, w.Wait(background))
			require.NoError(t, w.Before(other), "done")
		}
	})
}

func TestZeroWork(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		g := group(t, d, 2)
		var w gp.Work
		require.True(t, w.Done())
		require.NoError(t, w.Wait(background))
		require.NoError(t, w.Before(g.Ranks()[0].Stream()))
		require.Empty(t, w.Algorithm())
	})
}

func TestAlgorithmNames(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		x := newBench(t, d)
		w, err := x.g.Copy(x.b, x.a)
		require.NoError(t, err)
		require.Equal(t, "staged", w.Algorithm())
		w, err = x.g.Copy(x.a.Sub(0, 5), x.a.Sub(5, 10))
		require.NoError(t, err)
		require.Equal(t, "local", w.Algorithm())
		for _, alg := range reduceAlgorithms {
			w, err = x.g.With(gp.CallOptions{Algorithm: alg}).AllReduce([]gp.Buffer{x.a, x.b}, gp.Sum)
			require.NoError(t, err)
			require.Equal(t, string(alg), w.Algorithm())
		}
		w, err = x.g.AllReduce([]gp.Buffer{x.a, x.b}, gp.Sum)
		require.NoError(t, err)
		require.Equal(t, "direct", w.Algorithm())
	})
}

// TestNeverWaitedFor: thousands of calls whose Works are dropped neither pile
// up nor go wrong, and a Work that has been dropped answers for its own call.
func TestNeverWaitedFor(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		leaks := goleak.IgnoreCurrent()
		g := group(t, d, 2)
		const calls, n = 4000, 64
		src, dst := alloc(t, g.Ranks()[0], gp.TypeUint8, n*calls), alloc(t, g.Ranks()[1], gp.TypeUint8, n*calls)
		data := randomBytes(generator("never"), n*calls)
		require.NoError(t, src.Write(background, data))
		var old []gp.Work
		most := 0
		for i := range calls {
			w, err := g.Copy(dst.Sub(i*n, (i+1)*n), src.Sub(i*n, (i+1)*n))
			require.NoError(t, err)
			if i%500 == 0 {
				old = append(old, w)
			}
			most = max(most, g.Stats().OperationsOpen)
		}
		require.NoError(t, g.Synchronize(background))
		for _, w := range old {
			require.True(t, w.Done())
			require.NoError(t, w.Wait(background))
		}
		holds(t, dst, data)
		require.LessOrEqual(t, most, 1500, "operations open at once")
		require.EqualValues(t, calls, g.Stats().Copies)
		require.NoError(t, g.Close())
		goleak.VerifyNone(t, leaks)
	})
}

// TestPlansAreBounded: a call of ever new lengths does not fill the cache.
func TestPlansAreBounded(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		g := group(t, d, 2)
		src, dst := alloc(t, g.Ranks()[0], gp.TypeUint8, 1000), alloc(t, g.Ranks()[1], gp.TypeUint8, 1000)
		data := randomBytes(generator("plans"), 1000)
		require.NoError(t, src.Write(background, data))
		for n := 1; n <= 1000; n++ {
			_, err := g.Copy(dst.Sub(0, n), src.Sub(0, n))
			require.NoError(t, err)
		}
		holds(t, dst, data)
		require.LessOrEqual(t, g.Stats().PlansCached, 128)
	})
}

// TestCloseInFlight: Close waits for what was enqueued, and who waits is not
// left behind.
func TestCloseInFlight(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		leaks := goleak.IgnoreCurrent()
		g := group(t, d, 2)
		const n = 5 << 20
		r0, r1 := g.Ranks()[0], g.Ranks()[1]
		// Memory of our own outlives the group.
		mem := func(r *gp.Rank) (*cuda.Memory, gp.Buffer) {
			m, err := gputest.Primary(t, r.Device()).Alloc(n)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, m.Close()) })
			b, err := r.Wrap(m.Ptr(), gp.TypeUint8, n, nil)
			require.NoError(t, err)
			return m, b
		}
		_, a := mem(r0)
		m, b := mem(r1)
		newProducer(t, r0.Context()).fill(a.Stream(), a.Ptr(), n, 5, 100*time.Millisecond)
		w, err := g.With(gp.CallOptions{Chunk: 64 << 10}).Copy(b, a)
		require.NoError(t, err)
		waited := make(chan error, 1)
		go func() { waited <- w.Wait(background) }()
		require.NoError(t, g.Close())
		require.NoError(t, <-waited)
		require.True(t, w.Done())
		got := make([]byte, n)
		require.NoError(t, m.Context().Synchronize())
		require.NoError(t, m.Context().MemcpyDtoH(got, m.Ptr()))
		requireBytes(t, pattern(n, 5), got, "copied before Close")
		require.NoError(t, g.Close(), "again")
		goleak.VerifyNone(t, leaks)
	})
}

// TestCloseUnderLoad: every call beside a Close either ends well or answers
// ErrClosed; none hangs, and nothing leaks.
func TestCloseUnderLoad(t *testing.T) {
	cores(t, 8)
	each(t, func(t *testing.T, d *cuda.Driver) {
		rounds := 6
		if !d.Modelled() {
			rounds = 2
		}
		for round := range rounds {
			g, err := gp.Open(options(t, d, 2))
			require.NoError(t, err)
			r0, r1 := g.Ranks()[0], g.Ranks()[1]
			a, b := alloc(t, r0, gp.TypeInt32, 100_000), alloc(t, r1, gp.TypeInt32, 100_000)
			big := make([]byte, 400_000)
			calls := []func() error{
				func() error { w, err := g.Copy(b, a); return errors.Join(err, w.Wait(background)) },
				func() error {
					w, err := g.AllReduce([]gp.Buffer{a, b}, gp.Sum)
					return errors.Join(err, w.Wait(background))
				},
				func() error { return a.Read(background, make([]byte, len(big))) },
				func() error { return a.Write(background, big) },
				func() error {
					c, err := gp.Upload(background, r1, make([]int8, 3<<20))
					if err == nil {
						err = c.Free()
					}
					return err
				},
				func() error { return g.Synchronize(background) },
				func() error { return only(r0.AllReduce(background, a, gp.Sum)) },
			}
			errs := make(chan error, 4*len(calls))
			for i := range 4 * len(calls) {
				go func() {
					for {
						if err := calls[i%len(calls)](); err != nil {
							errs <- fmt.Errorf("call %d: %w", i%len(calls), err)
							return
						}
					}
				}()
			}
			time.Sleep(time.Duration(round) * 2 * time.Millisecond)
			closed := make(chan error, 2)
			go func() { closed <- g.Close() }()
			go func() { closed <- g.Close() }()
			deadline := time.After(20 * time.Second)
			for range 2 {
				select {
				case err := <-closed:
					require.NoError(t, err)
				case <-deadline:
					t.Fatal("Close hangs")
				}
			}
			for range 4 * len(calls) {
				select {
				case err := <-errs:
					require.ErrorIs(t, err, gp.ErrClosed)
				case <-deadline:
					t.Fatal("a call hangs behind Close")
				}
			}
		}
	})
}

// TestFreeWaits: memory is not given back while a call uses it, whatever stream
// orders the buffer, and also if that has been closed meanwhile.
func TestFreeWaits(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		tapped, tp := gputest.Tapped(t, d)
		g := group(t, tapped, 2)
		r0, r1 := g.Ranks()[0], g.Ranks()[1]
		const n = 100_000
		prod := newProducer(t, r0.Context())
		for i, closing := range []bool{false, true} {
			s, err := r0.Context().NewStream()
			require.NoError(t, err)
			src := alloc(t, r0, gp.TypeUint8, n)
			dst := alloc(t, r1, gp.TypeUint8, n)
			prod.fill(s, src.Ptr(), n, i, late(d))
			w, err := g.Copy(dst, src.On(s))
			require.NoError(t, err)
			require.False(t, w.Done())
			tp.Reset()
			if closing {
				require.NoError(t, s.Close())
				require.NoError(t, src.Free())
				require.NotZero(t, tp.Count("CtxSynchronize"), "what a closed stream still does ends with the context's work")
			} else {
				require.NoError(t, src.Free())
				idle, err := s.Query()
				require.NoError(t, err)
				require.True(t, idle, "Free waited for the stream of the copy")
				require.NoError(t, s.Close())
			}
			require.EqualValues(t, 1, tp.Count("MemFree"))
			holds(t, dst, pattern(n, i))
		}
	})
}
