// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/api/tap"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// The columns are promised: more may follow, none may change.
var benchColumns = strings.Fields(`op algorithm type reduction ranks bytes seconds algbw_gb_per_s busbw_gb_per_s wrong modelled
	p5_seconds p95_seconds count case gpus clock
	wall_seconds enqueue_seconds cpu_seconds driver_calls chunk_bytes chunk_asked host_node ceiling_gb_per_s ratio_to_ceiling
	elements in_place asked root event_seconds`)

// benchJSON runs a kind and reads its document by the names that are promised.
func benchJSON(t *testing.T, args ...string) (doc map[string]any, results []map[string]any) {
	t.Helper()
	code, out, errs := noHost().run(append([]string{"bench"}, append(args, "--json")...)...)
	require.Equal(t, exitOK, code, "%s %s", out, errs)
	require.Empty(t, errs)
	require.NoError(t, json.Unmarshal([]byte(out), &doc))
	require.Equal(t, 1.0, doc["version"])
	require.Equal(t, args[0], doc["bench"])
	for _, x := range doc["results"].([]any) {
		r := x.(map[string]any)
		for _, k := range benchColumns {
			require.Contains(t, r, k)
		}
		require.Equal(t, true, r["modelled"])
		require.Equal(t, 0.0, r["wrong"])
		for _, k := range []string{"seconds", "p5_seconds", "p95_seconds", "count", "algbw_gb_per_s", "busbw_gb_per_s", "ranks", "bytes"} {
			require.Positive(t, r[k], "%s of %v", k, r)
		}
		require.LessOrEqual(t, r["p5_seconds"], r["seconds"])
		require.LessOrEqual(t, r["seconds"], r["p95_seconds"])
		results = append(results, r)
	}
	return doc, results
}

func TestBenchLink(t *testing.T) {
	doc, results := benchJSON(t, "link", "--sim", "2x4090", "--bytes", "256KiB", "--rounds", "1")
	count := map[string]int{}
	for _, r := range results {
		count[r["case"].(string)]++
		require.Equal(t, "events", r["clock"])
		require.Greater(t, r["wall_seconds"], r["seconds"], "the host also waits for the calls")
		require.Equal(t, 0.0, r["host_node"])
		ways := r["algbw_gb_per_s"].(float64) * r["seconds"].(float64) * 1e9 / r["bytes"].(float64)
		want := 1.0
		if r["op"] == "both" {
			want *= 2
		}
		if strings.HasSuffix(r["case"].(string), ".all") {
			want *= 2
			require.Equal(t, "0 1", r["gpus"])
			require.Equal(t, 2.0, r["ranks"])
		}
		require.InEpsilon(t, want, ways, 1e-9, "%v", r)
		require.InEpsilon(t, r["bytes"].(float64)/r["seconds"].(float64)/1e9, r["busbw_gb_per_s"], 1e-9)
	}
	require.Equal(t, map[string]int{"link.d2h": 2, "link.h2d": 2, "link.both": 2, "link.d2h.all": 1, "link.h2d.all": 1, "link.both.all": 1}, count)
	require.Len(t, doc["skipped"], 3)
	skip := doc["skipped"].([]any)[0].(map[string]any)
	require.Equal(t, "link.d2h.far", skip["case"])
	require.Equal(t, "the host shows one NUMA node", skip["reason"])
}

// Each GPU of this machine has a node of its own.
func TestBenchLinkNodes(t *testing.T) {
	_, results := benchJSON(t, "link", "--sim", "8x4090", "--gpus", "5", "--bytes", "64KiB", "--rounds", "1")
	nodes := map[string]any{}
	for _, r := range results {
		require.Equal(t, "5", r["gpus"])
		nodes[r["case"].(string)] = r["host_node"]
	}
	require.Equal(t, map[string]any{"link.d2h": 6.0, "link.h2d": 6.0, "link.both": 6.0, "link.d2h.far": 7.0, "link.h2d.far": 7.0, "link.both.far": 7.0}, nodes)
}

