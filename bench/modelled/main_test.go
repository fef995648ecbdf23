// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestVariants: a variant changes what it names of a machine, and nothing else.
func TestVariants(t *testing.T) {
	plain, err := variant{0.8, 1}.spec("8x4090")
	require.NoError(t, err)
	got, err := variant{0.6, 0.8}.spec("8x4090")
	require.NoError(t, err)
	for i, g := range got.GPUs {
		require.Equal(t, 0.6, g.Duplex.Value)
		require.Equal(t, plain.GPUs[i].D2H, g.D2H)
	}
	for i, n := range got.Host.Nodes {
		require.InDelta(t, 0.8*plain.Host.Nodes[i].Memory.Value, n.Memory.Value, 1e-9)
	}
	_, err = variant{}.spec("no such machine")
	require.Error(t, err)
}

func TestSpan(t *testing.T) {
	var s span
	require.Equal(t, "-", orDash(s.text(micros, 1)))
	for _, v := range []float64{2e-6, 3e-6, 1.25e-6} {
		s.add(v)
	}
	require.Equal(t, "3.0 to 1.2", s.text(micros, 1), "a long time is the worse end")
	require.Equal(t, "1.2 to 3.0", s.text(micros, 0))
	require.Equal(t, "2.0", span{2e-6, 2e-6}.text(micros, 1))
	require.Equal(t, "16253", micros(16253e-6))
}

// TestPage: the command writes the page that there is, as far as a test has the
// time: its text, and a row for each size. Figures are the engine's of the day on
// which they were written.
func TestPage(t *testing.T) {
	there, err := os.ReadFile(filepath.Join("..", "..", "docs", "modelled.md"))
	require.NoError(t, err)
	short, err := document(8)
	require.NoError(t, err)
	for line := range strings.Lines(short) {
		if !strings.HasPrefix(line, "| 8 B |") {
			require.Contains(t, string(there), line)
		}
	}
	for _, p := range nccl {
		row := ""
		for line := range strings.Lines(string(there)) {
			if strings.HasPrefix(line, "| "+size(p.bytes)+" | ") && row == "" {
				row = line
			}
		}
		require.Equal(t, len(columns)+4, strings.Count(row, "|"), "%s: %q", size(p.bytes), row)
		require.Contains(t, row, "| "+micros(p.denied/1e6)+" | "+micros(p.patched/1e6)+" |")
	}
	for _, n := range copySizes {
		require.Contains(t, string(there), "| "+size(n)+" | ")
	}
}
