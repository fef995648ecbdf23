// SPDX-License-Identifier: Apache-2.0

// Package emu runs the embedded PTX on host memory, instruction by
// instruction, so that what ships can be compared with the reference where
// there is no GPU. Run runs threads one after another, which suits kernels whose
// threads do not talk to each other; Together runs several launches at once,
// whose threads may. It is a check, not a simulator: nothing of the product
// imports it.
package emu

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
	"github.com/geforce-p2p/geforce-p2p/ptx/internal/isa"
)

// Kernel is an entry point ready to run.
type Kernel struct {
	name  string
	code  []insn
	regs  int
	bytes int // of the parameter buffer
	share int // bytes that a block shares
}

// thread is one thread's state while it runs.
type thread struct {
	regs                  []uint64
	params                []byte
	mem                   kernel.Memory
	tid, ctaid, ntid, nct uint64
	shared                []byte
	now                   func() uint64 // what %globaltimer reads
	late                  func()        // the rest of a store, which others may see later
	err                   error
}

// settle finishes a store.
func (t *thread) settle() {
	if t.late != nil {
		t.late()
		t.late = nil
	}
}

type insn struct {
	guard  int // register of the predicate, -1 for none
	negate bool
	target int // of a branch; -1: next
	ret    bool
	meet   bool // bar.sync: the threads of a block come together
	do     func(t *thread)
	line   int
	op     string
}

// operand reads a source operand's bits.
type operand func(t *thread) uint64

// Compile makes the entry of that name ready to run. An instruction that it
// does not know is an error.
func Compile(m *isa.Module, name string) (*Kernel, error) {
	for _, e := range m.Entries {
		if e.Name == name {
			return compile(e)
		}
	}
	return nil, fmt.Errorf("emu: no entry %q", name)
}

func compile(e *isa.Entry) (*Kernel, error) {
	c := &compiler{entry: e, slots: map[string]int{}}
	k := &Kernel{name: e.Name}
	for _, p := range e.Params {
		k.bytes = p.Off + p.Size
	}
	for _, p := range e.Shared {
		k.share = p.Off + p.Size
	}
	for _, in := range e.Code {
		x := insn{guard: -1, negate: in.Negate, target: -1, line: in.Line, op: in.Op}
		if in.Guard != "" {
			x.guard = c.slot(in.Guard)
		}
		switch base, _, _ := strings.Cut(in.Op, "."); base {
		case "bra":
			at, ok := e.Labels[in.Args[0]]
			if !ok {
				return nil, fmt.Errorf("emu: %s line %d: no label %s", e.Name, in.Line, in.Args[0])
			}
			x.target = at
		case "ret":
			x.ret = true
		case "bar":
			x.meet = true
		default:
			do, err := c.instruction(in)
			if err != nil {
				return nil, fmt.Errorf("emu: %s line %d: %s %s: %w", e.Name, in.Line, in.Op, strings.Join(in.Args, ", "), err)
			}
			x.do = do
		}
		k.code = append(k.code, x)
	}
	k.regs = len(c.slots)
	return k, nil
}

// Run runs the kernel over a grid of blocks, each of threads, one-dimensional.
// It fails where a thread reaches memory that is not there, or that is not
// aligned to the access, and where a thread does not end.
func (k *Kernel) Run(grid, block int, params []byte, mem kernel.Memory) error {
	if len(params) != k.bytes {
		return fmt.Errorf("emu: %s: %d bytes of parameters, not %d", k.name, len(params), k.bytes)
	}
	t := &thread{regs: make([]uint64, k.regs), params: params, mem: mem, ntid: uint64(block), nct: uint64(grid)}
	for b := range grid {
		for i := range block {
			t.ctaid, t.tid = uint64(b), uint64(i)
			if err := k.thread(t); err != nil {
				return fmt.Errorf("emu: %s: block %d thread %d: %w", k.name, b, i, err)
			}
		}
	}
	return nil
}

// maxSteps ends a thread that loops for ever.
const maxSteps = 50_000_000

