// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const simUsage = "run on the simulated machine `NAME`, or that of a JSON file, instead of this one (see gp help sim)"

// benchOptions are the flags that the kinds share.
type benchOptions struct {
	sim        string
	sizes      sizeList // of --bytes, or of the range
	begin, end byteSize
	factor     int
	rounds     int
	atMost     time.Duration // of --time
	json, csv  bool
	save, html string
	gpus       intList
	ranged     bool // -b, -e or -f was given
	counted    bool // --rounds was given
	chosen     bool // the sizes are the user's, not the kind's own
	keepSizes  bool // they are of a run of several kinds, and in place
}

// declare puts the shared flags on fl. sizes are the kind's own, for the help.
func (o *benchOptions) declare(fl *flag.FlagSet, sizes string) {
	o.declareRun(fl)
	fl.Var(&o.sizes, "bytes", "the `SIZES` to measure, separated by commas, such as 4KiB,1MiB (default "+sizes+")")
	fl.Var(&o.begin, "b", "instead of --bytes, a range: its first `SIZE`")
	fl.Var(&o.end, "e", "the `SIZE` at which the range ends")
	fl.IntVar(&o.factor, "f", 2, "the `FACTOR` from a size of the range to the next")
	o.declareOutput(fl)
}

// declareRun puts those of them on fl that say where and how long to measure.
func (o *benchOptions) declareRun(fl *flag.FlagSet) {
	fl.StringVar(&o.sim, "sim", "", simUsage)
	fl.IntVar(&o.rounds, "rounds", defaultRounds, "sample everything in turn `N` times, after a round that does not count; on a simulated machine it is 2 unless given")
	fl.Var((*timeSpan)(&o.atMost), "time", "stop behind the round in which this much `TIME` is over, such as 30s (0: do all rounds)")
}

// declareOutput puts those of them on fl that say what becomes of the figures,
// and for which GPUs they are.
func (o *benchOptions) declareOutput(fl *flag.FlagSet) {
	fl.BoolVar(&o.json, "json", false, "print one JSON document instead of text")
	fl.BoolVar(&o.csv, "csv", false, "print comma-separated values instead of text")
	fl.StringVar(&o.save, "save", "", "also write the JSON document to `FILE`")
	fl.StringVar(&o.html, "html", "", "also write a page with charts to `FILE`, which needs nothing beside itself")
	fl.Var(&o.gpus, "gpus", "use only these `GPUS`: ordinals separated by commas")
}

const (
	defaultRounds = 7
	// On a simulated machine one round is like the other.
	defaultRoundsModelled = 2
	maxRounds             = 10_000
	maxSizes              = 64
)

// given notes which of the flags were set.
func (o *benchOptions) given(fl *flag.FlagSet) {
	fl.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "b", "e", "f":
			o.ranged = true
		case "rounds":
			o.counted = true
		}
	})
}

// check refuses what cannot be right, before anything is opened, and makes the
// sizes of a range.
func (o *benchOptions) check() error {
	if o.rounds < 1 || o.rounds > maxRounds {
		return usagef("--rounds %d: 1 to %d", o.rounds, maxRounds)
	}
	if o.atMost < 0 {
		return usagef("--time %v is negative", o.atMost)
	}
	if o.json && o.csv {
		return usagef("--json and --csv are two formats: choose one")
	}
	if o.html != "" && o.html == o.save {
		return usagef("--save and --html name the same file")
	}
	o.chosen = len(o.sizes) > 0 || o.ranged
	if !o.ranged {
		return nil
	}
	switch {
	case len(o.sizes) > 0:
		return usagef("--bytes lists sizes and -b, -e and -f make a range: choose one")
	case o.begin == 0 || o.end == 0:
		return usagef("a range has a first size and a last one: -b and -e")
	case o.end < o.begin:
		return usagef("the range ends at %s, before it begins at %s", formatSize(uint64(o.end)), formatSize(uint64(o.begin)))
	case o.factor < 2:
		return usagef("-f %d: a range grows by a factor of at least 2", o.factor)
	}
	for n := uint64(o.begin); n <= uint64(o.end); n *= uint64(o.factor) {
		o.sizes = append(o.sizes, n)
		if n > uint64(o.end)/uint64(o.factor) {
			break
		}
	}
	return nil
}

// chooseGPUs answers the ordinals of --gpus, or all.
func (b *bench) chooseGPUs() ([]int, error) {
	if b.gpus == nil {
		all := make([]int, len(b.devices))
		for i := range all {
			all[i] = i
		}
		return all, nil
	}
	for i, n := range b.gpus {
		if n < 0 || n >= len(b.devices) {
			return nil, usagef("--gpus %d: the machine has %d GPUs, from 0", n, len(b.devices))
		}
		for _, m := range b.gpus[:i] {
			if m == n {
				return nil, usagef("--gpus names GPU %d twice", n)
			}
		}
	}
	return b.gpus, nil
}

// sizeList is sizes as a flag: "4KiB,1MiB".
type sizeList []uint64

func (l *sizeList) String() string {
	words := make([]string, len(*l))
	for i, n := range *l {
		words[i] = formatSize(n)
	}
	return strings.Join(words, ",")
}

func (l *sizeList) Set(v string) error {
	*l = nil
	for word := range strings.SplitSeq(v, ",") {
		n, err := parseSize(strings.TrimSpace(word))
		if err != nil {
			return fmt.Errorf("%q: %w", word, err)
		}
		*l = append(*l, n)
	}
	if len(*l) > maxSizes {
		return fmt.Errorf("%d sizes: at most %d", len(*l), maxSizes)
	}
	return nil
}

// most is the largest size.
func (l sizeList) most() (most uint64) {
	for _, n := range l {
		most = max(most, n)
	}
	return most
}

// intList is numbers as a flag: "0,1".
type intList []int

func (l *intList) String() string { return strings.ReplaceAll(ordinals(*l), " ", ",") }

func (l *intList) Set(v string) error {
	*l = nil
	for word := range strings.SplitSeq(v, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil {
			return fmt.Errorf("%q is no number", word)
		}
		*l = append(*l, n)
	}
	return nil
}
