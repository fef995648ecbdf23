// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"fmt"
	"slices"

	"github.com/geforce-p2p/geforce-p2p/gp/internal/plan"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// Ops are the operations, with the options that they run under. A Group embeds
// one with the defaults; With makes another.
type Ops struct {
	g *Group
	o CallOptions
}

// With returns the operations under other options:
// g.With(gp.CallOptions{Algorithm: gp.AlgorithmRing}).AllReduce(bufs, gp.Sum).
func (o Ops) With(c CallOptions) Ops {
	o.o = c
	return o
}

// Copy copies src to dst, which have the same type and length and do not
// overlap, and returns when the copy is enqueued. It runs behind what the
// streams of both buffers hold, and what they are given afterwards runs behind
// it: dst's stream finds the data, and src may be overwritten in the order of
// its stream. A copy of length 0 moves nothing and orders dst's stream behind
// src's all the same.
//
// Between ranks the bytes go through pinned host memory in pieces, so that the
// source's link and the destination's are busy at once and both directions of a
// pair run at the same time; where P2P is proven for the direction they go
// directly (cuMemcpyPeerAsync), until the driver refuses that.
func (o Ops) Copy(dst, src Buffer) (Work, error) {
	const op = "copy"
	g := o.g
	if err := g.usable(op); err != nil {
		return Work{}, err
	}
	if err := g.check(op, &dst); err != nil {
		return Work{}, err
	}
	if err := g.check(op, &src); err != nil {
		return Work{}, err
	}
	switch {
	case dst.typ != src.typ:
		return Work{}, argument(op, dst.rank.index, "dst is %v and src is %v", dst.typ, src.typ)
	case dst.n != src.n:
		return Work{}, argument(op, dst.rank.index, "dst has %d elements and src has %d", dst.n, src.n)
	case overlap(&dst, &src):
		return Work{}, argument(op, dst.rank.index, "dst and src overlap")
	case o.o.Chunk < 0:
		return Work{}, argument(op, dst.rank.index, "chunk of %d bytes", o.o.Chunk)
	case o.o.Algorithm != AlgorithmAuto:
		return Work{}, argument(op, dst.rank.index, "a copy has routes, not the algorithm %q", o.o.Algorithm)
	}

	g.lock()
	defer g.unlock()
	if err := g.usable(op); err != nil {
		return Work{}, err
	}
	w, err := o.copy(dst, src)
	if g.run.refused {
		g.run.refused = false
		g.p2p[src.rank.index][dst.rank.index] = direction{why: "the driver refused a peer copy: " + err.Error()}
		g.allPeers, g.rankings = false, nil // collectives over P2P take all directions
		if o.o.Route != RouteDirect {
			g.log.Warn("gp: the driver refuses a peer copy: copies are staged from now on", "from", src.rank.index, "to", dst.rank.index, "error", err)
			g.stats.Fallbacks++
			return o.copy(dst, src)
		}
	}
	return w, err
}

