// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
)

// TestSmoke is the whole in one page: copy, all_reduce and all_gather between
// two simulated GPUs.
func TestSmoke(t *testing.T) {
	ctx := context.Background()
	m, err := sim.Open("2x4090")
	require.NoError(t, err)
	g, err := gp.Open(gp.Options{Driver: m.Driver()})
	require.NoError(t, err)
	v := make([]float32, 500_001)
	for i := range v {
		v[i] = float32(i % 1000)
	}
	a, err := gp.Upload(ctx, g.Ranks()[0], v)
	require.NoError(t, err)
	b, err := g.Ranks()[1].Alloc(gp.TypeFloat32, len(v))
	require.NoError(t, err)
	w, err := g.Copy(b, a)
	require.NoError(t, err)
	require.NoError(t, w.Wait(ctx))
	got := make([]float32, len(v))
	require.NoError(t, gp.Download(ctx, got, b))
	require.True(t, slices.Equal(v, got))
	for _, alg := range []gp.Algorithm{gp.AlgorithmRing, gp.AlgorithmRingZeroCopy} {
		w, err = g.With(gp.CallOptions{Algorithm: alg}).AllReduce([]gp.Buffer{a, b}, gp.Sum)
		require.NoError(t, err)
		require.NoError(t, w.Wait(ctx))
	}
	require.NoError(t, gp.Download(ctx, got, a))
	for i := range v {
		if got[i] != 4*v[i] {
			t.Fatalf("element %d is %v, want %v", i, got[i], 4*v[i])
		}
	}
	var out []gp.Buffer
	for _, r := range g.Ranks() {
		o, err := r.Alloc(gp.TypeFloat32, 2*len(v))
		require.NoError(t, err)
		out = append(out, o)
	}
	w, err = g.AllGather(out, []gp.Buffer{a, b})
	require.NoError(t, err)
	require.NoError(t, w.Wait(ctx))
	require.NoError(t, g.Close())
	require.NoError(t, m.Close())
}
