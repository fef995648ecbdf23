// SPDX-License-Identifier: Apache-2.0

// Command figures writes the README's table of measured figures from the records
// of docs/measured, between the two markers there:
//
//	go run ./bench/figures          write it
//	go run ./bench/figures -check   fail if the README has another one
//
// It reads what `gp bench --save` wrote, by itself or inside the record of a GPU
// bundle, and that record's own measurements. Of several records of one machine
// each operation is taken from the latest that has it, as the dates within tell. A
// record that holds a modelled figure is refused, for the folder is for measured
// ones.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	check := flag.Bool("check", false, "write nothing, and fail if the README is stale")
	root := flag.String("root", ".", "the repository's `FOLDER`")
	flag.Parse()
	if err := run(*root, *check, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

const (
	begin = "<!-- figures: written by make readme-figures from docs/measured, not by hand -->"
	end   = "<!-- figures end -->"
)

func run(root string, check bool, out io.Writer) error {
	records, err := load(filepath.Join(root, "docs", "measured"))
	if err != nil {
		return err
	}
	name := filepath.Join(root, "README.md")
	old, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	text, err := replace(string(old), render(records))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	switch {
	case text == string(old):
		return nil
	case check:
		return fmt.Errorf("%s does not have the figures of docs/measured: run make readme-figures", name)
	}
	fmt.Fprintln(out, "wrote", name)
	return os.WriteFile(name, []byte(text), 0o644)
}

// replace puts a text between the markers.
func replace(readme, text string) (string, error) {
	before, rest, ok := strings.Cut(readme, begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed || strings.Contains(after, begin) {
		return "", fmt.Errorf("wants one line %q with one %q after it", begin, end)
	}
	return before + begin + "\n" + text + end + after, nil
}

// A record is what one file says of one machine.
type record struct {
	file    string
	machine string // "1x NVIDIA H200, driver 580.159.04"
	gpus    string // what tells machines apart: "1x NVIDIA H200"
	taken   string // RFC 3339, or a date: the latest within
	multi   bool   // of several GPUs, beside what others did there
	rows    []row
}

// A row is a line of the table: what an op does on so many ranks.
type row struct {
	op              string // in subjects
	ranks           int
	what            string // without how a collective was done
	how             string
	bytes           uint64
	figure, ceiling string
	beside          string // the same by others, in the same run
}

// subjects are the ops of rows in the order of the table.
var subjects = []string{"link", "copy", "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all"}

// load reads the records of a folder, those of several GPUs first, and the latest
// first. Each keeps what none before it of its machine has.
func load(folder string) (records []record, err error) {
	names, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		r, err := parse(raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		r.file = filepath.Base(name)
		records = append(records, r)
	}
	// What is beside others' figures goes before what the tests took later by themselves.
	order := map[bool]int{true: -1}
	slices.SortStableFunc(records, func(a, b record) int {
		return cmp.Or(cmp.Compare(order[a.multi], order[b.multi]), cmp.Compare(b.taken, a.taken), cmp.Compare(b.file, a.file))
	})
	has := map[[2]string]string{} // the file that shows an op of a machine
	for i := range records {
		r := &records[i]
		r.rows = slices.DeleteFunc(r.rows, func(x row) bool {
			k := [2]string{r.gpus, x.op}
			if has[k] == "" {
				has[k] = r.file
			}
			return has[k] != r.file
		})
	}
	return slices.DeleteFunc(records, func(r record) bool { return len(r.rows) == 0 }), nil
}

var errModelled = errors.New("it holds modelled figures, and docs/measured is for measured ones")

// benchDoc is what `gp bench` saves, as far as it is read here.
type benchDoc struct {
	Version int    `json:"version"`
	Bench   string `json:"bench"`
	Date    string `json:"date"`
	Machine struct {
		Name     string `json:"name"`
		Driver   string `json:"driver"`
		Modelled bool   `json:"modelled"`
	} `json:"machine"`
	Results []result `json:"results"`
}

type result struct {
	Op        string   `json:"op"`
	Algorithm string   `json:"algorithm"`
	Type      string   `json:"type"`
	Reduction string   `json:"reduction"`
	Ranks     int      `json:"ranks"`
	Bytes     uint64   `json:"bytes"`
	Seconds   float64  `json:"seconds"`
	Algbw     float64  `json:"algbw_gb_per_s"`
	Busbw     float64  `json:"busbw_gb_per_s"`
	Wrong     uint64   `json:"wrong"`
	Modelled  bool     `json:"modelled"`
	Case      string   `json:"case"`
	GPUs      string   `json:"gpus"`
	Asked     *string  `json:"asked"`
	InPlace   *bool    `json:"in_place"`
	Chunk     *uint64  `json:"chunk_asked"`
	Ratio     *float64 `json:"ratio_to_ceiling"`
}

// bundle is the record of a GPU bundle, as far as it is read here. Documents of
// gp bench stand under keys that begin with "bench-".
type bundle struct {
	Date     string `json:"date"`
	Machine  string `json:"machine"`
	Multi    *multi `json:"multi"`
	Measured *struct {
		Copy *struct {
			Both   float64 `json:"both_ways_gb_per_s"`
			Up     float64 `json:"d2h_gb_per_s"`
			Down   float64 `json:"h2d_gb_per_s"`
			Large  float64 `json:"copy_1gib_payload_gb_per_s"`
			Ratio  float64 `json:"copy_1gib_ratio_to_ceiling"`
			Points []struct {
				Bytes   uint64  `json:"bytes"`
				Seconds float64 `json:"median_seconds"`
				Payload float64 `json:"payload_gb_per_s"`
			} `json:"points"`
		} `json:"copy"`
		AllReduce *struct {
			Ranks     int    `json:"ranks"`
			Type      string `json:"type"`
			Reduction string `json:"reduction"`
			Points    []struct {
				Algorithm string  `json:"algorithm"`
				Bytes     uint64  `json:"bytes"`
				Seconds   float64 `json:"median_seconds"`
				Ratio     float64 `json:"link_traffic_to_both_ways_ceiling"`
			} `json:"points"`
		} `json:"all_reduce"`
		Collectives *struct {
			Type   string `json:"type"`
			Card   bool   `json:"one_card"` // all ranks share one
			Points []struct {
				Op        string  `json:"op"`
				Ranks     int     `json:"ranks"`
				Bytes     uint64  `json:"bytes"`
				Algorithm string  `json:"algorithm"`
				Auto      bool    `json:"auto"`
				Seconds   float64 `json:"median_seconds"`
				Ratio     float64 `json:"bound_over_time"`
			} `json:"points"`
		} `json:"collectives"`
	} `json:"measured"`
}

// parse reads a file. One without figures, such as the facts of a probe, has no
// rows.
func parse(raw []byte) (r record, err error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(raw, &keys); err != nil {
		return r, err
	}
	if keys["bench"] != nil && keys["results"] != nil {
		d, err := parseDoc(raw)
		if err != nil {
			return r, err
		}
		r.taken = d.Date
		r.gpus, r.machine = d.Machine.Name, d.Machine.Name+", driver "+d.Machine.Driver
		r.add(d.Results)
		r.sort()
		return r, nil
	}
	if keys["measured"] == nil {
		return r, nil
	}
	var b bundle
	if err := json.Unmarshal(raw, &b); err != nil {
		return r, err
	}
	r.taken, r.machine = b.Date, b.Machine
	r.gpus, _, _ = strings.Cut(b.Machine, ", driver")
	if strings.Contains(b.Machine, "modelled") {
		return r, errModelled
	}
	var names []string
	for k, v := range keys {
		if strings.HasPrefix(k, "bench-") && string(v) != "null" {
			names = append(names, k)
		}
	}
	// Runs without a kind come last: one of a kind has more rounds of what it measures.
	of := func(name string) int { return strings.Index(name, "-default") }
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(of(a), of(b)), cmp.Compare(a, b)) })
	var all []result
	for _, k := range names {
		d, err := parseDoc(keys[k])
		if err != nil {
			return r, fmt.Errorf("%s: %w", k, err)
		}
		r.taken = max(r.taken, d.Date)
		all = append(all, d.Results...)
	}
	r.add(all)
	if b.Multi != nil {
		// The bundle's own measurements are of ranks that share a card; here each has
		// one.
		r.multi, r.taken = true, max(r.taken, b.Multi.Date)
		r.addMulti(b.Multi)
	} else {
		r.addMeasured(&b)
	}
	r.sort()
	return r, nil
}

