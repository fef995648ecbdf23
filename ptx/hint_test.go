// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// Messages of which not all ranks read all until it is there: one thread of a
// block reads a hint of each peer's, in two batches of peers, in blocks that are
// full, that are not, and that have nothing; and a rank that never comes.
func TestEmbeddedHints(t *testing.T) {
	if slow {
		t.Skip("too much to interpret")
	}
	const n, missing = 9, 4
	r := rand.New(rand.NewPCG(33, 34))
	for _, c := range []struct {
		kind               kernel.Kind
		typ                dtype.Type
		count, grid, block int
	}{
		{kernel.OneShot, dtype.Float32, 2*64 + 1, 3, 32},
		{kernel.OneShot, dtype.Float64, 70, 1, 32},
		{kernel.TwoShotLL, dtype.Float32, 9*2*58 - 31, 2, 32},
		{kernel.TwoShotLL, dtype.Uint8, 9*8*58 + 3, 4, 32},
		{kernel.Gather, 0, 8*70 + 5, 2, 32},
	} {
		bytes := c.count
		if c.kind.Reduces() {
			bytes *= c.typ.Size()
		}
		prog := compileEmbedded(t, kernel.ExchangeModule(c.kind, c.typ), kernel.ExchangeEntry(c.kind, c.typ))
		crew := newCrew(t, n, bytes, bytes*n, 0, crewArena(n, bytes+32, bytes*n+32))
		for range 2 {
			var err error
			if c.kind == kernel.Gather {
				err = crew.gatherOn(r, prog, c.count, c.grid, false)
			} else {
				err = crew.reduceOn(r, prog, c.kind, c.typ, dtype.Sum, c.count, c.grid, c.block, false, false)
			}
			require.NoError(t, err, "%v of %d bytes", c.kind, bytes)
		}
		crew.epoch++
		require.NoError(t, crew.together(r, prog, c.grid, c.block, missing, c.typ, func(rank int) kernel.Exchange {
			x := crew.exchange(c.kind, 0, c.count, 0, rank)
			x.DeadlineNs = 60_000
			return x
		}))
		for rank := range n {
			if rank != missing {
				got := crew.status(rank)
				if c.kind == kernel.TwoShotLL {
					got.Peer = missing // who has nothing to fold waits for results of those who wait for it
				}
				require.Equal(t, kernel.Status{Code: kernel.StatusTimedOut, Peer: missing, Epoch: uint32(crew.epoch)}, got, "%v", c.kind)
			}
		}
	}
}
