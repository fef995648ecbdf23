// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api/tap"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// slowBuild tells whether the test was built so that simulated machines take
// many times as long. What the command does on them is the same.
func slowBuild() bool { return testenv.Race || !testenv.Optimized() }

// Sizes, elements and bandwidths are those of nccl-tests: PERFORMANCE.md there.
func TestBenchCollectives(t *testing.T) {
	const n = 4.0
	for _, c := range []struct {
		op      string
		bus     float64 // busbw over algbw
		shares  float64 // of the size, in what a call is given
		inPlace bool
	}{
		{"all_reduce", 2 * (n - 1) / n, 1, true},
		{"all_gather", (n - 1) / n, n, true},
		{"reduce_scatter", (n - 1) / n, n, true},
		{"broadcast", 1, 1, true},
		{"reduce", 1, 1, true},
		{"all_to_all", (n - 1) / n, n, false},
	} {
		if c.op != "all_gather" && slowBuild() {
			continue
		}
		doc, results := benchJSON(t, c.op, "--sim", "4x4090", "--bytes", "16KiB,100000", "--rounds", "1", "--type", "float32")
		if c.shares > 1 {
			require.Contains(t, fmt.Sprint(doc["notes"]), ": 100000B became 99968B]", "a size that was not asked for is said")
		} else {
			require.Empty(t, doc["notes"])
		}
		if c.inPlace {
			require.Len(t, results, 4, c.op)
		} else {
			require.Len(t, results, 2, c.op)
		}
		for i, r := range results {
			require.Equal(t, c.op, r["op"])
			require.Equal(t, "wall", r["clock"])
			require.Equal(t, "0 1 2 3", r["gpus"])
			require.Equal(t, "auto", r["asked"])
			require.NotEqual(t, "auto", r["algorithm"], "what was done is named")
			if c.inPlace {
				require.Equal(t, i%2 == 1, r["in_place"])
			} else {
				require.Nil(t, r["in_place"])
			}
			bytes := r["bytes"].(float64)
			require.Equal(t, bytes/4/c.shares, r["elements"], c.op)
			if c.shares > 1 {
				require.Zero(t, int(bytes)%64, "shares are multiples of 16 bytes")
			}
			require.InEpsilon(t, bytes/r["seconds"].(float64)/1e9, r["algbw_gb_per_s"], 1e-9)
			require.InEpsilon(t, r["algbw_gb_per_s"].(float64)*c.bus, r["busbw_gb_per_s"], 1e-9)
			require.InEpsilon(t, r["algbw_gb_per_s"].(float64)/r["ceiling_gb_per_s"].(float64), r["ratio_to_ceiling"], 1e-9)
			require.Less(t, r["ratio_to_ceiling"], 1.0)
			require.Less(t, r["enqueue_seconds"], r["seconds"])
			require.Positive(t, r["driver_calls"])
			require.Positive(t, r["event_seconds"], "the gate holds")
			require.Equal(t, c.op == "broadcast" || c.op == "reduce", r["root"] != nil)
		}
	}
}

// Every type and reduction that differs in its arithmetic, on ranks that share a
// GPU: what the library does is what the reference says.
func TestBenchCollectiveTypes(t *testing.T) {
	for i, c := range []string{
		"all_reduce --type float64 --op avg --same-gpu 3", "all_reduce --type float16 --op avg --same-gpu 3 --algorithm ring",
		"all_reduce --type bfloat16 --op sum --same-gpu 3 --algorithm ring_zero_copy", "all_reduce --type float32 --op prod --same-gpu 4",
		"all_reduce --type int8 --op avg --same-gpu 3", "all_reduce --type uint8 --op prod --same-gpu 3", "all_reduce --type uint32 --op max --same-gpu 2 --algorithm two_shot",
		"reduce_scatter --type int32 --op min --same-gpu 3 --algorithm ring", "reduce --type int64 --op avg --same-gpu 3 --root 2",
		"reduce --type uint64 --op avg --same-gpu 5", "broadcast --type int8 --same-gpu 3 --root 1", "all_gather --type float16 --same-gpu 3 --algorithm one_shot",
		"all_to_all --type uint8 --ranks 5",
	} {
		if i > 1 && slowBuild() {
			break
		}
		args := append(strings.Fields(c), "--sim", "1xh200", "--bytes", "1,6001", "--rounds", "1")
		_, results := benchJSON(t, args...)
		require.NotEmpty(t, results, c)
		require.GreaterOrEqual(t, results[0]["bytes"], 1.0)
	}
}

