// SPDX-License-Identifier: Apache-2.0

package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
)

func TestDevices(t *testing.T) {
	f := newFake()
	d := open(t, f)
	v, err := d.Version()
	require.NoError(t, err)
	require.Equal(t, 13000, v)
	require.True(t, d.Modelled())
	devs, err := d.Devices()
	require.NoError(t, err)
	require.Len(t, devs, 3)
	for i, dev := range devs {
		require.Equal(t, i, dev.Ordinal())
		require.Same(t, d, dev.Driver())
	}
	require.Equal(t, "device 1", devs[1].String())
	_, err = d.Device(3)
	require.ErrorIs(t, err, cuda.ErrInvalidDevice)
	byID, err := d.DeviceByPCIBusID("0000:02:00.0")
	require.NoError(t, err)
	require.Equal(t, devs[1], byID)
	_, err = d.DeviceByPCIBusID("nonsense")
	require.ErrorIs(t, err, cuda.ErrInvalidValue)

	dev := devs[0]
	name, err := dev.Name()
	require.NoError(t, err)
	require.Equal(t, "Fake GPU", name)
	major, minor, err := dev.ComputeCapability()
	require.NoError(t, err)
	require.Equal(t, [2]int{8, 9}, [2]int{major, minor})
	_, err = dev.Attribute(9999)
	require.ErrorIs(t, err, cuda.ErrInvalidValue)
	n, err := dev.TotalMem()
	require.NoError(t, err)
	require.EqualValues(t, uint64(24<<30), n)
	u, err := dev.UUID()
	require.NoError(t, err)
	require.Equal(t, "GPU-00112233-4455-6677-8899-aabbccddeeff", u.String())
	ok, err := dev.CanAccessPeer(devs[1])
	require.NoError(t, err)
	require.True(t, ok)
	ok, err = devs[1].CanAccessPeer(dev)
	require.NoError(t, err)
	require.False(t, ok)
	p, err := devs[2].P2PAttribute(cuda.P2PPerformanceRank, devs[1])
	require.NoError(t, err)
	require.Equal(t, 21, p, "source first")
	_, err = dev.P2PAttribute(cuda.P2PAccessSupported, dev)
	require.ErrorIs(t, err, cuda.ErrInvalidDevice)
}

func TestPCIBusID(t *testing.T) {
	f := newFake()
	d := open(t, f)
	dev, err := d.Device(0)
	require.NoError(t, err)
	for in, want := range map[string]string{
		"0000:C1:00.0":     "0000:c1:00.0",
		"00000000:0A:00.0": "0000:0a:00.0",
		"00010000:0A:00.0": "10000:0a:00.0",
		"0A:00.0":          "0000:0a:00.0",
		"f1a2:01:1f.7":     "f1a2:01:1f.7",
	} {
		f.pciID = in
		got, err := dev.PCIBusID()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}
