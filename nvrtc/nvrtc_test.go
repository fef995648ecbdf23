// SPDX-License-Identifier: Apache-2.0

package nvrtc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/dl"
	"github.com/geforce-p2p/geforce-p2p/internal/libcuda/fakelib"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

const source = `extern "C" __global__ void nothing() {}` + "\n"

// live counts the stand-in's programs that were not destroyed.
func live(t *testing.T, path string) int {
	t.Helper()
	lib, err := dl.OpenOne(path)
	require.NoError(t, err)
	p, err := lib.Lookup("fake_live")
	require.NoError(t, err)
	return int(int32(dl.Call0(p)))
}

func TestCompile(t *testing.T) {
	path := fakelib.BuildNVRTC(t, "libnvrtc.so.13")
	l, err := Open(path)
	require.NoError(t, err)
	major, minor := l.Version()
	require.Equal(t, [2]int{13, 0}, [2]int{major, minor})
	require.Equal(t, []int{75, 80, 86, 89, 90, 100, 120}, l.Archs())
	l.Archs()[0] = 0
	require.Equal(t, 75, l.Archs()[0], "the list is a copy")
	want, err := filepath.EvalSymlinks(path)
	require.NoError(t, err)
	got, err := filepath.EvalSymlinks(l.Path())
	require.NoError(t, err)
	require.Equal(t, want, got)

	cubin, log, err := l.Compile(source, "fold.cu", "--gpu-architecture=sm_89", "--fmad=false", "-DTYPE=3")
	require.NoError(t, err)
	require.Equal(t, "", log)
	require.Equal(t, "\x7fELF\nfold.cu\n--gpu-architecture=sm_89\n--fmad=false\n-DTYPE=3\n"+source, string(cubin))

	_, log, err = l.Compile("#warning\n", "w.cu", "--gpu-architecture=sm_80")
	require.NoError(t, err)
	require.Equal(t, "w.cu(1): warning: #warning directive", log, "warnings of a success")
	require.Zero(t, live(t, path), "every program is destroyed")
}

func TestCompileErrors(t *testing.T) {
	path := fakelib.BuildNVRTC(t, "libnvrtc.so.13")
	l, err := Open(path)
	require.NoError(t, err)

	_, log, err := l.Compile("#error\n", "fold.cu", "--gpu-architecture=sm_89")
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, Code(6), e.Code)
	require.Contains(t, log, "fold.cu(1): error")
	require.Equal(t, log, e.Log)
	for _, s := range []string{"nvrtcCompileProgram", "NVRTC_ERROR_COMPILATION", l.Path(), "fold.cu(1): error"} {
		require.Contains(t, err.Error(), s)
	}

	_, log, err = l.Compile(source, "a.cu", "nonsense")
	require.ErrorAs(t, err, &e)
	require.Equal(t, Code(5), e.Code)
	require.Contains(t, log, "nonsense")

	_, _, err = l.Compile(source, "a.cu", "--gpu-architecture=compute_89")
	require.ErrorContains(t, err, "sm_XY", "no CUBIN of a virtual architecture")
	_, _, err = l.Compile(source, "a.cu")
	require.ErrorContains(t, err, "sm_XY")
	_, _, err = l.Compile("a\x00b", "a.cu", "--gpu-architecture=sm_89")
	require.ErrorContains(t, err, "NUL")
	require.Zero(t, live(t, path), "programs are destroyed after a failure too")

	_, _, err = l.Compile(source, "a.cu", "--gpu-architecture=sm_89")
	require.NoError(t, err, "the next call works")
}

func TestErrorTextWithoutTheLibrarys(t *testing.T) {
	l, err := Open(fakelib.BuildNVRTC(t, "libnvrtc.so.13", fakelib.Without("nvrtcGetErrorString"),
		fakelib.Without("nvrtcGetSupportedArchs")))
	require.NoError(t, err)
	require.Empty(t, l.Archs())
	_, _, err = l.Compile("#error\n", "fold.cu", "--gpu-architecture=sm_89")
	require.ErrorContains(t, err, "NVRTC_ERROR_COMPILATION")
	require.Equal(t, "NVRTC_ERROR_99", Code(99).String())
}

