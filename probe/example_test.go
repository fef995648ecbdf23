// SPDX-License-Identifier: Apache-2.0

package probe_test

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"

	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/probe"
)

// The facts of a machine, and what they mean. On a GPU host the zero Options do:
// then NVML is asked as well, which a simulated machine does not have.
func Example() {
	m, err := sim.Open("2x4090")
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	facts, err := probe.Collect(context.Background(), probe.Options{Driver: m.Driver()})
	if err != nil {
		log.Fatal(err)
	}
	report := probe.Diagnose(facts, nil)
	p := report.Pair(0, 1)
	fmt.Println(p.From, p.To, p.State)
	// Output: 0 1 off
}

// Facts are a file: they may be judged on another machine, and later.
func ExampleLoad() {
	file, err := os.ReadFile("testdata/facts/blog-8x4090-before.json")
	if err != nil {
		log.Fatal(err)
	}
	facts, err := probe.Load(bytes.NewReader(file))
	if err != nil {
		log.Fatal(err)
	}
	p := probe.Diagnose(facts, nil).Pair(0, 1)
	fmt.Printf("%s: %s; the patch %s\n", p.State, p.Headline, p.Patch)
	// Output: off: bar1-small; the patch likely helps after other cures
}