// benchVersion is of the documents that are read here.
const benchVersion = 1

// parseDoc reads a document of gp bench, and refuses one that must not be shown.
func parseDoc(raw []byte) (*benchDoc, error) {
	var d benchDoc
	if err := json.Unmarshal(raw, &d); err != nil {
		return nil, err
	}
	if d.Version != benchVersion {
		return nil, fmt.Errorf("version %d of gp bench's document: this reads version %d", d.Version, benchVersion)
	}
	if d.Machine.Modelled {
		return nil, errModelled
	}
	for _, x := range d.Results {
		switch {
		case x.Modelled:
			return nil, errModelled
		case x.Wrong > 0:
			return nil, fmt.Errorf("%s of %d bytes moved wrong data", x.Case, x.Bytes)
		}
	}
	return &d, nil
}

// add makes rows of results: of each case on its GPUs the largest size, and of
// copies and all_reduce some others. What stands there already is not added again.
func (r *record) add(results []result) {
	most := map[string]uint64{}
	for _, x := range results {
		most[x.key()] = max(most[x.key()], x.Bytes)
	}
	for _, x := range results {
		o, ok := x.row()
		if !ok || x.Bytes != most[x.key()] && !(slices.Contains(shown, x.Bytes) && (o.op == "copy" || o.op == "all_reduce")) {
			continue
		}
		if !slices.ContainsFunc(r.rows, func(p row) bool { return p.what == o.what && p.bytes == o.bytes }) {
			r.rows = append(r.rows, o)
		}
	}
}

