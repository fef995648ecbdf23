// SPDX-License-Identifier: Apache-2.0

package ptxvm

import (
	"fmt"
	"math/rand/v2"
)

// A Launch is a program with its grid, block and packed parameters.
type Launch struct {
	Program     *Program
	Grid, Block [3]uint32 // 0 counts as 1
	Params      []byte
}

func (l *Launch) check() error {
	threads, blocks := count(l.Block), count(l.Grid)
	if len(l.Params) != l.Program.params {
		return fmt.Errorf("%w: %s: %d bytes of parameters, not %d", ErrLaunch, l.Program.name, len(l.Params), l.Program.params)
	}
	if threads > 1024 || blocks > 1<<31 {
		return fmt.Errorf("%w: %s: %d blocks of %d threads", ErrLaunch, l.Program.name, blocks, threads)
	}
	return nil
}

func count(d [3]uint32) uint64 {
	return uint64(max(d[0], 1)) * uint64(max(d[1], 1)) * uint64(max(d[2], 1))
}

// split is the place of the i-th of a grid or block, of which x is the fastest.
func split(i uint64, d [3]uint32) [3]uint32 {
	x, y := uint64(max(d[0], 1)), uint64(max(d[1], 1))
	return [3]uint32{uint32(i % x), uint32(i / x % y), uint32(i / x / y)}
}

const warpThreads = 32

// A thread is one between its turns.
type thread struct {
	regs  []uint64
	block *block
	pc    int32
	tid   uint32
	ended bool
	met   bool // the op in front of pc is where it waits for others
	steps int
	view  uint64 // of weak memory
	late  torn
}

// A block is the threads that share memory and meet at barriers.
type block struct {
	launch  int
	idx     uint64
	threads []thread
	shared  []byte
	written *Written
	ended   int
	waiting int // at a barrier

	// Of weak memory.
	buffer map[uint64]*cell
	order  []uint64 // keys of buffer, as they came
	gen    uint64   // barriers that have been passed
}

// A run is a launch that is being run.
type run struct {
	p      *Program
	params []byte
	launch int
	grid   [3]uint32
	shape  [3]uint32

	mem   Memory
	cache []*Region // by instruction
	known []*Region

	clock uint64 // what %globaltimer reads
	steps uint64 // instructions of all threads
	moved bool   // something was stored, a thread ended, or a block met
	err   error
	out   [16]byte // what a store brings
	in    [16]byte // what a load of weak memory finds
	weak  *weak
}

func newRun(l *Launch, launch int, mem Memory) *run {
	return &run{
		p: l.Program, params: l.Params, launch: launch, grid: l.Grid, shape: l.Block, mem: mem,
		cache: make([]*Region, l.Program.caches), clock: 1_000_000,
	}
}

// place makes a block's threads ready to begin.
func (r *run) place(b *block, idx uint64) {
	n := int(count(r.shape))
	if b.threads == nil {
		b.threads = make([]thread, n)
		b.shared = make([]byte, r.p.shared)
		slab := make([]uint64, n*r.p.slots)
		for i := range b.threads {
			b.threads[i].regs = slab[i*r.p.slots:][:r.p.slots:r.p.slots]
		}
	}
	b.launch, b.idx, b.ended, b.waiting = r.launch, idx, 0, 0
	b.written = NewWritten(uint64(r.p.shared))
	at := split(idx, r.grid)
	for i := range b.threads {
		t := &b.threads[i]
		*t = thread{regs: t.regs, block: b, tid: uint32(i)}
		tid := split(uint64(i), r.shape)
		for k := range 3 {
			t.regs[slotTid+k], t.regs[slotNtid+k] = uint64(tid[k]), uint64(max(r.shape[k], 1))
			t.regs[slotCtaid+k], t.regs[slotNctaid+k] = uint64(at[k]), uint64(max(r.grid[k], 1))
		}
		copy(t.regs[specials:], r.p.consts)
	}
}

// fault is r.err with the place of the op in front of a thread's pc.
func (r *run) fault(t *thread, err error) error {
	at := max(int(t.pc)-1, 0)
	return &Fault{
		Kernel: r.p.name, Launch: r.launch, Block: split(t.block.idx, r.grid), Thread: split(uint64(t.tid), r.shape),
		Line: int(r.p.code[at].line), Op: r.p.ops[at], Err: err,
	}
}

// maxSteps is the most instructions that a thread runs.
const maxSteps = 200_000_000

// turn runs a thread, notes how it stopped, and lets those go on that it was the
// last to meet.
func (r *run) turn(t *thread, budget int) (stop, error) {
	why := r.exec(t, budget)
	b := t.block
	switch why {
	case stopFault:
		return why, r.fault(t, r.err)
	case stopEnded:
		t.ended, r.moved = true, true
		b.ended++
		if b.waiting > 0 {
			return why, r.fault(t, fmt.Errorf("%w: it ends while others wait at a barrier", ErrMeeting))
		}
		if b.ended == len(b.threads) && r.weak != nil {
			r.weak.drainAll(r, b)
		}
	case stopMet:
		t.met = true
		return why, r.meet(t)
	}
	if t.steps > maxSteps {
		return why, r.fault(t, fmt.Errorf("%w after %d instructions", ErrEndless, t.steps))
	}
	return why, nil
}

