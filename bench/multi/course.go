// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// What a child is.
const (
	kindGP    = "gp"         // gp bench, which saves a document
	kindNCCL  = "nccl_bench" // one process for all GPUs
	kindTorch = "torch"      // one process a GPU
)

// A child is one program of the course.
type child struct {
	name    string
	kind    string
	args    []string
	env     []string
	ranks   int
	seconds float64 // what it takes on as many GPUs as it has ranks, about
	denied  bool    // NCCL's log must show shared memory, and nothing else
}

// Environments of NCCL. What the caller has set of NVLink multicast stays as it
// is, and so does all else.
var (
	// denied keeps NCCL from P2P and from networks. It finds its peers by way of
	// the loopback interface.
	denied   = []string{"NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=0", "NCCL_IB_DISABLE=1", "NCCL_NET_DISABLE_INTRA=1", "NCCL_SOCKET_IFNAME=lo"}
	copying  = append([]string{"NCCL_SHM_USE_CUDA_MEMCPY=1", "NCCL_SHM_MEMCPY_MODE=3"}, denied...)
	granted  = []string{"NCCL_IB_DISABLE=1", "NCCL_SOCKET_IFNAME=lo"}
	channels = func(n int) []string { return append([]string{fmt.Sprintf("NCCL_MIN_NCHANNELS=%d", n)}, denied...) }
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

var collectiveSizes = []uint64{
	8, 1 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 * mib, 2 * mib, 4 * mib,
	16 * mib, 64 * mib, 256 * mib, 1 * gib,
}

// largeBytes is from where on a size is measured without the algorithms that are
// not for it: comparing a result is the host's work.
const largeBytes = 16 * mib

func sizes(least, most uint64) string {
	var words []string
	for _, n := range collectiveSizes {
		if least <= n && n <= most {
			words = append(words, strconv.FormatUint(n, 10))
		}
	}
	return strings.Join(words, ",")
}

// copySizes are 4 KiB to 1 GiB in steps of 4.
func copySizes(most uint64) string {
	var words []string
	for n := uint64(4 << 10); n <= most; n *= 4 {
		words = append(words, strconv.FormatUint(n, 10))
	}
	return strings.Join(words, ",")
}

// course is all children for a host, those first that matter most: with the
// default time the last ones do not get their turn. scale is the time that there
// is over the default; it decides the largest sizes too, unless most, not 0, is
// less.
func course(gpus int, most uint64, scale float64) (all []child) {
	// Comparing is by rank, and so is what a child takes.
	per := func(ranks int) float64 { return 0.4 + 0.3*float64(ranks) }
	reduce, others := uint64(gib), uint64(256*mib)
	switch {
	case scale >= 2:
		others = gib
	case scale < 0.7:
		reduce, others = 256*mib, 64*mib
	}
	if most != 0 {
		reduce, others = min(reduce, most), min(others, most)
	}
	bench := func(name string, ranks int, seconds float64, env []string, args ...string) {
		all = append(all, child{name: name, kind: kindGP, args: append([]string{"bench"}, args...), env: env, ranks: ranks, seconds: seconds * per(ranks)})
	}
	nccl := func(name, kind string, ranks int, seconds float64, env []string, ops string, most uint64, more ...string) {
		c := child{
			name: name, kind: kind, env: env, ranks: ranks, seconds: seconds * (0.7 + 0.15*float64(ranks)),
			args: append([]string{"--gpus", strconv.Itoa(ranks), "--ops", ops, "--sizes", sizes(0, most)}, more...),
		}
		for _, e := range env {
			c.denied = c.denied || e == denied[0]
		}
		all = append(all, c)
	}
	const every = "all_reduce,all_gather,reduce_scatter,broadcast,send,sendrecv"
	const collectives = "all_reduce,all_gather,reduce_scatter,broadcast"
	const hosts = "auto,direct,ring,two_shot,one_shot" // algorithms that pass through host memory
	off := []string{"GP_P2P_OFF=1"}                    // gp.EnvP2POff

	bench("link", gpus, 9, nil, "link", "--rounds", "5")
	// In a process of its own: no peer access is enabled before the driver's copies
	// are done. The direct ones come last.
	bench("copy", 2, 20, nil, "copy", "--gpus", "0,1", "--bytes", copySizes(reduce))
	bench("all_reduce", gpus, 10, off, "all_reduce", "--gpus", first(gpus), "--compare", hosts, "--bytes", sizes(0, min(reduce, largeBytes-1)))
	if reduce >= largeBytes {
		bench("all_reduce.large", gpus, 22, off, "all_reduce", "--gpus", first(gpus), "--compare", "auto", "--bytes", sizes(largeBytes, reduce))
	}
	nccl("nccl.shm", kindNCCL, gpus, 14, denied, every, reduce)
	nccl("nccl.shm_copies", kindNCCL, gpus, 12, copying, every, reduce)
	for _, op := range []string{"all_gather", "broadcast", "reduce_scatter"} {
		bench(op, gpus, 10, off, op, "--gpus", first(gpus), "--compare", "auto,direct,two_shot,one_shot", "--bytes", sizes(0, others))
	}
	nccl("torch.shm", kindTorch, gpus, 15, denied, collectives, others)
	nccl("nccl.protocols", kindNCCL, gpus, 12, denied, "all_reduce,all_gather,broadcast", others, "--protos", "LL,LL128,Simple")
	bench("p2p", gpus, 0, nil, "p2p", "--rounds", "5")
	all[len(all)-1].seconds = 3 + 0.75*float64(gpus*(gpus-1)) // by pair
	for _, n := range []int{4, 8} {
		nccl(fmt.Sprintf("nccl.channels%d", n), kindNCCL, gpus, 11, channels(n), "all_reduce", others, "--protos", "default,LL,LL128,Simple")
	}
	nccl("nccl.nvlink", kindNCCL, gpus, 8, granted, every, others)
	for _, op := range strings.Split(collectives, ",") {
		bench("peer."+op, gpus, 6, nil, op, "--gpus", first(gpus), "--algorithm", "peer", "--bytes", sizes(0, others))
	}
	nccl("torch.shm_copies", kindTorch, gpus, 15, copying, collectives, others)
	for n := 2; n < gpus; n *= 2 {
		at := fmt.Sprintf("@%d", n)
		bench("all_reduce"+at, n, 10, off, "all_reduce", "--gpus", first(n), "--compare", hosts, "--bytes", sizes(0, min(others, largeBytes-1)))
		bench("all_reduce.large"+at, n, 12, off, "all_reduce", "--gpus", first(n), "--compare", "auto", "--bytes", sizes(largeBytes, others))
		nccl("nccl.shm"+at, kindNCCL, n, 8, denied, collectives, others)
		nccl("nccl.shm_copies"+at, kindNCCL, n, 8, copying, collectives, others)
		for _, op := range []string{"all_gather", "broadcast", "reduce_scatter"} {
			bench(op+at, n, 9, off, op, "--gpus", first(n), "--compare", "auto", "--bytes", sizes(0, others))
		}
	}
	for i := range all {
		all[i].seconds *= min(max(scale, 0.5), 1)
	}
	return all
}

// first is a list of the first n GPUs.
func first(n int) string {
	words := make([]string, n)
	for i := range words {
		words[i] = strconv.Itoa(i)
	}
	return strings.Join(words, ",")
}

// defaultTime is what the course gets on a host with so many GPUs.
func defaultTime(gpus int) time.Duration { return time.Duration(90+30*gpus) * time.Second }
