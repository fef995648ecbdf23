// SPDX-License-Identifier: Apache-2.0

package plan

import "slices"

// clocks tells of any two steps whether one always ends before the other
// begins. Each step has a vector clock: for every lane, how many of its steps
// are known to be over once this one is.
type clocks struct {
	lanes int
	lane  []int    // of each step
	pos   []uint32 // of each step in its lane, from 1
	clock []uint32 // lanes entries a step
}

// queue numbers the lanes of all ranks.
func (s *Step) queue() int { return s.Rank*Lanes + int(s.Lane) }

// newClocks needs steps whose ranks, lanes and After are in range.
func newClocks(p *Plan) *clocks {
	c := &clocks{
		lanes: p.Ranks * Lanes,
		lane:  make([]int, len(p.Steps)),
		pos:   make([]uint32, len(p.Steps)),
		clock: make([]uint32, len(p.Steps)*p.Ranks*Lanes),
	}
	last := make([]int, c.lanes)
	for i := range last {
		last[i] = -1
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		q := s.queue()
		c.lane[i], c.pos[i] = q, 1
		now := c.of(i)
		if l := last[q]; l >= 0 {
			copy(now, c.of(l))
			c.pos[i] = c.pos[l] + 1
		}
		for _, a := range s.After {
			join(now, c.of(a))
		}
		now[q] = c.pos[i]
		last[q] = i
	}
	return c
}

func (c *clocks) of(i int) []uint32 { return c.clock[i*c.lanes : (i+1)*c.lanes] }

// before tells whether step a is over when step b begins.
func (c *clocks) before(a, b int) bool { return a != b && c.of(b)[c.lane[a]] >= c.pos[a] }

func join(dst, src []uint32) {
	for i, v := range src {
		dst[i] = max(dst[i], v)
	}
}

// Waits gives, for each step, the steps that it must wait for by event, in
// rising order. It is After without what needs no event: steps of the same
// lane, and steps that are over by the time because of the lane's earlier
// waits or of another wait of the same step. The plan must be sound as Check
// has it.
func (p *Plan) Waits() [][]int {
	c := newClocks(p)
	waits := make([][]int, len(p.Steps))
	known := make([]uint32, c.lanes*c.lanes) // by lane, what its waits so far imply
	var backing, after []int
	for i := range p.Steps {
		s := &p.Steps[i]
		now := known[s.queue()*c.lanes:][:c.lanes]
		// A step that implies another has the greater index: look at those
		// first, and nothing kept can become superfluous later.
		after = append(after[:0], s.After...)
		slices.Sort(after)
		start := len(backing)
		for _, a := range slices.Backward(after) {
			if c.lane[a] == c.lane[i] || now[c.lane[a]] >= c.pos[a] {
				continue
			}
			join(now, c.of(a))
			backing = append(backing, a)
		}
		now[c.lane[i]] = c.pos[i]
		if len(backing) > start {
			w := backing[start:len(backing):len(backing)]
			slices.Reverse(w)
			waits[i] = w
		}
	}
	return waits
}
