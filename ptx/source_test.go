// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"crypto/sha256"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
	"github.com/geforce-p2p/geforce-p2p/internal/ptxvm/isa"
)

// What ships, held against the table of PTX 7.0 and sm_80, without a compiler.
func TestEmbeddedInstructions(t *testing.T) {
	for _, m := range kernel.Modules() {
		text, err := Embedded(m)
		require.NoError(t, err)
		require.NoError(t, isa.Check(text, Entries(m)), m.Name())
		_, source, _, err := Source(m)
		require.NoError(t, err)
		require.NoError(t, isa.Barriers(text, source), m.Name())
		require.NotContains(t, text, ".nc", m.Name())
		require.Contains(t, text, ".maxntid "+fmt.Sprint(kernel.BlockThreads)+", 1, 1", m.Name())
	}
}

// A source that was changed without "make ptx" shows without a compiler too.
func TestEmbeddedIsOfTheSource(t *testing.T) {
	for _, m := range kernel.Modules() {
		name, source, _, err := Source(m)
		require.NoError(t, err)
		text, err := Embedded(m)
		require.NoError(t, err)
		want := fmt.Sprintf("// sha256 %x\n", sha256.Sum256([]byte(source)))
		require.Contains(t, text, want, "embedded/%s.ptx was not made from this %s: run make ptx", m.Name(), name)
	}
}

// NVRTC runs without an include path, and peers' data is never read through
// the non-coherent path.
func TestSourceIsPlain(t *testing.T) {
	for _, m := range kernel.Modules() {
		name, source, _, err := Source(m)
		require.NoError(t, err)
		var code strings.Builder
		for line := range strings.Lines(source) {
			line, _, _ = strings.Cut(line, "//")
			code.WriteString(line)
		}
		for _, word := range []string{"#include", "__restrict", "__ldg", ".nc"} {
			require.NotContains(t, code.String(), word, name)
		}
	}
}

func TestUnknownModule(t *testing.T) {
	_, _, _, err := Source(kernel.Module{Kernel: "sort"})
	require.ErrorContains(t, err, `"sort"`)
	_, err = Embedded(kernel.Module{Kernel: "sort"})
	require.ErrorContains(t, err, `"sort"`)
}

// The embedded files are what the generator writes.
func TestGenerator(t *testing.T) {
	if testing.Short() || slow {
		t.Skip("compiles every module, which other runs do")
	}
	for _, tool := range []string{"clang-16", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s", tool)
		}
	}
	cmd := exec.Command("go", "run", "./internal/genptx", "-check", "-dir", ".")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
