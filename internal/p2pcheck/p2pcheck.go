// SPDX-License-Identifier: Apache-2.0

// Package p2pcheck decides by a transfer whether peer-to-peer copies from one
// context to another arrive. The driver's word is not enough: there are
// machines where it grants access and the data are zeros (a translating IOMMU),
// and virtual ones where the writer reads its own bytes back while the owner of
// the memory never sees them.
//
// So the check goes one way, with bytes that are not zero, into memory that
// held other bytes, and reads the result at the destination, by a copy to host
// memory on the destination's own context, which crosses no peer link.
package p2pcheck

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/geforce-p2p/geforce-p2p/cuda"
)

// Verdict is how a check ended.
type Verdict uint8

const (
	// Proven: the driver grants access and every byte arrived.
	Proven Verdict = iota + 1
	// Refused: the driver does not grant access, or has no room for one more
	// peer. Both contexts are as good as before.
	Refused
	// Mismatch: the driver said success and other bytes arrived.
	Mismatch
	// Failed: the transfer ended in an error of the driver; if it is sticky, the
	// context is lost.
	Failed
	// TimedOut: the transfer was not done when the caller's context was. What it
	// uses stays allocated, because it may still be under way.
	TimedOut
)

// String is one word.
func (v Verdict) String() string {
	if names := [...]string{Proven: "proven", Refused: "refused", Mismatch: "mismatch", Failed: "failed", TimedOut: "timed out"}; int(v) < len(names) && names[v] != "" {
		return names[v]
	}
	return fmt.Sprintf("Verdict(%d)", uint8(v))
}

// Options says what to transfer. The zero value is right.
type Options struct {
	// Sizes are the transfers in bytes, DefaultSizes if empty. The rate is
	// measured with the last.
	Sizes []int
	// Rounds is the transfers that the rate is measured over, 4 if 0.
	Rounds int
	// Seed makes the pattern repeatable, if not 0.
	Seed uint64
}

// DefaultSizes crosses the sizes at which drivers change their way of copying,
// and ends with one that reaches a link's rate.
var DefaultSizes = []int{1, 4096, 64<<10 + 3, 1 << 20, 16 << 20}

// guard is the bytes behind the destination that must keep what they held.
const guard = 256

// A Result is what a check found.
type Result struct {
	Verdict Verdict

	// Of a proven link: bytes a second, one way, over Rounds transfers of the
	// last size in a row, on the device's clock.
	BytesPerSecond float64

	// Of a mismatch.
	Size   int  // bytes of the transfer
	Offset int  // first wrong byte
	Wrong  int  // wrong bytes in all
	Want   byte // at Offset
	Got    byte
	Zeros  bool // every wrong byte is 0
	Stale  bool // every wrong byte is what the destination held before

	// Err is the driver's error of a refusal or failure, ctx's of a time-out.
	Err error
}

// String is the verdict with its evidence.
func (r Result) String() string {
	switch r.Verdict {
	case Proven:
		return fmt.Sprintf("proven, %.1f GB/s", r.BytesPerSecond/1e9)
	case Mismatch:
		s := fmt.Sprintf("mismatch: of %d bytes sent %d differ at the destination, the first at %d: %#02x instead of %#02x",
			r.Size, r.Wrong, r.Offset, r.Got, r.Want)
		switch {
		case r.Stale:
			s += " (nothing arrived)"
		case r.Zeros:
			s += " (zeros arrived)"
		}
		return s
	}
	if r.Err != nil {
		return r.Verdict.String() + ": " + r.Err.Error()
	}
	return r.Verdict.String()
}

