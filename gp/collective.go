// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/geforce-p2p/geforce-p2p/gp/internal/plan"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// AllReduce reduces the buffers element by element and leaves the result in
// each of them. It takes one buffer of every rank of the group, in any order,
// all of one type and length. It returns when everything is enqueued: each
// buffer's stream is ordered with its rank's part.
//
// The elements are folded in the order of the ranks, a ring's apart: that folds
// shard s of the buffers in the order s+1, s+2, ..., s (modulo the number of
// ranks). Every rank gets the same bits. On a group of one rank the buffer stays
// as it is.
func (o Ops) AllReduce(bufs []Buffer, op Op) (Work, error) { return o.AllReduceTo(bufs, bufs, op) }

// AllReduceTo is AllReduce from src to dst, each with one buffer of every rank.
// A rank's buffers are the same range on every rank, which is in place, or they
// do not overlap on any.
func (o Ops) AllReduceTo(dst, src []Buffer, op Op) (Work, error) {
	return o.collective(&call{op: opAllReduce, dst: dst, src: src, red: op, root: -1})
}

// AllGather leaves in each dst the contents of all src, in rank order. Each
// takes one buffer of every rank, in any order; all src have one type and
// length and each dst is as long as all of them together. It is in place if
// each rank's src is its own part of its dst.
func (o Ops) AllGather(dst, src []Buffer) (Work, error) {
	return o.collective(&call{op: opAllGather, dst: dst, src: src, root: -1})
}

// ReduceScatter reduces the src element by element and leaves in rank r's dst
// the r-th part of the result. Each takes one buffer of every rank, in any
// order; all src have one type and length, which is that of all dst together. It
// is in place if each rank's dst is its own part of its src. The order of the
// fold is as AllReduce has it.
func (o Ops) ReduceScatter(dst, src []Buffer, op Op) (Work, error) {
	return o.collective(&call{op: opReduceScatter, dst: dst, src: src, red: op, root: -1})
}

// Broadcast leaves the contents of src, whose rank is the root, in each dst: one
// buffer of every rank, in any order, all of src's type and length. It is in
// place if the root's dst is src.
func (o Ops) Broadcast(dst []Buffer, src Buffer) (Work, error) {
	root := -1
	if src.rank != nil {
		root = src.rank.index
	}
	return o.collective(&call{op: opBroadcast, dst: dst, src: []Buffer{src}, root: root})
}

// Reduce reduces the src element by element, in the order of the ranks, and
// leaves the result in dst, whose rank is the root. It takes one src of every
// rank, in any order, all of dst's type and length. It is in place if the root's
// src is dst.
func (o Ops) Reduce(dst Buffer, src []Buffer, op Op) (Work, error) {
	root := -1
	if dst.rank != nil {
		root = dst.rank.index
	}
	return o.collective(&call{op: opReduce, dst: []Buffer{dst}, src: src, red: op, root: root})
}

// AllToAll sends the q-th part of rank r's src to the r-th part of rank q's dst.
// Each takes one buffer of every rank, in any order, all of one type and length,
// which is a multiple of the number of ranks. No dst overlaps a src.
func (o Ops) AllToAll(dst, src []Buffer) (Work, error) {
	return o.collective(&call{op: opAllToAll, dst: dst, src: src, root: -1})
}

// A collective is one of the operations.
type collective uint8

const (
	opAllReduce collective = iota + 1
	opAllGather
	opReduceScatter
	opBroadcast
	opReduce
	opAllToAll
)

// name is the collective's, as the field has it.
func (c collective) name() string {
	return [...]string{
		opAllReduce: "all_reduce", opAllGather: "all_gather", opReduceScatter: "reduce_scatter",
		opBroadcast: "broadcast", opReduce: "reduce", opAllToAll: "all_to_all",
	}[c]
}

// algorithms are those of the collective.
func (c collective) algorithms() []Algorithm { return algorithms[c] }

