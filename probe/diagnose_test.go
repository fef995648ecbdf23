// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

var update = flag.Bool("update", false, "write testdata/facts and the reports beside them")

func factsPath(name string) string { return filepath.Join("testdata", "facts", name) }

// The files are what the builders make, so that neither is edited alone.
func TestFactsFiles(t *testing.T) {
	for _, c := range factsCases {
		f := c.make()
		var facts, report bytes.Buffer
		require.NoError(t, Save(&facts, f))
		require.NoError(t, Diagnose(f, nil).WriteText(&report))
		if *update {
			require.NoError(t, os.MkdirAll(factsPath(""), 0o755))
			require.NoError(t, os.WriteFile(factsPath(c.name+".json"), facts.Bytes(), 0o644))
			require.NoError(t, os.WriteFile(factsPath(c.name+".report"), report.Bytes(), 0o644))
		}
		for name, want := range map[string]string{c.name + ".json": facts.String(), c.name + ".report": report.String()} {
			got, err := os.ReadFile(factsPath(name))
			require.NoError(t, err)
			require.Equal(t, want, string(got), "%s is not what go test ./probe -run TestFactsFiles -update writes", name)
		}
	}
}

// load reads a facts file the way a user's is read, and strictly: a field that
// is spelled wrongly would be a fact that nobody sees.
func load(t testing.TB, name string) *Facts {
	t.Helper()
	b, err := os.ReadFile(factsPath(name + ".json"))
	require.NoError(t, err)
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(new(Facts)))
	f, err := Load(bytes.NewReader(b))
	require.NoError(t, err)
	return f
}

func TestReportedCases(t *testing.T) {
	for _, c := range factsCases {
		t.Run(c.name, func(t *testing.T) {
			f := load(t, c.name)
			r := Diagnose(f, nil)
			require.Equal(t, c.status, r.Status)
			n := len(f.Devices)
			require.Len(t, r.Pairs, n*(n-1))
			for i := range r.Pairs {
				p := &r.Pairs[i]
				require.Same(t, p, r.Pair(p.From, p.To))
				if c.headline == DeviceLost && p.From != 1 && p.To != 1 {
					require.Equal(t, StateOff, p.State)
					require.Equal(t, DriverRefusal, p.Headline, "the others are judged")
					require.Equal(t, PatchLikely, p.Patch)
					continue
				}
				require.Equal(t, c.state, p.State, "%d -> %d: %s", p.From, p.To, p.Verdict)
				require.Equal(t, c.headline, p.Headline, "%d -> %d: %s", p.From, p.To, p.Verdict)
				require.Equal(t, c.patch, p.Patch, "%d -> %d: %s", p.From, p.To, p.PatchWhy)
				require.Equal(t, c.headline, p.Findings[0].Cause)
				require.False(t, p.Verified)
			}
		})
	}
}

