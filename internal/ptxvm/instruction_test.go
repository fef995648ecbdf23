// SPDX-License-Identifier: Apache-2.0

package ptxvm

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/ptxvm/isa"
)

var errNothing = errors.New("nothing there")

// memory is bytes at address 4096.
type memory struct {
	b       []byte
	written *Written
}

func (m memory) Region(addr uint64) (Region, error) {
	if addr < 4096 || addr >= 4096+uint64(len(m.b)) {
		return Region{}, errNothing
	}
	return Region{4096, m.b, m.written}, nil
}

// Bytes makes it a kernel.Memory.
func (m memory) Bytes(addr, n uint64) ([]byte, error) { return m.b[addr-4096:][:n], nil }

const header = ".version 7.0\n.target sm_80\n.visible .entry k(\n.param .u64 p\n)\n{\n" +
	".reg .pred %p<9>;\n.reg .b16 %rs<9>;\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n.reg .f32 %f<9>;\n.reg .f64 %fd<9>;\n" +
	".shared .align 4 .b8 sh[16];\n" +
	"ld.param.u64 %rd1, [p];\n"

// firstLine is that of a body behind the header.
var firstLine = strings.Count(header, "\n") + 1

// program is a kernel of one parameter, the address of its memory, in %rd1.
func program(t testing.TB, body string) (*Program, error) {
	t.Helper()
	m, err := isa.Parse(header + body + "\nret;\n}\n")
	require.NoError(t, err)
	return Compile(m, "k")
}

func launchOf(p *Program, blocks, threads uint32) Launch {
	return Launch{Program: p, Grid: [3]uint32{blocks}, Block: [3]uint32{threads}, Params: binary.LittleEndian.AppendUint64(nil, 4096)}
}

// result runs a body with one thread and returns the eight bytes of its memory.
func result(t testing.TB, body string) (uint64, error) {
	t.Helper()
	p, err := program(t, body)
	if err != nil {
		return 0, err
	}
	m := memory{b: make([]byte, 8)}
	_, err = Run(launchOf(p, 1, 1), m)
	return binary.LittleEndian.Uint64(m.b), err
}

