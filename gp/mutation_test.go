// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// A course is calls back to back on a group whose pinned memory is so small that
// they take each other's regions. Each call has buffers and streams of its own,
// so that nothing orders two calls but the group; and each stream that a call
// is given has just written its buffer, and writes it again behind the call.
type course struct {
	name    string
	machine string
	ranks   int // round robin over the machine's GPUs
	calls   []courseCall
	pinned  int64 // the budget, if it is not small
	// loose is how many waits within a call nothing in the course needs: what they
	// are for has not been used before, or is not used again.
	loose int

	spec sim.Spec
}

type courseCall struct {
	op       string // "copy", or a collective's
	n        int    // bytes a source
	chunk    int
	alg      gp.Algorithm
	from, to int      // of a copy; of a broadcast or reduce, from is the root
	pairs    [][2]int // of a send_recv, sources and destinations of n bytes each
	inPlace  bool     // of a collective
	one      bool     // both sides on one stream
	legacy   bool     // the destination on the legacy default stream
	before   bool     // a stream beside is put behind the call by Work.Before
	wide     bool     // of bfloat16, whose partial results take double the space; else of bytes
	whole    bool     // none of its waits is left out: it is there for what it leaves behind
}

// exchanges tells whether the call is kernels that wait for each other.
func (c courseCall) exchanges() bool {
	return c.alg == gp.AlgorithmOneShot || c.alg == gp.AlgorithmTwoShot
}

// shares are the bytes of a rank's destination and source.
func (c courseCall) shares(ranks int) (dst, src int) {
	switch c.op {
	case "all_gather":
		return c.n * ranks, c.n
	case "reduce_scatter":
		return c.n / ranks, c.n
	}
	return c.n, c.n
}

// blank is the most bytes that stripes of a buffer take.
func (c course) blank() (n int) {
	for _, k := range c.calls {
		dst, src := k.shares(c.ranks)
		n = max(n, dst/stripes, src/stripes)
	}
	return max(n, padBytes)
}

// times is the same call so many times.
func times(n int, c courseCall) (cs []courseCall) {
	for range n {
		cs = append(cs, c)
	}
	return cs
}

