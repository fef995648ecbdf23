// SPDX-License-Identifier: Apache-2.0

// Package ptxvm runs PTX on host memory, instruction by instruction: what ships
// where there is no GPU. It knows the instructions of isa's table and refuses
// all others when it compiles, with the line.
//
// A Program is an entry point, compiled once. Run runs one launch as the
// simulator does: memory is as all threads wrote it, one after another. Together
// runs several launches at once, whose threads wait for each other, in turns
// that a generator draws and on memory that is as weak as PTX allows: see weak.
// A Member is such a launch in steps.
//
// What would be a fault, or garbage, on a GPU ends a run with a *Fault, which
// names kernel, block, thread and line: memory that is not there, or that
// nothing wrote; an access that is not aligned; threads that do not meet where
// they have to, or never end.
package ptxvm

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/geforce-p2p/geforce-p2p/internal/ptxvm/isa"
)

// A Program is an entry point ready to run. It is safe for concurrent use.
type Program struct {
	name   string
	code   []op
	ops    []string // the instructions' names, for errors
	slots  int      // registers, constants among them
	consts []uint64 // the first slots' values, behind those of the special registers
	params int      // bytes of the parameter buffer
	shared int      // bytes that a block's threads share
	caches int      // instructions that reach global memory
}

// Name is the entry point's.
func (p *Program) Name() string { return p.name }

// ParamBytes is the size of the parameter buffer.
func (p *Program) ParamBytes() int { return p.params }

// An op is a decoded instruction: slots of its operands, and what its opcode
// says about the rest.
type op struct {
	code          opcode
	d, a, b, c, e uint16
	size          uint8 // bytes of each lane of an access
	lanes         uint8
	flags         flag
	n             int32
	line          int32
	imm           uint64
}

type flag uint8

const (
	acquires flag = 1 << iota
	releases
	signed   // a load extends the sign
	local    // a scope that ends at the GPU
	volatile // of shared memory
)

// The slots of the special registers.
const (
	slotTid = iota
	_
	_
	slotNtid
	_
	_
	slotCtaid
	_
	_
	slotNctaid
	_
	_
	specials
)

var specialSlots = map[string]uint16{
	"%tid.x": slotTid, "%tid.y": slotTid + 1, "%tid.z": slotTid + 2,
	"%ntid.x": slotNtid, "%ntid.y": slotNtid + 1, "%ntid.z": slotNtid + 2,
	"%ctaid.x": slotCtaid, "%ctaid.y": slotCtaid + 1, "%ctaid.z": slotCtaid + 2,
	"%nctaid.x": slotNctaid, "%nctaid.y": slotNctaid + 1, "%nctaid.z": slotNctaid + 2,
}

