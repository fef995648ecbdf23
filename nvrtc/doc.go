// SPDX-License-Identifier: Apache-2.0

// Package nvrtc compiles CUDA C++ to machine code for one GPU architecture
// (CUBIN) at run time, by NVIDIA's NVRTC library.
//
// The library is part of the CUDA toolkit and of its Python wheels, not of the
// driver. It is opened when first asked for; a host without it is no error
// until then. It needs no GPU, no driver and no current context.
package nvrtc
