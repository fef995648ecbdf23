// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// A share is what one segment is to the owner of one of its shards: where the
// shard lies in In and in the owner's Out, and how long it is, in bytes.
type share struct{ in, out, len uint64 }

// A direct is a collective in which every rank owns a shard of each segment and
// is given the other ranks' copies of it.
//
// A rank's host memory has slots for what it is given, a row a sender without
// itself, and behind those slots for the result that it posts. So what a rank
// reads is one contiguous copy, and what it writes is one strided copy for the
// owners below it and one for those above.
type direct struct {
	Args
	p        *Plan
	b        *builder
	segments [][]share // by segment and owner
	row      uint64    // bytes of the longest shard of a segment, rounded up
	slots    int       // of what a rank is given
	batches  []batch   // of segments whose results are fetched together
	batchOf  []int     // by segment
	posts    int       // slots of results; 0: nobody fetches them
	results  bool      // a rank without an Out holds its result in scratch
}

// A batch is segments, from the first to the last one, whose results are fetched
// together: an owner's shards of them lie side by side, as shards do.
type batch struct {
	first, last int
	shards      []share
}

// To fetch takes two copies, on either side of the rank's own shard, where to read
// takes one, and a copy costs a link as much time as 200 KiB do. So segments are
// fetched in pairs, but for the first ones: while the pipeline fills, nothing else
// would come in. More at a time take the memory that longer segments need.
const (
	batchSegments = 2
	singles       = 4
	// postSlots is the slots of results, a multiple of batchSegments. Whose slot it
	// had was fetched with segment t-5 at the latest, which needs no wait of its
	// own: see phases.
	postSlots = 6
)

// scratchSlots is the segments a rank has in scratch: one arrives while the
// former is folded.
const scratchSlots = 2

// seat is the row of what rank q gives to owner s.
func seat(q, s int) uint64 {
	if q < s {
		return uint64(q)
	}
	return uint64(q - 1)
}

// given is where owner s finds what rank q has given it of segment t.
func (d *direct) given(t, q, s int) Span {
	n := d.segments[t][s].len
	base := uint64(t%d.slots) * uint64(d.Ranks-1) * d.row
	if d.Peer {
		return Span{Space: Scratch, Rank: s, Off: base + seat(q, s)*roundUp(n), Len: n}
	}
	return Span{Space: Host, Rank: s, Off: base + seat(q, s)*roundUp(n), Len: n}
}

// came is where owner s has it in scratch.
func (d *direct) came(t, q, s int) Span {
	if d.Peer {
		return d.given(t, q, s)
	}
	n := d.segments[t][s].len
	return Span{Space: Scratch, Rank: s, Off: uint64(t%scratchSlots)*uint64(d.Ranks-1)*d.row + seat(q, s)*roundUp(n), Len: n}
}

// posted is where owner s posts its results of a batch.
func (d *direct) posted(k, s int) Span {
	base := uint64(d.slots) * uint64(d.Ranks-1) * d.row
	return Span{Space: Host, Rank: s, Off: base + uint64(d.batches[k].first%d.posts)*d.row, Len: d.batches[k].shards[s].len}
}

// in is rank q's own elements of owner s's shard.
func (d *direct) in(t, q, s int) Span {
	return Span{Space: In, Rank: q, Off: d.segments[t][s].in, Len: d.segments[t][s].len}
}

// out is the place of owner s's shard in rank q's Out.
func (d *direct) out(t, q, s int) Span {
	return Span{Space: Out, Rank: q, Off: d.segments[t][s].out, Len: d.segments[t][s].len}
}

// folded is where owner s leaves its result.
func (d *direct) folded(t, s int) Span {
	if d.p.OutBytes[s] > 0 {
		return d.out(t, s, s)
	}
	slots := scratchSlots
	if d.Peer {
		slots = d.slots
	}
	return Span{Space: Scratch, Rank: s, Off: uint64(slots) * uint64(d.Ranks-1) * d.row, Len: d.segments[t][s].len}
}

// others calls f for all ranks but r: those above first, so that not all ranks
// begin with rank 0. The two rows are apart, and each is in rising order.
func (d *direct) others(r int, f func(q int)) {
	for q := r + 1; q < d.Ranks; q++ {
		f(q)
	}
	for q := range r {
		f(q)
	}
}

