// SPDX-License-Identifier: Apache-2.0

package p2pcheck

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
)

// granted is a simulated machine whose driver grants peer access between its
// GPUs, with the contexts of two of them. What is wrong with it is up to opts.
func granted(t *testing.T, opts ...sim.Option) (m *sim.Machine, src, dst *cuda.Context) {
	t.Helper()
	m, err := sim.Open("8x4090-p2p", append([]sim.Option{sim.Watch(), sim.KeepSites()}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := m.Close(); err != nil && !t.Failed() {
			t.Error(err)
		}
	})
	devs := gputest.Devices(t, m.Driver(), 8)
	return m, gputest.Primary(t, devs[2]), gputest.Primary(t, devs[5])
}

func TestGrantedAndTrue(t *testing.T) {
	_, src, dst := granted(t)
	for _, pair := range [][2]*cuda.Context{{src, dst}, {dst, src}} {
		r, err := Prove(t.Context(), pair[0], pair[1], Options{})
		require.NoError(t, err)
		require.Equal(t, Proven, r.Verdict, r.String())
		require.Greater(t, r.BytesPerSecond, 1e9)
	}
}

// A machine whose IOMMU translates: cuDeviceCanAccessPeer says yes, copies
// succeed, and zeros arrive. A check that sends zeros would pass.
func TestGrantedAndZeros(t *testing.T) {
	_, src, dst := granted(t, sim.PeerZeros())
	can, err := src.Device().CanAccessPeer(dst.Device())
	require.NoError(t, err)
	require.True(t, can)
	r, err := Prove(t.Context(), src, dst, Options{})
	require.NoError(t, err)
	require.Equal(t, Mismatch, r.Verdict)
	require.True(t, r.Zeros)
	require.Contains(t, r.String(), "zeros arrived")
	// The link is closed again, so that copies arrive, by way of the host.
	_, back := roundTrip(t, src, dst, 0x5a)
	require.Equal(t, bytes.Repeat([]byte{0x5a}, tripBytes), back)
}

const tripBytes = 1000

// roundTrip is the check that is not enough: it writes to the destination and
// reads back from there, both by peer copies of the source's. owner is what the
// owner of the memory finds.
func roundTrip(t *testing.T, src, dst *cuda.Context, v byte) (owner, back []byte) {
	t.Helper()
	alloc := func(c *cuda.Context, v byte) *cuda.Memory {
		mem, err := c.Alloc(tripBytes)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, mem.Close()) })
		require.NoError(t, c.MemcpyHtoD(mem.Ptr(), bytes.Repeat([]byte{v}, tripBytes)))
		require.NoError(t, c.Synchronize())
		return mem
	}
	from, to, again := alloc(src, v), alloc(dst, 1), alloc(src, 2)
	s, err := src.NewStream()
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	require.NoError(t, s.MemcpyPeer(to.Ptr(), dst, from.Ptr(), src, tripBytes))
	require.NoError(t, s.MemcpyPeer(again.Ptr(), src, to.Ptr(), dst, tripBytes))
	require.NoError(t, s.Synchronize())
	owner, back = make([]byte, tripBytes), make([]byte, tripBytes)
	require.NoError(t, dst.MemcpyDtoH(owner, to.Ptr()))
	require.NoError(t, src.MemcpyDtoH(back, again.Ptr()))
	return owner, back
}

// Virtual machines of one clique: the writer reads its own bytes back, and the
// owner never sees them. A round trip passes, and this check does not.
func TestGrantedAndMirrored(t *testing.T) {
	_, src, dst := granted(t, sim.PeerMirror())
	r, err := Prove(t.Context(), src, dst, Options{})
	require.NoError(t, err)
	require.Equal(t, Mismatch, r.Verdict)
	require.True(t, r.Stale)
	require.Contains(t, r.String(), "nothing arrived")

	already, err := src.EnsurePeerAccess(dst)
	require.NoError(t, err)
	require.False(t, already, "the check has closed the link")
	owner, back := roundTrip(t, src, dst, 0x5a)
	require.Equal(t, bytes.Repeat([]byte{0x5a}, tripBytes), back, "a round trip shows nothing")
	require.Equal(t, bytes.Repeat([]byte{1}, tripBytes), owner)
	require.NoError(t, src.DisablePeerAccess(dst))
}

// stalling is a machine whose first GPU hangs at its first peer copy. Somebody
// loses patience a little later.
type stalling struct {
	api.Driver
	m      *sim.Machine
	giveUp func()
}

func (s stalling) MemcpyPeerAsync(dst api.Ptr, dctx api.Context, src api.Ptr, sctx api.Context, n uint64, st api.Stream) api.Code {
	s.m.Stall(0)
	time.AfterFunc(30*time.Millisecond, s.giveUp)
	return s.Driver.MemcpyPeerAsync(dst, dctx, src, sctx, n, st)
}

// A platform on which the transfer never ends: the caller's patience does.
func TestGrantedAndStalled(t *testing.T) {
	m, err := sim.Open("8x4090-p2p", sim.Watch())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	d, err := hook.NewDriver(stalling{hook.Seam(m.Driver()), m, cancel})
	require.NoError(t, err)
	devs := gputest.Devices(t, d.(*cuda.Driver), 2)
	src, err := devs[0].Primary()
	require.NoError(t, err)
	dst, err := devs[1].Primary()
	require.NoError(t, err)
	r, err := Prove(ctx, src, dst, Options{})
	require.NoError(t, err)
	require.Equal(t, TimedOut, r.Verdict)
	require.ErrorIs(t, r.Err, context.Canceled)
	// What a transfer in flight uses stays allocated, by design.
	require.ErrorContains(t, m.Close(), "leaked")
	require.NoError(t, m.Race())
}

// A GPU that falls off the bus in the middle is a failure, not a proof.
func TestGrantedAndLost(t *testing.T) {
	for _, gpu := range []int{2, 5} {
		m, src, dst := granted(t)
		m.Lose(gpu, cuda.ErrLaunchFailed)
		r, err := Prove(t.Context(), src, dst, Options{})
		require.True(t, err != nil || r.Verdict == Failed, "%v", r)
		require.NotEqual(t, Proven, r.Verdict)
	}
}
