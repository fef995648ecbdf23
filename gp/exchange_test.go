// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/api/tap"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
)

// A troupe is a group whose kernels wait for each other, behind a tap.
type troupe struct {
	t    testing.TB
	tap  *tap.Tap
	g    *gp.Group
	bufs []gp.Buffer // of int64
	n    int64       // calls so far
}

var places = map[string]string{"a GPU each": "4x4090", "one GPU": "2x4090"}

func newTroupe(t testing.TB, d *cuda.Driver, ranks int, edit ...func(*gp.Options)) *troupe {
	tapped, tp := gputest.Tapped(t, d)
	o := options(t, tapped, ranks)
	o.PinnedBytes = roomy
	for _, e := range edit {
		e(&o)
	}
	x := &troupe{t: t, tap: tp, g: open(t, o)}
	for _, r := range x.g.Ranks() {
		x.bufs = append(x.bufs, alloc(t, r, gp.TypeInt64, 100))
	}
	return x
}

// shot makes an all_reduce by an algorithm.
func (x *troupe) shot(alg gp.Algorithm) (gp.Work, error) {
	return x.g.With(gp.CallOptions{Algorithm: alg}).AllReduce(x.bufs, gp.Sum)
}

// works shows that sums are right, by an algorithm.
func (x *troupe) works(alg gp.Algorithm) {
	x.t.Helper()
	x.n++
	want := int64(0)
	for r, b := range x.bufs {
		v := make([]int64, 100)
		for i := range v {
			v[i] = x.n*1000 + int64(r*i)
		}
		want += x.n*1000 + int64(r*7)
		in := make([]byte, 0, 800)
		for _, e := range v {
			in = binary.LittleEndian.AppendUint64(in, uint64(e))
		}
		require.NoError(x.t, b.Write(background, in))
	}
	w, err := x.shot(alg)
	require.NoError(x.t, err)
	require.NoError(x.t, w.Wait(background))
	got := make([]int64, 100)
	for r, b := range x.bufs {
		require.NoError(x.t, gp.Download(background, got, b))
		require.Equal(x.t, want, got[7], "rank %d", r)
	}
}

// TestLaunchFails: where one rank's launch fails, the kernels of those before it end
// at once, the group has failed with that error, and others go on.
func TestLaunchFails(t *testing.T) {
	for name, machine := range places {
		for k := 1; k <= 4; k++ {
			t.Run(fmt.Sprintf("%s, launch %d", name, k), func(t *testing.T) {
				d := machineOf(t, machine)
				x, other := newTroupe(t, d, 4), newTroupe(t, d, 3)
				x.works(gp.AlgorithmOneShot)
				other.works(gp.AlgorithmTwoShot)
				x.tap.Reset()
				x.tap.Fail("LaunchKernel", k, api.OutOfMemory)
				began := x.g.Now()
				_, err := x.shot(gp.AlgorithmTwoShot)
				require.ErrorIs(t, err, cuda.ErrOutOfMemory)
				require.ErrorContains(t, err, "cuLaunchKernel")
				var e *gp.Error
				require.ErrorAs(t, err, &e)
				require.Equal(t, k-1, e.Rank)
				require.Equal(t, err.Error(), x.g.Err().Error())
				for _, r := range x.g.Ranks() {
					require.NoError(t, r.Context().Synchronize())
				}
				require.Less(t, x.g.Now()-began, 50*time.Millisecond)
				_, err = x.shot(gp.AlgorithmRing)
				require.ErrorIs(t, err, gp.ErrFailed)
				require.ErrorIs(t, err, cuda.ErrOutOfMemory)
				other.works(gp.AlgorithmOneShot)
				within(t, "Close", func() { require.NoError(t, x.g.Close()) })
				other.works(gp.AlgorithmTwoShot)
			})
		}
	}
}

