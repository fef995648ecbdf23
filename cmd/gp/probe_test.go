// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/probe"
)

func factsFile(name string) string {
	return filepath.Join("..", "..", "probe", "testdata", "facts", name+".json")
}

func runProbe(e *environment, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	e.stdout, e.stderr, e.openSim = &out, &errs, openSim
	if e.collect == nil {
		e.collect = func(context.Context, probe.Options) (*probe.Facts, error) { panic("this machine was asked") }
	}
	code = e.run(context.Background(), append([]string{"probe"}, args...))
	return code, out.String(), errs.String()
}

func TestProbeOfFacts(t *testing.T) {
	for name, want := range map[string]int{
		"04-different-chips": exitOK, "17-nvml-unknown-error": exitOK, "blog-8x4090-before": exitOK, "20-wsl2": exitOK,
		"32-gpu-lost": exitLost, "16-version-mismatch": exitUnusable, "35-mps": exitUnusable, "18-lxc-wrong-major": exitUnusable,
	} {
		code, out, errs := runProbe(&environment{}, "--facts", factsFile(name))
		require.Equal(t, want, code, "%s: %s", name, errs)
		require.Empty(t, errs, name)
		report, err := os.ReadFile(strings.TrimSuffix(factsFile(name), ".json") + ".report")
		require.NoError(t, err)
		require.Equal(t, string(report), out)
	}
	code, out, errs := runProbe(&environment{}, "--facts", factsFile("04-different-chips"), "--json")
	require.Equal(t, exitOK, code, errs)
	var r probe.Report
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Equal(t, probe.DifferentChips, r.Pairs[0].Headline)
}

func TestProbeRefusesBadCalls(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	facts := factsFile("04-different-chips")
	for _, c := range []struct {
		args []string
		code int
		why  string
	}{
		{[]string{"--facts", facts, "--verify"}, exitUsage, "about another"},
		{[]string{"--facts", facts, "--sim", "2x4090"}, exitUsage, "two machines"},
		{[]string{"--verify", "--verify-time", "0s"}, exitUsage, "--verify-time"},
		{[]string{"--sim", "nosuch"}, exitUsage, "nosuch"},
		{[]string{facts}, exitUsage, "unexpected argument"},
		{[]string{"--facts", filepath.Join(dir, "absent")}, exitFailed, "absent"},
		{[]string{"--facts", write("bad.json", "{}")}, exitFailed, "not a facts file"},
		{[]string{"--facts", write("nul.json", "\x00\x00")}, exitFailed, "NUL"},
		{[]string{"--facts", facts, "--branches", write("bad.txt", "nonsense")}, exitFailed, "line 1"},
		{[]string{"--facts", facts, "--branches", filepath.Join(dir, "absent")}, exitFailed, "absent"},
		{[]string{"--facts", facts, "--save", filepath.Join(dir, "no", "such", "folder")}, exitFailed, "folder"},
	} {
		code, out, errs := runProbe(&environment{}, c.args...)
		require.Equal(t, c.code, code, "%v: %s", c.args, errs)
		require.Contains(t, errs, c.why, c.args)
		require.Empty(t, out, c.args)
	}
}

func TestProbeBranches(t *testing.T) {
	table := filepath.Join(t.TempDir(), "table")
	require.NoError(t, os.WriteFile(table, []byte("date 2031-05-06\n550.90.07 me/mine my-branch refs\n"), 0o644))
	code, out, errs := runProbe(&environment{}, "--facts", factsFile("blog-8x4090-before"), "--branches", table)
	require.Equal(t, exitOK, code, errs)
	require.Contains(t, out, "branch my-branch of me/mine")
	require.Contains(t, out, "2031-05-06")
}

// What --save writes holds no name of a card, and says the same.
func TestProbeSave(t *testing.T) {
	const secret = "GPU-49c7a6c9-e3a8-3b48-f0ba-171520d77dd1"
	e := &environment{collect: func(_ context.Context, o probe.Options) (*probe.Facts, error) {
		f := mustLoad(t, "01-iommu-translating")
		f.Devices[0].UUID = secret
		f.Devices[0].Serial = probe.Known("1650522003820", "nvmlDeviceGetSerial")
		return f, nil
	}}
	path := filepath.Join(t.TempDir(), "facts.json")
	code, out, errs := runProbe(e, "--save", path)
	require.Equal(t, exitOK, code, errs)
	require.Contains(t, out, "read in ")
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NotContains(t, string(b), "49c7a6c9")
	require.NotContains(t, string(b), "1650522003820")
	code, again, errs := runProbe(&environment{}, "--facts", path)
	require.Equal(t, exitOK, code, errs)
	require.True(t, strings.HasPrefix(out, again))
}

