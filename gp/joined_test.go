// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/gp"
)

// A joiner is what one rank's goroutine brings to collectives.
type joiner struct {
	long, short, out gp.Buffer // of int32: ranks*joined, joined and ranks*joined elements
}

// joined is the elements of a rank's part.
const joined = 50

// joinedCalls are the collectives of one rank's goroutine, and what its result must
// be when rank r's sources hold value(r, i).
var joinedCalls = []struct {
	name string
	call func(o gp.RankOps, ctx context.Context, j joiner) (gp.Work, error)
	to   func(j joiner) gp.Buffer
	want func(rank, ranks, i int) int32
}{
	{"all_reduce", func(o gp.RankOps, ctx context.Context, j joiner) (gp.Work, error) {
		return o.AllReduce(ctx, j.long, gp.Sum)
	},
		func(j joiner) gp.Buffer { return j.long }, func(_, ranks, i int) int32 { return total(ranks, i) }},
	{"all_reduce to another", func(o gp.RankOps, ctx context.Context, j joiner) (gp.Work, error) {
		return o.AllReduceTo(ctx, j.out, j.long, gp.Max)
	}, func(j joiner) gp.Buffer { return j.out }, func(_, ranks, i int) int32 { return value(ranks-1, i) }},
	{"all_gather", func(o gp.RankOps, ctx context.Context, j joiner) (gp.Work, error) {
		return o.AllGather(ctx, j.out, j.short)
	},
		func(j joiner) gp.Buffer { return j.out }, func(_, _, i int) int32 { return value(i/joined, i%joined) }},
	{"reduce_scatter", func(o gp.RankOps, ctx context.Context, j joiner) (gp.Work, error) {
		return o.ReduceScatter(ctx, j.short, j.long, gp.Sum)
	}, func(j joiner) gp.Buffer { return j.short }, func(rank, ranks, i int) int32 { return total(ranks, rank*joined+i) }},
	{"all_to_all", func(o gp.RankOps, ctx context.Context, j joiner) (gp.Work, error) {
		return o.AllToAll(ctx, j.out, j.long)
	},
		func(j joiner) gp.Buffer { return j.out }, func(rank, _, i int) int32 { return value(i/joined, rank*joined+i%joined) }},
	{"broadcast", func(o gp.RankOps, ctx context.Context, j joiner) (gp.Work, error) { return o.Broadcast(ctx, j.long, 1) },
		func(j joiner) gp.Buffer { return j.long }, func(_, _, i int) int32 { return value(1, i) }},
	{"reduce", func(o gp.RankOps, ctx context.Context, j joiner) (gp.Work, error) {
		return o.Reduce(ctx, j.long, 1, gp.Min)
	},
		func(j joiner) gp.Buffer { return j.long }, func(rank, _, i int) int32 {
			if rank == 1 {
				return value(0, i)
			}
			return value(rank, i)
		}},
}

func value(rank, i int) int32 { return int32(rank*1000 + i) }

func total(ranks, i int) (sum int32) {
	for r := range ranks {
		sum += value(r, i)
	}
	return sum
}

func newJoiners(t testing.TB, g *gp.Group) (js []joiner) {
	n := len(g.Ranks())
	for _, r := range g.Ranks() {
		js = append(js, joiner{alloc(t, r, gp.TypeInt32, n*joined), alloc(t, r, gp.TypeInt32, joined), alloc(t, r, gp.TypeInt32, n*joined)})
	}
	return js
}

// fill writes the sources.
func (j joiner) fill(r *gp.Rank) error {
	for _, b := range []gp.Buffer{j.long, j.short} {
		v := make([]uint32, b.Len())
		for i := range v {
			v[i] = uint32(value(r.Index(), i))
		}
		if err := b.Write(background, raw(v)); err != nil {
			return err
		}
	}
	return nil
}

// TestJoinedOperations: every collective as one goroutine a rank calls it.
func TestJoinedOperations(t *testing.T) {
	cores(t, 4)
	for _, k := range []struct {
		machine string
		ranks   int
	}{{"2x4090", 3}, {"8x4090", 5}} {
		o := options(t, machineOf(t, k.machine), k.ranks)
		o.PinnedBytes = roomy
		g := open(t, o)
		js := newJoiners(t, g)
		for round := range 4 {
			alg := []gp.Algorithm{gp.AlgorithmAuto, gp.AlgorithmDirect}[round%2]
			errs := together(g, func(r *gp.Rank) error {
				j := js[r.Index()]
				for _, c := range joinedCalls {
					if err := j.fill(r); err != nil {
						return err
					}
					w, err := c.call(r.With(gp.CallOptions{Algorithm: alg}), background, j)
					if err != nil {
						return fmt.Errorf("%s: %w", c.name, err)
					}
					if round%3 == 0 {
						if err := w.Wait(background); err != nil {
							return err
						}
					}
					got := make([]int32, c.to(j).Len())
					if err := gp.Download(background, got, c.to(j)); err != nil {
						return err
					}
					for i, v := range got {
						if want := c.want(r.Index(), k.ranks, i); v != want {
							return fmt.Errorf("%s: rank %d of %d, element %d is %d: it must be %d", c.name, r.Index(), k.ranks, i, v, want)
						}
					}
				}
				return nil
			})
			require.NoError(t, errors.Join(errs...))
		}
		require.EqualValues(t, 4*len(joinedCalls), g.Stats().Collectives)
	}
}