// moveAll has rank r copy between itself and all others.
func (d *direct) moveAll(kind Kind, r int, lane Lane, f func(q int) move) {
	ms := make([]move, 0, d.Ranks)
	d.others(r, func(q int) { ms = append(ms, f(q)) })
	d.b.moves(kind, r, lane, ms)
}

// write gives to every owner rank r's elements of its shard.
func (d *direct) write(t, r int) {
	kind := ToHost
	if d.Peer {
		kind = PeerCopy
	}
	d.moveAll(kind, r, LaneOut, func(s int) move { return move{d.given(t, r, s), d.in(t, r, s)} })
}

// read takes what rank r was given to its scratch.
func (d *direct) read(t, r int) { d.readFrom(t, r, 0, d.Ranks) }

// readFrom takes what the ranks from lo up to hi have given.
func (d *direct) readFrom(t, r, lo, hi int) {
	ms := make([]move, 0, d.Ranks)
	for q := lo; q < hi; q++ {
		if q != r {
			ms = append(ms, move{d.came(t, q, r), d.given(t, q, r)})
		}
	}
	d.b.moves(FromHost, r, LaneIn, ms)
}

// fold folds what rank r has of its shard, in the order of the ranks.
func (d *direct) fold(t, r int, lane Lane) {
	if d.segments[t][r].len == 0 {
		return
	}
	src := make([]Span, d.Ranks)
	for q := range src {
		src[q] = d.came(t, q, r)
		if q == r {
			src[q] = d.in(t, r, r)
		}
	}
	s := Step{Kind: Reduce, Rank: r, Lane: lane, Dst: d.folded(t, r), Src: src}
	if d.Op == dtype.Avg {
		s.Divisor = d.Ranks
	}
	d.b.add(s)
}

// fetches tells whether rank r takes the result of owner s.
func (d *direct) fetches(r, s int) bool { return r != s && d.p.OutBytes[r] > 0 }

// post puts the result of owner r where others find it.
func (d *direct) post(t, r int) {
	if d.segments[t][r].len > 0 && (d.p.Op != "reduce" || r != d.Root) {
		k := d.batchOf[t]
		to := d.posted(k, r)
		to.Off += d.segments[t][r].out - d.batches[k].shards[r].out
		to.Len = d.segments[t][r].len
		d.b.moves(ToHost, r, LaneOut, []move{{to, d.folded(t, r)}})
	}
}

// fetch takes the others' results of the batch that segment t ends to rank r's
// Out.
func (d *direct) fetch(t, r int) {
	k := d.batchOf[t]
	if d.p.OutBytes[r] > 0 && d.batches[k].last == t {
		shards := d.batches[k].shards
		d.moveAll(FromHost, r, LaneIn, func(s int) move {
			return move{Span{Space: Out, Rank: r, Off: shards[s].out, Len: shards[s].len}, d.posted(k, s)}
		})
	}
}

// need is what the layout takes of a rank.
func (d *direct) need(row uint64, slots int) (host, scratch uint64) {
	n := uint64(d.Ranks - 1)
	if d.Peer {
		scratch = uint64(slots) * n * row
	} else {
		host = uint64(slots)*n*row + uint64(d.posts)*row
		if d.p.folds() {
			scratch = scratchSlots * n * row
		}
	}
	if d.results {
		scratch += row
	}
	return host, scratch
}

