// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// procDevices is /proc/devices.
type procDevices struct {
	path   string
	majors map[string]int // of character devices, by the driver's name
	err    error
}

func (c *collector) procDevices() procDevices {
	const name = "proc/devices"
	d := procDevices{path: "/" + name}
	text, err := c.files.text(name, maxTable)
	if err == nil {
		d.majors, err = parseDevices(text)
	}
	d.err = err
	return d
}

// maxMajors is above the 512 major numbers of character devices, each with a few names.
const maxMajors = 4096

// parseDevices reads the character devices of /proc/devices. Where a driver has
// several majors, the first counts.
func parseDevices(text string) (map[string]int, error) {
	if len(text) > maxTable {
		return nil, fmt.Errorf("longer than %d bytes", maxTable)
	}
	if strings.IndexByte(text, 0) >= 0 {
		return nil, errors.New("holds a NUL")
	}
	majors := map[string]int{}
	inChar, found := false, false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case line == "Character devices:":
			inChar, found = true, true
			continue
		case line == "Block devices:":
			inChar = false
			continue
		case line == "" || !inChar:
			continue
		}
		number, name, ok := strings.Cut(line, " ")
		major, err := parseCount(number)
		name = strings.TrimSpace(name)
		if !ok || err != nil || name == "" || len(majors) >= maxMajors {
			return nil, fmt.Errorf("not a line of a major number and a name: %.40q", line)
		}
		if _, twice := majors[name]; !twice {
			majors[name] = major
		}
	}
	if !found {
		return nil, errors.New("it lists no character devices")
	}
	return majors, nil
}

// want is the major number that a node should have. The names of the drivers
// changed with the versions.
func (d procDevices) want(node string) Value[int] {
	if d.err != nil {
		return failed[int](d.err, d.path)
	}
	names := []string{"nvidia", "nvidia-frontend"} // nvidia0
	switch node {
	case "nvidiactl":
		names = []string{"nvidiactl", "nvidia-frontend", "nvidia"}
	case "nvidia-uvm", "nvidia-uvm-tools":
		names = []string{"nvidia-uvm"}
	case "nvidia-modeset":
		names = []string{"nvidia-modeset", "nvidia-frontend", "nvidia"}
	}
	for _, n := range names {
		if major, ok := d.majors[n]; ok {
			return Known(major, d.path)
		}
	}
	return Unknown[int](d.path, "it has no "+names[0])
}

// openPatience is how long opening a node may take: opening a GPU that nothing
// holds open starts it, which takes a second or two.
const openPatience = 5 * time.Second

// nodes looks at the device nodes that the driver's user space opens: the
// controlling one, those of the memory manager, and one a GPU.
func (c *collector) nodes(ctx context.Context, devices procDevices) []DeviceNode {
	if ok, _ := c.files.has("dev"); !ok {
		return nil // a simulated machine
	}
	names := []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}
	minors := map[int]bool{}
	for _, d := range c.facts.Devices {
		if n, ok := d.Minor.Get(); ok && n >= 0 {
			minors[n] = true
		}
	}
	entries, _ := fs.ReadDir(c.files.fsys, "dev") // without: the fixed ones
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), "nvidia")
		if n, err := parseCount(digits); ok && err == nil && strconv.Itoa(n) == digits && len(minors) < maxDevices {
			minors[n] = true
		}
	}
	numbers := make([]int, 0, len(minors))
	for n := range minors {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		names = append(names, fmt.Sprintf("nvidia%d", n))
	}
	if ok, _ := c.files.has("dev/nvidia-modeset"); ok {
		names = append(names, "nvidia-modeset")
	}

	out := make([]DeviceNode, len(names))
	opened := make([]chan error, len(names))
	for i, name := range names {
		out[i] = c.node(name, devices)
		if out[i].OpenError != "" {
			continue
		}
		// All at once: each GPU that must be started takes its time.
		done := make(chan error, 1)
		opened[i] = done
		path := out[i].Path
		go func() { done <- c.o.OpenNode(path) }()
	}
	timer := time.NewTimer(openPatience)
	defer timer.Stop()
	late := false
	for i := range out {
		if opened[i] == nil {
			continue
		}
		if !late {
			select {
			case err := <-opened[i]:
				out[i].OpenError = errorName(err)
				continue
			case <-ctx.Done():
				late = true
			case <-timer.C:
				late = true
			}
		}
		select {
		case err := <-opened[i]:
			out[i].OpenError = errorName(err)
		default:
			out[i].OpenError = fmt.Sprintf("no answer within %v", openPatience)
		}
	}
	return out
}

// node is one node without opening it. OpenError is set if it is not there.
func (c *collector) node(name string, devices procDevices) DeviceNode {
	n := DeviceNode{Path: "/dev/" + name, WantMajor: devices.want(name)}
	info, err := fs.Stat(c.files.fsys, "dev/"+name)
	if err != nil {
		n.OpenError = errorName(err)
		n.Exists = !errors.Is(err, fs.ErrNotExist)
		return n
	}
	n.Exists = true
	n.Char = info.Mode()&fs.ModeCharDevice != 0
	n.Mode = lsMode(info.Mode())
	if n.Char {
		n.Major, n.Minor = deviceNumber(info)
	}
	return n
}

// lsMode writes a mode as ls does.
func lsMode(m fs.FileMode) string {
	kind := "-"
	switch {
	case m&fs.ModeCharDevice != 0:
		kind = "c"
	case m&fs.ModeDevice != 0:
		kind = "b"
	case m.IsDir():
		kind = "d"
	case m&fs.ModeSymlink != 0:
		kind = "l"
	case m&fs.ModeNamedPipe != 0:
		kind = "p"
	case m&fs.ModeSocket != 0:
		kind = "s"
	}
	return kind + m.Perm().String()[1:]
}

// errorName is the name of a system's error, "" for none.
func errorName(err error) string {
	if err == nil {
		return ""
	}
	for _, e := range []struct {
		errno syscall.Errno
		name  string
	}{
		{syscall.EPERM, "EPERM"}, {syscall.EACCES, "EACCES"}, {syscall.ENOENT, "ENOENT"}, {syscall.ENXIO, "ENXIO"},
		{syscall.ENODEV, "ENODEV"}, {syscall.EIO, "EIO"}, {syscall.EBUSY, "EBUSY"}, {syscall.EROFS, "EROFS"},
	} {
		// Not errors.Is: EPERM and EACCES both match fs.ErrPermission.
		var errno syscall.Errno
		if errors.As(err, &errno) && errno == e.errno {
			return e.name
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "ENOENT"
	case errors.Is(err, fs.ErrPermission):
		return "EACCES"
	}
	return failed[int](err, "").Error
}
