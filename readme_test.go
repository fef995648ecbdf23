// SPDX-License-Identifier: Apache-2.0

package geforcep2p

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// The README's program is built by the README's recipe: a module of its own that
// points here with replace, and go mod tidy. It needs nothing that this module's
// own tests do not.
func TestReadmeExample(t *testing.T) {
	if testenv.Race || !testenv.Optimized() {
		t.Skip("another build of the test changes nothing about the README")
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command")
	}
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	examples := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllSubmatch(readme, -1)
	require.NotEmpty(t, examples)
	recipe := regexp.MustCompile(`(?m)^    (require github\.com/geforce-p2p/geforce-p2p \S+)$`).FindSubmatch(readme)
	require.NotNil(t, recipe)
	root, err := os.Getwd()
	require.NoError(t, err)
	mod, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	goLine := regexp.MustCompile(`(?m)^go (\S+)$`).FindSubmatch(mod)
	require.NotNil(t, goLine)
	for i, e := range examples {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), e[1], 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), fmt.Appendf(nil,
			"module example\n\ngo %s\n\n%s\n\nreplace github.com/geforce-p2p/geforce-p2p => %s\n", goLine[1], recipe[1], root), 0o600))
		for _, args := range [][]string{{"mod", "tidy"}, {"build", "-o", os.DevNull, "."}} {
			cmd := exec.Command("go", args...)
			cmd.Dir = dir
			// What the tests of this module were built from is all there is.
			cmd.Env = append(os.Environ(), "GOPROXY=off", "GOSUMDB=off", "GOFLAGS=", "GOWORK=off")
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "example %d: go %v: %s", i, args, out)
		}
		sum, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		require.NoError(t, err)
		require.NotContains(t, string(sum), "testify", "an importer gets no test library")
	}
}