func mustLoad(t *testing.T, name string) *probe.Facts {
	t.Helper()
	b, err := os.Open(factsFile(name))
	require.NoError(t, err)
	defer b.Close()
	f, err := probe.Load(b)
	require.NoError(t, err)
	return f
}

func TestProbeHelpNamesExitCodes(t *testing.T) {
	code, out, _ := runProbe(&environment{}, "-h")
	require.Equal(t, exitOK, code)
	for _, s := range []string{"3 if a GPU is lost", "4 if CUDA could not be asked", "5 if a\nchecked transfer failed", "-facts FILE", "-save FILE", "-branches FILE", "-sim NAME"} {
		require.Contains(t, out, s)
	}
}

func TestProbeOfSimulatedMachine(t *testing.T) {
	e := &environment{collect: probe.Collect}
	code, out, errs := runProbe(e, "--sim", "2x4090", "--verify")
	require.Equal(t, exitOK, code, errs+out)
	require.Contains(t, out, "GPU0 <-> GPU1   off")
	require.Contains(t, out, "RTX 4090")
}

// The child of a verification, in the ways in which one can end. It is this
// test binary, run again.
func TestVerifyChildHelper(t *testing.T) {
	mode := os.Getenv("GP_TEST_CHILD")
	if mode == "" {
		t.Skip("the child of other tests")
	}
	var req verifyRequest
	if err := json.NewDecoder(os.Stdin).Decode(&req); err != nil {
		t.Fatal(err)
	}
	say := func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	// Which direction of the whole list is the bad one: 0 -> 1.
	bad := func(k verifyDirection) bool { return k.Src == 0 && k.Dst == 1 }
	switch mode {
	case "no-begin":
		fmt.Fprintln(os.Stderr, "no driver here")
		os.Exit(7)
	case "silent":
		select {}
	}
	say("a library's chatter")
	for i, k := range req.Directions {
		say(`{"begin":%d}`, i)
		if bad(k) {
			switch mode {
			case "killed":
				self, _ := os.FindProcess(os.Getpid())
				self.Kill()
				select {}
			case "exits":
				fmt.Fprintln(os.Stderr, "NVRM: it is over")
				os.Exit(3)
			case "hang":
				select {}
			case "fails":
				say(`{"done":%d,"transfer":{"outcome":"failed","detail":"700"}}`, i)
				os.Exit(0)
			case "fails-and-hangs":
				say(`{"done":%d,"transfer":{"outcome":"timed-out","detail":"still running"}}`, i)
				select {}
			case "cannot":
				say(`{"done":%d,"error":"out of memory"}`, i)
				continue
			}
		}
		say(`{"done":%d,"transfer":{"outcome":"proven","bytes_per_second":2.5e10}}`, i)
	}
	if mode == "hangs-at-the-end" {
		select {}
	}
	os.Exit(0)
}

func childOf(mode string, started *int) func() (*exec.Cmd, error) {
	return func() (*exec.Cmd, error) {
		*started++
		cmd := exec.Command(os.Args[0], "-test.run=^TestVerifyChildHelper$")
		cmd.Env = append(os.Environ(), "GP_TEST_CHILD="+mode)
		return cmd, nil
	}
}

