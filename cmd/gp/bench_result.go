// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// benchVersion is of the JSON document. Fields are added within a version, never
// renamed.
const benchVersion = 1

// A benchDoc is what `gp bench` prints as JSON.
type benchDoc struct {
	Version int           `json:"version"`
	Bench   string        `json:"bench"` // the kind
	Date    string        `json:"date"`
	Machine machineReport `json:"machine"`
	Rounds  int           `json:"rounds"` // asked for; a result's count says what it is made of
	Results []benchResult `json:"results"`
	Sweep   []sweepResult `json:"sweep,omitempty"` // copy --sweep
	Peers   []peerResult  `json:"peers,omitempty"` // peers
	// Matrices are of p2p: by GPU that sends and GPU that receives.
	Matrices []matrix    `json:"matrices,omitempty"`
	Skipped  []benchSkip `json:"skipped"`
	Notes    []string    `json:"notes"`
	// Probe is the report of gp probe, where a page was asked for.
	Probe json.RawMessage `json:"probe,omitempty"`
	Error string          `json:"error,omitempty"` // what ended the run early
	// Of the results, the fewest rounds that one is of, and the most: 0 in a
	// document that was read.
	fewest, most int
}

// merge takes in what a part of the run has come to.
func (d *benchDoc) merge(p *benchDoc) {
	d.Results = append(d.Results, p.Results...)
	d.Sweep = append(d.Sweep, p.Sweep...)
	d.Matrices = append(d.Matrices, p.Matrices...)
	d.Skipped = append(d.Skipped, p.Skipped...)
	d.Notes = append(d.Notes, p.Notes...)
	d.sampled(p.fewest, p.most)
}

// sampled notes the rounds of results.
func (d *benchDoc) sampled(fewest, most int) {
	if most > 0 {
		if d.fewest == 0 || fewest < d.fewest {
			d.fewest = fewest
		}
		d.most = max(d.most, most)
	}
}

// A benchSkip is a case that did not run.
type benchSkip struct {
	Case     string `json:"case"`
	Sentence string `json:"sentence"`
	Reason   string `json:"reason"`
}

// A benchResult is one case at one size. The fields in this order are also the
// columns of the CSV; what does not apply is null, or empty there.
//
// Bytes are what one transfer moves: one direction of a link, one copy. Where
// several run at once, each moves as many. Algbw is all of their bytes over the
// time. Busbw is what the busiest link carries in its busier direction over the
// time: for the two directions of one link half of algbw; for a copy between
// two ranks of one GPU, which crosses the GPU's link once each way, as much as
// algbw.
//
// Of a collective, bytes are the longer of a rank's buffers, algbw is they over
// the time, and busbw that times what nccl-tests (PERFORMANCE.md) multiply it
// by, which makes collectives and numbers of ranks comparable. GB/s is 1e9 bytes
// a second.
type benchResult struct {
	Op        string  `json:"op"`
	Algorithm string  `json:"algorithm"`
	Type      string  `json:"type"`
	Reduction string  `json:"reduction"`
	Ranks     int     `json:"ranks"`
	Bytes     uint64  `json:"bytes"`
	Seconds   float64 `json:"seconds"` // the median
	Algbw     float64 `json:"algbw_gb_per_s"`
	Busbw     float64 `json:"busbw_gb_per_s"`
	Wrong     uint64  `json:"wrong"` // bytes, of all samples
	Modelled  bool    `json:"modelled"`
	P5        float64 `json:"p5_seconds"`
	P95       float64 `json:"p95_seconds"`
	Count     int     `json:"count"` // samples
	Case      string  `json:"case"`
	GPUs      string  `json:"gpus"`  // "0", "0 1", "0>1", "0>1 1>0"
	Clock     string  `json:"clock"` // of seconds: "events" or "wall", from the call to done
	// The rest is null where it does not apply or was not measured.
	WallSeconds    *float64 `json:"wall_seconds"`     // beside events: from the call to done
	EnqueueSeconds *float64 `json:"enqueue_seconds"`  // of Seconds, what the calls took to return
	CPUSeconds     *float64 `json:"cpu_seconds"`      // of the process, all threads
	DriverCalls    *uint64  `json:"driver_calls"`     // to enqueue it
	ChunkBytes     *uint64  `json:"chunk_bytes"`      // of a staged copy
	ChunkAsked     *uint64  `json:"chunk_asked"`      // null: the library's own choice
	HostNode       *int     `json:"host_node"`        // the NUMA node of the host memory
	Ceiling        *float64 `json:"ceiling_gb_per_s"` // of Algbw, in the same rounds
	Ratio          *float64 `json:"ratio_to_ceiling"` // median of the rounds' ratios
	// Of collectives.
	Elements     *uint64  `json:"elements"`      // the count of nccl-tests
	InPlace      *bool    `json:"in_place"`      // null: the case has no such thing
	Asked        *string  `json:"asked"`         // "auto" where the algorithm is the library's choice
	Root         *int     `json:"root"`          // the rank
	EventSeconds *float64 `json:"event_seconds"` // beside wall: by the GPUs' events, enqueueing left out
}

