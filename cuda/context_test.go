// SPDX-License-Identifier: Apache-2.0

package cuda_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/api/tap"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
	"github.com/geforce-p2p/geforce-p2p/internal/libcuda"
	"github.com/geforce-p2p/geforce-p2p/internal/libcuda/fakelib"
)

// things is one of everything, made from a context.
type things struct {
	s    *cuda.Stream
	e, t *cuda.Event
	t2   *cuda.Event
	m    *cuda.Memory
	h    *cuda.HostMem
	mod  *cuda.Module
	fn   *cuda.Function
	c2d  cuda.Copy2D
}

// make1 makes one of everything over the fake, which takes any module.
func make1(t testing.TB, c *cuda.Context) *things {
	t.Helper()
	v := makeBare(t, c)
	var err error
	v.mod, err = c.LoadModule([]byte(".version 7.0"))
	require.NoError(t, err)
	v.fn, err = v.mod.Function("kernel")
	require.NoError(t, err)
	return v
}

// makeBare leaves out the module.
func makeBare(t testing.TB, c *cuda.Context) *things {
	t.Helper()
	var v things
	var err error
	v.s, err = c.NewStream()
	require.NoError(t, err)
	v.e, err = c.NewEvent(cuda.EventBlockingSync)
	require.NoError(t, err)
	v.t, err = c.NewTimingEvent(0)
	require.NoError(t, err)
	v.t2, err = c.NewTimingEvent(0)
	require.NoError(t, err)
	v.m, err = c.Alloc(4096)
	require.NoError(t, err)
	v.h, err = c.HostAlloc(64, 0)
	require.NoError(t, err)
	v.c2d = cuda.Copy2D{SrcHost: v.h.Pointer(), DstDevice: v.m.Ptr(), Width: 8, Height: 2, SrcPitch: 8, DstPitch: 8}
	return &v
}

func (v *things) close(t testing.TB) {
	t.Helper()
	for _, c := range []interface{ Close() error }{v.s, v.e, v.t, v.t2, v.m, v.h} {
		require.NoError(t, c.Close())
	}
	if v.mod != nil {
		require.NoError(t, v.mod.Close())
	}
}

// method is a public method that needs a context, and the seam call under it.
type method struct {
	seam string
	f    func(c, other *cuda.Context, v *things) error
}

var methods = []method{
	{"CtxSynchronize", func(c, _ *cuda.Context, _ *things) error { return c.Synchronize() }},
	{"MemGetInfo", func(c, _ *cuda.Context, _ *things) error { _, _, err := c.MemInfo(); return err }},
	{"CtxEnablePeerAccess", func(c, o *cuda.Context, _ *things) error { return c.EnablePeerAccess(o) }},
	{"CtxDisablePeerAccess", func(c, o *cuda.Context, _ *things) error { return c.DisablePeerAccess(o) }},
	{"MemGetAddressRange", func(c, _ *cuda.Context, v *things) error { _, _, err := c.AddressRange(v.m.Ptr()); return err }},
	{"MemcpyHtoD", func(c, _ *cuda.Context, v *things) error { return c.MemcpyHtoD(v.m.Ptr(), make([]byte, 8)) }},
	{"MemcpyDtoH", func(c, _ *cuda.Context, v *things) error { return c.MemcpyDtoH(make([]byte, 8), v.m.Ptr()) }},
	{"StreamQuery", func(_, _ *cuda.Context, v *things) error { _, err := v.s.Query(); return err }},
	{"StreamSynchronize", func(_, _ *cuda.Context, v *things) error { return v.s.Synchronize() }},
	{"StreamWaitEvent", func(_, _ *cuda.Context, v *things) error { return v.s.Wait(v.e) }},
	{"StreamIsCapturing", func(_, _ *cuda.Context, v *things) error { _, err := v.s.Capturing(); return err }},
	{"MemcpyHtoDAsync", func(_, _ *cuda.Context, v *things) error { return v.s.MemcpyHtoD(v.m.Ptr(), v.h.Pointer(), 8) }},
	{"MemcpyDtoHAsync", func(_, _ *cuda.Context, v *things) error { return v.s.MemcpyDtoH(v.h.Pointer(), v.m.Ptr(), 8) }},
	{"MemcpyDtoDAsync", func(_, _ *cuda.Context, v *things) error { return v.s.MemcpyDtoD(v.m.Ptr(), v.m.Ptr()+64, 8) }},
	{"MemcpyPeerAsync", func(c, o *cuda.Context, v *things) error { return v.s.MemcpyPeer(v.m.Ptr(), o, v.m.Ptr(), c, 8) }},
	{"Memcpy2DAsync", func(_, _ *cuda.Context, v *things) error { return v.s.Memcpy2D(&v.c2d) }},
	{"MemsetD8Async", func(_, _ *cuda.Context, v *things) error { return v.s.MemsetD8(v.m.Ptr(), 1, 8) }},
	{"MemsetD32Async", func(_, _ *cuda.Context, v *things) error { return v.s.MemsetD32(v.m.Ptr(), 1, 2) }},
	{"EventRecord", func(_, _ *cuda.Context, v *things) error { return v.e.Record(v.s) }},
	{"EventQuery", func(_, _ *cuda.Context, v *things) error { _, err := v.e.Query(); return err }},
	{"EventSynchronize", func(_, _ *cuda.Context, v *things) error { return v.e.Synchronize() }},
	{"EventElapsedTime", func(_, _ *cuda.Context, v *things) error { _, err := cuda.Elapsed(v.t, v.t2); return err }},
	{"MemHostGetDevicePointer", func(c, _ *cuda.Context, v *things) error { _, err := v.h.DevicePtr(c); return err }},
	{"ModuleGetFunction", func(_, _ *cuda.Context, v *things) error { _, err := v.mod.Function("kernel"); return err }},
	{"FuncGetAttribute", func(_, _ *cuda.Context, v *things) error { _, err := v.fn.Attribute(cuda.FuncNumRegs); return err }},
	{"LaunchKernel", func(_, _ *cuda.Context, v *things) error {
		return v.fn.Launch(cuda.LaunchConfig{}, v.s, []byte{1})
	}},
	{"StreamGetCtx", func(c, _ *cuda.Context, v *things) error { _, err := c.WrapStream(v.s.Handle()); return err }},
}

