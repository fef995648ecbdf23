// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// WriteJSON writes the report for programs.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	return e.Encode(r)
}

// WriteText writes the report for people: the GPUs, a verdict a pair, each
// cause with its evidence and cure, the topology with link rates, and what
// could not be read. Control characters of facts do not reach w.
func (r *Report) WriteText(w io.Writer) error {
	t := &textWriter{r: r}
	t.head()
	t.gpus()
	t.pairs()
	t.causes()
	t.topology()
	t.transfers()
	t.missing()
	if r.Branch != nil && r.Branch.Installed != "" {
		t.printf("\nPatch\n")
		t.wrap("  ", r.Branch.Text+". Read PATCH.md before anything else.")
	}
	_, err := w.Write(t.Bytes())
	return err
}

type textWriter struct {
	bytes.Buffer
	r *Report
}

// printf is fmt's, with every string argument cleaned: a name in somebody
// else's file must not move the cursor of a terminal.
func (t *textWriter) printf(format string, args ...any) {
	for i, a := range args {
		if s, ok := a.(string); ok {
			args[i] = clean(s)
		}
	}
	fmt.Fprintf(t, format, args...)
}

func clean(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return ' '
	}, s)
}

const textWidth = 110

// wrap writes text in lines of at most textWidth where words allow, the first
// behind lead and the others indented as far.
func (t *textWriter) wrap(lead, text string) {
	indent := strings.Repeat(" ", len(lead))
	line := lead
	for i, word := range strings.Fields(clean(text)) {
		if i > 0 {
			if len(line)+1+len(word) > textWidth {
				t.printf("%s\n", strings.TrimRight(line, " "))
				line = indent
			} else {
				line += " "
			}
		}
		line += word
	}
	t.printf("%s\n", strings.TrimRight(line, " "))
}

func (t *textWriter) head() {
	r := t.r
	t.wrap("driver  ", r.Driver)
	t.wrap("CUDA    ", r.CUDA)
	t.wrap("NVML    ", r.NVML)
	if r.Taken != "" {
		t.printf("taken   %s\n", r.Taken)
	}
	if r.Note != "" {
		t.wrap("note    ", r.Note)
	}
}

func (t *textWriter) gpus() {
	r := t.r
	t.printf("\nGPUs (%d)\n", len(r.Devices))
	for _, d := range r.Devices {
		number := func(p *int) string {
			if p == nil {
				return "-"
			}
			return strconv.Itoa(*p)
		}
		size := func(n uint64) string {
			if n == 0 {
				return "?"
			}
			return mib(n)
		}
		t.printf("  %-6s %-13s %-28s %-6s memory %-11s BAR1 %-11s %-13s NUMA %-3s CUDA %-3s NVML %s\n", d.Label, orElse(d.BusID, "?"),
			orElse(d.Name, "?"), orElse(d.Chip, "?"), size(d.Memory), size(d.BAR1), d.Link.String(), number(d.NUMA), number(d.CUDA), number(d.NVML))
	}
}

// String is "PCIe 4.0 x16", or "PCIe ?".
func (l LinkRate) String() string {
	if l.Width == 0 {
		return "PCIe ?"
	}
	return fmt.Sprintf("PCIe %d.0 x%d", l.Gen, l.Width)
}

func (t *textWriter) label(i int) string { return t.r.Devices[i].Label }

func (t *textWriter) pairs() {
	r := t.r
	if len(r.Pairs) == 0 {
		if len(r.Devices) == 1 {
			t.printf("\nPairs: none, there is one GPU\n")
		}
		return
	}
	t.printf("\nPairs\n")
	line := func(names string, p *PairReport) {
		text := p.Verdict
		var others []string
		for _, f := range p.Findings {
			if f.Cause != p.Headline && (f.Kind == KindBlock || f.Kind == KindRisk) {
				others = append(others, string(f.Cause))
			}
		}
		text += " [" + string(p.Headline)
		if len(others) > 0 {
			text += ", also " + strings.Join(others, ", ")
		}
		text += "]"
		if p.State != StateOn && p.State != StateRisk && p.Patch != PatchNA {
			text += "; the patch: " + string(p.Patch)
		}
		t.wrap(fmt.Sprintf("  %-15s ", names), text)
	}
	for i := range r.Devices {
		for j := i + 1; j < len(r.Devices); j++ {
			p, q := r.Pair(i, j), r.Pair(j, i)
			a, b := t.label(i), t.label(j)
			if alike(p, q) {
				line(a+" <-> "+b, p)
			} else {
				line(a+"  -> "+b, p)
				line(b+"  -> "+a, q)
			}
		}
	}
}

