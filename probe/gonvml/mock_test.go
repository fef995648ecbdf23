// SPDX-License-Identifier: Apache-2.0

//go:build cgo && linux

package gonvml_test

import (
	"strings"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxb200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/stretchr/testify/require"

	adapter "github.com/geforce-p2p/geforce-p2p/probe/gonvml"
	"github.com/geforce-p2p/geforce-p2p/probe/nvml"
)

// cutLine finds the rest of the line after a mark.
func cutLine(text, mark string) (before, line string, ok bool) {
	before, rest, ok := strings.Cut(text, mark)
	line, _, _ = strings.Cut(rest, "\n")
	return before, line, ok
}

// machines are go-nvml's mock machines.
var machines = []struct {
	name         string
	machine      func() *server.Server
	architecture nvml.Architecture
	memory       uint64 // at least, in bytes
}{
	{"A100", dgxa100.New, 7, 39 << 30},
	{"H100", dgxh100.New, 9, 79 << 30},
	{"H200", dgxh200.New, 9, 140 << 30},
	{"B200", dgxb200.New, 10, 170 << 30},
}

func TestMockMachines(t *testing.T) {
	for _, m := range machines {
		t.Run(m.name, func(t *testing.T) {
			machine := m.machine()
			s := adapter.From(machine)
			driver, err := s.DriverVersion()
			require.NoError(t, err)
			require.Equal(t, machine.DriverVersion, driver)
			library, err := s.NVMLVersion()
			require.NoError(t, err)
			require.Equal(t, machine.NvmlVersion, library)
			cuda, err := s.CUDAVersion()
			require.NoError(t, err)
			require.Equal(t, machine.CudaDriverVersion, cuda)
			_, err = s.ConfCompute()
			require.Equal(t, &nvml.Error{Op: "nvmlSystemGetConfComputeState", Code: nvml.ErrFunctionNotFound}, err, "the mock has none")

			n, err := s.Count()
			require.NoError(t, err)
			require.Equal(t, 8, n)
			_, err = s.Device(n)
			require.ErrorIs(t, err, nvml.ErrInvalidArgument)
			_, err = s.Device(-1)
			require.ErrorIs(t, err, nvml.ErrInvalidArgument)

			seen := map[string]bool{}
			for i := range n {
				d, err := s.Device(i)
				require.NoError(t, err)
				name, err := d.Name()
				require.NoError(t, err)
				require.Contains(t, name, m.name)
				uuid, err := d.UUID()
				require.NoError(t, err)
				require.False(t, seen[uuid])
				seen[uuid] = true
				minor, err := d.Minor()
				require.NoError(t, err)
				require.Equal(t, i, minor)
				a, err := d.Architecture()
				require.NoError(t, err)
				require.Equal(t, m.architecture, a)
				memory, err := d.Memory()
				require.NoError(t, err)
				require.Greater(t, memory.Total, m.memory)
				pci, err := d.PCI()
				require.NoError(t, err)
				require.Equal(t, uint16(0x10de), pci.VendorID)
				require.NotZero(t, pci.DeviceID)
				require.Empty(t, pci.BusID, "the mock fills none in: no two GPUs must seem to share a place")
				current, pending, err := d.MIG()
				require.NoError(t, err)
				require.False(t, current || pending)

				// What the mock has no function for is not known, and no panic.
				_, err = d.BAR1()
				require.Equal(t, &nvml.Error{Op: "nvmlDeviceGetBAR1MemoryInfo", Code: nvml.ErrFunctionNotFound}, err)
				links, err := nvml.NVLinks(d)
				require.ErrorIs(t, err, nvml.ErrFunctionNotFound)
				require.Empty(t, links)

				byUUID, err := s.DeviceByUUID(uuid)
				require.NoError(t, err)
				byBusID, err := s.DeviceByBusID(machine.Devices[i].(*server.Device).PciBusID)
				require.NoError(t, err)
				for _, same := range []nvml.Device{byUUID, byBusID} {
					got, err := same.UUID()
					require.NoError(t, err)
					require.Equal(t, uuid, got)
				}
			}
		})
	}
}

