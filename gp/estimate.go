// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"cmp"
	"slices"
	"time"

	"github.com/geforce-p2p/geforce-p2p/gp/internal/plan"
)

// An estimate is what the cost model expects of an algorithm.
type estimate struct {
	alg Algorithm
	d   time.Duration
}

type rankingKey struct {
	op    collective
	bytes uint64
}

// maxRankings bounds the rankings that are kept.
const maxRankings = 1024

// ranking is the algorithms of a collective, the fastest first by the cost model.
// bytes is the longer of a rank's buffers. The group's lock is held.
func (g *Group) ranking(op collective, bytes uint64) []estimate {
	k := rankingKey{op, bytes}
	if r := g.rankings[k]; r != nil {
		return r
	}
	var es []estimate
	c := plan.Costs{Rate: g.rate, Share: g.share, PerCopy: g.opts.PerCopy, HostBudget: g.ranks[0].pinned.size, Area: g.area(), Block: g.oneBlock}
	if g.allPeers {
		c.Peer = g.peerRate
	}
	for _, alg := range op.algorithms() {
		if d, ok := plan.Estimate(string(alg), op.name(), len(g.ranks), bytes, c); ok {
			es = append(es, estimate{alg, d})
		}
	}
	slices.SortStableFunc(es, func(a, b estimate) int { return cmp.Compare(a.d, b.d) })
	if len(g.rankings) >= maxRankings || g.rankings == nil {
		g.rankings = map[rankingKey][]estimate{}
	}
	g.rankings[k] = es
	return es
}

// estimates is the ranking as an Explanation has it.
func (g *Group) estimates(op collective, bytes uint64) map[Algorithm]time.Duration {
	m := map[Algorithm]time.Duration{}
	for _, e := range g.ranking(op, bytes) {
		m[e.alg] = e.d
	}
	return m
}
