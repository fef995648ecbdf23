// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// A bounce is the two pinned halves through which a rank's buffers are filled
// from Go memory and read back: the GPU must not reach into Go's heap, which
// may be freed or reused while a copy is in flight.
type bounce struct {
	mem  *cuda.HostMem
	busy [2]bool // a copy on the half was enqueued and not yet waited for
	ev   [2]*cuda.Event
	turn chan struct{} // held by who uses it
}

// bounceHalf is the bytes of a half: a link takes tens of microseconds for it,
// which hides a copy's fixed cost.
const bounceHalf = 1 << 20

func newBounce(cc *cuda.Context) (_ *bounce, err error) {
	b := &bounce{turn: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if b.mem, err = cc.HostAlloc(2*bounceHalf, 0); err != nil {
		return nil, err
	}
	for i := range b.ev {
		if b.ev[i], err = cc.NewEvent(cuda.EventDisableTiming); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (b *bounce) close() error {
	var errs []error
	for _, e := range b.ev {
		if e != nil {
			errs = append(errs, e.Close())
		}
	}
	if b.mem != nil {
		errs = append(errs, b.mem.Close())
	}
	return errors.Join(errs...)
}

// Upload allocates a buffer on the rank and fills it from v.
func Upload[T Elem](ctx context.Context, r *Rank, v []T) (Buffer, error) {
	b, err := r.Alloc(TypeOf[T](), len(v))
	if err != nil {
		return Buffer{}, err
	}
	if err := b.Write(ctx, bytesOf(v)); err != nil {
		return Buffer{}, errors.Join(err, b.freeLater())
	}
	return b, nil
}

// UploadTo fills all of b from v, which has its type and length.
func UploadTo[T Elem](ctx context.Context, b Buffer, v []T) error {
	if b.rank != nil && b.typ != TypeOf[T]() {
		return argument("upload", b.rank.index, "slice of %v into a buffer of %v", TypeOf[T](), b.typ)
	}
	return b.Write(ctx, bytesOf(v))
}

// Download reads all of b into dst, which has its type and length.
func Download[T Elem](ctx context.Context, dst []T, b Buffer) error {
	if b.rank != nil && b.typ != TypeOf[T]() {
		return argument("download", b.rank.index, "buffer of %v into a slice of %v", b.typ, TypeOf[T]())
	}
	return b.Read(ctx, bytesOf(dst))
}

func bytesOf[T Elem](v []T) []byte {
	if len(v) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), len(v)*int(unsafe.Sizeof(v[0])))
}

// Write fills b from src, which has its length in bytes, in the order of b's
// stream, and returns when the data is there. If ctx ends before, part of it
// may be.
func (b Buffer) Write(ctx context.Context, src []byte) error {
	return b.transfer(ctx, "write", src, func(d api.Driver, at api.Ptr, half unsafe.Pointer, n int, s api.Stream) (string, api.Code) {
		return "cuMemcpyHtoDAsync", d.MemcpyHtoDAsync(at, half, uint64(n), s)
	}, true)
}

// Read reads b into dst, which has its length in bytes, in the order of b's
// stream, and returns when dst is filled. If ctx ends before, part of it may
// be.
func (b Buffer) Read(ctx context.Context, dst []byte) error {
	return b.transfer(ctx, "read", dst, func(d api.Driver, at api.Ptr, half unsafe.Pointer, n int, s api.Stream) (string, api.Code) {
		return "cuMemcpyDtoHAsync", d.MemcpyDtoHAsync(half, at, uint64(n), s)
	}, false)
}

type bounceCopy func(d api.Driver, at api.Ptr, half unsafe.Pointer, n int, s api.Stream) (string, api.Code)

// transfer moves data through the halves in turn: while the link works on one,
// the processor works on the other.
func (b Buffer) transfer(ctx context.Context, op string, data []byte, move bounceCopy, up bool) (err error) {
	if b.rank == nil {
		return argument(op, -1, "zero Buffer")
	}
	r := b.rank
	g := r.g
	defer g.logs.flush()
	if err := g.usable(op); err != nil {
		return err
	}
	if err := g.check(op, &b); err != nil {
		return err
	}
	if len(data) != b.Bytes() {
		return argument(op, r.index, "%d bytes for a buffer of %d", len(data), b.Bytes())
	}
	if err := ctx.Err(); err != nil {
		return &Error{op, r.index, err}
	}
	bn := r.bounce
	select {
	case bn.turn <- struct{}{}:
		defer func() { <-bn.turn }()
	case <-ctx.Done():
		return &Error{op, r.index, ctx.Err()}
	}
	if err := g.usable(op); err != nil { // closed while it waited
		return err
	}
	if capturing, err := b.stream.Capturing(); err != nil {
		return g.rankError(op, r, err)
	} else if capturing {
		return &Error{op, r.index, ErrCapturing}
	}
	halves := bn.mem.Bytes()
	half := func(i int) []byte { return halves[i*bounceHalf : (i+1)*bounceHalf] }
	wait := func(i int) error {
		if !bn.busy[i] {
			return nil
		}
		if err := g.waitEvent(ctx, op, r, api.Event(bn.ev[i].Handle())); err != nil {
			return err
		}
		bn.busy[i] = false
		return nil
	}
	enqueue := func(i, off, n int) error {
		// A call on the same buffer fences its streams in and out: what gets in
		// between would be ordered with neither.
		g.lock()
		defer g.unlock()
		if err := b.alive(op); err != nil {
			return err
		}
		recorded := false
		call, c := r.bound(func(d api.Driver) (string, api.Code) {
			if call, c := move(d, b.addr()+api.Ptr(off), unsafe.Pointer(&half(i)[0]), n, b.queue()); c != api.Success {
				return call, c
			}
			c := d.EventRecord(api.Event(bn.ev[i].Handle()), b.queue())
			if c != api.Success {
				// Nothing tells when the half is free again but the stream itself.
				d.StreamSynchronize(b.queue())
			}
			recorded = c == api.Success
			return "cuEventRecord", c
		})
		bn.busy[i] = recorded // also where the thread's context cannot be put back
		if c != api.Success {
			return g.callError(op, r, call, c)
		}
		return nil
	}
	// A transfer that was given up may have left a copy in flight.
	for i := range 2 {
		if err := wait(i); err != nil {
			return err
		}
	}
	if len(data) == 0 {
		// Nothing moves, but what is before it on the stream has run.
		call, c := r.bound(func(d api.Driver) (string, api.Code) {
			return "cuEventRecord", d.EventRecord(api.Event(bn.ev[0].Handle()), b.queue())
		})
		if c != api.Success {
			return g.callError(op, r, call, c)
		}
		bn.busy[0] = true
		return wait(0)
	}
	pieces := (len(data) + bounceHalf - 1) / bounceHalf
	piece := func(k int) (off, n int) { return k * bounceHalf, min(bounceHalf, len(data)-k*bounceHalf) }
	for k := range pieces + 1 {
		if k < pieces {
			off, n := piece(k)
			if err := wait(k % 2); err != nil {
				return err
			}
			if up {
				copy(half(k%2), data[off:off+n])
			}
			if err := enqueue(k%2, off, n); err != nil {
				return err
			}
		}
		if !up && k > 0 {
			off, n := piece(k - 1)
			if err := wait((k - 1) % 2); err != nil {
				return err
			}
			copy(data[off:off+n], half((k-1)%2))
		}
	}
	for i := range 2 {
		if err := wait(i); err != nil {
			return err
		}
	}
	return nil
}

// waitEvent polls an event of the rank as Work.Wait does.
func (g *Group) waitEvent(ctx context.Context, op string, r *Rank, ev api.Event) (err error) {
	start := g.host.Now()
	for {
		done := false
		g.relaxed(func() {
			for {
				c := g.api.EventQuery(ev)
				if c == api.Success {
					done = true
					return
				}
				if c != api.NotReady {
					err = g.callError(op, r, "cuEventQuery", c)
					g.fail(err)
					return
				}
				if g.host.Now()-start >= spin {
					return
				}
			}
		})
		if done || err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return &Error{op, r.index, err}
		}
		if g.closing.Load() {
			return &Error{op, r.index, fmt.Errorf("group: %w", ErrClosed)}
		}
		if pause := pauseAfter(g.host.Now() - start); pause > 0 {
			g.host.Sleep(pause)
		}
		runtime.Gosched()
	}
}
