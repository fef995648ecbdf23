// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// A Buffer is a range of elements in a rank's device memory, with the stream
// that orders the work on it. It is a value: Sub and On return changed copies
// that share the memory. A call on a buffer waits for what its stream held
// before, and what is enqueued on the stream afterwards waits for the call.
//
// The zero Buffer is none.
type Buffer struct {
	rank   *Rank
	ptr    cuda.Ptr
	n      int
	typ    Type
	stream *cuda.Stream
	mem    *memory // nil if the memory is foreign
}

// memory is one allocation, shared by the buffers made from it.
type memory struct {
	rank  *Rank
	mem   *cuda.Memory
	freed atomic.Bool

	mu      sync.Mutex
	streams []*cuda.Stream // that buffers of it were given by On
}

// Alloc allocates n elements of device memory on the rank (cuMemAlloc). The
// contents are not defined. The rank's own stream orders the buffer.
func (r *Rank) Alloc(t Type, n int) (Buffer, error) {
	const op = "alloc"
	if err := r.g.usable(op); err != nil {
		return Buffer{}, err
	}
	if !t.Valid() {
		return Buffer{}, argument(op, r.index, "%v is not an element type", t)
	}
	if n < 0 || uint64(n) > maxBytes/uint64(t.Size()) {
		return Buffer{}, argument(op, r.index, "%d elements of %v", n, t)
	}
	m := &memory{rank: r}
	b := Buffer{rank: r, n: n, typ: t, stream: r.stream, mem: m}
	if n == 0 {
		return b, nil
	}
	defer r.g.logs.flush()
	r.g.relaxed(r.sweep)
	r.memMu.Lock() // so that Close waits, and then frees this too
	defer r.memMu.Unlock()
	if r.mem == nil { // closed meanwhile
		return Buffer{}, &Error{op, r.index, fmt.Errorf("group: %w", ErrClosed)}
	}
	var err error
	r.g.relaxed(func() { m.mem, err = r.cc.Alloc(n * t.Size()) })
	if err != nil {
		return Buffer{}, r.g.rankError(op, r, err)
	}
	b.ptr = m.mem.Ptr()
	r.mem[m] = struct{}{}
	return b, nil
}

// maxBytes keeps byte counts clear of the sign bit.
const maxBytes = math.MaxInt / 2

// Wrap makes a buffer of device memory that other code of the process
// allocated on the rank's GPU: n elements at p, ordered by stream s, or by the
// context's legacy default stream where s is nil. The pointer may lie inside an
// allocation; it must be aligned to its element, and the range must lie in one
// allocation of device memory. Who allocated the memory keeps it until the work
// that uses it is done, and frees it.
func (r *Rank) Wrap(p cuda.Ptr, t Type, n int, s *cuda.Stream) (Buffer, error) {
	const op = "wrap"
	if err := r.g.usable(op); err != nil {
		return Buffer{}, err
	}
	if !t.Valid() {
		return Buffer{}, argument(op, r.index, "%v is not an element type", t)
	}
	if n < 0 || uint64(n) > maxBytes/uint64(t.Size()) {
		return Buffer{}, argument(op, r.index, "%d elements of %v", n, t)
	}
	if uint64(p)%uint64(t.Size()) != 0 {
		return Buffer{}, argument(op, r.index, "pointer %#x is not aligned to %v (%d bytes)", uint64(p), t, t.Size())
	}
	if s == nil {
		s = r.cc.LegacyStream()
	}
	b := Buffer{rank: r, ptr: p, n: n, typ: t, stream: s}
	if err := b.checkStream(op); err != nil {
		return Buffer{}, err
	}
	if n == 0 {
		return b, nil
	}
	info, err := r.g.drv.PointerInfo(p)
	if err != nil && !errors.Is(err, cuda.ErrInvalidValue) {
		return Buffer{}, r.g.rankError(op, r, err)
	}
	if err != nil {
		return Buffer{}, argument(op, r.index, "pointer %#x is not memory that the driver knows (pageable host memory, or freed): %w", uint64(p), err)
	}
	switch {
	case info.Managed:
		return Buffer{}, argument(op, r.index, "pointer %#x is managed memory: only device memory can be wrapped", uint64(p))
	case info.Type != cuda.MemoryDevice:
		return Buffer{}, argument(op, r.index, "pointer %#x is host memory: only device memory can be wrapped", uint64(p))
	case info.Device != r.device.Ordinal():
		return Buffer{}, argument(op, r.index, "pointer %#x is memory of GPU %d, and the rank is GPU %d", uint64(p), info.Device, r.device.Ordinal())
	}
	end := uint64(p) + uint64(n)*uint64(t.Size())
	// An old driver does not tell the size.
	if limit := uint64(info.Base) + info.Size; info.Size != 0 && end > limit {
		return Buffer{}, argument(op, r.index, "%d elements of %v at %#x end %d bytes behind their allocation", n, t, uint64(p), end-limit)
	}
	return b, nil
}

