// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
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

// A mix is programs of random calls, one after another, on one group or on
// several that share GPUs, held to the host's idea of every byte.
type mix struct {
	t       testing.TB
	r       *rand.Rand
	groups  []*gp.Group
	own     []*cuda.Context  // by GPU
	streams [][]*cuda.Stream // by GPU
	pieces  [][]*piece       // by GPU
	bytes   int              // of a piece
	chunks  []int            // to choose from
	log     []string

	// busy says that others keep the GPUs busy: then kernels of all ranks may not
	// run at once.
	busy      bool
	exchanges int // collectives by kernels that wait for each other
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
	m := &mix{t: t, r: r, bytes: pieceBytes, chunks: []int{0, 0, 64, 512}}
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
	}
	t.Cleanup(func() { m.closed(m.free()) })
	require.NoError(t, m.fill(piecesPerGPU))
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

// fill makes a number of pieces on each GPU.
func (m *mix) fill(each int) error {
	for gpu, cc := range m.own {
		m.pieces = append(m.pieces, nil)
		for range each {
			mem, err := cc.Alloc(m.bytes)
			if err != nil {
				return err
			}
			p := &piece{mem: mem, stream: m.streams[gpu][1], data: randomBytes(m.r, m.bytes)}
			m.pieces[gpu] = append(m.pieces[gpu], p)
			if err := cc.MemcpyHtoD(mem.Ptr(), p.data); err != nil {
				return err
			}
		}
		if err := cc.Synchronize(); err != nil {
			return err
		}
	}
	return nil
}

// free frees them.
func (m *mix) free() error {
	var errs []error
	for _, ps := range m.pieces {
		for _, p := range ps {
			errs = append(errs, p.mem.Close())
		}
	}
	m.pieces = nil
	return errors.Join(errs...)
}

func (m *mix) note(format string, args ...any) { m.log = append(m.log, fmt.Sprintf(format, args...)) }

// move has a piece go on on another stream of its GPU, behind the one it was on.
func (m *mix) move(p *piece, to *cuda.Stream) error {
	if p.stream == to {
		return nil
	}
	ev, err := p.stream.Context().NewEvent(cuda.EventDisableTiming)
	if err != nil {
		return err
	}
	err = ev.Record(p.stream)
	if err == nil {
		err = to.Wait(ev)
	}
	if err == nil {
		p.stream = to
	}
	return errors.Join(err, ev.Close())
}

// A part is n elements of a piece, as a group sees them.
type part struct {
	*piece
	off, bytes int
	b          gp.Buffer
}

func (x part) held() []byte { return x.data[x.off : x.off+x.bytes] }

// take finds room on a rank's GPU that the call does not use yet.
func (m *mix) take(rk *gp.Rank, typ gp.Type, n int) (part, error) {
	gpu := rk.Device().Ordinal()
	var p *piece
	for p == nil || p.used {
		p = m.pieces[gpu][m.r.IntN(len(m.pieces[gpu]))]
	}
	p.used = true
	if m.r.IntN(4) == 0 {
		if err := m.move(p, m.streams[gpu][m.r.IntN(len(m.streams[gpu]))]); err != nil {
			return part{}, err
		}
	}
	return m.part(rk, p, typ, n)
}

func (m *mix) part(rk *gp.Rank, p *piece, typ gp.Type, n int) (part, error) {
	x := part{piece: p, bytes: n * typ.Size()}
	x.off = m.r.IntN((m.bytes-x.bytes)/typ.Size()+1) * typ.Size()
	var err error
	x.b, err = rk.Wrap(p.mem.Ptr()+cuda.Ptr(x.off), typ, n, p.stream)
	return x, err
}

func (m *mix) options(alg gp.Algorithm) gp.CallOptions {
	return gp.CallOptions{Algorithm: alg, Chunk: m.chunks[m.r.IntN(len(m.chunks))]}
}

// call makes one call, does the same on the host, and sometimes waits for it.
func (m *mix) call() error {
	w, err := m.enqueue(m.groups[m.r.IntN(len(m.groups))])
	if err != nil {
		return err
	}
	switch m.r.IntN(6) {
	case 0:
		return w.Wait(background)
	case 1:
		return w.Before(m.streams[0][m.r.IntN(len(m.streams[0]))])
	}
	return nil
}

