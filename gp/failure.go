// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"fmt"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
)

// A failure ends a group: some of an operation's calls went out and one did not,
// or a rank's context is lost. Whatever fails otherwise leaves the group as good
// as before.
type failure struct{ err error }

// Err is the failure after which the group is only good to be closed, or nil.
func (g *Group) Err() error {
	if f := g.failure.Load(); f != nil {
		return f.err
	}
	return nil
}

// fail keeps the first failure. Later calls answer with it.
func (g *Group) fail(err error) {
	if g.failure.CompareAndSwap(nil, &failure{err}) {
		g.abort()
		g.joins.end(fmt.Errorf("%w: %w", ErrFailed, err))
		g.log.Error("gp: group failed", "error", err)
	}
}

// usable answers ErrClosed or ErrFailed.
func (g *Group) usable(op string) error {
	if g.closing.Load() {
		return &Error{op, -1, fmt.Errorf("group: %w", ErrClosed)}
	}
	if f := g.failure.Load(); f != nil {
		return &Error{op, -1, fmt.Errorf("%w: %w", ErrFailed, f.err)}
	}
	return nil
}

// callError is a driver call that failed on a rank's context.
func (g *Group) callError(op string, r *Rank, call string, c api.Code) error {
	return g.rankError(op, r, hook.Error(g.drv, r.cc, call, c))
}

// rankError is an error of the driver on a rank's context. If the context is lost
// it is the group's failure.
func (g *Group) rankError(op string, r *Rank, err error) error {
	e := &Error{op, r.index, err}
	if g.lost(r) {
		g.fail(e)
	}
	return e
}

// lost tells whether a rank's context is lost, after a call on it has failed. Few
// codes say so by themselves: a GPU that has fallen off the bus answers whatever
// it likes, ErrUnknown for instance, and answers it to every call. So the context
// is asked again, by an event that the rank has had from its beginning.
func (g *Group) lost(r *Rank) bool {
	if r.cc.Err() == nil && r.fenceEvent != 0 {
		g.relaxed(func() {
			if c := g.api.EventQuery(r.fenceEvent); c != api.Success && c != api.NotReady {
				hook.Lose(g.drv, r.cc, "cuEventQuery", c)
			}
		})
	}
	return r.cc.Err() != nil
}
