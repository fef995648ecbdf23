// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
)

var benchCommand = &command{
	name:     "bench",
	synopsis: "measure links and copies, verified, with the ceilings of the same run",
	usage:    "bench KIND [FLAGS]",
	text: `Measures on the GPUs of this machine, or on a simulated one, whose figures are a model's and are labelled so.
Every byte that is moved is random, and is compared where it arrives; the destination is filled with a value
that is not in the data before. What is compared with each other is measured in rounds that take turns, and a
figure is the median of all samples, beside the 5th and the 95th of 100.

gp bench KIND --help tells of a kind. The kinds:`,
	operands: true,
	kinds:    []*command{benchLinkCommand, benchCopyCommand, benchPeersCommand, benchListCommand},
	setup: func(fl *flag.FlagSet) func(context.Context, *environment) error {
		return func(context.Context, *environment) error {
			if fl.NArg() > 0 {
				return usagef("no kind %q: there are link, copy, peers and list", fl.Arg(0))
			}
			return usagef("measure what? There are link, copy, peers and list")
		}
	},
}

// A benchCase is something that can be measured. Its key stays the same from
// release to release, so that runs can be compared.
type benchCase struct {
	key      string
	sentence string
	// skip says why the case does not run here, "" if it does.
	skip func(*bench) string
}

// benchCases are all cases, by the kind that runs them.
var benchCases = []struct {
	kind  string
	cases []*benchCase
}{
	{"link", linkCases},
	{"copy", copyCases},
	{"peers", peerCases},
}

// A bench is one run of a kind.
type bench struct {
	*environment
	benchOptions
	machine *machine
	devices []cuda.Device
	doc     benchDoc
	began   time.Time
	random  splitmix
	host    api.Host
	watch   *watch
	closers []func() error // in the order of their making
	file    *os.File       // of --save
}

// opTime is what one step may take before it counts as hanging: moving and
// comparing the data is the host's work.
func (b *bench) opTime(bytes uint64) time.Duration {
	if b.limit != 0 {
		return b.limit
	}
	return opTimeout + time.Duration(float64(bytes)/hostRate*float64(time.Second))
}

// step gives the next step its time.
func (b *bench) step(what string, bytes uint64) {
	if b.watch != nil {
		b.watch.next(what, b.opTime(bytes))
	}
}

// start opens the machine. The files to write are opened first: a run must not
// end with figures that have no place.
func (b *bench) start(e *environment, kind string) (err error) {
	b.environment = e
	b.began = time.Now()
	if err := b.check(); err != nil {
		return err
	}
	if b.save != "" {
		if err := b.openSave(); err != nil {
			return err
		}
	}
	if b.machine, err = b.selectMachine(b.sim); err != nil {
		return joined(err, b.closeSave(false))
	}
	if b.devices, err = b.machine.driver.Devices(); err != nil {
		return b.giveUp(err)
	}
	b.host = hook.Seam(b.machine.driver).Host()
	m := b.machine
	b.doc = benchDoc{
		Version: benchVersion, Bench: kind, Date: b.began.UTC().Format(time.RFC3339),
		Machine: machineReport{Name: m.name, GPUs: m.gpus, Driver: m.version, Modelled: m.modelled(), Note: m.note},
		Rounds:  b.rounds, Results: []benchResult{}, Skipped: []benchSkip{}, Notes: []string{},
	}
	return nil
}

// close frees what was made, last first, and the machine.
func (b *bench) close() error {
	var errs []error
	for i := len(b.closers) - 1; i >= 0; i-- {
		errs = append(errs, b.closers[i]())
	}
	b.closers = nil
	return errors.Join(append(errs, b.machine.close())...)
}

// closing has something closed at the end of the run.
func closing[T interface{ Close() error }](b *bench, v T, err error) (T, error) {
	if err == nil {
		b.closers = append(b.closers, v.Close)
	}
	return v, err
}

