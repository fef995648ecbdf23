// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/geforce-p2p/geforce-p2p/gp/internal/plan"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// A program is a plan made ready to be enqueued over and over: its steps and
// event waits as a flat list of driver calls in which only addresses, streams
// and events are open. The ranks of a program are the plan's; each run says
// which ranks of the group they are.
//
// A queue is a stream of a rank. Usually it is one of the rank's lanes. A
// program made inline has one queue a rank, the caller's own stream: it saves
// the fences between that stream and the lanes, which are driver calls, and for
// a plan of one piece there is nothing to overlap anyway.
type program struct {
	plan   *plan.Plan // without its steps
	steps  int
	inline bool
	code   []instr
	folds  []fold
	rows   []rows
	events []int  // plan events in use at once, by rank
	uses   []uses // by rank
	// implied tells of a queue that its work ends before another queue's does, so
	// that who waits for that one need not wait for this one; beside, that its end
	// precedes that of another queue of the rank, for which the caller's stream
	// waits.
	implied, beside [][plan.Lanes]bool
	// holds says, by queue, whose regions are in use until the queue's end. A
	// queue answers for those whose end its own implies.
	holds [][plan.Lanes]held

	lastRun uint64 // for the plan cache
}

// uses says what a rank's queues touch, and what of that they write: who reads
// a region reads what the run has written there, and is behind the writer then.
type uses struct {
	queue [plan.Lanes]bool
	// enters says of a queue that it must be put behind the caller's stream.
	enters          [plan.Lanes]bool
	writesHost      [plan.Lanes]uint64 // bit sets of ranks, whose pinned memory
	writesToScratch [plan.Lanes]bool
}

// held is two bit sets of ranks.
type held struct{ host, scratch uint64 }

type instrKind uint8

const (
	iToHost instrKind = iota + 1
	iFromHost
	iLocal
	iPeer
	iFold
	iRows
	iRecord
	iWait
)

// instr is one driver call on queue (rank, lane).
type instr struct {
	kind     instrKind
	rank     uint8
	lane     uint8
	evRank   uint8  // whose event: of a record, rank's own
	event    uint16 // which of evRank's plan events
	idx      int32  // of the fold or the rows
	dst, src ref
	n        uint64
	step     int32
}

// ref is an address in one of a run's memories.
type ref struct {
	space plan.Space
	rank  uint8
	buf   uint16 // of In and Out: which, by rank or by transfer
	off   uint64
}

// rows is a strided copy. As with a fold, its addresses are filled in by each
// run.
type rows struct {
	dst, src ref
	toHost   bool
	copy     api.Copy2D
}

// fold is a kernel launch: its parameter buffer and launch are filled in anew
// by each run, under the group's lock.
type fold struct {
	rank    uint8
	module  kernel.Module
	entry   string
	params  kernel.Fold
	src     []ref
	buf     []byte
	launch  api.Launch
	fn      api.Function // of the rank's context, resolved before the first run
	fnOwner *Rank
}

func makeRef(p *plan.Plan, s plan.Span) ref {
	buf := s.Rank
	if p.Transfers != nil {
		buf = s.Buffer
	}
	return ref{s.Space, uint8(s.Rank), uint16(buf), s.Off}
}