// What the PTX document says of instructions, where it is easy to get wrong.
func TestInstructions(t *testing.T) {
	const st64, st32 = "\nst.global.u64 [%rd1], %rd3;", "\nst.global.u32 [%rd1], %r3;"
	for body, want := range map[string]uint64{
		// A field that ends beyond the register is filled with zeros if unsigned,
		// with the register's sign if signed.
		"mov.b64 %rd2, -1;\nbfe.u64 %rd3, %rd2, 63, 63;" + st64: 1,
		"mov.b32 %r2, -8;\nbfe.s32 %r3, %r2, 30, 8;" + st32:     0xffffffff,
		"mov.b32 %r2, 0x70;\nbfe.s32 %r3, %r2, 4, 3;" + st32:    0xffffffff,
		"mov.b32 %r2, 0x70;\nbfe.s32 %r3, %r2, 4, 4;" + st32:    7,
		"mov.b32 %r2, -1;\nbfe.s32 %r3, %r2, 4, 0;" + st32:      0,

		"mov.u32 %r1, -8;\nshr.s32 %r2, %r1, 1;\ncvt.s64.s32 %rd3, %r2;" + st64:                      0xfffffffffffffffc,
		"mov.u32 %r1, -8;\nshr.s32 %r2, %r1, 77;\ncvt.s64.s32 %rd3, %r2;" + st64:                     math.MaxUint64,
		"mov.u32 %r1, -8;\nshr.u32 %r2, %r1, 40;\ncvt.u64.u32 %rd3, %r2;" + st64:                     0,
		"mov.u32 %r1, 1;\nshl.b32 %r3, %r1, 32;" + st32:                                              0,
		"mov.u32 %r1, 511;\ncvt.s64.s8 %rd3, %r1;" + st64:                                            math.MaxUint64,
		"mov.u32 %r1, 511;\ncvt.u64.u8 %rd3, %r1;" + st64:                                            255,
		"mov.u32 %r1, 511;\ncvt.s32.s8 %r3, %r1;" + st32:                                             0xffffffff,
		"mov.u32 %r1, -1;\ncvt.u64.s32 %rd3, %r1;" + st64:                                            math.MaxUint64,
		"mov.u64 %rd2, -1;\ncvt.u32.u64 %r3, %rd2;" + st32:                                           math.MaxUint32,
		"mov.u32 %r1, 0x18000;\ncvt.u16.u32 %rs1, %r1;\ncvt.s32.s16 %r3, %rs1;" + st32:               0xffff8000,
		"mov.b64 %rd2, -7;\ndiv.s64 %rd3, %rd2, 2;" + st64:                                           0xfffffffffffffffd,
		"mov.b64 %rd2, -7;\nrem.s64 %rd3, %rd2, 2;" + st64:                                           math.MaxUint64,
		"mov.b32 %r2, -7;\nrem.u32 %r3, %r2, 0;" + st32:                                              math.MaxUint32,
		"mov.b64 %rd2, 0x8000000000000000;\ndiv.s64 %rd3, %rd2, -1;" + st64:                          1 << 63,
		"mov.u32 %r1, -1;\nmul.wide.u32 %rd3, %r1, %r1;" + st64:                                      0xfffffffe00000001,
		"mov.u32 %r1, -1;\nmul.wide.s32 %rd3, %r1, 5;" + st64:                                        0xfffffffffffffffb,
		"mov.u32 %r1, -1;\nmad.wide.s32 %rd3, %r1, 5, 6;" + st64:                                     1,
		"mov.u32 %r1, -1;\nmad.lo.s32 %r3, %r1, -1, 2;" + st32:                                       3,
		"mov.u64 %rd2, -1;\nmul.hi.u64 %rd3, %rd2, %rd2;" + st64:                                     0xfffffffffffffffe,
		"mov.u64 %rd2, -3;\nmul.hi.s64 %rd3, %rd2, 2;" + st64:                                        math.MaxUint64,
		"mov.u32 %r2, -3;\nmul.hi.s32 %r3, %r2, 2;" + st32:                                           math.MaxUint32,
		"mov.u32 %r1, -1;\nmov.u32 %r2, 5;\nmov.b64 %rd3, {%r1, %r2};" + st64:                        0x5ffffffff,
		"mov.u64 %rd2, 0x5ffffffff;\nmov.b64 {%r1, %r3}, %rd2;" + st32:                               5,
		"mov.u32 %r1, 0x50007;\nmov.b32 {%rs1, %rs2}, %r1;\ncvt.u32.u16 %r3, %rs2;" + st32:           5,
		"mov.u32 %r1, 0x03020100;\nmov.u32 %r2, 0x87060504;\nprmt.b32 %r3, %r1, %r2, 0xf640;" + st32: 0xff060400,
		"mov.u32 %r1, 0x80000001;\nmov.u32 %r2, 0x40;\nshf.l.wrap.b32 %r3, %r1, %r2, 33;" + st32:     0x81,
		"mov.u32 %r1, 0x80000001;\nmov.u32 %r2, 3;\nshf.r.wrap.b32 %r3, %r1, %r2, 1;" + st32:         0xc0000000,
		"mov.u32 %r1, 12;\nmov.u32 %r2, 10;\nlop3.b32 %r3, %r1, %r2, 15, 0x6a;" + st32:               15 ^ 8,
		"mov.u16 %rs1, -5;\nabs.s16 %rs2, %rs1;\ncvt.u32.u16 %r3, %rs2;" + st32:                      5,
		"mov.u32 %r1, -5;\nneg.s32 %r3, %r1;" + st32:                                                 5,
		"mov.u32 %r1, 5;\nnot.b32 %r3, %r1;" + st32:                                                  0xfffffffa,
		"mov.u32 %r1, -5;\nmin.u32 %r3, %r1, 3;" + st32:                                              3,
		"mov.u32 %r1, -5;\nmin.s32 %r3, %r1, 3;" + st32:                                              0xfffffffb,
		"mov.u16 %rs1, -5;\nadd.s16 %rs1, %rs1, 5;\ncvt.u32.u16 %r3, %rs1;" + st32:                   0,

		"mov.f32 %f1, 0f80000000;\nmov.f32 %f2, 0f00000000;\nmin.NaN.f32 %f3, %f2, %f1;\nst.global.u32 [%rd1], %f3;":        0x80000000,
		"mov.f32 %f1, 0fffc00123;\nmax.NaN.f32 %f3, 0f3f800000, %f1;\nst.global.u32 [%rd1+4], %f3;":                         0x7fffffff << 32,
		"mov.f32 %f1, 0fffc00123;\nmax.f32 %f3, 0f3f800000, %f1;\nst.global.u32 [%rd1], %f3;":                               0x3f800000,
		"mov.f64 %fd1, 0d7ff8000000000000;\nsetp.num.f64 %p1, %fd1, %fd1;\nselp.b64 %rd3, 1, 2, %p1;" + st64:                2,
		"mov.f64 %fd1, 0d7ff8000000000000;\nsetp.leu.f64 %p1, %fd1, 0d0000000000000000;\nselp.b64 %rd3, 1, 2, %p1;" + st64:  1,
		"mov.f64 %fd1, 0d3ff0000010000000;\ncvt.rn.f32.f64 %f1, %fd1;\ncvt.f64.f32 %fd2, %f1;\nst.global.u64 [%rd1], %fd2;": 0x3ff0000000000000,
		"cvt.rn.f32.u64 %f1, -1;\nst.global.u32 [%rd1], %f1;":                                                               uint64(math.Float32bits(1 << 63 * 2)),
		"mov.u32 %r1, -1;\ncvt.rn.f64.s32 %fd1, %r1;\nst.global.u64 [%rd1], %fd1;":                                          math.Float64bits(-1),
		"mov.u32 %r1, -1;\ncvt.rn.f32.u32 %f1, %r1;\nst.global.u32 [%rd1], %f1;":                                            uint64(math.Float32bits(1 << 32)),

		"setp.gt.u64 %p1, -1, 1;\n@!%p1 bra L;\nmov.b64 %rd3, 3;" + st64 + "\nL:":                                                      3,
		"mov.u32 %r1, -1;\nsetp.gt.s32 %p1, %r1, 1;\nselp.b32 %r3, 1, 2, %p1;" + st32:                                                  2,
		"mov.u32 %r1, -1;\nsetp.ge.s32 %p1, %r1, -1;\nselp.b32 %r3, 1, 2, %p1;" + st32:                                                 1,
		"mov.pred %p1, -1;\nnot.pred %p2, %p1;\nxor.pred %p3, %p1, %p2;\n@%p3 st.global.u8 [%rd1], 9;":                                 9,
		"mov.pred %p1, 0;\n@%p1 st.global.u8 [%rd1], 9;\n@!%p1 st.global.u8 [%rd1+1], 8;":                                              8 << 8,
		"mov.u64 %rd2, -2;\nst.global.u8 [%rd1+7], %rd2;\nld.global.s8 %r3, [%rd1+7];" + st32:                                          0xfe000000fffffffe,
		"mov.u32 %r1, 7;\nst.volatile.shared.u32 [sh+8], %r1;\nld.shared.u32 %r3, [sh+8];" + st32:                                      7,
		"mov.u32 %r1, 7;\nst.global.v2.u32 [%rd1], {%r1, 9};\nld.global.v2.u16 {%rs1, %rs2}, [%rd1+4];\ncvt.u32.u16 %r3, %rs1;" + st32: 9<<32 | 9,
		"mov.u32 %r3, %ntid.x;\nmov.u32 %r2, %nctaid.y;\nadd.s32 %r3, %r3, %r2;" + st32:                                                2,
		"mov.u32 %r1, 3;\nfence.acq_rel.sys;\nmembar.gl;\nnanosleep.u32 100;\nst.release.sys.global.u32 [%rd1], %r1;":                  3,
	} {
		got, err := result(t, body)
		require.NoError(t, err, body)
		require.Equal(t, want, got, "%s: %#x, want %#x", body, got, want)
	}
}