func courses() []course {
	const kib = 1 << 10
	const room = 10 << 20 // pinned memory with areas
	type c = courseCall
	one := c{op: "copy", n: 600 * kib, chunk: 1 << 20, to: 1}
	chunks := c{op: "copy", n: 900 * kib, chunk: 192 * kib, to: 1}
	with := func(c courseCall, f func(c *courseCall)) courseCall { f(&c); return c }
	back := func(c *courseCall) { c.from, c.to = c.to, c.from }
	oneStream := func(c *courseCall) { c.one = true }
	legacy := func(c *courseCall) { c.legacy = true }
	before := func(c *courseCall) { c.before = true }
	inPlace := func(c *courseCall) { c.inPlace, c.one = true, true }
	to := func(rank int) func(c *courseCall) { return func(c *courseCall) { c.to = rank } }
	cs := []course{
		{name: "copies in one piece", machine: "2x4090", ranks: 2, calls: times(3, one)},
		{name: "copies in pieces", machine: "2x4090", ranks: 2, calls: times(3, chunks)},
		{name: "copies there and back", machine: "2x4090", ranks: 2, calls: []c{one, with(one, back), chunks, with(chunks, back), one, with(chunks, back)}},
		{name: "copies to the default stream", machine: "2x4090", ranks: 2, calls: []c{one, with(chunks, legacy), with(one, legacy)}},
		{name: "copies from one rank to many", machine: "4x4090", ranks: 4, calls: []c{chunks, with(chunks, to(2)), with(one, to(3)), chunks}},
		{name: "copies between ranks of one GPU", machine: "2x4090", ranks: 4, calls: []c{with(chunks, to(2)), with(one, func(c *courseCall) { c.from, c.to = 2, 0 }), with(chunks, to(2))}},
		{name: "copies within a rank", machine: "2x4090", ranks: 2, calls: times(2, c{op: "copy", n: 10_000, from: 1, to: 1})},
		{name: "direct copies", machine: "8x4090-p2p", ranks: 2, calls: []c{{op: "copy", n: 1 << 20, to: 1}, {op: "copy", n: 1 << 20, from: 1}}},
		{name: "copies that others wait for", machine: "2x4090", ranks: 2, calls: []c{with(one, before), with(chunks, before)}},
		{name: "empty calls", machine: "4x4090", ranks: 3, calls: []c{{op: "copy", to: 1}, {op: "all_reduce"}, {op: "copy", from: 2}, {op: "all_gather"}, {op: "all_reduce", inPlace: true}}},
		{name: "empty batches", machine: "4x4090", ranks: 3, calls: []c{{op: "send_recv", pairs: [][2]int{{0, 1}, {2, 1}, {1, 1}}}, {op: "send_recv", pairs: [][2]int{{1, 2}, {0, 2}}}}},
		{name: "all_reduce on ranks that share GPUs", machine: "2x4090", ranks: 3, calls: times(2, c{op: "all_reduce", alg: gp.AlgorithmRing, n: 3 * 192 * kib, chunk: 192 * kib})},
	}
	// Of each algorithm: calls back to back on the callers' streams, until their
	// regions come round again, calls on the lanes, and calls in place.
	const small, large, place = 1, 2, 4
	for _, k := range []struct {
		op  string
		alg gp.Algorithm
		of  [5]int // by ranks
	}{
		{"all_reduce", gp.AlgorithmRing, [5]int{2: small | large, 3: small | place, 4: place}},
		{"all_reduce", gp.AlgorithmRingZeroCopy, [5]int{2: large | place, 3: small}},
		{"all_gather", gp.AlgorithmDirect, [5]int{2: small | large, 3: place, 4: small | large}},
		{"all_gather", gp.AlgorithmRing, [5]int{2: small | place, 3: large, 4: small}},
	} {
		for ranks, of := range k.of {
			if of == 0 {
				continue
			}
			// One piece, of as much as goes on the callers' streams, and a few pieces.
			one := c{op: k.op, alg: k.alg, n: 64 * kib * ranks}
			few := c{op: k.op, alg: k.alg, n: 2 * 192 * kib * ranks, chunk: 192 * kib}
			round := 9
			switch {
			case k.op == "all_reduce" && ranks > 2:
				round = 6
			case k.op == "all_gather" && k.alg == gp.AlgorithmDirect:
				round = 1 + 16/ranks
			case k.op == "all_gather":
				round = 1 + 16/ranks/min(3, ranks-1)
			}
			switch {
			case k.op == "all_gather":
				few.n = 2 * 192 * kib
			case ranks > 2:
				few.n = 192 * kib * ranks
			}
			name := fmt.Sprintf("%s %s on %d ranks", k.op, k.alg, ranks)
			if of&small != 0 {
				one := one
				one.before = k.alg == gp.AlgorithmDirect // likewise
				cs = append(cs, course{name: name + ", small", machine: "4x4090", ranks: ranks, calls: append(times(round, one), with(one, inPlace), with(one, oneStream))})
			}
			if of&large != 0 {
				first := few
				if k.alg == gp.AlgorithmDirect {
					first.before = true // the ends are joined for who waits for the call, too
				}
				cs = append(cs, course{name: name + ", large", machine: "4x4090", ranks: ranks, calls: []c{first, with(few, before)}})
			}
			if of&place != 0 {
				cs = append(cs, course{name: name + ", in place", machine: "4x4090", ranks: ranks, calls: []c{with(few, inPlace), with(one, inPlace), with(few, inPlace)}})
			}
		}
	}
	// Partial results take three times as much of the scratch as of the pinned
	// memory, and of that the scratch is three times as large. Behind a small call,
	// on the callers' streams, a large one goes on nearly to the end of both, and
	// copies go on in pinned memory alone: the last call, on the lanes, is behind the
	// first by its scratch and by nothing else.
	little := c{op: "all_reduce", alg: gp.AlgorithmRing, n: 3 * 4 * kib, chunk: 4 * kib}
	wide := c{op: "all_reduce", alg: gp.AlgorithmRing, n: 3 * 1280 * kib, chunk: 320 * kib, wide: true}
	last := c{op: "all_reduce", alg: gp.AlgorithmRing, n: 3 * 72 * kib, wide: true}
	cs = append(cs, course{name: "all_reduce ring on 3 ranks, wide partials", machine: "4x4090", ranks: 3,
		calls: []c{little, wide, with(one, func(c *c) { c.n = 100 * kib }), with(one, func(c *c) { c.n, c.from, c.to = 100*kib, 1, 2 }), with(one, func(c *c) { c.n, c.from, c.to = 100*kib, 2, 0 }), last}})
	// Likewise of those that pass through host memory once, with calls before and
	// behind them that leave regions to them, and take theirs; and of peer copies,
	// which have no calls on the callers' streams. Those wait until all ranks' memory
	// is open to the others: of scratch memory that nobody has used in vain.
	root := func(rank int) func(c *courseCall) { return func(c *courseCall) { c.from = rank } }
	whole := func(c *courseCall) { c.whole = true }
	for _, k := range []struct {
		op    string
		alg   gp.Algorithm
		of    [5]int // by ranks
		loose [5]int
	}{
		{op: "all_reduce", alg: gp.AlgorithmDirect, of: [5]int{2: small | place, 3: large, 4: small | place}},
		{op: "reduce_scatter", alg: gp.AlgorithmDirect, of: [5]int{2: small, 3: place, 4: large}},
		{op: "broadcast", alg: gp.AlgorithmDirect, of: [5]int{2: small, 3: large | place, 4: small | large}},
		{op: "reduce", alg: gp.AlgorithmDirect, of: [5]int{2: small | place, 3: large}},
		{op: "all_to_all", alg: gp.AlgorithmDirect, of: [5]int{2: small, 3: large, 4: small}},
		{op: "all_reduce", alg: gp.AlgorithmPeer, of: [5]int{2: large, 3: place, 4: large}, loose: [5]int{3: 6, 4: 16}},
		{op: "all_gather", alg: gp.AlgorithmPeer, of: [5]int{2: large, 3: place}},
		{op: "reduce_scatter", alg: gp.AlgorithmPeer, of: [5]int{2: place, 3: large}, loose: [5]int{3: 8}},
		{op: "broadcast", alg: gp.AlgorithmPeer, of: [5]int{3: large | place}},
		{op: "reduce", alg: gp.AlgorithmPeer, of: [5]int{2: large, 3: place}, loose: [5]int{3: 6}},
		{op: "all_to_all", alg: gp.AlgorithmPeer, of: [5]int{2: large, 3: large}},
	} {
		for ranks, of := range k.of {
			if of == 0 {
				continue
			}
			// One segment, which takes half of the pinned memory, and two.
			machine, n := "4x4090", 480*kib/(128*ranks)*128*ranks
			if k.alg == gp.AlgorithmPeer {
				machine = "8x4090-p2p"
			}
			one := c{op: k.op, alg: k.alg, n: n, chunk: n, from: ranks - 1}
			few := with(one, func(c *c) { c.chunk /= 2 })
			// Of most peer copies each end tells of all others, and one wait would do.
			behind := func(c *courseCall) { c.before = k.alg == gp.AlgorithmDirect || k.op == "broadcast" }
			name := fmt.Sprintf("%s %s on %d ranks", k.op, k.alg, ranks)
			between := func(kind string, around courseCall, calls ...courseCall) {
				if k.alg != gp.AlgorithmPeer {
					calls = slices.Concat(times(2, with(around, whole)), calls, times(2, with(around, whole)))
				}
				cs = append(cs, course{name: name + ", " + kind, machine: machine, ranks: ranks, calls: calls, loose: k.loose[ranks]})
			}
			if of&small != 0 {
				between("small", one, with(one, behind), with(with(one, oneStream), behind))
			}
			if of&large != 0 {
				between("large", few, with(few, behind), with(with(few, root(0)), behind))
			}
			if of&place != 0 {
				between("in place", few, with(with(few, inPlace), behind), with(with(one, inPlace), behind))
			}
		}
	}
	// Batches in which a rank sends to several, to itself, or nothing at all.
	batch := c{op: "send_recv", n: 100 * kib, chunk: 48 * kib, pairs: [][2]int{{0, 1}, {1, 0}, {0, 2}, {2, 2}}}
	shift := c{op: "send_recv", n: 200 * kib, pairs: [][2]int{{0, 1}, {1, 2}, {2, 0}}}
	cs = append(cs,
		course{name: "batches", machine: "4x4090", ranks: 3, calls: []c{batch, shift, with(batch, before), with(shift, before)}},
		course{name: "batches on one GPU", machine: "2x4090", ranks: 3, calls: []c{shift, batch, shift}},
		course{name: "batches of peer copies", machine: "8x4090-p2p", ranks: 3, calls: []c{batch, shift, with(shift, before)}},
	)
	// Kernels that wait for each other: on the callers' streams where every rank has
	// a GPU, else on the ranks' own.
	shot := c{op: "all_reduce", alg: gp.AlgorithmOneShot, n: 8 * kib}
	two := c{op: "all_reduce", alg: gp.AlgorithmTwoShot, n: 24 * kib}
	gather := c{op: "all_gather", alg: gp.AlgorithmOneShot, n: 6 * kib}
	bulk := with(two, func(c *c) { c.n = 192 * kib })
	cs = append(cs,
		course{name: "kernels that wait for each other", machine: "4x4090", ranks: 3, pinned: room, calls: []c{shot, two, with(shot, oneStream), gather, with(two, inPlace), with(gather, before), shot}},
		course{name: "kernels that wait for each other on one GPU", machine: "2x4090", ranks: 3, pinned: room, calls: []c{shot, two, with(gather, inPlace), with(shot, oneStream), with(two, before)}},
		course{name: "kernels that wait for each other, in bulk", machine: "2x4090", ranks: 2, pinned: room, calls: []c{bulk, with(bulk, inPlace), with(bulk, legacy), bulk}},
	)
	// Orders of calls that nobody thought of.
	for seed := range uint64(3) {
		rng := rand.New(rand.NewPCG(seed, 11))
		k := course{name: fmt.Sprintf("anything, %d", seed), machine: "4x4090", ranks: 2 + rng.IntN(2)}
		for range 5 {
			one := c{op: []string{"copy", "all_reduce", "all_gather"}[rng.IntN(3)], n: 4 * (1 + rng.IntN(80*kib)), one: rng.IntN(4) == 0}
			switch one.op {
			case "all_reduce":
				one.alg = gp.AlgorithmRing
			case "all_gather":
				one.alg = gp.AlgorithmDirect
			}
			if rng.IntN(2) == 0 {
				one.chunk = 128 * kib
			}
			if one.op == "copy" {
				one.from = rng.IntN(k.ranks)
				one.to = (one.from + 1 + rng.IntN(k.ranks-1)) % k.ranks
			} else if rng.IntN(3) == 0 {
				one.inPlace, one.one = true, true
			}
			k.calls = append(k.calls, one)
		}
		cs = append(cs, k)
	}
	return cs
}

