// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/probe/nvml"
)

// Our structs are laid out as a C compiler lays out nvml.h's.
func TestLayout(t *testing.T) {
	s := hooks(t, build(t))
	for which, fields := range nvml.Layouts {
		for i, offset := range fields {
			require.Equal(t, int64(offset), s.call("fake_layout", uintptr(which), uintptr(i)), "struct %d field %d", which, i)
		}
		require.Equal(t, int64(-1), s.call("fake_layout", uintptr(which), uintptr(len(fields))), "struct %d has as many fields", which)
	}
}

func TestSystem(t *testing.T) {
	l, s := start(t)
	want, err := filepath.EvalSymlinks(s.path)
	require.NoError(t, err)
	require.Equal(t, want, l.Library())

	version, err := l.DriverVersion()
	require.NoError(t, err)
	require.Equal(t, "580.159.04", version)
	version, err = l.NVMLVersion()
	require.NoError(t, err)
	require.Equal(t, "13.580.65.06", version)
	cuda, err := l.CUDAVersion()
	require.NoError(t, err)
	require.Equal(t, 13000, cuda)
	n, err := l.Count()
	require.NoError(t, err)
	require.Equal(t, 3, n)
	cc, err := l.ConfCompute()
	require.NoError(t, err)
	require.Equal(t, nvml.ConfCompute{Enabled: true, Environment: 2, MultiGPU: 1}, cc)
}

func TestConfComputeOfAnOlderLibrary(t *testing.T) {
	l, _ := start(t, without("nvmlSystemGetConfComputeSettings"))
	cc, err := l.ConfCompute()
	require.NoError(t, err)
	require.Equal(t, nvml.ConfCompute{Environment: 1, DevTools: true}, cc)
}

func TestHandles(t *testing.T) {
	l, _ := start(t)
	for i, busID := range []string{"0000:c1:00.0", "0000:c2:00.0", "10000:c3:00.0"} {
		uuid := "GPU-0000000" + strconv.Itoa(i) + "-1111-2222-3333-444444444444"
		byIndex := device(t, l, i)
		byUUID, err := l.DeviceByUUID(uuid)
		require.NoError(t, err)
		byBusID, err := l.DeviceByBusID(busID)
		require.NoError(t, err)
		byLongID, err := l.DeviceByBusID(strings.ToUpper("000" + busID))
		require.NoError(t, err)
		for _, d := range []nvml.Device{byIndex, byUUID, byBusID, byLongID} {
			got, err := d.UUID()
			require.NoError(t, err)
			require.Equal(t, uuid, got)
		}
	}

	for what, find := range map[string]func() (nvml.Device, error){
		"index":                 func() (nvml.Device, error) { return l.Device(3) },
		"negative index":        func() (nvml.Device, error) { return l.Device(-1) },
		"no bus id":             func() (nvml.Device, error) { return l.DeviceByBusID("card0") },
		"NUL within the UUID":   func() (nvml.Device, error) { return l.DeviceByUUID("GPU-00000000\x00") },
		"NUL within the bus id": func() (nvml.Device, error) { return l.DeviceByBusID("0000:c1:00.0\x00") },
	} {
		d, err := find()
		require.ErrorIs(t, err, nvml.ErrInvalidArgument, what)
		require.Nil(t, d, what)
	}
	_, err := l.DeviceByBusID("0000:01:00.0")
	require.ErrorIs(t, err, nvml.ErrNotFound)
	_, err = l.DeviceByUUID("GPU-ffffffff")
	require.ErrorIs(t, err, nvml.ErrNotFound)
}

// value is what a query of a device must answer: want, or the code.
type value struct {
	what string
	ask  func(nvml.Device) (any, error)
	want [3]any
}

func one[T any](f func(nvml.Device) (T, error)) func(nvml.Device) (any, error) {
	return func(d nvml.Device) (any, error) { return f(d) }
}

func two[T any](f func(nvml.Device) (a, b T, err error)) func(nvml.Device) (any, error) {
	return func(d nvml.Device) (any, error) {
		a, b, err := f(d)
		return [2]T{a, b}, err
	}
}

