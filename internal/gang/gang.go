// SPDX-License-Identifier: Apache-2.0

// Package gang keeps two kinds of driver calls of a process apart: the launches of
// a gang, which is kernels that wait for each other, and the calls that may wait
// for a GPU with locks of the driver held.
//
// A kernel that waits for another rank's keeps its GPU busy until that one has
// been launched too. If in between another thread frees memory, which waits until
// the GPU is idle, and the driver lets no launch pass meanwhile, then neither
// ends. So a gang is launched alone; the calls that may wait come together, before
// or behind it.
package gang

import "sync"

var door sync.RWMutex

// Launch calls f, which launches a gang, while nobody is between Enter and Leave
// and no other gang is launched. f must not Enter.
func Launch(f func()) {
	door.Lock()
	defer door.Unlock()
	f()
}

// Enter begins a call that may wait for a GPU.
func Enter() { door.RLock() }

// Leave ends what Enter began.
func Leave() { door.RUnlock() }

// Launching tells whether Enter would have to wait. It is for tests.
func Launching() bool {
	if door.TryRLock() {
		door.RUnlock()
		return false
	}
	return true
}
