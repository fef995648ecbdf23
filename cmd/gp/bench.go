// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
	"github.com/geforce-p2p/geforce-p2p/probe"
)

var benchCommand = &command{
	name:     "bench",
	synopsis: "measure links, copies and collectives, verified, with the ceilings of the same run",
	usage:    "bench [KIND] [FLAGS]",
	text: `Measures on the GPUs of this machine, or on a simulated one, whose figures are a model's and are labelled so.
Every byte that is moved is random, and is compared where it arrives; the destination is filled with a value
that is not in the data before. What is compared with each other is measured in rounds that take turns, and a
figure is the median of all samples, beside the 5th and the 95th of 100.

Without a KIND it measures what says most about a host, in under three minutes: links, copies, the pairs of
GPUs, and collectives, on one GPU with ranks that share it. It takes the flags --sim, --gpus, --rounds,
--time, --json, --csv, --save and --html.

gp bench KIND --help tells of a kind. The kinds:`,
	operands: true,
	kinds:    benchKindCommands,
	setup:    setupDefaultBench,
}

var benchKindCommands = slices.Concat([]*command{benchLinkCommand, benchCopyCommand, benchP2PCommand}, benchCollectiveCommands,
	[]*command{benchPeersCommand, benchDiffCommand, benchListCommand})

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
	{"p2p", p2pCases},
	{"collectives", collectiveCases},
	{"peers", peerCases},
}

