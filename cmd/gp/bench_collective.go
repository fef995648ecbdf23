// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp"
)

// A collectiveOp is one of the library's collectives as nccl-tests measure it.
type collectiveOp struct {
	name     string
	sentence string
	reduces  bool
	rooted   bool
	inPlace  bool // it has such a form
	// A rank's buffers are so many shares of its elements; bytes are those of the
	// longer one. all: a share a rank.
	dstAll, srcAll bool
	// bus is busbw over algbw on n ranks, as PERFORMANCE.md of nccl-tests has it.
	bus func(n float64) float64
}

func busShares(n float64) float64 { return (n - 1) / n }
func busWhole(float64) float64    { return 1 }

var collectiveOps = []*collectiveOp{
	{"all_reduce", "every rank gets the reduction of all ranks' data", true, false, true, false, false, func(n float64) float64 { return 2 * (n - 1) / n }},
	{"all_gather", "every rank gets the data of all ranks", false, false, true, true, false, busShares},
	{"reduce_scatter", "every rank gets its share of the reduction", true, false, true, false, true, busShares},
	{"broadcast", "every rank gets the data of one", false, true, true, false, false, busWhole},
	{"reduce", "one rank gets the reduction of all ranks' data", true, true, true, false, false, busWhole},
	{"all_to_all", "every rank gets a share of every rank's data", false, false, false, true, true, busShares},
}

// collectiveCases are the ops, and their ceiling.
var collectiveCases = func() (cases []*benchCase) {
	for _, o := range collectiveOps {
		c := &benchCase{key: o.name, sentence: o.sentence}
		if o.reduces {
			c.skip = noReductions
		}
		cases = append(cases, c)
	}
	return cases
}()

// noReductions: the kernels that reduce are for compute capability 8.0 and up.
func noReductions(b *bench) string {
	gpus, err := b.chooseGPUs()
	if err != nil {
		return ""
	}
	for _, g := range gpus {
		if major, minor, err := b.devices[g].ComputeCapability(); err == nil && major < 8 {
			return fmt.Sprintf("GPU %d has compute capability %d.%d, and reductions need 8.0", g, major, minor)
		}
	}
	return ""
}

var benchCollectiveCommands = func() (cs []*command) {
	for _, o := range collectiveOps {
		cs = append(cs, collectiveCommand(o))
	}
	return cs
}()

// algorithmAuto is the library's choice, among algorithms' names.
const algorithmAuto = "auto"

func collectiveCommand(o *collectiveOp) *command {
	operands, flags := "", ""
	if o.reduces {
		operands = " [--op OP]"
	}
	if o.rooted {
		flags = "[--root RANK] "
	}
	return &command{
		name:     "bench " + o.name,
		synopsis: o.sentence,
		usage: "bench " + o.name + " [-b SIZE -e SIZE [-f N] | --bytes SIZES] [--type TYPE]" + operands + "\n" +
			"       [--ranks N | --same-gpu N] " + flags + "[--algorithm NAME | --compare NAME,NAME] [--gpus LIST]\n" +
			"       [--low-latency] [--rounds N] [--time TIME] [--sim NAME] [--json | --csv] [--save FILE] [--html FILE]",
		text: `Measures ` + o.name + `: ` + o.sentence + `. The table is that of nccl-tests: size is the longer of a rank's buffers
in bytes, count what a call is given in elements, algbw the size over the time, and busbw algbw times
` + busText(o) + `, which makes numbers of ranks comparable. Every result is compared, byte by byte.

Time is from the call to the end of the wait, GPU time what the GPUs' own events tell of a run of its own in
which all was enqueued before the first command began. The ceiling is bare traffic in the same rounds: the
fewest bytes that each link must carry where no GPU reads another's memory, as large copies to and from host
memory that have nothing to do with each other.

There is a rank on each GPU, or two on the only one; --ranks N puts more on them in turn, --same-gpu N puts
all on one. --compare takes each size with each of some algorithms in turn: ` + strings.Join(algorithmNames(), ", ") + `;
auto is the library's choice.`,
		setup: func(fl *flag.FlagSet) func(context.Context, *environment) error {
			b := &bench{}
			c := &collectiveBench{bench: b, rig: &rig{b: b}, op: o, typ: gp.TypeFloat32}
			b.declare(fl, collectiveSizesText)
			c.declare(fl)
			return func(ctx context.Context, e *environment) error {
				b.given(fl)
				if err := c.check(fl); err != nil {
					return err
				}
				if err := b.start(e, o.name); err != nil {
					return err
				}
				if err := c.plan(); err != nil {
					return b.giveUp(err)
				}
				return b.measure(ctx, nil, c.prepare)
			}
		},
	}
}

