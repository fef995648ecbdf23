// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math"
	"time"

	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// Costs is what a collective's time is estimated from. A field that is not
// positive means that of DefaultCosts.
type Costs struct {
	// Rate is what a link's lanes can carry each way, in bytes a second, and Peer
	// what a rank's direct path to others does; Peer 0: none.
	Rate, Peer float64
	// DMA is the part of Rate that copies reach each way while both are busy, Kernel
	// what kernels do which read and write mapped host memory in turn, and Bulk what
	// they do at the same time.
	DMA, Kernel, Bulk float64
	Share             int // ranks on one link
	// What a driver call costs the thread that makes it: a copy, a launch, a
	// record or wait.
	Copy, Launch, Call time.Duration
	// Begin is what a rank's part of a plan takes besides its pieces: its streams
	// fenced, its events, and the way of the first copy.
	Begin time.Duration
	// PerCopy is what a piece costs on its way out and in, on top of its bytes;
	// Hop what it takes until another rank sees that something is there. A kernel's
	// exchange by bulk flags has rounds of a step each, and a GPU serves the fences of
	// all blocks one after another.
	PerCopy, Hop, Step, Fence time.Duration
	// Chunk and the budgets are those of Args. Area is the bytes of a rank's area for
	// exchanges; 0: any message fits.
	Chunk, HostBudget, Area uint64
	Block                   bool
}

// DefaultCosts was measured on one PCIe 5.0 x16 card, but for the rate.
var DefaultCosts = Costs{
	Rate: DefaultRate, DMA: 0.78, Kernel: 0.9, Bulk: 0.6, Share: 1,
	Copy: 3 * time.Microsecond, Launch: 5800 * time.Nanosecond, Call: 300 * time.Nanosecond, Begin: 3 * time.Microsecond,
	PerCopy: DefaultPerCopy, Hop: 4 * time.Microsecond, Step: 7200 * time.Nanosecond, Fence: 640 * time.Nanosecond,
}

func (c Costs) filled() Costs {
	d := DefaultCosts
	for _, f := range []struct{ have, def *float64 }{{&c.Rate, &d.Rate}, {&c.DMA, &d.DMA}, {&c.Kernel, &d.Kernel}, {&c.Bulk, &d.Bulk}} {
		if !(*f.have > 0) {
			*f.have = *f.def
		}
	}
	for _, f := range []struct{ have, def *time.Duration }{
		{&c.Copy, &d.Copy}, {&c.Launch, &d.Launch}, {&c.Call, &d.Call}, {&c.Begin, &d.Begin}, {&c.PerCopy, &d.PerCopy}, {&c.Hop, &d.Hop}, {&c.Step, &d.Step}, {&c.Fence, &d.Fence},
	} {
		if *f.have <= 0 {
			*f.have = *f.def
		}
	}
	c.Share = max(c.Share, 1)
	return c
}

// A load is what an operation's plan asks of a rank, in units of the longer of
// its buffers.
type load struct {
	up, down float64 // of the link that carries most
	fill     float64 // what goes out of a segment before any of it comes in
	out, in  float64 // copies of a segment each way
	folds    float64 // kernels of a segment
	hops     float64 // exchanges one after another
}

