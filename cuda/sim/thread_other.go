// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !windows && !darwin

package sim

import (
	"bytes"
	"runtime"
	"strconv"
)

// threadID stands in for the calling OS thread's id where there is no cheap
// call for it. The caller has locked its goroutine to the thread, so that the
// goroutine's id, read off its stack trace, is as good until it unlocks.
func threadID() uint64 {
	var buf [64]byte
	b := bytes.TrimPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
	if i := bytes.IndexByte(b, ' '); i >= 0 {
		b = b[:i]
	}
	id, _ := strconv.ParseUint(string(b), 10, 64)
	return id
}