// compile turns a plan into a program, for which it may change the plan. Events are given out as registers are:
// one is free for the next record as soon as its last wait has been enqueued.
// The ranks' pinned memory lies stride bytes apart, where it matters.
func compile(p *plan.Plan, inline bool, stride uint64) *program {
	pr := &program{inline: inline, steps: len(p.Steps), events: make([]int, p.Ranks), uses: make([]uses, p.Ranks)}
	if inline {
		// One lane for all that a rank does.
		for i := range p.Steps {
			p.Steps[i].Lane = plan.LaneOut
		}
	}
	queue := func(s *plan.Step) (int, uint8) { return s.Rank*plan.Lanes + int(s.Lane), uint8(s.Lane) }
	waits := p.Waits()
	lastWait := make([]int, len(p.Steps)) // the last step that waits for step i, 0 if none
	for j, ws := range waits {
		for _, i := range ws {
			qi, _ := queue(&p.Steps[i])
			qj, _ := queue(&p.Steps[j])
			if qi != qj {
				lastWait[i] = j
			}
		}
	}
	free := make([][]int, p.Ranks)
	eventOf := make([]int, len(p.Steps))
	frees := make(map[int][]int) // step -> events to free behind its waits, by recorder's step
	for j := range p.Steps {
		s := &p.Steps[j]
		q, lane := queue(s)
		for _, i := range waits[j] {
			si := &p.Steps[i]
			if qi, _ := queue(si); qi == q {
				continue
			}
			pr.code = append(pr.code, instr{kind: iWait, rank: uint8(s.Rank), lane: lane, evRank: uint8(si.Rank), event: uint16(eventOf[i]), step: int32(j)})
		}
		for _, i := range frees[j] {
			r := p.Steps[i].Rank
			free[r] = append(free[r], eventOf[i])
		}
		if s.Kind != plan.Join {
			pr.add(p, s, lane, j, stride)
		}
		if lastWait[j] != 0 {
			e := pr.events[s.Rank]
			if n := len(free[s.Rank]); n > 0 {
				e = free[s.Rank][n-1]
				free[s.Rank] = free[s.Rank][:n-1]
			} else {
				pr.events[s.Rank]++
			}
			eventOf[j] = e
			frees[lastWait[j]] = append(frees[lastWait[j]], j)
			pr.code = append(pr.code, instr{kind: iRecord, rank: uint8(s.Rank), lane: lane, evRank: uint8(s.Rank), event: uint16(e), step: int32(j)})
		}
		u := &pr.uses[s.Rank]
		u.queue[lane] = true
		switch s.Dst.Space {
		case plan.Host:
			u.writesHost[lane] |= hostOf(s.Dst)
		case plan.Scratch:
			if s.Dst.Rank == s.Rank {
				u.writesToScratch[lane] = true
			} else {
				pr.opens(p, s.Dst.Rank, queue)
			}
		}
	}
	by, behind, known, enters := impliedEnds(p, inline, queue)
	for k, e := range enters {
		pr.uses[k/plan.Lanes].enters[k%plan.Lanes] = e
	}
	pr.implied, pr.beside, pr.holds = make([][plan.Lanes]bool, p.Ranks), make([][plan.Lanes]bool, p.Ranks), make([][plan.Lanes]held, p.Ranks)
	for k, q := range by {
		pr.implied[k/plan.Lanes][k%plan.Lanes] = q != k
		for l := range plan.Lanes {
			if behind(k, k/plan.Lanes*plan.Lanes+l) {
				pr.beside[k/plan.Lanes][k%plan.Lanes] = true
			}
		}
	}
	host, scratch := lastTouches(p, queue)
	for owner := range p.Ranks {
		for _, q := range keepers(host[owner], by, known) {
			pr.holds[q/plan.Lanes][q%plan.Lanes].host |= 1 << owner
		}
		for _, q := range keepers(scratch[owner], by, known) {
			pr.holds[q/plan.Lanes][q%plan.Lanes].scratch |= 1 << owner
		}
	}
	kept := *p
	kept.Steps = nil
	pr.plan = &kept
	return pr
}

// opens notes that others write a rank's scratch memory: its gate, the first
// join on one of its lanes, waits for those who had the region before.
func (pr *program) opens(p *plan.Plan, rank int, queue func(*plan.Step) (int, uint8)) {
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Kind == plan.Join && s.Rank == rank && s.Lane != plan.LaneJoin {
			_, lane := queue(s)
			pr.uses[rank].writesToScratch[lane] = true
			return
		}
	}
	panic(fmt.Sprintf("gp: the plan %s %s writes rank %d's scratch memory and has no gate there", p.Op, p.Algorithm, rank))
}

// hostOf is the set of ranks whose pinned memory a span of it lies in.
func hostOf(s plan.Span) uint64 {
	if s.Across {
		return (1<<s.Rows - 1) << s.Rank
	}
	return 1 << s.Rank
}

// lastTouches gives, by rank, the step, plus one, in which each queue touches
// the rank's regions last; 0 if it never does.
func lastTouches(p *plan.Plan, queue func(*plan.Step) (int, uint8)) (host, scratch [][]int) {
	for range p.Ranks {
		host, scratch = append(host, make([]int, p.Ranks*plan.Lanes)), append(scratch, make([]int, p.Ranks*plan.Lanes))
	}
	for j := range p.Steps {
		s := &p.Steps[j]
		q, _ := queue(s)
		touch := func(sp plan.Span) {
			switch sp.Space {
			case plan.Host:
				for owners := hostOf(sp); owners != 0; owners &= owners - 1 {
					host[bits.TrailingZeros64(owners)][q] = j + 1
				}
			case plan.Scratch:
				scratch[sp.Rank][q] = j + 1
			}
		}
		touch(s.Dst)
		for _, sp := range s.Src {
			touch(sp)
		}
	}
	return host, scratch
}

