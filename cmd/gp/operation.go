// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/geforce-p2p/geforce-p2p/gp"
)

// reductions are what all_reduce is tried with.
var reductions = []struct {
	t  gp.Type
	op gp.Op
}{
	{gp.TypeFloat32, gp.Sum},
	{gp.TypeFloat32, gp.Avg},
	{gp.TypeBFloat16, gp.Sum},
	{gp.TypeInt32, gp.Max},
}

// allReduces runs one reduction of size bytes a rank with each algorithm.
func (t *selftest) allReduces(ctx context.Context, typ gp.Type, op gp.Op, size uint64) error {
	t.watch.next("making data for all_reduce", t.limit+t.grace)
	n := int(roundUp(size, uint64(typ.Size())))
	data := make([][]byte, len(t.group.Ranks()))
	for i := range data {
		data[i] = make([]byte, n)
		randomElems(data[i], typ, &t.random)
	}
	want, err := reduced(data, typ, op)
	if err != nil {
		return err
	}
	for _, a := range []gp.Algorithm{gp.AlgorithmRing, gp.AlgorithmRingZeroCopy} {
		if err := t.allReduce(ctx, typ, op, a, data, want); err != nil {
			return err
		}
	}
	return nil
}

// allReduce runs one all_reduce in place and then, from the same data, out of
// place; the second is the one that is timed.
func (t *selftest) allReduce(ctx context.Context, typ gp.Type, op gp.Op, a gp.Algorithm, data [][]byte, want []byte) (err error) {
	ctx, cancel := t.begin(ctx, fmt.Sprintf("all_reduce (%v) of %d bytes, %v of %v", a, len(want), op, typ))
	defer cancel()
	ranks, n := t.group.Ranks(), len(want)
	r := result{Op: "all_reduce", Type: typ.String(), Reduction: op.String(), Ranks: len(ranks), Bytes: uint64(n)}

	var set buffers
	defer t.free(&set, &err)
	src, err := set.alloc(ranks, typ, n/typ.Size())
	if err != nil {
		return err
	}
	dst, err := set.alloc(ranks, typ, n/typ.Size())
	if err != nil {
		return err
	}
	for i := range ranks {
		if err := errors.Join(src[i].Write(ctx, data[i]), dst[i].Write(ctx, data[i])); err != nil {
			return err
		}
	}
	ops := t.group.With(gp.CallOptions{Algorithm: a})

	_, d, err := t.timed(ctx, func() (gp.Work, error) { return ops.AllReduce(dst, op) })
	if err != nil {
		return err
	}
	t.mu.Lock()
	if t.report.Timing.FirstAllReduceSeconds == 0 {
		t.report.Timing.FirstAllReduceSeconds = d.Seconds()
	}
	t.mu.Unlock()
	if err := t.check(ctx, &r, "in place", dst, want); err != nil {
		return err
	}
	if err := poison(ctx, dst, want); err != nil {
		return err
	}
	r.Algorithm, d, err = t.timed(ctx, func() (gp.Work, error) { return ops.AllReduceTo(dst, src, op) })
	if err != nil {
		return err
	}
	r.took(d)
	if err := t.check(ctx, &r, "out of place", dst, want); err != nil {
		return err
	}
	for i := range ranks {
		if err := t.check(ctx, &r, "source", src[i:i+1], data[i]); err != nil {
			return err
		}
	}
	t.add(r)
	return nil
}

// allGather gathers size bytes, an equal part from each rank.
func (t *selftest) allGather(ctx context.Context, size uint64) (err error) {
	ctx, cancel := t.begin(ctx, fmt.Sprintf("all_gather of %d bytes", size))
	defer cancel()
	ranks := t.group.Ranks()
	const typ = gp.TypeFloat32
	n := int(roundUp(size, uint64(len(ranks)*typ.Size())))
	part := n / len(ranks)
	want := make([]byte, n)
	randomBytes(want, &t.random)

	var set buffers
	defer t.free(&set, &err)
	src, err := set.alloc(ranks, typ, part/typ.Size())
	if err != nil {
		return err
	}
	dst, err := set.alloc(ranks, typ, n/typ.Size())
	if err != nil {
		return err
	}
	for i := range ranks {
		if err := src[i].Write(ctx, want[i*part:(i+1)*part]); err != nil {
			return err
		}
	}
	r := result{Op: "all_gather", Type: typ.String(), Ranks: len(ranks), Bytes: uint64(n)}
	for range 2 { // the second is the one that is timed: the first pays for set-up
		if err := poison(ctx, dst, want); err != nil {
			return err
		}
		var d time.Duration
		r.Algorithm, d, err = t.timed(ctx, func() (gp.Work, error) { return t.group.AllGather(dst, src) })
		if err != nil {
			return err
		}
		r.took(d)
		if err := t.check(ctx, &r, "", dst, want); err != nil {
			return err
		}
	}
	t.add(r)
	return nil
}

