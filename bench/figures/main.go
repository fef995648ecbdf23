// SPDX-License-Identifier: Apache-2.0

// Command figures writes the README's table of measured figures from the records
// of docs/measured, between the two markers there:
//
//	go run ./bench/figures          write it
//	go run ./bench/figures -check   fail if the README has another one
//
// It reads what `gp bench --save` wrote, by itself or inside the record of a GPU
// bundle, and that record's own measurements. Of several records of one machine
// the latest counts: names begin with the date. A record that holds a modelled
// figure is refused, for the folder is for measured ones.
package main

import (
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
	date    string
	rows    []row
}

type row struct{ what, size, figure, ceiling string }

// load reads the records of a folder, the latest of each machine.
func load(folder string) (records []record, err error) {
	names, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		r, ok, err := parse(raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if !ok {
			continue
		}
		r.file = filepath.Base(name)
		records = slices.DeleteFunc(records, func(o record) bool { return o.gpus == r.gpus })
		records = append(records, r)
	}
	return records, nil
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
	} `json:"measured"`
}

// parse reads a file. ok is false for one that has no figures, such as the facts
// of a probe.
func parse(raw []byte) (r record, ok bool, err error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(raw, &keys); err != nil {
		return r, false, err
	}
	if keys["bench"] != nil && keys["results"] != nil {
		var d benchDoc
		if err := json.Unmarshal(raw, &d); err != nil {
			return r, false, err
		}
		r.date, _, _ = strings.Cut(d.Date, "T")
		r.gpus, r.machine = d.Machine.Name, d.Machine.Name+", driver "+d.Machine.Driver
		err := r.addDoc(&d)
		return r, true, err
	}
	if keys["measured"] == nil {
		return r, false, nil
	}
	var b bundle
	if err := json.Unmarshal(raw, &b); err != nil {
		return r, false, err
	}
	r.date, r.machine = b.Date, b.Machine
	r.gpus, _, _ = strings.Cut(b.Machine, ", driver")
	if strings.Contains(b.Machine, "modelled") {
		return r, false, errModelled
	}
	var names []string
	for k, v := range keys {
		if strings.HasPrefix(k, "bench-") && string(v) != "null" {
			names = append(names, k)
		}
	}
	slices.Sort(names)
	kinds := map[string]bool{}
	for _, k := range names {
		var d benchDoc
		if err := json.Unmarshal(keys[k], &d); err != nil {
			return r, false, fmt.Errorf("%s: %w", k, err)
		}
		if err := r.addDoc(&d); err != nil {
			return r, false, fmt.Errorf("%s: %w", k, err)
		}
		for _, x := range d.Results {
			kinds[x.Op] = true
		}
	}
	r.addMeasured(&b, kinds)
	return r, true, nil
}

// benchVersion is of the documents that are read here.
const benchVersion = 1

func (r *record) addDoc(d *benchDoc) error {
	if d.Version != benchVersion {
		return fmt.Errorf("version %d of gp bench's document: this reads version %d", d.Version, benchVersion)
	}
	if d.Machine.Modelled {
		return errModelled
	}
	most := map[string]uint64{} // of each case on its GPUs, and each op on its ranks
	for _, x := range d.Results {
		switch {
		case x.Modelled:
			return errModelled
		case x.Wrong > 0:
			return fmt.Errorf("%s of %d bytes moved wrong data", x.Case, x.Bytes)
		}
		most[x.key()] = max(most[x.key()], x.Bytes)
	}
	for _, x := range d.Results {
		if what, ok := x.what(); ok && (x.Bytes == most[x.key()] || slices.Contains(shown, x.Bytes) && !strings.HasPrefix(x.Case, "link.")) {
			r.rows = append(r.rows, row{what, formatSize(x.Bytes), x.figure(), percent(x.Ratio)})
		}
	}
	return nil
}

// shown are the sizes beside the largest.
var shown = []uint64{1 << 10, 4 << 10, 64 << 10, 1 << 20, 16 << 20}

func (x *result) key() string { return fmt.Sprintf("%s|%s|%d", x.Case, x.GPUs, x.Ranks) }

