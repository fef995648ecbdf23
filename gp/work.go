// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
)

// Work is an operation that has been enqueued. It is a value and need not be
// waited for: the buffers' streams are ordered with it. The zero Work is done.
type Work struct {
	o   *operation
	gen uint64
}

// operation is what a Work refers to. It is used again once it is known to have
// run; gen tells the Works of then from those of now.
type operation struct {
	g         *Group
	name      string
	algorithm string
	finished  atomic.Bool // all marks are done, or err is set

	mu  sync.Mutex
	gen uint64
	// exchange says that its kernels may have given up waiting for each other,
	// which the driver does not know of.
	exchange bool
	marks    []*mark
	// besides are ranks whose end the marks imply, one for each context that no
	// mark is of. If one of those is lost, the marks may still be reached, or
	// never: only asking it tells.
	besides []*Rank
	err     error
}

// operations are those of a group. The group's lock guards it.
type operations struct {
	open []*operation // enqueued and not known to have run, oldest first
	free []*operation
}

// sweepAbove is how many operations may be open before enqueueing looks
// whether the oldest have run, which costs a driver call each.
const sweepAbove = 64

// begin returns an operation to fill in. The group's lock is held.
func (g *Group) begin(name, algorithm string) *operation {
	s := &g.ops
	if len(s.open) > sweepAbove {
		g.relaxed(func() {
			// If that one has run, most before it are known to have without asking.
			s.open[len(s.open)/2].poll()
			for i := 0; i < len(s.open) && s.open[i].poll(); i++ {
			}
		})
	}
	keep := s.open[:0]
	for _, o := range s.open {
		if o.finished.Load() && o.recycle() {
			s.free = append(s.free, o)
		} else {
			keep = append(keep, o)
		}
	}
	clear(s.open[len(keep):])
	s.open = keep
	var o *operation
	if n := len(s.free); n > 0 {
		o = s.free[n-1]
		s.free = s.free[:n-1]
	} else {
		o = &operation{g: g}
	}
	o.name, o.algorithm, o.exchange = name, algorithm, false
	return o
}

// covers tells whether asking after the operation asks after a context.
func (o *operation) covers(c api.Context) bool {
	for _, m := range o.marks {
		if m.rank.ctx == c {
			return true
		}
	}
	for _, r := range o.besides {
		if r.ctx == c {
			return true
		}
	}
	return false
}

// commit makes the operation, which the group's run has enqueued, visible and
// returns its Work.
func (g *Group) commit(o *operation) Work {
	for _, r := range g.run.rank {
		if !o.covers(r.ctx) {
			o.besides = append(o.besides, r)
		}
	}
	o.finished.Store(false)
	g.ops.open = append(g.ops.open, o)
	return Work{o, o.gen}
}

// abandon takes back an operation that enqueued nothing.
func (g *Group) abandon(o *operation) {
	for _, m := range o.marks {
		m.release()
	}
	o.marks, o.besides = o.marks[:0], o.besides[:0]
	g.ops.free = append(g.ops.free, o)
}

// recycle prepares a finished operation for its next use. One that ended in an
// error stays, so that its Works keep answering it.
func (o *operation) recycle() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return false
	}
	for _, m := range o.marks {
		m.release()
	}
	clear(o.marks)
	o.marks, o.besides = o.marks[:0], o.besides[:0]
	o.gen++
	return true
}

// pending are Works of all that is open.
func (s *operations) pending(g *Group) []Work {
	g.mu.Lock()
	defer g.mu.Unlock()
	ws := make([]Work, 0, len(s.open))
	for _, o := range s.open {
		ws = append(ws, Work{o, o.gen})
	}
	return ws
}

// poll asks the driver whether the operation has run.
func (o *operation) poll() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pollLocked(false)
}

// pollLocked asks after the marks and, once they are done, after the contexts
// besides: before that only if patient says that there is time for it.
func (o *operation) pollLocked(patient bool) bool {
	if o.finished.Load() {
		return true
	}
	done := true
	for _, m := range o.marks {
		if m.isDone() {
			continue
		}
		// Who has time asks after all: one rank may wait in vain for another whose
		// context is lost.
		if !done && !patient {
			break
		}
		switch c := o.g.api.EventQuery(m.ev); c {
		case api.Success:
			m.finish()
		case api.NotReady:
			done = false
		default:
			return o.end(m.rank, c)
		}
	}
	if !done && o.exchange {
		if by := o.g.patience.Load(); by != 0 && int64(o.g.host.Now()) > by {
			o.g.abort()
		}
	}
	if done || patient {
		for _, r := range o.besides {
			// Any event of the context will do.
			if c := o.g.api.EventQuery(r.fenceEvent); c != api.Success && c != api.NotReady {
				return o.end(r, c)
			}
		}
	}
	if done && o.exchange {
		if err := o.g.gaveUp(o.name); err != nil {
			o.err = err
			o.g.fail(err)
		}
	}
	if done {
		o.finished.Store(true)
	}
	return done
}