var algorithms = [...][]Algorithm{
	opAllReduce:     {AlgorithmDirect, AlgorithmRing, AlgorithmRingZeroCopy, AlgorithmTwoShot, AlgorithmOneShot, AlgorithmPeer},
	opAllGather:     {AlgorithmDirect, AlgorithmRing, AlgorithmOneShot, AlgorithmPeer},
	opReduceScatter: {AlgorithmDirect, AlgorithmRing, AlgorithmPeer},
	opBroadcast:     {AlgorithmDirect, AlgorithmPeer},
	opReduce:        {AlgorithmDirect, AlgorithmPeer},
	opAllToAll:      {AlgorithmDirect, AlgorithmPeer},
}

// reduces tells whether the collective has a reduction.
func (c collective) reduces() bool {
	return c == opAllReduce || c == opReduceScatter || c == opReduce
}

// parts are the shares of its elements (see plan.Args) that a destination and a
// source have on n ranks.
func (c collective) parts(n int) (dst, src int) {
	switch c {
	case opAllGather:
		return n, 1
	case opReduceScatter:
		return 1, n
	case opAllToAll:
		return n, n
	}
	return 1, 1
}

// A call is a collective that somebody asks for.
type call struct {
	op       collective // not its name: what escapes of a call makes all of it escape
	dst, src []Buffer
	red      Op
	root     int // of a broadcast or reduce, else -1

	// By rank, zero where it has none. They are copies: pointers to the caller's
	// would make his slices escape.
	outs, ins [MaxRanks]Buffer
	inPlace   bool
	count     int // elements: see plan.Args
	typ       Type
}

// longer is the bytes of the longer of a rank's buffers.
func (c *call) longer(n int) uint64 {
	dst, src := c.op.parts(n)
	return uint64(c.count) * uint64(max(dst, src)) * uint64(c.typ.Size())
}

// check looks at the arguments and brings the buffers into rank order.
func (c *call) check(o Ops) error {
	g, n := o.g, len(o.g.ranks)
	known := c.op.algorithms()
	switch {
	case c.op.reduces() && !c.red.Valid():
		return argument(c.op.name(), -1, "%v is not a reduction", c.red)
	case o.o.Algorithm != AlgorithmAuto && !slices.Contains(known, o.o.Algorithm):
		return argument(c.op.name(), -1, "algorithm %q is not known here (known: %q)", o.o.Algorithm, known)
	case o.o.Route != RouteAuto:
		return argument(c.op.name(), -1, "a collective has algorithms, not the route %q", o.o.Route)
	case o.o.Chunk < 0:
		return argument(c.op.name(), -1, "chunk of %d bytes", o.o.Chunk)
	}
	dues := [2]int{n, n}
	switch c.op {
	case opBroadcast:
		dues[1] = 1
	case opReduce:
		dues[0] = 1
	}
	if len(c.dst) != dues[0] || len(c.src) != dues[1] {
		return argument(c.op.name(), -1, "%d destinations and %d sources on %d ranks: %d and %d are due", len(c.dst), len(c.src), n, dues[0], dues[1])
	}
	for side, bufs := range [2][]Buffer{c.dst, c.src} {
		into := &c.outs
		if side == 1 {
			into = &c.ins
		}
		for i := range bufs {
			b := &bufs[i]
			if err := g.check(c.op.name(), b); err != nil {
				return err
			}
			if into[b.rank.index].rank != nil {
				return argument(c.op.name(), b.rank.index, "two buffers of one rank")
			}
			into[b.rank.index] = *b
		}
	}
	if err := c.lengths(n); err != nil {
		return err
	}
	return c.places(n)
}

