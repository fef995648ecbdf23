// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"math"
	"time"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
)

// Args is what a collective is planned from.
type Args struct {
	Ranks int
	// Count is the elements of In on each rank and, unless told otherwise, of
	// Out. An all_gather's Out has Ranks*Count, a reduce_scatter's In, and both
	// of an all_to_all.
	Count   uint64
	Type    dtype.Type
	Op      dtype.Op // of a reduction
	InPlace bool
	Root    int // of a broadcast or reduce
	// Block says that the ranks' host memory lies at equal distances, so that
	// one copy may have rows Across ranks; otherwise it takes one a rank.
	Block bool
	// Peer says that every rank can write every other's memory directly: the
	// plan does so, as algorithm "peer", and takes no host memory. Rings do not.
	Peer bool
	// ZeroCopy has the ring's reductions read host memory in place.
	ZeroCopy bool
	// Chunk is the bytes a piece, rounded down to a multiple of 16; 0: from
	// the cost model. Where a segment is cut into shards, its bytes are meant.
	// Slots is the pieces in flight, at least 2; 0: DefaultSlots. The budgets
	// bound a rank's host memory and device scratch in bytes; 0: no limit. If
	// the budgets ask for it, chunk and slots shrink; a budget of some bytes can
	// be an error.
	Chunk                     uint64
	Slots                     int
	HostBudget, ScratchBudget uint64
	// Rate is a link's, in bytes a second, PerCopy what a chunk costs on top of
	// its bytes, Share the ranks on one link. 0: DefaultRate, DefaultPerCopy, 1.
	Rate    float64
	PerCopy time.Duration
	Share   int
}

func (a *Args) check() error {
	switch {
	case a.Ranks < 1:
		return fmt.Errorf("%d ranks", a.Ranks)
	case !a.Type.Valid():
		return fmt.Errorf("unknown element type %v", a.Type)
	case !a.Op.Valid():
		return fmt.Errorf("unknown reduction %v", a.Op)
	case a.Slots < 0:
		return fmt.Errorf("%d slots", a.Slots)
	case a.Root < 0 || a.Root >= a.Ranks:
		return fmt.Errorf("root %d of %d ranks", a.Root, a.Ranks)
	case a.Count > math.MaxInt64/uint64(a.Type.Size())/uint64(a.Ranks):
		return fmt.Errorf("%d elements of %v on %d ranks are more than memory can hold", a.Count, a.Type, a.Ranks)
	}
	return nil
}

// chunk is the bytes a piece of a two-stage pipeline.
func (a *Args) chunk(bytes uint64) uint64 {
	if a.Chunk > 0 {
		return a.Chunk
	}
	return Chunk(bytes, a.Rate, a.PerCopy)
}

// plan starts a collective, whose operation says how long its buffers are.
func (a *Args) plan(op, algorithm string) *Plan {
	n := a.Ranks
	p := &Plan{
		Op: op, Algorithm: algorithm, Ranks: n, Type: a.Type, InPlace: a.InPlace, Slots: 1,
		InBytes: make([]uint64, n), OutBytes: make([]uint64, n),
		HostBytes: make([]uint64, n), ScratchBytes: make([]uint64, n),
	}
	bytes := a.Count * uint64(a.Type.Size())
	p.Chunk = bytes
	off := make([]uint64, n)
	for r := range n {
		p.InBytes[r], p.OutBytes[r] = bytes, bytes
		switch op {
		case "all_gather":
			p.OutBytes[r] *= uint64(n)
			off[r] = bytes * uint64(r)
		case "reduce_scatter":
			p.InBytes[r] *= uint64(n)
			off[r] = bytes * uint64(r)
		case "all_to_all":
			p.InBytes[r] *= uint64(n)
			p.OutBytes[r] *= uint64(n)
		case "broadcast":
			p.Root = a.Root
			if r != a.Root {
				p.InBytes[r] = 0
			}
		case "reduce":
			p.Root = a.Root
			if r != a.Root {
				p.OutBytes[r] = 0
			}
		}
	}
	switch {
	case a.InPlace && op == "reduce_scatter":
		p.OutOff = off
	case a.InPlace:
		p.InOff = off
	}
	return p
}

// give sets what the plan takes of every rank.
func (p *Plan) give(chunk uint64, slots int, slot, scratch uint64) {
	p.Chunk, p.Slots = chunk, slots
	for r := range p.Ranks {
		p.HostBytes[r] = slot * uint64(slots)
		p.ScratchBytes[r] = scratch
	}
}

