// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
	"github.com/geforce-p2p/geforce-p2p/internal/p2pcheck"
)

// DefaultTransferTime is how long a checked transfer of one direction may take.
const DefaultTransferTime = 20 * time.Second

// The outcomes of a Transfer. OutcomeHang and OutcomeKilled are for whoever
// runs Verify in a process of its own: a process cannot tell them of itself.
const (
	OutcomeProven   = "proven"
	OutcomeMismatch = "mismatch"
	OutcomeRefused  = "refused"
	OutcomeFailed   = "failed"
	OutcomeTimedOut = "timed-out"
	OutcomeHang     = "hang"
	OutcomeKilled   = "killed"
)

// TransferSource is the Source of the Transfers that Verify sets.
const TransferSource = "checked transfer"

// Claimed lists the directions for which CUDA grants access, which are those
// that a checked transfer makes sense for, as indices of Facts.Devices. One GPU
// under two names is none.
func (f *Facts) Claimed() [][2]int {
	var list [][2]int
	for i := range f.Pairs {
		p := &f.Pairs[i]
		a, b := &f.Devices[p.From], &f.Devices[p.To]
		same := a.UUID != "" && a.UUID == b.UUID
		if p.CanAccess.Or(false) && a.CUDA.Seen && b.CUDA.Seen && !same {
			list = append(list, [2]int{p.From, p.To})
		}
	}
	return list
}

// SetTransfer records what a checked transfer of a direction came to.
func (f *Facts) SetTransfer(from, to int, t Value[Transfer]) {
	for i := range f.Pairs {
		if p := &f.Pairs[i]; p.From == from && p.To == to {
			p.Transfer = t
			return
		}
	}
	f.Pairs = append(f.Pairs, Pair{From: from, To: to, Transfer: t})
}

// Verify checks every direction that claims P2P by a one-way transfer, and
// records the outcomes in f. d must be the driver of which f tells: devices are
// found by CUDA ordinal.
//
// It runs in this process, retains the primary contexts of the devices and
// enables peer access. On a broken platform a transfer can hang for good, kill
// the process or the machine: a program that has anything to lose runs it in
// another one, as gp probe --verify does. Once a transfer ends in an error or a
// time-out, the rest is left unchecked, because contexts may be lost; they are
// then recorded as unknown and the error says so.
func Verify(ctx context.Context, d *cuda.Driver, f *Facts, each time.Duration) error {
	var stopped error
	for _, k := range f.Claimed() {
		if stopped != nil {
			f.SetTransfer(k[0], k[1], Unknown[Transfer](TransferSource, "not made: "+stopped.Error()))
			continue
		}
		t, err := verifyOrdinals(ctx, d, f.Devices[k[0]].CUDA.Index, f.Devices[k[1]].CUDA.Index, each)
		if err != nil {
			f.SetTransfer(k[0], k[1], Unknown[Transfer](TransferSource, err.Error()))
			if ctx.Err() != nil {
				stopped = ctx.Err()
			}
			continue
		}
		f.SetTransfer(k[0], k[1], Known(t, TransferSource))
		if t.Outcome == OutcomeFailed || t.Outcome == OutcomeTimedOut {
			stopped = fmt.Errorf("the transfer from GPU%d to GPU%d ended as %s, contexts may be lost", k[0], k[1], t.Outcome)
		}
	}
	return stopped
}

func verifyOrdinals(ctx context.Context, d *cuda.Driver, from, to int, each time.Duration) (Transfer, error) {
	src, err := d.Device(from)
	if err != nil {
		return Transfer{}, err
	}
	dst, err := d.Device(to)
	if err != nil {
		return Transfer{}, err
	}
	return VerifyPair(ctx, src, dst, each)
}

const (
	latencyBytes  = 4
	latencyRounds = 200
)

