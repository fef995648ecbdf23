// SPDX-License-Identifier: Apache-2.0

package ptxvm

import (
	"fmt"
	"regexp/syntax"
)

// An opcode is one case of the loop in exec.go. A register holds its value
// zero-extended, and so does a constant, cut to the instruction's width: what
// does not depend on the width above that has one opcode for all.
type opcode uint16

const (
	_ opcode = iota // none

	// Control.
	opBra       // to n
	opBraIf     // if a, to n
	opBraUnless // if not a, to n
	opRet
	opBar
	opClock // d = the time in ns << size, & imm
	opSleep
	opFence

	// Memory, at a + imm, d b c e <- or ->; n is the place in the cache.
	opLdParam
	opLd8
	opLd16
	opLd32
	opLd64
	opLd2x64
	opLd4x32
	opLdVec
	opSt8
	opSt16
	opSt32
	opSt64
	opSt2x64
	opSt4x32
	opStVec
	opLdStrong
	opStStrong
	opLdShared
	opStShared

	opMov
	opAndImm  // d = a & imm: conversions that cut
	opSignExt // d = a, its sign from 64-size bits, & imm
	opPack    // d = a | c << imm
	opUnpack  // d, e = a & imm, a >> size
	opSelp

	opAdd16
	opAdd32
	opAdd64
	opSub16
	opSub32
	opSub64
	opMul16
	opMul32
	opMul64
	opMulHiU16
	opMulHiU32
	opMulHiU64
	opMulHiS16
	opMulHiS32
	opMulHiS64
	opMulWideU // of 16 and 32 bits
	opMulWideS16
	opMulWideS32
	opMad16
	opMad32
	opMad64
	opMadWideU16
	opMadWideU32
	opMadWideS16
	opMadWideS32
	opDivU16
	opDivU32
	opDivU64
	opDivS16
	opDivS32
	opDivS64
	opRemU16
	opRemU32
	opRemU64
	opRemS16
	opRemS32
	opRemS64
	opMinU
	opMaxU
	opMinS16
	opMinS32
	opMinS64
	opMaxS16
	opMaxS32
	opMaxS64
	opNeg16
	opNeg32
	opNeg64
	opAbs16
	opAbs32
	opAbs64
	opAnd
	opOr
	opXor
	opNot // d = ^a & imm
	opShl16
	opShl32
	opShl64
	opShrU
	opShrS16
	opShrS32
	opShrS64
	opBfeU // of imm bits
	opBfeS
	opPrmt
	opShfL
	opShfR
	opLop3

	opSetEq
	opSetNe
	opSetLtU
	opSetLeU
	opSetLtS16
	opSetLtS32
	opSetLtS64
	opSetLeS16
	opSetLeS32
	opSetLeS64
	opSetGtU // of the tables only: lt with its operands exchanged
	opSetGeU
	opSetGtS16
	opSetGtS32
	opSetGtS64
	opSetGeS16
	opSetGeS32
	opSetGeS64
	opSetF32 // imm is the relation
	opSetF64

	opAddF32
	opAddF64
	opMulF32
	opMulF64
	opDivF32
	opDivF64
	opMinF32
	opMaxF32
	opMinF64
	opMaxF64
	opMinNaNF32
	opMaxNaNF32
	opU64ToF32
	opU64ToF64
	opS64ToF32
	opS64ToF64
	opF16ToF32
	opF32ToF16
	opF32ToBF16
	opF64ToF32
	opF32ToF64
)

