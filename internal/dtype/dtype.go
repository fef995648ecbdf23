// SPDX-License-Identifier: Apache-2.0

// Package dtype names the element types and the reductions, and holds what
// every other package must agree on about them: sizes, accumulators, and the
// conversions of the two 16-bit floats.
package dtype

import "fmt"

// Type is an element type.
type Type uint8

// The element types. The zero value is not one.
const (
	Float64 Type = iota + 1
	Float32
	Float16
	BFloat16
	Int8
	Uint8
	Int32
	Uint32
	Int64
	Uint64
)

// Types lists all of them.
var Types = []Type{Float64, Float32, Float16, BFloat16, Int8, Uint8, Int32, Uint32, Int64, Uint64}

type info struct {
	name, tag string
	size      int
	wide      Type
}

var infos = [...]info{
	Float64:  {"float64", "f64", 8, Float64},
	Float32:  {"float32", "f32", 4, Float32},
	Float16:  {"float16", "f16", 2, Float32},
	BFloat16: {"bfloat16", "bf16", 2, Float32},
	Int8:     {"int8", "i8", 1, Int64},
	Uint8:    {"uint8", "u8", 1, Uint64},
	Int32:    {"int32", "i32", 4, Int64},
	Uint32:   {"uint32", "u32", 4, Uint64},
	Int64:    {"int64", "i64", 8, Int64},
	Uint64:   {"uint64", "u64", 8, Uint64},
}

// Valid tells whether t is one of the element types.
func (t Type) Valid() bool { return t >= Float64 && t <= Uint64 }

// String is the type's name as it is printed and written in JSON: "float32".
func (t Type) String() string {
	if !t.Valid() {
		return fmt.Sprintf("Type(%d)", uint8(t))
	}
	return infos[t].name
}

// Tag is the short name used in kernel and file names: "f32".
func (t Type) Tag() string { return infos[t].tag }

// Size is the bytes an element takes.
func (t Type) Size() int { return infos[t].size }

// Wide is the type in which values of t are accumulated: float32 for the
// floats but float64, and 64-bit integers, wrapping, for the integers.
func (t Type) Wide() Type { return infos[t].wide }

// Float tells whether t is a floating-point type.
func (t Type) Float() bool { return t <= BFloat16 && t.Valid() }

// ParseType is the inverse of String.
func ParseType(s string) (Type, error) {
	for _, t := range Types {
		if infos[t].name == s || infos[t].tag == s {
			return t, nil
		}
	}
	return 0, fmt.Errorf("unknown element type %q (known: float64 float32 float16 bfloat16 int8 uint8 int32 uint32 int64 uint64)", s)
}

// Op is a reduction.
type Op uint8

// The reductions. The zero value is Sum.
const (
	Sum Op = iota
	Prod
	Min
	Max
	Avg
)

// Ops lists all of them.
var Ops = []Op{Sum, Prod, Min, Max, Avg}

var opNames = [...]string{"sum", "prod", "min", "max", "avg"}

// Valid tells whether o is one of the reductions.
func (o Op) Valid() bool { return o <= Avg }

// String is the reduction's name as it is printed and written in JSON.
func (o Op) String() string {
	if !o.Valid() {
		return fmt.Sprintf("Op(%d)", uint8(o))
	}
	return opNames[o]
}

// ParseOp is the inverse of String.
func ParseOp(s string) (Op, error) {
	for _, o := range Ops {
		if opNames[o] == s {
			return o, nil
		}
	}
	return 0, fmt.Errorf("unknown reduction %q (known: sum prod min max avg)", s)
}

// Partial is the type in which a partial result of a reduction travels from
// rank to rank, so that rounding and truncation happen once, at the end: the
// 16-bit floats travel as float32 under sum, prod and avg, and the narrower
// integers travel as 64-bit ones under avg. Everywhere else t itself is exact.
func Partial(t Type, o Op) Type {
	switch {
	case o == Min || o == Max:
		return t
	case t == Float16 || t == BFloat16:
		return Float32
	case o == Avg && !t.Float():
		return t.Wide()
	}
	return t
}