func TestFaults(t *testing.T) {
	for body, why := range map[string]error{
		"ld.global.u64 %rd2, [%rd1+4];":               ErrMisaligned,
		"ld.global.v2.u32 {%r1, %r2}, [%rd1+4];":      ErrMisaligned,
		"ld.global.u64 %rd2, [%rd1+8];":               errNothing,
		"ld.global.v4.u32 {%r1,%r2,%r3,%r4}, [%rd1];": ErrBounds,
		"st.global.u8 [%rd1+-1], 1;":                  errNothing,
		"ld.shared.u32 %r1, [sh+16];":                 ErrBounds,
		"ld.shared.u32 %r1, [sh+2];":                  ErrMisaligned,
		"ld.shared.u32 %r1, [sh+4];":                  ErrUnwritten,
		"ld.param.u64 %rd2, [p+8];":                   ErrBounds,
		"mov.u64 %rd2, %globaltimer;\nmov.u32 %r1, 1;\nL:\nmov.u64 %rd2, %globaltimer;\nbra L;": ErrEndless,
	} {
		_, err := result(t, body)
		require.ErrorIs(t, err, why, body)
		var f *Fault
		require.ErrorAs(t, err, &f, body)
		require.Equal(t, "k", f.Kernel)
		require.GreaterOrEqual(t, f.Line, firstLine, body)
		require.NotEmpty(t, f.Op)
	}
	// At compile time, with the line.
	for body, why := range map[string]string{
		"ret;\nfrob.u32 %r1, %r2, %r3;":   "line 16: frob.u32 %r1, %r2, %r3: unknown instruction",
		"bra M;":                          "no label",
		"fma.rn.f32 %f1, %f2, %f3, %f4;":  "not in the table",
		"ld.global.nc.u32 %r1, [%rd1];":   "stale data",
		"mov.u32 %q1, %r2;":               "unknown register",
		"min.NaN.f64 %fd1, %fd2, %fd3;":   "not in the table",
		"add.s32 %r1, %r2;":               "other operands",
		"ld.global.v2.u32 {%r1}, [%rd1];": "other operands",
		"ld.global.u32 %r1, %rd1;":        "not an address",
		"mov.u32 %r1, nonsense;":          "unknown operand",
		"bar.sync 1;":                     "other operands",
	} {
		_, err := program(t, body)
		require.ErrorContains(t, err, why, body)
		require.ErrorContains(t, err, "ptxvm: k line ", body)
	}
}

