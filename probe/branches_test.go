// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAdvise(t *testing.T) {
	for _, c := range []struct {
		installed      string
		minSeries      int
		nearest, other string
		exact          bool
	}{
		{"565.57.01", 0, "565.57.01-p2p", "", true},
		{"565.77", 0, "565.77-p2p", "", true},
		{"560.35.03", 0, "560.35.03-p2p", "", true}, // of two the branch that was seen
		{"570.169", 0, "570.148.08-p2p", "", false},
		{"570.124.04", 0, "570.124.06-p2p", "", false},
		{"580.159.04", 0, "580.95.05-p2p", "", false},
		{"590.48.01", 0, "590.48.01-p2p", "", true},
		{"535.183.01", 0, "", "550.90.07-p2p", false},
		{"620.10", 0, "", "610.57.04-p2p-v3", false},
		{"470.82", 0, "", "550.90.07-p2p", false},
		{"565.57.01", 570, "", "570.86.16-p2p", false}, // the series does not know the chip
		{"", 0, "", "", false},
		{"unknown", 0, "", "", false},
	} {
		a := PublishedBranches().Advise(c.installed, c.minSeries)
		name := func(b *Branch) string {
			if b == nil {
				return ""
			}
			return b.Name
		}
		require.Equal(t, c.nearest, name(a.Nearest), c.installed)
		require.Equal(t, c.other, name(a.Other), c.installed)
		require.Equal(t, c.exact, a.Exact, c.installed)
		require.NotEmpty(t, a.Text)
		require.Equal(t, "2026-11-29", a.Date)
	}
	none := &Branches{Date: "2030-01-01"}
	require.Contains(t, none.Advise("565.57.01", 0).Text, "no branch for the installed 565.57.01")
}

func TestLoadBranches(t *testing.T) {
	b, err := LoadBranches(strings.NewReader("# mine\n\ndate 2030-01-02\n700.10.02 me/repo 700-p2p report # new\n690.10 me/repo x refs\n"))
	require.NoError(t, err)
	require.Equal(t, "2030-01-02", b.Date)
	require.Equal(t, []Branch{{"690.10", "me/repo", "x", "refs"}, {"700.10.02", "me/repo", "700-p2p", "report"}}, b.List)

	f := machineOf(rtx4090, rtx4090)
	module(f, Open, "700.10.02")
	r := Diagnose(f, b)
	require.True(t, r.Branch.Exact)
	require.Contains(t, r.Branch.Text, "table of 2030-01-02")
	require.False(t, Diagnose(f, nil).Branch.Exact)

	for name, text := range map[string]string{
		"empty":         "",
		"comments only": "# nothing\n",
		"no date":       "550.54.15 a b refs\n",
		"bad date":      "date 2030-1-2\n",
		"bad date 2":    "date yesterday01\n",
		"short":         "date 2030-01-02\n550.54.15 a b\n",
		"bad version":   "date 2030-01-02\n550 a b refs\n",
		"bad version 2": "date 2030-01-02\n-1.5 a b refs\n",
		"bad version 3": "date 2030-01-02\n550..1 a b refs\n",
		"bad kind":      "date 2030-01-02\n550.54.15 a b rumour\n",
		"long line":     "date 2030-01-02\n" + strings.Repeat("x", 1<<20),
		"too many":      "date 2030-01-02\n" + strings.Repeat("550.54.15 a b refs\n", 5000),
		"too large":     "date 2030-01-02\n" + strings.Repeat("# "+strings.Repeat("x", 1000)+"\n", 1100),
	} {
		_, err := LoadBranches(strings.NewReader(text))
		require.Error(t, err, name)
	}
}

// PATCH.md lists what the table has.
func TestPatchPageHasEveryBranch(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "PATCH.md"))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("not run in the source tree")
	}
	require.NoError(t, err)
	for _, b := range PublishedBranches().List {
		require.Contains(t, string(page), b.Version)
	}
}

func TestChips(t *testing.T) {
	for i, c := range chips {
		require.LessOrEqual(t, c.first, c.last, c.name)
		if i > 0 {
			require.Less(t, chips[i-1].last, c.first, c.name)
		}
	}
	for id, name := range map[Hex]string{0x2684: "AD102", 0x26b1: "AD102", 0x2204: "GA102", 0x2230: "GA102", 0x2235: "GA102", 0x2704: "AD103",
		0x2782: "AD104", 0x2803: "AD106", 0x2882: "AD107", 0x2b85: "GB202", 0x2c02: "GB203", 0x2d04: "GB206", 0x2f04: "GB205", 0x2335: "GH100", 0x20b0: "GA100"} {
		require.Equal(t, name, chipOf(id).name, "%v", id)
	}
	require.Nil(t, chipOf(0))
	require.Nil(t, chipOf(0x3184))
}

func FuzzBranches(f *testing.F) {
	f.Add("date 2030-01-02\n700.10.02 me/repo 700-p2p report # new\n690.10 me/repo x refs\n", "695.1", 0)
	f.Add("date 2030-01-02\n550.54.15 a b refs", "470.82.01", 570)
	f.Fuzz(func(t *testing.T, table, installed string, minSeries int) {
		b, err := LoadBranches(strings.NewReader(table))
		if err != nil {
			return
		}
		a := b.Advise(installed, minSeries)
		require.NotEmpty(t, a.Text)
		require.False(t, a.Nearest != nil && a.Other != nil)
		require.False(t, a.Exact && a.Nearest == nil)
		for _, got := range []*Branch{a.Nearest, a.Other} {
			if got != nil {
				require.Contains(t, b.List, *got)
				require.GreaterOrEqual(t, parseVersion(got.Version)[0], minSeries)
			}
		}
	})
}
