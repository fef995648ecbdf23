// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"fmt"
	"slices"

	"github.com/geforce-p2p/geforce-p2p/gp/internal/plan"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// A Transfer is one message of a SendRecv: Src, on the rank that sends, goes to
// Dst, on the rank that receives.
type Transfer struct{ Dst, Src Buffer }

// MaxTransfers is the most messages of one SendRecv: one from every rank to every
// rank of the largest group.
const MaxTransfers = MaxRanks * MaxRanks

const opSendRecv = "send_recv"

// SendRecv does a batch of transfers between any ranks at once, as a group of
// sends and receives does in the field: no message waits for another, and all
// links are busy. The buffers of a transfer have one type and length; those of
// different transfers may differ. No Dst overlaps another buffer of the batch.
//
// All buffers of a rank in one batch are on one stream, which is ordered as Copy
// orders it; where they are not, the call is refused. A rank's messages share its
// lanes and its slots of pinned memory, so a second stream would be behind and
// ahead of the whole batch like the first, and only seem to be free of it: for
// messages that need not wait for each other's streams, make two calls.
func (o Ops) SendRecv(ts ...Transfer) (Work, error) {
	const op = opSendRecv
	g := o.g
	if err := g.usable(op); err != nil {
		return Work{}, err
	}
	switch {
	case o.o.Algorithm != AlgorithmAuto && o.o.Algorithm != AlgorithmDirect:
		return Work{}, argument(op, -1, "algorithm %q is not known here (known: %q)", o.o.Algorithm, []Algorithm{AlgorithmDirect})
	case o.o.Route != RouteAuto && o.o.Route != RouteStaged:
		return Work{}, argument(op, -1, "route %q cannot be asked for here: %q keeps P2P out of use", o.o.Route, RouteStaged)
	case o.o.Chunk < 0:
		return Work{}, argument(op, -1, "chunk of %d bytes", o.o.Chunk)
	case len(ts) == 0:
		return Work{}, nil
	case len(ts) > MaxTransfers:
		return Work{}, argument(op, -1, "%d transfers: the most is %d", len(ts), MaxTransfers)
	}
	var streams [MaxRanks]*Buffer
	for i := range ts {
		t := &ts[i]
		for _, b := range [2]*Buffer{&t.Dst, &t.Src} {
			if err := g.check(op, b); err != nil {
				return Work{}, err
			}
			switch first := streams[b.rank.index]; {
			case first == nil:
				streams[b.rank.index] = b
			case first.queue() != b.queue():
				return Work{}, argument(op, b.rank.index, "transfer %d: buffers of one rank on two streams", i)
			}
		}
		switch {
		case t.Dst.typ != t.Src.typ:
			return Work{}, argument(op, t.Dst.rank.index, "transfer %d: dst is %v and src is %v", i, t.Dst.typ, t.Src.typ)
		case t.Dst.n != t.Src.n:
			return Work{}, argument(op, t.Dst.rank.index, "transfer %d: dst has %d elements and src has %d", i, t.Dst.n, t.Src.n)
		}
		for j := range i + 1 {
			u := &ts[j]
			if overlap(&t.Dst, &u.Src) || overlap(&t.Src, &u.Dst) || i != j && overlap(&t.Dst, &u.Dst) {
				return Work{}, argument(op, t.Dst.rank.index, "transfers %d and %d overlap", j, i)
			}
		}
	}
	g.lock()
	defer g.unlock()
	if err := g.usable(op); err != nil {
		return Work{}, err
	}
	bytes := uint64(0)
	for i := range ts {
		for _, b := range [2]*Buffer{&ts[i].Dst, &ts[i].Src} {
			if err := b.alive(op); err != nil {
				return Work{}, err
			}
		}
		bytes += uint64(ts[i].Src.Bytes())
	}
	x := &g.run
	n := len(g.ranks)
	fill := func() {
		for r, rk := range g.ranks {
			x.rank[r] = rk
			x.stream[r] = rk.queue()
			if b := streams[r]; b != nil {
				x.stream[r] = b.queue()
			}
		}
	}
	if bytes == 0 {
		return g.orderBatch(ts, o.o.Explain, fill)
	}
	pr, err := g.sendRecvProgram(ts, &o.o)
	if err != nil {
		return Work{}, argument(op, -1, "%w", err)
	}
	x.reset(op, pr.program, n)
	fill()
	for i := range ts {
		x.in[i], x.out[i] = ts[i].Src.addr(), ts[i].Dst.addr()
	}
	if e := o.o.Explain; e != nil {
		p, err := plan.SendRecv(pr.args)
		if err != nil {
			return Work{}, argument(op, -1, "%w", err)
		}
		g.explain(e, x, p, "a batch of transfers")
		e.Algorithm = AlgorithmDirect
		return Work{}, nil
	}
	if g.debug {
		g.log.Debug("gp: "+op, "transfers", len(ts), "bytes", bytes, "chunk", pr.plan.Chunk, "slots", pr.plan.Slots)
	}
	w, err := g.enqueue(x, string(AlgorithmDirect))
	if err != nil {
		return Work{}, err
	}
	g.stats.Collectives++
	for i := range pr.args.Transfers {
		t := &pr.args.Transfers[i]
		route := RouteStaged
		switch {
		case t.From == t.To:
			route = RouteLocal
		case t.Peer:
			route = RouteDirect
		}
		g.moved(t.From, t.To, route, t.Bytes)
	}
	return w, nil
}