// has tells whether there is a row of an op.
func (r *record) has(op string) bool {
	return slices.ContainsFunc(r.rows, func(x row) bool { return x.op == op })
}

// sort puts the rows in the order of the table: those of one thing by size.
func (r *record) sort() {
	first := map[string]int{}
	for i, x := range r.rows {
		if _, ok := first[x.what]; !ok {
			first[x.what] = i
		}
	}
	slices.SortStableFunc(r.rows, func(a, b row) int {
		return cmp.Or(
			cmp.Compare(slices.Index(subjects, a.op), slices.Index(subjects, b.op)), cmp.Compare(a.ranks, b.ranks),
			cmp.Compare(first[a.what], first[b.what]), cmp.Compare(a.bytes, b.bytes))
	})
}

// shown are the sizes beside the largest.
var shown = []uint64{1 << 10, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20}

// ratioFrom is the size from which a row has its share of the ceiling: that is
// of large copies.
const ratioFrom = 1 << 20

func (x *result) key() string { return fmt.Sprintf("%s|%s|%d", x.Case, x.GPUs, x.Ranks) }

// row is a result's row, ok false for what the table leaves out.
func (x *result) row() (o row, ok bool) {
	o = row{ranks: x.Ranks, bytes: x.Bytes, figure: x.figure()}
	if x.Ratio != nil && x.Bytes >= ratioFrom {
		o.ceiling = percent(*x.Ratio)
	}
	switch {
	case x.Asked != nil:
		red := ""
		if x.Reduction != "" {
			red = ", " + x.Reduction
		}
		o.op, o.what, o.how = x.Op, fmt.Sprintf("%s of %s%s, %d ranks on GPU %s", x.Op, x.Type, red, x.Ranks, gpus(x.GPUs)), x.Algorithm
		return o, *x.Asked == "auto" && (x.InPlace == nil || !*x.InPlace)
	case strings.HasPrefix(x.Case, "link."):
		name, ok := map[string]string{
			"link.d2h": "device to host", "link.h2d": "host to device", "link.both": "both at once, together",
		}[x.Case]
		o.op, o.ranks, o.what = "link", 0, fmt.Sprintf("link of GPU %s, %s", x.GPUs, name)
		return o, ok
	case strings.HasPrefix(x.Case, "copy.") && x.Algorithm != "bare" && x.Chunk == nil:
		ways := "one way"
		if strings.HasSuffix(x.Case, ".both_ways") {
			ways = "both ways together"
		}
		o.op, o.what = "copy", fmt.Sprintf("%s copy, %s, %s", x.Algorithm, ways, pair(x.GPUs))
		return o, true
	}
	return o, false
}

// gpus is each ordinal once.
func gpus(list string) string {
	words := strings.Fields(list)
	slices.Sort(words)
	return strings.Join(slices.Compact(words), " ")
}

// pair is the GPUs of a copy, which are "0>1", or "0>1 1>0" of one both ways.
func pair(list string) string {
	way, _, _ := strings.Cut(list, " ")
	from, to, _ := strings.Cut(way, ">")
	switch {
	case from == to:
		return "2 ranks on GPU " + from
	case way != list:
		return "GPUs " + from + " and " + to
	}
	return "GPU " + from + " to " + to
}

// figure is a time where that is what counts, else a rate.
func (x *result) figure() string {
	if x.Asked != nil {
		return timeAndRate(x.Bytes, x.Seconds, x.Busbw)
	}
	return timeOrRate(x.Bytes, x.Seconds, x.Algbw)
}

func timeAndRate(bytes uint64, seconds, bus float64) string {
	if bytes <= 16<<10 {
		return us(seconds)
	}
	return fmt.Sprintf("%s, busbw %.1f GB/s", us(seconds), bus)
}

