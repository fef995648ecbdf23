// SPDX-License-Identifier: Apache-2.0

package ptxvm

import (
	"math/bits"
	"slices"
)

// roles lists the operands that an op reads and those that it writes.
func (o *op) roles() (reads, writes []*uint16) {
	switch o.code {
	case opSt8, opSt16, opSt32, opSt64, opSt2x64, opSt4x32, opStVec, opStStrong, opStShared:
		return []*uint16{&o.a, &o.d, &o.b, &o.c, &o.e}, nil
	case opLd8, opLd16, opLd32, opLd64, opLd2x64, opLd4x32, opLdVec, opLdStrong, opLdShared, opLdParam:
		return []*uint16{&o.a}, []*uint16{&o.d, &o.b, &o.c, &o.e}
	}
	return []*uint16{&o.a, &o.b, &o.c}, []*uint16{&o.d, &o.e}
}

// allocate gives registers that are never live at once the same slot: clang
// writes each register once, and thousands of threads would not have room for
// thousands of them. Every op reads its operands before it writes.
func (c *compiler) allocate() {
	code := c.p.code
	words := (len(c.regs) + 63) / 64
	starts := make([]bool, len(code)+1)
	starts[0] = true
	for i := range code {
		switch code[i].code {
		case opBra, opBraIf, opBraUnless:
			starts[code[i].n], starts[i+1] = true, true
		case opRet:
			starts[i+1] = true
		}
	}
	type basic struct {
		from, to      int
		reads, writes []uint64 // reads before it writes; writes
		in, out       []uint64
		next          []int
	}
	var blocks []*basic
	of := make([]int, len(code)+1) // the block that starts there
	for i := range code {
		if starts[i] {
			of[i] = len(blocks)
			sets := make([]uint64, 4*words)
			blocks = append(blocks, &basic{from: i, reads: sets[:words], writes: sets[words : 2*words], in: sets[2*words : 3*words], out: sets[3*words:]})
		}
		b := blocks[len(blocks)-1]
		b.to = i + 1
		reads, writes := code[i].roles()
		for _, s := range reads {
			if r := int(*s) - virtual; r >= 0 && b.writes[r/64]>>(r%64)&1 == 0 {
				b.reads[r/64] |= 1 << (r % 64)
			}
		}
		for _, s := range writes {
			if r := int(*s) - virtual; r >= 0 {
				b.writes[r/64] |= 1 << (r % 64)
			}
		}
	}
	for _, b := range blocks {
		last := &code[b.to-1]
		branches := last.code == opBra || last.code == opBraIf || last.code == opBraUnless
		if branches && int(last.n) < len(code) {
			b.next = append(b.next, of[last.n])
		}
		if last.code != opBra && last.code != opRet && b.to < len(code) {
			b.next = append(b.next, of[b.to])
		}
	}
	for again := true; again; {
		again = false
		for _, b := range slices.Backward(blocks) {
			for w := range words {
				var out uint64
				for _, n := range b.next {
					out |= blocks[n].in[w]
				}
				b.out[w] = out
				if in := b.reads[w] | out&^b.writes[w]; in != b.in[w] {
					b.in[w], again = in, true
				}
			}
		}
	}
	// From the first place to the last at which a register is live. An op reads
	// at twice its index and writes right behind.
	type span struct{ lo, hi, reg int }
	spans := make([]span, len(c.regs))
	for r := range spans {
		spans[r] = span{2*len(code) + 2, -1, r}
	}
	reach := func(r, at int) { spans[r].lo, spans[r].hi = min(spans[r].lo, at), max(spans[r].hi, at) }
	each := func(set []uint64, f func(r int)) {
		for w, v := range set {
			for ; v != 0; v &= v - 1 {
				f(64*w + bits.TrailingZeros64(v))
			}
		}
	}
	for _, b := range blocks {
		each(b.in, func(r int) { reach(r, 2*b.from) })
		each(b.out, func(r int) { reach(r, 2*b.to-1) })
		for i := b.from; i < b.to; i++ {
			reads, writes := code[i].roles()
			for _, s := range reads {
				if *s >= virtual {
					reach(int(*s)-virtual, 2*i)
				}
			}
			for _, s := range writes {
				if *s >= virtual {
					reach(int(*s)-virtual, 2*i+1)
				}
			}
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return a.lo - b.lo })
	slot := make([]uint16, len(c.regs))
	var until []int // of each slot, the end of what it holds
	for _, s := range spans {
		i := slices.IndexFunc(until, func(hi int) bool { return hi < s.lo })
		if i < 0 {
			i = len(until)
			until = append(until, 0)
		}
		until[i] = s.hi
		slot[s.reg] = uint16(specials + len(c.p.consts) + i)
	}
	for i := range code {
		reads, writes := code[i].roles()
		for _, s := range append(reads, writes...) {
			if *s >= virtual {
				*s = slot[*s-virtual]
			}
		}
	}
	c.p.slots = specials + len(c.p.consts) + len(until)
	c.p.code, c.p.ops = append(code, op{}), append(c.p.ops, "") // what runs past the end finds it
}
