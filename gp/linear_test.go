// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api/tap"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
)

// oneNode is a machine with eight GPUs on one NUMA node, so that the ranks' pinned
// memory lies in one block.
func oneNode(t testing.TB, name string) *cuda.Driver {
	t.Helper()
	spec, err := sim.Builtin(name)
	require.NoError(t, err)
	spec.Name += " on one node"
	for i := range spec.GPUs {
		spec.GPUs[i].NUMANode = 0
	}
	m, err := sim.New(spec)
	require.NoError(t, err)
	closeMachine(t, m)
	return m.Driver()
}

// An explained call is one whose driver calls are counted, and told beforehand.
type explained struct {
	name string
	call func(o gp.Ops) (gp.Work, error)
}

// collectives are all collectives of so many bytes a rank, and a batch in which
// each rank sends to its neighbours.
func collectives(t testing.TB, g *gp.Group, bytes int) (calls []explained) {
	ranks := g.Ranks()
	n := len(ranks)
	bytes -= bytes % (512 * n)
	var long, other, short, half []gp.Buffer
	var ts []gp.Transfer
	for _, r := range ranks {
		long = append(long, alloc(t, r, gp.TypeUint8, bytes))
		other = append(other, alloc(t, r, gp.TypeUint8, bytes))
		short = append(short, alloc(t, r, gp.TypeUint8, bytes/n))
	}
	for r := range ranks {
		half = append(half, long[r].Sub(0, bytes))
		ts = append(ts, gp.Transfer{Dst: other[(r+1)%n], Src: half[r]})
	}
	return []explained{
		{"all_reduce", func(o gp.Ops) (gp.Work, error) { return o.AllReduce(long, gp.Sum) }},
		{"all_gather", func(o gp.Ops) (gp.Work, error) { return o.AllGather(long, short) }},
		{"reduce_scatter", func(o gp.Ops) (gp.Work, error) { return o.ReduceScatter(short, long, gp.Sum) }},
		{"broadcast", func(o gp.Ops) (gp.Work, error) { return o.Broadcast(other, long[n-1]) }},
		{"reduce", func(o gp.Ops) (gp.Work, error) { return o.Reduce(other[n-1], long, gp.Sum) }},
		{"all_to_all", func(o gp.Ops) (gp.Work, error) { return o.AllToAll(other, long) }},
		{"send_recv", func(o gp.Ops) (gp.Work, error) { return o.SendRecv(ts...) }},
	}
}

// counted makes a warm call and returns how many driver calls that takes, and how
// many of them copy, having held them to the explanation of it.
func (c explained) counted(t testing.TB, g *gp.Group, tp *tap.Tap, o gp.CallOptions) (all, copies int) {
	t.Helper()
	run := func() {
		w, err := c.call(g.With(o))
		require.NoError(t, err, c.name)
		require.NoError(t, w.Wait(background))
		require.NoError(t, g.Synchronize(background))
	}
	run() // kernels and events are there behind this
	for _, r := range g.Ranks() {
		require.NoError(t, r.Context().Synchronize())
	}
	tp.Reset()
	var e gp.Explanation
	explain := o
	explain.Explain = &e
	w, err := c.call(g.With(explain))
	require.NoError(t, err, c.name)
	require.True(t, w.Done())
	require.Zero(t, tp.Total(), "%s: an explanation makes no driver call", c.name)
	_, err = c.call(g.With(o))
	require.NoError(t, err)
	calls := 0
	for what, n := range tp.Counts() {
		if what != "ThreadExchangeStreamCaptureMode" && what != "EventQuery" && what != "EventCreate" {
			calls += int(n)
		}
	}
	require.Equal(t, e.DriverCalls, calls, "%s %q: %+v: %v", c.name, e.Algorithm, e, tp.Counts())
	require.EqualValues(t, tp.Count("LaunchKernel"), e.Kernels, "%s", c.name)
	require.EqualValues(t, tp.Count("EventRecord"), e.Records, "%s", c.name)
	require.EqualValues(t, tp.Count("StreamWaitEvent"), e.Waits, "%s", c.name)
	require.NoError(t, g.Synchronize(background))
	return calls, e.Copies
}

// TestCallsGrowLinearly: what an operation asks of the driver grows by as much with
// each rank, by every algorithm but the ring; and an explanation counts as the
// driver does. From four ranks on all wait for all through one event, so the count
// begins there. Peer copies are one for each pair, and only the other calls grow so.
func TestCallsGrowLinearly(t *testing.T) {
	gputest.Parallel(t)
	if fewer {
		t.Skip("one thread, and nothing that other tests do not do")
	}
	algorithms := map[string][]gp.Algorithm{
		"all_reduce": {gp.AlgorithmDirect, gp.AlgorithmOneShot, gp.AlgorithmTwoShot, gp.AlgorithmPeer, gp.AlgorithmRing, gp.AlgorithmRingZeroCopy},
		"all_gather": {gp.AlgorithmDirect, gp.AlgorithmOneShot, gp.AlgorithmPeer, gp.AlgorithmRing},
		"send_recv":  {gp.AlgorithmAuto},
	}
	for _, op := range []string{"reduce_scatter", "broadcast", "reduce", "all_to_all"} {
		algorithms[op] = []gp.Algorithm{gp.AlgorithmDirect, gp.AlgorithmPeer}
	}
	const small, large = 48 << 10, 900 << 10 // in one segment, and in two
	got := map[string][]int{}                // by ranks from 2 on
	for ranks := 2; ranks <= 8; ranks++ {
		for _, p2p := range []bool{false, true} {
			machine := "8x4090"
			if p2p {
				machine = "8x4090-p2p"
			}
			tapped, tp := gputest.Tapped(t, oneNode(t, machine))
			o := options(t, tapped, ranks)
			o.PinnedBytes = 16 << 20
			if p2p {
				o.P2P = gp.P2PTrust
			}
			g := open(t, o)
			for _, bytes := range []int{small, large} {
				for _, c := range collectives(t, g, bytes) {
					for _, alg := range algorithms[c.name] {
						if (alg == gp.AlgorithmPeer) != p2p && c.name != "send_recv" || bytes == large && alg == gp.AlgorithmOneShot {
							continue
						}
						calls, copies := c.counted(t, g, tp, gp.CallOptions{Algorithm: alg, Chunk: 512 << 10})
						name := fmt.Sprintf("%s %s of %d bytes", c.name, alg, bytes)
						if p2p {
							name += ", without copies"
							calls -= copies
						}
						got[name] = append(got[name], calls)
					}
				}
			}
			require.NoError(t, g.Close())
			runtime.GC() // or the machines' pinned memory adds up
		}
	}
	for name, n := range got {
		require.Len(t, n, 7)
		bent := false
		for k := 4; k < len(n); k++ {
			bent = bent || n[k]-n[k-1] != n[k-1]-n[k-2]
		}
		require.Equal(t, strings.Contains(name, "ring"), bent, "%s: %v", name, n)
	}
}