// What the public reports ask for beyond the headline.
func TestReportedCasesInDetail(t *testing.T) {
	judge := func(name string) (*Facts, *Report, string) {
		f := load(t, name)
		r := Diagnose(f, nil)
		var b bytes.Buffer
		require.NoError(t, r.WriteText(&b))
		return f, r, b.String()
	}

	_, r, text := judge("01-iommu-translating")
	require.True(t, r.Pairs[0].Has(P2POn))
	require.NotContains(t, text, "GPU1  on", "not plainly on")
	require.Contains(t, text, "granted, not verified: the IOMMU translates")
	require.Contains(t, text, "iommu=pt")

	_, r, _ = judge("04-different-chips")
	require.Nil(t, r.Branch, "no pair has a use for the patch")

	f, r, text := judge("06-order-differs")
	for i := range f.Devices {
		small := has(r.Devices[i].Findings, BAR1Small)
		require.Equal(t, f.Devices[i].CUDA.Index == 1, small)
	}
	require.Contains(t, text, "GPU0: BAR1 256 MiB")
	require.NotContains(t, text, "GPU1: BAR1 256 MiB")

	_, r, text = judge("11-4090-of-48-gb")
	require.False(t, r.Pairs[0].Has(BAR1Small))
	require.Contains(t, text, "the largest BAR1 that it offers is 32768 MiB")
	require.NotContains(t, text, "do:   first the firmware")

	_, r, text = judge("13-small-bar-without-nvml")
	require.Contains(t, text, "Resizable BAR")
	require.Contains(t, text, "/sys/bus/pci/devices/BUS/resource)")
	require.Contains(t, r.Pairs[0].Unknown, "NVML's status of read")

	_, r, text = judge("16-version-mismatch")
	require.Contains(t, text, "kernel module 570.124.06")
	require.Contains(t, text, "user space 570.124.04")
	require.Len(t, r.Devices, 2, "/proc and sysfs are reported all the same")
	require.Equal(t, "AD102", r.Devices[0].Chip)

	_, r, text = judge("17-nvml-unknown-error")
	require.True(t, has(r.Machine, NVMLUnusable))
	require.False(t, r.Pairs[0].Has(DriverRefusal), "NVML's reason is not known")
	require.Contains(t, r.Pairs[0].Unknown, "IOMMU group type")
	require.Contains(t, text, "nvmlInit answers 999")

	_, _, text = judge("18-lxc-placeholder-file")
	require.Contains(t, text, "/dev/nvidia-uvm: is not a character device but a file of mode ----------")
	require.Contains(t, text, "c 509:* rwm")
	_, _, text = judge("18-lxc-wrong-major")
	require.Contains(t, text, "/dev/nvidia-uvm: has major 507, and /proc/devices gives 509")
	require.Contains(t, text, "c 509:* rwm")
	require.NotContains(t, text, "c 507")

	_, r, text = judge("20-wsl2")
	require.False(t, r.Pairs[0].Has(VMGuest), "WSL2 says it all")
	require.Equal(t, "?", r.Topology[0][1], "no topology claims")
	require.NotContains(t, text, "proprietary-module")

	_, _, text = judge("25-no-nvlink-yet-p2p")
	require.Contains(t, text, "on (PCIe), not yet verified")

	_, _, text = judge("32-gpu-lost")
	require.Contains(t, text, "NVML answers 15")
	require.Contains(t, text, "GPU0 <-> GPU2   off: the driver refuses")

	_, _, text = judge("35-mps")
	require.Contains(t, text, "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps")

	_, r, text = judge("blog-8x4090-before")
	require.Equal(t, 28, strings.Count(text, "off: BAR1 smaller than the memory [bar1-small]; the patch: likely helps after other cures"))
	require.Contains(t, text, "open kernel module (assumed)")
	require.Contains(t, text, "it offers BAR1 up to 32768 MiB")
	require.Contains(t, text, "the patched driver resizes it by itself")
	require.True(t, r.Branch.Exact)
	require.Equal(t, "550.90.07-p2p", r.Branch.Nearest.Name)
	require.Equal(t, [][]string{{"X", "SYS"}, {"SYS", "X"}}, [][]string{r.Topology[0][:2], r.Topology[1][:2]})
	require.InDelta(t, 31.5e9, r.Devices[0].Link.BytesPerSecond, 0.05e9)

	_, r, text = judge("blog-8x4090-after")
	require.Equal(t, 28, strings.Count(text, "on (PCIe), not yet verified"))
	require.Nil(t, r.Branch)
}

