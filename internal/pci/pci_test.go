// SPDX-License-Identifier: Apache-2.0

package pci_test

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/pci"
)

// fixture makes a tree of a listing that was taken on a guest with one H200:
// "name: value" lines, more lines of "resource", then the names of the files.
func fixture(t testing.TB) fstest.MapFS {
	t.Helper()
	b, err := os.ReadFile("testdata/h200-guest/sysfs-0000_00_06.0.txt")
	require.NoError(t, err)
	files := map[string]string{}
	last := ""
	for line := range strings.Lines(string(b)) {
		switch name, value, ok := strings.Cut(line, ": "); {
		case ok:
			last, files[name] = name, value
		case strings.HasPrefix(line, "0x"):
			files[last] += line
		}
	}
	require.NotContains(t, files, "iommu_group")
	tree := fstest.MapFS{}
	add(tree, "pci0000:00/0000:00:06.0", files)
	return tree
}

func TestH200Guest(t *testing.T) {
	tree := fixture(t)
	gpus, err := pci.GPUs(tree)
	require.NoError(t, err)
	require.Len(t, gpus, 1)
	d := gpus[0]
	require.Equal(t, "0000:00:06.0", d.BusID())
	require.True(t, d.Exists())

	vendor, err := d.Vendor()
	require.NoError(t, err)
	require.EqualValues(t, 0x10de, vendor)
	id, err := d.DeviceID()
	require.NoError(t, err)
	require.EqualValues(t, 0x2335, id)
	class, err := d.Class()
	require.NoError(t, err)
	require.EqualValues(t, 0x030200, class)
	node, err := d.NUMANode()
	require.NoError(t, err)
	require.Equal(t, -1, node)

	link, err := d.Link()
	require.NoError(t, err)
	require.Equal(t, pci.Link{Gen: 5, Width: 16}, link)
	rate, err := d.Rate()
	require.NoError(t, err)
	require.InDelta(t, 63.0e9, rate, 0.1e9)

	// BAR0 is a 64-bit one, so BAR1 is not in the second line but in the third.
	rs, err := d.Regions()
	require.NoError(t, err)
	require.Len(t, rs, 3)
	bar1, err := pci.BAR1(rs)
	require.NoError(t, err)
	require.Equal(t, pci.Region{Line: 2, Start: 0x100000000000, Size: 256 << 30, Flags: 0x14220c}, bar1)
	require.True(t, bar1.Memory() && bar1.Prefetch() && bar1.Is64())
	_, err = d.ResizeMask(bar1.Line)
	require.ErrorIs(t, err, fs.ErrNotExist)

	root, bridges, err := d.Route()
	require.NoError(t, err)
	require.Equal(t, "pci0000:00", root)
	require.Empty(t, bridges)

	// The listing has a driver, but not where the link leads.
	driver, err := d.Driver()
	require.NoError(t, err)
	require.Equal(t, "", driver)
	group, kind, err := d.IOMMU()
	require.NoError(t, err)
	require.Equal(t, "", group+kind)
}

func TestParseBusID(t *testing.T) {
	for in, want := range map[string]string{
		"0000:01:00.0":         "0000:01:00.0",
		"00000000:C1:00.0":     "0000:c1:00.0",
		"0000:C1:00.0\n":       "0000:c1:00.0",
		"c1:00.0":              "0000:c1:00.0",
		"c1:00":                "0000:c1:00.0",
		"0000:c1:1f.7":         "0000:c1:1f.7",
		"10000:01:00.0":        "10000:01:00.0",
		"ABCD1234:01:00.0":     "abcd1234:01:00.0",
		"0:1:2.3":              "0000:01:02.3",
		"  00000001:00:00.0  ": "0001:00:00.0",
	} {
		got, err := pci.ParseBusID(in)
		require.NoError(t, err, in)
		require.Equal(t, want, got, in)
		require.True(t, pci.IsBusID(got))
		require.Equal(t, in == want, pci.IsBusID(in), in)
	}
	for _, in := range []string{"", "0000", "0000:01:00.8", "0000:01:20.0", "0000:100:00.0", "100000000:01:00.0",
		"0000:0g:00.0", "0000:01:00.", "0000:01:00.0.0", "+000:01:00.0", "-1:01:00.0", "0_0:01:00.0", "0000::00.0",
		"0000:01:00:00.0", "GPU-01234567-89ab-cdef-0123-456789abcdef", "0000:01:00.0\x00", strings.Repeat("0", 1<<20)} {
		_, err := pci.ParseBusID(in)
		require.Error(t, err, "%.40q", in)
		require.Less(t, len(err.Error()), 200)
	}
}

func TestCompareBusID(t *testing.T) {
	order := []string{"0000:01:00.0", "0000:01:00.1", "0000:02:00.0", "0000:c1:00.0", "0001:00:00.0", "10000:00:00.0"}
	for i, a := range order {
		for j, b := range order {
			got := pci.CompareBusID(a, b)
			require.Equal(t, i < j, got < 0, "%s %s", a, b)
			require.Equal(t, i == j, got == 0, "%s %s", a, b)
		}
	}
}

