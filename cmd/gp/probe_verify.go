// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/probe"
)

// A checked transfer can hang in the driver, where nothing ends it but the end
// of its process, and sometimes not that; or the driver kills the process. So
// the transfers are made in a child: this command again, told so by a variable.
// The child gets a list of directions on its standard input and writes a line
// before and after each. What it had begun when it hung or died is the verdict;
// the rest is given to a new child.
const verifyChildVariable = "GP_PROBE_VERIFY_CHILD"

// verifyRequest is what the child reads.
type verifyRequest struct {
	Directions []verifyDirection `json:"directions"`
	Each       time.Duration     `json:"each"` // for one transfer
}

type verifyDirection struct {
	Src int `json:"src"` // CUDA ordinals
	Dst int `json:"dst"`

	from, to int // indices of the facts' devices
}

// verifyLine is a line that the child writes.
type verifyLine struct {
	Begin    *int            `json:"begin,omitempty"` // index of the direction
	Done     *int            `json:"done,omitempty"`
	Transfer *probe.Transfer `json:"transfer,omitempty"`
	Error    string          `json:"error,omitempty"` // the check could not be made
}

// verifyChild is the child.
func verifyChild(ctx context.Context, e *environment, stdin io.Reader) error {
	var req verifyRequest
	if err := json.NewDecoder(stdin).Decode(&req); err != nil {
		return fmt.Errorf("a checking process that nobody tells what to check: %w", err)
	}
	d, err := e.openDriver()
	if err != nil {
		return err
	}
	out := json.NewEncoder(e.stdout)
	held := map[int]*cuda.Context{} // so that contexts are made once, not once a direction
	for i, k := range req.Directions {
		if err := out.Encode(verifyLine{Begin: &i}); err != nil {
			return err
		}
		t, err := verifyOne(ctx, d, held, k, req.Each)
		line := verifyLine{Done: &i}
		if err != nil {
			line.Error = err.Error()
		} else {
			line.Transfer = &t
		}
		if err := out.Encode(line); err != nil {
			return err
		}
		// Contexts may be lost: the rest is for a new process.
		if err == nil && (t.Outcome == probe.OutcomeFailed || t.Outcome == probe.OutcomeTimedOut) {
			return nil
		}
	}
	for _, c := range held {
		if err := c.Close(); err != nil {
			return err
		}
	}
	return nil
}

func verifyOne(ctx context.Context, d *cuda.Driver, held map[int]*cuda.Context, k verifyDirection, each time.Duration) (probe.Transfer, error) {
	var pair [2]cuda.Device
	for i, ordinal := range []int{k.Src, k.Dst} {
		dev, err := d.Device(ordinal)
		if err != nil {
			return probe.Transfer{}, err
		}
		if held[ordinal] == nil {
			if held[ordinal], err = dev.Primary(); err != nil {
				return probe.Transfer{}, err
			}
		}
		pair[i] = dev
	}
	return probe.VerifyPair(ctx, pair[0], pair[1], each)
}

// verifier is the parent.
type verifier struct {
	command func() (*exec.Cmd, error)
	each    time.Duration // what a transfer is given
	startup time.Duration // what a child is given until it begins, and to end
	grace   time.Duration // what a transfer is given beyond each before the child is given up
	reap    time.Duration // what a killed child is given until it is left behind
}

func newVerifier(e *environment, each time.Duration) *verifier {
	v := &verifier{command: e.child, each: each, startup: 60 * time.Second, grace: 10 * time.Second, reap: 5 * time.Second}
	if v.command == nil {
		v.command = func() (*exec.Cmd, error) {
			self, err := os.Executable()
			if err != nil {
				return nil, err
			}
			return exec.Command(self, "probe"), nil
		}
	}
	return v
}

// run checks every direction of f that claims P2P and records the outcomes. The
// error is ctx's, or says that no child could be started.
func (v *verifier) run(ctx context.Context, f *probe.Facts) error {
	var list []verifyDirection
	for _, k := range f.Claimed() {
		list = append(list, verifyDirection{Src: f.Devices[k[0]].CUDA.Index, Dst: f.Devices[k[1]].CUDA.Index, from: k[0], to: k[1]})
	}
	for len(list) > 0 {
		n, err := v.child(ctx, list, func(k verifyDirection, t probe.Value[probe.Transfer]) { f.SetTransfer(k.from, k.to, t) })
		list = list[n:]
		if err == nil {
			continue
		}
		for _, k := range list {
			f.SetTransfer(k.from, k.to, probe.Unknown[probe.Transfer](probe.TransferSource, "not made: "+err.Error()))
		}
		var left leftBehind
		if errors.As(err, &left) && ctx.Err() == nil {
			return nil // the report says it
		}
		return err
	}
	return nil
}