func timeOrRate(bytes uint64, seconds, rate float64) string {
	if bytes <= 64<<10 {
		return us(seconds)
	}
	return fmt.Sprintf("%.1f GB/s", rate)
}

// addMeasured adds the bundle's own measurements of what gp bench has not taken.
func (r *record) addMeasured(b *bundle) {
	m := b.Measured
	if c := m.Copy; c != nil {
		if !r.has("link") {
			for _, l := range []struct {
				what string
				rate float64
			}{{"device to host", c.Up}, {"host to device", c.Down}, {"both at once, together", c.Both}} {
				r.rows = append(r.rows, row{op: "link", what: "link, " + l.what, bytes: 256 << 20, figure: fmt.Sprintf("%.1f GB/s", l.rate)})
			}
		}
		if !r.has("copy") {
			for _, p := range c.Points {
				if slices.Contains(shown, p.Bytes) {
					r.rows = append(r.rows, row{op: "copy", what: "staged copy, one way", bytes: p.Bytes, figure: timeOrRate(p.Bytes, p.Seconds, p.Payload)})
				}
			}
			r.rows = append(r.rows, row{op: "copy", what: "staged copy, one way", bytes: 1 << 30, figure: fmt.Sprintf("%.1f GB/s", c.Large), ceiling: percent(c.Ratio)})
		}
	}
	if c := m.Collectives; c != nil && (!c.Card || strings.HasPrefix(b.Machine, "1x ")) {
		most := map[string]uint64{}
		key := func(op string, ranks int) string { return fmt.Sprint(op, ranks) }
		for _, p := range c.Points {
			most[key(p.Op, p.Ranks)] = max(most[key(p.Op, p.Ranks)], p.Bytes)
		}
		var rows []row
		for _, p := range c.Points {
			if !p.Auto || r.has(p.Op) || p.Bytes != most[key(p.Op, p.Ranks)] && !(slices.Contains(shown, p.Bytes) && p.Op == "all_reduce") {
				continue
			}
			rows = append(rows, collectiveRow(p.Op, c.Type, p.Ranks, p.Algorithm, p.Bytes, p.Seconds, p.Ratio))
		}
		r.rows = append(r.rows, rows...)
	}
	if a := m.AllReduce; a != nil && !r.has("all_reduce") {
		for _, p := range a.Points {
			x := collectiveRow("all_reduce", a.Type+", "+a.Reduction, a.Ranks, "", p.Bytes, p.Seconds, p.Ratio)
			x.what += " (" + p.Algorithm + ")" // not the library's choice: a row each
			r.rows = append(r.rows, x)
		}
	}
}

// multi is what bench/multi has measured on several GPUs, P2P denied.
type multi struct {
	Date   string   `json:"date"`
	Links  []result `json:"links"`
	Copies []struct {
		Ways   int    `json:"ways"`
		Bytes  uint64 `json:"bytes"`
		Routes map[string]struct {
			Seconds float64 `json:"seconds"`
			OfBound float64 `json:"of_bound"`
		} `json:"routes"`
		NCCL map[string]timed `json:"nccl"`
	} `json:"copies"`
	Collectives []struct {
		Op      string           `json:"op"`
		Ranks   int              `json:"ranks"`
		Bytes   uint64           `json:"bytes"`
		Chosen  string           `json:"chosen"`
		Ours    timed            `json:"ours"`
		OfBound float64          `json:"of_bound"`
		NCCL    map[string]timed `json:"nccl"`
		Best    string           `json:"nccl_best"`
	} `json:"collectives"`
}

type timed struct {
	Seconds float64 `json:"seconds"`
}

// ncclShared is NCCL with P2P denied, as it comes.
const ncclShared = "nccl.shm"