func TestBenchCompare(t *testing.T) {
	if slowBuild() {
		t.Skip("TestBenchCollectives goes the same ways")
	}
	doc, results := benchJSON(t, "all_reduce", "--sim", "2x4090", "-b", "4KiB", "-e", "1MiB", "-f", "256", "--rounds", "1", "--compare", "auto,ring,one_shot,peer")
	count := map[string]int{}
	for _, r := range results {
		count[r["asked"].(string)]++
	}
	require.Equal(t, map[string]int{"auto": 4, "ring": 4, "one_shot": 2}, count)
	skipped := fmt.Sprint(doc["skipped"])
	require.Contains(t, skipped, "all_reduce.peer")
	require.Contains(t, skipped, "P2P is not proven")
	require.Contains(t, skipped, "are too many for the areas of pinned memory")

	code, out, errs := noHost().run("bench", "all_reduce", "--sim", "2x4090", "--bytes", "4KiB", "--rounds", "1", "--compare", "direct,ring")
	require.Equal(t, exitOK, code, errs)
	require.Contains(t, out, "all_reduce of float32, sum, 2 ranks on GPUs 0 1, modelled")
	rows := 0
	for l := range strings.SplitSeq(out, "\n") {
		if f := strings.Fields(l); len(f) > 3 && f[0] == "4096" {
			rows++
			require.Equal(t, "modelled", f[len(f)-1], l)
			require.Equal(t, "1024", f[1])
		}
	}
	require.Equal(t, 2, rows)
	for _, head := range []string{"out of place", "in place", "#wrong", "busbw", "algbw", "count", "GB/s"} {
		require.Contains(t, out, head)
	}
	// Nothing but what does not run here.
	code, _, errs = noHost().run("bench", "all_reduce", "--sim", "2x4090", "--bytes", "4KiB", "--algorithm", "peer")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "P2P is not proven")
}

// Where P2P is proven its traffic has no ceiling through host memory.
func TestBenchCollectivePeer(t *testing.T) {
	if slowBuild() {
		t.Skip("proving P2P takes long")
	}
	_, results := benchJSON(t, "all_gather", "--sim", "8x4090-p2p", "--gpus", "0,1", "--bytes", "64KiB", "--rounds", "1", "--compare", "peer,direct")
	for _, r := range results {
		require.Equal(t, r["asked"] == "peer", r["ceiling_gb_per_s"] == nil, "%v", r)
	}
}

// Calls whose copies, sets or kernels are left out are seen, in place and out.
func TestBenchCollectiveSeesWrongData(t *testing.T) {
	for i, c := range []struct{ method, args string }{
		{"MemcpyHtoDAsync", "all_reduce --algorithm direct"},
		{"MemcpyHtoDAsync", "broadcast"},
		{"MemcpyHtoDAsync", "all_gather --algorithm ring"},
		{"LaunchKernel", "reduce"},
		{"LaunchKernel", "reduce_scatter"},
	} {
		if i > 0 && slowBuild() {
			break
		}
		world := tapped(t, "2x4090", func(x *tap.Tap) { x.SkipFrom(c.method, 30) })
		code, out, errs := world.run(append([]string{"bench"}, append(strings.Fields(c.args), "--sim", "2x4090", "--bytes", "4KiB", "--rounds", "4")...)...)
		require.Equal(t, exitFailed, code, "%s: %s", c.args, errs)
		require.Contains(t, errs, "results moved wrong data", c.args)
		require.Contains(t, out, "WRONG DATA", c.args)
	}
}

