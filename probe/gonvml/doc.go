// SPDX-License-Identifier: Apache-2.0

// Package gonvml lets the probe ask through github.com/NVIDIA/go-nvml, for a
// program that holds an nvml.Interface of its own already, or a mock of one:
//
//	lib := nvml.New()
//	lib.Init()
//	defer lib.Shutdown()
//	source := gonvml.From(lib)
//
// It is a module of its own because go-nvml needs cgo and exists for Linux only:
// with cgo off, and on other systems, this package is empty. Its tests hold the
// project's own binding (probe/nvml) to go-nvml, field by field.
package gonvml