func TestBenchCopy(t *testing.T) {
	doc, results := benchJSON(t, "copy", "--sim", "2x4090", "--bytes", "4KiB,1MiB", "--rounds", "1")
	seconds := map[string]float64{}
	for _, r := range results {
		require.Equal(t, "copy", r["op"])
		require.Equal(t, "wall", r["clock"])
		require.Equal(t, 2.0, r["ranks"])
		require.Nil(t, r["cpu_seconds"], "the simulator's own time means nothing")
		key := fmt.Sprint(r["case"], " ", r["bytes"])
		seconds[key] = r["seconds"].(float64)
		ways := 1.0
		if strings.HasSuffix(r["case"].(string), ".both_ways") {
			ways = 2
			require.Equal(t, "0>1 1>0", r["gpus"])
		} else {
			require.Equal(t, "0>1", r["gpus"])
		}
		require.InEpsilon(t, ways*r["bytes"].(float64)/r["seconds"].(float64)/1e9, r["algbw_gb_per_s"], 1e-9)
		require.InEpsilon(t, r["algbw_gb_per_s"].(float64)/ways, r["busbw_gb_per_s"], 1e-9)
		if r["algorithm"] == "bare" {
			continue
		}
		require.InEpsilon(t, r["algbw_gb_per_s"].(float64)/r["ceiling_gb_per_s"].(float64), r["ratio_to_ceiling"], 1e-9)
		require.Less(t, r["ratio_to_ceiling"], 1.0)
		require.Less(t, r["enqueue_seconds"], r["seconds"])
		if r["algorithm"] == "staged" {
			require.Positive(t, r["driver_calls"])
			require.Nil(t, r["chunk_asked"])
			require.LessOrEqual(t, r["chunk_bytes"], r["bytes"])
		}
	}
	require.Len(t, results, 2+2*4)
	require.Greater(t, seconds["copy.driver.both_ways 1.048576e+06"], 1.9*seconds["copy.driver.one_way 1.048576e+06"], "the driver takes turns")
	require.Less(t, seconds["copy.staged.both_ways 1.048576e+06"], 1.5*seconds["copy.staged.one_way 1.048576e+06"], "the library does not")
	require.Len(t, doc["skipped"], 2, "P2P is denied")

	// Both ranks on one GPU: a byte crosses the link twice.
	doc, results = benchJSON(t, "copy", "--sim", "1xh200", "--same-gpu", "--bytes", "1MiB", "--rounds", "1", "--sweep")
	for _, r := range results {
		require.InEpsilon(t, r["algbw_gb_per_s"], r["busbw_gb_per_s"], 1e-9)
		require.True(t, strings.HasPrefix(r["gpus"].(string), "0>0"))
		require.NotEqual(t, "driver", r["algorithm"])
	}
	require.Len(t, results, 2+2+4, "chunks of 128 KiB to 1 MiB")
	sweep := doc["sweep"].([]any)[0].(map[string]any)
	require.Equal(t, float64(1<<20), sweep["bytes"])
	require.GreaterOrEqual(t, sweep["ratio"], 1.0)
	require.InEpsilon(t, sweep["seconds"].(float64)/sweep["best_seconds"].(float64), sweep["ratio"], 1e-9)
}

func TestBenchCopyDirect(t *testing.T) {
	if testenv.Race {
		t.Skip("the group times P2P when it opens, and the race detector looks at each byte of that")
	}
	_, results := benchJSON(t, "copy", "--sim", "8x4090-p2p", "--gpus", "2,1", "--bytes", "256KiB", "--rounds", "1")
	rate := map[string]float64{}
	for _, r := range results {
		require.Contains(t, []string{"2>1", "2>1 1>2"}, r["gpus"])
		rate[r["case"].(string)] = r["algbw_gb_per_s"].(float64)
	}
	require.Len(t, rate, 8)
	require.Greater(t, rate["copy.direct.one_way"], rate["copy.staged.one_way"])
	require.Greater(t, rate["copy.direct.one_way"], rate["copy.driver.one_way"], "its copies are taken before access is enabled")
}

func TestBenchCSV(t *testing.T) {
	require.Equal(t, benchColumns, csvColumns())
	code, out, errs := noHost().run("bench", "copy", "--csv", "--sim", "2x4090", "--route", "driver", "-b", "1KiB", "-e", "5KiB", "--rounds", "2")
	require.Equal(t, exitOK, code, errs)
	records, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	require.NoError(t, err)
	require.Equal(t, benchColumns, records[0])
	column := func(name string) int { return slices.Index(benchColumns, name) }
	var sizes []string
	for _, r := range records[1:] {
		require.Equal(t, "true", r[column("modelled")])
		require.Empty(t, r[column("host_node")], "what does not apply is empty")
		v, err := strconv.ParseFloat(r[column("seconds")], 64)
		require.NoError(t, err)
		require.Positive(t, v)
		if r[column("case")] == "copy.driver.one_way" {
			sizes = append(sizes, r[column("bytes")])
		}
	}
	require.Equal(t, []string{"1024", "2048", "4096"}, sizes)
}