// size chooses segments: of bytes, a rank's part of the whole operation, each
// segment gives an owner a row of shards of its bytes, of which the whole has
// per. ways is how many copies a rank makes of a segment on the way that has
// more, and fill the part of a segment that goes before anything comes.
func (d *direct) size(bytes uint64, per int, fill, copies float64) error {
	chunk := d.Chunk
	if chunk == 0 {
		chunk = d.segment(bytes, fill, copies)
	}
	longest := max(roundUp(ceilDiv(bytes, uint64(per))), quantum)
	posting := d.posts > 0
	shape := func(chunk uint64, slots int) (row uint64, used int) {
		row = min(max(chunk/uint64(per)/quantum*quantum, quantum), longest)
		used = int(min(uint64(slots), ceilDiv(longest, row)))
		if posting {
			d.posts = postSlots
			if ceilDiv(longest, row) < postSlots {
				// The first segments may be short ones, and so more than that. Fewer
				// slots than segments must be a multiple of batchSegments.
				d.posts = min(postSlots, len(d.lengths(bytes, row)))
			}
		}
		return row, used
	}
	cost := func(chunk uint64, slots int) need {
		row, used := shape(chunk, slots)
		host, scratch := d.need(row, used)
		return need{host, scratch, ceilDiv(longest, row) * uint64(d.Ranks) * uint64(d.Ranks+6)}
	}
	slots := d.Slots
	if slots == 0 && posting && d.HostBudget > 0 && cost(chunk, DefaultSlots).host > d.HostBudget {
		// Where results are posted, a rank's fold of a segment stands before its
		// write to the next but one, and the ranks go in step: longer segments
		// are worth more than a third slot.
		slots = 2
	}
	chunk, slots, err := fit(chunk, slots, bytes, d.HostBudget, d.ScratchBudget, cost)
	if err != nil {
		return err
	}
	d.row, d.slots = shape(chunk, slots)
	host, scratch := d.need(d.row, d.slots)
	d.p.Chunk, d.p.Slots = d.row*uint64(per), d.slots
	for r := range d.Ranks {
		d.p.HostBytes[r], d.p.ScratchBytes[r] = host, scratch
		if d.results && d.p.OutBytes[r] > 0 {
			d.p.ScratchBytes[r] -= d.row
		}
	}
	d.b = newBuilder(d.p, 0, 1)
	d.b.block = d.Block
	return nil
}

// lengths cuts a buffer of so many bytes into segments of a row for every rank.
func (d *direct) lengths(bytes, row uint64) []uint64 {
	n := uint64(d.Ranks)
	return cut(bytes, row*n, quantum*n, d.Ranks > 2)
}

// spread cuts a buffer of so many bytes, the same on all ranks, into segments
// and those into shards. The last segment is a batch by itself: what is fetched
// while it is folded is of the batch before.
func (d *direct) spread(bytes uint64) {
	n := uint64(d.Ranks)
	size := uint64(d.Type.Size())
	lengths := d.lengths(bytes, d.row)
	lo := uint64(0)
	for first := 0; first < len(lengths); {
		last := first
		if first >= singles {
			last = min(first+batchSegments, max(len(lengths)-1, first+1)) - 1
		}
		whole := uint64(0)
		for _, length := range lengths[first : last+1] {
			whole += length
		}
		bound := shards(whole/size, d.Ranks, size)
		k := batch{first, last, make([]share, d.Ranks)}
		for s := range k.shards {
			at := lo + bound[s]*size
			k.shards[s] = share{at, at, (bound[s+1] - bound[s]) * size}
		}
		off := uint64(0) // of the segment's part of a shard
		for t := first; t <= last; t++ {
			part := lengths[t] / n
			if t == last {
				part = k.shards[0].len - off // the first is as long as any
			}
			seg := make([]share, d.Ranks)
			for s, all := range k.shards {
				at := min(off, all.len)
				seg[s] = share{all.in + at, all.out + at, min(part, all.len-at)}
			}
			d.segments, d.batchOf = append(d.segments, seg), append(d.batchOf, len(d.batches))
			off += part
		}
		d.batches = append(d.batches, k)
		lo += whole
		first = last + 1
	}
}

// whole cuts a buffer into segments that belong, as they are, to each of the
// ranks that folds tells of.
func (d *direct) whole(bytes uint64, folds func(r int) bool) {
	lo := uint64(0)
	for _, length := range cut(bytes, d.row, quantum, false) {
		seg := make([]share, d.Ranks)
		for s := range seg {
			seg[s] = share{in: lo, out: lo}
			if folds(s) {
				seg[s].len = length
			}
		}
		d.segments = append(d.segments, seg)
		lo += length
	}
}

// slice cuts every one of Ranks shards of so many bytes into the same pieces.
// The shards lie side by side in In, and in Out too if wide is set.
func (d *direct) slice(bytes uint64, wide bool) {
	lo := uint64(0)
	for _, length := range cut(bytes, d.row, quantum, false) {
		seg := make([]share, d.Ranks)
		for s := range seg {
			seg[s] = share{uint64(s)*bytes + lo, lo, length}
			if wide {
				seg[s].out = seg[s].in
			}
		}
		d.segments = append(d.segments, seg)
		lo += length
	}
}