// makers make something, which is closed again: name of the call, then of the
// call that undoes it.
var makers = []struct {
	seam, undo string
	f          func(c *cuda.Context) (interface{ Close() error }, error)
}{
	{"StreamCreate", "StreamDestroy", func(c *cuda.Context) (interface{ Close() error }, error) { return c.NewStream() }},
	{"StreamCreate", "StreamDestroy", func(c *cuda.Context) (interface{ Close() error }, error) { return c.NewBlockingStream() }},
	{"EventCreate", "EventDestroy", func(c *cuda.Context) (interface{ Close() error }, error) { return c.NewEvent(0) }},
	{"MemAlloc", "MemFree", func(c *cuda.Context) (interface{ Close() error }, error) { return c.Alloc(8) }},
	{"MemHostAlloc", "MemFreeHost", func(c *cuda.Context) (interface{ Close() error }, error) { return c.HostAlloc(8, 0) }},
	{"MemHostRegister", "MemHostUnregister", func(c *cuda.Context) (interface{ Close() error }, error) {
		return c.Register(unsafe.Pointer(new([64]byte)), 64)
	}},
	{"ModuleLoadData", "ModuleUnload", func(c *cuda.Context) (interface{ Close() error }, error) { return c.LoadModule([]byte("x")) }},
}