// Rows and orderings of the table that no public report above covers.
func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		name     string
		facts    func() *Facts
		state    State
		headline CauseID
		also     []CauseID
		never    []CauseID
		patch    Patch
	}{
		{"stock driver", func() *Facts { return machineOf(rtx4090, rtx4090) }, StateOff, DriverRefusal, nil, []CauseID{BAR1Tight}, PatchLikely},
		{"stock driver, GNS", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			everyPair(f, func(p *Pair) { setStatus(p, P2PGPU) })
			return f
		}, StateOff, DriverRefusal, nil, nil, PatchLikely},
		{"a BAR1 as large as the chips", func() *Facts { return machineOf(rtx5060Ti, rtx5060Ti) }, StateOff, DriverRefusal, []CauseID{BAR1Tight}, nil, PatchLikely},
		{"no GeForce", func() *Facts { return machineOf(rtx6000Ada, rtx6000Ada) }, StateOff, DriverRefusal, nil, nil, PatchMaybe},
		{"Turing", func() *Facts { return machineOf(rtx2080Ti, rtx2080Ti) }, StateOff, DriverRefusal, nil, nil, PatchNo},
		{"Pascal", func() *Facts { return machineOf(gtx1080Ti, gtx1080Ti) }, StateOff, NoOpenModule, []CauseID{BAR1Firmware}, nil, PatchNever},
		{"a chip of the future", func() *Facts { return machineOf(unlistedCard, unlistedCard) }, StateOff, DriverRefusal, nil, nil, PatchLikely},
		{"proprietary and all else", func() *Facts {
			f := machineOf(rtx4090.with(256, 0xffc0), rtx4090)
			module(f, Proprietary, "590.48.01")
			translating(f, "DMA")
			return f
		}, StateOff, ProprietaryModule, []CauseID{BAR1Small, IOMMUTranslating}, []CauseID{DriverRefusal}, PatchAfter},
		{"pass-through IOMMU", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			translating(f, "identity")
			return f
		}, StateOff, DriverRefusal, nil, []CauseID{IOMMUTranslating}, PatchLikely},
		{"IOMMU alone", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			translating(f, "DMA-FQ")
			return f
		}, StateOff, IOMMUTranslating, nil, []CauseID{DriverRefusal}, PatchAfter},
		{"one BAR1 at its limit, one to resize", func() *Facts { return machineOf(rtx4090of48, rtx4090.with(256, 0xffc0)) },
			StateOff, BAR1Small, []CauseID{BAR1Card}, nil, PatchNo},
		{"resize mask unread", func() *Facts {
			f := machineOf(rtx4090.with(256, 0), rtx4090.with(256, 0))
			everyDevice(f, func(i int, d *Device) { d.ResizeMask = Unknown[Hex]("resource1_resize", "permission denied") })
			return f
		}, StateOff, BAR1Small, nil, []CauseID{BAR1Firmware}, PatchAfter},
		{"a kernel that does not tell the sizes", func() *Facts {
			f := machineOf(rtx4090.with(256, 0), rtx4090.with(256, 0))
			f.Machine.Kernel = Known("Linux version 5.15.0-124-generic", "/proc/version")
			return f
		}, StateOff, BAR1Small, nil, []CauseID{BAR1Firmware}, PatchAfter},
		{"a kernel that tells them", func() *Facts {
			f := machineOf(rtx4090.with(256, 0), rtx4090.with(256, 0))
			f.Machine.Kernel = Known("Linux version 6.1.0-18-amd64", "/proc/version")
			return f
		}, StateOff, BAR1Firmware, nil, []CauseID{BAR1Small}, PatchAfter},
		{"guest", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			f.Environment.VM = Known("kvm", "/proc/cpuinfo")
			return f
		}, StateOff, VMGuest, nil, []CauseID{DriverRefusal}, PatchNo},
		{"guest by NVML alone", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			everyDevice(f, func(i int, d *Device) {
				d.Virtualization = Known("passthrough", "nvmlDeviceGetVirtualizationMode")
			})
			return f
		}, StateOff, VMGuest, nil, nil, PatchNo},
		{"a guest with a clique has P2P", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			f.Environment.VM = Known("kvm", "/proc/cpuinfo")
			grant(f)
			return f
		}, StateOn, P2POn, []CauseID{GuestGrant}, []CauseID{VMGuest}, PatchNotNeeded},
		{"WDDM", func() *Facts { return windows("wddm", false) }, StateOff, WDDM, nil, []CauseID{ProprietaryModule, DriverRefusal}, PatchNever},
		{"TCC has P2P", func() *Facts { return windows("tcc", true) }, StateOn, P2POn, nil, []CauseID{WDDM}, PatchNotNeeded},
		{"P2P under WDDM would be on", func() *Facts { return windows("wddm", true) }, StateOn, P2POn, nil, []CauseID{WDDM}, PatchNotNeeded},
		{"MIG", func() *Facts {
			f := machineOf(rtxA6000, rtxA6000)
			f.Devices[1].MIG = Known(true, "nvmlDeviceGetMigMode")
			everyPair(f, func(p *Pair) { setStatus(p, P2PNotSupported) })
			return f
		}, StateOff, MIG, nil, []CauseID{DriverRefusal}, PatchNo},
		{"NVLink", func() *Facts { return withNVLink(true) }, StateOn, NVLinkOn, nil, []CauseID{P2POn}, PatchNotNeeded},
		{"NVLink crosses no IOMMU", func() *Facts {
			f := withNVLink(true)
			translating(f, "DMA-FQ")
			return f
		}, StateOn, NVLinkOn, nil, []CauseID{IOMMUTranslating}, PatchNotNeeded},
		{"NVLink down", func() *Facts { return withNVLink(false) }, StateOn, P2POn, nil, []CauseID{NVLinkOn}, PatchNotNeeded},
		{"hubs", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			everyPair(f, func(p *Pair) { setStatus(p, P2PTopology) })
			return f
		}, StateOff, IOHTopology, nil, []CauseID{DriverRefusal}, PatchNo},
		{"hubs for reading alone", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			everyPair(f, func(p *Pair) { setStatus(p, P2POK); p.Read = Known(P2PTopology, "nvmlDeviceGetP2PStatus") })
			return f
		}, StateOff, IOHTopology, nil, []CauseID{LibcudaRefusal}, PatchNo},
		{"key by NVML", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			everyPair(f, func(p *Pair) { setStatus(p, P2PDisabledByRegistry) })
			return f
		}, StateOff, RegistryKey, nil, []CauseID{DriverRefusal}, PatchAfter},
		{"key by the parameters", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			f.Driver.Params = Known(map[string]string{"RegistryDwords": "ForceP2P=0x1;Other=2"}, "/proc/driver/nvidia/params")
			return f
		}, StateOff, RegistryKey, nil, nil, PatchAfter},
		{"a key that enables", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			f.Driver.Params = Known(map[string]string{"RegistryDwords": "ForceP2P=17"}, "/proc/driver/nvidia/params")
			return f
		}, StateOff, DriverRefusal, nil, []CauseID{RegistryKey}, PatchLikely},
		{"libcuda alone refuses", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			everyPair(f, func(p *Pair) { setStatus(p, P2POK) })
			return f
		}, StateOff, LibcudaRefusal, nil, []CauseID{DifferentChips, DriverRefusal}, PatchNo},
		{"different chips, NS", func() *Facts {
			f := machineOf(rtx4090, rtx3090)
			everyPair(f, func(p *Pair) { setStatus(p, P2PNotSupported) })
			return f
		}, StateOff, DifferentChips, nil, []CauseID{DriverRefusal}, PatchNo},
		{"two products of one chip", func() *Facts {
			return machineOf(rtx3090, card{"NVIDIA GeForce RTX 3080", 0x2206, "8.6", 10240, 16384, 0x7fc0})
		},
			StateOff, DriverRefusal, []CauseID{SameDie}, []CauseID{DifferentChips}, PatchMaybe},
		{"NVML says nothing", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			everyPair(f, func(p *Pair) {
				p.Read, p.Write = Failed[P2PStatus]("nvmlDeviceGetP2PStatus", "function not found", 13), Value[P2PStatus]{}
			})
			return f
		}, StateOff, UnknownWhy, nil, []CauseID{DriverRefusal}, PatchMaybe},
		{"flavour unknown", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			f.Driver.Flavour = Unknown[Flavour]("/proc/driver/nvidia/version", "no such file")
			return f
		}, StateOff, UnknownWhy, nil, []CauseID{DriverRefusal, ProprietaryModule}, PatchMaybe},
		{"NVML refuses what CUDA grants", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			grant(f)
			everyPair(f, func(p *Pair) { p.Read = Known(P2PChipset, "nvmlDeviceGetP2PStatus") })
			return f
		}, StateRisk, NVMLDisagree, []CauseID{P2POn}, []CauseID{DriverRefusal}, PatchNotNeeded},
		{"wrong data", func() *Facts { return transferred("mismatch") }, StateBad, BadData, []CauseID{P2POn}, nil, PatchNo},
		{"hang", func() *Facts { return transferred("hang") }, StateBad, Hangs, nil, nil, PatchNo},
		{"killed", func() *Facts { return transferred("killed") }, StateBad, Hangs, nil, nil, PatchNo},
		{"refused when enabled", func() *Facts { return transferred("refused") }, StateBad, EnableFails, nil, nil, PatchNo},
		{"proven", func() *Facts { return transferred("proven") }, StateOn, P2POn, nil, nil, PatchNotNeeded},
		{"one GPU under two names", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			f.Devices[1].UUID = f.Devices[0].UUID
			return f
		}, StateSame, SameDevice, nil, nil, PatchNA},
		{"two Tegra GPUs at one address", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			f.Devices[1].BusID = f.Devices[0].BusID
			return f
		}, StateOff, DriverRefusal, nil, []CauseID{SameDevice}, PatchLikely},
		{"no libcuda", func() *Facts {
			f := machineOf(rtx4090.with(256, 0xffc0), rtx4090)
			withoutCUDA(f, "", 0, "not found")
			return f
		}, StateUnknown, DriverMissing, []CauseID{BAR1Small}, []CauseID{DriverRefusal}, PatchNo},
		{"stub", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			withoutCUDA(f, "/usr/local/cuda/lib64/stubs/libcuda.so", 34, "stub library")
			return f
		}, StateUnknown, StubLibrary, nil, nil, PatchNo},
		{"cuInit fails for no reason", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			withoutCUDA(f, "libcuda.so.1", 999, "unknown error")
			return f
		}, StateUnknown, CUDAUnusable, nil, nil, PatchNo},
		{"hidden", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			f.Environment.Variables = map[string]string{"CUDA_VISIBLE_DEVICES": "0"}
			f.Devices[1].CUDA = Handle{}
			everyPair(f, func(p *Pair) {
				p.CanAccess = Unknown[bool]("cuDeviceCanAccessPeer", "CUDA does not list the GPU")
			})
			return f
		}, StateUnknown, HiddenFromCUDA, nil, []CauseID{DriverRefusal}, PatchMaybe},
		{"a GPU of a guest", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			f.Devices[1].BoundDriver = Known("vfio-pci", "driver")
			f.Devices[1].CUDA, f.Devices[1].NVML = Handle{}, Handle{}
			everyPair(f, func(p *Pair) { *p = Pair{From: p.From, To: p.To} })
			return f
		}, StateUnknown, ForeignDriver, nil, []CauseID{HiddenFromCUDA}, PatchNo},
		{"lost by CUDA", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			f.Devices[0].CUDA.Code = 719
			return f
		}, StateUnknown, DeviceLost, nil, nil, PatchNo},
		{"ACS, display and a narrow slot", func() *Facts {
			f := machineOf(rtx4090, rtx4090)
			f.Devices[0].Path = Known([]Bridge{{BusID: "0000:00:01.1", Kind: "root-port", Link: Link{GenMax: Known(4, "s"), WidthMax: Known(4, "s")},
				ACS: Known(ACS{Present: true, Control: 0x1d}, "config")}}, "sysfs")
			f.Devices[1].Display = Known(true, "nvmlDeviceGetDisplayActive")
			return f
		}, StateOff, DriverRefusal, []CauseID{ACSRedirect, Display, NarrowLink}, nil, PatchLikely},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := c.facts()
			before := mustJSON(t, f)
			r := Diagnose(f, nil)
			require.Equal(t, before, mustJSON(t, f), "Diagnose changed the facts")
			for i := range r.Pairs {
				p := &r.Pairs[i]
				require.Equal(t, c.state, p.State, p.Verdict)
				require.Equal(t, c.headline, p.Headline, p.Verdict)
				require.Equal(t, c.patch, p.Patch, p.PatchWhy)
				for _, id := range c.also {
					require.True(t, p.Has(id), "%s is missing: %+v", id, p.Findings)
				}
				for _, id := range c.never {
					require.False(t, p.Has(id), "%s", id)
				}
				require.Equal(t, c.name == "proven", p.Verified)
			}
			// A file says the same.
			back, err := Parse([]byte(before))
			require.NoError(t, err)
			require.Equal(t, r, Diagnose(back, nil))
			requireCoherent(t, r)
		})
	}
}

