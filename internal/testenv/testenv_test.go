// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOptimizedAgreesWithTheBuildFlags(t *testing.T) {
	info, ok := debug.ReadBuildInfo()
	require.True(t, ok)
	want := true
	for _, s := range info.Settings {
		if s.Key == "-gcflags" && strings.Contains(s.Value, "-l") {
			want = false
		}
	}
	require.Equal(t, want, Optimized())
}

func TestCompileCGivesADistinctFileEachTime(t *testing.T) {
	const src = "int answer(void) { return 42; }\n"
	a, b := CompileC(t, src, "liba.so"), CompileC(t, src, "liba.so")
	require.NotEqual(t, a, b)
	x, err := os.ReadFile(a)
	require.NoError(t, err)
	y, err := os.ReadFile(b)
	require.NoError(t, err)
	require.Equal(t, x, y)
}
