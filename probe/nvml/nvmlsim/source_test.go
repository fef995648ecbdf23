// SPDX-License-Identifier: Apache-2.0

package nvmlsim_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/probe"
	"github.com/geforce-p2p/geforce-p2p/probe/nvml"
	"github.com/geforce-p2p/geforce-p2p/probe/nvml/nvmlsim"
)

// What CUDA and NVML say of the GPUs of a machine is joined, and every pair of the
// machines that ship gets a verdict of its own.
func TestSource(t *testing.T) {
	for _, name := range sim.Names() {
		m, err := sim.Open(name)
		require.NoError(t, err)
		spec := m.Spec()
		source := nvmlsim.New(spec)
		require.NotNil(t, source, name)
		n, err := source.Count()
		require.NoError(t, err)
		require.Equal(t, len(spec.GPUs), n)
		for i := range n {
			d, err := source.Device(i)
			require.NoError(t, err)
			uuid, err := d.UUID()
			require.NoError(t, err)
			same, err := source.DeviceByUUID(uuid)
			require.NoError(t, err)
			require.Equal(t, d, same)
			pci, err := d.PCI()
			require.NoError(t, err)
			same, err = source.DeviceByBusID(pci.BusID)
			require.NoError(t, err)
			require.Equal(t, d, same)
			_, err = d.Serial()
			require.ErrorIs(t, err, errors.ErrUnsupported)
		}
		_, err = source.Device(n)
		require.ErrorIs(t, err, nvml.ErrInvalidArgument)
		_, err = source.DeviceByUUID("GPU-none")
		require.ErrorIs(t, err, nvml.ErrNotFound)

		f, err := probe.Collect(context.Background(), probe.Options{Driver: m.Driver(), NVML: source})
		require.NoError(t, err)
		require.Len(t, f.Devices, n)
		for _, d := range f.Devices {
			require.True(t, d.CUDA.Seen && d.NVML.Seen, "%s: %+v", name, d)
		}
		r := probe.Diagnose(f, nil)
		require.Len(t, r.Pairs, n*(n-1))
		for _, p := range r.Pairs {
			require.Empty(t, p.Unknown, "%s: GPU %d to %d", name, p.From, p.To)
			for _, x := range p.Findings {
				require.NotEqual(t, "unknown", fmt.Sprint(x.Cause), "%s: GPU %d to %d", name, p.From, p.To)
			}
		}
		require.NoError(t, m.Close())
	}
}

// A description that does not say what NVML answers makes none: nil, and not a
// source in whose place a real one would do.
func TestNoSource(t *testing.T) {
	s, err := sim.Load("2x4090")
	require.NoError(t, err)
	s.Module.P2PStatus = ""
	require.True(t, nvmlsim.New(s) == nil)
}
