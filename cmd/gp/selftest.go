// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/geforce-p2p/geforce-p2p/gp"
)

// opTimeout ends an operation that hangs, together with a second for each
// hostRate bytes of all ranks: filling and comparing them is the host's work.
const (
	opTimeout = 2 * time.Minute
	hostRate  = 100e6
)

// opGrace is what an operation gets to come back after its time-out, and
// everything together after an error or a signal. Then the process ends, with
// what is known: a driver call that hangs is not waited for.
const opGrace = 10 * time.Second

// oddBytes is the small size that is run beside --bytes: no multiple of a
// vector, a page or the number of ranks.
const oddBytes = 4 * 1021

var selftestCommand = &command{
	name:     "selftest",
	synopsis: "copy, all-reduce and all-gather random data and check every byte",
	usage:    "selftest [--sim NAME [--interpret]] [--ranks N] [--bytes SIZE] [--json]",
	text: `Copies between ranks in every direction, one way and both ways at once,
all-reduces and all-gathers random data, and compares every byte with a
reference computed on the host. Prints one line an operation.

It runs on the GPUs of this machine, one rank each; a single GPU serves two
ranks. Without a GPU it runs on the simulated machine ` + defaultSim + `, whose figures
are a model's and are labelled so. Exits 0 only if everything was verified.

With --interpret the simulated GPUs run the kernels' PTX, instruction by
instruction, in place of Go functions that do the same: slow, so say --bytes.

Rates are bytes over time; GB/s is 1e9 bytes a second. The bytes of an
all_reduce are one rank's buffer, those of an all_gather one rank's result.`,
	setup: func(fl *flag.FlagSet) func(context.Context, *environment) error {
		t := &selftest{size: 64 << 20}
		fl.StringVar(&t.sim, "sim", "", "run on the simulated machine `NAME`, or that of a JSON file, instead of this one (see gp help sim)")
		interpret := fl.Bool("interpret", false, "with --sim: run the kernels' PTX itself")
		fl.IntVar(&t.ranks, "ranks", 0, "use `N` ranks, 2 to 16, instead of one a GPU; they share GPUs if there are fewer")
		fl.Var(&t.size, "bytes", "the `SIZE` of the large operations: a number of bytes, KiB, MiB, GiB, KB, MB or GB")
		fl.BoolVar(&t.json, "json", false, "print one JSON document instead of text")
		return func(ctx context.Context, e *environment) error {
			ranksGiven := false
			fl.Visit(func(f *flag.Flag) { ranksGiven = ranksGiven || f.Name == "ranks" })
			if ranksGiven && (t.ranks < 2 || t.ranks > gp.MaxRanks) {
				return usagef("--ranks %d: copies and collectives need 2 to %d ranks", t.ranks, gp.MaxRanks)
			}
			if *interpret {
				if t.sim == "" {
					return usagef("--interpret is for a simulated machine: say which with --sim")
				}
				e.openSim = openInterpreted
			}
			t.environment = e
			return t.run(ctx)
		}
	},
}

// A selftest is one run of the subcommand.
type selftest struct {
	*environment
	sim   string
	ranks int
	size  byteSize
	json  bool

	machine *machine
	group   *gp.Group
	random  splitmix
	limit   time.Duration // for one operation
	grace   time.Duration
	watch   *watch

	// The operations run in a goroutine of their own, which may hang.
	mu     sync.Mutex
	report report
	failed error // what ended them, also before they have cleaned up
	gaveUp bool  // nobody waits for them any more: they write nothing
}

func (t *selftest) run(ctx context.Context) (err error) {
	t.machine, err = t.selectMachine(t.sim)
	if err != nil {
		return err
	}
	devices := t.devices()
	if err := t.fits(devices); err != nil {
		return errors.Join(err, t.machine.close())
	}
	m := &t.report.Machine
	*m = machineReport{Name: t.machine.name, GPUs: t.machine.gpus, Driver: t.machine.version, Modelled: t.machine.modelled(), Ranks: devices}
	m.Note = t.note(devices)
	if !t.json {
		t.writeFirstLine(m)
	}

	err = t.watched(ctx, devices)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.json {
		if t.report.Results == nil {
			t.report.Results = []result{}
		}
		if err != nil {
			t.report.Error = err.Error()
		}
		if e := writeJSON(t.stdout, &t.report); e != nil {
			return e
		}
	}
	if err != nil {
		return err
	}
	return t.verdict()
}

