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
//     shard's owner; direct: that of the ranks), its partial results in the
//     type Plan.Partial;
//   - a rank's memory is written by another's PeerCopy only between two steps of
//     its own, and the last Join, if there is one, is behind all.
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
	empty := cell{users: users{writer: -1}}
	for r := range p.Ranks {
		for _, s := range []Space{Host, Scratch} {
			c.mem[region{s, r}.index()] = newRangeMap(p.size(s, r), empty, cellFrom)
		}
	}
	for k := range p.buffers() {
		for _, s := range []Space{In, Out} {
			c.mem[region{s, k}.index()] = newRangeMap(p.size(s, k), empty, cellFrom)
		}
		own := cell{users: users{writer: -1}, value: value{known: true, fold: c.folds.of(-1, k)}}
		at, off := p.locate(p.whole(In, k))
		c.mem[at.index()].set(off, off+p.InBytes[k], own)
	}
	for i := range p.Steps {
		if err := c.step(i); err != nil {
			return nil, stepError(p, i, err)
		}
	}
	for _, rule := range []func() error{c.gates, c.end, c.promise} {
		if err := rule(); err != nil {
			return nil, fmt.Errorf("plan %s %s: %w", p.Op, p.Algorithm, err)
		}
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
	case p.InPlace != (p.InOff != nil || p.OutOff != nil):
		return fmt.Errorf("in place: %t, but %d offsets of In in Out", p.InPlace, max(len(p.InOff), len(p.OutOff)))
	case (p.OutOff != nil) != (p.InPlace && p.Op == "reduce_scatter") || p.OutOff != nil && p.InOff != nil:
		return fmt.Errorf("%d offsets of Out in In", len(p.OutOff))
	case p.Root < 0 || p.Root >= p.Ranks:
		return fmt.Errorf("root %d of %d ranks", p.Root, p.Ranks)
	case (p.Transfers != nil) != (p.Op == "send_recv"):
		return fmt.Errorf("%d transfers", len(p.Transfers))
	case p.Op == "send_recv" && p.InPlace:
		return fmt.Errorf("transfers in place")
	}
	lists := []struct {
		list []uint64
		n    int
	}{{p.InBytes, p.buffers()}, {p.OutBytes, p.buffers()}, {p.HostBytes, p.Ranks}, {p.ScratchBytes, p.Ranks}, {p.InOff, p.Ranks}, {p.OutOff, p.Ranks}}
	for _, l := range lists {
		if len(l.list) != l.n && l.list != nil {
			return fmt.Errorf("a list of %d sizes for %d ranks", len(l.list), l.n)
		}
		for _, n := range l.list {
			if n > math.MaxInt64 {
				return fmt.Errorf("a size of %d bytes", n)
			}
		}
	}
	for _, l := range lists[:4] {
		if len(l.list) != l.n {
			return fmt.Errorf("a list of %d sizes for %d ranks", len(l.list), l.n)
		}
	}
	size := uint64(p.Type.Size())
	for r := range p.buffers() {
		if p.InBytes[r]%size != 0 || p.OutBytes[r]%size != 0 {
			return fmt.Errorf("rank %d has parts of elements: %d bytes of In, %d of Out", r, p.InBytes[r], p.OutBytes[r])
		}
		switch {
		case p.OutOff != nil:
			if p.OutOff[r] != p.OutBytes[r]*uint64(r) {
				return fmt.Errorf("rank %d has Out at byte %d of In, which is not its shard", r, p.OutOff[r])
			}
		case p.aliased(r):
			if p.InOff[r]+p.InBytes[r] > p.OutBytes[r] {
				return fmt.Errorf("rank %d has In outside of Out", r)
			}
			if p.InOff[r]%size != 0 {
				return fmt.Errorf("rank %d has In at byte %d of Out, inside an element", r, p.InOff[r])
			}
		}
		if err := p.checkSizes(r); err != nil {
			return err
		}
	}
	return nil
}