// A method with its context current asks which one is, and makes its call; with
// another current it pushes and pops around it. Nothing else.
func TestDriverCallsOfAMethod(t *testing.T) {
	r := newRig(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer r.f.CtxSetCurrent(0)
	v := make1(t, r.a)
	own := func(seam string) []string { return []string{"CtxGetCurrent", seam} }
	other := func(seam string) []string {
		return []string{"CtxGetCurrent", "CtxPushCurrent", seam, "CtxPopCurrent"}
	}
	for _, current := range []struct {
		name string
		ctx  api.Context
		want func(string) []string
	}{{"own", r.a.Handle(), own}, {"other", r.b.Handle(), other}, {"none", 0, other}} {
		calls := func(name, seam string, f func() error) {
			t.Run(current.name+"/"+name, func(t *testing.T) {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				require.Equal(t, api.Success, r.f.CtxSetCurrent(current.ctx))
				defer r.f.CtxSetCurrent(0)
				r.tap.Log()
				require.NoError(t, f())
				require.Equal(t, current.want(seam), r.tap.Calls())
				now, _ := r.f.CtxGetCurrent()
				require.Equal(t, current.ctx, now, "the caller's current context")
			})
		}
		for _, m := range methods {
			calls(m.seam, m.seam, func() error { return m.f(r.a, r.b, v) })
		}
		for _, m := range makers {
			var x interface{ Close() error }
			calls(m.seam, m.seam, func() (err error) { x, err = m.f(r.a); return err })
			calls(m.undo, m.undo, func() error { return x.Close() })
			r.tap.Log()
			require.NoError(t, x.Close(), "a second Close")
			require.Empty(t, r.tap.Calls())
		}
	}
	v.close(t)
}

// Every public method that needs a context is in the table above: the seam's
// context-bound calls all occur in it.
func TestEveryContextCallIsInTheTable(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range methods {
		seen[m.seam] = true
	}
	for _, m := range makers {
		seen[m.seam], seen[m.undo] = true, true
	}
	notOfAContext := map[string]bool{
		"Host": true, "Init": true, "DriverGetVersion": true, "GetErrorName": true, "GetErrorString": true,
		"DevicePrimaryCtxGetState": true, "PointerGetAttribute": true, "MemHostGetFlags": true,
		"DevicePrimaryCtxRetain": true, "DevicePrimaryCtxRelease": true,
		"CtxGetCurrent": true, "CtxSetCurrent": true, "CtxPushCurrent": true, "CtxPopCurrent": true, "CtxGetDevice": true,
		// Callers capture, this library only must not disturb them.
		"StreamBeginCapture": true, "StreamEndCapture": true, "ThreadExchangeStreamCaptureMode": true, "GraphDestroy": true,
	}
	for _, name := range seamMethods() {
		if notOfAContext[name] || len(name) > 6 && name[:6] == "Device" {
			continue
		}
		require.True(t, seen[name], "%s is not called by any method of the table", name)
	}
}

// everywhere is the methods of the table that succeed on any driver, from any
// number of goroutines at once: what is left out needs a peer, a module, or a
// wait between two calls.
func everywhere() (ms []method) {
	for _, m := range methods {
		switch m.seam {
		case "CtxEnablePeerAccess", "CtxDisablePeerAccess", "MemcpyPeerAsync", "ModuleGetFunction", "FuncGetAttribute",
			"LaunchKernel", "EventElapsedTime", "MemcpyHtoD", "MemcpyDtoH":
		default:
			ms = append(ms, m)
		}
	}
	return ms
}

func TestCurrentContextIsKeptUnderContention(t *testing.T) {
	t.Run("fake", func(t *testing.T) {
		if !threads {
			t.Skip("needs to tell OS threads apart")
		}
		r := newRig(t)
		contend(t, r.d, methods, make1)
		r.f.mu.Lock()
		defer r.f.mu.Unlock()
		for id, s := range r.f.stacks {
			require.Empty(t, s, "thread %d was left with a context", id)
		}
	})
	// The stand-in rejects handles of a context that is not current, and keeps
	// the current context in a variable of the C library's thread.
	t.Run("C", func(t *testing.T) { contend(t, standIn(t), everywhere(), makeBare) })
	t.Run("sim", func(t *testing.T) { contend(t, gputest.Sim(t, "2x4090"), everywhere(), makeBare) })
	t.Run("gpu", func(t *testing.T) { contend(t, gputest.Hardware(t), everywhere(), makeBare) })
}

// standIn is the driver of a library in C that stands in for libcuda.
func standIn(t testing.TB, defines ...string) *cuda.Driver {
	t.Helper()
	seam, err := libcuda.OpenPath(fakelib.Build(t, defines...))
	require.NoError(t, err)
	return open(t, seam)
}

// contend calls methods on two contexts (one, where there is one GPU) from 64
// goroutines, and holds the caller's current context to what it was.
func contend(t *testing.T, d *cuda.Driver, methods []method, make1 func(testing.TB, *cuda.Context) *things) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	devs, err := d.Devices()
	require.NoError(t, err)
	seam := hook.Seam(d)
	a := gputest.Primary(t, devs[0])
	b := gputest.Primary(t, devs[min(1, len(devs)-1)])
	va, vb := make1(t, a), make1(t, b)
	found := []api.Context{0, a.Handle(), b.Handle()}
	var wg sync.WaitGroup
	for g := range 64 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			for range 50 {
				func() {
					// Half of the goroutines move between threads as they like.
					if g%2 == 0 {
						runtime.LockOSThread()
						defer runtime.UnlockOSThread()
						before, _ := seam.CtxGetCurrent()
						want := found[rng.IntN(len(found))]
						seam.CtxSetCurrent(want)
						defer seam.CtxSetCurrent(before)
						defer func() {
							if got, _ := seam.CtxGetCurrent(); got != want {
								t.Errorf("current context is %#x after the calls, was %#x", got, want)
							}
						}()
					}
					for range 4 {
						m := methods[rng.IntN(len(methods))]
						c, o, v := a, b, va
						if rng.IntN(2) == 0 {
							c, o, v = b, a, vb
						}
						if err := m.f(c, o, v); err != nil {
							t.Errorf("%s: %v", m.seam, err)
						}
						runtime.Gosched()
					}
				}()
			}
		})
	}
	wg.Wait()
	require.NoError(t, a.Synchronize())
	require.NoError(t, b.Synchronize())
	va.close(t)
	vb.close(t)
}