// what is a row's name, ok false for what the table leaves out.
func (x *result) what() (string, bool) {
	switch {
	case x.Asked != nil:
		if *x.Asked != "auto" || x.InPlace != nil && *x.InPlace {
			return "", false
		}
		red := ""
		if x.Reduction != "" {
			red = ", " + x.Reduction
		}
		return fmt.Sprintf("%s of %s%s, %d ranks on GPU %s (%s)", x.Op, x.Type, red, x.Ranks, gpus(x.GPUs), x.Algorithm), true
	case strings.HasPrefix(x.Case, "link."):
		name, ok := map[string]string{
			"link.d2h": "device to host", "link.h2d": "host to device", "link.both": "both at once, together",
		}[x.Case]
		return fmt.Sprintf("link of GPU %s, %s", x.GPUs, name), ok
	case strings.HasPrefix(x.Case, "copy.") && x.Algorithm != "bare" && x.Chunk == nil:
		ways := "one way"
		if strings.HasSuffix(x.Case, ".both_ways") {
			ways = "both ways together"
		}
		return fmt.Sprintf("%s copy, %s, GPU %s", x.Algorithm, ways, strings.ReplaceAll(x.GPUs, ">", " to ")), true
	}
	return "", false
}

// gpus is each ordinal once.
func gpus(list string) string {
	words := strings.Fields(list)
	slices.Sort(words)
	return strings.Join(slices.Compact(words), " ")
}

// figure is a time where that is what counts, else a rate.
func (x *result) figure() string {
	if x.Bytes <= 64<<10 {
		return us(x.Seconds)
	}
	if x.Asked != nil {
		return fmt.Sprintf("%s, busbw %.1f GB/s", us(x.Seconds), x.Busbw)
	}
	return fmt.Sprintf("%.1f GB/s", x.Algbw)
}

// addMeasured adds the bundle's own measurements of what gp bench has not taken.
func (r *record) addMeasured(b *bundle, kinds map[string]bool) {
	if c := b.Measured.Copy; c != nil {
		if !kinds["d2h"] {
			r.rows = append(r.rows,
				row{"link, device to host", "256 MiB", fmt.Sprintf("%.1f GB/s", c.Up), ""},
				row{"link, host to device", "256 MiB", fmt.Sprintf("%.1f GB/s", c.Down), ""},
				row{"link, both at once, together", "256 MiB", fmt.Sprintf("%.1f GB/s", c.Both), ""})
		}
		if !kinds["copy"] {
			for _, p := range c.Points {
				if p.Bytes <= 64<<10 {
					r.rows = append(r.rows, row{"staged copy, one way", formatSize(p.Bytes), us(p.Seconds), ""})
				} else if slices.Contains(shown, p.Bytes) {
					r.rows = append(r.rows, row{"staged copy, one way", formatSize(p.Bytes), fmt.Sprintf("%.1f GB/s", p.Payload), ""})
				}
			}
			r.rows = append(r.rows, row{"staged copy, one way", "1 GiB", fmt.Sprintf("%.1f GB/s", c.Large), percent(&c.Ratio)})
		}
	}
	if a := b.Measured.AllReduce; a != nil && !kinds["all_reduce"] {
		for _, p := range a.Points {
			var ratio *float64
			if p.Ratio > 0 {
				ratio = &p.Ratio
			}
			n := float64(a.Ranks)
			r.rows = append(r.rows, row{
				fmt.Sprintf("all_reduce of %s, %s, %d ranks (%s)", a.Type, a.Reduction, a.Ranks, p.Algorithm), formatSize(p.Bytes),
				fmt.Sprintf("%s, busbw %.1f GB/s", us(p.Seconds), float64(p.Bytes)/p.Seconds/1e9*2*(n-1)/n), percent(ratio),
			})
		}
	}
}

func percent(ratio *float64) string {
	if ratio == nil {
		return ""
	}
	return fmt.Sprintf("%.0f%%", 100**ratio)
}

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
		fmt.Fprintf(&b, "\n%s; %s, [record](docs/measured/%s):\n\n| what | size | figure | of the links' ceiling |\n|---|---|---|---|\n", r.machine, r.date, r.file)
		for _, x := range r.rows {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", x.what, x.size, x.figure, x.ceiling)
		}
	}
	b.WriteString("\n")
	return b.String()
}
