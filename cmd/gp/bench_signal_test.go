// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
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

const benchChild = "GP_TEST_BENCH"

// announcer says on stderr that a bench is at work, at its hundredth copy.
type announcer struct {
	api.Driver
	copies atomic.Int32
}

func (a *announcer) MemcpyDtoHAsync(dst unsafe.Pointer, src api.Ptr, n uint64, s api.Stream) api.Code {
	if a.copies.Add(1) == 100 {
		os.Stderr.WriteString("at work\n")
	}
	return a.Driver.MemcpyDtoHAsync(dst, src, n, s)
}

// The child of the test below: a bench that would take for ever.
func TestBenchSignalHelper(t *testing.T) {
	if os.Getenv(benchChild) == "" {
		t.Skip("the child of another test")
	}
	e := noHost().environment(os.Stdout, os.Stderr)
	e.openSim = wrapped(func(d api.Driver) api.Driver { return &announcer{Driver: d} })
	os.Exit(e.main([]string{"bench", "copy", "--sim", "2x4090", "--rounds", "10000", "--json"}))
}

// A signal ends a bench after the piece of work that it is at: what was measured is
// printed, as JSON that is whole, and says that the run was interrupted.
func TestBenchSIGTERM(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("one process cannot send a signal to another")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestBenchSignalHelper$")
	cmd.Env = append(os.Environ(), benchChild+"=1")
	var out bytes.Buffer
	cmd.Stdout = &out
	errs, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	late := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer late.Stop()
	said := bufio.NewReader(errs)
	line, err := said.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "at work\n", line)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	rest, err := io.ReadAll(said)
	require.NoError(t, err)
	require.Error(t, cmd.Wait())
	require.Equal(t, exitFailed, cmd.ProcessState.ExitCode(), "%s", rest)
	require.Contains(t, string(rest), "interrupted")
	var d benchDoc
	require.NoError(t, json.Unmarshal(out.Bytes(), &d))
	require.Contains(t, d.Error, "interrupted")
}
