// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

func TestVersionText(t *testing.T) {
	end := "\n" + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH + "\n"
	build := func(version string, settings ...string) *debug.BuildInfo {
		b := &debug.BuildInfo{Main: debug.Module{Version: version}}
		for i := 0; i < len(settings); i += 2 {
			b.Settings = append(b.Settings, debug.BuildSetting{Key: settings[i], Value: settings[i+1]})
		}
		return b
	}
	for _, c := range []struct {
		name, version, commit string
		info                  *debug.BuildInfo
		want                  string
	}{
		{"a release", "v1.2.3", "abc", build("(devel)"), "geforce-p2p v1.2.3\ncommit abc"},
		{"a release, whatever the go command says", "v1.2.3", "abc", build("v9.9.9", "vcs.revision", "def"), "geforce-p2p v1.2.3\ncommit abc"},
		{"go install of a version", "", "", build("v1.2.3"), "geforce-p2p v1.2.3\ncommit unknown"},
		{"go build in a checkout", "", "", build("v0.0.0-2026-abc", "vcs.revision", "abc", "vcs.modified", "false"), "geforce-p2p v0.0.0-2026-abc\ncommit abc"},
		{"with changes", "", "", build("(devel)", "vcs.revision", "abc", "vcs.modified", "true"), "geforce-p2p of no release\ncommit abc, with changes"},
		{"with changes, as Go 1.24 says", "", "", build("v0.0.0-2026-abc+dirty", "vcs.revision", "abc", "vcs.modified", "true"), "geforce-p2p v0.0.0-2026-abc+dirty\ncommit abc"},
		{"go build without vcs", "", "", build("(devel)"), "geforce-p2p of no release\ncommit unknown"},
		{"no build info", "", "", nil, "geforce-p2p of no release\ncommit unknown"},
	} {
		require.Equal(t, c.want+end, versionText(c.version, c.commit, c.info), c.name)
	}
}

// The subcommand, and the two spellings that other programs taught people.
func TestVersion(t *testing.T) {
	for _, arg := range []string{"version", "--version", "-version"} {
		code, out, errs := noHost().run(arg)
		require.Equal(t, exitOK, code, errs)
		require.Contains(t, out, "geforce-p2p ")
		require.Contains(t, out, runtime.Version())
	}
	code, _, errs := noHost().run("version", "now")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, `unexpected argument "now"`)
}

// The names that tools/release sets are those of this package.
func TestVersionIsSet(t *testing.T) {
	if testenv.Race || !testenv.Optimized() {
		t.Skip("another build of the test changes nothing about the binary")
	}
	goCommand, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command")
	}
	source, err := os.ReadFile(filepath.Join("..", "..", "tools", "release", "main.go"))
	require.NoError(t, err)
	const version, commit = "-X main.releaseVersion=", "-X main.releaseCommit="
	require.Contains(t, string(source), version)
	require.Contains(t, string(source), commit)
	file := filepath.Join(t.TempDir(), "gp.exe")
	build := exec.Command(goCommand, "build", "-buildvcs=false", "-ldflags", version+"v4.5.6 "+commit+"fedcba", "-o", file, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command(file, "version").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "geforce-p2p v4.5.6\ncommit fedcba\n")
}
