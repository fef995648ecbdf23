// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64) && !android

package dl

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFileInMaps(t *testing.T) {
	const maps = "" +
		"7f00-7f10 r--p 00000000 fe:01 123                        /usr/lib/libcuda.so.580.65\n" +
		"7f10-7f20 r-xp 00010000 fe:01 123                        /usr/lib/libcuda.so.580.65\n" +
		"8000-9000 rw-p 00000000 00:00 0 \n" +
		"9000-a000 r-xp 00000000 fe:01 77                         /tmp/a b/lib c.so (deleted)\n" +
		"b000-c000 r-xp 00000000 00:00 0                          [vdso]\n"
	require.Equal(t, "/usr/lib/libcuda.so.580.65", fileInMaps(maps, 0x7f10))
	require.Equal(t, "/usr/lib/libcuda.so.580.65", fileInMaps(maps, 0x7f1f))
	require.Equal(t, "", fileInMaps(maps, 0x7f20))
	require.Equal(t, "", fileInMaps(maps, 0x8000))
	require.Equal(t, "/tmp/a b/lib c.so", fileInMaps(maps, 0x9fff))
	require.Equal(t, "", fileInMaps(maps, 0xb800))
}
