// SPDX-License-Identifier: Apache-2.0

// Command allreduce trains a small network on all GPUs, data-parallel: each rank
// has a share of the samples and a goroutine of its own, computes gradients from
// its share, averages them with the others' by all_reduce and takes the same step.
// The gradients are computed in Go, where a real program has kernels.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
)

const (
	hidden  = 16
	weights = hidden*4 + 1 // two inputs, a bias and an output weight each, and a bias
	samples = 64           // a rank
	rate    = 0.1
)

func main() {
	machine := flag.String("sim", "", "run on the simulated machine `NAME` (2x4090, 4x4090, ...) instead of this one's GPUs")
	steps := flag.Int("steps", 300, "how many steps to train")
	flag.Parse()
	if err := run(context.Background(), *machine, *steps); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, machine string, steps int) (err error) {
	var o gp.Options // the zero value: a rank for each GPU of this machine
	if machine != "" {
		m, err := sim.Open(machine)
		if err != nil {
			return err
		}
		o.Driver = m.Driver()
	}
	g, err := gp.Open(o)
	if err != nil {
		return fmt.Errorf("%w (-sim 4x4090 runs without a GPU)", err)
	}
	defer func() { err = errors.Join(err, g.Close()) }()

	n := len(g.Ranks())
	trained, errs := make([][]float32, n), make([]error, n)
	// One rank that gives up must not leave the others waiting for it.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	for i, r := range g.Ranks() {
		wg.Go(func() {
			if trained[i], errs[i] = train(ctx, r, steps); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i := range trained {
		if !slices.Equal(trained[i], trained[0]) {
			return fmt.Errorf("rank %d has other weights than rank 0", i)
		}
	}
	fmt.Printf("equal weights on all %d ranks after %d steps\n", n, steps)
	return nil
}

// train is one rank's part. It returns its weights.
func train(ctx context.Context, r *gp.Rank, steps int) ([]float32, error) {
	// Equal weights to begin with, and samples of its own.
	w, own := make([]float32, weights), rand.New(rand.NewPCG(1, uint64(r.Index())))
	same := rand.New(rand.NewPCG(2, 2))
	for i := range w {
		w[i] = float32(same.NormFloat64()) / 2
	}
	xs := make([][2]float64, samples)
	for i := range xs {
		xs[i] = [2]float64{own.Float64()*2 - 1, own.Float64()*2 - 1}
	}

	grad := make([]float32, weights+1) // and the loss, to be averaged along
	buf, err := r.Alloc(gp.TypeFloat32, len(grad))
	if err != nil {
		return nil, err
	}
	for step := range steps {
		gradients(grad, w, xs)
		if err := gp.UploadTo(ctx, buf, grad); err != nil {
			return nil, err
		}
		// It returns when all ranks have called it and the work is enqueued.
		if _, err := r.AllReduce(ctx, buf, gp.Avg); err != nil {
			return nil, err
		}
		if err := gp.Download(ctx, grad, buf); err != nil { // ordered behind it
			return nil, err
		}
		for i := range w {
			w[i] -= rate * grad[i]
		}
		if r.Index() == 0 && (step%100 == 0 || step == steps-1) {
			fmt.Printf("step %3d: loss %.5f\n", step, grad[weights])
		}
	}
	return w, buf.Free()
}

// gradients are those of the mean squared error over xs of a network with one
// hidden layer that is to learn x*y. The last element is that error.
func gradients(grad, w []float32, xs [][2]float64) {
	sum := make([]float64, len(grad))
	for _, x := range xs {
		var h [hidden]float64
		out := float64(w[4*hidden])
		for j := range h {
			h[j] = math.Tanh(float64(w[4*j])*x[0] + float64(w[4*j+1])*x[1] + float64(w[4*j+2]))
			out += float64(w[4*j+3]) * h[j]
		}
		off := out - x[0]*x[1]
		for j := range h {
			back := 2 * off * float64(w[4*j+3]) * (1 - h[j]*h[j])
			sum[4*j] += back * x[0]
			sum[4*j+1] += back * x[1]
			sum[4*j+2] += back
			sum[4*j+3] += 2 * off * h[j]
		}
		sum[4*hidden] += 2 * off
		sum[weights] += off * off
	}
	for i := range grad {
		grad[i] = float32(sum[i] / float64(len(xs)))
	}
}
