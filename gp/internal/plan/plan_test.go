// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/stretchr/testify/require"
)

// An algorithm is one of the package's, in the same dress as the others. A
// copy copies Count elements; Ranks is what it needs.
type algorithm struct {
	name    string
	ranks   int // 0: any
	reduces bool
	inPlace bool // has such a form
	make    func(Args) (*Plan, error)
}

func asCopy(f func(CopyArgs) (*Plan, error)) func(Args) (*Plan, error) {
	return func(a Args) (*Plan, error) {
		return f(CopyArgs{Bytes: a.Count * uint64(a.Type.Size()), Type: a.Type, Chunk: a.Chunk, Slots: a.Slots, HostBudget: a.HostBudget})
	}
}

var algorithms = []algorithm{
	{"copy staged", 2, false, false, asCopy(Copy)},
	{"copy direct", 2, false, false, asCopy(Direct)},
	{"copy local", 1, false, false, asCopy(Local)},
	{"all_reduce ring", 0, true, true, RingAllReduce},
	{"all_reduce ring_zero_copy", 0, true, true, func(a Args) (*Plan, error) { a.ZeroCopy = true; return RingAllReduce(a) }},
	{"all_gather ring", 0, false, true, RingAllGather},
	{"all_gather direct", 0, false, true, DirectAllGather},
	{"all_reduce direct", 0, true, true, DirectAllReduce},
	{"reduce_scatter direct", 0, true, true, DirectReduceScatter},
	{"reduce_scatter ring", 0, true, true, RingReduceScatter},
	{"reduce_scatter ring_zero_copy", 0, true, true, func(a Args) (*Plan, error) { a.ZeroCopy = true; return RingReduceScatter(a) }},
	{"reduce direct", 0, true, true, rooted(DirectReduce)},
	{"broadcast direct", 0, false, true, rooted(DirectBroadcast)},
	{"all_to_all direct", 0, false, false, DirectAllToAll},
	{"all_reduce peer", 0, true, true, peer(DirectAllReduce)},
	{"all_gather peer", 0, false, true, peer(DirectAllGather)},
	{"reduce_scatter peer", 0, true, true, peer(DirectReduceScatter)},
	{"reduce peer", 0, true, true, peer(rooted(DirectReduce))},
	{"broadcast peer", 0, false, true, peer(rooted(DirectBroadcast))},
	{"all_to_all peer", 0, false, false, peer(DirectAllToAll)},
	{"send_recv", 0, false, false, transfers},
}

// direct tells of algorithms whose rows may lie across ranks.
func (al algorithm) direct() bool { return strings.HasSuffix(al.name, " direct") && al.ranks == 0 }

// fifth is the chunk that cuts a rank's data into about five pieces.
func (al algorithm) fifth(a Args) uint64 {
	bytes, n := a.Count*uint64(a.Type.Size()), uint64(a.Ranks)
	switch {
	case strings.HasPrefix(al.name, "all_reduce ring"):
		bytes /= n // pieces are of shards
	case strings.HasPrefix(al.name, "reduce_scatter ring"):
	case strings.HasPrefix(al.name, "reduce_scatter"), strings.HasPrefix(al.name, "all_to_all"):
		bytes *= n // pieces are of In
	}
	return bytes / 5
}

// rooted draws the root from what else there is.
func rooted(f func(Args) (*Plan, error)) func(Args) (*Plan, error) {
	return func(a Args) (*Plan, error) {
		if a.Ranks > 0 {
			a.Root = int(a.Count+uint64(a.Type)) % a.Ranks
		}
		return f(a)
	}
}

func peer(f func(Args) (*Plan, error)) func(Args) (*Plan, error) {
	return func(a Args) (*Plan, error) { a.Peer = true; return f(a) }
}

// transfers is a batch of two transfers a rank, of unequal lengths, one of them
// to itself where the draw has it so, and some of them direct.
func transfers(a Args) (*Plan, error) {
	size := uint64(a.Type.Size())
	s := SendRecvArgs{Ranks: a.Ranks, Type: a.Type, Chunk: a.Chunk, Slots: a.Slots, HostBudget: a.HostBudget}
	if a.Count > math.MaxInt64/16/8 {
		return nil, fmt.Errorf("more than memory can hold")
	}
	for r := range a.Ranks {
		s.Transfers = append(s.Transfers,
			Transfer{From: r, To: (r + 1) % a.Ranks, Bytes: a.Count * size},
			Transfer{From: r, To: (r*5 + 2) % a.Ranks, Bytes: a.Count / 2 * size, Peer: r%3 == 1})
	}
	return SendRecv(s)
}

