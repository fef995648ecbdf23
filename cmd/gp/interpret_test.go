// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The selftest on a machine that runs the kernels' PTX passes as it does on
// their twins.
func TestSelftestInterpreted(t *testing.T) {
	code, out, errs := noHost().run("selftest", "--sim", "2x4090", "--interpret", "--bytes", "10KiB")
	require.Zero(t, code, errs)
	require.Contains(t, out, "all_reduce")

	code, _, errs = noHost().run("selftest", "--interpret")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "--interpret is for a simulated machine: say which with --sim")
}
