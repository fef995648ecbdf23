// SPDX-License-Identifier: Apache-2.0

package nvrtc

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/geforce-p2p/geforce-p2p/internal/dl"
)

// EnvLibrary is the environment variable that names the NVRTC library to load,
// by absolute path, instead of any other.
const EnvLibrary = "GP_NVRTC_LIBRARY"

// place is where NVRTC is looked for: the process's environment, or a test's.
type place struct {
	goos   string
	getenv func(string) string
	// toolkit is where the toolkit lies without a variable that says so.
	toolkit string
	// bare is false to leave out the names that the system's loader searches.
	bare bool
}

func system() place {
	return place{
		goos:    runtime.GOOS,
		getenv:  os.Getenv,
		toolkit: "/usr/local/cuda",
		bare:    true,
	}
}

// fileNames are NVRTC's names, newest first. All 11.2 to 11.8 carry the name
// of 11.2.
func fileNames(goos string) []string {
	if goos == "windows" {
		return []string{"nvrtc64_130_0.dll", "nvrtc64_120_0.dll", "nvrtc64_112_0.dll"}
	}
	return []string{"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"}
}

// directories are absolute directories to look in, in order; those of Python
// are patterns, for the version in their middle.
func (p place) directories() []string {
	var dirs []string
	add := func(root string, subs ...string) {
		if root == "" || !filepath.IsAbs(root) {
			return
		}
		for _, s := range subs {
			dirs = append(dirs, filepath.Join(root, filepath.FromSlash(s)))
		}
	}
	if p.goos == "windows" {
		for _, root := range []string{p.getenv("CUDA_HOME"), p.getenv("CUDA_PATH")} {
			add(root, "bin/x64", "bin")
		}
		for _, dir := range filepath.SplitList(p.getenv("PATH")) {
			add(dir, ".")
		}
		wheels := []string{"Lib/site-packages/nvidia/cu13/bin/x86_64", "Lib/site-packages/nvidia/cu13/bin/arm64",
			"Lib/site-packages/nvidia/cuda_nvrtc/bin"}
		add(p.getenv("VIRTUAL_ENV"), wheels...)
		add(p.getenv("CONDA_PREFIX"), append([]string{"Library/bin", "Library/bin/x64"}, wheels...)...)
		return unique(dirs)
	}
	for _, root := range []string{p.getenv("CUDA_HOME"), p.getenv("CUDA_PATH")} {
		add(root, "lib64", "lib")
	}
	add(p.toolkit, "lib64")
	wheels := []string{"lib/python3*/site-packages/nvidia/cu13/lib", "lib/python3*/site-packages/nvidia/cuda_nvrtc/lib"}
	add(p.getenv("VIRTUAL_ENV"), wheels...)
	add(p.getenv("CONDA_PREFIX"), append([]string{"lib"}, wheels...)...)
	return unique(dirs)
}

func unique(list []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, s := range list {
		if !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}

// find opens the first library that can be used.
func find(p place) (*Library, error) {
	if path := p.getenv(EnvLibrary); path != "" {
		return Open(path)
	}
	e := &LoadError{}
	try := func(name string) *Library {
		l, err := open(name)
		if err != nil {
			e.Tried = append(e.Tried, Attempt{name, err})
		}
		return l
	}
	if p.goos != "linux" && p.goos != "windows" {
		e.Tried = append(e.Tried, Attempt{"nothing", unsupportedError("NVIDIA has no NVRTC for " + p.goos)})
		return nil, e
	}
	names := fileNames(p.goos)
	if p.bare && p.goos != "windows" {
		for _, name := range names {
			if l := try(name); l != nil {
				return l, nil
			}
		}
	}
	for _, dir := range p.directories() {
		found := false
		for _, name := range names {
			paths, _ := filepath.Glob(filepath.Join(dir, name)) // the pattern's form is ours
			for _, path := range paths {
				found = true
				if l := try(path); l != nil {
					return l, nil
				}
			}
		}
		if !found {
			e.Tried = append(e.Tried, Attempt{filepath.Join(dir, strings.Join(names, " or ")), errNotThere})
		}
	}
	return nil, e
}

var errNotThere = errors.New("not there")

// unsupportedError is a text that matches errors.ErrUnsupported.
type unsupportedError string

func (e unsupportedError) Error() string        { return string(e) }
func (e unsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

// builtins is the pattern of the builtins libraries that belong to an NVRTC
// file: same directory, same major version.
func builtins(path string) string {
	dir, base := filepath.Split(path)
	switch {
	case strings.HasPrefix(base, "libnvrtc.so."):
		major, _, _ := strings.Cut(strings.TrimPrefix(base, "libnvrtc.so."), ".")
		return dir + "libnvrtc-builtins.so." + major + ".*"
	case strings.HasPrefix(base, "nvrtc64_") && strings.HasSuffix(base, "0_0.dll"):
		// nvrtc64_120_0.dll goes with nvrtc-builtins64_126.dll.
		return dir + "nvrtc-builtins64_" + strings.TrimSuffix(strings.TrimPrefix(base, "nvrtc64_"), "0_0.dll") + "*.dll"
	case base == "nvrtc64_112_0.dll":
		return dir + "nvrtc-builtins64_11*.dll"
	}
	return dir + "libnvrtc-builtins.so*"
}

// openBuiltins loads the builtins library that lies beside an NVRTC opened by
// path. NVRTC asks for it by bare name, which the loader does not find in a
// directory off its path unless the library is there already. It returns what
// went wrong, "" if nothing.
func openBuiltins(path string) string {
	pattern := builtins(path)
	paths, _ := filepath.Glob(pattern)
	if len(paths) == 0 {
		return pattern + " is not there"
	}
	note := ""
	for _, b := range paths {
		if _, err := dl.OpenOne(b); err != nil {
			note = b + ": " + err.Error()
		}
	}
	return note
}