// variants calls f for every rank count, in place or not.
func (al algorithm) variants(ranks []int, f func(ranks int, inPlace bool)) {
	if al.ranks > 0 {
		ranks = []int{al.ranks}
	}
	for _, n := range ranks {
		f(n, false)
		if al.inPlace {
			f(n, true)
		}
	}
}

// inputs makes every rank's In: small integers of the type, so that sums and
// products stay finite, with some special values where NaN has one answer.
func inputs(p *Plan, rng *rand.Rand) [][]byte {
	ins := make([][]byte, p.buffers())
	for r, n := range p.InBytes {
		ins[r] = make([]byte, n)
		if !p.folds() || !p.Type.Float() || p.Reduction == dtype.Min || p.Reduction == dtype.Max {
			fill(ins[r], rng)
			continue
		}
		for at := 0; at < int(n); at += p.Type.Size() {
			x := (rng.Float64() - 0.5) * 4
			put(ins[r][at:], p.Type, x)
		}
	}
	return ins
}

// put writes a finite float of the type.
func put(b []byte, t dtype.Type, x float64) {
	switch t {
	case dtype.Float64:
		bits := math.Float64bits(x)
		for i := range 8 {
			b[i] = byte(bits >> (8 * i))
		}
	case dtype.Float32:
		bits := math.Float32bits(float32(x))
		for i := range 4 {
			b[i] = byte(bits >> (8 * i))
		}
	case dtype.Float16:
		bits := dtype.Float16FromFloat32(float32(x))
		b[0], b[1] = byte(bits), byte(bits>>8)
	case dtype.BFloat16:
		bits := dtype.BFloat16FromFloat32(float32(x))
		b[0], b[1] = byte(bits), byte(bits>>8)
	}
}

// expected is what every Out must hold.
func expected(t *testing.T, p *Plan, ins [][]byte) [][]byte {
	t.Helper()
	outs := make([][]byte, p.buffers())
	switch p.Op {
	case "copy":
		outs[p.Ranks-1] = ins[0]
	case "all_gather":
		all := bytes.Join(ins, nil)
		for r := range outs {
			outs[r] = all
		}
	case "send_recv":
		copy(outs, ins)
	case "broadcast":
		for r := range outs {
			outs[r] = ins[p.Root]
		}
	case "all_to_all":
		shard := len(ins[0]) / p.Ranks
		for r := range outs {
			for q := range ins {
				outs[r] = append(outs[r], ins[q][r*shard:][:shard]...)
			}
		}
	case "all_reduce", "reduce", "reduce_scatter":
		var order []Fold
		if p.InBytes[0] > 0 {
			var err error
			order, err = FoldOrder(p)
			require.NoError(t, err)
		}
		res := Reference(ins, p.Type, p.Reduction, order)
		for r := range outs {
			outs[r] = res
			if p.Op == "reduce_scatter" {
				outs[r] = res[uint64(r)*p.OutBytes[r]:][:p.OutBytes[r]]
			}
			if p.OutBytes[r] == 0 {
				outs[r] = nil
			}
		}
	}
	return outs
}

// runs executes a plan in several orders and compares every byte.
func runs(t *testing.T, p *Plan, rng *rand.Rand, orders int) {
	t.Helper()
	ins := inputs(p, rng)
	want := expected(t, p, ins)
	for k := range orders {
		m := NewMemory(p, ins, rng)
		order := rng
		if k == 0 {
			order = nil
		}
		require.NoError(t, Run(p, m, order))
		for r := range want {
			if !bytes.Equal(want[r], m.Out[r]) {
				require.Failf(t, "wrong bytes", "%s %s, buffer %d of %d, order %d: first at %d of %d",
					p.Op, p.Algorithm, r, len(want), k, firstDifference(want[r], m.Out[r]), len(want[r]))
			}
			if !p.InPlace || p.OutBytes[r] == 0 {
				require.True(t, bytes.Equal(ins[r], m.In[r]), "In of rank %d was written", r)
			}
		}
	}
}

func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// sound checks a plan against its budgets and its waits against its After.
func sound(t *testing.T, a Args, p *Plan) {
	t.Helper()
	host, scratch := a.HostBudget, a.ScratchBudget
	if host == 0 {
		host = math.MaxUint64
	}
	if scratch == 0 {
		scratch = math.MaxUint64
	}
	require.NoError(t, CheckBudget(p, host, scratch), "%+v", a)
}

