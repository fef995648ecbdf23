// SPDX-License-Identifier: Apache-2.0

package lowlevel_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"

	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/gp/lowlevel"
)

// A reduction of one's own making: numbers that the host has written to pinned
// memory are added to a buffer, read over the link and in place.
func ExampleReduceFromHost() {
	ctx := context.Background()
	m, err := sim.Open("2x4090")
	if err != nil {
		log.Fatal(err)
	}
	g, err := gp.Open(gp.Options{Driver: m.Driver()})
	if err != nil {
		log.Fatal(err)
	}
	r := g.Ranks()[0]
	pinned, err := r.Context().HostAlloc(2*4, 0)
	if err != nil {
		log.Fatal(err)
	}
	binary.LittleEndian.PutUint32(pinned.Bytes()[0:], 10)
	binary.LittleEndian.PutUint32(pinned.Bytes()[4:], 20)

	b, err := gp.Upload(ctx, r, []uint32{1, 2})
	if err != nil {
		log.Fatal(err)
	}
	w, err := lowlevel.ReduceFromHost(b, pinned.Bytes(), gp.Sum)
	if err != nil {
		log.Fatal(err)
	}
	if err := w.Wait(ctx); err != nil { // until then the pinned memory is in use
		log.Fatal(err)
	}
	got := make([]uint32, 2)
	if err := gp.Download(ctx, got, b); err != nil {
		log.Fatal(err)
	}
	fmt.Println(got)
	if err := errors.Join(pinned.Close(), g.Close(), m.Close()); err != nil {
		log.Fatal(err)
	}
	// Output: [11 22]
}
