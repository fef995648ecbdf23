// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"fmt"

	"github.com/geforce-p2p/geforce-p2p/gp/internal/plan"
)

// AllReduce reduces the buffers element by element and leaves the result in
// each of them. It takes one buffer of every rank of the group, in any order,
// all of one type and length. It returns when everything is enqueued: each
// buffer's stream is ordered with its rank's part.
//
// A ring folds shard s of the buffers in the order s+1, s+2, ..., s (modulo the
// number of ranks), and every rank gets the same bits. On a group of one rank
// the buffer stays as it is.
func (o Ops) AllReduce(bufs []Buffer, op Op) (Work, error) { return o.AllReduceTo(bufs, bufs, op) }

// AllReduceTo is AllReduce from src to dst, each with one buffer of every rank.
// A rank's buffers are the same range on every rank, which is in place, or they
// do not overlap on any.
func (o Ops) AllReduceTo(dst, src []Buffer, op Op) (Work, error) {
	const name = "all_reduce"
	if !op.Valid() {
		return Work{}, argument(name, -1, "%v is not a reduction", op)
	}
	alg := o.o.Algorithm
	switch alg {
	case AlgorithmAuto:
		alg = AlgorithmRing
	case AlgorithmRing, AlgorithmRingZeroCopy:
	default:
		return Work{}, argument(name, -1, "algorithm %q is not known here (known: %q %q)", alg, AlgorithmRing, AlgorithmRingZeroCopy)
	}
	return o.collective(name, dst, src, 1, planKey{op: name, alg: alg, red: op})
}

// AllGather leaves in each dst the contents of all src, in rank order. Each
// takes one buffer of every rank, in any order; all src have one type and
// length and each dst is as long as all of them together. It is in place if
// each rank's src is its own part of its dst.
func (o Ops) AllGather(dst, src []Buffer) (Work, error) {
	const name = "all_gather"
	alg := o.o.Algorithm
	switch alg {
	case AlgorithmAuto:
		alg = AlgorithmDirect
	case AlgorithmDirect, AlgorithmRing:
	default:
		return Work{}, argument(name, -1, "algorithm %q is not known here (known: %q %q)", alg, AlgorithmDirect, AlgorithmRing)
	}
	return o.collective(name, dst, src, len(o.g.ranks), planKey{op: name, alg: alg})
}