// everyRank is the numbers of ranks to try on the k-th algorithm: most of 1 to
// 16, the greater ones on every other.
func everyRank(k int) []int {
	if !thorough {
		return []int{1, 2, 3 + k%3, 8}
	}
	var ns []int
	for n := 1; n <= 16; n++ {
		if n < 6 || (n+k)%4 == 0 {
			ns = append(ns, n)
		}
	}
	return ns
}

var counts = []uint64{0, 1, 2, 3, 7, 15, 16, 17, 255, 1000, 4096, 65537}

// some is a third of the counts, another one from one number of ranks to the
// next, and two of them always.
func some(ranks int) []uint64 {
	var cs []uint64
	for i, c := range counts {
		if (i+ranks)%3 == 0 || c == 17 || c == 1000 {
			cs = append(cs, c)
		}
	}
	return cs
}

func TestPlansAreSound(t *testing.T) {
	k := 0
	for i, al := range algorithms {
		t.Run(al.name, func(t *testing.T) {
			al.variants(everyRank(i), func(ranks int, inPlace bool) {
				for _, count := range append(some(ranks), 1<<20+3) {
					// Each case takes the next type and reduction; the numbers
					// have no common factor with those of the loops.
					k++
					a := Args{Ranks: ranks, Count: count, Type: dtype.Types[k*7%len(dtype.Types)], Op: dtype.Ops[k*3%len(dtype.Ops)], InPlace: inPlace, Block: k%2 == 0, Share: k / 2 % 2 * ranks}
					p, err := al.make(a)
					require.NoError(t, err, "%+v", a)
					sound(t, a, p)
					if count != 17 && count != 1000 && count != 1<<20+3 {
						continue
					}
					// About five pieces a shard, through three slots.
					a.Chunk = al.fifth(a)
					p, err = al.make(a)
					require.NoError(t, err, "%+v", a)
					sound(t, a, p)
				}
			})
		})
	}
}

func TestPlansMoveTheRightBytes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	k := 0
	for i, al := range algorithms {
		t.Run(al.name, func(t *testing.T) {
			al.variants(everyRank(i), func(ranks int, inPlace bool) {
				for _, count := range some(ranks) {
					if count > 1000 {
						continue
					}
					k++
					a := Args{
						Ranks: ranks, Count: count, Type: dtype.Types[k%len(dtype.Types)], Op: dtype.Ops[k/3%len(dtype.Ops)], InPlace: inPlace, Block: k%5 > 1, Share: k / 2 % 2 * ranks,
						Chunk: []uint64{16, 48, 256, 0}[k%4], Slots: 2 + k%3,
					}
					if a.Chunk > 0 { // at most five pieces, or the ring has thousands of steps
						a.Chunk = max(16, a.Chunk/uint64(ranks), al.fifth(a))
					}
					p, err := al.make(a)
					require.NoError(t, err, "%+v", a)
					runs(t, p, rng, 2)
				}
			})
		})
	}
}

// TestEveryTypeAndReduction runs each with partial results that are folded and
// held in turn, and with budgets that force every slot to be used again.
func TestEveryTypeAndReduction(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for _, ty := range dtype.Types {
		for _, op := range dtype.Ops {
			for _, ranks := range []int{2, 3, 5} {
				if !thorough && ranks != 2+int(ty+dtype.Type(op))%2 {
					continue
				}
				for _, f := range []func(Args) (*Plan, error){
					RingAllReduce, RingReduceScatter, DirectAllReduce, DirectReduceScatter, rooted(DirectReduce), peer(DirectAllReduce),
				} {
					a := Args{
						Ranks: ranks, Count: 1003, Type: ty, Op: op, InPlace: rng.IntN(2) == 0, ZeroCopy: rng.IntN(2) == 0, Block: rng.IntN(2) == 0, Share: rng.IntN(2) * ranks,
						Slots: 3, HostBudget: 6 * 1024, ScratchBudget: 5 * 1024,
					}
					if rng.IntN(2) == 0 && ranks < 5 { // some pieces less
						a.HostBudget, a.ScratchBudget = 3*256, 5*256
					}
					p, err := f(a)
					require.NoError(t, err)
					sound(t, a, p)
					runs(t, p, rng, 2)
				}
			}
		}
	}
}

