// SPDX-License-Identifier: Apache-2.0

// Package examples holds small programs to copy from. Each runs on this machine's
// GPUs, or with -sim 2x4090 on a simulated machine:
//
//	go run ./examples/copy -sim 2x4090       both ways of a pair at once, every byte checked
//	go run ./examples/allreduce -sim 4x4090  data-parallel training, one goroutine a GPU
//	go run ./examples/foreign -sim 2x4090    memory and streams of other CUDA code of the process
//	go run ./examples/probe -sim 2x4090      why P2P is off, for each pair
//
// examples/service is a module of its own, as a program of yours would be: an HTTP
// service that answers with the probe's report, its health and the counters.
//
//	cd examples/service && go run . -sim 2x4090
package examples
