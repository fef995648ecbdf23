// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp"
)

var benchCopyCommand = &command{
	name:     "bench copy",
	synopsis: "the library's copy between two ranks, against the link's ceiling of the same rounds",
	usage: "bench copy [--bytes SIZES | -b SIZE -e SIZE [-f N]] [--gpus A,B | --same-gpu] [--route ROUTE] [--chunk SIZE] [--sweep]\n" +
		"       [--low-latency] [--rounds N] [--time TIME] [--sim NAME] [--json | --csv] [--save FILE] [--html FILE]",
	text: `Copies between two ranks, one way and both ways at once: staged through host memory, directly where P2P is
proven, and as the driver itself does it without peer access (cuMemcpyPeerAsync). The two ranks are two GPUs, or
one GPU where there is only one or --same-gpu is given: then each byte crosses its link twice, once each way.

Time is from the call to the end of the wait, enqueue what the calls take to return, CPU what the process uses
of the processors for a copy that is waited for. The ceiling is bare traffic: the bytes that each link must
carry at least, as large copies to and from host memory that have nothing to do with each other, started
together in the same rounds. Algbw is the payload of both ways together.

--sweep also takes each size one way with chunks of 128 KiB to 8 MiB, and holds the library's choice against
the best of them.`,
	setup: func(fl *flag.FlagSet) func(context.Context, *environment) error {
		b := &bench{}
		c := &copyBench{bench: b, rig: &rig{b: b}}
		b.declare(fl, copySizesText)
		fl.BoolVar(&c.sameGPU, "same-gpu", false, "put both ranks on one GPU")
		fl.StringVar(&c.route, "route", "", "only this `ROUTE`: staged, direct or driver")
		fl.Var(&c.chunk, "chunk", "the `SIZE` of the pieces of a staged copy (default: the library's choice)")
		fl.BoolVar(&c.sweep, "sweep", false, "try chunks from 128 KiB to 8 MiB")
		fl.BoolVar(&c.lowLatency, "low-latency", false, "wait by polling without pause")
		return func(ctx context.Context, e *environment) error {
			b.given(fl)
			switch c.route {
			case "", routeStaged, routeDirect, routeDriver:
			default:
				return usagef("--route %q: there are %s, %s and %s", c.route, routeStaged, routeDirect, routeDriver)
			}
			if c.chunk != 0 && c.sweep {
				return usagef("--chunk sets one chunk and --sweep tries many: choose one")
			}
			if c.sameGPU && len(b.gpus) > 1 {
				return usagef("--same-gpu uses one GPU, and --gpus names %d", len(b.gpus))
			}
			if err := b.start(e, "copy"); err != nil {
				return err
			}
			if err := c.plan(); err != nil {
				return b.giveUp(err)
			}
			return b.measure(ctx, c.finish, c.prepare, c.prepareDirect)
		}
	},
}

// Routes of the cases.
const (
	routeStaged = "staged"
	routeDirect = "direct"
	routeDriver = "driver"
)

// The keys are copy.ROUTE.WAYS, and copy.bare.WAYS for the ceilings.
var copyCases = []*benchCase{
	{"copy.bare.one_way", "the ceiling: the bytes of one copy on the links, unstaged", nil},
	{"copy.bare.both_ways", "the ceiling: the bytes of a copy each way on the links, unstaged", nil},
	{"copy.staged.one_way", "staged through pinned host memory, rank 0 to rank 1", nil},
	{"copy.staged.both_ways", "staged, both ways at once", nil},
	{"copy.driver.one_way", "the driver's peer copy without peer access, rank 0 to rank 1", noPair},
	{"copy.driver.both_ways", "the driver's peer copy without peer access, both ways at once", noPair},
	{"copy.direct.one_way", "direct over proven P2P, rank 0 to rank 1", noP2P},
	{"copy.direct.both_ways", "direct over proven P2P, both ways at once", noP2P},
}

func noPair(b *bench) string {
	gpus, err := b.chooseGPUs()
	switch {
	case err != nil || len(gpus) > 1:
		return ""
	case len(b.devices) > 1:
		return "one GPU was chosen"
	}
	return "there is one GPU"
}

