// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
)

// CopyArgs is what a copy is planned from.
type CopyArgs struct {
	Bytes uint64
	Type  dtype.Type // of the elements; 0: bytes
	// Chunk is the bytes a piece, rounded down to a multiple of 16; 0: from
	// the cost model with default rates. Slots is the pieces in flight, at
	// least 2; 0: DefaultSlots. HostBudget bounds the source's host memory in
	// bytes; 0: no limit. If the budget asks for it, chunk and slots shrink.
	Chunk      uint64
	Slots      int
	HostBudget uint64
}

func (a *CopyArgs) check() error {
	if a.Type == 0 {
		a.Type = dtype.Uint8
	}
	if !a.Type.Valid() {
		return fmt.Errorf("unknown element type %v", a.Type)
	}
	if a.Bytes%uint64(a.Type.Size()) != 0 {
		return fmt.Errorf("%d bytes are not a whole number of %v", a.Bytes, a.Type)
	}
	if a.Slots < 0 {
		return fmt.Errorf("%d slots", a.Slots)
	}
	return nil
}

func (a *CopyArgs) plan(algorithm string, ranks int) *Plan {
	p := &Plan{
		Op: "copy", Algorithm: algorithm, Ranks: ranks, Type: a.Type, Slots: 1, Chunk: a.Bytes,
		InBytes: make([]uint64, ranks), OutBytes: make([]uint64, ranks),
		HostBytes: make([]uint64, ranks), ScratchBytes: make([]uint64, ranks),
	}
	p.InBytes[0] = a.Bytes
	p.OutBytes[ranks-1] = a.Bytes
	return p
}

// Copy plans a copy of rank 0's In to rank 1's Out through a ring of slots in
// rank 0's host memory: the next pieces go to the host while the former ones
// leave it. Algorithm "staged". No bytes: no steps.
func Copy(a CopyArgs) (*Plan, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	p := a.plan("staged", 2)
	if a.Bytes == 0 {
		return p, nil
	}
	shape := func(chunk uint64, slots int) (piece, pieces uint64, used int) {
		piece = min(chunk, roundUp(a.Bytes))
		pieces = ceilDiv(a.Bytes, piece)
		return piece, pieces, int(min(uint64(slots), pieces))
	}
	chunk, slots, err := fit(a.Chunk, a.Slots, a.Bytes, a.HostBudget, 0, func(chunk uint64, slots int) need {
		piece, pieces, used := shape(chunk, slots)
		return need{host: piece * uint64(used), steps: 2 * pieces}
	})
	if err != nil {
		return nil, err
	}
	p.Chunk, _, p.Slots = shape(chunk, slots)
	p.HostBytes[0] = p.Chunk * uint64(p.Slots)
	b := newBuilder(p, p.Chunk, p.Slots)
	for lo := uint64(0); lo < a.Bytes; lo += p.Chunk {
		n := min(p.Chunk, a.Bytes-lo)
		slot := b.post(Span{Space: In, Rank: 0, Off: lo, Len: n})
		b.fetch(Span{Space: Out, Rank: 1, Off: lo, Len: n}, slot)
	}
	return b.done(), nil
}

// Direct plans a copy of rank 0's In to rank 1's Out as one PeerCopy. Algorithm
// "direct". Chunk, Slots and HostBudget are unused.
func Direct(a CopyArgs) (*Plan, error) { return a.single("direct", PeerCopy, 2) }

// Local plans a copy of In to Out of one rank as one LocalCopy. Algorithm
// "local". Chunk, Slots and HostBudget are unused.
func Local(a CopyArgs) (*Plan, error) { return a.single("local", LocalCopy, 1) }

func (a CopyArgs) single(algorithm string, kind Kind, ranks int) (*Plan, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	p := a.plan(algorithm, ranks)
	if a.Bytes > 0 {
		b := newBuilder(p, 0, 1)
		b.add(Step{
			Kind: kind, Rank: 0, Lane: LaneOut,
			Dst: Span{Space: Out, Rank: ranks - 1, Len: a.Bytes},
			Src: []Span{{Space: In, Rank: 0, Len: a.Bytes}},
		})
	}
	return p, nil
}
