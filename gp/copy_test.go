// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
)

// A placement says which streams order the two buffers of a copy.
type placement struct {
	name   string
	stream func(t testing.TB, r *gp.Rank) *cuda.Stream
}

var placements = []placement{
	{"rank's stream", func(t testing.TB, r *gp.Rank) *cuda.Stream { return r.Stream() }},
	{"legacy stream", func(t testing.TB, r *gp.Rank) *cuda.Stream { return r.Context().LegacyStream() }},
	{"own streams", func(t testing.TB, r *gp.Rank) *cuda.Stream { return newStream(t, r) }},
}

// TestStagedCopyOrder holds staged copies between a kernel that is still
// writing the source and work that overwrites both ends right after: many of
// them back to back through the same few slots, without a wait in between.
func TestStagedCopyOrder(t *testing.T) {
	gputest.Parallel(t)
	for _, c := range []struct {
		chunk, rounds int
	}{
		{2 << 10, 12},  // the pinned memory holds many regions,
		{48 << 10, 3},  // some,
		{192 << 10, 2}, // or one
	} {
		for _, p := range placements {
			t.Run(fmt.Sprintf("chunk=%d/%s", c.chunk, p.name), func(t *testing.T) {
				seeds, rounds := uint64(2), c.rounds
				if fewer {
					seeds, rounds = 1, (rounds+3)/4
				}
				eachSeed(t, seeds, func(t *testing.T, d *cuda.Driver) { copyOrder(t, d, p, c.chunk, rounds) })
			})
		}
	}
}

func copyOrder(t *testing.T, d *cuda.Driver, p placement, chunk, rounds int, edit ...func(*gp.Options)) {
	const slots = 3 // the default
	const guard = 61
	sizes := []int{0, 1, chunk - 1, chunk, chunk + 1, 2*chunk*slots + 7}
	most := sizes[len(sizes)-1]
	cell := most + 2*guard // what a copy finds at its destination, with its surroundings

	opts := options(t, d, 3)
	for _, e := range edit {
		e(&opts)
	}
	g := open(t, opts)
	ranks := g.Ranks()
	pairs := [][2]int{{0, 1}, {0, 2}, {1, 0}, {0, 0}} // from, to
	type end struct {
		stream     *cuda.Stream
		prod       *producer
		src, dst   gp.Buffer
		seen       gp.Buffer
		used       int
		wantedSeen []byte
	}
	ends := make([]*end, len(ranks))
	for i, r := range ranks {
		e := &end{stream: p.stream(t, r), prod: newProducer(t, r.Context())}
		// An odd offset: copies take any alignment.
		e.src = alloc(t, r, gp.TypeUint8, most+1).Sub(1, most+1).On(e.stream)
		e.dst = alloc(t, r, gp.TypeUint8, cell).On(e.stream)
		n := 0
		for _, pair := range pairs {
			if pair[1] == i {
				n += rounds * len(sizes)
			}
		}
		e.seen = alloc(t, r, gp.TypeUint8, n*cell).On(e.stream)
		e.wantedSeen = make([]byte, 0, n*cell)
		ends[i] = e
	}
	o := g.With(gp.CallOptions{Chunk: chunk})
	seed := 0
	for range rounds {
		for _, n := range sizes {
			for _, pair := range pairs {
				seed++
				from, to := ends[pair[0]], ends[pair[1]]
				src, dst := from.src.Sub(0, n), to.dst.Sub(guard, guard+n)
				from.prod.fill(from.stream, src.Ptr(), n, seed, time.Duration(seed%4)*30*time.Microsecond)
				require.NoError(t, to.stream.MemsetD8(to.dst.Ptr(), 0xaa, cell))
				_, err := o.Copy(dst, src)
				require.NoError(t, err)
				require.NoError(t, from.stream.MemsetD8(src.Ptr(), 0x11, n))
				require.NoError(t, to.stream.MemcpyDtoD(to.seen.Ptr()+cuda.Ptr(to.used*cell), to.dst.Ptr(), cell))
				require.NoError(t, to.stream.MemsetD8(to.dst.Ptr(), 0x55, cell))
				to.used++
				to.wantedSeen = append(to.wantedSeen, bytes.Repeat([]byte{0xaa}, guard)...)
				to.wantedSeen = append(to.wantedSeen, pattern(n, seed)...)
				to.wantedSeen = append(to.wantedSeen, bytes.Repeat([]byte{0xaa}, cell-guard-n)...)
			}
		}
	}
	for i, e := range ends {
		got := make([]byte, len(e.wantedSeen))
		require.NoError(t, e.seen.Sub(0, len(got)).Read(background, got))
		for k := range e.used {
			requireBytes(t, e.wantedSeen[k*cell:(k+1)*cell], got[k*cell:(k+1)*cell], "copy %d to rank %d", k, i)
		}
	}
	require.NoError(t, g.Synchronize(background))
}

// TestOneChunkCopies holds copies of one chunk, which run on the callers' own
// streams, to the same: each takes more than half of the pinned memory, so that
// it has to wait for the one before. The legacy default streams of two GPUs
// have one handle and no order between them.
func TestOneChunkCopies(t *testing.T) {
	gputest.Parallel(t)
	const n, copies = 600<<10 + 1, 6
	for _, p := range placements {
		t.Run(p.name, func(t *testing.T) {
			eachSeed(t, 6, func(t *testing.T, d *cuda.Driver) {
				g := group(t, d, 2)
				r0, r1 := g.Ranks()[0], g.Ranks()[1]
				s0, s1 := p.stream(t, r0), p.stream(t, r1)
				prod := newProducer(t, r0.Context())
				src := alloc(t, r0, gp.TypeUint8, n).On(s0)
				dst := alloc(t, r1, gp.TypeUint8, n*copies).On(s1)
				o := g.With(gp.CallOptions{Chunk: 1 << 20})
				for k := range copies {
					prod.fill(s0, src.Ptr(), n, k, 20*time.Microsecond)
					_, err := o.Copy(dst.Sub(k*n, (k+1)*n), src)
					require.NoError(t, err)
				}
				got := make([]byte, n*copies)
				require.NoError(t, dst.Read(background, got))
				for k := range copies {
					requireBytes(t, pattern(n, k), got[k*n:(k+1)*n], "copy %d", k)
				}
			})
		})
	}
}