// start begins a direct collective: of a reduction, that its ranks are no more
// than one fold takes.
func (a *Args) start(op string) (*Plan, *direct, error) {
	if err := a.check(); err != nil {
		return nil, nil, err
	}
	name := "direct"
	if a.Peer {
		name = "peer"
	}
	p := a.plan(op, name)
	if p.folds() {
		p.Reduction = a.Op
		if a.Ranks > kernel.MaxInputs {
			return nil, nil, fmt.Errorf("%d ranks, but one fold takes %d", a.Ranks, kernel.MaxInputs)
		}
	}
	return p, &direct{Args: *a, p: p}, nil
}

// reduce adds the steps of a reduction.
func (d *direct) reduce() *Plan {
	ph := phases{segments: len(d.segments), slots: d.slots, even: d.Share > 1, write: d.write, mute: -1}
	switch {
	case d.Peer:
		// The shards of a reduce by two are all the root's.
		d.b.open(func(r int) bool { return d.p.Op != "reduce" || d.results || r == d.Root })
		ph.read = d.foldAndSend
	case d.posts > 0:
		ph.read = d.read
		ph.fold = func(t, r int) { d.fold(t, r, LaneOut); d.post(t, r) }
		ph.fetch = d.fetch
		if d.p.Op == "reduce" {
			ph.mute = d.Root
		}
	default:
		ph.read = d.read
		lane := LaneFold
		if d.Share > 1 {
			lane = LaneOut
			ph.early = func(t, r int) { d.readFrom(t, r, 0, r) }
			ph.read = func(t, r int) { d.readFrom(t, r, r+1, d.Ranks) }
		}
		ph.fold = func(t, r int) { d.fold(t, r, lane) }
	}
	d.b.run(ph)
	if d.Peer {
		return d.b.close()
	}
	d.b.end()
	return d.b.done()
}

// DirectAllReduce plans an all_reduce in two exchanges through host memory. The
// buffer goes in segments of one shard a rank. Every rank writes each of its
// other shards to the owner's host memory, reads what the others have written
// for its own, folds it with its own elements, which never move, and posts the
// result, which all others read.
//
// A rank's link carries Count elements out and 2(N-1)/N of that in, where the
// ring carries 2(N-1)/N both ways. The fold is on the lane of the way out, which
// has the time to spare. Fold order is that of the ranks, up to 16. Algorithm
// "direct"; with Peer, "peer": shards and results go to the others' memory
// directly, in N-1 copies a rank each, and nothing through the host.
//
// Two ranks through the host write all, read all and fold all, each for itself:
// that is as many bytes each way as with shards, in half as many copies, and one
// exchange instead of two.
// One rank: a LocalCopy, or no step when in place.
func DirectAllReduce(a Args) (*Plan, error) {
	p, d, err := a.start("all_reduce")
	if err != nil {
		return nil, err
	}
	if a.Ranks == 1 || a.Count == 0 {
		return alone(p), nil
	}
	if a.Ranks == 2 && !a.Peer {
		if err := d.size(p.InBytes[0], 1, 1, 1); err != nil {
			return nil, err
		}
		d.whole(p.InBytes[0], func(int) bool { return true })
		return d.reduce(), nil
	}
	d.posts = 1
	if a.Peer {
		d.posts = 0
	}
	n := float64(a.Ranks)
	if err := d.size(p.InBytes[0], a.Ranks, (n-1)/n, 3); err != nil {
		return nil, err
	}
	d.spread(p.InBytes[0])
	return d.reduce(), nil
}

// DirectReduceScatter plans a reduce_scatter: In has Ranks*Count elements, and
// rank r's Out becomes the fold of all ranks' r-th shards, in the order of the
// ranks, up to 16. It is the first half of DirectAllReduce; a rank's link
// carries N-1 shards both ways. In place, Out is the rank's own shard of In.
// Algorithm "direct" or "peer".
func DirectReduceScatter(a Args) (*Plan, error) {
	p, d, err := a.start("reduce_scatter")
	if err != nil {
		return nil, err
	}
	if a.Ranks == 1 || a.Count == 0 {
		return alone(p), nil
	}
	if err := d.size(p.InBytes[0], a.Ranks, float64(a.Ranks-1)/float64(a.Ranks), float64(min(a.Ranks-1, 2))); err != nil {
		return nil, err
	}
	d.slice(p.OutBytes[0], false)
	return d.reduce(), nil
}

