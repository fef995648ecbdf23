// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp"
)

var benchP2PCommand = &command{
	name:     "bench p2p",
	synopsis: "all pairs of GPUs: what the driver grants, rates and latency, by each route",
	usage: "bench p2p [--bytes SIZE] [--gpus LIST] [--low-latency] [--rounds N] [--time TIME] [--sim NAME]\n" +
		"       [--json | --csv] [--save FILE] [--html FILE]",
	text: `Measures every pair of GPUs, as NVIDIA's p2pBandwidthLatencyTest does, and writes matrices: the row is the GPU
that sends, the column the one that receives. What the driver grants; then, one way and both ways at once, the
library's copy staged through host memory, the driver's own peer copy without peer access (cuMemcpyPeerAsync,
taken before access is enabled), and the direct copy where P2P is proven; then the latency of each, which is the
time of 16 bytes from the call to done. Every byte is compared. On the diagonal is a copy within the GPU.`,
	setup: func(fl *flag.FlagSet) func(context.Context, *environment) error {
		b := &bench{}
		p := &p2pBench{bench: b, rig: &rig{b: b}}
		b.declare(fl, formatSize(p2pBytes)+", on a simulated machine "+formatSize(p2pBytesModelled))
		fl.BoolVar(&p.lowLatency, "low-latency", false, "wait by polling without pause")
		return func(ctx context.Context, e *environment) error {
			b.given(fl)
			if err := b.check(); err != nil {
				return err
			}
			if len(b.sizes) > 1 {
				return usagef("the pairs are measured at one size, not %d", len(b.sizes))
			}
			if err := b.start(e, "p2p"); err != nil {
				return err
			}
			if err := p.plan(); err != nil {
				return b.giveUp(err)
			}
			return b.measure(ctx, p.finish, p.prepare, p.prepareDirect)
		}
	},
}

const (
	p2pBytes         = 64 << 20
	p2pBytesModelled = 4 << 20
	latencyBytes     = 16
	routeLocal       = "local"
)

// The keys are p2p.ROUTE.WHAT.
var p2pCases = []*benchCase{
	{"p2p.local.one_way", "a copy within a GPU's memory", nil},
	{"p2p.staged.one_way", "the library's staged copy, one way", noPair},
	{"p2p.staged.both_ways", "the library's staged copy, both ways at once", noPair},
	{"p2p.staged.latency", "the library's staged copy, from the call to done", noPair},
	{"p2p.driver.one_way", "the driver's peer copy without peer access, one way", noPair},
	{"p2p.driver.both_ways", "the driver's peer copy without peer access, both ways at once", noPair},
	{"p2p.driver.latency", "the driver's peer copy without peer access, from the call to done", noPair},
	{"p2p.direct.one_way", "the direct copy over proven P2P, one way", noP2PAnywhere},
	{"p2p.direct.both_ways", "the direct copy over proven P2P, both ways at once", noP2PAnywhere},
	{"p2p.direct.latency", "the direct copy over proven P2P, from the call to done", noP2PAnywhere},
}

// accessCase is the matrix of what the driver grants.
const accessCase = "p2p.access"

// noP2PAnywhere goes by the driver's word, as noP2P does.
func noP2PAnywhere(b *bench) string {
	if why := noPair(b); why != "" {
		return why
	}
	gpus, err := b.chooseGPUs()
	if err != nil {
		return ""
	}
	for _, i := range gpus {
		for _, j := range gpus {
			if i == j {
				continue
			}
			if ok, err := b.devices[i].CanAccessPeer(b.devices[j]); err == nil && ok {
				return ""
			}
		}
	}
	return "the driver denies P2P between all GPUs (gp probe says why)"
}