func TestBenchText(t *testing.T) {
	code, out, errs := noHost().run("bench", "copy", "--bytes", "4KiB", "--rounds", "1")
	require.Equal(t, exitOK, code, errs)
	lines := strings.Split(out, "\n")
	require.Contains(t, lines[0], "simulated machine 2x4090")
	require.Contains(t, lines[0], "every figure is modelled")
	require.Contains(t, lines[0], "no NVIDIA GPU here")
	rows := 0
	for _, l := range lines[1:] {
		if f := strings.Fields(l); len(f) > 0 && strings.HasPrefix(f[0], "copy.") {
			rows++
			require.Equal(t, "modelled", f[len(f)-1], "%s", l)
		}
	}
	require.Equal(t, 2+4, rows)
	for _, s := range []string{"GB/s", "us", "not here: copy.direct.one_way", "the driver denies P2P between GPUs 0 and 1", "every byte verified"} {
		require.Contains(t, out, s)
	}
}

func TestBenchSave(t *testing.T) {
	file := filepath.Join(t.TempDir(), "link.json")
	require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte("old "), 10_000), 0o666))
	code, out, errs := noHost().run("bench", "link", "--bytes", "1KiB", "--rounds", "1", "--save", file)
	require.Equal(t, exitOK, code, errs)
	require.Contains(t, out, "link.d2h")
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var doc benchDoc
	require.NoError(t, json.Unmarshal(b, &doc), "nothing of the old file is left")
	require.Equal(t, "link", doc.Bench)
	require.NotEmpty(t, doc.Results)

	// A run that does not come to figures leaves files as they are, and none of its own.
	code, _, errs = noHost().run("bench", "link", "--bytes", "900TiB", "--save", file)
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "900TiB is too much")
	code, _, errs = noHost().run("bench", "link", "--bytes", "900GiB", "--save", file)
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "too much")
	same, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, b, same)
	none := filepath.Join(t.TempDir(), "none.json")
	code, _, _ = noHost().run("bench", "link", "--bytes", "900GiB", "--save", none)
	require.Equal(t, exitUsage, code)
	require.NoFileExists(t, none)
}

