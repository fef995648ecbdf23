// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// device is a character device in a tree.
func device(major, minor uint64) *fstest.MapFile {
	return &fstest.MapFile{Mode: fs.ModeDevice | fs.ModeCharDevice | 0o666, Sys: stat(major, minor)}
}

// h200Nodes adds the nodes that a listing of the H200 guest's /dev shows.
func h200Nodes(t testing.TB, tree fstest.MapFS) {
	for line := range strings.Lines(fixture(t, "dev-nvidia.txt")) {
		f := strings.Fields(line)
		if len(f) != 10 || !strings.HasPrefix(f[0], "c") || !strings.HasPrefix(f[9], "/dev/") {
			continue
		}
		var major, minor uint64
		_, err := fmt.Sscanf(f[4]+f[5], "%d,%d", &major, &minor)
		require.NoError(t, err, line)
		tree[f[9][1:]] = device(major, minor)
	}
}

func byPath(f *Facts) map[string]DeviceNode {
	m := map[string]DeviceNode{}
	for _, n := range f.Nodes {
		m[n.Path] = n
	}
	return m
}

func TestNodesOfTheH200Guest(t *testing.T) {
	needDeviceNumbers(t)
	tree := h200Guest(t)
	h200Nodes(t, tree)
	put(tree, map[string]string{"proc/devices": "Character devices:\n195 nvidia\n195 nvidiactl\n238 nvidia-uvm\n"})
	o := filesOnly(tree)
	o.OpenNode = func(string) error { return nil }
	f := collect(t, o)
	want := func(path string, major, minor int) DeviceNode {
		return DeviceNode{Path: path, Exists: true, Char: true, Mode: "crw-rw-rw-", Major: major, Minor: minor, WantMajor: Known(major, "/proc/devices")}
	}
	require.Equal(t, []DeviceNode{
		want("/dev/nvidiactl", 195, 255), want("/dev/nvidia-uvm", 238, 0), want("/dev/nvidia-uvm-tools", 238, 1), want("/dev/nvidia0", 195, 0),
	}, f.Nodes)
	require.True(t, known(t, f.Driver.UVMLoaded))
}

// A container whose nodes are wrong, one way each: a placeholder file that a
// mount left, another driver's major, one that is missing, ones that do not open.
func TestNodesOfAContainer(t *testing.T) {
	needDeviceNumbers(t)
	tree := twoCards()
	put(tree, map[string]string{
		"proc/devices": "Character devices:\n195 nvidia-frontend\n509 nvidia-uvm\n",
		"proc/driver/nvidia/gpus/0000:82:00.0/information": "Device Minor: \t 3\n",
	})
	tree["dev/nvidiactl"] = device(195, 255)
	tree["dev/nvidia-uvm"] = &fstest.MapFile{Mode: 0}
	tree["dev/nvidia-uvm-tools"] = device(507, 1)
	tree["dev/nvidia0"], tree["dev/nvidia1"], tree["dev/nvidia12"] = device(195, 0), device(195, 1), device(195, 300)
	tree["dev/nvidia-modeset"] = device(195, 254)
	tree["dev/nvidia-caps/nvidia-cap1"] = device(241, 1)
	tree["dev/nvidia007"] = device(195, 7)
	o := filesOnly(tree)
	o.OpenNode = func(path string) error {
		return map[string]error{
			"/dev/nvidia0":        &fs.PathError{Op: "open", Path: path, Err: syscall.EPERM},
			"/dev/nvidia1":        syscall.ENXIO,
			"/dev/nvidia12":       errors.New("strange"),
			"/dev/nvidia-modeset": fs.ErrPermission,
		}[path]
	}
	n := byPath(collect(t, o))
	require.Len(t, n, 8)
	require.Equal(t, "", n["/dev/nvidiactl"].OpenError)
	require.Equal(t, 195, known(t, n["/dev/nvidiactl"].WantMajor), "its driver has had several names")
	uvm := n["/dev/nvidia-uvm"]
	require.True(t, uvm.Exists)
	require.False(t, uvm.Char)
	require.Equal(t, "----------", uvm.Mode)
	require.Equal(t, 509, known(t, uvm.WantMajor))
	tools := n["/dev/nvidia-uvm-tools"]
	require.Equal(t, 507, tools.Major)
	require.Equal(t, 509, known(t, tools.WantMajor))
	require.Equal(t, "EPERM", n["/dev/nvidia0"].OpenError)
	require.Equal(t, "ENXIO", n["/dev/nvidia1"].OpenError)
	require.Equal(t, "strange", n["/dev/nvidia12"].OpenError)
	require.Equal(t, 300, n["/dev/nvidia12"].Minor, "minors have twenty bits")
	require.Equal(t, "EACCES", n["/dev/nvidia-modeset"].OpenError)
	require.Equal(t, DeviceNode{Path: "/dev/nvidia3", OpenError: "ENOENT", WantMajor: Known(195, "/proc/devices")}, n["/dev/nvidia3"],
		"the module has a GPU of that number")
}

