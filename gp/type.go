// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
)

// Type is an element type.
type Type = dtype.Type

// The element types.
const (
	TypeFloat64  = dtype.Float64
	TypeFloat32  = dtype.Float32
	TypeFloat16  = dtype.Float16
	TypeBFloat16 = dtype.BFloat16
	TypeInt8     = dtype.Int8
	TypeUint8    = dtype.Uint8
	TypeInt32    = dtype.Int32
	TypeUint32   = dtype.Uint32
	TypeInt64    = dtype.Int64
	TypeUint64   = dtype.Uint64
)

// Types lists every element type.
func Types() []Type { return append([]Type(nil), dtype.Types...) }

// ParseType is the inverse of Type.String: "float32".
func ParseType(s string) (Type, error) { return dtype.ParseType(s) }

// Op is a reduction. The floats accumulate in float32 (float64 in float64),
// the integers in 64 bits that wrap, and the result is rounded once. Min and
// Max propagate NaN as its canonical bits and order -0 below +0; Avg divides
// the sum by the number of ranks, integers toward zero.
type Op = dtype.Op

// The reductions.
const (
	Sum  = dtype.Sum
	Prod = dtype.Prod
	Min  = dtype.Min
	Max  = dtype.Max
	Avg  = dtype.Avg
)

// ParseOp is the inverse of Op.String: "sum".
func ParseOp(s string) (Op, error) { return dtype.ParseOp(s) }

// Float16 is an IEEE 754 binary16 by its bits.
type Float16 uint16

// BFloat16 is a bfloat16 by its bits: the upper half of a float32.
type BFloat16 uint16

// ToFloat16 rounds to the nearest, ties to even; NaN becomes 0x7fff.
func ToFloat16(f float32) Float16 { return Float16(dtype.Float16FromFloat32(f)) }

// Float32 is exact.
func (h Float16) Float32() float32 { return dtype.Float16ToFloat32(uint16(h)) }

// ToBFloat16 rounds to the nearest, ties to even; NaN becomes 0x7fff.
func ToBFloat16(f float32) BFloat16 { return BFloat16(dtype.BFloat16FromFloat32(f)) }

// Float32 is exact.
func (b BFloat16) Float32() float32 { return dtype.BFloat16ToFloat32(uint16(b)) }

// Elem is the Go type of an element. Float16 and BFloat16 are defined here; a
// slice of raw bits converts.
type Elem interface {
	float64 | float32 | Float16 | BFloat16 | int8 | uint8 | int32 | uint32 | int64 | uint64
}

// TypeOf is the Type of a Go element type.
func TypeOf[T Elem]() Type {
	var z T
	switch any(z).(type) {
	case float64:
		return TypeFloat64
	case float32:
		return TypeFloat32
	case Float16:
		return TypeFloat16
	case BFloat16:
		return TypeBFloat16
	case int8:
		return TypeInt8
	case uint8:
		return TypeUint8
	case int32:
		return TypeInt32
	case uint32:
		return TypeUint32
	case int64:
		return TypeInt64
	default:
		return TypeUint64
	}
}
