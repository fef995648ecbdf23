// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// Memory is device memory that this package allocated. Nothing frees it but
// Close: a GPU may still be using it when Go no longer refers to it, so a
// Memory that is dropped without Close is leaked, and logged with its
// allocation site.
type Memory struct {
	ctx  *Context
	p    atomic.Uint64
	n    int
	leak runtime.Cleanup
}

// Alloc allocates n bytes of device memory, n > 0, aligned to 256 bytes at
// least (cuMemAlloc). What they hold is undefined.
func (c *Context) Alloc(n int) (m *Memory, err error) {
	const op = "cuMemAlloc"
	if n <= 0 {
		return nil, c.st.d.newError(op, api.InvalidValue, fmt.Sprintf("%d bytes", n))
	}
	b, err := c.enterToMake(op)
	if err != nil {
		return nil, err
	}
	defer settle(c, &m, &err)
	defer b.exit(&err)
	p, code := b.seam().MemAlloc(uint64(n))
	if code != api.Success {
		return nil, c.st.checkDetail(op, code, fmt.Sprintf("%d bytes on %v", n, c.Device()))
	}
	m = &Memory{ctx: c, n: n}
	m.p.Store(uint64(p))
	m.leak = watchLeak(m, "device memory", n)
	return m, nil
}

// Ptr is the memory's device address, 0 after Close.
func (m *Memory) Ptr() Ptr { return Ptr(m.p.Load()) }

// Len is the memory's size in bytes.
func (m *Memory) Len() int { return m.n }

// Context is the context that the memory was allocated in.
func (m *Memory) Context() *Context { return m.ctx }

// Close frees the memory (cuMemFree). The caller has waited for the work that
// uses it. A second Close does nothing.
func (m *Memory) Close() error {
	p := m.p.Swap(0)
	if p == 0 {
		return nil
	}
	m.leak.Stop()
	return m.ctx.st.destroy("cuMemFree", func(d api.Driver) api.Code { return d.MemFree(Ptr(p)) })
}

// MemcpyHtoD copies src to device memory and returns when that is done
// (cuMemcpyHtoD). It is ordered behind the context's legacy default stream, not
// behind non-blocking streams.
func (c *Context) MemcpyHtoD(dst Ptr, src []byte) (err error) {
	const op = "cuMemcpyHtoD"
	b, err := c.enter(op)
	if err != nil {
		return err
	}
	defer b.exit(&err)
	if len(src) == 0 {
		return nil
	}
	return b.check(op, b.seam().MemcpyHtoD(dst, unsafe.Pointer(unsafe.SliceData(src)), uint64(len(src))))
}

// MemcpyDtoH copies device memory to dst and returns when that is done
// (cuMemcpyDtoH). It is ordered as MemcpyHtoD is.
func (c *Context) MemcpyDtoH(dst []byte, src Ptr) (err error) {
	const op = "cuMemcpyDtoH"
	b, err := c.enter(op)
	if err != nil {
		return err
	}
	defer b.exit(&err)
	if len(dst) == 0 {
		return nil
	}
	return b.check(op, b.seam().MemcpyDtoH(unsafe.Pointer(unsafe.SliceData(dst)), src, uint64(len(dst))))
}

// MemcpyHtoD enqueues a copy of n bytes of host memory to device memory
// (cuMemcpyHtoDAsync). src is pinned memory (HostMem.Pointer), not changed
// before the stream has passed the copy. From pageable memory the driver may
// copy while the caller waits, and the memory must be kept alive as long.
func (s *Stream) MemcpyHtoD(dst Ptr, src unsafe.Pointer, n int) (err error) {
	const op = "cuMemcpyHtoDAsync"
	b, err := s.enterN(op, n)
	if err != nil {
		return err
	}
	defer b.exit(&err)
	if n == 0 {
		return nil
	}
	return b.check(op, b.seam().MemcpyHtoDAsync(dst, src, uint64(n), s.h))
}