func TestBenchRefuses(t *testing.T) {
	for _, c := range []struct {
		args string
		why  string
	}{
		{"frobnicate", `no kind "frobnicate"`},
		{"link --bytes 0", "at least 1 byte"},
		{"link --bytes 4KiB,,8KiB", "not a size"},
		{"link --bytes 4KiB -b 1KiB -e 2KiB", "choose one"},
		{"link -b 1MiB -e 4KiB", "ends at 4KiB, before it begins at 1MiB"},
		{"link -b 1MiB", "a first size and a last one"},
		{"link -b 1 -e 2 -f 1", "-f 1"},
		{"link --rounds 0", "--rounds 0"},
		{"link --time -1s", "negative"},
		{"link --time 5", "not a time: want numbers with a unit"},
		{"link --json --csv", "choose one"},
		{"link extra", `unexpected argument "extra"`},
		{"link --sim nosuch", "nosuch"},
		{"copy --route nosuch", "there are staged, direct and driver"},
		{"copy --chunk 1MiB --sweep", "choose one"},
		{"copy --same-gpu --gpus 0,1", "--gpus names 2"},
		{"peers", "measure against what?"},
		{"peers --peer x --sim 2x4090", "a model is not compared"},
		{"peers --peer x --gpus 0,1", "on one GPU, not 2"},
	} {
		world := noHost()
		world.openDriver = func() (*cuda.Driver, error) { panic("a driver was opened for a call that cannot be right") }
		code, out, errs := world.run(append([]string{"bench"}, strings.Fields(c.args)...)...)
		require.Equal(t, exitUsage, code, "%s: %s", c.args, errs)
		require.Empty(t, out, c.args)
		require.Contains(t, errs, c.why, c.args)
		require.Contains(t, errs, "usage: gp bench", c.args)
	}
	// What takes the machine to know.
	for _, c := range []struct {
		args string
		why  string
	}{
		{"link --sim 2x4090 --gpus 2", "2 GPUs"},
		{"link --sim 2x4090 --gpus 1,1", "twice"},
		{"copy --sim 8x4090 --gpus 0,1,2", "between two GPUs, not 3"},
		{"copy --sim 1xh200 --route driver", "between two GPUs"},
		{"copy --sim 2x4090 --bytes 4KiB,20GiB", "20GiB is too much for GPU"},
	} {
		code, out, errs := noHost().run(append([]string{"bench"}, strings.Fields(c.args)...)...)
		require.Equal(t, exitUsage, code, "%s: %s", c.args, errs)
		require.Empty(t, out, c.args)
		require.Contains(t, errs, c.why, c.args)
	}
	// A file that cannot be written is said before the machine is opened.
	world := noHost()
	world.openDriver = func() (*cuda.Driver, error) { panic("opened") }
	code, out, errs := world.run("bench", "link", "--save", filepath.Join(t.TempDir(), "no", "such", "folder"))
	require.Equal(t, exitFailed, code)
	require.Empty(t, out)
	require.Contains(t, errs, "--save")
	code, _, errs = noHost().run("bench", "copy", "--sim", "2x4090", "--route", "direct")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "the driver denies P2P")
	// The host is what a simulated machine's memory is taken from.
	world = noHost()
	world.root = fstest.MapFS{"proc/meminfo": {Data: []byte("MemAvailable:    1048576 kB\n")}}
	code, _, errs = world.run("bench", "copy", "--bytes", "512MiB")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "too much for the host")
	world.root = fstest.MapFS{"proc/meminfo": {Data: []byte("MemAvailable:     102400 kB\n")}}
	code, out, errs = world.run("bench", "copy", "--route", "driver", "--rounds", "1")
	require.Equal(t, exitOK, code, errs)
	require.Contains(t, out, "note: sizes above 1MiB, up to 16MiB, are left out", "what is the command's own choice is left out instead")
}

func TestBenchHelp(t *testing.T) {
	for _, args := range [][]string{{"help", "bench"}, {"bench", "-h"}} {
		code, out, errs := noHost().run(args...)
		require.Equal(t, exitOK, code)
		require.Empty(t, errs)
		for _, k := range []string{"bench link", "bench copy", "bench peers", "bench list"} {
			require.Contains(t, out, k)
		}
	}
	for _, args := range [][]string{{"help", "bench", "copy"}, {"bench", "copy", "--help"}} {
		code, out, _ := noHost().run(args...)
		require.Equal(t, exitOK, code)
		for _, f := range []string{"-same-gpu", "-sweep", "-rounds", "-save", "-csv"} {
			require.Contains(t, out, f)
		}
	}
	code, out, errs := noHost().run("bench", "list", "--sim", "2x4090")
	require.Equal(t, exitOK, code, errs)
	for _, k := range benchCases {
		for _, c := range k.cases {
			require.Contains(t, out, c.key)
		}
	}
	require.Contains(t, out, "(not here: the driver denies P2P between GPUs 0 and 1")
}

// tapped is a simulated machine behind a tap, as the only machine there is.
func tapped(t *testing.T, name string, f func(*tap.Tap)) call {
	world := noHost()
	world.openSim = func(string) (*cuda.Driver, func() error, error) {
		d, done, err := openSim(name)
		require.NoError(t, err)
		x := tap.New(hook.Seam(d))
		v, err := hook.NewDriver(x)
		require.NoError(t, err)
		f(x)
		return v.(*cuda.Driver), done, nil
	}
	return world
}

// Copies that are left out leave their destinations as they were.
func TestBenchSeesWrongData(t *testing.T) {
	for _, c := range []struct {
		method string
		args   []string
		about  string
	}{
		{"MemcpyDtoHAsync", []string{"bench", "link", "--bytes", "4KiB"}, "link.d2h"},
		{"MemcpyHtoDAsync", []string{"bench", "link", "--bytes", "4KiB"}, "link.h2d"},
		{"MemcpyPeerAsync", []string{"bench", "copy", "--bytes", "4KiB", "--route", "driver"}, "copy.driver.one_way"},
	} {
		world := tapped(t, "2x4090", func(x *tap.Tap) { x.SkipFrom(c.method, 5) })
		code, out, errs := world.run(append(c.args, "--sim", "2x4090", "--rounds", "1")...)
		require.Equal(t, exitFailed, code, errs)
		require.Contains(t, errs, "results moved wrong data")
		require.Contains(t, out, "WRONG DATA")
		found := false
		for _, l := range strings.Split(out, "\n") {
			f := strings.Fields(l)
			if len(f) > 2 && f[0] == c.about {
				found = true
				require.NotEqual(t, "0", f[len(f)-2], "%s", l)
			}
		}
		require.True(t, found, out)
	}
}