// without is a driver that answers the k-th wait for an event with success and
// does nothing, and notes who made that call.
type without struct {
	api.Driver
	k     int
	n     int
	whole bool     // do not count
	sites []string // the lines of package gp that led to it: "exec.go:310"
}

func (w *without) StreamWaitEvent(s api.Stream, e api.Event) api.Code {
	if w.whole {
		return w.Driver.StreamWaitEvent(s, e)
	}
	if w.n++; w.n != w.k {
		return w.Driver.StreamWaitEvent(s, e)
	}
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for more := true; more; {
		var f runtime.Frame
		if f, more = frames.Next(); strings.Contains(f.Function, "/gp.") {
			w.sites = append(w.sites, fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line))
		}
	}
	return api.Success
}

// A stage is a course being run. A wait can be missing among the group's driver
// calls, not among those of the test.
type stage struct {
	course
	m     *sim.Machine
	d     *cuda.Driver // the test's
	g     *gp.Group
	own   []*cuda.Context // by rank, the test's
	blank []cuda.Ptr      // by rank, what stripes are written from
	close []func() error
	err   error
}

// do keeps the first error: behind it nothing counts.
func (s *stage) do(err error) {
	if s.err == nil {
		s.err = err
	}
}

// A play is a course that was run.
type play struct {
	waits int      // of the group's
	sites []string // who made the one that was missing
	race  error    // that the machine found, if it did
	trace *trace   // if nothing was missing
}

