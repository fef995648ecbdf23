// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"errors"
	"fmt"
	"strings"
)

// Flags of a line of "resource" (linux/ioport.h).
const (
	flagIO       = 0x100
	flagMemory   = 0x200
	flagPrefetch = 0x2000
	flagMem64    = 0x100000
)

// A Region is one line of sysfs "resource": a BAR (lines 0 to 5), the ROM (6) or
// what lies behind.
type Region struct {
	Line  int
	Start uint64
	Size  uint64 // bytes
	Flags uint64
}

// Memory tells that the region is memory, not ports.
func (r Region) Memory() bool { return r.Flags&flagMemory != 0 }

// Prefetch tells that reads of the region have no side effects.
func (r Region) Prefetch() bool { return r.Flags&flagPrefetch != 0 }

// Is64 tells that the BAR takes two registers, so that the next line is empty.
func (r Region) Is64() bool { return r.Flags&flagMem64 != 0 }

// numBARs is the base address registers of a device that is no bridge.
const numBARs = 6

// maxRegions is above PCI_NUM_RESOURCES, which grew with the kernel.
const maxRegions = 64

// Regions is the device's regions, without the empty ones.
func (d Device) Regions() ([]Region, error) {
	s, err := d.text("resource")
	if err != nil {
		return nil, err
	}
	rs, err := ParseResource(s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.Path("resource"), err)
	}
	return rs, nil
}

// ParseResource reads the text of a sysfs "resource" file: a line a region, each
// start, end (inclusive) and flags in hexadecimal. Empty regions, all zero, are
// left out.
func ParseResource(s string) ([]Region, error) {
	if len(s) > maxText {
		return nil, fmt.Errorf("%d bytes", len(s))
	}
	var rs []Region
	line := -1
	for text := range strings.Lines(s) {
		text = strings.TrimSpace(text)
		line++
		if line >= maxRegions {
			return nil, fmt.Errorf("more than %d lines", maxRegions)
		}
		var n [3]uint64
		fields := strings.Fields(text)
		if len(fields) != len(n) {
			return nil, fmt.Errorf("line %d: %s", line, quote(text))
		}
		for i, f := range fields {
			digits, ok := strings.CutPrefix(f, "0x")
			if !ok {
				return nil, fmt.Errorf("line %d: %s", line, quote(text))
			}
			if n[i], ok = parseHex(digits, 16, 64); !ok {
				return nil, fmt.Errorf("line %d: %s", line, quote(text))
			}
		}
		start, end, flags := n[0], n[1], n[2]
		if n == [3]uint64{} {
			continue
		}
		size := end - start + 1
		if end < start || size == 0 {
			// A disabled window of a bridge has its end below its start.
			if end+1 == start || line >= numBARs {
				continue
			}
			return nil, fmt.Errorf("line %d: ends before it starts: %s", line, quote(text))
		}
		rs = append(rs, Region{Line: line, Start: start, Size: size, Flags: flags})
	}
	if line < numBARs-1 {
		return nil, fmt.Errorf("%d lines, want at least %d", line+1, numBARs)
	}
	return rs, nil
}

// BAR1 finds, among the regions of an NVIDIA GPU, the one that NVIDIA calls
// BAR1: the window through which its memory is seen. It is the second memory
// BAR, so the line after BAR0, or the second line after it where BAR0 is a
// 64-bit one and takes two.
func BAR1(rs []Region) (Region, error) {
	at := func(line int) (Region, bool) {
		for _, r := range rs {
			if r.Line == line && r.Memory() {
				return r, true
			}
		}
		return Region{}, false
	}
	// Looking by line rather than for the second memory region: when the
	// firmware left BAR1 without an address its line is empty, and the region
	// after it is not BAR1.
	bar0, ok := at(0)
	if !ok {
		return Region{}, errors.New("BAR0 has no address")
	}
	line := 1
	if bar0.Is64() {
		line = 2
	}
	bar1, ok := at(line)
	if !ok {
		return Region{}, fmt.Errorf("BAR1 (line %d of resource, from 0) has no address", line)
	}
	return bar1, nil
}

// ResizeFile is the name of the file of ResizeMask, for messages.
func ResizeFile(line int) string { return fmt.Sprintf("resource%d_resize", line) }

// ResizeMask is the sizes that the device offers for the BAR of a line: bit n
// set means 2^n MiB. The file is missing (fs.ErrNotExist) where the device has
// no resizable BAR capability, and in most guests; it is also there where the
// bridges above have no room for the larger sizes.
func (d Device) ResizeMask(line int) (uint64, error) {
	s, err := d.text(ResizeFile(line))
	if err != nil {
		return 0, err
	}
	mask, ok := parseHex(strings.TrimPrefix(s, "0x"), 16, 64)
	if !ok {
		return 0, fmt.Errorf("%s: %s", d.Path(ResizeFile(line)), quote(s))
	}
	return mask, nil
}