// Rank is the rank whose memory it is.
func (b Buffer) Rank() *Rank { return b.rank }

// Ptr is the device address of the first element.
func (b Buffer) Ptr() cuda.Ptr { return b.ptr }

// Len is the number of elements.
func (b Buffer) Len() int { return b.n }

// Type is the element type.
func (b Buffer) Type() Type { return b.typ }

// Bytes is the length in bytes.
func (b Buffer) Bytes() int {
	if b.n == 0 {
		return 0
	}
	return b.n * b.typ.Size()
}

// Stream is the stream that orders the buffer.
func (b Buffer) Stream() *cuda.Stream { return b.stream }

// Sub is the elements i to j of b, in the same memory. It panics as a slice
// expression does if they are out of range.
func (b Buffer) Sub(i, j int) Buffer {
	if i < 0 || j < i || j > b.n {
		panic(fmt.Sprintf("gp: Sub(%d, %d) of a buffer of %d elements", i, j, b.n))
	}
	if i != 0 { // and so there is memory
		b.ptr += cuda.Ptr(i * b.typ.Size())
	}
	b.n = j - i
	return b
}

// On is b ordered by another stream, which must be of the rank's context. Calls
// refuse a buffer whose stream is not.
func (b Buffer) On(s *cuda.Stream) Buffer {
	b.stream = s
	if b.mem != nil && s != nil && s != b.rank.stream {
		b.mem.mu.Lock()
		defer b.mem.mu.Unlock()
		for i, have := range b.mem.streams {
			if have.Handle() == s.Handle() {
				b.mem.streams[i] = s // the newer: the handle may have been given out again
				return b
			}
		}
		b.mem.streams = append(b.mem.streams, s)
	}
	return b
}

// Free waits for the work that uses the memory and frees it (cuMemFree). All
// buffers that share it are refused afterwards. Foreign memory is only
// forgotten. A second Free does nothing.
func (b Buffer) Free() error {
	const op = "free"
	if b.rank == nil {
		return argument(op, -1, "zero Buffer")
	}
	if b.mem == nil || !b.mem.giveUp() {
		return nil
	}
	r, m := b.rank, b.mem
	r.memMu.Lock()
	delete(r.mem, m)
	r.memMu.Unlock()
	if m.mem == nil {
		return nil
	}
	var err error
	r.g.relaxed(func() {
		m.settle()
		err = m.mem.Close()
	})
	if err != nil {
		return r.g.rankError(op, r, err)
	}
	return nil
}

// giveUp marks the memory as freed and tells whether it was not yet. It takes the
// group's lock: a call that is being enqueued has it and has looked at the mark.
func (m *memory) giveUp() bool {
	g := m.rank.g
	g.mu.Lock()
	defer g.mu.Unlock()
	return !m.freed.Swap(true)
}