// play runs a course without the k-th wait of the group's, or with all of them
// if k is 0.
func (c course) play(t testing.TB, k int, opts ...sim.Option) (p play) {
	t.Helper()
	m, err := sim.New(c.spec, append(opts, sim.Watch())...)
	require.NoError(t, err)
	s := &stage{course: c, m: m, d: m.Driver()}
	calls := &without{Driver: seam(m.Driver()), k: k}
	var base api.Driver = calls
	if k == 0 {
		p.trace = newTrace()
		s.d = over(t, &traced{Driver: seam(m.Driver()), t: p.trace})
		base = &traced{Driver: calls, t: p.trace, group: true}
	}
	o := options(t, over(t, base), c.ranks)
	if c.pinned > 0 {
		o.PinnedBytes = c.pinned
	}
	if strings.HasSuffix(c.machine, "-p2p") {
		o.P2P = gp.P2PTrust
	}
	s.g, err = gp.Open(o)
	require.NoError(t, err)
	require.Zero(t, calls.n)
	for _, r := range s.g.Ranks() {
		dev, err := s.d.Device(r.Device().Ordinal())
		require.NoError(t, err)
		cc, err := dev.Primary()
		require.NoError(t, err)
		s.own = append(s.own, cc)
	}
	for r := range s.own {
		s.blank = append(s.blank, s.buffer(r, c.blank(), s.stream(r)).Ptr())
	}
	if slices.ContainsFunc(c.calls, courseCall.exchanges) {
		// The handshake waits for the GPUs, which the trace does not see.
		e := courseCall{op: "all_gather", n: 8, alg: gp.AlgorithmOneShot}
		_, dst, src := s.sides(e)
		_, err := s.g.With(gp.CallOptions{Algorithm: e.alg, Explain: &gp.Explanation{}}).AllGather(dst, src)
		require.NoError(t, err)
	}
	for i, call := range c.calls {
		calls.whole = call.whole
		if p.trace != nil {
			p.trace.call, p.trace.whole = i, call.whole
		}
		if s.err == nil {
			s.call(call)
		}
	}
	p.waits, p.sites = calls.n, calls.sites
	race := m.Race()
	if race == nil {
		require.NoError(t, s.err)
		require.NoError(t, s.g.Synchronize(background))
		for _, cc := range s.own {
			require.NoError(t, cc.Synchronize())
		}
		// A race that shows only when a kernel runs.
		race = m.Race()
	}
	for _, f := range s.close {
		_ = f()
	}
	if err := s.g.Close(); race == nil {
		require.NoError(t, err)
	}
	for _, cc := range s.own {
		_ = cc.Close()
	}
	if err := m.Close(); race == nil {
		require.NoError(t, err)
	}
	p.race = race
	return p
}

