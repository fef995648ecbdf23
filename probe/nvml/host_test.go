// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/probe/nvml"
)

// On a host with a driver, NVML's own answers must agree with each other.
func TestHost(t *testing.T) {
	l, err := nvml.Open()
	if err != nil {
		t.Skipf("no NVML to ask: %v", err)
	}
	defer func() { require.NoError(t, l.Close()) }()
	driver, err := l.DriverVersion()
	require.NoError(t, err)
	library, err := l.NVMLVersion()
	require.NoError(t, err)
	cuda, err := l.CUDAVersion()
	require.NoError(t, err)
	require.Greater(t, cuda, 10000)
	t.Logf("%s: NVML %s, driver %s, CUDA %d", l.Library(), library, driver, cuda)
	n, err := l.Count()
	require.NoError(t, err)
	if n == 0 {
		t.Skip("NVML works and has no GPU")
	}

	var devices []nvml.Device
	for i := range n {
		d, err := l.Device(i)
		if errors.Is(err, nvml.ErrGPULost) || errors.Is(err, nvml.ErrNoPermission) {
			t.Logf("GPU %d: %v", i, err)
			continue
		}
		require.NoError(t, err)
		devices = append(devices, d)
		uuid, err := d.UUID()
		require.NoError(t, err)
		pci, err := d.PCI()
		require.NoError(t, err)
		require.NotEmpty(t, pci.BusID)
		require.Equal(t, uint16(0x10de), pci.VendorID)
		same := func(d nvml.Device, err error) {
			require.NoError(t, err)
			got, err := d.UUID()
			require.NoError(t, err)
			require.Equal(t, uuid, got)
		}
		same(l.DeviceByUUID(uuid))
		same(l.DeviceByBusID(pci.BusID))
		if m, err := d.Memory(); err == nil { // a MIG guest may not ask
			require.Positive(t, m.Total)
			require.LessOrEqual(t, m.Free, m.Total)
		}
		links, err := nvml.NVLinks(d)
		t.Logf("GPU %d: %d NVLinks (%v)", i, len(links), err)
	}
	for i, from := range devices {
		for j, to := range devices {
			if i == j {
				continue
			}
			s, err := from.P2PStatus(to, nvml.P2PRead)
			level, err2 := from.CommonAncestor(to)
			t.Logf("%d to %d: read %v (%v), %v (%v)", i, j, s, err, level, err2)
		}
	}
}
