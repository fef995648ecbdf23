// SPDX-License-Identifier: Apache-2.0

package cuda_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

func seamMethods() []string {
	typ := reflect.TypeFor[api.Driver]()
	var names []string
	for i := range typ.NumMethod() {
		names = append(names, typ.Method(i).Name)
	}
	return names
}

func TestWrapStream(t *testing.T) {
	r := newRig(t)
	own, err := r.a.NewStream()
	require.NoError(t, err)

	for _, h := range []cuda.StreamHandle{api.StreamNull, api.StreamLegacy} {
		s, err := r.a.WrapStream(h)
		require.NoError(t, err)
		require.Equal(t, h, s.Handle())
		require.NoError(t, s.Synchronize())
		require.NoError(t, s.Close())

		calls := r.tap.Total()
		_, err = r.d.WrapStream(h)
		require.ErrorIs(t, err, cuda.ErrInvalidHandle)
		require.ErrorContains(t, err, "Context.WrapStream")
		require.Equal(t, calls, r.tap.Total(), "the driver is not asked")
	}
	calls := r.tap.Total()
	_, err = r.a.WrapStream(api.StreamPerThread)
	require.ErrorContains(t, err, "per-thread default stream")
	_, err = r.d.WrapStream(api.StreamPerThread)
	require.ErrorContains(t, err, "per-thread default stream")
	require.Equal(t, calls, r.tap.Total(), "the driver is not asked")

	s, err := r.a.WrapStream(own.Handle())
	require.NoError(t, err)
	require.Same(t, r.a, s.Context())
	_, err = r.b.WrapStream(own.Handle())
	require.ErrorIs(t, err, cuda.ErrWrongContext)
	s2, err := r.d.WrapStream(own.Handle())
	require.NoError(t, err)
	require.True(t, s2.Context().Same(r.a))
	require.Equal(t, 0, s2.Context().Device().Ordinal())
	require.Equal(t, own.Handle(), hook.StreamHandle(s2))

	// Closing a wrapped stream destroys nothing.
	destroyed := r.tap.Count("StreamDestroy")
	require.NoError(t, s.Close())
	require.NoError(t, s2.Close())
	require.NoError(t, s2.Close())
	require.Equal(t, destroyed, r.tap.Count("StreamDestroy"))
	require.ErrorIs(t, s.Synchronize(), cuda.ErrClosed)
	require.NoError(t, own.Synchronize())

	_, err = r.d.WrapStream(0xdead)
	require.ErrorIs(t, err, cuda.ErrInvalidHandle)
	_, err = r.a.WrapStream(0xdead)
	require.ErrorIs(t, err, cuda.ErrInvalidHandle)
}

// A stream of a context that is not ours, such as one that another library made
// with cuCtxCreate.
func TestWrapForeignContext(t *testing.T) {
	f := newFake()
	d := open(t, f)
	f.owner[5000] = handleOf(2)
	s, err := d.WrapStream(5000)
	require.NoError(t, err)
	require.Equal(t, 2, s.Context().Device().Ordinal())
	require.NoError(t, s.Synchronize())
	dev, err := d.Device(2)
	require.NoError(t, err)
	c, err := dev.Primary()
	require.NoError(t, err)
	require.Equal(t, 1, f.retained[2], "the wrap did not retain, Primary did")
	require.True(t, c.Same(s.Context()))
	require.NoError(t, c.Close())
	require.NoError(t, s.Close())
	require.Zero(t, f.retained[2])
}

func TestLegacyStream(t *testing.T) {
	r := newRig(t)
	s := r.a.LegacyStream()
	require.Equal(t, api.StreamNull, s.Handle())
	require.NoError(t, s.MemsetD8(4096, 0, 16))
	require.NoError(t, s.Close())
	require.Zero(t, r.tap.Count("StreamDestroy"))
}

func TestQueryOfBusyWorkIsNoError(t *testing.T) {
	r := newRig(t)
	v := make1(t, r.a)
	for _, busy := range []bool{false, true} {
		r.f.async = api.Success
		if busy {
			r.f.async = api.NotReady
		}
		done, err := v.s.Query()
		require.NoError(t, err)
		require.Equal(t, !busy, done)
		done, err = v.e.Query()
		require.NoError(t, err)
		require.Equal(t, !busy, done)
	}
	_, err := cuda.Elapsed(v.t, v.t2)
	require.ErrorIs(t, err, cuda.ErrNotReady)
	r.f.async = api.Success
	d, err := cuda.Elapsed(v.t, v.t2)
	require.NoError(t, err)
	require.Equal(t, 1500*time.Microsecond, d)
}