// end is the operation's end in an error.
func (o *operation) end(r *Rank, c api.Code) bool {
	o.err = o.g.callError(o.name, r, "cuEventQuery", c)
	o.g.fail(o.err)
	o.finished.Store(true)
	return true
}

// ready tells whether the work has run, and how it ended. Patient is as in
// pollLocked.
func (w Work) ready(patient bool) (bool, error) {
	if w.o == nil {
		return true, nil
	}
	w.o.mu.Lock()
	defer w.o.mu.Unlock()
	if w.o.gen != w.gen {
		return true, nil // known to have run well, and used for another since
	}
	if !w.o.pollLocked(patient) {
		return false, nil
	}
	return true, w.o.err
}

// Done tells whether the work has run (cuEventQuery), well or not.
func (w Work) Done() bool {
	if w.o == nil {
		return true
	}
	defer w.o.g.logs.flush()
	var done bool
	w.o.g.relaxed(func() { done, _ = w.ready(true) })
	return done
}

// Algorithm names how the work is done: "staged", "ring". It is known until the
// work has been waited for.
func (w Work) Algorithm() string {
	if w.o == nil {
		return ""
	}
	w.o.mu.Lock()
	defer w.o.mu.Unlock()
	if w.o.gen != w.gen {
		return ""
	}
	return w.o.algorithm
}

// Before makes what is enqueued on s afterwards wait for the work
// (cuStreamWaitEvent). The stream may be of any context.
func (w Work) Before(s *cuda.Stream) error {
	const op = "before"
	if s == nil {
		return argument(op, -1, "nil stream")
	}
	if w.o == nil {
		return nil
	}
	w.o.mu.Lock()
	defer w.o.mu.Unlock()
	if w.o.gen != w.gen {
		return nil
	}
	if w.o.err != nil {
		return w.o.err
	}
	fail := func(err error) error {
		for _, r := range w.o.g.ranks {
			if r.ctx == api.Context(s.Context().Handle()) {
				return w.o.g.rankError(op, r, err)
			}
		}
		return &Error{op, -1, err}
	}
	capturing, err := s.Capturing()
	if err != nil {
		return fail(err)
	}
	if capturing {
		return &Error{op, -1, ErrCapturing}
	}
	err = s.Context().Do(func() error {
		for _, m := range w.o.marks {
			if m.isDone() {
				continue
			}
			if c := w.o.g.api.StreamWaitEvent(api.Stream(s.Handle()), m.ev); c != api.Success {
				return hook.Error(w.o.g.drv, s.Context(), "cuStreamWaitEvent", c)
			}
		}
		return nil
	})
	if err != nil {
		return fail(err)
	}
	return nil
}

// spin is how long a wait asks the driver without pause. Small messages are
// done by then.
const spin = 50 * time.Microsecond

// Wait returns when the work has run, with the error it ended in, or when ctx
// is done; the work goes on then. It polls without pause for 50 us. After that
// one polls for all goroutines that wait on the group: for a millisecond in
// turns with whoever else wants the processor, then with pauses that grow with
// the wait.
func (w Work) Wait(ctx context.Context) error {
	if w.o == nil {
		return nil
	}
	g := w.o.g
	defer g.logs.flush()
	g.stats.waits.Add(1)
	start := g.host.Now()
	for patient := false; ; patient = true {
		var done bool
		var err error
		g.relaxed(func() {
			from := g.host.Now()
			for {
				done, err = w.ready(patient)
				if done || g.host.Now()-from >= spin {
					return
				}
			}
		})
		if done {
			return err
		}
		if e := ctx.Err(); e != nil {
			return &Error{"wait", -1, e}
		}
		if !g.opts.LowLatency {
			break
		}
		runtime.Gosched()
	}
	g.stats.longWaits.Add(1)
	return g.waiters.wait(ctx, w, start)
}

