// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"

	"github.com/geforce-p2p/geforce-p2p/cuda"
)

// defaultSim stands in where there is no GPU.
const defaultSim = "2x4090"

// A machine is what a subcommand works on.
type machine struct {
	driver  *cuda.Driver
	name    string   // the simulated machine's name, or the GPUs in short
	gpus    []string // names by ordinal
	version string   // of the driver
	note    string   // why this machine, where that was not asked for
	close   func() error
}

func (m *machine) modelled() bool { return m.driver.Modelled() }

// selectMachine opens the simulated machine sim, or, if sim is empty, the GPUs
// of this host. A host that has none is served by a simulated machine; a host
// whose GPUs do not work is an error, so that a broken host is not taken for
// one without GPUs.
func (e *environment) selectMachine(sim string) (*machine, error) {
	if sim != "" {
		d, done, err := e.openSim(sim)
		if err != nil {
			return nil, simError(sim, err)
		}
		return simulated(d, done, sim, "")
	}

	d, err := e.openDriver()
	if err == nil {
		var devices []cuda.Device
		if devices, err = d.Devices(); err != nil {
			return nil, err
		}
		if len(devices) > 0 {
			return e.real(d, devices)
		}
		err = cuda.ErrNoDevice
	}
	if !noGPU(err) {
		return nil, fmt.Errorf("the GPU driver does not work: %w", err)
	}
	if found := nvidiaOnBus(e.root); len(found) > 0 {
		return nil, fmt.Errorf("there are NVIDIA GPUs on the PCI bus (%s) but none that CUDA can use "+
			"(--sim %s runs on a simulated machine instead): %w", strings.Join(found, ", "), defaultSim, err)
	}
	d, done, err2 := e.openSim(defaultSim)
	if err2 != nil {
		return nil, err2
	}
	return simulated(d, done, defaultSim, "no NVIDIA GPU here")
}

// simError is why the simulated machine of a name cannot be had. What is wrong
// inside a file of the user's own is not mended by a look at the usage.
func simError(name string, err error) error {
	var file *fs.PathError
	if (strings.ContainsAny(name, `/\`) || strings.HasSuffix(name, ".json")) && !errors.As(err, &file) {
		return codedError{exitUsage, err}
	}
	return usageError{err}
}

// noGPU tells whether an error of cuda.Open says that there is nothing to use:
// no driver library, or one that finds no device. Anything else is a fault.
func noGPU(err error) bool {
	return errors.Is(err, cuda.ErrNoLibrary) || errors.Is(err, cuda.ErrNoDevice)
}

func simulated(d *cuda.Driver, done func() error, name, note string) (*machine, error) {
	m := &machine{driver: d, name: name, version: "simulated", note: note, close: done}
	devices, err := d.Devices()
	if err == nil {
		m.gpus, err = deviceNames(devices)
	}
	if err != nil {
		return nil, errors.Join(err, done())
	}
	return m, nil
}

func (e *environment) real(d *cuda.Driver, devices []cuda.Device) (*machine, error) {
	names, err := deviceNames(devices)
	if err != nil {
		return nil, err
	}
	return &machine{driver: d, name: inShort(names), gpus: names, version: driverVersion(e.root, d), close: func() error { return nil }}, nil
}

func deviceNames(devices []cuda.Device) ([]string, error) {
	names := make([]string, len(devices))
	for i, d := range devices {
		var err error
		if names[i], err = d.Name(); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// inShort is "2x NVIDIA GeForce RTX 4090, 1x NVIDIA A10".
func inShort(names []string) string {
	count := map[string]int{}
	var order []string
	for _, n := range names {
		if count[n] == 0 {
			order = append(order, n)
		}
		count[n]++
	}
	for i, n := range order {
		order[i] = fmt.Sprintf("%dx %s", count[n], n)
	}
	return strings.Join(order, ", ")
}

var versionPattern = regexp.MustCompile(`(?m)^NVRM version:.*?\b(\d+\.\d+(?:\.\d+)?)\b`)

// driverVersion is "580.159.04, CUDA 13.0", or what of it can be found.
func driverVersion(root fs.FS, d *cuda.Driver) string {
	var parts []string
	if b, err := fs.ReadFile(root, "proc/driver/nvidia/version"); err == nil {
		if m := versionPattern.FindSubmatch(b); m != nil {
			parts = append(parts, string(m[1]))
		}
	}
	if v, err := d.Version(); err == nil {
		parts = append(parts, fmt.Sprintf("CUDA %d.%d", v/1000, v%1000/10))
	}
	return strings.Join(parts, ", ")
}

// nvidiaOnBus lists the PCI addresses of NVIDIA's display and 3D controllers.
// It is empty where there is no sysfs to ask.
func nvidiaOnBus(root fs.FS) []string {
	const devices = "sys/bus/pci/devices"
	entries, err := fs.ReadDir(root, devices)
	if err != nil {
		return nil
	}
	read := func(dev, name string) string {
		b, err := fs.ReadFile(root, path.Join(devices, dev, name))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	var found []string
	for _, e := range entries {
		// Class 03 is display: 0300 VGA, 0302 3D controller.
		if read(e.Name(), "vendor") == "0x10de" && strings.HasPrefix(read(e.Name(), "class"), "0x03") {
			found = append(found, e.Name())
		}
	}
	return found
}
