// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"errors"
	"fmt"
)

// What an error of this package is, for errors.Is.
var (
	// ErrClosed: the group, or the buffer, is no longer there.
	ErrClosed = errors.New("closed")
	// ErrFailed: an earlier call on the group failed in the middle, and its
	// ranks may disagree. The error carries that first failure. Close the
	// group and open another.
	ErrFailed = errors.New("group has failed")
	// ErrTimeout: kernels that wait for each other did so longer than
	// Options.KernelDeadline. The group has failed.
	ErrTimeout = errors.New("timed out")
	// ErrArgument: an argument does not fit. Nothing was enqueued.
	ErrArgument = errors.New("bad argument")
	// ErrCapturing: a stream of the call is being captured into a graph, which
	// this library does not support. Nothing was enqueued and the capture is
	// still valid.
	ErrCapturing = errors.New("stream is being captured into a graph")
)

// Error is what every method of this package returns. Err says what it is
// (errors.Is) and what lies beneath (errors.As to *cuda.Error).
type Error struct {
	Op   string // "all_reduce"
	Rank int    // the rank it concerns, or -1
	Err  error
}

func (e *Error) Error() string {
	if e.Rank < 0 {
		return fmt.Sprintf("gp: %s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("gp: %s: rank %d: %v", e.Op, e.Rank, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// argument is an ErrArgument with its reason.
func argument(op string, rank int, format string, args ...any) *Error {
	return &Error{op, rank, fmt.Errorf("%w: "+format, append([]any{ErrArgument}, args...)...)}
}
