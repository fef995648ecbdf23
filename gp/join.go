// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"context"
	"sync"
)

// RankOps are the collectives for programs that have one goroutine a GPU. Each
// rank's goroutine calls the method of its own rank with its own buffers; the
// last to arrive enqueues for all. All calls return the same Work, or all the
// same error: a mismatch of operation, type, length, reduction, root or options
// fails every rank and enqueues nothing. A call whose ctx ends while it waits
// for others takes its buffers back and leaves the group usable.
//
// A rank's next call waits for its former one's round to be complete. A Rank
// embeds one with the defaults; With makes another.
type RankOps struct {
	r *Rank
	o CallOptions
}

// With returns the operations under other options.
func (o RankOps) With(c CallOptions) RankOps {
	o.o = c
	return o
}

// AllReduce is Ops.AllReduce.
func (o RankOps) AllReduce(ctx context.Context, b Buffer, op Op) (Work, error) {
	return o.join(ctx, part{op: opAllReduce, dst: b, src: b, red: op, root: -1})
}

// AllReduceTo is Ops.AllReduceTo.
func (o RankOps) AllReduceTo(ctx context.Context, dst, src Buffer, op Op) (Work, error) {
	return o.join(ctx, part{op: opAllReduce, dst: dst, src: src, red: op, root: -1})
}

// AllGather is Ops.AllGather.
func (o RankOps) AllGather(ctx context.Context, dst, src Buffer) (Work, error) {
	return o.join(ctx, part{op: opAllGather, dst: dst, src: src, root: -1})
}

// ReduceScatter is Ops.ReduceScatter.
func (o RankOps) ReduceScatter(ctx context.Context, dst, src Buffer, op Op) (Work, error) {
	return o.join(ctx, part{op: opReduceScatter, dst: dst, src: src, red: op, root: -1})
}

// AllToAll is Ops.AllToAll.
func (o RankOps) AllToAll(ctx context.Context, dst, src Buffer) (Work, error) {
	return o.join(ctx, part{op: opAllToAll, dst: dst, src: src, root: -1})
}

// Broadcast is Ops.Broadcast in place: the root's b goes to all others'.
func (o RankOps) Broadcast(ctx context.Context, b Buffer, root int) (Work, error) {
	return o.join(ctx, part{op: opBroadcast, dst: b, src: b, root: root})
}

// Reduce is Ops.Reduce in place: the root's b becomes the result, the others'
// stay as they are.
func (o RankOps) Reduce(ctx context.Context, b Buffer, root int, op Op) (Work, error) {
	return o.join(ctx, part{op: opReduce, dst: b, src: b, red: op, root: root})
}

// A part is what one rank brings to a collective.
type part struct {
	op       collective
	dst, src Buffer
	red      Op
	root     int
	o        CallOptions
}

// joins gathers the calls of goroutines that each speak for one rank: the last
// to arrive enqueues for all.
type joins struct {
	mu    sync.Mutex
	round *round
	n     int
	over  error // why no round is gathered any more
}

// A round is one collective that is being gathered.
type round struct {
	have  [MaxRanks]bool
	parts [MaxRanks]part
	count int

	done chan struct{} // closed when the round has been enqueued, or has failed
	left chan struct{} // closed, and made anew, when a rank takes its buffers back
	work Work
	err  error
}

func (j *joins) init(n int) { j.n = n }

// join brings a rank's part to the round.
func (o RankOps) join(ctx context.Context, p part) (Work, error) {
	r := o.r
	g := r.g
	p.o = o.o
	if err := g.usable(p.op.name()); err != nil {
		return Work{}, err
	}
	for _, b := range [2]*Buffer{&p.dst, &p.src} {
		if err := g.check(p.op.name(), b); err != nil {
			return Work{}, err
		}
		if b.rank != r {
			return Work{}, argument(p.op.name(), r.index, "buffer of rank %d", b.rank.index)
		}
	}
	switch {
	case p.op.reduces() && !p.red.Valid():
		return Work{}, argument(p.op.name(), r.index, "%v is not a reduction", p.red)
	case (p.op == opBroadcast || p.op == opReduce) && (p.root < 0 || p.root >= len(g.ranks)):
		return Work{}, argument(p.op.name(), r.index, "root %d of %d ranks", p.root, len(g.ranks))
	}
	if err := ctx.Err(); err != nil {
		return Work{}, &Error{p.op.name(), r.index, err}
	}

	j := &g.joins
	j.mu.Lock()
	for j.round != nil && j.round.have[r.index] {
		// The rank's own former call is still gathering: one round at a time.
		done, left := j.round.done, j.round.left
		j.mu.Unlock()
		select {
		case <-done:
		case <-left:
		case <-ctx.Done():
			return Work{}, &Error{p.op.name(), r.index, ctx.Err()}
		}
		j.mu.Lock()
	}
	if j.over != nil {
		defer j.mu.Unlock()
		return Work{}, &Error{p.op.name(), r.index, j.over}
	}
	if j.round == nil {
		j.round = &round{done: make(chan struct{}), left: make(chan struct{})}
	}
	rd := j.round
	rd.have[r.index], rd.parts[r.index] = true, p
	rd.count++
	if rd.count == j.n {
		j.round = nil
		j.mu.Unlock()
		rd.work, rd.err = g.joined(rd)
		close(rd.done)
		return rd.work, rd.err
	}
	j.mu.Unlock()

	select {
	case <-rd.done:
		return rd.work, rd.err
	case <-ctx.Done():
	}
	j.mu.Lock()
	if j.round == rd { // not complete: take the buffers back
		rd.have[r.index], rd.parts[r.index] = false, part{}
		rd.count--
		close(rd.left)
		rd.left = make(chan struct{})
		j.mu.Unlock()
		return Work{}, &Error{p.op.name(), r.index, ctx.Err()}
	}
	j.mu.Unlock()
	// The last has arrived, and is enqueueing or has done so.
	<-rd.done
	return rd.work, rd.err
}

// joined enqueues a round that is complete.
func (g *Group) joined(rd *round) (Work, error) {
	n := len(g.ranks)
	first := &rd.parts[0]
	for i := 1; i < n; i++ {
		switch p := &rd.parts[i]; {
		case p.op != first.op:
			return Work{}, argument(first.op.name(), i, "%s, and rank 0 calls %s", p.op.name(), first.op.name())
		case p.red != first.red:
			return Work{}, argument(first.op.name(), i, "reduction %v, and rank 0's is %v", p.red, first.red)
		case p.root != first.root:
			return Work{}, argument(first.op.name(), i, "root %d, and rank 0's is %d", p.root, first.root)
		case p.o != first.o:
			return Work{}, argument(first.op.name(), i, "options %+v, and rank 0's are %+v", p.o, first.o)
		}
	}
	var dst, src [MaxRanks]Buffer
	for i := range n {
		dst[i], src[i] = rd.parts[i].dst, rd.parts[i].src
	}
	c := call{op: first.op, dst: dst[:n], src: src[:n], red: first.red, root: first.root}
	switch first.op {
	case opBroadcast:
		c.src = src[first.root : first.root+1]
	case opReduce:
		c.dst = dst[first.root : first.root+1]
	}
	return g.With(first.o).collective(&c)
}

// end fails those who wait for others that will not come, since the group is
// closed or has failed, and all who come later.
func (j *joins) end(why error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.over == nil {
		j.over = why
	}
	if rd := j.round; rd != nil {
		j.round = nil
		rd.err = &Error{"join", -1, why}
		close(rd.done)
	}
}
