// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A run without a kind has something of everything, in all formats.
func TestBenchDefault(t *testing.T) {
	if slowBuild() {
		t.Skip("its parts are tested one by one")
	}
	dir := t.TempDir()
	page, saved := filepath.Join(dir, "a.html"), filepath.Join(dir, "a.json")
	code, out, errs := noHost().run("bench", "--sim", "1xh200", "--rounds", "1", "--html", page, "--save", saved)
	require.Equal(t, exitOK, code, errs)
	require.Empty(t, errs, "no progress in a pipe")
	d, err := readBenchDoc(saved)
	require.NoError(t, err)
	require.Equal(t, "default", d.Bench)
	require.NotEmpty(t, d.Probe)
	ranks := map[int]bool{}
	ops := map[string]bool{}
	for _, r := range d.Results {
		require.True(t, r.Modelled)
		ops[r.Op] = true
		if r.Op == "all_reduce" {
			ranks[r.Ranks] = true
		}
	}
	require.Equal(t, map[int]bool{2: true, 4: true, 8: true}, ranks)
	for _, op := range []string{"d2h", "copy", "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all"} {
		require.True(t, ops[op], op)
	}
	for l := range strings.SplitSeq(out, "\n") {
		if f := strings.Fields(l); len(f) > 12 && f[0] != "case" && f[0] != "size" && f[0] != "bytes" && f[0] != "us" && !strings.HasPrefix(l, "not here") && !strings.HasPrefix(l, "note") {
			require.Equal(t, "modelled", f[len(f)-1], l)
		}
	}
	b, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(b), "8 ranks, auto")

	// It compares with itself: nothing changed.
	code, out, errs = noHost().run("bench", "diff", saved, saved)
	require.Equal(t, exitOK, code, errs)
	require.Contains(t, out, "0 of them changed beyond noise")
	require.NotContains(t, out, "only in")

	code, _, errs = noHost().run("bench", "frobnicate")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "p2p, all_reduce, all_gather")
}

// --time ends the part that runs behind a round, and those that it leaves nothing
// for are named.
func TestBenchDefaultTime(t *testing.T) {
	code, out, errs := noHost().run("bench", "--sim", "1xh200", "--rounds", "1000", "--time", "1ms")
	require.Equal(t, exitOK, code, errs)
	require.Contains(t, out, "its share of --time 1ms is over: 1 of 1000 rounds were done of link")
	require.Contains(t, out, "3 results, each of one round; every byte verified")
	require.Contains(t, out, "--time 1ms was over before the turn of copy, all_reduce on 2 ranks, all_reduce on 4 ranks, ")
	require.Contains(t, out, ", all_to_all on 4 ranks\n")
	require.Contains(t, out, "link.both")
	require.NotContains(t, out, "copy.staged")
}

// A signal ends a run of parts at once, and what was done is there.
func TestBenchDefaultEndsEarly(t *testing.T) {
	run := func(ctx context.Context, args ...string) (int, *benchDoc, string) {
		var stdout, stderr bytes.Buffer
		code := noHost().environment(&stdout, &stderr).run(ctx, append([]string{"bench", "--sim", "2x4090", "--gpus", "0", "--json"}, args...))
		var d benchDoc
		require.NoError(t, json.Unmarshal(stdout.Bytes(), &d))
		return code, &d, stderr.String()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	code, d, errs := run(ctx)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "interrupted")
	require.Contains(t, d.Error, "interrupted")
	require.Empty(t, d.Matrices)
}

func TestBenchProgress(t *testing.T) {
	var out bytes.Buffer
	require.Nil(t, newProgress(&out), "a buffer is no terminal")
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer null.Close()
	require.Nil(t, newProgress(null), "nobody reads there")
	file, err := os.Create(filepath.Join(t.TempDir(), "x"))
	require.NoError(t, err)
	defer file.Close()
	require.Nil(t, newProgress(file))
	var none *progress
	none.part("x", 0, 1)
	none.at(1, 2, "x", 0)
	none.end()

	p := &progress{w: &out}
	p.part("copy", 1, 5)
	require.Equal(t, "\r2/5 copy: preparing", out.String())
	out.Reset()
	p.at(5, 20, "copy.staged.one_way 1MiB", 61*time.Second)
	require.Equal(t, "\r[######..................]  25% 2/5 copy, 1m1s left: copy.staged.one_way 1MiB", out.String())
	out.Reset()
	p.at(19, 20, "x", -1)
	require.Equal(t, "\r[######################..]  95% 2/5 copy: x", strings.TrimRight(out.String(), " "))
	require.Len(t, out.String(), 1+len("[######..................]  25% 2/5 copy, 1m1s left: copy.staged.one_way 1MiB"), "what stood there before is gone")
	out.Reset()
	p.at(0, 0, strings.Repeat("long ", 40), 0)
	require.Len(t, out.String(), 80, "one line of a terminal")
	out.Reset()
	p.every = time.Hour
	p.at(1, 2, "x", 0)
	require.Empty(t, out.String(), "not more often than that")
	p.end()
	require.Equal(t, "\r"+strings.Repeat(" ", 79)+"\r", out.String())
	out.Reset()
	p.end()
	p.part("x", 0, 1)
	require.Empty(t, out.String(), "it is over")
}

// saveDoc writes a document to a file.
func saveDoc(t *testing.T, d *benchDoc) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "doc.json")
	var b bytes.Buffer
	require.NoError(t, writeJSON(&b, d))
	require.NoError(t, os.WriteFile(name, b.Bytes(), 0o600))
	return name
}

