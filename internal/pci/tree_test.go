// SPDX-License-Identifier: Apache-2.0

package pci_test

import (
	"encoding/binary"
	"io/fs"
	"path"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/pci"
)

// add puts a device into a tree as sysfs has it: its files below sys/devices,
// and a link to them from sys/bus/pci/devices. dir is the path below
// sys/devices, "pci0000:00/0000:00:01.0"; values that start with "->" are links.
func add(tree fstest.MapFS, dir string, files map[string]string) {
	id := path.Base(dir)
	tree["sys/bus/pci/devices/"+id] = &fstest.MapFile{Mode: fs.ModeSymlink | 0o777, Data: []byte("../../../devices/" + dir)}
	tree["sys/devices/"+dir] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
	for name, text := range files {
		f := &fstest.MapFile{Data: []byte(text), Mode: 0o444}
		if to, isLink := strings.CutPrefix(text, "->"); isLink {
			f = &fstest.MapFile{Mode: fs.ModeSymlink | 0o777, Data: []byte(to)}
		}
		tree["sys/devices/"+dir+"/"+name] = f
	}
}

func at(t testing.TB, fsys fs.FS, id string) pci.Device {
	t.Helper()
	d, err := pci.At(fsys, id)
	require.NoError(t, err)
	return d
}

// linkFiles is the four files of a link.
func linkFiles(speed, width, maxSpeed, maxWidth string) map[string]string {
	return map[string]string{
		"current_link_speed": speed + "\n", "current_link_width": width + "\n",
		"max_link_speed": maxSpeed + "\n", "max_link_width": maxWidth + "\n",
	}
}

// config makes a configuration space of n bytes with a PCI Express capability
// of a port type at 0x60, and an ACS capability behind another one if acs >= 0.
func config(n int, port pci.PortType, acs int) []byte {
	b := make([]byte, 4096)
	binary.LittleEndian.PutUint16(b, 0x1022)
	b[0x06] = 0x10
	b[0x34] = 0x50
	b[0x50], b[0x51] = 0x01, 0x60 // power management, next
	b[0x60], b[0x61] = 0x10, 0
	b[0x62] = byte(port) << 4
	next := 0
	if acs >= 0 {
		next = 0x2a0
		binary.LittleEndian.PutUint32(b[0x2a0:], 0x000d|1<<16)
		binary.LittleEndian.PutUint16(b[0x2a4:], 0x5f)
		binary.LittleEndian.PutUint16(b[0x2a6:], uint16(acs))
	}
	binary.LittleEndian.PutUint32(b[0x100:], 0x0001|2<<16|uint32(next)<<20)
	return b[:n]
}
