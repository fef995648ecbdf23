// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp"
)

// A party is a stream that leaves a pattern in pinned memory, late, and later
// looks at what the others have left there. So it is seen whether a call in
// between orders the one behind the other, whatever GPUs they are of.
type party struct {
	rank   *gp.Rank
	stream *cuda.Stream
	prod   *producer
	mine   *cuda.Memory  // where the pattern is made
	slot   *cuda.HostMem // where it is left
	seen   []*cuda.Memory
}

const partyBytes = 5000

func newParties(t testing.TB, streams []*cuda.Stream, ranks []*gp.Rank) []*party {
	t.Helper()
	var ps []*party
	for i, s := range streams {
		cc := ranks[i].Context()
		p := &party{rank: ranks[i], stream: s, prod: newProducer(t, cc)}
		mem := func() *cuda.Memory {
			m, err := cc.Alloc(partyBytes)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, m.Close()) })
			return m
		}
		p.mine = mem()
		var err error
		p.slot, err = cc.HostAlloc(partyBytes, 0)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.slot.Close()) })
		for range streams {
			p.seen = append(p.seen, mem())
		}
		ps = append(ps, p)
	}
	return ps
}

// leave enqueues the pattern of a seed.
func (p *party) leave(t testing.TB, seed int, after time.Duration) {
	p.prod.fill(p.stream, p.mine.Ptr(), partyBytes, seed, after)
	require.NoError(t, p.stream.MemcpyDtoH(p.slot.Pointer(), p.mine.Ptr(), partyBytes))
}

// look enqueues that the party takes what another has left.
func (p *party) look(t testing.TB, ps []*party, at int) {
	require.NoError(t, p.stream.MemcpyHtoD(p.seen[at].Ptr(), unsafe.Pointer(ps[at].slot.Pointer()), partyBytes))
}

// saw holds what the party took from another to the pattern of a seed.
func (p *party) saw(t testing.TB, at, seed int, what string, args ...any) {
	t.Helper()
	require.NoError(t, p.stream.Synchronize())
	got := make([]byte, partyBytes)
	require.NoError(t, p.rank.Context().MemcpyDtoH(got, p.seen[at].Ptr()))
	requireBytes(t, pattern(partyBytes, seed), got, what, args...)
}

// TestEmptyCallsOrder: a call of length 0 moves nothing, and orders the streams
// of its buffers as any other does.
func TestEmptyCallsOrder(t *testing.T) {
	eachSeed(t, 6, func(t *testing.T, d *cuda.Driver) {
		for _, n := range []int{2, 3} {
			g := group(t, d, n)
			// By rank, the stream of the source and that of the destination.
			var streams []*cuda.Stream
			var ranks []*gp.Rank
			var dst, src, both []gp.Buffer
			for i, r := range g.Ranks() {
				s, o := newStream(t, r), newStream(t, r)
				if i == 0 {
					o = r.Context().LegacyStream()
				}
				streams, ranks = append(streams, s, o), append(ranks, r, r)
				src = append(src, alloc(t, r, gp.TypeInt32, 0).On(s))
				dst = append(dst, alloc(t, r, gp.TypeInt32, 8).Sub(4, 4).On(o))
				both = append(both, src[i])
			}
			ps := newParties(t, streams, ranks)
			all := func(yes func(i int) bool) (is []int) {
				for i := range ps {
					if yes(i) {
						is = append(is, i)
					}
				}
				return is
			}
			everyone := all(func(int) bool { return true })
			for round, c := range []struct {
				name         string
				call         func() (gp.Work, error)
				before, late []int // who looks behind the call at what whom left before it
			}{
				{"copy between ranks", func() (gp.Work, error) { return g.Copy(dst[1], src[0]) }, []int{0, 3}, []int{3}},
				{"copy within a rank", func() (gp.Work, error) { return g.Copy(dst[0], src[0]) }, []int{0, 1}, []int{1}},
				{"all_reduce", func() (gp.Work, error) { return g.AllReduce(both, gp.Prod) },
					all(func(i int) bool { return i%2 == 0 }), all(func(i int) bool { return i%2 == 0 })},
				{"all_reduce from streams to others", func() (gp.Work, error) { return g.AllReduceTo(dst, src, gp.Sum) }, everyone, everyone},
				{"all_gather", func() (gp.Work, error) { return g.AllGather(dst, src) }, everyone, everyone},
			} {
				seed := 10*n + round
				for i, p := range ps {
					p.leave(t, seed+100*i, time.Duration(i)*50*time.Microsecond)
				}
				w, err := c.call()
				require.NoError(t, err, c.name)
				for _, i := range c.late {
					for _, at := range c.before {
						ps[i].look(t, ps, at)
					}
				}
				for _, i := range c.late {
					for _, at := range c.before {
						ps[i].saw(t, at, seed+100*at, "%s on %d ranks: stream %d behind stream %d", c.name, n, i, at)
					}
				}
				require.NoError(t, w.Wait(background))
				require.NoError(t, g.Synchronize(background))
				for _, p := range ps {
					require.NoError(t, p.stream.Synchronize())
				}
			}
		}
	})
}

