// SPDX-License-Identifier: Apache-2.0

//go:build (linux || darwin) && (amd64 || arm64) && !android && !ios

package dl

import (
	"runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
)

// load wraps dlopen. dlerror belongs to the OS thread and purego asks for it
// in a second call, so both must run on one thread.
func load(name string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

// find wraps dlsym, on one thread for the same reason.
func find(handle uintptr, symbol string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlsym(handle, symbol)
}

// saysAbsent reads the texts of glibc, musl and darwin. They are not translated:
// nothing here sets a locale. A text that is not known means that the library
// is there, so that a broken machine is not taken for one without a driver.
func saysAbsent(name string, err error) bool {
	text := err.Error()
	for _, absent := range []string{
		name + ": cannot open shared object file: No such file or directory",
		"Error loading shared library " + name + ": No such file or directory",
		"'" + name + "' (no such file)",
	} {
		if strings.Contains(text, absent) {
			return true
		}
	}
	return false
}

// dlInfo is Dl_info of dlfcn.h.
type dlInfo struct {
	fname, fbase, sname, saddr uintptr
}

// dladdr asks the loader which file holds an address. The function is looked
// up each time: it is asked once or twice in a process.
func dladdr(addr uintptr) string {
	p, err := find(purego.RTLD_DEFAULT, "dladdr")
	if err != nil || p == 0 {
		return ""
	}
	info := new(dlInfo)
	if int32(Call2(Proc(p), addr, uintptr(unsafe.Pointer(info)))) == 0 {
		return ""
	}
	return GoString(info.fname)
}
