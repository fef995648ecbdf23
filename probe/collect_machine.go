// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"strings"
)

// machine fills in the facts of the host.
func (c *collector) machine() {
	m := &c.facts.Machine
	m.Kernel = c.files.textValue("proc/version", maxText)
	m.CPU = Unknown[string]("/proc/cpuinfo", "it names no model")
	if cpu, err := c.cpu(); err != nil {
		m.CPU = failed[string](err, "/proc/cpuinfo")
	} else if cpu.model != "" {
		m.CPU = Known(cpu.model, "/proc/cpuinfo")
	}
	m.Board = c.board()
	m.Nodes = c.numaNodes()
	m.IOMMUs = c.iommus()
	m.Kargs = as(c.files.textValue("proc/cmdline", maxTable), kernelArguments)
}

// dmi is where the firmware's names are.
const dmi = "sys/class/dmi/id/"

// board is the vendor and the product that the firmware names.
func (c *collector) board() Value[string] {
	vendor, err := c.files.text(dmi+"sys_vendor", maxText)
	if err != nil {
		return failed[string](err, "/"+dmi+"sys_vendor")
	}
	product, _ := c.files.text(dmi+"product_name", maxText)
	return Known(strings.TrimSpace(vendor+" "+product), "/"+dmi)
}

// kernelArguments keeps the words of a kernel command line that can matter
// here: the others are nobody's business.
func kernelArguments(line string) string {
	var kept []string
	for word := range strings.FieldsSeq(line) {
		low := strings.ToLower(word)
		for _, about := range []string{"iommu", "pci", "nvidia"} {
			if strings.Contains(low, about) {
				kept = append(kept, word)
				break
			}
		}
	}
	return short(strings.Join(kept, " "), maxText)
}

// cpuInfo is what matters of /proc/cpuinfo.
type cpuInfo struct {
	model      string // "" where it names none (ARM)
	flags      bool   // it has a line of flags, as on x86
	hypervisor bool   // that line has the flag of a guest
}

// cpu reads the first processor. The file of a large machine is long, and all
// its processors are alike.
func (c *collector) cpu() (cpuInfo, error) {
	s, _, err := c.files.head("proc/cpuinfo", maxTable)
	if err != nil {
		return cpuInfo{}, err
	}
	return parseCPUInfo(s)
}

// parseCPUInfo reads the beginning of /proc/cpuinfo.
func parseCPUInfo(text string) (info cpuInfo, err error) {
	if strings.IndexByte(text, 0) >= 0 {
		return info, errors.New("holds a NUL")
	}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "model name":
			if info.model == "" {
				info.model = short(strings.TrimSpace(value), maxReason)
			}
		case "flags":
			info.flags = true
			for flag := range strings.FieldsSeq(value) {
				if flag == "hypervisor" {
					info.hypervisor = true
				}
			}
			return info, nil
		}
	}
	return info, nil
}

// maxListed bounds a list of the kernel.
const maxListed = 1024

// parseList reads the kernel's list format, "0-3,8"; empty is none.
func parseList(s string) ([]int, error) {
	list := []int{}
	if s = strings.TrimSpace(s); s == "" {
		return list, nil
	}
	if len(s) > maxText {
		return nil, fmt.Errorf("a list of %d bytes", len(s))
	}
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		lo, err := parseCount(from)
		if err != nil {
			return nil, err
		}
		hi := lo
		if isRange {
			if hi, err = parseCount(to); err != nil {
				return nil, err
			}
		}
		if hi < lo || hi-lo >= maxListed-len(list) {
			return nil, fmt.Errorf("not a list: %.40q", s)
		}
		for n := lo; n <= hi; n++ {
			list = append(list, n)
		}
	}
	return list, nil
}