func (k *Kernel) thread(t *thread) error {
	pc := 0
	for range maxSteps {
		if pc >= len(k.code) {
			return fmt.Errorf("ran past the end")
		}
		in := &k.code[pc]
		pc++
		if in.guard >= 0 && (t.regs[in.guard] != 0) == in.negate {
			continue
		}
		switch {
		case in.ret:
			return nil
		case in.target >= 0:
			pc = in.target
		case in.meet:
			return fmt.Errorf("line %d: %s: threads meet, which run one after another here", in.line, in.op)
		default:
			in.do(t)
			if t.err != nil {
				return fmt.Errorf("line %d: %s: %w", in.line, in.op, t.err)
			}
			t.settle()
		}
	}
	return fmt.Errorf("no end after %d instructions", maxSteps)
}

type compiler struct {
	entry *isa.Entry
	slots map[string]int
}

func (c *compiler) slot(reg string) int {
	s, ok := c.slots[reg]
	if !ok {
		s = len(c.slots)
		c.slots[reg] = s
	}
	return s
}

// regBits is the width of a register by its name, 1 for a predicate.
func (c *compiler) regBits(reg string) int {
	prefix := strings.TrimRight(reg, "0123456789")
	size, ok := c.entry.Regs[prefix]
	switch {
	case !ok:
		return 0
	case size == 0:
		return 1
	}
	return 8 * size
}

func (c *compiler) param(name string) (isa.Param, bool) {
	for _, p := range c.entry.Params {
		if p.Name == name {
			return p, true
		}
	}
	return isa.Param{}, false
}

// source resolves a register, special register, immediate or parameter's name.
func (c *compiler) source(s string) (operand, error) {
	switch s {
	case "%tid.x":
		return func(t *thread) uint64 { return t.tid }, nil
	case "%ctaid.x":
		return func(t *thread) uint64 { return t.ctaid }, nil
	case "%ntid.x":
		return func(t *thread) uint64 { return t.ntid }, nil
	case "%nctaid.x":
		return func(t *thread) uint64 { return t.nct }, nil
	case "%globaltimer":
		return func(t *thread) uint64 { return t.now() }, nil
	case "%clock":
		return func(t *thread) uint64 { return uint64(uint32(2 * t.now())) }, nil // at 2 GHz
	}
	for _, p := range c.entry.Shared {
		if p.Name == s {
			return constant(uint64(p.Off)), nil
		}
	}
	if strings.HasPrefix(s, "%") {
		if c.regBits(s) == 0 {
			return nil, fmt.Errorf("unknown register %s", s)
		}
		at := c.slot(s)
		return func(t *thread) uint64 { return t.regs[at] }, nil
	}
	if p, ok := c.param(s); ok {
		return constant(uint64(p.Off)), nil
	}
	if h, ok := strings.CutPrefix(s, "0f"); ok {
		v, err := strconv.ParseUint(h, 16, 32)
		return constant(v), err
	}
	if h, ok := strings.CutPrefix(s, "0d"); ok {
		v, err := strconv.ParseUint(h, 16, 64)
		return constant(v), err
	}
	if v, err := strconv.ParseInt(s, 0, 64); err == nil {
		return constant(uint64(v)), nil
	}
	v, err := strconv.ParseUint(s, 0, 64)
	return constant(v), err
}

func constant(v uint64) operand { return func(*thread) uint64 { return v } }

// dest resolves a destination register: a store of the register's own width.
func (c *compiler) dest(s string) (func(t *thread, v uint64), error) {
	w := c.regBits(s)
	if w == 0 {
		return nil, fmt.Errorf("unknown register %s", s)
	}
	at, mask := c.slot(s), ^uint64(0)>>(64-w)
	return func(t *thread, v uint64) { t.regs[at] = v & mask }, nil
}

// address resolves "[%rd1+8]" or "[name+8]".
func (c *compiler) address(s string) (operand, error) {
	s = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	base, off, has := strings.Cut(s, "+")
	b, err := c.source(base)
	if err != nil || !has {
		return b, err
	}
	o, err := strconv.ParseInt(off, 0, 64)
	return func(t *thread) uint64 { return b(t) + uint64(o) }, err
}

