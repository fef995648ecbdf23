// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/gp"
)

func TestExplanationText(t *testing.T) {
	e := gp.Explanation{
		Op: "all_reduce", Algorithm: gp.AlgorithmRing, Why: "the least by the cost model", Chunk: 1 << 20, Slots: 3, DriverCalls: 9, Copies: 4, Records: 2, Waits: 3,
		D2H: []uint64{5, 6}, H2D: []uint64{7, 8}, Peer: []uint64{0, 0}, Local: []uint64{0, 0}, Pinned: []uint64{3, 3}, Scratch: []uint64{0, 0},
		Estimates: map[gp.Algorithm]time.Duration{gp.AlgorithmRing: 1200 * time.Microsecond, gp.AlgorithmDirect: 1234567, gp.AlgorithmTwoShot: 2 * time.Millisecond},
	}
	require.Equal(t, "all_reduce: ring (the least by the cost model); pieces of 1048576 bytes, 3 in flight; 9 driver calls: 4 copies, 2 records, 3 waits; "+
		"bytes by rank to the host [5 6], from the host [7 8], pinned [3 3]; estimates ring 1.2ms, direct 1.2346ms, two_shot 2ms", fmt.Sprint(e))
	e = gp.Explanation{Op: "copy", Route: gp.RouteDirect, OwnStreams: true, DriverCalls: 1, Peer: []uint64{9, 0}}
	require.Equal(t, "copy: direct; on the buffers' own streams; 1 driver calls; bytes by rank to a peer [9 0]", e.String())
}
