// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/stretchr/testify/require"
)

// clone copies a plan as deep as mutations go.
func clone(p *Plan) *Plan {
	q := *p
	q.Steps = slices.Clone(p.Steps)
	for i := range q.Steps {
		q.Steps[i].Src = slices.Clone(q.Steps[i].Src)
		q.Steps[i].After = slices.Clone(q.Steps[i].After)
	}
	return &q
}

// small makes a plan of each algorithm that uses its slots several times.
func small(t testing.TB, f func(al algorithm, p *Plan)) {
	for _, al := range algorithms {
		ranks := []int{2, 3, 4}
		if !thorough {
			ranks = ranks[1:]
		}
		al.variants(ranks, func(ranks int, inPlace bool) {
			for i, ty := range []dtype.Type{dtype.Float32, dtype.BFloat16} {
				if (ranks == 3) != (strings.HasPrefix(al.name, "all_reduce") == (i == 1)) && ranks != 2 {
					continue // one type of each number
				}
				size := 96
				if al.reduces {
					size = 60 * ranks
				}
				if strings.HasPrefix(al.name, "reduce_scatter") {
					size = 60 // of a shard
				}
				a := Args{
					Ranks: ranks, Count: uint64(size / ty.Size()), Type: ty, Op: dtype.Avg, InPlace: inPlace, Block: i == 0,
					Chunk: 16, Slots: 2, ScratchBudget: 4 * 16,
				}
				if !strings.Contains(al.name, "ring") {
					a.Chunk, a.ScratchBudget = max(16, al.fifth(a)*5/3), 0
				}
				p, err := al.make(a)
				require.NoError(t, err)
				require.NoError(t, Check(p))
				f(al, p)
			}
		})
	}
}

// TestEveryWaitMatters drops each entry of every After by itself. The
// generators list nothing that the rest implies, so all must be missed. But a
// Join is for all who wait for it: where ranks differ, it may be behind a step
// that none of them needed.
func TestEveryWaitMatters(t *testing.T) {
	seen, dropped, spare := 0, 0, 0
	small(t, func(al algorithm, p *Plan) {
		for i := range p.Steps {
			for k := range p.Steps[i].After {
				if seen++; !thorough && seen%10 > 0 {
					continue
				}
				q := clone(p)
				q.Steps[i].After = slices.Delete(q.Steps[i].After, k, k+1)
				err := Check(q)
				if err == nil && p.Steps[i].Lane == LaneJoin && (p.Op == "reduce" || p.Algorithm == "peer") {
					spare++
					continue
				}
				require.Error(t, err, "%s: step %d no longer after %d", al.name, i, p.Steps[i].After[k])
				require.Regexp(t, "races with step|not over at the last join|which has no step", err.Error())
				dropped++
			}
		}
	})
	require.Greater(t, seen, 2000)
	require.Greater(t, dropped, seen/11)
	require.Less(t, spare, dropped/50)
}

// TestSuperfluousWaits adds what is implied already: nothing changes.
func TestSuperfluousWaits(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	added := 0
	small(t, func(al algorithm, p *Plan) {
		c := newClocks(p)
		q := clone(p)
		for i := range q.Steps {
			for range 3 {
				if a := rng.IntN(i + 1); c.before(a, i) {
					q.Steps[i].After = append(q.Steps[i].After, a)
					added++
				}
			}
		}
		require.NoError(t, Check(q))
		require.Equal(t, p.Waits(), q.Waits(), al.name)
		for i, w := range p.Waits() {
			require.Equal(t, p.Steps[i].After, w)
		}
	})
	require.Greater(t, added, 300)
}

