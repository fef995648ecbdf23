// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// collectorOf reads a tree and nothing else.
func collectorOf(tree_ map[string]string, env map[string]string) *collector {
	tree := fstest.MapFS{}
	put(tree, tree_)
	return &collector{files: files{tree}, o: Options{LookupEnv: func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}}}
}

func TestContainer(t *testing.T) {
	type m = map[string]string
	for name, c := range map[string]struct {
		files, env m
		want       string
	}{
		"none":                  {files: m{"proc/self/cgroup": "0::/user.slice/user-1000.slice\n", "proc/1/environ": "HOME=/\x00TERM=linux\x00"}},
		"docker":                {files: m{".dockerenv": "", "proc/self/cgroup": "0::/\n"}, want: "docker"},
		"docker, cgroup 1":      {files: m{"proc/self/cgroup": "4:memory:/docker/0123\n"}, want: "docker"},
		"docker, systemd":       {files: m{"proc/self/cgroup": "0::/system.slice/docker-0123.scope\n"}, want: "docker"},
		"the docker daemon":     {files: m{"proc/self/cgroup": "0::/system.slice/docker.service\n"}},
		"podman":                {files: m{"run/.containerenv": "", "proc/self/cgroup": "0::/\n"}, want: "podman"},
		"podman by its group":   {files: m{"proc/self/cgroup": "0::/machine.slice/libpod-0123.scope\n"}, want: "podman"},
		"podman says docker":    {files: m{"run/.containerenv": "", ".dockerenv": "", "proc/self/cgroup": "0::/\n"}, want: "podman"},
		"kubernetes":            {files: m{".dockerenv": ""}, env: m{"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, want: "kubernetes"},
		"kubernetes, its group": {files: m{"proc/self/cgroup": "0::/kubepods.slice/kubepods-pod1\n"}, want: "kubernetes"},
		"lxc":                   {files: m{"run/systemd/container": "lxc\n", "proc/self/cgroup": "0::/init.scope\n"}, want: "lxc"},
		"lxc, first process":    {files: m{"proc/1/environ": "TERM=linux\x00container=lxc\x00", "proc/self/cgroup": "0::/\n"}, want: "lxc"},
		"lxc, by lxcfs":         {files: m{"proc/self/mounts": "lxcfs /proc/cpuinfo fuse.lxcfs rw 0 0\n", "proc/self/cgroup": "0::/\n"}, want: "lxc"},
		"lxc, by a device":      {files: m{"dev/.lxc-boot-id": "", "proc/self/cgroup": "0::/\n"}, want: "lxc"},
		"lxc, by the variable":  {env: m{"container": "lxc-libvirt"}, want: "lxc"},
		"lxc, by its group":     {files: m{"proc/self/cgroup": "0::/lxc.payload.100\n"}, want: "lxc"},
		"nspawn":                {files: m{"run/systemd/container": "systemd-nspawn\n"}, want: "other"},
		"nspawn by its group":   {files: m{"proc/self/cgroup": "0::/machine.slice/machine-x.scope/payload\n"}, want: "other"},
		"podman told systemd":   {files: m{"run/systemd/container": "podman"}, want: "podman"},
		"WSL is not one":        {files: m{"run/systemd/container": "wsl\n", "proc/self/cgroup": "0::/\n"}},
	} {
		got, ok := collectorOf(c.files, c.env).container().Get()
		require.True(t, ok, name)
		require.Equal(t, c.want, got, name)
	}
	require.False(t, collectorOf(nil, nil).container().IsKnown())
}

func TestVM(t *testing.T) {
	const guest, bare = "flags\t: fpu hypervisor\n", "flags\t: fpu\n"
	for name, c := range map[string]struct{ vendor, product, cpu, want string }{
		"bare":                   {"ASUS", "Pro WS", bare, ""},
		"QEMU":                   {"QEMU", "Standard PC (Q35 + ICH9, 2009)", guest, "qemu"},
		"QEMU that hides":        {"QEMU", "Standard PC (Q35 + ICH9, 2009)", bare, "qemu"},
		"VMware":                 {"VMware, Inc.", "VMware7,1", guest, "vmware"},
		"Hyper-V":                {"Microsoft Corporation", "Virtual Machine", guest, "hyper-v"},
		"a Surface":              {"Microsoft Corporation", "Surface Studio", bare, ""},
		"Amazon":                 {"Amazon EC2", "g5.xlarge", guest, "amazon"},
		"Amazon's bare machine":  {"Amazon EC2", "g5g.metal", bare, ""},
		"Google":                 {"Google", "Google Compute Engine", guest, "google"},
		"somebody":               {"ACME", "Cloud", guest, "other"},
		"no firmware names":      {"", "", guest, "other"},
		"bare, no names":         {"", "", bare, ""},
		"ARM, bare":              {"Ampere", "Mt. Jade", "Features\t: fp\n", ""},
		"ARM, guest":             {"QEMU", "KVM Virtual Machine", "Features\t: fp\n", "qemu"},
		"names, but not the CPU": {"QEMU", "Standard PC (Q35 + ICH9, 2009)", "", "qemu"},
	} {
		f := map[string]string{}
		if c.vendor != "" {
			f[dmi+"sys_vendor"], f[dmi+"product_name"] = c.vendor+"\n", c.product+"\n"
		}
		if c.cpu != "" {
			f["proc/cpuinfo"] = c.cpu
		}
		col := collectorOf(f, nil)
		col.facts.Machine.Board = col.board()
		got, ok := col.vm().Get()
		require.True(t, ok, name)
		require.Equal(t, c.want, got, name)
	}
	for name, f := range map[string]map[string]string{
		"nothing":         {},
		"ARM, no names":   {"proc/cpuinfo": "Features\t: fp\n"},
		"names, no /proc": {dmi + "sys_vendor": "ASUS\n"},
	} {
		col := collectorOf(f, nil)
		col.facts.Machine.Board = col.board()
		require.False(t, col.vm().IsKnown(), name)
	}
}

func TestWSL2(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  bool
	}{
		"its device":   {map[string]string{"dev/dxg": "", "proc/version": "Linux version 6.8\n"}, true},
		"its kernel":   {map[string]string{"proc/version": "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@x)\n"}, true},
		"Linux":        {map[string]string{"proc/version": "Linux version 6.8.0-60-generic\n"}, false},
		"WSL1":         {map[string]string{"proc/version": "Linux version 4.4.0-19041-Microsoft\n"}, false},
		"no /proc":     {nil, false},
		"Azure kernel": {map[string]string{"proc/version": "Linux version 6.8.0-1020-azure\n"}, false},
	} {
		col := collectorOf(c.files, nil)
		col.facts.Machine.Kernel = col.files.textValue("proc/version", maxText)
		got, ok := col.wsl2().Get()
		require.True(t, ok, name)
		require.Equal(t, c.want, got, name)
	}

	// There, nothing is said of device nodes.
	tree := fstest.MapFS{}
	put(tree, map[string]string{"dev/dxg": ""})
	f := collect(t, filesOnly(tree))
	require.True(t, known(t, f.Environment.WSL2))
	require.Nil(t, f.Nodes)
}

func TestMPS(t *testing.T) {
	require.Equal(t, "/run/mps", known(t, collectorOf(nil, map[string]string{"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}).mps()))
	require.Equal(t, "/tmp/nvidia-mps", known(t, collectorOf(map[string]string{"tmp/nvidia-mps/control": ""}, nil).mps()))
	require.Equal(t, "", known(t, collectorOf(map[string]string{"tmp/nvidia-mps/log": ""}, nil).mps()))
}

func TestMemoryMax(t *testing.T) {
	type m = map[string]string
	const none = uint64(unlimited)
	for name, c := range map[string]struct {
		files  m
		want   uint64
		source string
	}{
		"a container's own": {m{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "67108864\n"}, 64 << 20, "/sys/fs/cgroup/memory.max"},
		"the lowest of the way": {m{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n",
			"sys/fs/cgroup/a/memory.max": "4096\n"}, 4096, "/sys/fs/cgroup/a/memory.max"},
		"a path of the host's": {m{"proc/self/cgroup": "0::/system.slice/x\n", "sys/fs/cgroup/memory.max": "8192\n"}, 8192, "/sys/fs/cgroup/memory.max"},
		"no limit":             {m{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, none, "/sys/fs/cgroup/a/memory.max"},
		"the root group":       {m{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cgroup.controllers": "memory\n"}, none, "/sys/fs/cgroup"},
		"version 1": {m{"proc/self/cgroup": "5:cpu,memory:/docker/x\n0::/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "1048576\n"},
			1 << 20, "/sys/fs/cgroup/memory/memory.limit_in_bytes"},
		"version 1, no limit": {m{"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"},
			none, "/sys/fs/cgroup/memory/memory.limit_in_bytes"},
		"a way out": {m{"proc/self/cgroup": "0::/../../etc\n", "sys/fs/cgroup/etc/memory.max": "5\n"}, 5, "/sys/fs/cgroup/etc/memory.max"},
	} {
		v := collectorOf(c.files, nil).memoryMax()
		require.Equal(t, c.want, known(t, v), name)
		require.Equal(t, c.source, v.Source, name)
	}
	for name, f := range map[string]m{
		"nothing":        nil,
		"no such group":  {"proc/self/cgroup": "0::/a\n"},
		"junk":           {"proc/self/cgroup": "junk\n0::/a\n", "sys/fs/cgroup/a/memory.max": "lots\n"},
		"very deep":      {"proc/self/cgroup": "0::" + strings.Repeat("/a", 1000) + "\n", "sys/fs/cgroup/x/memory.max": "5\n"},
		"very long":      {"proc/self/cgroup": "0::/" + strings.Repeat("a", 5000) + "\n"},
		"negative limit": {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "-1\n"},
	} {
		require.False(t, collectorOf(f, nil).memoryMax().IsKnown(), name)
	}
}

func TestVariables(t *testing.T) {
	col := collectorOf(nil, map[string]string{"CUDA_VISIBLE_DEVICES": "", "NCCL_P2P_LEVEL": strings.Repeat("x", 1<<20), "HOME": "/root"})
	vars := col.variables()
	require.Len(t, vars, 2)
	v, set := vars["CUDA_VISIBLE_DEVICES"]
	require.True(t, set && v == "", "an empty one hides every GPU")
	require.Less(t, len(vars["NCCL_P2P_LEVEL"]), 5000)
	require.Nil(t, collectorOf(nil, nil).variables())
}

func TestIOMMUs(t *testing.T) {
	require.Equal(t, 2, known(t, collectorOf(map[string]string{"sys/class/iommu/dmar0/x": "", "sys/class/iommu/dmar1/x": ""}, nil).iommus()))
	off := fstest.MapFS{"sys/class/iommu": {Mode: 0o755 | 1<<31}}
	require.Equal(t, 0, known(t, (&collector{files: files{off}}).iommus()))
	require.Equal(t, 0, known(t, collectorOf(map[string]string{"sys/class/net/lo/x": ""}, nil).iommus()), "a kernel without")
	require.False(t, collectorOf(nil, nil).iommus().IsKnown())
}

// A device without a group has no IOMMU only where something tells that there is
// none.
func TestIOMMUTypeOff(t *testing.T) {
	tree := twoCards()
	delete(tree, "sys/class/iommu/ivhd0/devices")
	tree["sys/class/iommu"] = &fstest.MapFile{Mode: 0o755 | 1<<31}
	for name := range tree {
		if strings.HasSuffix(name, "/iommu_group") {
			delete(tree, name)
		}
	}
	f := collect(t, filesOnly(tree))
	require.Equal(t, 0, known(t, f.Machine.IOMMUs))
	require.Equal(t, "", known(t, f.Devices[0].IOMMUType))
	require.False(t, f.Devices[0].IOMMUGroup.Asked())
}

// The module's own directory tells version and flavour where /proc/driver is
// missing, as in some containers.
func TestModuleWithoutProc(t *testing.T) {
	for taint, want := range map[string]Flavour{"POE\n": Proprietary, "OE\n": Open, "\n": Open} {
		tree := fstest.MapFS{}
		put(tree, map[string]string{"sys/module/nvidia/version": "570.169\n", "sys/module/nvidia/taint": taint, "sys/module/nvidia_uvm/refcnt": "0\n"})
		f := collect(t, filesOnly(tree))
		require.Equal(t, "570.169", known(t, f.Driver.Version))
		require.Equal(t, want, known(t, f.Driver.Flavour), taint)
		require.Equal(t, "/sys/module/nvidia/taint", f.Driver.Flavour.Source)
		require.True(t, known(t, f.Driver.Loaded))
		require.True(t, known(t, f.Driver.UVMLoaded))
	}
	f := collect(t, filesOnly(fstest.MapFS{"proc/modules": {Data: []byte("nvidia_drm 1 0 - Live 0x0\n")}}))
	require.False(t, known(t, f.Driver.Loaded))
	f = collect(t, filesOnly(fstest.MapFS{"sys/module/kvm/version": {}}))
	require.False(t, known(t, f.Driver.Loaded))
	f = collect(t, filesOnly(fstest.MapFS{"proc/devices": {Data: []byte("Character devices:\n510 nvidia-uvm\n")}}))
	require.True(t, known(t, f.Driver.UVMLoaded))
	require.False(t, f.Driver.Loaded.IsKnown())
	// A line that names no flavour.
	f = collect(t, filesOnly(fstest.MapFS{"proc/driver/nvidia/version": {Data: []byte("NVRM version: what\n")}}))
	require.Contains(t, f.Driver.Flavour.Why(), "no flavour")
	require.Contains(t, f.Driver.Version.Why(), "no version")
}

func TestAncestor(t *testing.T) {
	at := func(bus string, bridges ...string) root { return root{bus: bus, bridges: bridges} }
	node := func(n int) Value[int] { return Known(n, "") }
	for name, c := range map[string]struct {
		a, b root
		x, y Value[int]
		want Ancestor
	}{
		"one switch":            {at("p0", "r", "u", "d1"), at("p0", "r", "u", "d2"), node(0), node(0), AncestorSingle},
		"two switches, cascade": {at("p0", "r", "u", "d1", "u2", "d3"), at("p0", "r", "u", "d2"), node(0), node(0), AncestorMultiple},
		"one port, no switch":   {at("p0", "r"), at("p0", "r"), node(0), node(0), AncestorSingle},
		"one host bridge":       {at("p0", "r1"), at("p0", "r2", "u", "d"), node(0), node(1), AncestorHostBridge},
		"on the root bus":       {at("p0"), at("p0"), node(-1), node(-1), AncestorHostBridge},
		"one node":              {at("p0", "r1"), at("p1", "r2"), node(1), node(1), AncestorNode},
		"two nodes":             {at("p0", "r1"), at("p1", "r2"), node(0), node(1), AncestorSystem},
		"nodes not known":       {at("p0"), at("p1"), node(-1), node(1), ""},
		"nodes not read":        {at("p0"), at("p1"), node(1), Value[int]{}, ""},
		"no path":               {root{why: "none"}, at("p1"), node(1), node(1), ""},
		"no path of the other":  {at("p1"), root{why: "none"}, node(1), node(1), ""},
	} {
		for _, v := range []Value[Ancestor]{ancestor(c.a, c.b, c.x, c.y), ancestor(c.b, c.a, c.y, c.x)} {
			got, ok := v.Get()
			require.Equal(t, c.want != "", ok, name)
			require.Equal(t, c.want, got, name)
		}
	}
}
