// SPDX-License-Identifier: Apache-2.0

package ptxvm

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
)

// A stop is why a thread's turn ended.
type stop uint8

const (
	stopBudget stop = iota // its turn is over
	stopEnded
	stopMet    // it waits for its block at a barrier
	stopPolled // it read the clock: it waits for what others write
	stopTorn   // half of a store is still to come
	stopFault  // r.err says why
)

func b32(f float32) uint64 { return uint64(math.Float32bits(f)) }
func b64(f float64) uint64 { return math.Float64bits(f) }
func f32(v uint64) float32 { return math.Float32frombits(uint32(v)) }
func f64(v uint64) float64 { return math.Float64frombits(v) }

func truth(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// exec runs a thread until it stops, or at the first branch after so many
// instructions.
func (r *run) exec(t *thread, budget int) stop {
	code, regs := r.p.code, t.regs
	pc, n := int(t.pc), budget
	why := stopFault
	le := binary.LittleEndian
loop:
	for {
		in := &code[pc]
		pc++
		n--
		switch in.code {
		case opBra:
			pc = int(in.n)
			if n <= 0 {
				why = stopBudget
				break loop
			}
		case opBraIf:
			if regs[in.a] != 0 {
				pc = int(in.n)
			}
			if n <= 0 {
				why = stopBudget
				break loop
			}
		case opBraUnless:
			if regs[in.a] == 0 {
				pc = int(in.n)
			}
			if n <= 0 {
				why = stopBudget
				break loop
			}
		case opRet:
			why = stopEnded
			break loop
		case opBar:
			why = stopMet
			break loop
		case opClock:
			regs[in.d] = r.clock << in.size & in.imm
			why = stopPolled
			break loop
		case opSleep:
			why = stopPolled
			break loop
		case opFence:
			if r.weak != nil {
				r.weak.fence(r, t, in.flags)
			}

		case opLdParam:
			at, size := regs[in.a]+in.imm, uint64(in.size)
			if at%size != 0 || at > uint64(len(r.params)) || uint64(len(r.params))-at < size*uint64(in.lanes) {
				r.err = fmt.Errorf("%w: parameter offset %d of %d", ErrBounds, at, len(r.params))
				break loop
			}
			to := [4]uint16{in.d, in.b, in.c, in.e}
			for i := range in.lanes {
				regs[to[i]] = get(r.params[at+uint64(i)*size:], in.size)
			}
		case opLd8:
			b := r.load(t, in, regs[in.a]+in.imm, 1)
			if b == nil {
				break loop
			}
			regs[in.d] = uint64(b[0])
		case opLd16:
			b := r.load(t, in, regs[in.a]+in.imm, 2)
			if b == nil {
				break loop
			}
			regs[in.d] = uint64(le.Uint16(b))
		case opLd32:
			b := r.load(t, in, regs[in.a]+in.imm, 4)
			if b == nil {
				break loop
			}
			regs[in.d] = uint64(le.Uint32(b))
		case opLd64:
			b := r.load(t, in, regs[in.a]+in.imm, 8)
			if b == nil {
				break loop
			}
			regs[in.d] = le.Uint64(b)
		case opLd2x64:
			b := r.load(t, in, regs[in.a]+in.imm, 16)
			if b == nil {
				break loop
			}
			regs[in.d], regs[in.b] = le.Uint64(b), le.Uint64(b[8:])
		case opLd4x32:
			b := r.load(t, in, regs[in.a]+in.imm, 16)
			if b == nil {
				break loop
			}
			regs[in.d], regs[in.b], regs[in.c], regs[in.e] = uint64(le.Uint32(b)), uint64(le.Uint32(b[4:])), uint64(le.Uint32(b[8:])), uint64(le.Uint32(b[12:]))
		case opLdVec:
			b := r.load(t, in, regs[in.a]+in.imm, uint64(in.size)*uint64(in.lanes))
			if b == nil {
				break loop
			}
			to := [4]uint16{in.d, in.b, in.c, in.e}
			for i := range in.lanes {
				regs[to[i]] = get(b[i*in.size:], in.size)
			}
		case opSt8:
			r.out[0] = byte(regs[in.d])
			if !r.store(t, in, regs[in.a]+in.imm, 1) {
				break loop
			}
		case opSt16:
			le.PutUint16(r.out[:], uint16(regs[in.d]))
			if !r.store(t, in, regs[in.a]+in.imm, 2) {
				break loop
			}
		case opSt32:
			le.PutUint32(r.out[:], uint32(regs[in.d]))
			if !r.store(t, in, regs[in.a]+in.imm, 4) {
				break loop
			}
		case opSt64:
			le.PutUint64(r.out[:], regs[in.d])
			if !r.store(t, in, regs[in.a]+in.imm, 8) {
				break loop
			}
		case opSt2x64:
			le.PutUint64(r.out[:], regs[in.d])
			le.PutUint64(r.out[8:], regs[in.b])
			if !r.store(t, in, regs[in.a]+in.imm, 16) {
				break loop
			}
		case opSt4x32:
			le.PutUint32(r.out[:], uint32(regs[in.d]))
			le.PutUint32(r.out[4:], uint32(regs[in.b]))
			le.PutUint32(r.out[8:], uint32(regs[in.c]))
			le.PutUint32(r.out[12:], uint32(regs[in.e]))
			if !r.store(t, in, regs[in.a]+in.imm, 16) {
				break loop
			}
		case opStVec:
			from := [4]uint16{in.d, in.b, in.c, in.e}
			for i := range in.lanes {
				put(r.out[i*in.size:], in.size, regs[from[i]])
			}
			if !r.store(t, in, regs[in.a]+in.imm, uint64(in.size)*uint64(in.lanes)) {
				break loop
			}
		case opLdStrong:
			if !r.loadStrong(t, in, regs[in.a]+in.imm) {
				break loop
			}
		case opStStrong:
			if !r.storeStrong(t, in, regs[in.a]+in.imm) {
				break loop
			}
			if t.late.n > 0 {
				why = stopTorn
				break loop
			}
		case opLdShared, opStShared:
			if !r.share(t, in, regs[in.a]+in.imm) {
				break loop
			}

		case opMov:
			regs[in.d] = regs[in.a]
		case opAndImm:
			regs[in.d] = regs[in.a] & in.imm
		case opSignExt:
			regs[in.d] = uint64(int64(regs[in.a]<<in.size)>>in.size) & in.imm
		case opPack:
			regs[in.d] = regs[in.a] | regs[in.c]<<in.imm
		case opUnpack:
			v := regs[in.a]
			regs[in.d], regs[in.e] = v&in.imm, v>>in.size
		case opSelp:
			if regs[in.c] != 0 {
				regs[in.d] = regs[in.a]
			} else {
				regs[in.d] = regs[in.b]
			}

		case opAdd16:
			regs[in.d] = uint64(uint16(regs[in.a] + regs[in.b]))
		case opAdd32:
			regs[in.d] = uint64(uint32(regs[in.a] + regs[in.b]))
		case opAdd64:
			regs[in.d] = regs[in.a] + regs[in.b]
		case opSub16:
			regs[in.d] = uint64(uint16(regs[in.a] - regs[in.b]))
		case opSub32:
			regs[in.d] = uint64(uint32(regs[in.a] - regs[in.b]))
		case opSub64:
			regs[in.d] = regs[in.a] - regs[in.b]
		case opMul16:
			regs[in.d] = uint64(uint16(regs[in.a] * regs[in.b]))
		case opMul32:
			regs[in.d] = uint64(uint32(regs[in.a] * regs[in.b]))
		case opMul64:
			regs[in.d] = regs[in.a] * regs[in.b]
		case opMulHiU16:
			regs[in.d] = regs[in.a] * regs[in.b] >> 16
		case opMulHiU32:
			regs[in.d] = regs[in.a] * regs[in.b] >> 32
		case opMulHiU64:
			regs[in.d], _ = bits.Mul64(regs[in.a], regs[in.b])
		case opMulHiS16:
			regs[in.d] = uint64(uint16(int32(int16(regs[in.a])) * int32(int16(regs[in.b])) >> 16))
		case opMulHiS32:
			regs[in.d] = uint64(uint32(int64(int32(regs[in.a])) * int64(int32(regs[in.b])) >> 32))
		case opMulHiS64:
			a, b := regs[in.a], regs[in.b]
			hi, _ := bits.Mul64(a, b)
			regs[in.d] = hi - uint64(int64(a)>>63)&b - uint64(int64(b)>>63)&a
		case opMulWideU:
			regs[in.d] = regs[in.a] * regs[in.b]
		case opMulWideS16:
			regs[in.d] = uint64(uint32(int32(int16(regs[in.a])) * int32(int16(regs[in.b]))))
		case opMulWideS32:
			regs[in.d] = uint64(int64(int32(regs[in.a])) * int64(int32(regs[in.b])))
		case opMad16:
			regs[in.d] = uint64(uint16(regs[in.a]*regs[in.b] + regs[in.c]))
		case opMad32:
			regs[in.d] = uint64(uint32(regs[in.a]*regs[in.b] + regs[in.c]))
		case opMad64:
			regs[in.d] = regs[in.a]*regs[in.b] + regs[in.c]
		case opMadWideU16:
			regs[in.d] = uint64(uint32(regs[in.a]*regs[in.b] + regs[in.c]))
		case opMadWideU32:
			regs[in.d] = regs[in.a]*regs[in.b] + regs[in.c]
		case opMadWideS16:
			regs[in.d] = uint64(uint32(int32(int16(regs[in.a]))*int32(int16(regs[in.b]))) + uint32(regs[in.c]))
		case opMadWideS32:
			regs[in.d] = uint64(int64(int32(regs[in.a]))*int64(int32(regs[in.b]))) + regs[in.c]
		case opDivU16, opDivU32, opDivU64:
			// What a GPU makes of a division by zero is all ones, here cut to the width.
			if d := regs[in.b]; d != 0 {
				regs[in.d] = regs[in.a] / d
			} else {
				regs[in.d] = ones[in.code-opDivU16]
			}
		case opDivS16:
			regs[in.d] = uint64(uint16(divide(int64(int16(regs[in.a])), int64(int16(regs[in.b])))))
		case opDivS32:
			regs[in.d] = uint64(uint32(divide(int64(int32(regs[in.a])), int64(int32(regs[in.b])))))
		case opDivS64:
			regs[in.d] = uint64(divide(int64(regs[in.a]), int64(regs[in.b])))
		case opRemU16, opRemU32, opRemU64:
			if d := regs[in.b]; d != 0 {
				regs[in.d] = regs[in.a] % d
			} else {
				regs[in.d] = ones[in.code-opRemU16]
			}
		case opRemS16:
			regs[in.d] = uint64(uint16(remain(int64(int16(regs[in.a])), int64(int16(regs[in.b])))))
		case opRemS32:
			regs[in.d] = uint64(uint32(remain(int64(int32(regs[in.a])), int64(int32(regs[in.b])))))
		case opRemS64:
			regs[in.d] = uint64(remain(int64(regs[in.a]), int64(regs[in.b])))
		case opMinU:
			regs[in.d] = min(regs[in.a], regs[in.b])
		case opMaxU:
			regs[in.d] = max(regs[in.a], regs[in.b])
		case opMinS16:
			regs[in.d] = uint64(uint16(min(int16(regs[in.a]), int16(regs[in.b]))))
		case opMinS32:
			regs[in.d] = uint64(uint32(min(int32(regs[in.a]), int32(regs[in.b]))))
		case opMinS64:
			regs[in.d] = uint64(min(int64(regs[in.a]), int64(regs[in.b])))
		case opMaxS16:
			regs[in.d] = uint64(uint16(max(int16(regs[in.a]), int16(regs[in.b]))))
		case opMaxS32:
			regs[in.d] = uint64(uint32(max(int32(regs[in.a]), int32(regs[in.b]))))
		case opMaxS64:
			regs[in.d] = uint64(max(int64(regs[in.a]), int64(regs[in.b])))
		case opNeg16:
			regs[in.d] = uint64(uint16(-regs[in.a]))
		case opNeg32:
			regs[in.d] = uint64(uint32(-regs[in.a]))
		case opNeg64:
			regs[in.d] = -regs[in.a]
		case opAbs16:
			v := int16(regs[in.a])
			regs[in.d] = uint64(uint16(max(v, -v)))
			if v == math.MinInt16 {
				regs[in.d] = 1 << 15
			}
		case opAbs32:
			v := int32(regs[in.a])
			regs[in.d] = uint64(uint32(max(v, -v)))
		case opAbs64:
			v := int64(regs[in.a])
			regs[in.d] = uint64(max(v, -v))
		case opAnd:
			regs[in.d] = regs[in.a] & regs[in.b]
		case opOr:
			regs[in.d] = regs[in.a] | regs[in.b]
		case opXor:
			regs[in.d] = regs[in.a] ^ regs[in.b]
		case opNot:
			regs[in.d] = ^regs[in.a] & in.imm
		case opShl16:
			regs[in.d] = uint64(uint16(regs[in.a] << regs[in.b]))
		case opShl32:
			regs[in.d] = uint64(uint32(regs[in.a] << regs[in.b]))
		case opShl64:
			regs[in.d] = regs[in.a] << regs[in.b]
		case opShrU:
			regs[in.d] = regs[in.a] >> regs[in.b]
		case opShrS16:
			regs[in.d] = uint64(uint16(int16(regs[in.a]) >> regs[in.b]))
		case opShrS32:
			regs[in.d] = uint64(uint32(int32(regs[in.a]) >> regs[in.b]))
		case opShrS64:
			regs[in.d] = uint64(int64(regs[in.a]) >> regs[in.b])
		case opBfeU:
			// What lies beyond the register is zero.
			regs[in.d] = regs[in.a] >> (regs[in.b] & 255) & (1<<(regs[in.c]&255) - 1)
		case opBfeS:
			regs[in.d] = extractSigned(regs[in.a], regs[in.b]&255, regs[in.c]&255, in.imm)
		case opPrmt:
			regs[in.d] = permute(regs[in.a]|regs[in.b]<<32, regs[in.c])
		case opShfL:
			regs[in.d] = (regs[in.b]<<32 | regs[in.a]) << (regs[in.c] & 31) >> 32
		case opShfR:
			regs[in.d] = uint64(uint32((regs[in.b]<<32 | regs[in.a]) >> (regs[in.c] & 31)))
		case opLop3:
			regs[in.d] = lop3(regs[in.a], regs[in.b], regs[in.c], in.imm)

		case opSetEq:
			regs[in.d] = truth(regs[in.a] == regs[in.b])
		case opSetNe:
			regs[in.d] = truth(regs[in.a] != regs[in.b])
		case opSetLtU:
			regs[in.d] = truth(regs[in.a] < regs[in.b])
		case opSetLeU:
			regs[in.d] = truth(regs[in.a] <= regs[in.b])
		case opSetLtS16:
			regs[in.d] = truth(int16(regs[in.a]) < int16(regs[in.b]))
		case opSetLtS32:
			regs[in.d] = truth(int32(regs[in.a]) < int32(regs[in.b]))
		case opSetLtS64:
			regs[in.d] = truth(int64(regs[in.a]) < int64(regs[in.b]))
		case opSetLeS16:
			regs[in.d] = truth(int16(regs[in.a]) <= int16(regs[in.b]))
		case opSetLeS32:
			regs[in.d] = truth(int32(regs[in.a]) <= int32(regs[in.b]))
		case opSetLeS64:
			regs[in.d] = truth(int64(regs[in.a]) <= int64(regs[in.b]))
		case opSetF32:
			regs[in.d] = truth(relates(in.imm, float64(f32(regs[in.a])), float64(f32(regs[in.b]))))
		case opSetF64:
			regs[in.d] = truth(relates(in.imm, f64(regs[in.a]), f64(regs[in.b])))

		case opAddF32:
			regs[in.d] = b32(f32(regs[in.a]) + f32(regs[in.b]))
		case opAddF64:
			regs[in.d] = b64(f64(regs[in.a]) + f64(regs[in.b]))
		case opMulF32:
			regs[in.d] = b32(f32(regs[in.a]) * f32(regs[in.b]))
		case opMulF64:
			regs[in.d] = b64(f64(regs[in.a]) * f64(regs[in.b]))
		case opDivF32:
			regs[in.d] = b32(f32(regs[in.a]) / f32(regs[in.b]))
		case opDivF64:
			regs[in.d] = b64(f64(regs[in.a]) / f64(regs[in.b]))
		case opMinF32, opMaxF32:
			x, z := f32(regs[in.a]), f32(regs[in.b])
			switch {
			case x != x && z != z:
				regs[in.d] = dtypeNaN32
			case x != x:
				regs[in.d] = b32(z)
			case z != z:
				regs[in.d] = b32(x)
			case in.code == opMinF32:
				regs[in.d] = b32(min(x, z))
			default:
				regs[in.d] = b32(max(x, z))
			}
		case opMinF64, opMaxF64:
			x, z := f64(regs[in.a]), f64(regs[in.b])
			switch {
			case x != x && z != z:
				regs[in.d] = dtypeNaN64
			case x != x:
				regs[in.d] = b64(z)
			case z != z:
				regs[in.d] = b64(x)
			case in.code == opMinF64:
				regs[in.d] = b64(min(x, z))
			default:
				regs[in.d] = b64(max(x, z))
			}
		case opMinNaNF32, opMaxNaNF32:
			x, z := f32(regs[in.a]), f32(regs[in.b])
			v := min(x, z)
			if in.code == opMaxNaNF32 {
				v = max(x, z)
			}
			if regs[in.d] = b32(v); v != v {
				regs[in.d] = dtypeNaN32
			}
		case opU64ToF32:
			regs[in.d] = b32(float32(regs[in.a]))
		case opU64ToF64:
			regs[in.d] = b64(float64(regs[in.a]))
		case opS64ToF32:
			regs[in.d] = b32(float32(int64(regs[in.a])))
		case opS64ToF64:
			regs[in.d] = b64(float64(int64(regs[in.a])))
		case opF16ToF32:
			regs[in.d] = b32(dtype.Float16ToFloat32(uint16(regs[in.a])))
		case opF32ToF16:
			regs[in.d] = uint64(dtype.Float16FromFloat32(f32(regs[in.a])))
		case opF32ToBF16:
			regs[in.d] = uint64(dtype.BFloat16FromFloat32(f32(regs[in.a])))
		case opF64ToF32:
			regs[in.d] = b32(float32(f64(regs[in.a])))
		case opF32ToF64:
			regs[in.d] = b64(float64(f32(regs[in.a])))
		default:
			r.err = fmt.Errorf("%w: the code has one, the thread ran past it", ErrEndless)
			break loop
		}
	}
	t.pc = int32(pc)
	t.steps += budget - n
	r.steps += uint64(budget - n)
	return why
}

const (
	dtypeNaN32 = uint64(dtype.NaNFloat32)
	dtypeNaN64 = uint64(dtype.NaNFloat64)
)

// ones are the results of divisions by zero, of 16, 32 and 64 bits.
var ones = [3]uint64{math.MaxUint16, math.MaxUint32, math.MaxUint64}

func divide(a, b int64) int64 {
	if b == 0 {
		return -1
	}
	return a / b
}

func remain(a, b int64) int64 {
	if b == 0 {
		return -1
	}
	return a % b
}

// extractSigned is bfe: a field of n bits at pos, whose top bit is its sign, or
// the register's where the field ends beyond that.
func extractSigned(v, pos, n, width uint64) uint64 {
	if n == 0 {
		return 0
	}
	sign := v >> min(pos+n-1, width-1) & 1
	v = v >> pos
	if n < 64 {
		v &= 1<<n - 1
	}
	have := uint64(0) // bits of the field within the register
	if pos < width {
		have = min(n, width-pos)
	}
	if sign != 0 && have < 64 {
		v |= ^uint64(0) << have
	}
	return v & mask(int(width))
}

// permute is prmt: each nibble of the selector chooses one of eight bytes, or
// with its top bit that byte's sign eight times.
func permute(v, sel uint64) (out uint64) {
	for i := range 4 {
		s := sel >> (4 * i)
		b := v >> (8 * (s & 7)) & 0xff
		if s&8 != 0 {
			b = -(b >> 7) & 0xff
		}
		out |= b << (8 * i)
	}
	return out
}

func lop3(a, b, c, table uint64) (out uint64) {
	for i := range 8 {
		if table>>i&1 == 0 {
			continue
		}
		pick := func(v uint64, on bool) uint64 {
			if on {
				return v
			}
			return ^v
		}
		out |= pick(a, i&4 != 0) & pick(b, i&2 != 0) & pick(c, i&1 != 0)
	}
	return out & math.MaxUint32
}

func relates(rel uint64, a, b float64) bool {
	switch rel {
	case relEq:
		return a == b
	case relNe:
		return a < b || a > b
	case relLt:
		return a < b
	case relLe:
		return a <= b
	case relGt:
		return a > b
	case relGe:
		return a >= b
	case relNum:
		return a == a && b == b
	case relNaN:
		return a != a || b != b
	case relEqu:
		return !(a < b || a > b)
	case relNeu:
		return a != b
	case relLtu:
		return !(a >= b)
	case relLeu:
		return !(a > b)
	case relGtu:
		return !(a <= b)
	}
	return !(a < b)
}

func get(b []byte, size uint8) uint64 {
	switch size {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.LittleEndian.Uint16(b))
	case 4:
		return uint64(binary.LittleEndian.Uint32(b))
	}
	return binary.LittleEndian.Uint64(b)
}

