// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/geforce-p2p/geforce-p2p/internal/pci"
)

// Files of the kernel module.
const (
	procVersion = "proc/driver/nvidia/version"
	procParams  = "proc/driver/nvidia/params"
	procGPUs    = "proc/driver/nvidia/gpus"
	sysModule   = "sys/module/nvidia"
)

// module fills in what the kernel tells of the NVIDIA module.
func (c *collector) module(devices procDevices) {
	d := &c.facts.Driver
	d.Loaded = c.loaded("nvidia", procVersion, sysModule)
	d.UVMLoaded = c.loaded("nvidia_uvm", "sys/module/nvidia_uvm")
	if _, ok := devices.majors["nvidia-uvm"]; ok && !d.UVMLoaded.Or(false) {
		d.UVMLoaded = Known(true, devices.path)
	}

	const source = "/" + procVersion
	text, err := c.files.text(procVersion, maxText)
	var v moduleVersion
	if err == nil {
		v, err = parseModuleVersion(text)
	}
	if err != nil {
		d.Line = failed[string](err, source)
		d.Flavour, d.Version = as(d.Line, func(string) Flavour { return "" }), d.Line
	} else {
		d.Line = Known(v.line, source)
		d.Flavour, d.Version = Unknown[Flavour](source, "no flavour in it"), Unknown[string](source, "no version in it")
		if v.flavour != "" {
			d.Flavour = Known(v.flavour, source)
		}
		if v.version != "" {
			d.Version = Known(v.version, source)
		}
	}
	// A container may have /sys and not /proc/driver.
	d.Version = first(d.Version, c.moduleVersion())
	d.Flavour = first(d.Flavour, c.moduleFlavour())

	const params = "/" + procParams
	text, err = c.files.text(procParams, maxTable)
	var p map[string]string
	if err == nil {
		p, err = parseParams(text)
	}
	d.Params = valueOf(p, err, params)
}

// loaded tells whether a kernel module is there: one of the files that it makes,
// or its line in /proc/modules.
func (c *collector) loaded(module string, files ...string) Value[bool] {
	for _, f := range files {
		if ok, _ := c.files.has(f); ok {
			return Known(true, "/"+f)
		}
	}
	const list = "proc/modules"
	s, _, err := c.files.head(list, maxTable)
	if err != nil {
		// Modules that are built in or loaded have a directory here; without any
		// there is no sysfs to tell.
		if ok, _ := c.files.has("sys/module"); ok {
			return Known(false, "/sys/module")
		}
		return failed[bool](err, "/"+list)
	}
	for line := range strings.Lines(s) {
		if name, _, _ := strings.Cut(line, " "); name == module {
			return Known(true, "/"+list)
		}
	}
	return Known(false, "/"+list)
}

// moduleVersion is the version that the module's own directory names.
func (c *collector) moduleVersion() Value[string] {
	const name = sysModule + "/version"
	s, err := c.files.text(name, maxText)
	if err == nil && !versionPattern.MatchString(s) {
		err = fmt.Errorf("not a version: %.40q", s)
	}
	return valueOf(s, err, "/"+name)
}

// moduleFlavour tells the flavour by the taint: the kernel marks a module with P
// whose licence is not a free one.
func (c *collector) moduleFlavour() Value[Flavour] {
	const name = sysModule + "/taint"
	s, err := c.files.text(name, maxText)
	flavour := Open
	if strings.Contains(s, "P") {
		flavour = Proprietary
	}
	return valueOf(flavour, err, "/"+name)
}

// versionPattern is a driver version: "565.57.01", "570.169".
var versionPattern = regexp.MustCompile(`^\d{3,4}\.\d{2,3}(\.\d{2})?$`)

// moduleVersion is what the module says of itself.
type moduleVersion struct {
	line    string
	flavour Flavour // "" if it names none
	version string  // "" if it names none
}

// parseModuleVersion reads /proc/driver/nvidia/version. The fields of its first line
// have no fixed places: the build, who built it and the date may be missing, and
// versions have two parts or three.
func parseModuleVersion(text string) (v moduleVersion, err error) {
	if len(text) > maxText {
		return v, fmt.Errorf("longer than %d bytes", maxText)
	}
	if strings.IndexByte(text, 0) >= 0 {
		return v, errors.New("holds a NUL")
	}
	for line := range strings.Lines(text) {
		id, ok := strings.CutPrefix(strings.TrimSpace(line), "NVRM version:")
		if !ok {
			continue
		}
		v.line = strings.TrimSpace(line)
		switch {
		case strings.Contains(id, "Open Kernel Module"):
			v.flavour = Open
		case strings.Contains(id, "Kernel Module"):
			v.flavour = Proprietary
		}
		for field := range strings.FieldsSeq(id) {
			if versionPattern.MatchString(field) {
				v.version = field
				break
			}
		}
		return v, nil
	}
	return v, errors.New("it has no line of the NVRM version")
}

// maxParams is far above what the module has.
const maxParams = 512

// parseParams reads /proc/driver/nvidia/params: a line a parameter, "Name:
// number" or `Name: "text"`. The quotes are dropped.
func parseParams(text string) (map[string]string, error) {
	params := map[string]string{}
	err := eachPair(text, maxTable, func(key, value string) error {
		if len(params) == maxParams {
			return fmt.Errorf("more than %d parameters", maxParams)
		}
		if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
			value = value[1 : len(value)-1]
		}
		params[key] = value
		return nil
	})
	if err != nil {
		return nil, err
	}
	return params, nil
}

// parseInformation reads /proc/driver/nvidia/gpus/*/information: "Key: value"
// with any white space between.
func parseInformation(text string) (map[string]string, error) {
	keys := map[string]string{}
	err := eachPair(text, maxText, func(key, value string) error {
		keys[key] = value
		return nil
	})
	if err != nil {
		return nil, err
	}
	return keys, nil
}

// eachPair reads lines of "key: value".
func eachPair(text string, most int, each func(key, value string) error) error {
	if len(text) > most {
		return fmt.Errorf("longer than %d bytes", most)
	}
	if strings.IndexByte(text, 0) >= 0 {
		return errors.New("holds a NUL")
	}
	n := 0
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		key, value, ok := strings.Cut(line, ":")
		key = strings.TrimSpace(key)
		if !ok || key == "" || len(line) > maxLine {
			return fmt.Errorf("not a line of a key and a value: %.40q", line)
		}
		if err := each(key, strings.TrimSpace(value)); err != nil {
			return err
		}
		n++
	}
	if n == 0 {
		return errors.New("it is empty")
	}
	return nil
}

// procGPU is one GPU of the kernel module.
type procGPU struct {
	busID string
	path  string // of the file
	keys  map[string]string
}

// information reads what the module says of each GPU. One whose file cannot be
// read is still one.
func (c *collector) information() []procGPU {
	entries, err := fs.ReadDir(c.files.fsys, procGPUs)
	if err != nil {
		return nil
	}
	var gpus []procGPU
	for _, e := range entries {
		id, err := pci.ParseBusID(e.Name())
		if err != nil {
			continue
		}
		name := path.Join(procGPUs, e.Name(), "information")
		g := procGPU{busID: id, path: "/" + name, keys: map[string]string{}}
		if len(gpus) <= maxDevices { // beyond, the joiner refuses
			if text, err := c.files.text(name, maxText); err == nil {
				if keys, err := parseInformation(text); err == nil {
					g.keys = keys
				}
			}
		}
		gpus = append(gpus, g)
	}
	return gpus
}

// parseCount is a number that is not negative.
func parseCount(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("not a number: %.40q", s)
	}
	return int(n), nil
}
