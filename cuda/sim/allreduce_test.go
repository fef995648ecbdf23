// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

func TestAllReduceOfEightIsQuick(t *testing.T) {
	m, err := sim.Open("8x4090")
	require.NoError(t, err)
	g, err := gp.Open(gp.Options{Driver: m.Driver()})
	require.NoError(t, err)
	n := 64 << 20 / 4
	if testenv.Race { // which looks at each byte that is copied
		n /= 64
	}
	ones := make([]float32, n)
	for i := range ones {
		ones[i] = float32(i%7 - 3)
	}
	ctx := context.Background()
	var bufs []gp.Buffer
	for _, r := range g.Ranks() {
		b, err := gp.Upload(ctx, r, ones)
		require.NoError(t, err)
		bufs = append(bufs, b)
	}
	now := hook.Seam(m.Driver()).Host().Now
	// The first call loads kernels.
	small := make([]gp.Buffer, len(bufs))
	for i, r := range g.Ranks() {
		small[i], err = gp.Upload(ctx, r, ones[:64])
		require.NoError(t, err)
	}
	w, err := g.AllReduce(small, gp.Sum)
	require.NoError(t, err)
	require.NoError(t, w.Wait(ctx))
	start, used, clock := time.Now(), processorTime(), now()
	w, err = g.AllReduce(bufs, gp.Sum)
	require.NoError(t, err)
	require.NoError(t, w.Wait(ctx))
	took := processorTime() - used
	t.Logf("all_reduce of %d bytes on 8 ranks: %v of real time, %v of it working; %v modelled", 4*n,
		time.Since(start).Round(time.Millisecond), took.Round(time.Millisecond), (now() - clock).Round(time.Microsecond))
	got := make([]float32, n)
	require.NoError(t, gp.Download(ctx, got, bufs[5]))
	for i, v := range got {
		if v != 8*ones[i] {
			t.Fatalf("element %d is %v, want %v", i, v, 8*ones[i])
		}
	}
	if !testenv.Race && testenv.Optimized() {
		require.Less(t, took, 5*time.Second)
	}
	for _, b := range append(bufs, small...) {
		require.NoError(t, b.Free())
	}
	require.NoError(t, g.Close())
	require.NoError(t, m.Close())
}