func mustJSON(t testing.TB, f *Facts) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, Save(&b, f))
	return b.String()
}

func windows(model string, can bool) *Facts {
	f := machineOf(rtx4090, rtx4090)
	f.Machine = Machine{OS: "windows", Arch: "amd64"}
	f.Driver = Driver{UserVersion: Known("566.36", "nvmlSystemGetDriverVersion")}
	f.Environment = Environment{}
	everyDevice(f, func(i int, d *Device) {
		d.DriverModel = Known(model, "nvmlDeviceGetDriverModel_v2")
		d.ResizeMask, d.IOMMUType, d.BoundDriver = Value[Hex]{}, Value[string]{}, Value[string]{}
	})
	if can {
		grant(f)
	}
	return f
}

func withNVLink(active bool) *Facts {
	f := machineOf(rtx3090, rtx3090)
	grant(f)
	everyDevice(f, func(i int, d *Device) {
		other := f.Devices[1-i].BusID
		d.NVLinks = Known([]NVLink{{0, active, other}, {1, active, other}, {2, active, other}, {3, active, other}}, "nvmlDeviceGetNvLinkState")
	})
	everyPair(f, func(p *Pair) { p.NVLink = Known(P2POK, "nvmlDeviceGetP2PStatus") })
	return f
}

func transferred(outcome string) *Facts {
	f := machineOf(rtx4090, rtx4090)
	grant(f)
	everyPair(f, func(p *Pair) {
		p.Transfer = Known(Transfer{Outcome: outcome, Detail: "as it was"}, "a checked transfer")
	})
	return f
}