// enqueue makes one call and, if the group takes it, does the same on the host.
func (m *mix) enqueue(g *gp.Group) (w gp.Work, err error) {
	m.unused()
	ranks := g.Ranks()
	switch m.r.IntN(8) {
	case 0, 1:
		n := m.r.IntN(m.bytes + 1)
		dst, err := m.take(ranks[m.r.IntN(len(ranks))], gp.TypeUint8, n)
		if err != nil {
			return w, err
		}
		src, err := m.take(ranks[m.r.IntN(len(ranks))], gp.TypeUint8, n)
		if err != nil {
			return w, err
		}
		m.note("copy of %d bytes from rank %d to rank %d", n, src.b.Rank().Index(), dst.b.Rank().Index())
		if w, err = g.With(m.options("")).Copy(dst.b, src.b); err == nil {
			copy(dst.held(), src.held())
		}
		return w, err
	case 2:
		return m.batch(g)
	case 3:
		x, err := m.take(ranks[m.r.IntN(len(ranks))], gp.TypeUint8, m.r.IntN(2000))
		if err != nil {
			return w, err
		}
		return w, m.write(background, x)
	default:
		return m.collective(g, byGroup)
	}
}

func (m *mix) unused() {
	for _, ps := range m.pieces {
		for _, p := range ps {
			p.used = false
		}
	}
}

// write fills a part. A write that was given up may have written some of it, so
// then the whole piece is written again, without the group.
func (m *mix) write(ctx context.Context, x part) error {
	m.note("write of %d bytes", x.bytes)
	copy(x.held(), randomBytes(m.r, x.bytes))
	err := x.b.Write(ctx, x.held())
	if err == nil {
		return nil
	}
	cc := x.stream.Context()
	for _, f := range []func() error{
		x.stream.Synchronize, func() error { return cc.MemcpyHtoD(x.mem.Ptr(), x.data) }, cc.LegacyStream().Synchronize,
	} {
		if e := f(); e != nil {
			return fmt.Errorf("%w (of a piece whose write ended in: %s)", e, err)
		}
	}
	return err
}

// batch is transfers in which each rank has one stream.
func (m *mix) batch(g *gp.Group) (gp.Work, error) {
	ranks := g.Ranks()
	type ends struct{ out, in *piece }
	of := make([]ends, len(ranks))
	for i, rk := range ranks {
		out, err := m.take(rk, gp.TypeUint8, 0)
		if err != nil {
			return gp.Work{}, err
		}
		in, err := m.take(rk, gp.TypeUint8, 0)
		if err != nil {
			return gp.Work{}, err
		}
		if err := m.move(in.piece, out.stream); err != nil {
			return gp.Work{}, err
		}
		of[i] = ends{out.piece, in.piece}
	}
	var ts []gp.Transfer
	var moves [][2][]byte
	taken := make([]int, len(ranks))
	for range m.r.IntN(5) {
		from, to, n := m.r.IntN(len(ranks)), m.r.IntN(len(ranks)), m.r.IntN(m.bytes/4)
		src, err := m.part(ranks[from], of[from].out, gp.TypeUint8, n)
		if err != nil {
			return gp.Work{}, err
		}
		p := of[to].in
		if taken[to]+n > m.bytes {
			continue
		}
		b, err := ranks[to].Wrap(p.mem.Ptr()+cuda.Ptr(taken[to]), gp.TypeUint8, n, p.stream)
		if err != nil {
			return gp.Work{}, err
		}
		moves = append(moves, [2][]byte{p.data[taken[to] : taken[to]+n], src.held()})
		taken[to] += n
		m.note("transfer of %d bytes from rank %d to rank %d", n, from, to)
		ts = append(ts, gp.Transfer{Dst: b, Src: src.b})
	}
	w, err := g.With(m.options("")).SendRecv(ts...)
	if err == nil {
		for _, x := range moves {
			copy(x[0], x[1])
		}
	}
	return w, err
}

// A caller makes the call of a collective. Its buffers are in rank order, without
// those of ranks that have none.
type caller func(g *gp.Group, c operation, o gp.CallOptions, dst, src []gp.Buffer) (gp.Work, error)

// byGroup calls the group's method, which speaks for all ranks.
func byGroup(g *gp.Group, c operation, o gp.CallOptions, dst, src []gp.Buffer) (gp.Work, error) {
	with := g.With(o)
	switch c.op {
	case "all_reduce":
		return with.AllReduceTo(dst, src, c.red)
	case "all_gather":
		return with.AllGather(dst, src)
	case "reduce_scatter":
		return with.ReduceScatter(dst, src, c.red)
	case "broadcast":
		return with.Broadcast(dst, src[0])
	case "reduce":
		return with.Reduce(dst[0], src, c.red)
	}
	return with.AllToAll(dst, src)
}

