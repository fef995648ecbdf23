// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// versionLines are the forms of the module's version that public reports show.
var versionLines = []struct {
	text    string
	flavour Flavour
	version string
}{
	{"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build  (root@host)  Thu Oct 10 12:29:50 UTC 2024\nGCC version:  gcc version 13.2.0\n", Open, "565.57.01"},
	{"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build  (nixbld@)  \nGCC version:  \n", Open, "565.57.01"},
	{"NVRM version: NVIDIA UNIX x86_64 Kernel Module  590.48.01  Mon Dec  8 13:05:00 UTC 2025\nGCC version:  gcc version 14.2.0\n", Proprietary, "590.48.01"},
	{"NVRM version: NVIDIA UNIX x86_64 Kernel Module  361.93.02  Tue Sep 13 22:37:13 PDT 2016\n", Proprietary, "361.93.02"},
	{"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.169  Debug Build  (builder@box)  Thu Jun  5 2025\n", Open, "570.169"},
}

func TestParseModuleVersion(t *testing.T) {
	for _, c := range versionLines {
		v, err := parseModuleVersion(c.text)
		require.NoError(t, err, c.text)
		require.Equal(t, c.flavour, v.flavour, c.text)
		require.Equal(t, c.version, v.version, c.text)
		require.Equal(t, strings.TrimSpace(strings.SplitN(c.text, "\n", 2)[0]), v.line)
	}
	// What is not said stays unknown: an empty file tells nothing, and in
	// particular not "proprietary".
	_, err := parseModuleVersion("")
	require.Error(t, err)
	v, err := parseModuleVersion("NVRM version: something else  565.57.01\n")
	require.NoError(t, err)
	require.Equal(t, Flavour(""), v.flavour)
	require.Equal(t, "565.57.01", v.version)
	v, err = parseModuleVersion("NVRM version: NVIDIA UNIX x86_64 Kernel Module  12:34:56 2024 5.15\n")
	require.NoError(t, err)
	require.Equal(t, Proprietary, v.flavour)
	require.Equal(t, "", v.version)

	hostileText(t, func(s string) error { _, err := parseModuleVersion(s); return err }, "NVRM version: ")
}

// hostileText gives a parser what no kernel writes; all of it must be an error
// of a few words.
func hostileText(t *testing.T, parse func(string) error, start string) {
	t.Helper()
	for name, s := range map[string]string{
		"a line of 1 MB": start + strings.Repeat("x", 1<<20),
		"1 MB of lines":  start + strings.Repeat("x\n", 1<<19),
		"a NUL":          start + "a: 1\x00\n",
		"NULs":           strings.Repeat("\x00", 1<<20),
		"nothing":        "",
	} {
		err := parse(s)
		require.Error(t, err, name)
		require.Less(t, len(err.Error()), 300, name)
	}
}

func TestParseParams(t *testing.T) {
	p, err := parseParams(fixture(t, "proc-driver-nvidia-params"))
	require.NoError(t, err)
	require.Len(t, p, 42)
	require.Equal(t, "0", p["EnableResizableBar"])
	require.Equal(t, "18", p["EnableGpuFirmware"])
	require.Equal(t, "4294967295", p["ResmanDebugLevel"])
	dwords, ok := p["RegistryDwords"]
	require.True(t, ok)
	require.Equal(t, "", dwords)

	p, err = parseParams("A: 1\nRegistryDwords: \"ForceP2P=0x11;RMForceP2PType=1\"\nRmMsg: \"a: \"b\"\"\nLone: \"\n\n")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"A": "1", "RegistryDwords": "ForceP2P=0x11;RMForceP2PType=1", "RmMsg": `a: "b"`, "Lone": `"`}, p)

	for name, s := range map[string]string{
		"no colon":        "EnableMSI 1\n",
		"no name":         ": 1\n",
		"a long line":     "A: " + strings.Repeat("x", maxLine) + "\n",
		"many parameters": numbered("P%d: 1\n", maxParams+1),
	} {
		_, err := parseParams(s)
		require.Error(t, err, name)
		require.Less(t, len(err.Error()), 200, name)
	}
	hostileText(t, func(s string) error { _, err := parseParams(s); return err }, "A: 1\nB: ")
}

// numbered repeats a format with a number in it.
func numbered(format string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

func TestParseInformation(t *testing.T) {
	k, err := parseInformation(fixture(t, "proc-driver-nvidia-gpus-information"))
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"Model": "NVIDIA H200", "IRQ": "41", "GPU UUID": "GPU-00000000-0000-0000-0000-000000000001", "Video BIOS": "96.00.a5.00.1a",
		"Bus Type": "PCIe", "DMA Size": "52 bits", "DMA Mask": "0xfffffffffffff", "Bus Location": "0000:00:06.0",
		"Device Minor": "0", "GPU Firmware": "580.159.04", "GPU Excluded": "No",
	}, k)
	_, err = parseInformation("Model NVIDIA\n")
	require.Error(t, err)
	hostileText(t, func(s string) error { _, err := parseInformation(s); return err }, "Model: ")
}

