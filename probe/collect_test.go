// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/api/tap"
	"github.com/geforce-p2p/geforce-p2p/internal/dl"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
	"github.com/geforce-p2p/geforce-p2p/internal/libcuda"
	"github.com/geforce-p2p/geforce-p2p/probe/nvml"
)

func collect(t testing.TB, o Options) *Facts {
	t.Helper()
	f, err := Collect(context.Background(), o)
	require.NoError(t, err)
	// What is collected can be written, and is read back the same.
	var b bytes.Buffer
	require.NoError(t, Save(&b, f))
	again, err := Parse(b.Bytes())
	require.NoError(t, err)
	if f.Nodes == nil {
		require.Nil(t, again.Nodes)
	}
	require.Equal(t, f, again)
	return f
}

func known[T any](t testing.TB, v Value[T]) T {
	t.Helper()
	x, ok := v.Get()
	require.True(t, ok, "%s", v.Why())
	return x
}

// The files of a guest with one H200, with CUDA and NVML missing, tell nearly
// all there is.
func TestCollectH200Guest(t *testing.T) {
	f := collect(t, filesOnly(h200Guest(t)))
	d := f.Driver
	require.True(t, known(t, d.Loaded))
	require.Equal(t, Open, known(t, d.Flavour))
	require.Equal(t, "580.159.04", known(t, d.Version))
	require.Equal(t, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)", known(t, d.Line))
	require.Equal(t, "0", known(t, d.Params)["EnableResizableBar"])
	require.False(t, f.CUDA.Usable)
	require.False(t, f.NVML.Usable)
	require.Equal(t, []string{"libnvidia-ml.so.1: file does not exist"}, f.NVML.Tried)
	require.Zero(t, f.NVML.Code, "there was no init to answer")

	require.Len(t, f.Devices, 1)
	g := f.Devices[0]
	require.Equal(t, "0000:00:06.0", g.BusID)
	require.Equal(t, "GPU-00000000-0000-0000-0000-000000000001", g.UUID)
	require.False(t, g.CUDA.Seen || g.NVML.Seen)
	require.Equal(t, "NVIDIA H200", known(t, g.Name))
	require.Equal(t, "96.00.a5.00.1a", known(t, g.VBIOS))
	require.Equal(t, 0, known(t, g.Minor))
	require.Equal(t, "580.159.04", known(t, g.GSP))
	require.EqualValues(t, 0x10de, known(t, g.VendorID))
	require.EqualValues(t, 0x2335, known(t, g.DeviceID))
	require.EqualValues(t, 0x030200, known(t, g.Class))
	require.EqualValues(t, uint64(256<<30), known(t, g.BAR1), "of the third line: BAR0 takes two")
	require.Equal(t, "/sys/bus/pci/devices/0000:00:06.0/resource", g.BAR1.Source)
	require.Equal(t, []BAR{
		{Line: 0, Start: 0x104002000000, Size: 16 << 20, Memory: true, Prefetch: true, Is64: true},
		{Line: 2, Start: 0x100000000000, Size: 256 << 30, Memory: true, Prefetch: true, Is64: true},
		{Line: 4, Start: 0x104000000000, Size: 32 << 20, Memory: true, Prefetch: true, Is64: true},
	}, known(t, g.BARs))
	require.Equal(t, "/sys/bus/pci/devices/0000:00:06.0/resource2_resize", g.ResizeMask.Source)
	require.Zero(t, known(t, g.ResizeMask), "the device is there and the file is not")
	require.Equal(t, 5, known(t, g.Link.GenMax))
	require.Equal(t, 16, known(t, g.Link.Width))
	require.Equal(t, -1, known(t, g.NUMA))
	require.Equal(t, "nvidia", known(t, g.BoundDriver))
	require.Empty(t, known(t, g.Path), "it sits on the root bus")
	require.False(t, g.IOMMUType.IsKnown(), "nothing tells whether there is an IOMMU")
	require.Empty(t, f.Pairs)
	require.Nil(t, f.Nodes, "there is no /dev")
}