// GPUs are found by vendor and class, whatever is bound to them; their audio
// functions and other makers' cards are not.
func TestGPUs(t *testing.T) {
	tree := fstest.MapFS{}
	dev := func(dir, vendor, class string) {
		add(tree, dir, map[string]string{"vendor": vendor + "\n", "class": class + "\n"})
	}
	dev("pci0000:80/0000:80:01.0/0000:81:00.0", "0x10de", "0x030000")
	dev("pci0000:80/0000:80:01.0/0000:81:00.1", "0x10de", "0x040300")
	dev("pci0000:00/0000:00:01.0/0000:01:00.0", "0x10de", "0x030200")
	dev("pci0000:00/0000:00:02.0", "0x8086", "0x030000")
	dev("pci10000:00/10000:01:00.0", "0x10de", "0x030000")
	dev("pci0000:00/0000:00:03.0", "junk", "0x030000")
	tree["sys/bus/pci/devices/README"] = &fstest.MapFile{Data: []byte("not a device")}
	gpus, err := pci.GPUs(tree)
	require.NoError(t, err)
	var ids []string
	for _, g := range gpus {
		ids = append(ids, g.BusID())
	}
	require.Equal(t, []string{"0000:01:00.0", "0000:81:00.0", "10000:01:00.0"}, ids)

	_, err = pci.GPUs(fstest.MapFS{})
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = pci.List(nil)
	require.Error(t, err)
	_, err = pci.At(nil, "0000:01:00.0")
	require.Error(t, err)
	_, err = pci.At(tree, "card 1")
	require.Error(t, err)
}

func TestAttributes(t *testing.T) {
	tree := fstest.MapFS{}
	add(tree, "pci0000:00/0000:00:01.0/0000:01:00.0", map[string]string{
		"vendor": "0x10de\n", "device": "0x2684\n", "subsystem_device": "0x16f3\n", "subsystem_vendor": "0x10de\n",
		"numa_node": "3\n", "power_state": "D3cold\n",
		"driver":      "->../../../../bus/pci/drivers/nouveau",
		"iommu_group": "->../../../../kernel/iommu_groups/27",
	})
	tree["sys/kernel/iommu_groups/27/type"] = &fstest.MapFile{Data: []byte("DMA-FQ\n")}
	d := at(t, tree, "01:00.0")
	device, vendor, err := d.Subsystem()
	require.NoError(t, err)
	require.EqualValues(t, 0x16f3, device)
	require.EqualValues(t, 0x10de, vendor)
	node, err := d.NUMANode()
	require.NoError(t, err)
	require.Equal(t, 3, node)
	power, err := d.PowerState()
	require.NoError(t, err)
	require.Equal(t, "D3cold", power)
	driver, err := d.Driver()
	require.NoError(t, err)
	require.Equal(t, "nouveau", driver)
	group, kind, err := d.IOMMU()
	require.NoError(t, err)
	require.Equal(t, "27 DMA-FQ", group+" "+kind)

	delete(tree, "sys/kernel/iommu_groups/27/type")
	group, _, err = d.IOMMU()
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.Equal(t, "27", group, "the group is known all the same")

	require.Equal(t, "/sys/bus/pci/devices/0000:01:00.0/numa_node", d.Path("numa_node"))
	require.Equal(t, "/sys/bus/pci/devices/0000:01:00.0", d.Path(""))

	// A device that is not there has no properties, rather than none.
	gone := at(t, tree, "02:00.0")
	require.False(t, gone.Exists())
	_, err = gone.Driver()
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, _, err = gone.IOMMU()
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = gone.Rate()
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// What no kernel writes is an error, and a short one.
func TestHostileAttributes(t *testing.T) {
	long := strings.Repeat("1", 1<<20)
	for _, text := range []string{"", "x", "0x10de\x00", "0x1ffffffff", "-7", long, "0x" + long} {
		tree := fstest.MapFS{}
		files := map[string]string{}
		for _, f := range []string{"vendor", "device", "class", "numa_node", "resource", "resource1_resize",
			"current_link_speed", "max_link_speed", "current_link_width", "max_link_width"} {
			files[f] = text
		}
		files["iommu_group"] = "->../../" + long
		files["driver"] = "->" + long
		add(tree, "pci0000:00/0000:00:01.0", files)
		d := at(t, tree, "00:01.0")
		for name, read := range map[string]func() error{
			"vendor":      func() error { _, err := d.Vendor(); return err },
			"device":      func() error { _, err := d.DeviceID(); return err },
			"class":       func() error { _, err := d.Class(); return err },
			"numa_node":   func() error { _, err := d.NUMANode(); return err },
			"resource":    func() error { _, err := d.Regions(); return err },
			"gen":         func() error { _, err := d.MaxLinkGen(); return err },
			"width":       func() error { _, err := d.MaxLinkWidth(); return err },
			"link":        func() error { _, err := d.Link(); return err },
			"rate":        func() error { _, err := d.Rate(); return err },
			"driver":      func() error { _, err := d.Driver(); return err },
			"iommu_group": func() error { _, _, err := d.IOMMU(); return err },
		} {
			err := read()
			require.Error(t, err, "%s of %.20q", name, text)
			require.Less(t, len(err.Error()), 300, name)
		}
		if text != "0x1ffffffff" { // a mask has 64 bits
			_, err := d.ResizeMask(1)
			require.Error(t, err, "%.20q", text)
		}
	}
}

// A file system without links (a simulated machine's) answers all but what
// needs them.
func TestWithoutLinks(t *testing.T) {
	tree := noLinks{fixture(t)}
	d := at(t, tree, "0000:00:06.0")
	rate, err := d.Rate()
	require.NoError(t, err)
	require.InDelta(t, 63.0e9, rate, 0.1e9)
	_, _, err = d.Route()
	require.Error(t, err)
	_, err = d.Driver()
	require.Error(t, err)
	require.False(t, errors.Is(err, fs.ErrNotExist))
}

// noLinks hides all methods but Open.
type noLinks struct{ tree fs.FS }

func (n noLinks) Open(name string) (fs.File, error) { return n.tree.Open(name) }