// noP2P goes by the driver's word. What it grants must still be proven, by the
// library when the group opens.
func noP2P(b *bench) string {
	if why := noPair(b); why != "" {
		return why
	}
	gpus, err := b.chooseGPUs()
	if err != nil {
		return ""
	}
	for _, p := range [][2]int{{gpus[0], gpus[1]}, {gpus[1], gpus[0]}} {
		if ok, err := b.devices[p[0]].CanAccessPeer(b.devices[p[1]]); err != nil || !ok {
			return fmt.Sprintf("the driver denies P2P between GPUs %d and %d (gp probe says why)", gpus[0], gpus[1])
		}
	}
	return ""
}

// A copyBench is one run.
type copyBench struct {
	*bench
	rig        *rig
	sameGPU    bool
	route      string
	chunk      byteSize
	sweep      bool
	lowLatency bool
	beside     uint64 // other programs that hold as much on the GPU
	bareless   bool   // it has no ceiling

	pair  [2]int // GPUs of the ranks
	cases []*benchCase
	ports [2]*port
	group *gp.Group
	// By way, 0 from rank 0 to rank 1 and 1 back:
	src, dst [2]gp.Buffer
	out      [2]*cuda.Stream // on the source, for the driver's copies
	done     [2]*cuda.Event
	ends     [2]*gp.Rank   // where way 0 comes from, and way 1
	skew     [2]int        // where their data begin
	check    *cuda.HostMem // what arrives is read back through it
	series   []*series
	at       map[uint64]int
	ceilings map[int]float64 // by ways, of the round: bytes a second of one move
}

const copySizesText = "4KiB to 1GiB in steps of 4, on a simulated machine to 16MiB"

// defaultCopySizes are 4 KiB to 1 GiB.
func defaultCopySizes() (sizes sizeList) {
	for n := uint64(4 << 10); n <= 1<<30; n *= 4 {
		sizes = append(sizes, n)
	}
	return sizes
}

// ceilingBytes is the size of bare copies.
const ceilingBytes = 256 << 20

// checkBytes is the pinned memory through which data is read back.
const checkBytes = 64 << 20

// waySkew is how far the data of the second way is from that of the first: what
// one way wrote in the other's place is found.
const waySkew = 4 << 10

func (c *copyBench) plan() error {
	gpus, err := c.chooseGPUs()
	if err != nil {
		return err
	}
	if len(gpus) < 2 || c.sameGPU {
		if c.route == routeDirect || c.route == routeDriver {
			return usagef("--route %s is between two GPUs, and both ranks are on GPU %d", c.route, gpus[0])
		}
		if !c.sameGPU {
			c.note("two ranks share one GPU, so they share its link")
		}
		gpus = gpus[:1]
		c.gpus = gpus
		c.pair = [2]int{gpus[0], gpus[0]}
	} else {
		if len(c.gpus) > 2 {
			return usagef("--gpus: a copy is between two GPUs, not %d", len(c.gpus))
		}
		c.gpus = gpus[:2]
		c.pair = [2]int{gpus[0], gpus[1]}
	}
	c.doc.Machine.Ranks = c.pair[:]
	var want []*benchCase
	for _, k := range copyCases {
		r := strings.Split(k.key, ".")[1]
		if c.route == "" || r == "bare" || r == c.route {
			want = append(want, k)
		}
	}
	c.cases = c.choose(want)
	if c.route == routeDirect && !c.has("copy.direct.one_way") {
		return fmt.Errorf("--route direct: %s", c.doc.Skipped[0].Reason)
	}
	if !c.chosen && !c.keepSizes {
		c.sizes = defaultCopySizes()
		if c.machine.modelled() { // whose bytes are this host's to move
			c.sizes = c.sizes[:7]
		}
	}
	return c.fit(func(most uint64) benchNeed {
		n, bare := c.span(most), c.ceilingSize(most)
		need := benchNeed{device: map[int]uint64{}, host: n + waySkew + min(checkBytes, n) + 2*gp.DefaultPinnedBytes}
		for _, g := range c.pair {
			need.device[g] += 2 * n
		}
		// A peer holds a source, a destination and a result, and its data.
		need.device[c.pair[0]] += 3 * n * c.beside
		need.host += n * c.beside
		for g := range need.device {
			need.device[g] += 2 * bare
			need.host += 2 * bare
		}
		return need
	})
}

// ceilingSize is the size of the bare copies in a run of copies up to most: as
// large as serves, but on a simulated machine no larger than the copies.
func (c *copyBench) ceilingSize(most uint64) uint64 {
	if c.machine.modelled() {
		return min(max(most, 1<<20), ceilingBytes)
	}
	return ceilingBytes
}

func (c *copyBench) has(key string) bool {
	for _, k := range c.cases {
		if k.key == key {
			return true
		}
	}
	return false
}

