// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/ptxvm"
)

// Device addresses are never an address of this process: they lie above 2^49,
// where no user address space reaches. Neither two machines nor two allocations
// ever have the same, so that what was freed stays invalid, and there is a gap
// behind each.
const (
	addressBase  = 1 << 49
	addressAlign = 512
	addressGap   = 1 << 16
)

var addresses atomic.Uint64

// newAddress returns the device address of n bytes.
func newAddress(n uint64) api.Ptr {
	size := (n+addressAlign-1)/addressAlign*addressAlign + addressGap
	return api.Ptr(addressBase + addresses.Add(size) - size)
}

const (
	maxThreads = 1024
	maxPitch   = 1<<31 - 1
	pageSize   = 4096
)

// poison fills the start of fresh device memory, whose contents CUDA leaves open.
const (
	poison      = 0xb5
	poisonBytes = 1 << 20
)

// alloc is a range of device memory or of pinned host memory.
type alloc struct {
	base api.Ptr // device address
	n    uint64
	ctx  *context
	site site

	shadow shadow // who touched it, if the machine watches

	g       *gpu           // of device memory
	buf     []byte         // of device memory, when first touched
	tracked bool           // its bytes are marked when written
	written *ptxvm.Written // those, of a buffer that is tracked

	mirrors map[*gpu][]byte // of device memory, where peers see another: see PeerMirror

	host       unsafe.Pointer // of host memory
	keep       []byte         // its backing, if it is ours
	reuse      bool           // see Reuse
	registered bool
	flags      api.HostAllocFlag
	node       *numa
}

func (a *alloc) String() string {
	switch {
	case a.g != nil:
		return fmt.Sprintf("device memory of GPU %d, %d bytes%s", a.g.ordinal, a.n, a.site)
	case a.registered:
		return fmt.Sprintf("registered host memory, %d bytes%s", a.n, a.site)
	}
	return fmt.Sprintf("pinned host memory, %d bytes%s", a.n, a.site)
}

func (a *alloc) hostAddr() uint64 { return uint64(uintptr(a.host)) }

func (a *alloc) bytes() []byte {
	if a.g == nil {
		return unsafe.Slice((*byte)(a.host), a.n)
	}
	if a.buf == nil {
		a.buf = backing(a.n, a.reuse)
		if !reused(a.n, a.reuse) {
			paint(a.buf[:min(a.n, poisonBytes)], poison)
		}
		if a.tracked {
			a.written = ptxvm.NewWritten(a.n)
		}
	}
	return a.buf
}

// A span is bytes that a command touches: in an allocation, or pageable memory.
type span struct {
	a   *alloc
	off uint64
	raw unsafe.Pointer
}

func (s span) bytes(n uint64) []byte {
	if s.a == nil {
		return unsafe.Slice((*byte)(s.raw), n)
	}
	return s.a.bytes()[s.off:][:n:n]
}

func (s span) pageable() bool { return s.a == nil }

// gpu is whose memory it is, nil for the host's.
func (s span) gpu() *gpu {
	if s.a == nil {
		return nil
	}
	return s.a.g
}

// find looks up the allocation that holds a device address.
func (m *Machine) find(p api.Ptr) *alloc {
	i, ok := slices.BinarySearchFunc(m.memory, p, func(a *alloc, p api.Ptr) int { return cmp.Compare(a.base, p) })
	if !ok {
		i--
	}
	if i < 0 || uint64(p-m.memory[i].base) >= m.memory[i].n {
		return nil
	}
	return m.memory[i]
}

// device resolves n bytes at a device address.
func (m *Machine) device(p api.Ptr, n uint64) (span, api.Code) {
	a := m.find(p)
	if a == nil || n > a.n-uint64(p-a.base) {
		return span{}, api.InvalidValue
	}
	return span{a: a, off: uint64(p - a.base)}, api.Success
}