// leftBehind is a child that a kill did not end.
type leftBehind int

func (pid leftBehind) Error() string {
	return fmt.Sprintf("the checking process %d cannot be ended and was left behind; reboot", int(pid))
}

// child runs one child over list and tells how many directions it settled, at
// least one unless there is an error.
func (v *verifier) child(ctx context.Context, list []verifyDirection, set func(verifyDirection, probe.Value[probe.Transfer])) (settled int, err error) {
	cmd, err := v.command()
	if err != nil {
		return 0, err
	}
	request, err := json.Marshal(verifyRequest{Directions: list, Each: v.each})
	if err != nil {
		return 0, err
	}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, verifyChildVariable+"=1")
	cmd.Stdin = bytes.NewReader(request)
	var stderr tail
	cmd.Stderr = &stderr
	cmd.WaitDelay = v.reap
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	lines, stop := make(chan verifyLine), make(chan struct{})
	defer close(stop)
	ended := make(chan error, 1)
	go func() {
		s := bufio.NewScanner(stdout)
		for s.Scan() {
			var l verifyLine
			if json.Unmarshal(s.Bytes(), &l) != nil {
				continue // a library's chatter
			}
			select {
			case lines <- l:
			case <-stop:
			}
		}
		ended <- cmd.Wait() // which closes the pipe, so not before
	}()

	current := -1 // the direction that was begun
	timer := time.NewTimer(v.startup)
	defer timer.Stop()
	settle := func(t probe.Value[probe.Transfer]) {
		set(list[settled], t)
		settled++
		current = -1
		timer.Reset(v.startup)
	}
	verdict := func(outcome, detail string) {
		settle(probe.Known(probe.Transfer{Outcome: outcome, Detail: detail}, probe.TransferSource))
	}
	for {
		select {
		case l := <-lines:
			switch {
			case l.Begin != nil && *l.Begin == settled && settled < len(list):
				current = settled
				timer.Reset(v.each + v.grace)
			case l.Done != nil && *l.Done == current && l.Transfer != nil:
				settle(probe.Known(*l.Transfer, probe.TransferSource))
			case l.Done != nil && *l.Done == current:
				settle(probe.Unknown[probe.Transfer](probe.TransferSource, l.Error))
			}
		case err := <-ended:
			why := "it ended"
			if err != nil {
				why = err.Error()
			}
			if text := stderr.String(); text != "" {
				why += ": " + text
			}
			switch {
			case current >= 0:
				verdict(probe.OutcomeKilled, "the checking process died in the transfer: "+why)
			case settled == 0:
				return 0, fmt.Errorf("the checking process did not begin: %s", why)
			}
			return settled, nil
		case <-timer.C:
			switch {
			case current >= 0:
				verdict(probe.OutcomeHang, fmt.Sprintf("no end within %v, the checking process was killed", v.each+v.grace))
			case settled == 0:
				return 0, errors.Join(fmt.Errorf("the checking process did not begin within %v", v.startup), v.kill(cmd, lines, ended))
			}
			return settled, v.kill(cmd, lines, ended)
		case <-ctx.Done():
			return settled, errors.Join(ctx.Err(), v.kill(cmd, lines, ended))
		}
	}
}

// kill ends a child. One that does not end, because it is stuck in the kernel,
// is left: nothing can be done about it, and waiting would hang this process too.
func (v *verifier) kill(cmd *exec.Cmd, lines <-chan verifyLine, ended <-chan error) error {
	if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return leftBehind(cmd.Process.Pid)
	}
	late := time.After(v.reap)
	for {
		select {
		case <-lines: // written before the kill; nobody reads them any more
		case <-ended:
			return nil
		case <-late:
			return leftBehind(cmd.Process.Pid)
		}
	}
}

// tail keeps the end of what is written.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailBytes = 2048

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - tailBytes; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(strings.Fields(string(t.buf)), " ")
}