// meet lets a block's threads go on when the last has come to where t is.
func (r *run) meet(t *thread) error {
	b := t.block
	if b.waiting++; b.ended > 0 {
		return r.fault(t, fmt.Errorf("%w: another thread of the block has ended", ErrMeeting))
	}
	if b.waiting < len(b.threads) {
		return nil
	}
	for i := range b.threads {
		if o := &b.threads[i]; o.pc != t.pc {
			return r.fault(t, fmt.Errorf("%w: thread %d waits at line %d", ErrMeeting, o.tid, r.p.code[o.pc-1].line))
		}
	}
	for i := range b.threads {
		b.threads[i].met = false
	}
	b.waiting, r.moved = 0, true
	if r.weak != nil {
		b.gen++
		r.weak.meet(b)
	}
	return nil
}

// pass gives each thread of a block that can go on a turn, in order. It tells
// whether any used its turn up, so that it has more to do.
func (r *run) pass(b *block) (busy bool, err error) {
	for j := range b.threads {
		t := &b.threads[j]
		if t.ended || t.met {
			continue
		}
		why, err := r.turn(t, maxSteps)
		if err != nil {
			return false, err
		}
		busy = busy || why == stopBudget
	}
	return busy, nil
}

// Run runs a launch block after block, each of its threads up to a barrier or its
// end in turn, on memory that all see alike. It returns the instructions that all
// threads ran together. Blocks that wait for each other do not end.
func Run(l Launch, mem Memory) (steps uint64, err error) {
	if err := l.check(); err != nil {
		return 0, err
	}
	r := newRun(&l, 0, mem)
	b := &block{}
	for i := range count(l.Grid) {
		r.place(b, i)
		for quiet := 0; b.ended < len(b.threads); quiet++ {
			if quiet == maxQuiet {
				return r.steps, r.stuck(b)
			}
			r.moved = false
			if _, err := r.pass(b); err != nil {
				return r.steps, err
			}
			if r.moved {
				quiet = 0
			}
			r.clock += turnNs
		}
	}
	return r.steps, nil
}

// maxQuiet is how often all threads have a turn without any effect before it is
// taken that there will be none.
const maxQuiet = 10_000

// stuck is the fault of a block whose threads wait for what does not come.
func (r *run) stuck(b *block) error {
	for i := range b.threads {
		if t := &b.threads[i]; !t.ended {
			return r.fault(t, fmt.Errorf("%w: it waits for what does not come", ErrEndless))
		}
	}
	return nil
}

// turnNs is what %globaltimer advances by while each warp has one turn.
const turnNs = 200

// turnSteps is the most instructions that a thread runs before others have a
// turn, where turns are drawn. Those that wait for others go round.
const turnSteps = 64

// Together runs launches on one memory as if all their threads ran at once, each
// launch on a GPU of its own: in turns whose order and lengths rng draws, some
// launches more slowly than others, on memory that is as weak as PTX allows. It returns the instructions that all
// threads ran together, and fails as Run does, or where the launches do not end
// within timeNs of %globaltimer.
func Together(rng *rand.Rand, mem Memory, timeNs uint64, launches ...Launch) (steps uint64, err error) {
	type party struct {
		r       *run
		threads []thread
	}
	slow := make([]bool, len(launches)) // has a turn where others have four
	for i := range slow {
		slow[i] = rng.IntN(2) == 0
	}
	turn := make([]bool, len(launches))
	shared := newWeak()
	var runs []*run
	var warps []party
	for i := range launches {
		l := &launches[i]
		if err := l.check(); err != nil {
			return 0, err
		}
		r := newRun(l, i, mem)
		r.weak = shared
		runs = append(runs, r)
		for j := range count(l.Grid) {
			b := &block{buffer: map[uint64]*cell{}}
			r.place(b, j)
			for w := 0; w < len(b.threads); w += warpThreads {
				warps = append(warps, party{r, b.threads[w:min(w+warpThreads, len(b.threads))]})
			}
		}
	}
	total := func() (n uint64) {
		for _, r := range runs {
			n += r.steps
		}
		return n
	}
	for now := uint64(0); now < timeNs; now += turnNs {
		rng.Shuffle(len(warps), func(i, j int) { warps[i], warps[j] = warps[j], warps[i] })
		for i := range turn {
			turn[i] = !slow[i] || rng.IntN(4) == 0
		}
		left, idle := warps[:0], true
		for _, w := range warps {
			if !turn[w.r.launch] {
				left, idle = append(left, w), false
				continue
			}
			alive := false
			for i := range w.threads {
				t := &w.threads[i]
				if t.late.n > 0 {
					shared.settle(w.r, t)
					idle = false
				}
				if !t.ended && !t.met {
					idle = false
					if _, err := w.r.turn(t, 1+rng.IntN(turnSteps)); err != nil {
						return total(), err
					}
				}
				alive = alive || !t.ended
			}
			if alive {
				left = append(left, w)
			}
		}
		if warps = left; len(warps) == 0 {
			return total(), nil
		}
		if idle {
			break
		}
		for _, r := range runs {
			r.clock += turnNs
		}
	}
	return total(), warps[0].r.stuck(warps[0].threads[0].block)
}