// collective makes one, in place if that is the only form of it that there is.
func (m *mix) collective(g *gp.Group, do caller, mustInPlace ...string) (gp.Work, error) {
	m.unused()
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
	c.n = m.r.IntN(m.bytes/c.typ.Size()/max(dp, sp) + 1)
	if m.r.IntN(2) == 0 {
		c.n = min(c.n, m.r.IntN(40))
	}
	c.root = m.r.IntN(len(ranks))
	c.inPlace = c.op != "all_to_all" && c.op != "reduce_scatter" && (m.r.IntN(3) == 0 || slices.Contains(mustInPlace, c.op))
	dst, src := make([]part, len(ranks)), make([]part, len(ranks))
	var ins [][]byte
	var bd, bs []gp.Buffer
	for r, rk := range ranks {
		hasIn, hasOut := c.op != "broadcast" || r == c.root, c.op != "reduce" || r == c.root
		if hasOut {
			var err error
			if dst[r], err = m.take(rk, c.typ, c.n*dp); err != nil {
				return gp.Work{}, err
			}
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
			var err error
			if src[r], err = m.take(rk, c.typ, c.n*sp); err != nil {
				return gp.Work{}, err
			}
		}
		if hasIn {
			bs = append(bs, src[r].b)
			in = append(in, src[r].held()...)
		}
		ins = append(ins, in)
	}
	m.note("%v", c)
	w, err := do(g, c, m.options(c.alg), bd, bs)
	if m.refusal(err) {
		m.note("refused: %v", err)
		return w, nil
	}
	if err != nil {
		return w, err
	}
	if used := gp.Algorithm(w.Algorithm()); used != "none" && used != "" {
		c.alg = used
	}
	if c.alg == gp.AlgorithmOneShot || c.alg == gp.AlgorithmTwoShot {
		m.exchanges++
	}
	for r, out := range c.results(m.t, ins) {
		if dst[r].piece != nil {
			copy(dst[r].held(), out)
		}
	}
	return w, nil
}

// refusal tells whether the group may refuse the call: it asks for an algorithm
// that this group does not have.
func (m *mix) refusal(err error) bool {
	if !errors.Is(err, gp.ErrArgument) {
		return false
	}
	says := err.Error()
	return strings.Contains(says, "areas of pinned memory") || strings.Contains(says, "budget of pinned memory") ||
		m.busy && strings.Contains(says, "do not run at once")
}

// check reads all memory back.
func (m *mix) check() error {
	for gpu, ps := range m.pieces {
		for i, p := range ps {
			if err := p.stream.Synchronize(); err != nil {
				return err
			}
			got := make([]byte, m.bytes)
			if err := m.own[gpu].MemcpyDtoH(got, p.mem.Ptr()); err != nil {
				return err
			}
			if at, n := differ(p.data, got); n > 0 {
				return fmt.Errorf("piece %d of GPU %d: %d of %d bytes differ, the first at %d: got %#x, want %#x", i, gpu, n, m.bytes, at, got[at], p.data[at])
			}
		}
	}
	m.log = m.log[:0]
	return nil
}

// checkAll is check, and that the groups have done all and are well.
func (m *mix) checkAll() {
	require.NoError(m.t, m.check())
	for _, g := range m.groups {
		require.NoError(m.t, g.Synchronize(background))
		require.NoError(m.t, g.Err())
	}
}

// TestMixes runs programs of copies, batches and collectives on random streams. A
// machine serves some programs, with one group or two on the same GPUs, and budgets
// from the least to one with room for areas. GP_SOAK is how many times as many
// programs there are, and GP_SEED makes a run again.
func TestMixes(t *testing.T) {
	gputest.Parallel(t)
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
					require.NoError(t, m.call())
				}
				m.checkAll()
			}
		})
	}
	t.Run("gpu", func(t *testing.T) {
		d := gputest.Hardware(t)
		r := rand.New(rand.NewPCG(seed, 1<<32))
		m := newMix(t, r, d, options(t, d, 3), options(t, d, 2))
		for range 40 {
			for range 1 + r.IntN(2*calls) {
				require.NoError(t, m.call())
			}
			m.checkAll()
		}
	})
}
