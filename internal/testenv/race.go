// SPDX-License-Identifier: Apache-2.0

//go:build race

package testenv

// Race tells whether the race detector is compiled in.
const Race = true
