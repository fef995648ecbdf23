// SPDX-License-Identifier: Apache-2.0

// Package plan writes copies and collectives out as steps before anything
// touches a GPU. An algorithm is a pure function from sizes to a Plan; a
// checker proves a Plan sound; an interpreter runs it on host memory; package
// gp's executor turns it into driver calls. It imports nothing of CUDA.
//
// # The model
//
// A rank has two lanes, each a queue that runs its steps in order: LaneOut
// moves device memory to host memory, LaneIn moves host memory to device
// memory and reduces. Steps of different lanes run concurrently unless one
// names the other in After. Every rank can read and write every rank's pinned
// host memory; device memory belongs to its rank (PeerCopy apart).
package plan

import "github.com/geforce-p2p/geforce-p2p/internal/dtype"

// Space is the memory that a Span lies in.
type Space uint8

const (
	// In is the rank's source buffer.
	In Space = iota + 1
	// Out is the rank's destination buffer. In an in-place plan it is the same
	// memory as In: see Plan.InPlace.
	Out
	// Host is the region of the rank's pinned host memory that this run of the
	// plan has been given. Device-mapped, readable by all ranks.
	Host
	// Scratch is the region of the rank's device scratch that this run has.
	Scratch
)

// A Span is a range of bytes.
type Span struct {
	Space Space
	Rank  int
	Off   uint64
	Len   uint64
	// Wide says that the bytes are partial results of type Plan.Partial()
	// rather than elements of Plan.Type.
	Wide bool
}

// End is the offset behind the span.
func (s Span) End() uint64 { return s.Off + s.Len }

// Kind is what a step does.
type Kind uint8

const (
	// ToHost copies device memory of Rank (In, Out or Scratch) to Host memory.
	ToHost Kind = iota + 1
	// FromHost copies Host memory to device memory of Rank.
	FromHost
	// Reduce folds its sources in order, all in device memory of Rank.
	Reduce
	// ReduceFromHost is Reduce in which at least one source is Host memory,
	// read by the kernel in place ("zero copy").
	ReduceFromHost
	// PeerCopy copies device memory of Rank to device memory of another rank,
	// directly. Rank is the source's.
	PeerCopy
	// LocalCopy copies device memory of Rank to device memory of Rank.
	LocalCopy
)

// Lane is one of a rank's two queues.
type Lane uint8

const (
	LaneOut Lane = iota
	LaneIn
	Lanes = 2
)

// A Step is one copy or one kernel.
type Step struct {
	Kind Kind
	Rank int // whose lane runs it, and whose context
	Lane Lane
	Dst  Span
	Src  []Span // one for copies, 1..kernel.MaxInputs in fold order for reductions
	// Divisor, if not 0, divides the fold's result before it is rounded (avg).
	Divisor int
	// After lists earlier steps, by index, that this one must follow. What the
	// lane's own order implies need not be listed.
	After []int
}

// A Plan is a whole operation. Steps are in the order in which they are
// enqueued: After names smaller indices only.
type Plan struct {
	Op        string // "copy", "all_reduce", "all_gather"
	Algorithm string // "staged", "direct", "local", "ring", "ring_zero_copy"
	Ranks     int
	Type      dtype.Type
	Reduction dtype.Op // of a reduction
	// InPlace says that In and Out share memory: on every rank, byte o of In is
	// byte InOff[rank]+o of Out (all_reduce: InOff is 0; all_gather: the rank's
	// shard). InOff is nil when not in place.
	InPlace bool
	InOff   []uint64

	// InBytes and OutBytes are the lengths of the user's buffers by rank; 0
	// where the rank has none.
	InBytes, OutBytes []uint64
	// HostBytes and ScratchBytes are what the plan needs of each rank.
	HostBytes, ScratchBytes []uint64

	Chunk uint64 // bytes a piece
	Slots int    // pieces in flight a lane pair

	Steps []Step
}

// Partial is the type of a wide span's elements.
func (p *Plan) Partial() dtype.Type { return dtype.Partial(p.Type, p.Reduction) }
