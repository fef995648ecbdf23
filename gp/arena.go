// SPDX-License-Identifier: Apache-2.0

package gp

import "slices"

// An arena hands out regions of one rank's pinned memory, or of its device
// scratch, to one plan after another, around a ring. A region may be handed out
// again while the plan that had it is still in flight: the new plan then gets
// the old plan's final marks and makes its queues wait for them. So enqueueing
// never waits for the device, and plans whose regions differ overlap.
type arena struct {
	size uint64
	head uint64 // where the next region starts, unless it is told to start elsewhere
	// live are the regions that a later one must be ordered behind, by offset.
	// They do not overlap.
	live  []*region
	spare []*region
	put   []*region // of take
	hint  int       // where in live the next region may be found
}

type region struct {
	off, end uint64
	marks    []*mark
}

// maxRegions bounds the regions that are kept track of: each has at least this
// fraction of the arena.
const maxRegions = 64

// arenaAlign keeps regions aligned for the widest vector access and apart by
// whole pages of the link's interest.
const arenaAlign = 4096

func alignUp(n, a uint64) uint64 { return (n + a - 1) / a * a }

// least is the length of the shortest region that is kept track of.
func (a *arena) least() uint64 { return min(alignUp(a.size/maxRegions, arenaAlign), a.size) }

// span is the bytes of a region of n bytes (n <= size).
func (a *arena) span(n uint64) uint64 { return min(max(alignUp(n, arenaAlign), a.least()), a.size) }

// next is where take puts n bytes: at the head, or at the start where the rest
// of the arena is too short.
func (a *arena) next(n uint64) uint64 {
	if a.head+a.span(n) > a.size {
		a.hint = 0
		return 0
	}
	return a.head
}

// take hands out n bytes at off, which is a former head or 0. Marks of the
// former users of that range are appended to fences; a reference to each passes
// to the caller.
func (a *arena) take(off, n uint64, fences []*mark) (*region, []*mark) {
	end := off + a.span(n)
	a.head = end
	if a.hint < len(a.live) {
		// Calls of one size come to the same regions on every turn.
		if r := a.live[a.hint]; r.off == off && r.end == end {
			a.hint++
			fences = append(fences, r.marks...)
			r.marks = r.marks[:0]
			return r, fences
		}
	}
	least := a.least()
	at, _ := slices.BinarySearchFunc(a.live, off, func(r *region, off uint64) int {
		if r.end <= off {
			return -1
		}
		return 1
	})
	now := a.region(off, end)
	rest := a.live[at:]
	cut := 0 // of rest, how many the new region takes the place of
	var before, behind *region
	for ; cut < len(rest) && rest[cut].off < end; cut++ {
		r := rest[cut]
		// What the new region does not cover stays with its former users, unless
		// it is not worth keeping track of.
		if n := off - min(off, r.off); n >= least {
			before = a.part(r, r.off, off)
		} else if n > 0 {
			now.off = r.off
		}
		if n := r.end - min(end, r.end); n >= least {
			behind = a.part(r, end, r.end)
		} else if n > 0 {
			now.end = r.end
		}
		fences = append(fences, r.marks...)
		clear(r.marks)
		r.marks = r.marks[:0]
		a.spare = append(a.spare, r)
	}
	a.put = a.put[:0]
	for _, r := range [...]*region{before, now, behind} {
		if r != nil {
			a.put = append(a.put, r)
		}
	}
	a.live = slices.Replace(a.live, at, at+cut, a.put...)
	a.hint = at + len(a.put)
	if behind != nil {
		a.hint--
	}
	return now, fences
}

func (a *arena) region(off, end uint64) *region {
	var r *region
	if n := len(a.spare); n > 0 {
		r, a.spare = a.spare[n-1], a.spare[:n-1]
	} else {
		r = &region{}
	}
	r.off, r.end = off, end
	return r
}

// part is a part of a region, with references of its own.
func (a *arena) part(r *region, off, end uint64) *region {
	p := a.region(off, end)
	for _, m := range r.marks {
		m.refs++
	}
	p.marks = append(p.marks, r.marks...)
	return p
}

// hold makes the region wait for m when it is reused. It takes a reference.
func (r *region) hold(m *mark) {
	m.refs++
	r.marks = append(r.marks, m)
}