// copy is Copy of what fits together. The group's lock is held.
func (o Ops) copy(dst, src Buffer) (Work, error) {
	const op = "copy"
	g := o.g
	if err := dst.alive(op); err != nil {
		return Work{}, err
	}
	if err := src.alive(op); err != nil {
		return Work{}, err
	}
	route, err := g.route(op, dst.rank, src.rank, o.o.Route)
	if err != nil {
		return Work{}, err
	}
	x := &g.run
	if dst.n == 0 {
		x.reset(op, nil, 2)
		x.rank[0], x.stream[0] = src.rank, src.queue()
		x.rank[1], x.stream[1] = dst.rank, dst.queue()
		if e := o.o.Explain; e != nil {
			g.explainOrder(e, x, 1)
			e.Route = route
			return Work{}, nil
		}
		return g.order(x, 1, string(route))
	}
	bytes := uint64(dst.Bytes())
	key := planKey{op: op, alg: Algorithm(route), count: bytes, chunk: uint64(o.o.Chunk), budget: src.rank.pinned.size}
	if key.chunk == 0 {
		key.chunk = plan.Chunk(bytes, min(src.rank.rate, dst.rank.rate), g.opts.PerCopy)
	}
	fill := func(pr *program) {
		x.reset(op, pr, pr.plan.Ranks)
		x.rank[0], x.in[0], x.stream[0] = src.rank, src.addr(), src.queue()
		last := pr.plan.Ranks - 1 // 0 if local
		x.rank[last], x.out[last], x.stream[last] = dst.rank, dst.addr(), dst.queue()
		switch {
		case route == RouteLocal && src.queue() != dst.queue():
			x.other[0], x.otherRank[0] = src.queue(), src.rank
		case route == RouteDirect:
			x.other[0], x.otherRank[0] = dst.queue(), dst.rank
		}
	}
	if e := o.o.Explain; e != nil {
		p, inline, err := planCopy(route, key)
		if err != nil {
			return Work{}, argument(op, src.rank.index, "%w", err)
		}
		fill(compile(p, inline, g.stride))
		g.explain(e, x, p, g.whyRoute(dst.rank, src.rank, route, o.o.Route))
		e.Route = route
		return Work{}, nil
	}
	pr, err := g.program(key, func() (*plan.Plan, bool, error) { return planCopy(route, key) })
	if err != nil {
		return Work{}, argument(op, src.rank.index, "%w", err)
	}
	fill(pr)
	if g.debug {
		g.log.Debug("gp: copy", "from", src.rank.index, "to", dst.rank.index, "bytes", bytes, "route", route, "chunk", pr.plan.Chunk, "slots", pr.plan.Slots)
	}
	w, err := g.enqueue(x, string(route))
	if err != nil {
		return Work{}, err
	}
	g.stats.Copies++
	g.moved(src.rank.index, dst.rank.index, route, bytes)
	return w, nil
}

// route chooses the way of a copy, or judges the one that was asked for. The
// group's lock is held.
func (g *Group) route(op string, dst, src *Rank, want Route) (Route, error) {
	best := RouteStaged
	switch {
	case dst == src:
		best = RouteLocal
	case g.p2p[src.index][dst.index].use:
		best = RouteDirect
	}
	switch want {
	case RouteAuto, best:
		return best, nil
	case RouteStaged:
		if best == RouteDirect {
			return RouteStaged, nil
		}
		return "", argument(op, src.index, "route %q between buffers of one rank", want)
	case RouteDirect:
		return "", argument(op, src.index, "route %q from rank %d to rank %d: %s", want, src.index, dst.index, g.p2p[src.index][dst.index].why)
	case RouteLocal:
		return "", argument(op, src.index, "route %q between rank %d and rank %d", want, src.index, dst.index)
	}
	return "", argument(op, src.index, "route %q is not known (known: %q %q %q)", want, RouteStaged, RouteDirect, RouteLocal)
}

// whyRoute says what the choice of a route rests on.
func (g *Group) whyRoute(dst, src *Rank, got, want Route) string {
	switch {
	case got == RouteLocal:
		return "both buffers are on one rank"
	case want == got:
		return "asked for"
	}
	return g.p2p[src.index][dst.index].why
}

func planCopy(route Route, k planKey) (p *plan.Plan, inline bool, err error) {
	a := plan.CopyArgs{Bytes: k.count, Chunk: k.chunk, HostBudget: k.budget}
	switch route {
	case RouteLocal:
		p, err = plan.Local(a)
	case RouteDirect:
		p, err = plan.Direct(a)
	default:
		p, err = plan.Copy(a)
	}
	if err != nil {
		return nil, false, err
	}
	// One piece a lane overlaps with nothing: the callers' streams will do.
	return p, len(p.Steps) <= 2, nil
}

// enqueue is what every operation ends with: the check for captured streams,
// then the program. The group's lock is held and the thread is locked.
func (g *Group) enqueue(x *run, algorithm string) (Work, error) {
	if err := g.refuseCapture(x); err != nil {
		x.bind.restore()
		return Work{}, err
	}
	o := g.begin(x.op, algorithm)
	g.pass(x.kind != 0)
	enqueued, err := g.execute(x, o)
	g.passed(x.kind != 0)
	if c := x.bind.restore(); c != api.Success && err == nil {
		enqueued, err = true, g.callError(x.op, x.at(0), "cuCtxPopCurrent", c)
	}
	if err != nil {
		if enqueued && !x.refused {
			g.fail(err)
		}
		g.abandon(o)
		return Work{}, err
	}
	return g.commit(o), nil
}