func busText(o *collectiveOp) string {
	switch {
	case o.name == "all_reduce":
		return "2(n-1)/n on n ranks"
	case o.bus(2) == 1:
		return "1"
	}
	return "(n-1)/n on n ranks"
}

func algorithmNames() []string {
	names := []string{algorithmAuto}
	for _, a := range []gp.Algorithm{gp.AlgorithmDirect, gp.AlgorithmRing, gp.AlgorithmRingZeroCopy, gp.AlgorithmTwoShot, gp.AlgorithmOneShot, gp.AlgorithmPeer} {
		names = append(names, string(a))
	}
	return names
}

// A collectiveBench is one run of an op on so many ranks.
type collectiveBench struct {
	*bench
	rig        *rig
	op         *collectiveOp
	typ        gp.Type
	red        gp.Op
	ranks      int // of --ranks
	sameGPU    int
	root       int
	asked      []string
	lowLatency bool

	onGPU    []int // by rank
	group    *gp.Group
	src, dst []gp.Buffer // by rank, of the span
	starts   []*cuda.Event
	ends     []*cuda.Event
	ports    map[int]*port // by GPU
	pinned   *cuda.HostMem // what arrives is read back through it
	base     []byte        // rank r's data begin at r*rankSkew
	reduced  []byte
	at       map[uint64]int
	ceilings map[uint64]*roundCeiling // by size
}

// A roundCeiling is the ceiling of algbw at a size, in bytes a second, and the
// round in which it was taken.
type roundCeiling struct {
	loads []load
	scale float64 // of the loads over the bytes that the links must carry
	rate  float64
	round int
	none  bool
}

// rankSkew is how far one rank's data are from the next one's: no size that is
// measured, and a multiple of every element.
const rankSkew = 4200

const collectiveSizesText = "1KiB to 64MiB in steps of 4, on a simulated machine to 4MiB"

func defaultCollectiveSizes(modelled bool) (sizes sizeList) {
	most := uint64(64 << 20)
	if modelled {
		most = 4 << 20
	}
	for n := uint64(1 << 10); n <= most; n *= 4 {
		sizes = append(sizes, n)
	}
	return sizes
}

func (c *collectiveBench) declare(fl *flag.FlagSet) {
	fl.Func("type", "the `TYPE` of the elements (default float32)", func(v string) (err error) {
		c.typ, err = gp.ParseType(v)
		return err
	})
	if c.op.reduces {
		fl.Func("op", "the reduction `OP` (default sum)", func(v string) (err error) {
			c.red, err = gp.ParseOp(v)
			return err
		})
	}
	if c.op.rooted {
		fl.IntVar(&c.root, "root", 0, "the `RANK` that all get the data of, or that gets the result")
	}
	fl.IntVar(&c.ranks, "ranks", 0, "use `N` ranks, 2 to 16, instead of one a GPU; they share GPUs if there are fewer")
	fl.IntVar(&c.sameGPU, "same-gpu", 0, "put `N` ranks, 2 to 16, on one GPU")
	choose := func(v string) error {
		if len(c.asked) > 0 {
			return errors.New("--algorithm names one and --compare some: choose one of the flags")
		}
		for word := range strings.SplitSeq(v, ",") {
			word = strings.TrimSpace(word)
			if !slices.Contains(algorithmNames(), word) {
				return fmt.Errorf("unknown algorithm %q (known: %s)", word, strings.Join(algorithmNames(), " "))
			}
			if slices.Contains(c.asked, word) {
				return fmt.Errorf("%s twice", word)
			}
			c.asked = append(c.asked, word)
		}
		return nil
	}
	fl.Func("algorithm", "the algorithm's `NAME` (default auto: the library's choice)", choose)
	fl.Func("compare", "measure with each of these `NAMES` in turn, separated by commas", choose)
	fl.BoolVar(&c.lowLatency, "low-latency", false, "wait by polling without pause")
}

