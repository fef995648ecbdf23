// SPDX-License-Identifier: Apache-2.0

// Package isa reads PTX text, as far as the modules of package ptx use it, and
// holds each instruction against a table of what PTX 7.0 and sm_80 have. clang
// passes inline PTX through unread, so nothing else would notice an
// instruction that old drivers, or all drivers, refuse.
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

var (
	entryRE = regexp.MustCompile(`^\.visible \.entry (\w+)\(`)
	paramRE = regexp.MustCompile(`^\.param (?:\.align (\d+) )?\.([a-z]\d+) (\w+)(?:\[(\d+)\])?,?$`)
	regRE   = regexp.MustCompile(`^\.reg \.(pred|[a-z]\d+) (%[a-z]+)<\d+>;$`)
	shareRE = regexp.MustCompile(`^\.shared \.align (\d+) \.([a-z]\d+) (\w+)(?:\[(\d+)\])?;$`)
	labelRE = regexp.MustCompile(`^(\$?\w+):$`)
	insnRE  = regexp.MustCompile(`^(?:@(!?)(%p\d+) )?([a-z][\w.]*)(?: (.*))?;$`)
)

// Parse reads a module. What it does not know is an error: it is meant for our
// own modules, where a surprise is a reason to look.
func Parse(text string) (*Module, error) {
	m := &Module{}
	var e *Entry
	inBody := false
	for i, raw := range strings.Split(text, "\n") {
		line := i + 1
		s, _, _ := strings.Cut(raw, "//")
		s = strings.Join(strings.Fields(s), " ")
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
				size := typeSize(g[2])
				off := 0
				if n := len(e.Params); n > 0 {
					off = e.Params[n-1].Off + e.Params[n-1].Size
				}
				align := size
				if g[1] != "" {
					align, _ = strconv.Atoi(g[1])
				}
				if g[4] != "" {
					n, _ := strconv.Atoi(g[4])
					size *= n
				}
				off = (off + align - 1) / align * align
				e.Params = append(e.Params, Param{g[3], off, size})
			case strings.HasPrefix(s, ".maxntid "):
			case s == "{":
				inBody = true
			default:
				return fail("unknown kernel directive")
			}
		case s == "}":
			m.Entries = append(m.Entries, e)
			e, inBody = nil, false
		case regRE.MatchString(s):
			g := regRE.FindStringSubmatch(s)
			e.Regs[g[2]] = typeSize(g[1])
		case shareRE.MatchString(s):
			g := shareRE.FindStringSubmatch(s)
			size := typeSize(g[2])
			if g[4] != "" {
				n, _ := strconv.Atoi(g[4])
				size *= n
			}
			off := 0
			for _, p := range e.Shared {
				off = max(off, (p.Off+p.Size+7)/8*8)
			}
			e.Shared = append(e.Shared, Param{g[3], off, size})
		case s == `.pragma "nounroll";`:
		case labelRE.MatchString(s):
			e.Labels[labelRE.FindStringSubmatch(s)[1]] = len(e.Code)
		default:
			g := insnRE.FindStringSubmatch(s)
			if g == nil {
				return fail("not an instruction")
			}
			e.Code = append(e.Code, Instruction{
				Line: line, Negate: g[1] != "", Guard: g[2], Op: g[3], Args: splitArgs(g[4]),
			})
		}
	}
	if e != nil {
		return nil, fmt.Errorf("%s: no end", e.Name)
	}
	return m, nil
}

// typeSize is the bytes of a PTX type: "u64" has 8, "pred" none.
func typeSize(t string) int {
	n, _ := strconv.Atoi(strings.TrimLeft(t, "abcdefghijklmnopqrstuvwxyz"))
	return n / 8
}

// splitArgs splits operands at commas outside of braces.
func splitArgs(s string) []string {
	var out []string
	depth, start := 0, 0
	for i, c := range s {
		switch c {
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
