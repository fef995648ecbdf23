// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/stretchr/testify/require"
)

// childVariable makes this test binary a child of a course.
const childVariable = "GP_TEST_MULTI_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childVariable) {
	case "":
		os.Exit(m.Run())
	case "gp":
		fakeBench()
	case "nccl":
		fakeNCCL()
	case "hang":
		signal.Ignore(os.Interrupt)
		fmt.Println(`{"op":"all_reduce","bytes":8,"ranks":2,"proto":"default","seconds":1}`)
		time.Sleep(time.Minute)
	}
}

func argument(flag string) string {
	for i, a := range os.Args {
		if a == flag {
			return os.Args[i+1]
		}
	}
	return ""
}

// fakeBench saves a document as gp bench does: each size takes a microsecond a
// byte, but in P2P a tenth of that.
func fakeBench() {
	kind := os.Args[2]
	d := map[string]any{"machine": map[string]any{"name": "fake", "modelled": false}}
	var results []map[string]any
	add := func(c, algorithm, asked string, bytes uint64, seconds float64) {
		r := map[string]any{
			"op": kind, "case": c, "algorithm": algorithm, "ranks": 2, "bytes": bytes, "seconds": seconds, "gpus": "0 1",
			"algbw_gb_per_s": 50, "ratio_to_ceiling": 0.96,
		}
		if asked != "" {
			r["asked"], r["in_place"], r["event_seconds"] = asked, false, seconds/2
		}
		results = append(results, r)
	}
	for word := range strings.SplitSeq(argument("--bytes"), ",") {
		n, err := strconv.ParseUint(word, 10, 64)
		us := float64(n) / 1e6
		switch {
		case err != nil: // links and pairs have their own size
			add(kind+".d2h", "dma", "", 1<<28, 1)
		case kind == "copy":
			add("copy.staged.one_way", "staged", "", n, us)
			add("copy.staged.both_ways", "staged", "", n, us)
			add("copy.driver.one_way", "driver", "", n, 1.2*us)
			add("copy.driver.both_ways", "driver", "", n, 2*us)
		case argument("--algorithm") == "peer":
			add(kind, "peer", "peer", n, us/10)
		default:
			add(kind, "direct", "auto", n, us)
			add(kind, "direct", "direct", n, us)
		}
	}
	d["results"] = results
	b, err := json.Marshal(d)
	if err == nil {
		err = os.WriteFile(argument("--save"), b, 0o666)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// fakeNCCL is 1.5 times as slow as the library, and 1.3 times with LL.
func fakeNCCL() {
	via := "SHM/direct/direct"
	if os.Getenv("NCCL_P2P_DISABLE") == "" || os.Getenv("GP_TEST_LIE") != "" {
		via = "P2P/CUMEM"
	}
	name := strings.ReplaceAll(os.Getenv("NCCL_DEBUG_FILE"), "%p", "1")
	log := "h:1:1 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via " + via + "\n"
	if err := os.WriteFile(name, []byte(log), 0o666); err != nil {
		fmt.Println(`{"error":"no log"}`)
		os.Exit(1)
	}
	fmt.Println(`{"about":"fake","nccl":"2.28.9","cuda":"13.0","gpus":2}`)
	protos := argument("--protos")
	if protos == "" {
		protos = "default"
	}
	for op := range strings.SplitSeq(argument("--ops"), ",") {
		for word := range strings.SplitSeq(argument("--sizes"), ",") {
			for proto := range strings.SplitSeq(protos, ",") {
				n, _ := strconv.ParseUint(word, 10, 64)
				s := 1.5e-6 * float64(n)
				if proto == "LL" {
					s = 1.3e-6 * float64(n)
				}
				fmt.Printf(`{"op":%q,"bytes":%d,"ranks":2,"proto":%q,"seconds":%g,"event_seconds":%g,"train_seconds":%g,"wrong":0}`+"\n", op, n, proto, s, s, s)
			}
		}
	}
}

// script makes a program of this test binary.
func script(t *testing.T, name, child string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("no shell scripts here")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), name)
	text := fmt.Sprintf("#!/bin/sh\nGORACE=atexit_sleep_ms=0 %s=%s exec %q \"$@\"\n", childVariable, child, self)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o777))
	return file
}

func testRun(t *testing.T, most uint64) *courseRun {
	t.Helper()
	d := &document{Version: version, GPUs: 2, Bench: map[string]json.RawMessage{}, docs: map[string]*benchDoc{}}
	o := &options{gp: script(t, "gp", "gp"), gpus: 2, most: most}
	return &courseRun{
		options: o, document: d, work: t.TempDir(), log: io.Discard, scale: 1, end: time.Now().Add(10 * time.Minute),
		tools: &toolbox{bench: script(t, "nccl_bench", "nccl"), lib: "lib"},
	}
}

