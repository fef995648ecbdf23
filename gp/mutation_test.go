// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api/tap"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// A scene is some calls back to back, between producers that are late and work
// that overwrites both ends right behind them.
type scene struct {
	name  string
	ranks int
	peers bool
	calls int
	n     int // bytes a source
	chunk int
	alg   gp.Algorithm
	op    string
	// superfluous is the waits that no access needs. In a collective that is
	// not in place and whose two buffers have streams of their own, both lanes
	// wait for both streams and both streams for both lanes, though a lane may
	// not touch one of the buffers, or only behind the other lane. And a region
	// that several runs have used waits for the marks of each, though the last
	// of them has waited for the others.
	superfluous int
}

var scenes = []scene{
	{name: "copies of one chunk", ranks: 2, calls: 3, n: 600 << 10, chunk: 1 << 20, op: "copy"},
	{name: "copies in chunks", ranks: 2, calls: 3, n: 900 << 10, chunk: 192 << 10, op: "copy"},
	{name: "local copy", ranks: 2, calls: 2, n: 10_000, op: "local"},
	{name: "direct copy", ranks: 2, peers: true, calls: 2, n: 10_000, op: "copy"},
	{name: "small all_reduces", ranks: 2, calls: 9, n: 120 << 10, op: "all_reduce", alg: gp.AlgorithmRing, superfluous: 4},
	{name: "all_reduces", ranks: 2, calls: 2, n: 1 << 20, chunk: 192 << 10, op: "all_reduce", alg: gp.AlgorithmRing, superfluous: 12},
	{name: "all_reduce of three", ranks: 3, calls: 2, n: 1 << 20, chunk: 192 << 10, op: "all_reduce", alg: gp.AlgorithmRing, superfluous: 18},
	{name: "all_reduces without scratch", ranks: 2, calls: 2, n: 1 << 20, chunk: 192 << 10, op: "all_reduce", alg: gp.AlgorithmRingZeroCopy, superfluous: 12},
	{name: "all_gathers", ranks: 3, calls: 2, n: 700 << 10, chunk: 192 << 10, op: "all_gather", alg: gp.AlgorithmDirect, superfluous: 12},
	{name: "all_gathers around the ring", ranks: 2, calls: 2, n: 700 << 10, chunk: 192 << 10, op: "all_gather", alg: gp.AlgorithmRing, superfluous: 8},
}

// play plays the scene without the k-th wait, or whole if k is 0, on a machine
// that finds races. It tells whether there was one, whether every byte was
// right, how many waits there were and what calls.
func (s scene) play(t testing.TB, k int) (raced, right bool, waits int, calls []string) {
	spec, err := sim.Builtin(machine)
	require.NoError(t, err)
	if s.peers {
		for i := range spec.PeerAccess {
			for j := range spec.PeerAccess[i] {
				spec.PeerAccess[i][j] = i != j
			}
		}
	}
	m, err := sim.New(spec, sim.Watch())
	require.NoError(t, err)
	tp := tap.New(seam(m.Driver()))
	o := options(t, over(t, tp), s.ranks)
	if s.peers {
		o.P2P = gp.P2PTrust
	}
	g, err := gp.Open(o)
	require.NoError(t, err)
	ranks := g.Ranks()
	times := 1
	if s.op == "all_gather" {
		times = s.ranks
	}
	var src, dst, seen []gp.Buffer
	var from, to []*cuda.Stream
	var mods []*cuda.Module
	var prods []*producer
	for i, r := range ranks {
		for _, list := range []*[]*cuda.Stream{&from, &to} {
			st, err := r.Context().NewStream()
			require.NoError(t, err)
			*list = append(*list, st)
		}
		mod, err := r.Context().LoadModule([]byte(producePTX))
		require.NoError(t, err)
		fn, err := mod.Function(produceEntry)
		require.NoError(t, err)
		mods, prods = append(mods, mod), append(prods, &producer{t, fn})
		src = append(src, alloc(t, r, gp.TypeUint8, s.n).On(from[i]))
		dst = append(dst, alloc(t, r, gp.TypeUint8, times*s.n).On(to[i]))
		seen = append(seen, alloc(t, r, gp.TypeUint8, s.calls*times*s.n).On(to[i]))
	}
	tp.Reset()
	tp.Log()
	if k > 0 {
		tp.Skip("StreamWaitEvent", k)
	}
	right = s.act(g, prods, from, to, src, dst, seen)
	waits, calls = int(tp.Count("StreamWaitEvent")), tp.Calls()
	tp.Reset()
	// A race loses the context, so what follows need not go well.
	for i := range ranks {
		_ = from[i].Close()
		_ = to[i].Close()
		_ = mods[i].Close()
	}
	_ = g.Close()
	var race *sim.RaceError
	err = m.Close()
	if raced = errors.As(err, &race); !raced {
		require.NoError(t, err)
	}
	return raced, right, waits, calls
}

