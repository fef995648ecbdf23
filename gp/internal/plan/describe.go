// SPDX-License-Identifier: Apache-2.0

package plan

import "fmt"

// A Summary counts what a plan does.
type Summary struct {
	Op, Algorithm string
	Ranks         int
	Chunk         uint64 // bytes a piece
	Slots         int
	Steps         int
	Copies        int // steps that are copies
	Reductions    int // steps that are kernels
	Joins         int // steps that are neither
	Waits         int // events waited for, see Plan.Waits
	Records       int // events recorded: steps that some other lane waits for
	// Calls is the driver calls of the steps: copies, kernels, records and
	// waits. Fences and bindings of contexts come on top.
	Calls int

	// By rank, in bytes: from the device to host memory and back over the
	// rank's link (reductions that read host memory count for the latter),
	// from it to other devices directly, and within it by copies.
	D2H, H2D, Peer, Local []uint64
	// What it needs of each rank's pinned memory and device scratch, in bytes.
	Host, Scratch []uint64
}

// Describe counts what a plan does.
func Describe(p *Plan) Summary {
	s := Summary{
		Op: p.Op, Algorithm: p.Algorithm, Ranks: p.Ranks, Chunk: p.Chunk, Slots: p.Slots, Steps: len(p.Steps),
		D2H: make([]uint64, p.Ranks), H2D: make([]uint64, p.Ranks), Peer: make([]uint64, p.Ranks), Local: make([]uint64, p.Ranks),
		Host: p.HostBytes, Scratch: p.ScratchBytes,
	}
	recorded := make([]bool, len(p.Steps))
	for _, ws := range p.Waits() {
		s.Waits += len(ws)
		for _, w := range ws {
			if !recorded[w] {
				recorded[w] = true
				s.Records++
			}
		}
	}
	for i := range p.Steps {
		st := &p.Steps[i]
		switch st.Kind {
		case ToHost:
			s.D2H[st.Rank] += st.Dst.Len
		case FromHost:
			s.H2D[st.Rank] += st.Dst.Len
		case Join:
			s.Joins++
		case PeerCopy:
			s.Peer[st.Rank] += st.Dst.Len
		case LocalCopy:
			s.Local[st.Rank] += st.Dst.Len
		case Reduce, ReduceFromHost:
			s.Reductions++
			for _, src := range st.Src {
				if src.Space == Host {
					s.H2D[st.Rank] += src.Len
				}
			}
		}
	}
	s.Copies = s.Steps - s.Reductions - s.Joins
	s.Calls = s.Copies + s.Reductions + s.Waits + s.Records
	return s
}

var spaceNames = [...]string{In: "In", Out: "Out", Host: "Host", Scratch: "Scratch"}

// String is the space's name: "Host".
func (s Space) String() string {
	if s < In || s > Scratch {
		return fmt.Sprintf("Space(%d)", uint8(s))
	}
	return spaceNames[s]
}

var kindNames = [...]string{
	ToHost: "toHost", FromHost: "fromHost", Reduce: "reduce", ReduceFromHost: "reduceFromHost",
	PeerCopy: "peerCopy", LocalCopy: "localCopy", Join: "join",
}

// String is the kind's name: "toHost".
func (k Kind) String() string {
	if k < ToHost || k > Join {
		return fmt.Sprintf("Kind(%d)", uint8(k))
	}
	return kindNames[k]
}

// String is the span as rank, space and bytes: "2.Host[0:4096]", with a "w"
// behind it if it is wide. Rows are shown as the first one, their number and
// their distance: "2.Host[0:64]*3+128", "*3 across" at those of other ranks.
func (s Span) String() string {
	tail := ""
	if s.Wide {
		tail = "w"
	}
	if s.Rows > 1 {
		s.Len /= uint64(s.Rows)
		if tail += fmt.Sprintf("*%d+%d", s.Rows, s.Pitch); s.Across {
			tail = fmt.Sprintf("*%d across", s.Rows)
		}
	}
	return fmt.Sprintf("%d.%v[%d:%d]%s", s.Rank, s.Space, s.Off, s.End(), tail)
}

// String is the step in one line: "toHost 0.Host[0:64] <- [0.In[0:64]]".
func (s *Step) String() string {
	if s.Kind == Join {
		return fmt.Sprintf("join %v", s.After)
	}
	return fmt.Sprintf("%v %v <- %v", s.Kind, s.Dst, s.Src)
}
