// SPDX-License-Identifier: Apache-2.0

package main

import "io"

// An output keeps the first error of the writer behind it, so that text may be
// written line by line, and a full disk is found all the same. What comes after
// an error is not written.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(b []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.w.Write(b)
	o.err = err
	return n, err
}
