// SPDX-License-Identifier: Apache-2.0

package p2pcheck

import (
	"context"
	"errors"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/api/tap"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
)

// link is a simulated driver whose peer access is granted, with a peer copy to
// the test's taste.
type link struct {
	api.Driver
	enable api.Code
	opened atomic.Int32 // access enabled, less disabled
	copy   func(d api.Driver, dst api.Ptr, dctx api.Context, src api.Ptr, sctx api.Context, n uint64, s api.Stream) api.Code
}

func (l *link) CtxEnablePeerAccess(api.Context) api.Code {
	if l.enable == api.Success {
		l.opened.Add(1)
	}
	return l.enable
}

func (l *link) CtxDisablePeerAccess(api.Context) api.Code {
	l.opened.Add(-1)
	return api.Success
}

func (l *link) MemcpyPeerAsync(dst api.Ptr, dctx api.Context, src api.Ptr, sctx api.Context, n uint64, s api.Stream) api.Code {
	if l.copy == nil {
		return l.Driver.MemcpyPeerAsync(dst, dctx, src, sctx, n, s)
	}
	return l.copy(l.Driver, dst, dctx, src, sctx, n, s)
}

// pair is the contexts of a simulated machine's first two GPUs over a link.
func pair(t *testing.T, l *link) (src, dst *cuda.Context) {
	t.Helper()
	l.Driver = hook.Seam(gputest.Sim(t, "2x4090"))
	d, err := hook.NewDriver(l)
	require.NoError(t, err)
	devs := gputest.Devices(t, d.(*cuda.Driver), 2)
	return gputest.Primary(t, devs[0]), gputest.Primary(t, devs[1])
}

var small = Options{Sizes: []int{1, 4099, 100_000}, Rounds: 2}

func TestProvenLink(t *testing.T) {
	var l link
	src, dst := pair(t, &l)
	r, err := Prove(t.Context(), src, dst, small)
	require.NoError(t, err)
	require.Equal(t, Proven, r.Verdict, r.String())
	require.Greater(t, r.BytesPerSecond, 0.0)
	require.EqualValues(t, 1, l.opened.Load(), "access stays enabled, one way")
	require.Contains(t, r.String(), "proven, ")
}

// The machine's own driver denies it: that is what this project is about.
func TestRefusedLink(t *testing.T) {
	d, tp := gputest.Tapped(t, gputest.Sim(t, "2x4090"))
	devs := gputest.Devices(t, d, 2)
	src, dst := gputest.Primary(t, devs[0]), gputest.Primary(t, devs[1])
	r, err := Prove(t.Context(), src, dst, small)
	require.NoError(t, err)
	require.Equal(t, Refused, r.Verdict)
	require.ErrorIs(t, r.Err, cuda.ErrPeerAccessUnsupported)
	require.Zero(t, tp.Count("MemAlloc"), "nothing is transferred")
	require.NoError(t, src.Synchronize(), "the context is as good as before")

	l := link{enable: api.TooManyPeers}
	src, dst = pair(t, &l)
	r, err = Prove(t.Context(), src, dst, small)
	require.NoError(t, err)
	require.Equal(t, Refused, r.Verdict)
	require.ErrorIs(t, r.Err, cuda.ErrTooManyPeers)
	require.Zero(t, l.opened.Load())
}

// Access that somebody else of the process enabled stays theirs.
func TestAccessOfOthersIsKept(t *testing.T) {
	l := link{enable: api.PeerAccessAlreadyEnabled, copy: nothing}
	src, dst := pair(t, &l)
	r, err := Prove(t.Context(), src, dst, small)
	require.NoError(t, err)
	require.Equal(t, Mismatch, r.Verdict)
	require.Zero(t, l.opened.Load(), "not disabled")
}

// nothing is the private mirror of some virtual machines as the owner of the
// memory sees it: the copy succeeds, a copy back would bring the same bytes, and
// the owner's memory is unchanged.
func nothing(api.Driver, api.Ptr, api.Context, api.Ptr, api.Context, uint64, api.Stream) api.Code {
	return api.Success
}

