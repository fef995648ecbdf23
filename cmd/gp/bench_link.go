// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
)

var benchLinkCommand = &command{
	name:     "bench link",
	synopsis: "each GPU's link: to the host, from it, and both at once",
	usage:    "bench link [--bytes SIZES | -b SIZE -e SIZE [-f N]] [--gpus LIST] [--rounds N] [--time TIME] [--sim NAME] [--json | --csv] [--save FILE] [--html FILE]",
	text: `Copies between pinned host memory and each GPU: device to host, host to device, and both at once; with the
host memory on the NUMA node of the GPU and on the one farthest from it; and on all GPUs together.

Time is that of the GPUs' events, with all that runs at once enqueued before the first of it starts; wall is from
the first call to the end of the last copy, by the host's clock, of a run of its own. Bytes are those of one
direction of one GPU. Algbw is the sum of all that runs at once, busbw that of one direction of one link.`,
	setup: func(fl *flag.FlagSet) func(context.Context, *environment) error {
		b := &bench{}
		b.declare(fl, formatSize(linkBytes)+", on a simulated machine "+formatSize(linkBytesModelled))
		return func(ctx context.Context, e *environment) error {
			b.given(fl)
			if err := b.start(e, "link"); err != nil {
				return err
			}
			l := &linkBench{bench: b, rig: &rig{b: b}}
			if err := l.plan(); err != nil {
				return l.giveUp(err)
			}
			return b.measure(ctx, nil, l.prepare)
		}
	},
}

// linkBytes is what is measured unless the user says otherwise: well beyond the
// caches of GPUs, and most of those of hosts.
const (
	linkBytes         = 256 << 20
	linkBytesModelled = 16 << 20
)

// Keys of the cases: the direction, what the node is, and which GPUs.
var linkCases = []*benchCase{
	{"link.d2h", "device to host, node of the GPU", nil},
	{"link.h2d", "host to device, node of the GPU", nil},
	{"link.both", "both directions at once, node of the GPU", nil},
	{"link.d2h.far", "device to host, farthest node", noFarNode},
	{"link.h2d.far", "host to device, farthest node", noFarNode},
	{"link.both.far", "both directions at once, farthest node", noFarNode},
	{"link.d2h.all", "device to host, all GPUs together", noPair},
	{"link.h2d.all", "host to device, all GPUs together", noPair},
	{"link.both.all", "both directions at once, all GPUs together", noPair},
}

func noFarNode(b *bench) string {
	if len(memoryNodes(b.host.FS())) < 2 {
		return "the host shows one NUMA node"
	}
	gpus, err := b.chooseGPUs()
	if err != nil {
		return ""
	}
	for _, g := range gpus {
		if gpuNode(b.host.FS(), b.devices[g]) >= 0 {
			return ""
		}
	}
	return "the host does not tell the NUMA node of a GPU"
}

// A linkBench is one run.
type linkBench struct {
	*bench
	rig   *rig
	ports []int // ordinals
	cases []*benchCase
	near  map[int]*port
	far   map[int]*port
}

// giveUp is the end of a run before it began.
func (b *bench) giveUp(err error) error {
	return joined(err, b.closeFiles(false), b.close())
}

// plan decides what runs, and refuses what does not fit.
func (l *linkBench) plan() (err error) {
	if l.ports, err = l.chooseGPUs(); err != nil {
		return err
	}
	l.cases = l.choose(linkCases)
	sides := uint64(1)
	if slices.ContainsFunc(l.cases, func(c *benchCase) bool { return strings.HasSuffix(c.key, ".far") }) {
		sides = 2
	}
	need := func(most uint64) benchNeed {
		n := l.span(most)
		d := benchNeed{device: map[int]uint64{}, host: n + uint64(len(l.ports))*sides*2*n}
		for _, g := range l.ports {
			d.device[g] = 2*n + gateBytes
		}
		return d
	}
	if !l.chosen {
		l.sizes = sizeList{linkBytes}
		if l.machine.modelled() { // whose bytes are this host's to move
			l.sizes = sizeList{linkBytesModelled}
		}
	}
	return l.fit(need)
}

// span is the size of buffers for transfers of most bytes: small ones rotate
// through more than a GPU's cache.
func (b *bench) span(most uint64) uint64 {
	least := uint64(rotateBytes)
	if b.machine.modelled() { // which has no caches, and this host's memory
		least = rotateBytesModelled
	}
	if most >= least {
		return most
	}
	return roundUp(least, most)
}

