// SPDX-License-Identifier: Apache-2.0

package plan

// open begins a plan in which ranks write each other's memory: the streams of
// those that are written must have come to the operation before any does.
func (b *builder) open(written func(r int) bool) {
	var after []int
	for r := range b.p.Ranks {
		if written(r) {
			after = append(after, b.add(Step{Kind: Join, Rank: r, Lane: LaneOut}))
		}
	}
	b.gate = []int{b.add(Step{Kind: Join, Lane: LaneJoin, After: after})}
}

// anyRank is every rank.
func anyRank(int) bool { return true }

// close ends such a plan, and returns it: a rank that was written behind its
// own last step goes on when all is over.
func (b *builder) close() *Plan {
	c := newClocks(b.p)
	last := make([]int, c.lanes)
	for i := range b.p.Steps {
		last[b.lane(i)] = i + 1
	}
	over := func(i, r int) bool {
		for q := r * Lanes; q < r*Lanes+int(LaneJoin); q++ {
			if last[q] > 0 && c.before(i, last[q]-1) {
				return true
			}
		}
		return false
	}
	late := make([]bool, b.p.Ranks)
	for i := range b.p.Steps {
		if s := &b.p.Steps[i]; s.Kind == PeerCopy && !late[s.Dst.Rank] {
			late[s.Dst.Rank] = !over(i, s.Dst.Rank)
		}
	}
	b.gate = []int{b.joinAll(last)}
	for r := range b.p.Ranks {
		if late[r] {
			b.add(Step{Kind: Join, Rank: r, Lane: LaneOut})
		}
	}
	return b.done()
}

// send copies device memory of the source's rank to another rank's.
func (b *builder) send(lane Lane, dst, src Span) {
	if dst.Len > 0 {
		b.add(Step{Kind: PeerCopy, Rank: src.Rank, Lane: lane, Dst: dst, Src: b.one(src)})
	}
}

// foldAndSend folds rank r's shard of segment t and sends the result to all who
// have an Out. It is on LaneIn, beside the shards that the rank sends to fold.
func (d *direct) foldAndSend(t, r int) {
	d.fold(t, r, LaneIn)
	if d.p.Op == "reduce_scatter" {
		return
	}
	d.others(r, func(q int) {
		if d.fetches(q, r) {
			d.b.send(LaneIn, d.out(t, q, r), d.folded(t, r))
		}
	})
}

// chain plans the broadcast from rank to rank.
func (a *Args) chain(p *Plan, own func(*builder)) (*Plan, error) {
	n, root := a.Ranks, a.Root
	bytes := p.InBytes[root]
	shape := func(chunk uint64) uint64 {
		if n == 2 {
			return roundUp(bytes) // nobody passes it on
		}
		return min(chunk, roundUp(bytes))
	}
	chunk, _, err := fit(a.chunk(bytes), a.Slots, bytes, 0, 0, func(chunk uint64, slots int) need {
		return need{steps: ceilDiv(bytes, shape(chunk)) * uint64(n)}
	})
	if err != nil {
		return nil, err
	}
	p.Chunk = shape(chunk)
	b := newBuilder(p, 0, 1)
	b.open(func(r int) bool { return r != root })
	lo := uint64(0)
	for _, length := range cut(bytes, p.Chunk, quantum, false) {
		from := Span{Space: In, Rank: root, Off: lo, Len: length}
		for k := 1; k < n; k++ {
			to := Span{Space: Out, Rank: (root + k) % n, Off: lo, Len: length}
			b.send(LaneOut, to, from)
			from = to
		}
		lo += length
	}
	own(b)
	return b.close(), nil
}
