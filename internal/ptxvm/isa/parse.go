// SPDX-License-Identifier: Apache-2.0

// Package isa reads the PTX that clang and our own inline assembly make, and
// holds each instruction against a table of what PTX 7.0 and sm_80 have. clang
// passes inline PTX through unread, so nothing else would notice an
// instruction that old drivers, or all drivers, refuse. What the table has,
// package ptxvm runs.
package isa

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// A Module is one PTX file.
type Module struct {
	Version string // "7.0"
	Target  string // "sm_80"
	Entries []*Entry
}

// An Entry is a kernel.
type Entry struct {
	Name   string
	Params []Param
	Code   []Instruction
	Labels map[string]int // name -> index into Code of what follows it
	Regs   map[string]int // name prefix ("%rd") -> the type's size in bytes; 0 for predicates
	Shared []Param        // what a block's threads share, by name
}

// A Param is a kernel's parameter: its name and where it lies in the buffer. A
// shared variable is described likewise.
type Param struct {
	Name      string
	Off, Size int
}

// An Instruction is one line of code.
type Instruction struct {
	Line   int
	Guard  string // "%p1", or "" where it is unconditional
	Negate bool   // the guard is "@!%p1"
	Op     string // with all its modifiers: "ld.global.v4.u32"
	Args   []string
}

// String is the instruction without its guard, as PTX has it.
func (in Instruction) String() string {
	return strings.TrimSpace(in.Op + " " + strings.Join(in.Args, ", "))
}

var (
	entryRE = regexp.MustCompile(`^\.visible \.entry ([\w$]+)\(\)?$`)
	paramRE = regexp.MustCompile(`^\.param (?:\.align (\d+) )?\.([a-z]\d+) ([\w$]+)(?:\[(\d+)\])?,?$`)
	regRE   = regexp.MustCompile(`^\.reg \.(pred|[a-z]\d+) (%[a-z]+)<\d+>;$`)
	shareRE = regexp.MustCompile(`^\.shared \.align (\d+) \.([a-z]\d+) ([\w$]+)(?:\[(\d+)\])?;$`)
	boundRE = regexp.MustCompile(`^\.(maxntid|minnctapersm) `)
)

// Parse reads a module. What it does not know is an error that names the line:
// it is meant for our own modules, where a surprise is a reason to look.
func Parse(text string) (*Module, error) {
	m := &Module{}
	var e *Entry
	inBody := false
	line := 0
	for raw := range strings.SplitSeq(text, "\n") {
		line++
		s, _, _ := strings.Cut(raw, "//")
		s = spaced(s)
		if s == "" || s == ")" {
			continue
		}
		fail := func(why string) (*Module, error) { return nil, fmt.Errorf("line %d: %s: %q", line, why, s) }
		switch {
		case e == nil:
			switch {
			case strings.HasPrefix(s, ".version "):
				m.Version = s[len(".version "):]
			case strings.HasPrefix(s, ".target "):
				m.Target = s[len(".target "):]
			case s == ".address_size 64":
			case entryRE.MatchString(s):
				e = &Entry{Name: entryRE.FindStringSubmatch(s)[1], Labels: map[string]int{}, Regs: map[string]int{}}
			default:
				return fail("unknown directive")
			}
		case !inBody:
			switch g := paramRE.FindStringSubmatch(s); {
			case g != nil:
				e.Params = append(e.Params, place(e.Params, g))
			case boundRE.MatchString(s):
			case s == "{":
				inBody = true
			default:
				return fail("unknown kernel directive")
			}
		case s == "}":
			m.Entries = append(m.Entries, e)
			e, inBody = nil, false
		case s[0] != '.':
			if label, ok := strings.CutSuffix(s, ":"); ok {
				e.Labels[label] = len(e.Code)
				continue
			}
			in, ok := instruction(s)
			if !ok {
				return fail("not an instruction")
			}
			in.Line = line
			e.Code = append(e.Code, in)
		case s == `.pragma "nounroll";`:
		case regRE.MatchString(s):
			g := regRE.FindStringSubmatch(s)
			e.Regs[g[2]] = typeSize(g[1])
		case shareRE.MatchString(s):
			e.Shared = append(e.Shared, place(e.Shared, shareRE.FindStringSubmatch(s)))
		default:
			return fail("not an instruction")
		}
	}
	if e != nil {
		return nil, fmt.Errorf("%s: no end", e.Name)
	}
	return m, nil
}

// spaced is the words of a line with one space between them.
func spaced(s string) string {
	s = strings.TrimSpace(s)
	if !strings.ContainsRune(s, '\t') && !strings.Contains(s, "  ") {
		return s
	}
	return strings.Join(strings.Fields(s), " ")
}

// place puts a variable (alignment or "", type, name, elements or "") behind the
// others.
func place(others []Param, g []string) Param {
	size := typeSize(g[2])
	align := size
	if g[1] != "" {
		align, _ = strconv.Atoi(g[1])
	}
	if g[4] != "" {
		n, _ := strconv.Atoi(g[4])
		size *= n
	}
	off := 0
	if n := len(others); n > 0 {
		off = others[n-1].Off + others[n-1].Size
	}
	if align > 0 {
		off = (off + align - 1) / align * align
	}
	return Param{g[3], off, size}
}

// instruction splits a line of code.
func instruction(s string) (in Instruction, ok bool) {
	s, ok = strings.CutSuffix(s, ";")
	if !ok {
		return in, false
	}
	if rest, guarded := strings.CutPrefix(s, "@"); guarded {
		rest, in.Negate = strings.CutPrefix(rest, "!")
		if in.Guard, s, ok = strings.Cut(rest, " "); !ok || !strings.HasPrefix(in.Guard, "%") {
			return in, false
		}
	}
	var args string
	in.Op, args, _ = strings.Cut(s, " ")
	for _, c := range in.Op {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != 'N' {
			return in, false // N: of .NaN
		}
	}
	in.Args = splitArgs(args)
	return in, in.Op != "" && in.Op[0] >= 'a'
}

// typeSize is the bytes of a PTX type: "u64" has 8, "pred" none.
func typeSize(t string) int {
	n, _ := strconv.Atoi(strings.TrimLeft(t, "abcdefghijklmnopqrstuvwxyz"))
	return n / 8
}

// splitArgs splits operands at commas outside of braces.
func splitArgs(s string) []string {
	if s == "" {
		return nil
	}
	out := make([]string, 0, 4)
	depth, start := 0, 0
	for i := range len(s) {
		switch s[i] {
		case '{':
			depth++
		case '}':
			depth--
		case ',':
			if depth == 0 {
				out = append(out, strings.TrimSpace(s[start:i]))
				start = i + 1
			}
		}
	}
	if last := strings.TrimSpace(s[start:]); last != "" {
		out = append(out, last)
	}
	return out
}