// twoCards is a machine of two cards behind one switch, with an IOMMU.
func twoCards() fstest.MapFS {
	tree := fstest.MapFS{}
	const root = "pci0000:00/0000:00:01.0"
	port := func(dir string, kind byte, acs int) {
		b := make([]byte, 4096)
		copy(b, []byte{0x22, 0x10, 0x83, 0x14})
		b[0x06], b[0x34] = 0x10, 0x60
		b[0x60], b[0x62] = 0x10, kind<<4
		if acs >= 0 {
			copy(b[0x100:], []byte{0x0d, 0, 1, 0, 0, 0, byte(acs), 0})
		}
		addPCI(tree, dir, map[string]string{"vendor": "0x1022\n", "device": "0x1483\n", "config": string(b),
			"max_link_speed": "16.0 GT/s PCIe\n", "max_link_width": "16\n",
			"current_link_speed": "16.0 GT/s PCIe\n", "current_link_width": "16\n"})
	}
	port(root, 4, 0x1d)
	port(root+"/0000:01:00.0", 5, -1)
	port(root+"/0000:01:00.0/0000:02:00.0", 6, 0)
	port(root+"/0000:01:00.0/0000:02:01.0", 6, 0x0d)
	a, b := geforceFiles(32<<30, "0"), geforceFiles(256<<20, "0")
	a["iommu_group"], b["iommu_group"] = "->../../../../kernel/iommu_groups/11", "->../../../../kernel/iommu_groups/12"
	addPCI(tree, root+"/0000:01:00.0/0000:02:00.0/0000:03:00.0", a)
	addPCI(tree, root+"/0000:01:00.0/0000:02:01.0/0000:82:00.0", b)
	put(tree, map[string]string{
		"sys/kernel/iommu_groups/11/type":               "identity\n",
		"sys/kernel/iommu_groups/12/type":               "DMA-FQ\n",
		"sys/class/iommu/ivhd0/devices":                 "",
		"sys/devices/system/node/online":                "0-1\n",
		"proc/version":                                  "Linux version 6.8.0-60-generic\n",
		"proc/cmdline":                                  "ro quiet iommu=pt\n",
		"proc/cpuinfo":                                  "model name\t: AMD Ryzen\nflags\t: fpu\n",
		"proc/modules":                                  "nvidia_uvm 4628480 0 - Live 0x0\nnvidia 11452416 2 nvidia_uvm, Live 0x0\n",
		"sys/class/dmi/id/sys_vendor":                   "ASUS\n",
		"sys/class/dmi/id/product_name":                 "Pro WS\n",
		"proc/driver/nvidia/gpus/0000:82:00.0/ignored":  "",
		"proc/driver/nvidia/gpus/not a bus id/whatever": "",
	})
	return tree
}

func TestCollectFilesOfTwoCards(t *testing.T) {
	f := collect(t, filesOnly(twoCards()))
	require.Equal(t, []int{0, 1}, known(t, f.Machine.Nodes))
	require.Equal(t, 1, known(t, f.Machine.IOMMUs))
	require.Equal(t, "iommu=pt", known(t, f.Machine.Kargs))
	require.Equal(t, "ASUS Pro WS", known(t, f.Machine.Board))
	require.Equal(t, "AMD Ryzen", known(t, f.Machine.CPU))
	require.True(t, known(t, f.Driver.Loaded))
	require.True(t, known(t, f.Driver.UVMLoaded))
	require.False(t, f.Driver.Flavour.IsKnown(), "no version file: not proprietary, but unknown")

	require.Len(t, f.Devices, 2)
	a, b := f.Devices[0], f.Devices[1]
	require.Equal(t, "0000:03:00.0", a.BusID)
	require.Equal(t, "0000:82:00.0", b.BusID)
	require.EqualValues(t, uint64(32<<30), known(t, a.BAR1))
	require.EqualValues(t, uint64(256<<20), known(t, b.BAR1), "of the second line, with NVML missing")
	require.EqualValues(t, 0xffc0, known(t, b.ResizeMask))
	require.Equal(t, "11 identity", known(t, a.IOMMUGroup)+" "+known(t, a.IOMMUType))
	require.Equal(t, "12 DMA-FQ", known(t, b.IOMMUGroup)+" "+known(t, b.IOMMUType))
	require.EqualValues(t, 0x16f310de, known(t, a.SubsystemID))
	require.Equal(t, 1, known(t, a.Link.Gen))
	require.Equal(t, 4, known(t, a.Link.GenMax))
	require.Equal(t, "D0", known(t, a.RuntimePower))

	up := known(t, b.Path)
	require.Len(t, up, 3)
	require.Equal(t, []string{"root-port", "upstream", "downstream"}, []string{up[0].Kind, up[1].Kind, up[2].Kind})
	require.Equal(t, []string{"0000:00:01.0", "0000:01:00.0", "0000:02:01.0"}, []string{up[0].BusID, up[1].BusID, up[2].BusID})
	require.EqualValues(t, 0x1022, known(t, up[0].VendorID))
	require.EqualValues(t, 0x1483, known(t, up[0].DeviceID))
	require.Equal(t, ACS{Present: true, Control: 0x1d}, known(t, up[0].ACS))
	require.Equal(t, ACS{}, known(t, up[1].ACS))
	require.True(t, known(t, up[2].ACS).Redirects())
	require.False(t, known(t, known(t, a.Path)[2].ACS).Redirects())
	require.Equal(t, 4, known(t, up[0].Link.GenMax))

	require.Len(t, f.Pairs, 2)
	p := f.Pair(0, 1)
	require.Equal(t, AncestorSingle, known(t, p.Ancestor))
	require.Equal(t, "CUDA is not usable", p.CanAccess.Error)
	require.Equal(t, "NVML is not usable", p.Read.Error)
}