// DirectReduce plans a reduce: the root's Out becomes the fold of all Ins, in
// the order of the ranks, up to 16; no other rank has an Out. From three ranks
// on every rank folds a shard, as in DirectAllReduce, and the root alone reads
// the results: its link carries at most 2(N-1)/N of Count elements in where it
// would carry N-1 times as many. Two ranks: the root reads the other's. In
// place, the root's In is its Out. Algorithm "direct" or "peer".
func DirectReduce(a Args) (*Plan, error) {
	p, d, err := a.start("reduce")
	if err != nil {
		return nil, err
	}
	if a.Ranks == 1 || a.Count == 0 {
		return alone(p), nil
	}
	if a.Ranks == 2 {
		if err := d.size(p.InBytes[0], 1, 1, 1); err != nil {
			return nil, err
		}
		p.HostBytes[1-a.Root], p.ScratchBytes[1-a.Root] = 0, 0
		d.whole(p.InBytes[0], func(r int) bool { return r == a.Root })
		return d.reduce(), nil
	}
	d.results = true
	if !a.Peer {
		d.posts = 1
	}
	n := float64(a.Ranks)
	if err := d.size(p.InBytes[0], a.Ranks, (n-1)/n, 3); err != nil {
		return nil, err
	}
	d.spread(p.InBytes[0])
	return d.reduce(), nil
}

// DirectAllToAll plans an all_to_all: In and Out have Ranks*Count elements, and
// the q-th shard of rank r's Out becomes the r-th shard of rank q's In. Every
// rank writes its shards to their receivers' host memory, a link carries N-1 of
// them both ways. There is no such operation in place. Algorithm "direct" or
// "peer".
func DirectAllToAll(a Args) (*Plan, error) {
	if a.InPlace {
		return nil, fmt.Errorf("all_to_all in place")
	}
	p, d, err := a.start("all_to_all")
	if err != nil {
		return nil, err
	}
	if a.Ranks == 1 || a.Count == 0 {
		return alone(p), nil
	}
	n := a.Ranks
	shard := p.InBytes[0] / uint64(n)
	own := func(b *builder) {
		for r := range n {
			at := uint64(r) * shard
			b.keep(Span{Space: Out, Rank: r, Off: at, Len: shard}, Span{Space: In, Rank: r, Off: at, Len: shard})
		}
	}
	if a.Peer {
		b := newBuilder(p, 0, 1)
		b.open(anyRank)
		for r := range n {
			d.others(r, func(q int) {
				b.send(LaneOut, Span{Space: Out, Rank: q, Off: uint64(r) * shard, Len: shard}, Span{Space: In, Rank: r, Off: uint64(q) * shard, Len: shard})
			})
		}
		own(b)
		return b.close(), nil
	}
	if err := d.size(p.InBytes[0], n, float64(n-1)/float64(n), float64(min(n-1, 2))); err != nil {
		return nil, err
	}
	d.slice(shard, true)
	take := func(t, r, lo, hi int) {
		ms := make([]move, 0, n)
		for q := lo; q < hi; q++ {
			ms = append(ms, move{d.out(t, r, q), d.given(t, q, r)})
		}
		d.b.moves(FromHost, r, LaneIn, ms)
	}
	ph := phases{segments: len(d.segments), slots: d.slots, even: d.Share > 1, write: d.write, mute: -1}
	ph.read = func(t, r int) { take(t, r, r+1, n); take(t, r, 0, r) }
	if d.Share > 1 {
		ph.early = func(t, r int) { take(t, r, 0, r) }
		ph.read = func(t, r int) { take(t, r, r+1, n) }
	}
	d.b.run(ph)
	own(d.b)
	d.b.end()
	return d.b.done(), nil
}

