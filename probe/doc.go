// SPDX-License-Identifier: Apache-2.0

// Package probe says why peer-to-peer access between GPUs is off here, for
// every GPU and every pair in both directions, and whether the driver patch of
// PATCH.md would likely turn it on.
//
// It works in two steps. Collect gathers facts: what CUDA, NVML, /proc, /sys
// and the device nodes tell, each with its source or the reason why it could
// not be read. Diagnose is a pure function from facts to a report. So a
// machine's facts can be saved to a file and be judged anywhere, and a test is
// a file.
package probe
