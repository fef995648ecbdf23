// SPDX-License-Identifier: Apache-2.0

//go:build race

package plan

// thorough is off under the race detector, which makes this package's tests
// ten times slower and, there being no goroutine here, tells nothing.
const thorough = false
