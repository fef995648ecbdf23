// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"math"
	"slices"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// Check proves a plan sound, whatever the speeds of the lanes:
//
//   - each step is one that its kind allows, within its spans' memory, and
//     follows earlier steps only;
//   - two steps that touch the same bytes, one of them writing, are ordered by
//     lanes and After (so no slot is used again in flight, and no aliasing of
//     In and Out in place goes wrong);
//   - no step reads bytes that hold nothing;
//   - every byte of every Out ends as what the operation promises. The steps
//     are run on symbols: which rank's byte a byte is, or which ranks' elements
//     were folded into it, in which order, divided or not. A reduction has each
//     rank once, in one order on all ranks (a ring's: around, ending at the
//     shard's owner), its partial results in the type Plan.Partial.
//
// The error names the first step at fault.
func Check(p *Plan) error {
	_, err := check(p)
	return err
}

// CheckBudget is Check, and that the plan takes at most so many bytes of each
// rank's host memory and device scratch.
func CheckBudget(p *Plan, host, scratch uint64) error {
	for r, n := range p.HostBytes {
		if n > host {
			return fmt.Errorf("plan %s %s: rank %d needs %d bytes of host memory, the budget is %d", p.Op, p.Algorithm, r, n, host)
		}
	}
	for r, n := range p.ScratchBytes {
		if n > scratch {
			return fmt.Errorf("plan %s %s: rank %d needs %d bytes of device scratch, the budget is %d", p.Op, p.Algorithm, r, n, scratch)
		}
	}
	return Check(p)
}

// A checker runs a plan on symbols.
type checker struct {
	p      *Plan
	size   uint64 // bytes of an element
	wide   uint64 // bytes of a partial result
	clocks *clocks
	mem    []*rangeMap[cell] // by region
	folds  folds
}

func check(p *Plan) (*checker, error) {
	if err := checkPlan(p); err != nil {
		return nil, fmt.Errorf("plan %s %s: %w", p.Op, p.Algorithm, err)
	}
	for i := range p.Steps {
		if err := checkStep(p, i); err != nil {
			return nil, stepError(p, i, err)
		}
	}
	c := &checker{
		p: p, size: uint64(p.Type.Size()), wide: uint64(p.Partial().Size()),
		clocks: newClocks(p), mem: make([]*rangeMap[cell], p.regions()),
	}
	for r := range p.Ranks {
		for _, s := range []Space{Out, Host, Scratch} {
			c.mem[region{s, r}.index()] = newRangeMap(p.size(s, r), cell{users: users{writer: -1}}, cellFrom)
		}
		own := cell{users: users{writer: -1}, value: value{known: true, fold: c.folds.of(-1, r)}}
		if !p.InPlace {
			c.mem[region{In, r}.index()] = newRangeMap(p.InBytes[r], own, cellFrom)
			continue
		}
		c.mem[region{Out, r}.index()].set(p.InOff[r], p.InOff[r]+p.InBytes[r], own)
	}
	for i := range p.Steps {
		if err := c.step(i); err != nil {
			return nil, stepError(p, i, err)
		}
	}
	if err := c.promise(); err != nil {
		return nil, fmt.Errorf("plan %s %s: %w", p.Op, p.Algorithm, err)
	}
	return c, nil
}

func stepError(p *Plan, i int, err error) error {
	return fmt.Errorf("plan %s %s: step %d (%v): %w", p.Op, p.Algorithm, i, &p.Steps[i], err)
}

