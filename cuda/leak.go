// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"fmt"
	"log/slog"
	"runtime"
	"strings"
)

// A leakSite remembers who made something that wants a Close.
type leakSite struct {
	what string
	size int
	pcs  [8]uintptr
}

// watchLeak logs a warning when v is collected without having been closed. It
// frees nothing: the GPU may be using it. The frames are kept raw, and turned
// into a file and line when there is something to log.
func watchLeak[T any](v *T, what string, size int) runtime.Cleanup {
	site := &leakSite{what: what, size: size}
	runtime.Callers(3, site.pcs[:])
	return runtime.AddCleanup(v, (*leakSite).log, site)
}

func (s *leakSite) log() {
	attrs := []any{"what", s.what}
	if s.size > 0 {
		attrs = append(attrs, "bytes", s.size)
	}
	slog.Warn("cuda: dropped without Close and leaked", append(attrs, "allocated", s.site())...)
}

// site is the first caller outside this package, else the first of all.
func (s *leakSite) site() string {
	n := 0
	for n < len(s.pcs) && s.pcs[n] != 0 {
		n++
	}
	frames := runtime.CallersFrames(s.pcs[:n])
	first := ""
	for {
		f, more := frames.Next()
		at := fmt.Sprintf("%s:%d", f.File, f.Line)
		if first == "" {
			first = at
		}
		if f.Function != "" && !ownFrame(f.Function) {
			return at
		}
		if !more {
			return first
		}
	}
}

// ownFrame tells whether a function is one of this package's own.
func ownFrame(name string) bool {
	const pkg = "github.com/geforce-p2p/geforce-p2p/cuda."
	return strings.HasPrefix(name, pkg)
}
