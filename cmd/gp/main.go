// SPDX-License-Identifier: Apache-2.0

// Command gp works with the GPUs of this machine, or with simulated ones.
//
//	gp selftest     copy, all-reduce and all-gather random data and check every byte
//	gp probe        say for every pair of GPUs why P2P is off, and what would turn it on
//	gp sim          list the simulated machines, or show what one is made of
//	gp help [NAME]  what a subcommand does and takes
//
// It exits 0 if all went well, 1 if something failed and 2 if it was called
// wrongly; a subcommand's help names what else it exits with.
package main

import (
	"context"
	"os"
	"os/signal"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	e := &environment{
		stdout:     os.Stdout,
		stderr:     os.Stderr,
		root:       os.DirFS("/"),
		openDriver: cuda.Open,
		openSim:    openSim,
	}
	code := e.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// openSim is the simulated machine of a name, or of a file's path.
func openSim(name string) (*cuda.Driver, func() error, error) {
	s, err := sim.Load(name)
	if err != nil {
		return nil, nil, err
	}
	m, err := sim.New(s)
	if err != nil {
		return nil, nil, err
	}
	return m.Driver(), m.Close, nil
}
