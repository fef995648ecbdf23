// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/gp/internal/plan"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
)

// roomy is pinned memory with room for areas.
const roomy = 12 << 20

// An operation is a collective in one of its forms. Count is in elements: see
// plan.Args.
type operation struct {
	op      string
	alg     gp.Algorithm
	typ     gp.Type
	red     gp.Op
	n       int
	root    int
	chunk   int
	inPlace bool
}

func (c operation) String() string {
	return fmt.Sprintf("%s %q %v %v of %d, root %d, chunk %d, in place %t", c.op, c.alg, c.typ, c.red, c.n, c.root, c.chunk, c.inPlace)
}

func (c operation) reduces() bool {
	return c.op == "all_reduce" || c.op == "reduce_scatter" || c.op == "reduce"
}

// parts are the shares of n elements of a destination and a source.
func (c operation) parts(ranks int) (dst, src int) {
	switch c.op {
	case "all_gather":
		return ranks, 1
	case "reduce_scatter":
		return 1, ranks
	case "all_to_all":
		return ranks, ranks
	}
	return 1, 1
}

// foldedInOrder is a reduction on the host, in the order of the ranks or, of a
// ring, of the plan.
func foldedInOrder(t testing.TB, c operation, ins [][]byte) []byte {
	t.Helper()
	a := plan.Args{Ranks: len(ins), Count: uint64(c.n), Type: c.typ, Op: c.red}
	order := []plan.Fold{{Len: uint64(len(ins[0]))}}
	for r := range ins {
		order[0].Ranks = append(order[0].Ranks, r)
	}
	if c.alg == gp.AlgorithmRing || c.alg == gp.AlgorithmRingZeroCopy {
		plans := map[string]func(plan.Args) (*plan.Plan, error){"all_reduce": plan.RingAllReduce, "reduce_scatter": plan.RingReduceScatter}
		p, err := plans[c.op](a)
		require.NoError(t, err)
		if len(ins) > 1 && c.n > 0 {
			order, err = plan.FoldOrder(p)
			require.NoError(t, err)
		}
	}
	return plan.Reference(ins, c.typ, c.red, order)
}

// results are what each rank's destination must hold.
func (c operation) results(t testing.TB, ins [][]byte) (outs [][]byte) {
	t.Helper()
	ranks, part := len(ins), c.n*c.typ.Size()
	shard := func(b []byte, r int) []byte { return b[r*part : (r+1)*part] }
	var all []byte
	if c.reduces() {
		all = foldedInOrder(t, c, ins)
	}
	for r := range ranks {
		switch c.op {
		case "all_reduce":
			outs = append(outs, all)
		case "all_gather":
			outs = append(outs, bytes.Join(ins, nil))
		case "reduce_scatter":
			outs = append(outs, shard(all, r))
		case "broadcast":
			outs = append(outs, ins[c.root])
		case "reduce":
			outs = append(outs, nil)
			if r == c.root {
				outs[r] = all
			}
		case "all_to_all":
			var out []byte
			for q := range ranks {
				out = append(out, shard(ins[q], r)...)
			}
			outs = append(outs, out)
		}
	}
	return outs
}

// run does the operation on buffers at random places and holds every byte of
// them, and of what surrounds them.
func (f *fields) run(c operation) {
	t, ranks := f.t, len(f.g.Ranks())
	t.Helper()
	size := c.typ.Size()
	dp, sp := c.parts(ranks)
	var ins [][]byte
	for range ranks {
		ins = append(ins, randomElements(f.r, c.typ, c.n*sp))
	}
	dst, src := make([]gp.Buffer, ranks), make([]gp.Buffer, ranks)
	room := func(parts int) []byte { return randomBytes(f.r, (c.n*parts+24)*size) }
	hasIn := func(r int) bool { return c.op != "broadcast" || r == c.root }
	hasOut := func(r int) bool { return c.op != "reduce" || r == c.root }
	for r := range ranks {
		if c.inPlace && hasIn(r) && hasOut(r) {
			// The longer of the two holds the shorter, at the rank's part.
			switch {
			case dp > sp:
				long := randomBytes(f.r, c.n*dp*size)
				copy(long[r*c.n*size:], ins[r])
				dst[r] = f.place(0, r, c.typ, long, room(dp))
				src[r] = dst[r].Sub(r*c.n, (r+1)*c.n)
			default:
				src[r] = f.place(0, r, c.typ, ins[r], room(sp))
				dst[r] = src[r]
				if sp > dp {
					dst[r] = src[r].Sub(r*c.n, (r+1)*c.n)
				}
			}
			continue
		}
		if hasIn(r) {
			src[r] = f.place(1, r, c.typ, ins[r], room(sp))
		}
		if hasOut(r) {
			dst[r] = f.place(0, r, c.typ, randomBytes(f.r, c.n*dp*size), room(dp))
		}
	}
	o := f.g.With(gp.CallOptions{Algorithm: c.alg, Chunk: c.chunk})
	var w gp.Work
	var err error
	switch c.op {
	case "all_reduce":
		w, err = o.AllReduceTo(dst, src, c.red)
	case "all_gather":
		w, err = o.AllGather(dst, src)
	case "reduce_scatter":
		w, err = o.ReduceScatter(dst, src, c.red)
	case "broadcast":
		w, err = o.Broadcast(dst, src[c.root])
	case "reduce":
		w, err = o.Reduce(dst[c.root], src, c.red)
	case "all_to_all":
		w, err = o.AllToAll(dst, src)
	}
	require.NoError(t, err, "%v", c)
	if used := gp.Algorithm(w.Algorithm()); used != "none" {
		require.Contains(t, []gp.Algorithm{used, ""}, c.alg)
		c.alg = used
	}
	outs := c.results(t, ins)
	if f.r.IntN(2) == 0 { // else the streams alone order what follows
		require.NoError(t, w.Wait(background), "%v", c)
	}
	red := c.red
	if !c.reduces() {
		red = gp.Min // compared bit by bit
	}
	for r := range ranks {
		switch {
		case c.inPlace && hasIn(r) && hasOut(r) && sp > dp:
			// The rest of a source that is reduced in place is undefined.
			got := make([]byte, dst[r].Bytes())
			require.NoError(t, dst[r].Read(background, got))
			requireElements(t, c.typ, red, outs[r], got, "%v: rank %d", c, r)
			continue
		case hasOut(r):
			requireElements(t, c.typ, red, outs[r], f.result(0, r, dst[r], c.String()), "%v: rank %d", c, r)
		}
		if hasIn(r) && !(c.inPlace && hasOut(r)) {
			requireBytes(t, ins[r], f.result(1, r, src[r], c.String()), "%v: source of rank %d", c, r)
		}
	}
}