// TestRankThatNeverLaunches: its peers wait for as long as they may, and say for
// whom.
func TestRankThatNeverLaunches(t *testing.T) {
	for name, machine := range places {
		for _, alg := range []gp.Algorithm{gp.AlgorithmOneShot, gp.AlgorithmTwoShot} {
			t.Run(fmt.Sprintf("%s, %s", name, alg), func(t *testing.T) {
				x := newTroupe(t, machineOf(t, machine), 3, func(o *gp.Options) { o.KernelDeadline = 3 * time.Second })
				x.works(alg)
				x.tap.Reset()
				rule := x.tap.Skip("LaunchKernel", 2)
				began := x.g.Now()
				w, err := x.shot(alg)
				require.NoError(t, err)
				require.Equal(t, 1, rule.Hits())
				err = w.Wait(background)
				require.ErrorIs(t, err, gp.ErrTimeout)
				require.ErrorContains(t, err, "rank 1 in vain")
				require.InDelta(t, 3, (x.g.Now() - began).Seconds(), 0.1)
				require.ErrorIs(t, x.g.Err(), gp.ErrTimeout)
				require.ErrorIs(t, w.Wait(background), gp.ErrTimeout, "asked again")
				_, err = x.shot(gp.AlgorithmDirect)
				require.ErrorIs(t, err, gp.ErrFailed)
				require.ErrorIs(t, err, gp.ErrTimeout)
				within(t, "Close", func() { require.NoError(t, x.g.Close()) })
			})
		}
	}
}

// watched is a driver whose GPUs have a display watchdog.
type watched struct{ api.Driver }

func (w watched) DeviceGetAttribute(a api.DeviceAttribute, d api.Device) (int, api.Code) {
	if a == api.AttrKernelExecTimeout {
		return 1, api.Success
	}
	return w.Driver.DeviceGetAttribute(a, d)
}

// TestDisplayWatchdog: kernels give up before it would take the context.
func TestDisplayWatchdog(t *testing.T) {
	x := newTroupe(t, over(t, watched{seam(machineOf(t, "4x4090"))}), 2, func(o *gp.Options) { o.KernelDeadline = time.Minute })
	x.works(gp.AlgorithmOneShot)
	x.tap.Reset()
	x.tap.Skip("LaunchKernel", 1)
	began := x.g.Now()
	w, err := x.shot(gp.AlgorithmOneShot)
	require.NoError(t, err)
	require.ErrorIs(t, w.Wait(background), gp.ErrTimeout)
	require.InDelta(t, 0.5, (x.g.Now() - began).Seconds(), 0.01)
}

// TestCloseBesideKernelsThatWait: Close does not wait for ever for a kernel whose
// peer never comes, and gives everything back.
func TestCloseBesideKernelsThatWait(t *testing.T) {
	for name, machine := range places {
		t.Run(name, func(t *testing.T) {
			d := machineOf(t, machine)
			x := newTroupe(t, d, 3)
			x.works(gp.AlgorithmOneShot)
			x.tap.Reset()
			x.tap.Skip("LaunchKernel", 3)
			w, err := x.shot(gp.AlgorithmOneShot)
			require.NoError(t, err)
			began := x.g.Now()
			within(t, "Close", func() { require.NoError(t, x.g.Close()) })
			require.InDelta(t, 1, (x.g.Now() - began).Seconds(), 0.1, "long before the kernels' own deadline")
			require.Error(t, w.Wait(background))
			newTroupe(t, d, 3).works(gp.AlgorithmOneShot)
		})
	}
}

// TestEpochsComeRound: where the number of exchanges comes round, the areas are made
// zero, and sums stay right.
func TestEpochsComeRound(t *testing.T) {
	for name, machine := range places {
		t.Run(name, func(t *testing.T) {
			x := newTroupe(t, machineOf(t, machine), 3)
			x.works(gp.AlgorithmOneShot)
			x.works(gp.AlgorithmTwoShot)
			for _, from := range []uint32{math.MaxUint32 - 3, math.MaxUint32 - 2} {
				x.g.SetEpoch(from)
				for i := range 8 {
					x.works([]gp.Algorithm{gp.AlgorithmOneShot, gp.AlgorithmTwoShot}[i/2%2])
				}
				require.EqualValues(t, 8-(math.MaxUint32-from), x.g.Epoch())
			}
			// Calls back to back, on streams that nobody waits for.
			x.g.SetEpoch(math.MaxUint32 - 5)
			for range 12 {
				_, err := x.shot(gp.AlgorithmOneShot)
				require.NoError(t, err)
			}
			x.works(gp.AlgorithmOneShot)
			require.NoError(t, x.g.Err())
		})
	}
}