// act makes the calls and reads the results.
func (s scene) act(g *gp.Group, prods []*producer, from, to []*cuda.Stream, src, dst, seen []gp.Buffer) (right bool) {
	ops := g.With(gp.CallOptions{Chunk: s.chunk, Algorithm: s.alg})
	for k := range s.calls {
		var errs []error
		for i, p := range prods {
			errs = append(errs, p.enqueue(from[i], src[i].Ptr(), s.n, 10*k+i, time.Duration(i+1)*20*time.Microsecond),
				to[i].MemsetD8(dst[i].Ptr(), 0xa1, dst[i].Bytes()))
		}
		var err error
		switch s.op {
		case "copy":
			_, err = ops.Copy(dst[1], src[0])
		case "local":
			_, err = ops.Copy(dst[1], src[1])
		case "all_reduce":
			_, err = ops.AllReduceTo(dst, src, gp.Sum)
		case "all_gather":
			_, err = ops.AllGather(dst, src)
		}
		errs = append(errs, err)
		for i := range src {
			size := dst[i].Bytes()
			errs = append(errs, from[i].MemsetD8(src[i].Ptr(), 0xb2, s.n),
				to[i].MemcpyDtoD(seen[i].Ptr()+cuda.Ptr(k*size), dst[i].Ptr(), size),
				to[i].MemsetD8(dst[i].Ptr(), 0xc3, size))
		}
		if errors.Join(errs...) != nil {
			return false
		}
	}
	for i, b := range seen {
		if i == 0 && (s.op == "copy" || s.op == "local") {
			continue
		}
		got := make([]byte, b.Bytes())
		if b.Read(background, got) != nil {
			return false
		}
		for k := range s.calls {
			var ins [][]byte
			for j := range src {
				ins = append(ins, pattern(s.n, 10*k+j))
			}
			var want []byte
			switch s.op {
			case "copy":
				want = ins[0]
			case "local":
				want = ins[1]
			case "all_gather":
				want = bytes.Join(ins, nil)
			default:
				want = sums(ins)
			}
			if !bytes.Equal(want, got[k*len(want):(k+1)*len(want)]) {
				return false
			}
		}
	}
	return true
}

// sums adds bytes, which wrap in any order.
func sums(ins [][]byte) []byte {
	out := bytes.Clone(ins[0])
	for _, in := range ins[1:] {
		for i, b := range in {
			out[i] += b
		}
	}
	return out
}

// TestEveryWaitMatters leaves out one wait of each scene after another. The
// machine must find that two accesses are no longer ordered, or the wait is one
// too many: a call for nothing.
func TestEveryWaitMatters(t *testing.T) {
	if testenv.Race {
		t.Skip("the order of simulated work is not the order of goroutines")
	}
	for _, s := range scenes {
		t.Run(s.name, func(t *testing.T) {
			raced, right, waits, _ := s.play(t, 0)
			require.False(t, raced)
			require.True(t, right)
			require.Positive(t, waits)
			missed, wrong := 0, 0
			for k := 1; k <= waits; k++ {
				raced, right, _, calls := s.play(t, k)
				if !right {
					wrong++
				}
				if !raced {
					require.True(t, right, "wrong bytes without a race, wait %d", k)
					missed++
					t.Logf("superfluous: wait %d of %d: %s", k, waits, around(calls, k))
				}
			}
			require.Equal(t, s.superfluous, missed, "waits of %d that no access needs", waits)
			require.Equal(t, waits-missed, wrong)
		})
	}
}

// around is the calls before and behind the k-th wait.
func around(calls []string, k int) string {
	for i, c := range calls {
		if c == "StreamWaitEvent" {
			if k--; k == 0 {
				return fmt.Sprint(calls[max(0, i-6):i], " *wait* ", calls[i+1:min(len(calls), i+5)])
			}
		}
	}
	return "?"
}
