// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/geforce-p2p/geforce-p2p/probe"
)

// The page of --html is one file: style and charts are inside, and it neither
// loads nor runs anything.
//
//go:embed bench_page.html
var benchPageText string

var benchPage = template.Must(template.New("page").Parse(benchPageText))

// A pageData is what the page shows.
type pageData struct {
	Doc      *benchDoc
	Title    string
	Label    string // " modelled" behind figures of a simulated machine
	GPUs     string
	Verified string
	Tiles    []pageTile
	Report   *probe.Report
	Verdicts []pageVerdict
	Sections []pageSection
	Rows     []pageRow
}

// A pageTile is a figure that says most.
type pageTile struct{ Figure, Unit, What, Of string }

// A pageVerdict is what the probe says of some pairs.
type pageVerdict struct {
	Pairs, State, Verdict, Why string
	Do                         []string
}

// A pageSection is a heading with charts and heat maps beneath.
type pageSection struct {
	Title, Text string
	Charts      []pageChart
	Maps        []pageMap
}

// A pageChart is a chart with its caption and legend.
type pageChart struct {
	Caption string
	SVG     template.HTML
	Legend  []pageKey
}

type pageKey struct {
	Class string
	Label string
}

// A pageMap is a matrix whose cells are shaded.
type pageMap struct {
	Caption string
	GPUs    []int
	Rows    []pageMapRow
}

type pageMapRow struct {
	GPU   int
	Cells []pageCell
}

type pageCell struct{ Text, Class, Title string }

// A pageRow is a result in the table.
type pageRow struct {
	What, GPUs, Size, Place, Algorithm, Time, GPUTime, Algbw, Busbw, Ceiling, Of string
	Wrong                                                                        uint64
}

// writePage writes the document as a page. r may be nil.
func writePage(w io.Writer, d *benchDoc, r *probe.Report) error {
	p := &pageData{Doc: d, Report: r, GPUs: inShort(d.Machine.GPUs), Verified: verifiedPhrase(d)}
	p.Title = "gp bench: " + p.GPUs
	if d.Machine.Modelled {
		p.Label = modelledLabel
		p.Title = "gp bench, modelled: " + d.Machine.Name
	}
	p.verdicts()
	p.tiles()
	p.links()
	p.copies()
	p.pairs()
	p.collectives()
	p.rows()
	return benchPage.Execute(w, p)
}

// verdicts puts pairs of which the probe says the same together.
func (p *pageData) verdicts() {
	if p.Report == nil {
		return
	}
	at := map[string]int{}
	label := func(i int) string {
		if i >= 0 && i < len(p.Report.Devices) {
			return p.Report.Devices[i].Label
		}
		return fmt.Sprint(i)
	}
	for _, pair := range p.Report.Pairs {
		names := label(pair.From) + " to " + label(pair.To)
		key := strings.Join([]string{string(pair.State), pair.Verdict, pair.PatchWhy}, "|")
		i, ok := at[key]
		if !ok {
			i = len(p.Verdicts)
			at[key] = i
			v := pageVerdict{State: string(pair.State), Verdict: pair.Verdict, Why: pair.PatchWhy}
			for _, f := range pair.Findings {
				if f.Do != "" && !slices.Contains(v.Do, f.Do) {
					v.Do = append(v.Do, f.Do)
				}
			}
			p.Verdicts = append(p.Verdicts, v)
		}
		if p.Verdicts[i].Pairs != "" {
			p.Verdicts[i].Pairs += ", "
		}
		p.Verdicts[i].Pairs += names
	}
}

// largest is the result of a case with the most bytes, nil if there is none.
func largest(results []benchResult, keep func(*benchResult) bool) (best *benchResult) {
	for i := range results {
		if r := &results[i]; keep(r) && (best == nil || r.Bytes > best.Bytes) {
			best = r
		}
	}
	return best
}

func (p *pageData) tiles() {
	of := func(r *benchResult) string {
		if r.Ratio == nil {
			return ""
		}
		return fmt.Sprintf("%.0f%% of the links' ceiling%s", 100**r.Ratio, p.Label)
	}
	rate := func(what string, bus bool, keep func(*benchResult) bool) {
		r := largest(p.Doc.Results, keep)
		if r == nil {
			return
		}
		v := r.Algbw
		if bus {
			v = r.Busbw
		}
		p.Tiles = append(p.Tiles, pageTile{fmt.Sprintf("%.1f", v), "GB/s" + p.Label, what + ", " + formatSize(r.Bytes), of(r)})
	}
	is := func(key string) func(*benchResult) bool {
		return func(r *benchResult) bool { return r.Case == key }
	}
	rate("staged copy, one way", false, is("copy.staged.one_way"))
	rate("staged copy, both ways", false, is("copy.staged.both_ways"))
	rate("the driver's copy, both ways", false, is("copy.driver.both_ways"))
	rate("direct copy, both ways", false, is("copy.direct.both_ways"))
	for _, t := range collectiveTables(p.Doc.Results) {
		if t.head.Op != "all_reduce" && p.Doc.Bench == "default" {
			continue
		}
		var results []benchResult
		for _, row := range t.rows {
			results = append(results, *row.outOrIn)
		}
		name := fmt.Sprintf("%s on %d ranks", t.head.Op, t.head.Ranks)
		rate(name+", busbw", true, func(r *benchResult) bool {
			return slices.ContainsFunc(results, func(o benchResult) bool {
				return o.Bytes == r.Bytes && o.GPUs == r.GPUs && o.Op == r.Op && o.Type == r.Type
			})
		})
		least := results[0]
		for _, r := range results {
			if r.Bytes < least.Bytes || r.Bytes == least.Bytes && r.Seconds < least.Seconds {
				least = r
			}
		}
		p.Tiles = append(p.Tiles, pageTile{fmt.Sprintf("%.1f", least.Seconds*1e6), "us" + p.Label, name + ", " + formatSize(least.Bytes), ""})
	}
}