// check refuses what cannot be right on any machine.
func (c *collectiveBench) check(fl *flag.FlagSet) error {
	var err error
	fl.Visit(func(f *flag.Flag) {
		n := map[string]int{"ranks": c.ranks, "same-gpu": c.sameGPU}
		if v, ok := n[f.Name]; ok && (v < 2 || v > gp.MaxRanks) {
			err = usagef("--%s %d: collectives are measured on 2 to %d ranks", f.Name, v, gp.MaxRanks)
		}
	})
	switch {
	case err != nil:
		return err
	case c.ranks != 0 && c.sameGPU != 0:
		return usagef("--ranks spreads ranks over the GPUs and --same-gpu puts them on one: choose one")
	case c.sameGPU != 0 && len(c.gpus) > 1:
		return usagef("--same-gpu uses one GPU, and --gpus names %d", len(c.gpus))
	}
	return nil
}

// plan decides what runs on which GPUs, and refuses what does not fit.
func (c *collectiveBench) plan() error {
	gpus, err := c.chooseGPUs()
	if err != nil {
		return err
	}
	n := c.ranks
	switch {
	case c.sameGPU != 0:
		n, gpus = c.sameGPU, gpus[:1]
	case n == 0 && len(gpus) == 1:
		n = 2
		c.note("two ranks share one GPU, so they share its link")
	case n == 0:
		n = min(len(gpus), gp.MaxRanks)
	}
	c.onGPU = make([]int, n)
	for r := range c.onGPU {
		c.onGPU[r] = gpus[r%len(gpus)]
	}
	c.gpus = gpus[:min(n, len(gpus))]
	if c.root < 0 || c.root >= n {
		return usagef("--root %d: the ranks are 0 to %d", c.root, n-1)
	}
	if c.op.reduces {
		if why := noReductions(c.bench); why != "" {
			return fmt.Errorf("%s: %s", c.op.name, why)
		}
	}
	c.doc.Machine.Ranks = c.onGPU
	if len(c.asked) == 0 {
		c.asked = []string{algorithmAuto}
	}
	if !c.chosen && !c.keepSizes {
		c.sizes = defaultCollectiveSizes(c.machine.modelled())
	}
	if err := c.fit(c.need); err != nil {
		return err
	}
	var sizes sizeList
	var other []string
	for _, size := range c.sizes {
		s := c.whole(size)
		if s != size {
			other = append(other, formatSize(size)+" became "+formatSize(s))
		}
		if !slices.Contains(sizes, s) {
			sizes = append(sizes, s)
		}
	}
	if c.sizes = sizes; len(other) > 0 && c.chosen {
		c.note("sizes are of whole elements, and of equal shares where all ranks have one: %s", strings.Join(other, ", "))
	}
	return nil
}

// whole is the bytes nearest below a size that every rank has a whole share of:
// of a multiple of 16 bytes where the size allows it, as nccl-tests do.
func (c *collectiveBench) whole(size uint64) uint64 {
	unit := uint64(c.typ.Size())
	if c.op.dstAll || c.op.srcAll {
		unit *= uint64(len(c.onGPU))
		if wide := uint64(16 * len(c.onGPU)); size >= wide {
			unit = wide
		}
	}
	return max(size/unit, 1) * unit
}

func (c *collectiveBench) need(most uint64) benchNeed {
	most = c.whole(most)
	n, ranks, bare := c.span(most), uint64(len(c.onGPU)), c.bare(most)
	d := benchNeed{device: map[int]uint64{}, host: n + ranks*rankSkew + max(most, min(checkBytes, n)) + ranks*gp.DefaultPinnedBytes}
	if c.op.reduces {
		d.host += n
	}
	for _, g := range c.onGPU {
		d.device[g] += 2*n + gp.DefaultPinnedBytes
	}
	for g := range d.device {
		d.device[g] += 2*bare + gateBytes
		d.host += 2 * bare
	}
	return d
}

// collectiveCeilingBytes is the size of the bare copies: far more than what
// starting them takes.
const collectiveCeilingBytes = 128 << 20

func (c *collectiveBench) bare(most uint64) uint64 {
	if c.machine.modelled() {
		return min(max(most, 4<<20), collectiveCeilingBytes)
	}
	return collectiveCeilingBytes
}