// shards cuts count elements into one shard a rank and returns the n+1
// boundaries. They are multiples of 16 bytes, so short buffers leave the last
// shards empty; no two shards differ by more than 16 bytes, the last apart.
func shards(count uint64, n int, size uint64) []uint64 {
	q := quantum / size
	units := ceilDiv(count, q)
	bounds := make([]uint64, n+1)
	for r := 1; r <= n; r++ {
		// r*units may overflow.
		whole, rest := units/uint64(n), units%uint64(n)
		bounds[r] = min((whole*uint64(r)+min(rest, uint64(r)))*q, count)
	}
	return bounds
}

// passPieces is the partial results a rank holds in scratch, at most: more
// pieces to a ring step overlap no better.
const passPieces = 8

// fewPieces is the pieces that keep both lanes and a reduction busy at once.
const fewPieces = 3

// A round is one piece of one ring step: the elements [lo, hi) of each shard.
type round struct {
	gather bool // the second half of the ring
	k      int  // ring step, 0..Ranks-2
	lo, hi uint64
}

// An allReduce is a ring all_reduce being written, or its first half, a
// reduce_scatter.
type allReduce struct {
	Args
	scatter bool
	size    uint64   // bytes of an element
	bound   []uint64 // shards, in elements
	// wide says that partial results travel in the type Plan.Partial, of
	// partial bytes.
	wide    bool
	partial uint64
	// hold says that partial results are held in scratch between their fold and
	// their way on: where they are wide, and where Out has no room for other
	// ranks' shards. They are held in Out otherwise.
	hold bool
}

// layout is the shape that a chunk and a number of slots give the plan.
type layout struct {
	fold, gather uint64 // elements a piece in the first and second half
	pass         uint64 // elements of a shard that go through the ring together
	slot         uint64 // bytes of a host slot
	slots        int
	in           uint64 // bytes of the scratch slot for what arrives
	scratch      uint64
	rounds       uint64
}

// layout looks at the scratch budget to choose how many partials to hold.
func (a *allReduce) layout(chunk uint64, slots int) layout {
	n := uint64(a.Ranks)
	q := quantum / a.size
	longest := a.bound[1] // in elements; the first shard is the longest
	whole := max(ceilDiv(longest, q)*q, q)
	width := a.size
	if a.wide {
		width = a.partial
	}
	piece := func(elements uint64) uint64 { return min(max(elements/q*q, min(elements, q)), whole) }
	l := layout{fold: piece(chunk / width), gather: piece(chunk / a.size)}
	if !a.ZeroCopy {
		l.in = roundUp(l.fold * width)
	}
	pieces := ceilDiv(longest, l.fold)
	l.pass, l.scratch = whole, l.in
	if a.hold {
		hold := min(pieces, passPieces)
		for a.ScratchBudget > 0 && hold > min(pieces, fewPieces) && l.in+hold*l.fold*width > a.ScratchBudget {
			hold--
		}
		l.pass = min(hold*l.fold, whole)
		l.scratch += roundUp(hold * l.fold * width)
	}
	// A pass of wide pieces may be no more than one or two pieces of elements.
	few := ceilDiv(ceilDiv(l.pass, fewPieces), q) * q
	l.gather = max(l.fold, min(l.gather, few))
	l.slot = roundUp(max(l.fold*width, l.gather*a.size))
	passes := ceilDiv(longest, l.pass)
	l.rounds = (n - 1) * passes * ceilDiv(l.pass, l.fold)
	if a.scatter {
		l.slot = roundUp(l.fold * width)
	} else {
		l.rounds += (n - 1) * passes * ceilDiv(l.pass, l.gather)
	}
	l.slots = int(min(uint64(slots), l.rounds))
	return l
}

// RingAllReduce plans an all_reduce as a ring (Patarasuk and Yuan, 2009): in
// Ranks-1 steps each shard goes once around and is folded on each rank that it
// comes to, last on its owner; in Ranks-1 more the owners' results go around.
// Shard s, owned by rank s, starts at rank s+1, so its fold order is s+1, s+2,
// ..., s. Every step is cut into pieces, so that a rank sends one piece while
// it receives and folds another.
//
// Algorithm "ring", or "ring_zero_copy" where folds read the host slot in
// place. Partial results travel in the type Plan.Partial and are rounded once.
// One rank: a LocalCopy, or no step when in place.
func RingAllReduce(a Args) (*Plan, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	name := "ring"
	if a.ZeroCopy {
		name = "ring_zero_copy"
	}
	p := a.plan("all_reduce", name)
	p.Reduction = a.Op
	if a.Ranks == 1 || a.Count == 0 {
		return alone(p), nil
	}
	ar := &allReduce{Args: a, size: uint64(a.Type.Size())}
	ar.bound = shards(a.Count, a.Ranks, ar.size)
	return ar.plan(p)
}

