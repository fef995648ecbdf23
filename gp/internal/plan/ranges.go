// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"sort"
)

// A segment is a range of bytes that share one state.
type segment[T any] struct {
	lo, hi uint64
	state  T
}

// A rangeMap gives each byte of a region a state. Its segments are sorted, do
// not overlap and leave no gap. The state of a segment speaks of its first byte;
// from gives what it is n bytes further on.
type rangeMap[T any] struct {
	segs []segment[T]
	from func(s T, n uint64) T
}

// newRangeMap is a map of the bytes [0, n) that all have the state s.
func newRangeMap[T any](n uint64, s T, from func(T, uint64) T) *rangeMap[T] {
	m := &rangeMap[T]{from: from}
	if n > 0 {
		m.segs = []segment[T]{{0, n, s}}
	}
	return m
}

// split makes at a boundary between segments and returns the index of the
// segment that begins there.
func (m *rangeMap[T]) split(at uint64) int {
	i := sort.Search(len(m.segs), func(i int) bool { return m.segs[i].hi > at })
	if i == len(m.segs) || m.segs[i].lo == at {
		return i
	}
	s := m.segs[i]
	m.segs[i].hi = at
	m.segs = slices.Insert(m.segs, i+1, segment[T]{at, s.hi, m.from(s.state, at-s.lo)})
	return i + 1
}

// in returns the segments that make up [lo, hi). They may be changed in place
// until the next call.
func (m *rangeMap[T]) in(lo, hi uint64) []segment[T] {
	if lo >= hi {
		return nil
	}
	i := m.split(lo)
	j := m.split(hi)
	return m.segs[i:j]
}

// set makes [lo, hi) one segment of the state s.
func (m *rangeMap[T]) set(lo, hi uint64, s T) {
	if lo >= hi {
		return
	}
	i := m.split(lo)
	j := m.split(hi)
	m.segs = slices.Replace(m.segs, i, j, segment[T]{lo, hi, s})
}

// users records which steps last touched a range: the last writer, and those
// that have read it since. Of the readers on one lane the latest stands for
// all, since a lane runs its steps in order.
type users struct {
	writer  int // -1: none
	readers []int
}

func usersFrom(u users, _ uint64) users { return u }

// read returns u with step i, which runs on the given lane, as a reader. The
// slice is copied, since the halves of a split segment share it.
func (u users) read(i int, lane func(step int) int) users {
	rs := make([]int, 0, len(u.readers)+1)
	for _, r := range u.readers {
		if lane(r) != lane(i) {
			rs = append(rs, r)
		}
	}
	return users{u.writer, append(rs, i)}
}

// A region is a piece of memory: spans that name the same bytes have the same
// region, whatever they call it. Its index is a rank, or a transfer of whose In
// or Out it is.
type region struct {
	space Space
	of    int
}

// buffers is the number of Ins, and of Outs.
func (p *Plan) buffers() int {
	if p.Transfers != nil {
		return len(p.Transfers)
	}
	return p.Ranks
}

// buffer is which of its space's memories a span lies in.
func (p *Plan) buffer(s Span) int {
	if p.Transfers != nil && s.Space <= Out {
		return s.Buffer
	}
	return s.Rank
}

// whole is all of a rank's In or Out, or a transfer's.
func (p *Plan) whole(s Space, k int) Span {
	if p.Transfers == nil {
		return Span{Space: s, Rank: k, Len: p.size(s, k)}
	}
	t := p.Transfers[k]
	if s == In {
		return Span{Space: s, Rank: t.From, Len: t.Bytes, Buffer: k}
	}
	return Span{Space: s, Rank: t.To, Len: t.Bytes, Buffer: k}
}

// aliased tells whether rank r's In is a part of its Out.
func (p *Plan) aliased(r int) bool {
	return p.InOff != nil && p.InBytes[r] > 0 && p.OutBytes[r] > 0
}

// locate gives the region of a span's first row and its offset there: in a plan
// in place In is a part of Out, or Out of In.
func (p *Plan) locate(s Span) (region, uint64) {
	switch {
	case s.Space == In && p.aliased(s.Rank):
		return region{Out, s.Rank}, s.Off + p.InOff[s.Rank]
	case s.Space == Out && p.OutOff != nil:
		return region{In, s.Rank}, s.Off + p.OutOff[s.Rank]
	}
	return region{s.Space, p.buffer(s)}, s.Off
}

// regions is the number of regions that a plan can have, index the place of
// one among them.
func (p *Plan) regions() int { return max(p.Ranks, p.buffers()) * (int(Scratch) + 1) }

func (r region) index() int { return r.of*(int(Scratch)+1) + int(r.space) }

// size is the length in bytes of a rank's space, or of a transfer's In or Out.
func (p *Plan) size(s Space, of int) uint64 {
	switch s {
	case In:
		return p.InBytes[of]
	case Out:
		return p.OutBytes[of]
	case Host:
		return p.HostBytes[of]
	case Scratch:
		return p.ScratchBytes[of]
	}
	return 0
}