func TestDoPutsTheContextBack(t *testing.T) {
	r := newRig(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer r.f.CtxSetCurrent(0)
	boom := errors.New("boom")
	for _, current := range []api.Context{0, r.a.Handle(), r.b.Handle()} {
		r.f.CtxSetCurrent(current)
		depth := r.f.depth()
		check := func(what string) {
			got, _ := r.f.CtxGetCurrent()
			require.Equal(t, current, got, what)
			require.Equal(t, depth, r.f.depth(), what)
		}
		inside := func() {
			got, _ := r.f.CtxGetCurrent()
			require.Equal(t, r.a.Handle(), got)
		}
		require.NoError(t, r.a.Do(func() error { inside(); return nil }))
		check("plain")
		require.ErrorIs(t, r.a.Do(func() error { return boom }), boom)
		check("error")
		require.PanicsWithValue(t, "boom", func() { _ = r.a.Do(func() error { panic("boom") }) })
		check("panic")
		require.NoError(t, r.a.Do(func() error { r.f.CtxSetCurrent(r.b.Handle()); return nil }))
		check("another library changed it")
		require.NoError(t, r.a.Do(func() error {
			return r.b.Do(func() error {
				if err := r.a.Synchronize(); err != nil {
					return err
				}
				return r.b.Synchronize()
			})
		}))
		check("nested")
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = r.a.Do(func() error { runtime.Goexit(); return nil })
		}()
		<-done
		r.f.mu.Lock()
		for id, s := range r.f.stacks {
			if id != threadID() {
				require.Empty(t, s, "Goexit")
			}
		}
		r.f.mu.Unlock()
	}
}

// In a batch, methods find the context current.
func TestDoBindsOnce(t *testing.T) {
	r := newRig(t)
	v := make1(t, r.a)
	r.tap.Log()
	require.NoError(t, r.a.Do(func() error {
		for range 10 {
			if err := v.e.Record(v.s); err != nil {
				return err
			}
		}
		return nil
	}))
	want := []string{"CtxGetCurrent", "CtxPushCurrent"}
	for range 10 {
		want = append(want, "CtxGetCurrent", "EventRecord")
	}
	require.Equal(t, append(want, "CtxPopCurrent", "CtxGetCurrent"), r.tap.Calls())
}

// The driver may answer a pop with the error of earlier work. The thread gets
// its context back all the same, and the caller the error.
func TestPopThatFails(t *testing.T) {
	for _, popped := range []bool{false, true} {
		r := newRig(t)
		v := make1(t, r.a)
		runtime.LockOSThread()
		r.f.CtxSetCurrent(r.b.Handle())
		if popped {
			r.f.popCode = api.IllegalAddress
		} else {
			r.tap.Fail("CtxPopCurrent", 1, api.IllegalAddress)
		}
		err := v.e.Record(v.s)
		r.f.popCode = api.Success
		require.ErrorIs(t, err, cuda.ErrIllegalAddress)
		got, _ := r.f.CtxGetCurrent()
		require.Equal(t, r.b.Handle(), got)
		require.ErrorIs(t, r.a.Err(), cuda.ErrIllegalAddress)
		r.f.CtxSetCurrent(0)
		runtime.UnlockOSThread()
	}
}

