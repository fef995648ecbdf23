// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// keeps calls f on a thread whose current context is one of the given, 0 for
// none, and holds f to leaving it at that.
func keeps(d api.Driver, current api.Context, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was, c := d.CtxGetCurrent()
	if c != api.Success {
		return fmt.Errorf("current context: %v", cuda.Code(c))
	}
	if c := d.CtxSetCurrent(current); c != api.Success {
		return fmt.Errorf("setting context %#x: %v", current, cuda.Code(c))
	}
	err := f()
	if now, c := d.CtxGetCurrent(); c != api.Success || now != current {
		return errors.Join(err, fmt.Errorf("the thread's context was %#x and is %#x now (%v)", current, now, cuda.Code(c)))
	}
	if c := d.CtxSetCurrent(was); c != api.Success {
		return fmt.Errorf("putting context %#x back: %v", was, cuda.Code(c))
	}
	return err
}

// TestManyGoroutines: copies, reductions and transfers from 64 goroutines at
// once, on two groups that share their GPUs, from threads with any context.
func TestManyGoroutines(t *testing.T) {
	cores(t, 8)
	each(t, func(t *testing.T, d *cuda.Driver) {
		const goroutines, rounds = 64, 5
		groups := []*gp.Group{group(t, d, 2), group(t, d, 3)}
		contexts := []api.Context{0}
		for _, r := range groups[1].Ranks() {
			contexts = append(contexts, r.Context().Handle())
		}
		seam := seam(d)
		errs := make([]error, goroutines)
		var wg sync.WaitGroup
		for i := range goroutines {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), 1))
				errs[i] = func() error {
					g := groups[i%2]
					ranks := g.Ranks()
					n := []int{1, 100, 5000, 70_000}[r.IntN(4)]
					call := func(what string, f func() error) error {
						runtime.Gosched()
						if err := keeps(seam, contexts[r.IntN(len(contexts))], f); err != nil {
							return fmt.Errorf("%s: %w", what, err)
						}
						return nil
					}
					bufs := make([]gp.Buffer, len(ranks))
					data := make([]uint32, n)
					for k := range data {
						data[k] = uint32(i*77 + k)
					}
					for k, rank := range ranks {
						if err := call("upload", func() (err error) {
							bufs[k], err = gp.Upload(background, rank, make([]uint32, n))
							return err
						}); err != nil {
							return err
						}
					}
					for round := range rounds {
						if err := call("write", func() error { return bufs[0].Write(background, raw(data)) }); err != nil {
							return err
						}
						var works []gp.Work
						for k := 1; k < len(bufs); k++ {
							if err := call("copy", func() error {
								w, err := g.Copy(bufs[k], bufs[k-1])
								works = append(works, w)
								return err
							}); err != nil {
								return err
							}
						}
						if err := call("all_reduce", func() error {
							w, err := g.With(gp.CallOptions{Algorithm: reduceAlgorithms[round%2]}).AllReduce(bufs, gp.Sum)
							works = append(works, w)
							return err
						}); err != nil {
							return err
						}
						if r.IntN(2) == 0 {
							for _, w := range works {
								if err := call("wait", func() error { return w.Wait(background) }); err != nil {
									return err
								}
								if err := call("done", func() error {
									if !w.Done() {
										return errors.New("waited for, and not done")
									}
									return nil
								}); err != nil {
									return err
								}
							}
						}
						want := make([]uint32, n)
						for k := range want {
							want[k] = uint32(len(bufs)) * data[k]
						}
						got := make([]uint32, n)
						for k, b := range bufs {
							if err := call("download", func() error { return gp.Download(background, got, b) }); err != nil {
								return err
							}
							if !bytes.Equal(raw(want), raw(got)) {
								return fmt.Errorf("round %d: rank %d: wrong sums", round, k)
							}
						}
					}
					for _, b := range bufs {
						if err := call("free", b.Free); err != nil {
							return err
						}
					}
					return nil
				}()
			})
		}
		wg.Wait()
		for i, err := range errs {
			require.NoError(t, err, "goroutine %d", i)
		}
		for _, g := range groups {
			require.NoError(t, keeps(seam, contexts[1], g.Close))
		}
	})
}

// raw is the bytes of a slice.
func raw(v []uint32) []byte {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = append(b, byte(x), byte(x>>8), byte(x>>16), byte(x>>24))
	}
	return b
}

// TestEveryCallKeepsTheContext is the same of each call by itself, on a thread
// with no context, one of the group's and another of the group's.
func TestEveryCallKeepsTheContext(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		holder := group(t, d, 2) // so that the contexts outlive the group that is closed
		contexts := []api.Context{0, holder.Ranks()[0].Context().Handle(), holder.Ranks()[1].Context().Handle()}
		for i, cc := range contexts {
			check := func(what string, f func() error) {
				t.Helper()
				require.NoError(t, keeps(seam(d), cc, f), "%s with context %d", what, i)
			}
			var g *gp.Group
			check("open", func() (err error) { g, err = gp.Open(options(t, d, 2)); return err })
			r0, r1 := g.Ranks()[0], g.Ranks()[1]
			var a, b, wide gp.Buffer
			check("upload", func() (err error) { a, err = gp.Upload(background, r0, make([]float32, 70_000)); return err })
			check("alloc", func() (err error) { b, err = r1.Alloc(gp.TypeFloat32, 70_000); return err })
			check("wrap", func() (err error) { _, err = r0.Wrap(a.Ptr(), gp.TypeUint8, 4, nil); return err })
			check("refused", func() error {
				_, err := r0.Wrap(a.Ptr()+1, gp.TypeFloat32, 4, nil)
				if !errors.Is(err, gp.ErrArgument) {
					return fmt.Errorf("not refused: %w", err)
				}
				return nil
			})
			var w gp.Work
			for _, n := range []int{0, 10, 70_000} {
				check("copy", func() (err error) { w, err = g.Copy(b.Sub(0, n), a.Sub(0, n)); return err })
				check("wait", func() error { return w.Wait(background) })
				check("all_reduce", func() (err error) {
					w, err = g.AllReduce([]gp.Buffer{a.Sub(0, n), b.Sub(0, n)}, gp.Sum)
					return err
				})
				check("before", func() error { return w.Before(r1.Stream()) })
			}
			check("alloc", func() (err error) { wide, err = r1.Alloc(gp.TypeFloat32, 200); return err })
			check("all_gather", func() (err error) {
				_, err = g.AllGather([]gp.Buffer{a.Sub(0, 200), wide}, []gp.Buffer{a.Sub(0, 100), b.Sub(0, 100)})
				if !errors.Is(err, gp.ErrArgument) {
					return fmt.Errorf("in place on one rank: %w", err)
				}
				_, err = g.AllGather([]gp.Buffer{a.Sub(0, 200), wide}, []gp.Buffer{a.Sub(200, 300), b.Sub(0, 100)})
				return err
			})
			check("local copy", func() (err error) { _, err = g.Copy(a.Sub(0, 10), a.Sub(10, 20)); return err })
			check("read", func() error { return a.Read(background, make([]byte, a.Bytes())) })
			check("synchronize", func() error { return g.Synchronize(background) })
			check("free", b.Free)
			check("close", g.Close)
		}
	})
}
