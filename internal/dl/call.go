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
//
// The functions take an argument list from a pool; the methods of Args use the
// caller's own, which saves a few nanoseconds where the caller already has
// something pooled to keep it in.

// Args is an argument list: what passes between Go and C in one call. It lives
// on the heap, since the stack of a goroutine may move; a list made in the call
// would be an allocation each time. The addresses that stay behind in it are
// plain numbers and keep nothing alive. It serves one call at a time.
//
// The layout is known to call_linux_amd64.s.
type Args struct {
	fn uintptr
	a  [11]uintptr
	r  uintptr
}

var lists = sync.Pool{New: func() any { return new(Args) }}

// Call0 calls fn without arguments.
func Call0(fn Proc) uintptr {
	a := lists.Get().(*Args)
	r := a.call(fn, 0)
	lists.Put(a)
	return r
}

// Call1 calls fn with 1 argument.
//
//go:uintptrescapes
func Call1(fn Proc, a0 uintptr) uintptr {
	a := lists.Get().(*Args)
	a.a[0] = a0
	r := a.call(fn, 1)
	lists.Put(a)
	return r
}

// Call1 calls fn with 1 argument.
//
//go:uintptrescapes
func (a *Args) Call1(fn Proc, a0 uintptr) uintptr {
	a.a[0] = a0
	return a.call(fn, 1)
}

// Call2 calls fn with 2 arguments.
//
//go:uintptrescapes
func Call2(fn Proc, a0, a1 uintptr) uintptr {
	a := lists.Get().(*Args)
	a.a[0], a.a[1] = a0, a1
	r := a.call(fn, 2)
	lists.Put(a)
	return r
}

// Call2 calls fn with 2 arguments.
//
//go:uintptrescapes
func (a *Args) Call2(fn Proc, a0, a1 uintptr) uintptr {
	a.a[0], a.a[1] = a0, a1
	return a.call(fn, 2)
}

// Call3 calls fn with 3 arguments.
//
//go:uintptrescapes
func Call3(fn Proc, a0, a1, a2 uintptr) uintptr {
	a := lists.Get().(*Args)
	a.a[0], a.a[1], a.a[2] = a0, a1, a2
	r := a.call(fn, 3)
	lists.Put(a)
	return r
}

// Call3 calls fn with 3 arguments.
//
//go:uintptrescapes
func (a *Args) Call3(fn Proc, a0, a1, a2 uintptr) uintptr {
	a.a[0], a.a[1], a.a[2] = a0, a1, a2
	return a.call(fn, 3)
}

// Call4 calls fn with 4 arguments.
//
//go:uintptrescapes
func Call4(fn Proc, a0, a1, a2, a3 uintptr) uintptr {
	a := lists.Get().(*Args)
	a.a[0], a.a[1], a.a[2], a.a[3] = a0, a1, a2, a3
	r := a.call(fn, 4)
	lists.Put(a)
	return r
}

// Call4 calls fn with 4 arguments.
//
//go:uintptrescapes
func (a *Args) Call4(fn Proc, a0, a1, a2, a3 uintptr) uintptr {
	a.a[0], a.a[1], a.a[2], a.a[3] = a0, a1, a2, a3
	return a.call(fn, 4)
}

// Call5 calls fn with 5 arguments.
//
//go:uintptrescapes
func Call5(fn Proc, a0, a1, a2, a3, a4 uintptr) uintptr {
	a := lists.Get().(*Args)
	a.a[0], a.a[1], a.a[2], a.a[3], a.a[4] = a0, a1, a2, a3, a4
	r := a.call(fn, 5)
	lists.Put(a)
	return r
}

// Call5 calls fn with 5 arguments.
//
//go:uintptrescapes
func (a *Args) Call5(fn Proc, a0, a1, a2, a3, a4 uintptr) uintptr {
	a.a[0], a.a[1], a.a[2], a.a[3], a.a[4] = a0, a1, a2, a3, a4
	return a.call(fn, 5)
}

// Call6 calls fn with 6 arguments.
//
//go:uintptrescapes
func Call6(fn Proc, a0, a1, a2, a3, a4, a5 uintptr) uintptr {
	a := lists.Get().(*Args)
	a.a[0], a.a[1], a.a[2], a.a[3], a.a[4], a.a[5] = a0, a1, a2, a3, a4, a5
	r := a.call(fn, 6)
	lists.Put(a)
	return r
}

// Call6 calls fn with 6 arguments.
//
//go:uintptrescapes
func (a *Args) Call6(fn Proc, a0, a1, a2, a3, a4, a5 uintptr) uintptr {
	a.a[0], a.a[1], a.a[2], a.a[3], a.a[4], a.a[5] = a0, a1, a2, a3, a4, a5
	return a.call(fn, 6)
}

