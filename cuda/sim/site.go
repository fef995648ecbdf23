// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strings"
)

// A site is where a call came from: program counters, put into words only when
// somebody asks. It is nil where the machine does not keep sites.
type site []uintptr

// String is the frames above this package and package cuda, each on a line of
// its own.
func (s site) String() string {
	if len(s) == 0 {
		return ""
	}
	frames := runtime.CallersFrames(s)
	var b strings.Builder
	for n := 0; n < 6; {
		f, more := frames.Next()
		inner := strings.Contains(f.Function, "geforce-p2p/cuda/sim.seam.") || strings.Contains(f.Function, "geforce-p2p/cuda.(") ||
			strings.Contains(f.Function, "geforce-p2p/cuda/sim.(*Machine)") || strings.Contains(f.Function, "geforce-p2p/internal/api/tap.")
		if f.Function != "" && !inner {
			fmt.Fprintf(&b, "\n\t\t%s %s:%d", f.Function, f.File, f.Line)
			n++
		}
		if !more {
			break
		}
	}
	return b.String()
}

// site is where the call in progress came from, if the machine keeps that, for
// a resource that may leak.
func (m *Machine) site() site {
	if !m.options.sites {
		return nil
	}
	return callers()
}

// callers is where the call in progress came from. It takes the caller's
// caller for part of this package, as it is in every use.
func callers() site {
	var pcs [24]uintptr
	return slices.Clone(pcs[:runtime.Callers(3, pcs[:])])
}

// sorted is a map's values by key, for what must not depend on the map's order.
func sorted[K cmp.Ordered, V any](m map[K]V) []V {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	vs := make([]V, len(keys))
	for i, k := range keys {
		vs[i] = m[k]
	}
	return vs
}
