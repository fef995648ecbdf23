// SPDX-License-Identifier: Apache-2.0

package plan

// A move is one row to be copied, from a span to another of equal length.
type move struct{ dst, src Span }

// gap is how one row lies behind another.
type gap struct {
	pitch  uint64 // bytes in the same memory
	across bool   // the same offset of the next rank's host memory
}

// gap tells how b lies behind a, if in a way that a span's rows can.
func (b *builder) gap(x, y Span) (gap, bool) {
	if x.Space != y.Space || x.Len != y.Len || x.Wide != y.Wide || x.Buffer != y.Buffer {
		return gap{}, false
	}
	if x.Rank == y.Rank && y.Off >= x.End() && y.Off-x.Off <= MaxPitch {
		return gap{pitch: y.Off - x.Off}, true
	}
	return gap{across: true}, b.block && x.Space == Host && y.Rank == x.Rank+1 && y.Off == x.Off && x.Len <= MaxPitch
}

// moves copies rows by one lane, in as few steps as their places allow: rows at
// equal distances on both sides are one step. Rows of no length are left out.
// cuMemcpy2DAsync takes the time of one plain copy for them.
func (b *builder) moves(kind Kind, rank int, lane Lane, ms []move) {
	for len(ms) > 0 {
		if ms[0].dst.Len == 0 {
			ms = ms[1:]
			continue
		}
		n := 1
		var to, from gap
		for n < len(ms) {
			t, ok1 := b.gap(ms[n-1].dst, ms[n].dst)
			f, ok2 := b.gap(ms[n-1].src, ms[n].src)
			if !ok1 || !ok2 || n > 1 && (t != to || f != from) {
				break
			}
			to, from = t, f
			n++
		}
		dst, src := ms[0].dst.lay(n, to), ms[0].src.lay(n, from)
		if dst.Rows == 0 && src.Rows == 0 {
			dst.Len, src.Len = ms[0].dst.Len*uint64(n), ms[0].src.Len*uint64(n)
		}
		b.p.Across = b.p.Across || dst.Across || src.Across
		b.add(Step{Kind: kind, Rank: rank, Lane: lane, Dst: dst, Src: b.one(src)})
		ms = ms[n:]
	}
}

// lay is n rows, of which s is the first. Without a gap they are one row.
func (s Span) lay(n int, g gap) Span {
	row := s.Len
	s.Len *= uint64(n)
	if n > 1 && (g.across || g.pitch != row) {
		s.Rows, s.Pitch, s.Across = n, g.pitch, g.across
	}
	return s
}