// stream is a new stream of a rank's.
func (s *stage) stream(rank int) *cuda.Stream {
	st, err := s.own[rank].NewStream()
	s.do(err)
	if err == nil {
		s.close = append(s.close, st.Close)
	}
	return st
}

// buffer is memory of a rank's, not the group's, on a stream.
func (s *stage) buffer(rank, n int, st *cuda.Stream) gp.Buffer {
	var p cuda.Ptr
	if n > 0 {
		mem, err := s.own[rank].Alloc(n)
		s.do(err)
		if err != nil {
			return gp.Buffer{}
		}
		s.close = append(s.close, mem.Close)
		p = mem.Ptr()
	}
	b, err := s.g.Ranks()[rank].Wrap(p, gp.TypeUint8, n, st)
	s.do(err)
	return b
}

// as is a buffer as the call sees it.
func (s *stage) as(c courseCall, b gp.Buffer) gp.Buffer {
	if !c.wide || s.err != nil {
		return b
	}
	v, err := b.Rank().Wrap(b.Ptr(), gp.TypeBFloat16, b.Len()/2, b.Stream())
	s.do(err)
	return v
}

// A buffer's bytes are touched in stripes: each of the streams that a call orders
// has its own, so that they do not meet but in the call.
const stripes = 3

// stripe is the bytes of a buffer's stripes, of which each stream has eight.
func stripe(b gp.Buffer) int { return b.Bytes() / (8 * stripes) }

// overwrite writes the k-th stripes of a buffer on a stream.
func (s *stage) overwrite(st *cuda.Stream, b gp.Buffer, k int) {
	if w := stripe(b); s.err == nil && w > 0 {
		s.do(st.Memcpy2D(&cuda.Copy2D{SrcDevice: s.blank[b.Rank().Index()], SrcPitch: uint64(w), DstDevice: b.Ptr() + cuda.Ptr(k*w), DstPitch: uint64(stripes * w), Width: uint64(w), Height: 8}))
	}
}

// A side is a buffer of a call, and, for calls that move nothing, the pinned
// memory by which it is seen whether its stream is ordered with others.
type side struct {
	gp.Buffer
	rank   int
	stripe int // 0 of a destination, 1 of a source
	pad    *cuda.HostMem
	mem    gp.Buffer
}

const padBytes = 64