// TestWaitsKeepTheOrder compares the order that lanes and Waits give with the
// one that lanes and After give, found by walking, on plans with random After.
func TestWaitsKeepTheOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	reduced := 0
	for range 50 {
		p := &Plan{Ranks: 1 + rng.IntN(4)}
		for i := range 40 {
			s := Step{Rank: rng.IntN(p.Ranks), Lane: Lane(rng.IntN(Lanes))}
			for range rng.IntN(4) {
				if i > 0 {
					s.After = append(s.After, rng.IntN(i))
				}
			}
			p.Steps = append(p.Steps, s)
		}
		closure := func(after func(i int) []int) [][]bool {
			is := make([][]bool, len(p.Steps))
			last := map[int]int{}
			for i := range p.Steps {
				is[i] = make([]bool, len(p.Steps))
				before := slices.Clone(after(i))
				if l, ok := last[p.Steps[i].queue()]; ok {
					before = append(before, l)
				}
				for _, b := range before {
					is[i][b] = true
					for j, x := range is[b] {
						is[i][j] = is[i][j] || x
					}
				}
				last[p.Steps[i].queue()] = i
			}
			return is
		}
		want := closure(func(i int) []int { return p.Steps[i].After })
		waits := p.Waits()
		require.Equal(t, want, closure(func(i int) []int { return waits[i] }))
		c := newClocks(p)
		for i := range p.Steps {
			for j := range p.Steps {
				require.Equal(t, want[i][j], c.before(j, i), "%d before %d", j, i)
			}
			reduced += len(p.Steps[i].After) - len(waits[i])
			// None can be spared.
			for k := range waits[i] {
				fewer := slices.Clone(waits)
				fewer[i] = slices.Delete(slices.Clone(waits[i]), k, k+1)
				got := closure(func(i int) []int { return fewer[i] })
				require.False(t, got[i][waits[i][k]])
			}
		}
	}
	require.Positive(t, reduced)
}

// TestMutants changes a step of a sound plan in some way. What Check lets pass
// must still give the right bytes, in any order.
func TestMutants(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	span := func(s *Step) *Span {
		if k := rng.IntN(len(s.Src) + 1); k > 0 {
			return &s.Src[k-1]
		}
		return &s.Dst
	}
	mutations := map[string]func(p *Plan, i int){
		"drop the step": func(p *Plan, i int) {
			p.Steps = slices.Delete(p.Steps, i, i+1)
			for k := range p.Steps {
				after := p.Steps[k].After[:0]
				for _, a := range p.Steps[k].After {
					if a != i {
						if a > i {
							a--
						}
						after = append(after, a)
					}
				}
				p.Steps[k].After = after
			}
		},
		"move a span":      func(p *Plan, i int) { span(&p.Steps[i]).Off += 16 },
		"move a span back": func(p *Plan, i int) { span(&p.Steps[i]).Off -= min(span(&p.Steps[i]).Off, 16) },
		"shorten": func(p *Plan, i int) {
			s := &p.Steps[i]
			if s.Dst.Len <= p.width(s.Dst) {
				s.Dst.Len = 0
				return
			}
			s.Dst.Len -= p.width(s.Dst)
			for k := range s.Src {
				s.Src[k].Len -= p.width(s.Src[k])
			}
		},
		"another rank's memory": func(p *Plan, i int) { s := span(&p.Steps[i]); s.Rank = (s.Rank + 1) % p.Ranks },
		"another space":         func(p *Plan, i int) { s := span(&p.Steps[i]); s.Space = 1 + s.Space%Scratch },
		"toggle wide":           func(p *Plan, i int) { s := span(&p.Steps[i]); s.Wide = !s.Wide },
		"divide or not":         func(p *Plan, i int) { p.Steps[i].Divisor = p.Ranks - p.Steps[i].Divisor },
		"another lane":          func(p *Plan, i int) { p.Steps[i].Lane = (p.Steps[i].Lane + 1) % Lanes },
		"another rank":          func(p *Plan, i int) { p.Steps[i].Rank = (p.Steps[i].Rank + 1) % p.Ranks },
		"another kind":          func(p *Plan, i int) { p.Steps[i].Kind = 1 + p.Steps[i].Kind%Join },
		"rows further apart":    func(p *Plan, i int) { span(&p.Steps[i]).Pitch += 16 },
		"a row less":            func(p *Plan, i int) { span(&p.Steps[i]).Rows-- },
		"across or not":         func(p *Plan, i int) { s := span(&p.Steps[i]); s.Across = !s.Across },
		"another buffer":        func(p *Plan, i int) { span(&p.Steps[i]).Buffer++ },
		"sources reversed":      func(p *Plan, i int) { slices.Reverse(p.Steps[i].Src) },
		"a source twice":        func(p *Plan, i int) { s := &p.Steps[i]; s.Src = append(s.Src, *span(s)) },
		"follow itself":         func(p *Plan, i int) { p.Steps[i].After = append(p.Steps[i].After, i) },
		"no wait":               func(p *Plan, i int) { p.Steps[i].After = nil },
		"swap with the next": func(p *Plan, i int) {
			if i+1 < len(p.Steps) {
				p.Steps[i], p.Steps[i+1] = p.Steps[i+1], p.Steps[i]
			}
		},
	}
	var names []string
	for name := range mutations {
		names = append(names, name)
	}
	slices.Sort(names)
	caught, passed, tries := map[string]int{}, 0, 6
	if !thorough {
		tries = 1
	}
	small(t, func(al algorithm, p *Plan) {
		for _, name := range names {
			for range tries {
				q := clone(p)
				i := rng.IntN(len(q.Steps))
				mutations[name](q, i)
				if Check(q) != nil {
					caught[name]++
					continue
				}
				passed++
				runs(t, q, rng, 3)
			}
		}
	})
	require.Positive(t, passed)
	for _, name := range names {
		require.Positive(t, caught[name], name)
	}
}

