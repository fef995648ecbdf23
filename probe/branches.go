// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bufio"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// A Branch is one published branch of the patch.
type Branch struct {
	Version    string `json:"version"` // of the driver that it patches
	Repository string `json:"repository"`
	Name       string `json:"name"`
	// Known is "refs" if the branch was seen in the repository, "report" if an
	// issue, pull request or README names it.
	Known string `json:"known"`
}

// Branches is a dated table of published branches.
type Branches struct {
	Date string // "2026-11-29"
	List []Branch
}

//go:embed branches.txt
var branchesFile string

// PublishedBranches is the table that this version of the package was made with.
var PublishedBranches = sync.OnceValue(func() *Branches {
	b, err := LoadBranches(strings.NewReader(branchesFile))
	if err != nil {
		panic("probe: branches.txt: " + err.Error())
	}
	return b
})

const (
	maxBranches      = 4096
	maxBranchesBytes = 1 << 20
)

// LoadBranches reads a table: comments behind "#", one line "date YYYY-MM-DD",
// and lines of version, repository, branch and how it is known ("refs" or
// "report").
func LoadBranches(r io.Reader) (*Branches, error) {
	t := new(Branches)
	s := bufio.NewScanner(io.LimitReader(r, maxBranchesBytes+1))
	s.Buffer(nil, 4096)
	line, read := 0, 0
	for s.Scan() {
		line++
		if read += len(s.Bytes()) + 1; read > maxBranchesBytes {
			return nil, fmt.Errorf("the table is larger than %d MiB", maxBranchesBytes>>20)
		}
		text, _, _ := strings.Cut(s.Text(), "#")
		w := strings.Fields(text)
		switch {
		case len(w) == 0:
		case t.Date == "":
			if len(w) != 2 || w[0] != "date" || !isDate(w[1]) {
				return nil, fmt.Errorf("line %d: want \"date YYYY-MM-DD\" first", line)
			}
			t.Date = w[1]
		case len(w) != 4:
			return nil, fmt.Errorf("line %d: want version, repository, branch and \"refs\" or \"report\"", line)
		case parseVersion(w[0]) == nil:
			return nil, fmt.Errorf("line %d: %q is not a driver version", line, w[0])
		case w[3] != "refs" && w[3] != "report":
			return nil, fmt.Errorf("line %d: %q is neither \"refs\" nor \"report\"", line, w[3])
		case len(t.List) == maxBranches:
			return nil, fmt.Errorf("line %d: more than %d branches", line, maxBranches)
		default:
			t.List = append(t.List, Branch{Version: w[0], Repository: w[1], Name: w[2], Known: w[3]})
		}
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", line+1, err)
	}
	if t.Date == "" {
		return nil, errors.New("the table is empty")
	}
	// Stable: of one version the first line of the table is preferred.
	slices.SortStableFunc(t.List, func(a, b Branch) int {
		return slices.Compare(parseVersion(a.Version), parseVersion(b.Version))
	})
	return t, nil
}

func isDate(s string) bool {
	if len(s) != len("2026-11-29") {
		return false
	}
	for i, c := range []byte(s) {
		if dash := i == 4 || i == 7; dash != (c == '-') || !dash && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// Advice is which branch is nearest to an installed driver.
type Advice struct {
	Installed string  `json:"installed"`
	Exact     bool    `json:"exact"`            // there is a branch of this very version
	Nearest   *Branch `json:"nearest,omitzero"` // of the same series, the nearest by version; nil if there is none
	Other     *Branch `json:"other,omitzero"`   // where Nearest is nil: the nearest of another series
	Date      string  `json:"table_date"`
	Text      string  `json:"text"`
}

// Advise finds the branch that is nearest to an installed version. Branches of
// a series older than minSeries, the first one that knows the chips, do not
// count.
func (t *Branches) Advise(installed string, minSeries int) Advice {
	a := Advice{Installed: installed, Date: t.Date}
	v := parseVersion(installed)
	if v == nil {
		a.Text = "the installed version is unknown"
		return a
	}
	var same, other *Branch
	for i := range t.List {
		b := &t.List[i]
		w := parseVersion(b.Version)
		if w[0] < minSeries {
			continue
		}
		switch {
		case w[0] == v[0]:
			if same == nil || nearer(v, w, parseVersion(same.Version)) {
				same = b
			}
		case other == nil || preferred(v[0], b, other):
			other = b
		}
	}
	switch {
	case same != nil && slices.Equal(parseVersion(same.Version), v):
		a.Exact, a.Nearest = true, same
		a.Text = fmt.Sprintf("branch %s of %s is for the installed %s", same.Name, same.Repository, installed)
	case same != nil:
		a.Nearest = same
		a.Text = fmt.Sprintf("no branch for the installed %s; the nearest of its series is %s of %s: install driver %s, user space and module alike",
			installed, same.Name, same.Repository, same.Version)
	case other != nil:
		a.Other = other
		a.Text = fmt.Sprintf("no branch for the installed %s or its series %d; the nearest of another series is %s of %s (driver %s), or the patch must be ported",
			installed, v[0], other.Name, other.Repository, other.Version)
	default:
		a.Text = fmt.Sprintf("no branch for the installed %s", installed)
	}
	a.Text += " (table of " + t.Date + ")"
	return a
}

// nearer tells whether a lies nearer to v than b does, of one series: by the
// second number, then by the last. Of two as near the newer is taken.
func nearer(v, a, b []int) bool {
	for i := range v {
		da, db := abs(a[i]-v[i]), abs(b[i]-v[i])
		if da != db {
			return da < db
		}
		if a[i] != b[i] {
			return a[i] > b[i]
		}
	}
	return false
}

// preferred tells whether a is a better branch than b for a driver of a series
// that has none: of a nearer series, or one that was seen, or a newer one.
func preferred(series int, a, b *Branch) bool {
	va, vb := parseVersion(a.Version), parseVersion(b.Version)
	if da, db := abs(va[0]-series), abs(vb[0]-series); da != db {
		return da < db
	}
	if va[0] != vb[0] {
		return va[0] > vb[0]
	}
	if a.Known != b.Known {
		return a.Known == "refs"
	}
	return slices.Compare(va, vb) > 0
}

func abs(n int) int {
	if n < 0 {
		return -n
	}
	return n
}

// parseVersion reads "565.57.01" or "565.77" as three numbers, nil if it is
// neither.
func parseVersion(s string) []int {
	parts := strings.Split(s, ".")
	if len(parts) < 2 || len(parts) > 3 {
		return nil
	}
	v := make([]int, 3)
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil || n < 0 || len(p) > 4 || p[0] < '0' || p[0] > '9' {
			return nil
		}
		v[i] = n
	}
	return v
}
