// SPDX-License-Identifier: Apache-2.0

package api

import (
	"io/fs"
	"time"
)

// Host is the machine beside the driver. A simulated machine supplies its own,
// so that nothing of the real one reaches a simulated run.
type Host interface {
	// FS is rooted at "/": it answers "sys/...", "proc/..." and "dev/...".
	FS() fs.FS
	// Now is the time since some fixed point, monotonic. It is virtual on a
	// simulated machine, and then calls on the Driver advance it.
	Now() time.Duration
	// Sleep returns once Now has advanced by at least d.
	Sleep(d time.Duration)
	// Modelled tells whether figures taken by this clock are a model's.
	Modelled() bool
	// PreferNode makes the calling OS thread allocate host pages on a NUMA node
	// and returns a function that puts the thread's policy back. The caller has
	// locked its goroutine to the thread.
	PreferNode(node int) (restore func(), err error)
}