var values = []value{
	{"nvmlDeviceGetName", one(nvml.Device.Name), [3]any{"Stand-in GPU 0", "Stand-in GPU 1", "Stand-in GPU 2"}},
	{"nvmlDeviceGetSerial", one(nvml.Device.Serial), [3]any{"166000", nvml.ErrNotSupported, "166002"}},
	{"nvmlDeviceGetVbiosVersion", one(nvml.Device.VBIOS), [3]any{"95.02.3c.80.00", "95.02.3c.80.01", "95.02.3c.80.02"}},
	{"nvmlDeviceGetArchitecture", one(nvml.Device.Architecture), [3]any{nvml.Architecture(8), nvml.Architecture(9), nvml.ArchitectureUnknown}},
	{"nvmlDeviceGetMinorNumber", one(nvml.Device.Minor), [3]any{7, 6, 5}},
	{"nvmlDeviceGetDisplayActive", one(nvml.Device.DisplayActive), [3]any{true, false, false}},
	{"nvmlDeviceGetPciInfo_v3", one(nvml.Device.PCI), [3]any{
		nvml.PCI{BusID: "0000:c1:00.0", VendorID: 0x10de, DeviceID: 0x2684, Subsystem: 0x16f11043},
		nvml.PCI{BusID: "0000:c2:00.0", VendorID: 0x10de, DeviceID: 0x2685, Subsystem: 0x16f11044},
		nvml.PCI{BusID: "10000:c3:00.0", VendorID: 0x10de, DeviceID: 0x2686, Subsystem: 0x16f11045},
	}},
	{"nvmlDeviceGetMemoryInfo", one(nvml.Device.Memory), [3]any{
		nvml.Memory{Total: 24564 << 20, Free: 24000 << 20, Used: 564 << 20},
		nvml.Memory{Total: 24564 << 20, Free: 24001 << 20, Used: 563 << 20},
		nvml.Memory{Total: 24564 << 20, Free: 24002 << 20, Used: 562 << 20},
	}},
	{"nvmlDeviceGetBAR1MemoryInfo", one(nvml.Device.BAR1), [3]any{
		nvml.Memory{Total: 32768 << 20, Free: 32765 << 20, Used: 3 << 20},
		nvml.ErrNotSupported,
		nvml.Memory{Total: 256 << 20, Free: 253 << 20, Used: 3 << 20},
	}},
	{"nvmlDeviceGetCurrPcieLinkGeneration", one(nvml.Device.CurrentLinkGeneration), [3]any{1, 2, 3}},
	{"nvmlDeviceGetMaxPcieLinkGeneration", one(nvml.Device.MaxLinkGeneration), [3]any{4, 5, 6}},
	{"nvmlDeviceGetCurrPcieLinkWidth", one(nvml.Device.CurrentLinkWidth), [3]any{8, 4, 2}},
	{"nvmlDeviceGetMaxPcieLinkWidth", one(nvml.Device.MaxLinkWidth), [3]any{16, 16, 16}},
	{"nvmlDeviceGetDriverModel_v2", two(nvml.Device.DriverModel), [3]any{
		[2]nvml.DriverModel{nvml.WDDM, nvml.MCDM}, [2]nvml.DriverModel{nvml.TCC, nvml.MCDM}, nvml.ErrNotSupported,
	}},
	{"nvmlDeviceGetVirtualizationMode", one(nvml.Device.Virtualization), [3]any{
		nvml.VirtualizationPassthrough, nvml.VirtualizationVGPU, nvml.VirtualizationHostVGPU,
	}},
	{"nvmlDeviceGetMigMode", two(nvml.Device.MIG), [3]any{[2]bool{false, true}, [2]bool{true, false}, nvml.ErrNotSupported}},
	{"nvmlDeviceGetGspFirmwareVersion", one(nvml.Device.GSPFirmware), [3]any{
		"580.159.00-" + strings.Repeat("0", 52), nvml.ErrNotSupported, "580.159.02-" + strings.Repeat("0", 52),
	}},
	{"nvmlDeviceGetPersistenceMode", one(nvml.Device.Persistence), [3]any{false, true, false}},
	{"nvmlDeviceGetPerformanceState", one(nvml.Device.PerformanceState), [3]any{nvml.PState(8), nvml.PState(7), nvml.PStateUnknown}},
	{"nvmlDeviceGetPowerState", one(nvml.Device.PowerState), [3]any{nvml.PState(2), nvml.PState(3), nvml.PState(4)}},
	{"nvmlDeviceGetNvLinkState", one(func(d nvml.Device) (bool, error) { return d.NVLinkActive(1) }),
		[3]any{false, nvml.ErrNotSupported, true}},
	{"nvmlDeviceGetNvLinkVersion", one(func(d nvml.Device) (nvml.NVLinkVersion, error) { return d.NVLinkVersion(2) }),
		[3]any{nvml.NVLinkVersion(6), nvml.ErrNotSupported, nvml.NVLinkVersion(6)}},
	{"nvmlDeviceGetNvLinkRemoteDeviceType", one(func(d nvml.Device) (nvml.NVLinkDevice, error) { return d.NVLinkRemoteType(3) }),
		[3]any{nvml.NVLinkUnknown, nvml.ErrNotSupported, nvml.NVLinkUnknown}},
	{"nvmlDeviceGetNvLinkRemotePciInfo_v2", one(func(d nvml.Device) (nvml.PCI, error) { return d.NVLinkRemotePCI(2) }),
		[3]any{
			nvml.PCI{BusID: "0000:a2:00.0", VendorID: 0x10de, DeviceID: 0x22a3, Subsystem: 2}, nvml.ErrNotSupported,
			nvml.PCI{BusID: "0000:a2:00.0", VendorID: 0x10de, DeviceID: 0x22a3, Subsystem: 2},
		}},
}

