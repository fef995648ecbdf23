// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// A report is what `gp selftest --json` prints. Fields are added, never renamed.
type report struct {
	Machine machineReport `json:"machine"`
	Timing  *timingReport `json:"timing,omitempty"`
	Results []result      `json:"results"`
	Error   string        `json:"error,omitempty"` // what ended the run early
}

type machineReport struct {
	Name     string   `json:"name"`
	GPUs     []string `json:"gpus"`
	Driver   string   `json:"driver"`
	Modelled bool     `json:"modelled"` // every time below is a model's
	Note     string   `json:"note,omitempty"`
	Ranks    []int    `json:"rank_gpus,omitempty"` // by rank: the GPU's ordinal
}

// timingReport is by the machine's clock.
type timingReport struct {
	OpenSeconds           float64 `json:"open_seconds"`
	FirstAllReduceSeconds float64 `json:"first_all_reduce_seconds"` // of the process: from the call to the end of Wait
}

// A result is one operation. Bytes is what it moves: the payload of a copy (of
// both, where two run at once), the buffer of one rank in an all_reduce, the
// gathered buffer of one rank in an all_gather. GBPerS is Bytes/Seconds/1e9.
type result struct {
	Op        string  `json:"op"`
	Algorithm string  `json:"algorithm"`
	Type      string  `json:"type"`
	Reduction string  `json:"reduction"` // "" where nothing is reduced
	Ranks     int     `json:"ranks"`
	Bytes     uint64  `json:"bytes"`
	Seconds   float64 `json:"seconds"`
	GBPerS    float64 `json:"gb_per_s"`
	Verified  bool    `json:"verified"`
	Case      string  `json:"case,omitempty"`  // which ranks, of a copy
	Error     string  `json:"error,omitempty"` // why it is not verified
}

// took fills in what follows from the time of the operation.
func (r *result) took(d time.Duration) {
	r.Seconds = d.Seconds()
	if d > 0 {
		r.GBPerS = float64(r.Bytes) / r.Seconds / 1e9
	}
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	return enc.Encode(v)
}

// modelledLabel follows each figure of a simulated machine.
const modelledLabel = " modelled"

const resultFormat = "%-10s %-14s %-8s %-4s %5s %12s  %-22s %-24s %s\n"

func writeHeader(w io.Writer) {
	fmt.Fprintf(w, resultFormat, "op", "algorithm", "type", "red", "ranks", "bytes", "time", "rate", "verified")
}

func writeResult(w io.Writer, r *result, modelled bool) {
	label := ""
	if modelled {
		label = modelledLabel
	}
	red := r.Reduction
	if red == "" {
		red = "-"
	}
	verified := "yes"
	if !r.Verified {
		verified = "NO: " + r.Error
	}
	if r.Case != "" {
		verified += " (" + r.Case + ")"
	}
	fmt.Fprintf(w, resultFormat, r.Op, r.Algorithm, r.Type, red, fmt.Sprint(r.Ranks), fmt.Sprint(r.Bytes),
		fmt.Sprintf("%.1f us%s", r.Seconds*1e6, label), fmt.Sprintf("%.3f GB/s%s", r.GBPerS, label), verified)
}
