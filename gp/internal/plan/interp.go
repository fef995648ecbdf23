// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// Memory is host slices in place of a plan's memory, by rank; In and Out are by
// transfer where the plan has those. In a plan in place, In[r] is the part of
// Out[r] that Plan.InOff says, or Out[r] the part of In[r] that Plan.OutOff
// says.
type Memory struct {
	In, Out, Host, Scratch [][]byte
}

// NewMemory makes the memory of a plan. In holds copies of the inputs (nil
// where a rank has none); all other bytes are random, so that a read of what
// was never written shows.
func NewMemory(p *Plan, inputs [][]byte, rng *rand.Rand) Memory {
	noise := func(sizes []uint64) [][]byte {
		bs := make([][]byte, len(sizes))
		for r, n := range sizes {
			bs[r] = make([]byte, n)
			fill(bs[r], rng)
		}
		return bs
	}
	m := Memory{In: make([][]byte, len(p.InBytes)), Out: noise(p.OutBytes), Host: noise(p.HostBytes), Scratch: noise(p.ScratchBytes)}
	for r, n := range p.InBytes {
		if p.aliased(r) {
			m.In[r] = m.Out[r][p.InOff[r]:][:n]
		} else {
			m.In[r] = make([]byte, n)
		}
		if p.OutOff != nil {
			m.Out[r] = m.In[r][p.OutOff[r]:][:p.OutBytes[r]]
		}
		copy(m.In[r], inputs[r])
	}
	return m
}

// fill sets b to random bytes.
func fill(b []byte, rng *rand.Rand) {
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, rng.Uint64())
	}
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
}

func (m Memory) span(p *Plan, s Span) []byte {
	var b []byte
	switch s.Space {
	case In:
		b = m.In[p.buffer(s)]
	case Out:
		b = m.Out[p.buffer(s)]
	case Host:
		b = m.Host[s.Rank]
	case Scratch:
		b = m.Scratch[s.Rank]
	}
	return b[s.Off:s.End():s.End()]
}

// Run executes a plan on host memory, one step at a time, in an order drawn
// from rng out of all that the lanes and Waits allow. The order favours some
// lanes over others for a while, so that a few of them run far ahead. A nil
// rng means the order of the steps.
func Run(p *Plan, m Memory, rng *rand.Rand) error {
	if rng == nil {
		for i := range p.Steps {
			m.run(p, &p.Steps[i])
		}
		return nil
	}
	waits := p.Waits()
	lanes := make([][]int, p.Ranks*Lanes)
	for i := range p.Steps {
		q := p.Steps[i].queue()
		lanes[q] = append(lanes[q], i)
	}
	done := make([]bool, len(p.Steps))
	ready := func(q int) bool {
		if len(lanes[q]) == 0 {
			return false
		}
		for _, w := range waits[lanes[q][0]] {
			if !done[w] {
				return false
			}
		}
		return true
	}
	favour := rng.Perm(len(lanes))
	for left := len(p.Steps); left > 0; left-- {
		if rng.IntN(8) == 0 {
			favour = rng.Perm(len(lanes))
		}
		next := -1
		for _, q := range favour {
			if ready(q) {
				next = q
				break
			}
		}
		if next < 0 {
			return fmt.Errorf("plan %s %s: %d steps left and none can run", p.Op, p.Algorithm, left)
		}
		i := lanes[next][0]
		lanes[next] = lanes[next][1:]
		m.run(p, &p.Steps[i])
		done[i] = true
	}
	return nil
}

func (m Memory) run(p *Plan, s *Step) {
	switch s.Kind {
	case Join:
		return
	case Reduce, ReduceFromHost:
		ins := make([][]byte, len(s.Src))
		wide := uint32(0)
		for k, src := range s.Src {
			ins[k] = m.span(p, src)
			if src.Wide {
				wide |= 1 << k
			}
		}
		kernel.Reduce(p.Type, p.Reduction, m.span(p, s.Dst), s.Dst.Wide, ins, wide, uint64(s.Divisor))
	default:
		n := max(s.Dst.rows(), s.Src[0].rows())
		for k := range n {
			copy(m.span(p, s.Dst.row(k, n)), m.span(p, s.Src[0].row(k, n)))
		}
	}
}