func TestDevice(t *testing.T) {
	l, _ := start(t)
	for _, v := range values {
		for i, want := range v.want {
			got, err := v.ask(device(t, l, i))
			if code, bad := want.(nvml.Return); bad {
				require.Equal(t, &nvml.Error{Op: v.what, Code: code}, err, "GPU %d", i)
				require.Zero(t, got, "%s of GPU %d: nothing is answered beside an error", v.what, i)
				continue
			}
			require.NoError(t, err, "GPU %d", i)
			require.Equal(t, want, got, "%s of GPU %d", v.what, i)
		}
	}
}

func TestNVLinks(t *testing.T) {
	l, _ := start(t)
	links, err := nvml.NVLinks(device(t, l, 0))
	require.NoError(t, err)
	pci := func(bus string, sub uint32) nvml.PCI {
		return nvml.PCI{BusID: "0000:" + bus + ":00.0", VendorID: 0x10de, DeviceID: 0x22a3, Subsystem: sub}
	}
	require.Equal(t, []nvml.NVLink{
		{Link: 0, Active: true, Version: 4, Remote: nvml.NVLinkGPU, RemotePCI: pci("a0", 0)},
		{Link: 1},
		{Link: 2, Active: true, Version: 6, Remote: nvml.NVLinkSwitch, RemotePCI: pci("a2", 2)},
		{Link: 3, Active: true, Version: 7, Remote: nvml.NVLinkUnknown,
			RemotePCIErr: &nvml.Error{Op: "nvmlDeviceGetNvLinkRemotePciInfo_v2", Code: nvml.ErrNotSupported}},
	}, links)

	links, err = nvml.NVLinks(device(t, l, 1))
	require.ErrorIs(t, err, nvml.ErrNotSupported)
	require.Empty(t, links)

	links, err = nvml.NVLinks(device(t, l, 2))
	require.NoError(t, err)
	require.Len(t, links, nvml.MaxNVLinks)

	for _, ask := range []func() error{
		func() error { _, err := device(t, l, 0).NVLinkActive(-1); return err },
		func() error { _, err := device(t, l, 0).NVLinkRemotePCI(-1); return err },
		func() error { _, err := device(t, l, 0).NVLinkVersion(4); return err },
	} {
		require.ErrorIs(t, ask(), nvml.ErrInvalidArgument)
	}
}