// watched runs the operations, and gives up what does not end.
func (t *selftest) watched(ctx context.Context, devices []int) error {
	t.limit, t.grace = t.environment.limit, t.environment.grace
	if t.limit == 0 {
		t.limit = opTimeout + time.Duration(float64(t.size)*float64(len(devices))/hostRate*float64(time.Second))
	}
	if t.grace == 0 {
		t.grace = opGrace
	}
	t.watch = newWatch("opening the GPUs", t.limit+t.grace)
	defer t.watch.stop()
	defer context.AfterFunc(ctx, func() { t.watch.end(t.grace) })()
	ended := make(chan error, 1)
	go func() {
		err := t.operations(ctx, devices)
		t.watch.next("closing the machine", t.grace)
		ended <- errors.Join(err, t.machine.close())
	}()
	select {
	case err := <-ended:
		return err
	case <-t.watch.out:
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gaveUp = true
	if t.failed == nil {
		t.failed = ctx.Err()
	}
	step, given := t.watch.at()
	return errors.Join(t.failed, fmt.Errorf("given up after %v: %s does not end", given, step))
}

// begin starts the time of an operation.
func (t *selftest) begin(ctx context.Context, what string) (context.Context, context.CancelFunc) {
	t.watch.next(what, t.limit+t.grace)
	return context.WithTimeout(ctx, t.limit)
}

// fail notes what ends the run, before anything is cleaned up.
func (t *selftest) fail(err error) {
	if err == nil {
		return
	}
	t.watch.end(t.grace)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed == nil {
		t.failed = err
	}
}

// devices is the GPU of each rank: one rank a GPU unless --ranks says otherwise,
// and two where there is a single GPU.
func (t *selftest) devices() []int {
	n := t.ranks
	if n == 0 {
		n = min(max(2, len(t.machine.gpus)), gp.MaxRanks)
	}
	devices := make([]int, n)
	for i := range devices {
		devices[i] = i % len(t.machine.gpus)
	}
	return devices
}

func (t *selftest) note(devices []int) string {
	note := t.machine.note
	if g := len(t.machine.gpus); g < len(devices) {
		if note != "" {
			note += "; "
		}
		note += fmt.Sprintf("%d ranks share %d GPU(s), so they share its link", len(devices), g)
	}
	return note
}

func (t *selftest) writeFirstLine(m *machineReport) {
	what := m.Name
	if m.Modelled {
		what = fmt.Sprintf("simulated machine %s (%s), every figure is modelled", m.Name, inShort(m.GPUs))
	} else {
		what += ", driver " + m.Driver
	}
	if m.Note != "" {
		what += ": " + m.Note
	}
	fmt.Fprintf(t.stdout, "%s\n", what)
}

func (t *selftest) verdict() error {
	bad := 0
	for _, r := range t.report.Results {
		if !r.Verified {
			bad++
		}
	}
	if !t.json {
		label := ""
		if t.machine.modelled() {
			label = modelledLabel
		}
		fmt.Fprintf(t.stdout, "open %.1f ms%s, first all_reduce %.1f ms%s\n", t.report.Timing.OpenSeconds*1e3, label,
			t.report.Timing.FirstAllReduceSeconds*1e3, label)
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d operations gave wrong data", bad, len(t.report.Results))
	}
	if !t.json {
		fmt.Fprintf(t.stdout, "all %d operations verified\n", len(t.report.Results))
	}
	return nil
}

// operations runs them all. Wrong data is recorded and the run goes on; an
// error ends it.
func (t *selftest) operations(ctx context.Context, devices []int) (err error) {
	log := slog.New(slog.NewTextHandler(t.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	began := time.Now()
	t.group, err = gp.Open(gp.Options{Driver: t.machine.driver, Devices: devices, AllowSameGPU: true, Logger: log})
	if err != nil {
		return err
	}
	defer func() {
		t.fail(err)
		t.watch.next("closing the group", t.limit)
		err = errors.Join(err, t.group.Close())
	}()
	open := time.Since(began)
	if t.machine.modelled() {
		open = t.group.Now() // the virtual clock stands at 0 when the machine is made
	}
	t.mu.Lock()
	t.report.Timing = &timingReport{OpenSeconds: open.Seconds()}
	if !t.json && !t.gaveUp {
		writeHeader(t.stdout)
	}
	t.mu.Unlock()

	sizes := []uint64{oddBytes, uint64(t.size)}
	// The first one is also the first all_reduce of the process.
	for _, c := range reductions {
		for _, n := range sizes {
			if err := t.allReduces(ctx, c.t, c.op, n); err != nil {
				return err
			}
		}
	}
	for _, n := range sizes {
		if err := t.allGather(ctx, n); err != nil {
			return err
		}
	}
	for _, n := range []uint64{oddBytes - 3, uint64(t.size)} {
		if err := t.copies(ctx, n); err != nil {
			return err
		}
	}
	return nil
}
