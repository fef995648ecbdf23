// SPDX-License-Identifier: Apache-2.0

package libcuda

import (
	"errors"
	"runtime"
	"strconv"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestParseCPUList(t *testing.T) {
	for in, want := range map[string][]int{
		"":              nil,
		"\n":            nil,
		"0\n":           {0},
		"0-3,8,10-11\n": {0, 1, 2, 3, 8, 10, 11},
		"63,127":        {63, 127},
		"5-4":           nil,
	} {
		got, err := parseCPUList(in)
		require.NoError(t, err, in)
		require.Equal(t, want, got, in)
	}
	for _, in := range []string{"a", "0-", "-3", "1,,2"} {
		_, err := parseCPUList(in)
		require.Error(t, err, in)
	}
}

func TestPreferNodeRestoresThePolicy(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	mode, mask, err := getPolicy()
	if err != nil {
		t.Skipf("get_mempolicy: %v", err)
	}
	restore, err := newHost().PreferNode(0)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
		t.Skipf("no NUMA policy here: %v", err)
	}
	require.NoError(t, err)
	now, nodes, err := getPolicy()
	require.NoError(t, err)
	require.Equal(t, mpolPreferred, now)
	require.Equal(t, nodeMask{1}, nodes)
	restore()
	now, nodes, err = getPolicy()
	require.NoError(t, err)
	require.Equal(t, mode, now)
	require.Equal(t, mask, nodes)

	for _, node := range []int{-1, maxNodes, maxNodes - 1} {
		_, err = newHost().PreferNode(node)
		require.Error(t, err, "node %d", node)
	}
}

// Where the policy may not be set, the thread moves to the node's CPUs.
func TestPreferByAffinity(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, now unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &before))
	first := 0
	for !before.IsSet(first) {
		first++
	}
	cpulist := func(s string) fstest.MapFS {
		return fstest.MapFS{"sys/devices/system/node/node3/cpulist": {Data: []byte(s)}}
	}
	restore, err := preferByAffinity(cpulist(strconv.Itoa(first)+",1023\n"), 3)
	require.NoError(t, err)
	require.NoError(t, unix.SchedGetaffinity(0, &now))
	require.Equal(t, 1, now.Count())
	require.True(t, now.IsSet(first))
	restore()
	require.NoError(t, unix.SchedGetaffinity(0, &now))
	require.Equal(t, before, now)

	_, err = preferByAffinity(cpulist("1023\n"), 3)
	require.ErrorContains(t, err, "1023")
	_, err = preferByAffinity(cpulist("0\n"), 4)
	require.Error(t, err, "no such node")
}