// A series is one row of the result in the making: a case at a size, sampled
// once a round or more often.
type series struct {
	row    benchResult // but for what is measured
	ways   int         // transfers of row.Bytes that run at once
	bus    float64     // busbw over algbw
	sample func(context.Context, *series) error
	slots  int  // of a staged copy
	warm   bool // the samples do not count
	// unlimited: what bounds it is not the links.
	unlimited bool

	seconds, wall, enqueue, cpu []float64
	events                      []float64
	ceiling, ratio              []float64 // by round
	rounds                      []float64 // the round's median of seconds
	wrong                       uint64
}

// add takes a round's samples. ceiling is that of algbw in bytes a second, 0
// for none.
func (s *series) add(seconds, wall, enqueue, cpu []float64, ceiling float64) {
	if s.warm {
		return
	}
	s.seconds = append(s.seconds, seconds...)
	s.wall = append(s.wall, wall...)
	s.enqueue = append(s.enqueue, enqueue...)
	s.cpu = append(s.cpu, cpu...)
	m := quantile(seconds, 0.5)
	s.rounds = append(s.rounds, m)
	if ceiling > 0 && !s.unlimited {
		s.ceiling = append(s.ceiling, ceiling)
		s.ratio = append(s.ratio, s.payload()/m/ceiling)
	}
}

func (s *series) payload() float64 { return float64(s.ways) * float64(s.row.Bytes) }

func (s *series) result(modelled bool) benchResult {
	r := s.row
	r.Modelled, r.Wrong, r.Count = modelled, s.wrong, len(s.seconds)
	r.Seconds, r.P5, r.P95 = quantile(s.seconds, 0.5), quantile(s.seconds, 0.05), quantile(s.seconds, 0.95)
	if r.Seconds > 0 {
		r.Algbw = s.payload() / r.Seconds / 1e9
		r.Busbw = r.Algbw * s.bus
	}
	of := func(v []float64, unit float64) *float64 {
		if len(v) == 0 {
			return nil
		}
		m := quantile(v, 0.5) / unit
		return &m
	}
	r.WallSeconds, r.EnqueueSeconds, r.CPUSeconds = of(s.wall, 1), of(s.enqueue, 1), of(s.cpu, 1)
	r.EventSeconds = of(s.events, 1)
	r.Ceiling, r.Ratio = of(s.ceiling, 1e9), of(s.ratio, 1)
	return r
}

// quantile is the value below which the share q of v lies, interpolated between
// neighbours; 0 of none.
func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Clone(v)
	slices.Sort(v)
	at := q * float64(len(v)-1)
	i := int(at)
	if i+1 >= len(v) {
		return v[len(v)-1]
	}
	return v[i] + (v[i+1]-v[i])*(at-float64(i))
}