// alike tells whether two directions have one verdict.
func alike(p, q *PairReport) bool {
	return p.Verdict == q.Verdict && p.Headline == q.Headline && p.Patch == q.Patch &&
		slices.EqualFunc(p.Findings, q.Findings, func(a, b Finding) bool { return a.Cause == b.Cause })
}

func (t *textWriter) causes() {
	r := t.r
	if len(r.Causes) == 0 {
		return
	}
	t.printf("\nCauses\n")
	for _, c := range r.Causes {
		var ev []Evidence
		var do []string
		collect := func(list []Finding) bool {
			hit := false
			for _, f := range list {
				if f.Cause != c.ID {
					continue
				}
				hit = true
				ev = append(ev, f.Evidence...)
				if f.Do != "" && !slices.Contains(do, f.Do) {
					do = append(do, f.Do)
				}
			}
			return hit
		}
		machine := collect(r.Machine)
		for i := range r.Devices {
			collect(r.Devices[i].Findings)
		}
		var pairs []string
		count := 0
		for i := range r.Pairs {
			p := &r.Pairs[i]
			if collect(p.Findings) {
				count++
				if back := r.Pair(p.To, p.From); !back.Has(c.ID) {
					pairs = append(pairs, t.label(p.From)+"->"+t.label(p.To))
				} else if p.From < p.To {
					pairs = append(pairs, t.label(p.From)+"-"+t.label(p.To))
				}
			}
		}
		where := ""
		switch {
		case machine:
			where = "the machine"
		case count > 0 && count == len(r.Pairs):
			where = "all pairs"
		case len(pairs) > 12:
			where = fmt.Sprintf("%s and %d more pairs", strings.Join(pairs[:10], ", "), len(pairs)-10)
		case len(pairs) > 0:
			where = strings.Join(pairs, ", ")
		}
		if where != "" {
			where = " (" + where + ")"
		}
		t.wrap("  ", string(c.ID)+where)
		t.wrap("    ", c.Sentence)
		t.evidence(ev)
		for _, d := range do {
			t.wrap("    do:   ", d)
		}
		if c.DoNot != "" {
			t.wrap("    not:  ", "do not "+c.DoNot)
		}
	}
}

var (
	gpuNumber  = regexp.MustCompile(`GPU(\d+)`)
	busPattern = regexp.MustCompile(`[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]`)
)

// evidence writes each observation once: those that differ in the GPU's number
// only share a line.
func (t *textWriter) evidence(list []Evidence) {
	type group struct {
		first Evidence
		gpus  []int
		texts []string
	}
	var groups []*group
	index := map[Evidence]*group{}
	for _, e := range list {
		key := e
		key.Text = gpuNumber.ReplaceAllString(e.Text, "GPU")
		key.Source = busPattern.ReplaceAllString(e.Source, "BUS")
		g := index[key]
		if g == nil {
			g = &group{first: e}
			index[key] = g
			groups = append(groups, g)
		}
		if slices.Contains(g.texts, e.Text) {
			continue
		}
		g.texts = append(g.texts, e.Text)
		if m := gpuNumber.FindAllStringSubmatch(e.Text, -1); len(m) == 1 {
			n, _ := strconv.Atoi(m[0][1])
			g.gpus = append(g.gpus, n)
		}
	}
	for _, g := range groups {
		text := g.first.Text
		switch n := len(g.texts); {
		case len(g.gpus) == n && n > 1:
			slices.Sort(g.gpus)
			text = gpuNumber.ReplaceAllString(text, "GPU"+ranges(g.gpus))
		case n == 2:
			text += "; " + g.texts[1]
		case n > 2:
			text += fmt.Sprintf("; and %d more alike", n-1)
		}
		if source := g.first.Source; source != "" {
			if len(g.texts) > 1 {
				source = busPattern.ReplaceAllString(source, "BUS")
			}
			text += " (" + source + ")"
		}
		if g.first.Assumed {
			text += " (assumed, not read)"
		}
		t.wrap("    seen: ", text)
	}
}