// operations are every collective by every algorithm that a group of so many
// ranks can use without P2P.
func operations(ranks int) (cs []operation) {
	for _, k := range []struct {
		op   string
		algs []gp.Algorithm
	}{
		{"all_reduce", []gp.Algorithm{"", gp.AlgorithmRing, gp.AlgorithmRingZeroCopy, gp.AlgorithmDirect, gp.AlgorithmTwoShot, gp.AlgorithmOneShot}},
		{"all_gather", []gp.Algorithm{"", gp.AlgorithmRing, gp.AlgorithmDirect, gp.AlgorithmOneShot}},
		{"reduce_scatter", []gp.Algorithm{"", gp.AlgorithmRing, gp.AlgorithmDirect}},
		{"broadcast", []gp.Algorithm{gp.AlgorithmDirect}},
		{"reduce", []gp.Algorithm{gp.AlgorithmDirect}},
		{"all_to_all", []gp.Algorithm{gp.AlgorithmDirect}},
	} {
		for _, alg := range k.algs {
			if ranks == 1 && (alg == gp.AlgorithmOneShot || alg == gp.AlgorithmTwoShot) {
				continue
			}
			cs = append(cs, operation{op: k.op, alg: alg})
		}
	}
	return cs
}

// TestOperations runs every collective, algorithm, type and reduction at odd
// sizes against the host.
func TestOperations(t *testing.T) {
	gputest.Parallel(t)
	for _, ranks := range []int{1, 2, 3, 4, 5, 8} {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			each(t, func(t *testing.T, d *cuda.Driver) {
				o := options(t, d, ranks)
				o.PinnedBytes = roomy
				g := open(t, o)
				f := newFields(t, g, (4096+64)*8*8)
				chunks := []int{0, 0, 48, 256, 2048}
				for _, c := range operations(ranks) {
					for ti := range allTypes {
						c.typ = allTypes[ti]
						for oi := range allOps {
							if c.red = allOps[oi]; !c.reduces() && oi > 0 {
								break
							}
							// Every type and every reduction comes up with every algorithm, and
							// every pair of them with some.
							if (ti+oi+ranks)%3 != 0 && ranks > 2 || fewer && f.r.IntN(6) != 0 {
								continue
							}
							c.n = counts[f.r.IntN(len(counts))]
							if ranks > 4 {
								c.n = counts[f.r.IntN(len(counts)-1)]
							}
							c.root = f.r.IntN(ranks)
							c.chunk = chunks[f.r.IntN(len(chunks))]
							if c.n == 4096 && c.chunk > 0 { // thousands of steps are enough elsewhere
								c.chunk = 2048
							}
							c.inPlace = c.op != "all_to_all" && f.r.IntN(2) == 0
							f.run(c)
						}
					}
				}
				require.NoError(t, g.Err())
			})
		})
	}
}

// TestSixteenRanks: the most ranks there are, on GPUs that share, on the simulator
// two to a GPU. On one GPU their kernels may not run at once: then there are none
// that wait for each other, and no other algorithm minds.
func TestSixteenRanks(t *testing.T) {
	gputest.Parallel(t)
	const ranks = gp.MaxRanks
	each(t, func(t *testing.T, d *cuda.Driver) {
		if d.Modelled() {
			d = machineOf(t, "8x4090")
		}
		o := options(t, d, ranks)
		o.PinnedBytes = roomy
		g := open(t, o)
		const most = 300
		f := newFields(t, g, (most+64)*8*ranks)
		for i, c := range operations(ranks) {
			for round := range 2 {
				c.typ, c.red = allTypes[(i*3+round)%len(allTypes)], allOps[(i+round)%len(allOps)]
				c.n, c.root, c.chunk = []int{most - 1, 1}[round], 15-i, []int{1024, 0}[round]
				c.inPlace = c.op != "all_to_all" && round == 0
				if c.alg == gp.AlgorithmOneShot || c.alg == gp.AlgorithmTwoShot {
					small := make([]gp.Buffer, ranks)
					for r := range small {
						small[r] = f.mem[0][r].Sub(0, ranks)
					}
					if _, err := g.With(gp.CallOptions{Algorithm: gp.AlgorithmOneShot, Explain: &gp.Explanation{}}).AllReduce(small, gp.Max); err != nil && !d.Modelled() {
						t.Logf("%s: %v", c.alg, err)
						continue
					}
				}
				f.run(c)
			}
		}
		require.NoError(t, g.Err())
	})
}