// measure runs a kind. Each phase prepares and returns its series, which then
// take turns for some rounds; finish, unless nil, sums up. What is measured until
// an error or a signal is written out.
func (b *bench) measure(ctx context.Context, finish func(*benchDoc), phases ...func(context.Context) ([]*series, error)) error {
	grace := b.grace
	if grace == 0 {
		grace = opGrace
	}
	b.watch = newWatch("opening the GPUs", b.opTime(0))
	defer b.watch.stop()
	defer context.AfterFunc(ctx, func() { b.watch.end(grace) })()
	var all []*series
	ended := make(chan error, 1)
	go func() {
		var err error
		for _, prepare := range phases {
			var some []*series
			if some, err = prepare(ctx); err == nil {
				all = append(all, some...)
				err = b.rotate(ctx, some)
			}
			if err != nil {
				break
			}
		}
		b.watch.next("closing the machine", grace)
		ended <- errors.Join(err, b.close())
	}()
	var err error
	select {
	case err = <-ended:
	case <-b.watch.out:
		// The goroutine may still write to the series: nothing of them is read.
		step, given := b.watch.at()
		return errors.Join(ctx.Err(), b.closeSave(false), fmt.Errorf("given up after %v: %s does not end", given, step))
	}
	for _, s := range all {
		if len(s.seconds) > 0 {
			b.doc.Results = append(b.doc.Results, s.result(b.machine.modelled()))
		}
	}
	if finish != nil {
		finish(&b.doc)
	}
	if err != nil {
		b.doc.Error = err.Error()
	}
	return b.report(err)
}

// rotate samples all series in turn: a round of warming up, and then those that
// count, every other one backwards. --time ends it between two rounds, once each
// series has a sample.
func (b *bench) rotate(ctx context.Context, all []*series) error {
	order := slices.Clone(all)
	for round := range b.rounds + 1 {
		for _, s := range order {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("interrupted: %w", err)
			}
			b.step(fmt.Sprintf("%s of %d bytes", s.row.Case, s.row.Bytes), 4*s.row.Bytes)
			s.warm = round == 0
			if err := s.sample(ctx, s); err != nil {
				return fmt.Errorf("%s, %s: %w", s.row.Case, formatSize(s.row.Bytes), err)
			}
		}
		// So that none always follows the same one.
		slices.Reverse(order)
		if b.atMost > 0 && round > 0 && round < b.rounds && time.Since(b.began) > b.atMost {
			b.note("--time %v is over: %d of %d rounds were done", b.atMost, round, b.rounds)
			return nil
		}
	}
	return nil
}

// choose keeps the cases that run here, and notes why the others do not.
func (b *bench) choose(cases []*benchCase) (keep []*benchCase) {
	for _, c := range cases {
		if c.skip != nil {
			if why := c.skip(b); why != "" {
				b.doc.Skipped = append(b.doc.Skipped, benchSkip{c.key, c.sentence, why})
				continue
			}
		}
		keep = append(keep, c)
	}
	return keep
}

func (b *bench) note(format string, args ...any) {
	b.doc.Notes = append(b.doc.Notes, fmt.Sprintf(format, args...))
}

// now is the machine's clock, virtual on a simulated one.
func (b *bench) now() time.Duration { return b.host.Now() }

// poisonByte fills destinations. No byte of the data has this value, so a byte
// that was not written is always seen.
const poisonByte = 0xff

// data makes n random bytes, none of them poisonByte.
func (b *bench) data(n uint64) []byte {
	out := make([]byte, n)
	randomBytes(out, &b.random)
	// A word without the byte 0xff is one whose complement has no byte 0.
	const low, high = 0x0101010101010101, 0x8080808080808080
	clean := func(p []byte) {
		for i := range p {
			if p[i] == poisonByte {
				p[i] = byte(i) >> 1
			}
		}
	}
	at := 0
	for ; at+8 <= len(out); at += 8 {
		v := ^binary.LittleEndian.Uint64(out[at:])
		if (v-low)&^v&high != 0 {
			clean(out[at : at+8])
		}
	}
	clean(out[at:])
	return out
}

// poisonHost fills host memory.
func poisonHost(b []byte) {
	if len(b) == 0 {
		return
	}
	b[0] = poisonByte
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

var benchListCommand = &command{
	name:     "bench list",
	synopsis: "list the cases, and say which do not run here and why",
	usage:    "bench list [--sim NAME]",
	text:     `Lists what the other kinds measure. A case that does not run on this machine is listed with the reason.`,
	setup: func(fl *flag.FlagSet) func(context.Context, *environment) error {
		b := &bench{}
		fl.StringVar(&b.sim, "sim", "", simUsage)
		return func(_ context.Context, e *environment) error {
			b.rounds = 1
			if err := b.start(e, "list"); err != nil {
				return err
			}
			b.gpus = nil
			for _, k := range benchCases {
				for _, c := range k.cases {
					state := ""
					if c.skip != nil {
						if why := c.skip(b); why != "" {
							state = " (not here: " + why + ")"
						}
					}
					fmt.Fprintf(e.stdout, "%-22s %s%s\n", c.key, c.sentence, state)
				}
			}
			return b.close()
		}
	},
}

// ordinals is "0 1 2".
func ordinals(gpus []int) string { return strings.Trim(fmt.Sprint(gpus), "[]") }