// findHost looks up pinned memory that holds a host address.
func (m *Machine) findHost(addr uint64) *alloc {
	i, ok := slices.BinarySearchFunc(m.pinned, addr, func(a *alloc, p uint64) int { return cmp.Compare(a.hostAddr(), p) })
	if !ok {
		i--
	}
	if i < 0 || addr-m.pinned[i].hostAddr() >= m.pinned[i].n {
		return nil
	}
	return m.pinned[i]
}

// pinnedIn tells whether any of n bytes are pinned.
func (m *Machine) pinnedIn(addr, n uint64) bool {
	for _, a := range m.pinned {
		if addr < a.hostAddr()+a.n && a.hostAddr() < addr+n {
			return true
		}
	}
	return false
}

// hostSpan resolves n bytes at a host address. They may be pageable, but not in part.
func (m *Machine) hostSpan(p unsafe.Pointer, n uint64) (span, api.Code) {
	addr := uint64(uintptr(p))
	if a := m.findHost(addr); a != nil {
		off := addr - a.hostAddr()
		if n > a.n-off {
			return span{}, api.InvalidValue
		}
		return span{a: a, off: off}, api.Success
	}
	if p == nil || m.pinnedIn(addr, n) {
		return span{}, api.InvalidValue
	}
	return span{raw: p}, api.Success
}

func (m *Machine) insert(a *alloc) {
	i, _ := slices.BinarySearchFunc(m.memory, a.base, func(a *alloc, p api.Ptr) int { return cmp.Compare(a.base, p) })
	m.memory = slices.Insert(m.memory, i, a)
	if a.g == nil {
		i, _ := slices.BinarySearchFunc(m.pinned, a.hostAddr(), func(a *alloc, p uint64) int { return cmp.Compare(a.hostAddr(), p) })
		m.pinned = slices.Insert(m.pinned, i, a)
		m.locked += a.n
	} else {
		a.g.used += a.n
	}
}

// release forgets an allocation. Nothing that touches it may be left to run.
func (m *Machine) release(a *alloc) {
	is := func(o *alloc) bool { return o == a }
	m.memory = slices.DeleteFunc(m.memory, is)
	if a.g == nil {
		m.pinned = slices.DeleteFunc(m.pinned, is)
		m.locked -= a.n
	} else {
		a.g.used -= a.n
	}
	giveUp(a.buf, a.reuse)
	a.buf, a.keep = nil, nil
}

// The lengths of memory that Reuse keeps. At every step of them a part is poisoned,
// so that a copy which never came does not look as if it had, by luck.
const (
	leastSpare   = 256 << 10
	mostSpare    = 64 << 20
	spareStep    = 512 << 10
	sparePoisons = 32 << 10
)

// spares are what can be given out again, of all machines.
var spares struct {
	sync.Mutex
	of    map[uint64][][]byte // by length
	bytes uint64
}

const maxSpares = 128 << 20 // bytes in all

func reused(n uint64, reuse bool) bool {
	return reuse && n >= leastSpare && n <= mostSpare && n%pageSize == 0
}

// backing is n bytes: zero, or with Reuse what they were, but for what is poisoned.
func backing(n uint64, reuse bool) []byte {
	if reused(n, reuse) {
		if b := takeSpare(n); b != nil {
			for at := uint64(0); at < n; at += spareStep {
				paint(b[at:min(at+sparePoisons, n)], poison)
			}
			return b
		}
	}
	return make([]byte, n)
}

func giveUp(b []byte, reuse bool) {
	n := uint64(len(b))
	if !reused(n, reuse) {
		return
	}
	spares.Lock()
	defer spares.Unlock()
	if spares.bytes+n > maxSpares {
		return
	}
	if spares.of == nil {
		spares.of = map[uint64][][]byte{}
	}
	spares.of[n] = append(spares.of[n], b)
	spares.bytes += n
}

func takeSpare(n uint64) []byte {
	spares.Lock()
	defer spares.Unlock()
	list := spares.of[n]
	if len(list) == 0 {
		return nil
	}
	b := list[len(list)-1]
	list[len(list)-1] = nil
	spares.of[n] = list[:len(list)-1]
	spares.bytes -= n
	return b
}