// TestCheckSays holds the errors of plans that are wrong in one way each.
func TestCheckSays(t *testing.T) {
	ring := func(a Args) *Plan {
		a.Ranks, a.Count, a.Chunk, a.Slots = 3, 96, 64, 2
		p, err := RingAllReduce(a)
		require.NoError(t, err)
		return p
	}
	kind := func(p *Plan, k Kind, n int) *Step {
		for i := range p.Steps {
			if p.Steps[i].Kind == k {
				if n == 0 {
					return &p.Steps[i]
				}
				n--
			}
		}
		require.FailNow(t, "no such step")
		return nil
	}
	f32 := Args{Type: dtype.Float32}
	bf16 := Args{Type: dtype.BFloat16}
	avg := Args{Type: dtype.Float32, Op: dtype.Avg}
	gather := func() *Plan {
		p, err := RingAllGather(Args{Ranks: 2, Count: 8, Type: dtype.Int32, InPlace: true})
		require.NoError(t, err)
		return p
	}
	// Four ranks, rows across them and joins; two segments.
	four := func(make func(Args) (*Plan, error)) func() *Plan {
		return func() *Plan {
			p, err := make(Args{Ranks: 4, Count: 64, Type: dtype.Float32, Block: true, Chunk: 128})
			require.NoError(t, err)
			return p
		}
	}
	direct, reduced := four(DirectAllReduce), four(DirectReduce)
	rowsIn := func(p *Plan) *Span {
		for i := range p.Steps {
			if s := &p.Steps[i]; s.Kind == FromHost && s.Src[0].Across {
				return &s.Src[0]
			}
		}
		require.FailNow(t, "no such step")
		return nil
	}
	batch := func() *Plan {
		p, err := SendRecv(SendRecvArgs{Ranks: 3, Transfers: []Transfer{{0, 1, 8, false}, {1, 2, 8, true}, {2, 2, 8, false}}})
		require.NoError(t, err)
		return p
	}
	for _, c := range []struct {
		want  string
		make  func() *Plan
		spoil func(p *Plan)
	}{
		{"0 ranks", gather, func(p *Plan) { p.Ranks = 0 }},
		{"unknown element type", gather, func(p *Plan) { p.Type = 0 }},
		{"unknown reduction", gather, func(p *Plan) { p.Reduction = 99 }},
		{"unknown operation", gather, func(p *Plan) { p.Op = "dance" }},
		{"offsets of In", gather, func(p *Plan) { p.InOff = nil }},
		{"a list of 1 sizes", gather, func(p *Plan) { p.HostBytes = p.HostBytes[:1] }},
		{"a size of", gather, func(p *Plan) { p.HostBytes[0] = 1 << 63 }},
		{"parts of elements", gather, func(p *Plan) { p.InBytes[1] = 31 }},
		{"In outside of Out", gather, func(p *Plan) { p.InOff[1] = 36 }},
		{"inside an element", gather, func(p *Plan) { p.InOff[1] = 30 }},
		{"not its shard", gather, func(p *Plan) { p.InOff[1] = 28 }},
		{"32 bytes of In and 60 of Out", gather, func(p *Plan) { p.OutBytes[0] = 60 }},
		{"no such lane", gather, func(p *Plan) { p.Steps[0].Lane = Lanes }},
		{"not an earlier one", gather, func(p *Plan) { p.Steps[0].After = []int{1} }},
		{"has no source", gather, func(p *Plan) { p.Steps[0].Src = nil }},
		{"is of no memory", gather, func(p *Plan) { p.Steps[0].Src[0].Space = 9 }},
		{"is not within", gather, func(p *Plan) { p.Steps[0].Dst.Off = 1 << 62 }},
		{"is wide, but", gather, func(p *Plan) { p.Steps[0].Dst.Wide = true }},
		{"reads device memory of rank 1", gather, func(p *Plan) { p.Steps[0].Src[0].Rank = 1 }},
		{"writes In", gather, func(p *Plan) { kind(p, FromHost, 0).Dst = Span{Space: In, Rank: 0, Len: 32} }},
		{"unknown kind", gather, func(p *Plan) { p.Steps[0].Kind = 0 }},
		{"kind does not allow", gather, func(p *Plan) { p.Steps[0].Kind = LocalCopy }},
		{"copies 2 sources", gather, func(p *Plan) { p.Steps[0].Src = append(p.Steps[0].Src, p.Steps[0].Src[0]) }},
		{"copies 0.In[0:16]", gather, func(p *Plan) { p.Steps[0].Src[0].Len = 16 }},
		{"divides", gather, func(p *Plan) { p.Steps[0].Divisor = 2 }},
		{"onto itself", gather, func(p *Plan) {
			p.Steps[0] = Step{Kind: LocalCopy, Rank: 0, Dst: Span{Space: Out, Len: 8}, Src: []Span{{Space: In, Off: 4, Len: 8}}}
		}},
		{"hold nothing", gather, func(p *Plan) { p.Steps = nil }},
		{"hold ranks [0] from byte 0, not ranks [1]", gather, func(p *Plan) {
			kind(p, FromHost, 0).Src[0].Rank = 0
			kind(p, FromHost, 0).After = []int{0}
		}},
		{"span the shards of ranks 0 to 1", gather, func(p *Plan) {
			s := kind(p, FromHost, 1)
			s.Dst.Off += 16
			p.InPlace, p.InOff = false, nil
			p.Steps = append(p.Steps, Step{Kind: FromHost, Rank: 0, Lane: LaneIn, Dst: Span{Space: Out, Rank: 0, Len: 32}, Src: s.Src, After: []int{0}},
				Step{Kind: FromHost, Rank: 0, Lane: LaneIn, Dst: Span{Space: Out, Rank: 0, Off: 16, Len: 32}, Src: s.Src, After: []int{0}},
				Step{Kind: FromHost, Rank: 0, Lane: LaneIn, Dst: Span{Space: Out, Rank: 0, Off: 48, Len: 16}, Src: []Span{{Space: Host, Rank: 0, Off: 16, Len: 16}}, After: []int{0}})
		}},
		{"not of whole, aligned elements", func() *Plan { return ring(f32) }, func(p *Plan) { kind(p, Reduce, 0).Dst.Off++ }},
		{"which overlaps it", func() *Plan { return ring(Args{Type: dtype.Float32, InPlace: true}) }, func(p *Plan) { kind(p, Reduce, 0).Dst.Off += 4 }},
		{"folds 17 sources", func() *Plan { return ring(f32) }, func(p *Plan) {
			s := kind(p, Reduce, 0)
			for len(s.Src) < 17 {
				s.Src = append(s.Src, s.Src[1])
			}
		}},
		{"divides a sum", func() *Plan { return ring(f32) }, func(p *Plan) { kind(p, Reduce, 0).Divisor = 3 }},
		{"of 3 ranks by 2", func() *Plan { return ring(avg) }, func(p *Plan) { kind(p, Reduce, 0).Divisor = 2 }},
		{"divides the fold of 2 ranks", func() *Plan { return ring(avg) }, func(p *Plan) { kind(p, Reduce, 0).Divisor = 3 }},
		{"with divided: false", func() *Plan { return ring(avg) }, func(p *Plan) {
			for i := range p.Steps {
				p.Steps[i].Divisor = 0
			}
		}},
		{"rounds a partial result of 2 ranks", func() *Plan { return ring(bf16) }, func(p *Plan) {
			s := kind(p, Reduce, 0)
			s.Dst.Len, s.Dst.Wide = s.Dst.Len/2, false
		}},
		{"with wide: true", func() *Plan { return ring(bf16) }, func(p *Plan) {
			for i := range p.Steps {
				if s := &p.Steps[i]; s.Kind == ToHost && s.Src[0].Wide {
					s.Src[0].Wide, s.Dst.Wide = false, false
					break
				}
			}
		}},
		{"folds rank 0 into [2 0] again", func() *Plan { return ring(f32) }, func(p *Plan) {
			s := kind(p, Reduce, 0)
			s.Src = append(s.Src, s.Src[1])
		}},
		{"into element", func() *Plan { return ring(f32) }, func(p *Plan) { kind(p, Reduce, 0).Src[1].Off += 4 }},
		{"hold ranks [0 2 1] from byte 128, not ranks [2 0 1]", func() *Plan { return ring(f32) }, func(p *Plan) { slices.Reverse(kind(p, Reduce, 0).Src) }},
		{"which hold nothing", func() *Plan { return ring(f32) }, func(p *Plan) { kind(p, FromHost, 0).Src[0].Off += 64 }},

		{"root 4 of 4", reduced, func(p *Plan) { p.Root = 4 }},
		{"rank 0 has 256 bytes of In and 256 of Out, not 256 and 0", reduced, func(p *Plan) { p.Root = 1 }},
		{"offsets of Out", direct, func(p *Plan) { p.InPlace, p.OutOff = true, []uint64{0, 0, 0, 0} }},
		{"not its shard", four(func(a Args) (*Plan, error) { a.InPlace = true; return DirectReduceScatter(a) }), func(p *Plan) { p.OutOff = []uint64{0, 16, 0, 0} }},
		{"in place", four(DirectAllToAll), func(p *Plan) { p.InPlace, p.InOff = true, []uint64{0, 0, 0, 0} }},
		{"not 4 equal shards", four(DirectAllToAll), func(p *Plan) { p.InBytes[0] -= 4 }},
		{"join that moves", direct, func(p *Plan) { kind(p, Join, 0).Divisor = 4 }},
		{"no such lane", direct, func(p *Plan) { kind(p, Join, 0).Rank = 1 }},
		{"no such lane", direct, func(p *Plan) { kind(p, ToHost, 0).Lane = LaneJoin }},
		{"has rows", direct, func(p *Plan) { kind(p, Reduce, 0).Dst.Rows, kind(p, Reduce, 0).Dst.Pitch = 2, 16 }},
		{"copies 2 rows to 3", direct, func(p *Plan) {
			s := kind(p, FromHost, 0)
			s.Dst.Rows, s.Dst.Pitch, s.Src[0].Rows, s.Src[0].Pitch = 3, 16, 2, 32
			s.Dst.Len, s.Src[0].Len = 48, 48
		}},
		{"does not cut into 5 rows", direct, func(p *Plan) { rowsIn(p).Rows = 5 }},
		{"has 0 rows at a distance", direct, func(p *Plan) { rowsIn(p).Rows = 0 }},
		{"cannot lie across", direct, func(p *Plan) { p.Across = false }},
		{"cannot lie across", direct, func(p *Plan) { rowsIn(p).Space = Scratch }},
		{"is of no memory", direct, func(p *Plan) { rowsIn(p).Rank++ }},
		{"rows at a distance of 8", direct, func(p *Plan) { rowsIn(p).Across, rowsIn(p).Pitch = false, 8 }},
		{"rows at a distance of 2147483648", direct, func(p *Plan) { rowsIn(p).Across, rowsIn(p).Pitch = false, 1<<31 }},
		{"is of transfer 1, but there are none", direct, func(p *Plan) { rowsIn(p).Buffer = 1 }},
		{"not over at the last join", direct, func(p *Plan) { p.Steps = p.Steps[:len(p.Steps)-1] }},
		{"no step before (false)", four(peer(DirectAllGather)), func(p *Plan) {
			for i := range p.Steps {
				if p.Steps[i].Kind == PeerCopy {
					p.Steps[i].After = nil
				}
			}
		}},
		{"behind it (false)", four(peer(DirectAllGather)), func(p *Plan) { p.Steps = p.Steps[:len(p.Steps)-1] }},
		{"not ranks [0 1 2 3]", direct, func(p *Plan) {
			for i := range p.Steps {
				if s := &p.Steps[i]; s.Kind == Reduce {
					s.Src[0], s.Src[1] = s.Src[1], s.Src[0]
				}
			}
		}},
		{"of transfer 3 of 3", batch, func(p *Plan) { kind(p, ToHost, 0).Src[0].Buffer = 3 }},
		{"of transfer 1, from rank 1 to rank 2", batch, func(p *Plan) { kind(p, ToHost, 0).Src[0].Buffer = 1 }},
		{"from rank 0 to rank 3", batch, func(p *Plan) { p.Transfers[0].To = 3 }},
		{"8 bytes of In and 8 of Out, not 4", batch, func(p *Plan) { p.Transfers[0].Bytes = 4 }},
		{"0 transfers", batch, func(p *Plan) { p.Transfers = nil }},
		{"no step before (false)", batch, func(p *Plan) { kind(p, PeerCopy, 0).After = nil }},
		{"hold ranks [0] from byte 0, not ranks [1]", batch, func(p *Plan) {
			p.Steps = append(p.Steps, Step{Kind: FromHost, Rank: 2, Lane: LaneIn, Dst: kind(p, PeerCopy, 0).Dst, Src: kind(p, FromHost, 0).Src, After: []int{2}})
		}},
	} {
		p := c.make()
		require.NoError(t, Check(p))
		p = clone(p)
		p.InOff, p.InBytes, p.OutBytes, p.HostBytes = slices.Clone(p.InOff), slices.Clone(p.InBytes), slices.Clone(p.OutBytes), slices.Clone(p.HostBytes)
		c.spoil(p)
		require.ErrorContains(t, Check(p), c.want)
	}

	p := ring(f32)
	require.NoError(t, CheckBudget(p, p.HostBytes[0], p.ScratchBytes[0]))
	require.ErrorContains(t, CheckBudget(p, p.HostBytes[0]-1, p.ScratchBytes[0]), "host memory")
	require.ErrorContains(t, CheckBudget(p, p.HostBytes[0], p.ScratchBytes[0]-1), "device scratch")
}