// VerifyPair makes the checked transfer from src's memory to dst's: random
// bytes with cuMemcpyPeerAsync, read at the destination by a path that is not
// P2P. For a link that is proven it also takes the rate, the time of a small
// copy in a row of such, and, for comparison, the rate of copies through host
// memory. each bounds the transfer, 0 means DefaultTransferTime.
//
// The error is for a check that could not be made. After the outcomes "failed"
// and "timed-out" the contexts may be lost and are left as they are: end the
// process.
func VerifyPair(ctx context.Context, src, dst cuda.Device, each time.Duration) (t Transfer, err error) {
	if each <= 0 {
		each = DefaultTransferTime
	}
	ctx, cancel := context.WithTimeout(ctx, each)
	defer cancel()
	a, err := src.Primary()
	if err != nil {
		return Transfer{}, err
	}
	b, err := dst.Primary()
	if err != nil {
		return Transfer{}, errors.Join(err, a.Close())
	}
	defer func() {
		// Releasing a context waits for what runs in it, which may be for ever.
		if t.Outcome != OutcomeTimedOut && t.Outcome != OutcomeFailed {
			err = errors.Join(err, b.Close(), a.Close())
		}
	}()

	r, err := p2pcheck.Prove(ctx, a, b, p2pcheck.Options{})
	if err != nil {
		return Transfer{}, err
	}
	t = transferOf(r)
	t.Modelled = src.Driver().Modelled()
	if r.Verdict != p2pcheck.Proven {
		return t, nil
	}
	small, err := p2pcheck.Prove(ctx, a, b, p2pcheck.Options{Sizes: []int{latencyBytes}, Rounds: latencyRounds})
	switch {
	case err != nil:
		t.Detail = "the time of a small copy could not be taken: " + err.Error()
	case small.Verdict != p2pcheck.Proven:
		// It is the same link, and this is what it did now.
		t = transferOf(small)
		t.Modelled = src.Driver().Modelled()
		return t, nil
	case small.BytesPerSecond > 0:
		t.Latency = latencyBytes / small.BytesPerSecond
	}
	rate, err := staged(ctx, a, b)
	if err != nil {
		t.Detail = "the rate through host memory could not be taken: " + err.Error()
	}
	t.StagedBytesPerSecond = rate
	return t, nil
}

func transferOf(r p2pcheck.Result) Transfer {
	switch r.Verdict {
	case p2pcheck.Proven:
		return Transfer{Outcome: OutcomeProven, BytesPerSecond: r.BytesPerSecond}
	case p2pcheck.Mismatch:
		return Transfer{Outcome: OutcomeMismatch, Detail: r.String()}
	case p2pcheck.Refused:
		return Transfer{Outcome: OutcomeRefused, Detail: r.String()}
	case p2pcheck.TimedOut:
		return Transfer{Outcome: OutcomeTimedOut, Detail: r.String()}
	}
	return Transfer{Outcome: OutcomeFailed, Detail: r.String()}
}

// The copy through host memory that a rate is taken of: large enough for a
// link's rate, in pieces that keep both links busy.
const (
	stagedBytes  = 32 << 20
	stagedChunk  = 2 << 20
	stagedSlots  = 3
	stagedRounds = 3
)

// staged is the best rate in bytes a second of three copies from a to b through
// a ring of pinned slots, on the host's clock.
func staged(ctx context.Context, a, b *cuda.Context) (rate float64, err error) {
	var closers []func() error
	defer func() {
		for _, c := range closers {
			err = errors.Join(err, c())
		}
	}()
	keep := func(c func() error, e error) bool {
		if e != nil {
			err = e
			return false
		}
		closers = append([]func() error{c}, closers...)
		return true
	}
	from, e := a.Alloc(stagedBytes)
	if !keep(from.Close, e) {
		return 0, err
	}
	to, e := b.Alloc(stagedBytes)
	if !keep(to.Close, e) {
		return 0, err
	}
	host, e := a.HostAlloc(stagedSlots*stagedChunk, cuda.HostPortable|cuda.HostDeviceMap)
	if !keep(host.Close, e) {
		return 0, err
	}
	out, e := a.NewStream()
	if !keep(out.Close, e) {
		return 0, err
	}
	in, e := b.NewStream()
	if !keep(in.Close, e) {
		return 0, err
	}
	var landed, free [stagedSlots]*cuda.Event
	for i := range stagedSlots {
		if landed[i], e = a.NewEvent(cuda.EventDisableTiming); !keep(landed[i].Close, e) {
			return 0, err
		}
		if free[i], e = b.NewEvent(cuda.EventDisableTiming); !keep(free[i].Close, e) {
			return 0, err
		}
	}

	clock := hook.Seam(a.Driver()).Host()
	var best time.Duration
	for range stagedRounds {
		if err := ctx.Err(); err != nil {
			return 0, errors.Join(err, in.Synchronize())
		}
		began := clock.Now()
		for i, at := 0, 0; at < stagedBytes; i, at = i+1, at+stagedChunk {
			s := i % stagedSlots
			slot := unsafe.Add(host.Pointer(), s*stagedChunk)
			if i >= stagedSlots {
				e = errors.Join(e, out.Wait(free[s]))
			}
			e = errors.Join(e,
				out.MemcpyDtoH(slot, from.Ptr()+cuda.Ptr(at), stagedChunk),
				landed[s].Record(out),
				in.Wait(landed[s]),
				in.MemcpyHtoD(to.Ptr()+cuda.Ptr(at), slot, stagedChunk),
				free[s].Record(in))
			if e != nil {
				return 0, errors.Join(e, out.Synchronize(), in.Synchronize())
			}
		}
		if e := errors.Join(out.Synchronize(), in.Synchronize()); e != nil {
			return 0, e
		}
		if took := clock.Now() - began; best == 0 || took < best {
			best = took
		}
	}
	if best <= 0 {
		return 0, nil
	}
	return stagedBytes / best.Seconds(), nil
}