// Estimate is about how long an operation takes from the first driver call to
// the end of the last copy, with nothing else going on: the greater of the time
// to enqueue it by one thread and the time of its bytes, and what of both comes
// before and behind the rest. bytes is the longer of a rank's buffers. It tells
// algorithms apart; it is not a promise. Algorithms are those of Plan and
// "one_shot" and "two_shot", kernels of an all_reduce that wait for each other.
// False: there is no such algorithm of the operation.
func Estimate(algorithm, op string, ranks int, bytes uint64, c Costs) (time.Duration, bool) {
	c = c.filled()
	if ranks < 2 || bytes == 0 {
		return 0, true
	}
	n, s, share := float64(ranks), float64(bytes), float64(min(c.Share, ranks))
	others := n - 1
	call, dma := c.Call.Seconds(), c.Rate*c.DMA
	seconds := 0.0
	switch algorithm {
	case "one_shot":
		// All words carry as many bytes of flags as of data.
		switch op {
		case "all_reduce":
			seconds = n*c.Launch.Seconds() + c.Hop.Seconds() + 2*share*n*s/(c.Rate*c.Kernel)
		case "all_gather":
			seconds = n*c.Launch.Seconds() + c.Hop.Seconds() + 2*share*s/(c.Rate*c.Kernel)
		default:
			return 0, false
		}
	case "two_shot":
		if op != "all_reduce" {
			return 0, false
		}
		if bytes <= kernel.MaxLL {
			seconds = n*c.Launch.Seconds() + 2*c.Hop.Seconds() + 2*share*(1+2*others/n)*s/(c.Rate*c.Kernel)
			break
		}
		parts, rounds, blocks := c.exchange(ranks, int(share), bytes)
		step := max(c.Step.Seconds(), blocks*share*c.Fence.Seconds())
		moved := share * max(1, 2*others/n) * s / (c.Rate * c.Bulk)
		seconds = n*c.Launch.Seconds() + c.Hop.Seconds() + max(parts*(rounds+2)*step, moved*(1+1/rounds))
	case "ring", "ring_zero_copy":
		var steps, folds float64
		switch op {
		case "all_reduce":
			steps, folds = 2*others, others
		case "reduce_scatter":
			steps, folds = others, others
		case "all_gather":
			steps = others
		default:
			return 0, false
		}
		shard := s / n
		chunk := float64(c.Chunk)
		if chunk == 0 {
			chunk = float64(Chunk(uint64(shard), c.Rate, c.PerCopy))
		}
		pieces := math.Ceil(shard / chunk)
		enqueue := n * pieces * (steps*(2*c.Copy.Seconds()+4*call) + folds*c.Launch.Seconds())
		// A ring has a link full both ways all the time, where other plans leave the
		// way out half idle: hosts that carry less both ways than the one that was
		// measured are slower at that.
		links := 1.05 * share * steps * (shard/dma + pieces*c.PerCopy.Seconds())
		if pieces < fewPieces && share == 1 {
			links *= 2 // nothing comes while anything goes
		}
		seconds = n*c.Begin.Seconds() + max(enqueue, links) + 2*c.Hop.Seconds()*steps/pieces + (shard/pieces)/dma
	case "direct", "peer":
		peer := algorithm == "peer"
		if peer {
			if !(c.Peer > 0) {
				return 0, false
			}
			c.Rate, dma = c.Peer, c.Peer
		}
		l, ok := c.load(op, n, share, peer)
		if !ok {
			return 0, false
		}
		a := Args{Ranks: ranks, Rate: c.Rate, PerCopy: c.PerCopy, Share: c.Share}
		chunk := float64(c.Chunk)
		switch {
		case chunk > 0 && op == "all_gather":
			chunk *= n // a chunk is of a shard
		case chunk > 0:
		case op == "broadcast":
			chunk = float64(a.chunk(bytes))
		case op == "all_gather":
			chunk = float64(a.chunk(bytes/uint64(ranks))) * n
		default:
			chunk = float64(a.segment(bytes, l.fill, max(l.out, l.in)))
		}
		if c.HostBudget > 0 && !peer {
			chunk = min(chunk, float64(c.HostBudget)/DefaultSlots)
		}
		segments := max(math.Ceil(s/chunk), 1)
		once := n * ((l.out+l.in)*c.Copy.Seconds() + l.folds*c.Launch.Seconds() + 6*call)
		if segments == 1 {
			seconds = once + (l.up+l.down)*s/dma
		} else {
			if l.hops > 1 && ranks > 2 && segments > singles && !peer {
				// Results are fetched in pairs, and the first segments are short.
				l.in -= (l.in - 1) / batchSegments
				l.fill /= 4
			}
			way := func(carried, copies float64) float64 {
				return carried*s/dma + segments*share*copies*c.PerCopy.Seconds()
			}
			seconds = max(segments*once, way(l.up, l.out), way(l.down, l.in)) + once + share*l.fill*s/segments/dma
		}
		seconds += n*c.Begin.Seconds() + l.hops*c.Hop.Seconds()
	default:
		return 0, false
	}
	return time.Duration(seconds * float64(time.Second)), true
}

// exchange is in how many parts a two-shot exchange in bulk is done, in how many
// rounds each, and with how many blocks.
func (c *Costs) exchange(ranks, share int, bytes uint64) (parts, rounds, blocks float64) {
	n, part := uint64(1), bytes
	for n < kernel.MaxParts && c.Area > 0 && kernel.AreaNeed(kernel.TwoShot, part, ranks) > c.Area {
		n++
		part = (bytes + n - 1) / n
	}
	grid, threads := kernel.ExchangeShape(kernel.TwoShot, part, ranks, share)
	return float64(n), math.Ceil(float64(part) / float64(ranks) / float64(16*grid*threads)), float64(grid)
}

// load is that of a direct plan; up and down are of all ranks on a link.
func (c *Costs) load(op string, n, share float64, peer bool) (load, bool) {
	others := n - 1
	sides := min(others, 2)
	if !c.Block || peer {
		sides = others
	}
	l, ok := load{}, true
	switch op {
	case "all_reduce":
		l = load{up: 1, down: 2 * others / n, fill: others / n, out: sides + 1, in: sides + 1, folds: 1, hops: 2}
		if n == 2 && !peer {
			l = load{up: 1, down: 1, fill: 1, out: 1, in: 1, folds: 1, hops: 1} // both fold all
		}
	case "reduce_scatter":
		l = load{up: others / n, down: others / n, fill: others / n, out: sides, in: 1, folds: 1, hops: 1}
	case "all_to_all":
		l = load{up: others / n, down: others / n, fill: others / n, out: sides, in: sides, hops: 1}
	case "all_gather":
		l = load{up: 1 / n, down: others / n, fill: 1 / n, out: 1, in: sides, hops: 1}
	case "broadcast":
		// The root sends and all others receive.
		l = load{up: 1 / share, down: min(share, others) / share, fill: 1 / share, out: 1 / n, in: others / n, hops: 1}
	case "reduce":
		// The root reads the results on top.
		l = load{up: 1, down: others/n + others/n/share, fill: others / n, out: sides + 1, in: 1 + sides/n, folds: 1, hops: 2}
	default:
		ok = false
	}
	if peer {
		// What a rank would fetch the others send.
		if l.up, l.down = max(l.up, l.down), 0; op == "all_gather" || op == "all_to_all" {
			l.out = others
		}
		l.in = 0
	}
	l.up *= share
	l.down *= share
	return l, ok
}