// TestJoinedMismatches: of whatever kind, all ranks are told the same, nothing is
// enqueued, and the next round works.
func TestJoinedMismatches(t *testing.T) {
	cores(t, 4)
	d := machineOf(t, "2x4090")
	x := newBench(t, d)
	js := newJoiners(t, x.g)
	odd := func(usual, other func(o gp.RankOps, j joiner) error) func(r *gp.Rank) error {
		return func(r *gp.Rank) error {
			if r.Index() == 1 {
				return other(r.RankOps, js[1])
			}
			return usual(r.RankOps, js[0])
		}
	}
	sum := func(o gp.RankOps, j joiner) error { return only(o.AllReduce(background, j.long, gp.Sum)) }
	for name, c := range map[string]struct {
		says string
		f    func(r *gp.Rank) error
	}{
		"operation": {"all_gather", odd(sum, func(o gp.RankOps, j joiner) error { return only(o.AllGather(background, j.out, j.short)) })},
		"type": {"float32", odd(sum, func(o gp.RankOps, j joiner) error {
			return only(o.AllReduce(background, as(t, j.long, gp.TypeFloat32, 0, j.long.Len()), gp.Sum))
		})},
		"length":    {"99", odd(sum, func(o gp.RankOps, j joiner) error { return only(o.AllReduce(background, j.long.Sub(0, 99), gp.Sum)) })},
		"reduction": {"max", odd(sum, func(o gp.RankOps, j joiner) error { return only(o.AllReduce(background, j.long, gp.Max)) })},
		"root": {"root 1", odd(func(o gp.RankOps, j joiner) error { return only(o.Broadcast(background, j.long, 0)) },
			func(o gp.RankOps, j joiner) error { return only(o.Broadcast(background, j.long, 1)) })},
		"options": {"options", odd(sum, func(o gp.RankOps, j joiner) error {
			return only(o.With(gp.CallOptions{Chunk: 512}).AllReduce(background, j.long, gp.Sum))
		})},
		"place": {"in place", odd(sum, func(o gp.RankOps, j joiner) error { return only(o.AllReduceTo(background, j.out, j.long, gp.Sum)) })},
		"unknown algorithm": {"tree", func(r *gp.Rank) error {
			return sum(r.With(gp.CallOptions{Algorithm: "tree"}), js[r.Index()])
		}},
	} {
		before := enqueuing(x.tap)
		var said []string
		for i, err := range together(x.g, c.f) {
			require.ErrorIs(t, err, gp.ErrArgument, "%s: rank %d", name, i)
			require.ErrorContains(t, err, c.says, name)
			said = append(said, err.Error())
		}
		require.Equal(t, said[0], said[1], name)
		require.Equal(t, before, enqueuing(x.tap), name)
		require.NoError(t, errors.Join(together(x.g, func(r *gp.Rank) error { return sum(r.RankOps, js[r.Index()]) })...), name)
	}
	// What is wrong with one rank's call alone is that rank's to hear, and the others
	// go on waiting for it.
	for _, err := range []error{
		only(x.r0.Broadcast(background, js[0].long, 2)), only(x.r0.Reduce(background, js[0].long, -1, gp.Sum)),
		only(x.r0.AllGather(background, js[1].out, js[0].short)), only(x.r0.ReduceScatter(background, js[0].short, js[0].long, gp.Op(9))),
	} {
		require.ErrorIs(t, err, gp.ErrArgument)
	}
	x.works("after mismatches")
}

// TestJoinsCanceled: whatever collective a rank gives up, the group stays usable.
func TestJoinsCanceled(t *testing.T) {
	cores(t, 4)
	x := newBench(t, machineOf(t, "2x4090"))
	js := newJoiners(t, x.g)
	for i, c := range joinedCalls {
		before := enqueuing(x.tap)
		ctx, cancel := context.WithTimeout(background, 2*time.Millisecond)
		require.ErrorIs(t, only(c.call(x.r1.RankOps, ctx, js[1])), context.DeadlineExceeded, c.name)
		cancel()
		require.Equal(t, before, enqueuing(x.tap), c.name)
		// Another collective than the one that was given up.
		other := joinedCalls[(i+1)%len(joinedCalls)]
		require.NoError(t, errors.Join(together(x.g, func(r *gp.Rank) error {
			return only(other.call(r.RankOps, background, js[r.Index()]))
		})...), c.name)
	}
	x.works("after canceled joins")
}
