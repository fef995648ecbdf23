// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp"
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