// lengths holds all buffers to one type and to their share of the elements.
func (c *call) lengths(n int) error {
	dst, src := c.op.parts(n)
	first := max(c.root, 0)
	if c.op != opBroadcast {
		first = 0
	}
	c.typ, c.count = c.ins[first].typ, c.ins[first].n/src
	if c.ins[first].n%src != 0 {
		return argument(c.op.name(), first, "source of %d elements: a multiple of %d is due", c.ins[first].n, n)
	}
	for r := range n {
		if b := &c.ins[r]; b.rank != nil {
			switch {
			case b.typ != c.typ:
				return argument(c.op.name(), r, "buffer of %v, and rank %d's is %v", b.typ, first, c.typ)
			case b.n != c.ins[first].n:
				return argument(c.op.name(), r, "buffer of %d elements, and rank %d's has %d", b.n, first, c.ins[first].n)
			}
		}
		if b := &c.outs[r]; b.rank != nil {
			switch {
			case b.typ != c.typ:
				return argument(c.op.name(), r, "destination of %v, and the source is %v", b.typ, c.typ)
			case uint64(b.n) != uint64(dst)*uint64(c.count):
				return argument(c.op.name(), r, "destination of %d elements: %d are due", b.n, uint64(dst)*uint64(c.count))
			}
		}
	}
	return nil
}

// places finds out whether the collective is in place, and refuses buffers that
// overlap otherwise.
func (c *call) places(n int) error {
	dst, src := c.op.parts(n)
	in, both := 0, 0
	for r := range n {
		d, s := &c.outs[r], &c.ins[r]
		if d.rank == nil || s.rank == nil {
			continue
		}
		both++
		long, short := *d, *s
		if src > dst {
			long, short = short, long
		}
		if dst != src && short.n > 0 {
			long = long.Sub(r*short.n, (r+1)*short.n)
		}
		switch {
		case c.count == 0 || same(&long, &short) && c.op != opAllToAll:
			in++
		case overlap(d, s):
			return argument(c.op.name(), r, "source and destination overlap")
		}
	}
	if in != 0 && in != both {
		return argument(c.op.name(), -1, "in place on %d of %d ranks: it must be all or none", in, both)
	}
	c.inPlace = in == both
	for a := range n {
		for b := range n {
			if a == b || c.outs[a].rank == nil {
				continue
			}
			if d := &c.outs[b]; d.rank != nil && overlap(&c.outs[a], d) {
				return argument(c.op.name(), b, "buffers of rank %d and rank %d overlap", a, b)
			}
			if s := &c.ins[b]; s.rank != nil && overlap(&c.outs[a], s) {
				return argument(c.op.name(), b, "buffers of rank %d and rank %d overlap", a, b)
			}
		}
	}
	return nil
}

// fill sets the run's ranks, addresses and streams. A rank without a buffer, of
// a broadcast or reduce, has no stream to be ordered with but its own.
func (c *call) fill(x *run) {
	g := x.g
	for r, rk := range g.ranks {
		x.rank[r] = rk
		d, s := &c.outs[r], &c.ins[r]
		if s.rank != nil {
			x.in[r], x.stream[r] = s.addr(), s.queue()
		}
		if d.rank != nil {
			x.out[r], x.stream[r] = d.addr(), d.queue()
			if s.rank != nil && s.queue() != d.queue() {
				x.other[r], x.otherRank[r] = s.queue(), rk
			}
		}
	}
}