// A bench is one run of a kind, or one part of a run of several.
type bench struct {
	*environment
	benchOptions
	machine  *machine
	devices  []cuda.Device
	doc      benchDoc
	began    time.Time
	deadline time.Time // of --time, zero for none
	share    string    // what the deadline is for, where it is not the run
	round    int       // that is being taken, 0 is the one of warming up
	random   splitmix
	host     api.Host
	watch    *watch
	progress *progress      // nil: none is shown
	verdicts *probe.Report  // for the page
	closers  []func() error // in the order of their making
	files    [2]outputFile  // of --save and --html
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
	if err := b.openFiles(); err != nil {
		return err
	}
	if b.machine, err = b.selectMachine(b.sim); err != nil {
		return joined(err, b.closeFiles(false))
	}
	if b.machine.modelled() && !b.counted && b.rounds == defaultRounds {
		b.rounds = defaultRoundsModelled
	}
	if b.atMost > 0 {
		b.deadline = b.began.Add(b.atMost)
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

// free frees what was made, last first.
func (b *bench) free() error {
	var errs []error
	for i := len(b.closers) - 1; i >= 0; i-- {
		errs = append(errs, b.closers[i]())
	}
	b.closers = nil
	return errors.Join(errs...)
}

// close frees what was made, and the machine.
func (b *bench) close() error { return errors.Join(b.free(), b.machine.close()) }

// closing has something closed at the end of the run.
func closing[T interface{ Close() error }](b *bench, v T, err error) (T, error) {
	if err == nil {
		b.closers = append(b.closers, v.Close)
	}
	return v, err
}

// A phase prepares and returns its series, which then take turns for some rounds.
type phase = func(context.Context) ([]*series, error)

// A part is a bench of a run, with its phases. finish, unless nil, sums up.
type part struct {
	*bench
	title  string
	weight float64 // its share of --time
	phases []phase
	finish func(*benchDoc)
	series []*series
}

// part is a bench that is to be one of the run of b: on its machine, with
// options, series and notes of its own.
func (b *bench) part(kind string) *bench {
	c := &bench{environment: b.environment, benchOptions: b.benchOptions, machine: b.machine, devices: b.devices, host: b.host, random: splitmix(b.random.next())}
	c.doc.Bench, c.doc.Rounds = kind, b.rounds
	return c
}

// measure runs a kind. What is measured until an error or a signal is written
// out.
func (b *bench) measure(ctx context.Context, finish func(*benchDoc), phases ...phase) error {
	return b.measureParts(ctx, []*part{{bench: b, title: b.doc.Bench, weight: 1, phases: phases, finish: finish}})
}

// measureParts runs parts one after another. Each frees what it has made before
// the next begins. Behind the end of --time no other part begins.
func (b *bench) measureParts(ctx context.Context, parts []*part) error {
	grace := b.grace
	if grace == 0 {
		grace = opGrace
	}
	b.watch, b.progress = newWatch("opening the GPUs", b.opTime(0)), newProgress(b.stderr)
	defer b.watch.stop()
	for _, p := range parts {
		p.watch, p.progress = b.watch, b.progress
	}
	defer context.AfterFunc(ctx, func() { b.watch.end(grace) })()
	ended := make(chan error, 1)
	var late []string // parts that --time left nothing for
	go func() {
		err := b.judge(ctx)
		left := 0.0
		for _, p := range parts {
			left += p.weight
		}
		for i, p := range parts {
			if err != nil {
				break
			}
			if i > 0 && !b.deadline.IsZero() && time.Now().After(b.deadline) {
				late = append(late, p.title)
				continue
			}
			if !b.deadline.IsZero() {
				// What a part does not need is the others'.
				now := time.Now()
				if p.bench != b {
					p.share = p.title
				}
				p.deadline = now.Add(time.Duration(float64(b.deadline.Sub(now)) * p.weight / left))
			}
			left -= p.weight
			b.progress.part(p.title, i, len(parts))
			err = p.run(ctx)
			if p.bench != b {
				err = errors.Join(err, p.free())
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
		b.progress.end()
		step, given := b.watch.at()
		return errors.Join(ctx.Err(), b.closeFiles(false), fmt.Errorf("given up after %v: %s does not end", given, step))
	}
	b.progress.end()
	for _, p := range parts {
		for _, s := range p.series {
			if len(s.seconds) > 0 {
				p.doc.Results = append(p.doc.Results, s.result(b.machine.modelled()))
				p.doc.sampled(len(s.rounds), len(s.rounds))
			}
		}
		if p.finish != nil {
			p.finish(&p.doc)
		}
		if p.bench != b {
			b.doc.merge(&p.doc)
		}
	}
	if len(late) > 0 {
		b.note("--time %v was over before the turn of %s", b.atMost, strings.Join(late, ", "))
	}
	if err != nil {
		b.doc.Error = err.Error()
	}
	return b.report(err)
}

// run does the phases of a part.
func (p *part) run(ctx context.Context) error {
	for _, prepare := range p.phases {
		some, err := prepare(ctx)
		if err == nil {
			p.series = append(p.series, some...)
			err = p.rotate(ctx, some)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rotate samples all series in turn: a round of warming up, and then those that
// count, every other one backwards. --time ends it between two rounds, once each
// series has a sample.
func (b *bench) rotate(ctx context.Context, all []*series) error {
	if len(all) == 0 {
		return nil
	}
	order := slices.Clone(all)
	took := make(map[*series]time.Duration, len(all))
	left := time.Duration(-1) // not known before the first round
	for round := range b.rounds + 1 {
		b.round = round
		for i, s := range order {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("interrupted: %w", err)
			}
			b.step(fmt.Sprintf("%s of %d bytes", s.row.Case, s.row.Bytes), 4*s.row.Bytes*uint64(max(s.row.Ranks, 1)))
			if round > 0 {
				left = 0
				for k, o := range order {
					rounds := b.rounds - round
					if k >= i {
						rounds++
					}
					left += time.Duration(rounds) * took[o]
				}
			}
			b.progress.at(round*len(order)+i, (b.rounds+1)*len(order), fmt.Sprintf("%s %s", s.row.Case, formatSize(s.row.Bytes)), b.until(left))
			s.warm = round == 0
			began := time.Now()
			if err := s.sample(ctx, s); err != nil {
				if ctx.Err() != nil {
					return fmt.Errorf("interrupted: %w", ctx.Err())
				}
				return fmt.Errorf("%s, %s: %w", s.row.Case, formatSize(s.row.Bytes), err)
			}
			took[s] = time.Since(began)
		}
		// So that none always follows the same one.
		slices.Reverse(order)
		if !b.deadline.IsZero() && round > 0 && round < b.rounds && time.Now().After(b.deadline) {
			b.noteTime(round)
			return nil
		}
	}
	return nil
}

// until is the time left where a deadline may come first.
func (b *bench) until(left time.Duration) time.Duration {
	if b.deadline.IsZero() {
		return left
	}
	d := max(time.Until(b.deadline), 0)
	if left < 0 {
		return d
	}
	return min(left, d)
}

func (b *bench) noteTime(round int) {
	if b.share != "" {
		b.note("its share of --time %v is over: %d of %d rounds were done of %s", b.atMost, round, b.rounds, b.share)
		return
	}
	b.note("--time %v is over: %d of %d rounds were done of %s", b.atMost, round, b.rounds, b.doc.Bench)
}

// judge has the probe look at the machine, for the page.
func (b *bench) judge(ctx context.Context) error {
	if b.html == "" {
		return nil
	}
	b.step("asking why P2P is off", 0)
	p := &probeRun{}
	if b.machine.modelled() {
		if p.sim = b.sim; p.sim == "" {
			p.sim = defaultSim
		}
	}
	f, _, done, err := p.collect(ctx, b.environment)
	if err == nil {
		var masked *probe.Facts
		if masked, err = f.Masked(); err == nil {
			b.verdicts = probe.Diagnose(masked, nil)
		}
		err = errors.Join(err, done())
	}
	if err == nil {
		b.doc.Probe, err = json.Marshal(b.verdicts)
	}
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted: %w", ctx.Err())
		}
		b.note("the probe has no verdicts: %v", err)
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
