// SPDX-License-Identifier: Apache-2.0

package cuda_test

import (
	"bytes"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

func TestMemory(t *testing.T) {
	r := newRig(t)
	m, err := r.a.Alloc(100)
	require.NoError(t, err)
	require.NotZero(t, m.Ptr())
	require.Equal(t, 100, m.Len())
	require.Same(t, r.a, m.Context())
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	require.Zero(t, m.Ptr())
	require.EqualValues(t, 1, r.tap.Count("MemFree"))

	for _, n := range []int{0, -1} {
		_, err = r.a.Alloc(n)
		require.ErrorIs(t, err, cuda.ErrInvalidValue)
		_, err = r.a.HostAlloc(n, 0)
		require.ErrorIs(t, err, cuda.ErrInvalidValue)
		_, err = r.a.Register(unsafe.Pointer(new(byte)), n)
		require.ErrorIs(t, err, cuda.ErrInvalidValue)
	}
	_, err = r.a.Register(nil, 8)
	require.ErrorIs(t, err, cuda.ErrInvalidValue)

	r.tap.Fail("MemAlloc", 1, api.OutOfMemory)
	_, err = r.a.Alloc(1 << 30)
	require.ErrorIs(t, err, cuda.ErrOutOfMemory)
	require.ErrorContains(t, err, "1073741824 bytes on device 0")
	require.NoError(t, r.a.Err())
}

func TestHostMemory(t *testing.T) {
	r := newRig(t)
	h, err := r.a.HostAlloc(64, 0)
	require.NoError(t, err)
	b := h.Bytes()
	require.Len(t, b, 64)
	b[63] = 7
	require.EqualValues(t, 7, *(*byte)(unsafe.Add(h.Pointer(), 63)))

	// The device's address is the driver's to tell, and may differ by device and
	// from the host's.
	pa, err := h.DevicePtr(r.a)
	require.NoError(t, err)
	pb, err := h.DevicePtr(r.b)
	require.NoError(t, err)
	require.NotEqual(t, pa, pb)
	require.NotEqual(t, cuda.Ptr(uintptr(h.Pointer())), pa)

	require.NoError(t, h.Close())
	require.NoError(t, h.Close())
	require.Nil(t, h.Bytes())
	require.Nil(t, h.Pointer())
	require.EqualValues(t, 1, r.tap.Count("MemFreeHost"))

	own := make([]byte, 4096)
	g, err := r.a.Register(unsafe.Pointer(&own[0]), len(own))
	require.NoError(t, err)
	require.Equal(t, 4096, g.Len())
	require.NoError(t, g.Close())
	require.NoError(t, g.Close())
	require.EqualValues(t, 1, r.tap.Count("MemHostUnregister"))
	require.EqualValues(t, 1, r.tap.Count("MemFreeHost"), "memory of the caller's is not freed")
}

// Work on nothing meets the same refusals as other work, and then enqueues
// nothing.
func TestLengths(t *testing.T) {
	r := newRig(t)
	v := make1(t, r.a)
	p, h := v.m.Ptr(), v.h.Pointer()
	calls := map[string]func(n int) error{
		"MemcpyHtoDAsync": func(n int) error { return v.s.MemcpyHtoD(p, h, n) },
		"MemcpyDtoHAsync": func(n int) error { return v.s.MemcpyDtoH(h, p, n) },
		"MemcpyDtoDAsync": func(n int) error { return v.s.MemcpyDtoD(p, p, n) },
		"MemcpyPeerAsync": func(n int) error { return v.s.MemcpyPeer(p, r.b, p, r.a, n) },
		"MemsetD8Async":   func(n int) error { return v.s.MemsetD8(p, 0, n) },
		"MemsetD32Async":  func(n int) error { return v.s.MemsetD32(p, 0, n) },
	}
	for name, f := range calls {
		require.NoError(t, f(0), name)
		require.ErrorIs(t, f(-1), cuda.ErrInvalidValue, name)
		require.Zero(t, r.tap.Count(name), name)
		require.NoError(t, f(1), name)
		require.EqualValues(t, 1, r.tap.Count(name), name)
	}
	require.NoError(t, v.s.Memcpy2D(&cuda.Copy2D{Width: 0, Height: 4}))
	require.NoError(t, v.s.Memcpy2D(&cuda.Copy2D{Width: 4, Height: 0}))
	require.NoError(t, r.a.MemcpyHtoD(p, nil))
	require.NoError(t, r.a.MemcpyDtoH(nil, p))
	require.Zero(t, r.tap.Count("Memcpy2DAsync")+r.tap.Count("MemcpyHtoD")+r.tap.Count("MemcpyDtoH"))
	require.NoError(t, v.s.Close())
	for name, f := range calls {
		require.ErrorIs(t, f(0), cuda.ErrClosed, name)
	}
}

func TestPointerInfo(t *testing.T) {
	r := newRig(t)
	i, err := r.d.PointerInfo(0x1234)
	require.NoError(t, err)
	require.Equal(t, cuda.PointerInfo{Type: cuda.MemoryDevice, Managed: true, Device: 1, Base: 0x1200}, i,
		"what the driver refuses to tell is 0")
	require.Equal(t, "device", i.Type.String())
	_, err = r.d.PointerInfo(0xbad)
	require.ErrorIs(t, err, cuda.ErrInvalidValue)
	require.ErrorContains(t, err, "neither device memory nor pinned host memory")
	base, size, err := r.a.AddressRange(0x1234)
	require.NoError(t, err)
	require.Equal(t, cuda.Ptr(0x1200), base)
	require.EqualValues(t, 4096, size)
}

// lockedBuffer is a log that a cleanup writes from a goroutine of its own.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// What is dropped without Close is logged with the place that made it, and
// stays allocated: a GPU may be using it.
func TestDroppedMemoryIsLoggedAndKept(t *testing.T) {
	var log lockedBuffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	r := newRig(t)
	drop := func() {
		_, err := r.a.Alloc(4242)
		require.NoError(t, err)
		_, err = r.a.HostAlloc(64, 0)
		require.NoError(t, err)
		m, err := r.a.Alloc(777)
		require.NoError(t, err)
		require.NoError(t, m.Close())
	}
	drop()
	require.Eventually(t, func() bool {
		runtime.GC()
		return strings.Contains(log.String(), "bytes=4242") && strings.Contains(log.String(), "pinned host memory")
	}, 10*time.Second, time.Millisecond)
	require.Contains(t, log.String(), "memory_test.go:")
	require.Contains(t, log.String(), "device memory")
	require.NotContains(t, log.String(), "bytes=777", "closed memory is no leak")
	require.EqualValues(t, 1, r.tap.Count("MemFree"), "only what was closed is freed")
	require.Zero(t, r.tap.Count("MemFreeHost"))
}
