// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"text/tabwriter"
)

var benchDiffCommand = &command{
	name:     "bench diff",
	synopsis: "compare two saved runs, and say what changed beyond noise",
	usage:    "bench diff [--noise PERCENT] [--json] A.json B.json",
	text: `Compares two runs that --save or --json wrote: before and after a driver patch, or two machines. Results are
compared where case, size, GPUs, type and what was asked for are the same. A change is beyond noise if the
medians differ by more than three standard errors of both, as the 5th and the 95th of 100 samples tell them,
and by more than --noise: 2 percent from 1 MiB up, and 5 below, unless it is given.

Ratios are B's time over A's: less than 1 is faster. Where both runs have ceilings, what became of them is
said too: a copy that is slower on a link that is slower tells of the link.`,
	operands: true,
	setup: func(fl *flag.FlagSet) func(context.Context, *environment) error {
		var asJSON bool
		noise := -1.0
		fl.BoolVar(&asJSON, "json", false, "print one JSON document instead of text")
		fl.Func("noise", "the least change in `PERCENT` that counts", func(v string) error {
			var p float64
			if _, err := fmt.Sscanf(v, "%g", &p); err != nil || p < 0 || math.IsNaN(p) || math.IsInf(p, 0) {
				return fmt.Errorf("%q is no percentage", v)
			}
			noise = p / 100
			return nil
		})
		return func(_ context.Context, e *environment) error {
			if fl.NArg() != 2 {
				return usagef("diff compares two files, not %d", fl.NArg())
			}
			a, err := readBenchDoc(fl.Arg(0))
			if err != nil {
				return err
			}
			b, err := readBenchDoc(fl.Arg(1))
			if err != nil {
				return err
			}
			d := compareBenches(a, b, noise)
			d.A.File, d.B.File = fl.Arg(0), fl.Arg(1)
			if asJSON {
				return writeJSON(e.stdout, d)
			}
			writeDiff(e.stdout, d)
			return nil
		}
	},
}