func TestLargePlans(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	count, chunk := uint64(1<<19+3), uint64(1<<16)
	if !thorough {
		count, chunk = 1<<14+3, 1<<12
	}
	for i, al := range algorithms {
		a := Args{
			Ranks: 3, Count: count, Type: []dtype.Type{dtype.BFloat16, dtype.Float32}[i%2], Op: dtype.Sum, InPlace: al.inPlace,
			Chunk: chunk, HostBudget: 4 * chunk, ScratchBudget: 4 * chunk,
		}
		if al.ranks > 0 {
			a.Ranks = al.ranks
		}
		p, err := al.make(a)
		require.NoError(t, err)
		sound(t, a, p)
		runs(t, p, rng, 2)
	}
}

// Pipelines of few segments have fewer slots of results than longer ones, and their
// first segments are short ones, so that there are more of them than rows that hold
// the buffer.
func TestSlotsOfResultsHoldPairs(t *testing.T) {
	const host, scratch = 64 << 20, 64 << 20
	for _, c := range []struct {
		ranks int
		chunk uint64
	}{{3, 4 << 20}, {4, 2 << 20}, {5, 8 << 20}} {
		for sixteenths := uint64(8); sixteenths <= 7*16; sixteenths += 4 {
			a := Args{Ranks: c.ranks, Count: sixteenths*c.chunk/64 + sixteenths%3, Type: dtype.Float32, Chunk: c.chunk, HostBudget: host, ScratchBudget: scratch}
			for _, plan := range []func(Args) (*Plan, error){DirectAllReduce, DirectReduce} {
				p, err := plan(a)
				require.NoError(t, err)
				require.NoError(t, CheckBudget(p, host, scratch), "%+v", a)
			}
		}
	}
}

// TestRandomPlans draws everything at random, tiny budgets among it. A plan
// may be refused only for its budget.
func TestRandomPlans(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	refused, made := 0, 0
	cases := 800
	if !thorough {
		cases = 100
	}
	for range cases {
		al := algorithms[rng.IntN(len(algorithms))]
		a := Args{
			Ranks: 1 + rng.IntN(16), Count: rng.Uint64N(1 << rng.IntN(10)),
			Type: dtype.Types[rng.IntN(len(dtype.Types))], Op: dtype.Ops[rng.IntN(len(dtype.Ops))],
			InPlace: al.inPlace && rng.IntN(2) == 0, Block: rng.IntN(2) == 0, Share: rng.IntN(3),
			Chunk: rng.Uint64N(1 << rng.IntN(13)), Slots: rng.IntN(7),
			HostBudget: rng.Uint64N(1 << rng.IntN(13)), ScratchBudget: rng.Uint64N(1 << rng.IntN(13)),
		}
		if al.ranks > 0 {
			a.Ranks = al.ranks
		}
		p, err := al.make(a)
		if err != nil {
			require.ErrorContains(t, err, "budget too small")
			host, scratch := uint64(2*quantum), uint64(0)
			if al.reduces {
				// A piece that arrives and three that are held, at most.
				scratch = 4 * quantum
			}
			if others := uint64(a.Ranks - 1); al.direct() || strings.HasSuffix(al.name, " peer") {
				// Two rows a sender, results posted and held.
				host, scratch = (2*others+3)*quantum, (2*others+1)*quantum
			}
			tight := a.HostBudget > 0 && a.HostBudget < host || a.ScratchBudget > 0 && a.ScratchBudget < scratch
			require.True(t, tight, "%+v: %v", a, err)
			refused++
			continue
		}
		made++
		sound(t, a, p)
		runs(t, p, rng, 2)
	}
	require.Greater(t, made, cases/2)
	require.Positive(t, refused)
}

// TestManyRanks is beyond what one fold of all inputs could take.
func TestManyRanks(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for i, ty := range []dtype.Type{dtype.Float16, dtype.Int8, dtype.Float64} {
		for k, al := range algorithms[3:] {
			if (i+k)%3 > 0 && k > 1 || !thorough && i > 0 {
				continue
			}
			a := Args{Ranks: 33, Count: 100, Type: ty, Op: dtype.Avg, Chunk: 64}
			p, err := al.make(a)
			if al.reduces && !strings.Contains(al.name, "ring") {
				require.ErrorContains(t, err, "33 ranks, but one fold takes 16")
				continue
			}
			require.NoError(t, err)
			sound(t, a, p)
			runs(t, p, rng, 2)
		}
	}
}