// What was made before the pop failed is not left behind.
func TestConstructorWhosePopFails(t *testing.T) {
	for _, m := range makers {
		for _, code := range []api.Code{api.IllegalAddress, api.InvalidValue} {
			r := newRig(t)
			r.tap.Fail("CtxPopCurrent", 1, code)
			x, err := m.f(r.a)
			require.ErrorIs(t, err, cuda.Code(code), m.seam)
			require.Nil(t, x, m.seam)
			require.EqualValues(t, 1, r.tap.Count(m.seam))
			require.EqualValues(t, 1, r.tap.Count(m.undo), m.undo)
			require.NoError(t, r.a.Close())
			require.Zero(t, r.f.retained[0], "the reference went with it")
		}
	}
}

// A constructor that the driver refuses leaves no reference behind.
func TestConstructorThatFails(t *testing.T) {
	for _, m := range makers {
		r := newRig(t)
		r.tap.Fail(m.seam, 1, api.OutOfMemory)
		x, err := m.f(r.a)
		require.ErrorIs(t, err, cuda.ErrOutOfMemory, m.seam)
		require.Nil(t, x, m.seam)
		require.NoError(t, r.a.Close())
		require.Zero(t, r.f.retained[0])
	}
}

// A free that the driver refuses is reported once, and the reference is gone.
func TestFreeThatFails(t *testing.T) {
	for _, m := range makers {
		r := newRig(t)
		x, err := m.f(r.a)
		require.NoError(t, err)
		r.tap.Fail(m.undo, 1, api.InvalidValue)
		require.ErrorIs(t, x.Close(), cuda.ErrInvalidValue, m.undo)
		require.NoError(t, x.Close())
		require.NoError(t, r.a.Close())
		require.Zero(t, r.f.retained[0])
	}
}

func TestBindingThatFails(t *testing.T) {
	for _, call := range []string{"CtxGetCurrent", "CtxPushCurrent"} {
		r := newRig(t)
		v := make1(t, r.a)
		recorded := r.tap.Count("EventRecord")
		r.tap.Fail(call, 1, api.InvalidContext)
		err := v.e.Record(v.s)
		require.ErrorIs(t, err, cuda.ErrInvalidContext)
		require.ErrorContains(t, err, "cu"+call)
		require.ErrorContains(t, err, "cuEventRecord")
		require.Equal(t, recorded, r.tap.Count("EventRecord"))
		require.NoError(t, v.e.Record(v.s), "the next call works")
	}
}

func TestPrimaryContextIsShared(t *testing.T) {
	f := newFake()
	d := open(t, f)
	dev, err := d.Device(1)
	require.NoError(t, err)
	require.Zero(t, f.retained[1], "nothing is retained before it is used")
	a, err := dev.Primary()
	require.NoError(t, err)
	b, err := dev.Primary()
	require.NoError(t, err)
	require.Equal(t, 1, f.retained[1])
	require.True(t, a.Same(b))
	require.False(t, a.Same(nil))
	require.Equal(t, dev, a.Device())
	require.Same(t, d, a.Driver())
	require.Equal(t, handleOf(1), a.Handle())
	require.Equal(t, handleOf(1), hook.ContextHandle(a))

	require.NoError(t, a.Close())
	require.NoError(t, a.Close(), "closing twice takes nothing from the other")
	require.NoError(t, b.Synchronize())
	require.ErrorIs(t, a.Synchronize(), cuda.ErrClosed)
	_, err = a.Alloc(1)
	require.ErrorIs(t, err, cuda.ErrClosed)
	_, err = a.WrapStream(0)
	require.ErrorIs(t, err, cuda.ErrClosed)

	s, err := b.NewStream()
	require.NoError(t, err)
	require.NoError(t, b.Close())
	require.Equal(t, 1, f.retained[1], "a stream keeps its context")
	require.NoError(t, s.Synchronize())
	require.NoError(t, s.Close())
	require.Zero(t, f.retained[1])

	c, err := dev.Primary()
	require.NoError(t, err)
	require.NoError(t, c.Synchronize(), "retained anew")
	require.NoError(t, c.Close())
	require.Zero(t, f.retained[1])
}

