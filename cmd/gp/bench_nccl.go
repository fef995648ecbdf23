// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// A collectiveTable is the results of one op on the same ranks with the same
// elements: a table of nccl-tests.
type collectiveTable struct {
	head benchResult // what all rows have in common
	rows []*collectiveRow
}

// A collectiveRow is a size by one algorithm. A place is nil where there is none.
type collectiveRow struct {
	bytes      uint64
	asked      string
	out, in    *benchResult
	outOrIn    *benchResult // out where there is one
	algorithms string       // what was done, where that was left to the library
}

// collectiveTables sorts a document's results into tables, in their order.
func collectiveTables(results []benchResult) (tables []*collectiveTable) {
	byHead := map[string]*collectiveTable{}
	byRow := map[string]*collectiveRow{}
	for i := range results {
		r := &results[i]
		if r.Elements == nil {
			continue
		}
		head := strings.Join([]string{r.Op, r.Type, r.Reduction, r.GPUs, optional(r.Root)}, "|")
		t := byHead[head]
		if t == nil {
			t = &collectiveTable{head: *r}
			byHead[head] = t
			tables = append(tables, t)
		}
		key := fmt.Sprintf("%s|%d|%s", head, r.Bytes, *r.Asked)
		row := byRow[key]
		if row == nil {
			row = &collectiveRow{bytes: r.Bytes, asked: *r.Asked}
			byRow[key] = row
			t.rows = append(t.rows, row)
		}
		if r.InPlace != nil && *r.InPlace {
			row.in = r
		} else {
			row.out = r
		}
		if row.outOrIn = row.out; row.outOrIn == nil {
			row.outOrIn = row.in
		}
		if row.algorithms = row.outOrIn.Algorithm; row.asked == algorithmAuto {
			row.algorithms = algorithmAuto + ": " + row.algorithms
		}
	}
	return tables
}

// title is what a table is of, in a line.
func (t *collectiveTable) title() string {
	h := &t.head
	s := fmt.Sprintf("%s of %s", h.Op, h.Type)
	if h.Reduction != "" {
		s += ", " + h.Reduction
	}
	s += fmt.Sprintf(", %d ranks on %s", h.Ranks, gpusPhrase(h.GPUs))
	if h.Root != nil {
		s += fmt.Sprintf(", root %d", *h.Root)
	}
	return s
}

// gpusPhrase is "GPUs 0 1 2", or "GPU 0".
func gpusPhrase(gpus string) string {
	words := strings.Fields(gpus)
	same := true
	for _, w := range words {
		same = same && w == words[0]
	}
	if same && len(words) > 0 {
		return "GPU " + words[0]
	}
	return "GPUs " + gpus
}

func writeCollectives(w io.Writer, d *benchDoc) {
	for _, t := range collectiveTables(d.Results) {
		label := ""
		if t.head.Modelled {
			label = "," + modelledLabel
		}
		fmt.Fprintf(w, "\n%s%s\n", t.title(), label)
		out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprint(out, "\t\t\t\tout of place\t\t\t\t\t\tin place\t\t\t\t\t\tceiling\t\t\n")
		fmt.Fprint(out, "size\tcount\talgorithm\tcalls\ttime\tGPU time\talgbw\tbusbw\tof it\t#wrong\ttime\tGPU time\talgbw\tbusbw\tof it\t#wrong\tbusbw\t\t\n")
		fmt.Fprint(out, "bytes\telements\t\t\tus\tus\tGB/s\tGB/s\t\tbytes\tus\tus\tGB/s\tGB/s\t\tbytes\tGB/s\t\t\n")
		for _, row := range t.rows {
			label := ""
			if row.outOrIn.Modelled {
				label = strings.TrimSpace(modelledLabel)
			}
			fmt.Fprintf(out, "%d\t%d\t%s\t%s\t", row.bytes, *row.outOrIn.Elements, row.algorithms, optional(row.outOrIn.DriverCalls))
			for _, r := range []*benchResult{row.out, row.in} {
				if r == nil {
					fmt.Fprint(out, "-\t-\t-\t-\t-\t-\t")
					continue
				}
				fmt.Fprintf(out, "%s\t%s\t%.3f\t%.3f\t%s\t%d\t", microseconds(&r.Seconds), microseconds(r.EventSeconds), r.Algbw, r.Busbw, decimals(r.Ratio, 3), r.Wrong)
			}
			fmt.Fprintf(out, "%s\t%s\t\n", decimals(busCeiling(row.outOrIn), 2), label)
		}
		out.Flush()
	}
}

// busCeiling is the ceiling of busbw, nil if there is none.
func busCeiling(r *benchResult) *float64 {
	if r.Ceiling == nil || r.Algbw <= 0 {
		return nil
	}
	v := *r.Ceiling * r.Busbw / r.Algbw
	return &v
}
