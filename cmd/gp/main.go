// SPDX-License-Identifier: Apache-2.0

// Command gp works with the GPUs of this machine, or with simulated ones.
//
//	gp selftest     copy, all-reduce and all-gather random data and check every byte
//	gp probe        say for every pair of GPUs why P2P is off, and what would turn it on
//	gp bench        measure links, copies and collectives, verified, with the ceilings of the same run
//	gp sim          list the simulated machines, or show what one is made of
//	gp version      say which version and commit this is
//	gp help [NAME]  what a subcommand does and takes
//
// It exits 0 if all went well, 1 if something failed and 2 if it was called
// wrongly; a subcommand's help names what else it exits with.
package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
)

func main() {
	e := &environment{
		name:       strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe"),
		stdout:     os.Stdout,
		stderr:     os.Stderr,
		root:       os.DirFS("/"),
		openDriver: cuda.Open,
		openSim:    openSim,
	}
	os.Exit(e.main(os.Args[1:]))
}

// main runs the command until it ends or a signal asks it to. The second signal
// finds no handler and ends the process, whatever it is waiting for.
func (e *environment) main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return e.run(ctx, args)
}

// openSim is the simulated machine of a name, or of a file's path.
func openSim(name string) (*cuda.Driver, func() error, error) { return openMachine(name) }

// openInterpreted is openSim of a machine that runs PTX itself.
func openInterpreted(name string) (*cuda.Driver, func() error, error) {
	return openMachine(name, sim.Interpret())
}

func openMachine(name string, opts ...sim.Option) (*cuda.Driver, func() error, error) {
	s, err := sim.Load(name)
	if err != nil {
		return nil, nil, err
	}
	m, err := sim.New(s, opts...)
	if err != nil {
		return nil, nil, err
	}
	return m.Driver(), m.Close, nil
}
