// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// stuck is a driver in which calls do not return before the test ends: launches
// from the k-th on, and the freeing of pinned memory.
type stuck struct {
	api.Driver
	launch   int64 // 0: none
	free     bool
	launches atomic.Int64
	hangs    func() // called when the first one hangs
	end      chan struct{}
}

func (s *stuck) hang() {
	if s.hangs != nil {
		s.hangs()
	}
	<-s.end
}

func (s *stuck) LaunchKernel(f api.Function, l *api.Launch) api.Code {
	if s.launches.Add(1) >= s.launch && s.launch > 0 {
		s.hang()
	}
	return s.Driver.LaunchKernel(f, l)
}

func (s *stuck) MemFreeHost(p unsafe.Pointer) api.Code {
	if s.free {
		s.hang()
	}
	return s.Driver.MemFreeHost(p)
}

func stuckSelftest(t *testing.T, ctx context.Context, s *stuck, limit, grace time.Duration, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	s.end = make(chan struct{})
	t.Cleanup(func() { close(s.end) })
	world := noHost()
	world.openSim = wrapped(func(d api.Driver) api.Driver { s.Driver = d; return s })
	var out, errs bytes.Buffer
	e := world.environment(&out, &errs)
	e.limit, e.grace = limit, grace
	code = e.run(ctx, append([]string{"selftest", "--bytes", "4KiB"}, args...))
	return code, out.String(), errs.String()
}

// A driver call that does not return ends the command all the same, with what
// is known.
func TestSelftestGivesUpADriverCallThatHangs(t *testing.T) {
	t.Parallel()
	for _, json := range []bool{false, true} {
		t.Run(fmt.Sprintf("json=%v", json), func(t *testing.T) {
			t.Parallel()
			code, out, errs := stuckSelftest(t, t.Context(), &stuck{launch: 20}, 2*time.Second, time.Second, fmt.Sprintf("--json=%v", json))
			require.Equal(t, exitFailed, code)
			require.Contains(t, errs, "given up after 3s: all_reduce")
			require.NotContains(t, out, "operations verified")
			if json {
				checkKnown(t, out, "given up after 3s")
			} else {
				require.Contains(t, out, " yes\n", "what was done before")
			}
		})
	}
}

// So does a Close that hangs, after all went well.
func TestSelftestGivesUpACloseThatHangs(t *testing.T) {
	t.Parallel()
	code, out, errs := stuckSelftest(t, t.Context(), &stuck{free: true}, 3*time.Second, time.Second, "--json")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "closing the group does not end")
	checkKnown(t, out, "closing the group does not end")
}

// After a signal everything has the grace time, whatever the operation had.
func TestSelftestGivesUpAfterASignal(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	code, out, errs := stuckSelftest(t, ctx, &stuck{launch: 20, hangs: cancel}, time.Hour, 100*time.Millisecond, "--json")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "context canceled")
	require.Contains(t, errs, "given up after 100ms")
	checkKnown(t, out, "context canceled")
}

func checkKnown(t *testing.T, out, why string) {
	t.Helper()
	var doc report
	require.NoError(t, json.Unmarshal([]byte(out), &doc))
	require.Contains(t, doc.Error, why)
	require.NotEmpty(t, doc.Results)
	for _, r := range doc.Results {
		require.True(t, r.Verified)
	}
}

// The child of the test below: the command itself, on GPUs that hang.
func TestSignalHelper(t *testing.T) {
	if os.Getenv("GP_TEST_SIGNALS") == "" {
		t.Skip("the child of another test")
	}
	s := &stuck{launch: 20, end: make(chan struct{}), hangs: func() { fmt.Println("it hangs") }}
	e := &environment{
		stdout: os.Stdout, stderr: os.Stderr, root: noHost().root, openDriver: noHost().openDriver,
		openSim: wrapped(func(d api.Driver) api.Driver { s.Driver = d; return s }),
		limit:   time.Hour, grace: time.Hour,
	}
	if os.Getenv("GP_TEST_SIGNALS") == "once" {
		e.grace = 100 * time.Millisecond
	}
	os.Exit(e.main([]string{"selftest", "--bytes", "4KiB"}))
}

// The first signal asks the command to end, the second one ends it.
func TestSignals(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("one process cannot send a signal to another")
	}
	start := func(mode string) (*exec.Cmd, *bytes.Buffer) {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSignalHelper$")
		cmd.Env = append(os.Environ(), "GP_TEST_SIGNALS="+mode)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { cmd.Process.Kill() })
		for s := bufio.NewScanner(out); s.Scan() && s.Text() != "it hangs"; {
		}
		go io.Copy(io.Discard, out)
		return cmd, &errs
	}
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		cmd, _ := start("twice")
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		sent := 0
		deadline := time.After(20 * time.Second)
		for over := false; !over; {
			require.NoError(t, cmd.Process.Signal(sig))
			sent++
			select {
			case <-ended:
				over = true
			case <-time.After(100 * time.Millisecond):
			case <-deadline:
				t.Fatalf("still there after %d signals", sent)
			}
		}
		require.GreaterOrEqual(t, sent, 2, "the first one is a request")
		require.False(t, cmd.ProcessState.Exited(), "it ends by the signal: %v", cmd.ProcessState)
	}
	cmd, errs := start("once")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.Error(t, cmd.Wait())
	require.Equal(t, exitFailed, cmd.ProcessState.ExitCode())
	require.Contains(t, errs.String(), "context canceled")
	require.Contains(t, errs.String(), "given up after 100ms")
}

// A watch that has run out, or is at its end, takes no more time.
func TestWatch(t *testing.T) {
	w := newWatch("a", time.Hour)
	w.end(time.Millisecond)
	w.next("b", time.Hour)
	<-w.out
	step, given := w.at()
	require.Equal(t, "b", step)
	require.Equal(t, time.Millisecond, given)
	w.end(time.Nanosecond)
	w.stop()
	time.Sleep(time.Millisecond)

	w = newWatch("a", 10*time.Millisecond)
	w.stop()
	w.next("b", time.Nanosecond)
	select {
	case <-w.out:
		t.Fatal("a stopped watch runs out")
	case <-time.After(30 * time.Millisecond):
	}
}