// An ordinary user is given the first 64 bytes of the configuration space: what
// lies behind is unknown, not off.
func TestCollectACSWithoutRoot(t *testing.T) {
	tree := twoCards()
	for name, file := range tree {
		if path.Base(name) == "config" {
			file.Data = file.Data[:64]
		}
	}
	f := collect(t, filesOnly(tree))
	for _, b := range known(t, f.Devices[0].Path) {
		require.False(t, b.ACS.IsKnown())
		require.Contains(t, b.ACS.Why(), "root only")
		require.Equal(t, "bridge", b.Kind)
	}
}

// CUDA's order is not NVML's: what NVML says of a card lands on that card.
func TestCollectJoinsByBusID(t *testing.T) {
	// CUDA: 82:00, 03:00. NVML: 03:00, 82:00, of which the second has the small BAR1.
	driver := simulated(t, []string{"0000:82:00.0", "0000:03:00.0"}, [2]int{0, 1})
	src := &fakeNVML{gpus: []*fakeGPU{
		{busID: "0000:03:00.0", uuid: testUUID(1), bar1: 32 << 30, links: []bool{true, false},
			p2p: map[string]nvml.P2PStatus{"0000:82:00.0 read": nvml.P2POK, "0000:82:00.0 write": nvml.P2PChipsetNotSupported}},
		{busID: "0000:82:00.0", uuid: testUUID(0), bar1: 256 << 20,
			p2p: map[string]nvml.P2PStatus{"0000:03:00.0 read": nvml.P2PGPUNotSupported, "0000:03:00.0 write": 77,
				"0000:03:00.0 nvlink": nvml.P2PNotSupported, "0000:03:00.0 atomics": nvml.P2PDisabledByRegistry, "0000:03:00.0 pci": nvml.P2PTopologyNotSupported}},
	}}
	f := collect(t, Options{Driver: driver, NVML: src, FS: twoCards(), goos: "linux"})
	require.False(t, src.closed, "the caller's source is the caller's to close")
	require.True(t, f.CUDA.Usable && f.NVML.Usable)
	require.Equal(t, "12.4", known(t, f.CUDA.Version))
	require.Equal(t, 2, known(t, f.CUDA.Devices))
	require.Equal(t, "12.565.57.01", known(t, f.NVML.Version))
	require.Equal(t, "565.57.01", known(t, f.Driver.UserVersion))
	require.Equal(t, "a simulated machine", f.Note)
	require.Equal(t, 3, f.Driver.ConfidentialCompute.Code)

	require.Len(t, f.Devices, 2)
	a, b := f.Devices[0], f.Devices[1]
	require.Equal(t, "0000:03:00.0", a.BusID)
	require.Equal(t, Handle{Index: 1, Seen: true}, a.CUDA)
	require.Equal(t, Handle{Index: 0, Seen: true}, a.NVML)
	require.Equal(t, Handle{Index: 0, Seen: true}, b.CUDA)
	require.Equal(t, Handle{Index: 1, Seen: true}, b.NVML)
	require.EqualValues(t, uint64(32<<30), known(t, a.BAR1))
	require.EqualValues(t, uint64(256<<20), known(t, b.BAR1))
	require.Equal(t, "nvmlDeviceGetBAR1MemoryInfo", b.BAR1.Source)
	require.Equal(t, testUUID(1), a.UUID)
	require.Equal(t, "8.9", known(t, a.ComputeCapability))
	require.Equal(t, "ada", known(t, a.Architecture))
	require.EqualValues(t, uint64(24564<<20), known(t, a.Memory))
	require.Equal(t, "host-vgpu", known(t, a.Virtualization))
	require.True(t, known(t, a.Persistence))
	require.True(t, known(t, a.Display))
	require.Equal(t, "/sys/bus/pci/devices/0000:03:00.0/max_link_speed", a.Link.GenMax.Source)
	require.Equal(t, 4, known(t, a.Link.GenMax), "the card's own, not what NVML takes it to")
	require.Equal(t, 3, a.MIG.Code)
	require.False(t, a.MIG.IsKnown())
	require.False(t, a.PState.IsKnown())
	require.Equal(t, 0, known(t, a.NUMA), "of sysfs, not CUDA's")
	require.False(t, known(t, a.Integrated))
	require.Equal(t, []NVLink{{0, true, "0000:a0:00.0"}, {1, false, ""}}, known(t, a.NVLinks))
	require.Equal(t, []NVLink{}, known(t, b.NVLinks), "not supported means none")

	// CUDA's 0 may reach its 1, not the other way; NVML's numbers are others.
	down, up := f.Pair(1, 0), f.Pair(0, 1)
	require.True(t, known(t, down.CanAccess))
	require.False(t, known(t, up.CanAccess))
	require.Equal(t, P2POK, known(t, up.Read))
	require.Equal(t, P2PChipset, known(t, up.Write))
	require.Equal(t, 13, up.NVLink.Code, "a function that is not there is no answer")
	require.Equal(t, P2PGPU, known(t, down.Read))
	require.False(t, down.Write.IsKnown())
	require.Contains(t, down.Write.Error, "77")
	require.Equal(t, P2PNotSupported, known(t, down.NVLink))
	require.Equal(t, P2PDisabledByRegistry, known(t, down.Atomics))
	require.Equal(t, P2PTopology, known(t, down.PCI))
	require.Equal(t, AncestorNode, known(t, down.Ancestor), "NVML's word before that of the paths")
	require.True(t, known(t, down.AccessSupported))
	require.True(t, down.PerformanceRank.IsKnown() && down.NativeAtomic.IsKnown() && down.ArrayAccess.IsKnown())
}

