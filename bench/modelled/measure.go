// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
)

var background = context.Background()

// on runs f on a group with a rank on each GPU of a variant of a machine.
func on(v variant, machine string, f func(m *sim.Machine, g *gp.Group) error) (err error) {
	s, err := v.spec(machine)
	if err != nil {
		return err
	}
	m, err := sim.New(s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	g, err := gp.Open(gp.Options{Driver: m.Driver(), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	return f(m, g)
}

// timed is the machine's time from a call to the end of the wait for it, warm: the
// second of two calls.
func timed(g *gp.Group, call func() (gp.Work, error)) (s float64, algorithm string, err error) {
	for range 2 {
		start := g.Now()
		w, err := call()
		if err != nil {
			return 0, "", err
		}
		algorithm = w.Algorithm()
		if err := w.Wait(background); err != nil {
			return 0, "", err
		}
		s = seconds(g.Now() - start)
	}
	return s, algorithm, nil
}

// allReduces adds what a variant gives, and what the library took, by size.
func allReduces(v variant, limit int, times map[int]map[gp.Algorithm]*span, took map[int]map[string]bool) error {
	return on(v, "8x4090", func(_ *sim.Machine, g *gp.Group) error {
		for _, p := range nccl {
			if p.bytes > limit {
				continue
			}
			if times[p.bytes] == nil {
				times[p.bytes], took[p.bytes] = map[gp.Algorithm]*span{}, map[string]bool{}
				for _, a := range columns {
					times[p.bytes][a] = &span{}
				}
			}
			var bufs []gp.Buffer
			for _, r := range g.Ranks() {
				b, err := r.Alloc(gp.TypeFloat32, p.bytes/4)
				if err != nil {
					return err
				}
				bufs = append(bufs, b)
			}
			for _, a := range columns {
				o := g.With(gp.CallOptions{Algorithm: a})
				s, used, err := timed(g, func() (gp.Work, error) { return o.AllReduce(bufs, gp.Sum) })
				switch {
				case errors.Is(err, gp.ErrArgument):
					continue // too much for kernels that wait for each other
				case err != nil:
					return fmt.Errorf("all_reduce of %d bytes by %s: %w", p.bytes, name(a), err)
				}
				times[p.bytes][a].add(s)
				if a == gp.AlgorithmAuto {
					took[p.bytes][used] = true
				}
			}
			for i := range bufs {
				if err := bufs[i].Free(); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }

// copySizes are those of the table of copies.
var copySizes = []int{64 << 10, 1 << 20, 16 << 20, 256 << 20}

// copies writes the table of copies between two cards, by the library and by the
// driver's own staging.
func copies(b *strings.Builder, limit int) error {
	type row struct{ one, both, driver, driverBoth span }
	rows := map[int]*row{}
	for _, v := range variants {
		err := on(v, "2x4090", func(m *sim.Machine, g *gp.Group) error {
			for _, n := range copySizes {
				if n > limit {
					continue
				}
				if rows[n] == nil {
					rows[n] = &row{}
				}
				r := rows[n]
				var at [2][2]gp.Buffer // by rank: what it sends and what it receives
				for i, rk := range g.Ranks() {
					for side := range 2 {
						x, err := rk.Alloc(gp.TypeUint8, n)
						if err != nil {
							return err
						}
						at[i][side] = x
					}
				}
				s, _, err := timed(g, func() (gp.Work, error) { return g.Copy(at[1][1], at[0][0]) })
				if err != nil {
					return err
				}
				r.one.add(float64(n) / s)
				s, _, err = timed(g, func() (gp.Work, error) {
					return g.SendRecv(gp.Transfer{Dst: at[1][1], Src: at[0][0]}, gp.Transfer{Dst: at[0][1], Src: at[1][0]})
				})
				if err != nil {
					return err
				}
				r.both.add(2 * float64(n) / s)
				one, both, err := staged(g, at, n)
				if err != nil {
					return err
				}
				r.driver.add(float64(n) / one)
				r.driverBoth.add(2 * float64(n) / both)
				for i := range at {
					for side := range 2 {
						if err := at[i][side].Free(); err != nil {
							return err
						}
					}
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	b.WriteString("## Copies between two cards on 2x4090, modelled\n\n")
	b.WriteString(`GB/s of payload, both directions added up in the last two columns; worse end to better end. The driver's staging is what
cuMemcpyPeerAsync does where P2P is denied; its rate in the model is fitted to the published 18.4 to 20.6 GB/s one way and 20.0 to
21.7 both ways, and the variants do not move it.

`)
	b.WriteString("| size | driver's staging, one way | gp.Copy, one way | driver's staging, both ways | gp.SendRecv, both ways |\n|---|---|---|---|---|\n")
	for _, n := range copySizes {
		if r := rows[n]; r != nil {
			fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", size(n), r.driver.text(rate, 0), r.one.text(rate, 0), r.driverBoth.text(rate, 0), r.both.text(rate, 0))
		}
	}
	b.WriteString(copyNotes)
	return nil
}

// staged is the time of the driver's own peer copies, one way and both.
func staged(g *gp.Group, at [2][2]gp.Buffer, n int) (one, both float64, err error) {
	r := g.Ranks()
	var st [2]*cuda.Stream
	for i := range st {
		if st[i], err = r[i].Context().NewStream(); err != nil {
			return 0, 0, err
		}
		defer func() { err = errors.Join(err, st[i].Close()) }()
	}
	send := func(i int) error {
		return st[i].MemcpyPeer(at[1-i][1].Ptr(), r[1-i].Context(), at[i][0].Ptr(), r[i].Context(), n)
	}
	start := g.Now()
	if err := errors.Join(send(0), st[0].Synchronize()); err != nil {
		return 0, 0, err
	}
	one = seconds(g.Now() - start)
	start = g.Now()
	if err := errors.Join(send(0), send(1), st[0].Synchronize(), st[1].Synchronize()); err != nil {
		return 0, 0, err
	}
	return one, seconds(g.Now() - start), nil
}