// checkPlan looks at all but the steps.
func checkPlan(p *Plan) error {
	switch {
	case p.Ranks < 1:
		return fmt.Errorf("%d ranks", p.Ranks)
	case !p.Type.Valid():
		return fmt.Errorf("unknown element type %v", p.Type)
	case !p.Reduction.Valid():
		return fmt.Errorf("unknown reduction %v", p.Reduction)
	case p.InPlace != (p.InOff != nil):
		return fmt.Errorf("in place: %t, but %d offsets of In in Out", p.InPlace, len(p.InOff))
	}
	lists := [][]uint64{p.InBytes, p.OutBytes, p.HostBytes, p.ScratchBytes}
	if p.InPlace {
		lists = append(lists, p.InOff)
	}
	for _, l := range lists {
		if len(l) != p.Ranks {
			return fmt.Errorf("a list of %d sizes for %d ranks", len(l), p.Ranks)
		}
		for _, n := range l {
			if n > math.MaxInt64 {
				return fmt.Errorf("a size of %d bytes", n)
			}
		}
	}
	size := uint64(p.Type.Size())
	for r := range p.Ranks {
		if p.InBytes[r]%size != 0 || p.OutBytes[r]%size != 0 {
			return fmt.Errorf("rank %d has parts of elements: %d bytes of In, %d of Out", r, p.InBytes[r], p.OutBytes[r])
		}
		if p.InPlace && p.InOff[r]+p.InBytes[r] > p.OutBytes[r] {
			return fmt.Errorf("rank %d has In outside of Out", r)
		}
		if p.InPlace && p.InOff[r]%size != 0 {
			return fmt.Errorf("rank %d has In at byte %d of Out, inside an element", r, p.InOff[r])
		}
		in, out := p.InBytes[0], p.InBytes[0]
		switch p.Op {
		case "copy":
			if r > 0 {
				in = 0
			}
			if r < p.Ranks-1 {
				out = 0
			}
		case "all_reduce":
		case "all_gather":
			out *= uint64(p.Ranks)
			if p.InPlace && p.InOff[r] != in*uint64(r) {
				return fmt.Errorf("rank %d has In at byte %d of Out, which is not its shard", r, p.InOff[r])
			}
		default:
			return fmt.Errorf("unknown operation")
		}
		if p.InBytes[r] != in || p.OutBytes[r] != out {
			return fmt.Errorf("rank %d has %d bytes of In and %d of Out, not %d and %d", r, p.InBytes[r], p.OutBytes[r], in, out)
		}
	}
	return nil
}

// width is the bytes of a span's elements.
func (p *Plan) width(s Span) uint64 {
	if s.Wide {
		return uint64(p.Partial().Size())
	}
	return uint64(p.Type.Size())
}

// checkStep looks at a step by itself.
func checkStep(p *Plan, i int) error {
	s := &p.Steps[i]
	if s.Rank < 0 || s.Rank >= p.Ranks || s.Lane >= Lanes || s.Lane == LaneJoin && (s.Rank != 0 || s.Kind != Join) {
		return fmt.Errorf("no such lane")
	}
	for _, a := range s.After {
		if a < 0 || a >= i {
			return fmt.Errorf("follows step %d, which is not an earlier one", a)
		}
	}
	if len(s.Src) == 0 {
		return fmt.Errorf("has no source")
	}
	hosts := 0
	for _, src := range s.Src {
		if err := checkSpan(p, s, src); err != nil {
			return err
		}
		if src.Space == Host {
			hosts++
		} else if src.Rank != s.Rank {
			return fmt.Errorf("reads device memory of rank %d", src.Rank)
		}
	}
	if err := checkSpan(p, s, s.Dst); err != nil {
		return err
	}
	if s.Dst.Space == In {
		return fmt.Errorf("writes In")
	}

	host, local := s.Dst.Space == Host, s.Dst.Space != Host && s.Dst.Rank == s.Rank
	ok := false
	switch s.Kind {
	case ToHost:
		ok = host && hosts == 0
	case FromHost:
		ok = local && hosts == len(s.Src)
	case Reduce, LocalCopy:
		ok = local && hosts == 0
	case ReduceFromHost:
		ok = local && hosts > 0
	case PeerCopy:
		ok = !host && !local && hosts == 0
	default:
		return fmt.Errorf("has an unknown kind")
	}
	if !ok {
		return fmt.Errorf("has spans that its kind does not allow")
	}
	if s.Kind == Reduce || s.Kind == ReduceFromHost {
		return checkReduce(p, s)
	}
	src := s.Src[0]
	switch {
	case len(s.Src) != 1:
		return fmt.Errorf("copies %d sources", len(s.Src))
	case src.Len != s.Dst.Len || src.Wide != s.Dst.Wide:
		return fmt.Errorf("copies %v to %v", src, s.Dst)
	case s.Divisor != 0:
		return fmt.Errorf("is a copy that divides")
	case overlap(p, src, s.Dst):
		return fmt.Errorf("copies onto itself")
	}
	return nil
}