// prepare opens the group and makes the series, all without P2P: once access is
// enabled, the driver's copies are direct too.
func (c *copyBench) prepare(context.Context) (_ []*series, err error) {
	most := c.sizes.most()
	n, bare := c.span(most), c.ceilingSize(most)
	c.step("preparing", 4*n+4*bare)
	c.rig.want = c.data(max(n, bare) + waySkew)
	if err := c.openPorts(int(bare)); err != nil {
		return nil, err
	}
	if err := c.openGroup(int(n)); err != nil {
		return nil, err
	}
	c.at, c.ceilings = map[uint64]int{}, map[int]float64{}
	for ways := 1; ways <= 2; ways++ {
		c.series = append(c.series, c.bareSeries(ways, int(bare)))
	}
	for _, size := range c.sizes {
		for _, k := range c.cases {
			chunk := uint64(c.chunk)
			switch route, ways := k.copies(); route {
			case routeDriver:
				chunk = 0
				fallthrough
			case routeStaged:
				if err := c.addSeries(k.key, route, ways, size, chunk); err != nil {
					return nil, err
				}
			}
		}
		if !c.sweep || !c.has("copy.staged.one_way") {
			continue
		}
		for chunk := uint64(128 << 10); chunk <= min(size, 8<<20); chunk *= 2 {
			if err := c.addSeries("copy.staged.one_way", routeStaged, 1, size, chunk); err != nil {
				return nil, err
			}
		}
	}
	return c.series, nil
}

func (c *copyBench) addSeries(key, route string, ways int, size, chunk uint64) error {
	s, err := c.copySeries(key, route, ways, size, chunk)
	if err == nil {
		c.series = append(c.series, s)
	}
	return err
}

// copies is what a case's key says: copy.ROUTE.WAYS.
func (k *benchCase) copies() (route string, ways int) {
	parts := strings.Split(k.key, ".")
	if parts[2] == waysKey(2) {
		return parts[1], 2
	}
	return parts[1], 1
}

func (c *copyBench) openPorts(n int) (err error) {
	for i, g := range c.pair {
		if i == 1 && g == c.pair[0] {
			c.ports[1] = c.ports[0]
			break
		}
		if c.ports[i], err = c.rig.newPort(g, c.rig.nodeOf(g), n, nil); err != nil {
			return err
		}
	}
	return nil
}

