// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// childGrace is what a child that was interrupted may take to write out what it
// has, before it is killed.
var childGrace = 5 * time.Second

var errLimit = errors.New("ended by its limit")

// runChild runs a program until it ends or its limit is over: then it and all
// that it has started are interrupted, and a little later killed. Its standard
// output is returned in any case, and what it said last is in the error.
func runChild(ctx context.Context, limit time.Duration, env []string, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	ownGroup(cmd)
	var killer *time.Timer
	cmd.Cancel = func() error {
		killer = time.AfterFunc(childGrace, func() { killGroup(cmd) })
		return interruptGroup(cmd)
	}
	cmd.WaitDelay = childGrace + time.Second // a child of the child may hold the pipes
	err := cmd.Run()
	if killer != nil {
		killer.Stop()
	}
	if cmd.Process != nil {
		killGroup(cmd) // what it has left behind
	}
	switch {
	case err == nil:
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("%w, %v", errLimit, limit.Round(time.Second/10))
	default:
		if last := lastLine(stderr.String()); last != "" {
			err = fmt.Errorf("%w: %s", err, last)
		}
	}
	return stdout.Bytes(), err
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return strings.TrimSpace(s[strings.LastIndexByte(s, '\n')+1:])
}