func checkSpan(p *Plan, s *Step, sp Span) error {
	if sp.Space < In || sp.Space > Scratch || sp.Rank < 0 || sp.Rank >= p.Ranks {
		return fmt.Errorf("span %v is of no memory", sp)
	}
	n := p.size(sp.Space, sp.Rank)
	if sp.Len == 0 || sp.Off > n || sp.Len > n-sp.Off {
		return fmt.Errorf("span %v is not within %d bytes", sp, n)
	}
	if sp.Wide && p.Partial() == p.Type {
		return fmt.Errorf("span %v is wide, but partial results are not", sp)
	}
	if w := p.width(sp); (sp.Wide || s.Kind == Reduce || s.Kind == ReduceFromHost) && (sp.Off%w != 0 || sp.Len%w != 0) {
		return fmt.Errorf("span %v is not of whole, aligned elements of %d bytes", sp, w)
	}
	return nil
}

func checkReduce(p *Plan, s *Step) error {
	if len(s.Src) > kernel.MaxInputs {
		return fmt.Errorf("folds %d sources, the most is %d", len(s.Src), kernel.MaxInputs)
	}
	count := s.Dst.Len / p.width(s.Dst)
	for _, src := range s.Src {
		if src.Len/p.width(src) != count {
			return fmt.Errorf("folds %v into %v", src, s.Dst)
		}
		if !overlap(p, src, s.Dst) {
			continue
		}
		at, off := p.locate(src)
		to, dst := p.locate(s.Dst)
		if at != to || off != dst || src.Wide != s.Dst.Wide {
			return fmt.Errorf("folds %v into %v, which overlaps it", src, s.Dst)
		}
	}
	if s.Divisor != 0 && (p.Reduction != dtype.Avg || s.Divisor != p.Ranks) {
		return fmt.Errorf("divides a %v of %d ranks by %d", p.Reduction, p.Ranks, s.Divisor)
	}
	return nil
}

func overlap(p *Plan, a, b Span) bool {
	ra, x := p.locate(a)
	rb, y := p.locate(b)
	return ra == rb && x < y+b.Len && y < x+a.Len
}

// A value is what a range of bytes holds: elements of In, as they are
// (a fold of one rank) or folded.
type value struct {
	known   bool
	wide    bool // elements of type Plan.Partial
	divided bool
	fold    int    // see folds
	at      uint64 // the first byte's place in the row of all such elements
}

// A cell is a value and who touched it.
type cell struct {
	users
	value
}

func cellFrom(c cell, n uint64) cell {
	c.at += n
	return c
}

// folds numbers the sequences of ranks that were folded.
type folds struct {
	ids  map[[2]int]int
	seqs [][]int
}

// of is the sequence with one more rank; -1 is the empty one.
func (f *folds) of(seq, rank int) int {
	if id, ok := f.ids[[2]int{seq, rank}]; ok {
		return id
	}
	if f.ids == nil {
		f.ids = map[[2]int]int{}
	}
	var ranks []int
	if seq >= 0 {
		ranks = slices.Clone(f.seqs[seq])
	}
	f.seqs = append(f.seqs, append(ranks, rank))
	id := len(f.seqs) - 1
	f.ids[[2]int{seq, rank}] = id
	return id
}