// DirectAllGather plans an all_gather in which every rank writes its shard to
// its own host memory once and all others read it there: a rank's link carries
// one shard out instead of the ring's Ranks-1, and as many in. Buffers are those
// of RingAllGather. Algorithm "direct" or "peer".
func DirectAllGather(a Args) (*Plan, error) {
	p, d, err := a.start("all_gather")
	if err != nil {
		return nil, err
	}
	if a.Ranks == 1 || a.Count == 0 {
		return alone(p), nil
	}
	n, bytes := a.Ranks, p.InBytes[0]
	if a.Peer {
		b := newBuilder(p, 0, 1)
		b.open(anyRank)
		for r := range n {
			d.others(r, func(q int) {
				b.send(LaneOut, Span{Space: Out, Rank: q, Off: uint64(r) * bytes, Len: bytes}, Span{Space: In, Rank: r, Len: bytes})
			})
		}
		b.keepOwn()
		return b.close(), nil
	}
	if err := a.pieces(p, 1, uint64(n)); err != nil {
		return nil, err
	}
	b := newBuilder(p, p.Chunk, p.Slots)
	b.block = a.Block
	d.b = b
	lengths := cut(bytes, p.Chunk, quantum, false)
	at := make([]uint64, len(lengths)+1)
	for t, length := range lengths {
		at[t+1] = at[t] + length
	}
	host := func(t, q int) Span {
		return Span{Space: Host, Rank: q, Off: uint64(t%p.Slots) * p.Chunk, Len: lengths[t]}
	}
	b.run(phases{segments: len(lengths), slots: p.Slots, even: a.Share > 1, mute: -1, write: func(t, r int) {
		b.moves(ToHost, r, LaneOut, []move{{host(t, r), Span{Space: In, Rank: r, Off: at[t], Len: lengths[t]}}})
	}, read: func(t, r int) {
		d.moveAll(FromHost, r, LaneIn, func(q int) move {
			return move{Span{Space: Out, Rank: r, Off: uint64(q)*bytes + at[t], Len: lengths[t]}, host(t, q)}
		})
	}})
	b.keepOwn()
	b.end()
	return b.done(), nil
}

// DirectBroadcast plans a broadcast: every rank's Out becomes the root's In. The
// root writes it to its host memory once, in pieces, and all others read them
// there. In place, the root's In is its Out. Algorithm "direct"; with Peer,
// "peer": the pieces go from rank to rank in a chain that starts at the root, so
// that no link carries them more than once each way.
func DirectBroadcast(a Args) (*Plan, error) {
	p, _, err := a.start("broadcast")
	if err != nil {
		return nil, err
	}
	if a.Ranks == 1 || a.Count == 0 {
		return alone(p), nil
	}
	n, bytes, root := a.Ranks, p.InBytes[a.Root], a.Root
	own := func(b *builder) {
		if !a.InPlace {
			b.keep(Span{Space: Out, Rank: root, Len: bytes}, Span{Space: In, Rank: root, Len: bytes})
		}
	}
	if a.Peer {
		return a.chain(p, own)
	}
	shape := func(chunk uint64, slots int) (piece, pieces uint64, used int) {
		piece = min(chunk, roundUp(bytes))
		pieces = ceilDiv(bytes, piece)
		return piece, pieces, int(min(uint64(slots), pieces))
	}
	chunk, slots, err := fit(a.chunk(bytes), a.Slots, bytes, a.HostBudget, 0, func(chunk uint64, slots int) need {
		piece, pieces, used := shape(chunk, slots)
		return need{host: piece * uint64(used), steps: pieces * uint64(n)}
	})
	if err != nil {
		return nil, err
	}
	p.Chunk, _, p.Slots = shape(chunk, slots)
	p.HostBytes[root] = p.Chunk * uint64(p.Slots)
	b := newBuilder(p, p.Chunk, p.Slots)
	lo := uint64(0)
	for _, length := range cut(bytes, p.Chunk, quantum, false) {
		slot := b.post(Span{Space: In, Rank: root, Off: lo, Len: length})
		for k := 1; k < n; k++ {
			b.fetch(Span{Space: Out, Rank: (root + k) % n, Off: lo, Len: length}, slot)
		}
		lo += length
	}
	own(b)
	return b.done(), nil
}