// report writes the document out, and is the run's verdict.
func (b *bench) report(err error) error {
	saved := b.closeFiles(true)
	var out error
	switch {
	case b.json:
		out = writeJSON(b.stdout, &b.doc)
	case b.csv:
		out = writeCSV(b.stdout, b.doc.Results)
	default:
		out = writeBench(b.stdout, &b.doc)
	}
	if err := errors.Join(err, saved, out); err != nil {
		return err
	}
	bad := 0
	for _, r := range b.doc.Results {
		if r.Wrong > 0 {
			bad++
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d results moved wrong data", bad, len(b.doc.Results))
	}
	return nil
}

// An outputFile is one that a run leaves beside its output.
type outputFile struct {
	flag, name string
	*os.File
	write func(io.Writer) error
}

// openFiles opens the files of --save and --html without touching what they hold.
func (b *bench) openFiles() error {
	b.files = [2]outputFile{
		{flag: "--save", name: b.save, write: func(w io.Writer) error { return writeJSON(w, &b.doc) }},
		{flag: "--html", name: b.html, write: func(w io.Writer) error { return writePage(w, &b.doc, b.verdicts) }},
	}
	for i := range b.files {
		f := &b.files[i]
		if f.name == "" {
			continue
		}
		var err error
		if f.File, err = os.OpenFile(f.name, os.O_WRONLY|os.O_CREATE, 0o666); err != nil {
			f.File = nil
			return joined(fmt.Errorf("%s: %w", f.flag, err), b.closeFiles(false))
		}
	}
	return nil
}

// closeFiles writes the files. A run that has nothing to write leaves a file as
// it was, and takes an empty one away.
func (b *bench) closeFiles(write bool) error {
	var errs []error
	for i := range b.files {
		f := &b.files[i]
		if f.File == nil {
			continue
		}
		var err error
		if write {
			if err = f.Truncate(0); err == nil || !isRegular(f.File) {
				err = f.write(f.File)
			}
		} else if i, e := f.Stat(); e == nil && i.Mode().IsRegular() && i.Size() == 0 {
			defer os.Remove(f.name)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.flag, err))
		}
		f.File = nil
	}
	return joined(errs...)
}

func isRegular(f *os.File) bool {
	i, err := f.Stat()
	return err == nil && i.Mode().IsRegular()
}

// writeCSV writes a header and one record a result.
func writeCSV(w io.Writer, results []benchResult) error {
	out := csv.NewWriter(w)
	if err := out.Write(csvColumns()); err != nil {
		return err
	}
	for i := range results {
		v := reflect.ValueOf(&results[i]).Elem()
		record := make([]string, v.NumField())
		for k := range record {
			record[k] = csvField(v.Field(k))
		}
		if err := out.Write(record); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

func csvColumns() []string {
	t := reflect.TypeFor[benchResult]()
	names := make([]string, t.NumField())
	for i := range names {
		names[i] = t.Field(i).Tag.Get("json")
	}
	return names
}

func csvField(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return ""
		}
		v = v.Elem()
	}
	if v.Kind() == reflect.Float64 {
		return strconv.FormatFloat(v.Float(), 'g', -1, 64)
	}
	return fmt.Sprint(v.Interface())
}

// writeBench writes the document for people.
func writeBench(w io.Writer, d *benchDoc) error {
	m := &d.Machine
	if m.Modelled {
		fmt.Fprintf(w, "simulated machine %s (%s), every figure is modelled", m.Name, inShort(m.GPUs))
	} else {
		fmt.Fprintf(w, "%s, driver %s", m.Name, m.Driver)
	}
	if m.Note != "" {
		fmt.Fprintf(w, ": %s", m.Note)
	}
	fmt.Fprint(w, "\n")
	writeTables(w, d)
	if len(d.Sweep) > 0 {
		fmt.Fprint(w, "\n")
		writeSweep(w, d)
	}
	if len(d.Peers) > 0 {
		fmt.Fprint(w, "\n")
		writePeers(w, d)
	}
	for _, s := range d.Skipped {
		fmt.Fprintf(w, "\nnot here: %s (%s): %s", s.Case, s.Sentence, s.Reason)
	}
	if len(d.Skipped) > 0 {
		fmt.Fprint(w, "\n")
	}
	for _, n := range d.Notes {
		fmt.Fprintf(w, "\nnote: %s\n", n)
	}
	if d.Error == "" && len(d.Results) > 0 {
		_, err := fmt.Fprintf(w, "\n%d results, %s; %s\n", len(d.Results), d.Medians(), verifiedPhrase(d))
		return err
	}
	return nil
}