func TestNothingToDo(t *testing.T) {
	for _, al := range algorithms {
		al.variants([]int{1, 2, 5}, func(ranks int, inPlace bool) {
			p, err := al.make(Args{Ranks: ranks, Type: dtype.Int32, InPlace: inPlace})
			require.NoError(t, err)
			require.Empty(t, p.Steps)
			require.NoError(t, Check(p))
		})
	}
	for _, al := range algorithms[3:] {
		if al.inPlace {
			p, err := al.make(Args{Ranks: 1, Count: 10, Type: dtype.Int32, InPlace: true})
			require.NoError(t, err)
			require.Empty(t, p.Steps)
		}
		if al.name == "send_recv" {
			continue
		}
		p, err := al.make(Args{Ranks: 1, Count: 10, Type: dtype.Int32})
		require.NoError(t, err)
		require.Len(t, p.Steps, 1)
		require.Equal(t, LocalCopy, p.Steps[0].Kind)
		require.Zero(t, p.HostBytes[0])
	}
}

// TestShape holds what an executor and the cost models count on.
func TestShape(t *testing.T) {
	p, err := Copy(CopyArgs{Bytes: 100, Chunk: 4096})
	require.NoError(t, err)
	require.Len(t, p.Steps, 2)
	require.Equal(t, []uint64{112, 0}, p.HostBytes, "a short copy takes one short slot")

	p, err = Copy(CopyArgs{Bytes: 10*4096 + 1, Chunk: 4096, Slots: 3})
	require.NoError(t, err)
	require.Len(t, p.Steps, 22)
	require.Equal(t, []uint64{3 * 4096, 0}, p.HostBytes)
	for i, s := range p.Steps {
		c := i / 2
		require.Equal(t, i%2, s.Rank)
		switch {
		case i%2 == 1:
			require.Equal(t, []int{i - 1}, s.After, "the way in follows the way out")
		case c >= 3:
			require.Equal(t, []int{2*(c-3) + 1}, s.After, "a slot is filled again when it is empty")
		default:
			require.Empty(t, s.After)
		}
	}

	// A slot of the direct all_gather waits for all its readers: of few ranks
	// each for each, of more through a join.
	for ranks, waits := range map[int]int{3: 2, 5: 1} {
		p, err = DirectAllGather(Args{Ranks: ranks, Count: 1000, Type: dtype.Int8, Chunk: 112, Slots: 2})
		require.NoError(t, err)
		reused := 0
		for _, s := range p.Steps {
			if s.Kind != ToHost || s.Src[0].Off < 2*112 {
				continue
			}
			reused++
			require.Len(t, s.After, waits)
			for _, a := range s.After {
				if waits > 1 {
					require.Equal(t, FromHost, p.Steps[a].Kind)
					require.Equal(t, s.Dst.Off, p.Steps[a].Src[0].Off)
					require.Equal(t, s.Rank, p.Steps[a].Src[0].Rank)
					continue
				}
				require.Equal(t, Join, p.Steps[a].Kind)
				require.Len(t, p.Steps[a].After, ranks)
			}
		}
		require.Equal(t, ranks*(9-2), reused)
	}
}

