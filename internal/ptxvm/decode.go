// SPDX-License-Identifier: Apache-2.0

package ptxvm

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/geforce-p2p/geforce-p2p/internal/ptxvm/isa"
)

var errUnknown = errors.New("unknown instruction")

// instruction adds one to the code. A guard becomes a branch around it.
func (c *compiler) instruction(in isa.Instruction) error {
	if err := isa.Allowed(in.Op); err != nil {
		return fmt.Errorf("%w: %w", errUnknown, err)
	}
	base, _, _ := strings.Cut(in.Op, ".")
	if base == "bra" {
		if len(in.Args) != 1 {
			return errOperands
		}
		to, ok := c.entry.Labels[in.Args[0]]
		if !ok {
			return fmt.Errorf("no label %s", in.Args[0])
		}
		o := op{code: opBra}
		if in.Guard != "" {
			var err error
			if o.a, err = c.dest(in.Guard); err != nil {
				return err
			}
			if o.code = opBraIf; in.Negate {
				o.code = opBraUnless
			}
		}
		c.branches = append(c.branches, branch{len(c.p.code), to})
		c.emit(o, in)
		return nil
	}
	if in.Guard != "" {
		g, err := c.dest(in.Guard)
		if err != nil {
			return err
		}
		o := op{code: opBraUnless, a: g}
		if in.Negate {
			o.code = opBraIf
		}
		at := len(c.p.code)
		c.emit(o, in)
		defer func() { c.p.code[at].n = int32(len(c.p.code)) }()
	}
	return c.unguarded(base, in)
}

// clocks are the special registers that go on by themselves: nanoseconds, and
// ticks of a multiprocessor, of which there are two in each here.
var clocks = map[string]op{
	"%globaltimer": {code: opClock, imm: mask(64)},
	"%clock64":     {code: opClock, imm: mask(64), size: 1},
	"%clock":       {code: opClock, imm: mask(32), size: 1},
}

var errOperands = errors.New("other operands than it has")

func (c *compiler) unguarded(base string, in isa.Instruction) error {
	parts := strings.Split(in.Op, ".")
	mods := parts[1:]
	emit := func(o op) error { c.emit(o, in); return nil }
	switch base {
	case "ret":
		return emit(op{code: opRet})
	case "bar":
		if len(in.Args) != 1 || in.Args[0] != "0" {
			return errOperands
		}
		return emit(op{code: opBar})
	case "membar", "fence":
		o := op{code: opFence, flags: acquires | releases}
		if mods[len(mods)-1] != "sys" {
			o.flags |= local
		}
		return emit(o)
	case "nanosleep":
		return emit(op{code: opSleep})
	case "ld", "st":
		return c.access(base, mods, in)
	case "mov":
		if len(in.Args) == 2 && (strings.HasPrefix(in.Args[0], "{") || strings.HasPrefix(in.Args[1], "{")) {
			return c.pair(in)
		}
		if len(in.Args) == 2 && clocks[in.Args[1]].code == opClock {
			return c.assemble(clocks[in.Args[1]], in.Args[:1], nil, in)
		}
	case "cvt":
		return c.convert(mods, in)
	}
	y, err := typeOf(mods[len(mods)-1])
	if err != nil {
		return err
	}
	if base == "setp" && y.kind == 'f' {
		o := op{code: opSetF32, imm: relations[mods[0]]}
		if y.bits == 64 {
			o.code = opSetF64
		}
		return c.assemble(o, in.Args, []int{y.bits, y.bits}, in)
	}
	code, ok := plain[in.Op]
	if !ok {
		return errUnknown
	}
	o := op{code: code}
	widths := []int{y.bits, y.bits, y.bits}
	args := in.Args
	switch base {
	case "setp":
		widths = widths[:2]
		if to, ok := exchanged[code]; ok && len(args) == 3 {
			o.code, args = to, []string{args[0], args[2], args[1]}
		}
	case "selp":
		widths[2] = 1
	case "mad":
		if mods[0] == "wide" {
			widths[2] = 2 * y.bits
		}
	case "shl", "shr":
		widths = []int{y.bits, 32}
		o.imm = uint64(y.bits)
	case "bfe":
		widths = []int{y.bits, 32, 32}
		o.imm = uint64(y.bits)
	case "not":
		widths, o.imm = widths[:1], mask(y.bits)
	case "mov", "neg", "abs":
		widths = widths[:1]
	case "lop3":
		if len(args) != 5 {
			return errOperands
		}
		if o.imm, err = strconv.ParseUint(args[4], 0, 8); err != nil {
			return errOperands
		}
		args = args[:4]
	case "prmt", "shf":
	default:
		widths = widths[:2]
	}
	return c.assemble(o, args, widths, in)
}

// assemble adds an op with a destination and the sources, each of so many bits.
func (c *compiler) assemble(o op, args []string, widths []int, in isa.Instruction) (err error) {
	if len(args) != len(widths)+1 {
		return errOperands
	}
	if o.d, err = c.dest(args[0]); err != nil {
		return err
	}
	for i, w := range widths {
		s, err := c.source(args[1+i], w)
		if err != nil {
			return err
		}
		switch i {
		case 0:
			o.a = s
		case 1:
			o.b = s
		case 2:
			o.c = s
		}
	}
	c.emit(o, in)
	return nil
}

