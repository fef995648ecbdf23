// SPDX-License-Identifier: Apache-2.0

package ptxvm

import (
	"errors"
	"fmt"

	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// Memory is a GPU's address space.
type Memory interface {
	// Region is the memory around an address. It fails where the GPU could not
	// reach it.
	Region(addr uint64) (Region, error)
}

// A Region is memory that an access must not leave.
type Region struct {
	Base    uint64   // its device address
	Bytes   []byte   // read and written in place
	Written *Written // what may be read; nil for all
}

// Written says which bytes of a region hold something.
type Written struct{ bits []uint64 }

// NewWritten is that of n bytes that nothing has written.
func NewWritten(n uint64) *Written { return &Written{make([]uint64, (n+63)/64)} }

// Mark notes that n bytes at an offset have been written. It may be nil.
func (w *Written) Mark(off, n uint64) {
	if w == nil {
		return
	}
	for n > 0 {
		k := min(64-off%64, n)
		w.bits[off/64] |= mask(int(k)) << (off % 64)
		off, n = off+k, n-k
	}
}

// Has tells whether n bytes at an offset have been written.
func (w *Written) Has(off, n uint64) bool {
	if w == nil {
		return true
	}
	for n > 0 {
		k := min(64-off%64, n)
		if m := mask(int(k)) << (off % 64); w.bits[off/64]&m != m {
			return false
		}
		off, n = off+k, n-k
	}
	return true
}

// What is wrong with an access, as a *Fault's cause. What a Memory says comes
// back as it is.
var (
	// ErrMisaligned is kernel.ErrMisaligned: the address of an access is not a
	// multiple of its size.
	ErrMisaligned = kernel.ErrMisaligned
	// ErrBounds says that an access begins in memory and ends behind it, or that
	// it is not within what a block shares.
	ErrBounds = errors.New("ptxvm: out of bounds")
	// ErrUnwritten says that nothing wrote the memory that is read.
	ErrUnwritten = errors.New("ptxvm: reads memory that nothing wrote")
	// ErrMeeting says that threads which have to meet do not.
	ErrMeeting = errors.New("ptxvm: threads do not meet")
	// ErrEndless says that threads do not come to an end.
	ErrEndless = errors.New("ptxvm: no end")
	// ErrLaunch says that a kernel cannot be launched like this.
	ErrLaunch = errors.New("ptxvm: bad launch")
)

// A Fault is what ends a run: where, and why.
type Fault struct {
	Kernel        string
	Launch        int // of several that run together
	Block, Thread [3]uint32
	Line          int
	Op            string // the instruction without its operands
	Err           error
}

func (f *Fault) Error() string {
	return fmt.Sprintf("ptxvm: %s, launch %d, block %v, thread %v, line %d: %s: %v", f.Kernel, f.Launch, f.Block, f.Thread, f.Line, f.Op, f.Err)
}

func (f *Fault) Unwrap() error { return f.Err }

// reach finds the memory of an access, by what the instruction found last.
func (r *run) reach(in *op, addr, n uint64) (*Region, uint64, error) {
	if addr&(n-1) != 0 {
		return nil, 0, fmt.Errorf("%w: %#x for an access of %d bytes", ErrMisaligned, addr, n)
	}
	g := r.cache[in.n]
	if g == nil || addr-g.Base >= uint64(len(g.Bytes)) {
		if g = r.find(addr); g == nil {
			m, err := r.mem.Region(addr)
			if err != nil {
				return nil, 0, err
			}
			if addr-m.Base >= uint64(len(m.Bytes)) {
				return nil, 0, fmt.Errorf("%w: %#x", ErrBounds, addr)
			}
			g = &m
			r.known = append(r.known, g)
		}
		r.cache[in.n] = g
	}
	off := addr - g.Base
	if n > uint64(len(g.Bytes))-off {
		return nil, 0, fmt.Errorf("%w: %d bytes at %#x, which end %d bytes behind it", ErrBounds, n, addr, n-uint64(len(g.Bytes))+off)
	}
	return g, off, nil
}

func (r *run) find(addr uint64) *Region {
	for _, g := range r.known {
		if addr-g.Base < uint64(len(g.Bytes)) {
			return g
		}
	}
	return nil
}

// forget drops what is known of memory, which may have changed.
func (r *run) forget() {
	clear(r.cache)
	r.known = r.known[:0]
}

// load is the bytes of an access, to be looked at once.
func (r *run) load(t *thread, in *op, addr, n uint64) []byte {
	g, off, err := r.reach(in, addr, n)
	if err != nil {
		r.err = err
		return nil
	}
	if g.Written != nil && !g.Written.Has(off, n) && (r.weak == nil || !t.block.covers(t, addr, n)) {
		r.err = fmt.Errorf("%w: %d bytes at %#x", ErrUnwritten, n, addr)
		return nil
	}
	if r.weak != nil {
		return r.weak.load(r, t, in, g, addr, n)
	}
	return g.Bytes[off : off+n : off+n]
}

// store writes the first n bytes of r.out.
func (r *run) store(t *thread, in *op, addr, n uint64) bool {
	g, off, err := r.reach(in, addr, n)
	if err != nil {
		r.err = err
		return false
	}
	if r.weak != nil {
		r.weak.store(r, t, in, g, addr, n)
		return true
	}
	copy(g.Bytes[off:off+n], r.out[:n])
	if g.Written != nil {
		g.Written.Mark(off, n)
	}
	r.moved = true
	return true
}