// MemcpyDtoH enqueues a copy of n bytes of device memory to host memory
// (cuMemcpyDtoHAsync). dst is pinned memory, not read before the stream has
// passed the copy.
func (s *Stream) MemcpyDtoH(dst unsafe.Pointer, src Ptr, n int) (err error) {
	const op = "cuMemcpyDtoHAsync"
	b, err := s.enterN(op, n)
	if err != nil {
		return err
	}
	defer b.exit(&err)
	if n == 0 {
		return nil
	}
	return b.check(op, b.seam().MemcpyDtoHAsync(dst, src, uint64(n), s.h))
}

// MemcpyDtoD enqueues a copy of n bytes within device memory
// (cuMemcpyDtoDAsync).
func (s *Stream) MemcpyDtoD(dst, src Ptr, n int) (err error) {
	const op = "cuMemcpyDtoDAsync"
	b, err := s.enterN(op, n)
	if err != nil {
		return err
	}
	defer b.exit(&err)
	if n == 0 {
		return nil
	}
	return b.check(op, b.seam().MemcpyDtoDAsync(dst, src, uint64(n), s.h))
}

// MemcpyPeer enqueues a copy of n bytes from memory of one context to memory of
// another (cuMemcpyPeerAsync). Where peer access is not enabled the driver
// takes a detour through host memory, and may block the caller. A context that
// is closed is ErrClosed; the caller keeps both open for the length of the call.
func (s *Stream) MemcpyPeer(dst Ptr, dctx *Context, src Ptr, sctx *Context, n int) (err error) {
	const op = "cuMemcpyPeerAsync"
	if dctx.closed.Load() || sctx.closed.Load() {
		return closedError(op, "context of the source or the destination")
	}
	b, err := s.enterN(op, n)
	if err != nil {
		return err
	}
	defer b.exit(&err)
	if n == 0 {
		return nil
	}
	return b.check(op, b.seam().MemcpyPeerAsync(dst, dctx.st.h, src, sctx.st.h, uint64(n), s.h))
}

// Memcpy2D enqueues a copy of Height rows of Width bytes between memory of two
// pitches (cuMemcpy2DAsync). c is read before the call returns and may be used
// again.
func (s *Stream) Memcpy2D(c *Copy2D) (err error) {
	const op = "cuMemcpy2DAsync"
	b, err := s.enter(op)
	if err != nil {
		return err
	}
	defer b.exit(&err)
	if c.Width == 0 || c.Height == 0 {
		return nil
	}
	return b.check(op, b.seam().Memcpy2DAsync(c, s.h))
}

// MemsetD8 enqueues setting n bytes of device memory to v (cuMemsetD8Async).
func (s *Stream) MemsetD8(dst Ptr, v byte, n int) (err error) {
	const op = "cuMemsetD8Async"
	b, err := s.enterN(op, n)
	if err != nil {
		return err
	}
	defer b.exit(&err)
	if n == 0 {
		return nil
	}
	return b.check(op, b.seam().MemsetD8Async(dst, v, uint64(n), s.h))
}

// MemsetD32 enqueues setting n words of four bytes to v; dst is aligned to four
// bytes (cuMemsetD32Async).
func (s *Stream) MemsetD32(dst Ptr, v uint32, n int) (err error) {
	const op = "cuMemsetD32Async"
	b, err := s.enterN(op, n)
	if err != nil {
		return err
	}
	defer b.exit(&err)
	if n == 0 {
		return nil
	}
	return b.check(op, b.seam().MemsetD32Async(dst, v, uint64(n), s.h))
}

// enterN is enter for work on n bytes or words. A length of 0 passes, so that
// it meets the same errors as any other, and then enqueues nothing.
func (s *Stream) enterN(op string, n int) (binding, error) {
	if n < 0 {
		return binding{}, s.ctx.st.d.newError(op, api.InvalidValue, fmt.Sprintf("a length of %d", n))
	}
	return s.enter(op)
}

// HostMem is pinned host memory: from HostAlloc, or memory of the caller's that
// Register pinned. GPUs copy from and to it at link rate, and kernels reach it
// through DevicePtr. As with Memory, only Close frees it.
type HostMem struct {
	ctx        *Context
	p          atomic.Pointer[byte]
	n          int
	registered bool
	leak       runtime.Cleanup
}

