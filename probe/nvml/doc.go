// SPDX-License-Identifier: Apache-2.0

// Package nvml asks NVIDIA's management library (libnvidia-ml, nvml.dll) what
// the probe wants to know of GPUs and of pairs of them. It is opened at run
// time, without cgo.
//
// Only the exact exported names are bound, each looked up when first needed: a
// library that lacks one answers ErrFunctionNotFound from the one query that
// needs it. That, and ErrNotSupported, mean "not known here", never "no".
//
// Indices are NVML's own: CUDA numbers the same GPUs differently. Match on the
// bus id, then on the UUID.
package nvml