func TestPairs(t *testing.T) {
	l, _ := start(t)
	for i := range 3 {
		for j := range 3 {
			from, to := device(t, l, i), device(t, l, j)
			for a, ability := range nvml.P2PAbilities {
				s, err := from.P2PStatus(to, ability)
				if i == j {
					require.ErrorIs(t, err, nvml.ErrInvalidArgument)
					require.Equal(t, nvml.P2PUnknown, s, "not OK where nothing was answered")
					continue
				}
				require.NoError(t, err)
				require.Equal(t, nvml.P2PStatus((3*i+2*j+a)%7), s, "%d to %d, %v", i, j, ability)
			}
			level, err := from.CommonAncestor(to)
			if i == j {
				require.ErrorIs(t, err, nvml.ErrInvalidArgument)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, nvml.Topology(10*(i+j+2)), level)
		}
	}
}

// A handle of another library must not be passed on.
func TestPeerOfAnotherLibrary(t *testing.T) {
	a, s := start(t)
	b, err := nvml.OpenPath(s.path)
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	_, err = device(t, a, 0).P2PStatus(device(t, b, 1), nvml.P2PRead)
	require.ErrorIs(t, err, nvml.ErrInvalidArgument)
	_, err = device(t, a, 0).CommonAncestor(device(t, b, 1))
	require.ErrorIs(t, err, nvml.ErrInvalidArgument)
	_, err = device(t, a, 0).CommonAncestor(nil)
	require.ErrorIs(t, err, nvml.ErrInvalidArgument)
}

// One GPU off the bus fails alone, by whatever it is asked for.
func TestLostGPU(t *testing.T) {
	l, s := start(t)
	held, other := device(t, l, 1), device(t, l, 0)
	s.call("fake_lose", 1, 1)
	defer s.call("fake_lose", 1, 0)

	n, err := l.Count()
	require.NoError(t, err)
	require.Equal(t, 3, n)
	_, err = l.Device(1)
	require.Equal(t, &nvml.Error{Op: "nvmlDeviceGetHandleByIndex_v2", Code: nvml.ErrGPULost}, err)
	_, err = l.DeviceByBusID("0000:c2:00.0")
	require.ErrorIs(t, err, nvml.ErrGPULost)
	for _, v := range values {
		_, err := v.ask(held)
		require.ErrorIs(t, err, nvml.ErrGPULost, v.what)
	}
	_, err = other.P2PStatus(held, nvml.P2PRead)
	require.ErrorIs(t, err, nvml.ErrGPULost)
	name, err := other.Name()
	require.NoError(t, err)
	require.Equal(t, "Stand-in GPU 0", name)
}

// A library without nvmlDeviceGetDriverModel_v2, as older nvml.dll are, is asked
// by the plain name; one that has neither answers so, and all else works.
func TestDriverModelOfAnOlderLibrary(t *testing.T) {
	l, _ := start(t, without("nvmlDeviceGetDriverModel_v2"))
	current, pending, err := device(t, l, 1).DriverModel()
	require.NoError(t, err)
	require.Equal(t, nvml.MCDM, current, "the stand-in's two functions answer differently")
	require.Equal(t, nvml.TCC, pending)
	_, _, err = device(t, l, 2).DriverModel()
	require.Equal(t, &nvml.Error{Op: "nvmlDeviceGetDriverModel", Code: nvml.ErrNotSupported}, err)

	l, _ = start(t, without("nvmlDeviceGetDriverModel_v2"), without("nvmlDeviceGetDriverModel"))
	_, _, err = device(t, l, 1).DriverModel()
	require.ErrorIs(t, err, nvml.ErrFunctionNotFound)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	name, err := device(t, l, 1).Name()
	require.NoError(t, err)
	require.Equal(t, "Stand-in GPU 1", name)
}