// readBenchDoc reads a document of this version.
func readBenchDoc(name string) (*benchDoc, error) {
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	// The version first: another one's document may not even be readable as this.
	var head struct {
		Version *int    `json:"version"`
		Bench   *string `json:"bench"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
			return nil, fmt.Errorf("%s: no JSON: %w", name, err)
		}
		return nil, fmt.Errorf("%s: no document of gp bench: one is an object with a version and a kind", name)
	}
	if head.Version == nil || head.Bench == nil {
		return nil, fmt.Errorf("%s: no document of gp bench: it has no version or no kind", name)
	}
	if *head.Version != benchVersion {
		return nil, fmt.Errorf("%s: version %d of the document, and this program reads version %d: measure again, or use the program that wrote it", name, *head.Version, benchVersion)
	}
	var d benchDoc
	if err := json.Unmarshal(raw, &d); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &d, nil
}

// A diffDoc is what `gp bench diff --json` prints.
type diffDoc struct {
	Version int          `json:"version"`
	A       diffSide     `json:"a"`
	B       diffSide     `json:"b"`
	Same    int          `json:"same"` // results that did not change beyond noise
	Changed []diffResult `json:"changed"`
	OnlyA   []string     `json:"only_in_a"`
	OnlyB   []string     `json:"only_in_b"`
	Notes   []string     `json:"notes"`
}

// A diffSide is one of the runs.
type diffSide struct {
	File    string        `json:"file"`
	Date    string        `json:"date"`
	Machine machineReport `json:"machine"`
}

// A diffResult is a result of both runs that changed.
type diffResult struct {
	What     string     `json:"what"`
	A        float64    `json:"a_seconds"` // medians
	B        float64    `json:"b_seconds"`
	Ratio    float64    `json:"b_time_over_a_time"`
	Noise    float64    `json:"noise"`            // the least change that counts, as a share
	Ceilings *float64   `json:"b_ceiling_over_a"` // null where a run has none
	Wrong    bool       `json:"wrong"`            // one of them moved wrong data
	AlgA     string     `json:"a_algorithm"`      // what was done
	AlgB     string     `json:"b_algorithm"`      //
	Modelled [2]bool    `json:"a_and_b_modelled"` // of a and of b
	Busbw    [2]float64 `json:"a_and_b_busbw_gb_per_s"`
}

// diffKey is what two results must have in common to be compared.
func diffKey(r *benchResult) string {
	k := []string{r.Case, r.GPUs, formatSize(r.Bytes)}
	if r.Elements != nil {
		k = append(k, r.Type, r.Reduction, *r.Asked)
		if r.InPlace != nil && *r.InPlace {
			k = append(k, "in place")
		}
		if r.Root != nil {
			k = append(k, fmt.Sprintf("root %d", *r.Root))
		}
	}
	if r.ChunkAsked != nil {
		k = append(k, "chunk "+formatSize(*r.ChunkAsked))
	}
	out := k[:0]
	for _, w := range k {
		if w != "" {
			out = append(out, w)
		}
	}
	return strings.Join(out, ", ")
}

// standardError is that of a median, as a share of it: 1.25 of the mean's, with
// the deviation from the distance of the 5th to the 95th, 3.29 deviations where
// times lie as a bell does.
func standardError(r *benchResult) float64 {
	if r.Seconds <= 0 || r.Count < 1 {
		return 0
	}
	return 1.25 * (r.P95 - r.P5) / 3.29 / math.Sqrt(float64(r.Count)) / r.Seconds
}

// leastNoise is what counts at least, as a share.
func leastNoise(bytes uint64) float64 {
	if bytes >= 1<<20 {
		return 0.02
	}
	return 0.05
}

// compareBenches holds b against a. A negative noise is leastNoise.
func compareBenches(a, b *benchDoc, noise float64) *diffDoc {
	d := &diffDoc{
		Version: benchVersion, A: diffSide{Date: a.Date, Machine: a.Machine}, B: diffSide{Date: b.Date, Machine: b.Machine},
		Changed: []diffResult{}, OnlyA: []string{}, OnlyB: []string{}, Notes: []string{},
	}
	d.notes(a, b)
	inA := map[string]*benchResult{}
	for i := range a.Results {
		inA[diffKey(&a.Results[i])] = &a.Results[i]
	}
	seen := map[string]bool{}
	for i := range b.Results {
		y := &b.Results[i]
		key := diffKey(y)
		x := inA[key]
		if x == nil {
			d.OnlyB = append(d.OnlyB, key)
			continue
		}
		if seen[key] {
			continue
		}
		seen[key] = true
		least := noise
		if least < 0 {
			least = leastNoise(y.Bytes)
		}
		r := diffResult{
			What: key, A: x.Seconds, B: y.Seconds, Noise: max(least, 3*math.Hypot(standardError(x), standardError(y))),
			Wrong: x.Wrong+y.Wrong > 0, AlgA: x.Algorithm, AlgB: y.Algorithm,
			Modelled: [2]bool{x.Modelled, y.Modelled}, Busbw: [2]float64{x.Busbw, y.Busbw},
		}
		if x.Seconds > 0 {
			r.Ratio = y.Seconds / x.Seconds
		}
		if x.Ceiling != nil && y.Ceiling != nil && *x.Ceiling > 0 {
			v := *y.Ceiling / *x.Ceiling
			r.Ceilings = &v
		}
		if !r.Wrong && math.Abs(math.Log(r.Ratio)) <= math.Log1p(r.Noise) {
			d.Same++
			continue
		}
		d.Changed = append(d.Changed, r)
	}
	for i := range a.Results {
		if key := diffKey(&a.Results[i]); !seen[key] {
			seen[key] = true
			d.OnlyA = append(d.OnlyA, key)
		}
	}
	return d
}

// notes says what of the runs themselves differs.
func (d *diffDoc) notes(a, b *benchDoc) {
	note := func(format string, args ...any) { d.Notes = append(d.Notes, fmt.Sprintf(format, args...)) }
	x, y := &a.Machine, &b.Machine
	if x.Modelled != y.Modelled {
		note("one run is measured and the other is a model's: what differs is also how good the model is")
	}
	if inShort(x.GPUs) != inShort(y.GPUs) {
		note("the GPUs differ: %s, and %s", inShort(x.GPUs), inShort(y.GPUs))
	}
	if x.Driver != y.Driver {
		note("the drivers differ: %s, and %s", x.Driver, y.Driver)
	}
	for i, doc := range []*benchDoc{a, b} {
		if doc.Error != "" {
			note("run %c ended early: %s", 'A'+i, doc.Error)
		}
	}
}

func writeDiff(w io.Writer, d *diffDoc) {
	side := func(name string, s *diffSide) {
		what := s.Machine.Name + ", driver " + s.Machine.Driver
		if s.Machine.Modelled {
			what = "simulated machine " + s.Machine.Name + ", every figure is modelled"
		}
		fmt.Fprintf(w, "%s  %s: %s, %s\n", name, s.File, what, s.Date)
	}
	side("A", &d.A)
	side("B", &d.B)
	for _, n := range d.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	for _, list := range []struct {
		title string
		keep  func(*diffResult) bool
	}{
		{"slower", func(r *diffResult) bool { return !r.Wrong && r.Ratio > 1 }},
		{"faster", func(r *diffResult) bool { return !r.Wrong && r.Ratio <= 1 }},
		{"WRONG DATA in one of them", func(r *diffResult) bool { return r.Wrong }},
	} {
		var keep []*diffResult
		for i := range d.Changed {
			if r := &d.Changed[i]; list.keep(r) {
				keep = append(keep, r)
			}
		}
		if len(keep) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s in B, beyond noise: %d\n", list.title, len(keep))
		out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprint(out, "what\tA, us\tB, us\tB over A\tnoise\tceiling B over A\tbusbw A, B, GB/s\t\n")
		for _, r := range keep {
			how := ""
			if r.AlgA != r.AlgB {
				how = r.AlgA + ", then " + r.AlgB
			}
			fmt.Fprintf(out, "%s\t%s%s\t%s%s\t%.3f\t%.1f%%\t%s\t%.2f%s, %.2f%s\t%s\n", r.What, microseconds(&r.A), labelOf(r.Modelled[0]), microseconds(&r.B), labelOf(r.Modelled[1]),
				r.Ratio, 100*r.Noise, decimals(r.Ceilings, 3), r.Busbw[0], labelOf(r.Modelled[0]), r.Busbw[1], labelOf(r.Modelled[1]), how)
		}
		out.Flush()
	}
	for _, only := range []struct {
		side string
		list []string
	}{{"A", d.OnlyA}, {"B", d.OnlyB}} {
		if len(only.list) > 0 {
			fmt.Fprintf(w, "\nonly in %s: %d\n", only.side, len(only.list))
			for _, k := range only.list {
				fmt.Fprintf(w, "  %s\n", k)
			}
		}
	}
	fmt.Fprintf(w, "\n%d compared, %d of them changed beyond noise\n", d.Same+len(d.Changed), len(d.Changed))
}

// labelOf follows a figure of a simulated machine.
func labelOf(modelled bool) string {
	if modelled {
		return modelledLabel
	}
	return ""
}
