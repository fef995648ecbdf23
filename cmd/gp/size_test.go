// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]uint64{
		"1": 1, "4096": 4096, "17B": 17,
		"1KiB": 1 << 10, "64MiB": 64 << 20, "2GiB": 2 << 30,
		"1KB": 1e3, "64MB": 64e6, "2GB": 2e9, "1TiB": 1 << 40, "3TB": 3e12,
		"64 MiB": 64 << 20,
	} {
		got, err := parseSize(in)
		require.NoError(t, err, in)
		require.Equal(t, want, got, in)
	}
}

func TestParseSizeRefuses(t *testing.T) {
	for in, why := range map[string]string{
		"-1":                   "negative",
		"-1MiB":                "negative",
		"0":                    "at least 1 byte",
		"0GiB":                 "at least 1 byte",
		"3XB":                  "not a size",
		"":                     "not a size",
		"MiB":                  "not a size",
		"1.5GiB":               "not a size",
		"1mib":                 "not a size",
		"1 2MiB":               "not a size",
		"--1":                  "not a size",
		"+1":                   "not a size",
		"0x10":                 "not a size",
		"9223372036854775808":  "not a size",
		"8589934592GiB":        "not a size",
		"99999999999999999999": "not a size",
	} {
		_, err := parseSize(in)
		require.ErrorContains(t, err, why, "%q", in)
	}
}

func TestFormatSize(t *testing.T) {
	for n, want := range map[uint64]string{1: "1B", 4084: "4084B", 1 << 10: "1KiB", 64 << 20: "64MiB", 3 << 30: "3GiB", 1<<20 + 1: "1048577B", 2047 << 30: "2047GiB", 2048 << 30: "2TiB"} {
		require.Equal(t, want, formatSize(n))
		back, err := parseSize(want)
		require.NoError(t, err)
		require.Equal(t, n, back)
	}
}