// A Close while the driver makes something takes the last other reference. What
// is made keeps the context; the driver's count, in which other libraries of the
// process take part, comes out even.
func TestCloseWhileSomethingIsMade(t *testing.T) {
	for _, m := range makers {
		for _, fails := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/fails=%v", m.seam, fails), func(t *testing.T) {
				f := newFake()
				tp := tap.New(f)
				dev, err := open(t, tp).Device(0)
				require.NoError(t, err)
				f.DevicePrimaryCtxRetain(0) // another library
				c, err := dev.Primary()
				require.NoError(t, err)
				if fails {
					f.popCode = api.OutOfMemory
				}
				var closing error
				f.onUse = func() { closing = c.Close() }
				x, err := m.f(c)
				require.NoError(t, closing)
				if fails {
					require.ErrorIs(t, err, cuda.ErrOutOfMemory)
				} else {
					require.NoError(t, err)
					require.Equal(t, 2, f.retained[0], "what was made keeps its context")
					require.NoError(t, x.Close())
				}
				require.Equal(t, 1, f.retained[0], "the other library's")
				require.EqualValues(t, 1, tp.Count("DevicePrimaryCtxRelease"))
				require.EqualValues(t, 1, tp.Count(m.undo))
			})
		}
	}
}

// Where the driver refuses, the reference that was taken is given back.
func TestNoReferenceOfWhatWasNotMade(t *testing.T) {
	for _, m := range makers {
		t.Run(m.seam, func(t *testing.T) {
			f := newFake()
			tp := tap.New(f)
			dev, err := open(t, tp).Device(0)
			require.NoError(t, err)
			c, err := dev.Primary()
			require.NoError(t, err)
			for _, seam := range []string{m.seam, "CtxPushCurrent"} {
				tp.Fail(seam, 1, api.OutOfMemory)
				_, err = m.f(c)
				require.ErrorIs(t, err, cuda.ErrOutOfMemory)
			}
			require.Equal(t, 1, f.retained[0])
			require.NoError(t, c.Close())
			require.Zero(t, f.retained[0])
			_, err = m.f(c)
			require.ErrorIs(t, err, cuda.ErrClosed)
			require.Zero(t, f.retained[0])
		})
	}
}

func TestPeerAccess(t *testing.T) {
	r := newRig(t)
	already, err := r.a.EnsurePeerAccess(r.b)
	require.NoError(t, err)
	require.False(t, already)
	already, err = r.a.EnsurePeerAccess(r.b)
	require.NoError(t, err)
	require.True(t, already)
	require.NoError(t, r.a.EnablePeerAccess(r.b))
	require.NoError(t, r.a.DisablePeerAccess(r.b))
	require.NoError(t, r.a.DisablePeerAccess(r.b), "not enabled is success")
	for _, c := range []api.Code{api.PeerAccessUnsupported, api.TooManyPeers} {
		r.tap.Fail("CtxEnablePeerAccess", 1, c)
		require.ErrorIs(t, r.a.EnablePeerAccess(r.b), cuda.Code(c))
		require.NoError(t, r.a.Err(), "the context is as good as before")
	}
	require.NoError(t, r.a.EnablePeerAccess(r.b))
}

// A context that is closed may be gone from the driver: its handle goes nowhere.
func TestClosedPeer(t *testing.T) {
	r := newRig(t)
	v := make1(t, r.a)
	keeps, err := r.b.NewStream() // the handle would still be good: it is a rule, not luck
	require.NoError(t, err)
	require.NoError(t, r.b.Close())
	r.tap.Log()
	for name, f := range map[string]func() error{
		"enable":  func() error { return r.a.EnablePeerAccess(r.b) },
		"ensure":  func() error { _, err := r.a.EnsurePeerAccess(r.b); return err },
		"disable": func() error { return r.a.DisablePeerAccess(r.b) },
		"from":    func() error { return v.s.MemcpyPeer(v.m.Ptr(), r.a, v.m.Ptr(), r.b, 8) },
		"to":      func() error { return v.s.MemcpyPeer(v.m.Ptr(), r.b, v.m.Ptr(), r.a, 8) },
		"nothing": func() error { return v.s.MemcpyPeer(v.m.Ptr(), r.b, v.m.Ptr(), r.a, 0) },
	} {
		require.ErrorIs(t, f(), cuda.ErrClosed, name)
	}
	require.Empty(t, r.tap.Calls())
	require.NoError(t, keeps.Close())

	// A Close of the peer during the call waits for it.
	r = newRig(t)
	var closing error
	r.f.onUse = func() { closing = r.b.Close(); require.Equal(t, 1, r.f.retained[1]) }
	require.NoError(t, r.a.EnablePeerAccess(r.b))
	require.NoError(t, closing)
	require.Zero(t, r.f.retained[1])
}