func TestBenchCollectiveRefuses(t *testing.T) {
	for _, c := range []struct{ args, why string }{
		{"all_reduce --type float8", "known: float64 float32"},
		{"all_reduce --op xor", "known: sum prod min max avg"},
		{"all_gather --op sum", "not defined: -op"},
		{"all_reduce --root 1", "not defined: -root"},
		{"all_reduce --algorithm nosuch", "known: auto direct ring"},
		{"all_reduce --compare ring,ring", "ring twice"},
		{"all_reduce --compare ring --algorithm ring", "choose one"},
		{"all_reduce --ranks 1", "2 to 16 ranks"},
		{"all_reduce --same-gpu 17", "2 to 16 ranks"},
		{"all_reduce --same-gpu 0", "2 to 16 ranks"},
		{"all_reduce --same-gpu 2 --ranks 2", "choose one"},
		{"all_reduce --same-gpu 2 --gpus 0,1", "--gpus names 2"},
		{"all_reduce -b 1MiB -e 4KiB", "ends at 4KiB, before it begins at 1MiB"},
		{"all_reduce --save x.json --html x.json", "the same file"},
		{"p2p --bytes 4KiB,8KiB", "at one size, not 2"},
	} {
		code, out, errs := noHost().run(append([]string{"bench"}, strings.Fields(c.args)...)...)
		require.Equal(t, exitUsage, code, "%s: %s", c.args, errs)
		require.Empty(t, out)
		require.Contains(t, errs, c.why, c.args)
	}
	for _, c := range []struct{ args, why string }{
		{"all_reduce --sim 2x4090 --bytes 4KiB,20GiB", "20GiB is too much for GPU"},
		{"reduce --sim 2x4090 --root 2", "the ranks are 0 to 1"},
		{"p2p --sim 2x4090 --bytes 900GiB", "too much"},
	} {
		code, out, errs := noHost().run(append([]string{"bench"}, strings.Fields(c.args)...)...)
		require.Equal(t, exitUsage, code, "%s: %s", c.args, errs)
		require.Empty(t, out)
		require.Contains(t, errs, c.why, c.args)
	}
	code, _, errs := noHost().run("bench", "all_reduce", "--html", filepath.Join(t.TempDir(), "no", "such"))
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "--html")
}

// The reference against values made by hand.
func TestCollectiveReference(t *testing.T) {
	le := binary.LittleEndian
	u8 := func(v ...int) []byte {
		b := make([]byte, len(v))
		for i, x := range v {
			b[i] = byte(x)
		}
		return b
	}
	for _, c := range []struct {
		t    gp.Type
		op   gp.Op
		in   [][]byte
		want []byte
	}{
		{gp.TypeInt8, gp.Avg, [][]byte{u8(-4, 127), u8(-3, 127)}, u8(-3, 127)},
		{gp.TypeUint8, gp.Avg, [][]byte{u8(255), u8(255), u8(254)}, u8(254)},
		{gp.TypeInt8, gp.Sum, [][]byte{u8(100), u8(100)}, u8(200)},
		{gp.TypeInt8, gp.Min, [][]byte{u8(-1, 5), u8(1, -7)}, u8(-1, -7)},
		{gp.TypeUint8, gp.Max, [][]byte{u8(-1, 5), u8(1, 7)}, u8(255, 7)},
		{gp.TypeUint8, gp.Prod, [][]byte{u8(16), u8(17)}, u8(16)},
		{gp.TypeInt32, gp.Sum, [][]byte{le.AppendUint32(nil, math.MaxInt32), le.AppendUint32(nil, 1)}, le.AppendUint32(nil, 1<<31)},
		{gp.TypeInt64, gp.Avg, [][]byte{le.AppendUint64(nil, math.MaxInt64), le.AppendUint64(nil, 3)}, le.AppendUint64(nil, 1<<63>>1|1<<63+1)},
		{gp.TypeFloat32, gp.Avg, [][]byte{le.AppendUint32(nil, math.Float32bits(1)), le.AppendUint32(nil, math.Float32bits(0)), le.AppendUint32(nil, 0)}, le.AppendUint32(nil, math.Float32bits(float32(1)/3))},
		{gp.TypeFloat64, gp.Prod, [][]byte{le.AppendUint64(nil, math.Float64bits(-2)), le.AppendUint64(nil, math.Float64bits(0.5))}, le.AppendUint64(nil, math.Float64bits(-1))},
		{gp.TypeBFloat16, gp.Sum, [][]byte{le.AppendUint16(nil, 0x4380), le.AppendUint16(nil, 0x3f80)}, le.AppendUint16(nil, 0x4380)}, // 256 + 1 rounds to 256
		{gp.TypeFloat16, gp.Max, [][]byte{le.AppendUint16(nil, 0x3c00), le.AppendUint16(nil, 0xbc00)}, le.AppendUint16(nil, 0x3c00)},
	} {
		if c.t == gp.TypeInt64 { // the sum wraps before it is divided
			s := int64(math.MaxInt64)
			s += 3
			c.want = le.AppendUint64(nil, uint64(s/2))
		}
		got := make([]byte, len(c.want))
		collectiveReference(got, c.in, c.t, c.op)
		require.Equal(t, c.want, got, "%v of %v", c.op, c.t)
	}
	// Pieces are put together as a whole is made.
	var r splitmix
	base := collectiveData(2*referencePiece+referencePiece/2+rankSkew, gp.TypeUint8, gp.Sum, true, &r)
	want, got := make([]byte, len(base)-rankSkew), make([]byte, len(base)-rankSkew)
	in := [][]byte{base, base[rankSkew:]}
	referencePart(want, in, gp.TypeUint8, gp.Sum)
	collectiveReference(got, in, gp.TypeUint8, gp.Sum)
	require.True(t, bytes.Equal(want, got))
}

