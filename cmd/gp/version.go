// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// What a release says of itself: tools/release sets them with -ldflags -X. Other
// builds are known by what the go command left in them.
var (
	releaseVersion string // "v0.1.0"
	releaseCommit  string // 40 hexadecimal digits
)

var versionCommand = &command{
	name:     "version",
	synopsis: "say which version and commit this is",
	usage:    "version",
	text: `Writes the version, the commit that it was built from ("unknown" where the build did not say: go run, or a
tree without git), and the Go version and platform.`,
	setup: func(*flag.FlagSet) func(context.Context, *environment) error {
		return func(_ context.Context, e *environment) error {
			info, _ := debug.ReadBuildInfo()
			_, err := fmt.Fprint(e.stdout, versionText(releaseVersion, releaseCommit, info))
			return err
		}
	},
}

// versionText is what the subcommand writes. info may be nil.
func versionText(version, commit string, info *debug.BuildInfo) string {
	changed := ""
	if info != nil {
		if version == "" {
			version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision" && commit == "":
				commit = s.Value
			case s.Key == "vcs.modified" && s.Value == "true" && !strings.Contains(version, "+dirty"):
				changed = ", with changes"
			}
		}
	}
	if version == "" || version == "(devel)" {
		version = "of no release"
	}
	if commit == "" {
		commit = "unknown"
	}
	return fmt.Sprintf("geforce-p2p %s\ncommit %s%s\n%s %s/%s\n", version, commit, changed, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