// RingReduceScatter plans a reduce_scatter as the first half of RingAllReduce:
// In has Ranks*Count elements, rank r's Out becomes the fold of all ranks' r-th
// shards, in the order r+1, r+2, ..., r. In place, Out is the rank's own shard of
// In. Algorithm "ring", or "ring_zero_copy".
func RingReduceScatter(a Args) (*Plan, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	name := "ring"
	if a.ZeroCopy {
		name = "ring_zero_copy"
	}
	p := a.plan("reduce_scatter", name)
	p.Reduction = a.Op
	if a.Ranks == 1 || a.Count == 0 {
		return alone(p), nil
	}
	ar := &allReduce{Args: a, scatter: true, size: uint64(a.Type.Size()), bound: make([]uint64, a.Ranks+1)}
	for r := range ar.bound {
		ar.bound[r] = a.Count * uint64(r)
	}
	return ar.plan(p)
}

func (a *allReduce) plan(p *Plan) (*Plan, error) {
	// With two ranks the first fold is the last: there are no partial results.
	a.wide = p.Partial() != a.Type && a.Ranks > 2
	a.partial = uint64(p.Partial().Size())
	a.hold = a.wide || a.scatter && a.Ranks > 2

	longest := a.bound[1] * a.size
	chunk, slots, err := fit(a.chunk(longest), a.Slots, longest, a.HostBudget, a.ScratchBudget, func(chunk uint64, slots int) need {
		l := a.layout(chunk, slots)
		return need{host: l.slot * uint64(l.slots), scratch: l.scratch, steps: 3 * l.rounds * uint64(a.Ranks)}
	})
	if err != nil {
		return nil, err
	}
	l := a.layout(chunk, slots)
	p.give(l.slot, l.slots, l.slot, l.scratch)
	return a.write(p, l), nil
}

func (a *allReduce) write(p *Plan, l layout) *Plan {
	n := a.Ranks
	var rounds []round
	for lo := uint64(0); lo < a.bound[1]; lo += l.pass {
		hi := min(lo+l.pass, a.bound[1])
		for k := range n - 1 {
			for at := lo; at < hi; at += l.fold {
				rounds = append(rounds, round{false, k, at, min(at+l.fold, hi)})
			}
		}
		if a.scatter {
			continue
		}
		for k := range n - 1 {
			for at := lo; at < hi; at += l.gather {
				rounds = append(rounds, round{true, k, at, min(at+l.gather, hi)})
			}
		}
	}
	b := newBuilder(p, l.slot, l.slots)
	// own is a rank's bytes of the round's piece of a shard. Length 0: that
	// shard is not so long.
	own := func(space Space, rank, shard int, t round) Span {
		lo := min(a.bound[shard]+t.lo, a.bound[shard+1])
		hi := min(a.bound[shard]+t.hi, a.bound[shard+1])
		s := Span{Space: space, Rank: rank, Off: lo * a.size, Len: (hi - lo) * a.size}
		if a.scatter && space == Out {
			s.Off -= a.bound[shard] * a.size
		}
		return s
	}
	// held is where a rank keeps the partial result of the piece. The ring
	// step does not matter: it has sent the former one when it folds the next.
	held := func(rank, shard int, t round) Span {
		s := own(Out, rank, shard, t)
		if a.hold {
			width := a.size
			if a.wide {
				width = a.partial
			}
			s = Span{Space: Scratch, Rank: rank, Off: l.in + t.lo%l.pass*width, Len: s.Len / a.size * width, Wide: a.wide}
		}
		return s
	}
	send := func(i, r int) Span {
		t := rounds[i]
		var src Span
		switch {
		case t.gather:
			src = own(Out, r, mod(r-t.k, n), t)
		case t.k == 0:
			src = own(In, r, mod(r-1, n), t)
		default:
			src = held(r, mod(r-1-t.k, n), t)
		}
		if src.Len == 0 {
			return Span{}
		}
		return b.post(src)
	}
	recv := func(i, r int, posted []Span) {
		t := rounds[i]
		from := posted[mod(r-1, n)]
		if from.Len == 0 {
			return
		}
		if t.gather {
			b.fetch(own(Out, r, mod(r-1-t.k, n), t), from)
			return
		}
		shard := mod(r-2-t.k, n)
		s := Step{Kind: ReduceFromHost, Rank: r, Lane: LaneIn, Dst: held(r, shard, t)}
		if t.k == n-2 {
			s.Dst = own(Out, r, shard, t)
			if a.Op == dtype.Avg {
				s.Divisor = n
			}
		}
		if !a.ZeroCopy {
			// One slot is enough: this lane folds what it has fetched before it
			// fetches again.
			in := Span{Space: Scratch, Rank: r, Len: from.Len, Wide: from.Wide}
			b.fetch(in, from)
			s.Kind, from = Reduce, in
		}
		s.Src = []Span{from, own(In, r, shard, t)}
		b.add(s)
	}
	b.exchange(len(rounds), send, recv)
	return b.done()
}

