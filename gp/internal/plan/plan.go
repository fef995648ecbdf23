// SPDX-License-Identifier: Apache-2.0

// Package plan writes copies and collectives out as steps before anything
// touches a GPU. An algorithm is a pure function from sizes to a Plan; a
// checker proves a Plan sound; an interpreter runs it on host memory; package
// gp's executor turns it into driver calls. It imports nothing of CUDA.
//
// # The model
//
// A rank has lanes, each a queue that runs its steps in order: LaneOut moves
// device memory to host memory, LaneIn moves host memory to device memory; both
// reduce, and LaneFold does nothing else. Steps of different lanes run concurrently unless one
// names the other in After. Every rank can read and write every rank's pinned
// host memory; device memory belongs to its rank (PeerCopy apart).
//
// Where all ranks wait for all, a Join stands between: N steps are awaited by
// it and N steps wait for it, which takes 2N driver calls instead of N*N. Joins
// have a lane of their own, LaneJoin of rank 0.
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

// MaxPitch is the greatest distance in bytes between two rows that the driver
// takes, CU_DEVICE_ATTRIBUTE_MAX_PITCH of every GPU so far. A plan with Across
// rows needs regions no further apart than that.
const MaxPitch = 1<<31 - 1

// A Span is a range of bytes, or equal ranges at equal distances.
type Span struct {
	Space Space
	Rank  int
	Off   uint64
	Len   uint64 // bytes of all rows together
	// Wide says that the bytes are partial results of type Plan.Partial()
	// rather than elements of Plan.Type.
	Wide bool
	// Rows, if more than one, cuts Len into so many equal rows, as
	// cuMemcpy2DAsync has them. Row k begins Pitch*k bytes behind Off in the
	// same memory or, if Across (of Host memory only), at the same Off of rank
	// Rank+k's region.
	Rows   int
	Pitch  uint64
	Across bool
	// Buffer is the transfer whose In or Out it is, in a plan with Transfers.
	Buffer int
}

// End is the offset behind a span of one row.
func (s Span) End() uint64 { return s.Off + s.Len }

// rows is the number of rows, at least 1.
func (s Span) rows() int { return max(s.Rows, 1) }

// row is row k of a span that is taken as n rows: one row is cut into n.
func (s Span) row(k, n int) Span {
	r := s
	r.Rows, r.Pitch, r.Across = 0, 0, false
	r.Len = s.Len / uint64(n)
	switch {
	case s.Rows <= 1:
		r.Off += uint64(k) * r.Len
	case s.Across:
		r.Rank += k
	default:
		r.Off += uint64(k) * s.Pitch
	}
	return r
}

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
	// Join moves nothing: it is over when its After is, and others name it in
	// theirs. It has no Dst and no Src. On LaneJoin it gathers all ranks; on
	// another lane it is the gate by which a rank's memory is opened to the
	// PeerCopies of others, or closed: the rank's own stream reaches that lane
	// before, or waits for it behind.
	Join
)

// Lane is one of a rank's queues, or the queue of the Joins.
type Lane uint8

const (
	LaneOut Lane = iota
	LaneIn
	// LaneJoin belongs to rank 0 and runs nothing but Joins.
	LaneJoin
	// LaneFold reduces, where a reduction would hold up the copies of either way.
	LaneFold
	Lanes = 4
)

// A Step is one copy, one kernel or one Join. A ToHost or FromHost may have
// rows on either side: as many on both, or one contiguous row on one side. No
// other step has rows.
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

// Callers tells whether the step touches the caller's buffers, or opens or closes
// them to others.
func (s *Step) Callers() bool {
	if s.Kind == Join {
		return s.Lane != LaneJoin
	}
	for _, sp := range s.Src {
		if sp.Space == In || sp.Space == Out {
			return true
		}
	}
	return s.Dst.Space == In || s.Dst.Space == Out
}

// A Plan is a whole operation. Steps are in the order in which they are
// enqueued: After names smaller indices only.
type Plan struct {
	// Op is "copy", "all_reduce", "all_gather", "reduce_scatter", "broadcast",
	// "reduce", "all_to_all" or "send_recv"; Algorithm "staged", "direct",
	// "local", "ring", "ring_zero_copy" or "peer".
	Op        string
	Algorithm string
	Ranks     int
	Type      dtype.Type
	Reduction dtype.Op // of a reduction
	Root      int      // of a broadcast or reduce
	// InPlace says that In and Out share memory: on every rank, byte o of In is
	// byte InOff[rank]+o of Out (all_reduce: InOff is 0; all_gather: the rank's
	// shard). InOff is nil when not in place. A broadcast or reduce in place is
	// so on its root, which alone has both.
	//
	// A reduce_scatter has the longer In: byte o of Out is byte OutOff[rank]+o
	// of In, and it is OutOff that is set instead.
	InPlace       bool
	InOff, OutOff []uint64
	// Across says that some span is Across: the executor must give all ranks
	// regions of host memory at the same offset of memory that lies at equal
	// distances, of MaxPitch at most.
	Across bool

	// InBytes and OutBytes are the lengths of the user's buffers by rank; 0
	// where the rank has none. In a plan with Transfers they are by transfer:
	// the In is memory of the transfer's From, the Out of its To, and a span
	// says in Buffer which it means.
	InBytes, OutBytes []uint64
	Transfers         []Transfer // of a send_recv
	// HostBytes and ScratchBytes are what the plan needs of each rank.
	HostBytes, ScratchBytes []uint64

	Chunk uint64 // bytes a piece
	Slots int    // pieces in flight a lane pair

	Steps []Step
}

// A Transfer is one message of a send_recv.
type Transfer struct {
	From, To int // ranks, which may be the same
	Bytes    uint64
	// Peer says that From can write To's memory directly.
	Peer bool
}

// Partial is the type of a wide span's elements.
func (p *Plan) Partial() dtype.Type { return dtype.Partial(p.Type, p.Reduction) }
