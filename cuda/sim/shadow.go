// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"sort"
)

// A shadow remembers of an allocation's bytes who wrote them last and who has
// read them since. Its parts are in order and do not overlap; between them
// nobody has touched anything.
type shadow struct {
	parts []part
	spare []part
}

// A part is bytes [lo, hi) with one history.
type part struct {
	lo, hi  uint64
	writer  *toucher
	readers []*toucher // shared between parts: never changed, only replaced
}

// A found is the other side of a race.
type found struct {
	lo, hi uint64
	other  access
}

// touch notes an access to [lo, hi) and returns a race that it makes, or nil.
// Touchers come in an order in which none is before an earlier one, but for
// those that are only known when they run: so both directions are asked for.
func (s *shadow) touch(t *toucher, lo, hi uint64, write bool) *found {
	first := sort.Search(len(s.parts), func(i int) bool { return s.parts[i].hi > lo })
	last := first
	for last < len(s.parts) && s.parts[last].lo < hi {
		last++
	}
	for i := first; i < last; i++ {
		if f := s.parts[i].conflict(t, write); f != nil {
			f.lo, f.hi = max(lo, s.parts[i].lo), min(hi, s.parts[i].hi)
			return f
		}
	}
	// What the parts [first, last) become.
	out := s.spare[:0]
	add := func(p part) {
		if p.lo >= p.hi {
			return
		}
		if n := len(out); n > 0 && out[n-1].hi == p.lo && out[n-1].writer == p.writer && slices.Equal(out[n-1].readers, p.readers) {
			out[n-1].hi = p.hi
			return
		}
		out = append(out, p)
	}
	at := lo
	for i := first; i < last; i++ {
		p := s.parts[i]
		if p.lo < lo {
			add(part{p.lo, lo, p.writer, p.readers})
		}
		if p.lo > at {
			add(fresh(at, p.lo, t, write))
		}
		add(p.after(t, max(lo, p.lo), min(hi, p.hi), write))
		if p.hi > hi {
			add(part{hi, p.hi, p.writer, p.readers})
		}
		at = p.hi
	}
	add(fresh(at, hi, t, write))
	s.parts = slices.Replace(s.parts, first, last, out...)
	clear(out)
	s.spare = out
	return nil
}

func fresh(lo, hi uint64, t *toucher, write bool) part {
	p := part{lo: lo, hi: hi}
	return p.after(t, lo, hi, write)
}

func (p *part) conflict(t *toucher, write bool) *found {
	apart := func(o *toucher) bool { return o != nil && o != t && !o.before(t) && !t.before(o) }
	if apart(p.writer) {
		return &found{other: access{p.writer, true}}
	}
	if write {
		for _, r := range p.readers {
			if apart(r) {
				return &found{other: access{r, false}}
			}
		}
	}
	return nil
}

// after is the history of [lo, hi), a piece of p, once t has touched it.
func (p *part) after(t *toucher, lo, hi uint64, write bool) part {
	switch {
	case p.writer != nil && t != p.writer && t.before(p.writer):
		// Known late: what is there came after it.
		return part{lo, hi, p.writer, p.readers}
	case write:
		return part{lo: lo, hi: hi, writer: t}
	case len(p.readers) > 0 && p.readers[len(p.readers)-1] == t:
		return part{lo, hi, p.writer, p.readers}
	}
	var readers []*toucher
	for _, r := range p.readers {
		if !r.before(t) {
			readers = append(readers, r)
		}
	}
	return part{lo, hi, p.writer, append(readers, t)}
}