func put(b []byte, size uint8, v uint64) {
	switch size {
	case 1:
		b[0] = byte(v)
	case 2:
		binary.LittleEndian.PutUint16(b, uint16(v))
	case 4:
		binary.LittleEndian.PutUint32(b, uint32(v))
	default:
		binary.LittleEndian.PutUint64(b, v)
	}
}

// whole tells whether Go can reach the word at once.
func whole(b []byte, size uint8) bool {
	return size >= 4 && uintptr(unsafe.Pointer(unsafe.SliceData(b)))&uintptr(size-1) == 0
}

// getWhole and putWhole are get and put for what the host may be writing or
// reading meanwhile: a word is read and written at once.
func getWhole(b []byte, size uint8) uint64 {
	switch p := unsafe.Pointer(unsafe.SliceData(b)); {
	case !whole(b, size):
		return get(b, size)
	case size == 4:
		return uint64(atomic.LoadUint32((*uint32)(p)))
	default:
		return atomic.LoadUint64((*uint64)(p))
	}
}

func putWhole(b []byte, size uint8, v uint64) {
	switch p := unsafe.Pointer(unsafe.SliceData(b)); {
	case !whole(b, size):
		put(b, size, v)
	case size == 4:
		atomic.StoreUint32((*uint32)(p), uint32(v))
	default:
		atomic.StoreUint64((*uint64)(p), v)
	}
}