// A matrix is a figure of every pair: of the row's GPU, which sends, and the
// column's. A cell is null where there is none.
type matrix struct {
	Case     string       `json:"case"`
	Sentence string       `json:"sentence"`
	Bytes    uint64       `json:"bytes"`
	Unit     string       `json:"unit"` // "GB/s", "us", or "granted": 1 for yes, 0 for no
	GPUs     []int        `json:"gpus"` // of the rows and columns
	Cells    [][]*float64 `json:"cells"`
	Modelled bool         `json:"modelled"`
}

// A p2pBench is one run. What it does with a pair is a copyBench's.
type p2pBench struct {
	*bench
	rig        *rig
	lowLatency bool
	cases      []*benchCase

	access matrix
	group  *gp.Group
	ports  []*port // by rank, as the rest
	src    []gp.Buffer
	dst    []gp.Buffer
	out    []*cuda.Stream
	done   []*cuda.Event
	check  *cuda.HostMem
	views  map[[2]int]*copyBench
}

func (p *p2pBench) plan() (err error) {
	if p.gpus, err = p.chooseGPUs(); err != nil {
		return err
	}
	if len(p.gpus) > gp.MaxRanks {
		return usagef("%d GPUs: at most %d, so name some with --gpus", len(p.gpus), gp.MaxRanks)
	}
	p.cases = p.choose(p2pCases)
	p.ask()
	p.doc.Machine.Ranks = p.gpus
	if !p.chosen {
		p.sizes = sizeList{p2pBytes}
		if p.machine.modelled() {
			p.sizes = sizeList{p2pBytesModelled}
		}
	}
	return p.fit(func(most uint64) benchNeed {
		n, count := p.span(most), uint64(len(p.gpus))
		need := benchNeed{device: map[int]uint64{}, host: n + count*waySkew + min(checkBytes, n) + count*(gp.DefaultPinnedBytes+2*n)}
		for _, g := range p.gpus {
			need.device[g] = 4 * n
		}
		return need
	})
}

// prepare opens the group without P2P and makes the series that go without it.
func (p *p2pBench) prepare(context.Context) (all []*series, err error) {
	n := int(p.span(p.sizes.most()))
	p.step("preparing", uint64(n*(8*len(p.gpus)+2)))
	p.rig.want = p.data(uint64(n + len(p.gpus)*waySkew))
	for _, g := range p.gpus {
		port, err := p.rig.newPort(g, p.rig.nodeOf(g), n, nil)
		if err != nil {
			return nil, err
		}
		p.ports = append(p.ports, port)
	}
	g, err := gp.Open(p.options(gp.P2POff))
	if p.group, err = closing(p.bench, g, err); err != nil {
		return nil, err
	}
	m, err := p.ports[0].cc.HostAlloc(min(checkBytes, n), 0)
	if p.check, err = closing(p.bench, m, err); err != nil {
		return nil, err
	}
	for _, rank := range p.group.Ranks() {
		if err := p.openRank(rank, n); err != nil {
			return nil, err
		}
	}
	p.views = map[[2]int]*copyBench{}
	for i := range p.gpus {
		for j := range p.gpus {
			p.views[[2]int{i, j}] = p.view(i, j)
		}
	}
	for i := range p.gpus {
		if err := p.views[[2]int{i, i}].fill(0, n); err != nil {
			return nil, err
		}
	}
	return p.series(routeLocal, routeStaged, routeDriver)
}

func (p *p2pBench) options(mode gp.P2PMode) gp.Options {
	c := copyBench{bench: p.bench, lowLatency: p.lowLatency}
	o := c.options(p.machine.driver)
	o.Devices, o.AllowSameGPU, o.P2P = p.gpus, false, mode
	return o
}

func (p *p2pBench) openRank(rank *gp.Rank, n int) error {
	src, err := rank.Alloc(gp.TypeUint8, n)
	if err != nil {
		return err
	}
	dst, err := rank.Alloc(gp.TypeUint8, n)
	if err != nil {
		return err
	}
	// What one stream orders does not run at once.
	var streams [2]*cuda.Stream
	for i := range streams {
		s, err := rank.Context().NewStream()
		if streams[i], err = closing(p.bench, s, err); err != nil {
			return err
		}
	}
	e, err := rank.Context().NewEvent(0)
	if e, err = closing(p.bench, e, err); err != nil {
		return err
	}
	p.src, p.dst = append(p.src, src), append(p.dst, dst.On(streams[0]))
	p.out, p.done = append(p.out, streams[1]), append(p.done, e)
	return nil
}