// A library that cannot do anything but start answers every query with the
// function that it lacks.
func TestEveryFunctionIsOptional(t *testing.T) {
	bare, _ := start(t, "FAKE_BARE")
	for symbol, ask := range map[string]func() error{
		"nvmlSystemGetDriverVersion":        func() error { _, err := bare.DriverVersion(); return err },
		"nvmlSystemGetNVMLVersion":          func() error { _, err := bare.NVMLVersion(); return err },
		"nvmlSystemGetCudaDriverVersion_v2": func() error { _, err := bare.CUDAVersion(); return err },
		"nvmlSystemGetConfComputeState":     func() error { _, err := bare.ConfCompute(); return err },
		"nvmlDeviceGetCount_v2":             func() error { _, err := bare.Count(); return err },
		"nvmlDeviceGetHandleByIndex_v2":     func() error { _, err := bare.Device(0); return err },
		"nvmlDeviceGetHandleByPciBusId_v2":  func() error { _, err := bare.DeviceByBusID("0000:c1:00.0"); return err },
		"nvmlDeviceGetHandleByUUID":         func() error { _, err := bare.DeviceByUUID("GPU-0"); return err },
	} {
		require.Equal(t, &nvml.Error{Op: symbol, Code: nvml.ErrFunctionNotFound}, ask())
	}

	// The same of the devices, which a library that finds them has.
	names := []string{without("nvmlDeviceGetP2PStatus"), without("nvmlDeviceGetTopologyCommonAncestor"),
		without("nvmlDeviceGetDriverModel"), without("nvmlDeviceGetUUID")}
	for _, v := range values {
		names = append(names, without(v.what))
	}
	l, _ := start(t, names...)
	d, peer := device(t, l, 0), device(t, l, 1)
	_, err := d.P2PStatus(peer, nvml.P2PRead)
	require.Equal(t, &nvml.Error{Op: "nvmlDeviceGetP2PStatus", Code: nvml.ErrFunctionNotFound}, err)
	_, err = d.CommonAncestor(peer)
	require.Equal(t, &nvml.Error{Op: "nvmlDeviceGetTopologyCommonAncestor", Code: nvml.ErrFunctionNotFound}, err)
	_, err = d.UUID()
	require.Equal(t, &nvml.Error{Op: "nvmlDeviceGetUUID", Code: nvml.ErrFunctionNotFound}, err)
	for _, v := range values {
		got, err := v.ask(d)
		require.ErrorIs(t, err, nvml.ErrFunctionNotFound, v.what)
		require.ErrorContains(t, err, strings.TrimSuffix(v.what, "_v2"))
		require.Zero(t, got, v.what)
	}
}

// The stand-in exports every name that is bound, and each of them is a name
// that nvml.h exports: the plain ones that have successors are other functions.
func TestSymbols(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "symbol.go", nil, 0)
	if err != nil {
		t.Skipf("the package's source is not here: %v", err)
	}
	var names []string
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			s, err := strconv.Unquote(lit.Value)
			require.NoError(t, err)
			names = append(names, s)
		}
		return true
	})
	require.GreaterOrEqual(t, len(names), 40)

	s := hooks(t, build(t))
	superseded := map[string]bool{ // by a _vN with another struct or meaning
		"nvmlInit": true, "nvmlDeviceGetPciInfo": true, "nvmlDeviceGetPciInfo_v2": true, "nvmlDeviceGetCount": true,
		"nvmlDeviceGetHandleByIndex": true, "nvmlDeviceGetHandleByPciBusId": true, "nvmlDeviceGetNvLinkRemotePciInfo": true,
	}
	for _, name := range names {
		require.True(t, s.has(name), name)
		require.False(t, superseded[name], name)
	}
	for _, v := range values {
		require.Contains(t, names, v.what)
	}
}

// However many goroutines ask through however many Libraries, and through other
// bindings that take the lock, one is in NVML at a time.
func TestOneCallAtATime(t *testing.T) {
	a, s := start(t)
	b, err := nvml.OpenPath(s.path)
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()

	var wg sync.WaitGroup
	for g := range 12 {
		l := a
		if g%2 == 1 {
			l = b
		}
		wg.Go(func() {
			for i := range 20 {
				if g == 0 {
					nvml.Serialized(func() { s.call("nvmlDeviceGetCount_v2", counter()) })
					continue
				}
				d, err := l.Device(i % 3)
				if err == nil {
					_, err = d.Name()
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, int64(1), s.call("fake_most_inside"))
}
