// SPDX-License-Identifier: Apache-2.0

package nvml

import "sync"

// mu is held around every call of NVML, of all Libraries of the process: they
// are one library with one state below, and it has had thread safety bugs
// (NCCL's src/misc/nvmlwrap.cc serialises it for that reason).
var mu sync.Mutex

// Serialized runs f under the lock that is held around every call of NVML in
// this package. Whoever calls the same library through another binding takes
// it as well. f must not call this package.
func Serialized(f func()) {
	mu.Lock()
	defer mu.Unlock()
	f()
}