// An error ends the run, and what was measured before is written.
func TestBenchEndsEarly(t *testing.T) {
	world := tapped(t, "2x4090", func(x *tap.Tap) { x.FailFrom("EventElapsedTime", 60, api.InvalidHandle) })
	code, out, errs := world.run("bench", "link", "--sim", "2x4090", "--bytes", "16KiB", "--rounds", "3", "--json")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "CUDA_ERROR_INVALID_HANDLE")
	var doc benchDoc
	require.NoError(t, json.Unmarshal([]byte(out), &doc))
	require.Contains(t, doc.Error, "CUDA_ERROR_INVALID_HANDLE")

	// So does a signal.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var stdout, stderr bytes.Buffer
	e := noHost().environment(&stdout, &stderr)
	require.Equal(t, exitFailed, e.run(ctx, []string{"bench", "copy", "--bytes", "4KiB", "--json"}))
	require.Contains(t, stderr.String(), "interrupted")
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &doc))
	require.Empty(t, doc.Results)

	// And --time, which is no failure.
	code, out, errs = noHost().run("bench", "copy", "--bytes", "4KiB", "--rounds", "1000", "--time", "1ns")
	require.Equal(t, exitOK, code, errs)
	require.Contains(t, out, "note: --time 1ns is over: 1 of 1000 rounds were done of copy")
}

func TestBenchGivesUp(t *testing.T) {
	stuck := make(chan struct{})
	defer close(stuck)
	e := noHost().environment(&bytes.Buffer{}, &bytes.Buffer{})
	e.limit, e.grace = 50*time.Millisecond, 50*time.Millisecond
	b := &bench{}
	b.rounds = 1
	require.NoError(t, b.start(e, "link"))
	err := b.measure(context.Background(), nil, func(context.Context) ([]*series, error) {
		b.step("a call that does not return", 0)
		<-stuck
		return nil, nil
	})
	require.ErrorContains(t, err, "a call that does not return does not end")
}

func TestBenchDataHasNoPoison(t *testing.T) {
	b := &bench{}
	for _, n := range []uint64{1, 7, 8, 9, 4095, 1 << 16} {
		d := b.data(n)
		require.Len(t, d, int(n))
		require.NotContains(t, d, byte(poisonByte))
		seen := map[byte]bool{}
		for _, v := range d {
			seen[v] = true
		}
		if n > 1<<15 {
			require.Len(t, seen, 255, "all other values occur")
		}
		poisonHost(d)
		require.Equal(t, bytes.Repeat([]byte{poisonByte}, int(n)), d)
	}
	poisonHost(nil)
}

func TestQuantile(t *testing.T) {
	require.Zero(t, quantile(nil, 0.5))
	require.Equal(t, 3.0, quantile([]float64{3}, 0.95))
	require.Equal(t, 2.5, quantile([]float64{4, 1, 3, 2}, 0.5))
	require.Equal(t, 1.0, quantile([]float64{4, 1, 3, 2}, 0))
	require.Equal(t, 4.0, quantile([]float64{4, 1, 3, 2}, 1))
	require.InDelta(t, 3.85, quantile([]float64{4, 1, 3, 2}, 0.95), 1e-12)
}

