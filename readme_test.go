// SPDX-License-Identifier: Apache-2.0

package geforcep2p

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// The README's Go is compiled as it stands there, against this tree.
func TestReadmeExampleCompiles(t *testing.T) {
	if testenv.Race || !testenv.Optimized() {
		t.Skip("another build of the test changes nothing about the README")
	}
	goCommand, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command")
	}
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	examples := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllSubmatch(readme, -1)
	require.NotEmpty(t, examples)
	root, err := os.Getwd()
	require.NoError(t, err)
	for i, e := range examples {
		// An overlay puts the program into this module without writing to it.
		dir := t.TempDir()
		program := filepath.Join(dir, "main.go")
		require.NoError(t, os.WriteFile(program, e[1], 0o600))
		overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{
			filepath.Join(root, "readmeexample", "main.go"): program,
		}})
		require.NoError(t, err)
		file := filepath.Join(dir, "overlay.json")
		require.NoError(t, os.WriteFile(file, overlay, 0o600))
		out, err := exec.Command(goCommand, "build", "-overlay", file, "-o", os.DevNull, "./readmeexample").CombinedOutput()
		require.NoError(t, err, "example %d: %s", i, out)
	}
}
