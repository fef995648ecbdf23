// SPDX-License-Identifier: Apache-2.0

package ptxvm

import (
	"fmt"

	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// A Member is a launch that runs in steps, on memory that all see alike: a
// kernel.Coop. See NewMember.
type Member struct {
	l        Launch
	deadline uint64
	r        *run
	blocks   []*block
	err      error
}

// NewMember is a launch of a kernel that waits for what others write, as the twins
// of such kernels are: a step goes on until all its threads wait, and the Memory
// of a step must be one of this package too. %globaltimer stands still while it
// waits in steps. To give up, the kernel finds that some LookNs have passed, or
// its deadline, and does then what it does.
//
// All blocks run at once, so their registers are held until the end.
func NewMember(l Launch, deadlineNs uint64) *Member { return &Member{l: l, deadline: deadlineNs} }

// Steps is the instructions that all its threads have run together.
func (k *Member) Steps() uint64 {
	if k.r == nil {
		return 0
	}
	return k.r.steps
}

// enter makes ready what Step and GiveUp run.
func (k *Member) enter(m kernel.Memory) error {
	if k.err != nil {
		return k.err
	}
	mem, ok := m.(Memory)
	if !ok {
		return fmt.Errorf("%w: %s: memory that has no regions", ErrLaunch, k.l.Program.name)
	}
	if k.r == nil {
		if err := k.l.check(); err != nil {
			return err
		}
		k.r = newRun(&k.l, 0, mem)
		for i := range count(k.l.Grid) {
			b := &block{}
			k.r.place(b, i)
			k.blocks = append(k.blocks, b)
		}
	}
	k.r.mem = mem
	k.r.forget()
	return nil
}

// Step is kernel.Coop's.
func (k *Member) Step(m kernel.Memory) (done, moved bool, err error) {
	if err := k.enter(m); err != nil {
		return false, false, err
	}
	return k.run()
}

// run goes on until all threads wait, or have ended.
func (k *Member) run() (done, moved bool, err error) {
	for {
		k.r.moved = false
		busy, left := false, k.blocks[:0]
		for _, b := range k.blocks {
			on, err := k.r.pass(b)
			if err != nil {
				k.err = err
				return false, moved, err
			}
			busy = busy || on
			if b.ended < len(b.threads) {
				left = append(left, b)
			}
		}
		clear(k.blocks[len(left):])
		k.blocks = left
		moved = moved || k.r.moved
		if len(left) == 0 || !busy && !k.r.moved {
			return len(left) == 0, moved, nil
		}
	}
}

// GiveUp is kernel.Coop's.
func (k *Member) GiveUp(m kernel.Memory, c kernel.StatusCode) error {
	if err := k.enter(m); err != nil {
		return err
	}
	// A few times, since a thread that gives up may let another go on that has
	// not waited yet.
	for i := range 64 {
		pass := uint64(2 * kernel.LookNs)
		if c == kernel.StatusTimedOut || i >= 32 {
			// Never the same, or its 32 bits of ticks could stand still.
			pass = k.deadline + uint64(i+1)*pass
		}
		k.r.clock += pass
		if k.r.clock == 0 {
			k.r.clock = 1 // 0 is what a kernel takes for not yet
		}
		if done, _, err := k.run(); done || err != nil {
			return err
		}
	}
	return k.r.stuck(k.blocks[0])
}
