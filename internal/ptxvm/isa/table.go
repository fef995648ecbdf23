// SPDX-License-Identifier: Apache-2.0

package isa

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// What the embedded modules are made for: every driver since R450 (CUDA 11.0)
// reads PTX 7.0, and compute capability 8.0 is the lowest that we support.
const (
	Version = "7.0"
	Target  = "sm_80"

	maxPTX = 70
	maxSM  = 80
)

// row says from which PTX version (times ten) and compute capability (times
// ten) an instruction exists. The pattern is matched against the whole
// instruction with its modifiers. Source: the "PTX ISA Notes" and "Target ISA
// Notes" of each instruction in NVIDIA's PTX ISA document.
type row struct {
	pattern string
	ptx, sm int
}

// table has no fma and no mad of floats: a contraction would make the two
// rungs differ, and must be refused. It has no approximate division, no .ftz
// and no non-coherent load for the same kind of reason.
var table = []row{
	{`(add|sub)\.[us](16|32|64)`, 10, 10},
	{`(add|mul)\.rn\.f32`, 10, 10},
	{`(add|mul)\.rn\.f64`, 10, 13},
	{`mul\.lo\.[us](16|32|64)`, 10, 10},
	{`mul\.hi\.[us](16|32|64)`, 10, 10},
	{`mul\.wide\.[us](16|32)`, 10, 10},
	{`mad\.lo\.[us](16|32|64)`, 10, 10},
	{`mad\.wide\.[us](16|32)`, 10, 10},
	{`(div|rem)\.[us](16|32|64)`, 10, 10},
	{`div\.rn\.f32`, 14, 20},
	{`div\.rn\.f64`, 14, 13},
	{`(min|max)\.[us](16|32|64)`, 10, 10},
	{`(min|max)\.f32`, 10, 10},
	{`(min|max)\.f64`, 10, 13},
	{`(min|max)\.NaN\.f32`, 70, 80}, // there is none of f64, in any version
	{`(neg|abs)\.s(16|32|64)`, 10, 10},

	{`(and|or|xor)\.(pred|b16|b32|b64)`, 10, 10},
	{`not\.(pred|b16|b32|b64)`, 10, 10},
	{`shl\.b(16|32|64)`, 10, 10},
	{`shr\.[bus](16|32|64)`, 10, 10},
	{`bfe\.[us](32|64)`, 20, 20},
	{`prmt\.b32`, 20, 20},
	{`shf\.[lr]\.wrap\.b32`, 31, 32},
	{`lop3\.b32`, 43, 50},

	{`setp\.(eq|ne)\.[bus](16|32|64)`, 10, 10},
	{`setp\.(lt|le|gt|ge)\.[us](16|32|64)`, 10, 10},
	{`setp\.(eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan)\.f32`, 10, 10},
	{`setp\.(eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan)\.f64`, 10, 13},
	{`selp\.[bus](16|32|64)`, 10, 10},
	{`selp\.f32`, 10, 10},
	{`selp\.f64`, 10, 13},

	{`mov\.(pred|[bus](16|32|64)|f32)`, 10, 10},
	{`mov\.f64`, 10, 13},
	{`ld\.param\.[bus](8|16|32|64)`, 10, 10},
	{`(ld|st)\.global(\.v2)?\.[bus](8|16|32|64)`, 10, 10},
	{`(ld|st)\.global\.v4\.[bus](8|16|32)`, 10, 10},

	{`cvt\.[us](8|16|32|64)\.[us](8|16|32|64)`, 10, 10},
	{`cvt\.rn\.f32\.[us](8|16|32|64)`, 10, 10},
	{`cvt\.rn\.f64\.[us](8|16|32|64)`, 10, 13},
	{`cvt\.rn\.f32\.f64`, 10, 13},
	{`cvt\.f64\.f32`, 10, 13},
	{`cvt\.f32\.f16`, 10, 10},
	{`cvt\.rn\.f16\.f32`, 10, 10},
	{`cvt\.rn\.bf16\.f32`, 70, 80},
	{`cvt\.(rn|rz)\.bf16\.[us](8|16|32|64)`, 78, 90},
	{`cvt\.f32\.bf16`, 71, 90},

	// Between threads, GPUs and the CPU. Sys is the scope of mapped host memory.
	// Nothing of a warp's is among them (redux, shfl, vote): threads that wait for
	// other GPUs diverge, and must not have to meet.
	{`(ld|st)\.relaxed\.sys\.global(\.v2)?\.[bus](32|64)`, 60, 70},
	{`(ld|st)\.volatile\.global(\.v2)?\.[bus](32|64)`, 11, 10},
	{`ld\.acquire\.sys\.global\.[bus](32|64)`, 60, 70},
	{`st\.release\.sys\.global\.[bus](32|64)`, 60, 70},
	{`(ld|st)\.volatile\.shared\.[bus](8|16|32|64)`, 11, 10},
	{`(ld|st)\.shared\.[bus](8|16|32|64)`, 10, 10},
	{`membar\.(cta|gl)`, 14, 11},
	{`membar\.sys`, 20, 20},
	{`fence\.(sc|acq_rel)\.(cta|gpu|sys)`, 60, 70},
	{`nanosleep\.u32`, 63, 70},
	{`bar\.sync`, 10, 10},

	{`bra(\.uni)?`, 10, 10},
	{`ret`, 10, 10},
}