func TestBenchDiff(t *testing.T) {
	value := func(v float64) *float64 { return &v }
	row := func(kase string, bytes uint64, seconds, spread float64) benchResult {
		return benchResult{
			Op: "copy", Algorithm: "staged", Case: kase, GPUs: "0>1", Bytes: bytes, Seconds: seconds, P5: seconds * (1 - spread), P95: seconds * (1 + spread), Count: 100,
			Busbw: float64(bytes) / seconds / 1e9, Ceiling: value(25),
		}
	}
	doc := func(rows ...benchResult) *benchDoc {
		return &benchDoc{Version: benchVersion, Bench: "copy", Date: "2027-01-01T00:00:00Z", Machine: machineReport{Name: "2x GPU", GPUs: []string{"GPU", "GPU"}, Driver: "600.1"}, Results: rows}
	}
	a := doc(row("same", 1<<20, 1e-3, 0.01), row("slower", 1<<20, 1e-3, 0.01), row("faster", 1<<20, 1e-3, 0.01), row("noisy", 1<<20, 1e-3, 0.5), row("small", 4096, 1e-5, 0.01), row("gone", 1<<20, 1, 0))
	b := doc(row("same", 1<<20, 1.015e-3, 0.01), row("slower", 1<<20, 1.03e-3, 0.01), row("faster", 1<<20, 0.5e-3, 0.01), row("noisy", 1<<20, 1.1e-3, 0.5), row("small", 4096, 1.04e-5, 0.01), row("new", 1<<20, 1, 0))
	b.Machine.Driver = "600.2"
	b.Results[1].Ceiling = value(24)
	b.Results[2].Algorithm = "direct"
	b.Results[4].Wrong = 3
	d := compareBenches(a, b, -1)
	require.Equal(t, 2, d.Same, "the noisy one too: three standard errors of a median are 16% there")
	var names []string
	for _, r := range d.Changed {
		names = append(names, strings.SplitN(r.What, ",", 2)[0])
	}
	require.Equal(t, []string{"slower", "faster", "small"}, names)
	require.InDelta(t, 0.96, *d.Changed[0].Ceilings, 1e-12)
	require.Equal(t, []string{"gone, 0>1, 1MiB"}, d.OnlyA)
	require.Equal(t, []string{"new, 0>1, 1MiB"}, d.OnlyB)
	require.Equal(t, []string{"the drivers differ: 600.1, and 600.2"}, d.Notes)
	require.Equal(t, 3, compareBenches(a, b, 0.05).Same, "3% is within 5%")

	nameA, nameB := saveDoc(t, a), saveDoc(t, b)
	code, out, errs := noHost().run("bench", "diff", nameA, nameB)
	require.Equal(t, exitOK, code, errs)
	for _, s := range []string{
		"slower in B, beyond noise: 1", "faster in B, beyond noise: 1", "WRONG DATA", "staged, then direct", "0.960", "1.030",
		"only in A: 1\n  gone", "only in B: 1\n  new", "5 compared, 3 of them changed beyond noise", "A  " + nameA + ": 2x GPU, driver 600.1",
	} {
		require.Contains(t, out, s)
	}
	require.NotContains(t, out, "modelled")
	code, out, errs = noHost().run("bench", "diff", "--json", nameA, nameB)
	require.Equal(t, exitOK, code, errs)
	var j diffDoc
	require.NoError(t, json.Unmarshal([]byte(out), &j))
	require.Equal(t, nameA, j.A.File)
	require.Len(t, j.Changed, 3)

	// A model's figures are labelled here too.
	b.Machine.Modelled = true
	for i := range b.Results {
		b.Results[i].Modelled = true
	}
	code, out, errs = noHost().run("bench", "diff", nameA, saveDoc(t, b))
	require.Equal(t, exitOK, code, errs)
	require.Contains(t, out, "one run is measured and the other is a model's")
	require.Contains(t, out, "1030 modelled")

	for _, c := range []struct {
		args []string
		code int
		why  string
	}{
		{[]string{nameA}, exitUsage, "two files, not 1"},
		{[]string{"--noise", "x", nameA, nameB}, exitUsage, "no percentage"},
		{[]string{"--noise", "-1", nameA, nameB}, exitUsage, "no percentage"},
		{[]string{nameA, filepath.Join(t.TempDir(), "none")}, exitFailed, "no such file"},
		{[]string{nameA, saveText(t, `{"version": 2, "bench": "copy", "results": "of another shape"}`)}, exitFailed, "version 2 of the document, and this program reads version 1"},
		{[]string{saveText(t, `{"version": 1}`), nameB}, exitFailed, "no document of gp bench"},
		{[]string{saveText(t, `[1]`), nameB}, exitFailed, "no document of gp bench: one is an object with a version and a kind"},
		{[]string{saveText(t, `[`), nameB}, exitFailed, "no JSON"},
	} {
		code, out, errs := noHost().run(append([]string{"bench", "diff"}, c.args...)...)
		require.Equal(t, c.code, code, "%v: %s", c.args, errs)
		require.Empty(t, out)
		require.Contains(t, errs, c.why)
	}
}

func saveText(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "text.json")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// What the figures are medians of is said of what was done, not of what was asked
// for.
func TestBenchMedians(t *testing.T) {
	d := benchDoc{Rounds: 7}
	require.Equal(t, "medians of 7 rounds", d.Medians(), "a document that was read")
	d.sampled(3, 3)
	require.Equal(t, "medians of 3 rounds", d.Medians())
	p := benchDoc{Rounds: 7}
	d.merge(&p) // nothing came of it
	p.sampled(2, 2)
	p.sampled(5, 5)
	d.merge(&p)
	require.Equal(t, "medians of 2 to 5 rounds", d.Medians())
	p.sampled(1, 1)
	require.Equal(t, "medians of 1 to 5 rounds", p.Medians())
	one := benchDoc{Rounds: 9}
	one.sampled(1, 1)
	require.Equal(t, "each of one round", one.Medians())
}
