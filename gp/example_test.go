// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"

	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
)

// openExample is a group on a simulated machine. On a GPU host, gp.Open(gp.Options{})
// takes its place.
func openExample() (*gp.Group, func()) {
	m, err := sim.Open("2x4090")
	if err != nil {
		log.Fatal(err)
	}
	g, err := gp.Open(gp.Options{Driver: m.Driver()})
	if err != nil {
		log.Fatal(err)
	}
	return g, func() {
		if err := errors.Join(g.Close(), m.Close()); err != nil {
			log.Fatal(err)
		}
	}
}

func try[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

// A copy from one GPU to another, and what came of it.
func Example() {
	ctx := context.Background()
	g, done := openExample()
	defer done()
	src := try(gp.Upload(ctx, g.Ranks()[0], []int32{1, 2, 3}))
	dst := try(g.Ranks()[1].Alloc(gp.TypeInt32, 3))
	try(g.Copy(dst, src)) // returns when enqueued

	got := make([]int32, 3)
	if err := gp.Download(ctx, got, dst); err != nil { // ordered behind the copy
		log.Fatal(err)
	}
	fmt.Println(got)
	// Output: [1 2 3]
}

// All ranks get the mean of what each had, in place.
func ExampleOps_AllReduce() {
	ctx := context.Background()
	g, done := openExample()
	defer done()
	bufs := make([]gp.Buffer, len(g.Ranks()))
	for i, r := range g.Ranks() {
		bufs[i] = try(gp.Upload(ctx, r, []float32{float32(i), 10, 20}))
	}
	try(g.AllReduce(bufs, gp.Avg))
	for _, b := range bufs {
		got := make([]float32, 3)
		if err := gp.Download(ctx, got, b); err != nil {
			log.Fatal(err)
		}
		fmt.Println(got)
	}
	// Output:
	// [0.5 10 20]
	// [0.5 10 20]
}

// One goroutine a GPU: each calls its own rank's method with its own buffer, and
// the last to come enqueues for all.
func ExampleRankOps_AllReduce() {
	ctx := context.Background()
	g, done := openExample()
	defer done()
	sums := make([]int64, len(g.Ranks()))
	var wg sync.WaitGroup
	for i, r := range g.Ranks() {
		wg.Go(func() {
			b := try(gp.Upload(ctx, r, []int64{int64(i + 1)}))
			try(r.AllReduce(ctx, b, gp.Sum))
			if err := gp.Download(ctx, sums[i:i+1], b); err != nil {
				log.Fatal(err)
			}
		})
	}
	wg.Wait()
	fmt.Println(sums)
	// Output: [3 3]
}

// Memory and a stream that other code of the process made: nothing has to move
// into memory of the group's own.
func ExampleRank_Wrap() {
	ctx := context.Background()
	g, done := openExample()
	defer done()
	r0, r1 := g.Ranks()[0], g.Ranks()[1]
	// The other code.
	mem := try(r1.Context().Alloc(4 * 3))
	stream := try(r1.Context().NewStream())

	foreign := try(r1.Wrap(mem.Ptr(), gp.TypeFloat32, 3, stream))
	mine := try(gp.Upload(ctx, r0, []float32{1, 2, 3}))
	try(g.Copy(foreign, mine)) // what stream is given from here on finds the data
	got := make([]float32, 3)
	if err := gp.Download(ctx, got, foreign); err != nil {
		log.Fatal(err)
	}
	fmt.Println(got)
	// Its owner frees it, once the work on it is done.
	if err := errors.Join(stream.Close(), mem.Close()); err != nil {
		log.Fatal(err)
	}
	// Output: [1 2 3]
}

// What a call would do, and why, without doing it.
func ExampleExplanation() {
	g, done := openExample()
	defer done()
	src := try(g.Ranks()[0].Alloc(gp.TypeFloat32, 16<<20))
	dst := try(g.Ranks()[1].Alloc(gp.TypeFloat32, 16<<20))
	var e gp.Explanation
	try(g.With(gp.CallOptions{Explain: &e}).Copy(dst, src))
	fmt.Printf("%s, because %s\n", e.Route, e.Why)
	fmt.Printf("%d MiB down from rank 0, %d MiB up to rank 1\n", e.D2H[0]>>20, e.H2D[1]>>20)
	// Output:
	// staged, because the driver denies P2P
	// 64 MiB down from rank 0, 64 MiB up to rank 1
}

// What a group has done, for a metric or a log line.
func ExampleGroup_Stats() {
	ctx := context.Background()
	g, done := openExample()
	defer done()
	src := try(gp.Upload(ctx, g.Ranks()[0], make([]byte, 1000)))
	dst := try(g.Ranks()[1].Alloc(gp.TypeUint8, 1000))
	for range 3 {
		try(g.Copy(dst, src))
	}
	s := g.Stats()
	fmt.Println(s.Copies, "copies")
	for _, p := range s.Pairs {
		fmt.Printf("from %d to %d: %d bytes staged, %d direct\n", p.From, p.To, p.StagedBytes, p.DirectBytes)
	}
	// Output:
	// 3 copies
	// from 0 to 1: 3000 bytes staged, 0 direct
}
