// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"

	"github.com/geforce-p2p/geforce-p2p/gp"
)

// What a rank takes of its GPU beside its buffers: scratch, kernels, and the
// context itself where it is the first.
const rankOverhead = 256 << 20

// hostMemoryUnknown is taken for the host's memory where it does not tell.
const hostMemoryUnknown = 16 << 30

// fits refuses a --bytes that the GPUs or the host cannot hold. Devices is the
// GPU of each rank.
//
// An operation holds at most a source and a destination a rank on the GPUs, and
// on the host each rank's data, the reference, what a destination is filled
// with before and what is read back. The host counts double: what one operation
// leaves behind is collected while the next one runs. The memory of simulated
// GPUs is the host's.
func (t *selftest) fits(devices []int) error {
	size := uint64(t.size)
	ranksOn := make([]uint64, len(t.machine.gpus))
	for _, d := range devices {
		ranksOn[d]++
	}
	most, holder := uint64(math.MaxUint64), ""
	lower := func(available, shares uint64, what string) {
		if n := available / shares; n < most {
			most, holder = n, what
		}
	}
	for d, ranks := range ranksOn {
		if ranks == 0 {
			continue
		}
		dev, err := t.machine.driver.Device(d)
		if err != nil {
			return err
		}
		total, err := dev.TotalMem()
		if err != nil {
			return err
		}
		lower(total-min(total, ranks*rankOverhead), 2*ranks, fmt.Sprintf("%d rank(s) on GPU %d with %s", ranks, d, inGiB(total)))
	}
	ranks := uint64(len(devices))
	shares := 2 * (ranks + 3)
	if t.machine.modelled() {
		shares += 2 * ranks
	}
	if available, ok := availableMemory(t.root); ok {
		lower(available, shares, fmt.Sprintf("%d ranks on a host with %s of memory available", ranks, inGiB(available)))
	} else {
		lower(hostMemoryUnknown, shares, fmt.Sprintf("%d ranks on a host that does not tell its memory", ranks))
	}
	// Slices end where an int does, and the bytes of two copies are added.
	lower(math.MaxInt-2*gp.MaxRanks*8, 2, "an address space of this size")
	if size <= most {
		return nil
	}
	return usagef("--bytes %s is too much for %s: at most %s", formatSize(size), holder, formatSize(roundDown(most)))
}

// availableMemory is what the host can still give to a process: the kernel's
// estimate, or the limit of the control group where that is lower.
func availableMemory(root fs.FS) (uint64, bool) {
	n, ok := memAvailable(root)
	if b, err := fs.ReadFile(root, "sys/fs/cgroup/memory.max"); err == nil {
		if limit, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil && (!ok || limit < n) {
			return limit, true
		}
	}
	return n, ok
}

func memAvailable(root fs.FS) (uint64, bool) {
	b, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return 0, false
	}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		f := strings.Fields(s.Text())
		if len(f) != 3 || f[0] != "MemAvailable:" || f[2] != "kB" {
			continue
		}
		n, err := strconv.ParseUint(f[1], 10, 64)
		if err != nil || n > math.MaxUint64>>10 {
			return 0, false
		}
		return n << 10, true
	}
	return 0, false
}

func inGiB(n uint64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }

// roundDown makes a limit readable: whole MiB where there are any.
func roundDown(n uint64) uint64 {
	if n >= 1<<20 {
		n -= n % (1 << 20)
	}
	return n
}
