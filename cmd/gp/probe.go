// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/probe"
	"github.com/geforce-p2p/geforce-p2p/probe/nvml"
	"github.com/geforce-p2p/geforce-p2p/probe/nvml/nvmlsim"
)

// Exit codes of probe beside the common ones.
const (
	exitLost     = 3 // a GPU is lost; the others were judged
	exitUnusable = 4 // CUDA could not be asked: no driver, none that works, or no GPU
	exitBadLink  = 5 // a pair claims P2P and a checked transfer failed
)

// codedError is a failure with an exit code of its own.
type codedError struct {
	code int
	error
}

func (e codedError) Unwrap() error { return e.error }

var probeCommand = &command{
	name:     "probe",
	synopsis: "say for every pair of GPUs why P2P is off, and what would turn it on",
	usage:    "probe [--json] [--verify] [--save FILE] [--facts FILE | --sim NAME] [--branches FILE]",
	text: `Reads what CUDA, NVML, /proc, /sys and the device nodes tell, and judges each pair of GPUs in both
directions: on, off and for what reasons, or unknown and what could not be read. For each cause it says what
to do and what not to do, and whether the driver patch of PATCH.md would likely turn P2P on. It changes
nothing. Run it as root to see everything: PCI bridges hide their ACS bits from others.

--verify makes a checked one-way transfer each way for pairs that claim P2P, in a process of its own that is
given up if it hangs. On a broken platform such a transfer can hang the machine: save your work first.

It exits 0 if it could judge (whatever the verdict), 3 if a GPU is lost, 4 if CUDA could not be asked (CUDA
missing or not working, with NVML or without; NVML missing alone is no failure) or there is no GPU, 5 if a
checked transfer failed, 1 if the command itself failed and 2 if it was called wrongly.`,
	setup: func(fl *flag.FlagSet) func(context.Context, *environment) error {
		var p probeRun
		fl.BoolVar(&p.json, "json", false, "write the report as JSON")
		fl.StringVar(&p.facts, "facts", "", "judge the facts in `FILE`, which another machine's --save wrote, instead of this machine")
		fl.StringVar(&p.save, "save", "", "write the facts to `FILE`, with serial numbers and UUIDs masked")
		fl.BoolVar(&p.verify, "verify", false, "check pairs that claim P2P by a transfer")
		p.each = probe.DefaultTransferTime
		fl.Var((*timeSpan)(&p.each), "verify-time", "how much `TIME` one checked transfer may take")
		fl.StringVar(&p.branches, "branches", "", "read the published patch branches from `FILE` instead of the built-in table")
		fl.StringVar(&p.sim, "sim", "", "probe the simulated machine `NAME`, or that of a JSON file (see gp help sim)")
		return p.run
	},
}

// probeRun is one call of the subcommand.
type probeRun struct {
	json, verify               bool
	facts, save, branches, sim string
	each                       time.Duration
}

func (p *probeRun) run(ctx context.Context, e *environment) error {
	if os.Getenv(verifyChildVariable) != "" {
		return verifyChild(ctx, e, os.Stdin)
	}
	switch {
	case p.facts != "" && p.verify:
		return usagef("--verify checks this machine, and --facts is about another")
	case p.facts != "" && p.sim != "":
		return usagef("--facts and --sim are two machines")
	case p.each <= 0:
		return usagef("--verify-time must be more than nothing")
	}
	branches, err := p.table()
	if err != nil {
		return err
	}
	began := time.Now()
	f, verify, done, err := p.collect(ctx, e)
	if err != nil {
		return err
	}
	took := time.Since(began)
	if p.verify {
		err = verify()
	}
	if err := errors.Join(err, done()); err != nil {
		return err
	}
	if p.save != "" {
		if err := saveFacts(p.save, f); err != nil {
			return err
		}
	}

	r := probe.Diagnose(f, branches)
	if p.json {
		err = r.WriteJSON(e.stdout)
	} else {
		if err = r.WriteText(e.stdout); err == nil && p.facts == "" {
			_, err = fmt.Fprintf(e.stdout, "\nread in %d ms, the start of the libraries included\n", took.Milliseconds())
		}
	}
	if err != nil {
		return err
	}
	return verdictError(r)
}

// table is the branches to advise from, nil for the built-in ones.
func (p *probeRun) table() (*probe.Branches, error) {
	if p.branches == "" {
		return nil, nil
	}
	file, err := os.Open(p.branches)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b, err := probe.LoadBranches(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.branches, err)
	}
	return b, nil
}

// collect gets the facts, and what checks their pairs by transfers.
func (p *probeRun) collect(ctx context.Context, e *environment) (f *probe.Facts, verify, done func() error, err error) {
	done = func() error { return nil }
	if p.facts != "" {
		file, err := os.Open(p.facts)
		if err != nil {
			return nil, nil, nil, err
		}
		defer file.Close()
		if f, err = probe.Load(file); err != nil {
			return nil, nil, nil, fmt.Errorf("%s: %w", p.facts, err)
		}
		return f, nil, done, nil
	}
	collect := e.collect
	if collect == nil {
		collect = probe.Collect
	}
	var d *cuda.Driver
	var library nvml.Source
	if p.sim != "" {
		s, err := sim.Load(p.sim)
		if err != nil {
			return nil, nil, nil, simError(p.sim, err)
		}
		library = nvmlsim.New(s)
		if d, done, err = e.openSim(p.sim); err != nil {
			return nil, nil, nil, simError(p.sim, err)
		}
	}
	if f, err = collect(ctx, probe.Options{Driver: d, NVML: library}); err != nil {
		return nil, nil, nil, errors.Join(err, done())
	}
	verify = func() error {
		if d != nil { // a simulated machine is this process's own, and cannot hang
			return probe.Verify(ctx, d, f, p.each)
		}
		return newVerifier(e, p.each).run(ctx, f)
	}
	return f, verify, done, nil
}

func saveFacts(name string, f *probe.Facts) error {
	masked, err := f.Masked()
	if err != nil {
		return err
	}
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(probe.Save(file, masked), file.Close())
}

// verdictError is the exit code of a report that has been written out.
func verdictError(r *probe.Report) error {
	for i := range r.Pairs {
		if r.Pairs[i].State == probe.StateBad {
			return codedError{exitBadLink, errReported}
		}
	}
	switch r.Status {
	case probe.StatusLost:
		return codedError{exitLost, errReported}
	case probe.StatusUnusable:
		return codedError{exitUnusable, errReported}
	}
	return nil
}
