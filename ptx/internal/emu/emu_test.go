// SPDX-License-Identifier: Apache-2.0

package emu

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/ptx/internal/isa"
)

type memory []byte

func (m memory) Bytes(addr, n uint64) ([]byte, error) {
	if addr < 4096 || addr+n > 4096+uint64(len(m)) {
		return nil, errors.New("nothing there")
	}
	return m[addr-4096:][:n], nil
}

// run runs the body of a kernel that is given one parameter, 4096, with a
// single thread, and returns the eight bytes at that address.
func run(t *testing.T, body string) (uint64, error) {
	t.Helper()
	m, err := isa.Parse(".version 7.0\n.target sm_80\n.visible .entry k(\n.param .u64 p\n)\n{\n" +
		".reg .pred %p<9>;\n.reg .b16 %rs<9>;\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n.reg .f32 %f<9>;\n.reg .f64 %fd<9>;\n" +
		"ld.param.u64 %rd1, [p];\n" + body + "\nret;\n}\n")
	require.NoError(t, err)
	k, err := Compile(m, "k")
	if err != nil {
		return 0, err
	}
	mem := make(memory, 8)
	err = k.Run(1, 1, binary.LittleEndian.AppendUint64(nil, 4096), mem)
	return binary.LittleEndian.Uint64(mem), err
}

// What the PTX document says of instructions, where it is easy to get wrong.
func TestInstructions(t *testing.T) {
	for body, want := range map[string]uint64{
		// A field that ends beyond the register is filled with zeros if unsigned.
		"mov.b64 %rd2, -1;\nbfe.u64 %rd3, %rd2, 63, 63;\nst.global.u64 [%rd1], %rd3;":                                                   1,
		"mov.u32 %r1, -8;\nshr.s32 %r2, %r1, 1;\ncvt.s64.s32 %rd2, %r2;\nst.global.u64 [%rd1], %rd2;":                                   uint64(0xfffffffffffffffc),
		"mov.u32 %r1, -8;\nshr.u32 %r2, %r1, 40;\ncvt.u64.u32 %rd2, %r2;\nst.global.u64 [%rd1], %rd2;":                                  0,
		"mov.u32 %r1, -2;\nmov.u32 %r2, 35;\nshf.l.wrap.b32 %r3, %r1, %r1, %r2;\nst.global.u32 [%rd1], %r3;":                            0xfffffff7,
		"mov.u32 %r1, 5;\nmov.u32 %r2, 3;\nshf.r.wrap.b32 %r3, %r1, %r2, 1;\nst.global.u32 [%rd1], %r3;":                                0x80000002,
		"mov.u32 %r1, 511;\ncvt.s64.s8 %rd2, %r1;\nst.global.u64 [%rd1], %rd2;":                                                         ^uint64(0),
		"mov.b64 %rd2, -7;\ndiv.s64 %rd3, %rd2, 2;\nst.global.u64 [%rd1], %rd3;":                                                        uint64(0xfffffffffffffffd),
		"mov.u32 %r1, -1;\nmul.wide.u32 %rd2, %r1, %r1;\nst.global.u64 [%rd1], %rd2;":                                                   0xfffffffe00000001,
		"mov.u32 %r1, -1;\nmov.u32 %r2, 5;\nmov.b64 %rd2, {%r1, %r2};\nst.global.u64 [%rd1], %rd2;":                                     0x5ffffffff,
		"mov.f32 %f1, 0f80000000;\nmov.f32 %f2, 0f00000000;\nmin.NaN.f32 %f3, %f2, %f1;\nmov.b32 %r1, %f3;\nst.global.u32 [%rd1], %r1;": 0x80000000,
		"mov.f32 %f1, 0fffc00123;\nmax.NaN.f32 %f3, 0f3f800000, %f1;\nmov.b32 %r1, %f3;\nst.global.u32 [%rd1+4], %r1;":                  0x7fffffff << 32,
		"mov.f64 %fd1, 0d7ff8000000000000;\nsetp.num.f64 %p1, %fd1, %fd1;\nselp.b64 %rd2, 1, 2, %p1;\nst.global.u64 [%rd1], %rd2;":      2,
		"setp.gt.u64 %p1, -1, 1;\n@!%p1 bra L;\nmov.b64 %rd2, 3;\nst.global.u64 [%rd1], %rd2;\nL:":                                      3,
		"cvt.rn.f32.u64 %f1, -1;\nmov.b32 %r1, %f1;\nst.global.u32 [%rd1], %r1;":                                                        uint64(math.Float32bits(1 << 63 * 2)),
	} {
		got, err := run(t, body)
		require.NoError(t, err, body)
		require.Equal(t, want, got, "%s: %#x, want %#x", body, got, want)
	}
}

func TestFaults(t *testing.T) {
	for body, why := range map[string]string{
		"ld.global.u64 %rd2, [%rd1+4];":          "not aligned to 8",
		"ld.global.v2.u32 {%r1, %r2}, [%rd1+4];": "not aligned to 8",
		"ld.global.u64 %rd2, [%rd1+8];":          "nothing there",
		"st.global.u8 [%rd1+-1], 1;":             "nothing there",
		"L:\nbra L;":                             "no end",
		"bra M;":                                 "no label",
		"frob.u32 %r1, %r2, %r3;":                "unknown instruction",
		"fma.rn.f32 %f1, %f2, %f3, %f4;":         "unknown instruction",
		"mov.u32 %q1, %r2;":                      "unknown register",
		"min.NaN.f64 %fd1, %fd2, %fd3;":          "unknown instruction",
	} {
		_, err := run(t, body)
		require.ErrorContains(t, err, why, body)
	}
}
