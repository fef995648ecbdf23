// SPDX-License-Identifier: Apache-2.0

package geforcep2p

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReliability: each test that docs/reliability.md names is there, in the
// package that it says, and each promise of its tables names one.
func TestReliability(t *testing.T) {
	there := map[string]bool{} // "gp TestLoad"
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Z]\w*)\(`)
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == "build" || d.Name() == ".git"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		b, err := os.ReadFile(path)
		for _, m := range function.FindAllStringSubmatch(string(b), -1) {
			there[filepath.ToSlash(filepath.Dir(path))+" "+m[1]] = true
		}
		return err
	}))
	b, err := os.ReadFile(filepath.Join("docs", "reliability.md"))
	require.NoError(t, err)
	named := regexp.MustCompile("`([a-z0-9/]+) ((?:Test|Fuzz)[A-Z]\\w*)`")
	n := 0
	for _, m := range named.FindAllStringSubmatch(string(b), -1) {
		require.True(t, there[m[1]+" "+m[2]], "%s: no such test", m[0])
		n++
	}
	require.Greater(t, n, 20)
	for _, m := range regexp.MustCompile("`(?:Test|Fuzz)[A-Z]\\w*`").FindAllString(string(b), -1) {
		t.Errorf("%s: say in which package, as in `gp TestLoad`", m)
	}
	for l := range strings.SplitSeq(string(b), "\n") {
		if strings.HasPrefix(l, "| ") && !strings.HasPrefix(l, "| promise") && strings.Count(l, "|") == 3 {
			require.Regexp(t, named, l, "a promise that no test holds")
		}
	}
}
