// SPDX-License-Identifier: Apache-2.0

//go:build windows && (amd64 || arm64)

package dl

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/windows"
)

// load opens a bare name from the system directory only, so that a file
// dropped beside the program or into the working directory is never taken for
// a driver library. An absolute path may also find its dependencies in its own
// directory.
func load(name string) (uintptr, error) {
	flags := uintptr(windows.LOAD_LIBRARY_SEARCH_SYSTEM32)
	if filepath.IsAbs(name) {
		flags |= windows.LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR
	}
	h, err := windows.LoadLibraryEx(name, 0, flags)
	return uintptr(h), err
}

func find(handle uintptr, symbol string) (uintptr, error) {
	return windows.GetProcAddress(windows.Handle(handle), symbol)
}

func fileOf(handle, _ uintptr) string {
	buf := make([]uint16, 32768) // the longest path that Windows knows
	n, err := windows.GetModuleFileName(windows.Handle(handle), &buf[0], uint32(len(buf)))
	if err != nil {
		return ""
	}
	return windows.UTF16ToString(buf[:n])
}

// saysAbsent: a bare name is looked for in the system directory, and the error
// of an absent dependency is the same as that of an absent library.
func saysAbsent(name string, _ error) bool {
	dir, err := windows.GetSystemDirectory()
	if err != nil {
		return false
	}
	_, err = os.Stat(filepath.Join(dir, name))
	return errors.Is(err, fs.ErrNotExist)
}
