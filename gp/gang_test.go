// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/gang"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
)

// aloneness counts the launches, and those that were made alone.
type aloneness struct {
	api.Driver
	launches, alone int
}

func (a *aloneness) LaunchKernel(f api.Function, l *api.Launch) api.Code {
	a.launches++
	if gang.Launching() {
		a.alone++
	}
	return a.Driver.LaunchKernel(f, l)
}

// TestGangsAreLaunchedAlone: while kernels that wait for each other are launched, no
// call of the process that may wait for a GPU gets into the driver.
func TestGangsAreLaunchedAlone(t *testing.T) {
	a := &aloneness{Driver: hook.Seam(gputest.Sim(t, "2x4090"))}
	d, err := hook.NewDriver(a)
	require.NoError(t, err)
	o := options(t, d.(*cuda.Driver), 2)
	o.PinnedBytes = roomy
	g := open(t, o)
	var bufs []gp.Buffer
	for _, r := range g.Ranks() {
		bufs = append(bufs, alloc(t, r, gp.TypeInt32, 64))
	}
	shot := func(alg gp.Algorithm) {
		w, err := g.With(gp.CallOptions{Algorithm: alg}).AllReduce(bufs, gp.Sum)
		require.NoError(t, err)
		require.NoError(t, w.Wait(background))
	}
	shot(gp.AlgorithmOneShot) // and the handshake
	require.Equal(t, 4, a.launches)
	require.Equal(t, 4, a.alone)
	shot(gp.AlgorithmDirect)
	require.Greater(t, a.launches, 4)
	require.Equal(t, 4, a.alone, "folds wait for nobody")
	require.False(t, gang.Launching())
}
