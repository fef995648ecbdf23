// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// stagedAtOnce is the most bytes of pageable memory that the driver takes over
// into buffers of its own before a copy to a device returns; a larger copy
// returns when it is done.
const stagedAtOnce = 64 << 10

// A shape is the rows of a copy. A plain copy is one row.
type shape struct {
	width, height      uint64
	dstPitch, srcPitch uint64
}

// extent is the bytes from the first to behind the last that a side covers.
func (s shape) extent(pitch uint64) uint64 {
	if s.height == 0 || s.width == 0 {
		return 0
	}
	return (s.height-1)*pitch + s.width
}

func (s shape) bytes() uint64 { return s.width * s.height }

// copy enqueues a copy into a stream. It blocks the host where the driver does:
// pageable memory to a device beyond stagedAtOnce, a device to pageable memory,
// and GPU to GPU without peer access.
func (m *Machine) copy(s *stream, dst, src span, f shape) api.Code {
	if f.bytes() == 0 {
		return api.Success
	}
	n := &node{runs: true}
	block := false
	if src.pageable() || dst.pageable() {
		paged := time.Duration(float64(f.bytes()) / m.spec.Host.PageCopy.perSecond() * 1e9)
		switch {
		case src.pageable() && !dst.pageable() && f.bytes() <= stagedAtOnce:
			// What the device gets is what the memory holds now.
			staged := make([]byte, f.bytes())
			from := src.bytes(f.extent(f.srcPitch))
			for i := range f.height {
				copy(staged[i*f.width:(i+1)*f.width], from[i*f.srcPitch:])
			}
			src, f.srcPitch = span{raw: unsafe.Pointer(unsafe.SliceData(staged))}, f.width
			m.clock += paged
		default:
			block = true
			n.work.latency += paged
		}
	}
	if !m.route(&n.work, m.place(dst), m.place(src), f.bytes(), s.ctx) {
		block = true
	}
	// A copy that the driver stages reaches both ends from the host.
	direct := dst.gpu() != nil && src.gpu() != nil && (m.peered(src.gpu(), dst.gpu()) || m.peered(dst.gpu(), src.gpu()))
	n.run = func() api.Code {
		to, from := dst.bytes(f.extent(f.dstPitch)), src.bytes(f.extent(f.srcPitch))
		switch {
		case direct && m.options.peer == peerZeros:
			from = make([]byte, len(from))
		case direct:
			to, from = m.reach(s.ctx.g, dst, uint64(len(to))), m.reach(s.ctx.g, src, uint64(len(from)))
		}
		for i := range f.height {
			copy(to[i*f.dstPitch:][:f.width], from[i*f.srcPitch:][:f.width])
			dst.wrote(i*f.dstPitch, f.width)
		}
		return api.Success
	}
	m.enqueue(s, n)
	t := m.watch.toucher(s, func() string { return fmt.Sprintf("copy of %d bytes", f.bytes()) })
	m.touchedRows(t, src, f.width, f.height, f.srcPitch, false)
	m.touchedRows(t, dst, f.width, f.height, f.dstPitch, true)
	if block {
		m.wait(n)
	}
	if dst.pageable() {
		// The host knows by then: the driver promises it.
		m.watch.knows(s.clock)
	}
	return s.ctx.fault
}

// row is the shape of a plain copy.
func row(n uint64) shape { return shape{width: n, height: 1, dstPitch: n, srcPitch: n} }

// target finds a stream to enqueue into.
func (m *Machine) target(h api.Stream) (st *stream, skip bool, code api.Code) {
	st, code = m.stream(h)
	if code != api.Success {
		return nil, true, code
	}
	skip, code = m.admit(st)
	return st, skip, code
}

