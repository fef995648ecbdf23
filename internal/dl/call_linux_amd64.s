// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64 && !go1.27 && !android

#include "textflag.h"

GLOBL ·trampoline(SB), NOPTR|RODATA, $8
DATA ·trampoline(SB)/8, $callC(SB)

// callC calls Args.fn with the eleven arguments of an Args, whose address is in
// DI, and leaves the result register in Args.r. It runs on the system stack, as
// C does: six arguments go in registers and five on the stack, whose pointer is
// a multiple of 16 at the call (return address 8, frame pointer 8, frame 48).
// Arguments beyond those that the function has do no harm.
TEXT callC(SB), NOSPLIT, $48
	MOVQ DI, 40(SP)
	MOVQ DI, R11
	MOVQ 56(R11), AX // the seventh and on
	MOVQ AX, 0(SP)
	MOVQ 64(R11), AX
	MOVQ AX, 8(SP)
	MOVQ 72(R11), AX
	MOVQ AX, 16(SP)
	MOVQ 80(R11), AX
	MOVQ AX, 24(SP)
	MOVQ 88(R11), AX
	MOVQ AX, 32(SP)
	MOVQ 0(R11), R10
	MOVQ 8(R11), DI
	MOVQ 16(R11), SI
	MOVQ 24(R11), DX
	MOVQ 32(R11), CX
	MOVQ 40(R11), R8
	MOVQ 48(R11), R9
	XORL AX, AX // a variadic function looks here for the number of floats
	CALL R10
	MOVQ 40(SP), R11
	MOVQ AX, 96(R11)
	RET