// addMulti adds what several GPUs did: each size that is shown and the largest,
// with what the driver and NCCL took for the same in the same run.
func (r *record) addMulti(m *multi) {
	for _, x := range m.Links {
		if o, ok := x.row(); ok && x.GPUs == "0" {
			r.rows = append(r.rows, o)
		}
	}
	over := func(ours, theirs float64, who string) string {
		return fmt.Sprintf("%s %s: %.2fx", who, us(theirs), theirs/ours)
	}
	most := map[string]uint64{}
	for _, c := range m.Copies {
		most["copy"] = max(most["copy"], c.Bytes)
	}
	for _, c := range m.Collectives {
		most[fmt.Sprint(c.Op, c.Ranks)] = max(most[fmt.Sprint(c.Op, c.Ranks)], c.Bytes)
	}
	for _, c := range m.Copies {
		ours, ok := c.Routes["staged"]
		if !ok || c.Bytes != most["copy"] && !slices.Contains(shown, c.Bytes) {
			continue
		}
		x := row{op: "copy", what: "staged copy, GPU 0 to 1", bytes: c.Bytes, figure: us(ours.Seconds)}
		if c.Ways == 2 {
			x.what = "staged copies both ways"
		}
		if c.Bytes > 64<<10 {
			x.figure += fmt.Sprintf(", %.1f GB/s", float64(c.Ways)*float64(c.Bytes)/ours.Seconds/1e9)
		}
		if c.Bytes >= 16<<20 {
			x.ceiling = percent(ours.OfBound)
		}
		var beside []string
		if d, ok := c.Routes["driver"]; ok {
			beside = append(beside, over(ours.Seconds, d.Seconds, "the driver's staging"))
		}
		if n, ok := c.NCCL[ncclShared]; ok {
			beside = append(beside, over(ours.Seconds, n.Seconds, "NCCL over SHM"))
		}
		x.beside = strings.Join(beside, "; ")
		r.rows = append(r.rows, x)
	}
	for _, c := range m.Collectives {
		if c.Bytes != most[fmt.Sprint(c.Op, c.Ranks)] && !slices.Contains(shown, c.Bytes) {
			continue
		}
		x := collectiveRow(c.Op, "float32", c.Ranks, c.Chosen, c.Bytes, c.Ours.Seconds, c.OfBound)
		var beside []string
		if n, ok := c.NCCL[ncclShared]; ok {
			beside = append(beside, over(c.Ours.Seconds, n.Seconds, "NCCL over SHM"))
		}
		if n, ok := c.NCCL[c.Best]; ok && c.Best != ncclShared {
			beside = append(beside, over(c.Ours.Seconds, n.Seconds, "its best setting"))
		}
		x.beside = strings.Join(beside, "; ")
		r.rows = append(r.rows, x)
	}
}

// collectiveRow is the row of a collective that a test of the bundle has
// measured. Its ratio is that to bare copies of the same bytes, which is the
// other ratios' from 16 MiB up; 0 for none.
func collectiveRow(op, typ string, ranks int, how string, bytes uint64, seconds, ratio float64) row {
	x := row{op: op, ranks: ranks, what: fmt.Sprintf("%s of %s, %d ranks", op, typ, ranks), how: how, bytes: bytes}
	bus := 1.0 // as PERFORMANCE.md of nccl-tests has it
	switch n := float64(ranks); op {
	case "all_reduce":
		bus = 2 * (n - 1) / n
	case "all_gather", "reduce_scatter", "all_to_all":
		bus = (n - 1) / n
	}
	x.figure = timeAndRate(bytes, seconds, float64(bytes)/seconds/1e9*bus)
	if ratio > 0 && bytes >= 16<<20 {
		x.ceiling = percent(ratio)
	}
	return x
}

func percent(ratio float64) string { return fmt.Sprintf("%.0f%%", 100*ratio) }

func us(seconds float64) string {
	if v := seconds * 1e6; v < 1000 {
		return fmt.Sprintf("%.1f us", v)
	}
	return fmt.Sprintf("%.2f ms", seconds*1e3)
}

// formatSize writes a size in the largest binary unit that divides it.
func formatSize(n uint64) string {
	for _, u := range []struct {
		suffix string
		factor uint64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.factor && n%u.factor == 0 {
			return fmt.Sprintf("%d %s", n/u.factor, u.suffix)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// render is the text between the markers.
func render(records []record) string {
	var b strings.Builder
	if len(records) == 0 {
		b.WriteString("\nNothing has been measured yet.\n")
	}
	for _, r := range records {
		date, _, _ := strings.Cut(r.taken, "T")
		head, line := "| what | size | figure | of the links' ceiling |", "|---|---|---|---|"
		compared := slices.ContainsFunc(r.rows, func(x row) bool { return x.beside != "" })
		if compared {
			head, line = head+" the same by others, and their time over ours |", line+"---|"
		}
		fmt.Fprintf(&b, "\n%s; %s, [record](docs/measured/%s):\n\n%s\n%s\n", r.machine, date, r.file, head, line)
		for _, x := range r.rows {
			what := x.what
			if x.how != "" {
				what += " (" + x.how + ")"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |", what, formatSize(x.bytes), x.figure, x.ceiling)
			if compared {
				fmt.Fprintf(&b, " %s |", x.beside)
			}
			b.WriteString("\n")
		}
	}
	b.WriteString("\n")
	return b.String()
}
