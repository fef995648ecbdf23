// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"fmt"
	"os"

	"github.com/geforce-p2p/geforce-p2p/nvrtc"
)

// openNVRTC loads the NVRTC library, once a process.
func openNVRTC() (compiler, error) {
	l, err := nvrtc.Load()
	if err != nil {
		return nil, err
	}
	return library{l}, nil
}

// library is NVRTC as the ladder wants it.
type library struct{ *nvrtc.Library }

// Version is "12.6".
func (l library) Version() string {
	major, minor := l.Library.Version()
	return fmt.Sprintf("%d.%d", major, minor)
}

// wanted tells whether the file is the NVRTC that the user named, if any.
func wanted(path string) bool {
	name := os.Getenv(nvrtc.EnvLibrary)
	if name == "" {
		return true
	}
	a, err := os.Stat(name)
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}
