// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestArena hands out random regions and holds every byte of each to this: who
// used it last is waited for, or has been waited for by one who is.
func TestArena(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 1))
		a := &arena{size: size}
		user := make([]int, size/arenaAlign) // who used the page last, from 1 on
		marks := []*mark{nil}
		behind := []map[int]bool{nil} // by user, whom it ran behind
		for u := 1; u <= 300; u++ {
			n := uint64(1)
			switch rng.IntN(4) {
			case 0:
				n = rng.Uint64N(size) + 1
			case 1:
				n = rng.Uint64N(size/8) + 1
			case 2: // ever smaller: each could leave the end of the last one over
				n = size - uint64(u)*arenaAlign%size
			}
			if seed%4 == 0 {
				n = size - uint64(u)*arenaAlign/2%(size/2)
			}
			off := a.next(n)
			if off != 0 && rng.IntN(4) == 0 { // where other ranks' heads are
				off = min(alignUp(off+rng.Uint64N(a.size-off), arenaAlign), a.size-a.span(n))
			}
			now, fences := a.take(off, n, nil)
			require.LessOrEqual(t, off+n, uint64(size))
			require.Zero(t, off%arenaAlign)
			hb := map[int]bool{}
			for _, m := range fences {
				for who := range marks {
					if marks[who] == m {
						hb[who] = true
						for w := range behind[who] {
							hb[w] = true
						}
					}
				}
			}
			for p := off / arenaAlign; p < (off+n+arenaAlign-1)/arenaAlign; p++ {
				if user[p] != 0 {
					require.True(t, hb[user[p]], "seed %d: user %d of page %d is not behind user %d", seed, u, p, user[p])
				}
				user[p] = u
			}
			m := &mark{rank: &Rank{}, refs: 1}
			marks, behind = append(marks, m), append(behind, hb)
			now.hold(m)
			m.release()
			for _, f := range fences {
				f.release()
			}
			require.LessOrEqual(t, len(a.live), maxRegions)
		}
		// Every reference is accounted for: a mark is held by live regions only.
		held := map[*mark]int{}
		for _, r := range a.live {
			for _, m := range r.marks {
				held[m]++
			}
		}
		for _, m := range marks[1:] {
			require.Equal(t, held[m], m.refs)
		}
	}
}

// TestArenaGivesNoGarbage: the lists of marks are used again.
func TestArenaGivesNoGarbage(t *testing.T) {
	a := &arena{size: 1 << 20}
	m := &mark{rank: &Rank{}, refs: 1}
	var fences []*mark
	turn := func() {
		var now *region
		now, fences = a.take(a.next(4096), 4096, fences[:0])
		now.hold(m)
	}
	for range 1000 {
		turn()
	}
	require.Zero(t, testing.AllocsPerRun(1000, turn))
}