func TestNothingArrives(t *testing.T) {
	l := link{copy: nothing}
	src, dst := pair(t, &l)
	r, err := Prove(t.Context(), src, dst, small)
	require.NoError(t, err)
	require.Equal(t, Mismatch, r.Verdict)
	require.True(t, r.Stale)
	require.False(t, r.Zeros)
	require.Equal(t, []int{1, 0, 1}, []int{r.Size, r.Offset, r.Wrong})
	require.Contains(t, r.String(), "nothing arrived")
	require.Zero(t, l.opened.Load(), "access that was enabled for the check is closed again")
	require.NoError(t, src.Synchronize())
}

// A mirror that a round trip takes for the destination: what the writer writes
// and reads is memory of its own device.
func TestPrivateMirror(t *testing.T) {
	var l link
	src, dst := pair(t, &l)
	mirror, err := src.Alloc(200_000)
	require.NoError(t, err)
	defer func() { require.NoError(t, mirror.Close()) }()
	l.copy = func(d api.Driver, to api.Ptr, dctx api.Context, from api.Ptr, sctx api.Context, n uint64, s api.Stream) api.Code {
		if dctx == dst.Handle() {
			to = mirror.Ptr()
		} else {
			from = mirror.Ptr()
		}
		return d.MemcpyDtoDAsync(to, from, n, s)
	}
	r, err := Prove(t.Context(), src, dst, small)
	require.NoError(t, err)
	require.Equal(t, Mismatch, r.Verdict)
	require.True(t, r.Stale)
}

// A translating IOMMU in the way: success, and zeros.
func TestZerosArrive(t *testing.T) {
	l := link{copy: func(d api.Driver, dst api.Ptr, _ api.Context, _ api.Ptr, _ api.Context, n uint64, s api.Stream) api.Code {
		return d.MemsetD8Async(dst, 0, n, s)
	}}
	src, dst := pair(t, &l)
	r, err := Prove(t.Context(), src, dst, Options{Sizes: []int{4096}})
	require.NoError(t, err)
	require.Equal(t, Mismatch, r.Verdict)
	require.True(t, r.Zeros)
	require.Equal(t, 4096, r.Wrong)
	require.Contains(t, r.String(), "zeros arrived")
}

// One wrong byte in the last and largest transfer is found where it is, and so
// is one behind the end.
func TestWrongByte(t *testing.T) {
	for _, at := range []uint64{0, 77_777, 99_999, 100_000 + guard - 1} {
		l := link{copy: func(d api.Driver, dst api.Ptr, dctx api.Context, src api.Ptr, sctx api.Context, n uint64, s api.Stream) api.Code {
			if c := d.MemcpyPeerAsync(dst, dctx, src, sctx, n, s); c != api.Success || n != 100_000 {
				return c
			}
			return d.MemsetD8Async(dst+api.Ptr(at), 0, 1, s)
		}}
		src, dst := pair(t, &l)
		// The guard's last byte is 1 to 255 too, so that 0 is wrong everywhere.
		r, err := Prove(t.Context(), src, dst, small)
		require.NoError(t, err)
		require.Equal(t, Mismatch, r.Verdict)
		require.Equal(t, []int{100_000, int(at), 1}, []int{r.Size, r.Offset, r.Wrong})
		require.NotZero(t, r.Want)
		require.Zero(t, r.Got)
	}
}

func TestTransferThatFails(t *testing.T) {
	l := link{copy: func(api.Driver, api.Ptr, api.Context, api.Ptr, api.Context, uint64, api.Stream) api.Code {
		return api.LaunchFailed
	}}
	src, dst := pair(t, &l)
	r, err := Prove(t.Context(), src, dst, small)
	require.NoError(t, err)
	require.Equal(t, Failed, r.Verdict)
	require.ErrorIs(t, r.Err, cuda.ErrLaunchFailed)
	require.ErrorIs(t, src.Err(), cuda.ErrLaunchFailed)
	require.Contains(t, r.String(), "failed: cuda: cuMemcpyPeerAsync")
}

// A copy that the driver refuses at the call, although it granted access.
func TestCopyThatIsRefused(t *testing.T) {
	l := link{copy: func(api.Driver, api.Ptr, api.Context, api.Ptr, api.Context, uint64, api.Stream) api.Code {
		return api.PeerAccessUnsupported
	}}
	src, dst := pair(t, &l)
	r, err := Prove(t.Context(), src, dst, small)
	require.NoError(t, err)
	require.Equal(t, Refused, r.Verdict)
	require.Zero(t, l.opened.Load())
}

