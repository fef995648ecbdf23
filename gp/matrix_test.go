// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
)

// machineOf is a simulated machine by name, whose leaks and races fail the test.
func machineOf(t testing.TB, name string, opts ...sim.Option) *cuda.Driver {
	t.Helper()
	m, err := sim.Open(name, append([]sim.Option{sim.Watch(), sim.KeepSites()}, opts...)...)
	require.NoError(t, err)
	closeMachine(t, m)
	return m.Driver()
}

// peerOptions are those of a group of n ranks, each with a GPU of its own, that
// uses P2P between all of them.
func peerOptions(t testing.TB, n int) gp.Options {
	t.Helper()
	o := options(t, machineOf(t, "8x4090-p2p"), n)
	o.P2P = gp.P2PTrust
	return o
}

// TestEveryPairOfTypeAndReduction does, on GPUs that no two ranks share, the pairs
// of type and reduction that TestOperations leaves out.
func TestEveryPairOfTypeAndReduction(t *testing.T) {
	gputest.Parallel(t)
	sizes := []int{1, 2, 3, 7, 17, 255}
	for _, ranks := range []int{3, 4, 5, 8} {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			o := options(t, machineOf(t, "8x4090"), ranks)
			o.PinnedBytes = roomy
			g := open(t, o)
			f := newFields(t, g, (255+64)*8*8)
			for _, c := range operations(ranks) {
				f.pairs(c, sizes, func(ti, oi int) bool {
					// Of many ranks, which take long, some of them.
					return (ti+oi+ranks)%3 != 0 && (ranks < 5 || f.r.IntN(2) == 0) && (!fewer || f.r.IntN(12) == 0)
				})
			}
			require.NoError(t, g.Err())
		})
	}
}

// pairs runs the operation for some pairs of type and reduction.
func (f *fields) pairs(c operation, sizes []int, some func(ti, oi int) bool) {
	ranks := len(f.g.Ranks())
	for ti := range allTypes {
		for oi := range allOps {
			if !c.reduces() && oi > 0 || !some(ti, oi) {
				continue
			}
			c.typ, c.red = allTypes[ti], allOps[oi]
			c.n, c.root = sizes[f.r.IntN(len(sizes))], f.r.IntN(ranks)
			c.chunk = []int{0, 48, 2048}[f.r.IntN(3)]
			c.inPlace = c.op != "all_to_all" && f.r.IntN(2) == 0
			f.run(c)
		}
	}
}

// TestPeerOperations runs every collective by peer copies, with every type and
// reduction, in one segment and in many.
func TestPeerOperations(t *testing.T) {
	for _, ranks := range []int{2, 3, 4, 5, 8} {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			g := open(t, peerOptions(t, ranks))
			f := newFields(t, g, (4096+64)*8*8)
			for _, op := range []string{"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all"} {
				f.pairs(operation{op: op, alg: gp.AlgorithmPeer}, counts, func(ti, oi int) bool {
					return (ti+oi+ranks)%6 == 0 && (!fewer || f.r.IntN(6) == 0)
				})
			}
			require.NoError(t, g.Err())
		})
	}
}

// A world is every byte of some allocations, on the host: what they must hold
// when all that was called has run.
type world struct {
	t    testing.TB
	r    *rand.Rand
	mem  [][]gp.Buffer // by rank, of uint8
	data [][][]byte
}

func newWorld(t testing.TB, r *rand.Rand, g *gp.Group, each, bytes int) *world {
	w := &world{t: t, r: r}
	for _, rk := range g.Ranks() {
		var bs []gp.Buffer
		var ds [][]byte
		for range each {
			b, d := alloc(t, rk, gp.TypeUint8, bytes), randomBytes(r, bytes)
			require.NoError(t, b.Write(background, d))
			bs, ds = append(bs, b), append(ds, d)
		}
		w.mem, w.data = append(w.mem, bs), append(w.data, ds)
	}
	return w
}

// check reads everything back, each allocation behind a stream of the rank's.
func (w *world) check(what string, on func(rank int) *cuda.Stream) {
	w.t.Helper()
	for r := range w.mem {
		for i, b := range w.mem[r] {
			got := make([]byte, len(w.data[r][i]))
			require.NoError(w.t, b.On(on(r)).Read(background, got))
			requireBytes(w.t, w.data[r][i], got, "%s: allocation %d of rank %d", what, i, r)
		}
	}
}