// TestTraffic holds the bytes on each link to the algorithms' arithmetic.
func TestTraffic(t *testing.T) {
	const n, count = 4, 4 * 1024
	s := uint64(count * 4)
	ring, err := RingAllReduce(Args{Ranks: n, Count: count, Type: dtype.Float32, Chunk: 1024})
	require.NoError(t, err)
	zero, err := RingAllReduce(Args{Ranks: n, Count: count, Type: dtype.Float32, Chunk: 1024, ZeroCopy: true})
	require.NoError(t, err)
	for _, p := range []*Plan{ring, zero} {
		d := Describe(p)
		for r := range n {
			require.Equal(t, 2*(n-1)*s/n, d.D2H[r])
			require.Equal(t, 2*(n-1)*s/n, d.H2D[r])
			require.Zero(t, d.Local[r])
			require.Zero(t, d.Peer[r])
		}
		require.Equal(t, len(p.Steps), d.Steps)
		require.Equal(t, d.Steps, d.Copies+d.Reductions)
		require.Equal(t, n*(n-1)*4, d.Reductions)
	}
	require.Zero(t, zero.ScratchBytes[0])
	require.EqualValues(t, 1024, ring.ScratchBytes[0])

	// 16-bit floats go once around as float32 and once as they are, but the
	// first step sends inputs.
	half, err := RingAllReduce(Args{Ranks: n, Count: count, Type: dtype.Float16, Chunk: 1024})
	require.NoError(t, err)
	shard := uint64(count * 2 / n)
	for _, got := range Describe(half).D2H {
		require.Equal(t, shard+(n-2)*2*shard+(n-1)*shard, got)
	}

	for name, want := range map[string]uint64{"ring": (n - 1) * s, "direct": s} {
		f := RingAllGather
		if name == "direct" {
			f = DirectAllGather
		}
		p, err := f(Args{Ranks: n, Count: count, Type: dtype.Float32, Chunk: 1024})
		require.NoError(t, err)
		d := Describe(p)
		require.Equal(t, name, d.Algorithm)
		for r := range n {
			require.Equal(t, want, d.D2H[r], name)
			require.Equal(t, (n-1)*s, d.H2D[r], name)
			require.Equal(t, s, d.Local[r], name)
		}
	}

	// What passes through host memory once, in units of a rank's Count.
	for _, c := range []struct {
		f             func(Args) (*Plan, error)
		root          bool // or another
		out, in, self uint64
	}{
		{DirectAllReduce, true, s, 2 * (n - 1) * s / n, 0},
		{DirectReduceScatter, true, (n - 1) * s, (n - 1) * s, 0},
		{DirectAllToAll, true, (n - 1) * s, (n - 1) * s, s},
		{DirectBroadcast, true, s, 0, s},
		{DirectBroadcast, false, 0, s, 0},
		{DirectReduce, true, (n - 1) * s / n, 2 * (n - 1) * s / n, 0},
		{DirectReduce, false, s, (n - 1) * s / n, 0},
	} {
		p, err := c.f(Args{Ranks: n, Count: count, Type: dtype.Float32, Chunk: 4096, Root: 2})
		require.NoError(t, err)
		d := Describe(p)
		for r := range n {
			if c.root == (r == 2) || p.Op != "broadcast" && p.Op != "reduce" {
				require.Equal(t, [3]uint64{c.out, c.in, c.self}, [3]uint64{d.D2H[r], d.H2D[r], d.Local[r]}, "%s, rank %d", p.Op, r)
			}
		}
	}
	// Directly, nothing goes through the host.
	for _, al := range algorithms {
		if !strings.HasSuffix(al.name, " peer") {
			continue
		}
		p, err := al.make(Args{Ranks: n, Count: count, Type: dtype.Float32, Chunk: 4096})
		require.NoError(t, err)
		d := Describe(p)
		require.Equal(t, make([]uint64, n), d.D2H)
		require.Equal(t, make([]uint64, n), d.Host)
		require.Equal(t, len(p.Steps), d.Copies+d.Reductions+d.Joins)
		require.Equal(t, d.Copies+d.Reductions+d.Waits+d.Records, d.Calls)
		for r := range n {
			require.LessOrEqual(t, d.Peer[r], 3*s, "%s", al.name)
		}
	}

	p, err := Direct(CopyArgs{Bytes: 100})
	require.NoError(t, err)
	require.Equal(t, []uint64{100, 0}, Describe(p).Peer)
	p, err = Copy(CopyArgs{Bytes: 1000, Chunk: 112})
	require.NoError(t, err)
	d := Describe(p)
	require.Equal(t, []uint64{1000, 0}, d.D2H)
	require.Equal(t, []uint64{0, 1000}, d.H2D)
	require.Equal(t, 9+6, d.Waits)
	require.Equal(t, 9+6, d.Records)
}

