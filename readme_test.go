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

func readme(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("README.md")
	require.NoError(t, err)
	return string(b)
}

// TestReadmeExample follows the README: its commands make a module beside a
// checkout, its program goes in, is tidied and run, and prints what the README says.
func TestReadmeExample(t *testing.T) {
	text := readme(t)
	program := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindStringSubmatch(text)
	require.Len(t, program, 2)
	said := regexp.MustCompile("(?m)^It prints `([^`]+)` and `([^`]+)`").FindStringSubmatch(text)
	require.Len(t, said, 3)
	root, err := os.Getwd()
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program[1]), 0o600))
	var ran []string
	for _, m := range regexp.MustCompile(`(?m)^    go (.+?)(?: +#.*)?$`).FindAllStringSubmatch(section(t, text, "Use it"), -1) {
		args := strings.Fields(strings.ReplaceAll(m[1], "=../geforce-p2p", "="+root))
		out := goCommand(t, dir, nil, args...)
		if ran = append(ran, args[0]); args[0] == "run" {
			require.Equal(t, said[1]+"\n"+said[2]+"\n", out)
		}
	}
	require.Equal(t, []string{"mod", "mod", "mod", "run"}, ran)
}

// section is the text below a heading, to the next one.
func section(t *testing.T, text, heading string) string {
	t.Helper()
	_, below, ok := strings.Cut(text, "\n## "+heading+"\n")
	require.True(t, ok, heading)
	below, _, _ = strings.Cut(below, "\n## ")
	return below
}

// TestReadmeEnvironment: the table names each variable that the library reads, and
// none that it does not.
func TestReadmeEnvironment(t *testing.T) {
	read := map[string]bool{}
	name := regexp.MustCompile(`"(GP_[A-Z0-9_]+)"`)
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == "build" || path == "bench" || path == "cmd" || len(path) > 1 && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case filepath.Ext(path) == ".go" && !strings.HasSuffix(path, "_test.go"):
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, m := range name.FindAllSubmatch(b, -1) {
				read[string(m[1])] = true
			}
		}
		return nil
	}))
	table := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(GP_[A-Z0-9_]+)` \\|").FindAllStringSubmatch(readme(t), -1) {
		table[m[1]] = true
	}
	require.NotEmpty(t, table)
	require.Equal(t, read, table)
}
