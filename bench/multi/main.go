// SPDX-License-Identifier: Apache-2.0

// Command multi measures a host with two GPUs or more: the library by algorithm
// with P2P denied, the driver's own staging, the links' ceilings, and NCCL over
// shared memory, all in one run, and joins them to one JSON document with the
// ratios between them:
//
//	multi -gp ./gp -peers . -time 150s -save multi.json
//	multi -gp ./gp -sim 2xh200.json -save predicted-2xh200.json
//	multi -predicted predicted-2xh200.json -measured multi.json
//
// The first is for a GPU host; folder peers holds nccl_bench.cu and .py. The
// second makes the same document on a simulated machine, whose figures are
// modelled. The third holds the two against each other.
//
// All work is done by child processes, each with a limit: the whole ends within
// -time even if one hangs, and what does not fit in is listed as skipped.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "multi:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	gp, peers, sim      string
	predicted, measured string
	save                string
	gpus                int
	limit               time.Duration
	most                uint64
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o options
	fl := flag.NewFlagSet("multi", flag.ContinueOnError)
	fl.SetOutput(stderr)
	fl.StringVar(&o.gp, "gp", "gp", "the command's `FILE`")
	fl.StringVar(&o.peers, "peers", "", "the `FOLDER` of nccl_bench.cu and nccl_bench.py; none: NCCL is left out")
	fl.StringVar(&o.sim, "sim", "", "run on the simulated machine of this `FILE`, without NCCL")
	fl.IntVar(&o.gpus, "gpus", 0, "the `NUMBER` of GPUs (default: what nvidia-smi lists, or the simulated machine has)")
	fl.DurationVar(&o.limit, "time", 0, "the whole ends within this `TIME` (default 90s and 30s a GPU)")
	fl.Uint64Var(&o.most, "most", 0, "the largest size of collectives in `BYTES` (default: 1 GiB of all_reduce, and of the others what the time allows)")
	fl.StringVar(&o.save, "save", "", "write the document to `FILE` (default: to standard output)")
	fl.StringVar(&o.predicted, "predicted", "", "instead of measuring, hold the document of this `FILE`, of a simulated machine, against -measured")
	fl.StringVar(&o.measured, "measured", "", "the `FILE` that a run on GPUs left, or the record of a bundle with it under \"multi\"")
	switch err := fl.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	case fl.NArg() > 0:
		return fmt.Errorf("what is %q?", fl.Arg(0))
	case (o.predicted == "") != (o.measured == ""):
		return errors.New("-predicted and -measured go together")
	}
	if o.predicted != "" {
		c, err := compareFiles(o.predicted, o.measured)
		if err != nil {
			return err
		}
		writeComparison(stderr, c)
		return save(o.save, stdout, c)
	}
	d, err := measure(ctx, &o, stderr)
	if d != nil {
		writeSummary(stderr, d)
		err = errors.Join(err, save(o.save, stdout, d))
	}
	return err
}

// save writes a document to a file, or to standard output where there is no name.
func save(name string, stdout io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if name == "" {
		_, err = stdout.Write(b)
		return err
	}
	return os.WriteFile(name, b, 0o666)
}
