// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
)

// peered runs f on a simulated machine whose driver grants P2P between its two
// GPUs, and on the machine's own GPUs, if it has two whose driver does.
func peered(t *testing.T, f func(t *testing.T, d *cuda.Driver)) {
	t.Helper()
	each(t, func(t *testing.T, d *cuda.Driver) {
		if d.Modelled() {
			d = peeredMachine(t)
		}
		devs := gputest.Devices(t, d, 2)
		for i := range 2 {
			can, err := devs[i].CanAccessPeer(devs[1-i])
			require.NoError(t, err)
			if !can {
				t.Skip("the driver grants no P2P between the first two GPUs")
			}
		}
		f(t, d)
	})
}

func peeredMachine(t testing.TB, opts ...sim.Option) *cuda.Driver {
	t.Helper()
	spec, err := sim.Builtin(machine)
	require.NoError(t, err)
	spec.Name = "2x4090 with P2P"
	for i := range spec.PeerAccess {
		for j := range spec.PeerAccess[i] {
			spec.PeerAccess[i][j] = i != j
		}
	}
	m, err := sim.New(spec, append([]sim.Option{sim.Watch(), sim.KeepSites()}, opts...)...)
	require.NoError(t, err)
	closeMachine(t, m)
	return m.Driver()
}

// routes copies in both directions, holds every byte, and says how.
func routes(t testing.TB, g *gp.Group, o gp.CallOptions) (there, back string) {
	t.Helper()
	const n = 300_001
	r0, r1 := g.Ranks()[0], g.Ranks()[1]
	a, b := alloc(t, r0, gp.TypeUint8, n), alloc(t, r1, gp.TypeUint8, n)
	r := generator(t.Name(), o)
	names := make([]string, 2)
	for i, pair := range [][2]gp.Buffer{{a, b}, {b, a}} {
		data := randomBytes(r, n)
		require.NoError(t, pair[0].Write(background, data))
		require.NoError(t, pair[1].Write(background, make([]byte, n)))
		w, err := g.With(o).Copy(pair[1], pair[0])
		require.NoError(t, err)
		names[i] = w.Algorithm()
		require.NoError(t, w.Wait(background))
		holds(t, pair[1], data)
	}
	require.NoError(t, a.Free())
	require.NoError(t, b.Free())
	return names[0], names[1]
}

func TestRoutes(t *testing.T) {
	gputest.Parallel(t)
	peered(t, func(t *testing.T, d *cuda.Driver) {
		for _, c := range []struct {
			mode  gp.P2PMode
			route gp.Route
			want  string
		}{
			{gp.P2POff, gp.RouteAuto, "staged"},
			{gp.P2PAuto, gp.RouteAuto, "direct"},
			{gp.P2PAuto, gp.RouteDirect, "direct"},
			{gp.P2PAuto, gp.RouteStaged, "staged"},
			{gp.P2PTrust, gp.RouteAuto, "direct"},
		} {
			if fewer && c.mode == gp.P2PAuto && c.route != gp.RouteAuto {
				continue // a proof takes long then
			}
			o := options(t, d, 2)
			o.P2P = c.mode
			g := open(t, o)
			there, back := routes(t, g, gp.CallOptions{Route: c.route})
			require.Equal(t, []string{c.want, c.want}, []string{there, back}, "mode %d, route %q", c.mode, c.route)
			s := g.Stats()
			if c.want == "direct" {
				require.Zero(t, s.StagedBytes)
				require.EqualValues(t, 600_002, s.DirectBytes)
			} else {
				require.Zero(t, s.DirectBytes)
				require.EqualValues(t, 600_002, s.StagedBytes)
			}
			require.NoError(t, g.Close())
		}
	})
}

// TestDirectCopyOrder holds peer copies to what staged ones are held to.
func TestDirectCopyOrder(t *testing.T) {
	for _, p := range placements {
		t.Run(p.name, func(t *testing.T) {
			peered(t, func(t *testing.T, d *cuda.Driver) {
				copyOrder(t, d, p, 4096, 3, func(o *gp.Options) { o.P2P = gp.P2PTrust })
				for seed := uint64(2); d.Modelled() && seed < 6; seed++ {
					copyOrder(t, peeredMachine(t, sim.Seed(seed)), p, 4096, 3, func(o *gp.Options) { o.P2P = gp.P2PTrust })
				}
			})
		})
	}
}

// zeros is a driver whose peer copies write zeros, as on machines whose IOMMU
// translates: the driver says that all is well.
type zeros struct{ api.Driver }

func (z zeros) MemcpyPeerAsync(dst api.Ptr, _ api.Context, _ api.Ptr, _ api.Context, n uint64, s api.Stream) api.Code {
	return z.Driver.MemsetD8Async(dst, 0, n, s)
}

// mirror is a driver whose peer copies never reach the owner of the memory.
type mirror struct{ api.Driver }

func (mirror) MemcpyPeerAsync(api.Ptr, api.Context, api.Ptr, api.Context, uint64, api.Stream) api.Code {
	return api.Success
}

