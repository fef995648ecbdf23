// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"io/fs"
	"runtime"
	"time"
)

// host is the machine beside the driver: files of its own and the virtual clock.
type host struct {
	m     *Machine
	files *tree
}

func (h *host) FS() fs.FS { return h.files }

func (h *host) Modelled() bool { return true }

// Now is the host's virtual clock: driver calls and sleeping advance it.
func (h *host) Now() time.Duration {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	return h.m.clock
}

// Sleep advances the clock and returns at once.
func (h *host) Sleep(d time.Duration) {
	h.m.mu.Lock()
	h.m.hold(max(d, 0))
	h.m.clock += max(d, 0)
	h.m.mu.Unlock()
	// Whoever polls with a sleep in between lets others go on meanwhile.
	runtime.Gosched()
}

// PreferNode makes the pinned memory that the calling thread allocates lie on a
// NUMA node of the machine.
func (h *host) PreferNode(node int) (restore func(), err error) { return h.m.preferNode(node) }