// copies copies size bytes between each two ranks: one way, the other way, and
// both ways at once.
func (t *selftest) copies(ctx context.Context, size uint64) (err error) {
	t.watch.next(fmt.Sprintf("making data for copy of %d bytes", size), t.limit+t.grace)
	ranks := t.group.Ranks()
	n := int(size)
	var set buffers
	defer t.free(&set, &err)
	const typ = gp.TypeUint8 // a copy moves bytes, any number of them
	src, err := set.alloc(ranks, typ, n)
	if err != nil {
		return err
	}
	dst, err := set.alloc(ranks, typ, n)
	if err != nil {
		return err
	}
	data := make([][]byte, len(ranks))
	for i, rank := range ranks {
		data[i] = make([]byte, n)
		randomBytes(data[i], &t.random)
		if err := src[i].Write(ctx, data[i]); err != nil {
			return err
		}
		// What one stream orders does not run at once: what comes to a rank gets
		// another stream than what goes from it.
		s, err := rank.Context().NewStream()
		if err != nil {
			return err
		}
		defer s.Close()
		dst[i] = dst[i].On(s)
	}
	for a := range ranks {
		for b := a + 1; b < len(ranks); b++ {
			for _, ways := range [][][2]int{{{a, b}}, {{b, a}}, {{a, b}, {b, a}}} {
				if err := t.copy(ctx, src, dst, data, ways); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// copy runs the copies of ways, each from a rank to a rank, all at once.
func (t *selftest) copy(ctx context.Context, src, dst []gp.Buffer, data [][]byte, ways [][2]int) error {
	n := len(data[0])
	r := result{Op: "copy", Type: gp.TypeUint8.String(), Ranks: 2, Bytes: uint64(n * len(ways))}
	for _, w := range ways {
		if r.Case != "" {
			r.Case += " and "
		}
		r.Case += fmt.Sprintf("%d to %d", w[0], w[1])
	}
	ctx, cancel := t.begin(ctx, fmt.Sprintf("copy of %d bytes, %s", r.Bytes, r.Case))
	defer cancel()
	for range 2 { // the second is the one that is timed: the first pays for set-up
		for _, w := range ways {
			if err := poison(ctx, dst[w[1]:w[1]+1], data[w[0]]); err != nil {
				return err
			}
		}
		began := t.group.Now()
		works := make([]gp.Work, len(ways))
		for i, w := range ways {
			var err error
			if works[i], err = t.group.Copy(dst[w[1]], src[w[0]]); err != nil {
				return err
			}
		}
		r.Algorithm = works[0].Algorithm()
		for _, w := range works {
			if err := w.Wait(ctx); err != nil {
				return err
			}
		}
		r.took(t.group.Now() - began)
		for _, w := range ways {
			if err := t.check(ctx, &r, "", dst[w[1]:w[1]+1], data[w[0]]); err != nil {
				return err
			}
		}
	}
	t.add(r)
	return nil
}

// timed runs one operation to its end and measures it by the machine's clock.
func (t *selftest) timed(ctx context.Context, f func() (gp.Work, error)) (algorithm string, d time.Duration, err error) {
	began := t.group.Now()
	w, err := f()
	if err != nil {
		return "", 0, err
	}
	algorithm = w.Algorithm()
	err = w.Wait(ctx)
	return algorithm, t.group.Now() - began, err
}

// poison makes each byte of the buffers differ from what is expected there.
func poison(ctx context.Context, bufs []gp.Buffer, want []byte) error {
	bad := make([]byte, len(want))
	complement(bad, want)
	for _, b := range bufs {
		if err := b.Write(ctx, bad); err != nil {
			return err
		}
	}
	return nil
}

// check compares each buffer with want. A difference goes into r, the first one
// with its place; an error is a buffer that cannot be read.
func (t *selftest) check(ctx context.Context, r *result, what string, bufs []gp.Buffer, want []byte) error {
	got := make([]byte, len(want))
	for _, b := range bufs {
		complement(got, want)
		if err := b.Read(ctx, got); err != nil {
			return err
		}
		if bytes.Equal(got, want) || r.Error != "" {
			continue
		}
		at, count := firstDifference(got, want)
		if what != "" {
			what += ", "
		}
		r.Error = fmt.Sprintf("%srank %d: %d of %d bytes differ, the first at offset %d: 0x%02x instead of 0x%02x",
			what, b.Rank().Index(), count, len(want), at, got[at], want[at])
	}
	return nil
}

// add records a result.
func (t *selftest) add(r result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gaveUp {
		return
	}
	r.Verified = r.Error == ""
	t.report.Results = append(t.report.Results, r)
	if !t.json {
		writeResult(t.stdout, &r, t.machine.modelled())
	}
}

func roundUp(n, to uint64) uint64 { return (n + to - 1) / to * to }

// buffers frees what it has allocated.
type buffers []gp.Buffer

// alloc makes one buffer of n elements a rank.
func (s *buffers) alloc(ranks []*gp.Rank, t gp.Type, n int) ([]gp.Buffer, error) {
	out := make([]gp.Buffer, len(ranks))
	for i, r := range ranks {
		var err error
		if out[i], err = r.Alloc(t, n); err != nil {
			return nil, err
		}
		*s = append(*s, out[i])
	}
	return out, nil
}

func (t *selftest) free(s *buffers, err *error) {
	t.fail(*err)
	for _, b := range *s {
		*err = errors.Join(*err, b.Free())
	}
}
