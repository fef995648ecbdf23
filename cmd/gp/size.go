// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// byteSize is a number of bytes as a flag: "64MiB", "1GB", "4096".
type byteSize uint64

// units from the longest suffix to the shortest, so that "MiB" is not read as "B".
var units = []struct {
	suffix string
	factor uint64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"B", 1}, {"", 1},
}

func (s *byteSize) String() string { return formatSize(uint64(*s)) }

func (s *byteSize) Set(v string) error {
	n, err := parseSize(v)
	if err != nil {
		return err
	}
	*s = byteSize(n)
	return nil
}

// parseSize reads a whole number of bytes, at least 1, with or without a unit.
func parseSize(v string) (uint64, error) {
	for _, u := range units {
		digits, ok := strings.CutSuffix(v, u.suffix)
		if !ok {
			continue
		}
		digits = strings.TrimSpace(digits)
		if strings.HasPrefix(digits, "-") {
			if _, err := strconv.ParseFloat(digits, 64); err == nil {
				return 0, fmt.Errorf("a size cannot be negative")
			}
		}
		n, err := strconv.ParseUint(digits, 10, 64)
		if err != nil || n > math.MaxInt64/u.factor {
			break
		}
		if n == 0 {
			return 0, fmt.Errorf("a size must be at least 1 byte")
		}
		return n * u.factor, nil
	}
	return 0, fmt.Errorf("not a size: want a whole number of bytes, or one with a unit of KiB, MiB, GiB, TiB (powers of two) or KB, MB, GB, TB (powers of ten), such as 64MiB")
}

// formatSize writes a size in the largest binary unit that divides it.
func formatSize(n uint64) string {
	for i := 3; i >= 0; i-- {
		if u := units[i]; n >= u.factor && n%u.factor == 0 {
			return fmt.Sprintf("%d%s", n/u.factor, u.suffix)
		}
	}
	return strconv.FormatUint(n, 10) + "B"
}
