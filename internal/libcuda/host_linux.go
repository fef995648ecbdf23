// SPDX-License-Identifier: Apache-2.0

package libcuda

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// linux/mempolicy.h
const (
	mpolDefault   = 0
	mpolPreferred = 1
)

// maxNodes is the most that a kernel can be built for (NODES_SHIFT 10).
const maxNodes = 1024

type nodeMask [maxNodes / 64]uint64

// setPolicy is set_mempolicy(2). The kernel reads one bit fewer than maxnode.
func setPolicy(mode int, mask *nodeMask) error {
	bits := uintptr(maxNodes + 1)
	if mask == nil {
		bits = 0
	}
	_, _, e := unix.RawSyscall(unix.SYS_SET_MEMPOLICY, uintptr(mode), uintptr(unsafe.Pointer(mask)), bits)
	if e != 0 {
		return e
	}
	return nil
}

// getPolicy is get_mempolicy(2) of the calling thread.
func getPolicy() (mode int, mask nodeMask, err error) {
	var m int32
	_, _, e := unix.RawSyscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&m)),
		uintptr(unsafe.Pointer(&mask)), maxNodes+1, 0, 0, 0)
	if e != 0 {
		return 0, mask, e
	}
	return int(m), mask, nil
}

// preferNode sets the thread's memory policy. Where that is not permitted
// (containers filter the call) it moves the thread onto the node's CPUs
// instead: the default policy takes pages of the node that the thread runs on.
func preferNode(root fs.FS, node int) (restore func(), err error) {
	if node < 0 || node >= maxNodes {
		return nil, fmt.Errorf("NUMA node %d: %w", node, unix.EINVAL)
	}
	restore, err = preferByPolicy(node)
	if err == nil {
		return restore, nil
	}
	if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOSYS) {
		return nil, fmt.Errorf("set_mempolicy to NUMA node %d: %w", node, err)
	}
	restore, err2 := preferByAffinity(root, node)
	if err2 != nil {
		return nil, fmt.Errorf("set_mempolicy to NUMA node %d: %w; and by CPU affinity: %w", node, err, err2)
	}
	return restore, nil
}

func preferByPolicy(node int) (func(), error) {
	mode, old, err := getPolicy()
	if err != nil {
		return nil, err
	}
	mask := new(nodeMask)
	mask[node/64] = 1 << (node % 64)
	if err := setPolicy(mpolPreferred, mask); err != nil {
		return nil, err
	}
	return func() {
		was := &old
		if old == (nodeMask{}) {
			was = nil
		}
		if setPolicy(mode, was) != nil {
			// The old nodes may have left the cpuset since. The default is
			// nearer to what was than a preference of ours.
			_ = setPolicy(mpolDefault, nil)
		}
	}, nil
}

func preferByAffinity(root fs.FS, node int) (func(), error) {
	text, err := fs.ReadFile(root, fmt.Sprintf("sys/devices/system/node/node%d/cpulist", node))
	if err != nil {
		return nil, err
	}
	var old, want unix.CPUSet
	if err := unix.SchedGetaffinity(0, &old); err != nil {
		return nil, err
	}
	cpus, err := parseCPUList(string(text))
	if err != nil {
		return nil, err
	}
	for _, cpu := range cpus {
		if old.IsSet(cpu) {
			want.Set(cpu)
		}
	}
	if want.Count() == 0 {
		return nil, fmt.Errorf("none of the node's CPUs (%s) is allowed to this thread", strings.TrimSpace(string(text)))
	}
	if err := unix.SchedSetaffinity(0, &want); err != nil {
		return nil, err
	}
	return func() { _ = unix.SchedSetaffinity(0, &old) }, nil
}

// parseCPUList reads the kernel's list format, "0-3,8,10-11"; empty is none.
func parseCPUList(s string) ([]int, error) {
	var cpus []int
	s = strings.TrimSpace(s)
	if s == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		lo, err := strconv.Atoi(from)
		if err != nil {
			return nil, fmt.Errorf("CPU list %q: %w", s, err)
		}
		hi := lo
		if isRange {
			if hi, err = strconv.Atoi(to); err != nil {
				return nil, fmt.Errorf("CPU list %q: %w", s, err)
			}
		}
		for cpu := lo; cpu <= hi; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}