// pair is mov with two registers in braces on one side.
func (c *compiler) pair(in isa.Instruction) (err error) {
	dst, src := list(in.Args[0]), list(in.Args[1])
	switch {
	case len(dst) == 1 && len(src) == 2:
		w := c.width(dst[0]) / 2
		o := op{code: opPack, imm: uint64(w)}
		if o.d, err = c.dest(dst[0]); err != nil {
			return err
		}
		if o.a, err = c.source(src[0], w); err != nil {
			return err
		}
		if o.c, err = c.source(src[1], w); err != nil {
			return err
		}
		c.emit(o, in)
		return nil
	case len(dst) == 2 && len(src) == 1:
		w := 2 * c.width(dst[0])
		if w > 64 {
			return errOperands
		}
		o := op{code: opUnpack, imm: mask(w / 2)}
		if o.a, err = c.source(src[0], w); err != nil {
			return err
		}
		if o.d, err = c.dest(dst[0]); err != nil {
			return err
		}
		o.size = uint8(w / 2)
		o.e, err = c.dest(dst[1])
		c.emit(o, in)
		return err
	}
	return errOperands
}

func (c *compiler) convert(mods []string, in isa.Instruction) error {
	if len(in.Args) != 2 {
		return errOperands
	}
	if code, ok := plain[in.Op]; ok {
		return c.assemble(op{code: code}, in.Args, []int{64}, in)
	}
	to, err := typeOf(mods[len(mods)-2])
	if err != nil {
		return err
	}
	from, err := typeOf(mods[len(mods)-1])
	if err != nil {
		return err
	}
	reg := c.width(in.Args[0])
	if reg == 0 {
		return fmt.Errorf("unknown register %s", in.Args[0])
	}
	o := op{code: opAndImm, imm: mask(min(from.bits, to.bits))}
	extend := func(bits int) { o.code, o.size = opSignExt, uint8(64-bits) }
	switch {
	case to.kind == 'f':
		// Cut or extended to 64 bits first, which is in place: nothing else reads
		// the destination between the two.
		o.imm = mask(from.bits)
		code := map[bool]map[int]opcode{
			false: {32: opU64ToF32, 64: opU64ToF64}, true: {32: opS64ToF32, 64: opS64ToF64},
		}[from.kind == 's'][to.bits]
		if from.kind == 's' {
			extend(from.bits)
			o.imm = mask(64)
		}
		if err := c.assemble(o, in.Args, []int{64}, in); err != nil {
			return err
		}
		return c.assemble(op{code: code}, []string{in.Args[0], in.Args[0]}, []int{64}, in)
	case to.bits <= from.bits && to.kind == 's':
		extend(to.bits)
		o.imm = mask(reg)
	case to.bits <= from.bits:
	case from.kind == 's':
		extend(from.bits)
		if o.imm = mask(to.bits); to.kind == 's' {
			o.imm = mask(reg)
		}
	}
	return c.assemble(o, in.Args, []int{64}, in)
}

// access is ld and st.
func (c *compiler) access(base string, mods []string, in isa.Instruction) (err error) {
	y, err := typeOf(mods[len(mods)-1])
	if err != nil {
		return err
	}
	if len(in.Args) != 2 {
		return errOperands
	}
	o := op{size: uint8(y.bits / 8), lanes: 1}
	strong, space := false, ""
	for _, s := range mods[:len(mods)-1] {
		switch s {
		case "relaxed":
			strong = true
		case "volatile":
			strong = true
			o.flags |= volatile
		case "acquire":
			strong = true
			o.flags |= acquires
		case "release":
			strong = true
			o.flags |= releases
		case "sys":
		case "v2":
			o.lanes = 2
		case "v4":
			o.lanes = 4
		case "global", "shared", "param":
			space = s
		default:
			return errUnknown
		}
	}
	addr, values := in.Args[1], in.Args[0]
	if base == "st" {
		addr, values = values, addr
	}
	regs := list(values)
	if len(regs) != int(o.lanes) {
		return errOperands
	}
	if o.a, o.imm, err = c.address(addr); err != nil {
		return err
	}
	var slots [4]uint16
	for i, r := range regs {
		if base == "ld" {
			slots[i], err = c.dest(r)
		} else {
			slots[i], err = c.source(r, y.bits)
		}
		if err != nil {
			return err
		}
	}
	o.d, o.b, o.c, o.e = slots[0], slots[1], slots[2], slots[3]
	if o.lanes == 1 { // unused operands must not name a register
		o.b, o.c, o.e = 0, 0, 0
	}
	if base == "ld" && y.kind == 's' && y.bits < c.width(regs[0]) {
		o.flags |= signed
	}
	switch {
	case space == "param":
		if base == "st" {
			return errUnknown
		}
		o.code = opLdParam
	case space == "shared":
		if o.code = opLdShared; base == "st" {
			o.code = opStShared
		}
	case strong:
		if o.code = opLdStrong; base == "st" {
			o.code = opStStrong
		}
	default:
		type shape struct{ size, lanes uint8 }
		fast := map[shape][2]opcode{
			{1, 1}: {opLd8, opSt8}, {2, 1}: {opLd16, opSt16}, {4, 1}: {opLd32, opSt32}, {8, 1}: {opLd64, opSt64},
			{8, 2}: {opLd2x64, opSt2x64}, {4, 4}: {opLd4x32, opSt4x32},
		}
		i := 0
		if base == "st" {
			i = 1
		}
		two, ok := fast[shape{o.size, o.lanes}]
		if o.code = two[i]; !ok || o.flags&signed != 0 {
			o.code = [2]opcode{opLdVec, opStVec}[i]
		}
	}
	if space == "global" {
		o.n = int32(c.p.caches)
		c.p.caches++
	}
	c.emit(o, in)
	if o.flags&signed != 0 {
		for _, r := range regs {
			if err := c.assemble(op{code: opSignExt, size: uint8(64 - y.bits), imm: mask(c.width(r))}, []string{r, r}, []int{64}, in); err != nil {
				return err
			}
		}
	}
	return nil
}