func TestBenchP2P(t *testing.T) {
	if slowBuild() {
		t.Skip("TestBenchP2PSeesWrongData goes the same ways")
	}
	doc, results := benchJSON(t, "p2p", "--sim", "8x4090-p2p", "--gpus", "2,3,5", "--bytes", "64KiB", "--rounds", "1")
	count := map[string]int{}
	for _, r := range results {
		count[r["case"].(string)]++
		if strings.HasSuffix(r["case"].(string), ".latency") {
			require.Equal(t, 16.0, r["bytes"])
			require.Nil(t, r["ceiling_gb_per_s"])
		}
	}
	want := map[string]int{"p2p.local.one_way": 3}
	for _, route := range []string{"staged", "driver", "direct"} {
		want["p2p."+route+".one_way"], want["p2p."+route+".both_ways"], want["p2p."+route+".latency"] = 6, 3, 6
	}
	require.Equal(t, want, count)
	rate := map[string]float64{}
	for _, x := range doc["matrices"].([]any) {
		m := x.(map[string]any)
		require.Equal(t, []any{2.0, 3.0, 5.0}, m["gpus"])
		require.Equal(t, true, m["modelled"])
		cells := m["cells"].([]any)
		require.Len(t, cells, 3)
		key := m["case"].(string)
		for i, row := range cells {
			for j, v := range row.([]any) {
				if i != j || strings.HasSuffix(key, ".one_way") {
					require.Positive(t, v, "%s %d %d", key, i, j)
				} else {
					require.Nil(t, v)
				}
			}
		}
		rate[key] = cells[0].([]any)[2].(float64)
	}
	require.Len(t, rate, 1+9)
	require.Equal(t, 1.0, rate["p2p.access"])
	require.Greater(t, rate["p2p.direct.one_way"], rate["p2p.driver.one_way"], "the driver's are taken before access is enabled")
	// They take turns, and the first one's end is seen while the second goes on.
	spec, err := sim.Builtin("8x4090-p2p")
	require.NoError(t, err)
	turn, both := float64(64<<10)/rate["p2p.driver.one_way"], float64(2*64<<10)/rate["p2p.driver.both_ways"] // ns
	require.InEpsilon(t, 2*turn-1000*spec.Calls.Wake.Value, both, 0.05)

	code, out, errs := noHost().run("bench", "p2p", "--sim", "2x4090", "--bytes", "64KiB", "--rounds", "1")
	require.Equal(t, exitOK, code, errs)
	require.Contains(t, out, "p2p.access: the driver grants P2P, modelled\n")
	require.Contains(t, out, "p2p.staged.both_ways: the library's staged copy, both ways at once, 64KiB, the sum of both ways, GB/s, modelled\n")
	require.Contains(t, out, "p2p.driver.latency: the driver's peer copy without peer access, from the call to done, 16B, us, modelled\n")
	require.Contains(t, out, "not here: p2p.direct.one_way")

	// One GPU has itself.
	doc, results = benchJSON(t, "p2p", "--sim", "1xh200", "--bytes", "64KiB", "--rounds", "1")
	require.Len(t, results, 1)
	require.Len(t, doc["matrices"], 1)
}

// The pairs find a byte that went to the wrong place.
func TestBenchP2PSeesWrongData(t *testing.T) {
	world := tapped(t, "2x4090", func(x *tap.Tap) { x.SkipFrom("MemcpyPeerAsync", 20) })
	code, out, errs := world.run("bench", "p2p", "--sim", "2x4090", "--bytes", "4KiB", "--rounds", "1", "--json")
	require.Equal(t, exitFailed, code, errs)
	var doc benchDoc
	require.NoError(t, json.Unmarshal([]byte(out), &doc))
	wrong := map[string]bool{}
	for _, r := range doc.Results {
		wrong[strings.Split(r.Case, ".")[1]] = wrong[strings.Split(r.Case, ".")[1]] || r.Wrong > 0
	}
	require.Equal(t, map[string]bool{"local": false, "staged": false, "driver": true}, wrong)
}
