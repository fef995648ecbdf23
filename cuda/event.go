// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// An Event marks a point in a stream. Its methods may be called from any
// goroutine.
type Event struct {
	ctx    *Context
	h      api.Event
	timing bool
	closed atomic.Bool
	leak   runtime.Cleanup
}

// NewEvent makes an event without timing, which is cheaper to record
// (cuEventCreate, CU_EVENT_DISABLE_TIMING and flags). One that the host waits
// on wants EventBlockingSync, so that the wait does not spin.
func (c *Context) NewEvent(flags EventFlag) (*Event, error) {
	return c.newEvent(flags | EventDisableTiming)
}

// NewTimingEvent makes an event that Elapsed can use (cuEventCreate).
func (c *Context) NewTimingEvent(flags EventFlag) (*Event, error) {
	return c.newEvent(flags &^ EventDisableTiming)
}

func (c *Context) newEvent(flags api.EventFlag) (e *Event, err error) {
	const op = "cuEventCreate"
	b, err := c.enterToMake(op)
	if err != nil {
		return nil, err
	}
	defer settle(c, &e, &err)
	defer b.exit(&err)
	h, code := b.seam().EventCreate(flags)
	if code != api.Success {
		return nil, b.check(op, code)
	}
	e = &Event{ctx: c, h: h, timing: flags&EventDisableTiming == 0}
	e.leak = watchLeak(e, "event", 0)
	return e, nil
}

func (e *Event) enter(op string) (binding, error) {
	if e.closed.Load() {
		return binding{}, closedError(op, "event")
	}
	return e.ctx.st.enter(op)
}

// Context is the event's context.
func (e *Event) Context() *Context { return e.ctx }

// Handle is the CUevent.
func (e *Event) Handle() EventHandle { return e.h }

// Record puts the event behind the work enqueued on s so far (cuEventRecord).
// The stream must be of the event's own context: ErrWrongContext otherwise,
// which the driver would answer with a bare INVALID_HANDLE.
func (e *Event) Record(s *Stream) (err error) {
	const op = "cuEventRecord"
	if e.ctx.st.h != s.ctx.st.h {
		return e.ctx.st.d.wrongContext(op, "an event is recorded on a stream of its own context only; "+
			"record an event of the stream's context, and let the other stream wait for it")
	}
	if s.closed.Load() {
		return closedError(op, "stream")
	}
	b, err := e.enter(op)
	if err != nil {
		return err
	}
	defer b.exit(&err)
	return b.check(op, b.seam().EventRecord(e.h, s.h))
}

// Query tells whether what the event recorded last is done (cuEventQuery). An
// event that was never recorded is done.
func (e *Event) Query() (done bool, err error) {
	const op = "cuEventQuery"
	b, err := e.enter(op)
	if err != nil {
		return false, err
	}
	defer b.exit(&err)
	code := b.seam().EventQuery(e.h)
	if code == api.NotReady {
		return false, nil
	}
	return code == api.Success, b.check(op, code)
}

// Synchronize waits until what the event recorded last is done
// (cuEventSynchronize). It blocks an OS thread.
func (e *Event) Synchronize() (err error) {
	const op = "cuEventSynchronize"
	b, err := e.enter(op)
	if err != nil {
		return err
	}
	defer b.exit(&err)
	return b.check(op, b.seam().EventSynchronize(e.h))
}

// Elapsed is the time between two events that are both done
// (cuEventElapsedTime). Both are made by NewTimingEvent on one context.
func Elapsed(start, end *Event) (t time.Duration, err error) {
	const op = "cuEventElapsedTime"
	st := start.ctx.st
	if !start.timing || !end.timing {
		return 0, st.d.newError(op, api.InvalidHandle, "both events must be made by NewTimingEvent")
	}
	if st.h != end.ctx.st.h {
		return 0, st.d.wrongContext(op, "both events must be of one context")
	}
	if end.closed.Load() {
		return 0, closedError(op, "event")
	}
	b, err := start.enter(op)
	if err != nil {
		return 0, err
	}
	defer b.exit(&err)
	ms, code := b.seam().EventElapsedTime(start.h, end.h)
	if code != api.Success {
		if code == api.NotReady {
			return 0, st.d.newError(op, code, "wait for the later event first")
		}
		return 0, b.check(op, code)
	}
	return time.Duration(float64(ms) * float64(time.Millisecond)), nil
}

// Close destroys the event (cuEventDestroy); waits already enqueued on it stay
// in force. A second Close does nothing.
func (e *Event) Close() error {
	if e.closed.Swap(true) {
		return nil
	}
	e.leak.Stop()
	return e.ctx.st.destroy("cuEventDestroy", func(d api.Driver) api.Code { return d.EventDestroy(e.h) })
}