// checkSizes holds rank r's buffers, or those of transfer r, to the shape of
// the operation.
func (p *Plan) checkSizes(r int) error {
	n := uint64(p.Ranks)
	in := p.InBytes[0]
	out := in
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
		out *= n
		if p.InPlace && p.InOff[r] != in*uint64(r) {
			return fmt.Errorf("rank %d has In at byte %d of Out, which is not its shard", r, p.InOff[r])
		}
	case "reduce_scatter":
		out = p.OutBytes[0]
		in = out * n
	case "all_to_all":
		if p.InPlace {
			return fmt.Errorf("all_to_all in place")
		}
		if in%(n*uint64(p.Type.Size())) != 0 {
			return fmt.Errorf("%d bytes of In are not %d equal shards", in, n)
		}
	case "broadcast":
		in = p.InBytes[p.Root]
		out = in
		if r != p.Root {
			in = 0
		}
	case "reduce":
		if r != p.Root {
			out = 0
		}
	case "send_recv":
		t := p.Transfers[r]
		if t.From < 0 || t.From >= p.Ranks || t.To < 0 || t.To >= p.Ranks {
			return fmt.Errorf("transfer %d is from rank %d to rank %d", r, t.From, t.To)
		}
		in, out = t.Bytes, t.Bytes
	default:
		return fmt.Errorf("unknown operation")
	}
	if p.InBytes[r] != in || p.OutBytes[r] != out {
		return fmt.Errorf("rank %d has %d bytes of In and %d of Out, not %d and %d", r, p.InBytes[r], p.OutBytes[r], in, out)
	}
	if (p.Op == "broadcast" || p.Op == "reduce") && p.InPlace && p.InOff[r] != 0 {
		return fmt.Errorf("rank %d has In at byte %d of Out", r, p.InOff[r])
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
	if s.Lane == LaneFold && s.Kind != Reduce {
		return fmt.Errorf("is no reduction of device memory, on a lane that does nothing else")
	}
	for _, a := range s.After {
		if a < 0 || a >= i {
			return fmt.Errorf("follows step %d, which is not an earlier one", a)
		}
	}
	if s.Kind == Join {
		if len(s.Src) > 0 || s.Dst != (Span{}) || s.Divisor != 0 {
			return fmt.Errorf("is a join that moves something")
		}
		return nil
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
	a, b := src.rows(), s.Dst.rows()
	switch {
	case len(s.Src) != 1:
		return fmt.Errorf("copies %d sources", len(s.Src))
	case max(a, b) > 1 && s.Kind != ToHost && s.Kind != FromHost:
		return fmt.Errorf("has rows")
	case a > 1 && b > 1 && a != b:
		return fmt.Errorf("copies %d rows to %d", a, b)
	case src.Len == s.Dst.Len && (src.Len%uint64(max(a, b)) != 0 || max(a, b) > 1 && src.Len/uint64(max(a, b)) > MaxPitch):
		return fmt.Errorf("has rows that the driver does not take")
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
	if sp.Space <= Out && p.Transfers != nil {
		if sp.Buffer < 0 || sp.Buffer >= len(p.Transfers) {
			return fmt.Errorf("span %v is of transfer %d of %d", sp, sp.Buffer, len(p.Transfers))
		}
		if t := p.Transfers[sp.Buffer]; sp.Space == In && sp.Rank != t.From || sp.Space == Out && sp.Rank != t.To {
			return fmt.Errorf("span %v is of transfer %d, from rank %d to rank %d", sp, sp.Buffer, t.From, t.To)
		}
	} else if sp.Buffer != 0 {
		return fmt.Errorf("span %v is of transfer %d, but there are none", sp, sp.Buffer)
	}
	k := sp.rows()
	switch {
	case sp.Rows < 0 || sp.Rows <= 1 && (sp.Pitch != 0 || sp.Across):
		return fmt.Errorf("span %v has %d rows at a distance", sp, sp.Rows)
	case sp.Across && (sp.Space != Host || !p.Across || sp.Pitch != 0):
		return fmt.Errorf("span %v cannot lie across ranks", sp)
	case sp.Len%uint64(k) != 0:
		return fmt.Errorf("span %v does not cut into %d rows", sp, k)
	case k > 1 && !sp.Across && (sp.Pitch < sp.Len/uint64(k) || sp.Pitch > MaxPitch):
		return fmt.Errorf("span %v has rows at a distance of %d bytes", sp, sp.Pitch)
	case sp.Wide && p.Partial() == p.Type:
		return fmt.Errorf("span %v is wide, but partial results are not", sp)
	}
	reduces := s.Kind == Reduce || s.Kind == ReduceFromHost
	if reduces && k > 1 {
		return fmt.Errorf("has rows")
	}
	w := p.width(sp)
	for i := range k {
		row := sp.row(i, k)
		if row.Rank >= p.Ranks {
			return fmt.Errorf("span %v is of no memory", sp)
		}
		n := p.size(sp.Space, p.buffer(row))
		if row.Len == 0 || row.Off > n || row.Len > n-row.Off {
			return fmt.Errorf("span %v is not within %d bytes", sp, n)
		}
		if (sp.Wide || reduces) && (row.Off%w != 0 || row.Len%w != 0) {
			return fmt.Errorf("span %v is not of whole, aligned elements of %d bytes", sp, w)
		}
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
	if s.Kind == Join {
		return nil
	}
	lane := func(j int) int { return c.clocks.lane[j] }
	for _, src := range s.Src {
		for k := range src.rows() {
			if err := c.read(i, src.row(k, src.rows()), lane); err != nil {
				return err
			}
		}
	}
	if s.Kind == Reduce || s.Kind == ReduceFromHost {
		out, err := c.reduce(s)
		if err != nil {
			return err
		}
		return c.write(i, s.Dst, out)
	}
	src := s.Src[0]
	n := max(src.rows(), s.Dst.rows())
	for k := range n {
		var out []segment[value]
		row := src.row(k, n)
		at, off := c.p.locate(row)
		for _, seg := range c.mem[at.index()].in(off, off+row.Len) {
			out = append(out, segment[value]{seg.lo - off, seg.hi - off, seg.state.value})
		}
		if err := c.write(i, s.Dst.row(k, n), out); err != nil {
			return err
		}
	}
	return nil
}

// read is that step i reads one row.
func (c *checker) read(i int, src Span, lane func(int) int) error {
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
	return nil
}

// write is that step i leaves values in one row; their lo and hi count from its
// start.
func (c *checker) write(i int, dst Span, out []segment[value]) error {
	at, off := c.p.locate(dst)
	for _, seg := range c.mem[at.index()].in(off, off+dst.Len) {
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

// gates checks that a rank's buffers are written by others only between two
// steps of its own: what its stream has to do before and behind the operation
// is ordered with those. Of a copy's two ranks the executor sees to that.
func (c *checker) gates() error {
	if c.p.Op == "copy" {
		return nil
	}
	last := make([]int, c.clocks.lanes)
	for i := range c.p.Steps {
		last[c.clocks.lane[i]] = i + 1
	}
	for i := range c.p.Steps {
		s := &c.p.Steps[i]
		if s.Kind != PeerCopy {
			continue
		}
		opened, closed := false, false
		for _, lane := range []Lane{LaneOut, LaneIn} {
			q := (&Step{Rank: s.Dst.Rank, Lane: lane}).queue()
			opened = opened || c.clocks.of(i)[q] > 0
			closed = closed || last[q] > 0 && c.clocks.before(i, last[q]-1)
		}
		if !opened || !closed {
			return stepError(c.p, i, fmt.Errorf("writes memory of rank %d, which has no step before (%t) or behind it (%t)", s.Dst.Rank, opened, closed))
		}
	}
	return nil
}

// end checks that the last join, where there are joins, is behind all that is
// done: so whoever uses the plan's regions next has one event to wait for.
func (c *checker) end() error {
	last := -1
	for i := range c.p.Steps {
		if c.p.Steps[i].Lane == LaneJoin {
			last = i
		}
	}
	for i := range c.p.Steps {
		if last >= 0 && c.p.Steps[i].Kind != Join && !c.clocks.before(i, last) {
			return stepError(c.p, i, fmt.Errorf("is not over at the last join, step %d", last))
		}
	}
	return nil
}

// out gives what a rank's Out, or a transfer's, holds: from its first byte.
func (c *checker) out(k int) []segment[cell] {
	at, off := c.p.locate(c.p.whole(Out, k))
	segs := slices.Clone(c.mem[at.index()].in(off, off+c.p.OutBytes[k]))
	for i := range segs {
		segs[i].lo -= off
		segs[i].hi -= off
	}
	return segs
}

// promise checks what the Outs hold in the end.
func (c *checker) promise() error {
	var orders []Fold
	for r := range c.p.buffers() {
		if c.p.OutBytes[r] == 0 {
			continue
		}
		for _, seg := range c.out(r) {
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

// folds tells whether the operation is a reduction.
func (p *Plan) folds() bool {
	return p.Op == "all_reduce" || p.Op == "reduce_scatter" || p.Op == "reduce"
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
	if c.p.folds() {
		if len(ranks) != c.p.Ranks {
			return fmt.Errorf("hold the fold of ranks %v", ranks)
		}
		if v.divided != (c.p.Reduction == dtype.Avg && c.p.Ranks > 1) {
			return fmt.Errorf("hold a %v with divided: %t", c.p.Reduction, v.divided)
		}
		want = ranks // any order, each once: foldAt
		if c.p.Op == "reduce_scatter" {
			place += uint64(rank) * c.p.OutBytes[rank]
		}
	}
	switch c.p.Op {
	case "all_gather", "all_to_all":
		n := c.p.OutBytes[rank] / uint64(c.p.Ranks)
		owner := seg.lo / n
		want, place = []int{int(owner)}, seg.lo-owner*n
		if last := (seg.hi - 1) / n; last != owner {
			return fmt.Errorf("span the shards of ranks %d to %d", owner, last)
		}
		if c.p.Op == "all_to_all" {
			place += uint64(rank) * n
		}
	case "broadcast":
		want = []int{c.p.Root}
	case "send_recv":
		want = []int{rank}
	}
	switch {
	case !c.p.folds():
	case c.p.Algorithm == "direct" || c.p.Algorithm == "peer":
		want = make([]int, c.p.Ranks)
		for r := range want {
			want[r] = r
		}
	case c.p.Op == "all_reduce" && (c.p.Algorithm == "ring" || c.p.Algorithm == "ring_zero_copy"):
		want = ringOrder(c.p, seg.lo)
		if !slices.Equal(want, ringOrder(c.p, seg.hi-1)) {
			return fmt.Errorf("span shards of several owners, but one order: %v", ranks)
		}
	case c.p.Algorithm == "ring" || c.p.Algorithm == "ring_zero_copy":
		want = around(rank, c.p.Ranks)
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
	return around(owner, p.Ranks)
}

// around is the ranks in the order of a ring that ends at the owner.
func around(owner, n int) []int {
	order := make([]int, n)
	for k := range order {
		order[k] = (owner + 1 + k) % n
	}
	return order
}
