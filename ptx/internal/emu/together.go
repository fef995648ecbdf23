// SPDX-License-Identifier: Apache-2.0

package emu

import (
	"fmt"
	"math/rand/v2"

	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// warpThreads is the threads of a warp.
const warpThreads = 32

// A Launch is a kernel with its grid, block and parameters.
type Launch struct {
	Kernel      *Kernel
	Grid, Block int // Block is a multiple of 32
	Params      []byte
}

// A runner is a thread between its turns.
type runner struct {
	thread
	k     *Kernel
	pc    int
	block []*runner
	met   *insn // the meeting that it has come to
	ended bool
}

// A party is the threads of a warp.
type party struct {
	launch  int
	threads []*runner
}

// turnSteps is the most instructions that a thread runs before others have a
// turn. Those that wait for others go round.
const turnSteps = 64

// turnNs is what %globaltimer advances by while each warp has one turn.
const turnNs = 200

// maxTurns ends launches that never do.
const maxTurns = 200_000

// Together runs launches on one memory as if all their threads ran at once, in
// turns whose order r draws. It fails as Run does, where the threads of a block
// or of a warp do not all come to where they have to meet, and where a launch
// does not end.
func Together(r *rand.Rand, mem kernel.Memory, launches ...Launch) error {
	var warps []party
	now := uint64(1_000_000)
	for i, l := range launches {
		if len(l.Params) != l.Kernel.bytes || l.Block%warpThreads != 0 {
			return fmt.Errorf("emu: %s: %d bytes of parameters, not %d, or blocks of %d threads", l.Kernel.name, len(l.Params), l.Kernel.bytes, l.Block)
		}
		for b := range l.Grid {
			block := make([]*runner, l.Block)
			shared := make([]byte, l.Kernel.share)
			for j := range block {
				block[j] = &runner{k: l.Kernel, thread: thread{
					regs: make([]uint64, l.Kernel.regs), params: l.Params, mem: mem, shared: shared, now: func() uint64 { return now },
					tid: uint64(j), ctaid: uint64(b), ntid: uint64(l.Block), nct: uint64(l.Grid),
				}}
			}
			for _, t := range block {
				t.block = block
			}
			for w := 0; w < l.Block; w += warpThreads {
				warps = append(warps, party{i, block[w : w+warpThreads : l.Block]})
			}
		}
	}
	for range maxTurns {
		r.Shuffle(len(warps), func(i, j int) { warps[i], warps[j] = warps[j], warps[i] })
		left := warps[:0]
		for _, w := range warps {
			alive := false
			for _, t := range w.threads {
				if err := t.turn(); err != nil {
					return fmt.Errorf("emu: %s: launch %d block %d thread %d: %w", t.k.name, w.launch, t.ctaid, t.tid, err)
				}
				alive = alive || !t.ended
			}
			if err := meet(w.threads); err != nil {
				return fmt.Errorf("emu: %s: launch %d block %d: %w", w.threads[0].k.name, w.launch, w.threads[0].ctaid, err)
			}
			if alive {
				left = append(left, w)
			}
		}
		if warps = left; len(warps) == 0 {
			return nil
		}
		now += turnNs
	}
	return fmt.Errorf("emu: no end after %d turns", maxTurns)
}

// turn runs a thread up to where it meets others, its end, or the end of its turn.
func (t *runner) turn() error {
	t.settle()
	for range turnSteps {
		if t.ended || t.met != nil {
			return nil
		}
		if t.pc >= len(t.k.code) {
			return fmt.Errorf("ran past the end")
		}
		in := &t.k.code[t.pc]
		t.pc++
		if in.guard >= 0 && (t.regs[in.guard] != 0) == in.negate {
			continue
		}
		switch {
		case in.ret:
			t.ended = true
		case in.target >= 0:
			t.pc = in.target
		case in.meet:
			t.met = in
		default:
			in.do(&t.thread)
			if t.err != nil {
				return fmt.Errorf("line %d: %s: %w", in.line, in.op, t.err)
			}
			if t.late != nil {
				return nil
			}
		}
	}
	return nil
}

// meet lets those go on that have all come to one place: a block, whose other
// warps lie in front of this one's or behind it.
func meet(warp []*runner) error {
	var at *insn
	for _, t := range warp {
		if t.met == nil {
			continue
		}
		if at != nil && t.met != at {
			return fmt.Errorf("threads of a warp meet at line %d and at line %d", at.line, t.met.line)
		}
		at = t.met
	}
	if at == nil {
		return nil
	}
	block := warp[0].block
	for _, t := range block {
		switch {
		case t.ended:
			return fmt.Errorf("line %d: %s: thread %d has ended", at.line, at.op, t.tid)
		case t.met == nil:
			return nil
		case t.met != at:
			return fmt.Errorf("threads of a block meet at line %d and at line %d", at.line, t.met.line)
		}
	}
	for _, t := range block {
		t.met = nil
	}
	return nil
}