func TestConcurrentCompiles(t *testing.T) {
	path := fakelib.BuildNVRTC(t, "libnvrtc.so.13")
	l, err := Open(path)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for g := range 32 {
		wg.Go(func() {
			for i := range 20 {
				name := fmt.Sprintf("k%d_%d.cu", g, i)
				src := strings.Repeat("// "+name+"\n", i+1)
				cubin, _, err := l.Compile(src, name, "--gpu-architecture=sm_80", "-DN="+name)
				if want := "\x7fELF\n" + name + "\n--gpu-architecture=sm_80\n-DN=" + name + "\n" + src; err != nil || string(cubin) != want {
					t.Errorf("%s: %v, %q", name, err, cubin)
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, live(t, path))
}

// NVRTC opens its builtins by bare name, which only works once they are loaded.
func TestBuiltinsBesideTheLibrary(t *testing.T) {
	const file = "libnvrtc-builtins.so.97.3"
	path := fakelib.BuildNVRTC(t, "libnvrtc.so.97", `FAKE_BUILTINS="`+file+`"`)
	l, err := Open(path)
	require.NoError(t, err)
	_, log, err := l.Compile(source, "a.cu", "--gpu-architecture=sm_80")
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, builtinOperationFailure, e.Code)
	require.ErrorContains(t, err, "libnvrtc-builtins.so.97.* is not there")
	require.Contains(t, log, file)
	require.Contains(t, err.Error(), log)

	// The same again, with the builtins in the same directory.
	path = fakelib.BuildNVRTC(t, "libnvrtc.so.97", `FAKE_BUILTINS="`+file+`"`)
	b := testenv.CompileC(t, "int fake_builtins;\n", file, "-Wl,-soname,"+file)
	require.NoError(t, os.Rename(b, filepath.Join(filepath.Dir(path), file)))
	l, err = Open(path)
	require.NoError(t, err)
	_, _, err = l.Compile(source, "a.cu", "--gpu-architecture=sm_80")
	require.NoError(t, err)
}

func TestBuiltinsPattern(t *testing.T) {
	for in, want := range map[string]string{
		"/x/libnvrtc.so.13":                "/x/libnvrtc-builtins.so.13.*",
		"/x/libnvrtc.so.12.6.85":           "/x/libnvrtc-builtins.so.12.*",
		"/x/libnvrtc.so.11.2":              "/x/libnvrtc-builtins.so.11.*",
		"/x/libnvrtc.so":                   "/x/libnvrtc-builtins.so*",
		"/x/nvrtc64_130_0.dll":             "/x/nvrtc-builtins64_13*.dll",
		"/x/nvrtc64_120_0.dll":             "/x/nvrtc-builtins64_12*.dll",
		"/x/nvrtc64_112_0.dll":             "/x/nvrtc-builtins64_11*.dll",
		"/x/libnvrtc-abc6c1b9.so.13.0.48x": "/x/libnvrtc-builtins.so*",
	} {
		require.Equal(t, want, builtins(in), in)
	}
}

// at is a place with these variables and nothing of this machine.
func at(goos string, env map[string]string) place {
	return place{goos: goos, getenv: func(k string) string { return env[k] }, toolkit: "/nonexistent/cuda"}
}

func TestFindOrder(t *testing.T) {
	build := func(major string) string {
		return fakelib.BuildNVRTC(t, "libnvrtc.so."+major, "FAKE_MAJOR="+strings.SplitN(major, ".", 2)[0])
	}
	root := t.TempDir()
	put := func(dir, major string) string {
		dir = filepath.Join(root, dir)
		require.NoError(t, os.MkdirAll(dir, 0o700))
		to := filepath.Join(dir, "libnvrtc.so."+major)
		require.NoError(t, os.Rename(build(major), to))
		return to
	}
	env := map[string]string{
		"CUDA_HOME":    filepath.Join(root, "home"),
		"CUDA_PATH":    filepath.Join(root, "path"),
		"VIRTUAL_ENV":  filepath.Join(root, "venv"),
		"CONDA_PREFIX": filepath.Join(root, "conda"),
	}
	p := at("linux", env)
	p.toolkit = filepath.Join(root, "usr-local-cuda")

	// From the last place to the first: each new one wins over those before.
	for _, c := range []struct{ dir, major string }{
		{"conda/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib", "12"},
		{"conda/lib", "12"},
		{"venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib", "12"},
		{"venv/lib/python3.11/site-packages/nvidia/cu13/lib", "13"},
		{"usr-local-cuda/lib64", "11.2"},
		{"usr-local-cuda/lib64", "12"},
		{"path/lib", "12"},
		{"home/lib64", "12"},
		{"home/lib64", "13"},
	} {
		want, err := filepath.EvalSymlinks(filepath.Dir(put(c.dir, c.major)))
		require.NoError(t, err)
		l, err := find(p)
		require.NoError(t, err, c.dir)
		require.Equal(t, want, filepath.Dir(l.Path()))
		major, _ := l.Version()
		require.Equal(t, strings.SplitN(c.major, ".", 2)[0], fmt.Sprint(major))
	}

	only := build("12")
	env[EnvLibrary] = only
	l, err := find(p)
	require.NoError(t, err)
	require.Equal(t, filepath.Base(only), filepath.Base(l.Path()))
	major, _ := l.Version()
	require.Equal(t, 12, major)

	env[EnvLibrary] = filepath.Join(root, "absent.so")
	_, err = find(p)
	require.ErrorIs(t, err, ErrNoLibrary, "the variable is an order, not a hint")
	require.ErrorContains(t, err, "absent.so")
	env[EnvLibrary] = "libnvrtc.so.13"
	_, err = find(p)
	require.ErrorContains(t, err, "not an absolute path")
}

func TestFindPassesOverWhatCannotBeUsed(t *testing.T) {
	root := t.TempDir()
	lib := filepath.Join(root, "lib64")
	require.NoError(t, os.MkdirAll(lib, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(lib, "libnvrtc.so.13"), []byte("?"), 0o600))
	old := fakelib.BuildNVRTC(t, "libnvrtc.so.12", fakelib.Without("nvrtcGetCUBIN"))
	require.NoError(t, os.Rename(old, filepath.Join(lib, "libnvrtc.so.12")))
	p := at("linux", map[string]string{"CUDA_HOME": root, "CUDA_PATH": "relative/is/ignored"})

	_, err := find(p)
	require.ErrorIs(t, err, ErrNoLibrary)
	for _, s := range []string{"libnvrtc.so.13 (", "libnvrtc.so.12 (loaded, but has no nvrtcGetCUBIN", EnvLibrary} {
		require.ErrorContains(t, err, s)
	}
	require.NotContains(t, err.Error(), "relative/is/ignored")

	good := fakelib.BuildNVRTC(t, "libnvrtc.so.11.2")
	require.NoError(t, os.Rename(good, filepath.Join(lib, "libnvrtc.so.11.2")))
	l, err := find(p)
	require.NoError(t, err)
	require.Equal(t, "libnvrtc.so.11.2", filepath.Base(l.Path()))
}

func TestNotFoundListsEverythingTried(t *testing.T) {
	p := at("linux", map[string]string{"CUDA_HOME": "/nowhere/h", "VIRTUAL_ENV": "/nowhere/v"})
	_, err := find(p)
	require.ErrorIs(t, err, ErrNoLibrary)
	for _, s := range []string{"/nowhere/h/lib64", "/nowhere/h/lib/", "/nonexistent/cuda/lib64",
		"/nowhere/v/lib/python3*/site-packages/nvidia/cu13/lib", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"} {
		require.ErrorContains(t, err, s)
	}
	var e *LoadError
	require.ErrorAs(t, err, &e)
	require.Len(t, e.Tried, 5)

	_, err = find(at("darwin", nil))
	require.ErrorIs(t, err, ErrNoLibrary)
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

// The bare names come first, so that LD_LIBRARY_PATH and ldconfig decide.
func TestBareNamesAreTried(t *testing.T) {
	p := at("linux", nil)
	p.bare = true
	l, err := find(p)
	if err == nil {
		require.NotEmpty(t, l.Path()) // a machine with a toolkit
		return
	}
	var e *LoadError
	require.ErrorAs(t, err, &e)
	for i, name := range []string{"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"} {
		require.Equal(t, name, e.Tried[i].Name)
	}
}

func TestLoadIsOnceAProcess(t *testing.T) {
	a, errA := Load()
	t.Setenv(EnvLibrary, "/nonexistent/libnvrtc.so.13")
	b, errB := Load()
	require.Same(t, a, b)
	require.Equal(t, errA, errB)
	if errA != nil {
		require.ErrorIs(t, errA, ErrNoLibrary)
		return
	}
	_, _, err := a.Compile(source, "nothing.cu", fmt.Sprintf("--gpu-architecture=sm_%d", a.Archs()[len(a.Archs())-1]))
	require.NoError(t, err, "a real NVRTC compiles")
}
