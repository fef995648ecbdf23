// SPDX-License-Identifier: Apache-2.0

//go:build !((linux || darwin || windows) && (amd64 || arm64)) || android || ios

package dl

import (
	"errors"
	"fmt"
	"runtime"
)

func load(string) (uintptr, error) {
	return 0, fmt.Errorf("loading libraries on %s/%s: %w", runtime.GOOS, runtime.GOARCH, errors.ErrUnsupported)
}

func find(uintptr, string) (uintptr, error) { return 0, errors.ErrUnsupported }

func fileOf(uintptr, uintptr) string { return "" }

// call is never reached: without load there is no Proc to call.
func (a *Args) call(Proc, int) uintptr {
	panic("dl: call without a loaded library")
}

func saysAbsent(string, error) bool { return true }