// requireCoherent holds what must be so of any report.
func requireCoherent(t testing.TB, r *Report) {
	t.Helper()
	require.Contains(t, []Status{StatusJudged, StatusLost, StatusUnusable}, r.Status)
	n := len(r.Devices)
	require.Len(t, r.Pairs, n*(n-1))
	known := map[CauseID]bool{}
	for _, c := range r.Causes {
		known[c.ID] = true
	}
	for i := range r.Pairs {
		p := &r.Pairs[i]
		require.Same(t, p, r.Pair(p.From, p.To))
		require.NotEmpty(t, p.Verdict)
		require.NotEmpty(t, p.Patch)
		require.NotEmpty(t, p.Findings)
		require.Equal(t, p.Headline, p.Findings[0].Cause)
		for _, f := range p.Findings {
			require.True(t, known[f.Cause], f.Cause)
		}
		refusal := p.Has(DriverRefusal) || p.Has(LibcudaRefusal) || p.Has(DifferentChips) || p.Has(IOHTopology) || p.Has(RegistryKey)
		if p.State != StateOff {
			require.False(t, refusal, "a refusal where CUDA did not refuse: %+v", p)
		}
		if p.Patch == PatchLikely {
			require.Equal(t, DriverRefusal, p.Headline)
		}
	}
	require.NoError(t, r.WriteText(new(bytes.Buffer)))
	require.NoError(t, r.WriteJSON(new(bytes.Buffer)))
}