// Each of go-nvml's codes arrives as ours.
func TestCodes(t *testing.T) {
	machine := dgxa100.New()
	device := machine.Devices[1].(*server.Device)
	s := adapter.From(machine)
	d, err := s.Device(1)
	require.NoError(t, err)
	for theirs, ours := range map[gonvml.Return]nvml.Return{
		gonvml.ERROR_UNINITIALIZED: nvml.ErrUninitialized, gonvml.ERROR_INVALID_ARGUMENT: nvml.ErrInvalidArgument,
		gonvml.ERROR_NOT_SUPPORTED: nvml.ErrNotSupported, gonvml.ERROR_NO_PERMISSION: nvml.ErrNoPermission,
		gonvml.ERROR_NOT_FOUND: nvml.ErrNotFound, gonvml.ERROR_INSUFFICIENT_SIZE: nvml.ErrInsufficientSize,
		gonvml.ERROR_DRIVER_NOT_LOADED: nvml.ErrDriverNotLoaded, gonvml.ERROR_LIBRARY_NOT_FOUND: nvml.ErrLibraryNotFound,
		gonvml.ERROR_FUNCTION_NOT_FOUND: nvml.ErrFunctionNotFound, gonvml.ERROR_GPU_IS_LOST: nvml.ErrGPULost,
		gonvml.ERROR_RESET_REQUIRED: nvml.ErrResetRequired, gonvml.ERROR_OPERATING_SYSTEM: nvml.ErrOperatingSystem,
		gonvml.ERROR_LIB_RM_VERSION_MISMATCH: nvml.ErrVersionMismatch, gonvml.ERROR_ARGUMENT_VERSION_MISMATCH: nvml.ErrArgumentVersion,
		gonvml.ERROR_GPU_NOT_FOUND: nvml.ErrGPUNotFound, gonvml.ERROR_UNKNOWN: nvml.ErrUnknown,
	} {
		device.GetBAR1MemoryInfoFunc = func() (gonvml.BAR1Memory, gonvml.Return) { return gonvml.BAR1Memory{Bar1Total: 1}, theirs }
		m, err := d.BAR1()
		require.Equal(t, &nvml.Error{Op: "nvmlDeviceGetBAR1MemoryInfo", Code: ours}, err)
		require.Zero(t, m, "nothing is answered beside an error")
	}
}

