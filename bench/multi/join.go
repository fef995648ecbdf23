// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// Children whose figures the rows take by name. Those on fewer GPUs have "@N"
// behind it.
const (
	byDefault = "nccl.shm"
	byCopies  = "nccl.shm_copies"
	byNVLink  = "nccl.nvlink"
	perGPU    = "torch.shm"
)

// wrong counts results, of whoever, that moved wrong data.
func (d *document) wrong() (n int) {
	for _, doc := range d.docs {
		for _, r := range doc.Results {
			if r.Wrong > 0 {
				n++
			}
		}
	}
	for _, p := range d.Peers {
		for _, r := range p.Rows {
			if r.Wrong > 0 {
				n++
			}
		}
	}
	return n
}

// join makes the tables of what the children have left.
func (d *document) join() {
	d.Links, d.Copies, d.Collectives, d.Goals = []benchResult{}, []copyRow{}, []collectiveRow{}, []goal{}
	if doc := d.docs["link"]; doc != nil {
		d.Links = append(d.Links, doc.Results...)
	}
	d.joinCopies()
	d.joinCollectives()
	d.judge()
}

func (d *document) joinCopies() {
	doc := d.docs["copy"]
	if doc == nil {
		return
	}
	type key struct {
		ways  int
		bytes uint64
	}
	rows := map[key]*copyRow{}
	for _, r := range doc.Results {
		parts := strings.Split(r.Case, ".") // copy.ROUTE.WAYS
		if len(parts) != 3 || parts[1] == "bare" || r.Wrong > 0 {
			continue
		}
		k := key{1, r.Bytes}
		if parts[2] == "both_ways" {
			k.ways = 2
		}
		if rows[k] == nil {
			rows[k] = &copyRow{Ways: k.ways, Bytes: r.Bytes, Routes: map[string]timing{}}
		}
		t := timing{Seconds: r.Seconds}
		if parts[1] != "direct" {
			t.Ratio = r.Ratio
		}
		rows[k].Routes[parts[1]] = t
	}
	for _, p := range d.Peers {
		if p.Invalid != "" {
			continue
		}
		for _, r := range p.Rows {
			k := key{map[string]int{"send": 1, "sendrecv": 2}[r.Op], r.Bytes}
			if k.ways == 2 && r.Ranks != 2 { // a ring of all
				continue
			}
			if row := rows[k]; row != nil && r.Wrong == 0 {
				if row.NCCL == nil {
					row.NCCL, row.OverNCCL = map[string]timing{}, map[string]float64{}
				}
				row.NCCL[p.Name] = timing{Seconds: r.Seconds, Event: r.Event, Train: r.Train}
			}
		}
	}
	for _, row := range rows {
		ours, ok := row.Routes["staged"]
		if ok && ours.Seconds > 0 {
			if t, ok := row.Routes["driver"]; ok {
				v := t.Seconds / ours.Seconds
				row.OverDriver = &v
			}
			for name, t := range row.NCCL {
				row.OverNCCL[name] = t.Seconds / ours.Seconds
			}
		}
		d.Copies = append(d.Copies, *row)
	}
	slices.SortFunc(d.Copies, func(a, b copyRow) int { return cmp.Or(cmp.Compare(a.Ways, b.Ways), cmp.Compare(a.Bytes, b.Bytes)) })
}

func (d *document) joinCollectives() {
	type key struct {
		op    string
		ranks int
		bytes uint64
	}
	rows := map[key]*collectiveRow{}
	at := func(op string, ranks int, bytes uint64) *collectiveRow {
		k := key{op, ranks, bytes}
		if rows[k] == nil {
			rows[k] = &collectiveRow{Op: op, Ranks: ranks, Bytes: bytes, Algorithms: map[string]timing{}}
		}
		return rows[k]
	}
	for _, name := range slices.Sorted(maps.Keys(d.docs)) {
		for _, r := range d.docs[name].Results {
			if r.Asked == nil || r.Wrong > 0 || r.InPlace != nil && *r.InPlace {
				continue
			}
			row, t := at(r.Op, r.Ranks, r.Bytes), timing{r.Seconds, r.Event, 0, r.Ratio}
			if *r.Asked == "auto" {
				row.Chosen, row.Ours, row.Bound = r.Algorithm, &t, r.Ratio
			}
			row.Algorithms[r.Algorithm] = t
		}
	}
	for _, p := range d.Peers {
		if p.Invalid != "" {
			continue
		}
		child, _, _ := strings.Cut(p.Name, "@")
		for _, r := range p.Rows {
			row := rows[key{r.Op, r.Ranks, r.Bytes}]
			if row == nil || r.Wrong > 0 {
				continue
			}
			if row.NCCL == nil {
				row.NCCL = map[string]timing{}
			}
			name := child
			if r.Proto != "default" {
				name += "/" + r.Proto
			}
			row.NCCL[name] = timing{Seconds: r.Seconds, Event: r.Event, Train: r.Train}
		}
	}
	for _, row := range rows {
		row.compare()
		d.Collectives = append(d.Collectives, *row)
	}
	slices.SortFunc(d.Collectives, func(a, b collectiveRow) int {
		return cmp.Or(cmp.Compare(b.Ranks, a.Ranks), cmp.Compare(a.Op, b.Op), cmp.Compare(a.Bytes, b.Bytes))
	})
}

