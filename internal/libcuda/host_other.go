// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package libcuda

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
)

func preferNode(fs.FS, int) (restore func(), err error) {
	return nil, fmt.Errorf("preferring a NUMA node on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}