// TestCheckKnowsFolds writes plans by hand that no generator makes.
func TestCheckKnowsFolds(t *testing.T) {
	// Rank order from one host, as a one-shot all_reduce folds: any order is
	// right if all ranks have the same.
	oneShot := func(orders ...[]int) *Plan {
		n := len(orders)
		p := &Plan{
			Op: "all_reduce", Algorithm: "one_shot", Ranks: n, Type: dtype.Int32,
			ScratchBytes: make([]uint64, n),
		}
		for r := range n {
			p.InBytes, p.OutBytes, p.HostBytes = append(p.InBytes, 8), append(p.OutBytes, 8), append(p.HostBytes, 8)
			p.Steps = append(p.Steps, Step{
				Kind: ToHost, Rank: r, Lane: LaneOut, Dst: Span{Space: Host, Rank: r, Len: 8}, Src: []Span{{Space: In, Rank: r, Len: 8}},
			})
		}
		for r, order := range orders {
			s := Step{Kind: ReduceFromHost, Rank: r, Lane: LaneIn, Dst: Span{Space: Out, Rank: r, Len: 8}}
			for _, o := range order {
				s.Src = append(s.Src, Span{Space: Host, Rank: o, Len: 8})
				s.After = append(s.After, o)
			}
			p.Steps = append(p.Steps, s)
		}
		return p
	}
	p := oneShot([]int{2, 0, 1}, []int{2, 0, 1}, []int{2, 0, 1})
	require.NoError(t, Check(p))
	order, err := FoldOrder(p)
	require.NoError(t, err)
	require.Equal(t, []Fold{{0, 8, []int{2, 0, 1}}}, order)
	runs(t, p, rand.New(rand.NewPCG(10, 10)), 4)

	require.ErrorContains(t, Check(oneShot([]int{0, 1, 2}, []int{0, 1, 2}, []int{0, 2, 1})), "disagree")
	require.ErrorContains(t, Check(oneShot([]int{0, 1}, []int{0})), "hold the fold of ranks [0]")

	// A ring's order depends on the shard.
	p = oneShot([]int{1, 0}, []int{1, 0})
	p.Algorithm = "ring"
	require.NoError(t, Check(p), "8 bytes are one shard, of rank 0")
	p = oneShot([]int{1, 0}, []int{1, 0})
	p.Algorithm = "ring"
	for _, sizes := range [][]uint64{p.InBytes, p.OutBytes, p.HostBytes} {
		sizes[0], sizes[1] = 32, 32
	}
	for i := range p.Steps {
		p.Steps[i].Dst.Len = 32
		for k := range p.Steps[i].Src {
			p.Steps[i].Src[k].Len = 32
		}
	}
	require.ErrorContains(t, Check(p), "span shards of several owners")

	// Bytes may be copied at any place, but what is folded must be elements.
	p = oneShot([]int{0, 1}, []int{0, 1})
	p.Steps[0].Dst.Off, p.Steps[0].Dst.Len, p.Steps[0].Src[0].Len = 1, 7, 7
	p.Steps = slices.Insert(p.Steps, 1, Step{
		Kind: ToHost, Rank: 0, Lane: LaneOut, Dst: Span{Space: Host, Rank: 0, Len: 1}, Src: []Span{{Space: In, Rank: 0, Len: 1}},
	})
	for i := 3; i < 5; i++ {
		p.Steps[i].After = []int{0, 1, 2}
	}
	require.ErrorContains(t, Check(p), "parts of elements")

	// A fold of folds has no order of ranks.
	p = oneShot([]int{0, 1}, []int{0, 1})
	p.Steps = append(p.Steps, Step{
		Kind: ReduceFromHost, Rank: 1, Lane: LaneIn, Dst: Span{Space: Out, Rank: 1, Len: 8},
		Src: []Span{{Space: Host, Rank: 1, Len: 8}, {Space: Out, Rank: 1, Len: 8}},
	})
	require.ErrorContains(t, Check(p), "other than as the first source")

	_, err = FoldOrder(&Plan{Op: "copy"})
	require.ErrorContains(t, err, "folds nothing")
	p = oneShot([]int{0, 1}, []int{0, 1})
	p.Steps[2].After = nil
	_, err = FoldOrder(p)
	require.ErrorContains(t, err, "races")
}