// plain are the instructions that make one value of up to three, register or
// constant, of the type in their name; a pattern stands for all that it matches.
var plain = expandKeys(map[string]opcode{
	`add\.[us]16`: opAdd16, `add\.[us]32`: opAdd32, `add\.[us]64`: opAdd64,
	`sub\.[us]16`: opSub16, `sub\.[us]32`: opSub32, `sub\.[us]64`: opSub64,
	`mul\.lo\.[us]16`: opMul16, `mul\.lo\.[us]32`: opMul32, `mul\.lo\.[us]64`: opMul64,
	`mul\.hi\.u16`: opMulHiU16, `mul\.hi\.u32`: opMulHiU32, `mul\.hi\.u64`: opMulHiU64,
	`mul\.hi\.s16`: opMulHiS16, `mul\.hi\.s32`: opMulHiS32, `mul\.hi\.s64`: opMulHiS64,
	`mul\.wide\.u(16|32)`: opMulWideU, `mul\.wide\.s16`: opMulWideS16, `mul\.wide\.s32`: opMulWideS32,
	`mad\.lo\.[us]16`: opMad16, `mad\.lo\.[us]32`: opMad32, `mad\.lo\.[us]64`: opMad64,
	`mad\.wide\.u16`: opMadWideU16, `mad\.wide\.u32`: opMadWideU32, `mad\.wide\.s16`: opMadWideS16, `mad\.wide\.s32`: opMadWideS32,
	`div\.u16`: opDivU16, `div\.u32`: opDivU32, `div\.u64`: opDivU64,
	`div\.s16`: opDivS16, `div\.s32`: opDivS32, `div\.s64`: opDivS64,
	`rem\.u16`: opRemU16, `rem\.u32`: opRemU32, `rem\.u64`: opRemU64,
	`rem\.s16`: opRemS16, `rem\.s32`: opRemS32, `rem\.s64`: opRemS64,
	`min\.u(16|32|64)`: opMinU, `max\.u(16|32|64)`: opMaxU,
	`min\.s16`: opMinS16, `min\.s32`: opMinS32, `min\.s64`: opMinS64,
	`max\.s16`: opMaxS16, `max\.s32`: opMaxS32, `max\.s64`: opMaxS64,
	`neg\.s16`: opNeg16, `neg\.s32`: opNeg32, `neg\.s64`: opNeg64,
	`abs\.s16`: opAbs16, `abs\.s32`: opAbs32, `abs\.s64`: opAbs64,
	`and\.(pred|b16|b32|b64)`: opAnd, `or\.(pred|b16|b32|b64)`: opOr, `xor\.(pred|b16|b32|b64)`: opXor,
	`not\.(pred|b16|b32|b64)`: opNot,
	`shl\.b16`:                opShl16, `shl\.b32`: opShl32, `shl\.b64`: opShl64,
	`shr\.[bu](16|32|64)`: opShrU, `shr\.s16`: opShrS16, `shr\.s32`: opShrS32, `shr\.s64`: opShrS64,
	`bfe\.u(32|64)`: opBfeU, `bfe\.s(32|64)`: opBfeS,
	`prmt\.b32`: opPrmt, `shf\.l\.wrap\.b32`: opShfL, `shf\.r\.wrap\.b32`: opShfR, `lop3\.b32`: opLop3,

	`setp\.eq\.[bus](16|32|64)`: opSetEq, `setp\.ne\.[bus](16|32|64)`: opSetNe,
	`setp\.lt\.u(16|32|64)`: opSetLtU, `setp\.le\.u(16|32|64)`: opSetLeU,
	`setp\.lt\.s16`: opSetLtS16, `setp\.lt\.s32`: opSetLtS32, `setp\.lt\.s64`: opSetLtS64,
	`setp\.le\.s16`: opSetLeS16, `setp\.le\.s32`: opSetLeS32, `setp\.le\.s64`: opSetLeS64,
	`setp\.gt\.u(16|32|64)`: opSetGtU, `setp\.ge\.u(16|32|64)`: opSetGeU,
	`setp\.gt\.s16`: opSetGtS16, `setp\.gt\.s32`: opSetGtS32, `setp\.gt\.s64`: opSetGtS64,
	`setp\.ge\.s16`: opSetGeS16, `setp\.ge\.s32`: opSetGeS32, `setp\.ge\.s64`: opSetGeS64,

	`selp\.[bus](16|32|64)`: opSelp, `selp\.f(32|64)`: opSelp,
	`mov\.pred`: opMov, `mov\.[bus](16|32|64)`: opMov, `mov\.f(32|64)`: opMov,

	`add\.rn\.f32`: opAddF32, `add\.rn\.f64`: opAddF64, `mul\.rn\.f32`: opMulF32, `mul\.rn\.f64`: opMulF64,
	`div\.rn\.f32`: opDivF32, `div\.rn\.f64`: opDivF64,
	`min\.f32`: opMinF32, `max\.f32`: opMaxF32, `min\.f64`: opMinF64, `max\.f64`: opMaxF64,
	`min\.NaN\.f32`: opMinNaNF32, `max\.NaN\.f32`: opMaxNaNF32,
	`cvt\.f32\.f16`: opF16ToF32, `cvt\.rn\.f16\.f32`: opF32ToF16, `cvt\.rn\.bf16\.f32`: opF32ToBF16,
	`cvt\.rn\.f32\.f64`: opF64ToF32, `cvt\.f64\.f32`: opF32ToF64,
})

// exchanged says which comparison is which other one with its operands exchanged.
var exchanged = map[opcode]opcode{
	opSetGtU: opSetLtU, opSetGeU: opSetLeU,
	opSetGtS16: opSetLtS16, opSetGtS32: opSetLtS32, opSetGtS64: opSetLtS64,
	opSetGeS16: opSetLeS16, opSetGeS32: opSetLeS32, opSetGeS64: opSetLeS64,
}

// The relations of setp on floats. Those with a u are also true of NaN.
const (
	relEq = iota
	relNe
	relLt
	relLe
	relGt
	relGe
	relNum
	relNaN
	relEqu
	relNeu
	relLtu
	relLeu
	relGtu
	relGeu
)

var relations = map[string]uint64{
	"eq": relEq, "ne": relNe, "lt": relLt, "le": relLe, "gt": relGt, "ge": relGe, "num": relNum, "nan": relNaN,
	"equ": relEqu, "neu": relNeu, "ltu": relLtu, "leu": relLeu, "gtu": relGtu, "geu": relGeu,
}

// expandKeys is the map of all strings that the keys, as patterns, match.
func expandKeys(m map[string]opcode) map[string]opcode {
	out := map[string]opcode{}
	for p, op := range m {
		for _, s := range expand(p) {
			if _, twice := out[s]; twice {
				panic("ptxvm: " + s + " is there twice")
			}
			out[s] = op
		}
	}
	return out
}

// expand lists the strings that a pattern matches: of literals, classes,
// alternatives and optional parts.
func expand(pattern string) []string {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		panic(err)
	}
	return every(re)
}

func every(re *syntax.Regexp) (out []string) {
	switch re.Op {
	case syntax.OpEmptyMatch:
		return []string{""}
	case syntax.OpLiteral:
		return []string{string(re.Rune)}
	case syntax.OpCharClass:
		for i := 0; i < len(re.Rune); i += 2 {
			for r := re.Rune[i]; r <= re.Rune[i+1]; r++ {
				out = append(out, string(r))
			}
		}
		return out
	case syntax.OpCapture:
		return every(re.Sub[0])
	case syntax.OpQuest:
		return append(every(re.Sub[0]), "")
	case syntax.OpAlternate:
		for _, s := range re.Sub {
			out = append(out, every(s)...)
		}
		return out
	case syntax.OpConcat:
		out = []string{""}
		for _, s := range re.Sub {
			var next []string
			for _, tail := range every(s) {
				for _, head := range out {
					next = append(next, head+tail)
				}
			}
			out = next
		}
		return out
	}
	panic(fmt.Sprintf("ptxvm: a pattern has %v", re))
}