// keepers finds queues behind whose ends nobody touches a region any more, as
// few as it takes: what a queue did there last may have happened before another
// queue's end although its own end has not. The arguments are as lastTouches and
// impliedEnds give them.
func keepers(last, by []int, known [][]int) []int {
	var keep []int
	for k := range by {
		if last[k] > 0 && !slices.Contains(keep, by[k]) {
			keep = append(keep, by[k])
		}
	}
	enough := func(keep []int) bool {
		for k := range last {
			if last[k] > 0 && !slices.ContainsFunc(keep, func(q int) bool { return known[q][k] >= last[k] }) {
				return false
			}
		}
		return true
	}
	for i := 0; i < len(keep); {
		if without := slices.Concat(keep[:i], keep[i+1:]); enough(without) {
			keep = without
		} else {
			i++
		}
	}
	return keep
}

// impliedEnds finds, for each queue, a queue whose work ends behind its own and
// behind which no other queue's does; itself if there is none. A gate at which a
// queue waits for others behind all that it does itself is no work of its own.
// Behind tells of any two queues whether the first one's end, gates included,
// precedes the second one's. known[q][k] is the last step of queue k, plus one, that has
// happened when queue q ends. Enters tells of the queues that must wait for the
// caller's stream: what they first do with the caller's memory is not behind a
// queue of their rank that waits.
func impliedEnds(p *plan.Plan, inline bool, queue func(*plan.Step) (int, uint8)) (by []int, behind func(k, q int) bool, known [][]int, enters []bool) {
	n := p.Ranks * plan.Lanes
	enters = make([]bool, n)
	known = make([][]int, n)
	for q := range known {
		known[q] = make([]int, n)
	}
	at := make([][]int, len(p.Steps))
	lastOf, work := make([]int, n), make([]int, n) // steps, plus one
	for j := range p.Steps {
		q, _ := queue(&p.Steps[j])
		for _, i := range p.Steps[j].After {
			for k, v := range at[i] {
				known[q][k] = max(known[q][k], v)
			}
		}
		if !enters[q] && p.Steps[j].Callers() {
			enters[q] = true
			for l := range plan.Lanes {
				if k := q/plan.Lanes*plan.Lanes + l; k != q && enters[k] && known[q][k] > 0 {
					enters[q] = false
				}
			}
		}
		known[q][q] = j + 1
		lastOf[q] = j + 1
		if s := &p.Steps[j]; work[q] == 0 || s.Kind != plan.Join || s.Lane == plan.LaneJoin || inline {
			work[q] = j + 1
		}
		at[j] = append([]int(nil), known[q]...)
	}
	behind = func(k, q int) bool {
		return q != k && lastOf[k] > 0 && lastOf[q] > 0 && known[q][k] >= lastOf[k]
	}
	outlasts := func(q, k int) bool {
		return q != k && work[k] > 0 && work[q] > 0 && at[work[q]-1][k] >= work[k]
	}
	by = make([]int, n)
	for k := range n {
		by[k] = k
		// Steps are partly ordered, so climbing ends.
		for again := true; again; {
			again = false
			for q := range n {
				if outlasts(q, by[k]) {
					by[k], again = q, true
				}
			}
		}
	}
	return by, behind, known, enters
}

// add appends the driver calls of a step.
func (pr *program) add(p *plan.Plan, s *plan.Step, lane uint8, step int, stride uint64) {
	in := instr{rank: uint8(s.Rank), lane: lane, dst: makeRef(p, s.Dst), src: makeRef(p, s.Src[0]), n: s.Dst.Len, step: int32(step)}
	switch s.Kind {
	case plan.ToHost, plan.FromHost:
		if s.Dst.Rows > 1 || s.Src[0].Rows > 1 {
			pr.addRows(p, s, in, stride)
			return
		}
		in.kind = iToHost
		if s.Kind == plan.FromHost {
			in.kind = iFromHost
		}
	case plan.LocalCopy:
		in.kind = iLocal
	case plan.PeerCopy:
		in.kind = iPeer
	case plan.Reduce, plan.ReduceFromHost:
		in.kind = iFold
		in.idx = int32(len(pr.folds))
		pr.folds = append(pr.folds, makeFold(p, s))
	default:
		panic(fmt.Sprintf("gp: plan step of kind %d", s.Kind))
	}
	pr.code = append(pr.code, in)
}