// TestSendRecvBatches runs batches of random shape: transfers to the rank itself,
// empty ones, many between one pair, by P2P where there is any.
func TestSendRecvBatches(t *testing.T) {
	const bytes = 40_000
	batches := 40
	if fewer {
		batches = 8
	}
	for _, k := range []struct {
		machine string
		ranks   int
		p2p     gp.P2PMode
	}{{"2x4090", 1, gp.P2POff}, {"2x4090", 3, gp.P2POff}, {"8x4090", 5, gp.P2POff}, {"8x4090-p2p", 4, gp.P2PTrust}} {
		t.Run(fmt.Sprintf("%s, %d", k.machine, k.ranks), func(t *testing.T) {
			o := options(t, machineOf(t, k.machine), k.ranks)
			o.P2P = k.p2p
			g := open(t, o)
			r := generator(t.Name())
			w := newWorld(t, r, g, 4, bytes)
			var streams [][]*cuda.Stream
			for _, rk := range g.Ranks() {
				streams = append(streams, []*cuda.Stream{rk.Stream(), newStream(t, rk), rk.Context().LegacyStream()})
			}
			for i := range batches {
				// Allocations 0 and 1 are sent from, 2 and 3 are received into.
				on := make([]*cuda.Stream, k.ranks)
				for rank := range on {
					on[rank] = streams[rank][r.IntN(3)]
				}
				free := make([][2]int, k.ranks) // where in 2 and 3 the next transfer goes
				var ts []gp.Transfer
				for range r.IntN(9) {
					from, to, side := r.IntN(k.ranks), r.IntN(k.ranks), r.IntN(2)
					n := []int{0, 1, 17, 1000, 9001}[r.IntN(5)]
					at, src := free[to][side]+r.IntN(3), r.IntN(2)
					if at+n > bytes {
						continue
					}
					free[to][side] = at + n
					off := r.IntN(bytes - n)
					copy(w.data[to][2+side][at:at+n], w.data[from][src][off:off+n])
					ts = append(ts, gp.Transfer{
						Dst: w.mem[to][2+side].Sub(at, at+n).On(on[to]), Src: w.mem[from][src].Sub(off, off+n).On(on[from]),
					})
				}
				ops := g.With(gp.CallOptions{Chunk: []int{0, 16, 4096}[r.IntN(3)], Route: []gp.Route{gp.RouteAuto, gp.RouteStaged}[r.IntN(2)]})
				work, err := ops.SendRecv(ts...)
				require.NoError(t, err)
				if r.IntN(2) == 0 {
					require.NoError(t, work.Wait(background))
				}
				if i%4 == 3 {
					w.check(fmt.Sprintf("batch %d", i), func(rank int) *cuda.Stream { return on[rank] })
				}
				require.NoError(t, g.Synchronize(background)) // the next batch is on other streams
			}
			require.NoError(t, g.Err())
		})
	}
}

// TestSendRecvRefuses: what does not fit together enqueues nothing.
func TestSendRecvRefuses(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Driver) {
		x := newBench(t, d)
		to := func(dst, src gp.Buffer) gp.Transfer { return gp.Transfer{Dst: dst, Src: src} }
		other := newStream(t, x.r0)
		many := make([]gp.Transfer, gp.MaxTransfers+1)
		for i := range many {
			many[i] = to(x.b.Sub(0, 0), x.a.Sub(0, 0))
		}
		for name, c := range map[string]struct {
			says string
			ts   []gp.Transfer
			o    gp.CallOptions
		}{
			"types":        {"int32", []gp.Transfer{to(as(t, x.b, gp.TypeInt32, 0, 10), x.a.Sub(0, 10))}, gp.CallOptions{}},
			"lengths":      {"9", []gp.Transfer{to(x.b.Sub(0, 9), x.a.Sub(0, 10))}, gp.CallOptions{}},
			"overlap":      {"overlap", []gp.Transfer{to(x.b.Sub(0, 10), x.a.Sub(0, 10)), to(x.b.Sub(9, 19), x.a.Sub(0, 10))}, gp.CallOptions{}},
			"into itself":  {"overlap", []gp.Transfer{to(x.a.Sub(0, 10), x.a.Sub(5, 15))}, gp.CallOptions{}},
			"in a circle":  {"overlap", []gp.Transfer{to(x.b.Sub(0, 10), x.a.Sub(0, 10)), to(x.a.Sub(5, 15), x.b.Sub(20, 30))}, gp.CallOptions{}},
			"two streams":  {"two streams", []gp.Transfer{to(x.b.Sub(0, 5), x.a.Sub(0, 5).On(other)), to(x.b.Sub(5, 10), x.a.Sub(5, 10))}, gp.CallOptions{}},
			"no buffer":    {"zero Buffer", []gp.Transfer{to(x.b, gp.Buffer{})}, gp.CallOptions{}},
			"too many":     {"257", many, gp.CallOptions{}},
			"algorithm":    {`"ring"`, []gp.Transfer{to(x.b, x.a)}, gp.CallOptions{Algorithm: gp.AlgorithmRing}},
			"direct route": {`"direct"`, []gp.Transfer{to(x.b, x.a)}, gp.CallOptions{Route: gp.RouteDirect}},
			"chunk":        {"-2", []gp.Transfer{to(x.b, x.a)}, gp.CallOptions{Chunk: -2}},
		} {
			x.refused(name, gp.ErrArgument, c.says, func() error { return only(x.g.With(c.o).SendRecv(c.ts...)) })
		}
		w, err := x.g.SendRecv()
		require.NoError(t, err)
		require.True(t, w.Done())
	})
}