// Where a bus id is missing, the UUID joins; where all share the id of nowhere,
// too.
func TestCollectJoinsByUUID(t *testing.T) {
	driver := simulated(t, []string{"0000:00:00.0", "0000:82:00.0"})
	src := &fakeNVML{gpus: []*fakeGPU{
		{busID: "", uuid: testUUID(1), bar1: 1 << 30},
		{busID: "0000:00:00.0", uuid: strings.ToUpper(testUUID(0)), bar1: 2 << 30},
		{busID: "0000:00:00.0", uuid: "GPU-another", bar1: 3 << 30},
	}}
	f := collect(t, Options{Driver: driver, NVML: src, FS: fstest.MapFS{}})
	require.Len(t, f.Devices, 3)
	require.Equal(t, "0000:82:00.0", f.Devices[0].BusID)
	require.Equal(t, testUUID(1), f.Devices[0].UUID)
	require.EqualValues(t, uint64(1<<30), known(t, f.Devices[0].BAR1))
	require.Equal(t, 1, f.Devices[0].CUDA.Index)
	require.Equal(t, "", f.Devices[1].BusID)
	require.EqualValues(t, uint64(2<<30), known(t, f.Devices[1].BAR1))
	require.True(t, f.Devices[1].CUDA.Seen)
	require.EqualValues(t, uint64(3<<30), known(t, f.Devices[2].BAR1))
	require.False(t, f.Devices[2].CUDA.Seen)
	require.Contains(t, f.Pair(0, 2).CanAccess.Error, "does not show")
}

