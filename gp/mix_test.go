// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
)

// number is a number from the environment, or the default.
func number(t testing.TB, name string, otherwise uint64) uint64 {
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	require.NoError(t, err, name)
	return n
}

// A mix is programs of random calls, one after another, on one group or on two
// that share GPUs, held to the host's idea of every byte.
type mix struct {
	t       *testing.T
	r       *rand.Rand
	groups  []*gp.Group
	own     []*cuda.Context  // by GPU
	streams [][]*cuda.Stream // by GPU
	pieces  [][]*piece       // by GPU
	log     []string
}

// A piece is an allocation. All that is done with it goes through one stream at a
// time, so that its bytes are in order whatever groups work on it.
type piece struct {
	mem    *cuda.Memory
	stream *cuda.Stream
	data   []byte
	used   bool // by the call that is being put together
}

const (
	pieceBytes   = 6 << 10
	piecesPerGPU = 6
)

func newMix(t *testing.T, r *rand.Rand, d *cuda.Driver, opts ...gp.Options) *mix {
	m := &mix{t: t, r: r}
	for _, o := range opts {
		m.groups = append(m.groups, open(t, o))
	}
	devs, err := d.Devices()
	require.NoError(t, err)
	for _, dev := range devs[:min(len(devs), 2)] {
		cc := gputest.Primary(t, dev)
		m.own = append(m.own, cc)
		streams := []*cuda.Stream{cc.LegacyStream()}
		for range 3 {
			s, err := cc.NewStream()
			require.NoError(t, err)
			t.Cleanup(func() { m.closed(s.Close()) })
			streams = append(streams, s)
		}
		m.streams = append(m.streams, streams)
		var ps []*piece
		for range piecesPerGPU {
			mem, err := cc.Alloc(pieceBytes)
			require.NoError(t, err)
			t.Cleanup(func() { m.closed(mem.Close()) })
			p := &piece{mem: mem, stream: streams[1], data: randomBytes(r, pieceBytes)}
			require.NoError(t, cc.MemcpyHtoD(mem.Ptr(), p.data))
			ps = append(ps, p)
		}
		m.pieces = append(m.pieces, ps)
		require.NoError(t, cc.Synchronize())
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the calls of the program:\n%s", strings.Join(m.log, "\n"))
		}
	})
	return m
}

// closed holds that closing something went well, where all else did.
func (m *mix) closed(err error) {
	if err != nil && !m.t.Failed() {
		m.t.Error(err)
	}
}

func (m *mix) note(format string, args ...any) { m.log = append(m.log, fmt.Sprintf(format, args...)) }

// move has a piece go on on another stream of its GPU, behind the one it was on.
func (m *mix) move(p *piece, to *cuda.Stream) {
	if p.stream == to {
		return
	}
	ev, err := p.stream.Context().NewEvent(cuda.EventDisableTiming)
	require.NoError(m.t, err)
	require.NoError(m.t, ev.Record(p.stream))
	require.NoError(m.t, to.Wait(ev))
	require.NoError(m.t, ev.Close())
	p.stream = to
}

// A part is n elements of a piece, as a group sees them.
type part struct {
	*piece
	off, bytes int
	b          gp.Buffer
}

func (x part) held() []byte { return x.data[x.off : x.off+x.bytes] }

// take finds room on a rank's GPU that the call does not use yet.
func (m *mix) take(rk *gp.Rank, typ gp.Type, n int) part {
	gpu := rk.Device().Ordinal()
	var p *piece
	for p == nil || p.used {
		p = m.pieces[gpu][m.r.IntN(piecesPerGPU)]
	}
	p.used = true
	if m.r.IntN(4) == 0 {
		m.move(p, m.streams[gpu][m.r.IntN(len(m.streams[gpu]))])
	}
	return m.part(rk, p, typ, n)
}

func (m *mix) part(rk *gp.Rank, p *piece, typ gp.Type, n int) part {
	x := part{piece: p, bytes: n * typ.Size()}
	x.off = m.r.IntN((pieceBytes-x.bytes)/typ.Size()+1) * typ.Size()
	b, err := rk.Wrap(p.mem.Ptr()+cuda.Ptr(x.off), typ, n, p.stream)
	require.NoError(m.t, err)
	x.b = b
	return x
}