// syncCopy is a copy on the legacy default stream that the host waits for. From
// pageable memory to a device it waits only until the driver has taken the
// bytes over: what a stream that does not wait for the legacy default stream
// does next is not ordered behind it.
func (m *Machine) syncCopy(resolve func() (dst, src span, code api.Code), n uint64) api.Code {
	c, code := m.ctx()
	if code != api.Success {
		return code
	}
	if code := m.unsafeCall(); code != api.Success {
		return code
	}
	if _, code := m.admit(c.legacy); code != api.Success {
		return code
	}
	dst, src, code := resolve()
	if code != api.Success || n == 0 {
		return code
	}
	if code := m.copy(c.legacy, dst, src, row(n)); code != api.Success {
		return code
	}
	if !src.pageable() || n > stagedAtOnce {
		m.wait(c.legacy.tail)
	}
	if !src.pageable() {
		m.watch.knows(c.legacy.clock)
	}
	return c.fault
}

func (s seam) MemcpyHtoD(dst api.Ptr, src unsafe.Pointer, n uint64) api.Code {
	m := s.lock(s.m.spec.Calls.Memcpy)
	defer m.mu.Unlock()
	return m.syncCopy(func() (span, span, api.Code) { return m.hostToDevice(dst, src, n) }, n)
}

func (s seam) MemcpyDtoH(dst unsafe.Pointer, src api.Ptr, n uint64) api.Code {
	m := s.lock(s.m.spec.Calls.Memcpy)
	defer m.mu.Unlock()
	return m.syncCopy(func() (span, span, api.Code) { return m.deviceToHost(dst, src, n) }, n)
}

func (m *Machine) hostToDevice(dst api.Ptr, src unsafe.Pointer, n uint64) (d, s span, code api.Code) {
	if n == 0 {
		return d, s, api.Success
	}
	if d, code = m.device(dst, n); code != api.Success {
		return d, s, code
	}
	s, code = m.hostSpan(src, n)
	return d, s, code
}

func (m *Machine) deviceToHost(dst unsafe.Pointer, src api.Ptr, n uint64) (d, s span, code api.Code) {
	if n == 0 {
		return d, s, api.Success
	}
	if s, code = m.device(src, n); code != api.Success {
		return d, s, code
	}
	d, code = m.hostSpan(dst, n)
	return d, s, code
}

func (s seam) MemcpyHtoDAsync(dst api.Ptr, src unsafe.Pointer, n uint64, h api.Stream) api.Code {
	m := s.lock(s.m.spec.Calls.Memcpy)
	defer m.mu.Unlock()
	st, skip, code := m.target(h)
	if skip {
		return code
	}
	d, sp, code := m.hostToDevice(dst, src, n)
	if code != api.Success || n == 0 {
		return code
	}
	return m.copy(st, d, sp, row(n))
}

func (s seam) MemcpyDtoHAsync(dst unsafe.Pointer, src api.Ptr, n uint64, h api.Stream) api.Code {
	m := s.lock(s.m.spec.Calls.Memcpy)
	defer m.mu.Unlock()
	st, skip, code := m.target(h)
	if skip {
		return code
	}
	d, sp, code := m.deviceToHost(dst, src, n)
	if code != api.Success || n == 0 {
		return code
	}
	return m.copy(st, d, sp, row(n))
}

func (s seam) MemcpyDtoDAsync(dst, src api.Ptr, n uint64, h api.Stream) api.Code {
	m := s.lock(s.m.spec.Calls.Memcpy)
	defer m.mu.Unlock()
	st, skip, code := m.target(h)
	if skip {
		return code
	}
	return m.copyDevice(st, dst, src, n, nil, nil)
}

// copyDevice copies between device addresses; the contexts, if not nil, are
// those that the addresses must belong to.
func (m *Machine) copyDevice(st *stream, dst, src api.Ptr, n uint64, dctx, sctx *context) api.Code {
	if n == 0 {
		return api.Success
	}
	d, code := m.device(dst, n)
	if code != api.Success {
		return code
	}
	sp, code := m.device(src, n)
	if code != api.Success {
		return code
	}
	foreign := func(s span, c *context) bool { return c != nil && s.a.g != nil && s.a.g != c.g }
	if foreign(d, dctx) || foreign(sp, sctx) {
		return api.InvalidValue
	}
	return m.copy(st, d, sp, row(n))
}

