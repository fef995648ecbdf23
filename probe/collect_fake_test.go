// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/libcuda"
	"github.com/geforce-p2p/geforce-p2p/probe/nvml"
)

// nvmlError is a failed call of NVML.
func nvmlError(op string, code nvml.Return) error { return &nvml.Error{Op: op, Code: code} }

// fakeNVML is an nvml.Source of made GPUs.
type fakeNVML struct {
	gpus   []*fakeGPU
	count  int // instead of len(gpus), if not 0
	closed bool
}

func (f *fakeNVML) Library() string                { return "/usr/lib/libnvidia-ml.so.1" }
func (f *fakeNVML) DriverVersion() (string, error) { return "565.57.01", nil }
func (f *fakeNVML) NVMLVersion() (string, error)   { return "12.565.57.01", nil }
func (f *fakeNVML) CUDAVersion() (int, error)      { return 12070, nil }
func (f *fakeNVML) ConfCompute() (nvml.ConfCompute, error) {
	return nvml.ConfCompute{}, nvmlError("nvmlSystemGetConfComputeState", nvml.ErrNotSupported)
}
func (f *fakeNVML) Count() (int, error) {
	if f.count != 0 {
		return f.count, nil
	}
	return len(f.gpus), nil
}
func (f *fakeNVML) Device(i int) (nvml.Device, error) {
	if g := f.gpus[i]; !g.lost {
		return g, nil
	}
	return nil, nvmlError("nvmlDeviceGetHandleByIndex_v2", nvml.ErrGPULost)
}
func (f *fakeNVML) DeviceByBusID(string) (nvml.Device, error) { panic("not asked by bus id") }
func (f *fakeNVML) DeviceByUUID(string) (nvml.Device, error)  { panic("not asked by UUID") }
func (f *fakeNVML) Close() error                              { f.closed = true; return nil }

// fakeGPU is one GPU of a fakeNVML. What it has no field for is not supported.
type fakeGPU struct {
	busID, uuid string
	bar1        uint64
	lost        bool // there is no handle
	fallen      bool // each call answers GPU_IS_LOST
	p2p         map[string]nvml.P2PStatus
	links       []bool
	linkErr     nvml.Return
}

func answer[T any](g *fakeGPU, op string, v T) (T, error) {
	if g.fallen {
		var none T
		return none, nvmlError(op, nvml.ErrGPULost)
	}
	return v, nil
}

func refuse[T any](op string) (T, error) {
	var none T
	return none, nvmlError(op, nvml.ErrNotSupported)
}

