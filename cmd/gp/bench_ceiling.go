// SPDX-License-Identifier: Apache-2.0

package main

import "time"

// A load is a move with the bytes that it carries.
type load struct {
	move
	n int
}

// ceilingOf is bare traffic: all loads started together, as large copies or as
// queues of pieces, whichever is faster, for on some days the host does better
// with pieces. It returns the time to the end of the last.
func (r *rig) ceilingOf(loads []load) (best time.Duration, wrong uint64, err error) {
	most := 0
	for i := range loads {
		most = max(most, loads[i].n)
	}
	for _, piece := range []int{most, ceilingPiece} {
		for i := range loads {
			// Those of one port have one offset.
			if err := advance([]move{loads[i].move}, most); err != nil {
				return 0, 0, err
			}
		}
		began := r.b.now()
		for i := range loads {
			if err := loads[i].enqueue(loads[i].n, piece); err != nil {
				return 0, 0, err
			}
		}
		for i := range loads {
			if err := loads[i].stream().Synchronize(); err != nil {
				return 0, 0, err
			}
		}
		if d := r.b.now() - began; best == 0 || d < best {
			best = d
		}
		for i := range loads {
			// Reading back what went down needs the port's other host buffer, where
			// nothing is still to be compared then.
			bad, err := r.verify([]move{loads[i].move}, loads[i].n)
			if err != nil {
				return 0, 0, err
			}
			wrong += bad
		}
	}
	return best, wrong, nil
}
