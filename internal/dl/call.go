// SPDX-License-Identifier: Apache-2.0

package dl

import "sync"

// Call0 to Call11 call a C function with that many integer or pointer
// arguments and return its whole result register: narrow it to the type that C
// declares (int32(r), uint32(r)) before use.
//
// A pointer argument must be converted where it is passed, in the argument
// list itself:
//
//	dl.Call1(fn, uintptr(unsafe.Pointer(&frame.out)))
//
// The go:uintptrescapes pragma then moves the object to the heap and keeps it
// alive until the call returns. An address that was put into a variable before
// has neither, and is wrong once the stack moves. The pragma works for direct
// calls only, never through an interface or a function value.
//
// None of them allocates. Functions with floating-point arguments or structs
// by value cannot be called with them.

const maxArgs = 11

// args holds argument lists: purego's variadic SyscallN lets its slice escape,
// so a list made in the call would be an allocation each time. The addresses
// that stay behind in a list are plain numbers and keep nothing alive.
var args = sync.Pool{New: func() any { return new([maxArgs]uintptr) }}

// Call0 calls fn without arguments.
func Call0(fn Proc) uintptr { return call(fn, nil) }

// Call1 calls fn with 1 argument.
//
//go:uintptrescapes
func Call1(fn Proc, a0 uintptr) uintptr {
	f := args.Get().(*[maxArgs]uintptr)
	*f = [maxArgs]uintptr{a0}
	r := call(fn, f[:1])
	args.Put(f)
	return r
}

// Call2 calls fn with 2 arguments.
//
//go:uintptrescapes
func Call2(fn Proc, a0, a1 uintptr) uintptr {
	f := args.Get().(*[maxArgs]uintptr)
	*f = [maxArgs]uintptr{a0, a1}
	r := call(fn, f[:2])
	args.Put(f)
	return r
}

// Call3 calls fn with 3 arguments.
//
//go:uintptrescapes
func Call3(fn Proc, a0, a1, a2 uintptr) uintptr {
	f := args.Get().(*[maxArgs]uintptr)
	*f = [maxArgs]uintptr{a0, a1, a2}
	r := call(fn, f[:3])
	args.Put(f)
	return r
}

// Call4 calls fn with 4 arguments.
//
//go:uintptrescapes
func Call4(fn Proc, a0, a1, a2, a3 uintptr) uintptr {
	f := args.Get().(*[maxArgs]uintptr)
	*f = [maxArgs]uintptr{a0, a1, a2, a3}
	r := call(fn, f[:4])
	args.Put(f)
	return r
}

// Call5 calls fn with 5 arguments.
//
//go:uintptrescapes
func Call5(fn Proc, a0, a1, a2, a3, a4 uintptr) uintptr {
	f := args.Get().(*[maxArgs]uintptr)
	*f = [maxArgs]uintptr{a0, a1, a2, a3, a4}
	r := call(fn, f[:5])
	args.Put(f)
	return r
}

// Call6 calls fn with 6 arguments.
//
//go:uintptrescapes
func Call6(fn Proc, a0, a1, a2, a3, a4, a5 uintptr) uintptr {
	f := args.Get().(*[maxArgs]uintptr)
	*f = [maxArgs]uintptr{a0, a1, a2, a3, a4, a5}
	r := call(fn, f[:6])
	args.Put(f)
	return r
}

// Call7 calls fn with 7 arguments.
//
//go:uintptrescapes
func Call7(fn Proc, a0, a1, a2, a3, a4, a5, a6 uintptr) uintptr {
	f := args.Get().(*[maxArgs]uintptr)
	*f = [maxArgs]uintptr{a0, a1, a2, a3, a4, a5, a6}
	r := call(fn, f[:7])
	args.Put(f)
	return r
}

// Call8 calls fn with 8 arguments.
//
//go:uintptrescapes
func Call8(fn Proc, a0, a1, a2, a3, a4, a5, a6, a7 uintptr) uintptr {
	f := args.Get().(*[maxArgs]uintptr)
	*f = [maxArgs]uintptr{a0, a1, a2, a3, a4, a5, a6, a7}
	r := call(fn, f[:8])
	args.Put(f)
	return r
}

// Call9 calls fn with 9 arguments.
//
//go:uintptrescapes
func Call9(fn Proc, a0, a1, a2, a3, a4, a5, a6, a7, a8 uintptr) uintptr {
	f := args.Get().(*[maxArgs]uintptr)
	*f = [maxArgs]uintptr{a0, a1, a2, a3, a4, a5, a6, a7, a8}
	r := call(fn, f[:9])
	args.Put(f)
	return r
}

// Call10 calls fn with 10 arguments.
//
//go:uintptrescapes
func Call10(fn Proc, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9 uintptr) uintptr {
	f := args.Get().(*[maxArgs]uintptr)
	*f = [maxArgs]uintptr{a0, a1, a2, a3, a4, a5, a6, a7, a8, a9}
	r := call(fn, f[:10])
	args.Put(f)
	return r
}

// Call11 calls fn with 11 arguments.
//
//go:uintptrescapes
func Call11(fn Proc, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10 uintptr) uintptr {
	f := args.Get().(*[maxArgs]uintptr)
	*f = [maxArgs]uintptr{a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10}
	r := call(fn, f[:11])
	args.Put(f)
	return r
}