// HostAlloc allocates n bytes of pinned host memory, n > 0, page-aligned, that
// every context can use (cuMemHostAlloc, PORTABLE, DEVICEMAP and flags).
func (c *Context) HostAlloc(n int, flags HostAllocFlag) (m *HostMem, err error) {
	const op = "cuMemHostAlloc"
	if n <= 0 {
		return nil, c.st.d.newError(op, api.InvalidValue, fmt.Sprintf("%d bytes", n))
	}
	b, err := c.enterToMake(op)
	if err != nil {
		return nil, err
	}
	defer settle(c, &m, &err)
	defer b.exit(&err)
	p, code := b.seam().MemHostAlloc(uint64(n), flags|HostPortable|HostDeviceMap)
	if code != api.Success {
		return nil, c.st.checkDetail(op, code, fmt.Sprintf("%d bytes", n))
	}
	return c.hostMem(p, n, false), nil
}

// Register pins n bytes of the caller's memory at p, n > 0, for every context
// (cuMemHostRegister, PORTABLE and DEVICEMAP). Close takes the pin away and
// leaves the memory alone. Whole pages are pinned. Memory that is not Go's must
// outlive the HostMem.
func (c *Context) Register(p unsafe.Pointer, n int) (m *HostMem, err error) {
	const op = "cuMemHostRegister"
	if n <= 0 || p == nil {
		return nil, c.st.d.newError(op, api.InvalidValue, fmt.Sprintf("%d bytes at %p", n, p))
	}
	b, err := c.enterToMake(op)
	if err != nil {
		return nil, err
	}
	defer settle(c, &m, &err)
	defer b.exit(&err)
	if code := b.seam().MemHostRegister(p, uint64(n), RegisterPortable|RegisterDeviceMap); code != api.Success {
		return nil, c.st.checkDetail(op, code, fmt.Sprintf("%d bytes", n))
	}
	return c.hostMem(p, n, true), nil
}

func (c *Context) hostMem(p unsafe.Pointer, n int, registered bool) *HostMem {
	m := &HostMem{ctx: c, n: n, registered: registered}
	m.p.Store((*byte)(p))
	m.leak = watchLeak(m, "pinned host memory", n)
	return m
}

// Len is the memory's size in bytes.
func (m *HostMem) Len() int { return m.n }

// Pointer is the memory's host address, nil after Close.
func (m *HostMem) Pointer() unsafe.Pointer { return unsafe.Pointer(m.p.Load()) }

// Bytes is the memory, nil after Close. A slice that was taken before Close
// must not be used after it.
func (m *HostMem) Bytes() []byte {
	p := m.p.Load()
	if p == nil {
		return nil
	}
	return unsafe.Slice(p, m.n)
}

// DevicePtr is the address under which the device of c reaches the memory
// (cuMemHostGetDevicePointer). It need not equal the host address.
func (m *HostMem) DevicePtr(c *Context) (p Ptr, err error) {
	const op = "cuMemHostGetDevicePointer"
	host := m.p.Load()
	if host == nil {
		return 0, closedError(op, "host memory")
	}
	b, err := c.enter(op)
	if err != nil {
		return 0, err
	}
	defer b.exit(&err)
	p, code := b.seam().MemHostGetDevicePointer(unsafe.Pointer(host))
	return p, b.check(op, code)
}

// Close frees the memory (cuMemFreeHost), or takes the pin away from memory
// that was registered (cuMemHostUnregister). The caller has waited for the
// work that uses it. A second Close does nothing.
func (m *HostMem) Close() error {
	p := m.p.Swap(nil)
	if p == nil {
		return nil
	}
	m.leak.Stop()
	if m.registered {
		return m.ctx.st.destroyPortable("cuMemHostUnregister", func(d api.Driver) api.Code { return d.MemHostUnregister(unsafe.Pointer(p)) })
	}
	return m.ctx.st.destroyPortable("cuMemFreeHost", func(d api.Driver) api.Code { return d.MemFreeHost(unsafe.Pointer(p)) })
}
