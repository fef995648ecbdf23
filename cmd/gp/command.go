// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"time"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/probe"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// An environment is what the command reaches of the world.
type environment struct {
	name           string // of the program's file; releases do not call it gp
	stdout, stderr io.Writer
	root           fs.FS // the machine's "/"
	openDriver     func() (*cuda.Driver, error)
	openSim        func(name string) (d *cuda.Driver, closeMachine func() error, err error)
	collect        func(context.Context, probe.Options) (*probe.Facts, error) // nil: probe.Collect
	child          func() (*exec.Cmd, error)                                  // of probe --verify; nil: this program
	limit, grace   time.Duration                                              // of selftest; 0: opTimeout and opGrace
}

// A command is a subcommand.
type command struct {
	name     string
	synopsis string     // one line for the list
	usage    string     // the arguments, behind "gp "
	text     string     // help: a paragraph or two
	operands bool       // it takes arguments that are no flags
	kinds    []*command // its own subcommands: the first argument names one
	// setup declares the flags and returns what runs once they are parsed.
	setup func(*flag.FlagSet) func(context.Context, *environment) error
}

// commands in the order in which help lists them.
var commands = []*command{selftestCommand, probeCommand, benchCommand, simCommand, versionCommand}

// usageError is a call that cannot be right: exit 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// errReported is a failure that the command has already written out.
var errReported = errors.New("failed")

// run is the whole command, but for the process around it. Output that could
// not be written is a failure.
func (e *environment) run(ctx context.Context, args []string) int {
	out := &output{w: e.stdout}
	checked := *e
	checked.stdout = out
	code := checked.dispatch(ctx, args)
	if out.err != nil && code == exitOK {
		fmt.Fprintf(e.stderr, "gp: %v\n", out.err)
		return exitFailed
	}
	return code
}

func (e *environment) dispatch(ctx context.Context, args []string) int {
	if len(args) == 0 {
		e.list(e.stderr)
		return exitUsage
	}
	name, args := args[0], args[1:]
	switch name {
	case "help", "-h", "-help", "--help":
		return e.help(args)
	case "-version", "--version":
		name = versionCommand.name
	}
	c := find(name)
	if c == nil {
		return e.unknown(name)
	}
	if len(args) > 0 {
		if k := c.kind(args[0]); k != nil {
			c, args = k, args[1:]
		}
	}

	fl := flag.NewFlagSet(c.name, flag.ContinueOnError)
	fl.SetOutput(io.Discard) // errors and help are written here, once
	run := c.setup(fl)
	err := fl.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		c.help(e.stdout, fl)
		return exitOK
	}
	if err == nil && fl.NArg() > 0 && !c.operands {
		err = fmt.Errorf("unexpected argument %q", fl.Arg(0))
	}
	if err != nil {
		err = usageError{err}
	} else {
		err = run(ctx, e)
	}
	if err == nil {
		return exitOK
	}
	var usage usageError
	isUsage := errors.As(err, &usage)
	if !errors.Is(err, errReported) {
		fmt.Fprintf(e.stderr, "gp %s: %v\n", c.name, err)
	}
	var coded codedError
	if errors.As(err, &coded) {
		return coded.code
	}
	if isUsage {
		fmt.Fprintf(e.stderr, "usage: gp %s\n", c.usage)
		return exitUsage
	}
	return exitFailed
}

func find(name string) *command {
	for _, c := range commands {
		if c.name == name {
			return c
		}
	}
	return nil
}

// kind is the subcommand of c's own that a word names.
func (c *command) kind(word string) *command {
	for _, k := range c.kinds {
		if k.name == c.name+" "+word {
			return k
		}
	}
	return nil
}

func (e *environment) help(args []string) int {
	if len(args) == 0 {
		e.list(e.stdout)
		return exitOK
	}
	c := find(args[0])
	if c == nil {
		return e.unknown(args[0])
	}
	if len(args) > 1 {
		if k := c.kind(args[1]); k != nil {
			c = k
		}
	}
	fl := flag.NewFlagSet(c.name, flag.ContinueOnError)
	c.setup(fl)
	c.help(e.stdout, fl)
	return exitOK
}

func (e *environment) unknown(name string) int {
	fmt.Fprintf(e.stderr, "gp: no subcommand %q\n\n", name)
	e.list(e.stderr)
	return exitUsage
}

func (e *environment) list(w io.Writer) {
	fmt.Fprint(w, "usage: gp SUBCOMMAND [FLAGS]\n")
	if e.name != "" && e.name != "gp" {
		fmt.Fprintf(w, "gp stands for this program, %s.\n", e.name)
	}
	fmt.Fprint(w, "\nSubcommands:\n")
	for _, c := range commands {
		fmt.Fprintf(w, "  %-10s %s\n", c.name, c.synopsis)
	}
	fmt.Fprintf(w, "  %-10s %s\n", "help NAME", "what a subcommand does and takes")
}

func (c *command) help(w io.Writer, fl *flag.FlagSet) {
	fmt.Fprintf(w, "usage: gp %s\n\n%s\n\n", c.usage, c.text)
	if len(c.kinds) > 0 {
		width := 0
		for _, k := range c.kinds {
			width = max(width, len(k.name))
		}
		for _, k := range c.kinds {
			fmt.Fprintf(w, "  %-*s %s\n", width, k.name, k.synopsis)
		}
		return
	}
	flags := 0
	fl.VisitAll(func(*flag.Flag) { flags++ })
	if flags == 0 {
		return
	}
	fmt.Fprint(w, "Flags:\n")
	fl.SetOutput(w)
	fl.PrintDefaults()
}
