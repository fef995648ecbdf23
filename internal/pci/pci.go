// SPDX-License-Identifier: Apache-2.0

// Package pci reads what Linux knows about PCI devices from sysfs: where a GPU
// sits, how large its BARs are, how fast its link is, which bridges lead to it
// and whether they let peers talk to each other.
//
// Everything is read through an fs.FS rooted at "/", so that a simulated
// machine or a test can supply the files. Every read is bounded: a file that is
// longer than the kernel would write it, or holds a NUL, is an error.
//
// An error of this package means "unknown". A device without some property (no
// driver bound, no IOMMU, no ACS) is an answer, not an error.
package pci

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

const (
	devicesDir = "sys/bus/pci/devices"
	// maxText is a page: the kernel writes no more into a text attribute.
	maxText = 4096
	// maxDevices is far above what a machine has, and bounds what a hostile tree
	// makes us read.
	maxDevices = 1 << 16
)

// NVIDIA is the vendor id of NVIDIA.
const NVIDIA = 0x10de

// A Device is a PCI function of a machine's sysfs. It is a small value; its
// methods read files each time they are called.
type Device struct {
	fsys fs.FS
	id   string
}

// At is the device with a bus id in any form that ParseBusID takes. It reads
// nothing: whether the device exists is told by Exists, and by the errors of the
// other methods.
func At(fsys fs.FS, busID string) (Device, error) {
	id, err := ParseBusID(busID)
	if err != nil {
		return Device{}, err
	}
	if fsys == nil {
		return Device{}, errors.New("pci: no file system")
	}
	return Device{fsys, id}, nil
}

// List is all PCI functions of the machine, ordered by domain, bus, device and
// function.
func List(fsys fs.FS) ([]Device, error) {
	if fsys == nil {
		return nil, errors.New("pci: no file system")
	}
	entries, err := fs.ReadDir(fsys, devicesDir)
	if err != nil {
		return nil, err
	}
	if len(entries) > maxDevices {
		return nil, fmt.Errorf("/%s: %d entries", devicesDir, len(entries))
	}
	var ds []Device
	for _, e := range entries {
		if id, err := ParseBusID(e.Name()); err == nil && id == e.Name() {
			ds = append(ds, Device{fsys, id})
		}
	}
	slices.SortFunc(ds, func(a, b Device) int { return CompareBusID(a.id, b.id) })
	return ds, nil
}

// GPUs is the display controllers (class 03) of NVIDIA, ordered as by List: also
// those that are bound to another driver, or to none.
func GPUs(fsys fs.FS) ([]Device, error) {
	all, err := List(fsys)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(d Device) bool {
		vendor, err := d.Vendor()
		if err != nil || vendor != NVIDIA {
			return true
		}
		class, err := d.Class()
		return err != nil || class>>16 != 0x03
	}), nil
}

// BusID is the device's bus id in the form of sysfs, "0000:01:00.0".
func (d Device) BusID() string { return d.id }

// Path is where a file of the device is found, with a leading slash; for
// messages. Path("") is the device's directory.
func (d Device) Path(file string) string { return "/" + d.name(file) }

func (d Device) name(file string) string { return path.Join(devicesDir, d.id, file) }

// Exists tells whether the kernel lists the device.
func (d Device) Exists() bool {
	_, err := fs.Stat(d.fsys, d.name(""))
	return err == nil
}

// Vendor is the vendor id, 0x10de for NVIDIA.
func (d Device) Vendor() (uint16, error) { return readUint[uint16](d, "vendor") }

// DeviceID is the device id, 0x2684 for an RTX 4090.
func (d Device) DeviceID() (uint16, error) { return readUint[uint16](d, "device") }

// Subsystem is the subsystem's device id and its vendor id.
func (d Device) Subsystem() (device, vendor uint16, err error) {
	if device, err = readUint[uint16](d, "subsystem_device"); err != nil {
		return 0, 0, err
	}
	vendor, err = readUint[uint16](d, "subsystem_vendor")
	return device, vendor, err
}

