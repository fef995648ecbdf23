// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"slices"
	"strings"
)

// A chart is lines over sizes, or bars, drawn as SVG. It is made for the width of
// a phone, and grows with its place.
type chart struct {
	title, unit, label string // label is " modelled", or nothing
	logY               bool
	lines              []chartLine
	bars               []chartBar
}

// A chartLine is a value over sizes. One that is a ceiling is dashed, in the
// colour of the line that it bounds.
type chartLine struct {
	label   string
	points  []chartPoint
	ceiling bool
	like    int // of a ceiling: the line
}

type chartPoint struct{ x, y float64 }

type chartBar struct {
	label string
	value float64
}

// Sizes in the units of the drawing, of which a phone shows about one a pixel.
const (
	chartWidth, chartHeight                      = 360.0, 232.0
	chartLeft, chartRight, chartTop, chartBottom = 42.0, 12.0, 12.0, 40.0
	chartColors                                  = 8
	barHeight, barGap                            = 16.0, 8.0
)

func (c *chart) caption() string {
	if c.label == "" {
		return c.title + ", " + c.unit
	}
	return c.title + ", " + c.unit + "," + c.label
}

// color is that of a line.
func (c *chart) color(i int) int {
	if c.lines[i].ceiling {
		i = c.lines[i].like
	}
	return i % chartColors
}

func (c *chart) svg() template.HTML {
	var b strings.Builder
	if len(c.bars) > 0 {
		c.drawBars(&b)
	} else {
		c.drawLines(&b)
	}
	// All that is not a number or a word of ours has been escaped.
	return template.HTML(b.String()) //nolint:gosec
}

func (c *chart) open(b *strings.Builder, height float64) {
	fmt.Fprintf(b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, chartWidth, height, html.EscapeString(c.caption()))
}

// span is the least and the most of all points.
func (c *chart) span(of func(chartPoint) float64) (least, most float64) {
	least, most = math.Inf(1), math.Inf(-1)
	for _, l := range c.lines {
		for _, p := range l.points {
			least, most = min(least, of(p)), max(most, of(p))
		}
	}
	return least, most
}