func TestLyingP2P(t *testing.T) {
	peered(t, func(t *testing.T, d *cuda.Driver) {
		for _, liar := range []api.Driver{zeros{seam(d)}, mirror{seam(d)}} {
			t.Run(fmt.Sprintf("%T", liar), func(t *testing.T) {
				o := options(t, over(t, liar), 2)
				o.P2P = gp.P2PAuto
				g := open(t, o)
				there, back := routes(t, g, gp.CallOptions{})
				require.Equal(t, []string{"staged", "staged"}, []string{there, back})
				_, err := g.With(gp.CallOptions{Route: gp.RouteDirect}).Copy(alloc(t, g.Ranks()[1], gp.TypeInt8, 4), alloc(t, g.Ranks()[0], gp.TypeInt8, 4))
				require.ErrorIs(t, err, gp.ErrArgument)
			})
		}
	})
}

// TestPeerAccessCodes: what cuCtxEnablePeerAccess may answer on a healthy
// machine never stands in the way of a copy.
func TestPeerAccessCodes(t *testing.T) {
	peered(t, func(t *testing.T, d *cuda.Driver) {
		for _, c := range []struct {
			code api.Code
			want string
		}{
			{api.PeerAccessAlreadyEnabled, "direct"},
			{api.TooManyPeers, "staged"},
			{api.PeerAccessUnsupported, "staged"},
			{api.OutOfMemory, "staged"},
		} {
			for _, mode := range []gp.P2PMode{gp.P2PAuto, gp.P2PTrust} {
				if fewer && mode == gp.P2PAuto && c.want == "direct" {
					continue
				}
				tapped, tp := gputest.Tapped(t, d)
				o := options(t, tapped, 2)
				o.P2P = mode
				rule := tp.FailFrom("CtxEnablePeerAccess", 1, c.code)
				g := open(t, o)
				require.Equal(t, 2, rule.Hits(), "one for each direction")
				there, back := routes(t, g, gp.CallOptions{})
				require.Equal(t, []string{c.want, c.want}, []string{there, back}, "code %d, mode %d", c.code, mode)
				require.NoError(t, g.Close())
			}
		}
		// What cannot even be asked for is staged.
		tapped, tp := gputest.Tapped(t, d)
		o := options(t, tapped, 2)
		o.P2P = gp.P2PAuto
		tp.Fail("DeviceCanAccessPeer", 1, api.NotSupported)
		g := open(t, o)
		there, back := routes(t, g, gp.CallOptions{})
		require.Equal(t, []string{"staged", "direct"}, []string{there, back})
	})
}

// TestRefusedPeerCopy: a peer copy that the driver refuses is staged, as are
// those after it in that direction. Who insists on it is told.
func TestRefusedPeerCopy(t *testing.T) {
	peered(t, func(t *testing.T, d *cuda.Driver) {
		tapped, tp := gputest.Tapped(t, d)
		o := options(t, tapped, 2)
		o.P2P = gp.P2PTrust
		g := open(t, o)
		tp.Reset()
		rule := tp.Fail("MemcpyPeerAsync", 1, api.PeerAccessNotEnabled)
		there, back := routes(t, g, gp.CallOptions{})
		require.Equal(t, 1, rule.Hits())
		require.Equal(t, []string{"staged", "direct"}, []string{there, back})
		there, back = routes(t, g, gp.CallOptions{})
		require.Equal(t, []string{"staged", "direct"}, []string{there, back})
		require.EqualValues(t, 3, tp.Count("MemcpyPeerAsync"))

		a, b := alloc(t, g.Ranks()[0], gp.TypeInt8, 4), alloc(t, g.Ranks()[1], gp.TypeInt8, 4)
		tp.Fail("MemcpyPeerAsync", 1, api.PeerAccessNotEnabled)
		_, err := g.With(gp.CallOptions{Route: gp.RouteDirect}).Copy(a, b)
		require.ErrorIs(t, err, cuda.ErrPeerAccessNotEnabled)
		require.ErrorContains(t, err, "cuMemcpyPeerAsync")
		require.NoError(t, g.Err())
		there, back = routes(t, g, gp.CallOptions{})
		require.Equal(t, []string{"staged", "staged"}, []string{there, back})

		// A lost context is another matter.
		require.NoError(t, g.Close())
		g2 := open(t, o)
		a, b = alloc(t, g2.Ranks()[0], gp.TypeInt8, 4), alloc(t, g2.Ranks()[1], gp.TypeInt8, 4)
		tp.Reset()
		tp.Fail("MemcpyPeerAsync", 1, api.LaunchFailed)
		_, err = g2.Copy(a, b)
		require.ErrorIs(t, err, cuda.ErrLaunchFailed)
		require.ErrorIs(t, g2.Err(), cuda.ErrLaunchFailed)
		require.ErrorIs(t, only(g2.Copy(a, b)), gp.ErrFailed)
	})
}
