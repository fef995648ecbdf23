// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strings"
)

// site is where the call in progress came from, if the machine keeps that: the
// frames above this package and package cuda, as they are printed with a leak.
func (m *Machine) site() string {
	if !m.options.sites {
		return ""
	}
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	var b strings.Builder
	for n := 0; n < 6; {
		f, more := frames.Next()
		inner := strings.Contains(f.Function, "geforce-p2p/cuda/sim.seam.") || strings.Contains(f.Function, "geforce-p2p/cuda.(")
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
