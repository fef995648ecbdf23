// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// The group on machines that run the kernels' PTX in place of their twins: every
// collective by every algorithm, small sizes.
func TestInterpreted(t *testing.T) {
	gputest.Parallel(t)
	for _, ranks := range []int{2, 3} {
		if fewer && ranks > 2 {
			continue
		}
		d := simulated(t, sim.Interpret())
		o := options(t, d, ranks)
		o.PinnedBytes = 16 << 20 // with areas for the kernels that wait for each other
		g := open(t, o)
		f := newFields(t, g, 64<<10)
		for i, c := range operations(ranks) {
			for j, typ := range dtype.Types {
				for k, n := range []int{7, 333} {
					if (i+j+k)%2 != 0 || (fewer || !testenv.Optimized()) && (i+j)%6 != 0 {
						continue
					}
					c.typ, c.red, c.n, c.inPlace = typ, dtype.Ops[(i+j+ranks)%len(dtype.Ops)], n, j%2 == 0 && c.op != "all_to_all"
					f.run(c)
				}
			}
		}
		// In bulk, which messages of this size are not by themselves.
		f.run(operation{op: "all_reduce", alg: gp.AlgorithmTwoShot, typ: gp.TypeInt8, red: gp.Max, n: 60_000})
		require.NoError(t, g.Err())
	}
}