// TestLanesOverlap runs a plan on a clock: each copy and fold takes its bytes'
// time, folds a tenth, and a lane waits as the plan says. A ring with enough
// pieces must keep the links busy, so that it takes little more than the bytes
// that the busiest lane must carry.
func TestLanesOverlap(t *testing.T) {
	for _, c := range []struct {
		name string
		al   int
		args Args
	}{
		{"copy", 0, Args{Count: 1 << 20, Type: dtype.Uint8, Chunk: 1 << 14}},
		{"ring", 3, Args{Ranks: 2, Count: 1 << 20, Type: dtype.Float32, Chunk: 1 << 15}},
		{"ring", 3, Args{Ranks: 8, Count: 1 << 20, Type: dtype.Float32, Chunk: 1 << 15}},
		{"ring, wide", 3, Args{Ranks: 4, Count: 1 << 20, Type: dtype.BFloat16, Chunk: 1 << 15}},
		{"ring, wide, least scratch", 3, Args{Ranks: 4, Count: 1 << 20, Type: dtype.BFloat16, Chunk: 1 << 15, ScratchBudget: 4 << 15}},
		{"zero copy", 4, Args{Ranks: 4, Count: 1 << 20, Type: dtype.Float32, Chunk: 1 << 15}},
		{"gather ring", 5, Args{Ranks: 4, Count: 1 << 18, Type: dtype.Float32, Chunk: 1 << 15}},
		{"gather direct", 6, Args{Ranks: 4, Count: 1 << 18, Type: dtype.Float32, Chunk: 1 << 15}},
	} {
		p, err := algorithms[c.al].make(c.args)
		require.NoError(t, err)
		waits := p.Waits()
		end := make([]uint64, len(p.Steps))
		lane := make([]uint64, p.Ranks*Lanes)
		work := make([]uint64, p.Ranks*Lanes)
		for i := range p.Steps {
			s := &p.Steps[i]
			q := s.queue()
			start := lane[q]
			for _, w := range waits[i] {
				start = max(start, end[w])
			}
			cost := s.Dst.Len
			if s.Kind == Reduce || s.Kind == LocalCopy {
				cost /= 10
			}
			work[q] += cost
			end[i] = start + cost
			lane[q] = end[i]
		}
		ratio := float64(slices.Max(work)) / float64(slices.Max(end))
		require.Greater(t, ratio, 0.93, "%s, %d ranks", c.name, p.Ranks)
	}
}

// TestTransfers is of batches that the other tests do not draw.
func TestTransfers(t *testing.T) {
	rng := rand.New(rand.NewPCG(12, 12))
	for range 60 {
		a := SendRecvArgs{Ranks: 1 + rng.IntN(6), Type: dtype.Types[rng.IntN(len(dtype.Types))], Chunk: 16 * rng.Uint64N(9), Slots: rng.IntN(4)}
		for range rng.IntN(12) {
			a.Transfers = append(a.Transfers, Transfer{
				From: rng.IntN(a.Ranks), To: rng.IntN(a.Ranks), Bytes: rng.Uint64N(200) * uint64(a.Type.Size()), Peer: rng.IntN(4) == 0,
			})
		}
		if rng.IntN(2) == 0 {
			a.HostBudget = 64
		}
		p, err := SendRecv(a)
		require.NoError(t, err)
		sound(t, Args{HostBudget: a.HostBudget}, p)
		runs(t, p, rng, 2)
	}
	p, err := SendRecv(SendRecvArgs{Ranks: 3, Transfers: []Transfer{{0, 1, 1 << 20, false}, {0, 2, 1 << 19, false}, {1, 1, 10, false}}, Chunk: 1 << 18})
	require.NoError(t, err)
	d := Describe(p)
	require.Equal(t, []uint64{3 << 19, 0, 0}, d.D2H)
	require.Equal(t, []uint64{0, 1 << 20, 1 << 19}, d.H2D)
	require.Equal(t, []uint64{0, 10, 0}, d.Local)
	require.Equal(t, []uint64{3 << 18, 0, 0}, d.Host, "one slot more than the rank has transfers")
	// Pieces take turns, so both receivers are busy.
	require.Equal(t, 0, p.Steps[0].Src[0].Buffer)
	require.Equal(t, 1, p.Steps[2].Src[0].Buffer)
}