func TestFoldOrderOfARing(t *testing.T) {
	p, err := RingAllReduce(Args{Ranks: 4, Count: 17, Type: dtype.Float32})
	require.NoError(t, err)
	order, err := FoldOrder(p)
	require.NoError(t, err)
	require.Equal(t, []Fold{
		{0, 32, []int{1, 2, 3, 0}},
		{32, 16, []int{2, 3, 0, 1}},
		{48, 16, []int{3, 0, 1, 2}},
		{64, 4, []int{0, 1, 2, 3}},
	}, order)
}

func TestFoldOrderOfDirectPlans(t *testing.T) {
	p, err := DirectReduce(Args{Ranks: 3, Count: 100, Type: dtype.Float32, Root: 1, Chunk: 96})
	require.NoError(t, err)
	order, err := FoldOrder(p)
	require.NoError(t, err)
	require.Equal(t, []Fold{{0, 400, []int{0, 1, 2}}}, order)

	// Outs are shards of the result.
	p, err = RingReduceScatter(Args{Ranks: 3, Count: 2, Type: dtype.Float32})
	require.NoError(t, err)
	order, err = FoldOrder(p)
	require.NoError(t, err)
	require.Equal(t, []Fold{{0, 8, []int{1, 2, 0}}, {8, 8, []int{2, 0, 1}}, {16, 8, []int{0, 1, 2}}}, order)
}

