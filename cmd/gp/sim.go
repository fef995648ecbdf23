// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
)

var simCommand = &command{
	name:     "sim",
	synopsis: "list the simulated machines, or show what one is made of and where its figures are from",
	usage:    "sim [list] | sim show NAME [--json]",
	text: `list, which is also what it does without a word, names the simulated machines that other subcommands take
with --sim.

show prints what a machine is made of: its GPUs, its host, and every figure of its model with its source; those
that were fitted to the machine's own published or measured figures are marked. NAME may also be the path of a
JSON file of yours, with a slash in it or ending in .json, as it may be for --sim. --json prints the machine as
such a file.

Every figure that is taken on a simulated machine is a model's. docs/simulator.md says what is modelled, how to
describe a machine of yours, and how far off the model is where it could be compared.`,
	operands: true,
	setup: func(fl *flag.FlagSet) func(context.Context, *environment) error {
		asJSON := fl.Bool("json", false, "with show: print the machine as JSON")
		return func(_ context.Context, e *environment) error {
			words, err := operands(fl)
			if err != nil {
				return usageError{err}
			}
			switch {
			case (len(words) == 0 || len(words) == 1 && words[0] == "list") && !*asJSON:
				return listMachines(e.stdout)
			case len(words) == 2 && words[0] == "show":
				s, err := sim.Load(words[1])
				if err != nil {
					return simError(words[1], err)
				}
				if *asJSON {
					return writeJSON(e.stdout, &s)
				}
				return showMachine(e.stdout, &s)
			case len(words) == 1 && words[0] == "show":
				return usagef("show which machine? There are %s", strings.Join(sim.Names(), ", "))
			}
			return usagef("list, or show and the name of a machine")
		}
	},
}

// operands are the arguments that are no flags, wherever they stand among them.
func operands(fl *flag.FlagSet) (words []string, err error) {
	for args := fl.Args(); len(args) > 0; args = fl.Args() {
		words = append(words, args[0])
		if err := fl.Parse(args[1:]); err != nil {
			return nil, err
		}
	}
	return words, nil
}

func listMachines(w io.Writer) error {
	for _, name := range sim.Names() {
		s, err := sim.Builtin(name)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "%-12s %s\n", name, s.About); err != nil {
			return err
		}
	}
	return nil
}

// showMachine prints a machine for people.
func showMachine(w io.Writer, s *sim.Spec) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(out, "%s: %s\n\n", s.Name, s.About)

	fmt.Fprint(out, "GPU\tbus id\tPCIe\tmemory\tBAR1\tNUMA node\tname\n")
	for i, g := range s.GPUs {
		fmt.Fprintf(out, "%d\t%s\t%d.0 x%d\t%d MiB\t%s\t%d\t%s, compute capability %d.%d\n",
			i, g.PCIBusID, g.PCIeGen, g.PCIeWidth, g.MemoryBytes>>20, bar1(&g), g.NUMANode, g.Name, g.ComputeMajor, g.ComputeMinor)
	}
	fmt.Fprintf(out, "\nP2P      %s\n", peers(s))
	fmt.Fprintf(out, "driver   CUDA %d.%d", s.DriverVersion/1000, s.DriverVersion%1000/10)
	if m := &s.Module; m.Version != "" {
		fmt.Fprintf(out, ", module %s (%s)", m.Version, m.Flavour)
	}
	fmt.Fprintf(out, "\nhost     %d GiB, %d NUMA nodes, %s", s.Host.MemoryBytes>>30, len(s.Host.Nodes), s.System.CPU)
	if s.System.IOMMU != "" {
		fmt.Fprintf(out, ", IOMMU %s", s.System.IOMMU)
	}
	figures := s.Figures()
	var free []string
	for _, f := range figures {
		if f.Fitted {
			free = append(free, f.Name)
		}
	}
	fmt.Fprintf(out, "\nmodel    %d figures, %d of them free parameters, fitted to this machine's own", len(figures), len(free))
	if free != nil {
		fmt.Fprintf(out, ": %s", strings.Join(free, " "))
	}
	fmt.Fprint(out, "\n")
	if err := out.Flush(); err != nil {
		return err
	}

	fmt.Fprint(out, "\nfigure\tvalue\tunit\t\tsource\n")
	for _, f := range figures {
		mark := ""
		if f.Fitted {
			mark = "fitted"
		}
		fmt.Fprintf(out, "%s\t%v\t%s\t%s\t%s\n", f.Name, f.Value, f.Unit, mark, f.Source)
	}
	facts := []string{"system: " + s.System.Source, "module: " + s.Module.Source}
	for _, g := range s.GPUs {
		if f := "gpus[].pci: " + g.PCI.Source; !slices.Contains(facts, f) {
			facts = append(facts, f)
		}
	}
	fmt.Fprint(out, "\nfacts that the probe reads\n")
	for _, f := range facts {
		if !strings.HasSuffix(f, ": ") {
			fmt.Fprintf(out, "  %s\n", f)
		}
	}
	return out.Flush()
}

// bar1 is the size of the window through which peers reach the memory.
func bar1(g *sim.GPU) string {
	n, ok := g.BAR1()
	if !ok {
		return "-"
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

func peers(s *sim.Spec) string {
	granted, all := 0, len(s.GPUs)*(len(s.GPUs)-1)
	for i, row := range s.PeerAccess {
		for j, may := range row {
			if may && i != j {
				granted++
			}
		}
	}
	switch granted {
	case 0:
		return "denied by the driver"
	case all:
		return "granted between all GPUs"
	}
	return fmt.Sprintf("granted in %d of %d directions", granted, all)
}