// Load compiles all entry points of a module's text.
func Load(text string) (map[string]*Program, error) {
	m, err := isa.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("ptxvm: %w", err)
	}
	all := map[string]*Program{}
	for _, e := range m.Entries {
		if all[e.Name], err = compile(e); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Compile compiles one entry point of a module.
func Compile(m *isa.Module, entry string) (*Program, error) {
	for _, e := range m.Entries {
		if e.Name == entry {
			return compile(e)
		}
	}
	return nil, fmt.Errorf("ptxvm: no entry %q", entry)
}

func compile(e *isa.Entry) (*Program, error) {
	c := &compiler{entry: e, p: &Program{name: e.Name}, regs: map[string]uint16{}, values: map[uint64]uint16{}}
	for _, x := range e.Params {
		c.p.params = x.Off + x.Size
	}
	for _, x := range e.Shared {
		c.p.shared = x.Off + x.Size
	}
	at := make([]int, len(e.Code)+1) // where each instruction is in the code
	for i, in := range e.Code {
		at[i] = len(c.p.code)
		if err := c.instruction(in); err != nil {
			return nil, fmt.Errorf("ptxvm: %s line %d: %v: %w", e.Name, in.Line, in, err)
		}
	}
	at[len(e.Code)] = len(c.p.code)
	if len(c.regs) > math.MaxUint16-len(c.values)-specials {
		return nil, fmt.Errorf("ptxvm: %s: %d registers", e.Name, len(c.regs))
	}
	for _, b := range c.branches {
		c.p.code[b.at].n = int32(at[b.to])
	}
	c.allocate()
	return c.p, nil
}

// While it compiles, a register's slot is its number from virtual on.
const virtual = 4096

type branch struct{ at, to int }

type compiler struct {
	entry    *isa.Entry
	p        *Program
	regs     map[string]uint16 // number, from virtual on
	values   map[uint64]uint16 // slot of a constant
	branches []branch
}

func (c *compiler) emit(o op, in isa.Instruction) {
	o.line = int32(in.Line)
	c.p.code = append(c.p.code, o)
	c.p.ops = append(c.p.ops, in.Op)
}

// width is a register's by its name, in bits: 1 for a predicate, 0 if there is none.
func (c *compiler) width(reg string) int {
	size, ok := c.entry.Regs[strings.TrimRight(reg, "0123456789")]
	switch {
	case !ok:
		return 0
	case size == 0:
		return 1
	}
	return 8 * size
}

func mask(bits int) uint64 { return ^uint64(0) >> (64 - bits) }

// value is the slot of a constant.
func (c *compiler) value(v uint64) (uint16, error) {
	s, ok := c.values[v]
	if !ok {
		s = uint16(specials + len(c.values))
		if s >= virtual {
			return 0, fmt.Errorf("more than %d constants", virtual-specials)
		}
		c.values[v] = s
		c.p.consts = append(c.p.consts, v)
	}
	return s, nil
}

func (c *compiler) dest(s string) (uint16, error) {
	if c.width(s) == 0 {
		return 0, fmt.Errorf("unknown register %s", s)
	}
	r, ok := c.regs[s]
	if !ok {
		if len(c.regs) >= math.MaxUint16-virtual {
			return 0, fmt.Errorf("too many registers")
		}
		r = uint16(virtual + len(c.regs))
		c.regs[s] = r
	}
	return r, nil
}

// source is the slot of a register, a special register or a constant, which is
// cut to so many bits.
func (c *compiler) source(s string, bits int) (uint16, error) {
	if r, ok := specialSlots[s]; ok {
		return r, nil
	}
	if strings.HasPrefix(s, "%") {
		return c.dest(s)
	}
	v, err := c.number(s)
	if err != nil {
		return 0, err
	}
	return c.value(v & mask(bits))
}

// number is a literal, or where a parameter or shared variable lies.
func (c *compiler) number(s string) (uint64, error) {
	for _, p := range c.entry.Shared {
		if p.Name == s {
			return uint64(p.Off), nil
		}
	}
	for _, p := range c.entry.Params {
		if p.Name == s {
			return uint64(p.Off), nil
		}
	}
	if h, ok := strings.CutPrefix(s, "0f"); ok {
		return strconv.ParseUint(h, 16, 32)
	}
	if h, ok := strings.CutPrefix(s, "0d"); ok {
		return strconv.ParseUint(h, 16, 64)
	}
	if v, err := strconv.ParseInt(s, 0, 64); err == nil {
		return uint64(v), nil
	}
	v, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("unknown operand %q", s)
	}
	return v, nil
}

// address splits "[%rd1+8]" or "[name+8]" into a slot and an offset.
func (c *compiler) address(s string) (slot uint16, off uint64, err error) {
	in, ok := strings.CutPrefix(s, "[")
	in, ok2 := strings.CutSuffix(in, "]")
	if !ok || !ok2 {
		return 0, 0, fmt.Errorf("not an address: %s", s)
	}
	base, plus, has := strings.Cut(in, "+")
	if has {
		v, err := strconv.ParseInt(plus, 0, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("not an offset: %s", plus)
		}
		off = uint64(v)
	}
	if !strings.HasPrefix(base, "%") {
		v, err := c.number(base)
		if err != nil {
			return 0, 0, err
		}
		slot, err = c.value(0)
		return slot, v + off, err
	}
	slot, err = c.dest(base)
	return slot, off, err
}

// list is the operands in braces, or the one that has none.
func list(s string) []string {
	in, ok := strings.CutPrefix(s, "{")
	if !ok {
		return []string{s}
	}
	out := strings.Split(strings.TrimSuffix(in, "}"), ",")
	for i := range out {
		out[i] = strings.TrimSpace(out[i])
	}
	return out
}

// A typ is a PTX type: its letter ('u', 's', 'b', 'f') and its width in bits;
// a predicate is 'p' and 1.
type typ struct {
	kind byte
	bits int
}

func typeOf(s string) (typ, error) {
	if s == "pred" {
		return typ{'p', 1}, nil
	}
	if s == "bf16" {
		return typ{'h', 16}, nil
	}
	if len(s) > 1 && strings.IndexByte("usbf", s[0]) >= 0 {
		if n, err := strconv.Atoi(s[1:]); err == nil && (n == 8 || n == 16 || n == 32 || n == 64) {
			return typ{s[0], n}, nil
		}
	}
	return typ{}, fmt.Errorf("unknown type %q", s)
}
