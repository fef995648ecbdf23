// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
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
	// mixed says that the calls take regions of different sizes. What a region
	// waits for is then not always needed: see TestEveryWaitIsNeeded.
	mixed bool

	spec sim.Spec
}

type courseCall struct {
	op       string // "copy", "all_reduce", "all_gather"
	n        int    // bytes a source
	chunk    int
	alg      gp.Algorithm
	from, to int  // of a copy
	inPlace  bool // of a collective
	one      bool // both sides on one stream
	legacy   bool // the destination on the legacy default stream
	before   bool // a stream beside is put behind the call by Work.Before
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
		{name: "copies there and back", machine: "2x4090", ranks: 2, mixed: true, calls: []c{one, with(one, back), chunks, with(chunks, back), one, with(chunks, back)}},
		{name: "copies to the default stream", machine: "2x4090", ranks: 2, mixed: true, calls: []c{one, with(chunks, legacy), with(one, legacy)}},
		{name: "copies from one rank to many", machine: "4x4090", ranks: 4, calls: []c{chunks, with(chunks, to(2)), with(one, to(3)), chunks}},
		{name: "copies between ranks of one GPU", machine: "2x4090", ranks: 4, calls: []c{with(chunks, to(2)), with(one, func(c *courseCall) { c.from, c.to = 2, 0 }), with(chunks, to(2))}},
		{name: "copies within a rank", machine: "2x4090", ranks: 2, calls: times(2, c{op: "copy", n: 10_000, from: 1, to: 1})},
		{name: "direct copies", machine: "8x4090-p2p", ranks: 2, calls: []c{{op: "copy", n: 1 << 20, to: 1}, {op: "copy", n: 1 << 20, from: 1}}},
		{name: "copies that others wait for", machine: "2x4090", ranks: 2, calls: []c{with(one, before), with(chunks, before)}},
		{name: "empty calls", machine: "4x4090", ranks: 3, calls: []c{{op: "copy", to: 1}, {op: "all_reduce"}, {op: "copy", from: 2}, {op: "all_gather"}, {op: "all_reduce", inPlace: true}}},
		{name: "all_reduce on ranks that share GPUs", machine: "2x4090", ranks: 3, calls: times(2, c{op: "all_reduce", alg: gp.AlgorithmRing, n: 1 << 20, chunk: 192 * kib})},
	}
	for _, ranks := range []int{2, 3, 4} {
		for _, k := range []struct {
			op  string
			alg gp.Algorithm
		}{{"all_reduce", gp.AlgorithmRing}, {"all_reduce", gp.AlgorithmRingZeroCopy}, {"all_gather", gp.AlgorithmDirect}, {"all_gather", gp.AlgorithmRing}} {
			if ranks > 3 && k.alg != gp.AlgorithmDirect || ranks > 2 && k.alg == gp.AlgorithmRingZeroCopy {
				continue // a longer ring is more of the same
			}
			small := c{op: k.op, alg: k.alg, n: 40 * kib * ranks}
			large := c{op: k.op, alg: k.alg, n: 1 << 20, chunk: 192 * kib}
			if k.op == "all_gather" {
				large.n = 500 * kib
			}
			name := fmt.Sprintf("%s %s on %d ranks", k.op, k.alg, ranks)
			cs = append(cs,
				course{name: name + ", small", machine: "4x4090", ranks: ranks, calls: append(times(7+8/ranks, small), with(small, inPlace), with(small, oneStream))},
				course{name: name + ", large", machine: "4x4090", ranks: ranks, calls: []c{large, with(large, before)}},
				course{name: name + ", in place", machine: "4x4090", ranks: ranks, mixed: true, calls: []c{with(large, inPlace), with(small, inPlace), with(large, inPlace)}},
			)
		}
	}
	// Orders of calls that nobody thought of.
	for seed := range uint64(4) {
		rng := rand.New(rand.NewPCG(seed, 11))
		k := course{name: fmt.Sprintf("anything, %d", seed), machine: "4x4090", ranks: 2 + rng.IntN(2), mixed: true}
		for range 6 {
			one := c{op: []string{"copy", "all_reduce", "all_gather"}[rng.IntN(3)], n: 4 * (1 + rng.IntN(200*kib)), one: rng.IntN(4) == 0}
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
	k    int
	n    int
	site string
}

func (w *without) StreamWaitEvent(s api.Stream, e api.Event) api.Code {
	if w.n++; w.n != w.k {
		return w.Driver.StreamWaitEvent(s, e)
	}
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		f, more := frames.Next()
		if w.site += fmt.Sprintf("\n\t%s:%d", f.Function, f.Line); !more {
			return api.Success
		}
	}
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

// play runs a course without the k-th wait of the group's, or with all of them
// if k is 0. It returns the number of waits, who made the one that is missing,
// and the race that the machine found, if it did.
func (c course) play(t testing.TB, k int) (waits int, site string, race error) {
	t.Helper()
	m, err := sim.New(c.spec, sim.Watch())
	require.NoError(t, err)
	s := &stage{course: c, m: m, d: m.Driver()}
	calls := &without{Driver: seam(m.Driver()), k: k}
	o := options(t, over(t, calls), c.ranks)
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
		s.blank = append(s.blank, s.buffer(r, 4<<20, s.stream(r)).Ptr())
	}
	for _, call := range c.calls {
		if s.err == nil {
			s.call(call)
		}
	}
	waits = calls.n
	race = m.Race()
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
	return waits, calls.site, race
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
	rank int
	pad  *cuda.HostMem
	mem  gp.Buffer
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

// touch writes what shows that the side's stream was here: in its own buffer and
// in the rank's other one, which a call orders with it too.
func (s *stage) touch(x, other *side, k int) {
	s.overwrite(x.Stream(), x.Buffer, k)
	if other != nil {
		s.overwrite(x.Stream(), other.Buffer, k)
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

func (s *stage) call(c courseCall) {
	ops := s.g.With(gp.CallOptions{Chunk: c.chunk, Algorithm: c.alg})
	streams := func(rank int) (from, to *cuda.Stream) {
		from = s.stream(rank)
		to = from
		if !c.one {
			to = s.stream(rank)
		}
		if c.legacy {
			to = s.own[rank].LegacyStream()
		}
		return from, to
	}
	var src, dst []*side
	switch c.op {
	case "copy":
		from, to := s.stream(c.from), s.stream(c.to)
		if c.one && c.from == c.to {
			to = from
		}
		if c.legacy {
			to = s.own[c.to].LegacyStream()
		}
		src, dst = append(src, s.side(c.from, c.n, from)), append(dst, s.side(c.to, c.n, to))
	default:
		for r := range s.ranks {
			from, to := streams(r)
			n := c.n
			if c.op == "all_gather" {
				n *= s.ranks
			}
			d := s.side(r, n, to)
			x := d
			if !c.inPlace {
				x = s.side(r, c.n, from)
			} else if c.op == "all_gather" {
				x = &side{Buffer: d.Sub(r*c.n, (r+1)*c.n), rank: r}
			}
			src, dst = append(src, x), append(dst, d)
		}
	}
	sides := append([]*side(nil), dst...)
	if !c.inPlace {
		sides = append(sides, src...)
	}
	touch := func() {
		for i, x := range sides {
			var other *side
			if len(sides) > len(dst) && sides[(i+len(dst))%len(sides)].rank == x.rank && !c.one {
				other = sides[(i+len(dst))%len(sides)]
			}
			s.touch(x, other, i/len(dst))
		}
	}
	touch()
	if s.err != nil {
		return
	}
	bufs := func(xs []*side) (bs []gp.Buffer) {
		for _, x := range xs {
			bs = append(bs, x.Buffer)
		}
		return bs
	}
	var w gp.Work
	var err error
	switch c.op {
	case "copy":
		w, err = ops.Copy(dst[0].Buffer, src[0].Buffer)
	case "all_reduce":
		w, err = ops.AllReduceTo(bufs(dst), bufs(src), gp.Sum)
	default:
		w, err = ops.AllGather(bufs(dst), bufs(src))
	}
	s.do(err)
	if c.before && s.err == nil {
		// A stream of no buffer takes the results, from other GPUs by way of the host.
		st := s.stream(0)
		s.do(w.Before(st))
		for _, x := range dst {
			n := stripe(x.Buffer)
			well := s.buffer(0, n, st)
			for row := range 8 {
				if s.err == nil {
					s.do(st.MemcpyPeer(well.Ptr(), s.own[0], x.Ptr()+cuda.Ptr((stripes*row+2)*n), s.own[x.rank], n))
				}
			}
		}
	}
	// A copy orders its destination's stream only, a collective all of them.
	switch {
	case c.op == "copy":
		s.behind(dst[0], src[0])
	default:
		for _, x := range sides {
			s.behind(x, sides...)
		}
	}
	if c.n > 0 {
		touch()
	}
}

// TestEveryWaitIsNeeded leaves out one wait of each course after another: each
// time the machine finds two accesses that are no longer ordered. So no wait is
// missing a test, and none is a call for nothing.
//
// Of calls that take regions of different sizes, a wait of a region for its
// former users may be left out now and then, and only such a one: the former
// users may have left the bytes alone that the two have in common, or been
// waited for by somebody else in between. Regions are kept track of as wholes.
// That the same waits are needed is what the other courses show.
func TestEveryWaitIsNeeded(t *testing.T) {
	if testenv.Race || !testenv.Optimized() {
		t.Skip("thousands of runs, each of one thread")
	}
	for _, c := range courses() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var err error
			c.spec, err = sim.Builtin(c.machine)
			require.NoError(t, err)
			waits, _, race := c.play(t, 0)
			require.NoError(t, race)
			require.Positive(t, waits)
			spared := 0
			for k := 1; k <= waits; k++ {
				_, site, race := c.play(t, k)
				switch {
				case race != nil:
				case c.mixed && strings.Contains(site, "gp.(*run).waitMarks:"):
					spared++
				default:
					t.Errorf("wait %d of %d is not needed:%s", k, waits, site)
				}
			}
			require.LessOrEqual(t, 8*spared, waits, "of %d waits %d could have been spared", waits, spared)
		})
	}
}
