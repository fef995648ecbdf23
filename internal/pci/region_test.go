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

const zero = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"

// geforce is a GeForce card's regions: a 32-bit BAR0 of 16 MiB, BAR1 and BAR3 of
// 64 bits, ports, and the ROM.
var geforce = "0x00000000f6000000 0x00000000f6ffffff 0x0000000000040200\n" +
	"0x000000f000000000 0x000000f00fffffff 0x000000000014220c\n" + zero +
	"0x000000f010000000 0x000000f011ffffff 0x000000000014220c\n" + zero +
	"0x000000000000e000 0x000000000000e07f 0x0000000000040101\n" +
	"0x00000000f7000000 0x00000000f707ffff 0x0000000000046200\n" + strings.Repeat(zero, 6)

func TestGeForceRegions(t *testing.T) {
	rs, err := pci.ParseResource(geforce)
	require.NoError(t, err)
	require.Len(t, rs, 5)
	require.False(t, rs[3].Memory(), "ports")
	require.False(t, rs[0].Is64())
	bar1, err := pci.BAR1(rs)
	require.NoError(t, err)
	require.Equal(t, 1, bar1.Line)
	require.EqualValues(t, 256<<20, bar1.Size)
}

// When the firmware found no room for BAR1, its line is empty: BAR3, the next
// memory region, is not taken for it.
func TestBAR1WithoutAddress(t *testing.T) {
	lines := strings.SplitAfter(geforce, "\n")
	lines[1] = zero
	rs, err := pci.ParseResource(strings.Join(lines, ""))
	require.NoError(t, err)
	_, err = pci.BAR1(rs)
	require.ErrorContains(t, err, "BAR1")

	lines[0] = zero
	rs, err = pci.ParseResource(strings.Join(lines, ""))
	require.NoError(t, err)
	_, err = pci.BAR1(rs)
	require.ErrorContains(t, err, "BAR0")
	_, err = pci.BAR1(nil)
	require.Error(t, err)
}

func TestParseResource(t *testing.T) {
	six := strings.Repeat(zero, 5)
	for name, text := range map[string]string{
		"empty":         "",
		"five lines":    six,
		"two numbers":   "0x0 0x0\n" + six,
		"four numbers":  "0x0 0x0 0x0 0x0\n" + six,
		"no prefix":     "0 0 0\n" + six,
		"a letter":      "0x0 0xg 0x0\n" + six,
		"a sign":        "0x-1 0x0 0x0\n" + six,
		"17 digits":     "0x00000000000000001 0x0 0x0\n" + six,
		"ends before":   "0x1000 0x10 0x200\n" + six,
		"a blank line":  "\n" + six,
		"NUL":           "0x0 0x0 0x0\x00\n" + six,
		"many lines":    strings.Repeat("0x0 0x0 0x0\n", 65),
		"a long line":   strings.Repeat("0", 1<<20),
		"a long number": "0x" + strings.Repeat("0", 4000) + " 0x0 0x0\n" + six,
	} {
		_, err := pci.ParseResource(text)
		require.Error(t, err, name)
		require.Less(t, len(err.Error()), 200, name)
	}
	// A bridge's windows that are closed end below their start.
	rs, err := pci.ParseResource(strings.Repeat(zero, 13) + "0x000000000000f000 0x0000000000000fff 0x0000000000000101\n" + zero)
	require.NoError(t, err)
	require.Empty(t, rs)
	rs, err = pci.ParseResource("0x0000000000000000 0xffffffffffffffff 0x0000000000000200\n" + strings.Repeat(zero, 6))
	require.NoError(t, err)
	require.Empty(t, rs)
}

func TestResizeMask(t *testing.T) {
	tree := fstest.MapFS{}
	// An RTX 3090's: 64 MiB to 32 GiB.
	add(tree, "pci0000:00/0000:00:01.0/0000:01:00.0", map[string]string{
		"resource1_resize": "000000000000ffc0\n", "resource3_resize": "0x8000\n", "resource0_resize": "ffc0g",
	})
	d := at(t, tree, "0000:01:00.0")
	mask, err := d.ResizeMask(1)
	require.NoError(t, err)
	require.EqualValues(t, 0xffc0, mask)
	mask, err = d.ResizeMask(3)
	require.NoError(t, err)
	require.EqualValues(t, 0x8000, mask)
	_, err = d.ResizeMask(0)
	require.Error(t, err)
	_, err = d.ResizeMask(2)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func FuzzParseResource(f *testing.F) {
	f.Add(geforce)
	f.Add(strings.Repeat(zero, 7))
	f.Add("0x0000000000000000 0xffffffffffffffff 0x0000000000000200\n" + strings.Repeat(zero, 6))
	f.Add("0x1000 0x10 0x200\n")
	f.Fuzz(func(t *testing.T, s string) {
		rs, err := pci.ParseResource(s)
		if err != nil {
			return
		}
		for i, r := range rs {
			if r.Size == 0 || r.Start+r.Size-1 < r.Start || r.Line < 0 || i > 0 && r.Line <= rs[i-1].Line {
				t.Fatalf("%+v", r)
			}
		}
		if r, err := pci.BAR1(rs); err == nil && (r.Line != 1 && r.Line != 2 || !r.Memory()) {
			t.Fatalf("BAR1 %+v", r)
		}
	})
}

func FuzzParseBusID(f *testing.F) {
	for _, s := range []string{"0000:01:00.0", "00000000:C1:00.0", "c1:00", "10000:01:00.0", "", "-1:0:0.0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := pci.ParseBusID(s)
		if err == nil && !pci.IsBusID(id) {
			t.Fatalf("%q became %q, which is not one", s, id)
		}
	})
}