func (c *chart) drawLines(b *strings.Builder) {
	x0, x1 := c.span(func(p chartPoint) float64 { return p.x })
	y0, y1 := c.span(func(p chartPoint) float64 { return p.y })
	var ticks []float64
	if c.logY {
		ticks = logTicks(y0, y1)
		y0, y1 = min(y0, ticks[0]), max(y1, ticks[len(ticks)-1])
	} else {
		ticks = linearTicks(y1)
		y0, y1 = 0, max(ticks[len(ticks)-1], y1)
	}
	// One size alone stands in the middle.
	if x0 == x1 {
		x0, x1 = x0/2, x1*2
	}
	if y0 == y1 {
		y1 = y0 + 1
	}
	px := func(v float64) float64 {
		return chartLeft + (math.Log(v)-math.Log(x0))/(math.Log(x1)-math.Log(x0))*(chartWidth-chartLeft-chartRight)
	}
	py := func(v float64) float64 {
		share := (v - y0) / (y1 - y0)
		if c.logY {
			share = (math.Log(v) - math.Log(y0)) / (math.Log(y1) - math.Log(y0))
		}
		return chartHeight - chartBottom - share*(chartHeight-chartTop-chartBottom)
	}
	c.open(b, chartHeight)
	for _, t := range ticks {
		fmt.Fprintf(b, `<line class="grid" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/>`, chartLeft, chartWidth-chartRight, py(t), py(t))
		fmt.Fprintf(b, `<text class="tick" x="%g" y="%.1f" text-anchor="end">%s</text>`, chartLeft-5, py(t)+4, shortNumber(t))
	}
	for _, t := range sizeTicks(x0, x1) {
		fmt.Fprintf(b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%g" y2="%g"/>`, px(t), px(t), chartTop, chartHeight-chartBottom)
		x, anchor := px(t), "middle"
		if x > chartWidth-2*chartRight { // there is no room for half of it on the right
			x, anchor = chartWidth-2, "end"
		}
		fmt.Fprintf(b, `<text class="tick" x="%.1f" y="%g" text-anchor="%s">%s</text>`, x, chartHeight-chartBottom+15, anchor, formatSize(uint64(t)))
	}
	fmt.Fprintf(b, `<text class="tick" x="%g" y="%g" text-anchor="middle">size (bytes)</text>`, chartLeft+(chartWidth-chartLeft-chartRight)/2, chartHeight-6)
	for i, l := range c.lines {
		class := fmt.Sprintf("line s%d", c.color(i))
		if l.ceiling {
			class += " ceiling"
		}
		var at []string
		for _, p := range l.points {
			at = append(at, fmt.Sprintf("%.1f,%.1f", px(p.x), py(p.y)))
		}
		if l.ceiling && len(at) == 1 { // a bound is seen from side to side
			y := py(l.points[0].y)
			at = []string{fmt.Sprintf("%g,%.1f", chartLeft, y), fmt.Sprintf("%g,%.1f", chartWidth-chartRight, y)}
		}
		fmt.Fprintf(b, `<polyline class="%s" points="%s"><title>%s</title></polyline>`, class, strings.Join(at, " "), html.EscapeString(l.label))
		if l.ceiling {
			continue
		}
		for _, p := range l.points {
			fmt.Fprintf(b, `<g class="mark s%d">%s<title>%s, %s: %s %s%s</title></g>`, c.color(i), mark(i, px(p.x), py(p.y)),
				html.EscapeString(l.label), formatSize(uint64(p.x)), shortNumber(p.y), c.unit, c.label)
		}
	}
	b.WriteString(`</svg>`)
}

// chartMarks is the number of shapes; the page's style has them too.
const chartMarks = 4

// mark is a point of a line. Shapes tell lines apart where colours do not.
func mark(i int, x, y float64) string {
	const r = 3.0
	switch i % chartMarks {
	case 1:
		return fmt.Sprintf(`<rect x="%.1f" y="%.1f" width="%g" height="%g"/>`, x-r, y-r, 2*r, 2*r)
	case 2:
		return fmt.Sprintf(`<path d="M%.1f %.1fl%g %gh%gz"/>`, x, y-r-1, r+1, 2*r+1, -2*r-2)
	case 3:
		return fmt.Sprintf(`<path d="M%.1f %.1fl%g %gl%g %gl%g %gz"/>`, x, y-r-1, r+1, r+1, -r-1, r+1, -r-1, -r-1)
	}
	return fmt.Sprintf(`<circle cx="%.1f" cy="%.1f" r="%g"/>`, x, y, r)
}

func (c *chart) drawBars(b *strings.Builder) {
	most := 0.0
	for _, v := range c.bars {
		most = max(most, v.value)
	}
	const label, value = 104.0, 40.0
	height := float64(len(c.bars))*(barHeight+barGap) + barGap
	c.open(b, height)
	for i, v := range c.bars {
		y := barGap + float64(i)*(barHeight+barGap)
		width := 0.0
		if most > 0 {
			width = v.value / most * (chartWidth - label - value)
		}
		fmt.Fprintf(b, `<text class="tick" x="%g" y="%.1f" text-anchor="end">%s</text>`, label-6, y+12, html.EscapeString(v.label))
		fmt.Fprintf(b, `<rect class="bar" x="%g" y="%.1f" width="%.1f" height="%g"><title>%s: %s %s%s</title></rect>`, label, y, width, barHeight,
			html.EscapeString(v.label), shortNumber(v.value), c.unit, c.label)
		fmt.Fprintf(b, `<text class="tick strong" x="%.1f" y="%.1f">%s</text>`, label+width+5, y+12, shortNumber(v.value))
	}
	b.WriteString(`</svg>`)
}

// linearTicks are from 0 to at least most, three to six of them.
func linearTicks(most float64) (ticks []float64) {
	if most <= 0 || math.IsInf(most, 0) {
		return []float64{0, 1}
	}
	step := math.Pow(10, math.Floor(math.Log10(most)))
	for _, f := range []float64{0.2, 0.5, 1, 2} {
		if most/(step*f) <= 5 {
			step *= f
			break
		}
	}
	for v := 0.0; ; v += step {
		ticks = append(ticks, v)
		if v >= most {
			return ticks
		}
	}
}

// logTicks are powers of ten, or with 2 and 5 between them where those are few.
func logTicks(least, most float64) (ticks []float64) {
	if least <= 0 || math.IsInf(least, 0) {
		return []float64{1, 10}
	}
	from, to := math.Floor(math.Log10(least)), math.Ceil(math.Log10(most))
	if from == to {
		to++
	}
	for e := from; e <= to; e++ {
		ticks = append(ticks, math.Pow(10, e))
	}
	if len(ticks) > 3 {
		return ticks
	}
	var fine []float64
	for _, t := range ticks[:len(ticks)-1] {
		fine = append(fine, t, 2*t, 5*t)
	}
	fine = append(fine, ticks[len(ticks)-1])
	// Those that bound the values, and all between.
	first, last := 0, len(fine)-1
	for first+1 < len(fine) && fine[first+1] <= least {
		first++
	}
	for last-1 > first && fine[last-1] >= most {
		last--
	}
	return fine[first : last+1]
}

// sizeTicks are powers of two, at most six.
func sizeTicks(least, most float64) (ticks []float64) {
	from, to := math.Ceil(math.Log2(least)), math.Floor(math.Log2(most))
	step := max(math.Ceil((to-from)/5), 1)
	for e := from; e <= to; e += step {
		ticks = append(ticks, math.Exp2(e))
	}
	return slices.Clip(ticks)
}

// shortNumber is with three digits, or all of those before the point.
func shortNumber(v float64) string {
	switch a := math.Abs(v); {
	case a >= 10_000:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", v/1000), ".0") + "k"
	case a >= 100 || v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
