// SPDX-License-Identifier: Apache-2.0

// Command modelled writes docs/modelled.md: what the simulator expects of machines
// that nobody has measured with this library, as a range over what is not known of
// them, beside figures that others have published of such machines.
//
//	go run ./bench/modelled                write it: some minutes, and 2 GiB of memory
//	go run ./bench/modelled -most 1048576  print it for messages of up to so many bytes
//
// Nothing of it was measured. Time is the simulator's, so a run gives the same
// figures on any host.
package main

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
)

func main() {
	most := flag.Int("most", 0, "print what there is for messages of up to so many `BYTES`, and write nothing (0: all, and write it)")
	root := flag.String("root", ".", "the repository's `FOLDER`")
	flag.Parse()
	if err := run(*root, *most); err != nil {
		fmt.Fprintln(os.Stderr, "modelled:", err)
		os.Exit(1)
	}
}

func run(root string, most int) error {
	limit := most
	if most == 0 {
		limit = math.MaxInt
	}
	text, err := document(limit)
	if err != nil {
		return err
	}
	if most > 0 {
		_, err = fmt.Print(text)
		return err
	}
	name := filepath.Join(root, "docs", "modelled.md")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		return err
	}
	fmt.Println("wrote", name)
	return nil
}

// A published time is of nccl-tests on the machine of blog.chlc.cc, all_reduce out
// of place of float32 on eight GPUs, in microseconds: with P2P denied by the driver
// and with the patched kernel module.
type published struct {
	bytes           int
	denied, patched float64
}

var nccl = []published{
	{8, 38.83, 38.82},
	{64 << 10, 45.66, 47.58},
	{1 << 20, 222.8, 216.1},
	{16 << 20, 1972.8, 1472.8},
	{128 << 20, 16253, 11382},
}

// The algorithms whose columns there are; auto is the library's choice.
var columns = []gp.Algorithm{gp.AlgorithmAuto, gp.AlgorithmOneShot, gp.AlgorithmTwoShot, gp.AlgorithmDirect, gp.AlgorithmRing, gp.AlgorithmRingZeroCopy}

// A variant is what may be true of a machine.
type variant struct {
	duplex float64 // what a link carries both ways at once, of the sum of both one-way rates
	memory float64 // what DMA reaches of the peak of a node's memory
}

var variants = []variant{{0.6, 0.6}, {0.6, 0.8}, {0.8, 0.6}, {0.8, 0.8}, {1, 0.6}, {1, 0.8}}

// spec is a built-in machine as the variant has it.
func (v variant) spec(name string) (sim.Spec, error) {
	s, err := sim.Builtin(name)
	if err != nil {
		return sim.Spec{}, err
	}
	for i := range s.GPUs {
		s.GPUs[i].Duplex = sim.Figure{Value: v.duplex, Unit: "of d2h + h2d", Source: "a variant"}
	}
	for i := range s.Host.Nodes {
		m := &s.Host.Nodes[i].Memory
		*m = sim.Figure{Value: m.Value * v.memory, Unit: m.Unit, Source: "a variant"}
	}
	return s, nil
}

// A span is the least and the greatest of what the variants give.
type span struct{ least, most float64 }

func (s *span) add(v float64) {
	if s.most == 0 || v < s.least {
		s.least = v
	}
	s.most = max(s.most, v)
}

// text is the span, greater first if the worse end is the greater.
func (s span) text(format func(float64) string, worse float64) string {
	if s.most == 0 {
		return ""
	}
	a, b := format(s.least), format(s.most)
	switch {
	case a == b:
		return a
	case worse > 0:
		return b + " to " + a
	}
	return a + " to " + b
}

func micros(s float64) string {
	switch us := s * 1e6; {
	case us >= 1000:
		return fmt.Sprintf("%.0f", us)
	default:
		return fmt.Sprintf("%.1f", us)
	}
}

func rate(v float64) string { return fmt.Sprintf("%.1f", v/1e9) }

func size(n int) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

// document is the page, with messages of up to so many bytes.
func document(limit int) (string, error) {
	var b strings.Builder
	b.WriteString(intro)

	b.WriteString("## all_reduce on 8x4090, modelled\n\n")
	b.WriteString(`Microseconds from the call to the end of the wait, one process with a rank on each GPU, float32, sum, in place; worse end to better end. The last two
columns are published: nccl-tests on that machine (blog.chlc.cc, -g 8, out of place), stock driver and patched kernel module.

`)
	fmt.Fprint(&b, "| size |")
	for _, a := range columns {
		fmt.Fprintf(&b, " %s, modelled |", name(a))
	}
	b.WriteString(" NCCL, P2P denied, published | NCCL, patched, published |\n|---|")
	b.WriteString(strings.Repeat("---|", len(columns)+2) + "\n")
	times := map[int]map[gp.Algorithm]*span{}
	took := map[int]map[string]bool{}
	for _, v := range variants {
		if err := allReduces(v, limit, times, took); err != nil {
			return "", err
		}
	}
	for _, p := range nccl {
		if p.bytes > limit {
			continue
		}
		fmt.Fprintf(&b, "| %s |", size(p.bytes))
		for _, a := range columns {
			fmt.Fprintf(&b, " %s |", orDash(times[p.bytes][a].text(micros, 1)))
		}
		fmt.Fprintf(&b, " %s | %s |\n", micros(p.denied/1e6), micros(p.patched/1e6))
	}
	b.WriteString("\nThe same as busbw, 2(n-1)/n of the size over the time, in GB/s (1e9), of the library's choice:\n\n")
	b.WriteString("| size | auto takes | auto, modelled | NCCL, P2P denied, published | NCCL, patched, published |\n|---|---|---|---|---|\n")
	for _, p := range nccl {
		if p.bytes > limit || p.bytes < 1<<20 {
			continue
		}
		bus := func(s float64) float64 { return 1.75 * float64(p.bytes) / s }
		t := times[p.bytes][gp.AlgorithmAuto]
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", size(p.bytes), strings.Join(sorted(took[p.bytes]), ", "),
			span{bus(t.most), bus(t.least)}.text(rate, 0), rate(bus(p.denied/1e6)), rate(bus(p.patched/1e6)))
	}
	b.WriteString(conditions)

	if err := copies(&b, limit); err != nil {
		return "", err
	}
	return b.String(), nil
}

func name(a gp.Algorithm) string {
	if a == gp.AlgorithmAuto {
		return "auto"
	}
	return string(a)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// seconds is a duration as the tables count it.
func seconds(d time.Duration) float64 { return d.Seconds() }
