// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"io/fs"
	"runtime"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/pci"
)

func TestTree(t *testing.T) {
	tr := newTree()
	tr.file("a/b/f", "text")
	tr.directory("a/empty")
	tr.link("x/y/l", "a/b")
	tr.link("x/file", "a/b/f")
	tr.node("dev/n", 195, 255)
	require.NoError(t, fstest.TestFS(tr, "a/b/f", "a/empty", "x/y/l", "dev/n"))
	// TestFS opens all that it finds.
	tr.link("x/loop", "x/loop")
	tr.link("x/nowhere", "a/none")

	b, err := fs.ReadFile(tr, "x/y/l/f")
	require.NoError(t, err)
	require.Equal(t, "text", string(b))
	b, err = fs.ReadFile(tr, "x/file")
	require.NoError(t, err)
	require.Equal(t, "text", string(b))
	to, err := fs.ReadLink(tr, "x/y/l")
	require.NoError(t, err)
	require.Equal(t, "../../a/b", to)
	entries, err := fs.ReadDir(tr, "x/y/l")
	require.NoError(t, err)
	require.Len(t, entries, 1)

	for _, name := range []string{"none", "a/b/g", "x/nowhere", "x/nowhere/f"} {
		_, err = fs.Stat(tr, name)
		require.ErrorIs(t, err, fs.ErrNotExist, name)
	}
	for _, name := range []string{"a/b/f/g", "x/loop", "/a", "../a"} {
		_, err = tr.Open(name)
		require.Error(t, err, name)
		require.NotErrorIs(t, err, fs.ErrNotExist, name)
	}
	_, err = fs.ReadLink(tr, "a/b/f")
	require.ErrorIs(t, err, fs.ErrInvalid)
	_, err = tr.ReadDir("a/b/f")
	require.Error(t, err)

	info, err := fs.Stat(tr, "dev/n")
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&fs.ModeCharDevice)
	if runtime.GOOS == "linux" {
		require.NotNil(t, info.Sys())
	}
}

func TestHostFiles(t *testing.T) {
	for _, name := range Names() {
		m, err := Open(name)
		require.NoError(t, err)
		files := seam{m}.Host().FS()
		require.NoError(t, fstest.TestFS(files, "sys/bus/pci/devices", "proc/driver/nvidia/version", "dev/nvidia0"))
		gpus, err := pci.GPUs(files)
		require.NoError(t, err)
		require.Len(t, gpus, len(m.gpus))
		for i, d := range gpus {
			g := &m.spec.GPUs[i]
			require.Equal(t, g.PCIBusID, d.BusID())
			link, err := d.MaxLink()
			require.NoError(t, err)
			require.Equal(t, pci.Link{Gen: g.PCIeGen, Width: g.PCIeWidth}, link)
			node, err := d.NUMANode()
			require.NoError(t, err)
			require.Equal(t, g.NUMANode, node)
			driver, err := d.Driver()
			require.NoError(t, err)
			require.Equal(t, "nvidia", driver)
			root, up, err := d.Route()
			require.NoError(t, err)
			require.Equal(t, g.PCI.Root, root)
			require.Len(t, up, len(g.PCI.Path))
			for _, b := range up {
				c, err := b.Config()
				require.NoError(t, err)
				kind, ok, err := c.PortType()
				require.NoError(t, err)
				require.True(t, ok)
				require.Equal(t, pci.PortRoot, kind)
				_, present, err := c.ACS()
				require.NoError(t, err)
				require.False(t, present)
			}
			regions, err := d.Regions()
			require.NoError(t, err)
			require.Len(t, regions, len(g.PCI.BARs))
			bar1, err := pci.BAR1(regions)
			require.NoError(t, err)
			require.Equal(t, g.PCI.BARs[1].Bytes, bar1.Size)
			require.Zero(t, bar1.Start%bar1.Size)
			for _, o := range gpus[:i] {
				others, err := o.Regions()
				require.NoError(t, err)
				for j, r := range regions {
					require.NotEqual(t, others[j].Start, r.Start)
				}
			}
		}
	}
}

func TestHostFilesOfOtherHosts(t *testing.T) {
	// Without a system and a module there is only what the description knows.
	s, err := Builtin("2x4090")
	require.NoError(t, err)
	s.System, s.Module = System{}, Module{}
	for i := range s.GPUs {
		s.GPUs[i].PCI = PCI{}
	}
	m, err := New(s)
	require.NoError(t, err)
	files := seam{m}.Host().FS()
	for _, name := range []string{"proc", "dev", "sys/module"} {
		_, err := fs.Stat(files, name)
		require.ErrorIs(t, err, fs.ErrNotExist, name)
	}
	b, err := fs.ReadFile(files, "sys/bus/pci/devices/0000:25:00.0/max_link_speed")
	require.NoError(t, err)
	require.Equal(t, "16.0 GT/s PCIe\n", string(b))

	// An IOMMU that translates, and a switch with Access Control Services.
	s, err = Builtin("2x4090")
	require.NoError(t, err)
	s.System.IOMMU = "DMA"
	for i := range s.GPUs {
		s.GPUs[i].PCI.Root = "pci0000:00"
		s.GPUs[i].PCI.Path = []Bridge{
			{BusID: "0000:00:01.1", VendorID: "0x1022", DeviceID: "0x1483", Kind: "root-port"},
			{BusID: "0000:02:00.0", VendorID: "0x1000", DeviceID: "0xc010", Kind: "upstream"},
			{BusID: "0000:03:0" + string(rune('0'+i)) + ".0", VendorID: "0x1000", DeviceID: "0xc010", Kind: "downstream", ACS: "0x1d"},
		}
	}
	m, err = New(s)
	require.NoError(t, err)
	d, err := pci.At(seam{m}.Host().FS(), "0000:25:00.0")
	require.NoError(t, err)
	group, kind, err := d.IOMMU()
	require.NoError(t, err)
	require.Equal(t, "17", group)
	require.Equal(t, "DMA", kind)
	up, err := d.Upstream()
	require.NoError(t, err)
	require.Len(t, up, 3)
	c, err := up[2].Config()
	require.NoError(t, err)
	port, _, err := c.PortType()
	require.NoError(t, err)
	require.Equal(t, pci.PortDownstream, port)
	control, present, err := c.ACS()
	require.NoError(t, err)
	require.True(t, present)
	require.EqualValues(t, 0x1d, control)
}

func TestPreferNode(t *testing.T) {
	m, err := Open("8x4090")
	require.NoError(t, err)
	r := newRigOf(t, m)
	h := r.d.Host()
	on := func() int {
		_, p := r.pinned(4096)
		return m.findHost(uint64(uintptr(p))).node.id
	}
	require.Equal(t, 0, on())
	restore, err := h.PreferNode(5)
	require.NoError(t, err)
	require.Equal(t, 5, on())
	again, err := h.PreferNode(2)
	require.NoError(t, err)
	require.Equal(t, 2, on())
	again()
	require.Equal(t, 5, on())
	done := make(chan *numa)
	go onThread(func() { done <- m.preferred() })
	require.Equal(t, 0, (<-done).id, "it is the thread's")
	restore()
	require.Equal(t, 0, on())
	_, err = h.PreferNode(8)
	require.Error(t, err)
}