// relaxed runs f with the goroutine locked to its thread and the thread's
// capture checks relaxed. While anything in the process captures a stream in
// the global mode, calls such as cuEventQuery and cuMemAlloc would otherwise be
// refused and spoil that capture.
func (g *Group) relaxed(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if old, c := g.api.ThreadExchangeStreamCaptureMode(api.CaptureRelaxed); c == api.Success {
		defer g.api.ThreadExchangeStreamCaptureMode(old)
	}
	f()
}

// waiters are the goroutines that wait on a group. One of them leads: it polls
// for all, and hands the lead on when its own work has run or its context is
// done. So a wait needs no goroutine of its own, and the one that waits alone
// returns without being woken by another.
type waiters struct {
	g       *Group
	mu      sync.Mutex
	list    []*waiting
	spare   []*waiting
	leading bool
}

type waiting struct {
	w     Work
	start time.Duration
	done  chan turn // of capacity 1
}

// A turn is what a goroutine that waits is told: that its work has run, or that
// the lead is its own.
type turn struct {
	lead bool
	err  error
}

// The pauses between two polls are a share of the time waited, so that a wait is
// half a percent too long at most, and within bounds: a shorter pause costs as
// much as polling. A wait of less than a millisecond is not worth a pause.
const (
	attentive  = time.Millisecond
	minPause   = 5 * time.Microsecond
	maxPause   = 500 * time.Microsecond
	pauseShare = 200
)

// pauseAfter is how long to pause between two polls when a wait has taken so
// long already.
func pauseAfter(waited time.Duration) time.Duration {
	if waited < attentive {
		return 0
	}
	return min(max(waited/pauseShare, minPause), maxPause)
}

func (t *waiters) wait(ctx context.Context, w Work, start time.Duration) error {
	t.mu.Lock()
	e := t.entry()
	e.w, e.start = w, start
	t.list = append(t.list, e)
	lead := !t.leading
	t.leading = true
	t.mu.Unlock()
	for {
		if lead {
			return t.lead(ctx, e)
		}
		select {
		case is := <-e.done:
			if lead = is.lead; !lead {
				t.forget(e)
				return is.err
			}
		case <-ctx.Done():
			t.mu.Lock()
			t.remove(e)
			t.mu.Unlock()
			// The leader may have spoken in between.
			select {
			case is := <-e.done:
				if is.lead {
					t.handOn()
					break
				}
				t.forget(e)
				return is.err
			default:
			}
			t.forget(e)
			return &Error{"wait", -1, ctx.Err()}
		}
	}
}

// lead polls for all until e's own work has run or ctx is done.
func (t *waiters) lead(ctx context.Context, e *waiting) error {
	for {
		pause := maxPause
		var mine bool
		var err error
		t.mu.Lock()
		t.g.relaxed(func() {
			now := t.g.host.Now()
			keep := t.list[:0]
			for _, x := range t.list {
				done, failed := x.w.ready(true)
				switch {
				case !done:
					keep = append(keep, x)
					pause = min(pause, pauseAfter(now-x.start))
				case x == e:
					mine, err = true, failed
				default:
					x.done <- turn{err: failed}
				}
			}
			clear(t.list[len(keep):])
			t.list = keep
		})
		over := ctx.Err()
		if !mine && over != nil {
			t.remove(e)
			err = &Error{"wait", -1, over}
		}
		t.mu.Unlock()
		if mine || over != nil {
			t.handOn()
			t.forget(e)
			return err
		}
		if pause > 0 {
			t.g.host.Sleep(pause)
		}
		runtime.Gosched()
	}
}

// handOn gives the lead to another that waits, or to the next to come.
func (t *waiters) handOn() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.list) == 0 {
		t.leading = false
		return
	}
	t.list[0].done <- turn{lead: true}
}

func (t *waiters) entry() *waiting {
	if n := len(t.spare); n > 0 {
		e := t.spare[n-1]
		t.spare = t.spare[:n-1]
		return e
	}
	return &waiting{done: make(chan turn, 1)}
}

func (t *waiters) forget(e *waiting) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.w = Work{}
	t.spare = append(t.spare, e)
}

func (t *waiters) remove(e *waiting) {
	for i, x := range t.list {
		if x == e {
			t.list = append(t.list[:i], t.list[i+1:]...)
			return
		}
	}
}

// closed ends what is still open for those who wait.
func (s *operations) closed() {
	for _, o := range s.open {
		o.mu.Lock()
		if !o.finished.Load() {
			o.err = &Error{o.name, -1, fmt.Errorf("group: %w", ErrClosed)}
			o.finished.Store(true)
		}
		o.mu.Unlock()
	}
}
