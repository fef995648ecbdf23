// SPDX-License-Identifier: Apache-2.0

package plan

// DirectAllGather plans an all_gather in which every rank writes its shard to
// its own host memory once and all others read it there: a rank's link carries
// one shard out instead of the ring's Ranks-1, and as many in. Rank r reads
// from r+1 first, then r+2 and so on, so that no rank's memory is read by all
// at once. Buffers are those of RingAllGather. Algorithm "direct".
func DirectAllGather(a Args) (*Plan, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	p := a.plan("all_gather", "direct", a.Ranks)
	if a.Ranks == 1 || a.Count == 0 {
		return alone(p), nil
	}
	n := a.Ranks
	if err := a.pieces(p, 1, uint64(n)); err != nil {
		return nil, err
	}
	bytes := p.InBytes[0]
	b := newBuilder(p, p.Chunk, p.Slots)
	cut := func(i int) (lo, length uint64) {
		lo = uint64(i) * p.Chunk
		return lo, min(p.Chunk, bytes-lo)
	}
	b.exchange(int(ceilDiv(bytes, p.Chunk)), func(i, r int) Span {
		lo, length := cut(i)
		return b.post(Span{Space: In, Rank: r, Off: lo, Len: length})
	}, func(i, r int, posted []Span) {
		lo, length := cut(i)
		for d := 1; d < n; d++ {
			from := mod(r+d, n)
			b.fetch(Span{Space: Out, Rank: r, Off: uint64(from)*bytes + lo, Len: length}, posted[from])
		}
	})
	b.keepOwn()
	return b.done(), nil
}