// refuseCapture looks at every stream of the caller's. The lanes are the
// group's own and are never captured. The caller puts the thread's context back.
func (g *Group) refuseCapture(x *run) error {
	b := &x.bind
	// Programs start on the first rank, whose context is best the current one then.
	for r, rk := range slices.Backward(x.rank) {
		for side := range 2 {
			s, owner := x.stream[r], rk
			if side == 1 {
				if s, owner = x.other[r], x.otherRank[r]; owner == nil {
					break
				}
			}
			if call, c := b.to(owner.ctx); c != api.Success {
				return g.callError(x.op, owner, call, c)
			}
			status, c := x.api.StreamIsCapturing(s)
			switch {
			case c == api.CaptureImplicit, c == api.Success && status != api.CaptureNone:
				return &Error{x.op, owner.index, ErrCapturing}
			case c != api.Success:
				return g.callError(x.op, owner, "cuStreamIsCapturing", c)
			}
		}
	}
	return nil
}

// order is an operation that moves nothing: the stream of rank hub is ordered
// behind the streams of all, and, unless it copies, theirs behind it.
func (g *Group) order(x *run, hub int, algorithm string) (Work, error) {
	if err := g.refuseCapture(x); err != nil {
		x.bind.restore()
		return Work{}, err
	}
	o := g.begin(x.op, algorithm)
	g.pass(false)
	call, r, c := g.orderCalls(x, hub, o)
	g.passed(false)
	if c2 := x.bind.restore(); c2 != api.Success && c == api.Success {
		call, r, c = "cuCtxPopCurrent", hub, c2
	}
	if c != api.Success {
		err := g.callError(x.op, x.at(r), call, c)
		g.fail(fmt.Errorf("%w (ordering streams)", err))
		g.abandon(o)
		return Work{}, err
	}
	return g.commit(o), nil
}

func (g *Group) orderCalls(x *run, hub int, o *operation) (string, int, api.Code) {
	d := x.api
	// all calls f for each stream of the callers' but the hub's.
	all := func(f func(r int, owner *Rank, s api.Stream) (string, api.Code)) (string, int, api.Code) {
		for r := range x.rank {
			for side := range 2 {
				s, owner := x.stream[r], x.rank[r]
				if side == 1 {
					s, owner = x.other[r], x.otherRank[r]
				}
				if owner == nil || s == x.stream[hub] && owner.ctx == x.rank[hub].ctx {
					continue
				}
				if call, c := x.bind.to(owner.ctx); c != api.Success {
					return call, r, c
				}
				if call, c := f(r, owner, s); c != api.Success {
					return call, r, c
				}
			}
		}
		return "", hub, api.Success
	}
	if call, at, c := all(func(r int, owner *Rank, s api.Stream) (string, api.Code) {
		if c := d.EventRecord(owner.fenceEvent, s); c != api.Success {
			return "cuEventRecord", c
		}
		if call, c := x.bind.to(x.rank[hub].ctx); c != api.Success {
			return call, c
		}
		return "cuStreamWaitEvent", d.StreamWaitEvent(x.stream[hub], owner.fenceEvent)
	}); c != api.Success {
		return call, at, c
	}
	if call, c := x.bind.to(x.rank[hub].ctx); c != api.Success {
		return call, hub, c
	}
	m, c := x.newMark(x.rank[hub])
	if c != api.Success {
		return "cuEventCreate", hub, c
	}
	m.on(x.stream[hub])
	o.marks = append(o.marks, m)
	if c := d.EventRecord(m.ev, x.stream[hub]); c != api.Success {
		return "cuEventRecord", hub, c
	}
	if x.op == "copy" || x.op == opSendRecv {
		return "", hub, api.Success
	}
	return all(func(_ int, _ *Rank, s api.Stream) (string, api.Code) {
		return "cuStreamWaitEvent", d.StreamWaitEvent(s, m.ev)
	})
}