func list(s string) []string {
	if !strings.HasPrefix(s, "{") {
		return []string{s}
	}
	var out []string
	for _, f := range strings.Split(strings.Trim(s, "{}"), ",") {
		out = append(out, strings.TrimSpace(f))
	}
	return out
}

// typ is a PTX type: its kind letter ('u', 's', 'b', 'f', 'h' for bf16, 'p') and width in bits.
type typ struct {
	kind byte
	bits int
}

func parseType(s string) (typ, error) {
	switch {
	case s == "pred":
		return typ{'p', 1}, nil
	case s == "bf16":
		return typ{'h', 16}, nil
	}
	n, err := strconv.Atoi(s[1:])
	if err != nil || !strings.ContainsRune("usbf", rune(s[0])) {
		return typ{}, fmt.Errorf("unknown type %q", s)
	}
	return typ{s[0], n}, nil
}

// of cuts v to the type's width, with its sign.
func (y typ) of(v uint64) uint64 {
	if y.kind == 's' {
		return uint64(int64(v<<(64-y.bits)) >> (64 - y.bits))
	}
	return v & (^uint64(0) >> (64 - y.bits))
}

func (c *compiler) instruction(in isa.Instruction) (func(t *thread), error) {
	parts := strings.Split(in.Op, ".")
	base, mods := parts[0], parts[1:]
	y, err := parseType(mods[len(mods)-1])
	if err != nil {
		return nil, err
	}
	switch base {
	case "ld", "st":
		return c.memory(base, mods, y, in.Args)
	case "mov":
		return c.move(in.Args)
	case "setp":
		return c.compare(mods[0], y, in.Args)
	case "cvt":
		from := y
		to, err := parseType(mods[len(mods)-2])
		if err != nil {
			return nil, err
		}
		f, err := convert(to, from)
		if err != nil {
			return nil, err
		}
		return c.apply(in.Args, func(a []uint64) uint64 { return f(a[0]) })
	}
	f, err := arithmetic(base, mods, y)
	if err != nil {
		return nil, err
	}
	return c.apply(in.Args, f)
}

// apply makes an instruction of one destination and up to three sources.
func (c *compiler) apply(args []string, f func(a []uint64) uint64) (func(t *thread), error) {
	set, err := c.dest(args[0])
	if err != nil {
		return nil, err
	}
	src := make([]operand, len(args)-1)
	for i, s := range args[1:] {
		if src[i], err = c.source(s); err != nil {
			return nil, err
		}
	}
	vals := make([]uint64, len(src)) // threads run one after another
	return func(t *thread) {
		for i, s := range src {
			vals[i] = s(t)
		}
		set(t, f(vals))
	}, nil
}