// addRows is one strided copy, or a plain one for each row where the driver does
// not take the distance. Rows of four bytes, and rows at odd places, are as good
// as any: seven of them take 9 us where seven copies take 26 (docs/measured).
func (pr *program) addRows(p *plan.Plan, s *plan.Step, in instr, stride uint64) {
	dst, src := s.Dst, s.Src[0]
	n := max(dst.Rows, src.Rows)
	width := dst.Len / uint64(n)
	pitch := func(sp plan.Span) uint64 {
		switch {
		case sp.Rows <= 1:
			return width
		case sp.Across:
			return stride
		}
		return sp.Pitch
	}
	dp, sp := pitch(dst), pitch(src)
	if max(dp, sp) <= plan.MaxPitch {
		in.kind, in.idx = iRows, int32(len(pr.rows))
		pr.rows = append(pr.rows, rows{dst: in.dst, src: in.src, toHost: s.Kind == plan.ToHost,
			copy: api.Copy2D{DstPitch: dp, SrcPitch: sp, Width: width, Height: uint64(n)}})
		pr.code = append(pr.code, in)
		return
	}
	in.kind, in.n = iToHost, width
	if s.Kind == plan.FromHost {
		in.kind = iFromHost
	}
	row := func(r ref, sp plan.Span, pitch uint64, k int) ref {
		if sp.Across {
			r.rank += uint8(k)
		} else {
			r.off += uint64(k) * pitch
		}
		return r
	}
	for k := range n {
		one := in
		one.dst, one.src = row(in.dst, dst, dp, k), row(in.src, src, sp, k)
		pr.code = append(pr.code, one)
	}
}

func makeFold(p *plan.Plan, s *plan.Step) fold {
	t := p.Type
	size := uint64(t.Size())
	if s.Dst.Wide {
		size = uint64(p.Partial().Size())
	}
	f := fold{rank: uint8(s.Rank), module: kernel.FoldModule(t), entry: kernel.FoldEntry(t, p.Reduction),
		params: kernel.Fold{Count: s.Dst.Len / size, Divisor: uint64(s.Divisor), DstWide: s.Dst.Wide, N: len(s.Src)},
		buf:    make([]byte, 0, kernel.FoldBytes)}
	for k, sp := range s.Src {
		f.src = append(f.src, makeRef(p, sp))
		if sp.Wide {
			f.params.InWide |= 1 << k
		}
	}
	f.launch.Grid = [3]uint32{kernel.Blocks(f.params.Count * uint64(t.Size())), 1, 1}
	f.launch.Block = [3]uint32{kernel.BlockThreads, 1, 1}
	return f
}

// planKey is what a program depends on.
type planKey struct {
	op      string
	alg     Algorithm
	typ     dtype.Type
	red     dtype.Op
	count   uint64 // elements, or bytes of a copy
	chunk   uint64
	budget  uint64 // of pinned memory, of a copy
	inPlace bool
	root    int8
}

// The plan cache is bounded in plans, and in instructions of all plans together
// but the newest: a few tens of MiB.
const (
	maxPlans = 128
	maxCode  = 1 << 19
)

// latest is the program that ran last.
type latest struct {
	key planKey
	pr  *program
}

// touch notes which program runs now, and until when the one before it has.
func (l *latest) touch(k planKey, pr *program, now uint64) {
	if l.pr != nil {
		l.pr.lastRun = now - 1
	}
	l.key, l.pr = k, pr
	pr.lastRun = now
}

// program returns the cached program of a key, or makes it. The group's lock is
// held.
func (g *Group) program(k planKey, build func() (p *plan.Plan, inline bool, err error)) (*program, error) {
	g.runs++
	if g.latest.pr != nil && g.latest.key == k { // the same call over and over: no need to hash
		return g.latest.pr, nil
	}
	if pr := g.plans[k]; pr != nil {
		g.latest.touch(k, pr, g.runs)
		return pr, nil
	}
	p, inline, err := build()
	if err != nil {
		return nil, err
	}
	pr := compile(p, inline, g.stride)
	g.latest.touch(k, pr, g.runs)
	for len(g.plans) >= maxPlans || len(g.plans) > 0 && g.code+len(pr.code) > maxCode {
		var oldest planKey
		at := g.runs
		for k, pr := range g.plans {
			if pr.lastRun < at {
				oldest, at = k, pr.lastRun
			}
		}
		g.code -= len(g.plans[oldest].code)
		delete(g.plans, oldest)
	}
	g.plans[k] = pr
	g.code += len(pr.code)
	return pr, nil
}
