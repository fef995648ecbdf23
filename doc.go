// SPDX-License-Identifier: Apache-2.0

// Package geforcep2p is the root of a library that moves data between NVIDIA
// GPUs whose driver denies them peer-to-peer access. The package itself is
// empty; these are the ones to import:
//
//   - gp copies between GPUs and runs collectives (all_reduce and the others of
//     the field) over pinned host memory. Start with gp.Open.
//   - gp/lowlevel has the single steps under that, through pinned memory of the
//     caller's own.
//   - probe says why P2P is off for a pair of GPUs, and what would turn it on.
//   - cuda is the CUDA driver API as Go values.
//   - cuda/sim is a driver over simulated GPUs, for programs and tests on
//     machines that have none.
//   - nvrtc compiles CUDA C++ at run time; ptx holds the kernels that ship.
//
// # The model
//
// A rank is one GPU with two queues, its lanes: one moves device memory to host
// memory, the other moves host memory to device memory and reduces. Two GPUs sit
// on two PCIe links, so a transfer from one to the other can use both links at the
// same time if it is cut into pieces: while one piece goes up to the second GPU,
// the next already comes down from the first. The pieces pass through a few slots
// of pinned host memory that every rank can read.
//
// Every operation is first written out as a plan: a list of steps, each with
// the rank and lane that runs it and the earlier steps that it must follow. A
// plan is plain data. It is checked and interpreted in tests without a GPU; one
// executor turns it into stream calls.
//
// Calls are stream-ordered and asynchronous: they return once the work is
// enqueued, the work waits for what the buffers' streams already hold, and what
// those streams are given afterwards waits for the work.
//
// # No cgo
//
// libcuda and libnvrtc are opened at run time, so a binary built with
// CGO_ENABLED=0 runs on a host that has NVIDIA's driver and nothing else. It is
// not a static binary: it asks the system's loader for libc, as any program
// that opens a shared library must.
package geforcep2p
