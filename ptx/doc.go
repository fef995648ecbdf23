// SPDX-License-Identifier: Apache-2.0

// Package ptx holds the CUDA kernels, as source and as ready PTX, and loads
// them into contexts by whatever the machine offers: see Loader.
//
// The kernels' names, parameters and arithmetic are package internal/kernel's,
// and which files a module is joined from; the .cu files say how they are
// written, exchange.cu how kernels wait for each other. "make ptx" compiles them
// with clang 16 into embedded/, after holding every instruction against a table
// of what PTX 7.0 and sm_80 have; tests run the result instruction by
// instruction against the reference.
package ptx
