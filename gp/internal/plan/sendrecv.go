// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"math"
	"slices"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
)

// SendRecvArgs is what a batch of transfers is planned from.
type SendRecvArgs struct {
	Ranks     int
	Transfers []Transfer
	Type      dtype.Type // of the elements; 0: bytes
	// Chunk, Slots and HostBudget are those of Args, for each rank that sends
	// through host memory: all its transfers share its slots.
	Chunk      uint64
	Slots      int
	HostBudget uint64
}

// SendRecv plans a batch of transfers between any ranks, all at once: transfer
// t copies its In, on rank From, to its Out, on rank To. Pieces of a rank's
// transfers take turns. One to the rank itself is a LocalCopy, one with Peer a
// single PeerCopy; all others go through the sender's host memory, whose slots
// are one more than its transfers. Algorithm "direct".
//
// Spans of In and Out say in Buffer which transfer they are of; InBytes and
// OutBytes are by transfer. The plan takes the buffers for different memory: who
// runs it sees to it that no Out overlaps another buffer.
func SendRecv(a SendRecvArgs) (*Plan, error) {
	if a.Type == 0 {
		a.Type = dtype.Uint8
	}
	switch {
	case a.Ranks < 1:
		return nil, fmt.Errorf("%d ranks", a.Ranks)
	case !a.Type.Valid():
		return nil, fmt.Errorf("unknown element type %v", a.Type)
	case a.Slots < 0:
		return nil, fmt.Errorf("%d slots", a.Slots)
	}
	p := &Plan{
		Op: "send_recv", Algorithm: "direct", Ranks: a.Ranks, Type: a.Type, Slots: 1,
		Transfers: append([]Transfer{}, a.Transfers...),
		HostBytes: make([]uint64, a.Ranks), ScratchBytes: make([]uint64, a.Ranks),
		InBytes: []uint64{}, OutBytes: []uint64{},
	}
	sends := make([]int, a.Ranks)
	longest := uint64(0)
	for t, x := range p.Transfers {
		switch {
		case x.From < 0 || x.From >= a.Ranks || x.To < 0 || x.To >= a.Ranks:
			return nil, fmt.Errorf("transfer %d is from rank %d to rank %d of %d", t, x.From, x.To, a.Ranks)
		case x.Bytes%uint64(a.Type.Size()) != 0:
			return nil, fmt.Errorf("transfer %d: %d bytes are not a whole number of %v", t, x.Bytes, a.Type)
		case x.Bytes > math.MaxInt64:
			return nil, fmt.Errorf("transfer %d: %d bytes are more than memory can hold", t, x.Bytes)
		}
		p.InBytes, p.OutBytes = append(p.InBytes, x.Bytes), append(p.OutBytes, x.Bytes)
		if x.staged() && x.Bytes > 0 {
			sends[x.From]++
			longest = max(longest, x.Bytes)
		}
	}
	if longest > 0 {
		asked := a.Slots
		if asked == 0 {
			asked = max(DefaultSlots, slices.Max(sends)+1)
		}
		shape := func(chunk uint64, slots int) (piece, pieces uint64, used int) {
			piece = min(chunk, roundUp(longest))
			var most uint64 // pieces of the rank that sends most
			of := make([]uint64, a.Ranks)
			for _, x := range p.Transfers {
				if x.staged() {
					n := ceilDiv(x.Bytes, piece)
					of[x.From] += n
					pieces += n
					most = max(most, of[x.From])
				}
			}
			return piece, pieces, int(min(uint64(slots), most))
		}
		chunk, slots, err := fit(a.Chunk, asked, longest, a.HostBudget, 0, func(chunk uint64, slots int) need {
			piece, pieces, used := shape(chunk, slots)
			return need{host: piece * uint64(used), steps: 2 * pieces}
		})
		if err != nil {
			return nil, err
		}
		p.Chunk, _, p.Slots = shape(chunk, slots)
		for r, n := range sends {
			if n > 0 {
				p.HostBytes[r] = p.Chunk * uint64(p.Slots)
			}
		}
	}
	return newBuilder(p, p.Chunk, p.Slots).transfers(), nil
}

// staged tells whether a transfer goes through host memory.
func (x *Transfer) staged() bool { return x.From != x.To && !x.Peer }

func (b *builder) transfers() *Plan {
	p := b.p
	// Gates of the ranks whose memory others write.
	opened := make([]int, p.Ranks)
	for _, x := range p.Transfers {
		if x.Peer && x.From != x.To && x.Bytes > 0 && opened[x.To] == 0 {
			opened[x.To] = b.add(Step{Kind: Join, Rank: x.To, Lane: LaneIn}) + 1
		}
	}
	into := make([][]int, p.Ranks)
	for t, x := range p.Transfers {
		if x.From != x.To && x.Peer && x.Bytes > 0 {
			into[x.To] = append(into[x.To], b.add(Step{
				Kind: PeerCopy, Rank: x.From, Lane: LaneOut, Dst: p.whole(Out, t), Src: b.one(p.whole(In, t)), After: []int{opened[x.To] - 1},
			}))
		}
	}
	part := func(s Span, lo uint64) Span {
		s.Off, s.Len = lo, min(p.Chunk, s.Len-lo)
		return s
	}
	for lo, more := uint64(0), true; more; lo += p.Chunk {
		more = false
		for t, x := range p.Transfers {
			if !x.staged() || lo >= x.Bytes {
				continue
			}
			more = more || x.Bytes-lo > p.Chunk
			slot := b.post(part(p.whole(In, t), lo))
			b.fetch(part(p.whole(Out, t), lo), slot)
		}
	}
	for t, x := range p.Transfers {
		if x.From == x.To {
			b.keep(p.whole(Out, t), p.whole(In, t))
		}
	}
	for r, after := range into {
		if len(after) > 0 {
			b.add(Step{Kind: Join, Rank: r, Lane: LaneIn, After: after})
		}
	}
	return b.done()
}