func TestCourse(t *testing.T) {
	c := testRun(t, 64*mib)
	for _, k := range course(2, c.most, 1) {
		require.NoError(t, c.one(t.Context(), &k), k.name)
	}
	c.join()
	skipped := map[string]string{}
	for _, r := range c.Children {
		require.Empty(t, r.Failed, r.Name)
		if r.Skipped != "" {
			skipped[r.Name] = r.Skipped
		}
	}
	require.Equal(t, map[string]string{"torch.shm": "no PyTorch, see notes", "torch.shm_copies": "no PyTorch, see notes"}, skipped)
	require.Zero(t, c.wrong())

	row := c.row(t, "all_reduce", 1*mib)
	require.Equal(t, "direct", row.Chosen)
	require.InDelta(t, 1.5, row.OverNCCL.Call, 1e-9)
	require.InDelta(t, 3, *row.OverNCCL.Event, 1e-9)
	require.Equal(t, "nccl.channels4/LL", row.Best, "the first by name of those that are as fast")
	require.InDelta(t, 1.3, row.OverBest.Call, 1e-9)
	require.InDelta(t, 1.5, row.OverNVLink.Call, 1e-9)
	require.InDelta(t, 15, row.PeerOverNCCL.Call, 1e-9)
	require.Nil(t, row.OverPerGPU)
	require.InDelta(t, 0.1, row.Algorithms["peer"].Seconds/row.Algorithms["direct"].Seconds, 1e-9)

	last := c.Copies[len(c.Copies)-1]
	require.Equal(t, 2, last.Ways)
	require.EqualValues(t, 64*mib, last.Bytes)
	require.InDelta(t, 2, *last.OverDriver, 1e-9)
	require.InDelta(t, 1.5, last.OverNCCL[byDefault], 1e-9)

	goals := map[string]goal{}
	for _, g := range c.Goals {
		goals[g.Name] = g
	}
	require.True(t, goals["all_reduce of its bare-traffic bound, from 64 MiB"].Met)
	require.True(t, goals["copy both ways over the driver's own staging, largest size"].Met)
	require.False(t, goals["copy one way, of the slower link's ceiling, largest size"].Met, "0.96 is no 0.97")
	slow := goals["all_reduce over NCCL over SHM, 128 KiB to 2 MiB"]
	require.False(t, slow.Met)
	require.InDelta(t, 1.5, *slow.Got, 1e-9)

	var text bytes.Buffer
	writeSummary(&text, c.document)
	require.Contains(t, text.String(), "nccl.channels4/LL")
	require.NoError(t, save(filepath.Join(c.work, "d.json"), nil, c.document))
	back, err := readDocument(filepath.Join(c.work, "d.json"))
	require.NoError(t, err)
	require.Equal(t, c.Collectives, back.Collectives)
}

func (d *document) row(t *testing.T, op string, bytes uint64) *collectiveRow {
	t.Helper()
	for i := range d.Collectives {
		if r := &d.Collectives[i]; r.Op == op && r.Bytes == bytes {
			return r
		}
	}
	require.FailNow(t, "no such row", "%s of %d", op, bytes)
	return nil
}

// What NCCL moved over NVLink is no figure of shared memory.
func TestOtherTransport(t *testing.T) {
	c := testRun(t, 4096)
	t.Setenv("GP_TEST_LIE", "1")
	k := child{name: byDefault, kind: kindNCCL, args: []string{"--ops", "all_reduce", "--sizes", "8"}, env: denied, ranks: 2, seconds: 1, denied: true}
	require.ErrorContains(t, c.one(t.Context(), &k), "NCCL went via P2P/CUMEM")
	p := c.Peers[0]
	require.Equal(t, "NCCL went via P2P/CUMEM", p.Invalid)
	require.Len(t, p.Rows, 1, "as it came")
	require.Len(t, p.Log, 1)
	require.Equal(t, map[string]int{"P2P/CUMEM": 1}, p.Transports)
	require.Contains(t, c.Notes[0], "no ratio is taken of its 1 figures")
	bench := child{name: "all_reduce", kind: kindGP, args: []string{"bench", "all_reduce", "--bytes", "8"}, ranks: 2, seconds: 1}
	require.NoError(t, c.one(t.Context(), &bench))
	c.join()
	row := c.row(t, "all_reduce", 8)
	require.Empty(t, row.NCCL)
	require.Nil(t, row.OverNCCL)
	require.ErrorContains(t, onlyShared(map[string]int{}), "does not say")
	require.NoError(t, onlyShared(map[string]int{"SHM/CE/CE": 4}))
	require.Error(t, onlyShared(map[string]int{"SHM/direct/direct": 4, "NET/Socket/0": 1}))
}

