// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
)

// TestGroupsLaunchInTurn: two groups whose ranks are in opposite order, on the
// same GPUs and the same streams, launch kernels that wait for each other from two
// goroutines at once, and a third copies between those streams. One launch of each
// on either GPU, the other way round, and none of them would ever begin.
func TestGroupsLaunchInTurn(t *testing.T) {
	cores(t, 4)
	each(t, func(t *testing.T, d *cuda.Driver) {
		const calls = 300
		var groups []*gp.Group
		var streams []*cuda.Stream
		for i := range 2 {
			o := options(t, d, 2)
			o.PinnedBytes = roomy
			if d.Modelled() {
				o.KernelDeadline = time.Hour // whoever polls takes time on by seconds
			}
			if i == 1 {
				slices.Reverse(o.Devices)
			}
			g := open(t, o)
			groups = append(groups, g)
			if i == 0 {
				for _, r := range g.Ranks() {
					streams = append(streams, newStream(t, r))
				}
			}
		}
		// on is a buffer of a rank on the GPU's stream, whichever rank it is.
		on := func(r *gp.Rank, n int) gp.Buffer {
			for _, s := range streams {
				if s.Context().Handle() == r.Context().Handle() {
					return alloc(t, r, gp.TypeInt32, n).On(s)
				}
			}
			t.Fatal("no stream")
			return gp.Buffer{}
		}
		var wg sync.WaitGroup
		errs := make([]error, 3)
		run := func(i int, call func() error) {
			wg.Go(func() {
				for k := 0; k < calls && errs[i] == nil; k++ {
					errs[i] = call()
				}
			})
		}
		var bufs [2][]gp.Buffer
		for i, g := range groups {
			for _, r := range g.Ranks() {
				b := on(r, 64)
				require.NoError(t, b.Write(background, make([]byte, 256)))
				bufs[i] = append(bufs[i], b)
			}
			shot := func() error {
				return only(g.With(gp.CallOptions{Algorithm: gp.AlgorithmOneShot}).AllReduce(bufs[i], gp.Max))
			}
			require.NoError(t, shot()) // finds out whether the kernels run at once
			require.NoError(t, g.Synchronize(background))
		}
		for i, g := range groups {
			run(i, func() error {
				return only(g.With(gp.CallOptions{Algorithm: gp.AlgorithmOneShot}).AllReduce(bufs[i], gp.Max))
			})
		}
		a, b := on(groups[1].Ranks()[0], 64), on(groups[1].Ranks()[1], 64)
		run(2, func() error { return only(groups[1].Copy(a, b)) })
		wg.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
		for _, g := range groups {
			within(t, "Synchronize", func() { require.NoError(t, g.Synchronize(background)) })
			require.NoError(t, g.Err())
		}
	})
}

// between has others call while kernels that wait for each other are launched, and
// notes whether they make a stream wait before the last of them is.
type between struct {
	api.Driver
	others    func() // at the next launch
	launching atomic.Bool
	waited    chan struct{}
}

func (b *between) LaunchKernel(f api.Function, l *api.Launch) api.Code {
	if others := b.others; others != nil {
		b.others = nil
		defer func() {
			b.launching.Store(true)
			go others()
			select {
			case <-b.waited:
				b.note()
			case <-time.After(20 * time.Millisecond):
			}
		}()
	} else {
		b.launching.Store(false)
	}
	return b.Driver.LaunchKernel(f, l)
}

func (b *between) note() {
	select {
	case b.waited <- struct{}{}:
	default:
	}
}

func (b *between) StreamWaitEvent(s api.Stream, e api.Event) api.Code {
	if b.launching.Load() {
		b.note()
	}
	return b.Driver.StreamWaitEvent(s, e)
}

// TestNobodyWaitsBetweenLaunches: whatever another group does on the GPUs, no stream
// is made to wait while kernels that wait for each other are being launched.
func TestNobodyWaitsBetweenLaunches(t *testing.T) {
	b := &between{Driver: hook.Seam(gputest.Sim(t, "2x4090")), waited: make(chan struct{}, 1)}
	d, err := hook.NewDriver(b)
	require.NoError(t, err)
	var groups [2]*gp.Group
	var bufs [2][]gp.Buffer
	for i := range groups {
		o := options(t, d.(*cuda.Driver), 2)
		o.PinnedBytes = roomy
		groups[i] = open(t, o)
		for _, r := range groups[i].Ranks() {
			bufs[i] = append(bufs[i], alloc(t, r, gp.TypeInt32, 64))
		}
	}
	shot := gp.CallOptions{Algorithm: gp.AlgorithmOneShot}
	require.NoError(t, only(groups[0].With(shot).AllReduce(bufs[0], gp.Sum)))
	require.NoError(t, groups[0].Synchronize(background))
	g, dst, src := groups[1], bufs[1][0], bufs[1][1]
	for name, call := range map[string]func() (gp.Work, error){
		"copy":                     func() (gp.Work, error) { return g.Copy(dst, src) },
		"copy of nothing":          func() (gp.Work, error) { return g.Copy(dst.Sub(0, 0), src.Sub(0, 0)) },
		"batch":                    func() (gp.Work, error) { return g.SendRecv(gp.Transfer{Dst: dst, Src: src}) },
		"batch of nothing":         func() (gp.Work, error) { return g.SendRecv(gp.Transfer{Dst: dst.Sub(0, 0), Src: src.Sub(0, 0)}) },
		"collective":               func() (gp.Work, error) { return g.Broadcast(bufs[1], src) },
		"collective of nothing":    func() (gp.Work, error) { return g.Broadcast([]gp.Buffer{dst.Sub(0, 0), src.Sub(0, 0)}, src.Sub(0, 0)) },
		"kernels of the same kind": func() (gp.Work, error) { return g.With(shot).AllReduce(bufs[1], gp.Sum) },
	} {
		over := make(chan error, 1)
		b.others = func() { over <- only(call()) }
		require.NoError(t, only(groups[0].With(shot).AllReduce(bufs[0], gp.Sum)), name)
		require.NoError(t, <-over, name)
		select {
		case <-b.waited:
			require.Fail(t, "a stream was made to wait between two launches", name)
		default:
		}
		require.NoError(t, groups[0].Synchronize(background), name)
		require.NoError(t, g.Synchronize(background), name)
	}
}