// Two MIG instances of one GPU have one bus id and UUIDs of their own: the first
// takes the GPU, the other stays.
func TestCollectKeepsInstancesApart(t *testing.T) {
	driver := simulated(t, []string{"0000:03:00.0", "0000:03:00.0"})
	src := &fakeNVML{gpus: []*fakeGPU{{busID: "0000:03:00.0", uuid: "GPU-whole", bar1: 1 << 30}}}
	f := collect(t, Options{Driver: driver, NVML: src, FS: fstest.MapFS{}})
	require.Len(t, f.Devices, 2)
	require.Equal(t, "GPU-whole", f.Devices[0].UUID)
	require.True(t, f.Devices[0].NVML.Seen && f.Devices[0].CUDA.Seen)
	require.False(t, f.Devices[1].NVML.Seen)
	require.Equal(t, "0000:03:00.0", f.Devices[1].BusID)
}

// A GPU that fell off the bus has no handle and so no bus id. What is left over
// on both sides is the same device; the others are complete.
func TestCollectLostGPU(t *testing.T) {
	tree := fstest.MapFS{}
	for _, id := range []string{"0000:01:00.0", "0000:02:00.0", "0000:03:00.0"} {
		addPCI(tree, "pci0000:00/"+id, geforceFiles(32<<30, "0"))
		put(tree, map[string]string{"proc/driver/nvidia/gpus/" + id + "/information": "Model: \t\t RTX 4090\nDevice Minor: \t 4\nGPU Firmware: \t N/A\n"})
	}
	lost := func(g *fakeGPU) *fakeNVML {
		return &fakeNVML{gpus: []*fakeGPU{
			{busID: "0000:01:00.0", uuid: "GPU-a", bar1: 1}, g, {busID: "0000:03:00.0", uuid: "GPU-c", bar1: 1},
		}}
	}
	o := filesOnly(tree)
	o.NVML = lost(&fakeGPU{lost: true})
	f := collect(t, o)
	require.Len(t, f.Devices, 3)
	g := f.Devices[1]
	require.Equal(t, "0000:02:00.0", g.BusID)
	require.True(t, g.NVML.Seen)
	require.Equal(t, 15, g.NVML.Code)
	require.Contains(t, g.NVML.Error, "GPU_IS_LOST")
	require.Equal(t, 4, known(t, g.Minor))
	require.Equal(t, "", known(t, g.GSP), "N/A is a GPU without its firmware")
	require.Contains(t, f.Pair(0, 1).Read.Error, "no handle of")
	require.Equal(t, AncestorNode, known(t, f.Pair(0, 2).Ancestor))
	require.Zero(t, f.Devices[2].NVML.Code)

	// One that has a handle and answers nothing else.
	o.NVML = lost(&fakeGPU{fallen: true, linkErr: nvml.ErrGPULost})
	f = collect(t, o)
	require.Len(t, f.Devices, 3)
	require.Equal(t, "0000:02:00.0", f.Devices[1].BusID)
	require.Equal(t, 15, f.Devices[1].NVML.Code)
	require.False(t, f.Devices[1].Memory.IsKnown())
	require.Equal(t, 15, f.Devices[1].Memory.Code)

	// Where the counts differ, nothing is guessed.
	delete(tree, "proc/driver/nvidia/gpus/0000:03:00.0/information")
	o.NVML = lost(&fakeGPU{lost: true})
	f = collect(t, o)
	require.Len(t, f.Devices, 4)
	require.Equal(t, "", f.Devices[3].BusID)
	require.Equal(t, 15, f.Devices[3].NVML.Code)
	require.Contains(t, f.Pair(3, 0).Ancestor.Why(), "no sysfs path")
}