func (p *pageData) section(title, text string) *pageSection {
	p.Sections = append(p.Sections, pageSection{Title: title, Text: text})
	return &p.Sections[len(p.Sections)-1]
}

// add puts a chart beneath a section, if it has anything to show.
func (s *pageSection) add(c *chart) {
	if len(c.lines)+len(c.bars) == 0 {
		return
	}
	pc := pageChart{Caption: c.caption(), SVG: c.svg()}
	for i, l := range c.lines {
		if !l.ceiling {
			pc.Legend = append(pc.Legend, pageKey{fmt.Sprintf("s%d", c.color(i)), l.label})
		}
	}
	if slices.ContainsFunc(c.lines, func(l chartLine) bool { return l.ceiling }) {
		pc.Legend = append(pc.Legend, pageKey{"ceiling", "ceiling of the same rounds"})
	}
	s.Charts = append(s.Charts, pc)
}

func (p *pageData) chart(title, unit string) *chart {
	return &chart{title: title, unit: unit, label: p.Label}
}

func (p *pageData) links() {
	bars := p.chart("Each direction of a link", "GB/s")
	for i := range p.Doc.Results {
		r := &p.Doc.Results[i]
		if strings.HasPrefix(r.Case, "link.") && r.Bytes == linkMost(p.Doc.Results, r) {
			name := strings.TrimPrefix(r.Case, "link.")
			bars.bars = append(bars.bars, chartBar{fmt.Sprintf("%s, GPU %s", strings.ReplaceAll(name, ".", " "), r.GPUs), r.Busbw})
		}
	}
	if len(bars.bars) > 0 {
		p.section("Links", "Copies between pinned host memory and each GPU. Each bar is one direction of one link; far is memory on the NUMA node farthest from the GPU, all is with every GPU busy at once.").add(bars)
	}
}

// linkMost is the most bytes of a case on the same GPUs.
func linkMost(results []benchResult, like *benchResult) uint64 {
	return largest(results, func(r *benchResult) bool { return r.Case == like.Case && r.GPUs == like.GPUs }).Bytes
}

// copyTitles are the lines of the charts of copies, by route.
var copyTitles = []struct{ algorithm, title string }{
	{routeStaged, "staged (this library)"}, {routeDriver, "the driver's copy"}, {routeDirect, "direct"},
}

func (p *pageData) copies() {
	s := pageSection{Title: "Copies between two ranks", Text: "The payload over the time from the call to done. The ceiling is the same bytes on the links as large copies that have nothing to do with each other."}
	times := p.chart("Time of one copy", "us")
	times.logY = true
	for ways := 1; ways <= 2; ways++ {
		title := "Rate, one way"
		if ways == 2 {
			title = "Rate, both ways together"
		}
		rates := p.chart(title, "GB/s")
		ceiling := chartLine{label: "ceiling", ceiling: true}
		for _, t := range copyTitles {
			line, late := chartLine{label: t.title}, chartLine{label: t.title}
			for i := range p.Doc.Results {
				r := &p.Doc.Results[i]
				if r.Case != "copy."+t.algorithm+"."+waysKey(ways) || r.ChunkAsked != nil {
					continue
				}
				line.points = append(line.points, chartPoint{float64(r.Bytes), r.Algbw})
				late.points = append(late.points, chartPoint{float64(r.Bytes), r.Seconds * 1e6})
				if t.algorithm == routeStaged && r.Ceiling != nil {
					ceiling.points = append(ceiling.points, chartPoint{float64(r.Bytes), *r.Ceiling})
				}
			}
			if len(line.points) > 0 {
				rates.lines = append(rates.lines, line)
				if ways == 1 {
					times.lines = append(times.lines, late)
				}
			}
		}
		if len(ceiling.points) > 0 {
			rates.lines = append(rates.lines, ceiling)
		}
		s.add(rates)
	}
	s.add(times)
	if len(s.Charts) > 0 {
		p.Sections = append(p.Sections, s)
	}
}

// shades is the number of steps of a heat map.
const shades = 8

