// SPDX-License-Identifier: Apache-2.0

package pci_test

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/pci"
)

func TestParseLinkSpeed(t *testing.T) {
	for in, want := range map[string]int{
		"2.5 GT/s PCIe": 1, "5.0 GT/s PCIe": 2, "5 GT/s": 2, "8.0 GT/s PCIe": 3, "8 GT/s": 3, "16.0 GT/s PCIe": 4,
		"16 GT/s": 4, "32.0 GT/s PCIe": 5, "64.0 GT/s PCIe": 6, "128.0 GT/s PCIe\n": 7,
	} {
		gen, err := pci.ParseLinkSpeed(in)
		require.NoError(t, err, in)
		require.Equal(t, want, gen, in)
	}
	for _, in := range []string{"", "Unknown", "Unknown speed", "16.0", "16.0 MB/s", "3 GT/s", " GT/s", "66 MHz PCI"} {
		_, err := pci.ParseLinkSpeed(in)
		require.Error(t, err, in)
	}
}

func TestLinkRate(t *testing.T) {
	for link, want := range map[pci.Link]float64{
		{1, 1}: 0.25, {2, 4}: 2, {3, 16}: 15.75, {4, 16}: 31.51, {5, 16}: 63.02, {6, 16}: 121, {7, 16}: 242,
		{0, 16}: 0, {8, 16}: 0, {-1, 1}: 0, {4, -1}: 0,
	} {
		require.InDelta(t, want, link.Rate()/1e9, 0.01, "%v", link)
	}
	require.Equal(t, "gen 4 x16", pci.Link{Gen: 4, Width: 16}.String())
}

// The rate of the way to a card is that of its narrowest part, by what each
// part can do and not by what an idle one does.
func TestRate(t *testing.T) {
	const (
		gen1, gen3, gen4, gen5 = "2.5 GT/s PCIe", "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe"
		dir                    = "pci0000:00/0000:00:01.0"
	)
	for name, c := range map[string]struct {
		card, port, up, down map[string]string
		want                 float64
	}{
		"idle":           {card: linkFiles(gen1, "16", gen4, "16"), port: linkFiles(gen1, "16", gen4, "16"), want: 31.51},
		"older board":    {card: linkFiles(gen1, "16", gen4, "16"), port: linkFiles(gen1, "16", gen3, "16"), want: 15.75},
		"newer board":    {card: linkFiles(gen1, "16", gen4, "16"), port: linkFiles(gen4, "16", gen5, "16"), want: 31.51},
		"narrow slot":    {card: linkFiles(gen1, "4", gen4, "16"), port: linkFiles(gen1, "4", gen4, "4"), want: 7.88},
		"card of x8":     {card: linkFiles(gen1, "8", gen4, "8"), port: linkFiles(gen1, "8", gen4, "16"), want: 15.75},
		"emulated port":  {card: linkFiles(gen4, "16", gen4, "16"), port: linkFiles(gen1, "1", gen1, "1"), want: 31.51},
		"port is silent": {card: linkFiles(gen1, "16", gen4, "16"), port: map[string]string{"max_link_speed": "Unknown\n"}, want: 31.51},
		"card's present is silent": {card: map[string]string{"max_link_speed": gen4, "max_link_width": "16"},
			port: linkFiles(gen1, "16", gen3, "16"), want: 15.75},
		"switch on a narrow slot": {card: linkFiles(gen1, "16", gen4, "16"), down: linkFiles(gen1, "16", gen4, "16"),
			up: linkFiles(gen3, "8", gen4, "16"), port: linkFiles(gen3, "8", gen3, "8"), want: 7.88},
	} {
		tree := fstest.MapFS{}
		at0 := dir
		add(tree, at0, c.port)
		if c.up != nil {
			at0 += "/0000:01:00.0"
			add(tree, at0, c.up)
			at0 += "/0000:02:00.0"
			add(tree, at0, c.down)
		}
		add(tree, at0+"/0000:03:00.0", c.card)
		rate, err := at(t, tree, "03:00.0").Rate()
		require.NoError(t, err, name)
		require.InDelta(t, c.want, rate/1e9, 0.01, name)
	}
	tree := fstest.MapFS{}
	add(tree, dir, map[string]string{"max_link_speed": gen4, "max_link_width": "255"})
	_, err := at(t, tree, "00:01.0").Rate()
	require.Error(t, err, "the kernel's width of 255 is none")
	add(tree, dir, map[string]string{"max_link_speed": gen4, "max_link_width": "0"})
	_, err = at(t, tree, "00:01.0").MaxLink()
	require.Error(t, err)
}