// compare makes a row's ratios.
func (row *collectiveRow) compare() {
	for _, name := range slices.Sorted(maps.Keys(row.NCCL)) {
		if !strings.HasPrefix(name, "nccl.") || name == byNVLink {
			continue
		}
		if row.Best == "" || row.NCCL[name].Seconds < row.NCCL[row.Best].Seconds {
			row.Best = name
		}
	}
	if row.Ours == nil {
		return
	}
	over := func(ours *timing, name string) *ratios {
		t, ok := row.NCCL[name]
		if !ok || ours == nil || ours.Seconds <= 0 {
			return nil
		}
		r := &ratios{Call: t.Seconds / ours.Seconds}
		if t.Event != nil && ours.Event != nil && *ours.Event > 0 {
			v := *t.Event / *ours.Event
			r.Event = &v
		}
		return r
	}
	row.OverNCCL, row.OverCopies, row.OverBest = over(row.Ours, byDefault), over(row.Ours, byCopies), over(row.Ours, row.Best)
	row.OverPerGPU, row.OverNVLink = over(row.Ours, perGPU), over(row.Ours, byNVLink)
	if t, ok := row.Algorithms["peer"]; ok {
		row.PeerOverNCCL = over(&t, byNVLink)
	}
}

// judge makes the goals. Each takes the worst of its sizes.
func (d *document) judge() {
	add := func(name string, wanted float64, aim bool, values func(yield func(at string, v float64))) {
		g := goal{Name: name, Wanted: wanted, Aim: aim}
		values(func(at string, v float64) {
			if g.Got == nil || v < *g.Got {
				g.Got, g.At = &v, at
			}
		})
		g.Met = g.Got != nil && *g.Got >= wanted
		d.Goals = append(d.Goals, g)
	}
	const large = 64 * mib
	most := uint64(0)
	for _, c := range d.Copies {
		most = max(most, c.Bytes)
	}
	copies := func(ways int, least uint64, of func(*copyRow) *float64) func(func(string, float64)) {
		return func(yield func(string, float64)) {
			for i := range d.Copies {
				c := &d.Copies[i]
				if v := of(c); c.Ways == ways && c.Bytes >= least && v != nil {
					yield(sizeName(c.Bytes), *v)
				}
			}
		}
	}
	bound := func(c *copyRow) *float64 { return c.Routes["staged"].Ratio }
	add("copy one way, of the slower link's ceiling, largest size", 0.97, false, copies(1, most, bound))
	add("copy both ways, of the both-ways ceiling, largest size", 0.95, false, copies(2, most, bound))
	driver := func(c *copyRow) *float64 { return c.OverDriver }
	add("copy both ways over the driver's own staging, largest size", 1.5, true, copies(2, most, driver))
	add("copy one way over the driver's own staging, largest size", 1, true, copies(1, most, driver))
	rows := func(op string, least, most uint64, of func(*collectiveRow) *float64) func(func(string, float64)) {
		return func(yield func(string, float64)) {
			for i := range d.Collectives {
				c := &d.Collectives[i]
				if v := of(c); c.Op == op && least <= c.Bytes && c.Bytes <= most && v != nil {
					yield(fmt.Sprintf("%s, %d ranks", sizeName(c.Bytes), c.Ranks), *v)
				}
			}
		}
	}
	add("all_reduce of its bare-traffic bound, from 64 MiB", 0.9, false, rows("all_reduce", large, 1<<62, func(c *collectiveRow) *float64 { return c.Bound }))
	for _, rival := range []struct {
		name string
		of   func(*collectiveRow) *ratios
	}{
		{"NCCL over SHM", func(c *collectiveRow) *ratios { return c.OverNCCL }},
		{"the best of NCCL over SHM", func(c *collectiveRow) *ratios { return c.OverBest }},
	} {
		call := func(c *collectiveRow) *float64 {
			if r := rival.of(c); r != nil {
				return &r.Call
			}
			return nil
		}
		add("all_reduce over "+rival.name+", from 64 MiB", 1.25, true, rows("all_reduce", large, 1<<62, call))
		add("all_reduce over "+rival.name+", 128 KiB to 2 MiB", 2, true, rows("all_reduce", 128<<10, 2*mib, call))
		add("all_reduce over "+rival.name+", to 32 KiB", 1, true, rows("all_reduce", 0, 32<<10, call))
		for _, op := range []string{"all_gather", "broadcast"} {
			add(op+" over "+rival.name+", from 64 MiB", 1.4, true, rows(op, large, 1<<62, call))
		}
	}
}