// TestCallsOrderStreams: each rank's streams run behind a call's end, and the
// call behind what they held, for both sides of a collective that is not in
// place. The results prove the one half; this is the other: what follows on the
// source's stream must not overtake the reading of it.
func TestCallsOrderStreams(t *testing.T) {
	const n = 3000
	for _, chunk := range []int{0, 4 << 10} { // on the callers' streams, and on lanes
		t.Run(fmt.Sprintf("chunk=%d", chunk), func(t *testing.T) {
			eachSeed(t, 5, func(t *testing.T, d *cuda.Driver) {
				g := group(t, d, 3)
				for _, scale := range []int{1, 40} {
					bytes := n * scale
					var dst, src, out []gp.Buffer
					var ins [][]byte
					var gathered []byte
					seen := make([]gp.Buffer, 3)
					for i, r := range g.Ranks() {
						s, o := newStream(t, r), newStream(t, r)
						b := alloc(t, r, gp.TypeUint8, bytes)
						src = append(src, b.On(s))
						dst = append(dst, alloc(t, r, gp.TypeUint8, bytes).On(o))
						out = append(out, alloc(t, r, gp.TypeUint8, 3*bytes).On(o))
						seen[i] = alloc(t, r, gp.TypeUint8, 3*bytes).On(o)
						ins = append(ins, pattern(bytes, i))
						gathered = append(gathered, pattern(bytes, i)...)
					}
					ops := g.With(gp.CallOptions{Chunk: chunk})
					for _, c := range []struct {
						name string
						call func() (gp.Work, error)
						to   []gp.Buffer
						want []byte
					}{
						{"all_reduce", func() (gp.Work, error) { return ops.AllReduceTo(dst, src, gp.Sum) }, dst, folded(t, ins, gp.TypeUint8, gp.Sum)},
						{"all_gather", func() (gp.Work, error) { return ops.AllGather(out, src) }, out, gathered},
					} {
						for i, r := range g.Ranks() {
							newProducer(t, r.Context()).fill(src[i].Stream(), src[i].Ptr(), bytes, i, time.Duration(3-i)*40*time.Microsecond)
							require.NoError(t, c.to[i].Stream().MemsetD8(c.to[i].Ptr(), 0xee, c.to[i].Bytes()))
						}
						_, err := c.call()
						require.NoError(t, err)
						for i := range g.Ranks() {
							require.NoError(t, src[i].Stream().MemsetD8(src[i].Ptr(), 0xdd, bytes))
							require.NoError(t, c.to[i].Stream().MemcpyDtoD(seen[i].Ptr(), c.to[i].Ptr(), c.to[i].Bytes()))
							require.NoError(t, c.to[i].Stream().MemsetD8(c.to[i].Ptr(), 0xcc, c.to[i].Bytes()))
						}
						for i := range g.Ranks() {
							got := make([]byte, len(c.want))
							require.NoError(t, seen[i].Sub(0, len(got)).Read(background, got))
							requireBytes(t, c.want, got, "%s of %d bytes: rank %d", c.name, bytes, i)
						}
						require.NoError(t, g.Synchronize(background))
					}
				}
			})
		})
	}
}
