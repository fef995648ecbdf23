// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
)

// A machine without P2P, in place of a GPU host's driver.
func ExampleOpen() {
	m, err := sim.Open("2x4090")
	if err != nil {
		log.Fatal(err)
	}
	g, err := gp.Open(gp.Options{Driver: m.Driver()})
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range g.Ranks() {
		fmt.Println(r.Index(), r.Name())
	}
	if err := errors.Join(g.Close(), m.Close()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 0 NVIDIA GeForce RTX 4090
	// 1 NVIDIA GeForce RTX 4090
}

// A machine like a built-in one with something changed: here the driver grants
// P2P. The seed draws the order in which independent work runs.
func ExampleNew() {
	spec, err := sim.Builtin("8x4090-p2p")
	if err != nil {
		log.Fatal(err)
	}
	spec.Name, spec.GPUs = "3x4090 with P2P", spec.GPUs[:3]
	spec.PeerAccess = [][]bool{{false, true, true}, {true, false, true}, {true, true, false}}
	m, err := sim.New(spec, sim.Seed(7))
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	devices, err := m.Driver().Devices()
	if err != nil {
		log.Fatal(err)
	}
	can, err := devices[0].CanAccessPeer(devices[2])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(devices), can, m.Driver().Modelled())
	// Output: 3 true true
}
