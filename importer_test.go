// SPDX-License-Identifier: Apache-2.0

package geforcep2p

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// goCommand runs the go command in a folder, without the network: what the tests
// of this module were built from is all there is.
func goCommand(t *testing.T, dir string, env []string, args ...string) string {
	t.Helper()
	if testenv.Race || !testenv.Optimized() {
		t.Skip("another build of the test changes nothing here")
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command")
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "GOPROXY=off", "GOSUMDB=off", "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0"), env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "go %v: %s", args, out)
	return string(out)
}

// TestDependencies: who imports the library links purego and x/sys, and no other
// module, on any platform.
func TestDependencies(t *testing.T) {
	for _, target := range []string{"linux/amd64", "windows/amd64", "darwin/arm64", "freebsd/amd64"} {
		goos, goarch, _ := strings.Cut(target, "/")
		out := goCommand(t, ".", []string{"GOOS=" + goos, "GOARCH=" + goarch},
			"list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "./gp/...", "./probe/...", "./cuda/...", "./nvrtc", "./ptx")
		modules := strings.Fields(out)
		slices.Sort(modules)
		modules = slices.Compact(modules)
		require.Contains(t, modules, "github.com/geforce-p2p/geforce-p2p", target)
		for _, m := range modules {
			require.Contains(t, []string{"github.com/geforce-p2p/geforce-p2p", "github.com/ebitengine/purego", "golang.org/x/sys"}, m, target)
		}
	}
}

// TestImporterKeepsItsVersions: a program that imports the library, and old
// versions of modules that checkers and test libraries drag along elsewhere, keeps
// those versions when it is tidied. Folders stand in for the old modules, so that
// nothing is fetched.
func TestImporterKeepsItsVersions(t *testing.T) {
	root, err := os.Getwd()
	require.NoError(t, err)
	mod, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	goLine := regexp.MustCompile(`(?m)^go \S+$`).FindString(string(mod))
	dir := t.TempDir()
	write := func(name, text string) {
		name = filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	old := []string{"golang.org/x/sync v0.1.0", "golang.org/x/tools v0.1.0"}
	write("go.mod", "module importer\n\n"+goLine+"\n\nrequire (\n\tgithub.com/geforce-p2p/geforce-p2p v0.0.0\n\t"+strings.Join(old, "\n\t")+"\n)\n\n"+
		"replace github.com/geforce-p2p/geforce-p2p => "+root+"\n\nreplace golang.org/x/sync => ./sync\n\nreplace golang.org/x/tools => ./tools\n")
	write("sync/go.mod", "module golang.org/x/sync\n")
	write("sync/errgroup/errgroup.go", "package errgroup\n")
	write("tools/go.mod", "module golang.org/x/tools\n")
	write("tools/cover/cover.go", "package cover\n")
	write("main.go", `package main

import (
	_ "github.com/geforce-p2p/geforce-p2p/cuda/sim"
	_ "github.com/geforce-p2p/geforce-p2p/gp"
	_ "github.com/geforce-p2p/geforce-p2p/probe"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/tools/cover"
)

func main() {}
`)
	goCommand(t, dir, nil, "mod", "tidy")
	goCommand(t, dir, nil, "build", "-o", os.DevNull, ".")
	tidied, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	require.NoError(t, err)
	for _, m := range old {
		require.Contains(t, string(tidied), m+"\n")
	}
	for _, m := range []string{"testify", "goleak", "staticcheck", "go-nvml"} {
		require.NotContains(t, string(tidied), m, "an importer gets no test library and no checker")
	}
	require.Equal(t, 1+len(old)+2, strings.Count(string(tidied), " v"), "the library, what it was given, purego and x/sys: %s", tidied)
}
