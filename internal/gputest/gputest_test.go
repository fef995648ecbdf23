// SPDX-License-Identifier: Apache-2.0

package gputest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
)

func TestEachRunsOnASimulatedMachine(t *testing.T) {
	ran := 0
	Each(t, "2x4090", func(t *testing.T, d *cuda.Driver) {
		if d.Modelled() {
			ran++
		}
		dev := Devices(t, d, 1)[0]
		cc := Primary(t, dev)
		require.Equal(t, dev, cc.Device())
		require.NoError(t, cc.Synchronize())
	})
	require.Equal(t, 1, ran)
}

func TestTappedCountsWhatPassesIt(t *testing.T) {
	d := Sim(t, "2x4090")
	tapped, tp := Tapped(t, d)
	require.Zero(t, tp.Total())
	_, err := d.DeviceCount()
	require.NoError(t, err)
	require.Zero(t, tp.Total())
	_, err = tapped.DeviceCount()
	require.NoError(t, err)
	require.Equal(t, map[string]uint64{"DeviceGetCount": 1}, tp.Counts())
}

// Only "there is none" skips: a GPU host whose driver is broken must fail.
func TestOnlyAbsenceSkips(t *testing.T) {
	require.True(t, absent(fmt.Errorf("open: %w", cuda.ErrNoLibrary)))
	require.True(t, absent(&cuda.Error{Op: "cuInit", Code: cuda.ErrNoDevice}))
	for _, c := range []cuda.Code{cuda.ErrStubLibrary, cuda.ErrUnknown, cuda.ErrSystemDriverMismatch, cuda.ErrMPSConnectionFailed, cuda.ErrSymbolMissing} {
		require.False(t, absent(&cuda.Error{Op: "cuInit", Code: c}), "%v", c)
	}
}

// probe is a testing.TB that notes a failure instead of failing.
type probe struct {
	testing.TB
	cleanup []func()
	failed  string
}

func (p *probe) Helper()                   {}
func (p *probe) Cleanup(f func())          { p.cleanup = append(p.cleanup, f) }
func (p *probe) Failed() bool              { return p.failed != "" }
func (p *probe) Errorf(f string, a ...any) { p.failed = fmt.Sprintf(f, a...) }

// What a test leaves allocated on a simulated machine fails it.
func TestSimReportsLeaks(t *testing.T) {
	for _, leak := range []bool{false, true} {
		p := &probe{TB: t}
		dev := Devices(t, Sim(p, "2x4090"), 1)[0]
		cc, err := dev.Primary()
		require.NoError(t, err)
		m, err := cc.Alloc(4096)
		require.NoError(t, err)
		if !leak {
			require.NoError(t, m.Close())
		}
		require.NoError(t, cc.Close())
		for _, f := range p.cleanup {
			f()
		}
		require.Equal(t, leak, p.Failed(), p.failed)
		if leak {
			require.Contains(t, p.failed, "leaked")
		}
	}
}