// Without an opener, a given file system's own open is used; majors that cannot
// be known are unknown.
func TestNodesOpenedThroughTheFileSystem(t *testing.T) {
	tree := fstest.MapFS{"dev/nvidiactl": {Mode: fs.ModeDevice | fs.ModeCharDevice | 0o600}}
	n := byPath(collect(t, filesOnly(tree)))
	require.True(t, n["/dev/nvidiactl"].Exists && n["/dev/nvidiactl"].Char)
	require.Equal(t, "crw-------", n["/dev/nvidiactl"].Mode)
	require.Equal(t, "", n["/dev/nvidiactl"].OpenError)
	require.False(t, n["/dev/nvidiactl"].WantMajor.IsKnown())
	require.Equal(t, "ENOENT", n["/dev/nvidia-uvm"].OpenError)

	put(tree, map[string]string{"proc/devices": "Character devices:\n1 mem\n"})
	n = byPath(collect(t, filesOnly(tree)))
	require.Contains(t, n["/dev/nvidia-uvm"].WantMajor.Why(), "no nvidia-uvm")
}

// An open that hangs is given up with its caller.
func TestNodesGiveUp(t *testing.T) {
	stuck := make(chan struct{})
	t.Cleanup(func() { close(stuck) })
	ctx, cancel := context.WithCancel(context.Background())
	o := filesOnly(fstest.MapFS{"dev/nvidiactl": {Mode: fs.ModeDevice | fs.ModeCharDevice | 0o600}})
	o.OpenNode = func(string) error { cancel(); <-stuck; return nil }
	f, err := Collect(ctx, o)
	require.ErrorIs(t, err, context.Canceled)
	require.Contains(t, byPath(f)["/dev/nvidiactl"].OpenError, "no answer")
}

func TestLsMode(t *testing.T) {
	for want, m := range map[string]fs.FileMode{
		"crw-rw-rw-": fs.ModeDevice | fs.ModeCharDevice | 0o666, "brw-------": fs.ModeDevice | 0o600, "drwxr-xr-x": fs.ModeDir | 0o755,
		"lrwxrwxrwx": fs.ModeSymlink | 0o777, "prw-r--r--": fs.ModeNamedPipe | 0o644, "srw-r--r--": fs.ModeSocket | 0o644, "-r--------": 0o400,
	} {
		require.Equal(t, want, lsMode(m))
	}
}

func TestErrorName(t *testing.T) {
	for want, err := range map[string]error{
		"": nil, "EPERM": syscall.EPERM, "ENODEV": fmt.Errorf("open: %w", syscall.ENODEV), "EACCES": fs.ErrPermission, "ENOENT": fs.ErrNotExist,
	} {
		require.Equal(t, want, errorName(err))
	}
}

func TestOpenNode(t *testing.T) {
	require.Equal(t, "ENOENT", errorName(openNode(t.TempDir()+"/nvidia0")))
}
