// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"log/slog"
	"time"

	"github.com/geforce-p2p/geforce-p2p/cuda"
)

// Defaults of Options.
const (
	// DefaultPinnedBytes is the pinned host memory, and the device scratch, of
	// a rank.
	DefaultPinnedBytes = 32 << 20
	// MinPinnedBytes is the least that a rank works with: two halves of 1 MiB
	// for uploads and downloads, and as much for the slots.
	MinPinnedBytes = 2*bounceHalf + minRing
)

// P2PMode says what the group does with peer-to-peer.
type P2PMode uint8

const (
	// P2PAuto uses P2P for a direction of a pair if the driver grants it and a
	// one-way checked transfer proves it when the group opens.
	P2PAuto P2PMode = iota
	// P2POff never uses it.
	P2POff
	// P2PTrust uses it where the driver grants it, without proof.
	P2PTrust
)

// Options are what Open takes. The zero value is right.
type Options struct {
	// Driver is the CUDA driver; nil opens libcuda. A simulated machine gives
	// its own.
	Driver *cuda.Driver
	// Devices are the ordinals of the ranks' GPUs, in rank order; nil is every
	// visible one.
	Devices []int
	// AllowSameGPU permits a GPU to be named twice, for tests and for
	// measuring on one card. Ranks of one GPU share its primary context.
	AllowSameGPU bool
	// PinnedBytes is the budget of a rank in pinned host memory, and again in
	// device scratch; 0 is DefaultPinnedBytes.
	PinnedBytes int64
	// P2P says what to do with peer-to-peer.
	P2P P2PMode
	// KernelDeadline is how long the kernels of a collective wait for each other
	// before they give up and the group fails; 0 is DefaultKernelDeadline. On a GPU
	// with a display watchdog it is half a second at most.
	KernelDeadline time.Duration
	// NoExchange leaves out the algorithms whose kernels wait for each other.
	NoExchange bool
	// PerCopy is what a piece of a staged copy costs on top of its bytes, for the
	// choice of the piece's length; 0 is 5 microseconds, as measured.
	PerCopy time.Duration
	// LowLatency makes Wait poll without pause: the least time to return, at
	// the price of a busy core.
	LowLatency bool
	// Logger receives warnings, and at debug level each choice that is made;
	// nil is slog.Default().
	Logger *slog.Logger
}

// Algorithm names how an operation is done.
type Algorithm string

const (
	// AlgorithmAuto leaves the choice to the library.
	AlgorithmAuto Algorithm = ""
	// AlgorithmRing sends shards around the ring of ranks, by DMA into
	// scratch memory (all_reduce, all_gather, reduce_scatter).
	AlgorithmRing Algorithm = "ring"
	// AlgorithmRingZeroCopy is the ring in which the reduction reads the
	// staged bytes in host memory, without scratch (all_reduce).
	AlgorithmRingZeroCopy Algorithm = "ring_zero_copy"
	// AlgorithmDirect writes what others need to host memory once, and every
	// rank reads it there: all collectives.
	AlgorithmDirect Algorithm = "direct"
	// AlgorithmTwoShot is one kernel a rank: each folds its shard of all ranks'
	// data in host memory and puts the result there for the others (all_reduce).
	AlgorithmTwoShot Algorithm = "two_shot"
	// AlgorithmOneShot is one kernel a rank, which reads all that the others
	// have put into host memory (all_reduce, all_gather).
	AlgorithmOneShot Algorithm = "one_shot"
	// AlgorithmPeer moves everything by peer copies, where P2P is proven and
	// faster for all pairs: all collectives.
	AlgorithmPeer Algorithm = "peer"
)

// Route names the way of a copy.
type Route string

const (
	// RouteAuto leaves the choice to the library: local on one rank, direct
	// where P2P is proven, staged otherwise.
	RouteAuto Route = ""
	// RouteStaged goes through pinned host memory.
	RouteStaged Route = "staged"
	// RouteDirect is a peer copy.
	RouteDirect Route = "direct"
	// RouteLocal is a copy within one rank's memory.
	RouteLocal Route = "local"
)

// CallOptions change how one call is done. The zero value is right.
type CallOptions struct {
	// Algorithm of a collective. One that the collective does not have is
	// refused, and so is any on a copy.
	Algorithm Algorithm
	// Route of a copy. One that the pair does not have is refused, and so is
	// any on a collective.
	Route Route
	// Chunk is the bytes of a piece; 0 takes the cost model's. A multiple of 16
	// is taken as it is, unless the budget of pinned memory asks for less.
	Chunk int
	// Explain, if not nil, is filled in with what the call would do; nothing is
	// enqueued, and the Work that is returned is done.
	Explain *Explanation
}
