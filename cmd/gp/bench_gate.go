// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"github.com/geforce-p2p/geforce-p2p/cuda"
)

// A gate holds streams back until all that shall start together is enqueued, so
// that events time the GPUs and not the calls. It is a queue of memsets, each of
// known length: unlike a kernel that waits for the host it ends by itself, needs
// no kernel, and has nothing to do with the copy engines. Whether it held long
// enough is seen afterwards: then its event is not done when the last call has
// returned. On a simulated machine, whose memsets this host has to make, it is a
// queue of copies from the host instead, which take longer for their bytes.
type gate struct {
	stream *cuda.Stream
	mem    *cuda.Memory
	host   *cuda.HostMem // nil: memsets
	begun  *cuda.Event
	open   *cuda.Event // it opens when this is done
	each   time.Duration
	hold   time.Duration // for a few commands
}

// Beyond about 1000 queued commands a stream the driver blocks the caller, and
// the streams behind a gate would never be filled: the gate keeps far from it.
const (
	gateCommands = 400 // most commands on a stream, those of the gate included
	gateMemsets  = 200 // its own deadline: most memsets
	maxHold      = 5 * time.Millisecond
)

// newGate makes a gate on a GPU, with bytes of its memory.
func newGate(b *bench, cc *cuda.Context, bytes int) (g *gate, err error) {
	g = &gate{hold: 100 * time.Microsecond}
	s, err := cc.NewStream()
	if g.stream, err = closing(b, s, err); err != nil {
		return nil, err
	}
	m, err := cc.Alloc(bytes)
	if g.mem, err = closing(b, m, err); err != nil {
		return nil, err
	}
	for _, e := range []**cuda.Event{&g.begun, &g.open} {
		ev, err := cc.NewTimingEvent(0)
		if *e, err = closing(b, ev, err); err != nil {
			return nil, err
		}
	}
	if b.machine.modelled() {
		h, err := cc.HostAlloc(bytes, 0)
		if g.host, err = closing(b, h, err); err != nil {
			return nil, err
		}
	}
	const trials = 8
	for range 2 { // the first loads what a memset needs
		if err := g.begun.Record(g.stream); err != nil {
			return nil, err
		}
		for range trials {
			if err := g.fill(); err != nil {
				return nil, err
			}
		}
		if err := g.open.Record(g.stream); err != nil {
			return nil, err
		}
		if err := g.stream.Synchronize(); err != nil {
			return nil, err
		}
	}
	took, err := cuda.Elapsed(g.begun, g.open)
	if err != nil {
		return nil, err
	}
	if g.each = took / trials; g.each <= 0 {
		return nil, fmt.Errorf("%d bytes take no time", bytes)
	}
	return g, nil
}

// fill enqueues one of the commands that hold.
func (g *gate) fill() error {
	if g.host != nil {
		return g.stream.MemcpyHtoD(g.mem.Ptr(), g.host.Pointer(), g.mem.Len())
	}
	return g.stream.MemsetD8(g.mem.Ptr(), 0, g.mem.Len())
}

// shut enqueues the gate. It answers false, and enqueues nothing, where so many
// commands a stream are no case for a gate.
func (g *gate) shut(commands int) (bool, error) {
	n := int((g.hold + time.Duration(commands)*perCommand) / g.each)
	n = min(max(n, 1), gateMemsets, gateCommands-commands)
	if n < 1 {
		return false, nil
	}
	for range n {
		if err := g.fill(); err != nil {
			return false, err
		}
	}
	return true, g.open.Record(g.stream)
}

// perCommand is more than what enqueueing a copy or an event takes.
const perCommand = 5 * time.Microsecond

// held tells whether the gate is still shut, now that all is enqueued; if not,
// it holds longer the next time.
func (g *gate) held() (bool, error) {
	opened, err := g.open.Query()
	if opened {
		g.hold = min(2*g.hold, maxHold)
	}
	return !opened, err
}