// prepare opens the group, fills its buffers and makes the series.
func (c *collectiveBench) prepare(ctx context.Context) (all []*series, err error) {
	n, bare := c.span(c.sizes.most()), c.bare(c.sizes.most())
	ranks := len(c.onGPU)
	c.step("preparing", (n+bare)*uint64(2*ranks+4))
	c.base = collectiveData(max(n, bare)+uint64(ranks)*rankSkew, c.typ, c.red, c.op.reduces, &c.random)
	c.rig.want = c.base
	if c.op.reduces {
		views := make([][]byte, ranks)
		for r := range views {
			views[r] = c.wanted(r)
		}
		c.reduced = make([]byte, n)
		collectiveReference(c.reduced, views, c.typ, c.red)
	}
	c.ports, c.at, c.ceilings = map[int]*port{}, map[uint64]int{}, map[uint64]*roundCeiling{}
	for _, g := range c.gpus {
		if c.ports[g], err = c.rig.newPort(g, c.rig.nodeOf(g), int(bare), nil); err != nil {
			return nil, err
		}
	}
	if err := c.open(ctx, int(n)); err != nil {
		return nil, err
	}
	for _, size := range c.sizes {
		for _, asked := range c.asked {
			for _, inPlace := range []bool{false, true} {
				if inPlace && !c.op.inPlace {
					continue
				}
				s, err := c.newSeries(ctx, asked, size, inPlace)
				if errors.Is(err, gp.ErrArgument) {
					// The algorithm does not do this size, or this group: it says why.
					c.skip(asked, size, err)
					break
				}
				if err != nil {
					return nil, err
				}
				all = append(all, s)
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("nothing to measure: %s", c.doc.Skipped[0].Reason)
	}
	return all, nil
}

// skip notes an algorithm that does not run at a size, once for each reason.
func (c *collectiveBench) skip(asked string, size uint64, err error) {
	why := err.Error()
	if _, after, ok := strings.Cut(why, gp.ErrArgument.Error()+": "); ok {
		why = after
	}
	s := benchSkip{c.op.name + "." + asked, formatSize(size) + " on " + fmt.Sprint(len(c.onGPU)) + " ranks", why}
	if !slices.Contains(c.doc.Skipped, s) {
		c.doc.Skipped = append(c.doc.Skipped, s)
	}
}

func (c *collectiveBench) open(ctx context.Context, n int) (err error) {
	g, err := gp.Open(gp.Options{
		Driver: c.machine.driver, Devices: c.onGPU, AllowSameGPU: true, LowLatency: c.lowLatency,
		Logger: slog.New(slog.NewTextHandler(c.stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if c.group, err = closing(c.bench, g, err); err != nil {
		return err
	}
	first := c.ports[c.onGPU[0]].cc
	m, err := first.HostAlloc(c.checkSize(n), 0)
	if c.pinned, err = closing(c.bench, m, err); err != nil {
		return err
	}
	bytes := gateBytes
	if c.machine.modelled() {
		bytes = gateBytesModelled
	}
	if c.rig.gate, err = newGate(c.bench, first, bytes); err != nil {
		return fmt.Errorf("holding streams back: %w", err)
	}
	for _, rank := range c.group.Ranks() {
		for _, side := range []*[]gp.Buffer{&c.src, &c.dst} {
			b, err := rank.Alloc(c.typ, n/c.typ.Size())
			if err != nil {
				return err
			}
			*side = append(*side, b)
		}
		for _, side := range []*[]*cuda.Event{&c.starts, &c.ends} {
			e, err := rank.Context().NewTimingEvent(0)
			if e, err = closing(c.bench, e, err); err != nil {
				return err
			}
			*side = append(*side, e)
		}
		if err := c.fill(rank, n); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// checkSize is the pinned memory through which data is read back: a result of
// the largest size at least.
func (c *collectiveBench) checkSize(span int) int {
	return max(int(c.sizes.most()), min(checkBytes, span))
}

// wanted is the data of a rank.
func (c *collectiveBench) wanted(rank int) []byte { return c.base[rank*rankSkew:] }

// fill writes a rank's data to its source, through the pinned memory.
func (c *collectiveBench) fill(rank *gp.Rank, n int) error {
	r, s := rank.Index(), rank.Stream()
	for off := 0; off < n; off += c.pinned.Len() {
		k := min(c.pinned.Len(), n-off)
		copy(c.pinned.Bytes()[:k], c.wanted(r)[off:])
		if err := s.MemcpyHtoD(c.src[r].Ptr()+cuda.Ptr(off), c.pinned.Pointer(), k); err != nil {
			return err
		}
		if err := s.Synchronize(); err != nil {
			return err
		}
	}
	return nil
}

// shape is the elements of the longer of a rank's buffers, and of one share.
func (c *collectiveBench) shape(size uint64) (long, share int) {
	long = int(size) / c.typ.Size()
	if share = long; c.op.dstAll || c.op.srcAll {
		share = long / len(c.onGPU)
	}
	return long, share
}

// call enqueues the op at a place of the buffers.
func (c *collectiveBench) call(ops gp.Ops, size uint64, at int, inPlace bool) (gp.Work, error) {
	n := len(c.onGPU)
	long, share := c.shape(size)
	var dst, src [gp.MaxRanks]gp.Buffer
	for r := range n {
		first := at * long
		own := first + r*share
		dst[r], src[r] = c.dst[r].Sub(first, first+long), c.src[r].Sub(first, first+long)
		switch {
		case c.op.dstAll && c.op.srcAll:
		case c.op.dstAll: // all_gather
			src[r] = c.src[r].Sub(own, own+share)
			if inPlace {
				src[r] = c.dst[r].Sub(own, own+share)
			}
		case c.op.srcAll: // reduce_scatter
			dst[r] = c.dst[r].Sub(own, own+share)
			if inPlace {
				src[r] = c.dst[r].Sub(first, first+long)
			}
		case inPlace && (!c.op.rooted || r == c.root):
			src[r] = dst[r]
		}
	}
	switch c.op.name {
	case "all_reduce":
		return ops.AllReduceTo(dst[:n], src[:n], c.red)
	case "all_gather":
		return ops.AllGather(dst[:n], src[:n])
	case "reduce_scatter":
		return ops.ReduceScatter(dst[:n], src[:n], c.red)
	case "broadcast":
		return ops.Broadcast(dst[:n], src[c.root])
	case "reduce":
		return ops.Reduce(dst[c.root], src[:n], c.red)
	}
	return ops.AllToAll(dst[:n], src[:n])
}

// reset fills the destinations of count calls from a place on with what is in no
// result, and what is to be there in place with its data.
func (c *collectiveBench) reset(size uint64, at, count int, inPlace bool) error {
	from, bytes := at*int(size), count*int(size)
	for r := range c.onGPU {
		s := c.dst[r].Stream()
		dst, src := c.dst[r].Ptr(), c.src[r].Ptr()
		if err := s.MemsetD8(dst+cuda.Ptr(from), poisonByte, bytes); err != nil {
			return err
		}
		switch {
		case !inPlace, c.op.rooted && r != c.root:
		case c.op.dstAll: // a share of each call
			_, share := c.shape(size)
			n := share * c.typ.Size()
			for k := range count {
				own := cuda.Ptr(from + k*int(size) + r*n)
				if err := s.MemcpyDtoD(dst+own, src+own, n); err != nil {
					return err
				}
			}
		default:
			if err := s.MemcpyDtoD(dst+cuda.Ptr(from), src+cuda.Ptr(from), bytes); err != nil {
				return err
			}
		}
	}
	for r := range c.onGPU {
		if err := c.dst[r].Stream().Synchronize(); err != nil {
			return err
		}
	}
	return nil
}

// expected compares what a rank holds of a call with what it should, and counts
// the wrong bytes. got is from the place's first byte on.
func (c *collectiveBench) expected(r int, size uint64, from int, got []byte) (wrong uint64) {
	n := len(c.onGPU)
	_, share := c.shape(size)
	part := share * c.typ.Size()
	switch {
	case c.op.dstAll && c.op.srcAll:
		for q := range n {
			wrong += differing(got[q*part:(q+1)*part], c.wanted(q)[from+r*part:from+(r+1)*part])
		}
	case c.op.dstAll:
		for q := range n {
			wrong += differing(got[q*part:(q+1)*part], c.wanted(q)[from+q*part:from+(q+1)*part])
		}
	case c.op.srcAll:
		wrong = differing(got[r*part:(r+1)*part], c.reduced[from+r*part:from+(r+1)*part])
	case c.op.reduces:
		wrong = differing(got, c.reduced[from:from+int(size)])
	default:
		wrong = differing(got, c.wanted(c.root)[from:from+int(size)])
	}
	return wrong
}

// verify counts the wrong bytes of count calls from a place on.
func (c *collectiveBench) verify(size uint64, at, count int) (wrong uint64, err error) {
	for r := range c.onGPU {
		if c.op.name == "reduce" && r != c.root {
			continue
		}
		s := c.dst[r].Stream()
		each := max(c.pinned.Len()/int(size), 1) // calls that are read back together
		for k := 0; k < count; k += each {
			m := min(each, count-k)
			from := (at + k) * int(size)
			got := c.pinned.Bytes()[:m*int(size)]
			poisonHost(got)
			if err := s.MemcpyDtoH(c.pinned.Pointer(), c.dst[r].Ptr()+cuda.Ptr(from), len(got)); err != nil {
				return 0, err
			}
			if err := s.Synchronize(); err != nil {
				return 0, err
			}
			for i := range m {
				wrong += c.expected(r, size, from+i*int(size), got[i*int(size):(i+1)*int(size)])
			}
		}
	}
	return wrong, nil
}

// eventSamples is how often a round takes the GPUs' own time.
const eventSamples = 4

func (c *collectiveBench) newSeries(ctx context.Context, asked string, size uint64, inPlace bool) (*series, error) {
	n := len(c.onGPU)
	s := &series{ways: 1, bus: c.op.bus(float64(n))}
	_, share := c.shape(size)
	elements := uint64(share)
	s.row = benchResult{
		Op: c.op.name, Algorithm: asked, Type: c.typ.String(), Ranks: n, Bytes: size, Case: c.op.name, GPUs: ordinals(c.onGPU), Clock: "wall",
		Elements: &elements, Asked: &asked,
	}
	if c.op.inPlace {
		s.row.InPlace = &inPlace
	}
	if c.op.reduces {
		s.row.Reduction = c.red.String()
	}
	if c.op.rooted {
		s.row.Root = &c.root
	}
	options := gp.CallOptions{Algorithm: gp.Algorithm(asked)}
	if asked == algorithmAuto {
		options.Algorithm = gp.AlgorithmAuto
	}
	e, err := c.explain(ctx, options, size, inPlace)
	if err != nil {
		return nil, err
	}
	calls := uint64(e.DriverCalls)
	s.row.DriverCalls = &calls
	if e.Chunk > 0 {
		chunk := uint64(e.Chunk)
		s.row.ChunkBytes = &chunk
	}
	if c.ceilings[size] == nil {
		// The direct algorithm's traffic is the least that there is.
		least, err := c.explain(ctx, gp.CallOptions{Algorithm: gp.AlgorithmDirect}, size, inPlace)
		if err != nil {
			return nil, err
		}
		c.ceilings[size] = c.loads(&least)
	}
	ops := c.group.With(options)
	s.sample = func(ctx context.Context, s *series) error { return c.sample(ctx, s, ops, inPlace) }
	return s, nil
}

// explain is how the library does the op, once it has done it and so has made
// what the others need.
func (c *collectiveBench) explain(ctx context.Context, o gp.CallOptions, size uint64, inPlace bool) (e gp.Explanation, err error) {
	if err := c.reset(size, 0, 1, inPlace); err != nil {
		return e, err
	}
	w, err := c.call(c.group.With(o), size, 0, inPlace)
	if err != nil {
		return e, err
	}
	if err := w.Wait(ctx); err != nil {
		return e, err
	}
	o.Explain = &e
	_, err = c.call(c.group.With(o), size, 0, inPlace)
	return e, err
}

// loads are the bytes of an explanation on the links, scaled to bare copies.
func (c *collectiveBench) loads(e *gp.Explanation) *roundCeiling {
	up, down := map[int]uint64{}, map[int]uint64{}
	most := uint64(0)
	for r, g := range c.onGPU {
		up[g] += e.D2H[r]
		down[g] += e.H2D[r]
		most = max(most, up[g], down[g])
	}
	if most == 0 {
		return &roundCeiling{none: true}
	}
	bare := c.ports[c.onGPU[0]].n
	rc := &roundCeiling{scale: float64(bare) / float64(most), round: -1}
	add := func(g int, bytes uint64, down bool) {
		if n := int(math.Round(float64(bytes) * rc.scale)); n > 0 {
			rc.loads = append(rc.loads, load{move{c.ports[g], down}, min(n, bare)})
		}
	}
	for _, g := range c.gpus { // what goes up first: see ceilingOf
		add(g, up[g], false)
	}
	for _, g := range c.gpus {
		add(g, down[g], true)
	}
	return rc
}

// ceiling is that of algbw at a size, 0 where there is none. Large ones have one
// of each round, small ones one for all.
func (c *collectiveBench) ceiling(s *series) (float64, error) {
	rc := c.ceilings[s.row.Bytes]
	if rc.none || s.row.Algorithm == string(gp.AlgorithmPeer) {
		return 0, nil
	}
	if rc.rate == 0 || s.row.Bytes >= ceilingAnew && rc.round != c.round {
		d, wrong, err := c.rig.ceilingOf(rc.loads)
		if err != nil {
			return 0, err
		}
		s.wrong += wrong
		rc.rate, rc.round = float64(s.row.Bytes)*rc.scale/d.Seconds(), c.round
	}
	return rc.rate, nil
}

// sample takes a round's samples of a series, each in another part of the
// buffers, and then some by the GPUs' events.
func (c *collectiveBench) sample(ctx context.Context, s *series, ops gp.Ops, inPlace bool) error {
	size := s.row.Bytes
	slots := c.src[0].Len() * c.typ.Size() / int(size)
	count := min(c.batch(size), slots)
	first := c.at[size]
	if first+count > slots {
		first = 0
	}
	c.at[size] = first + count
	if err := c.reset(size, first, count, inPlace); err != nil {
		return err
	}
	var seconds, enqueue, cpu []float64
	used, known := processorTime()
	for k := range count {
		began := c.now()
		w, err := c.call(ops, size, first+k, inPlace)
		if err != nil {
			return err
		}
		e := c.now() - began
		if err := w.Wait(ctx); err != nil {
			return err
		}
		d := c.now() - began
		s.row.Algorithm = w.Algorithm()
		seconds, enqueue = append(seconds, d.Seconds()), append(enqueue, e.Seconds())
	}
	if after, ok := processorTime(); ok && known && !c.machine.modelled() {
		cpu = append(cpu, (after-used).Seconds()/float64(count))
	}
	wrong, err := c.verify(size, first, count)
	if err != nil {
		return err
	}
	s.wrong += wrong
	gated := min(count, eventSamples)
	if c.machine.modelled() {
		gated = 1
	}
	for k := range gated {
		d, ok, err := c.byEvents(ctx, s, ops, first+k, inPlace)
		if err != nil {
			return err
		}
		if ok && !s.warm {
			s.events = append(s.events, d.Seconds())
		}
	}
	ceiling, err := c.ceiling(s)
	if err != nil {
		return err
	}
	s.add(seconds, nil, enqueue, cpu, ceiling)
	return nil
}

// byEvents is the time of one call by the GPUs' events, from the start to the
// end on each rank's stream, of all ranks the longest. ok is false where the
// streams could not be held back until all was enqueued.
func (c *collectiveBench) byEvents(ctx context.Context, s *series, ops gp.Ops, at int, inPlace bool) (d time.Duration, ok bool, err error) {
	size, ranks := s.row.Bytes, c.group.Ranks()
	for range gateTries {
		if err := c.reset(size, at, 1, inPlace); err != nil {
			return 0, false, err
		}
		// All of the driver's calls could be of one stream.
		gated, err := c.rig.gate.shut(int(*s.row.DriverCalls) + 3*len(ranks))
		if err != nil {
			return 0, false, err
		}
		if !gated {
			return 0, false, nil
		}
		for r, rank := range ranks {
			if err := rank.Stream().Wait(c.rig.gate.open); err != nil {
				return 0, false, err
			}
			if err := c.starts[r].Record(rank.Stream()); err != nil {
				return 0, false, err
			}
		}
		w, err := c.call(ops, size, at, inPlace)
		if err != nil {
			return 0, false, err
		}
		for r, rank := range ranks {
			if err := c.ends[r].Record(rank.Stream()); err != nil {
				return 0, false, err
			}
		}
		if ok, err = c.rig.gate.held(); err != nil {
			return 0, false, err
		}
		if err := w.Wait(ctx); err != nil {
			return 0, false, err
		}
		for _, rank := range ranks {
			if err := rank.Stream().Synchronize(); err != nil {
				return 0, false, err
			}
		}
		wrong, err := c.verify(size, at, 1)
		if err != nil {
			return 0, false, err
		}
		s.wrong += wrong
		if ok {
			break
		}
	}
	if !ok {
		return 0, false, nil
	}
	for r := range ranks {
		took, err := cuda.Elapsed(c.starts[r], c.ends[r])
		if err != nil {
			return 0, false, err
		}
		d = max(d, took)
	}
	return d, true, nil
}
