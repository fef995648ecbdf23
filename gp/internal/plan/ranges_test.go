// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// place is a state that counts bytes.
type place uint64

func placeFrom(p place, n uint64) place { return p + place(n) }

// TestRangeMap compares it with an array of one state a byte.
func TestRangeMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 11))
	for range 50 {
		n := rng.Uint64N(100)
		m := newRangeMap(n, place(1000), placeFrom)
		want := make([]place, n)
		for i := range want {
			want[i] = 1000 + place(i)
		}
		for range 60 {
			lo := rng.Uint64N(n + 1)
			hi := lo + rng.Uint64N(n-lo+1)
			if rng.IntN(2) == 0 {
				s := place(rng.Uint64N(1 << 40))
				m.set(lo, hi, s)
				for i := lo; i < hi; i++ {
					want[i] = s + place(i-lo)
				}
			}
			at := lo
			for _, seg := range m.in(lo, hi) {
				require.Equal(t, at, seg.lo)
				require.Less(t, seg.lo, seg.hi)
				for i := seg.lo; i < seg.hi; i++ {
					require.Equal(t, want[i], seg.state+place(i-seg.lo))
				}
				at = seg.hi
			}
			require.Equal(t, hi, at)
		}
	}
}