func (s seam) MemcpyPeerAsync(dst api.Ptr, dctx api.Context, src api.Ptr, sctx api.Context, n uint64, h api.Stream) api.Code {
	m := s.lock(s.m.spec.Calls.Memcpy)
	defer m.mu.Unlock()
	st, skip, code := m.target(h)
	if skip {
		return code
	}
	dc, code := m.lookup(dctx)
	if code != api.Success {
		return code
	}
	sc, code := m.lookup(sctx)
	if code != api.Success {
		return code
	}
	return m.copyDevice(st, dst, src, n, dc, sc)
}

func (s seam) Memcpy2DAsync(c *api.Copy2D, h api.Stream) api.Code {
	m := s.lock(s.m.spec.Calls.Memcpy)
	defer m.mu.Unlock()
	st, skip, code := m.target(h)
	if skip {
		return code
	}
	f := shape{c.Width, c.Height, c.DstPitch, c.SrcPitch}
	switch {
	case (c.SrcHost == nil) == (c.SrcDevice == 0), (c.DstHost == nil) == (c.DstDevice == 0):
		return api.InvalidValue
	case f.bytes() == 0:
		return api.Success
	}
	// A pitch of 0 stands for rows without a gap.
	for _, p := range []*uint64{&f.dstPitch, &f.srcPitch} {
		if *p == 0 {
			*p = f.width
		}
		// As measured, the pitch of a single row may be anything.
		if *p < f.width || *p > maxPitch && f.height > 1 {
			return api.InvalidValue
		}
	}
	side := func(host unsafe.Pointer, dev api.Ptr, pitch uint64) (span, api.Code) {
		if host != nil {
			return m.hostSpan(host, f.extent(pitch))
		}
		return m.device(dev, f.extent(pitch))
	}
	dst, code := side(c.DstHost, c.DstDevice, f.dstPitch)
	if code != api.Success {
		return code
	}
	src, code := side(c.SrcHost, c.SrcDevice, f.srcPitch)
	if code != api.Success {
		return code
	}
	return m.copy(st, dst, src, f)
}

func (s seam) MemsetD8Async(dst api.Ptr, v byte, n uint64, h api.Stream) api.Code {
	return s.fill(dst, []byte{v}, n, h)
}

func (s seam) MemsetD32Async(dst api.Ptr, v uint32, n uint64, h api.Stream) api.Code {
	return s.fill(dst, []byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)}, n, h)
}

// fill writes n words.
func (s seam) fill(dst api.Ptr, word []byte, n uint64, h api.Stream) api.Code {
	m := s.lock(s.m.spec.Calls.Launch)
	defer m.mu.Unlock()
	st, skip, code := m.target(h)
	if skip {
		return code
	}
	if n == 0 {
		return api.Success
	}
	bytes := n * uint64(len(word))
	if uint64(dst)%uint64(len(word)) != 0 || bytes/uint64(len(word)) != n {
		return api.InvalidValue
	}
	d, code := m.device(dst, bytes)
	if code != api.Success {
		return code
	}
	w := work{latency: st.ctx.g.spec.Launch.us()}
	m.touch(&w, st.ctx.g, m.place(d), bytes, true)
	m.enqueue(st, &node{runs: true, work: w, run: func() api.Code {
		b := d.bytes(bytes)
		for i := copy(b, word); i < len(b); i *= 2 {
			copy(b[i:], b[:i])
		}
		d.wrote(0, bytes)
		return api.Success
	}})
	m.touched(m.watch.toucher(st, func() string { return fmt.Sprintf("fill of %d bytes", bytes) }), d, bytes, true)
	return st.ctx.fault
}