// Medians says of what the figures are.
func (d *benchDoc) Medians() string {
	fewest, most := d.fewest, d.most
	if most == 0 {
		fewest, most = d.Rounds, d.Rounds
	}
	switch {
	case most == 1:
		return "each of one round"
	case fewest < most:
		return fmt.Sprintf("medians of %d to %d rounds", fewest, most)
	}
	return fmt.Sprintf("medians of %d rounds", most)
}

func verifiedPhrase(d *benchDoc) string {
	for _, r := range d.Results {
		if r.Wrong > 0 {
			return "WRONG DATA, see above"
		}
	}
	return "every byte verified"
}

// writeTables writes the results: those of collectives as nccl-tests do, those
// of pairs as matrices, and the others one a line.
func writeTables(w io.Writer, d *benchDoc) {
	var others []benchResult
	for _, r := range d.Results {
		if r.Elements == nil && !strings.HasPrefix(r.Case, "p2p.") {
			others = append(others, r)
		}
	}
	if len(others) > 0 {
		fmt.Fprint(w, "\n")
		writeBenchTable(w, others)
	}
	writeMatrices(w, d)
	writeCollectives(w, d)
}

func writeBenchTable(w io.Writer, results []benchResult) {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(out, "case\tGPUs\tnode\tbytes\tchunk\ttime\tp5\tp95\twall\tenqueue\tCPU\tcalls\tn\talgbw\tbusbw\tceiling\tof it\twrong\t\t\n")
	fmt.Fprint(out, "\t\t\t\t\tus\tus\tus\tus\tus\tus\t\t\tGB/s\tGB/s\tGB/s\t\tbytes\t\t\n")
	for i := range results {
		r := &results[i]
		label := ""
		if r.Modelled {
			label = strings.TrimSpace(modelledLabel)
		}
		wall := r.WallSeconds
		if r.Clock == "wall" {
			wall = &r.Seconds
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%.3f\t%.3f\t%s\t%s\t%d\t%s\t\n",
			r.Case, r.GPUs, optional(r.HostNode), formatSize(r.Bytes), chunkField(r), microseconds(&r.Seconds), microseconds(&r.P5), microseconds(&r.P95),
			microseconds(wall), microseconds(r.EnqueueSeconds), microseconds(r.CPUSeconds), optional(r.DriverCalls), r.Count,
			r.Algbw, r.Busbw, decimals(r.Ceiling, 3), decimals(r.Ratio, 3), r.Wrong, label)
	}
	out.Flush()
}

// chunkField marks a chunk that was asked for, rather than chosen.
func chunkField(r *benchResult) string {
	switch {
	case r.ChunkAsked != nil:
		return "=" + formatSize(*r.ChunkAsked)
	case r.ChunkBytes != nil:
		return formatSize(*r.ChunkBytes)
	}
	return "-"
}

func optional[T any](p *T) string {
	if p == nil {
		return "-"
	}
	return fmt.Sprint(*p)
}

func microseconds(p *float64) string {
	if p == nil {
		return "-"
	}
	us := *p * 1e6
	if math.Abs(us) < 1000 {
		return strconv.FormatFloat(us, 'f', 2, 64)
	}
	return strconv.FormatFloat(us, 'f', 0, 64)
}

func decimals(p *float64, n int) string {
	if p == nil {
		return "-"
	}
	return strconv.FormatFloat(*p, 'f', n, 64)
}