// settle waits until nothing uses the memory. Every call left the buffer's
// stream waiting for it, so those streams being idle is enough.
func (m *memory) settle() {
	m.mu.Lock()
	streams := append([]*cuda.Stream{m.rank.stream}, m.streams...)
	m.mu.Unlock()
	for _, s := range streams {
		if s.Synchronize() != nil {
			// Its owner has closed it, and the work on it may go on. What a
			// lost context answers is not this call's to report.
			_ = m.rank.cc.Synchronize()
		}
	}
}

// An orphan is memory that its owner gave up while the device may still be using
// it. It is freed when the event is done: somebody allocates then, or the group
// closes.
type orphan struct {
	m  *memory
	ev *cuda.Event
}

// freeLater gives the memory up without waiting.
func (b Buffer) freeLater() error {
	if b.mem == nil || !b.mem.giveUp() || b.mem.mem == nil {
		return nil
	}
	r := b.rank
	r.memMu.Lock()
	defer r.memMu.Unlock()
	if r.mem == nil {
		return nil // the group has closed meanwhile, and freed it
	}
	ev, err := r.cc.NewEvent(cuda.EventDisableTiming)
	if err != nil {
		return err // and the group's Close frees it
	}
	if err := ev.Record(b.stream); err != nil {
		return errors.Join(err, ev.Close())
	}
	r.orphans = append(r.orphans, orphan{b.mem, ev})
	return nil
}

// sweep frees the orphans that nothing uses any more.
func (r *Rank) sweep() {
	r.memMu.Lock()
	var idle []orphan
	keep := r.orphans[:0]
	for _, o := range r.orphans {
		if done, err := o.ev.Query(); done || err != nil {
			idle = append(idle, o)
			delete(r.mem, o.m)
		} else {
			keep = append(keep, o)
		}
	}
	r.orphans = keep
	r.memMu.Unlock()
	for _, o := range idle {
		if err := errors.Join(o.ev.Close(), o.m.mem.Close()); err != nil {
			r.g.log.Warn("gp: memory of a transfer that was given up cannot be freed", "rank", r.index, "error", err)
		}
	}
}

func (b Buffer) addr() api.Ptr { return api.Ptr(b.ptr) }

func (b Buffer) queue() api.Stream { return api.Stream(b.stream.Handle()) }

// check refuses what a call cannot take.
func (g *Group) check(op string, b *Buffer) error {
	switch {
	case b.rank == nil:
		return argument(op, -1, "zero Buffer")
	case b.rank.g != g:
		return argument(op, b.rank.index, "buffer of another group")
	}
	if err := b.alive(op); err != nil {
		return err
	}
	return b.checkStream(op)
}

// alive refuses a buffer whose memory is freed. Who is to enqueue work on it
// asks again under the group's lock.
func (b *Buffer) alive(op string) error {
	if b.mem != nil && b.mem.freed.Load() {
		return &Error{op, b.rank.index, fmt.Errorf("%w: buffer: %w", ErrArgument, ErrClosed)}
	}
	return nil
}

func (b *Buffer) checkStream(op string) error {
	switch {
	case b.stream == nil:
		return argument(op, b.rank.index, "buffer on a nil stream")
	case b.stream.Closed():
		return &Error{op, b.rank.index, fmt.Errorf("%w: the buffer's stream: %w", ErrArgument, ErrClosed)}
	case api.Stream(b.stream.Handle()) == api.StreamPerThread:
		return argument(op, b.rank.index, "the per-thread default stream (handle 2) names another stream on every OS thread, and goroutines move: pass a real stream")
	case api.Context(b.stream.Context().Handle()) != b.rank.ctx:
		return argument(op, b.rank.index, "the buffer's stream belongs to another context than the rank's")
	}
	return nil
}

// overlap tells whether two buffers share memory.
func overlap(a, b *Buffer) bool {
	return a.n > 0 && b.n > 0 && a.rank.ctx == b.rank.ctx &&
		a.ptr < b.ptr+cuda.Ptr(b.Bytes()) && b.ptr < a.ptr+cuda.Ptr(a.Bytes())
}

func same(a, b *Buffer) bool { return a.rank == b.rank && a.ptr == b.ptr && a.n == b.n }
