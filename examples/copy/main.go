// SPDX-License-Identifier: Apache-2.0

// Command copy copies between two GPUs, both ways at once, and checks every byte.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"log"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
)

func main() {
	machine := flag.String("sim", "", "run on the simulated machine `NAME` (2x4090, 8x4090, ...) instead of this one's GPUs")
	n := flag.Int("bytes", 64<<20, "how much to copy each way")
	flag.Parse()
	if err := run(context.Background(), *machine, *n); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, machine string, n int) (err error) {
	driver, err := open(machine)
	if err != nil {
		return err
	}
	options := gp.Options{Driver: driver}
	if count, err := driver.DeviceCount(); err != nil {
		return err
	} else if count == 1 { // two ranks on one card, to try it out
		options.Devices, options.AllowSameGPU = []int{0, 0}, true
	}
	g, err := gp.Open(options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }() // frees the buffers too

	// On each of the first two ranks, something to send and room to receive.
	var src, dst [2]gp.Buffer
	data := [2][]byte{make([]byte, n), make([]byte, n)}
	for i, r := range g.Ranks()[:2] {
		rand.Read(data[i])
		if src[i], err = gp.Upload(ctx, r, data[i]); err != nil {
			return err
		}
		if dst[i], err = r.Alloc(gp.TypeUint8, n); err != nil {
			return err
		}
	}

	// Copy returns when the copy is enqueued, so both are under way at once. The
	// first round takes memory and makes events; the second is as fast as it gets.
	var there, back gp.Work
	start := g.Now()
	for range 2 {
		start = g.Now() // the machine's clock: of a simulated one it is virtual
		if there, err = g.Copy(dst[1], src[0]); err != nil {
			return err
		}
		if back, err = g.Copy(dst[0], src[1]); err != nil {
			return err
		}
		if err = errors.Join(there.Wait(ctx), back.Wait(ctx)); err != nil {
			return err
		}
	}
	took := g.Now() - start

	for i := range dst {
		got := make([]byte, n)
		if err := gp.Download(ctx, got, dst[i]); err != nil {
			return err
		}
		if !bytes.Equal(got, data[1-i]) {
			return fmt.Errorf("rank %d received something else than rank %d sent", i, 1-i)
		}
	}

	label := ""
	if driver.Modelled() {
		label = ", modelled"
	}
	fmt.Printf("%d bytes each way in %v: %.1f GB/s each way%s\n", n, took, float64(n)/took.Seconds()/1e9, label)
	for _, p := range g.Stats().Pairs {
		fmt.Printf("from rank %d to rank %d: %d bytes through host memory, %d directly\n", p.From, p.To, p.StagedBytes, p.DirectBytes)
	}
	return nil
}

// open is the driver of this machine's GPUs, or of a simulated machine's.
func open(machine string) (*cuda.Driver, error) {
	if machine == "" {
		d, err := cuda.Open()
		if err != nil {
			return nil, fmt.Errorf("%w (-sim 2x4090 runs without a GPU)", err)
		}
		return d, nil
	}
	m, err := sim.Open(machine)
	if err != nil {
		return nil, err
	}
	return m.Driver(), nil
}