func (g *fakeGPU) Name() (string, error)   { return answer(g, "nvmlDeviceGetName", "RTX "+g.uuid) }
func (g *fakeGPU) UUID() (string, error)   { return answer(g, "nvmlDeviceGetUUID", g.uuid) }
func (g *fakeGPU) Serial() (string, error) { return refuse[string]("nvmlDeviceGetSerial") }
func (g *fakeGPU) VBIOS() (string, error) {
	return answer(g, "nvmlDeviceGetVbiosVersion", "95.02.18.80.c1")
}
func (g *fakeGPU) Architecture() (nvml.Architecture, error) {
	return answer(g, "nvmlDeviceGetArchitecture", nvml.Architecture(8))
}
func (g *fakeGPU) Minor() (int, error)          { return refuse[int]("nvmlDeviceGetMinorNumber") }
func (g *fakeGPU) DisplayActive() (bool, error) { return answer(g, "nvmlDeviceGetDisplayActive", true) }
func (g *fakeGPU) PCI() (nvml.PCI, error) {
	return answer(g, "nvmlDeviceGetPciInfo_v3", nvml.PCI{BusID: g.busID, VendorID: 0x10de, DeviceID: 0x2684, Subsystem: 0x16f310de})
}
func (g *fakeGPU) Memory() (nvml.Memory, error) {
	return answer(g, "nvmlDeviceGetMemoryInfo", nvml.Memory{Total: 24564 << 20})
}
func (g *fakeGPU) BAR1() (nvml.Memory, error) {
	if g.bar1 == 0 && !g.fallen {
		return refuse[nvml.Memory]("nvmlDeviceGetBAR1MemoryInfo")
	}
	return answer(g, "nvmlDeviceGetBAR1MemoryInfo", nvml.Memory{Total: g.bar1, Used: 1 << 20})
}
func (g *fakeGPU) CurrentLinkGeneration() (int, error) {
	return answer(g, "nvmlDeviceGetCurrPcieLinkGeneration", 1)
}
func (g *fakeGPU) MaxLinkGeneration() (int, error) {
	return answer(g, "nvmlDeviceGetMaxPcieLinkGeneration", 3)
}
func (g *fakeGPU) CurrentLinkWidth() (int, error) {
	return answer(g, "nvmlDeviceGetCurrPcieLinkWidth", 8)
}
func (g *fakeGPU) MaxLinkWidth() (int, error) { return answer(g, "nvmlDeviceGetMaxPcieLinkWidth", 16) }
func (g *fakeGPU) DriverModel() (a, b nvml.DriverModel, err error) {
	return 0, 0, nvmlError("nvmlDeviceGetDriverModel_v2", nvml.ErrNotSupported)
}
func (g *fakeGPU) Virtualization() (nvml.Virtualization, error) {
	return answer(g, "nvmlDeviceGetVirtualizationMode", nvml.VirtualizationHostVGPU)
}
func (g *fakeGPU) MIG() (a, b bool, err error) {
	return false, false, nvmlError("nvmlDeviceGetMigMode", nvml.ErrNotSupported)
}
func (g *fakeGPU) GSPFirmware() (string, error) {
	return refuse[string]("nvmlDeviceGetGspFirmwareVersion")
}
func (g *fakeGPU) Persistence() (bool, error) { return answer(g, "nvmlDeviceGetPersistenceMode", true) }
func (g *fakeGPU) PerformanceState() (nvml.PState, error) {
	return answer(g, "nvmlDeviceGetPerformanceState", nvml.PStateUnknown)
}
func (g *fakeGPU) PowerState() (nvml.PState, error) {
	return answer(g, "nvmlDeviceGetPowerState", nvml.PState(8))
}
func (g *fakeGPU) NVLinkActive(link int) (bool, error) {
	switch {
	case g.linkErr != 0:
		return false, nvmlError("nvmlDeviceGetNvLinkState", g.linkErr)
	case len(g.links) == 0:
		return refuse[bool]("nvmlDeviceGetNvLinkState")
	case link >= len(g.links):
		return false, nvmlError("nvmlDeviceGetNvLinkState", nvml.ErrInvalidArgument)
	}
	return g.links[link], nil
}
func (g *fakeGPU) NVLinkVersion(int) (nvml.NVLinkVersion, error)   { return 5, nil }
func (g *fakeGPU) NVLinkRemoteType(int) (nvml.NVLinkDevice, error) { return nvml.NVLinkGPU, nil }
func (g *fakeGPU) NVLinkRemotePCI(link int) (nvml.PCI, error) {
	return nvml.PCI{BusID: fmt.Sprintf("0000:%02x:00.0", 0xa0+link)}, nil
}
func (g *fakeGPU) P2PStatus(peer nvml.Device, ability nvml.P2PAbility) (nvml.P2PStatus, error) {
	status, ok := g.p2p[peer.(*fakeGPU).busID+" "+ability.String()]
	if !ok {
		return nvml.P2PUnknown, nvmlError("nvmlDeviceGetP2PStatus", nvml.ErrFunctionNotFound)
	}
	return status, nil
}
func (g *fakeGPU) CommonAncestor(peer nvml.Device) (nvml.Topology, error) {
	switch peer.(*fakeGPU).uuid {
	case "": // a device of these has no ancestor
		return refuse[nvml.Topology]("nvmlDeviceGetTopologyCommonAncestor")
	case "strange":
		return 35, nil
	}
	return nvml.TopologyNode, nil
}

// simulated is a CUDA driver whose GPUs sit at these bus ids, in this order.
// access lists the pairs of indices that may reach each other, one way.
func simulated(t testing.TB, busIDs []string, access ...[2]int) *cuda.Driver {
	t.Helper()
	spec, err := sim.Builtin("2x4090")
	require.NoError(t, err)
	gpu := spec.GPUs[0]
	spec.GPUs, spec.PeerAccess = nil, nil
	for i, id := range busIDs {
		gpu.PCIBusID = id
		gpu.UUID = strings.TrimPrefix(testUUID(i), "GPU-")
		gpu.NUMANode = i
		spec.GPUs = append(spec.GPUs, gpu)
		spec.PeerAccess = append(spec.PeerAccess, make([]bool, len(busIDs)))
	}
	for _, a := range access {
		spec.PeerAccess[a[0]][a[1]] = true
	}
	m, err := sim.New(spec)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m.Driver()
}