// TestExchangesOff: where kernels cannot wait for each other that is said once, who
// insists on them is told, and other algorithms do the work.
func TestExchangesOff(t *testing.T) {
	wsl := func(t *testing.T) *cuda.Driver {
		spec, err := sim.Builtin("4x4090")
		require.NoError(t, err)
		spec.System.Kernel = "6.6.87.2-microsoft-standard-WSL2"
		m, err := sim.New(spec, sim.Watch(), sim.KeepSites())
		require.NoError(t, err)
		closeMachine(t, m)
		return m.Driver()
	}
	plain := func(t *testing.T) *cuda.Driver { return machineOf(t, "4x4090") }
	for _, c := range []struct {
		name, says string
		driver     func(t *testing.T) *cuda.Driver
		edit       func(o *gp.Options)
		env        string
		said       int
	}{
		{"a small budget", "no room in a budget", plain, func(o *gp.Options) { o.PinnedBytes = small }, "", 1},
		{"an option", "the options say so", plain, func(o *gp.Options) { o.NoExchange = true }, "", 1},
		{"the environment", "the options say so", plain, func(*gp.Options) {}, gp.EnvNoExchange, 1},
		{"WSL2", "WSL2", wsl, func(*gp.Options) {}, "", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.env != "" {
				t.Setenv(c.env, "1")
			}
			var log buffer
			x := newTroupe(t, c.driver(t), 3, c.edit, func(o *gp.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
			launches := x.tap.Count("LaunchKernel")
			for range 3 {
				x.works(gp.AlgorithmAuto)
				_, err := x.shot(gp.AlgorithmOneShot)
				require.ErrorIs(t, err, gp.ErrArgument)
				require.ErrorContains(t, err, c.says)
			}
			require.EqualValues(t, 9, x.tap.Count("LaunchKernel")-launches, "a fold a rank, and nothing else")
			require.Equal(t, c.said, strings.Count(log.String(), "wait for each other"), log.String())
			require.NoError(t, x.g.Err())
		})
	}
}

// TestBusyStreamsAtFirst: a group whose streams are busy when kernels that wait for
// each other would first be used does without them until they are idle.
func TestBusyStreamsAtFirst(t *testing.T) {
	for name, machine := range places {
		t.Run(name, func(t *testing.T) {
			x := newTroupe(t, machineOf(t, machine), 3)
			r := x.g.Ranks()[1]
			busy := alloc(t, r, gp.TypeUint8, 64)
			newProducer(t, r.Context()).fill(r.Stream(), busy.Ptr(), 64, 1, time.Hour)
			w, err := x.shot(gp.AlgorithmAuto)
			require.NoError(t, err)
			require.Equal(t, "direct", w.Algorithm())
			require.NoError(t, r.Stream().Synchronize())
			x.works(gp.AlgorithmAuto)
			w, err = x.shot(gp.AlgorithmAuto)
			require.NoError(t, err)
			require.Equal(t, "one_shot", w.Algorithm())
		})
	}
}

// TestHandshakeFails: ranks whose kernels do not run at once do without.
func TestHandshakeFails(t *testing.T) {
	for name, machine := range places {
		t.Run(name, func(t *testing.T) {
			var log buffer
			x := newTroupe(t, machineOf(t, machine), 3, func(o *gp.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
			x.tap.Reset()
			rule := x.tap.Skip("LaunchKernel", 2)
			began := x.g.Now()
			x.works(gp.AlgorithmAuto)
			require.Equal(t, 1, rule.Hits())
			require.Less(t, x.g.Now()-began, time.Second, "loading kernels included")
			x.works(gp.AlgorithmAuto)
			_, err := x.shot(gp.AlgorithmTwoShot)
			require.ErrorContains(t, err, "do not run at once")
			require.Equal(t, 1, strings.Count(log.String(), "do not run at once"))
			require.NoError(t, x.g.Err())
			// Another group finds out for itself.
			newTroupe(t, x.g.Driver(), 3).works(gp.AlgorithmTwoShot)
		})
	}
}
