// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/geforce-p2p/geforce-p2p/gp"
)

// What collectives are fed, and the reference that they are held against, for
// every type and reduction. As in the selftest, float data are chosen so that
// any order of the fold gives the same bits: whole numbers whose sums are exact,
// and for products powers of two.

// collectiveData makes n bytes, a multiple of the element's size.
func collectiveData(n uint64, t gp.Type, op gp.Op, reduces bool, r *splitmix) []byte {
	out := make([]byte, n)
	if !reduces || !t.Float() {
		randomBytes(out, r)
		return out
	}
	put := elementOf(t).put
	size := t.Size()
	// Sums over 16 ranks are exact in the accumulator, and in float16 itself.
	limit := map[gp.Type]int64{gp.TypeFloat64: 1 << 40, gp.TypeFloat32: limitFloat32, gp.TypeFloat16: 128, gp.TypeBFloat16: limitBFloat16}[t]
	factors := [...]float64{1, -1, 2, -2, 0.5, -0.5}
	for i := 0; i+size <= len(out); i += size {
		if op == gp.Prod {
			put(out[i:], factors[r.next()%uint64(len(factors))])
		} else {
			put(out[i:], float64(whole(r, limit)))
		}
	}
	return out
}

// A floatElement reads and writes elements of a type. get is exact.
type floatElement struct {
	get func([]byte) float64
	put func([]byte, float64) // rounds to the nearest, ties to even
}

func elementOf(t gp.Type) floatElement {
	le := binary.LittleEndian
	switch t {
	case gp.TypeFloat64:
		return floatElement{
			func(b []byte) float64 { return math.Float64frombits(le.Uint64(b)) },
			func(b []byte, v float64) { le.PutUint64(b, math.Float64bits(v)) },
		}
	case gp.TypeFloat32:
		return floatElement{
			func(b []byte) float64 { return float64(math.Float32frombits(le.Uint32(b))) },
			func(b []byte, v float64) { le.PutUint32(b, math.Float32bits(float32(v))) },
		}
	case gp.TypeFloat16:
		return floatElement{
			func(b []byte) float64 { return float64(gp.Float16(le.Uint16(b)).Float32()) },
			func(b []byte, v float64) { le.PutUint16(b, uint16(gp.ToFloat16(float32(v)))) },
		}
	default: // bfloat16
		return floatElement{
			func(b []byte) float64 { return float64(math.Float32frombits(uint32(le.Uint16(b)) << 16)) },
			func(b []byte, v float64) { le.PutUint16(b, bfloat16Bits(float32(v))) },
		}
	}
}

// referencePiece is what one goroutine reduces: a multiple of every element.
const referencePiece = 1 << 20

// collectiveReference reduces the ranks' data, element by element, to out. All
// processors take part: of many ranks on one GPU it would be the longest step of a
// run.
func collectiveReference(out []byte, ranks [][]byte, t gp.Type, op gp.Op) {
	var next atomic.Int64
	var wait sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), (len(out)+referencePiece-1)/referencePiece) {
		wait.Go(func() {
			views := make([][]byte, len(ranks))
			for {
				end := int(next.Add(referencePiece))
				from := end - referencePiece
				if from >= len(out) {
					return
				}
				for r := range views {
					views[r] = ranks[r][from:]
				}
				referencePart(out[from:min(end, len(out))], views, t, op)
			}
		})
	}
	wait.Wait()
}

// referencePart is collectiveReference of one piece.
func referencePart(out []byte, ranks [][]byte, t gp.Type, op gp.Op) {
	if t.Float() {
		referenceFloat(out, ranks, t, op)
		return
	}
	size := t.Size()
	signed := t == gp.TypeInt8 || t == gp.TypeInt32 || t == gp.TypeInt64
	// An integer travels as 64 bits: sign or zero extended, and what wraps is cut.
	get := func(b []byte) uint64 {
		switch {
		case size == 1 && signed:
			return uint64(int8(b[0]))
		case size == 1:
			return uint64(b[0])
		case size == 4 && signed:
			return uint64(int32(binary.LittleEndian.Uint32(b)))
		case size == 4:
			return uint64(binary.LittleEndian.Uint32(b))
		}
		return binary.LittleEndian.Uint64(b)
	}
	less := func(a, b uint64) bool {
		if signed {
			return int64(a) < int64(b)
		}
		return a < b
	}
	n := uint64(len(ranks))
	for i := 0; i+size <= len(out); i += size {
		acc := get(ranks[0][i:])
		for _, data := range ranks[1:] {
			v := get(data[i:])
			switch {
			case op == gp.Prod:
				acc *= v
			case op == gp.Min && less(v, acc), op == gp.Max && less(acc, v):
				acc = v
			case op == gp.Sum || op == gp.Avg:
				acc += v
			}
		}
		if op == gp.Avg {
			if signed {
				acc = uint64(int64(acc) / int64(n))
			} else {
				acc /= n
			}
		}
		switch size {
		case 1:
			out[i] = byte(acc)
		case 4:
			binary.LittleEndian.PutUint32(out[i:], uint32(acc))
		default:
			binary.LittleEndian.PutUint64(out[i:], acc)
		}
	}
}

// referenceFloat folds exactly, in float64. An average is divided in the
// accumulator's type, and then rounded to its own.
func referenceFloat(out []byte, ranks [][]byte, t gp.Type, op gp.Op) {
	e, size, n := elementOf(t), t.Size(), float64(len(ranks))
	for i := 0; i+size <= len(out); i += size {
		acc := e.get(ranks[0][i:])
		for _, data := range ranks[1:] {
			v := e.get(data[i:])
			switch op {
			case gp.Prod:
				acc *= v
			case gp.Min:
				acc = min(acc, v)
			case gp.Max:
				acc = max(acc, v)
			default:
				acc += v
			}
		}
		if op == gp.Avg {
			if acc /= n; t != gp.TypeFloat64 {
				acc = float64(float32(acc))
			}
		}
		e.put(out[i:], acc)
	}
}
