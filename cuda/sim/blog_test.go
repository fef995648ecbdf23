// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// blogTables are the matrices of p2pBandwidthLatencyTest of one state of the
// machine: title, then "gpu" or "cpu", then row and column.
type blogTables map[string]map[string][][]float64

// blog reads the published figures of the machine with eight RTX 4090.
func blog(t testing.TB) (denied, patched blogTables) {
	b, err := os.ReadFile(filepath.Join("testdata", "8x4090-blog.json"))
	require.NoError(t, err)
	var v struct {
		Denied  struct{ P2PBandwidthLatencyTest blogTables } `json:"p2p_denied"`
		Patched struct{ P2PBandwidthLatencyTest blogTables } `json:"p2p_patched"`
	}
	require.NoError(t, json.Unmarshal(b, &v))
	return v.Denied.P2PBandwidthLatencyTest, v.Patched.P2PBandwidthLatencyTest
}

// Titles of the tables.
const (
	uniOff  = "Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)"
	uniOn   = "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)"
	bothOff = "Bidirectional P2P=Disabled Bandwidth Matrix (GB/s)"
	bothOn  = "Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)"
	timeOff = "P2P=Disabled Latency Matrix (us)"
	timeOn  = "P2P=Enabled Latency (P2P Writes) Matrix (us)"
)

// pairClass is a kind of pair, with some pairs of the kind: in the model all of
// a kind are alike, and a test holds that.
type pairClass struct {
	name  string
	has   func(i, j int) bool
	pairs [][2]int
}

var pairClasses = []pairClass{
	{"one GPU", func(i, j int) bool { return i == j }, [][2]int{{0, 0}, {6, 6}}},
	{"one socket", func(i, j int) bool { return i != j && i/4 == j/4 }, [][2]int{{0, 1}, {3, 2}, {6, 4}}},
	{"two sockets", func(i, j int) bool { return i/4 != j/4 }, [][2]int{{0, 4}, {7, 3}, {2, 5}}},
}

// median is of a table's fields of a class.
func (c *pairClass) median(m [][]float64) float64 {
	var v []float64
	for i, row := range m {
		for j, x := range row {
			if c.has(i, j) {
				v = append(v, x)
			}
		}
	}
	slices.Sort(v)
	return (v[len(v)/2] + v[(len(v)-1)/2]) / 2
}

// pairTest does what p2pBandwidthLatencyTest of the CUDA samples does, with its
// sizes and numbers of repetitions.
type pairTest struct {
	*rig
	streams  []api.Stream
	from, to []api.Ptr
	events   [][3]api.Event
}

const (
	pairBytes    = 10_000_000 * 4
	pairRepeat   = 5
	timedBytes   = 4 * 4
	timedRepeats = 100
)

func newPairTest(t testing.TB, m *Machine, peers bool) *pairTest {
	p := &pairTest{rig: newRigOf(t, m)}
	for i := range m.gpus {
		p.streams = append(p.streams, p.stream(i))
		p.from = append(p.from, p.device(i, pairBytes))
		p.to = append(p.to, p.device(i, pairBytes))
		p.events = append(p.events, [3]api.Event{p.event(i), p.event(i), p.event(i)})
	}
	if peers {
		for i := range m.gpus {
			p.use(i)
			for j := range m.gpus {
				if i != j {
					p.ok(p.d.CtxEnablePeerAccess(p.ctx[j]))
				}
			}
		}
	}
	return p
}

// send copies from GPU i to GPU j on i's stream, repeat times.
func (p *pairTest) send(i, j int, n uint64, repeat int) {
	p.use(i)
	for range repeat {
		p.ok(p.d.MemcpyPeerAsync(p.to[j], p.ctx[j], p.from[i], p.ctx[i], n, p.streams[i]))
	}
}

// hold keeps GPU i busy, so that what is enqueued next runs without gaps.
func (p *pairTest) hold(i int) {
	p.use(i)
	p.ok(p.d.LaunchKernel(p.function("gp_test_spin"), launch(p.streams[i], 255)))
}

// elapsed is the time between two events of GPU i, which has no more to do.
func (p *pairTest) elapsed(i, first, last int) time.Duration {
	p.use(i)
	p.ok(p.d.StreamSynchronize(p.streams[i]))
	ms, c := p.d.EventElapsedTime(p.events[i][first], p.events[i][last])
	p.ok(c)
	return time.Duration(float64(ms) * float64(time.Millisecond))
}

// oneWay is GB/s.
func (p *pairTest) oneWay(i, j int) float64 {
	p.hold(i)
	p.ok(p.d.EventRecord(p.events[i][0], p.streams[i]))
	p.send(i, j, pairBytes, pairRepeat)
	p.ok(p.d.EventRecord(p.events[i][1], p.streams[i]))
	n := float64(pairBytes * pairRepeat)
	if i == j {
		n *= 2
	}
	return n / p.elapsed(i, 0, 1).Seconds() / 1e9
}