func TestDirectionsAreJudgedEachOnItsOwn(t *testing.T) {
	f := machineOf(rtx4090, rtx4090)
	grant(f)
	for i := range f.Pairs {
		if f.Pairs[i].From == 1 {
			f.Pairs[i].CanAccess = Known(false, "cuDeviceCanAccessPeer")
			setStatus(&f.Pairs[i], P2PChipset)
		}
	}
	r := Diagnose(f, nil)
	there, back := r.Pair(0, 1), r.Pair(1, 0)
	require.Equal(t, StateOn, there.State)
	require.Equal(t, StateOff, back.State)
	require.Equal(t, DriverRefusal, back.Headline)
	require.True(t, there.Has(OneWay))
	require.True(t, back.Has(OneWay))
	require.False(t, there.Has(DriverRefusal))
	var b bytes.Buffer
	require.NoError(t, r.WriteText(&b))
	require.Contains(t, b.String(), "GPU0  -> GPU1   on (PCIe)")
	require.Contains(t, b.String(), "GPU1  -> GPU0   off")

	// The grant is the same both ways and the transfers are not.
	f = machineOf(rtx4090, rtx4090)
	grant(f)
	f.Pairs[0].Transfer = Known(Transfer{Outcome: "proven", BytesPerSecond: 25e9}, "check")
	f.Pairs[1].Transfer = Known(Transfer{Outcome: "mismatch", Detail: "zeros"}, "check")
	r = Diagnose(f, nil)
	require.True(t, r.Pairs[0].Verified)
	require.Equal(t, StateBad, r.Pairs[1].State)
	require.True(t, r.Pairs[0].Has(OneWay))
}

func TestRegistryKeyOfAnotherSeries(t *testing.T) {
	for version, meaning := range map[string]string{"570.86.16": "means BAR1", "575.64.05": "means NVLink", "610.43.02": "means NVLink"} {
		f := machineOf(rtx4090, rtx4090)
		module(f, Open, version)
		f.Driver.Params = Known(map[string]string{"RegistryDwords": "ForceP2P=17;RMForceP2PType=2"}, "/proc/driver/nvidia/params")
		r := Diagnose(f, nil)
		require.True(t, has(r.Machine, RegistrySeries))
		require.Contains(t, r.Machine[0].Evidence[0].Text, meaning)
	}
}