// orderBatch is a batch that moves nothing: the stream of each transfer's Dst is
// ordered behind its Src's, and the Work is over when all of these are. fill has
// the run's ranks and streams be all of the group's. The group's lock is held.
func (g *Group) orderBatch(ts []Transfer, e *Explanation, fill func()) (Work, error) {
	x := &g.run
	each := func(f func() error) error {
		for i := range ts {
			x.reset(opSendRecv, nil, 2)
			src, dst := &ts[i].Src, &ts[i].Dst
			x.rank[0], x.stream[0] = src.rank, src.queue()
			x.rank[1], x.stream[1] = dst.rank, dst.queue()
			if err := f(); err != nil {
				return err
			}
		}
		return nil
	}
	if e != nil {
		var all Explanation
		_ = each(func() error {
			var one Explanation
			g.explainOrder(&one, x, 1)
			one.add(&all)
			all = one
			return nil
		})
		all.Algorithm = AlgorithmDirect
		*e = all
		return Work{}, nil
	}
	if err := each(func() error { return g.refuseCapture(x) }); err != nil {
		x.bind.restore()
		return Work{}, err
	}
	o := g.begin(opSendRecv, string(AlgorithmDirect))
	g.pass(false)
	err := each(func() error {
		if call, r, c := g.orderCalls(x, 1, o); c != api.Success {
			return g.callError(x.op, x.rank[r], call, c)
		}
		return nil
	})
	g.passed(false)
	if c := x.bind.restore(); c != api.Success && err == nil {
		err = g.callError(x.op, x.rank[1], "cuCtxPopCurrent", c)
	}
	if err != nil {
		g.fail(fmt.Errorf("%w (ordering streams)", err))
		g.abandon(o)
		return Work{}, err
	}
	x.reset(opSendRecv, nil, len(g.ranks))
	fill()
	return g.commit(o), nil
}

// A batch is the program of a SendRecv and what it was made from.
type batch struct {
	*program
	args plan.SendRecvArgs
}

// maxBatches bounds the batches whose programs are kept.
const maxBatches = 16

// sendRecvProgram is the program of a batch of this shape, kept from before or
// made. The group's lock is held.
func (g *Group) sendRecvProgram(ts []Transfer, o *CallOptions) (batch, error) {
	g.transfers = g.transfers[:0]
	for i := range ts {
		from, to := ts[i].Src.rank, ts[i].Dst.rank
		g.transfers = append(g.transfers, plan.Transfer{
			From: from.index, To: to.index, Bytes: uint64(ts[i].Src.Bytes()),
			Peer: o.Route == RouteAuto && g.p2p[from.index][to.index].use,
		})
	}
	for i, b := range g.batches {
		if b.args.Chunk == uint64(o.Chunk) && slices.Equal(b.args.Transfers, g.transfers) {
			copy(g.batches[1:i+1], g.batches[:i])
			g.batches[0] = b
			return b, nil
		}
	}
	b := batch{args: plan.SendRecvArgs{
		Ranks: len(g.ranks), Transfers: slices.Clone(g.transfers), Chunk: uint64(o.Chunk), HostBudget: g.ranks[0].pinned.size,
	}}
	p, err := plan.SendRecv(b.args)
	if err != nil {
		return batch{}, err
	}
	b.program = compile(p, false, g.stride)
	g.batches = slices.Insert(g.batches[:min(len(g.batches), maxBatches-1)], 0, b)
	return b, nil
}
