// SPDX-License-Identifier: Apache-2.0

// Package cuda is the CUDA driver API as Go values, without cgo and without a
// toolkit: the driver library is opened at run time.
//
//	d, err := cuda.Open()
//	dev, err := d.Device(0)
//	ctx, err := dev.Primary()
//	defer ctx.Close()
//	mem, err := ctx.Alloc(1 << 20)
//	defer mem.Close()
//	err = ctx.MemcpyHtoD(mem.Ptr(), data)
//
// A Driver gives Devices, a Device its primary Context, and a Context makes
// streams, events, memory and modules. Each method names the driver function
// behind it. Errors are *Error with the driver's Code:
//
//	if errors.Is(err, cuda.ErrOutOfMemory) { ... }
//
// Contexts are current to OS threads, and goroutines move between those: see
// Context for how methods cope. Nothing here is freed by the garbage collector:
// see Memory.
package cuda
