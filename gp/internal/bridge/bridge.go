// SPDX-License-Identifier: Apache-2.0

// Package bridge lends the engine of package gp to package lowlevel, which is
// its own package so that what most callers do not need stays out of gp's
// documentation. Package gp fills the variables in from its init. Buffers
// travel as any, since this package cannot import gp.
package bridge

import "unsafe"

// Staging is the pinned memory of one staged copy.
type Staging struct {
	Host  unsafe.Pointer
	Bytes uint64
}

var (
	// StagedCopy enqueues a copy between two ranks through the given staging;
	// the result is a gp.Work.
	StagedCopy func(dst, src any, staging Staging, chunk int) (work any, err error)
	// HostKernel enqueues a kernel on buf's stream that reads or writes n
	// bytes of pinned host memory at host. What is "reduce_from_host",
	// "copy_to_host" or "copy_from_host"; op is a gp.Op. The result is a
	// gp.Work.
	HostKernel func(what string, buf any, host unsafe.Pointer, n int, op any) (work any, err error)
)