// ranges is "0-3,5" of sorted numbers.
func ranges(list []int) string {
	var parts []string
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		switch {
		case j == i:
			parts = append(parts, strconv.Itoa(list[i]))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", list[i], list[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}

// topology is the matrix of nvidia-smi topo -m, with each GPU's link rate.
func (t *textWriter) topology() {
	r := t.r
	if len(r.Devices) < 2 {
		return
	}
	t.printf("\nTopology, and the rate of each GPU's link, each way\n  %-6s", "")
	for _, d := range r.Devices {
		t.printf(" %-6s", d.Label)
	}
	t.printf(" %-13s %-10s %s\n", "link", "rate", "NUMA")
	for i, d := range r.Devices {
		t.printf("  %-6s", d.Label)
		for _, c := range r.Topology[i] {
			t.printf(" %-6s", c)
		}
		rate, numa := "?", "?"
		if d.Link.BytesPerSecond > 0 {
			rate = fmt.Sprintf("%.1f GB/s", d.Link.BytesPerSecond/1e9)
		}
		if d.NUMA != nil {
			numa = strconv.Itoa(*d.NUMA)
		}
		t.printf(" %-13s %-10s %s\n", d.Link.String(), rate, numa)
	}
	t.printf("  X self, NV# NVLinks, PIX one PCIe switch, PXB several, PHB a host bridge, NODE host bridges of a NUMA node,\n" +
		"  SYS across NUMA nodes, ? unknown. The rate is after line coding, before packet headers.\n")
}

func (t *textWriter) transfers() {
	head := false
	for i := range t.r.Pairs {
		p := &t.r.Pairs[i]
		tr := p.Transfer
		if tr == nil {
			continue
		}
		if !head {
			t.printf("\nChecked transfers, one way, read at the destination\n")
			head = true
		}
		text := tr.Outcome
		if tr.Detail != "" {
			text += ": " + tr.Detail
		}
		model := ""
		if tr.Modelled {
			model = " (modelled)"
		}
		if tr.BytesPerSecond > 0 {
			text += fmt.Sprintf(", %.1f GB/s%s", tr.BytesPerSecond/1e9, model)
		}
		if tr.Latency > 0 {
			text += fmt.Sprintf(", %.1f us a small copy%s", tr.Latency*1e6, model)
		}
		if tr.StagedBytesPerSecond > 0 {
			text += fmt.Sprintf("; through host memory %.1f GB/s%s", tr.StagedBytesPerSecond/1e9, model)
		}
		t.wrap(fmt.Sprintf("  %-15s ", t.label(p.From)+" -> "+t.label(p.To)), text)
	}
}

func (t *textWriter) missing() {
	if len(t.r.Unknown) == 0 {
		return
	}
	t.printf("\nNot read\n")
	// What differs in the address of the device only shares a line.
	var list []Missing
	for _, m := range t.r.Unknown {
		key := busPattern.ReplaceAllString(m.Why, "BUS")
		at := slices.IndexFunc(list, func(o Missing) bool {
			return o.Signal == m.Signal && busPattern.ReplaceAllString(o.Why, "BUS") == key
		})
		if at < 0 {
			list = append(list, m)
		} else {
			list[at].Why = key
			list[at].Count += m.Count
		}
	}
	for _, m := range list {
		text := m.Signal + ": " + m.Why
		if m.Count > 1 {
			text += fmt.Sprintf(" (%d times)", m.Count)
		}
		t.wrap("  ", text)
	}
}