func (m *mix) ops(g *gp.Group, alg gp.Algorithm) gp.Ops {
	return g.With(gp.CallOptions{Algorithm: alg, Chunk: []int{0, 0, 64, 512}[m.r.IntN(4)]})
}

// call makes one call and does the same on the host.
func (m *mix) call() {
	for _, ps := range m.pieces {
		for _, p := range ps {
			p.used = false
		}
	}
	g := m.groups[m.r.IntN(len(m.groups))]
	ranks := g.Ranks()
	var w gp.Work
	var err error
	switch m.r.IntN(8) {
	case 0, 1:
		n := m.r.IntN(pieceBytes + 1)
		dst, src := m.take(ranks[m.r.IntN(len(ranks))], gp.TypeUint8, n), m.take(ranks[m.r.IntN(len(ranks))], gp.TypeUint8, n)
		m.note("copy of %d bytes from rank %d to rank %d", n, src.b.Rank().Index(), dst.b.Rank().Index())
		w, err = m.ops(g, "").Copy(dst.b, src.b)
		copy(dst.held(), src.held())
	case 2:
		w, err = m.batch(g)
	case 3:
		x := m.take(ranks[m.r.IntN(len(ranks))], gp.TypeUint8, m.r.IntN(2000))
		copy(x.held(), randomBytes(m.r, x.bytes))
		m.note("write of %d bytes", x.bytes)
		err = x.b.Write(background, x.held())
	default:
		w, err = m.collective(g)
	}
	if err != nil {
		m.t.Fatalf("%v", err)
	}
	switch m.r.IntN(6) {
	case 0:
		require.NoError(m.t, w.Wait(background))
	case 1:
		require.NoError(m.t, w.Before(m.streams[0][m.r.IntN(4)]))
	}
}

// batch is transfers in which each rank has one stream.
func (m *mix) batch(g *gp.Group) (gp.Work, error) {
	ranks := g.Ranks()
	type ends struct{ out, in *piece }
	of := make([]ends, len(ranks))
	for i, rk := range ranks {
		out, in := m.take(rk, gp.TypeUint8, 0), m.take(rk, gp.TypeUint8, 0)
		m.move(in.piece, out.stream)
		of[i] = ends{out.piece, in.piece}
	}
	var ts []gp.Transfer
	taken := make([]int, len(ranks))
	for range m.r.IntN(5) {
		from, to, n := m.r.IntN(len(ranks)), m.r.IntN(len(ranks)), m.r.IntN(1500)
		src := m.part(ranks[from], of[from].out, gp.TypeUint8, n)
		p := of[to].in
		if taken[to]+n > pieceBytes {
			continue
		}
		b, err := ranks[to].Wrap(p.mem.Ptr()+cuda.Ptr(taken[to]), gp.TypeUint8, n, p.stream)
		require.NoError(m.t, err)
		copy(p.data[taken[to]:taken[to]+n], src.held())
		taken[to] += n
		m.note("transfer of %d bytes from rank %d to rank %d", n, from, to)
		ts = append(ts, gp.Transfer{Dst: b, Src: src.b})
	}
	return m.ops(g, "").SendRecv(ts...)
}