// A call that fails is a fact about that call; one of the grave codes is one
// about the device.
func TestCollectCUDAErrors(t *testing.T) {
	driver, tp := gputest.Tapped(t, simulated(t, []string{"0000:01:00.0", "0000:02:00.0", "0000:03:00.0"}))
	tp.Fail("DeviceTotalMem", 1, api.InvalidValue)
	tp.Fail("DeviceGetName", 2, api.Unknown)
	tp.Fail("DeviceGet", 3, api.DeviceUnavailable)
	tp.FailFrom("DeviceGetP2PAttribute", 1, api.CodeSymbolMissing)
	tp.Fail("DeviceCanAccessPeer", 1, api.InvalidDevice)
	f := collect(t, Options{Driver: driver})
	require.Len(t, f.Devices, 4, "the one without a handle does not say which of the files' it is")
	require.False(t, f.Devices[0].CUDAMemory.IsKnown())
	require.Equal(t, 1, f.Devices[0].CUDAMemory.Code)
	require.Zero(t, f.Devices[0].CUDA.Code)
	require.Equal(t, 999, f.Devices[1].CUDA.Code)
	require.False(t, f.Devices[2].CUDA.Seen)
	require.Equal(t, 46, f.Devices[3].CUDA.Code)
	require.Equal(t, "", f.Devices[3].BusID)
	require.Equal(t, 101, f.Pair(0, 1).CanAccess.Code)
	require.False(t, known(t, f.Pair(1, 0).CanAccess))
	require.False(t, f.Pair(0, 1).PerformanceRank.IsKnown())
	require.Zero(t, f.Pair(0, 1).PerformanceRank.Code, "the driver answered nothing")
	require.Contains(t, f.Pair(0, 3).CanAccess.Error, "no handle")
	require.True(t, f.NVML.Skipped, "a simulated machine has no NVML")

	driver, tp = gputest.Tapped(t, simulated(t, []string{"0000:01:00.0"}))
	tp.Fail("DeviceGetCount", 1, api.Unknown)
	tp.Fail("DriverGetVersion", 1, api.Unknown)
	f = collect(t, Options{Driver: driver})
	require.Empty(t, f.Devices[0].CUDA, "its files alone are known")
	require.Equal(t, 999, f.CUDA.Devices.Code)
	require.False(t, f.CUDA.Version.IsKnown())
}

// pathSeam is a seam that was loaded from a file.
type pathSeam struct {
	api.Driver
	path string
}

func (p pathSeam) Path() string { return p.path }

// A library that is there and does not start is known by its path, its code and
// its time.
func TestCollectInitErrors(t *testing.T) {
	tree := twoCards()
	put(tree, map[string]string{"proc/driver/nvidia/version": versionLines[0].text})
	tp := tap.New(hook.Seam(simulated(t, []string{"0000:01:00.0"})))
	tp.Fail("Init", 1, api.SystemDriverMismatch)
	o := filesOnly(tree)
	o.openSeam = func() (api.Driver, error) {
		return pathSeam{tp, "/usr/lib/x86_64-linux-gnu/libcuda.so.570.124.04"}, nil
	}
	o.openNVML = func() (nvml.Source, error) {
		return nil, &nvml.InitError{Library: "/usr/lib/libnvidia-ml.so.1", NVMLVersion: "12.570.124.04",
			Err: &nvml.Error{Op: "nvmlInit_v2", Code: nvml.ErrVersionMismatch}}
	}
	f := collect(t, o)
	require.False(t, f.CUDA.Usable)
	require.Equal(t, 803, f.CUDA.Code)
	require.Equal(t, "/usr/lib/x86_64-linux-gnu/libcuda.so.570.124.04", f.CUDA.Path)
	require.Contains(t, f.CUDA.Error, "803")
	require.Positive(t, f.CUDA.InitSeconds)
	require.False(t, f.NVML.Usable)
	require.Equal(t, 18, f.NVML.Code)
	require.Equal(t, "/usr/lib/libnvidia-ml.so.1", f.NVML.Path)
	require.Equal(t, "12.570.124.04", known(t, f.NVML.Version))
	require.Equal(t, "570.124.04", known(t, f.Driver.UserVersion))
	require.Equal(t, "565.57.01", known(t, f.Driver.Version))
	require.Len(t, f.Devices, 2, "the files tell all the same")

	// Without NVML the name of libcuda's file tells the version.
	o.openNVML = noNVML
	f = collect(t, o)
	require.Equal(t, "570.124.04", known(t, f.Driver.UserVersion))
	o.openSeam = noCUDA
	f = collect(t, o)
	require.False(t, f.Driver.UserVersion.IsKnown())
	require.Contains(t, f.CUDA.Error, "install it")
}

