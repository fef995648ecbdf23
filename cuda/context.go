// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"runtime"
	"sync/atomic"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// A Context is a reference to a CUDA context: a device's primary context from
// Device.Primary, or a foreign one that Driver.WrapStream found.
//
// The current context of CUDA belongs to the OS thread, and goroutines move
// between threads. Methods of Context and of what is made from it may
// therefore be called from any goroutine: each locks its goroutine to the
// thread, makes the context current if it is not, and leaves the thread's
// current context as it found it, also after an error or a panic. That costs
// one driver call (cuCtxGetCurrent) where the context is current already and
// three where it is not; Do spares it to a batch of calls on the seam, and
// makes it one in a batch of methods.
//
// A Context is safe for concurrent use.
type Context struct {
	st     *contextState
	closed atomic.Bool
}

// contextState is what all references to one context share. Streams, events,
// memory and modules hold a reference of their own, so that the order in which
// they and the Context are closed does not matter.
type contextState struct {
	d   *Driver
	h   api.Context
	dev api.Device

	// Under d.mu.
	refs    int
	primary bool // we retained it, and release it with the last reference

	lost atomic.Pointer[Error] // the first sticky error
}

// retain takes a reference for what is being made from c, or a call that needs c. It refuses
// a Context that is closed, under the lock that a closing one needs to give up
// its reference: so no reference is taken to a context that was released.
func (c *Context) retain(op, what string) error {
	st := c.st
	st.d.mu.Lock()
	defer st.d.mu.Unlock()
	if c.closed.Load() || st.refs == 0 {
		return closedError(op, what)
	}
	st.refs++
	return nil
}

// giveBack undoes retain. It is deferred; where the call itself succeeded, *err
// is what the release of the context answered.
func (c *Context) giveBack(err *error) {
	if e := c.st.release(); *err == nil {
		*err = e
	}
}

// release gives up one reference, and with the last one the primary context.
func (st *contextState) release() error {
	d := st.d
	d.mu.Lock()
	defer d.mu.Unlock()
	st.refs--
	if st.refs > 0 {
		return nil
	}
	delete(d.contexts, st.h)
	if !st.primary {
		return nil
	}
	c := d.seam.DevicePrimaryCtxRelease(st.dev)
	if st.lost.Load() != nil {
		return nil // reported where it was found
	}
	return d.check("cuDevicePrimaryCtxRelease", c)
}

// A binding is a goroutine locked to its thread with the context current.
type binding struct {
	st     *contextState
	prev   api.Context
	pushed bool
}

// enter locks the goroutine to its thread and makes the context current. It
// refuses a context that is lost. Every enter without an error is followed by
// exit or leave.
func (st *contextState) enter(op string) (binding, error) {
	if st.lost.Load() != nil {
		return binding{}, st.lostError(op)
	}
	return st.bind(op)
}

// bind is enter also for a lost context: what frees goes on.
func (st *contextState) bind(op string) (binding, error) {
	runtime.LockOSThread()
	b := binding{st: st}
	prev, c := st.d.seam.CtxGetCurrent()
	if c != api.Success {
		runtime.UnlockOSThread()
		return binding{}, st.checkDetail("cuCtxGetCurrent", c, "before "+op)
	}
	if prev == st.h {
		return b, nil
	}
	if c := st.d.seam.CtxPushCurrent(st.h); c != api.Success {
		runtime.UnlockOSThread()
		return binding{}, st.checkDetail("cuCtxPushCurrent", c, "before "+op)
	}
	b.prev, b.pushed = prev, true
	return b, nil
}

// exit undoes enter. It is deferred, so that it also runs while a panic passes.
// If the thread's context cannot be put back and the call itself succeeded,
// *err says so.
func (b binding) exit(err *error) {
	if b.pushed {
		if e := b.pop(); e != nil && *err == nil {
			*err = e
		}
	}
	runtime.UnlockOSThread()
}

// enterToMake is enter for a constructor: it also takes the reference that what
// is made will hold, before the driver makes it, so that a Close of c meanwhile
// does not release the context under it. settle follows, deferred before exit.
func (c *Context) enterToMake(op string) (binding, error) {
	if err := c.retain(op, "context"); err != nil {
		return binding{}, err
	}
	b, err := c.st.enter(op)
	if err != nil {
		return b, firstError(err, c.st.release())
	}
	return b, nil
}

// settle gives the reference of enterToMake back if nothing was made, and
// closes what was made if putting the thread's context back failed after it. It
// is deferred before exit, and so runs after it.
func settle[T any, P interface {
	*T
	Close() error
}](c *Context, made *P, err *error) {
	switch {
	case *made == nil:
		c.giveBack(err)
	case *err != nil:
		(*made).Close()
		*made = nil
	}
}

// pop takes our context off the thread's stack. The driver may report the
// error of earlier asynchronous work here, with or without having popped.
func (b binding) pop() error {
	seam := b.st.d.seam
	_, c := seam.CtxPopCurrent()
	if c == api.Success {
		return nil
	}
	err := b.st.check("cuCtxPopCurrent", c)
	b.restore()
	return err
}

