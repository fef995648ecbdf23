// SPDX-License-Identifier: Apache-2.0

// Package gp moves data between GPUs of one process whose driver denies them
// peer-to-peer access (P2P): copies, and the collectives of the field.
//
//	g, err := gp.Open(gp.Options{}) // a rank for each visible GPU
//	defer g.Close()
//	a, err := gp.Upload(ctx, g.Ranks()[0], []float32{1, 2, 3})
//	b, err := g.Ranks()[1].Alloc(gp.TypeFloat32, 3)
//	w, err := g.Copy(b, a)          // returns when enqueued
//	err = w.Wait(ctx)
//
// # The model
//
// A Group is a set of ranks. A Rank is one GPU's place in it: its primary context,
// a stream of its own, and two lanes, which are streams too. One lane moves device
// memory to host memory, the other host memory to device memory, and reduces. A
// GPU's link carries both ways at once, and so does the rank.
//
// A Buffer is a range of elements in a rank's memory, with the stream that orders
// the work on it. It is a value: Alloc and Upload make memory of the group's own,
// Rank.Wrap takes memory and a stream that other code of the process made.
//
// Without P2P, data goes from GPU to GPU through slots: pieces of pinned host
// memory that every rank can read. While one piece goes up to the destination, the
// next comes down from the source. How an operation is cut into pieces, who moves
// which one when and what must come before it is a plan: plain data that is made
// once for each shape of call, and that tests check and run without a GPU. One
// executor turns it into driver calls. Small messages of a collective take one
// kernel a rank instead, which waits for the other ranks' (see AlgorithmOneShot and
// AlgorithmTwoShot). Where P2P is granted, proven by a checked transfer and faster,
// it is used.
//
// # Order
//
// Calls return when their work is enqueued. The work runs behind what the buffers'
// streams held at the call, and what those streams are given afterwards runs behind
// the work. So one call may follow another without a wait in between, and so may
// kernels of the caller's on the same streams. Work.Wait waits on the host,
// Work.Before makes another stream wait.
//
// Any number of goroutines may call a group, and groups may share GPUs and streams.
// What the program itself enqueues on the streams of a collective, it does not
// enqueue while another goroutine makes that call: kernels that wait for each other
// are launched one rank after another, and what gets between them is in their way.
//
// # One goroutine, or one a GPU
//
// Group has the collectives for a program that holds the buffers of all ranks, and
// Rank has them for one that runs a goroutine for each GPU: there each brings its
// own buffer, and the last to come enqueues for all.
//
// # Errors
//
// Errors are *Error, with the rank and, beneath, the driver's own (errors.As to
// *cuda.Error). Bad arguments are ErrArgument, enqueue nothing and leave the group
// as it was. When a call fails in the middle the ranks may disagree: the group has
// failed then, all later calls say so, nothing hangs, and Close frees.
//
// # Looking on
//
// CallOptions.Explain tells what a call would do, Group.Stats what has been done,
// and Options.Logger gets each choice at debug level.
package gp