// bothWays is GB/s, the sum of both.
func (p *pairTest) bothWays(i, j int) float64 {
	p.hold(i)
	p.ok(p.d.EventRecord(p.events[i][0], p.streams[i]))
	p.ok(p.d.StreamWaitEvent(p.streams[j], p.events[i][0]))
	p.send(i, j, pairBytes, pairRepeat)
	p.send(j, i, pairBytes, pairRepeat)
	p.ok(p.d.EventRecord(p.events[j][2], p.streams[j]))
	p.ok(p.d.StreamWaitEvent(p.streams[i], p.events[j][2]))
	p.ok(p.d.EventRecord(p.events[i][1], p.streams[i]))
	return 2 * pairBytes * pairRepeat / p.elapsed(i, 0, 1).Seconds() / 1e9
}

// latency is us for a copy, as the GPU's events tell it and as the calling
// thread does.
func (p *pairTest) latency(i, j int) (gpu, cpu float64) {
	p.hold(i)
	p.ok(p.d.EventRecord(p.events[i][0], p.streams[i]))
	p.send(i, j, timedBytes, timedRepeats)
	p.ok(p.d.EventRecord(p.events[i][1], p.streams[i]))
	gpu = us(p.elapsed(i, 0, 1)) / timedRepeats
	took := p.timed(func() { p.send(i, j, timedBytes, timedRepeats) })
	p.ok(p.d.StreamSynchronize(p.streams[i]))
	return gpu, us(took) / timedRepeats
}

// pairComparisons are those of one state of a machine. Its tables go by title.
func pairComparisons(t testing.TB, name string, peers bool, tables blogTables, uni, both, latency string) []comparison {
	m, err := Open(name)
	require.NoError(t, err)
	p := newPairTest(t, m, peers)
	how := "staged by the driver"
	if peers {
		how = "direct"
	}
	var out []comparison
	add := func(title, side, what, unit string, c *pairClass, model func(i, j int) float64, k kind, limit, aim float64) {
		one := comparison{name, what + ", " + c.name + ", " + how, unit, c.median(tables[title][side]), 0, k, limit, aim}
		if c.name == "one GPU" {
			one.what = what + ", " + c.name
		}
		for n, pair := range c.pairs {
			got := model(pair[0], pair[1])
			if n > 0 {
				require.InEpsilon(t, one.model, got, 0.002, "all pairs of a class are alike: %s, %v", one.what, pair)
			}
			one.model = got
		}
		out = append(out, one)
	}
	for i := range pairClasses {
		c := &pairClasses[i]
		add(uni, "gpu", "one way", "GB/s", c, p.oneWay, fitted, 0.05, 0)
	}
	for i := range pairClasses[1:] {
		c := &pairClasses[1+i]
		add(both, "gpu", "both ways, sum", "GB/s", c, p.bothWays, predicted, 0, 0.15)
	}
	for i := range pairClasses[1:] {
		c := &pairClasses[1+i]
		add(latency, "gpu", "latency by events", "us", c, func(i, j int) float64 { g, _ := p.latency(i, j); return g }, predicted, 0, 0)
		add(latency, "cpu", "latency of the call", "us", c, func(i, j int) float64 { _, x := p.latency(i, j); return x }, predicted, 0, 0)
	}
	return out
}

func deniedComparisons(t testing.TB) []comparison {
	denied, _ := blog(t)
	return pairComparisons(t, "8x4090", false, denied, uniOff, bothOff, timeOff)
}

func patchedComparisons(t testing.TB) []comparison {
	_, patched := blog(t)
	cs := pairComparisons(t, "8x4090-p2p", true, patched, uniOn, bothOn, timeOn)
	return append(cs, pairComparisons(t, "8x4090-p2p", false, patched, uniOff, bothOff, timeOff)[1:]...)
}

// twoCards are the figures of aikitoria/open-gpu-kernel-modules#9: two RTX 5090
// without P2P.
func twoCards(t testing.TB) []comparison {
	m, err := Open("2x5090")
	require.NoError(t, err)
	p := newPairTest(t, m, false)
	gpu, cpu := p.latency(0, 1)
	return []comparison{
		{"2x5090", "one way, one GPU", "GB/s", 1541, p.oneWay(0, 0), fitted, 0.05, 0},
		{"2x5090", "one way, staged by the driver", "GB/s", 42.5, p.oneWay(0, 1), fitted, 0.05, 0},
		{"2x5090", "both ways, sum, staged by the driver", "GB/s", 56.65, p.bothWays(0, 1), fitted, 0.05, 0},
		{"2x5090", "latency by events, staged by the driver", "us", 14.4, gpu, constant, 0.05, 0},
		{"2x5090", "latency of the call, staged by the driver", "us", 5.43, cpu, predicted, 0, 0},
	}
}

func TestPairsOfEight4090(t *testing.T) {
	hold(t, once(t, "8x4090", deniedComparisons))
	cs := once(t, "8x4090-p2p", patchedComparisons)
	hold(t, cs)
	for _, c := range cs {
		if c.aim > 0 {
			require.Less(t, c.off(), 0.3, c.what)
			require.Greater(t, c.off(), -0.3, c.what)
		}
	}
}

func TestPairsOfTwo5090(t *testing.T) { hold(t, once(t, "2x5090", twoCards)) }
