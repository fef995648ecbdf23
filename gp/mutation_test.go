// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api/tap"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
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
}

var scenes = []scene{
	{name: "copies of one chunk", ranks: 2, calls: 3, n: 600 << 10, chunk: 1 << 20, op: "copy"},
	{name: "copies in chunks", ranks: 2, calls: 3, n: 900 << 10, chunk: 192 << 10, op: "copy"},
	{name: "local copy", ranks: 2, calls: 2, n: 10_000, op: "local"},
	{name: "direct copy", ranks: 2, peers: true, calls: 2, n: 10_000, op: "copy"},
	{name: "small all_reduces", ranks: 2, calls: 9, n: 120 << 10, op: "all_reduce", alg: gp.AlgorithmRing},
	{name: "all_reduces", ranks: 2, calls: 2, n: 1 << 20, chunk: 192 << 10, op: "all_reduce", alg: gp.AlgorithmRing},
	{name: "all_reduce of three", ranks: 3, calls: 2, n: 1 << 20, chunk: 192 << 10, op: "all_reduce", alg: gp.AlgorithmRing},
	{name: "all_reduces without scratch", ranks: 2, calls: 2, n: 1 << 20, chunk: 192 << 10, op: "all_reduce", alg: gp.AlgorithmRingZeroCopy},
	{name: "all_gathers", ranks: 3, calls: 2, n: 700 << 10, chunk: 192 << 10, op: "all_gather", alg: gp.AlgorithmDirect},
	{name: "all_gathers around the ring", ranks: 2, calls: 2, n: 700 << 10, chunk: 192 << 10, op: "all_gather", alg: gp.AlgorithmRing},
}

// play plays the scene once and tells whether every byte was right. The tap is
// as mutate leaves it.
func (s scene) play(t testing.TB, seed uint64, mutate func(tp *tap.Tap)) (right bool, tp *tap.Tap) {
	var d *cuda.Driver
	if s.peers {
		d = peeredMachine(t, sim.Seed(seed))
	} else {
		d = simulated(t, sim.Seed(seed))
	}
	tapped, tp := gputest.Tapped(t, d)
	o := options(t, tapped, s.ranks)
	if s.peers {
		o.P2P = gp.P2PTrust
	}
	g := open(t, o)
	ranks := g.Ranks()
	times := 1
	if s.op == "all_gather" {
		times = s.ranks
	}
	var src, dst, seen []gp.Buffer
	var from, to []*cuda.Stream
	var prods []*producer
	for i, r := range ranks {
		from, to = append(from, newStream(t, r)), append(to, newStream(t, r))
		src = append(src, alloc(t, r, gp.TypeUint8, s.n).On(from[i]))
		dst = append(dst, alloc(t, r, gp.TypeUint8, times*s.n).On(to[i]))
		seen = append(seen, alloc(t, r, gp.TypeUint8, s.calls*times*s.n).On(to[i]))
		prods = append(prods, newProducer(t, r.Context()))
	}
	tp.Reset()
	tp.Log()
	mutate(tp)
	ops := g.With(gp.CallOptions{Chunk: s.chunk, Algorithm: s.alg})
	readers := []int{len(ranks) - 1} // whose destination is looked at
	for k := range s.calls {
		var err error
		for i := range ranks {
			prods[i].fill(from[i], src[i].Ptr(), s.n, 10*k+i, time.Duration(i+1)*20*time.Microsecond)
			require.NoError(t, to[i].MemsetD8(dst[i].Ptr(), 0xa1, dst[i].Bytes()))
		}
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
		require.NoError(t, err)
		if s.op == "all_reduce" || s.op == "all_gather" {
			readers = readers[:0]
			for i := range ranks {
				readers = append(readers, i)
			}
		}
		for i := range ranks {
			require.NoError(t, from[i].MemsetD8(src[i].Ptr(), 0xb2, s.n))
			size := dst[i].Bytes()
			require.NoError(t, to[i].MemcpyDtoD(seen[i].Ptr()+cuda.Ptr(k*size), dst[i].Ptr(), size))
			require.NoError(t, to[i].MemsetD8(dst[i].Ptr(), 0xc3, size))
		}
	}
	right = true
	for _, i := range readers {
		got := make([]byte, seen[i].Bytes())
		require.NoError(t, seen[i].Read(background, got))
		for k := range s.calls {
			var ins [][]byte
			for j := range ranks {
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
			right = right && bytes.Equal(want, got[k*len(want):(k+1)*len(want)])
		}
	}
	require.NoError(t, g.Synchronize(background))
	return right, tp
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

// TestEveryWaitMatters leaves out one wait of each scene after another: with
// some order of the rest, bytes must come out wrong. What no byte misses is
// listed: either the data's own way makes the wait superfluous, as where a queue
// reads the destination only behind another that was fenced, or no order was
// unlucky enough. Each run draws some of the waits; GP_EVERY_WAIT=1 takes all.
func TestEveryWaitMatters(t *testing.T) {
	if testenv.Race {
		t.Skip("the order of simulated work is not the order of goroutines")
	}
	seeds, sample := uint64(8), 4
	all := os.Getenv("GP_EVERY_WAIT") != ""
	if all {
		seeds, sample = 30, 1<<30
	}
	for _, s := range scenes {
		t.Run(s.name, func(t *testing.T) {
			waits := 0
			for seed := uint64(1); seed <= 2; seed++ {
				t.Run("whole", func(t *testing.T) {
					right, tp := s.play(t, seed, func(*tap.Tap) {})
					require.True(t, right)
					waits = int(tp.Count("StreamWaitEvent"))
				})
			}
			require.Positive(t, waits)
			picks := rand.Perm(waits)
			picks = picks[:min(sample, waits)]
			slices.Sort(picks)
			missed := 0
			for _, k := range picks {
				k++
				caught := false
				var calls []string
				for seed := uint64(1); seed <= seeds && !caught; seed++ {
					t.Run(fmt.Sprintf("without wait %d", k), func(t *testing.T) {
						right, tp := s.play(t, seed, func(tp *tap.Tap) { tp.Skip("StreamWaitEvent", k) })
						caught, calls = !right, tp.Calls()
					})
				}
				if !caught {
					missed++
					t.Logf("wait %d of %d: %s", k, waits, around(calls, k))
				}
			}
			t.Logf("%d waits of %d: %d were missed by no byte", len(picks), waits, missed)
			if all || waits <= sample {
				require.LessOrEqual(t, 3*missed, waits, "too many waits matter to no byte")
			}
			require.Less(t, missed, len(picks), "not one of the waits matters")
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