// Prove transfers random bytes from memory of src to memory of dst with
// cuMemcpyPeerAsync on a stream of src, and looks at what arrived. Access from
// src to dst is enabled before, unless both are on one device, and stays
// enabled only if the link is proven or it was enabled already. It uses memory
// of the largest size on both devices while it runs.
//
// The error is for a check that could not be made: no memory, bad arguments,
// ctx done before the transfer. What the transfer itself comes to is the
// Result.
func Prove(ctx context.Context, src, dst *cuda.Context, opts Options) (res Result, err error) {
	if src.Same(dst) {
		return Result{}, errors.New("p2pcheck: source and destination are one context")
	}
	if len(opts.Sizes) == 0 {
		opts.Sizes = DefaultSizes
	}
	if opts.Rounds <= 0 {
		opts.Rounds = 4
	}
	if opts.Seed == 0 {
		opts.Seed = rand.Uint64() | 1
	}
	most := 0
	for _, n := range opts.Sizes {
		if n <= 0 {
			return Result{}, fmt.Errorf("p2pcheck: a transfer of %d bytes", n)
		}
		most = max(most, n)
	}
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}

	if src.Device() != dst.Device() {
		already, err := src.EnsurePeerAccess(dst)
		switch {
		case errors.Is(err, cuda.ErrPeerAccessUnsupported), errors.Is(err, cuda.ErrTooManyPeers),
			errors.Is(err, cuda.ErrNotSupported), errors.Is(err, cuda.ErrNotPermitted), errors.Is(err, cuda.ErrInvalidDevice):
			return Result{Verdict: Refused, Err: err}, nil
		case err != nil:
			return Result{Verdict: Failed, Err: err}, nil
		}
		defer func() {
			// A link that loses data must not stay open: any other code of the
			// process that copies between the two would take it.
			if !already && res.Verdict != Proven && res.Verdict != TimedOut {
				err = errors.Join(err, unlessLost(src, src.DisablePeerAccess(dst)))
			}
		}()
	}

	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], opts.Seed)
	c := check{ctx: ctx, src: src, dst: dst, rng: rand.NewChaCha8(seed)}
	defer func() {
		if res.Verdict != TimedOut {
			err = errors.Join(err, c.close())
		}
	}()
	if err := c.open(most); err != nil {
		return Result{}, err
	}
	for _, n := range opts.Sizes {
		if res, err = c.transfer(n, 1); err != nil || res.Verdict != Proven {
			return res, err
		}
	}
	return c.transfer(opts.Sizes[len(opts.Sizes)-1], opts.Rounds)
}

// unlessLost drops the error of cleaning up on a context that is lost, which
// the Result reports.
func unlessLost(c *cuda.Context, err error) error {
	if c.Err() != nil {
		return nil
	}
	return err
}

// check is what a check holds.
type check struct {
	ctx        context.Context
	src, dst   *cuda.Context
	from, to   *cuda.Memory
	stream     *cuda.Stream
	start, end *cuda.Event
	rng        *rand.ChaCha8 // tens of megabytes for each direction of each pair

	sides [2][]byte // the pattern and what lies at the destination before
	drawn int       // bytes of them
	got   []byte
}

func (c *check) open(n int) (err error) {
	if c.from, err = c.src.Alloc(n); err != nil {
		return err
	}
	if c.to, err = c.dst.Alloc(n + guard); err != nil {
		return err
	}
	if c.stream, err = c.src.NewStream(); err != nil {
		return err
	}
	if c.start, err = c.src.NewTimingEvent(0); err != nil {
		return err
	}
	if c.end, err = c.src.NewTimingEvent(cuda.EventBlockingSync); err != nil {
		return err
	}
	c.sides = [2][]byte{make([]byte, n+guard), make([]byte, n+guard)}
	c.got = make([]byte, n+guard)
	return nil
}

func (c *check) close() error {
	var errs []error
	if c.stream != nil {
		errs = append(errs, c.stream.Close())
	}
	for _, e := range []*cuda.Event{c.start, c.end} {
		if e != nil {
			errs = append(errs, e.Close())
		}
	}
	for _, m := range []*cuda.Memory{c.from, c.to} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}

// draw fills the first n bytes of the two sides that pattern and poison are,
// where that was not done before: no byte of either is 0, nor what the other has
// in its place.
func (c *check) draw(n int) {
	if n <= c.drawn {
		return
	}
	a, b := c.sides[0][c.drawn:n], c.sides[1][c.drawn:n]
	c.drawn = n
	c.rng.Read(a)
	c.rng.Read(b)
	for i, x := range a {
		if x == 0 {
			x = 0xa5
			a[i] = x
		}
		if b[i] == 0 || b[i] == x {
			b[i] = x ^ 0x3c
			if b[i] == 0 {
				b[i] = 0xc3
			}
		}
	}
}