// Memory that nothing wrote is not read, byte by byte.
func TestUnwritten(t *testing.T) {
	p, err := program(t, "mov.u32 %r1, 5;\nst.global.u16 [%rd1+2], %r1;\nld.global.u16 %r2, [%rd1+2];\nld.global.u32 %r2, [%rd1];")
	require.NoError(t, err)
	m := memory{make([]byte, 8), NewWritten(8)}
	_, err = Run(launchOf(p, 1, 1), m)
	require.ErrorIs(t, err, ErrUnwritten)
	require.ErrorContains(t, err, "k, launch 0, block [0 0 0], thread [0 0 0], line 18: ld.global.u32")
	m.written.Mark(0, 2)
	_, err = Run(launchOf(p, 1, 1), m)
	require.NoError(t, err)

	w := NewWritten(200)
	w.Mark(60, 70)
	for off := range uint64(200) {
		for n := range min(17, 200-off) {
			require.Equal(t, n == 0 || off >= 60 && off+n <= 130, w.Has(off, n), "%d %d", off, n)
		}
	}
}

// What the table has can be compiled, unless it needs more than the table's
// version; nothing else can.
func TestTable(t *testing.T) {
	operands := func(op string) string {
		base, _, _ := strings.Cut(op, ".")
		reg := map[string]string{"8": "%r", "16": "%rs", "32": "%r", "64": "%rd", "ed": "%p"}
		of := func(s string) string {
			for _, k := range []string{"16", "32", "64", "ed", "8"} {
				if strings.HasSuffix(s, k) {
					return reg[k]
				}
			}
			return ""
		}
		mods := strings.Split(op, ".")
		r := of(op)
		lanes := func() string {
			switch {
			case strings.Contains(op, ".v2"):
				return "{" + r + "1, " + r + "2}"
			case strings.Contains(op, ".v4"):
				return "{" + r + "1, " + r + "2, " + r + "3, " + r + "4}"
			}
			return r + "1"
		}
		at := "[%rd1]"
		if strings.Contains(op, "shared") {
			at = "[sh]"
		}
		if strings.Contains(op, "param") {
			at = "[p]"
		}
		switch base {
		case "ret", "fence", "membar":
			return ""
		case "bra":
			return "L"
		case "bar":
			return "0"
		case "nanosleep":
			return "20"
		case "ld":
			return lanes() + ", " + at
		case "st":
			return at + ", " + lanes()
		case "setp":
			return "%p1, " + r + "1, " + r + "2"
		case "selp":
			return r + "1, " + r + "2, " + r + "3, %p1"
		case "cvt":
			return of(mods[len(mods)-2]) + "1, " + r + "2"
		case "mov", "not", "neg", "abs":
			return r + "1, " + r + "2"
		case "bfe", "prmt", "shf":
			return r + "1, " + r + "2, 1, 2"
		case "lop3":
			return r + "1, " + r + "2, 1, 2, 0x80"
		case "mad":
			d := r
			if mods[1] == "wide" {
				d = map[string]string{"%rs": "%r", "%r": "%rd"}[r]
			}
			return d + "1, " + r + "2, " + r + "3, " + d + "4"
		case "mul":
			if mods[1] == "wide" {
				return map[string]string{"%rs": "%r", "%r": "%rd"}[r] + "1, " + r + "2, " + r + "3"
			}
		}
		return r + "1, " + r + "2, " + r + "3"
	}
	known := 0
	for _, pattern := range isa.Patterns() {
		for _, op := range expand(pattern) {
			_, err := program(t, "L:\n"+op+" "+operands(op)+";")
			if isa.Allowed(op) != nil {
				require.Error(t, err, op)
				continue
			}
			known++
			require.NoError(t, err, op)
		}
	}
	require.Greater(t, known, 400)
	for op := range plain {
		require.NoError(t, isa.Allowed(op), "%s is run but not in the table", op)
	}
}
