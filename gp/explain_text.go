// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// String tells the explanation in one line.
func (e Explanation) String() string {
	var b strings.Builder
	how := string(e.Route)
	if e.Algorithm != "" {
		how = string(e.Algorithm)
	}
	fmt.Fprintf(&b, "%s: %s", e.Op, how)
	if e.Why != "" {
		fmt.Fprintf(&b, " (%s)", e.Why)
	}
	if e.Chunk > 0 {
		fmt.Fprintf(&b, "; pieces of %d bytes, %d in flight", e.Chunk, e.Slots)
	}
	if e.OwnStreams {
		b.WriteString("; on the buffers' own streams")
	}
	fmt.Fprintf(&b, "; %d driver calls", e.DriverCalls)
	sep := ": "
	for _, n := range []struct {
		what  string
		count int
	}{{"copies", e.Copies}, {"kernels", e.Kernels}, {"records", e.Records}, {"waits", e.Waits}} {
		if n.count > 0 {
			fmt.Fprintf(&b, "%s%d %s", sep, n.count, n.what)
			sep = ", "
		}
	}
	sep = "; bytes by rank "
	for _, l := range []struct {
		what  string
		bytes []uint64
	}{{"to the host", e.D2H}, {"from the host", e.H2D}, {"to a peer", e.Peer}, {"local", e.Local}, {"pinned", e.Pinned}, {"scratch", e.Scratch}} {
		if slices.ContainsFunc(l.bytes, func(n uint64) bool { return n > 0 }) {
			fmt.Fprintf(&b, "%s%s %v", sep, l.what, l.bytes)
			sep = ", "
		}
	}
	names := make([]Algorithm, 0, len(e.Estimates))
	for a := range e.Estimates {
		names = append(names, a)
	}
	slices.SortFunc(names, func(a, b Algorithm) int {
		return cmp.Or(cmp.Compare(e.Estimates[a], e.Estimates[b]), cmp.Compare(a, b))
	})
	sep = "; estimates "
	for _, a := range names {
		fmt.Fprintf(&b, "%s%s %v", sep, a, e.Estimates[a].Round(100*time.Nanosecond))
		sep = ", "
	}
	return b.String()
}