// Call7 calls fn with 7 arguments.
//
//go:uintptrescapes
func Call7(fn Proc, a0, a1, a2, a3, a4, a5, a6 uintptr) uintptr {
	a := lists.Get().(*Args)
	a.a[0], a.a[1], a.a[2], a.a[3], a.a[4], a.a[5], a.a[6] = a0, a1, a2, a3, a4, a5, a6
	r := a.call(fn, 7)
	lists.Put(a)
	return r
}

// Call7 calls fn with 7 arguments.
//
//go:uintptrescapes
func (a *Args) Call7(fn Proc, a0, a1, a2, a3, a4, a5, a6 uintptr) uintptr {
	a.a[0], a.a[1], a.a[2], a.a[3], a.a[4], a.a[5], a.a[6] = a0, a1, a2, a3, a4, a5, a6
	return a.call(fn, 7)
}

// Call8 calls fn with 8 arguments.
//
//go:uintptrescapes
func Call8(fn Proc, a0, a1, a2, a3, a4, a5, a6, a7 uintptr) uintptr {
	a := lists.Get().(*Args)
	a.a[0], a.a[1], a.a[2], a.a[3], a.a[4], a.a[5], a.a[6], a.a[7] = a0, a1, a2, a3, a4, a5, a6, a7
	r := a.call(fn, 8)
	lists.Put(a)
	return r
}

// Call8 calls fn with 8 arguments.
//
//go:uintptrescapes
func (a *Args) Call8(fn Proc, a0, a1, a2, a3, a4, a5, a6, a7 uintptr) uintptr {
	a.a[0], a.a[1], a.a[2], a.a[3], a.a[4], a.a[5], a.a[6], a.a[7] = a0, a1, a2, a3, a4, a5, a6, a7
	return a.call(fn, 8)
}

// Call9 calls fn with 9 arguments.
//
//go:uintptrescapes
func Call9(fn Proc, a0, a1, a2, a3, a4, a5, a6, a7, a8 uintptr) uintptr {
	a := lists.Get().(*Args)
	a.a[0], a.a[1], a.a[2], a.a[3], a.a[4], a.a[5], a.a[6], a.a[7], a.a[8] = a0, a1, a2, a3, a4, a5, a6, a7, a8
	r := a.call(fn, 9)
	lists.Put(a)
	return r
}

// Call9 calls fn with 9 arguments.
//
//go:uintptrescapes
func (a *Args) Call9(fn Proc, a0, a1, a2, a3, a4, a5, a6, a7, a8 uintptr) uintptr {
	a.a[0], a.a[1], a.a[2], a.a[3], a.a[4], a.a[5], a.a[6], a.a[7], a.a[8] = a0, a1, a2, a3, a4, a5, a6, a7, a8
	return a.call(fn, 9)
}

// Call10 calls fn with 10 arguments.
//
//go:uintptrescapes
func Call10(fn Proc, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9 uintptr) uintptr {
	a := lists.Get().(*Args)
	a.a[0], a.a[1], a.a[2], a.a[3], a.a[4], a.a[5], a.a[6], a.a[7], a.a[8], a.a[9] = a0, a1, a2, a3, a4, a5, a6, a7, a8, a9
	r := a.call(fn, 10)
	lists.Put(a)
	return r
}

// Call10 calls fn with 10 arguments.
//
//go:uintptrescapes
func (a *Args) Call10(fn Proc, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9 uintptr) uintptr {
	a.a[0], a.a[1], a.a[2], a.a[3], a.a[4], a.a[5], a.a[6], a.a[7], a.a[8], a.a[9] = a0, a1, a2, a3, a4, a5, a6, a7, a8, a9
	return a.call(fn, 10)
}

// Call11 calls fn with 11 arguments.
//
//go:uintptrescapes
func Call11(fn Proc, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10 uintptr) uintptr {
	a := lists.Get().(*Args)
	a.a[0], a.a[1], a.a[2], a.a[3], a.a[4], a.a[5], a.a[6], a.a[7], a.a[8], a.a[9], a.a[10] = a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10
	r := a.call(fn, 11)
	lists.Put(a)
	return r
}

// Call11 calls fn with 11 arguments.
//
//go:uintptrescapes
func (a *Args) Call11(fn Proc, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10 uintptr) uintptr {
	a.a[0], a.a[1], a.a[2], a.a[3], a.a[4], a.a[5], a.a[6], a.a[7], a.a[8], a.a[9], a.a[10] = a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10
	return a.call(fn, 11)
}
