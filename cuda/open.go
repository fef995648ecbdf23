// SPDX-License-Identifier: Apache-2.0

package cuda

// Open loads the driver library and initialises it (cuInit), which takes a
// tenth of a second. Nothing is loaded before.
//
// Without a library the error is ErrNoLibrary and lists every path that was
// tried. What cuInit refuses is an *Error: ErrNoDevice where the driver shows no
// GPU, ErrStubLibrary where the toolkit's stub was found instead of a driver.
func Open() (*Driver, error) {
	seam, err := openLibrary()
	if err != nil {
		return nil, err
	}
	return newDriver(seam)
}
