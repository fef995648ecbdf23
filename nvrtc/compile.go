// SPDX-License-Identifier: Apache-2.0

package nvrtc

import (
	"bytes"
	"strings"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/dl"
)

// program is what one compilation needs in memory that NVRTC reads or writes.
// It is on the heap, which does not move, and holds every string that options
// points to.
type program struct {
	handle  uint64
	size    uint64
	source  []byte
	name    []byte
	options []unsafe.Pointer // const char *const *
}

// Compile makes a CUBIN of CUDA C++ source. name is the file name in messages.
// options are NVRTC's, and must hold --gpu-architecture=sm_XY: a virtual
// architecture (compute_XY) has no CUBIN. log is the compiler's text, warnings
// included, also where it failed. It may be called from any goroutine.
//
// The error is an *Error, which holds the log too. The functions behind it are
// nvrtcCreateProgram, nvrtcCompileProgram and nvrtcGetCUBIN.
func (l *Library) Compile(source, name string, options ...string) (cubin []byte, log string, err error) {
	p := &program{source: cstring(source), name: cstring(name)}
	for _, o := range options {
		p.options = append(p.options, unsafe.Pointer(&cstring(o)[0]))
	}
	if strings.IndexByte(source, 0) >= 0 {
		return nil, "", &Error{Op: "nvrtcCreateProgram", Code: invalidInput, Text: "the source holds a NUL byte", Library: l.path}
	}

	if r := result(dl.Call6(l.createProgram, uintptr(unsafe.Pointer(&p.handle)),
		uintptr(unsafe.Pointer(&p.source[0])), uintptr(unsafe.Pointer(&p.name[0])), 0, 0, 0)); r != success {
		return nil, "", l.fail("nvrtcCreateProgram", r)
	}
	// Its result is of no use: what was asked for is there or is not.
	defer func() { dl.Call1(l.destroyProgram, uintptr(unsafe.Pointer(&p.handle))) }()

	var r Code
	if n := len(p.options); n > 0 {
		r = result(dl.Call3(l.compileProgram, uintptr(p.handle), uintptr(n), uintptr(unsafe.Pointer(&p.options[0]))))
	} else {
		r = result(dl.Call3(l.compileProgram, uintptr(p.handle), 0, 0))
	}
	log = l.log(p)
	if r != success {
		e := l.fail("nvrtcCompileProgram", r)
		e.Log = log
		if l.note != "" && r == builtinOperationFailure {
			e.Text += "; " + l.note
		}
		return nil, log, e
	}

	if r := result(dl.Call2(l.getCUBINSize, uintptr(p.handle), uintptr(unsafe.Pointer(&p.size)))); r != success {
		e := l.fail("nvrtcGetCUBINSize", r)
		e.Log = log
		return nil, log, e
	}
	if p.size == 0 {
		return nil, log, &Error{Op: "nvrtcGetCUBIN", Code: invalidOption, Log: log, Library: l.path,
			Text: "no CUBIN: the options name no real architecture (--gpu-architecture=sm_XY)"}
	}
	cubin = make([]byte, p.size)
	if r := result(dl.Call2(l.getCUBIN, uintptr(p.handle), uintptr(unsafe.Pointer(&cubin[0])))); r != success {
		e := l.fail("nvrtcGetCUBIN", r)
		e.Log = log
		return nil, log, e
	}
	return cubin, log, nil
}

// log is the program's log without its NUL and surrounding blank lines; "" if
// NVRTC does not give it.
func (l *Library) log(p *program) string {
	p.size = 0
	if result(dl.Call2(l.getProgramLogSize, uintptr(p.handle), uintptr(unsafe.Pointer(&p.size)))) != success || p.size == 0 {
		return ""
	}
	buf := make([]byte, p.size)
	if result(dl.Call2(l.getProgramLog, uintptr(p.handle), uintptr(unsafe.Pointer(&buf[0])))) != success {
		return ""
	}
	if n := bytes.IndexByte(buf, 0); n >= 0 {
		buf = buf[:n]
	}
	return string(bytes.Trim(buf, "\n"))
}

// cstring is s with a NUL after it.
func cstring(s string) []byte {
	b := make([]byte, len(s)+1)
	copy(b, s)
	return b
}
