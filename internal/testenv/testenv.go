// SPDX-License-Identifier: Apache-2.0

// Package testenv tells tests what they run under, and compiles the C
// libraries that stand in for NVIDIA's. Only tests import it.
package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

// own reports whether it runs in a frame of its own. It is small enough to be
// inlined, and then it does not.
func own() bool { return callerHasFrame() }

// callerHasFrame tells whether its caller was not inlined: the runtime gives
// an inlined frame no Func.
//
//go:noinline
func callerHasFrame() bool {
	var pc [1]uintptr
	runtime.Callers(2, pc[:])
	f, _ := runtime.CallersFrames(pc[:]).Next()
	return f.Func != nil
}

// Optimized tells whether the compiler inlined, that is, whether this test
// binary was built without -gcflags=all=-N\ -l. Allocations and times are only
// worth a bound if it did.
func Optimized() bool { return !own() }

// SkipUnlessOptimized skips a test of an allocation or time bound under -race
// and under -N -l, where the figures are the instrumentation's.
func SkipUnlessOptimized(t testing.TB) {
	t.Helper()
	if Race {
		t.Skip("no allocation or time bounds under -race")
	}
	if !Optimized() {
		t.Skip("no allocation or time bounds without the optimizer")
	}
}

var compiled struct {
	sync.Mutex
	images map[string][]byte
}

// CompileC compiles C source text into a shared library called name in a new
// directory and returns its absolute path. flags go to the compiler. The test
// is skipped where there is no gcc. Each call returns another file, which the
// loader takes for another library with variables of its own, even if the
// source is the same.
func CompileC(t testing.TB, source, name string, flags ...string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("C stand-ins are built on Unix only")
	}
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc to compile a C stand-in with")
	}
	dir := t.TempDir()
	out := filepath.Join(dir, name)

	key := name + "\x00" + source
	for _, f := range flags {
		key += "\x00" + f
	}
	compiled.Lock()
	defer compiled.Unlock()
	if image, ok := compiled.images[key]; ok {
		if err := os.WriteFile(out, image, 0o700); err != nil {
			t.Fatal(err)
		}
		return out
	}
	src := filepath.Join(dir, "source.c")
	if err := os.WriteFile(src, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", "-o", out}
	args = append(args, flags...)
	// libdl after the source: linkers read from left to right.
	args = append(args, src, "-ldl")
	if text, err := exec.Command(gcc, args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc %v: %v\n%s", args, err, text)
	}
	image, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if compiled.images == nil {
		compiled.images = map[string][]byte{}
	}
	compiled.images[key] = image
	return out
}
