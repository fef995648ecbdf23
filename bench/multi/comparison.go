// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"text/tabwriter"
)

// A comparison holds a simulated machine's figures, which were written before
// the run, against what was measured.
type comparison struct {
	Version   int             `json:"version"`
	Predicted string          `json:"predicted"` // the dates
	Measured  string          `json:"measured"`
	Bound     float64         `json:"bound"` // an error beyond it is off
	Off       int             `json:"off"`
	Rows      []comparisonRow `json:"rows"`
}

// A comparisonRow is a figure that both have. Modelled is the model's.
type comparisonRow struct {
	What     string  `json:"what"`
	Unit     string  `json:"unit"`
	Modelled float64 `json:"modelled"`
	Measured float64 `json:"measured"`
	Error    float64 `json:"error"` // modelled over measured, less 1
	Off      bool    `json:"off"`
}

// comparisonBound is what the model may be off by.
const comparisonBound = 0.15

func compareFiles(predicted, measured string) (*comparison, error) {
	p, err := readDocument(predicted)
	if err != nil {
		return nil, err
	}
	m, err := readDocument(measured)
	switch {
	case err != nil:
		return nil, err
	case !p.Modelled:
		return nil, fmt.Errorf("%s is of no simulated machine", predicted)
	case m.Modelled:
		return nil, fmt.Errorf("%s is of a simulated machine", measured)
	case p.GPUs != m.GPUs:
		return nil, fmt.Errorf("%s has %d GPUs, and %s %d", predicted, p.GPUs, measured, m.GPUs)
	}
	return compareDocuments(p, m), nil
}

// readDocument reads a document, by itself or in the record of a bundle.
func readDocument(name string) (*document, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var record struct {
		Multi *document `json:"multi"`
		document
	}
	if err := json.Unmarshal(b, &record); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	d := record.Multi
	if d == nil {
		d = &record.document
	}
	if d.Version != version || d.GPUs == 0 {
		return nil, fmt.Errorf("%s: %w", name, errors.New("no document of multi, version 1"))
	}
	return d, nil
}

// A figure is one that can be compared, by what it is.
type figure struct {
	what, unit string
	value      float64
}

// figures are those of a document, in its order: rates of links, times of the
// rest, by algorithm.
func (d *document) figures() (all []figure) {
	for _, l := range d.Links {
		all = append(all, figure{l.Case + " GPU " + l.GPUs, "GB/s", l.Algbw})
	}
	for _, c := range d.Copies {
		for _, route := range []string{"staged", "driver", "direct"} {
			if t, ok := c.Routes[route]; ok {
				all = append(all, figure{fmt.Sprintf("copy %s, %d ways, %s", route, c.Ways, sizeName(c.Bytes)), "us", t.Seconds * 1e6})
			}
		}
	}
	for _, c := range d.Collectives {
		for _, a := range []string{"direct", "ring", "two_shot", "one_shot", "peer"} {
			if t, ok := c.Algorithms[a]; ok {
				all = append(all, figure{fmt.Sprintf("%s %s, %d ranks, %s", c.Op, a, c.Ranks, sizeName(c.Bytes)), "us", t.Seconds * 1e6})
			}
		}
	}
	return all
}

func compareDocuments(p, m *document) *comparison {
	c := &comparison{Version: version, Predicted: p.Date, Measured: m.Date, Bound: comparisonBound, Rows: []comparisonRow{}}
	measured := m.figures()
	for _, f := range p.figures() {
		i := slices.IndexFunc(measured, func(o figure) bool { return o.what == f.what })
		if i < 0 || measured[i].value <= 0 {
			continue
		}
		r := comparisonRow{What: f.what, Unit: f.unit, Modelled: f.value, Measured: measured[i].value, Error: f.value/measured[i].value - 1}
		if r.Off = math.Abs(r.Error) > comparisonBound; r.Off {
			c.Off++
		}
		c.Rows = append(c.Rows, r)
	}
	return c
}

func writeComparison(w io.Writer, c *comparison) {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(out, "what\tunit\tmodelled\tmeasured\terror\t\t\n")
	for _, r := range c.Rows {
		mark := ""
		if r.Off {
			mark = "off"
		}
		fmt.Fprintf(out, "%s\t%s\t%.4g\t%.4g\t%+.1f%%\t%s\t\n", r.What, r.Unit, r.Modelled, r.Measured, r.Error*100, mark)
	}
	out.Flush()
	fmt.Fprintf(w, "\n%d of %d figures are off by more than %.0f%%\n", c.Off, len(c.Rows), c.Bound*100)
}
