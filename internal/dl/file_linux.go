// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64) && !android

package dl

import (
	"os"
	"strconv"
	"strings"
)

// fileOf reads /proc/self/maps, which gives an absolute path with links
// resolved; without /proc it asks dladdr.
func fileOf(_, addr uintptr) string {
	if addr == 0 {
		return ""
	}
	if maps, err := os.ReadFile("/proc/self/maps"); err == nil {
		if f := fileInMaps(string(maps), uint64(addr)); f != "" {
			return f
		}
	}
	return dladdr(addr)
}

// fileInMaps finds the file mapped at addr in the text of a maps file, whose
// lines are "start-end perms offset dev inode path".
func fileInMaps(maps string, addr uint64) string {
	for line := range strings.Lines(maps) {
		span, _, _ := strings.Cut(line, " ")
		from, to, ok := strings.Cut(span, "-")
		if !ok {
			continue
		}
		lo, err1 := strconv.ParseUint(from, 16, 64)
		hi, err2 := strconv.ParseUint(to, 16, 64)
		if err1 != nil || err2 != nil || addr < lo || addr >= hi {
			continue
		}
		// The path may hold blanks, and nothing before it holds a slash.
		at := strings.IndexByte(line, '/')
		if at < 0 {
			return ""
		}
		return strings.TrimSuffix(strings.TrimSuffix(line[at:], "\n"), " (deleted)")
	}
	return ""
}