// TestReferenceIsTheArithmetic holds Reference to sums done by hand.
func TestReferenceIsTheArithmetic(t *testing.T) {
	order := []Fold{{0, 2, []int{1, 2, 0}}, {2, 1, []int{0, 1, 2}}}
	ins := [][]byte{{1, 200, 3}, {2, 100, 3}, {5, 1, 250}}
	require.Equal(t, []byte{8, 301 % 256, 0}, Reference(ins, dtype.Uint8, dtype.Sum, order))
	require.Equal(t, []byte{2, 100, 85}, Reference(ins, dtype.Uint8, dtype.Avg, order))
	require.Equal(t, []byte{5, 200, 250}, Reference(ins, dtype.Uint8, dtype.Max, order))
	require.Equal(t, []byte{1, 200, 3}, Reference(ins[:1], dtype.Uint8, dtype.Avg, nil))

	// 20 ranks: the average is of all, and nothing is truncated on the way.
	var many [][]byte
	ranks := make([]int, 20)
	for r := range ranks {
		ranks[r] = r
		many = append(many, []byte{byte(100 + r)})
	}
	require.Equal(t, []byte{109}, Reference(many, dtype.Int8, dtype.Avg, []Fold{{0, 1, ranks}}))
}

func TestRunFindsNothingToRun(t *testing.T) {
	p, err := Copy(CopyArgs{Bytes: 64, Chunk: 16})
	require.NoError(t, err)
	p.Steps[0].After = []int{1}
	require.ErrorContains(t, Run(p, NewMemory(p, make([][]byte, 2), rand.New(rand.NewPCG(1, 2))), rand.New(rand.NewPCG(1, 2))), "none can run")
}
