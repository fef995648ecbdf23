// SPDX-License-Identifier: Apache-2.0

//go:build cgo && linux

package gonvml_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/fstest"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/probe"
	adapter "github.com/geforce-p2p/geforce-p2p/probe/gonvml"
)

// collect is what the probe finds on a machine of which there is nothing but
// its NVML.
func collect(t *testing.T, machine gonvml.Interface) *probe.Facts {
	t.Helper()
	f, err := probe.Collect(context.Background(), probe.Options{
		NVML:      adapter.From(machine),
		SkipCUDA:  true,
		FS:        fstest.MapFS{},
		LookupEnv: func(string) (string, bool) { return "", false },
	})
	require.NoError(t, err)
	return f
}

// The probe runs over go-nvml's mock machines, which know little: what they do
// not tell is unknown, and no verdict is made up of it.
func TestProbeOfMockMachines(t *testing.T) {
	for _, m := range machines {
		t.Run(m.name, func(t *testing.T) {
			machine := m.machine()
			f := collect(t, machine)
			require.True(t, f.NVML.Usable)
			require.Equal(t, machine.DriverVersion, f.Driver.UserVersion.Or(""))
			require.Len(t, f.Devices, 8, "one for each, though none has a bus id")
			var uuids []string
			for _, d := range f.Devices {
				uuids = append(uuids, d.UUID)
				require.Contains(t, d.Name.Or(""), m.name)
				require.Greater(t, d.Memory.Or(0), m.memory)
				require.False(t, d.MIG.Or(true))
				require.True(t, d.BAR1.Asked())
				require.False(t, d.BAR1.IsKnown())
			}
			slices.Sort(uuids)
			require.Len(t, slices.Compact(uuids), 8)

			r := probe.Diagnose(f, nil)
			require.Len(t, r.Devices, 8)
			require.Len(t, r.Pairs, 8*7)
			for _, p := range r.Pairs {
				require.Equal(t, probe.StateUnknown, p.State, "%d to %d", p.From, p.To)
			}
		})
	}
}

// The same machine with what its GPUs would tell: one split by MIG, and one
// pair whose status the driver denies.
func TestProbeOfATellingMock(t *testing.T) {
	machine := machines[0].machine()
	for i, d := range machine.Devices {
		d := d.(*server.Device)
		d.GetPciInfoFunc = func() (gonvml.PciInfo, gonvml.Return) {
			p := gonvml.PciInfo{PciDeviceId: d.Config.PciDeviceId}
			for k, c := range fmt.Sprintf("00000000:%02X:00.0", 0xC1+i) { // as NVML writes it
				p.BusId[k] = int8(c)
			}
			return p, gonvml.SUCCESS
		}
		d.GetP2PStatusFunc = func(peer gonvml.Device, _ gonvml.GpuP2PCapsIndex) (gonvml.GpuP2PStatus, gonvml.Return) {
			if i == 2 && peer.(*server.Device).Index == 5 {
				return gonvml.P2P_STATUS_CHIPSET_NOT_SUPPORTED, gonvml.SUCCESS
			}
			return gonvml.P2P_STATUS_OK, gonvml.SUCCESS
		}
	}
	machine.Devices[3].(*server.Device).MigMode = 1

	f := collect(t, machine)
	require.Len(t, f.Devices, 8)
	for i, d := range f.Devices {
		require.Equal(t, fmt.Sprintf("0000:%02x:00.0", 0xc1+i), d.BusID)
		require.Equal(t, machine.Devices[i].(*server.Device).UUID, d.UUID)
		require.Equal(t, i == 3, d.MIG.Or(false))
	}
	require.Equal(t, probe.P2PChipset, f.Pair(2, 5).Read.Or(""))
	require.Equal(t, probe.P2POK, f.Pair(5, 2).Read.Or(""), "each direction is its own")
}
