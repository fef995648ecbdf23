// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
)

// TestExchangeInParts: an operation that is longer than the areas hold is done by
// as few exchanges, one behind the other, as they do hold, and beyond a number of
// them not at all.
func TestExchangeInParts(t *testing.T) {
	gputest.Parallel(t)
	for name, machine := range places {
		t.Run(name, func(t *testing.T) {
			const ranks, budget = 3, 12 << 20 // areas of some 2 MiB
			x := newTroupe(t, machineOf(t, machine), ranks, func(o *gp.Options) { o.PinnedBytes = budget })
			for _, c := range []struct {
				bytes, parts int
				inPlace      bool
			}{
				{512<<10 + 8, 1, true}, {1<<20 + 24, 2, false}, {5<<20 + 8, 7, true}, {1<<20 + 16, 2, true}, {8 << 20, 0, true},
			} {
				n := c.bytes / 8
				var src, dst []gp.Buffer
				want := make([]int64, n)
				for r, rank := range x.g.Ranks() {
					b := alloc(t, rank, gp.TypeInt64, n)
					in := make([]byte, 0, c.bytes)
					for i := range n {
						v := int64(i)*2654435761 ^ int64(r)<<40
						want[i] += v
						in = binary.LittleEndian.AppendUint64(in, uint64(v))
					}
					require.NoError(t, b.Write(background, in))
					src, dst = append(src, b), append(dst, b)
					if !c.inPlace {
						dst[r] = alloc(t, rank, gp.TypeInt64, n)
					}
				}
				o := gp.CallOptions{Algorithm: gp.AlgorithmTwoShot}
				if c.parts == 7 { // the numbers would come round within it: they begin anew before
					x.g.SetEpoch(1<<32 - 4)
				}
				before := x.g.Epoch()
				w, err := x.g.With(o).AllReduceTo(dst, src, gp.Sum)
				if c.parts == 0 {
					require.ErrorContains(t, err, "too many for the areas")
					continue
				}
				require.NoError(t, err)
				require.NoError(t, w.Wait(background))
				switch {
				case before == 0: // the first use has a handshake before it
					before = 1
				case before == 1<<32-4:
					before = 0
				}
				require.EqualValues(t, c.parts, x.g.Epoch()-before, "%d bytes", c.bytes)
				for r, b := range dst {
					got := make([]int64, n)
					require.NoError(t, gp.Download(background, got, b))
					require.Equal(t, want, got, "rank %d of %d bytes", r, c.bytes)
				}
				var e gp.Explanation
				o.Explain = &e
				_, err = x.g.With(o).AllReduceTo(dst, src, gp.Sum)
				require.NoError(t, err)
				require.Equal(t, c.parts*ranks, e.Kernels)
			}
			require.NoError(t, x.g.Err())
		})
	}
}