// transfer sends n bytes rounds times and compares. Pattern and poison change
// places from one transfer to the next, so that no byte that is sent lies at the
// destination before, nor was sent there by the transfer before.
func (c *check) transfer(n, rounds int) (Result, error) {
	c.draw(n + guard)
	c.sides[0], c.sides[1] = c.sides[1], c.sides[0]
	pattern, poison, got := c.sides[0][:n], c.sides[1][:n+guard], c.got[:n+guard]
	if err := c.src.MemcpyHtoD(c.from.Ptr(), pattern); err != nil {
		return Result{}, err
	}
	if err := c.dst.MemcpyHtoD(c.to.Ptr(), poison); err != nil {
		return Result{}, err
	}
	// A synchronous copy from pageable memory returns when the memory has been
	// read, not when the bytes are on the device.
	if err := errors.Join(c.src.Synchronize(), c.dst.Synchronize()); err != nil {
		return Result{}, err
	}
	if err := c.ctx.Err(); err != nil {
		return Result{}, err
	}

	if err := c.send(n, rounds); err != nil {
		if errors.Is(err, cuda.ErrPeerAccessUnsupported) || errors.Is(err, cuda.ErrNotSupported) {
			return Result{Verdict: Refused, Err: err}, nil
		}
		return Result{Verdict: Failed, Err: err}, nil
	}
	if err, done := c.wait(); !done {
		return Result{Verdict: TimedOut, Err: err}, nil
	} else if err != nil {
		return Result{Verdict: Failed, Err: err}, nil
	}
	took, err := cuda.Elapsed(c.start, c.end)
	if err != nil {
		return Result{Verdict: Failed, Err: err}, nil
	}
	if err := c.dst.MemcpyDtoH(got, c.to.Ptr()); err != nil {
		return Result{Verdict: Failed, Err: err}, nil
	}
	return judge(pattern, poison, got, rounds, took), nil
}

func (c *check) send(n, rounds int) error {
	if err := c.start.Record(c.stream); err != nil {
		return err
	}
	for range rounds {
		if err := c.stream.MemcpyPeer(c.to.Ptr(), c.dst, c.from.Ptr(), c.src, n); err != nil {
			return err
		}
	}
	return c.end.Record(c.stream)
}

// wait waits for the stream or for the caller's patience. Where that ends
// first, the goroutine stays as long as the driver keeps it.
func (c *check) wait() (err error, done bool) {
	if c.ctx.Done() == nil {
		return c.stream.Synchronize(), true
	}
	result := make(chan error, 1)
	go func() { result <- c.stream.Synchronize() }()
	select {
	case err := <-result:
		return err, true
	case <-c.ctx.Done():
		return c.ctx.Err(), false
	}
}

// judge compares what lies at the destination with what was sent, and with
// what lay there before, which must still lie behind it.
func judge(pattern, poison, got []byte, rounds int, took time.Duration) Result {
	n := len(pattern)
	r := Result{Verdict: Proven, Zeros: true, Stale: true}
	if bytes.Equal(got[:n], pattern) && bytes.Equal(got[n:], poison[n:]) {
		got = nil // as it mostly is
	}
	for i, g := range got {
		want := poison[i]
		if i < n {
			want = pattern[i]
		}
		if g == want {
			continue
		}
		if r.Wrong == 0 {
			r.Verdict, r.Size, r.Offset, r.Want, r.Got = Mismatch, n, i, want, g
		}
		r.Wrong++
		r.Zeros = r.Zeros && g == 0
		r.Stale = r.Stale && i < n && g == poison[i]
	}
	if r.Verdict == Proven {
		r.Zeros, r.Stale = false, false
		if took > 0 {
			r.BytesPerSecond = float64(n) * float64(rounds) / took.Seconds()
		}
	}
	return r
}