// collective checks a call and enqueues it.
func (o Ops) collective(c *call) (Work, error) {
	g, n := o.g, len(o.g.ranks)
	if err := g.usable(c.op.name()); err != nil {
		return Work{}, err
	}
	if err := c.check(o); err != nil {
		return Work{}, err
	}
	g.lock()
	defer g.unlock()
	if err := g.usable(c.op.name()); err != nil {
		return Work{}, err
	}
	for r := range n {
		for _, b := range [2]*Buffer{&c.outs[r], &c.ins[r]} {
			if b.rank != nil {
				if err := b.alive(c.op.name()); err != nil {
					return Work{}, err
				}
			}
		}
	}
	x := &g.run
	if c.count == 0 || n == 1 && c.inPlace {
		x.reset(c.op.name(), nil, n)
		c.fill(x)
		if e := o.o.Explain; e != nil {
			g.explainOrder(e, x, 0)
			return Work{}, nil
		}
		return g.order(x, 0, "none")
	}
	ch, err := g.choose(c, &o.o)
	if err != nil {
		return Work{}, err
	}
	if ch.kind != 0 {
		return o.exchange(c, ch)
	}
	key := planKey{op: c.op.name(), alg: ch.alg, typ: c.typ, red: c.red, root: int8(c.root), count: uint64(c.count), chunk: uint64(o.o.Chunk), inPlace: c.inPlace}
	if !c.op.reduces() {
		// It is a matter of bytes, and all types share a plan.
		key.typ, key.red, key.count = TypeUint8, Sum, key.count*uint64(c.typ.Size())
	}
	if e := o.o.Explain; e != nil {
		p, inline, err := g.planCollective(c.op, key)
		if err != nil {
			return Work{}, argument(c.op.name(), -1, "%w", err)
		}
		x.reset(c.op.name(), compile(p, inline, g.stride), n)
		c.fill(x)
		g.explain(e, x, p, ch.why)
		e.Algorithm, e.Estimates = ch.alg, g.estimates(c.op, c.longer(n))
		return Work{}, nil
	}
	op := c.op
	pr, err := g.program(key, func() (*plan.Plan, bool, error) { return g.planCollective(op, key) })
	if err != nil {
		return Work{}, argument(c.op.name(), -1, "%w", err)
	}
	x.reset(c.op.name(), pr, n)
	c.fill(x)
	if g.debug {
		g.log.Debug("gp: "+c.op.name(), "algorithm", ch.alg, "because", ch.why, "type", c.typ, "elements", c.count, "chunk", pr.plan.Chunk, "slots", pr.plan.Slots)
	}
	w, err := g.enqueue(x, string(ch.alg))
	if err != nil {
		return Work{}, err
	}
	g.count(c)
	return w, nil
}

// exchange enqueues a call as kernels that wait for each other.
func (o Ops) exchange(c *call, ch choice) (Work, error) {
	g, x := o.g, &o.g.run
	x.reset(c.op.name(), nil, len(g.ranks))
	c.fill(x)
	x.kind, x.typ, x.red, x.count = ch.kind, c.typ, c.red, uint64(c.count)
	if !ch.kind.Reduces() {
		x.typ, x.red, x.count = 0, 0, x.count*uint64(c.typ.Size())
	}
	if e := o.o.Explain; e != nil {
		g.explainExchange(e, x, c)
		e.Algorithm, e.Why, e.Estimates = ch.alg, ch.why, g.estimates(c.op, c.longer(len(g.ranks)))
		return Work{}, nil
	}
	if err := g.loadExchange(x); err != nil {
		return Work{}, err
	}
	if g.debug {
		g.log.Debug("gp: "+c.op.name(), "algorithm", ch.alg, "because", ch.why, "kernel", ch.kind, "type", c.typ, "elements", c.count)
	}
	w, err := g.enqueue(x, string(ch.alg))
	if err != nil {
		return Work{}, err
	}
	g.count(c)
	return w, nil
}

func (g *Group) count(c *call) {
	g.stats.Collectives++
	g.stats.CollectiveBytes += uint64(c.count) * uint64(c.typ.Size())
}

