// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/geforce-p2p/geforce-p2p/gp"
)

// defaultTime bounds a run without a kind: under three minutes, what opening and
// closing take included.
const defaultTime = 150 * time.Second

// setupDefaultBench is gp bench without a kind.
func setupDefaultBench(fl *flag.FlagSet) func(context.Context, *environment) error {
	b := &bench{}
	b.declareRun(fl)
	b.declareOutput(fl)
	return func(ctx context.Context, e *environment) error {
		if fl.NArg() > 0 {
			return usagef("no kind %q: there are %s", fl.Arg(0), benchKinds())
		}
		b.given(fl)
		if b.atMost == 0 {
			b.atMost = defaultTime
		}
		if err := b.start(e, "default"); err != nil {
			return err
		}
		parts, err := b.defaultParts()
		if err != nil {
			return b.giveUp(err)
		}
		return b.measureParts(ctx, parts)
	}
}

func benchKinds() string {
	s := ""
	for i, k := range benchKindCommands {
		switch {
		case i == len(benchKindCommands)-1:
			s += " and "
		case i > 0:
			s += ", "
		}
		s += k.name[len("bench "):]
	}
	return s
}

// defaultParts are what says most about the machine. Each is a kind of its own,
// with fewer sizes than that takes by itself.
func (b *bench) defaultParts() (parts []*part, err error) {
	gpus, err := b.chooseGPUs()
	if err != nil {
		return nil, err
	}
	one := len(gpus) == 1
	modelled := b.machine.modelled()

	link := &linkBench{bench: b.part("link")}
	link.rig = &rig{b: link.bench}
	if err := link.plan(); err != nil {
		return nil, err
	}
	parts = append(parts, &part{bench: link.bench, title: "link", weight: 2, phases: []phase{link.prepare}})

	copies := &copyBench{bench: b.part("copy")}
	copies.rig = &rig{b: copies.bench}
	copies.sizes = sizeList{4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20}
	if modelled {
		copies.sizes = copies.sizes[:4]
	}
	if one {
		copies.sameGPU = true
		b.note("the ranks of copies and collectives share the one GPU, so they share its link")
	} else {
		copies.gpus = gpus[:2]
	}
	copies.keepSizes = true
	if err := copies.plan(); err != nil {
		return nil, err
	}
	parts = append(parts, &part{bench: copies.bench, title: "copy", weight: 3, phases: []phase{copies.prepare, copies.prepareDirect}, finish: copies.finish})

	if !one {
		p := &p2pBench{bench: b.part("p2p")}
		p.rig = &rig{b: p.bench}
		if err := p.plan(); err != nil {
			return nil, err
		}
		parts = append(parts, &part{bench: p.bench, title: "p2p", weight: 4, phases: []phase{p.prepare, p.prepareDirect}, finish: p.finish})
	}

	if why := noReductions(b); why != "" {
		b.note("no collectives: %s", why)
		return parts, nil
	}
	for _, g := range b.defaultGroups(gpus) {
		for _, o := range collectiveOps {
			if g.others == (o.name == "all_reduce") {
				continue
			}
			c := &collectiveBench{bench: b.part(o.name), op: o, typ: gp.TypeFloat32, ranks: g.ranks, sameGPU: g.sameGPU}
			c.rig = &rig{b: c.bench}
			c.gpus, c.sizes, c.keepSizes = gpus, g.sizes, true
			if err := c.plan(); err != nil {
				return nil, err
			}
			parts = append(parts, &part{bench: c.bench, title: fmt.Sprintf("%s on %d ranks", o.name, len(c.onGPU)), weight: g.weight, phases: []phase{c.prepare}})
		}
	}
	return parts, nil
}

// A defaultGroup is ranks that the run without a kind makes.
type defaultGroup struct {
	ranks, sameGPU int
	others         bool // all but all_reduce
	sizes          sizeList
	weight         float64
}

// defaultGroups: on one GPU all_reduce with ranks that share it, and the other
// collectives with four of them; on more, one rank a GPU.
func (b *bench) defaultGroups(gpus []int) []defaultGroup {
	many, few := sizeList{1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20}, sizeList{16 << 10, 1 << 20, 16 << 20}
	if b.machine.modelled() {
		many, few = sizeList{1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20}, sizeList{16 << 10, 256 << 10, 1 << 20}
	}
	if len(gpus) == 1 {
		return []defaultGroup{
			{sameGPU: 2, sizes: many, weight: 2},
			{sameGPU: 4, sizes: many, weight: 2},
			{sameGPU: 8, sizes: many, weight: 3},
			{sameGPU: 4, sizes: few, weight: 1, others: true},
		}
	}
	ranks := min(len(gpus), gp.MaxRanks)
	return []defaultGroup{
		{ranks: ranks, sizes: many, weight: 3},
		{ranks: ranks, sizes: few, weight: 1, others: true},
	}
}
