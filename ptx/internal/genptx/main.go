// SPDX-License-Identifier: Apache-2.0

// Command genptx makes ptx/embedded/*.ptx from ptx/*.cu with clang 16:
//
//	go run ./ptx/internal/genptx          writes the files
//	go run ./ptx/internal/genptx -check   fails if they are not what it would write
//
// It runs in the repository's root. The output depends on the sources and on
// clang's version alone. Every instruction is held against package isa's table
// before anything is written.
//
// It does not import package ptx, which cannot be built before the files exist.
package main

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
	"github.com/geforce-p2p/geforce-p2p/internal/ptxvm/isa"
)

//go:embed prelude.h
var prelude []byte

func main() {
	check := flag.Bool("check", false, "compare with the files that are there instead of writing them")
	clang := flag.String("clang", "clang-16", "the compiler; another major version writes other text")
	dir := flag.String("dir", "ptx", "where the .cu files and embedded/ are")
	flag.Parse()
	if err := run(*clang, *dir, *check); err != nil {
		fmt.Fprintln(os.Stderr, "genptx:", err)
		os.Exit(1)
	}
}

func run(clang, dir string, check bool) error {
	if _, err := exec.LookPath(clang); err != nil {
		return fmt.Errorf("%w (Debian: apt-get install clang-16)", err)
	}
	tmp, err := os.MkdirTemp("", "genptx")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	header := filepath.Join(tmp, "prelude.h")
	if err := os.WriteFile(header, prelude, 0o600); err != nil {
		return err
	}
	// Compiling is most of the time, and each module is alone.
	modules := kernel.Modules()
	texts := make([]string, len(modules))
	failures := make([]error, len(modules))
	var wg sync.WaitGroup
	turn := make(chan struct{}, runtime.NumCPU())
	for i, m := range modules {
		wg.Add(1)
		go func() {
			defer wg.Done()
			turn <- struct{}{}
			defer func() { <-turn }()
			var source string
			if texts[i], source, failures[i] = compile(clang, dir, header, m); failures[i] == nil {
				failures[i] = errors.Join(isa.Check(texts[i], m.Entries()), isa.Barriers(texts[i], source))
			}
			if failures[i] != nil {
				failures[i] = fmt.Errorf("%s: %w", m.Name(), failures[i])
			}
		}()
	}
	wg.Wait()
	if err := errors.Join(failures...); err != nil {
		return err
	}
	var faults []error
	files := map[string]bool{}
	for i, m := range modules {
		file, text := filepath.Join(dir, "embedded", m.Name()+".ptx"), texts[i]
		files[file] = true
		if !check {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				return err
			}
			continue
		}
		have, err := os.ReadFile(file)
		if err != nil {
			faults = append(faults, err)
		} else if string(have) != text {
			faults = append(faults, fmt.Errorf("%s is stale: run make ptx", file))
		}
	}
	there, err := filepath.Glob(filepath.Join(dir, "embedded", "*.ptx"))
	if err != nil {
		return err
	}
	for _, f := range there {
		if !files[f] {
			faults = append(faults, fmt.Errorf("%s is of no module", f))
		}
	}
	return errors.Join(faults...)
}

// compile returns the PTX of a module and what it was made from.
func compile(clang, dir, header string, m kernel.Module) (text, joined string, err error) {
	var code []byte
	for _, name := range m.Sources() {
		part, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", "", err
		}
		code = append(code, part...)
	}
	source := filepath.Join(filepath.Dir(header), m.Name()+".cu")
	if err := os.WriteFile(source, code, 0o600); err != nil {
		return "", "", err
	}
	made := strings.Join(m.Sources(), ", ")
	args := []string{
		"-x", "cuda", "--cuda-device-only", "-nocudainc", "-nocudalib", "--cuda-gpu-arch=sm_80",
		"-Xclang", "-target-feature", "-Xclang", "+ptx70",
		"-std=c++11", "-O3", "-ffp-contract=off", "-Wall", "-Wno-unused-function", "-Werror",
		"-include", header, "-S", "-o", "-",
	}
	for _, d := range m.Defines() {
		args = append(args, d)
		made += " with " + strings.TrimPrefix(d, "-D")
	}
	var out, diag bytes.Buffer
	cmd := exec.Command(clang, append(args, source)...)
	cmd.Stdout, cmd.Stderr = &out, &diag
	if err := cmd.Run(); err != nil {
		return "", "", fmt.Errorf("%w\n%s", err, diag.Bytes())
	}
	var b strings.Builder
	// The digest lets a test without clang see that the source has moved on.
	fmt.Fprintf(&b, "// SPDX-License-Identifier: Apache-2.0\n// Made from %s by \"make ptx\". Do not edit.\n// sha256 %x\n", made, sha256.Sum256(code))
	for line := range strings.Lines(out.String()) {
		line, _, _ = strings.Cut(line, "//")
		line = strings.TrimRight(line, " \t\n")
		if line != "" {
			b.WriteString(line + "\n")
		}
	}
	return b.String(), string(code), nil
}
