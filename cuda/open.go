// SPDX-License-Identifier: Apache-2.0

package cuda

import "github.com/geforce-p2p/geforce-p2p/internal/libcuda"

// ErrNoLibrary is matched by the error of Open on a machine that has no driver
// library at all. A library that is there and does not load is another error.
var ErrNoLibrary = libcuda.ErrNoLibrary

// Open loads the driver library of this system and initialises it (cuInit),
// which takes a tenth of a second. Nothing is loaded before. The environment
// variable GP_CUDA_LIBRARY names another file to load.
//
// Without a library the error is ErrNoLibrary and lists every name that was
// tried with its reason. What cuInit refuses is an *Error: ErrNoDevice where the
// driver shows no GPU, ErrStubLibrary where the toolkit's stub was found instead
// of a driver.
//
// Each call returns a Driver of its own; all of them share what the library
// keeps for the process, such as the primary contexts.
func Open() (*Driver, error) {
	seam, err := libcuda.Open()
	if err != nil {
		return nil, err
	}
	return newDriver(seam)
}
