// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// broken is a driver whose peer copies are to the test's taste.
type broken struct {
	api.Driver
	copy func() api.Code // nil: as they should be
}

func (b broken) MemcpyPeerAsync(dst api.Ptr, dctx api.Context, src api.Ptr, sctx api.Context, n uint64, s api.Stream) api.Code {
	if b.copy != nil {
		return b.copy()
	}
	return b.Driver.MemcpyPeerAsync(dst, dctx, src, sctx, n, s)
}

// grantedPair is a simulated machine of two GPUs whose driver grants P2P, and
// the facts of it that Verify wants.
func grantedPair(t *testing.T, copy func() api.Code) (*cuda.Driver, *Facts) {
	t.Helper()
	spec, err := sim.Builtin("2x4090")
	require.NoError(t, err)
	spec.PeerAccess = [][]bool{{false, true}, {true, false}}
	m, err := sim.New(spec)
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	d, err := hook.NewDriver(broken{Driver: hook.Seam(m.Driver()), copy: copy})
	require.NoError(t, err)
	f := machineOf(rtx4090, rtx4090)
	grant(f)
	return d.(*cuda.Driver), f
}

func TestVerifyProves(t *testing.T) {
	d, f := grantedPair(t, nil)
	if testenv.Race { // where moving bytes is slow, one direction will do
		f.Pairs = f.Pairs[:1]
	}
	require.NoError(t, Verify(t.Context(), d, f, 0))
	for _, p := range f.Pairs {
		tr, ok := p.Transfer.Get()
		require.True(t, ok, p.Transfer.Why())
		require.Equal(t, OutcomeProven, tr.Outcome, tr.Detail)
		require.Empty(t, tr.Detail)
		require.Greater(t, tr.BytesPerSecond, 1e9)
		require.Less(t, tr.BytesPerSecond, 1e12)
		require.Greater(t, tr.StagedBytesPerSecond, 1e9)
		require.Less(t, tr.StagedBytesPerSecond, 1e12)
		require.Greater(t, tr.Latency, 0.0)
		require.Less(t, tr.Latency, 1e-3)
		require.True(t, tr.Modelled)
	}
	r := Diagnose(f, nil)
	require.True(t, r.Pairs[0].Verified)
	require.Equal(t, "on (PCIe), verified", r.Pairs[0].Verdict)
}

func TestVerifyFindsLostData(t *testing.T) {
	d, f := grantedPair(t, func() api.Code { return api.Success })
	require.NoError(t, Verify(t.Context(), d, f, 0))
	for _, p := range f.Pairs {
		require.Equal(t, OutcomeMismatch, p.Transfer.Or(Transfer{}).Outcome)
		require.Contains(t, p.Transfer.Or(Transfer{}).Detail, "nothing arrived")
		require.Zero(t, p.Transfer.Or(Transfer{}).BytesPerSecond)
	}
	r := Diagnose(f, nil)
	require.Equal(t, BadData, r.Pairs[0].Headline)
	require.Equal(t, BadData, r.Pairs[1].Headline)
}

// A failure may have cost the contexts: what comes after it would be blamed
// wrongly.
func TestVerifyStopsAfterAFailure(t *testing.T) {
	d, f := grantedPair(t, func() api.Code { return api.IllegalAddress })
	err := Verify(t.Context(), d, f, 0)
	require.ErrorContains(t, err, "from GPU0 to GPU1 ended as failed")
	require.Equal(t, OutcomeFailed, f.Pairs[0].Transfer.Or(Transfer{}).Outcome)
	require.False(t, f.Pairs[1].Transfer.IsKnown())
	require.Contains(t, f.Pairs[1].Transfer.Why(), "not made")
	require.Equal(t, Hangs, Diagnose(f, nil).Pairs[0].Headline)
}

func TestVerifyLeavesRefusedPairsAlone(t *testing.T) {
	d, f := grantedPair(t, func() api.Code { panic("a transfer for a pair that claims nothing") })
	everyPair(f, func(p *Pair) { p.CanAccess = Known(false, "cuDeviceCanAccessPeer") })
	require.NoError(t, Verify(t.Context(), d, f, 0))
	require.Empty(t, f.Claimed())
	require.False(t, f.Pairs[0].Transfer.Asked())
}

func TestVerifyCancelled(t *testing.T) {
	d, f := grantedPair(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, Verify(ctx, d, f, time.Second), context.Canceled)
	require.False(t, f.Pairs[0].Transfer.IsKnown())
	require.Contains(t, f.Pairs[1].Transfer.Why(), "canceled")
}

// A card that two names stand for is not sent to itself.
func TestClaimed(t *testing.T) {
	f := machineOf(rtx4090, rtx4090, rtx4090)
	grant(f)
	f.Devices[1].UUID = f.Devices[0].UUID
	f.Devices[2].CUDA.Seen = false
	require.Empty(t, f.Claimed())
	f.Devices[2].CUDA.Seen = true
	require.Equal(t, [][2]int{{0, 2}, {1, 2}, {2, 0}, {2, 1}}, f.Claimed())
	f.SetTransfer(2, 0, Known(Transfer{Outcome: OutcomeHang}, "x"))
	require.Equal(t, OutcomeHang, f.Pair(2, 0).Transfer.Or(Transfer{}).Outcome)
	f.Pairs = nil
	f.SetTransfer(2, 0, Known(Transfer{Outcome: OutcomeKilled}, "x"))
	require.Equal(t, OutcomeKilled, f.Pair(2, 0).Transfer.Or(Transfer{}).Outcome)
}
