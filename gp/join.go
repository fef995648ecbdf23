// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"context"
	"fmt"
	"sync"
)

// joins gathers the calls of goroutines that each speak for one rank: the last
// to arrive enqueues for all.
type joins struct {
	mu    sync.Mutex
	round *round
	n     int
	gone  bool
}

// A round is one collective that is being gathered.
type round struct {
	have  [MaxRanks]bool
	bufs  [MaxRanks]Buffer
	ops   [MaxRanks]Op
	count int

	done chan struct{} // closed when the round has been enqueued, or has failed
	left chan struct{} // closed, and made anew, when a rank takes its buffer back
	work Work
	err  error
}

func (j *joins) init(n int) { j.n = n }

// AllReduce joins the other ranks' AllReduce: each rank's goroutine calls it
// with its own buffer, and the last to arrive enqueues for all. All calls
// return the same Work, or all the same error: a mismatch of type, length or
// reduction fails every rank and enqueues nothing. A call whose ctx ends while
// it waits for others takes its buffer back and leaves the group usable.
//
// A rank's next call waits for its former one's round to be complete.
func (r *Rank) AllReduce(ctx context.Context, b Buffer, op Op) (Work, error) {
	const name = "all_reduce"
	g := r.g
	if err := g.usable(name); err != nil {
		return Work{}, err
	}
	if err := g.check(name, &b); err != nil {
		return Work{}, err
	}
	if b.rank != r {
		return Work{}, argument(name, r.index, "buffer of rank %d", b.rank.index)
	}
	if !op.Valid() {
		return Work{}, argument(name, r.index, "%v is not a reduction", op)
	}
	if err := ctx.Err(); err != nil {
		return Work{}, &Error{name, r.index, err}
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
			return Work{}, &Error{name, r.index, ctx.Err()}
		}
		j.mu.Lock()
	}
	if j.gone {
		j.mu.Unlock()
		return Work{}, &Error{name, r.index, fmt.Errorf("group: %w", ErrClosed)}
	}
	if j.round == nil {
		j.round = &round{done: make(chan struct{}), left: make(chan struct{})}
	}
	rd := j.round
	rd.have[r.index], rd.bufs[r.index], rd.ops[r.index] = true, b, op
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
	if j.round == rd { // not complete: take the buffer back
		rd.have[r.index], rd.bufs[r.index] = false, Buffer{}
		rd.count--
		close(rd.left)
		rd.left = make(chan struct{})
		j.mu.Unlock()
		return Work{}, &Error{name, r.index, ctx.Err()}
	}
	j.mu.Unlock()
	// The last has arrived, and is enqueueing or has done so.
	<-rd.done
	return rd.work, rd.err
}

func (g *Group) joined(rd *round) (Work, error) {
	n := len(g.ranks)
	for i := 1; i < n; i++ {
		if rd.ops[i] != rd.ops[0] {
			return Work{}, argument("all_reduce", i, "reduction %v, and rank 0's is %v", rd.ops[i], rd.ops[0])
		}
	}
	return g.AllReduce(rd.bufs[:n], rd.ops[0])
}

// closed fails those who wait for others that will not come.
func (j *joins) closed() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.gone = true
	if rd := j.round; rd != nil {
		j.round = nil
		rd.err = &Error{"all_reduce", -1, fmt.Errorf("group: %w", ErrClosed)}
		close(rd.done)
	}
}