func (p *pageData) pairs() {
	if len(p.Doc.Matrices) == 0 {
		return
	}
	s := p.section("Pairs of GPUs", "The row is the GPU that sends, the column the one that receives. Darker is more. The diagonal is a copy within the GPU, and left out of the shading.")
	for i := range p.Doc.Matrices {
		m := &p.Doc.Matrices[i]
		_, caption, _ := strings.Cut(m.title(), ": ")
		pm := pageMap{Caption: caption, GPUs: m.GPUs}
		most := 0.0
		for r := range m.Cells {
			for c, v := range m.Cells[r] {
				if v != nil && r != c {
					most = max(most, *v)
				}
			}
		}
		for r, row := range m.Cells {
			out := pageMapRow{GPU: m.GPUs[r]}
			for c, v := range row {
				cell := pageCell{Text: m.cell(v)}
				if v != nil {
					cell.Title = fmt.Sprintf("GPU %d to %d: %s %s%s", m.GPUs[r], m.GPUs[c], m.cell(v), m.Unit, p.Label)
				}
				switch {
				case r == c:
					cell.Class = "diagonal"
				case v != nil && most > 0:
					cell.Class = fmt.Sprintf("h%d", min(int(*v/most*shades), shades-1))
				}
				out.Cells = append(out.Cells, cell)
			}
			pm.Rows = append(pm.Rows, out)
		}
		s.Maps = append(s.Maps, pm)
	}
}

func (p *pageData) collectives() {
	tables := collectiveTables(p.Doc.Results)
	if len(tables) == 0 {
		return
	}
	s := p.section("Collectives", "Bus bandwidth is the size over the time, times the factor of nccl-tests that makes numbers of ranks comparable. Where the library chooses the algorithm the chart says auto; the table below names what it chose. Out of place, where there is such a form.")
	var ops []string
	for _, t := range tables {
		if !slices.Contains(ops, t.head.Op) {
			ops = append(ops, t.head.Op)
		}
	}
	for _, op := range ops {
		bus, times := p.chart(op+": bus bandwidth", "GB/s"), p.chart(op+": time", "us")
		times.logY = true
		var ceilings []chartLine
		var lines []chartLine
		var late []chartLine
		for _, t := range tables {
			if t.head.Op != op {
				continue
			}
			at := map[string]int{}
			ceiling := chartLine{ceiling: true, label: fmt.Sprintf("ceiling of %d ranks", t.head.Ranks)}
			for _, row := range t.rows {
				r := row.outOrIn
				name := fmt.Sprintf("%d ranks, %s", t.head.Ranks, row.asked)
				i, ok := at[name]
				if !ok {
					i = len(lines)
					at[name] = i
					lines, late = append(lines, chartLine{label: name}), append(late, chartLine{label: name})
					if len(at) == 1 {
						ceiling.like = i
					}
				}
				lines[i].points = append(lines[i].points, chartPoint{float64(r.Bytes), r.Busbw})
				late[i].points = append(late[i].points, chartPoint{float64(r.Bytes), r.Seconds * 1e6})
				if c := busCeiling(r); c != nil && (len(ceiling.points) == 0 || ceiling.points[len(ceiling.points)-1].x < float64(r.Bytes)) {
					ceiling.points = append(ceiling.points, chartPoint{float64(r.Bytes), *c})
				}
			}
			if len(ceiling.points) > 0 {
				ceilings = append(ceilings, ceiling)
			}
		}
		bus.lines, times.lines = append(lines, ceilings...), late
		s.add(bus)
		s.add(times)
	}
}

func (p *pageData) rows() {
	for i := range p.Doc.Results {
		r := &p.Doc.Results[i]
		row := pageRow{
			What: r.Case, GPUs: r.GPUs, Size: formatSize(r.Bytes), Algorithm: r.Algorithm, Time: microseconds(&r.Seconds), GPUTime: microseconds(r.EventSeconds),
			Algbw: fmt.Sprintf("%.3f", r.Algbw), Busbw: fmt.Sprintf("%.3f", r.Busbw), Ceiling: decimals(r.Ceiling, 2), Of: decimals(r.Ratio, 3), Wrong: r.Wrong,
		}
		if r.Clock == "events" {
			row.GPUTime, row.Time = row.Time, microseconds(r.WallSeconds)
		}
		if r.Elements != nil {
			row.What = fmt.Sprintf("%s %s %s", r.Op, r.Type, r.Reduction)
			row.GPUs = fmt.Sprintf("%d ranks on %s", r.Ranks, gpusPhrase(r.GPUs))
		}
		if r.InPlace != nil {
			if row.Place = "out"; *r.InPlace {
				row.Place = "in"
			}
		}
		p.Rows = append(p.Rows, row)
	}
}

// Colors are the numbers of the lines' colours, for the style.
func (p *pageData) Colors() (n []int) {
	for i := range chartColors {
		n = append(n, i)
	}
	return n
}

// Memory is a size of the probe's report, for the table.
func (p *pageData) Memory(n uint64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f GiB", math.Round(float64(n)/(1<<30)))
}

// Link is a GPU's link, for the table.
func (p *pageData) Link(l probe.LinkRate) string {
	if l.Gen == 0 {
		return "not known"
	}
	return fmt.Sprintf("PCIe %d.0 x%d", l.Gen, l.Width)
}