func (c *compiler) memory(base string, mods []string, y typ, args []string) (func(t *thread), error) {
	// All threads see memory alike here, so that order needs nothing.
	strong := mods[0] == "volatile" && mods[1] == "global"
	for mods[0] == "acquire" || mods[0] == "release" || mods[0] == "volatile" || mods[0] == "sys" {
		mods = mods[1:]
	}
	space := mods[0]
	if base == "st" {
		args = []string{args[1], args[0]}
	}
	regs := list(args[0])
	lanes := 1
	if len(mods) == 3 {
		lanes, _ = strconv.Atoi(strings.TrimPrefix(mods[1], "v"))
	}
	if len(regs) != lanes {
		return nil, fmt.Errorf("%d registers for %d lanes", len(regs), lanes)
	}
	addr, err := c.address(args[1])
	if err != nil {
		return nil, err
	}
	size := y.bits / 8
	total := uint64(size * lanes)
	at := func(t *thread) []byte {
		a := addr(t)
		if a%total != 0 {
			t.err = fmt.Errorf("address %#x is not aligned to %d bytes", a, total)
			return nil
		}
		if space == "param" {
			if a+total > uint64(len(t.params)) {
				t.err = fmt.Errorf("parameter offset %d of %d", a, len(t.params))
				return nil
			}
			return t.params[a:]
		}
		if space == "shared" {
			if a+total > uint64(len(t.shared)) {
				t.err = fmt.Errorf("offset %d of %d shared bytes", a, len(t.shared))
				return nil
			}
			return t.shared[a:]
		}
		b, err := t.mem.Bytes(a, total)
		if err != nil {
			t.err = err
		}
		return b
	}
	if base == "st" {
		var src []operand
		for _, r := range regs {
			s, err := c.source(r)
			if err != nil {
				return nil, err
			}
			src = append(src, s)
		}
		if strong && len(src) == 2 {
			// Nothing keeps the two together: one of them comes first.
			return func(t *thread) {
				b := at(t)
				if t.err != nil {
					return
				}
				first := int(t.tid & 1)
				put(b[first*size:], size, src[first](t))
				v := src[1-first](t)
				t.late = func() { put(b[(1-first)*size:], size, v) }
			}, nil
		}
		return func(t *thread) {
			b := at(t)
			for i := 0; t.err == nil && i < len(src); i++ {
				put(b[i*size:], size, src[i](t))
			}
		}, nil
	}
	var dst []func(*thread, uint64)
	for _, r := range regs {
		d, err := c.dest(r)
		if err != nil {
			return nil, err
		}
		dst = append(dst, d)
	}
	return func(t *thread) {
		b := at(t)
		for i := 0; t.err == nil && i < len(dst); i++ {
			dst[i](t, y.of(get(b[i*size:], size)))
		}
	}, nil
}