// testUUID is the UUID of simulated GPU i.
func testUUID(i int) string { return fmt.Sprintf("GPU-%08x-1111-2222-3333-444444444444", i+1) }

// noCUDA and noNVML are a machine without a driver.
func noCUDA() (api.Driver, error) {
	return nil, &libcuda.LoadError{Advice: "install it"}
}

func noNVML() (nvml.Source, error) {
	return nil, &nvml.LoadError{Tried: []nvml.Attempt{{Name: "libnvidia-ml.so.1", Err: fs.ErrNotExist}}}
}

// filesOnly is a machine of which only files can be read.
func filesOnly(tree fs.FS) Options {
	return Options{FS: tree, LookupEnv: noEnv, goos: "linux", openSeam: noCUDA, openNVML: noNVML}
}

func noEnv(string) (string, bool) { return "", false }

// put writes files into a tree, by name and content.
func put(tree fstest.MapFS, files map[string]string) {
	for name, text := range files {
		tree[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o444}
	}
}

// addPCI puts a device into a tree as sysfs has it, at a path below sys/devices.
// Values that start with "->" are links.
func addPCI(tree fstest.MapFS, dir string, files map[string]string) {
	tree["sys/bus/pci/devices/"+path.Base(dir)] = &fstest.MapFile{Mode: fs.ModeSymlink | 0o777, Data: []byte("../../../devices/" + dir)}
	tree["sys/devices/"+dir] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
	for name, text := range files {
		f := &fstest.MapFile{Data: []byte(text), Mode: 0o444}
		if to, isLink := strings.CutPrefix(text, "->"); isLink {
			f = &fstest.MapFile{Mode: fs.ModeSymlink | 0o777, Data: []byte(to)}
		}
		tree["sys/devices/"+dir+"/"+name] = f
	}
}

// geforceFiles is the sysfs of a GeForce card with a BAR1 of so many bytes. The
// link is idle.
func geforceFiles(bar1 uint64, node string) map[string]string {
	const none = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
	return map[string]string{
		"vendor": "0x10de\n", "device": "0x2684\n", "class": "0x030000\n", "subsystem_device": "0x16f3\n", "subsystem_vendor": "0x10de\n",
		"resource": "0x00000000f6000000 0x00000000f6ffffff 0x0000000000040200\n" +
			fmt.Sprintf("0x%016x 0x%016x 0x000000000014220c\n", uint64(1)<<44, uint64(1)<<44+bar1-1) + none +
			"0x000000f010000000 0x000000f011ffffff 0x000000000014220c\n" + none +
			"0x000000000000e000 0x000000000000e07f 0x0000000000040101\n" + none,
		"resource1_resize":   "000000000000ffc0\n",
		"numa_node":          node + "\n",
		"current_link_speed": "2.5 GT/s PCIe\n", "max_link_speed": "16.0 GT/s PCIe\n",
		"current_link_width": "16\n", "max_link_width": "16\n",
		"power_state": "D0\n", "driver": "->../../../../bus/pci/drivers/nvidia",
	}
}

// fixture reads a file of the H200 guest.
func fixture(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(path.Join("testdata/h200-guest", name))
	require.NoError(t, err)
	return string(b)
}

// h200Guest is the files of a guest with one H200, as far as they were taken.
func h200Guest(t testing.TB) fstest.MapFS {
	t.Helper()
	tree := fstest.MapFS{}
	put(tree, map[string]string{
		"proc/driver/nvidia/version":                       fixture(t, "proc-driver-nvidia-version"),
		"proc/driver/nvidia/params":                        fixture(t, "proc-driver-nvidia-params"),
		"proc/driver/nvidia/gpus/0000:00:06.0/information": fixture(t, "proc-driver-nvidia-gpus-information"),
	})
	files := map[string]string{}
	last := ""
	for line := range strings.Lines(fixture(t, "sysfs-0000_00_06.0.txt")) {
		switch name, value, ok := strings.Cut(line, ": "); {
		case ok:
			last, files[name] = name, value
		case strings.HasPrefix(line, "0x"):
			files[last] += line
		}
	}
	files["driver"] = "->../../../bus/pci/drivers/nvidia"
	addPCI(tree, "pci0000:00/0000:00:06.0", files)
	return tree
}