// Our numbers of the enums are go-nvml's.
func TestEnums(t *testing.T) {
	for ours, theirs := range map[nvml.P2PStatus]gonvml.GpuP2PStatus{
		nvml.P2POK: gonvml.P2P_STATUS_OK, nvml.P2PChipsetNotSupported: gonvml.P2P_STATUS_CHIPSET_NOT_SUPPORTED,
		nvml.P2PGPUNotSupported: gonvml.P2P_STATUS_GPU_NOT_SUPPORTED, nvml.P2PTopologyNotSupported: gonvml.P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED,
		nvml.P2PDisabledByRegistry: gonvml.P2P_STATUS_DISABLED_BY_REGKEY, nvml.P2PNotSupported: gonvml.P2P_STATUS_NOT_SUPPORTED,
		nvml.P2PUnknown: gonvml.P2P_STATUS_UNKNOWN,
	} {
		require.EqualValues(t, theirs, ours)
	}
	for ours, theirs := range map[nvml.P2PAbility]gonvml.GpuP2PCapsIndex{
		nvml.P2PRead: gonvml.P2P_CAPS_INDEX_READ, nvml.P2PWrite: gonvml.P2P_CAPS_INDEX_WRITE, nvml.P2PNVLink: gonvml.P2P_CAPS_INDEX_NVLINK,
		nvml.P2PAtomics: gonvml.P2P_CAPS_INDEX_ATOMICS, nvml.P2PPCI: gonvml.P2P_CAPS_INDEX_PCI,
	} {
		require.EqualValues(t, theirs, ours)
	}
	for ours, theirs := range map[nvml.Topology]gonvml.GpuTopologyLevel{
		nvml.TopologyInternal: gonvml.TOPOLOGY_INTERNAL, nvml.TopologySingle: gonvml.TOPOLOGY_SINGLE, nvml.TopologyMultiple: gonvml.TOPOLOGY_MULTIPLE,
		nvml.TopologyHostBridge: gonvml.TOPOLOGY_HOSTBRIDGE, nvml.TopologyNode: gonvml.TOPOLOGY_NODE, nvml.TopologySystem: gonvml.TOPOLOGY_SYSTEM,
	} {
		require.EqualValues(t, theirs, ours)
	}
	for ours, theirs := range map[nvml.Virtualization]gonvml.GpuVirtualizationMode{
		nvml.VirtualizationNone: gonvml.GPU_VIRTUALIZATION_MODE_NONE, nvml.VirtualizationPassthrough: gonvml.GPU_VIRTUALIZATION_MODE_PASSTHROUGH,
		nvml.VirtualizationVGPU: gonvml.GPU_VIRTUALIZATION_MODE_VGPU, nvml.VirtualizationHostVGPU: gonvml.GPU_VIRTUALIZATION_MODE_HOST_VGPU,
		nvml.VirtualizationHostVSGA: gonvml.GPU_VIRTUALIZATION_MODE_HOST_VSGA,
	} {
		require.EqualValues(t, theirs, ours)
	}
	for ours, theirs := range map[nvml.Architecture]gonvml.DeviceArchitecture{
		2: gonvml.DEVICE_ARCH_KEPLER, 8: gonvml.DEVICE_ARCH_ADA, 10: gonvml.DEVICE_ARCH_BLACKWELL, nvml.ArchitectureUnknown: gonvml.DEVICE_ARCH_UNKNOWN,
	} {
		require.EqualValues(t, theirs, ours)
	}
	require.EqualValues(t, gonvml.DRIVER_WDDM, nvml.WDDM)
	require.EqualValues(t, gonvml.DRIVER_WDM, nvml.TCC)
	require.EqualValues(t, gonvml.DRIVER_MCDM, nvml.MCDM)
	require.EqualValues(t, gonvml.PSTATE_UNKNOWN, nvml.PStateUnknown)
	require.EqualValues(t, gonvml.NVLINK_DEVICE_TYPE_GPU, nvml.NVLinkGPU)
	require.EqualValues(t, gonvml.NVLINK_DEVICE_TYPE_SWITCH, nvml.NVLinkSwitch)
	require.EqualValues(t, gonvml.NVLINK_DEVICE_TYPE_UNKNOWN, nvml.NVLinkUnknown)
	require.EqualValues(t, gonvml.NVLINK_MAX_LINKS, nvml.MaxNVLinks)
}

func TestPeerOfAnotherSource(t *testing.T) {
	a, b := adapter.From(dgxa100.New()), adapter.From(dgxa100.New())
	from, err := a.Device(0)
	require.NoError(t, err)
	to, err := b.Device(1)
	require.NoError(t, err)
	_, err = from.P2PStatus(to, nvml.P2PRead)
	require.ErrorIs(t, err, nvml.ErrInvalidArgument)
	_, err = from.CommonAncestor(nil)
	require.ErrorIs(t, err, nvml.ErrInvalidArgument)
}

// A Source that was closed leaves the library to its owner.
func TestClose(t *testing.T) {
	machine := dgxa100.New()
	shut := 0
	machine.ShutdownFunc = func() gonvml.Return { shut++; return gonvml.SUCCESS }
	s := adapter.From(machine)
	d, err := s.Device(0)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err = s.Count()
	require.ErrorIs(t, err, nvml.ErrUninitialized)
	_, err = d.Name()
	require.ErrorIs(t, err, nvml.ErrUninitialized)
	require.Zero(t, shut)
}

// Only a mock's own panic is an answer.
func TestOtherPanicsGoOn(t *testing.T) {
	lib := &mock.Interface{
		ExtensionsFunc:     func() gonvml.ExtendedInterface { return nil },
		DeviceGetCountFunc: func() (int, gonvml.Return) { panic("out of cheese") },
	}
	s := adapter.From(lib)
	require.PanicsWithValue(t, "out of cheese", func() { _, _ = s.Count() })
	_, err := s.DriverVersion()
	require.ErrorIs(t, err, nvml.ErrFunctionNotFound, "and the lock was given back")
}