// TestEmptyBatch: a batch that moves nothing is over when all its streams are in
// order, not the last transfer's alone, and refuses captured streams before it
// orders any.
func TestEmptyBatch(t *testing.T) {
	d := machineOf(t, "4x4090")
	tapped, tp := gputest.Tapped(t, d)
	g := group(t, tapped, 4)
	var long, none []gp.Buffer
	for _, r := range g.Ranks() {
		b := alloc(t, r, gp.TypeUint8, 8<<20)
		long, none = append(long, b), append(none, b.Sub(0, 0))
	}
	slow, err := g.Copy(long[1], long[0])
	require.NoError(t, err)
	ts := []gp.Transfer{{Dst: none[2], Src: none[1]}, {Dst: none[3], Src: none[3]}}
	w, err := g.SendRecv(ts...)
	require.NoError(t, err)
	require.False(t, w.Done())
	require.NoError(t, w.Wait(background))
	require.True(t, slow.Done())

	var e gp.Explanation
	_, err = g.With(gp.CallOptions{Explain: &e}).SendRecv(ts...)
	require.NoError(t, err)
	require.Equal(t, 3, e.Records, "the first source's, and a destination's each")
	require.Equal(t, 1, e.Waits)

	captured := newStream(t, g.Ranks()[3])
	cc := captured.Context()
	require.NoError(t, cc.Do(func() error {
		require.Equal(t, api.Success, seam(d).StreamBeginCapture(captured.Handle(), api.CaptureGlobal))
		return nil
	}))
	on := none[3].On(captured)
	tp.Reset()
	_, err = g.SendRecv(ts[0], gp.Transfer{Dst: on, Src: on})
	require.ErrorIs(t, err, gp.ErrCapturing)
	require.Zero(t, tp.Counts()["EventRecord"])
	require.NoError(t, g.Err())
	require.NoError(t, cc.Do(func() error {
		graph, c := seam(d).StreamEndCapture(captured.Handle())
		require.Equal(t, api.Success, c)
		if graph != 0 {
			require.Equal(t, api.Success, seam(d).GraphDestroy(graph))
		}
		return nil
	}))
}

// TestBeforeIsOneWait: of plans whose ends are joined, a stream that is put behind
// the Work waits once, not for each rank.
func TestBeforeIsOneWait(t *testing.T) {
	const n = 4
	o := peerOptions(t, n)
	tapped, tp := gputest.Tapped(t, o.Driver)
	o.Driver = tapped
	g := open(t, o)
	var long, other, short []gp.Buffer
	for _, r := range g.Ranks() {
		long, other = append(long, alloc(t, r, gp.TypeUint8, n*100_000)), append(other, alloc(t, r, gp.TypeUint8, n*100_000))
		short = append(short, alloc(t, r, gp.TypeUint8, 100_000))
	}
	s := newStream(t, g.Ranks()[1])
	for _, alg := range []gp.Algorithm{gp.AlgorithmPeer, gp.AlgorithmDirect} {
		o := g.With(gp.CallOptions{Algorithm: alg, Chunk: 64 << 10})
		for name, call := range map[string]func() (gp.Work, error){
			"all_reduce":     func() (gp.Work, error) { return o.AllReduce(long, gp.Max) },
			"all_gather":     func() (gp.Work, error) { return o.AllGather(long, short) },
			"reduce_scatter": func() (gp.Work, error) { return o.ReduceScatter(short, long, gp.Max) },
			"reduce":         func() (gp.Work, error) { return o.Reduce(other[2], long, gp.Max) },
			"all_to_all":     func() (gp.Work, error) { return o.AllToAll(other, long) },
			"broadcast":      func() (gp.Work, error) { return o.Broadcast(other, long[1]) },
		} {
			if name == "broadcast" && alg == gp.AlgorithmDirect {
				continue // nobody waits for all there
			}
			w, err := call()
			require.NoError(t, err)
			tp.Reset()
			require.NoError(t, w.Before(s))
			require.Equal(t, uint64(1), tp.Counts()["StreamWaitEvent"], "%s %s", alg, name)
			require.NoError(t, w.Wait(background))
		}
	}
}