// Class is the 24-bit class code: 0x030000 is a display controller, 0x030200 a
// 3D controller without outputs, 0x060400 a bridge.
func (d Device) Class() (uint32, error) { return readUint[uint32](d, "class") }

// NUMANode is the NUMA node that the device hangs off, or -1 where the firmware
// names none: then nothing is known, it is not node 0.
func (d Device) NUMANode() (int, error) {
	s, err := d.text("numa_node")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < -1 {
		return 0, fmt.Errorf("%s: %s", d.Path("numa_node"), quote(s))
	}
	return int(n), nil
}

// PowerState is what the kernel believes: "D0", "D3hot", "D3cold", "unknown".
func (d Device) PowerState() (string, error) { return d.text("power_state") }

// Driver is the kernel driver that is bound to the device ("nvidia", "nouveau",
// "vfio-pci"), or "" if none is.
func (d Device) Driver() (string, error) { return d.link("driver") }

// IOMMU is the device's IOMMU group and the kind of its domain: "DMA" and
// "DMA-FQ" translate addresses, "identity" passes them through. Both are ""
// where the device belongs to no group, which is so with the IOMMU off.
//
// A kernel that does not tell the kind (before 5.11 the file may be missing)
// gives the group and an error.
func (d Device) IOMMU() (group, kind string, err error) {
	if group, err = d.link("iommu_group"); err != nil || group == "" {
		return "", "", err
	}
	if _, err := strconv.ParseUint(group, 10, 32); err != nil {
		return "", "", fmt.Errorf("%s leads to %s", d.Path("iommu_group"), quote(group))
	}
	kind, err = readText(d.fsys, path.Join("sys/kernel/iommu_groups", group, "type"))
	return group, kind, err
}

// link is the last element of what a link in the device's directory points to,
// "" if there is no such link but the device's directory is there.
func (d Device) link(file string) (string, error) {
	to, err := readLink(d.fsys, d.name(file))
	if errors.Is(err, fs.ErrNotExist) {
		if !d.Exists() {
			return "", fmt.Errorf("%s: %w", d.Path(""), fs.ErrNotExist)
		}
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if len(to) > maxText {
		return "", fmt.Errorf("%s: a link of %d bytes", d.Path(file), len(to))
	}
	return path.Base(to), nil
}

// errNoLinks is the answer of a file system without links, such as an archive.
var errNoLinks = errors.New("this file system has no links")

func readLink(fsys fs.FS, name string) (string, error) {
	if _, ok := fsys.(fs.ReadLinkFS); !ok {
		return "", errNoLinks
	}
	return fs.ReadLink(fsys, name)
}

func (d Device) text(file string) (string, error) { return readText(d.fsys, d.name(file)) }

// readUint reads a number as sysfs writes it, in hexadecimal after "0x".
func readUint[T uint16 | uint32](d Device, file string) (T, error) {
	s, err := d.text(file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(s, 0, 32)
	if err != nil || uint64(T(n)) != n {
		return 0, fmt.Errorf("%s: %s", d.Path(file), quote(s))
	}
	return T(n), nil
}

// readText reads a text attribute, without white space around it.
func readText(fsys fs.FS, name string) (string, error) {
	b, err := readFile(fsys, name, maxText)
	if err != nil {
		return "", err
	}
	if bytes.IndexByte(b, 0) >= 0 {
		return "", fmt.Errorf("/%s holds a NUL", name)
	}
	return strings.TrimSpace(string(b)), nil
}

// readFile reads at most limit bytes; a longer file is an error.
func readFile(fsys fs.FS, name string, limit int) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err != nil {
		return nil, err
	}
	if len(b) > limit {
		return nil, fmt.Errorf("/%s is longer than %d bytes", name, limit)
	}
	return b, nil
}

// quote shows the beginning of what was found instead of what was expected.
func quote(s string) string {
	const most = 64
	if len(s) > most {
		return strconv.Quote(s[:most]) + "..."
	}
	return strconv.Quote(s)
}
