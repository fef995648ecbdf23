// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math"
	"math/bits"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestChunk(t *testing.T) {
	const us = time.Microsecond
	for _, c := range []struct {
		bytes   uint64
		rate    float64
		perCopy time.Duration
		want    uint64
	}{
		{0, 50e9, 5 * us, 256 << 10},
		{1, 50e9, 5 * us, 256 << 10},
		{4 << 20, 50e9, 5 * us, 1 << 20},
		{16 << 20, 50e9, 5 * us, 2 << 20},
		{1 << 30, 50e9, 5 * us, 8 << 20},
		{math.MaxUint64, 50e9, 5 * us, 8 << 20},
		{16 << 20, 0, 0, 1 << 20},
		{16 << 20, math.NaN(), 0, 1 << 20},
		{16 << 20, math.Inf(1), us, 8 << 20},
		{64 << 20, 25e9, 20 * us, 4 << 20},
	} {
		require.Equal(t, c.want, Chunk(c.bytes, c.rate, c.perCopy), "%+v", c)
	}
	last := uint64(0)
	for n := uint64(1); n < 1<<40; n = n*3/2 + 1 {
		got := Chunk(n, 0, 0)
		require.Equal(t, 1, bits.OnesCount64(got))
		require.GreaterOrEqual(t, got, last)
		last = got
	}
}

// TestChunkIsNearTheBest compares the model's choice with every power of two
// under the model's own time.
func TestChunkIsNearTheBest(t *testing.T) {
	const perCopy = 5e-6
	for n := 4 << 20; n <= 1<<30; n *= 2 {
		seconds := func(chunk uint64) float64 {
			pieces := math.Ceil(float64(n) / float64(chunk))
			return (pieces + 1) * (float64(chunk)/50e9 + perCopy)
		}
		best := math.Inf(1)
		for c := uint64(MinChunk); c <= MaxChunk; c *= 2 {
			best = min(best, seconds(c))
		}
		require.LessOrEqual(t, seconds(Chunk(uint64(n), 50e9, 5*time.Microsecond)), best*1.03, "%d bytes", n)
	}
}

func TestFit(t *testing.T) {
	cost := func(chunk uint64, slots int) need { return need{host: chunk * uint64(slots), steps: 1} }
	for _, c := range []struct {
		chunk  uint64
		slots  int
		budget uint64
		want   uint64
		slot   int
	}{
		{1 << 20, 4, 0, 1 << 20, 4},
		{0, 0, 0, MinChunk, DefaultSlots},
		{100, 1, 0, 96, 2},
		{3, 3, 0, 16, 3},
		// The chunk gives way first, then the slots, then the chunk again.
		{8 << 20, 4, 8 << 20, 2 << 20, 4},
		{8 << 20, 4, 1 << 20, 256 << 10, 4},
		{8 << 20, 4, 800 << 10, 256 << 10, 3},
		{8 << 20, 4, 300 << 10, 144 << 10, 2}, // not 128: there is room
		{8 << 20, 4, 32, 16, 2},
	} {
		chunk, slots, err := fit(c.chunk, c.slots, 1000, c.budget, 0, cost)
		require.NoError(t, err)
		require.Equal(t, c.want, chunk, "%+v", c)
		require.Equal(t, c.slot, slots, "%+v", c)
	}
	_, _, err := fit(64, 4, 1000, 31, 0, cost)
	require.ErrorContains(t, err, "at least 32 bytes of host memory")
}
