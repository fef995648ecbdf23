// SPDX-License-Identifier: Apache-2.0

// Command release builds the archives of a release: for each platform the command,
// named geforce-p2p, with its licences and documents, and the checksums of all.
//
//	go -C tools run ./release -root .. -out ../build/release
//
// The same commit gives the same bytes with the same Go version, whatever the
// folder and the day: no path, no time but the commit's and nothing of the
// environment goes in.
package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// product is what the archives and the command in them are called: Debian has
// another gp.
const product = "geforce-p2p"

// platforms are those that carry the driver binding and that CI builds.
const platforms = "linux/amd64,linux/arm64,windows/amd64,darwin/arm64"

// documents are the files of the repository that go into each archive.
var documents = []string{"LICENSE", "README.md", "PATCH.md", "CHANGELOG.md"}

type release struct {
	root, out       string
	version, commit string
	time            time.Time
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("release: ")
	var r release
	var seconds int64
	targets := flag.String("targets", platforms, "what to build for, `OS/ARCH,...`")
	flag.StringVar(&r.root, "root", ".", "the repository's `folder`")
	flag.StringVar(&r.out, "out", "build/release", "the `folder` for the archives; what is in it is replaced")
	flag.StringVar(&r.version, "version", "", "the version, instead of git's tag")
	flag.StringVar(&r.commit, "commit", "", "the commit, instead of git's")
	flag.Int64Var(&seconds, "time", 0, "the time of all files in the archives, in seconds since 1970, instead of the commit's")
	flag.Parse()
	if flag.NArg() > 0 {
		log.Fatalf("unexpected argument %q", flag.Arg(0))
	}
	if err := r.describe(seconds); err != nil {
		log.Fatal(err)
	}
	if err := r.run(strings.Split(*targets, ",")); err != nil {
		log.Fatal(err)
	}
}

// describe asks git for what the flags do not say.
func (r *release) describe(seconds int64) (err error) {
	if r.commit == "" {
		if r.commit, err = r.command(nil, "git", "rev-parse", "HEAD"); err != nil {
			return fmt.Errorf("%w (-commit, -time and -version serve where there is no git)", err)
		}
	}
	if seconds == 0 {
		text, err := r.command(nil, "git", "show", "-s", "--format=%ct", r.commit)
		if err != nil {
			return err
		}
		if seconds, err = strconv.ParseInt(text, 10, 64); err != nil {
			return err
		}
	}
	r.time = time.Unix(seconds, 0).UTC()
	if r.version != "" {
		return nil
	}
	// A commit without a tag gets the name that the go command has for it.
	if r.version, err = r.command(nil, "git", "describe", "--tags", "--exact-match", "--match", "v[0-9]*", r.commit); err != nil {
		r.version = fmt.Sprintf("v0.0.0-%s-%.12s", r.time.Format("20060102150405"), r.commit)
	}
	changes, err := r.command(nil, "git", "status", "--porcelain")
	if err != nil {
		return err
	}
	if changes != "" {
		r.version += "+dirty" // never the name of a release
	}
	return nil
}

func (r *release) run(targets []string) error {
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	goVersion, err := r.command(nil, "go", "env", "GOVERSION")
	if err != nil {
		return err
	}
	fmt.Printf("%s %s, commit %.12s, %s\n", product, r.version, r.commit, goVersion)
	var sums []string
	for _, t := range targets {
		name, data, err := r.archive(t)
		if err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
		if err := os.WriteFile(filepath.Join(r.out, name), data, 0o644); err != nil {
			return err
		}
		sums = append(sums, fmt.Sprintf("%x  %s\n", sha256.Sum256(data), name))
		fmt.Printf("%6d KiB  %s\n", len(data)>>10, name)
	}
	slices.SortFunc(sums, func(a, b string) int { return cmp.Compare(a[64:], b[64:]) })
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(strings.Join(sums, "")), 0o644)
}

// archive builds for one platform and packs what belongs to it.
func (r *release) archive(target string) (name string, data []byte, err error) {
	goos, goarch, ok := strings.Cut(target, "/")
	if !ok {
		return "", nil, errors.New("a platform is OS/ARCH")
	}
	// All that could change what is built, whatever the environment says. An empty
	// GOFLAGS would let in what `go env -w` has set; this is the default, said aloud.
	env := []string{
		"GOOS=" + goos, "GOARCH=" + goarch, "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off", "GOEXPERIMENT=", "GOFIPS140=off",
		"GOAMD64=v1", "GOARM64=v8.0",
	}
	work, err := os.MkdirTemp("", "release")
	if err != nil {
		return "", nil, err
	}
	defer os.RemoveAll(work)
	binary := filepath.Join(work, "binary")
	flags := fmt.Sprintf("-s -w -buildid= -X main.releaseVersion=%s -X main.releaseCommit=%s", r.version, r.commit)
	if _, err := r.command(env, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", binary, "./cmd/gp"); err != nil {
		return "", nil, err
	}
	base := fmt.Sprintf("%s_%s_%s_%s", product, r.version, goos, goarch)
	command := file{name: product, executable: true}
	if goos == "windows" {
		command.name += ".exe"
	}
	if command.data, err = os.ReadFile(binary); err != nil {
		return "", nil, err
	}
	files := []file{command}
	for _, d := range documents {
		b, err := os.ReadFile(filepath.Join(r.root, d))
		if err != nil {
			return "", nil, err
		}
		files = append(files, file{name: d, data: b})
	}
	notices, err := r.notices(env)
	if err != nil {
		return "", nil, err
	}
	files = append(files, file{name: "LICENSES-OF-OTHERS.txt", data: notices})
	if goos == "windows" {
		data, err = pack(zipped, base, files, r.time)
		return base + ".zip", data, err
	}
	data, err = pack(tarred, base, files, r.time)
	return base + ".tar.gz", data, err
}

// notices are the licences of what is linked in: Go's own library, and the modules
// that the command needs on the platform. They ask for that.
func (r *release) notices(env []string) ([]byte, error) {
	list, err := r.command(env, "go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}\t{{.Dir}}{{end}}{{end}}", "./cmd/gp")
	if err != nil {
		return nil, err
	}
	goroot, err := r.command(env, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	modules := strings.Split(list, "\n")
	slices.Sort(modules)
	var out bytes.Buffer
	for _, m := range append([]string{"Go\t" + goroot}, slices.Compact(modules)...) {
		what, dir, ok := strings.Cut(m, "\t")
		if !ok {
			continue
		}
		found := false
		for _, name := range []string{"LICENSE", "PATENTS", "NOTICE"} {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			found = true
			fmt.Fprintf(&out, "==== %s: %s\n\n%s\n", what, name, b)
		}
		if !found {
			return nil, fmt.Errorf("%s has no licence in %s", what, dir)
		}
	}
	return out.Bytes(), nil
}

// command runs a program in the repository and returns what it writes.
func (r *release) command(env []string, name string, args ...string) (string, error) {
	c := exec.Command(name, args...)
	c.Dir = r.root
	c.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(c.Args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}