// view is the copyBench of a pair of ranks.
func (p *p2pBench) view(i, j int) *copyBench {
	ranks := p.group.Ranks()
	return &copyBench{
		bench: p.bench, rig: p.rig, lowLatency: p.lowLatency, bareless: i == j,
		pair: [2]int{p.gpus[i], p.gpus[j]}, ports: [2]*port{p.ports[i], p.ports[j]}, group: p.group,
		src: [2]gp.Buffer{p.src[i], p.src[j]}, dst: [2]gp.Buffer{p.dst[j], p.dst[i]},
		out: [2]*cuda.Stream{p.out[i], p.out[j]}, done: [2]*cuda.Event{p.done[i], p.done[j]},
		ends: [2]*gp.Rank{ranks[i], ranks[j]}, skew: [2]int{i * waySkew, j * waySkew},
		check: p.check, at: map[uint64]int{}, ceilings: map[int]float64{},
	}
}

// series are those of some routes, pair by pair.
func (p *p2pBench) series(routes ...string) (all []*series, err error) {
	for _, route := range routes {
		for _, k := range p.cases {
			parts := strings.Split(k.key, ".") // p2p.ROUTE.WHAT
			if parts[1] != route {
				continue
			}
			for i := range p.gpus {
				for j := range p.gpus {
					if (i == j) != (route == routeLocal) || parts[2] == waysKey(2) && i > j {
						continue
					}
					s, err := p.pairSeries(k, route, parts[2], i, j)
					if errors.Is(err, gp.ErrArgument) {
						// The driver grants P2P and the group does not use it; its log says why.
						p.doc.Skipped = append(p.doc.Skipped, benchSkip{k.key, k.sentence, fmt.Sprintf("GPU %d to %d: %v", p.gpus[i], p.gpus[j], err)})
						continue
					}
					if err != nil {
						return nil, err
					}
					all = append(all, s)
				}
			}
		}
	}
	return all, nil
}

func (p *p2pBench) pairSeries(k *benchCase, route, what string, i, j int) (*series, error) {
	ways, size := 1, p.sizes.most()
	switch what {
	case waysKey(2):
		ways = 2
	case "latency":
		size = latencyBytes
	}
	s, err := p.views[[2]int{i, j}].copySeries(k.key, route, ways, size, 0)
	if err != nil {
		return nil, err
	}
	if i == j {
		s.row.Ranks = 1
	}
	if what == "latency" {
		s.unlimited = true
	}
	return s, nil
}

// prepareDirect opens a second group, which uses P2P where it proves it, on the
// buffers of the first.
func (p *p2pBench) prepareDirect(context.Context) (all []*series, err error) {
	has := false
	for _, k := range p.cases {
		has = has || strings.HasPrefix(k.key, "p2p.direct.")
	}
	if !has {
		return nil, nil
	}
	p.step("proving P2P", uint64(len(p.gpus)*len(p.gpus))<<20)
	g, err := gp.Open(p.options(gp.P2PAuto))
	if p.group, err = closing(p.bench, g, err); err != nil {
		return nil, err
	}
	for r, rank := range p.group.Ranks() {
		if p.src[r], err = rank.Wrap(p.src[r].Ptr(), gp.TypeUint8, p.src[r].Len(), rank.Stream()); err != nil {
			return nil, err
		}
		if p.dst[r], err = rank.Wrap(p.dst[r].Ptr(), gp.TypeUint8, p.dst[r].Len(), p.dst[r].Stream()); err != nil {
			return nil, err
		}
	}
	for i := range p.gpus {
		for j := range p.gpus {
			p.views[[2]int{i, j}] = p.view(i, j)
		}
	}
	return p.series(routeDirect)
}