// What the loader tried is kept.
func TestCollectTried(t *testing.T) {
	o := filesOnly(fstest.MapFS{})
	o.openSeam = func() (api.Driver, error) {
		return nil, &libcuda.LoadError{Tried: []dl.Attempt{{Name: "libcuda.so.1", Err: errors.New("libcuda.so.1: no such file")}}}
	}
	o.openNVML = func() (nvml.Source, error) { return nil, errors.New("something else") }
	f := collect(t, o)
	require.Equal(t, []string{"libcuda.so.1: no such file"}, f.CUDA.Tried)
	require.Equal(t, "something else", f.NVML.Error)

	o.SkipCUDA, o.SkipNVML = true, true
	o.openSeam = func() (api.Driver, error) { panic("it was to be left out") }
	o.openNVML = func() (nvml.Source, error) { panic("it was to be left out") }
	f = collect(t, o)
	require.True(t, f.CUDA.Skipped && f.NVML.Skipped)
}

// The source that Collect opens is closed, and the time of its start kept.
func TestCollectOpensAndCloses(t *testing.T) {
	src := &fakeNVML{gpus: []*fakeGPU{{busID: "0000:03:00.0", uuid: "GPU-a", bar1: 1}}}
	o := filesOnly(fstest.MapFS{})
	o.openNVML = func() (nvml.Source, error) { return src, nil }
	seam := hook.Seam(simulated(t, []string{"0000:03:00.0"}))
	o.openSeam = func() (api.Driver, error) { return seam, nil }
	f := collect(t, o)
	require.True(t, src.closed)
	require.Positive(t, f.NVML.InitSeconds)
	require.Positive(t, f.CUDA.InitSeconds)
	require.Len(t, f.Devices, 1)
	require.Equal(t, "/usr/lib/libnvidia-ml.so.1", f.NVML.Path)
}

// A library that hangs is given up, and the rest is collected.
func TestCollectGivesUp(t *testing.T) {
	stuck := make(chan struct{})
	t.Cleanup(func() { close(stuck) })
	o := filesOnly(twoCards())
	o.Patience = 10 * time.Millisecond
	o.openSeam = func() (api.Driver, error) { <-stuck; return noCUDA() }
	o.openNVML = func() (nvml.Source, error) { <-stuck; return noNVML() }
	f := collect(t, o)
	require.Contains(t, f.CUDA.Error, "given up")
	require.Contains(t, f.NVML.Error, "given up")
	require.Len(t, f.Devices, 2)

	// The caller's end is an error, with what was read until then.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	o.Patience = 0
	f, err := Collect(ctx, o)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, "AMD Ryzen", known(t, f.Machine.CPU))
	o.openSeam = noCUDA
	ctx2, cancel2 := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel2()
	_, err = Collect(ctx2, o)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// More GPUs than can be judged are refused before memory is spent on them.
func TestCollectRefusesTooMany(t *testing.T) {
	many := fstest.MapFS{}
	for i := range maxDevices + 1 {
		addPCI(many, fmt.Sprintf("pci0000:00/0000:%02x:00.0", i+1), geforceFiles(1<<28, "0"))
	}
	_, err := Collect(context.Background(), filesOnly(many))
	require.ErrorContains(t, err, "65 GPUs")

	proc := fstest.MapFS{}
	for i := range 10000 {
		put(proc, map[string]string{fmt.Sprintf("proc/driver/nvidia/gpus/%04x:01:00.0/information", i): "Model: x\n"})
	}
	_, err = Collect(context.Background(), filesOnly(proc))
	require.ErrorContains(t, err, "10000 GPUs")

	o := filesOnly(fstest.MapFS{})
	o.NVML = &fakeNVML{count: 10000}
	_, err = Collect(context.Background(), o)
	require.ErrorContains(t, err, "NVML has 10000 GPUs")

	ids := make([]string, maxDevices+1)
	for i := range ids {
		ids[i] = fmt.Sprintf("0000:%02x:00.0", i+1)
	}
	_, err = Collect(context.Background(), Options{Driver: simulated(t, ids), FS: fstest.MapFS{}})
	require.ErrorContains(t, err, "CUDA has 65 GPUs")
}