// loadStrong is a load that is relaxed, acquire or volatile.
func (r *run) loadStrong(t *thread, in *op, addr uint64) bool {
	n := uint64(in.size) * uint64(in.lanes)
	b := r.load(t, in, addr, n)
	if b == nil {
		return false
	}
	to := [4]uint16{in.d, in.b, in.c, in.e}
	for i := range in.lanes {
		t.regs[to[i]] = getWhole(b[i*in.size:], in.size)
	}
	return true
}

// storeStrong is a store that is relaxed, release or volatile. Nothing keeps the
// lanes of one together, where memory is weak: one comes first.
func (r *run) storeStrong(t *thread, in *op, addr uint64) bool {
	from := [4]uint16{in.d, in.b, in.c, in.e}
	if r.weak != nil {
		for i := range in.lanes {
			put(r.out[i*in.size:], in.size, t.regs[from[i]])
		}
		return r.store(t, in, addr, uint64(in.size)*uint64(in.lanes))
	}
	n := uint64(in.size) * uint64(in.lanes)
	g, off, err := r.reach(in, addr, n)
	if err != nil {
		r.err = err
		return false
	}
	for i := range in.lanes {
		putWhole(g.Bytes[off+uint64(i*in.size):], in.size, t.regs[from[i]])
	}
	if g.Written != nil {
		g.Written.Mark(off, n)
	}
	r.moved = true
	return true
}

// share is an access to what the block's threads share.
func (r *run) share(t *thread, in *op, addr uint64) bool {
	n := uint64(in.size) * uint64(in.lanes)
	blk := t.block
	switch {
	case addr&(n-1) != 0:
		r.err = fmt.Errorf("%w: shared offset %d for an access of %d bytes", ErrMisaligned, addr, n)
		return false
	case addr > uint64(len(blk.shared)) || n > uint64(len(blk.shared))-addr:
		r.err = fmt.Errorf("%w: %d bytes at offset %d of %d shared ones", ErrBounds, n, addr, len(blk.shared))
		return false
	}
	slots := [4]uint16{in.d, in.b, in.c, in.e}
	if in.code == opStShared {
		for i := range in.lanes {
			put(blk.shared[addr+uint64(i*in.size):], in.size, t.regs[slots[i]])
		}
		blk.written.Mark(addr, n)
		r.moved = true
		return true
	}
	if !blk.written.Has(addr, n) {
		r.err = fmt.Errorf("%w: %d bytes at shared offset %d", ErrUnwritten, n, addr)
		return false
	}
	for i := range in.lanes {
		t.regs[slots[i]] = get(blk.shared[addr+uint64(i*in.size):], in.size)
	}
	return true
}