func emptyCells(n int) [][]*float64 {
	cells := make([][]*float64, n)
	for i := range cells {
		cells[i] = make([]*float64, n)
	}
	return cells
}

// ask makes the matrix of what the driver grants.
func (p *p2pBench) ask() {
	p.access = matrix{Case: accessCase, Sentence: "the driver grants P2P", Unit: "granted", GPUs: p.gpus, Cells: emptyCells(len(p.gpus)), Modelled: p.machine.modelled()}
	for i, a := range p.gpus {
		for j, b := range p.gpus {
			if i == j {
				continue
			}
			if ok, err := p.devices[a].CanAccessPeer(p.devices[b]); err == nil {
				v := 0.0
				if ok {
					v = 1
				}
				p.access.Cells[i][j] = &v
			}
		}
	}
}

// finish makes the matrices.
func (p *p2pBench) finish(d *benchDoc) {
	at := map[string]int{}
	for i, g := range p.gpus {
		at[fmt.Sprint(g)] = i
	}
	if len(p.gpus) > 1 {
		d.Matrices = append(d.Matrices, p.access)
	}
	for _, k := range p.cases {
		if k.key == "p2p.local.one_way" && len(p.gpus) > 1 {
			continue // it is on the diagonal of the others
		}
		m := matrix{Case: k.key, Sentence: k.sentence, Unit: "GB/s", GPUs: p.gpus, Cells: emptyCells(len(p.gpus)), Modelled: p.machine.modelled()}
		if strings.HasSuffix(k.key, ".latency") {
			m.Unit = "us"
		}
		for _, r := range d.Results {
			local := r.Case == "p2p.local.one_way" && strings.HasSuffix(k.key, ".one_way")
			if r.Case != k.key && !local {
				continue
			}
			v := r.Algbw
			if m.Unit == "us" {
				v = r.Seconds * 1e6
			}
			for way := range strings.FieldsSeq(r.GPUs) {
				from, to, _ := strings.Cut(way, ">")
				m.Cells[at[from]][at[to]] = &v
			}
			m.Bytes = r.Bytes
		}
		if m.Bytes > 0 {
			d.Matrices = append(d.Matrices, m)
		}
	}
}

// title is what a matrix shows, in a line.
func (m *matrix) title() string {
	t := m.Case + ": " + m.Sentence
	if m.Bytes > 0 {
		t += ", " + formatSize(m.Bytes)
	}
	if strings.HasSuffix(m.Case, ".both_ways") {
		t += ", the sum of both ways"
	}
	if m.Unit != "granted" {
		t += ", " + m.Unit
	}
	if m.Modelled {
		t += "," + modelledLabel
	}
	return t
}

// cell is how a matrix shows one of its figures.
func (m *matrix) cell(v *float64) string {
	switch {
	case v == nil:
		return "-"
	case m.Unit == "granted" && *v != 0:
		return "yes"
	case m.Unit == "granted":
		return "no"
	case *v >= 100:
		return fmt.Sprintf("%.0f", *v)
	}
	return fmt.Sprintf("%.2f", *v)
}

func writeMatrices(w io.Writer, d *benchDoc) {
	for i := range d.Matrices {
		m := &d.Matrices[i]
		fmt.Fprintf(w, "\n%s\n", m.title())
		out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprint(out, "from \\ to\t")
		for _, g := range m.GPUs {
			fmt.Fprintf(out, "%d\t", g)
		}
		fmt.Fprint(out, "\n")
		for r, g := range m.GPUs {
			fmt.Fprintf(out, "%d\t", g)
			for _, v := range m.Cells[r] {
				fmt.Fprintf(out, "%s\t", m.cell(v))
			}
			fmt.Fprint(out, "\n")
		}
		out.Flush()
	}
}