// A tree of files that no kernel writes gives unknowns, in bounded memory.
func TestCollectHostileFiles(t *testing.T) {
	for name, text := range map[string]string{
		"long lines": strings.Repeat("x", 1<<20), "NULs": strings.Repeat("\x00", 1<<20), "newlines": strings.Repeat("\n", 1<<20),
		"nothing": "", "colons": strings.Repeat(":", 1<<20), "not UTF-8": strings.Repeat("\xff", 5000),
	} {
		tree := twoCards()
		for _, f := range tree {
			if f.Mode.IsRegular() {
				f.Data = []byte(text)
			}
		}
		put(tree, map[string]string{
			"proc/driver/nvidia/version": text, "proc/driver/nvidia/params": text, "proc/devices": text,
			"proc/driver/nvidia/gpus/0000:03:00.0/information": text, "proc/self/cgroup": text, "proc/1/environ": text,
			"proc/self/limits": text, "run/systemd/container": text, "proc/self/mounts": text, "sys/module/nvidia/version": text,
			"sys/module/nvidia/taint": text, "dev/nvidia0": text,
		})
		f := collect(t, filesOnly(tree))
		var b bytes.Buffer
		require.NoError(t, Save(&b, f), name)
		require.Less(t, b.Len(), 128<<10, name)
		require.False(t, f.Driver.Version.IsKnown(), name)
		require.False(t, f.Driver.Params.IsKnown(), name)
	}
}

// Without NVML, CUDA on Windows still tells TCC from the rest.
func TestCollectOnWindows(t *testing.T) {
	driver := simulated(t, []string{"0000:01:00.0"})
	f := collect(t, Options{Driver: driver, goos: "windows"})
	require.Equal(t, "windows", f.Machine.OS)
	require.False(t, f.Devices[0].DriverModel.IsKnown())
	require.Contains(t, f.Devices[0].DriverModel.Why(), "WDDM")

	r := cudaDevice{tcc: Known(true, "x")}
	require.Equal(t, "tcc", known(t, r.driverModel()))
	require.False(t, cudaDevice{tcc: Failed[bool]("x", "no", 1)}.driverModel().IsKnown())

	o := Options{SkipCUDA: true, NVML: &fakeNVML{gpus: []*fakeGPU{{busID: "0000:03:00.0", uuid: "GPU-a"}}}, goos: "windows", LookupEnv: noEnv}
	f = collect(t, o)
	require.False(t, f.Machine.Kernel.Asked(), "there are no Linux files to read")
	require.Equal(t, 3, known(t, f.Devices[0].Link.GenMax), "NVML's")
	require.EqualValues(t, 0x2684, known(t, f.Devices[0].DeviceID))
	require.Nil(t, f.Nodes)
}

// The real machine, whatever it is, gives facts that can be written and read.
func TestCollectHere(t *testing.T) {
	start := time.Now()
	f := collect(t, Options{})
	spent := time.Since(start).Seconds() - f.CUDA.InitSeconds - f.NVML.InitSeconds
	t.Logf("%d devices in %.3f s beside cuInit (%.3f s) and nvmlInit (%.3f s)", len(f.Devices), spent, f.CUDA.InitSeconds, f.NVML.InitSeconds)
	var d *cuda.Driver
	if f.CUDA.Usable {
		d = gputest.Hardware(t)
		n, err := d.DeviceCount()
		require.NoError(t, err)
		seen := 0
		for _, g := range f.Devices {
			if g.CUDA.Seen {
				seen++
				require.NotEmpty(t, g.BusID)
			}
		}
		require.Equal(t, n, seen)
		require.Less(t, spent, 2.0)
	}
}