// mod is i modulo n, for i from -2n.
func mod(i, n int) int { return (i + 2*n) % n }

// alone finishes the plan of a collective that has one rank or no elements.
func alone(p *Plan) *Plan {
	b := newBuilder(p, 0, 1)
	if p.Ranks == 1 && !p.InPlace {
		b.keep(Span{Space: Out, Len: p.InBytes[0]}, Span{Space: In, Len: p.InBytes[0]})
	}
	return b.done()
}

// pieces plans the host slots of an all_gather in which every rank sends
// shards of the same length, trips of them.
func (a *Args) pieces(p *Plan, trips uint64, stepsAPiece uint64) error {
	bytes := p.InBytes[0]
	shape := func(chunk uint64, slots int) (piece, pieces uint64, used int) {
		piece = min(chunk, roundUp(bytes))
		pieces = ceilDiv(bytes, piece)
		return piece, pieces, int(min(uint64(slots), pieces*trips))
	}
	chunk, slots, err := fit(a.chunk(bytes), a.Slots, bytes, a.HostBudget, 0, func(chunk uint64, slots int) need {
		piece, pieces, used := shape(chunk, slots)
		return need{host: piece * uint64(used), steps: pieces * stepsAPiece * uint64(a.Ranks)}
	})
	if err != nil {
		return err
	}
	piece, _, used := shape(chunk, slots)
	p.give(piece, used, piece, 0)
	return nil
}

// RingAllGather plans an all_gather as a ring: every rank's shard goes around
// in Ranks-1 steps, each cut into pieces. Rank r's In becomes the r-th shard of
// every Out; in place, In is that shard of its own rank's Out. Algorithm "ring".
func RingAllGather(a Args) (*Plan, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	p := a.plan("all_gather", "ring")
	if a.Ranks == 1 || a.Count == 0 {
		return alone(p), nil
	}
	n := a.Ranks
	if err := a.pieces(p, uint64(n-1), 2*uint64(n-1)); err != nil {
		return nil, err
	}
	bytes := p.InBytes[0]
	var rounds []round // in bytes
	for k := range n - 1 {
		for lo := uint64(0); lo < bytes; lo += p.Chunk {
			rounds = append(rounds, round{true, k, lo, min(lo+p.Chunk, bytes)})
		}
	}
	b := newBuilder(p, p.Chunk, p.Slots)
	out := func(rank, shard int, t round) Span {
		return Span{Space: Out, Rank: rank, Off: uint64(shard)*bytes + t.lo, Len: t.hi - t.lo}
	}
	b.exchange(len(rounds), func(i, r int) Span {
		t := rounds[i]
		if t.k == 0 {
			return b.post(Span{Space: In, Rank: r, Off: t.lo, Len: t.hi - t.lo})
		}
		return b.post(out(r, mod(r-t.k, n), t))
	}, func(i, r int, posted []Span) {
		t := rounds[i]
		b.fetch(out(r, mod(r-1-t.k, n), t), posted[mod(r-1, n)])
	})
	b.keepOwn()
	return b.done(), nil
}

// keepOwn copies every rank's In to its shard of Out, unless it is there.
func (b *builder) keepOwn() {
	if b.p.InPlace {
		return
	}
	for r, n := range b.p.InBytes {
		b.keep(Span{Space: Out, Rank: r, Off: uint64(r) * n, Len: n}, Span{Space: In, Rank: r, Len: n})
	}
}
