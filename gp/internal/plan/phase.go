// SPDX-License-Identifier: Apache-2.0

package plan

// joinFrom is the ranks from which a Join takes fewer driver calls than N*(N-1)
// waits do: N records and waits, and one record and N waits more.
const joinFrom = 4

// phases is an operation in which all ranks exchange with all, written out as
// what each rank does with each segment. Each function adds the steps of segment
// t and rank r; one that is nil adds none.
//
//	write  LaneOut  gives to the others what they need, behind the readers of
//	                the segment whose slot is used again
//	early  LaneIn   takes what lower ranks gave, behind their writes of the segment
//	read   LaneIn   takes what (other) others gave, behind all writes of the segment
//	fold   LaneOut  folds what was read, and posts the result if there is a fetch;
//	                on LaneFold where nothing is posted and a rank has its own link
//	fetch  LaneIn   takes results, behind all folds of the segment
//
// The order is that of a software pipeline: on LaneOut write(t+1) stands before
// fold(t), on LaneIn read(t+1) before fetch(t). So at any time a rank has one
// segment to give and one to take, and what waits for the fold of a segment has
// a whole segment's transfer to wait in.
//
// A slot is written again when the fold (without a fetch: the read) of its former
// segment is over on all ranks. A slot of posted results needs no wait of its own
// if it had those of segment t-5 or before: who has folded segment t has read it,
// behind the writes of all, each of which was behind a fold of segment t-2 and so
// behind the fetch of segment t-4.
//
// Ranks that share a link go in step, if even is set: write(t+1) waits for all of
// write(t). Else one rank's segments may take the link, ahead of the segment that
// all others are to read. As they write one after another, half of what is to be
// read is there before the last of them has written: that is what early is for. It
// halves the time at either end of the operation in which only one of the link's
// directions is busy. With a link a rank all write at once, and it is in vain.
type phases struct {
	segments, slots                 int
	even                            bool
	write, early, read, fold, fetch func(t, r int)
	// mute, if not negative, is a rank that posts nothing: nobody waits for its
	// folds, and its slots are free when it has read them.
	mute int
}

// run adds the steps of all phases.
func (b *builder) run(ph phases) {
	n := b.p.Ranks
	call := func(f func(t, r int), t, r int) {
		if f != nil && t >= 0 && t < ph.segments {
			f(t, r)
		}
	}
	after := func(gate []int, f func(t, r int), t, r int) {
		outer := b.gate
		b.gate = append(append(b.gate[:0:0], outer...), gate...)
		call(f, t, r)
		b.gate = outer
	}
	reads, folds, mute := make([][]int, ph.segments), make([][]int, ph.segments), make([][]int, ph.segments)
	var wrote []int
	for t := range ph.segments + 1 {
		var free []int
		if t < ph.segments && t >= ph.slots {
			if ph.fetch != nil {
				free = folds[t-ph.slots]
			} else {
				free = b.join(reads[t-ph.slots])
			}
		}
		if ph.even {
			free = append(free[:len(free):len(free)], wrote...)
		}
		var folded []int
		wrote = nil
		for r := range n {
			from := len(b.p.Steps)
			after(free, ph.write, t, r)
			wrote = b.lastOf(wrote, from)
			from = len(b.p.Steps)
			call(ph.fold, t-1, r)
			if r != ph.mute {
				folded = b.lastOf(folded, from)
			} else if t > 0 {
				folded = append(folded, mute[t-1]...)
			}
		}
		var given [][]int
		if ph.early != nil && len(wrote) == n {
			given = b.joinEach(wrote)
		}
		wrote = b.join(wrote)
		if t > 0 && ph.fetch != nil {
			folds[t-1] = b.join(folded)
			folded = folds[t-1]
		}
		var read []int
		for r := range n {
			from := len(b.p.Steps)
			if r > 0 && given != nil {
				after(given[r-1], ph.early, t, r)
			} else {
				after(wrote, ph.early, t, r)
			}
			after(wrote, ph.read, t, r)
			read = b.lastOf(read, from)
			if r == ph.mute && t < ph.segments {
				mute[t] = b.lastOf(nil, from)
			}
			after(folded, ph.fetch, t-1, r)
		}
		if t < ph.segments {
			reads[t] = read
		}
	}
}

// lastOf appends the step that was added last, if one was added since from.
func (b *builder) lastOf(list []int, from int) []int {
	if len(b.p.Steps) > from {
		list = append(list, len(b.p.Steps)-1)
	}
	return list
}

// join adds a Join behind the steps and returns it as a gate. Of few ranks it
// returns none: the builder finds what each step must wait for.
func (b *builder) join(steps []int) []int {
	if b.p.Ranks < joinFrom || len(steps) == 0 {
		return nil
	}
	return []int{b.add(Step{Kind: Join, Lane: LaneJoin, After: steps})}
}

// joinEach is join for each of the steps with those before it, the last one apart.
func (b *builder) joinEach(steps []int) [][]int {
	gates := make([][]int, len(steps)-1)
	for k := range gates {
		gates[k] = b.join(steps[k : k+1])
	}
	return gates
}

// end adds a last Join behind all that the lanes do, if there are joins, so that
// whoever uses the regions next has one event to wait for.
func (b *builder) end() {
	joins := false
	last := make([]int, b.p.Ranks*Lanes)
	for i := range b.p.Steps {
		joins = joins || b.p.Steps[i].Lane == LaneJoin
		last[b.lane(i)] = i + 1
	}
	if joins {
		b.joinAll(last)
	}
}

// joinAll adds a Join behind the last steps, plus one, of all lanes.
func (b *builder) joinAll(last []int) int {
	var after []int
	for _, i := range last {
		if i > 0 {
			after = append(after, i-1)
		}
	}
	return b.add(Step{Kind: Join, Lane: LaneJoin, After: after})
}