const (
	rotateBytes         = 128 << 20 // the largest cache of a GeForce card has 96 MiB, that of an RTX 5090
	rotateBytesModelled = 1 << 20
	gateBytes           = 64 << 20
	gateBytesModelled   = 1 << 20
)

// prepare makes the ports and the series.
func (l *linkBench) prepare(context.Context) (all []*series, err error) {
	n := l.span(l.sizes.most())
	l.step("preparing", n*uint64(4*len(l.ports)+4))
	l.rig.want = l.data(n)
	l.near, l.far = map[int]*port{}, map[int]*port{}
	for _, g := range l.ports {
		near := l.rig.nodeOf(g)
		if l.near[g], err = l.rig.newPort(g, near, int(n), nil); err != nil {
			return nil, err
		}
		if near < 0 || !slices.ContainsFunc(l.cases, func(c *benchCase) bool { return strings.HasSuffix(c.key, ".far") }) {
			continue
		}
		far := farNode(l.host.FS(), near)
		if err := l.rig.prefers(far); err != nil {
			l.note("no host memory on node %d, the farthest from GPU %d: %v", far, g, err)
			continue
		}
		if l.far[g], err = l.rig.newPort(g, far, int(n), l.near[g]); err != nil {
			return nil, err
		}
	}
	bytes := gateBytes
	if l.machine.modelled() {
		bytes = gateBytesModelled
	}
	if l.rig.gate, err = newGate(l.bench, l.near[l.ports[0]].cc, bytes); err != nil {
		return nil, fmt.Errorf("holding streams back: %w", err)
	}
	for _, size := range l.sizes {
		for _, c := range l.cases {
			all = append(all, l.series(c, size)...)
		}
	}
	return all, nil
}

// series are those of a case at a size: one a GPU, or one for all.
func (l *linkBench) series(c *benchCase, size uint64) (out []*series) {
	parts := strings.Split(c.key, ".") // link.DIRECTION[.WHERE]
	ports, together := l.near, false
	if len(parts) == 3 {
		if together = parts[2] == "all"; !together {
			ports = l.far
		}
	}
	var moves []move
	for _, g := range l.ports {
		p := ports[g]
		if p == nil {
			continue
		}
		if parts[1] != "h2d" {
			moves = append(moves, move{p, false})
		}
		if parts[1] != "d2h" {
			moves = append(moves, move{p, true})
		}
		if !together {
			out = append(out, l.newSeries(c, parts[1], size, moves))
			moves = nil
		}
	}
	if together {
		out = append(out, l.newSeries(c, parts[1], size, moves))
	}
	return out
}

func (l *linkBench) newSeries(c *benchCase, op string, size uint64, moves []move) *series {
	var gpus []int
	node, mixed := moves[0].p.node, false
	for _, m := range moves {
		if !slices.Contains(gpus, m.p.gpu) {
			gpus = append(gpus, m.p.gpu)
		}
		mixed = mixed || m.p.node != node
	}
	s := &series{ways: len(moves), bus: 1 / float64(len(moves))}
	s.row = benchResult{Op: op, Algorithm: "dma", Type: "uint8", Ranks: len(gpus), Bytes: size, Case: c.key, GPUs: ordinals(gpus), Clock: "events"}
	if node >= 0 && !mixed {
		s.row.HostNode = &node
	}
	ungated := false
	s.sample = func(ctx context.Context, s *series) error {
		var seconds, wall []float64
		for range l.batch(size) {
			if err := ctx.Err(); err != nil {
				return err
			}
			for _, byEvents := range []bool{true, false} {
				if err := advance(moves, int(size)); err != nil {
					return err
				}
				if byEvents {
					d, gated, err := l.rig.byEvents(moves, int(size))
					if err != nil {
						return err
					}
					if !gated && !ungated {
						ungated = true
						l.note("%s of %s on GPU %s: enqueueing is part of some times, for the streams could not be held back that long", s.row.Case, formatSize(size), s.row.GPUs)
					}
					seconds = append(seconds, d.Seconds())
				} else {
					d, err := l.rig.byWall(moves, int(size), int(size))
					if err != nil {
						return err
					}
					wall = append(wall, d.Seconds())
				}
				bad, err := l.rig.verify(moves, int(size))
				if err != nil {
					return err
				}
				s.wrong += bad
			}
		}
		s.add(seconds, wall, nil, nil, 0)
		return nil
	}
	return s
}

// batch is the samples of a series in a round: more where one is short, but on
// a simulated machine one is like the other.
func (b *bench) batch(bytes uint64) int {
	most := uint64(50)
	if b.machine.modelled() {
		most = 2
	}
	return int(min(max(batchBytes/bytes, 1), most))
}

const batchBytes = 16 << 20