func (s *stage) side(rank, n int, st *cuda.Stream) *side {
	x := &side{Buffer: s.buffer(rank, n, st), rank: rank}
	if n == 0 && s.err == nil {
		pad, err := s.own[rank].HostAlloc(padBytes, 0)
		s.do(err)
		if err == nil {
			x.pad = pad
			s.close = append(s.close, pad.Close)
		}
		x.mem = s.buffer(rank, padBytes, st)
	}
	return x
}

// touch writes what shows that the stream of one of the sides was here: in its
// own buffer and in the rank's other one, which a call orders with it too.
func (s *stage) touch(x *side, all []*side) {
	s.overwrite(x.Stream(), x.Buffer, x.stripe)
	for _, o := range all {
		if o != x && o.rank == x.rank && o.Stream() != x.Stream() {
			s.overwrite(x.Stream(), o.Buffer, x.stripe)
		}
	}
	if x.pad != nil && s.err == nil {
		s.do(x.Stream().MemcpyDtoH(x.pad.Pointer(), x.mem.Ptr(), padBytes))
	}
}

// behind reads what the sides' streams left before a call, on one of them.
func (s *stage) behind(x *side, all ...*side) {
	for _, o := range all {
		if o.pad != nil && s.err == nil {
			s.do(x.Stream().MemcpyHtoD(x.mem.Ptr(), o.pad.Pointer(), padBytes))
		}
	}
}

// sides makes the buffers of a call: all of them, and by rank, or by transfer, its
// destinations and sources.
func (s *stage) sides(c courseCall) (all []*side, dst, src []gp.Buffer) {
	// Two streams of a rank, unless it is to be one.
	type pair struct{ from, to *cuda.Stream }
	of := map[int]pair{}
	streams := func(rank int) pair {
		p, ok := of[rank]
		if !ok {
			p.from = s.stream(rank)
			p.to = p.from
			switch {
			case c.legacy:
				p.to = s.own[rank].LegacyStream()
			case !c.one && c.op != "send_recv":
				p.to = s.stream(rank)
			}
			of[rank] = p
		}
		return p
	}
	side := func(rank, n, stripe int, st *cuda.Stream) gp.Buffer {
		x := s.side(rank, n, st)
		x.stripe = stripe
		all = append(all, x)
		return s.as(c, x.Buffer)
	}
	switch c.op {
	case "copy", "send_recv":
		pairs := c.pairs
		if c.op == "copy" {
			pairs = [][2]int{{c.from, c.to}}
		}
		for _, p := range pairs {
			dst = append(dst, side(p[1], c.n, 0, streams(p[1]).to))
			src = append(src, side(p[0], c.n, 1, streams(p[0]).from))
		}
		return all, dst, src
	}
	long, short := c.shares(s.ranks)
	for r := range s.ranks {
		hasIn, hasOut := c.op != "broadcast" || r == c.from, c.op != "reduce" || r == c.from
		if hasOut {
			if c.inPlace && hasIn {
				dst = append(dst, side(r, max(long, short), 0, streams(r).to))
			} else {
				dst = append(dst, side(r, long, 0, streams(r).to))
			}
		}
		if !hasIn {
			continue
		}
		if !c.inPlace || !hasOut {
			src = append(src, side(r, short, 1, streams(r).from))
			continue
		}
		at := &dst[len(dst)-1]
		part := at.Len() / s.ranks
		switch {
		case long > short:
			src = append(src, at.Sub(r*part, (r+1)*part))
		case short > long:
			src = append(src, *at)
			*at = at.Sub(r*part, (r+1)*part)
		default:
			src = append(src, *at)
		}
	}
	return all, dst, src
}