// hung is a link whose stream does not finish before it is let go.
type hung struct {
	link
	release chan struct{}
}

func (h *hung) StreamSynchronize(s api.Stream) api.Code {
	<-h.release
	return h.link.StreamSynchronize(s)
}

func TestTransferThatHangs(t *testing.T) {
	// Not gputest.Sim: what a transfer in flight uses stays allocated, by design.
	m, err := sim.Open("2x4090")
	require.NoError(t, err)
	h := &hung{release: make(chan struct{})}
	h.Driver = hook.Seam(m.Driver())
	d, err := hook.NewDriver(h)
	require.NoError(t, err)
	devs := gputest.Devices(t, d.(*cuda.Driver), 2)
	hs, hd := gputest.Primary(t, devs[0]), gputest.Primary(t, devs[1])
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	r, err := Prove(ctx, hs, hd, small)
	require.NoError(t, err)
	require.Equal(t, TimedOut, r.Verdict)
	require.ErrorIs(t, r.Err, context.DeadlineExceeded)
	require.EqualValues(t, 1, h.opened.Load(), "access stays, for it is in use")
	close(h.release)
}

func TestBadArguments(t *testing.T) {
	var l link
	src, dst := pair(t, &l)
	_, err := Prove(t.Context(), src, src, small)
	require.ErrorContains(t, err, "one context")
	_, err = Prove(t.Context(), src, dst, Options{Sizes: []int{4, 0}})
	require.ErrorContains(t, err, "0 bytes")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Prove(ctx, src, dst, small)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, l.opened.Load())
}

// At every driver call that fails the check ends with an error or a verdict, and
// frees what it took.
func TestEveryFailurePoint(t *testing.T) {
	for k := 1; ; k++ {
		m, err := sim.Open("2x4090")
		require.NoError(t, err)
		tp := tap.New(&link{Driver: hook.Seam(m.Driver())})
		d, err := hook.NewDriver(tp)
		require.NoError(t, err)
		devs := gputest.Devices(t, d.(*cuda.Driver), 2)
		src, err := devs[0].Primary()
		require.NoError(t, err)
		dst, err := devs[1].Primary()
		require.NoError(t, err)
		tp.Log()
		rule := tp.Fail("", k, api.InvalidValue)
		r, err := Prove(t.Context(), src, dst, Options{Sizes: []int{4096}, Rounds: 1})
		hits := rule.Hits()
		rule.Remove()
		if hits == 0 {
			require.NoError(t, err)
			require.Equal(t, Proven, r.Verdict)
			require.Greater(t, k, 20)
		} else {
			require.True(t, err != nil || r.Verdict == Failed || r.Verdict == Proven, "call %d: %v", k, r)
		}
		require.NoError(t, src.Synchronize(), "the next call works")
		require.NoError(t, errors.Join(src.Close(), dst.Close()))
		failed := ""
		if hits > 0 {
			failed = tp.Calls()[k-1]
		}
		// A free that could not be made is the one reason for a leak, and reported.
		freeing := err != nil && regexp.MustCompile(`cu(MemFree|StreamDestroy|EventDestroy)`).MatchString(err.Error())
		if left := m.Close(); !freeing {
			require.NoError(t, left, "after call %d, %s, failed", k, failed)
		}
		if hits == 0 {
			return
		}
	}
}

func TestVerdictNames(t *testing.T) {
	require.Equal(t, "timed out", TimedOut.String())
	require.Equal(t, "Verdict(0)", Verdict(0).String())
	require.Equal(t, "Verdict(9)", Verdict(9).String())
}

// On hardware: each ordered pair of GPUs ends in a verdict, and contexts of one
// device always reach each other.
func TestOnHardware(t *testing.T) {
	devs := gputest.Devices(t, gputest.Hardware(t), 2)
	for _, a := range devs {
		for _, b := range devs {
			if a == b {
				continue
			}
			r, err := Prove(t.Context(), gputest.Primary(t, a), gputest.Primary(t, b), Options{})
			require.NoError(t, err)
			t.Logf("%v to %v: %v", a, b, r)
			can, err := a.CanAccessPeer(b)
			require.NoError(t, err)
			require.Equal(t, !can, r.Verdict == Refused, "the driver's word and its deed")
		}
	}
}
