// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
	"github.com/geforce-p2p/geforce-p2p/internal/ptxvm"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// interpretFold makes a run of a fold of two inputs of 256 KiB, which returns the
// instructions that all threads ran together.
func interpretFold(t testing.TB, typ dtype.Type) func() uint64 {
	count := 256 << 10 / typ.Size()
	a := newArena(count)
	c := a.newFold(typ, dtype.Sum, count, shapes(typ)[0], false, rand.New(rand.NewPCG(1, 2)))
	l := ptxvm.Launch{
		Program: compileEmbedded(t, kernel.FoldModule(typ), kernel.FoldEntry(typ, dtype.Sum)),
		Grid:    [3]uint32{kernel.Blocks(uint64(len(c.dst)))}, Block: [3]uint32{kernel.BlockThreads}, Params: c.f.Append(nil),
	}
	return func() uint64 {
		n, err := ptxvm.Run(l, a)
		require.NoError(t, err)
		return n
	}
}

// interpretExchange is interpretFold for an all_reduce of two ranks in LL words,
// 64 KiB each, in steps as the simulator runs them, and with the memory of a run.
func interpretExchange(t testing.TB) func() uint64 {
	const count = 64 << 10 / 4
	p := compileEmbedded(t, llF32, Entries(llF32)[0])
	grid, block := kernel.ExchangeShape(kernel.OneShot, 4*count, 2, 2)
	c := newCrew(t, 2, 4*count, 4*count, 0, crewArena(2, 4*count+64, 4*count+64))
	return func() (n uint64) {
		c.epoch++
		var ms []*ptxvm.Member
		for rank := range 2 {
			x := c.exchange(kernel.OneShot, dtype.Sum, count, 0, rank)
			l := ptxvm.Launch{Program: p, Grid: [3]uint32{grid}, Block: [3]uint32{block}, Params: x.Append(nil, dtype.Float32)}
			ms = append(ms, ptxvm.NewMember(l, x.DeadlineNs))
		}
		for left := len(ms); left > 0; {
			left = 0
			for _, m := range ms {
				done, _, err := m.Step(c.mem)
				require.NoError(t, err)
				if !done {
					left++
				}
			}
		}
		for _, m := range ms {
			n += m.Steps()
		}
		return n
	}
}

// leastRate is the instructions that a thread must run a second on one core, all
// threads together.
const leastRate = 20e6

func TestInterpreterRate(t *testing.T) {
	testenv.SkipUnlessOptimized(t)
	for name, run := range map[string]func() uint64{"fold": interpretFold(t, dtype.Float32), "exchange": interpretExchange(t)} {
		best := 0.0
		for range 5 {
			start := time.Now()
			n := run()
			if best = max(best, float64(n)/time.Since(start).Seconds()); best > 3*leastRate {
				break
			}
		}
		t.Logf("%s: %.0f million instructions a second", name, best/1e6)
		require.Greater(t, best, leastRate, name)
	}
}

func BenchmarkInterpreter(b *testing.B) {
	runs := map[string]func() uint64{"exchange": interpretExchange(b)}
	for _, typ := range []dtype.Type{dtype.Float32, dtype.BFloat16, dtype.Int8} {
		runs[fmt.Sprint("fold ", typ)] = interpretFold(b, typ)
	}
	for name, run := range runs {
		b.Run(name, func(b *testing.B) {
			var n uint64
			for b.Loop() {
				n += run()
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds()/1e6, "Minstr/s")
		})
	}
}