func TestCapturing(t *testing.T) {
	r := newRig(t)
	s := r.a.LegacyStream()
	for _, c := range []struct {
		status api.CaptureStatus
		code   api.Code
		want   bool
	}{
		{api.CaptureNone, api.Success, false},
		{api.CaptureActive, api.Success, true},
		{api.CaptureInvalidated, api.Success, true},
		{api.CaptureNone, api.CaptureImplicit, true}, // stream 0 while another stream of the context captures
	} {
		r.f.capture, r.f.capCode = c.status, c.code
		got, err := s.Capturing()
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	r.f.capCode = api.InvalidValue
	_, err := s.Capturing()
	require.ErrorIs(t, err, cuda.ErrInvalidValue)
}

func TestEventOfAnotherContext(t *testing.T) {
	r := newRig(t)
	va, vb := make1(t, r.a), make1(t, r.b)
	calls := r.tap.Total()
	err := va.e.Record(vb.s)
	require.ErrorIs(t, err, cuda.ErrWrongContext)
	require.ErrorIs(t, err, cuda.ErrInvalidHandle)
	_, err = cuda.Elapsed(va.t, vb.t)
	require.ErrorIs(t, err, cuda.ErrWrongContext)
	require.ErrorIs(t, va.fn.Launch(cuda.LaunchConfig{}, vb.s, nil), cuda.ErrWrongContext)
	_, err = cuda.Elapsed(va.e, va.t)
	require.ErrorContains(t, err, "NewTimingEvent")
	require.Equal(t, calls, r.tap.Total(), "the driver is not asked")
	require.NoError(t, vb.s.Wait(va.e), "a wait may cross contexts")
}

func TestClosedThings(t *testing.T) {
	r := newRig(t)
	open, v := make1(t, r.a), make1(t, r.a)
	v.close(t)
	v.close(t)
	calls := r.tap.Total()
	for _, err := range []error{
		v.s.Synchronize(), v.e.Record(open.s), open.e.Record(v.s), open.s.Wait(v.e), v.e.Synchronize(),
		v.fn.Launch(cuda.LaunchConfig{}, open.s, nil), open.fn.Launch(cuda.LaunchConfig{}, v.s, nil),
		second(v.h.DevicePtr(r.a)), second(v.mod.Function("kernel")), second(cuda.Elapsed(v.t, open.t)), second(cuda.Elapsed(open.t, v.t)),
	} {
		require.ErrorIs(t, err, cuda.ErrClosed)
	}
	require.Equal(t, calls, r.tap.Total(), "the driver is not asked")
}

func second[T any](_ T, err error) error { return err }

// A method of the hot path allocates nothing.
func TestMethodsAllocateNothing(t *testing.T) {
	testenv.SkipUnlessOptimized(t)
	f := newFake()
	d := open(t, f)
	dev, err := d.Device(0)
	require.NoError(t, err)
	c, err := dev.Primary()
	require.NoError(t, err)
	v := make1(t, c)
	params := make([]byte, 64)
	cfg := cuda.LaunchConfig{Block: [3]uint32{32}}
	for name, call := range map[string]func() error{
		"Query":      func() error { _, err := v.s.Query(); return err },
		"Record":     func() error { return v.e.Record(v.s) },
		"Wait":       func() error { return v.s.Wait(v.e) },
		"MemcpyHtoD": func() error { return v.s.MemcpyHtoD(v.m.Ptr(), v.h.Pointer(), 8) },
		"MemcpyDtoH": func() error { return v.s.MemcpyDtoH(v.h.Pointer(), v.m.Ptr(), 8) },
		"Memcpy2D":   func() error { return v.s.Memcpy2D(&v.c2d) },
		"Launch":     func() error { return v.fn.Launch(cfg, v.s, params) },
		"MemsetD8":   func() error { return v.s.MemsetD8(v.m.Ptr(), 0, 8) },
		"Capturing":  func() error { _, err := v.s.Capturing(); return err },
	} {
		require.Zero(t, testing.AllocsPerRun(200, func() {
			if err := call(); err != nil {
				t.Error(err)
			}
		}), name)
	}
}
