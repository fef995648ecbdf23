// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"runtime"
	"sync/atomic"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// A Stream is a queue of work of one context. Its methods may be called from
// any goroutine.
type Stream struct {
	ctx    *Context
	h      api.Stream
	owned  bool // we made it, and destroy it
	found  bool // Driver.WrapStream found ctx, which is the stream's own reference
	closed atomic.Bool
	leak   runtime.Cleanup
}

// NewStream makes a stream that does not synchronise with the legacy default
// stream (cuStreamCreate, CU_STREAM_NON_BLOCKING).
func (c *Context) NewStream() (*Stream, error) { return c.newStream(StreamNonBlocking) }

// NewBlockingStream makes a stream that work on the legacy default stream
// waits for, and that waits for it (cuStreamCreate, CU_STREAM_DEFAULT).
func (c *Context) NewBlockingStream() (*Stream, error) { return c.newStream(StreamDefault) }

func (c *Context) newStream(flags api.StreamFlag) (s *Stream, err error) {
	const op = "cuStreamCreate"
	b, err := c.enterToMake(op)
	if err != nil {
		return nil, err
	}
	defer settle(c, &s, &err)
	defer b.exit(&err)
	h, code := b.seam().StreamCreate(flags)
	if code != api.Success {
		return nil, b.check(op, code)
	}
	s = &Stream{ctx: c, h: h, owned: true}
	s.leak = watchLeak(s, "stream", 0)
	return s, nil
}

// LegacyStream is the context's legacy default stream (handle 0): it waits for
// all blocking streams of the context, and they for it. Closing it does
// nothing.
func (c *Context) LegacyStream() *Stream { return &Stream{ctx: c, h: api.StreamNull} }

// WrapStream makes a Stream of a foreign handle that belongs to this context,
// a cudaStream_t for instance. The handles 0 and 1 mean the context's legacy
// default stream. The per-thread default stream (handle 2) is refused: what it
// names changes with the thread, and a goroutine does not stay on one. Any
// other handle is checked against the driver (cuStreamGetCtx).
//
// A wrapped stream is never destroyed by this package.
func (c *Context) WrapStream(h StreamHandle) (s *Stream, err error) {
	const op = "WrapStream"
	if c.closed.Load() {
		return nil, closedError(op, "context")
	}
	switch h {
	case api.StreamNull, api.StreamLegacy:
		return &Stream{ctx: c, h: h}, nil
	case api.StreamPerThread:
		return nil, perThreadError(c.st.d)
	}
	b, err := c.enter("cuStreamGetCtx")
	if err != nil {
		return nil, err
	}
	defer b.exit(&err)
	owner, code := b.seam().StreamGetCtx(h)
	if code != api.Success {
		return nil, b.check("cuStreamGetCtx", code)
	}
	if owner != c.st.h {
		return nil, c.st.d.wrongContext(op, "the stream belongs to another context than the one that it is wrapped for")
	}
	return &Stream{ctx: c, h: h}, nil
}

