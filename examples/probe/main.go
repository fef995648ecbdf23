// SPDX-License-Identifier: Apache-2.0

// Command probe says for each pair of GPUs whether P2P is on, and if not, why.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"

	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/probe"
	"github.com/geforce-p2p/geforce-p2p/probe/nvml/nvmlsim"
)

func main() {
	machine := flag.String("sim", "", "judge the simulated machine `NAME` (2x4090, 8x4090, ...) instead of this one")
	flag.Parse()
	if err := run(context.Background(), *machine); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, machine string) error {
	var o probe.Options // the zero value: all that this machine tells
	if machine != "" {
		m, err := sim.Open(machine)
		if err != nil {
			return err
		}
		defer m.Close()
		o.Driver, o.NVML = m.Driver(), nvmlsim.New(m.Spec())
	}
	// Facts are what could be read, and why the rest could not. That there is no
	// driver is a fact too, and no error.
	facts, err := probe.Collect(ctx, o)
	if err != nil {
		return err
	}
	report := probe.Diagnose(facts, nil)
	if report.Status == probe.StatusUnusable {
		return fmt.Errorf("%s (-sim 2x4090 judges a simulated machine)", report.CUDA)
	}
	for _, p := range report.Pairs {
		fmt.Printf("GPU %d reaches GPU %d: %s\n", p.From, p.To, p.State)
		for _, f := range p.Findings {
			fmt.Printf("  %s: %s\n", f.Cause, f.Do)
		}
		for _, missing := range p.Unknown {
			fmt.Printf("  could not be read: %s\n", missing)
		}
		fmt.Printf("  the driver patch: %s\n", p.Patch)
	}
	return nil
}
