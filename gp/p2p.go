// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"context"
	"time"

	"github.com/geforce-p2p/geforce-p2p/internal/p2pcheck"
)

// proveP2P finds the directions of pairs in which peer copies are used: those
// that the driver grants and a one-way checked transfer proves. What fails is
// staged, with one warning that says why.
func (g *Group) proveP2P() [][]bool {
	use := make([][]bool, len(g.ranks))
	for i := range use {
		use[i] = make([]bool, len(g.ranks))
	}
	if g.opts.P2P == P2POff {
		return use
	}
	for i, src := range g.ranks {
		for j, dst := range g.ranks {
			if src.ctx == dst.ctx {
				continue // one GPU: the staged path is what is being tried there
			}
			can, err := src.device.CanAccessPeer(dst.device)
			if err != nil {
				g.log.Warn("gp: cannot ask for P2P: copies are staged", "from", i, "to", j, "error", err)
				continue
			}
			if !can {
				continue
			}
			if g.opts.P2P == P2PTrust {
				if err := src.cc.EnablePeerAccess(dst.cc); err != nil {
					g.log.Warn("gp: P2P cannot be enabled: copies are staged", "from", i, "to", j, "error", err)
					continue
				}
				use[i][j] = true
				continue
			}
			res, err := g.prove(src, dst)
			if err != nil {
				g.log.Warn("gp: P2P cannot be checked: copies are staged", "from", i, "to", j, "error", err)
				continue
			}
			if res.Verdict != p2pcheck.Proven {
				g.log.Warn("gp: the driver grants P2P but a checked transfer says otherwise: copies are staged", "from", i, "to", j, "result", res.String())
				continue
			}
			use[i][j] = true
		}
	}
	return use
}

// proofTime bounds one check: on a broken platform the transfer may never end.
const proofTime = 10 * time.Second

func (g *Group) prove(src, dst *Rank) (res p2pcheck.Result, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), proofTime)
	defer cancel()
	g.relaxed(func() { res, err = p2pcheck.Prove(ctx, src.cc, dst.cc, p2pcheck.Options{}) })
	return res, err
}
