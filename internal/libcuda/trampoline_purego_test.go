// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !amd64 || go1.27 || android

package libcuda_test

// ownTrampoline tells whether internal/dl calls by its own trampoline here, or
// by purego's.
const ownTrampoline = false
