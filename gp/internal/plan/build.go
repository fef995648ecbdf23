// SPDX-License-Identifier: Apache-2.0

package plan

import "slices"

// A builder writes a plan's steps. An algorithm adds them in an order in which
// they would be right one after another, and the builder finds what each must
// follow: the step that last wrote what it reads, and those that last wrote or
// read what it overwrites. So a slot's reuse waits for all who emptied it,
// whether the algorithm thought of them or not.
type builder struct {
	p     *Plan
	mem   []*rangeMap[users] // by region, made when first touched
	after []int              // holds the After of all steps
	gate  []int              // what every step that is added follows
	block bool               // rows may lie across ranks, see Args.Block
	src   []Span             // holds the Src of all copies
	sent  []int              // by rank, host slots used so far
	slot  uint64
	slots int
}

// newBuilder starts a plan whose sizes are known. Each rank with host memory
// has slots slots of slot bytes there.
func newBuilder(p *Plan, slot uint64, slots int) *builder {
	return &builder{p: p, mem: make([]*rangeMap[users], p.regions()), sent: make([]int, p.Ranks), slot: slot, slots: slots}
}

// users finds the touched range of one row.
func (b *builder) users(s Span) (m *rangeMap[users], lo, hi uint64) {
	at, lo := b.p.locate(s)
	m = b.mem[at.index()]
	if m == nil {
		m = newRangeMap(b.p.size(at.space, at.of), users{writer: -1}, usersFrom)
		b.mem[at.index()] = m
	}
	return m, lo, lo + s.Len
}

func (b *builder) lane(i int) int { return b.p.Steps[i].queue() }

// add appends a step, fills in its After and returns its index. The other
// fields of s are set; what After it has already is kept, and so is the gate.
func (b *builder) add(s Step) int {
	i := len(b.p.Steps)
	b.p.Steps = append(b.p.Steps, s)
	start := len(b.after)
	follow := func(j int) {
		if j >= 0 && j != i && b.lane(j) != b.lane(i) && !slices.Contains(b.after[start:], j) {
			b.after = append(b.after, j)
		}
	}
	for _, list := range [][]int{s.After, b.gate} {
		for _, j := range list {
			follow(j)
		}
	}
	for _, src := range s.Src {
		for k := range src.rows() {
			m, lo, hi := b.users(src.row(k, src.rows()))
			segs := m.in(lo, hi)
			for k := range segs {
				follow(segs[k].state.writer)
				segs[k].state = segs[k].state.read(i, b.lane)
			}
		}
	}
	for k := range s.Dst.rows() {
		if s.Kind == Join {
			break
		}
		m, lo, hi := b.users(s.Dst.row(k, s.Dst.rows()))
		for _, seg := range m.in(lo, hi) {
			follow(seg.state.writer)
			for _, r := range seg.state.readers {
				follow(r)
			}
		}
		m.set(lo, hi, users{writer: i})
	}
	b.p.Steps[i].After = b.after[start:len(b.after):len(b.after)]
	return i
}

// one is a row of one span.
func (b *builder) one(s Span) []Span {
	b.src = append(b.src, s)
	return b.src[len(b.src)-1 : len(b.src) : len(b.src)]
}

// done returns the plan, each After reduced to what an event is needed for.
func (b *builder) done() *Plan {
	for i, w := range b.p.Waits() {
		b.p.Steps[i].After = w
	}
	return b.p
}

// post copies n bytes of device memory of the rank to the next of the rank's
// host slots and returns the span that was filled.
func (b *builder) post(src Span) Span {
	r := src.Rank
	dst := Span{Space: Host, Rank: r, Off: uint64(b.sent[r]%b.slots) * b.slot, Len: src.Len, Wide: src.Wide}
	b.sent[r]++
	b.add(Step{Kind: ToHost, Rank: r, Lane: LaneOut, Dst: dst, Src: b.one(src)})
	return dst
}

// fetch copies what was posted to device memory of the destination's rank.
func (b *builder) fetch(dst, src Span) {
	b.add(Step{Kind: FromHost, Rank: dst.Rank, Lane: LaneIn, Dst: dst, Src: b.one(src)})
}

// keep copies a rank's own data to its place in Out. On LaneOut behind all the
// rank has to send it costs nothing: LaneIn ends later.
func (b *builder) keep(dst, src Span) {
	if dst.Len > 0 {
		b.add(Step{Kind: LocalCopy, Rank: dst.Rank, Lane: LaneOut, Dst: dst, Src: b.one(src)})
	}
}

// exchange runs rounds in which each rank may post one span and others fetch
// it. send posts what the rank has to give in the round and returns the span
// (of length 0: nothing); recv is given the spans that were posted, by rank.
//
// The order of the steps is that of a software pipeline: in one tick every
// rank receives round t-1 and then sends round t. So both lanes of a rank get
// work early and a rank's steps come together (the executor binds a context
// when the rank changes). A slot that is used again after two or more rounds
// has been read by then: two slots are the fewest.
func (b *builder) exchange(rounds int, send func(t, rank int) Span, recv func(t, rank int, posted []Span)) {
	b.p.Steps = slices.Grow(b.p.Steps, 2*rounds*b.p.Ranks)
	posted := [2][]Span{make([]Span, b.p.Ranks), make([]Span, b.p.Ranks)}
	for t := range rounds + 1 {
		for r := range b.p.Ranks {
			if t > 0 {
				recv(t-1, r, posted[(t-1)&1])
			}
			if t < rounds {
				posted[t&1][r] = send(t, r)
			}
		}
	}
}
