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
	Comma    string // ", modelled", behind headings
	GPUs     string
	Verified string
	Tiles    []pageTile
	Report   *probe.Report
	Cards    []pageCards
	Verdicts []pageVerdict
	Sections []pageSection
	Rows     []pageRow
}

// A pageTile is a figure that says most.
type pageTile struct{ Figure, Unit, What, Of string }

// pageCards are GPUs that are alike.
type pageCards struct{ Labels, Name, Link, Memory, BAR1 string }

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
	Two         bool // charts come in twos
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
		p.Label, p.Comma = modelledLabel, ","+modelledLabel
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

// verdicts puts GPUs together that are alike, and pairs of which the probe says
// the same.
func (p *pageData) verdicts() {
	if p.Report == nil {
		return
	}
	devices := p.Report.Devices
	for _, d := range devices {
		c := pageCards{d.Label, d.Name, linkText(d.Link), memoryText(d.Memory), memoryText(d.BAR1)}
		i := slices.IndexFunc(p.Cards, func(o pageCards) bool {
			o.Labels = c.Labels
			return o == c
		})
		if i >= 0 {
			p.Cards[i].Labels += ", " + d.Label
		} else {
			p.Cards = append(p.Cards, c)
		}
	}
	at := map[string]int{}
	var of [][]*probe.PairReport
	for i := range p.Report.Pairs {
		pair := &p.Report.Pairs[i]
		key := strings.Join([]string{string(pair.State), pair.Verdict, pair.PatchWhy}, "|")
		k, ok := at[key]
		if !ok {
			k = len(of)
			at[key] = k
			of = append(of, nil)
			v := pageVerdict{State: string(pair.State), Verdict: pair.Verdict, Why: pair.PatchWhy}
			for _, f := range pair.Findings {
				if f.Do != "" && !slices.Contains(v.Do, f.Do) {
					v.Do = append(v.Do, f.Do)
				}
			}
			p.Verdicts = append(p.Verdicts, v)
		}
		of[k] = append(of[k], pair)
	}
	for k, pairs := range of {
		p.Verdicts[k].Pairs = pairNames(devices, pairs)
	}
}

// pairNames is "all pairs", or "GPU0 and GPU1, GPU0 to GPU2".
func pairNames(devices []probe.DeviceReport, pairs []*probe.PairReport) string {
	if n := len(devices); n > 2 && len(pairs) == n*(n-1) {
		return "all pairs, both ways"
	}
	label := func(i int) string {
		if i >= 0 && i < len(devices) {
			return devices[i].Label
		}
		return fmt.Sprint(i)
	}
	var names []string
	for _, a := range pairs {
		both := slices.ContainsFunc(pairs, func(b *probe.PairReport) bool { return b.From == a.To && b.To == a.From })
		switch {
		case both && a.From < a.To:
			names = append(names, label(a.From)+" and "+label(a.To))
		case !both:
			names = append(names, label(a.From)+" to "+label(a.To))
		}
	}
	return strings.Join(names, ", ")
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
		return fmt.Sprintf("%.0f%% of the links' ceiling%s", 100**r.Ratio, p.Comma)
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
		p.Tiles = append(p.Tiles, pageTile{fmt.Sprintf("%.1f", v), "GB/s" + p.Comma, what + ", " + formatSize(r.Bytes), of(r)})
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
		p.Tiles = append(p.Tiles, pageTile{fmt.Sprintf("%.1f", least.Seconds*1e6), "us" + p.Comma, name + ", " + formatSize(least.Bytes), ""})
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
			pc.Legend = append(pc.Legend, pageKey{fmt.Sprintf("s%d m%d", c.color(i), i%chartMarks), l.label})
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

// linkTitles are the charts of links, by direction.
var linkTitles = []struct{ op, title string }{
	{"d2h", "Device to host"}, {"h2d", "Host to device"}, {"both", "Each direction with both busy"},
}

func (p *pageData) links() {
	s := pageSection{Title: "Links", Text: "Copies between pinned host memory and each GPU: what one direction of one link carries. Far is memory on the NUMA node farthest from the GPU."}
	for _, t := range linkTitles {
		bars := p.chart(t.title, "GB/s")
		for i := range p.Doc.Results {
			r := &p.Doc.Results[i]
			name, ok := strings.CutPrefix(r.Case, "link."+t.op)
			if !ok || r.Bytes != linkMost(p.Doc.Results, r) {
				continue
			}
			label := "GPU " + r.GPUs
			switch name {
			case ".far":
				label += ", far"
			case ".all":
				label = "all GPUs at once"
			}
			bars.bars = append(bars.bars, chartBar{label, r.Busbw})
		}
		s.add(bars)
	}
	if len(s.Charts) > 0 {
		p.Sections = append(p.Sections, s)
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

// mapMost is the most of all matrices of a unit, diagonals apart, so that one
// shade means one thing in all of them.
func mapMost(ms []matrix, unit string) (most float64) {
	for i := range ms {
		for r, row := range ms[i].Cells {
			for c, v := range row {
				if ms[i].Unit == unit && v != nil && r != c {
					most = max(most, *v)
				}
			}
		}
	}
	return most
}

// shades is the number of steps of a heat map.
const shades = 8

func (p *pageData) pairs() {
	if len(p.Doc.Matrices) == 0 {
		return
	}
	s := p.section("Pairs of GPUs", "The row is the GPU that sends, the column the one that receives. Darker is more, and one shade means the same in all maps of a unit. The diagonal is a copy within the GPU, and left out of the shading.")
	for i := range p.Doc.Matrices {
		m := &p.Doc.Matrices[i]
		_, caption, _ := strings.Cut(m.title(), ": ")
		pm := pageMap{Caption: strings.ToUpper(caption[:1]) + caption[1:], GPUs: m.GPUs}
		most := mapMost(p.Doc.Matrices, m.Unit)
		for r, row := range m.Cells {
			out := pageMapRow{GPU: m.GPUs[r]}
			for c, v := range row {
				cell := pageCell{Text: m.cell(v)}
				if v != nil {
					if m.Unit != "granted" {
						cell.Text = shortNumber(*v) // as much as a phone has room for
					}
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
	s.Two = true
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
		if r.ChunkAsked != nil {
			row.What += ", chunk " + formatSize(*r.ChunkAsked)
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

// memoryText is a size of the probe's report.
func memoryText(n uint64) string {
	switch {
	case n == 0:
		return "not known"
	case n < 1<<30:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%.0f GiB", math.Round(float64(n)/(1<<30)))
}

// linkText is a GPU's link.
func linkText(l probe.LinkRate) string {
	if l.Gen == 0 {
		return "not known"
	}
	return fmt.Sprintf("PCIe %d.0 x%d", l.Gen, l.Width)
}