// ranks is what a number stands for; not to be changed.
func (f *folds) ranks(seq int) []int { return f.seqs[seq] }

// ordered tells of an earlier step that touched the bytes whether it is over.
func (c *checker) ordered(i, j int) error {
	if j >= 0 && j != i && !c.clocks.before(j, i) {
		return fmt.Errorf("races with step %d (%v)", j, &c.p.Steps[j])
	}
	return nil
}

// step checks the order of step i and those before it, and runs it.
func (c *checker) step(i int) error {
	s := &c.p.Steps[i]
	lane := func(j int) int { return c.clocks.lane[j] }
	for _, src := range s.Src {
		at, off := c.p.locate(src)
		segs := c.mem[at.index()].in(off, off+src.Len)
		for k := range segs {
			u := &segs[k].state
			if err := c.ordered(i, u.writer); err != nil {
				return err
			}
			if !u.known {
				return fmt.Errorf("reads bytes %d to %d of %v, which hold nothing", segs[k].lo, segs[k].hi, src)
			}
			if u.wide != src.Wide {
				return fmt.Errorf("reads %v, which holds elements with wide: %t", src, u.wide)
			}
			u.users = u.read(i, lane)
		}
	}
	var out []segment[value] // lo and hi from the start of Dst
	var err error
	if s.Kind == Reduce || s.Kind == ReduceFromHost {
		out, err = c.reduce(s)
	} else {
		at, off := c.p.locate(s.Src[0])
		for _, seg := range c.mem[at.index()].in(off, off+s.Src[0].Len) {
			out = append(out, segment[value]{seg.lo - off, seg.hi - off, seg.state.value})
		}
	}
	if err != nil {
		return err
	}
	at, off := c.p.locate(s.Dst)
	for _, seg := range c.mem[at.index()].in(off, off+s.Dst.Len) {
		if err := c.ordered(i, seg.state.writer); err != nil {
			return err
		}
		for _, r := range seg.state.readers {
			if err := c.ordered(i, r); err != nil {
				return err
			}
		}
	}
	for _, v := range out {
		c.mem[at.index()].set(off+v.lo, off+v.hi, cell{users{writer: i}, v.state})
	}
	return nil
}