func paint(b []byte, v byte) {
	if len(b) > 0 {
		b[0] = v
	}
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

func (s seam) MemGetInfo() (free, total uint64, code api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	c, code := m.ctx()
	if code != api.Success {
		return 0, 0, code
	}
	return c.g.spec.MemoryBytes - c.g.used, c.g.spec.MemoryBytes, code
}

func (s seam) MemAlloc(n uint64) (api.Ptr, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	c, code := m.ctx()
	if code != api.Success {
		return 0, code
	}
	if code := m.unsafeCall(); code != api.Success {
		return 0, code
	}
	switch {
	case n == 0:
		return 0, api.InvalidValue
	case n > c.g.spec.MemoryBytes-c.g.used:
		return 0, api.OutOfMemory
	}
	a := &alloc{base: newAddress(n), n: n, ctx: c, g: c.g, site: m.site(), tracked: m.options.interpret, reuse: m.options.reuse}
	m.insert(a)
	return a.base, api.Success
}

func (s seam) MemFree(p api.Ptr) api.Code {
	m := s.other()
	defer m.mu.Unlock()
	if _, code := m.ctx(); code != api.Success {
		return code
	}
	if code := m.unsafeCall(); code != api.Success {
		return code
	}
	a := m.find(p)
	if a == nil || a.base != p || a.g == nil {
		return api.InvalidValue
	}
	m.drain(a.ctx)
	m.release(a)
	return api.Success
}

func (s seam) MemHostAlloc(n uint64, flags api.HostAllocFlag) (unsafe.Pointer, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	c, code := m.ctx()
	if code != api.Success {
		return nil, code
	}
	if code := m.unsafeCall(); code != api.Success {
		return nil, code
	}
	if n == 0 {
		return nil, api.Success // as measured, where cuMemAlloc refuses it
	}
	if flags&^(api.HostPortable|api.HostDeviceMap|api.HostWriteCombined) != 0 {
		return nil, api.InvalidValue
	}
	if !m.mayPin(n) {
		return nil, api.OutOfMemory
	}
	m.clock += time.Duration(m.spec.Calls.HostAlloc.Value * float64(n) * 1e3)
	keep := backing(n+pageSize, m.options.reuse)
	off := -uintptr(unsafe.Pointer(unsafe.SliceData(keep))) & (pageSize - 1)
	a := &alloc{n: n, ctx: c, host: unsafe.Pointer(&keep[off]), keep: keep, reuse: m.options.reuse, flags: flags, site: m.site()}
	m.alias(a)
	m.insert(a)
	return a.host, api.Success
}

func (m *Machine) mayPin(n uint64) bool {
	limit := m.spec.Host.MemoryBytes
	if m.options.pinnedLimit > 0 {
		limit = min(limit, m.options.pinnedLimit)
	}
	return n <= limit && m.locked <= limit-n
}

// alias gives pinned host memory its device address and its place.
func (m *Machine) alias(a *alloc) {
	a.node = m.preferred()
	if m.options.equalHost {
		a.base = api.Ptr(a.hostAddr())
		return
	}
	// The same offset in its page, as a mapping has.
	a.base = newAddress(a.n+pageSize) + api.Ptr(a.hostAddr()%addressAlign)
}

func (s seam) MemFreeHost(p unsafe.Pointer) api.Code {
	m := s.other()
	defer m.mu.Unlock()
	if _, code := m.ctx(); code != api.Success {
		return code
	}
	if code := m.unsafeCall(); code != api.Success {
		return code
	}
	a := m.findHost(uint64(uintptr(p)))
	if a == nil || a.host != p || a.registered {
		return api.InvalidValue
	}
	m.unpin(a)
	return api.Success
}

// unpin waits for everything that may touch pinned memory: any GPU can.
func (m *Machine) unpin(a *alloc) {
	for _, g := range m.gpus {
		if g.primary != nil {
			m.drain(g.primary)
		}
	}
	keep := a.keep
	m.release(a)
	giveUp(keep, a.reuse)
}

func (s seam) MemHostRegister(p unsafe.Pointer, n uint64, flags api.HostRegisterFlag) api.Code {
	m := s.other()
	defer m.mu.Unlock()
	c, code := m.ctx()
	if code != api.Success {
		return code
	}
	if code := m.unsafeCall(); code != api.Success {
		return code
	}
	switch {
	case p == nil || n == 0 || flags&^(api.RegisterPortable|api.RegisterDeviceMap) != 0:
		return api.InvalidValue
	case m.pinnedIn(uint64(uintptr(p)), n):
		return api.HostMemoryAlreadyReg
	case !m.mayPin(n):
		return api.OutOfMemory
	}
	a := &alloc{n: n, ctx: c, host: p, registered: true, flags: api.HostAllocFlag(flags), site: m.site()}
	m.alias(a)
	m.insert(a)
	return api.Success
}

func (s seam) MemHostUnregister(p unsafe.Pointer) api.Code {
	m := s.other()
	defer m.mu.Unlock()
	if _, code := m.ctx(); code != api.Success {
		return code
	}
	if code := m.unsafeCall(); code != api.Success {
		return code
	}
	a := m.findHost(uint64(uintptr(p)))
	if a == nil || a.host != p || !a.registered {
		return api.HostMemoryNotRegistered
	}
	m.unpin(a)
	return api.Success
}

func (s seam) MemHostGetDevicePointer(p unsafe.Pointer) (api.Ptr, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	if _, code := m.ctx(); code != api.Success {
		return 0, code
	}
	addr := uint64(uintptr(p))
	a := m.findHost(addr)
	if a == nil {
		return 0, api.InvalidValue
	}
	return a.base + api.Ptr(addr-a.hostAddr()), api.Success
}

func (s seam) MemHostGetFlags(p unsafe.Pointer) (api.HostAllocFlag, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	if _, code := m.ctx(); code != api.Success {
		return 0, code
	}
	a := m.findHost(uint64(uintptr(p)))
	if a == nil {
		return 0, api.InvalidValue
	}
	// With unified addressing all pinned memory is mapped.
	return a.flags | api.HostDeviceMap, api.Success
}

func (s seam) MemGetAddressRange(p api.Ptr) (base api.Ptr, n uint64, code api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	if _, code := m.ctx(); code != api.Success {
		return 0, 0, code
	}
	a := m.find(p)
	if a == nil {
		return 0, 0, api.NotFound
	}
	return a.base, a.n, api.Success
}

func (s seam) PointerGetAttribute(attr api.PointerAttribute, p api.Ptr) (uint64, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	if c := m.up(); c != api.Success {
		return 0, c
	}
	a := m.find(p)
	if a != nil {
		p -= a.base
	} else if a = m.findHost(uint64(p)); a != nil {
		p -= api.Ptr(a.hostAddr())
	} else {
		return 0, api.InvalidValue
	}
	off := uint64(p)
	switch attr {
	case api.PtrContext:
		return uint64(a.ctx.h), api.Success
	case api.PtrMemoryType:
		if a.g == nil {
			return api.MemTypeHost, api.Success
		}
		return api.MemTypeDevice, api.Success
	case api.PtrDevicePointer:
		return uint64(a.base) + off, api.Success
	case api.PtrHostPointer:
		if a.g != nil {
			return 0, api.InvalidValue
		}
		return a.hostAddr() + off, api.Success
	case api.PtrIsManaged:
		return 0, api.Success
	case api.PtrDeviceOrdinal:
		return uint64(a.ctx.g.ordinal), api.Success
	case api.PtrRangeStart:
		return uint64(a.base), api.Success
	case api.PtrRangeSize:
		return a.n, api.Success
	}
	return 0, api.InvalidValue
}
