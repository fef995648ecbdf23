// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"fmt"
	"strings"
)

// maxDepth is above any tree of bridges: buses are numbered in eight bits.
const maxDepth = 256

// Route is the way from a root bus to a device: the root bus as sysfs names it
// ("pci0000:40") and the bridges from the root port down, without the device.
// Two devices of different roots hang off different host bridges.
func (d Device) Route() (root string, bridges []Device, err error) {
	to, err := readLink(d.fsys, d.name(""))
	if err != nil {
		return "", nil, err
	}
	root, ids, err := parseRoute(to)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", d.Path(""), err)
	}
	if last := ids[len(ids)-1]; last != d.id {
		return "", nil, fmt.Errorf("%s leads to %s", d.Path(""), last)
	}
	for _, id := range ids[:len(ids)-1] {
		bridges = append(bridges, Device{d.fsys, id})
	}
	return root, bridges, nil
}

// Upstream is the bridges of Route.
func (d Device) Upstream() ([]Device, error) {
	_, bridges, err := d.Route()
	return bridges, err
}

// parseRoute reads what the link of a device points to, such as
// "../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0". Behind a controller
// with a PCI domain of its own there are two roots; the last one counts.
func parseRoute(to string) (root string, ids []string, err error) {
	if len(to) > maxText {
		return "", nil, fmt.Errorf("a link of %d bytes", len(to))
	}
	for part := range strings.SplitSeq(to, "/") {
		switch bus, isRoot := strings.CutPrefix(part, "pci"); {
		case isRoot && strings.Contains(bus, ":"):
			root, ids = part, nil
		case root == "":
		case IsBusID(part):
			ids = append(ids, part)
		default:
			return "", nil, fmt.Errorf("%s in the path %s", quote(part), quote(to))
		}
	}
	if root == "" || len(ids) == 0 || len(ids) > maxDepth {
		return "", nil, fmt.Errorf("no path of PCI devices: %s", quote(to))
	}
	return root, ids, nil
}