// reduce gives what a fold leaves in its destination.
func (c *checker) reduce(s *Step) ([]segment[value], error) {
	count := s.Dst.Len / c.p.width(s.Dst)
	// Cut all sources where one of them changes, in elements.
	cuts := []uint64{0, count}
	for _, src := range s.Src {
		at, off := c.p.locate(src)
		w := c.p.width(src)
		for _, seg := range c.mem[at.index()].in(off, off+src.Len) {
			if (seg.lo-off)%w != 0 || seg.state.at%w != 0 {
				return nil, fmt.Errorf("folds %v, which holds parts of elements", src)
			}
			cuts = append(cuts, (seg.lo-off)/w)
		}
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	var out []segment[value]
	for k := range len(cuts) - 1 {
		v, err := c.foldAt(s, cuts[k], cuts[k+1])
		if err != nil {
			return nil, err
		}
		w := c.p.width(s.Dst)
		out = append(out, segment[value]{cuts[k] * w, cuts[k+1] * w, v})
	}
	return out, nil
}

// foldAt is the fold of the elements [lo, hi) of a step, throughout which no
// source changes.
func (c *checker) foldAt(s *Step, lo, hi uint64) (value, error) {
	res := value{known: true, wide: s.Dst.Wide, divided: s.Divisor != 0}
	var element uint64
	for k, src := range s.Src {
		at, off := c.p.locate(src)
		w := c.p.width(src)
		v := c.mem[at.index()].in(off+lo*w, off+hi*w)[0].state.value
		ranks := c.folds.ranks(v.fold)
		switch {
		case v.divided:
			return res, fmt.Errorf("folds %v, which has been divided", src)
		case k == 0:
			res.fold, element = v.fold, v.at/w
			continue
		case v.at/w != element:
			return res, fmt.Errorf("folds element %d of %v into element %d", v.at/w, src, element)
		case len(ranks) != 1:
			// It would be right, but not the fold of all inputs in some order.
			return res, fmt.Errorf("folds %v, the fold of ranks %v, other than as the first source", src, ranks)
		case slices.Contains(c.folds.ranks(res.fold), ranks[0]):
			return res, fmt.Errorf("folds rank %d into %v again", ranks[0], c.folds.ranks(res.fold))
		}
		res.fold = c.folds.of(res.fold, ranks[0])
	}
	n := len(c.folds.ranks(res.fold))
	if res.divided && n != c.p.Ranks {
		return res, fmt.Errorf("divides the fold of %d ranks", n)
	}
	if n < c.p.Ranks && !res.wide && c.p.Partial() != c.p.Type {
		return res, fmt.Errorf("rounds a partial result of %d ranks to %v", n, c.p.Type)
	}
	res.at = element * c.p.width(s.Dst)
	return res, nil
}

// promise checks what the Outs hold in the end.
func (c *checker) promise() error {
	var orders []Fold
	for r := range c.p.Ranks {
		if c.p.OutBytes[r] == 0 {
			continue
		}
		for _, seg := range c.mem[region{Out, r}.index()].segs {
			if err := c.promised(r, seg); err != nil {
				return fmt.Errorf("bytes %d to %d of rank %d's Out: %w", seg.lo, seg.hi, r, err)
			}
		}
		if c.p.Op != "all_reduce" {
			continue
		}
		o := c.order(r)
		if orders != nil && !slices.EqualFunc(o, orders, Fold.equal) {
			return fmt.Errorf("ranks disagree about the order of the folds: %v and %v", orders, o)
		}
		orders = o
	}
	return nil
}

func (c *checker) promised(rank int, seg segment[cell]) error {
	v := seg.state.value
	if !v.known {
		return fmt.Errorf("hold nothing")
	}
	if v.wide {
		return fmt.Errorf("hold partial results")
	}
	ranks := c.folds.ranks(v.fold)
	want, place := []int{0}, seg.lo
	switch c.p.Op {
	case "copy":
	case "all_gather":
		n := c.p.OutBytes[rank] / uint64(c.p.Ranks)
		owner := seg.lo / n
		want, place = []int{int(owner)}, seg.lo-owner*n
		if last := (seg.hi - 1) / n; last != owner {
			return fmt.Errorf("span the shards of ranks %d to %d", owner, last)
		}
	case "all_reduce":
		if len(ranks) != c.p.Ranks {
			return fmt.Errorf("hold the fold of ranks %v", ranks)
		}
		if v.divided != (c.p.Reduction == dtype.Avg && c.p.Ranks > 1) {
			return fmt.Errorf("hold a %v with divided: %t", c.p.Reduction, v.divided)
		}
		want = ranks // any order, each once: foldAt
		if c.p.Algorithm == "ring" || c.p.Algorithm == "ring_zero_copy" {
			want = ringOrder(c.p, seg.lo)
			if !slices.Equal(want, ringOrder(c.p, seg.hi-1)) {
				return fmt.Errorf("span shards of several owners, but one order: %v", ranks)
			}
		}
	}
	if !slices.Equal(ranks, want) || v.at != place {
		return fmt.Errorf("hold ranks %v from byte %d, not ranks %v from byte %d", ranks, v.at, want, place)
	}
	return nil
}

// ringOrder is the fold order of the shard with the given byte of Out.
func ringOrder(p *Plan, at uint64) []int {
	size := uint64(p.Type.Size())
	bounds := shards(p.OutBytes[0]/size, p.Ranks, size)
	owner := 0
	for at/size >= bounds[owner+1] {
		owner++
	}
	order := make([]int, p.Ranks)
	for k := range order {
		order[k] = (owner + 1 + k) % p.Ranks
	}
	return order
}