func get(b []byte, size int) uint64 {
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

func put(b []byte, size int, v uint64) {
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

// move is mov, also with a pair of registers in braces on one side.
func (c *compiler) move(args []string) (func(t *thread), error) {
	dst, src := list(args[0]), list(args[1])
	switch {
	case len(dst) == 1 && len(src) == 1:
		return c.apply(args, func(a []uint64) uint64 { return a[0] })
	case len(dst) == 1 && len(src) == 2:
		w := c.regBits(dst[0]) / 2
		return c.apply([]string{dst[0], src[0], src[1]}, func(a []uint64) uint64 {
			return a[0]&(1<<w-1) | a[1]<<w
		})
	case len(dst) == 2 && len(src) == 1:
		s, err := c.source(src[0])
		if err != nil {
			return nil, err
		}
		lo, err := c.dest(dst[0])
		if err != nil {
			return nil, err
		}
		hi, err := c.dest(dst[1])
		w := c.regBits(src[0]) / 2
		return func(t *thread) {
			v := s(t)
			lo(t, v)
			hi(t, v>>w)
		}, err
	}
	return nil, fmt.Errorf("unknown form")
}

func (c *compiler) compare(rel string, y typ, args []string) (func(t *thread), error) {
	var f func(a []uint64) bool
	if y.kind == 'f' {
		num := func(v uint64) float64 {
			if y.bits == 32 {
				return float64(math.Float32frombits(uint32(v)))
			}
			return math.Float64frombits(v)
		}
		ordered := map[string]func(a, b float64) bool{
			"eq": func(a, b float64) bool { return a == b }, "ne": func(a, b float64) bool { return a < b || a > b },
			"lt": func(a, b float64) bool { return a < b }, "le": func(a, b float64) bool { return a <= b },
			"gt": func(a, b float64) bool { return a > b }, "ge": func(a, b float64) bool { return a >= b },
			"num": func(a, b float64) bool { return a == a && b == b }, "nan": func(a, b float64) bool { return a != a || b != b },
			"equ": func(a, b float64) bool { return !(a < b || a > b) }, "neu": func(a, b float64) bool { return a != b },
			"ltu": func(a, b float64) bool { return !(a >= b) }, "leu": func(a, b float64) bool { return !(a > b) },
			"gtu": func(a, b float64) bool { return !(a <= b) }, "geu": func(a, b float64) bool { return !(a < b) },
		}[rel]
		if ordered == nil {
			return nil, fmt.Errorf("unknown comparison")
		}
		f = func(a []uint64) bool { return ordered(num(a[0]), num(a[1])) }
	} else {
		less := func(a, b uint64) bool { return y.of(a) < y.of(b) }
		if y.kind == 's' {
			less = func(a, b uint64) bool { return int64(y.of(a)) < int64(y.of(b)) }
		}
		f = map[string]func(a []uint64) bool{
			"eq": func(a []uint64) bool { return y.of(a[0]) == y.of(a[1]) },
			"ne": func(a []uint64) bool { return y.of(a[0]) != y.of(a[1]) },
			"lt": func(a []uint64) bool { return less(a[0], a[1]) },
			"le": func(a []uint64) bool { return !less(a[1], a[0]) },
			"gt": func(a []uint64) bool { return less(a[1], a[0]) },
			"ge": func(a []uint64) bool { return !less(a[0], a[1]) },
		}[rel]
		if f == nil {
			return nil, fmt.Errorf("unknown comparison")
		}
	}
	return c.apply(args, func(a []uint64) uint64 {
		if f(a) {
			return 1
		}
		return 0
	})
}

func f32(v uint64) float32   { return math.Float32frombits(uint32(v)) }
func b32(f float32) uint64   { return uint64(math.Float32bits(f)) }
func f64(v uint64) float64   { return math.Float64frombits(v) }
func b64(f float64) uint64   { return math.Float64bits(f) }
func is(s, a, b string) bool { return s == a || s == b }

// convert is cvt, between the types that the modules convert.
func convert(to, from typ) (func(v uint64) uint64, error) {
	integer := func(y typ) bool { return y.kind == 'u' || y.kind == 's' }
	switch {
	case integer(to) && integer(from):
		return func(v uint64) uint64 { return to.of(from.of(v)) }, nil
	case to.kind == 'f' && integer(from):
		signed := from.kind == 's'
		return func(v uint64) uint64 {
			v = from.of(v)
			switch {
			case to.bits == 32 && signed:
				return b32(float32(int64(v)))
			case to.bits == 32:
				return b32(float32(v))
			case signed:
				return b64(float64(int64(v)))
			}
			return b64(float64(v))
		}, nil
	case to == typ{'f', 32} && from == typ{'f', 16}:
		return func(v uint64) uint64 { return b32(dtype.Float16ToFloat32(uint16(v))) }, nil
	case to == typ{'f', 16} && from == typ{'f', 32}:
		return func(v uint64) uint64 { return uint64(dtype.Float16FromFloat32(f32(v))) }, nil
	case to.kind == 'h' && from == typ{'f', 32}:
		return func(v uint64) uint64 { return uint64(dtype.BFloat16FromFloat32(f32(v))) }, nil
	}
	return nil, fmt.Errorf("unknown conversion")
}

func arithmetic(base string, mods []string, y typ) (func(a []uint64) uint64, error) {
	if y.kind == 'f' && base != "selp" {
		return floating(base, mods, y)
	}
	signed := y.kind == 's'
	switch base {
	case "add":
		return func(a []uint64) uint64 { return a[0] + a[1] }, nil
	case "sub":
		return func(a []uint64) uint64 { return a[0] - a[1] }, nil
	case "neg":
		return func(a []uint64) uint64 { return -a[0] }, nil
	case "not":
		return func(a []uint64) uint64 { return ^a[0] }, nil
	case "and":
		return func(a []uint64) uint64 { return a[0] & a[1] }, nil
	case "or":
		return func(a []uint64) uint64 { return a[0] | a[1] }, nil
	case "xor":
		return func(a []uint64) uint64 { return a[0] ^ a[1] }, nil
	case "selp":
		return func(a []uint64) uint64 {
			if a[2] != 0 {
				return a[0]
			}
			return a[1]
		}, nil
	case "shl":
		return func(a []uint64) uint64 {
			if a[1] >= uint64(y.bits) {
				return 0
			}
			return a[0] << a[1]
		}, nil
	case "shr":
		return func(a []uint64) uint64 {
			n := min(a[1], uint64(y.bits))
			if signed {
				return uint64(int64(y.of(a[0])) >> n)
			}
			return y.of(a[0]) >> n
		}, nil
	case "bfe":
		if signed {
			// A field that does not end beyond the register: see isa.Check.
			return func(a []uint64) uint64 {
				n := a[2] & 255
				if n == 0 {
					return 0
				}
				return uint64(int64(y.of(a[0])>>(a[1]&255)<<(64-n)) >> (64 - n))
			}, nil
		}
		return func(a []uint64) uint64 { return y.of(a[0]) >> (a[1] & 255) & (1<<(a[2]&255) - 1) }, nil
	case "mul":
		switch mods[0] {
		case "lo":
			return func(a []uint64) uint64 { return a[0] * a[1] }, nil
		case "wide":
			return func(a []uint64) uint64 { return y.of(a[0]) * y.of(a[1]) }, nil
		case "hi":
			if !signed && y.bits == 64 {
				return func(a []uint64) uint64 { hi, _ := bits.Mul64(a[0], a[1]); return hi }, nil
			}
		}
	case "mad":
		switch mods[0] {
		case "lo":
			return func(a []uint64) uint64 { return a[0]*a[1] + a[2] }, nil
		case "wide":
			return func(a []uint64) uint64 { return y.of(a[0])*y.of(a[1]) + a[2] }, nil
		}
	case "shf": // of b32, by c&31
		if mods[0] == "l" {
			return func(a []uint64) uint64 { return (a[1]&0xffffffff<<32 | a[0]&0xffffffff) << (a[2] & 31) >> 32 }, nil
		}
		return func(a []uint64) uint64 { return (a[1]&0xffffffff<<32 | a[0]&0xffffffff) >> (a[2] & 31) }, nil
	case "div", "rem":
		return func(a []uint64) uint64 {
			x, d := y.of(a[0]), y.of(a[1])
			switch {
			case d == 0:
				return ^uint64(0)
			case signed && base == "div":
				return uint64(int64(x) / int64(d))
			case signed:
				return uint64(int64(x) % int64(d))
			case base == "div":
				return x / d
			}
			return x % d
		}, nil
	case "min", "max":
		return func(a []uint64) uint64 {
			x, z := y.of(a[0]), y.of(a[1])
			less := x < z
			if signed {
				less = int64(x) < int64(z)
			}
			if less == (base == "min") {
				return x
			}
			return z
		}, nil
	}
	return nil, fmt.Errorf("unknown instruction")
}

func floating(base string, mods []string, y typ) (func(a []uint64) uint64, error) {
	if y.bits == 32 && len(mods) == 2 && mods[0] == "NaN" && is(base, "min", "max") {
		return func(a []uint64) uint64 {
			x, z := f32(a[0]), f32(a[1])
			r := min(x, z)
			if base == "max" {
				r = max(x, z)
			}
			if r != r {
				return uint64(dtype.NaNFloat32)
			}
			return b32(r)
		}, nil
	}
	if len(mods) != 2 || mods[0] != "rn" {
		return nil, fmt.Errorf("unknown instruction")
	}
	f := map[string]func(a, b float64) float64{
		"add": func(a, b float64) float64 { return a + b },
		"mul": func(a, b float64) float64 { return a * b },
		"div": func(a, b float64) float64 { return a / b },
	}[base]
	if f == nil {
		return nil, fmt.Errorf("unknown instruction")
	}
	if y.bits == 64 {
		return func(a []uint64) uint64 { return b64(f(f64(a[0]), f64(a[1]))) }, nil
	}
	// Sum, product and quotient of two float32 rounded to float64 and then to
	// float32 are what rounding once gives: float64 has more than twice the bits.
	return func(a []uint64) uint64 { return b32(float32(f(float64(f32(a[0])), float64(f32(a[1]))))) }, nil
}