var compiled = func() []*regexp.Regexp {
	res := make([]*regexp.Regexp, len(table))
	for i, r := range table {
		res[i] = regexp.MustCompile(`^(?:` + r.pattern + `)$`)
	}
	return res
}()

// Allowed says whether an instruction, given with its modifiers, may appear in
// an embedded module; the error says why not.
func Allowed(op string) error {
	if strings.HasPrefix(op, "ld.global.nc") {
		return errors.New("ld.global.nc may return stale data of another GPU: an input is const __restrict__ somewhere")
	}
	for i, r := range table {
		if !compiled[i].MatchString(op) {
			continue
		}
		if r.ptx > maxPTX || r.sm > maxSM {
			return fmt.Errorf("needs PTX %d.%d and sm_%d; the embedded modules are PTX %s, %s",
				r.ptx/10, r.ptx%10, r.sm, Version, Target)
		}
		return nil
	}
	return errors.New("not in the table of instructions that PTX " + Version + " and " + Target + " have")
}

// field refuses a bit field that ends beyond the register. clang 16 makes one
// of an arithmetic shift by 63 and a mask, and takes zeros for the sign.
func field(in Instruction) error {
	if !strings.HasPrefix(in.Op, "bfe.") || len(in.Args) != 4 {
		return nil
	}
	width, _ := strconv.Atoi(in.Op[len("bfe.u"):])
	pos, err1 := strconv.Atoi(in.Args[2])
	n, err2 := strconv.Atoi(in.Args[3])
	if err1 == nil && err2 == nil && pos+n > width {
		return errors.New("the field ends beyond the register: a known miscompilation of clang 16")
	}
	return nil
}

// Check holds a module's header and each of its instructions against the table,
// and its entry points against the names that it must have, in any order. All
// faults are listed, one for each distinct instruction.
func Check(text string, entries []string) error {
	m, err := Parse(text)
	if err != nil {
		return err
	}
	var faults []error
	if m.Version != Version || m.Target != Target {
		faults = append(faults, fmt.Errorf("is .version %s .target %s, not %s and %s", m.Version, m.Target, Version, Target))
	}
	want := map[string]bool{}
	for _, e := range entries {
		want[e] = true
	}
	seen := map[string]bool{}
	for _, e := range m.Entries {
		if !want[e.Name] {
			faults = append(faults, fmt.Errorf("entry %s is not expected", e.Name))
		}
		delete(want, e.Name)
		for _, in := range e.Code {
			if err := field(in); err != nil {
				faults = append(faults, fmt.Errorf("line %d: %s %s: %w", in.Line, in.Op, strings.Join(in.Args, ", "), err))
			}
			if seen[in.Op] {
				continue
			}
			seen[in.Op] = true
			if err := Allowed(in.Op); err != nil {
				faults = append(faults, fmt.Errorf("line %d: %s: %w", in.Line, in.Op, err))
			}
		}
	}
	for _, e := range entries {
		if want[e] {
			faults = append(faults, fmt.Errorf("entry %s is missing", e))
		}
	}
	return errors.Join(faults...)
}

// Barriers holds the number of an entry's barriers against what its source says.
// A compiler that doubles one, for threads that it has sent separate ways, makes
// the threads of a warp come to it apart: the hardware counts such a warp twice,
// or waits for ever.
func Barriers(text, source string) error {
	m, err := Parse(text)
	if err != nil {
		return err
	}
	want := 0
	for line := range strings.Lines(source) {
		line, _, _ = strings.Cut(line, "//")
		want += strings.Count(line, "__syncthreads()")
	}
	for _, e := range m.Entries {
		got := 0
		for _, in := range e.Code {
			if in.Op != "bar.sync" {
				continue
			}
			got++
			if in.Guard != "" {
				return fmt.Errorf("entry %s: line %d: a barrier for some threads only", e.Name, in.Line)
			}
		}
		if got != want {
			return fmt.Errorf("entry %s: %d barriers where the source has %d", e.Name, got, want)
		}
	}
	return nil
}

// Patterns lists the table's, each of which stands for all instructions, with
// their modifiers, that it matches.
func Patterns() []string {
	ps := make([]string, len(table))
	for i, r := range table {
		ps[i] = r.pattern
	}
	return ps
}