// A hanging and a killed child are verdicts, and the other directions are
// judged all the same.
func TestVerifyInChild(t *testing.T) {
	for _, c := range []struct {
		mode     string
		outcome  string // of 0 -> 1; "" for an unknown one
		detail   string
		children int
	}{
		{"well", probe.OutcomeProven, "", 1},
		{"killed", probe.OutcomeKilled, "died in the transfer", 2},
		{"exits", probe.OutcomeKilled, "NVRM: it is over", 2},
		{"hang", probe.OutcomeHang, "no end within", 2},
		{"fails", probe.OutcomeFailed, "700", 2},
		{"fails-and-hangs", probe.OutcomeTimedOut, "still running", 2},
		{"cannot", "", "out of memory", 1},
		{"hangs-at-the-end", probe.OutcomeProven, "", 1},
	} {
		t.Run(c.mode, func(t *testing.T) {
			t.Parallel()
			f := mustLoad(t, "blog-8x4090-after")
			f.Devices = f.Devices[:3]
			f.Pairs = nil
			for i := range 3 {
				for j := range 3 {
					if i != j {
						f.Pairs = append(f.Pairs, probe.Pair{From: i, To: j, CanAccess: probe.Known(true, "cuDeviceCanAccessPeer")})
					}
				}
			}
			started := 0
			v := newVerifier(&environment{child: childOf(c.mode, &started)}, 500*time.Millisecond)
			v.startup, v.grace = 20*time.Second, time.Second
			if c.mode == "hang" || c.mode == "fails-and-hangs" || c.mode == "hangs-at-the-end" {
				v.startup = 5 * time.Second
			}
			require.NoError(t, v.run(t.Context(), f))
			require.Equal(t, c.children, started)
			for _, p := range f.Pairs {
				tr, ok := p.Transfer.Get()
				if p.From == 0 && p.To == 1 {
					require.Equal(t, c.outcome != "", ok)
					require.Equal(t, c.outcome, tr.Outcome)
					require.Contains(t, tr.Detail+p.Transfer.Error, c.detail)
					continue
				}
				require.True(t, ok, "%d -> %d: %s", p.From, p.To, p.Transfer.Why())
				require.Equal(t, probe.OutcomeProven, tr.Outcome)
			}
			r := probe.Diagnose(f, nil)
			switch p := r.Pair(0, 1); c.outcome {
			case probe.OutcomeProven:
				require.True(t, p.Verified)
			case "":
				require.False(t, p.Verified)
				require.Equal(t, probe.P2POn, p.Headline)
			default:
				require.Equal(t, probe.Hangs, p.Headline)
			}
			require.True(t, r.Pair(1, 0).Verified)
		})
	}
}

func TestVerifyChildThatDoesNotBegin(t *testing.T) {
	for mode, why := range map[string]string{"no-begin": "no driver here", "silent": "did not begin within"} {
		f := mustLoad(t, "blog-8x4090-after")
		started := 0
		v := newVerifier(&environment{child: childOf(mode, &started)}, time.Second)
		v.startup = 2 * time.Second
		if mode == "no-begin" {
			v.startup = 20 * time.Second
		}
		require.ErrorContains(t, v.run(t.Context(), f), why)
		require.Equal(t, 1, started, "no second try")
		require.Contains(t, f.Pairs[0].Transfer.Why(), why)
	}
}

func TestVerifyCancelled(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	f := mustLoad(t, "blog-8x4090-after")
	started := 0
	v := newVerifier(&environment{child: childOf("silent", &started)}, time.Second)
	began := time.Now()
	require.ErrorIs(t, v.run(ctx, f), context.DeadlineExceeded)
	require.Less(t, time.Since(began), 20*time.Second)
}

// The exit code of a transfer that failed, and the child's own side on a
// simulated driver that grants nothing to check.
func TestProbeExitOfBadLink(t *testing.T) {
	started := 0
	e := &environment{
		child: childOf("killed", &started),
		collect: func(context.Context, probe.Options) (*probe.Facts, error) {
			return mustLoad(t, "01-iommu-translating"), nil
		},
	}
	code, out, errs := runProbe(e, "--verify")
	require.Equal(t, exitBadLink, code, errs)
	require.Contains(t, out, "killed: the checking process died")
	require.Contains(t, out, "GPU1 -> GPU0    proven")
}

func TestVerifyChildSide(t *testing.T) {
	var out bytes.Buffer
	e := &environment{stdout: &out, openDriver: func() (*cuda.Driver, error) {
		d, done, err := openSim("2x4090")
		t.Cleanup(func() { require.NoError(t, done()) })
		return d, err
	}}
	// The machine refuses P2P, which the check finds out by itself.
	require.NoError(t, verifyChild(t.Context(), e, strings.NewReader(`{"directions":[{"src":0,"dst":1},{"src":1,"dst":9}],"each":1000000000}`)))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 4)
	require.Equal(t, `{"begin":0}`, lines[0])
	require.Contains(t, lines[1], `"done":0,"transfer":{"outcome":"refused"`)
	require.Equal(t, `{"begin":1}`, lines[2])
	require.Contains(t, lines[3], `"done":1,"error":`)
	require.ErrorContains(t, verifyChild(t.Context(), e, strings.NewReader("")), "nobody tells")
}