func sizeName(n uint64) string {
	for _, u := range []struct {
		bytes uint64
		name  string
	}{{gib, "GiB"}, {mib, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.bytes && n%u.bytes == 0 {
			return fmt.Sprintf("%d %s", n/u.bytes, u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// writeSummary is the document in short, for people.
func writeSummary(w io.Writer, d *document) {
	label := ""
	if d.Modelled {
		label = ", every figure is modelled"
	}
	fmt.Fprintf(w, "\n%d GPUs, %.0f s%s\n\n", d.GPUs, d.Seconds, label)
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	us := func(t timing, ok bool) string {
		if !ok {
			return "-"
		}
		return fmt.Sprintf("%.1f", t.Seconds*1e6)
	}
	number := func(v *float64) string {
		if v == nil {
			return "-"
		}
		return fmt.Sprintf("%.2f", *v)
	}
	fmt.Fprint(out, "copy\tways\tstaged us\tof ceiling\tdriver us\tdirect us\tover driver\tover NCCL\t\n")
	for i := range d.Copies {
		c := &d.Copies[i]
		cell := func(route string) string { t, ok := c.Routes[route]; return us(t, ok) }
		nccl := "-"
		if v, ok := c.OverNCCL[byDefault]; ok {
			nccl = number(&v)
		}
		fmt.Fprintf(out, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t\n", sizeName(c.Bytes), c.Ways, cell("staged"), number(c.Routes["staged"].Ratio),
			cell("driver"), cell("direct"), number(c.OverDriver), nccl)
	}
	out.Flush()
	fmt.Fprint(w, "\n")
	fmt.Fprint(out, "collective\tranks\tbytes\tours us\tchosen\tof bound\tpeer us\tNCCL us\tbest us\tbest is\tover NCCL\tover best\t\n")
	call := func(r *ratios) string {
		if r == nil {
			return "-"
		}
		return number(&r.Call)
	}
	for i := range d.Collectives {
		c := &d.Collectives[i]
		ours := "-"
		if c.Ours != nil {
			ours = us(*c.Ours, true)
		}
		cell := func(of map[string]timing, name string) string { t, ok := of[name]; return us(t, ok) }
		fmt.Fprintf(out, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", c.Op, c.Ranks, sizeName(c.Bytes), ours, c.Chosen, number(c.Bound),
			cell(c.Algorithms, "peer"), cell(c.NCCL, byDefault), cell(c.NCCL, c.Best), c.Best, call(c.OverNCCL), call(c.OverBest))
	}
	out.Flush()
	fmt.Fprint(w, "\n")
	fmt.Fprint(out, "goal\twanted\tgot\tat\t\t\n")
	for _, g := range d.Goals {
		state := "missed"
		switch {
		case g.Got == nil:
			state = "not measured"
		case g.Met:
			state = "met"
		}
		fmt.Fprintf(out, "%s\t%.2f\t%s\t%s\t%s\t\n", g.Name, g.Wanted, number(g.Got), g.At, state)
	}
	out.Flush()
	for _, n := range d.Notes {
		fmt.Fprintf(w, "\nnote: %s\n", n)
	}
}
