// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io/fs"
	"math"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func memory(kB uint64) fstest.MapFS {
	return fstest.MapFS{"proc/meminfo": {Data: fmt.Appendf(nil, "MemTotal:       99999999 kB\nMemFree: 12 kB\nMemAvailable:   %d kB\nBuffers: 1 kB\n", kB)}}
}

// A size that nothing can hold is a call that cannot be right, and is refused
// before anything is allocated.
func TestSelftestRefusesASizeThatDoesNotFit(t *testing.T) {
	small, huge := memory(1<<20), memory(1<<40)
	capped := memory(1 << 40)
	capped["sys/fs/cgroup/memory.max"] = &fstest.MapFile{Data: []byte("1073741824\n")}
	for _, c := range []struct {
		root fs.FS
		args []string
		why  string
	}{
		{huge, []string{"--bytes", fmt.Sprint(uint64(math.MaxInt64))}, "is too much for 1 rank(s) on GPU 0"},
		{huge, []string{"--bytes", "8589934591GiB"}, "1 rank(s) on GPU 0 with 24.0 GiB: at most 12154MiB"},
		{huge, []string{"--bytes", "12GiB"}, "--bytes 12GiB is too much for 1 rank(s) on GPU"},
		{huge, []string{"--bytes", "12GiB", "--json"}, "--bytes 12GiB is too much for 1 rank(s) on GPU"},
		{huge, []string{"--bytes", "6GiB", "--ranks", "3"}, "2 rank(s) on GPU 0"},
		{small, []string{"--bytes", "74MiB"}, "2 ranks on a host with 1.0 GiB of memory available: at most 73MiB"},
		{capped, []string{"--bytes", "74MiB"}, "at most 73MiB"},
		{fstest.MapFS{}, []string{"--bytes", "4GiB"}, "a host that does not tell its memory: at most"},
		{memory(1 << 54), []string{"--bytes", "4GiB"}, "a host that does not tell its memory: at most"},
	} {
		world := noHost()
		world.root = c.root
		code, out, errs := world.run(append([]string{"selftest"}, c.args...)...)
		require.Equal(t, exitUsage, code, "%v: %s", c.args, errs)
		require.Empty(t, out, c.args)
		require.Contains(t, errs, c.why, c.args)
	}
	// GPUs that are not simulated take nothing of the host's memory.
	world := onRealGPUs(t, 2)
	world.root = small
	code, _, errs := world.run("selftest", "--bytes", "103MiB")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "at most 102MiB")
	// What fits runs.
	world = noHost()
	world.root = memory(1 << 10)
	code, _, errs = world.run("selftest", "--bytes", "73KiB")
	require.Equal(t, exitOK, code, errs)
}
