// SPDX-License-Identifier: Apache-2.0

package pci_test

import (
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/pci"
)

func TestRoute(t *testing.T) {
	for dir, want := range map[string][]string{
		"pci0000:00/0000:00:06.0":                                                     {"pci0000:00"},
		"pci0000:40/0000:40:01.1/0000:41:00.0":                                        {"pci0000:40", "0000:40:01.1"},
		"pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:08.0/0000:03:00.0":              {"pci0000:00", "0000:00:01.0", "0000:01:00.0", "0000:02:08.0"},
		"platform/soc/14100000.pcie/pci0005:00/0005:00:00.0/0005:01:00.0":             {"pci0005:00", "0005:00:00.0"},
		"LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/4742-b2/pciB2E4:00/b2e4:00:0.0": nil,
		"pci0000:00/0000:00:0e.0/pci10000:00/10000:00:02.0/10000:01:00.0":             {"pci10000:00", "10000:00:02.0"},
	} {
		tree := fstest.MapFS{}
		add(tree, dir, nil)
		parts := strings.Split(dir, "/")
		id := parts[len(parts)-1]
		d := at(t, tree, id)
		root, bridges, err := d.Route()
		if want == nil {
			require.Error(t, err, dir)
			continue
		}
		require.NoError(t, err, dir)
		got := []string{root}
		for _, b := range bridges {
			got = append(got, b.BusID())
		}
		require.Equal(t, want, got, dir)
	}
}

func TestRouteRefuses(t *testing.T) {
	for name, to := range map[string]string{
		"another device": "../../../devices/pci0000:00/0000:00:02.0",
		"no root":        "../../../devices/0000:00:01.0",
		"no device":      "../../../devices/pci0000:00",
		"something else": "../../../devices/pci0000:00/usb1/0000:00:01.0",
		"nothing":        "",
		"too long":       strings.Repeat("a/", 1<<19),
		"too deep":       "pci0000:00/" + strings.Repeat("0000:00:02.0/", 300) + "0000:00:01.0",
	} {
		tree := fstest.MapFS{"sys/bus/pci/devices/0000:00:01.0": {Mode: fs.ModeSymlink | 0o777, Data: []byte(to)}}
		_, _, err := at(t, tree, "0000:00:01.0").Route()
		require.Error(t, err, name)
		require.Less(t, len(err.Error()), 300, name)
	}
	_, err := at(t, fstest.MapFS{}, "0000:00:01.0").Upstream()
	require.ErrorIs(t, err, fs.ErrNotExist)
}

var _ fs.ReadLinkFS = fstest.MapFS{} // what the trees of these tests rely on

func TestConfig(t *testing.T) {
	const redirect = pci.ACSRequestRedirect | pci.ACSCompletionRedirect
	conventional := config(256, pci.PortRoot, -1)
	conventional[0x60] = 0x05
	loop := config(4096, pci.PortRoot, 0)
	copy(loop[0x100:], []byte{1, 0, 1, 0x10}) // leads to itself
	backwards := config(4096, pci.PortRoot, 0)
	copy(backwards[0x100:], []byte{1, 0, 1, 0x04}) // leads to 0x40
	last := config(4096, pci.PortRoot, 0)
	copy(last[0x100:], []byte{1, 0, 0xc1, 0xff}) // leads to 0xffc
	copy(last[0xffc:], []byte{0x0d, 0, 1, 0})
	capLoop := config(4096, pci.PortRoot, 0)
	capLoop[0x50], capLoop[0x51] = 1, 0x50
	lowCap := config(4096, pci.PortRoot, 0)
	lowCap[0x34] = 0x10
	lateCap := config(4096, pci.PortRoot, 0)
	lateCap[0x51] = 0xff
	lateCap[0xfc] = 0x10
	dead := make([]byte, 4096)
	for i := range dead {
		dead[i] = 0xff
	}
	noExtended := config(4096, pci.PortDownstream, -1)
	clear(noExtended[256:])
	for name, c := range map[string]struct {
		config  []byte
		control uint16
		present bool
		short   bool
		fails   bool
	}{
		"redirects":              {config: config(4096, pci.PortRoot, redirect), control: redirect, present: true},
		"off":                    {config: config(4096, pci.PortDownstream, 0), present: true},
		"source validation only": {config: config(4096, pci.PortDownstream, 1), control: 1, present: true},
		"no such capability":     {config: config(4096, pci.PortUpstream, -1)},
		"no extended space":      {config: noExtended},
		"conventional PCI":       {config: conventional},
		"as an ordinary user":    {config: config(64, pci.PortRoot, 0), short: true},
		"less than a header":     {config: config(10, pci.PortRoot, 0), short: true},
		"nothing":                {short: true},
		"half of it":             {config: config(256, pci.PortRoot, 0), short: true},
		"cut before it":          {config: config(0x2a0, pci.PortRoot, 0), short: true},
		"cut within it":          {config: config(0x2a6, pci.PortRoot, 0), short: true},
		"a loop":                 {config: loop, fails: true},
		"a way back":             {config: backwards, fails: true},
		"at the very end":        {config: last, short: true},
		"a loop of capabilities": {config: capLoop, fails: true},
		"a capability in front":  {config: lowCap, fails: true},
		"does not answer":        {config: dead, fails: true},
	} {
		control, present, err := pci.Config(c.config).ACS()
		switch {
		case c.short:
			require.ErrorIs(t, err, pci.ErrConfigShort, name)
		case c.fails:
			require.Error(t, err, name)
			require.NotErrorIs(t, err, pci.ErrConfigShort, name)
		default:
			require.NoError(t, err, name)
			require.Equal(t, c.present, present, name)
			require.Equal(t, c.control, control, name)
		}
	}

	kind, ok, err := pci.Config(config(256, pci.PortUpstream, -1)).PortType()
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, pci.PortUpstream, kind)
	_, ok, err = pci.Config(conventional).PortType()
	require.NoError(t, err)
	require.False(t, ok)
	_, _, err = pci.Config(config(64, pci.PortRoot, 0)).PortType()
	require.ErrorIs(t, err, pci.ErrConfigShort)
	_, _, err = pci.Config(lateCap).PortType()
	require.NoError(t, err, "a capability may end with the space")
}

func TestConfigOfADevice(t *testing.T) {
	tree := fstest.MapFS{}
	add(tree, "pci0000:00/0000:00:01.0", map[string]string{"config": string(config(4096, pci.PortRoot, 0x1d))})
	add(tree, "pci0000:00/0000:00:02.0", map[string]string{"config": strings.Repeat("x", 1<<20)})
	c, err := at(t, tree, "00:01.0").Config()
	require.NoError(t, err)
	control, present, err := c.ACS()
	require.NoError(t, err)
	require.True(t, present)
	require.EqualValues(t, 0x1d, control)
	_, err = at(t, tree, "00:02.0").Config()
	require.Error(t, err)
	_, err = at(t, tree, "00:03.0").Config()
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func FuzzConfig(f *testing.F) {
	f.Add(config(4096, pci.PortRoot, 0xd))
	f.Add(config(256, pci.PortUpstream, -1))
	f.Add(config(64, pci.PortDownstream, 0))
	f.Add(config(0x2a6, pci.PortRoot, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		control, present, err := pci.Config(b).ACS()
		if (err != nil || !present) && control != 0 {
			t.Fatalf("control %#x with %v", control, err)
		}
		if _, ok, err := pci.Config(b).PortType(); ok && err != nil {
			t.Fatal("a type and an error")
		}
	})
}