func (s *stage) call(c courseCall) {
	ops := s.g.With(gp.CallOptions{Chunk: c.chunk, Algorithm: c.alg})
	sides, dst, src := s.sides(c)
	touch := func() {
		for _, x := range sides {
			s.touch(x, sides)
		}
	}
	touch()
	if s.err != nil {
		return
	}
	var w gp.Work
	var err error
	switch c.op {
	case "copy":
		w, err = ops.Copy(dst[0], src[0])
	case "all_reduce":
		w, err = ops.AllReduceTo(dst, src, gp.Sum)
	case "all_gather":
		w, err = ops.AllGather(dst, src)
	case "reduce_scatter":
		w, err = ops.ReduceScatter(dst, src, gp.Sum)
	case "broadcast":
		w, err = ops.Broadcast(dst, src[0])
	case "reduce":
		w, err = ops.Reduce(dst[0], src, gp.Sum)
	case "all_to_all":
		w, err = ops.AllToAll(dst, src)
	case "send_recv":
		ts := make([]gp.Transfer, len(dst))
		for i := range ts {
			ts[i] = gp.Transfer{Dst: dst[i], Src: src[i]}
		}
		w, err = ops.SendRecv(ts...)
	default:
		panic(c.op)
	}
	s.do(err)
	if c.before && s.err == nil {
		s.takes(w, sides)
	}
	// A transfer orders its destination's stream only, a collective all of them.
	switch {
	case c.op == "copy":
		s.behind(sides[0], sides[1])
	case c.op == "send_recv":
		for i := 0; i < len(sides); i += 2 {
			s.behind(sides[i], sides[i+1])
		}
	default:
		for _, x := range sides {
			s.behind(x, sides...)
		}
	}
	if c.n > 0 {
		touch()
	}
}

// takes lets a stream of no buffer wait for a call. Behind that stream, on every
// GPU, results are taken and sources written.
func (s *stage) takes(w gp.Work, sides []*side) {
	first := s.stream(0)
	s.do(w.Before(first))
	ev, err := s.own[0].NewEvent(cuda.EventDisableTiming)
	s.do(err)
	if err != nil {
		return
	}
	s.close = append(s.close, ev.Close)
	s.do(ev.Record(first))
	for _, x := range sides {
		st := first
		if x.rank != 0 {
			st = s.stream(x.rank)
		}
		if s.err == nil && st != first {
			s.do(st.Wait(ev))
		}
		w := stripe(x.Buffer)
		switch {
		case s.err != nil || w == 0:
		case x.stripe != 0:
			s.overwrite(st, x.Buffer, 2)
		default:
			well := s.buffer(x.rank, 8*w, st)
			s.do(st.Memcpy2D(&cuda.Copy2D{SrcDevice: x.Ptr() + cuda.Ptr(2*w), SrcPitch: uint64(stripes * w), DstDevice: well.Ptr(), DstPitch: uint64(w), Width: uint64(w), Height: 8}))
		}
	}
}

// needless tells why a course is as good without the group's k-th wait. It must be
// one for an earlier call, which had a region before: regions are kept track of as
// wholes, and by their last users alone. So the two users may have no bytes in
// common, or the first may have been waited for in another way too. It is an error
// if the wait is no such one, or if the trace does not bear that out of each two
// accesses. all is the order with every wait, pairs are the trace's conflicts.
func (t *trace) needless(k int, all order, pairs []pair) (why string, err error) {
	w := t.wait(k)
	o := t.ops[w]
	if o.after < 0 || t.ops[o.after].call >= o.call {
		return "", fmt.Errorf("it orders steps or streams of one call")
	}
	without := t.order(k, nil)
	why = "what both touch is apart"
	for _, p := range pairs {
		switch {
		case !all.before(t, p.first, p.second):
			return "", fmt.Errorf("the course has a race")
		case !without.before(t, p.first, p.second):
			return "", fmt.Errorf("%v and %v are not ordered", t.ops[p.first], t.ops[p.second])
		case all.before(t, p.first, o.after) && all.before(t, w, p.second):
			why = "what both touch is ordered in another way too"
		}
	}
	for _, v := range t.ops {
		if v.wait > 0 && v.call == o.call && v.queue == o.queue && v.after > o.after && t.ops[v.after].queue == t.ops[o.after].queue {
			why = "the call waits for a later point of the same stream"
		}
	}
	return why, nil
}