func TestRefusals(t *testing.T) {
	bad := func(want string, f func() (*Plan, error)) {
		t.Helper()
		_, err := f()
		require.ErrorContains(t, err, want)
	}
	for _, al := range algorithms[3:] {
		bad("0 ranks", func() (*Plan, error) { return al.make(Args{Count: 1, Type: dtype.Int8}) })
		bad("-1 slots", func() (*Plan, error) { return al.make(Args{Ranks: 2, Count: 1, Type: dtype.Int8, Slots: -1}) })
		bad("more than memory", func() (*Plan, error) { return al.make(Args{Ranks: 16, Count: 1 << 61, Type: dtype.Float64}) })
		if al.name != "send_recv" {
			bad("element type", func() (*Plan, error) { return al.make(Args{Ranks: 2, Count: 1}) })
			bad("reduction", func() (*Plan, error) { return al.make(Args{Ranks: 2, Count: 1, Type: dtype.Int8, Op: 9}) })
			bad("root 2", func() (*Plan, error) {
				if strings.HasPrefix(al.name, "reduce ") || strings.HasPrefix(al.name, "broadcast") {
					return DirectReduce(Args{Ranks: 2, Count: 1, Type: dtype.Int8, Root: 2})
				}
				return al.make(Args{Ranks: 2, Count: 1, Type: dtype.Int8, Root: 2})
			})
		}
		budget := Args{Ranks: 3, Count: 1000, Type: dtype.Int8, HostBudget: 31}
		if strings.HasSuffix(al.name, " peer") {
			budget = Args{Ranks: 3, Count: 1000, Type: dtype.Int8, ScratchBudget: 63}
			if !al.reduces {
				continue
			}
		}
		bad("budget too small", func() (*Plan, error) { return al.make(budget) })
		budget = Args{Ranks: 3, Count: 1 << 30, Type: dtype.Float64, HostBudget: 32 * budget.HostBudget, ScratchBudget: 16 * budget.ScratchBudget}
		bad("would take", func() (*Plan, error) { return al.make(budget) })
	}
	bad("at least 32 bytes of host memory", func() (*Plan, error) {
		return RingAllReduce(Args{Ranks: 3, Count: 1000, Type: dtype.Int8, HostBudget: 31})
	})
	bad("at least 160 bytes of host memory and 64 bytes of device scratch", func() (*Plan, error) {
		return DirectAllReduce(Args{Ranks: 3, Count: 1000, Type: dtype.Int8, HostBudget: 159})
	})
	bad("in place", func() (*Plan, error) {
		return DirectAllToAll(Args{Ranks: 2, Count: 1, Type: dtype.Int8, InPlace: true})
	})
	bad("transfer 1 is from rank 0 to rank 2", func() (*Plan, error) {
		return SendRecv(SendRecvArgs{Ranks: 2, Transfers: []Transfer{{}, {To: 2}}})
	})
	bad("7 bytes are not", func() (*Plan, error) {
		return SendRecv(SendRecvArgs{Ranks: 2, Transfers: []Transfer{{Bytes: 7}}, Type: dtype.Float16})
	})
	bad("more than memory", func() (*Plan, error) {
		return SendRecv(SendRecvArgs{Ranks: 2, Transfers: []Transfer{{Bytes: 1 << 63}}})
	})
	bad("not a whole number", func() (*Plan, error) { return Copy(CopyArgs{Bytes: 6, Type: dtype.Float32}) })
	bad("element type", func() (*Plan, error) { return Local(CopyArgs{Bytes: 6, Type: 77}) })
	bad("-3 slots", func() (*Plan, error) { return Copy(CopyArgs{Bytes: 6, Slots: -3}) })
	bad("host memory", func() (*Plan, error) { return Copy(CopyArgs{Bytes: 100, HostBudget: 16}) })
	bad("scratch", func() (*Plan, error) {
		return RingAllReduce(Args{Ranks: 3, Count: 1000, Type: dtype.Float16, ScratchBudget: 63})
	})
}

func TestShards(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	for range 2000 {
		size := uint64(1) << rng.IntN(4)
		n := 1 + rng.IntN(20)
		count := rng.Uint64N(1 << rng.IntN(50))
		b := shards(count, n, size)
		require.Len(t, b, n+1)
		require.Zero(t, b[0])
		require.Equal(t, count, b[n])
		for r := range n {
			require.LessOrEqual(t, b[r], b[r+1])
			require.LessOrEqual(t, b[r+1]-b[r], b[1])
			require.LessOrEqual(t, b[1], count/uint64(n)+2*quantum/size)
			if b[r] != count {
				require.Zero(t, b[r]*size%quantum)
			}
		}
	}
	b := shards(math.MaxInt64/8, 16, 8)
	require.Equal(t, uint64(math.MaxInt64/8), b[16])
	require.True(t, slices.IsSorted(b))
	require.Equal(t, []uint64{0, 8, 12, 16, 17}, shards(17, 4, 4))
}

func BenchmarkPlan(b *testing.B) {
	for _, n := range []int{2, 8} {
		a := Args{Ranks: n, Count: 256 << 20, Type: dtype.Float32, Chunk: 4 << 20}
		b.Run(fmt.Sprintf("ring/%d", n), func(b *testing.B) {
			for b.Loop() {
				p, _ := RingAllReduce(a)
				b.ReportMetric(float64(len(p.Steps)), "steps")
			}
		})
		p, _ := RingAllReduce(a)
		b.Run(fmt.Sprintf("check/%d", n), func(b *testing.B) {
			for b.Loop() {
				if err := Check(p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