func (g *Group) planCollective(op collective, k planKey) (p *plan.Plan, inline bool, err error) {
	a := plan.Args{
		Ranks: len(g.ranks), Count: k.count, Type: k.typ, Op: k.red, InPlace: k.inPlace, Root: max(int(k.root), 0), Chunk: k.chunk,
		Block: g.oneBlock && g.stride <= plan.MaxPitch, Peer: k.alg == AlgorithmPeer, ZeroCopy: k.alg == AlgorithmRingZeroCopy,
		HostBudget: g.ranks[0].pinned.size, ScratchBudget: alignUp(uint64(g.opts.PinnedBytes), arenaAlign),
		Rate: g.rate, PerCopy: g.opts.PerCopy, Share: g.share,
	}
	ring := k.alg == AlgorithmRing || k.alg == AlgorithmRingZeroCopy
	switch {
	case op == opAllReduce && ring:
		p, err = plan.RingAllReduce(a)
	case op == opAllReduce:
		p, err = plan.DirectAllReduce(a)
	case op == opAllGather && ring:
		p, err = plan.RingAllGather(a)
	case op == opAllGather:
		p, err = plan.DirectAllGather(a)
	case op == opReduceScatter && ring:
		p, err = plan.RingReduceScatter(a)
	case op == opReduceScatter:
		p, err = plan.DirectReduceScatter(a)
	case op == opBroadcast:
		p, err = plan.DirectBroadcast(a)
	case op == opReduce:
		p, err = plan.DirectReduce(a)
	case op == opAllToAll:
		p, err = plan.DirectAllToAll(a)
	default:
		err = fmt.Errorf("no plan for %s", k.op)
	}
	if err != nil {
		return nil, false, err
	}
	if ring {
		// A shard of one piece leaves the lanes little to overlap, and the fences
		// between them and the callers' streams are most of the calls.
		return p, k.count*uint64(k.typ.Size())/uint64(a.Ranks) <= inlineShard, nil
	}
	// With one segment in flight a rank does one thing after another anyway.
	return p, p.Slots == 1 && k.alg != AlgorithmPeer, nil
}

// inlineShard is the bytes of a shard up to which a ring runs on the callers'
// own streams.
const inlineShard = 64 << 10

// A choice is an algorithm, the kind of its kernel if it is one whose kernels
// wait for each other, and what it rests on.
type choice struct {
	alg  Algorithm
	kind kernel.Kind
	why  string
}

// kernelKind is the kind of exchange by which an algorithm does a collective of
// so many bytes, 0 if there is none.
func kernelKind(c *call, alg Algorithm, bytes uint64) kernel.Kind {
	switch {
	case c.op == opAllGather && alg == AlgorithmOneShot:
		return kernel.Gather
	case alg == AlgorithmOneShot:
		return kernel.OneShot
	case alg == AlgorithmTwoShot && bytes <= kernel.MaxLL:
		return kernel.TwoShotLL
	case alg == AlgorithmTwoShot:
		return kernel.TwoShot
	}
	return 0
}

// choose takes the algorithm that is asked for, or the one that the cost model
// has for the fastest. The group's lock is held.
func (g *Group) choose(c *call, o *CallOptions) (choice, error) {
	bytes := uint64(c.count) * uint64(c.typ.Size())
	n := len(g.ranks)
	possible := func(alg Algorithm, patient bool) (choice, string, error) {
		ch := choice{alg: alg, kind: kernelKind(c, alg, bytes)}
		switch {
		case alg == AlgorithmPeer && !g.allPeers:
			return ch, "P2P is not proven for every pair", nil
		case (alg == AlgorithmPeer || ch.kind != 0) && n == 1:
			return ch, "the group has one rank", nil
		case ch.kind != 0 && g.hasAreas() && !g.fits(ch.kind, bytes):
			return ch, fmt.Sprintf("%d bytes are too many for the areas of pinned memory", bytes), nil
		case ch.kind != 0:
			on, err := g.mayExchange(patient)
			if err != nil {
				return ch, "", err
			}
			if !on {
				return ch, cmp.Or(g.exchanges.why, "whether the kernels of all ranks run at once is not tried while the ranks' streams have work"), nil
			}
		}
		return ch, "", nil
	}
	if o.Algorithm != AlgorithmAuto {
		ch, why, err := possible(o.Algorithm, true)
		if err != nil {
			return ch, err
		}
		if why != "" {
			return ch, argument(c.op.name(), -1, "algorithm %q: %s", o.Algorithm, why)
		}
		ch.why = "asked for"
		return ch, nil
	}
	for _, e := range g.ranking(c.op, c.longer(n)) {
		ch, why, err := possible(e.alg, false)
		if err != nil {
			return ch, err
		}
		if why == "" {
			ch.why = "the least by the cost model"
			return ch, nil
		}
	}
	return choice{}, argument(c.op.name(), -1, "no algorithm will do")
}