// TestEveryWaitIsNeeded leaves out one wait of each course after another: each
// time the machine finds two accesses that are no longer ordered. So no wait is
// missing a test, and none is a call for nothing.
//
// A wait for an earlier call may survive, if it is shown of the course's trace
// that it can be spared there: see needless. The trace and the machine must agree
// on every single wait. That no line of the executor only makes waits that could
// be spared is what the last part is for: each that makes a wait has made one
// that was needed.
func TestEveryWaitIsNeeded(t *testing.T) {
	if testenv.Race || !testenv.Optimized() {
		t.Skip("thousands of runs, each of one thread")
	}
	// Most of what a run allocates is memory of machines that are gone.
	defer debug.SetGCPercent(debug.SetGCPercent(800))
	var mu sync.Mutex
	needed := map[string]bool{} // lines that made a wait without which there is a race
	spared, waits, ran := 0, 0, 0
	cs := courses()
	t.Run("courses", func(t *testing.T) {
		for _, c := range cs {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				var err error
				c.spec, err = sim.Builtin(c.machine)
				require.NoError(t, err)
				whole := c.play(t, 0)
				require.NoError(t, whole.race)
				require.Positive(t, whole.waits)
				tr := whole.trace
				require.NoError(t, tr.blind)
				require.Equal(t, whole.waits, tr.waits)
				pairs, all := tr.conflicts(), tr.order(0, nil)
				why, loose := map[string]int{}, 0
				var lines []string
				for k := 1; k <= whole.waits; k++ {
					p := c.play(t, k)
					reason, err := tr.needless(k, all, pairs)
					switch {
					case p.race != nil && err != nil:
						lines = append(lines, p.sites...)
					case p.race != nil:
						t.Errorf("wait %d of %d: a race, though %s: %v", k, whole.waits, reason, p.race)
					case err != nil && loose < c.loose:
						loose++
					case err != nil:
						t.Errorf("wait %d of %d is not needed, though %v: %s", k, whole.waits, err, strings.Join(p.sites, " "))
					default:
						why[reason]++
						require.Equal(t, whole.waits, p.waits)
						require.NoError(t, c.play(t, k, sim.Seed(2)).race)
					}
				}
				require.Equal(t, c.loose, loose)
				t.Logf("%d waits, spared: %v [%s]", whole.waits, why, c.name)
				mu.Lock()
				defer mu.Unlock()
				for _, l := range lines {
					needed[l] = true
				}
				for _, n := range why {
					spared += n
				}
				waits += whole.waits
				ran++
			})
		}
	})
	if ran < len(cs) {
		t.Skip("not all courses ran: what they reach together is not looked at")
	}
	t.Logf("%d waits, %d of them spared", waits, spared)
	require.Less(t, 50*spared, waits, "waits that could have been spared")
	for _, w := range waitSites(t) {
		if why := cmp.Or(unused[w.within], unused[w.call]); why != "" {
			require.False(t, needed[w.at], "%s: a course needs the wait of %s, so it is not that %s", w.at, w.call, why)
			continue
		}
		require.True(t, needed[w.at], "%s: no course needs a wait of %s", w.at, w.call)
	}
}

// unused are functions that no algorithm of a course comes to, and why. One that
// a course does come to must not be here.
var unused = map[string]string{
	"explainOrder": "an explanation counts calls and makes none",
}

// A waitSite is a line of package gp that makes waits: it calls the driver, or a
// function of the package that does.
type waitSite struct{ at, within, call string }

func waitSites(t *testing.T) (sites []waitSite) {
	set := token.NewFileSet()
	names, err := filepath.Glob("*.go")
	require.NoError(t, err)
	var files []*ast.File
	for _, name := range names {
		if !strings.HasSuffix(name, "_test.go") {
			f, err := parser.ParseFile(set, name, nil, 0)
			require.NoError(t, err)
			files = append(files, f)
		}
	}
	if files == nil {
		t.Skip("the sources are not here")
	}
	// calling finds who calls one of some functions, by name and number of arguments.
	type function struct {
		name string
		args int
	}
	calling := func(callees map[function]bool) map[function]bool {
		callers := map[function]bool{}
		for _, f := range files {
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok {
					continue
				}
				ast.Inspect(fn, func(n ast.Node) bool {
					c, ok := n.(*ast.CallExpr)
					if !ok {
						return true
					}
					name := ""
					switch f := c.Fun.(type) {
					case *ast.Ident:
						name = f.Name
					case *ast.SelectorExpr:
						name = f.Sel.Name
					}
					if callees[function{name, len(c.Args)}] {
						at := set.Position(c.Lparen)
						sites = append(sites, waitSite{fmt.Sprintf("%s:%d", filepath.Base(at.Filename), at.Line), fn.Name.Name, name})
						callers[function{fn.Name.Name, fn.Type.Params.NumFields()}] = true
					}
					return true
				})
			}
		}
		return callers
	}
	makers := calling(map[function]bool{{"StreamWaitEvent", 2}: true})
	require.NotEmpty(t, makers)
	maps.DeleteFunc(makers, func(f function, _ bool) bool { return ast.IsExported(f.name) })
	calling(makers)
	return sites
}
