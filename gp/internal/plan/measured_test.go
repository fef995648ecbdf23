// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A contest is the times of a collective by each algorithm, in seconds.
type contest struct {
	op    string
	ranks int
	share int
	bytes uint64
	times map[string]float64
}

type point struct {
	Op, Algorithm string
	Ranks, GPUs   int
	Bytes         uint64
	Blocks        int
	Seconds       float64 `json:"median_seconds"`
}

// contests reads those of the records: from one card that all ranks share, and
// from several.
func contests(t *testing.T) (all []contest) {
	names, err := filepath.Glob("../../../docs/measured/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		var record struct {
			Measured struct {
				Collectives, Shapes struct{ Points []point }
			}
			Multi *struct {
				Collectives []struct {
					Op         string
					Ranks      int
					Bytes      uint64
					Algorithms map[string]struct{ Seconds float64 }
				}
			}
		}
		require.NoError(t, json.Unmarshal(b, &record), name)
		cards := map[[4]any]contest{}
		for _, p := range append(record.Measured.Collectives.Points, record.Measured.Shapes.Points...) {
			if p.Blocks > 0 {
				continue // not the shape that the library takes
			}
			share := p.Ranks / max(p.GPUs, 1)
			k := [4]any{p.Op, p.Ranks, share, p.Bytes}
			c, ok := cards[k]
			if !ok {
				c = contest{p.Op, p.Ranks, share, p.Bytes, map[string]float64{}}
				cards[k] = c
			}
			c.times[p.Algorithm] = p.Seconds
		}
		for _, c := range cards {
			all = append(all, c)
		}
		if record.Multi != nil {
			for _, m := range record.Multi.Collectives {
				c := contest{m.Op, m.Ranks, 1, m.Bytes, map[string]float64{}}
				for a, s := range m.Algorithms {
					if a != "peer" {
						c.times[a] = s.Seconds
					}
				}
				all = append(all, c)
			}
		}
	}
	slices.SortFunc(all, func(a, b contest) int {
		return cmp.Or(cmp.Compare(a.op, b.op), cmp.Compare(a.share, b.share), cmp.Compare(a.ranks, b.ranks), cmp.Compare(a.bytes, b.bytes))
	})
	return all
}

// TestChoiceAgainstMeasurement holds the cost model to what was measured: what the
// algorithm that it takes needs more than the fastest one, over all collectives
// that were measured by two algorithms or more.
func TestChoiceAgainstMeasurement(t *testing.T) {
	total, n := 0.0, 0
	for _, c := range contests(t) {
		if len(c.times) < 2 {
			continue
		}
		best, fastest := math.Inf(1), ""
		least, chosen := math.Inf(1), ""
		for a, s := range c.times {
			if s < best {
				best, fastest = s, a
			}
			d, ok := Estimate(a, c.op, c.ranks, c.bytes, Costs{Rate: 63e9, Share: c.share, HostBudget: 26 << 20, Area: 4<<20 - 512, Block: true})
			require.True(t, ok, "%s %s", a, c.op)
			if d.Seconds() < least {
				least, chosen = d.Seconds(), a
			}
		}
		over := c.times[chosen]/best - 1
		t.Logf("%-14s %d ranks, %d on a link, %10d B: %-9s takes %3.0f%% more than %s", c.op, c.ranks, c.share, c.bytes, chosen, 100*over, fastest)
		require.Less(t, over, 0.55, "%s of %d bytes on %d ranks, %d on a link: %s instead of %s", c.op, c.bytes, c.ranks, c.share, chosen, fastest)
		total += over
		n++
	}
	require.Greater(t, n, 100)
	require.Less(t, total/float64(n), 0.04)
}