// options are those of the group.
func (c *copyBench) options(d *cuda.Driver) gp.Options {
	o := gp.Options{
		Driver: d, Devices: c.pair[:], AllowSameGPU: c.pair[0] == c.pair[1], P2P: gp.P2POff, LowLatency: c.lowLatency,
		Logger: slog.New(slog.NewTextHandler(c.stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	return o
}

// prepareDirect opens a second group, which uses P2P where it proves it, on the
// buffers of the first.
func (c *copyBench) prepareDirect(context.Context) (all []*series, err error) {
	if !c.has("copy.direct.one_way") {
		return nil, nil
	}
	c.step("proving P2P", 0)
	o := c.options(c.machine.driver)
	o.P2P = gp.P2PAuto
	g, err := gp.Open(o)
	if c.group, err = closing(c.bench, g, err); err != nil {
		return nil, err
	}
	ranks := c.group.Ranks()
	c.ends = [2]*gp.Rank(ranks)
	for w := range 2 {
		if c.src[w], err = ranks[w].Wrap(c.src[w].Ptr(), gp.TypeUint8, c.src[w].Len(), ranks[w].Stream()); err != nil {
			return nil, err
		}
		if c.dst[w], err = ranks[1-w].Wrap(c.dst[w].Ptr(), gp.TypeUint8, c.dst[w].Len(), c.dst[w].Stream()); err != nil {
			return nil, err
		}
	}
	for _, size := range c.sizes {
		for _, k := range c.cases {
			route, ways := k.copies()
			if route != routeDirect {
				continue
			}
			one, err := c.copySeries(k.key, route, ways, size, 0)
			if errors.Is(err, gp.ErrArgument) {
				// The driver grants P2P and the group does not use it; its log says why.
				c.doc.Skipped = append(c.doc.Skipped, benchSkip{k.key, k.sentence, err.Error()})
				continue
			}
			if err != nil {
				return nil, err
			}
			all = append(all, one)
		}
	}
	return all, nil
}

func (c *copyBench) openGroup(n int) error {
	g, err := gp.Open(c.options(c.machine.driver))
	if c.group, err = closing(c.bench, g, err); err != nil {
		return err
	}
	m, err := c.ports[0].cc.HostAlloc(min(checkBytes, n), 0)
	if c.check, err = closing(c.bench, m, err); err != nil {
		return err
	}
	ranks := c.group.Ranks()
	c.ends, c.skew = [2]*gp.Rank(ranks), [2]int{0, waySkew}
	for w := range 2 {
		from, to := ranks[w], ranks[1-w]
		if c.src[w], err = from.Alloc(gp.TypeUint8, n); err != nil {
			return err
		}
		if c.dst[w], err = to.Alloc(gp.TypeUint8, n); err != nil {
			return err
		}
		// What one stream orders does not run at once: what comes to a rank gets
		// another stream than what goes from it.
		s, err := to.Context().NewStream()
		if s, err = closing(c.bench, s, err); err != nil {
			return err
		}
		c.dst[w] = c.dst[w].On(s)
		if s, err = from.Context().NewStream(); err == nil {
			c.out[w], err = closing(c.bench, s, err)
		}
		if err != nil {
			return err
		}
		ev, err := from.Context().NewEvent(0)
		if c.done[w], err = closing(c.bench, ev, err); err != nil {
			return err
		}
		if err := c.fill(w, n); err != nil {
			return err
		}
	}
	return nil
}

// wanted is the data of a way.
func (c *copyBench) wanted(way int) []byte { return c.rig.want[c.skew[way]:] }

// fill writes a way's data to its source, through the pinned memory.
func (c *copyBench) fill(way, n int) error {
	s := c.out[way]
	for off := 0; off < n; off += c.check.Len() {
		k := min(c.check.Len(), n-off)
		copy(c.check.Bytes()[:k], c.wanted(way)[off:])
		if err := s.MemcpyHtoD(c.src[way].Ptr()+cuda.Ptr(off), c.check.Pointer(), k); err != nil {
			return err
		}
		if err := s.Synchronize(); err != nil {
			return err
		}
	}
	return nil
}

// verify counts the wrong bytes of a way's destination.
func (c *copyBench) verify(way, off, n int) (wrong uint64, err error) {
	s := c.dst[way].Stream()
	for end := off + n; off < end; off += c.check.Len() {
		k := min(c.check.Len(), end-off)
		got := c.check.Bytes()[:k]
		poisonHost(got)
		if err := s.MemcpyDtoH(c.check.Pointer(), c.dst[way].Ptr()+cuda.Ptr(off), k); err != nil {
			return 0, err
		}
		if err := s.Synchronize(); err != nil {
			return 0, err
		}
		wrong += differing(got, c.wanted(way)[off:off+k])
	}
	return wrong, nil
}

// moves is the bare traffic of so many ways.
func (c *copyBench) moves(ways int) []move {
	a, b := c.ports[0], c.ports[1]
	if a == b || ways == 1 {
		return []move{{a, false}, {b, true}}
	}
	return []move{{a, false}, {b, true}, {b, false}, {a, true}}
}

// bareRate samples the ceiling of algbw for so many ways, in bytes a second.
func (c *copyBench) bareRate(ways int, s *series) (float64, error) {
	rate, wrong, err := c.rig.ceiling(c.moves(ways), c.ports[0].n)
	if err != nil {
		return 0, err
	}
	s.wrong += wrong
	// On one GPU both ways share what each move has.
	if ways == 2 && c.ports[0] != c.ports[1] {
		rate *= 2
	}
	return rate, nil
}

func (c *copyBench) bareSeries(ways, n int) *series {
	s := &series{ways: ways, bus: c.bus(ways)}
	s.row = benchResult{Op: "copy", Algorithm: "bare", Type: "uint8", Ranks: 2, Bytes: uint64(n), Case: "copy.bare." + waysKey(ways), GPUs: c.waysOf(ways), Clock: "wall"}
	s.sample = func(_ context.Context, s *series) error {
		rate, err := c.bareRate(ways, s)
		if err != nil {
			return err
		}
		s.add([]float64{s.payload() / rate}, nil, nil, nil, 0)
		return nil
	}
	return s
}

func waysKey(ways int) string {
	if ways == 2 {
		return "both_ways"
	}
	return "one_way"
}

// waysOf is "0>1 1>0".
func (c *copyBench) waysOf(ways int) string {
	out := fmt.Sprintf("%d>%d", c.pair[0], c.pair[1])
	if ways == 2 {
		out += fmt.Sprintf(" %d>%d", c.pair[1], c.pair[0])
	}
	return out
}

// bus is busbw over algbw: between two GPUs each way has a direction of each
// link to itself; on one GPU every copy takes both directions.
func (c *copyBench) bus(ways int) float64 {
	if c.pair[0] == c.pair[1] {
		return 1
	}
	return 1 / float64(ways)
}

// copySeries is copies of size bytes by a route. chunk is 0 for the library's
// choice.
func (c *copyBench) copySeries(key, route string, ways int, size, chunk uint64) (*series, error) {
	s := &series{ways: ways, bus: c.bus(ways)}
	s.row = benchResult{Op: "copy", Algorithm: route, Type: "uint8", Ranks: 2, Bytes: size, Case: key, GPUs: c.waysOf(ways), Clock: "wall"}
	options := gp.CallOptions{Route: gp.Route(route), Chunk: int(chunk)}
	if route != routeDriver {
		e, err := c.explain(options, int(size))
		if err != nil {
			return nil, err
		}
		calls := uint64(e.DriverCalls * ways)
		s.row.DriverCalls = &calls
		if route == routeStaged {
			took := uint64(e.Chunk) // the budget may make it less than was asked for
			s.row.ChunkBytes, s.slots = &took, e.Slots
		}
	}
	if chunk > 0 {
		s.row.ChunkAsked = &chunk
	}
	ops := c.group.With(options)
	one := func(ctx context.Context, off, n int) (enqueue, total time.Duration, err error) {
		return c.once(ctx, ops, ways, off, n)
	}
	if route == routeDriver {
		one = func(ctx context.Context, off, n int) (enqueue, total time.Duration, err error) {
			return c.driverOnce(ctx, ways, off, n)
		}
	}
	s.sample = func(ctx context.Context, s *series) error {
		if c.bareless {
			return c.sample(ctx, s, ways, one)
		}
		if size >= ceilingAnew && s.row.ChunkAsked == nil || c.ceilings[ways] == 0 {
			rate, err := c.bareRate(ways, s)
			if err != nil {
				return err
			}
			c.ceilings[ways] = rate
		}
		return c.sample(ctx, s, ways, one)
	}
	return s, nil
}

// explain is how the library does a copy of n bytes, once one has made what they
// need.
func (c *copyBench) explain(o gp.CallOptions, n int) (e gp.Explanation, err error) {
	if _, _, err := c.once(context.Background(), c.group.With(o), 1, 0, n); err != nil {
		return e, err
	}
	o.Explain = &e
	_, err = c.group.With(o).Copy(c.dst[0].Sub(0, n), c.src[0].Sub(0, n))
	return e, err
}

// warmAgain is for how long copies are made that do not count when another
// program ran in between.
const warmAgain = 3 * time.Millisecond

// ceilingAnew is the size from which each sample has a ceiling of its own,
// taken right before it. Below, and in a sweep, the last one serves.
const ceilingAnew = 1 << 20

// sample takes a round's samples of a series: each copies another part of the
// buffers. The destinations are filled before, and all is compared after it.
func (c *copyBench) sample(ctx context.Context, s *series, ways int, one func(ctx context.Context, off, n int) (enqueue, total time.Duration, err error)) error {
	n := int(s.row.Bytes)
	count := min(c.batch(s.row.Bytes), c.src[0].Len()/n)
	first := c.at[s.row.Bytes]
	if (first+count)*n > c.src[0].Len() {
		first = 0
	}
	c.at[s.row.Bytes] = first + count
	if c.beside > 0 {
		// Another program had the GPU and the processor before: the first copies pay
		// for that.
		for began := c.now(); ; {
			if _, _, err := one(ctx, first*n, n); err != nil {
				return err
			}
			if c.machine.modelled() || c.now()-began >= warmAgain {
				break
			}
		}
	}
	for w := range ways {
		d := c.dst[w]
		if err := d.Stream().MemsetD8(d.Ptr()+cuda.Ptr(first*n), poisonByte, count*n); err != nil {
			return err
		}
		if err := d.Stream().Synchronize(); err != nil {
			return err
		}
	}
	var seconds, enqueue, cpu []float64
	used, known := processorTime()
	for k := range count {
		e, d, err := one(ctx, (first+k)*n, n)
		if err != nil {
			return err
		}
		seconds, enqueue = append(seconds, d.Seconds()), append(enqueue, e.Seconds())
	}
	if after, ok := processorTime(); ok && known && !c.machine.modelled() {
		cpu = append(cpu, (after-used).Seconds()/float64(count))
	}
	for w := range ways {
		wrong, err := c.verify(w, first*n, count*n)
		if err != nil {
			return err
		}
		s.wrong += wrong
	}
	s.add(seconds, nil, enqueue, cpu, c.ceilings[ways])
	return nil
}

// once is one copy each way through the library, waited for.
func (c *copyBench) once(ctx context.Context, ops gp.Ops, ways, off, n int) (enqueue, total time.Duration, err error) {
	var works [2]gp.Work
	var src, dst [2]gp.Buffer
	for w := range ways {
		src[w], dst[w] = c.src[w].Sub(off, off+n), c.dst[w].Sub(off, off+n)
	}
	began := c.now()
	for w := range ways {
		if works[w], err = ops.Copy(dst[w], src[w]); err != nil {
			return 0, 0, err
		}
	}
	enqueue = c.now() - began
	for w := range ways {
		if err := works[w].Wait(ctx); err != nil {
			return 0, 0, err
		}
	}
	return enqueue, c.now() - began, nil
}

// driverOnce is one copy each way by the driver, polled for as a Wait does.
func (c *copyBench) driverOnce(ctx context.Context, ways, off, n int) (enqueue, total time.Duration, err error) {
	began := c.now()
	for w := range ways {
		from, to := c.ends[w].Context(), c.ends[1-w].Context()
		if err := c.out[w].MemcpyPeer(c.dst[w].Ptr()+cuda.Ptr(off), to, c.src[w].Ptr()+cuda.Ptr(off), from, n); err != nil {
			return 0, 0, err
		}
		if err := c.done[w].Record(c.out[w]); err != nil {
			return 0, 0, err
		}
	}
	enqueue = c.now() - began
	for w := range ways {
		for done := false; !done; {
			if done, err = c.done[w].Query(); err != nil {
				return 0, 0, err
			}
			if err := ctx.Err(); err != nil {
				return 0, 0, err
			}
		}
	}
	return enqueue, c.now() - began, nil
}

// A sweepResult holds the library's chunk against the best of --sweep.
type sweepResult struct {
	Bytes          uint64  `json:"bytes"`
	Seconds        float64 `json:"seconds"`      // with the library's choice
	BestSeconds    float64 `json:"best_seconds"` // of the sweep
	BestChunkBytes uint64  `json:"best_chunk_bytes"`
	Ratio          float64 `json:"ratio"` // of the first to the second, the median of the rounds'
}

// finish sums up the sweep.
func (c *copyBench) finish(d *benchDoc) {
	for _, s := range c.series {
		if !c.sweep || s.row.Case != "copy.staged.one_way" || s.row.ChunkAsked != nil {
			continue
		}
		var best *series
		for _, o := range c.series {
			if o.row.ChunkAsked == nil || o.row.Bytes != s.row.Bytes || len(o.seconds) == 0 {
				continue
			}
			if best == nil || quantile(o.seconds, 0.5) < quantile(best.seconds, 0.5) {
				best = o
			}
		}
		if best == nil || len(s.rounds) == 0 {
			continue
		}
		d.Sweep = append(d.Sweep, sweepResult{
			Bytes: s.row.Bytes, Seconds: quantile(s.seconds, 0.5), BestSeconds: quantile(best.seconds, 0.5),
			BestChunkBytes: *best.row.ChunkAsked, Ratio: quantile(ratios(s.rounds, best.rounds), 0.5),
		})
	}
}

// ratios are those of adjacent rounds.
func ratios(a, b []float64) []float64 {
	n := min(len(a), len(b))
	out := make([]float64, 0, n)
	for i := range n {
		if b[i] > 0 {
			out = append(out, a[i]/b[i])
		}
	}
	return out
}

func writeSweep(w io.Writer, d *benchDoc) {
	label := ""
	if d.Machine.Modelled {
		label = strings.TrimSpace(modelledLabel)
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(out, "bytes\tlibrary's chunk\tbest chunk\tthat is\ttime over best\t\t\n\tus\tus\t\t\t\t\n")
	for i := range d.Sweep {
		s := &d.Sweep[i]
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%.3f\t%s\t\n", formatSize(s.Bytes), microseconds(&s.Seconds), microseconds(&s.BestSeconds), formatSize(s.BestChunkBytes), s.Ratio, label)
	}
	out.Flush()
}