func TestParseDevices(t *testing.T) {
	d, err := parseDevices("Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n510 nvidia-uvm\n511 nvidia-uvm\n\nBlock devices:\n  7 loop\n510 nvidia-block\n")
	require.NoError(t, err)
	require.Equal(t, map[string]int{"mem": 1, "nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 510}, d)
	for name, s := range map[string]string{
		"no list":         "Block devices:\n  7 loop\n",
		"no number":       "Character devices:\nx mem\n",
		"no name":         "Character devices:\n1\n",
		"negative":        "Character devices:\n-1 mem\n",
		"too many drives": "Character devices:\n" + numbered("1 %d\n", maxMajors+1),
	} {
		_, err := parseDevices(s)
		require.Error(t, err, name)
	}
	hostileText(t, func(s string) error { _, err := parseDevices(s); return err }, "Character devices:\n  1 mem\n")
}

func TestParseCPUInfo(t *testing.T) {
	const one = "processor\t: 0\nmodel name\t: AMD EPYC 7542 32-Core Processor\nflags\t\t: fpu vme hypervisor lm\n\n"
	info, err := parseCPUInfo(one + one)
	require.NoError(t, err)
	require.Equal(t, cpuInfo{"AMD EPYC 7542 32-Core Processor", true, true}, info)
	info, err = parseCPUInfo(strings.ReplaceAll(one, "hypervisor", "hypervisors"))
	require.NoError(t, err)
	require.True(t, info.flags)
	require.False(t, info.hypervisor)
	info, err = parseCPUInfo("processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\n")
	require.NoError(t, err)
	require.Equal(t, cpuInfo{}, info)
	_, err = parseCPUInfo("model name: \x00")
	require.Error(t, err)
	info, err = parseCPUInfo("model name: " + strings.Repeat("x", 1<<20))
	require.NoError(t, err)
	require.Less(t, len(info.model), 1<<10)
}

func TestParseList(t *testing.T) {
	for in, want := range map[string][]int{"": {}, "0\n": {0}, "0-3,8": {0, 1, 2, 3, 8}, "0-1023": nil} {
		got, err := parseList(in)
		require.NoError(t, err, in)
		if want != nil {
			require.Equal(t, want, got, in)
		}
	}
	for _, in := range []string{"x", "1-", "-1", "3-1", "0-1024", "0-2000000000", "0-1023,5", strings.Repeat("1,", 1<<19)} {
		_, err := parseList(in)
		require.Error(t, err, "%.20q", in)
	}
}

func TestParseLimit(t *testing.T) {
	const text = "Limit                     Soft Limit           Hard Limit           Units     \n" +
		"Max locked memory         8388608              unlimited            bytes     \n" +
		"Max stack size            unlimited            unlimited            bytes     \nMax pending\nMax odd  many  many\n"
	n, err := parseLimit(text, "Max locked memory")
	require.NoError(t, err)
	require.EqualValues(t, 8<<20, n)
	n, err = parseLimit(text, "Max stack size")
	require.NoError(t, err)
	require.EqualValues(t, uint64(unlimited), n)
	for _, name := range []string{"Max pending", "Max odd", "Max nothing"} {
		_, err = parseLimit(text, name)
		require.Error(t, err, name)
	}
}

func TestKernelArguments(t *testing.T) {
	require.Equal(t, "amd_iommu=on iommu=pt pci=disable_acs_redir=0000:00:01.1 nvidia.NVreg_EnableResizableBar=1",
		kernelArguments("BOOT_IMAGE=/vmlinuz root=UUID=1234 ro amd_iommu=on iommu=pt secret=x pci=disable_acs_redir=0000:00:01.1 nvidia.NVreg_EnableResizableBar=1\n"))
	require.LessOrEqual(t, len(kernelArguments("pci="+strings.Repeat("x", 1<<20))), maxText+3)
}

func TestShort(t *testing.T) {
	require.Equal(t, "ab...", short("abc", 2))
	require.Equal(t, "a b?", short("a\x00b\xff", 10))
}

func FuzzParseModuleVersion(f *testing.F) {
	for _, c := range versionLines {
		f.Add(c.text)
	}
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		v, err := parseModuleVersion(s)
		if err == nil && (v.version != "" && !versionPattern.MatchString(v.version) || len(v.line) > maxText) {
			t.Fatalf("%+v", v)
		}
	})
}

func FuzzParseParams(f *testing.F) {
	f.Add(fixture(f, "proc-driver-nvidia-params"))
	f.Add("RegistryDwords: \"ForceP2P=0x11;RMForceP2PType=1\"\n")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := parseParams(s)
		if err == nil && (len(p) == 0 || len(p) > maxParams) {
			t.Fatalf("%d parameters", len(p))
		}
	})
}

func FuzzParseInformation(f *testing.F) {
	f.Add(fixture(f, "proc-driver-nvidia-gpus-information"))
	f.Fuzz(func(t *testing.T, s string) {
		if k, err := parseInformation(s); err == nil && len(k) == 0 {
			t.Fatal("nothing, and no error")
		}
	})
}

func FuzzParseDevices(f *testing.F) {
	f.Add("Character devices:\n  1 mem\n195 nvidia\n\nBlock devices:\n  7 loop\n")
	f.Fuzz(func(t *testing.T, s string) {
		m, err := parseDevices(s)
		if err == nil && len(m) > maxMajors {
			t.Fatalf("%d majors", len(m))
		}
		for name, major := range m {
			if name == "" || major < 0 {
				t.Fatalf("%q has %d", name, major)
			}
		}
	})
}

func FuzzParseCPUInfo(f *testing.F) {
	f.Add("processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu hypervisor\n")
	f.Fuzz(func(t *testing.T, s string) {
		if info, err := parseCPUInfo(s); err == nil && info.hypervisor && !info.flags {
			t.Fatalf("%+v", info)
		}
	})
}

func FuzzParseList(f *testing.F) {
	f.Add("0-3,8,10-11")
	f.Fuzz(func(t *testing.T, s string) {
		if list, err := parseList(s); err == nil && len(list) > maxListed {
			t.Fatalf("%d numbers", len(list))
		}
	})
}