func TestNodes(t *testing.T) {
	for s, want := range map[string][]int{"0\n": {0}, "0-2,8": {0, 1, 2, 8}, "": nil} {
		got, err := parseNodes(s)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, s := range []string{"x", "0-", "-1", "0-99999999999", "3-4096"} {
		_, err := parseNodes(s)
		require.Error(t, err, s)
	}
	root := fstest.MapFS{
		"sys/devices/system/node/online":         {Data: []byte("0-3\n")},
		"sys/devices/system/node/node1/distance": {Data: []byte("32 10 12 12\n")},
	}
	require.Equal(t, 0, farNode(root, 1), "by distance")
	require.Equal(t, 3, farNode(root, 0), "no distances: the last other one")
	root["sys/devices/system/node/has_memory"] = &fstest.MapFile{Data: []byte("0\n")}
	require.Equal(t, -1, farNode(root, 0))
	require.Empty(t, memoryNodes(fstest.MapFS{}))
}

// TestPeerChild is the peer of TestBenchPeers.
func TestPeerChild(t *testing.T) {
	mode := os.Getenv("GP_TEST_PEER")
	if mode == "" {
		t.Skip("only run by TestBenchPeers")
	}
	if mode == "mute" {
		os.Exit(3)
	}
	version := 1
	if mode == "old" {
		version = 0
	}
	fmt.Printf(`{"peer":"test","version":%d,"about":"a test","methods":[{"name":"same"},{"name":"tuned","tuned":true},{"name":"plain","unchunked":true}]}`+"\n", version)
	for s := bufio.NewScanner(os.Stdin); s.Scan(); {
		var method string
		var n, chunk uint64
		var slots, count int
		if _, err := fmt.Sscan(s.Text(), &method, &n, &chunk, &slots, &count); err != nil || slots < 2 || slots > 4 {
			fmt.Printf(`{"error":"request %q"}`+"\n", s.Text())
			continue
		}
		if mode == "short" {
			count--
		}
		seconds := 1.0
		if method == "tuned" && chunk == 256<<10 {
			seconds = 0.25 // its best chunk
		}
		wrong := 0
		if mode == "wrong" {
			wrong = 1
		}
		a := peerAnswer{Seconds: slices.Repeat([]float64{seconds}, count), Wrong: uint64(wrong)}
		if mode == "fails" {
			a.Error = "no luck"
		}
		b, _ := json.Marshal(&a)
		fmt.Printf("%s\n", b)
	}
	os.Exit(0)
}

func peersRun(t *testing.T, mode string, sizes ...uint64) (*benchDoc, error) {
	t.Setenv("GP_TEST_PEER", mode)
	var out bytes.Buffer
	e := noHost().environment(&out, &out)
	b := &bench{}
	b.rounds, b.sizes, b.json = 2, sizes, true
	require.NoError(t, b.start(e, "peers"))
	p := &peersBench{copyBench: &copyBench{bench: b, rig: &rig{b: b}, sameGPU: true}, commands: [][]string{{os.Args[0], "-test.run=^TestPeerChild$"}}}
	err := p.run(context.Background())
	return &b.doc, err
}

func TestBenchPeers(t *testing.T) {
	doc, err := peersRun(t, "good", 4<<10, 512<<10)
	require.NoError(t, err)
	require.Len(t, doc.Peers, 2*3)
	for _, r := range doc.Peers {
		require.Equal(t, "test", r.Peer)
		require.Equal(t, 2, r.Rounds)
		require.Positive(t, r.OwnUS)
		require.LessOrEqual(t, r.RatioLeast, r.Ratio)
		require.LessOrEqual(t, r.Ratio, r.RatioMost)
		require.InEpsilon(t, r.OwnUS/r.PeerUS, r.Ratio, 0.1)
		require.Equal(t, r.Bytes == 4<<10 || r.Method == "tuned", r.Best, "%v", r)
		switch {
		case r.Method == "plain":
			require.Zero(t, r.ChunkBytes)
		case r.Method == "same":
			require.Equal(t, r.OwnChunk, r.ChunkBytes)
		case r.Bytes == 512<<10:
			require.Equal(t, uint64(256<<10), r.ChunkBytes, "its best")
			require.Equal(t, 0.25e6, r.PeerUS)
		default:
			require.Equal(t, r.Bytes, r.ChunkBytes)
		}
	}
	_, err = peersRun(t, "wrong", 4<<10)
	require.ErrorContains(t, err, "moved wrong data")
	for mode, why := range map[string]string{"fails": "no luck", "short": "instead of", "old": "version 0 of the protocol", "mute": "does not start: it has ended"} {
		_, err := peersRun(t, mode, 4<<10)
		require.ErrorContains(t, err, why, mode)
	}
	// On a host without a GPU there is nothing to compare with.
	code, _, errs := noHost().run("bench", "peers", "--peer", "x")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "there is none here")
}