// The whole ends in time, also if a child does not listen; what it said is kept.
func TestHangingChild(t *testing.T) {
	old := childGrace
	childGrace = 200 * time.Millisecond
	defer func() { childGrace = old }()
	began := time.Now()
	// The child must have come as far as to say something.
	out, err := runChild(t.Context(), 2*time.Second, nil, script(t, "hang", "hang"))
	require.ErrorIs(t, err, errLimit)
	require.Less(t, time.Since(began), 20*time.Second)
	var p peerRun
	require.NoError(t, parsePeer(out, &p))
	require.Len(t, p.Rows, 1)
}

func TestNoTimeLeft(t *testing.T) {
	c := testRun(t, 4096)
	c.end = time.Now().Add(childGrace + time.Second)
	k := child{name: "copy", kind: kindGP, args: []string{"bench", "copy"}, seconds: 20}
	require.NoError(t, c.one(context.Background(), &k))
	require.Contains(t, c.Children[0].Skipped, "it takes 20 s")
	require.Empty(t, c.Bench)
}

func TestPeerError(t *testing.T) {
	var p peerRun
	err := parsePeer([]byte("NCCL version 2\n{\"op\":\"send\",\"bytes\":8,\"ranks\":2,\"seconds\":1}\n{\"error\":\"broken\"}\n"), &p)
	require.EqualError(t, err, "broken")
	require.Len(t, p.Rows, 1, "what came before is kept")
}

// Names tell children apart, and all that must not use P2P is told so.
func TestCourseOfMoreGPUs(t *testing.T) {
	for _, gpus := range []int{2, 4, 8} {
		seen, necessary := map[string]bool{}, 0.0
		for _, k := range course(gpus, 0, 1) {
			require.False(t, seen[k.name], k.name)
			seen[k.name] = true
			require.Positive(t, k.seconds)
			if k.kind != kindGP {
				require.Equal(t, k.name != byNVLink, k.denied, k.name)
			}
			if !strings.Contains(k.name, "@") && k.name != byNVLink && len(seen) <= 8 {
				necessary += k.seconds
			}
		}
		require.Less(t, necessary, defaultTime(gpus).Seconds(), "what matters most has its time on %d GPUs", gpus)
		for n := 2; n < gpus; n *= 2 {
			require.True(t, seen[fmt.Sprintf("all_reduce@%d", n)])
		}
	}
}

func TestComparison(t *testing.T) {
	v := func(s float64) map[string]timing { return map[string]timing{"direct": {Seconds: s}} }
	row := func(bytes uint64, s float64) collectiveRow {
		return collectiveRow{Op: "all_reduce", Ranks: 2, Bytes: bytes, Algorithms: v(s)}
	}
	p := &document{Version: 1, GPUs: 2, Modelled: true, Collectives: []collectiveRow{row(8, 1e-5), row(16, 2e-5), row(32, 1e-5)}}
	m := &document{Version: 1, GPUs: 2, Collectives: []collectiveRow{row(8, 1.1e-5), row(16, 1e-5)}}
	c := compareDocuments(p, m)
	require.Len(t, c.Rows, 2, "what one of them lacks is left out")
	require.Equal(t, 1, c.Off)
	require.False(t, c.Rows[0].Off)
	require.InDelta(t, 1, c.Rows[1].Error, 1e-9)

	folder := t.TempDir()
	file := func(name string, v any) string {
		name = filepath.Join(folder, name)
		require.NoError(t, save(name, nil, v))
		return name
	}
	a, b := file("p.json", p), file("bundle.json", map[string]any{"date": "2026-11-29", "multi": m})
	got, err := compareFiles(a, b)
	require.NoError(t, err)
	require.Equal(t, c, got)
	_, err = compareFiles(b, a)
	require.ErrorContains(t, err, "no simulated machine")
	_, err = compareFiles(a, a)
	require.ErrorContains(t, err, "is of a simulated machine")
}

// The prediction is of the machine that lies beside it.
func TestPrediction(t *testing.T) {
	spec, err := sim.Load("2xh200.json")
	require.NoError(t, err)
	d, err := readDocument("predicted-2xh200.json")
	require.NoError(t, err)
	require.True(t, d.Modelled)
	require.Len(t, spec.GPUs, d.GPUs)
	require.Equal(t, d.GPUs, d.row(t, "all_reduce", 64*mib).Ranks)
	require.NotEmpty(t, d.figures())
}
