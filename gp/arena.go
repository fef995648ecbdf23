// SPDX-License-Identifier: Apache-2.0

package gp

// An arena hands out regions of one rank's pinned memory, or of its device
// scratch, to one plan after another, around a ring. A region may be handed out
// again while the plan that had it is still in flight: the new plan then gets
// the old plan's final marks and makes its queues wait for them. So enqueueing
// never waits for the device, and plans whose regions differ overlap.
type arena struct {
	size uint64
	head uint64 // where the next region starts
	// live are the regions that a later one must be ordered behind, in the
	// order in which the head comes to them: n of them, from first on, around
	// the array. The one handed out last is the last.
	live     [2 * maxRegions]region // a power of two, and more than there can be
	first, n int
}

type region struct {
	off, end uint64
	marks    []*mark
}

// maxRegions bounds the regions that are kept track of: each, and what is left
// of one, has at least this fraction of the arena.
const maxRegions = 64

// arenaAlign keeps regions aligned for the widest vector access and apart by
// whole pages of the link's interest.
const arenaAlign = 4096

func alignUp(n, a uint64) uint64 { return (n + a - 1) / a * a }

func (a *arena) at(i int) *region { return &a.live[uint(a.first+i)%uint(len(a.live))] }

// take hands out n bytes (n <= size). Marks of the former users of that range
// are appended to fences; a reference to each passes to the caller.
func (a *arena) take(n uint64, fences []*mark) (off uint64, _ []*mark) {
	least := min(alignUp(a.size/maxRegions, arenaAlign), a.size)
	span := min(max(alignUp(n, arenaAlign), least), a.size)
	if a.head+span > a.size {
		// The rest of this turn stays as it is, and comes last in the next.
		for range a.n {
			if a.at(0).off < a.head {
				break
			}
			*a.at(a.n), *a.at(0) = *a.at(0), *a.at(a.n)
			a.first = (a.first + 1) % len(a.live)
		}
		a.head = 0
	}
	off = a.head
	end := off + span
	for a.n > 0 && a.at(0).off < end && off < a.at(0).end {
		r := a.at(0)
		if r.end > end && r.end-end < least {
			end = r.end // the rest is not worth keeping track of
		}
		if r.end > end {
			// What the new region does not cover stays with its former users.
			for _, m := range r.marks {
				m.refs++
			}
			fences = append(fences, r.marks...)
			r.off = end
			break
		}
		fences = a.retire(fences)
	}
	a.head = end
	r := a.at(a.n)
	a.n++
	r.off, r.end = off, end
	return off, fences
}

// retire gives up the first region and passes its marks on. The list's memory
// stays for the region that comes to its place.
func (a *arena) retire(fences []*mark) []*mark {
	r := a.at(0)
	fences = append(fences, r.marks...)
	clear(r.marks)
	r.marks = r.marks[:0]
	a.first = (a.first + 1) % len(a.live)
	a.n--
	return fences
}

// hold makes the region that was handed out last wait for m when it is reused.
// It takes a reference.
func (a *arena) hold(m *mark) {
	r := a.at(a.n - 1)
	m.refs++
	r.marks = append(r.marks, m)
}
