// SPDX-License-Identifier: Apache-2.0

package ptxvm

import (
	"encoding/binary"
	"slices"
)

// weak is memory between launches of different GPUs that gives them no more
// than PTX's memory model promises, and that as late as it can:
//
//   - a plain store is in a buffer of its block, where its own thread finds it,
//     the block's other threads behind a barrier, and the other GPUs not before
//     a release (or a fence) of a thread that sees it there, or the block's end;
//   - a plain load finds what the thread may still find: what memory held when
//     it last acquired, or began, its own block's stores apart; a barrier hands
//     on what one thread has acquired;
//   - a strong access (relaxed, volatile, acquire, release) is of memory itself,
//     and of two words, one comes a turn after the other.
//
// Hence a fence, a barrier, a release or an acquire that is missing shows as
// wrong data every time, and not just sometimes.
type weak struct {
	time uint64 // of the last store to memory
	past map[uint64][]was
}

// was is what a word, by its address over 8, held before a store.
type was struct {
	time uint64
	by   *block
	mask uint64 // of the bytes that were stored
	old  uint64
}

// A cell is bytes of a word in a block's buffer.
type cell struct {
	mask, value uint64
	tid         uint32
	gen         uint64
}

// torn is the words of a store that are still to come.
type torn struct {
	addr, n uint64
	out     [8]byte
}

func newWeak() *weak { return &weak{past: map[uint64][]was{}} }

// sees tells whether a thread finds a cell of its block's buffer.
func (c *cell) sees(t *thread) bool { return c.tid == t.tid || c.gen < t.block.gen }

// pieces calls f for each word of an access: its number, the mask of its bytes
// that the access has, and by how many bits they are from the access's start.
func pieces(addr, n uint64, f func(word, mask uint64, at, off, bytes uint64)) {
	for at := uint64(0); at < n; {
		off := (addr + at) & 7
		bytes := min(8-off, n-at)
		f((addr+at)>>3, mask(int(8*bytes))<<(8*off), at, off, bytes)
		at += bytes
	}
}

func wordOf(b []byte, off uint64) (v uint64) {
	for i, x := range b {
		v |= uint64(x) << (8 * (off + uint64(i)))
	}
	return v
}

func bytesOf(b []byte, v, off uint64) {
	for i := range b {
		b[i] = byte(v >> (8 * (off + uint64(i))))
	}
}

// covers tells whether a thread finds all bytes of an access in its block's buffer.
func (b *block) covers(t *thread, addr, n uint64) bool {
	all := true
	pieces(addr, n, func(word, m uint64, _, _, _ uint64) {
		c := b.buffer[word]
		all = all && c != nil && c.sees(t) && c.mask&m == m
	})
	return all
}

// load is what a thread finds.
func (w *weak) load(r *run, t *thread, in *op, g *Region, addr, n uint64) []byte {
	strong := in.code == opLdStrong
	start := addr - g.Base
	pieces(addr, n, func(word, m uint64, at, off, bytes uint64) {
		v := wordOf(g.Bytes[start+at:start+at+bytes], off)
		if !strong {
			open := m // bytes that may be older
			for _, p := range slices.Backward(w.past[word]) {
				if p.time <= t.view || p.by == t.block {
					open &^= p.mask
				} else if k := p.mask & open; k != 0 {
					v = v&^k | p.old&k
				}
				if open == 0 {
					break
				}
			}
		}
		if c := t.block.buffer[word]; c != nil && c.sees(t) {
			v = v&^c.mask | c.value&c.mask
		}
		bytesOf(r.in[at:at+bytes], v, off)
	})
	if in.flags&acquires != 0 {
		t.view = w.time
	}
	return r.in[:n]
}

// store is the first n bytes of r.out.
func (w *weak) store(r *run, t *thread, in *op, g *Region, addr, n uint64) {
	if in.code == opStStrong {
		if in.flags&releases != 0 {
			w.drain(r, t)
		}
		if in.lanes == 2 {
			half := n / 2
			first := uint64(t.tid) & 1 * half
			t.late = torn{addr: addr + half - first, n: half}
			copy(t.late.out[:half], r.out[half-first:])
			w.write(g, t.block, addr+first, r.out[first:first+half])
			return
		}
		w.write(g, t.block, addr, r.out[:n])
		return
	}
	b := t.block
	pieces(addr, n, func(word, m uint64, at, off, bytes uint64) {
		c := b.buffer[word]
		if c != nil && (c.tid != t.tid || c.gen != b.gen) {
			w.flush(r, b, word, c)
			c = nil
		}
		if c == nil {
			c = &cell{tid: t.tid, gen: b.gen}
			b.buffer[word] = c
			b.order = append(b.order, word)
		}
		c.value = c.value&^m | wordOf(r.out[at:at+bytes], off)
		c.mask |= m
	})
}

// settle brings the rest of a store.
func (w *weak) settle(r *run, t *thread) {
	l := &t.late
	if g := r.find(l.addr); g != nil {
		w.write(g, t.block, l.addr, l.out[:l.n])
	}
	t.late = torn{}
}

// write stores to memory.
func (w *weak) write(g *Region, by *block, addr uint64, data []byte) {
	w.time++
	off := addr - g.Base
	pieces(addr, uint64(len(data)), func(word, m uint64, at, sh, bytes uint64) {
		b := g.Bytes[off+at : off+at+bytes]
		w.past[word] = append(w.past[word], was{w.time, by, m, wordOf(b, sh)})
		// The block's own stores that came before are in its buffer no more.
		if c := by.buffer[word]; c != nil {
			c.mask &^= m
		}
		if bytes == 8 {
			putWhole(b, 8, binary.LittleEndian.Uint64(data[at:]))
			return
		}
		copy(b, data[at:at+bytes])
	})
	g.Written.Mark(off, uint64(len(data)))
}

// flush writes a cell to memory and takes it out of the buffer.
func (w *weak) flush(r *run, b *block, word uint64, c *cell) {
	delete(b.buffer, word)
	for lo := uint64(0); lo < 8; {
		if c.mask>>(8*lo)&0xff == 0 {
			lo++
			continue
		}
		hi := lo
		for hi < 8 && c.mask>>(8*hi)&0xff != 0 {
			hi++
		}
		addr := word<<3 + lo
		if g := r.find(addr); g != nil {
			var data [8]byte
			bytesOf(data[:hi-lo], c.value, lo)
			w.write(g, b, addr, data[:hi-lo])
		}
		lo = hi
	}
}

// drain writes to memory what a thread finds in its block's buffer.
func (w *weak) drain(r *run, t *thread) {
	b := t.block
	left := b.order[:0]
	for _, word := range b.order {
		c := b.buffer[word]
		switch {
		case c == nil:
		case c.sees(t):
			w.flush(r, b, word, c)
		default:
			left = append(left, word)
		}
	}
	b.order = left
}

// drainAll writes to memory what a block that ends has in its buffer.
func (w *weak) drainAll(r *run, b *block) {
	for _, word := range b.order {
		if c := b.buffer[word]; c != nil {
			w.flush(r, b, word, c)
		}
	}
	b.order = nil
}

// fence is a fence or membar of a thread.
func (w *weak) fence(r *run, t *thread, f flag) {
	if f&local == 0 {
		w.drain(r, t)
		t.view = w.time
	}
}

// meet is a barrier that a block's threads pass: each finds what any of them did.
func (w *weak) meet(b *block) {
	var view uint64
	for i := range b.threads {
		view = max(view, b.threads[i].view)
	}
	for i := range b.threads {
		b.threads[i].view = view
	}
}
