// SPDX-License-Identifier: Apache-2.0

package gp

// An arena hands out regions of one rank's pinned memory, or of its device
// scratch, to one plan after another, in a ring. A region may be handed out
// again while the plan that had it is still in flight: the new plan then gets
// the old plan's final marks and makes its queues wait for them. So enqueueing
// never waits for the device, and plans whose regions differ overlap.
type arena struct {
	size uint64
	head uint64
	live []region // who may still use what; the last is the newest
	// other is live's second buffer, and spares are emptied lists of marks.
	other  []region
	spares [][]*mark
}

type region struct {
	off, end uint64
	marks    []*mark
}

// maxRegions bounds the regions that are kept track of: each takes at least
// this fraction of the arena.
const maxRegions = 64

// arenaAlign keeps regions aligned for the widest vector access and apart by
// whole pages of the link's interest.
const arenaAlign = 4096

func alignUp(n, a uint64) uint64 { return (n + a - 1) / a * a }

// take hands out n bytes (n <= size). Marks of the former users of that range
// are appended to fences; a reference to each passes to the caller.
func (a *arena) take(n uint64, fences []*mark) (off uint64, _ []*mark) {
	span := min(alignUp(max(n, a.size/maxRegions), arenaAlign), a.size)
	if a.head+span > a.size {
		a.head = 0
	}
	off = a.head
	end := off + span
	a.head = end
	old := a.live
	a.live, a.other = a.other[:0], old
	for _, r := range old {
		if r.end <= off || end <= r.off {
			a.live = append(a.live, r)
			continue
		}
		fences = append(fences, r.marks...)
		// What the new region does not cover stays in its former users' hands.
		if r.off < off {
			a.live = append(a.live, region{r.off, off, a.share(r.marks)})
		}
		if end < r.end {
			a.live = append(a.live, region{end, r.end, a.share(r.marks)})
		}
		a.spare(r.marks)
	}
	clear(old)
	a.live = append(a.live, region{off, end, a.list()})
	return off, fences
}

// hold makes the region that was handed out last wait for m when it is reused.
// It takes a reference.
func (a *arena) hold(m *mark) {
	r := &a.live[len(a.live)-1]
	m.refs++
	r.marks = append(r.marks, m)
}

// reset forgets all regions, when everything is known to have run.
func (a *arena) reset() {
	for _, r := range a.live {
		for _, m := range r.marks {
			m.release()
		}
	}
	a.live, a.head = nil, 0
}

// list, spare and share keep the slices of marks, so that a call allocates
// none once the arena has been around.
func (a *arena) list() []*mark {
	if n := len(a.spares); n > 0 {
		l := a.spares[n-1]
		a.spares = a.spares[:n-1]
		return l
	}
	return nil
}

func (a *arena) spare(l []*mark) {
	if cap(l) > 0 {
		clear(l)
		a.spares = append(a.spares, l[:0])
	}
}

func (a *arena) share(l []*mark) []*mark {
	for _, m := range l {
		m.refs++
	}
	return append(a.list(), l...)
}