func TestNoGPUAndNoDriver(t *testing.T) {
	r := Diagnose(&Facts{Schema: Schema, Machine: Machine{OS: "linux"}, CUDA: Library{Error: "not found", Tried: []string{"libcuda.so.1"}}}, nil)
	require.Equal(t, StatusUnusable, r.Status)
	require.True(t, has(r.Machine, DriverMissing))
	r = Diagnose(&Facts{Schema: Schema, CUDA: Library{Path: "libcuda.so.1", Code: 100, Error: "no device"}}, nil)
	require.True(t, has(r.Machine, NoGPU))
	requireCoherent(t, r)
	// Nothing at all is legal too.
	requireCoherent(t, Diagnose(new(Facts), nil))
}

// Each cause says what it is, and whoever can act is told what to do.
func TestCauses(t *testing.T) {
	seen := map[CauseID]bool{}
	for _, c := range Causes() {
		require.False(t, seen[c.ID], c.ID)
		seen[c.ID] = true
		require.NotEmpty(t, c.Sentence, c.ID)
		require.NotEmpty(t, c.Short, c.ID)
		require.NotEmpty(t, c.Patch, c.ID)
		if c.Kind == KindBlock || c.Kind == KindRisk {
			require.NotEmpty(t, c.Do, c.ID)
		}
		require.False(t, strings.HasPrefix(c.DoNot, "do not"), c.ID)
	}
	list := Causes()
	list[0].Sentence = "changed"
	require.NotEqual(t, "changed", Causes()[0].Sentence)
	require.Equal(t, reflect.TypeFor[CauseID](), reflect.TypeOf(list[0].ID))
}

func TestEightGPUsWithinTime(t *testing.T) {
	testenv.SkipUnlessOptimized(t)
	b, err := os.ReadFile(factsPath("blog-8x4090-before.json"))
	require.NoError(t, err)
	best := time.Hour
	for range 5 {
		began := time.Now()
		f, err := Parse(b)
		require.NoError(t, err)
		require.NoError(t, Diagnose(f, nil).WriteText(new(bytes.Buffer)))
		best = min(best, time.Since(began))
	}
	require.Less(t, best, 50*time.Millisecond)
}

func BenchmarkDiagnoseEightGPUs(b *testing.B) {
	text, err := os.ReadFile(factsPath("blog-8x4090-before.json"))
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		f, err := Parse(text)
		if err != nil {
			b.Fatal(err)
		}
		Diagnose(f, nil)
	}
}

// TestUnreadIOMMU: a refusal whose IOMMU nobody could look at does not say that
// the machine is as the patch needs it.
func TestUnreadIOMMU(t *testing.T) {
	f := machineOf(rtx3090, rtx3090)
	refusedPairs(f, P2PGPU)
	r := Diagnose(f, nil)
	require.True(t, r.Pairs[0].Has(DriverRefusal))
	require.False(t, r.Pairs[0].Has(IOMMUUnread))
	require.Equal(t, PatchLikely, r.Pairs[0].Patch)
	everyDevice(f, func(_ int, d *Device) { d.IOMMUType = Unknown[string]("/sys/kernel/iommu_groups", "permission denied") })
	f.Machine.IOMMUs = Unknown[int]("/sys/class/iommu", "permission denied")
	r = Diagnose(f, nil)
	require.True(t, r.Pairs[0].Has(DriverRefusal))
	require.True(t, r.Pairs[0].Has(IOMMUUnread))
	require.Equal(t, PatchAfter, r.Pairs[0].Patch)
}

// TestUnknownStatusIsNoRefusal: neither "unknown" nor "not supported" of NVML's
// says that the driver refuses.
func TestUnknownStatusIsNoRefusal(t *testing.T) {
	for status, want := range map[P2PStatus]bool{P2PChipset: true, P2PGPU: true, P2PUnknownStatus: false, P2PNotSupported: false} {
		f := machineOf(rtx3090, rtx3090)
		refusedPairs(f, status)
		require.Equal(t, want, Diagnose(f, nil).Pairs[0].Has(DriverRefusal), status)
	}
}

func refusedPairs(f *Facts, s P2PStatus) {
	for i := range f.Pairs {
		p := &f.Pairs[i]
		p.CanAccess = Known(false, "cuDeviceCanAccessPeer")
		p.Read, p.Write = Known(s, "nvmlDeviceGetP2PStatus"), Known(s, "nvmlDeviceGetP2PStatus")
	}
}
