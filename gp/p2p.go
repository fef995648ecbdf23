// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/geforce-p2p/geforce-p2p/internal/p2pcheck"
)

// A direction says of a source and a destination whether copies go directly,
// and why.
type direction struct {
	use  bool
	why  string
	rate float64 // bytes a second, if it is used
}

// proveP2P finds the directions of pairs in which peer copies are used: those
// that the driver grants, a one-way checked transfer proves and a measurement
// finds faster than staging. What the driver grants and is not used all the same
// is said in one warning.
func (g *Group) proveP2P() {
	g.p2p = make([][]direction, len(g.ranks))
	for i := range g.p2p {
		g.p2p[i] = make([]direction, len(g.ranks))
	}
	for i, src := range g.ranks {
		for j, dst := range g.ranks {
			d := &g.p2p[i][j]
			if src.ctx == dst.ctx {
				d.why = "P2P is not used between ranks of one GPU" // the staged path is what is being tried there
				continue
			}
			if g.opts.P2P == P2POff {
				d.why = "P2P is off by option"
				continue
			}
			can, err := src.device.CanAccessPeer(dst.device)
			switch {
			case err != nil:
				d.why = fmt.Sprintf("the driver cannot be asked for P2P: %v", err)
			case !can:
				d.why = "the driver denies P2P"
				continue
			case g.opts.P2P == P2PTrust:
				if err := src.cc.EnablePeerAccess(dst.cc); err != nil {
					d.why = fmt.Sprintf("P2P cannot be enabled: %v", err)
				} else {
					*d = direction{true, "the driver grants P2P and is trusted", trustedRate}
				}
			default:
				*d = g.prove(src, dst)
			}
			if !d.use {
				g.log.Warn("gp: copies are staged", "from", i, "to", j, "because", d.why)
			}
			g.log.Debug("gp: P2P", "from", i, "to", j, "use", d.use, "because", d.why)
		}
	}
}

// trustedRate is what the cost model takes for P2P that nobody has timed.
const trustedRate = 25e9

// proofTime bounds one check: on a broken platform the transfer may never end.
const proofTime = 10 * time.Second

func (g *Group) prove(src, dst *Rank) direction {
	ctx, cancel := context.WithTimeout(context.Background(), proofTime)
	defer cancel()
	var res p2pcheck.Result
	var err error
	g.relaxed(func() { res, err = p2pcheck.Prove(ctx, src.cc, dst.cc, p2pcheck.Options{}) })
	switch {
	case err != nil:
		return direction{why: fmt.Sprintf("P2P cannot be checked: %v", err)}
	case res.Verdict != p2pcheck.Proven:
		return direction{why: "the driver grants P2P but a checked transfer says otherwise: " + res.String()}
	}
	// Both routes, timed in one way: from the call to its end.
	direct, err := g.timeRoute(ctx, src, dst, RouteDirect)
	if err == nil {
		var staged time.Duration
		if staged, err = g.timeRoute(ctx, src, dst, RouteStaged); err == nil {
			rates := fmt.Sprintf("%.1f GB/s directly and %.1f GB/s staged", timedBytes/direct.Seconds()/1e9, timedBytes/staged.Seconds()/1e9)
			if direct > staged {
				return direction{why: "P2P is proven but slower than staging: " + rates}
			}
			return direction{true, "P2P is proven and faster: " + rates, res.BytesPerSecond}
		}
	}
	return direction{why: fmt.Sprintf("P2P is proven but cannot be timed: %v", err)}
}

// A route is timed over this many bytes, the median of timedRounds copies after
// one that warms up.
const (
	timedBytes  = 16 << 20
	timedRounds = 3
)

// timeRoute is how long a copy takes by a route, P2P having been proven.
func (g *Group) timeRoute(ctx context.Context, src, dst *Rank, route Route) (_ time.Duration, err error) {
	was := g.p2p[src.index][dst.index]
	g.p2p[src.index][dst.index].use = true
	defer func() { g.p2p[src.index][dst.index] = was }()
	var bufs [2]Buffer
	for i, r := range [...]*Rank{dst, src} {
		if bufs[i], err = r.Alloc(TypeUint8, timedBytes); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, bufs[i].Free()) }()
	}
	var took [timedRounds]time.Duration
	for k := range timedRounds + 1 {
		start := g.host.Now()
		w, err := g.With(CallOptions{Route: route}).Copy(bufs[0], bufs[1])
		if err == nil {
			err = w.Wait(ctx)
		}
		if err != nil {
			return 0, err
		}
		took[max(k-1, 0)] = g.host.Now() - start
	}
	slices.Sort(took[:])
	return took[timedRounds/2], nil
}