// restore puts the thread's former context back where it is not.
func (b binding) restore() {
	seam := b.st.d.seam
	want := b.prev
	if !b.pushed {
		want = b.st.h
	}
	if cur, c := seam.CtxGetCurrent(); c != api.Success || cur != want {
		seam.CtxSetCurrent(want)
	}
}

// check turns a result code into an error, and keeps it if the context is lost.
func (b binding) check(op string, c api.Code) error { return b.st.check(op, c) }

func (b binding) seam() api.Driver { return b.st.d.seam }

func (c *Context) enter(op string) (binding, error) {
	if c.closed.Load() {
		return binding{}, closedError(op, "context")
	}
	return c.st.enter(op)
}

// Driver is the driver that the context belongs to.
func (c *Context) Driver() *Driver { return c.st.d }

// Device is the context's device.
func (c *Context) Device() Device { return Device{d: c.st.d, h: c.st.dev} }

// Handle is the CUcontext.
func (c *Context) Handle() ContextHandle { return c.st.h }

// Same tells whether both refer to one CUDA context. Two references to it are
// different pointers.
func (c *Context) Same(o *Context) bool { return o != nil && c.st.h == o.st.h }

// Err is the first error that lost the context (an illegal address, a launch
// that failed or timed out ...), or nil. Every later call on the context
// answers with an error that wraps it, without calling the driver.
func (c *Context) Err() error {
	if e := c.st.lost.Load(); e != nil {
		return e
	}
	return nil
}

// Do calls f with the goroutine locked to its thread and the context current,
// and puts back what was current before, whatever f did to it. Methods called
// in f find the context current. f must not wait for another goroutine: a
// hand-over between locked threads takes tens of microseconds.
func (c *Context) Do(f func() error) (err error) {
	b, err := c.enter("Do")
	if err != nil {
		return err
	}
	defer func() {
		if b.pushed {
			if e := b.pop(); e != nil && err == nil {
				err = e
			}
		}
		b.restore()
		runtime.UnlockOSThread()
	}()
	return f()
}

// Synchronize waits for all work of the context (cuCtxSynchronize). It blocks
// an OS thread.
func (c *Context) Synchronize() (err error) {
	const op = "cuCtxSynchronize"
	b, err := c.enter(op)
	if err != nil {
		return err
	}
	defer b.exit(&err)
	return b.check(op, b.seam().CtxSynchronize())
}

// MemInfo is the free and the total memory of the device in bytes
// (cuMemGetInfo).
func (c *Context) MemInfo() (free, total uint64, err error) {
	const op = "cuMemGetInfo"
	b, err := c.enter(op)
	if err != nil {
		return 0, 0, err
	}
	defer b.exit(&err)
	free, total, code := b.seam().MemGetInfo()
	return free, total, b.check(op, code)
}

// EnablePeerAccess lets work of this context read and write the memory of
// peer; the other direction is a call of its own (cuCtxEnablePeerAccess).
// Access that is already enabled is success. ErrPeerAccessUnsupported and
// ErrTooManyPeers leave the context usable. A peer that is closed is ErrClosed.
func (c *Context) EnablePeerAccess(peer *Context) error {
	_, err := c.EnsurePeerAccess(peer)
	return err
}

// EnsurePeerAccess is EnablePeerAccess that tells whether the access was enabled
// before. Others in the process, frameworks too, use the same primary context:
// who enabled access is who may disable it.
func (c *Context) EnsurePeerAccess(peer *Context) (already bool, err error) {
	const op = "cuCtxEnablePeerAccess"
	if err := peer.retain(op, "peer context"); err != nil {
		return false, err
	}
	defer peer.giveBack(&err)
	b, err := c.enter(op)
	if err != nil {
		return false, err
	}
	defer b.exit(&err)
	code := b.seam().CtxEnablePeerAccess(peer.st.h)
	if code == api.PeerAccessAlreadyEnabled {
		return true, nil
	}
	return false, b.check(op, code)
}

// DisablePeerAccess is the inverse of EnablePeerAccess
// (cuCtxDisablePeerAccess). Access that is not enabled is success. A peer that
// is closed is ErrClosed.
func (c *Context) DisablePeerAccess(peer *Context) (err error) {
	const op = "cuCtxDisablePeerAccess"
	if err := peer.retain(op, "peer context"); err != nil {
		return err
	}
	defer peer.giveBack(&err)
	b, err := c.enter(op)
	if err != nil {
		return err
	}
	defer b.exit(&err)
	code := b.seam().CtxDisablePeerAccess(peer.st.h)
	if code == api.PeerAccessNotEnabled {
		return nil
	}
	return b.check(op, code)
}

// Close gives up this reference; with the last one, and after all that was
// made from the context is closed, the primary context is released
// (cuDevicePrimaryCtxRelease). A second Close does nothing.
func (c *Context) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	return c.st.release()
}