// collective checks the buffers, brings them into rank order and enqueues. dst
// is times as long as src.
func (o Ops) collective(op string, dst, src []Buffer, times int, key planKey) (Work, error) {
	g := o.g
	n := len(g.ranks)
	if err := g.usable(op); err != nil {
		return Work{}, err
	}
	if o.o.Route != RouteAuto {
		return Work{}, argument(op, -1, "a collective has algorithms, not the route %q", o.o.Route)
	}
	if o.o.Chunk < 0 {
		return Work{}, argument(op, -1, "chunk of %d bytes", o.o.Chunk)
	}
	if len(dst) != n || len(src) != n {
		return Work{}, argument(op, -1, "%d destinations and %d sources on %d ranks: one of each a rank is due", len(dst), len(src), n)
	}
	var outs, ins [MaxRanks]*Buffer
	for i := range n {
		for side, b := range [2]*Buffer{&dst[i], &src[i]} {
			if err := g.check(op, b); err != nil {
				return Work{}, err
			}
			at := &outs[b.rank.index]
			if side == 1 {
				at = &ins[b.rank.index]
			}
			if *at != nil {
				return Work{}, argument(op, b.rank.index, "two buffers of one rank")
			}
			*at = b
		}
	}
	first := ins[0]
	inPlace := 0
	for r := range n {
		d, s := outs[r], ins[r]
		switch {
		case s.typ != first.typ:
			return Work{}, argument(op, r, "buffer of %v, and rank 0's is %v", s.typ, first.typ)
		case d.typ != s.typ:
			return Work{}, argument(op, r, "destination of %v, and the source is %v", d.typ, s.typ)
		case s.n != first.n:
			return Work{}, argument(op, r, "buffer of %d elements, and rank 0's has %d", s.n, first.n)
		case uint64(d.n) != uint64(times)*uint64(s.n):
			return Work{}, argument(op, r, "destination of %d elements: %d are due", d.n, uint64(times)*uint64(s.n))
		}
		own := *d
		if times > 1 && d.n > 0 {
			own = d.Sub(r*s.n, (r+1)*s.n)
		}
		switch {
		case s.n == 0 || same(&own, s):
			inPlace++
		case overlap(d, s):
			return Work{}, argument(op, r, "source and destination overlap")
		}
	}
	if inPlace != 0 && inPlace != n {
		return Work{}, argument(op, -1, "in place on %d of %d ranks: it must be all or none", inPlace, n)
	}
	key.inPlace = inPlace == n
	for a := range n {
		for b := range n {
			if a < b && overlap(outs[a], outs[b]) || a != b && overlap(outs[a], ins[b]) {
				return Work{}, argument(op, b, "buffers of rank %d and rank %d overlap", a, b)
			}
		}
	}

	g.lock()
	defer g.unlock()
	if err := g.usable(op); err != nil {
		return Work{}, err
	}
	for r := range n {
		if err := outs[r].alive(op); err != nil {
			return Work{}, err
		}
		if err := ins[r].alive(op); err != nil {
			return Work{}, err
		}
	}
	x := &g.run
	fill := func() {
		for r := range n {
			d, s := outs[r], ins[r]
			x.rank[r], x.in[r], x.out[r], x.stream[r] = g.ranks[r], s.addr(), d.addr(), d.queue()
			if s.queue() != d.queue() {
				x.other[r], x.otherRank[r] = s.queue(), g.ranks[r]
			}
		}
	}
	if first.n == 0 || n == 1 && key.inPlace {
		x.reset(op, nil, n)
		fill()
		if e := o.o.Explain; e != nil {
			g.explainOrder(e, x, 0)
			e.Algorithm = key.alg
			return Work{}, nil
		}
		return g.order(x, 0, string(key.alg))
	}
	key.typ, key.count, key.chunk = first.typ, uint64(first.n), uint64(o.o.Chunk)
	key.budget = g.ranks[0].pinned.size
	for _, r := range g.ranks {
		key.budget = min(key.budget, r.pinned.size)
	}
	if e := o.o.Explain; e != nil {
		p, inline, err := g.planCollective(key)
		if err != nil {
			return Work{}, argument(op, -1, "%w", err)
		}
		x.reset(op, compile(p, inline, g.stride), n)
		fill()
		g.explain(e, x, p, "")
		e.Algorithm = key.alg
		return Work{}, nil
	}
	pr, err := g.program(key, func() (*plan.Plan, bool, error) { return g.planCollective(key) })
	if err != nil {
		return Work{}, argument(op, -1, "%w", err)
	}
	x.reset(op, pr, n)
	fill()
	if g.debug {
		g.log.Debug("gp: "+op, "algorithm", key.alg, "type", key.typ, "elements", key.count, "chunk", pr.plan.Chunk, "slots", pr.plan.Slots)
	}
	w, err := g.enqueue(x, string(key.alg))
	if err != nil {
		return Work{}, err
	}
	g.stats.Collectives++
	g.stats.CollectiveBytes += uint64(first.Bytes())
	return w, nil
}

func (g *Group) planCollective(k planKey) (p *plan.Plan, inline bool, err error) {
	a := plan.Args{
		Ranks: len(g.ranks), Count: k.count, Type: k.typ, Op: k.red, InPlace: k.inPlace, Chunk: k.chunk,
		ZeroCopy:   k.alg == AlgorithmRingZeroCopy,
		HostBudget: k.budget, ScratchBudget: alignUp(uint64(g.opts.PinnedBytes), arenaAlign),
	}
	switch {
	case k.op == "all_reduce":
		p, err = plan.RingAllReduce(a)
	case k.op == "all_gather" && k.alg == AlgorithmRing:
		p, err = plan.RingAllGather(a)
	case k.op == "all_gather":
		p, err = plan.DirectAllGather(a)
	default:
		err = fmt.Errorf("no plan for %s", k.op)
	}
	if err != nil {
		return nil, false, err
	}
	// A shard of one piece leaves the lanes little to overlap, and the fences
	// between them and the callers' streams are most of the calls.
	shard := k.count * uint64(k.typ.Size()) / uint64(len(g.ranks))
	return p, shard <= inlineShard, nil
}

// inlineShard is the bytes of a shard up to which a collective runs on the
// callers' own streams.
const inlineShard = 64 << 10