// WrapStream makes a Stream of a foreign handle and finds the context that it
// belongs to (cuStreamGetCtx). The handles 0 and 1 belong to whatever context
// is current and need Context.WrapStream; the per-thread default stream
// (handle 2) is refused.
//
// The context of the result is Stream.Context, valid until the stream is
// closed. Who made the stream keeps the context alive.
func (d *Driver) WrapStream(h StreamHandle) (*Stream, error) {
	const op = "WrapStream"
	switch h {
	case api.StreamNull, api.StreamLegacy:
		e := d.newError(op, api.InvalidHandle, "stream handles 0 and 1 are the legacy default stream of whatever context is current: "+
			"say which context with Context.WrapStream or Context.LegacyStream")
		return nil, e
	case api.StreamPerThread:
		return nil, perThreadError(d)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	owner, code := d.seam.StreamGetCtx(h)
	if code != api.Success {
		return nil, d.check("cuStreamGetCtx", code)
	}
	d.mu.Lock()
	st := d.contexts[owner]
	if st != nil {
		st.refs++
	}
	d.mu.Unlock()
	if st == nil {
		// Only the current context can be asked for its device.
		st = &contextState{d: d, h: owner}
		if err := st.findDevice(); err != nil {
			return nil, err
		}
		d.mu.Lock()
		if known := d.contexts[owner]; known != nil {
			st = known
		} else {
			d.contexts[owner] = st
		}
		st.refs++
		d.mu.Unlock()
	}
	return &Stream{ctx: &Context{st: st}, h: h, found: true}, nil
}

// findDevice asks which device a foreign context is on.
func (st *contextState) findDevice() (err error) {
	const op = "cuCtxGetDevice"
	b, err := st.enter(op)
	if err != nil {
		return err
	}
	defer b.exit(&err)
	dev, code := b.seam().CtxGetDevice()
	st.dev = dev
	return b.check(op, code)
}

func perThreadError(d *Driver) error {
	return d.newError("WrapStream", api.InvalidHandle, "the per-thread default stream (handle 2, cudaStreamPerThread) is not accepted: "+
		"which stream it names depends on the OS thread, and goroutines move between threads; pass a stream made with cuStreamCreate or cudaStreamCreate")
}

func (s *Stream) enter(op string) (binding, error) {
	if s.closed.Load() {
		return binding{}, closedError(op, "stream")
	}
	return s.ctx.st.enter(op)
}

// Context is the stream's context.
func (s *Stream) Context() *Context { return s.ctx }

// Closed tells whether Close was called.
func (s *Stream) Closed() bool { return s.closed.Load() }

// Handle is the CUstream.
func (s *Stream) Handle() StreamHandle { return s.h }

// Synchronize waits until the work enqueued so far is done
// (cuStreamSynchronize). It blocks an OS thread, and reports the error of
// earlier asynchronous work.
func (s *Stream) Synchronize() (err error) {
	const op = "cuStreamSynchronize"
	b, err := s.enter(op)
	if err != nil {
		return err
	}
	defer b.exit(&err)
	return b.check(op, b.seam().StreamSynchronize(s.h))
}

// Query tells whether the work enqueued so far is done (cuStreamQuery).
func (s *Stream) Query() (done bool, err error) {
	const op = "cuStreamQuery"
	b, err := s.enter(op)
	if err != nil {
		return false, err
	}
	defer b.exit(&err)
	code := b.seam().StreamQuery(s.h)
	if code == api.NotReady {
		return false, nil
	}
	return code == api.Success, b.check(op, code)
}

// Wait makes later work of the stream wait for what e recorded last, at the
// time of this call: record first, then wait (cuStreamWaitEvent). The event
// may belong to another context or device. An event that was never recorded
// is no wait.
func (s *Stream) Wait(e *Event) (err error) {
	const op = "cuStreamWaitEvent"
	if e.closed.Load() {
		return closedError(op, "event")
	}
	b, err := s.enter(op)
	if err != nil {
		return err
	}
	defer b.exit(&err)
	return b.check(op, b.seam().StreamWaitEvent(s.h, e.h))
}

// Capturing tells whether the stream is being captured into a graph
// (cuStreamIsCapturing). The legacy default stream counts as captured while a
// blocking stream of its context is: the driver would refuse, and spoil the
// capture, if it were used.
func (s *Stream) Capturing() (capturing bool, err error) {
	const op = "cuStreamIsCapturing"
	b, err := s.enter(op)
	if err != nil {
		return false, err
	}
	defer b.exit(&err)
	status, code := b.seam().StreamIsCapturing(s.h)
	if code == api.CaptureImplicit {
		return true, nil
	}
	return code == api.Success && status != api.CaptureNone, b.check(op, code)
}

// Close destroys a stream made by NewStream; the driver finishes the work that
// is enqueued on it (cuStreamDestroy). A wrapped stream is only forgotten. A
// second Close does nothing.
func (s *Stream) Close() (err error) {
	if s.closed.Swap(true) {
		return nil
	}
	if s.found {
		return s.ctx.Close()
	}
	if !s.owned {
		return nil
	}
	s.leak.Stop()
	return s.ctx.st.destroy("cuStreamDestroy", func(d api.Driver) api.Code { return d.StreamDestroy(s.h) })
}

// destroy frees something made from the context and gives up its reference.
// On a lost context the driver is still called, since pinned memory must go,
// but what it answers was reported by the call that found the loss.
func (st *contextState) destroy(op string, f func(api.Driver) api.Code) (err error) {
	b, err := st.bind(op)
	if err != nil && st.lost.Load() == nil {
		b, err = st.bind(op) // what is not freed now never is
	}
	if err != nil {
		if st.lost.Load() != nil {
			err = nil
		}
		return firstError(err, st.release())
	}
	lost := st.lost.Load() != nil
	err = func() (err error) {
		defer b.exit(&err)
		return b.check(op, f(b.seam()))
	}()
	if lost {
		err = nil
	}
	return firstError(err, st.release())
}

// destroyPortable is destroy of what is no context's own: pinned host memory. If
// the context is lost, or its GPU, another one of the driver's does it.
func (st *contextState) destroyPortable(op string, f func(api.Driver) api.Code) error {
	done, gone := false, false
	err := st.destroy(op, func(d api.Driver) api.Code {
		c := f(d)
		done, gone = c == api.Success, c == api.Unknown || c == api.DeviceUnavailable
		return c
	})
	if done || st.lost.Load() == nil && !gone {
		return err
	}
	d := st.d
	d.mu.Lock()
	var others []*contextState
	for _, o := range d.contexts {
		if o != st && o.lost.Load() == nil {
			o.refs++
			others = append(others, o)
		}
	}
	d.mu.Unlock()
	for _, o := range others {
		if !done { // what it answers is not for who gave up memory of another context
			_ = o.do(op, func(d api.Driver) api.Code {
				c := f(d)
				done = c == api.Success
				return c
			})
		}
		err = firstError(err, o.release())
	}
	return err
}

// do makes a call with the context current.
func (st *contextState) do(op string, f func(api.Driver) api.Code) (err error) {
	b, err := st.enter(op)
	if err != nil {
		return err
	}
	defer b.exit(&err)
	return b.check(op, f(b.seam()))
}

func firstError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