func (m *mix) collective(g *gp.Group) (gp.Work, error) {
	ranks := g.Ranks()
	cs := operations(len(ranks))
	c := cs[m.r.IntN(len(cs))]
	if c.alg != "" && m.r.IntN(2) == 0 {
		c.alg = gp.AlgorithmAuto
	}
	// What a sum of floats makes of a NaN is open, and random bits have some.
	c.typ = allTypes[m.r.IntN(len(allTypes))]
	c.red = allOps[m.r.IntN(len(allOps))]
	if c.typ.Float() {
		c.red = []gp.Op{gp.Min, gp.Max}[m.r.IntN(2)]
	}
	dp, sp := c.parts(len(ranks))
	c.n = m.r.IntN(pieceBytes/c.typ.Size()/max(dp, sp) + 1)
	if m.r.IntN(2) == 0 {
		c.n = min(c.n, m.r.IntN(40))
	}
	c.root = m.r.IntN(len(ranks))
	c.inPlace = c.op != "all_to_all" && c.op != "reduce_scatter" && m.r.IntN(3) == 0
	dst, src := make([]part, len(ranks)), make([]part, len(ranks))
	var ins [][]byte
	var bd, bs []gp.Buffer
	for r, rk := range ranks {
		hasIn, hasOut := c.op != "broadcast" || r == c.root, c.op != "reduce" || r == c.root
		if hasOut {
			dst[r] = m.take(rk, c.typ, c.n*dp)
			bd = append(bd, dst[r].b)
		}
		var in []byte
		switch {
		case !hasIn:
		case c.inPlace && hasOut:
			src[r] = dst[r]
			if dp > sp {
				src[r].off, src[r].bytes, src[r].b = dst[r].off+r*c.n*c.typ.Size(), c.n*c.typ.Size(), dst[r].b.Sub(r*c.n, (r+1)*c.n)
			}
		default:
			src[r] = m.take(rk, c.typ, c.n*sp)
		}
		if hasIn {
			bs = append(bs, src[r].b)
			in = append(in, src[r].held()...)
		}
		ins = append(ins, in)
	}
	m.note("%v", c)
	o := m.ops(g, c.alg)
	var w gp.Work
	var err error
	switch c.op {
	case "all_reduce":
		w, err = o.AllReduceTo(bd, bs, c.red)
	case "all_gather":
		w, err = o.AllGather(bd, bs)
	case "reduce_scatter":
		w, err = o.ReduceScatter(bd, bs, c.red)
	case "broadcast":
		w, err = o.Broadcast(bd, bs[0])
	case "reduce":
		w, err = o.Reduce(bd[0], bs, c.red)
	case "all_to_all":
		w, err = o.AllToAll(bd, bs)
	}
	if err != nil && strings.Contains(err.Error(), "areas of pinned memory") || err != nil && strings.Contains(err.Error(), "budget of pinned memory") {
		m.note("refused: %v", err)
		return w, nil
	}
	if err != nil {
		return w, err
	}
	if used := gp.Algorithm(w.Algorithm()); used != "none" && used != "" {
		c.alg = used
	}
	for r, out := range c.results(m.t, ins) {
		if dst[r].piece != nil {
			copy(dst[r].held(), out)
		}
	}
	return w, nil
}

// check reads all memory back.
func (m *mix) check() {
	for gpu, ps := range m.pieces {
		for i, p := range ps {
			require.NoError(m.t, p.stream.Synchronize())
			got := make([]byte, pieceBytes)
			require.NoError(m.t, m.own[gpu].MemcpyDtoH(got, p.mem.Ptr()))
			requireBytes(m.t, p.data, got, "piece %d of GPU %d", i, gpu)
		}
	}
	for _, g := range m.groups {
		require.NoError(m.t, g.Synchronize(background))
		require.NoError(m.t, g.Err())
	}
	m.log = m.log[:0]
}

// TestMixes runs programs of copies, batches and collectives on random streams. A
// machine serves some programs, with one group or two on the same GPUs, and budgets
// from the least to one with room for areas. GP_SOAK is how many times as many
// programs there are, and GP_SEED makes a run again.
func TestMixes(t *testing.T) {
	seed := number(t, "GP_SEED", rand.Uint64())
	t.Logf("GP_SEED=%d", seed)
	const each, calls = 50, 4
	programs := 1000 * int(number(t, "GP_SOAK", 1))
	if fewer {
		programs = each
	}
	for i := range programs / each {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			d := simulated(t, sim.Seed(r.Uint64()))
			first, second := options(t, d, 2+i%2), options(t, d, 2+i/2%2)
			first.PinnedBytes = []int64{small, 5 << 20, 10 << 20, roomy}[r.IntN(4)]
			second.PinnedBytes = []int64{small, 10 << 20}[r.IntN(2)]
			groups := []gp.Options{first, second}
			m := newMix(t, r, d, groups[:1+i%3%2]...)
			for range each {
				for range 1 + r.IntN(2*calls) {
					m.call()
				}
				m.check()
			}
		})
	}
	t.Run("gpu", func(t *testing.T) {
		d := gputest.Hardware(t)
		r := rand.New(rand.NewPCG(seed, 1<<32))
		m := newMix(t, r, d, options(t, d, 3), options(t, d, 2))
		for range 40 {
			for range 1 + r.IntN(2*calls) {
				m.call()
			}
			m.check()
		}
	})
}
