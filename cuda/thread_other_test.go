// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cuda_test

// threadID takes all threads for one: tests that use several skip.
func threadID() int { return 0 }

const threads = false
