// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/gp/internal/bridge"
	"github.com/geforce-p2p/geforce-p2p/gp/internal/plan"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

func init() {
	bridge.StagedCopy = func(dst, src any, st bridge.Staging, chunk int) (any, error) {
		return stagedCopy(dst.(Buffer), src.(Buffer), st, chunk)
	}
	bridge.HostKernel = func(what string, buf any, host unsafe.Pointer, n int, op any) (any, error) {
		return hostKernel(what, buf.(Buffer), host, n, op.(Op))
	}
}

// stagedCopy is Copy through the caller's pinned memory.
func stagedCopy(dst, src Buffer, st bridge.Staging, chunk int) (Work, error) {
	const op = "staged_copy"
	if src.rank == nil {
		return Work{}, argument(op, -1, "zero Buffer")
	}
	g := src.rank.g
	if err := g.usable(op); err != nil {
		return Work{}, err
	}
	if err := g.check(op, &dst); err != nil {
		return Work{}, err
	}
	if err := g.check(op, &src); err != nil {
		return Work{}, err
	}
	switch {
	case dst.typ != src.typ || dst.n != src.n:
		return Work{}, argument(op, dst.rank.index, "dst is %d of %v and src %d of %v", dst.n, dst.typ, src.n, src.typ)
	case dst.rank == src.rank:
		return Work{}, argument(op, dst.rank.index, "both buffers are on one rank")
	case overlap(&dst, &src):
		return Work{}, argument(op, dst.rank.index, "dst and src overlap")
	case chunk < 16 || chunk%16 != 0:
		return Work{}, argument(op, src.rank.index, "chunk of %d bytes: a positive multiple of 16 is due", chunk)
	case src.n > 0 && st.Bytes < 2*uint64(chunk) && st.Bytes < uint64(src.Bytes()):
		return Work{}, argument(op, src.rank.index, "staging of %d bytes: two chunks of %d are due", st.Bytes, chunk)
	}
	g.lock()
	defer g.unlock()
	if err := g.usable(op); err != nil {
		return Work{}, err
	}
	for _, b := range [2]*Buffer{&dst, &src} {
		if err := b.alive(op); err != nil {
			return Work{}, err
		}
	}
	x := &g.run
	if src.n == 0 {
		x.reset("copy", nil, 2)
		x.rank[0], x.stream[0] = src.rank, src.queue()
		x.rank[1], x.stream[1] = dst.rank, dst.queue()
		return g.order(x, 1, "staged")
	}
	if err := src.rank.checkPinned(op, st.Host, st.Bytes); err != nil {
		return Work{}, err
	}
	p, err := plan.Copy(plan.CopyArgs{Bytes: uint64(src.Bytes()), Chunk: uint64(chunk), Slots: int(max(2, min(st.Bytes/uint64(chunk), maxSlots))),
		// Slots count in whole quanta, and the last one that is touched ends with the data.
		HostBudget: alignUp(st.Bytes, 16)})
	if err != nil {
		return Work{}, argument(op, src.rank.index, "%w", err)
	}
	x.reset(op, compile(p, false, g.stride), 2)
	x.rank[0], x.in[0], x.stream[0] = src.rank, src.addr(), src.queue()
	x.rank[1], x.out[1], x.stream[1] = dst.rank, dst.addr(), dst.queue()
	x.host[0], x.staging = st.Host, true
	w, err := g.enqueue(x, "staged")
	if err == nil {
		g.stats.Copies++
		g.moved(src.rank.index, dst.rank.index, RouteStaged, uint64(src.Bytes()))
	}
	return w, err
}

// maxSlots bounds a ring of slots: more than some gain nothing.
const maxSlots = 64

// hostKernel launches a kernel between a buffer and pinned host memory on the
// buffer's stream.
func hostKernel(what string, b Buffer, host unsafe.Pointer, n int, op Op) (Work, error) {
	if b.rank == nil {
		return Work{}, argument(what, -1, "zero Buffer")
	}
	r := b.rank
	g := r.g
	if err := g.usable(what); err != nil {
		return Work{}, err
	}
	if err := g.check(what, &b); err != nil {
		return Work{}, err
	}
	switch {
	case n != b.Bytes():
		return Work{}, argument(what, r.index, "%d bytes of host memory for a buffer of %d", n, b.Bytes())
	case !op.Valid():
		return Work{}, argument(what, r.index, "%v is not a reduction", op)
	case what == "reduce_from_host" && n > 0 && uintptr(host)%uintptr(b.typ.Size()) != 0:
		return Work{}, argument(what, r.index, "host memory at %p is not aligned to %v", host, b.typ)
	}
	g.lock()
	defer g.unlock()
	if err := g.usable(what); err != nil {
		return Work{}, err
	}
	if err := b.alive(what); err != nil {
		return Work{}, err
	}
	x := &g.run
	x.reset(what, nil, 1)
	x.rank[0], x.stream[0] = r, b.queue()
	if n == 0 {
		return g.order(x, 0, "kernel")
	}
	if err := r.checkPinned(what, host, uint64(n)); err != nil {
		return Work{}, err
	}
	m, entry := kernel.CopyModule(), kernel.CopyEntry
	if what == "reduce_from_host" {
		m, entry = kernel.FoldModule(b.typ), kernel.FoldEntry(b.typ, op)
	}
	var fn api.Function
	var err error
	g.relaxed(func() { fn, err = g.function(r, m, entry) })
	if err != nil {
		return Work{}, g.rankError(what, r, err)
	}
	err = g.refuseCapture(x)
	if c := x.bind.restore(); c != api.Success && err == nil {
		err = g.callError(what, r, "cuCtxPopCurrent", c)
	}
	if err != nil {
		return Work{}, err
	}
	o := g.begin(what, "kernel")
	launched := false
	call, c := r.bound(func(d api.Driver) (string, api.Code) {
		at, c := d.MemHostGetDevicePointer(host)
		if c != api.Success {
			return "cuMemHostGetDevicePointer", c
		}
		l := api.Launch{Grid: [3]uint32{kernel.Blocks(uint64(n)), 1, 1}, Block: [3]uint32{kernel.BlockThreads, 1, 1}, Stream: b.queue()}
		switch what {
		case "copy_to_host":
			l.Params = (&kernel.Copy{Dst: uint64(at), Src: uint64(b.ptr), Bytes: uint64(n)}).Append(nil)
		case "copy_from_host":
			l.Params = (&kernel.Copy{Dst: uint64(b.ptr), Src: uint64(at), Bytes: uint64(n)}).Append(nil)
		default:
			f := kernel.Fold{Dst: uint64(b.ptr), Count: uint64(b.n), N: 2}
			f.In[0], f.In[1] = uint64(b.ptr), uint64(at)
			if op == Avg {
				f.Divisor = 2
			}
			l.Params = f.Append(nil)
		}
		mk, c := r.newMark()
		if c != api.Success {
			return "cuEventCreate", c
		}
		mk.on(b.queue())
		o.marks = append(o.marks, mk)
		if c := d.LaunchKernel(fn, &l); c != api.Success {
			return "cuLaunchKernel", c
		}
		launched = true
		return "cuEventRecord", d.EventRecord(mk.ev, b.queue())
	})
	if c != api.Success {
		// One launch on one rank: nobody disagrees, and the group goes on. But
		// the caller may do with the host memory what he likes from here on.
		if launched {
			g.relaxed(func() { _ = b.stream.Synchronize() })
		}
		g.abandon(o)
		return Work{}, g.callError(what, r, call, c)
	}
	return g.commit(o), nil
}

// checkPinned refuses host memory that the driver does not know as pinned from
// its first byte to its last: a copy from anything else would not be
// asynchronous, and a kernel would fault on it. Asking leaves no error behind.
func (r *Rank) checkPinned(op string, host unsafe.Pointer, n uint64) error {
	for _, p := range [2]unsafe.Pointer{host, unsafe.Add(host, n-1)} {
		var kind uint64
		var asked api.Code
		call, c := r.bound(func(d api.Driver) (string, api.Code) {
			kind, asked = d.PointerGetAttribute(api.PtrMemoryType, hostAsPtr(p))
			return "", api.Success
		})
		const advice = "is not pinned: take it from cuda.Context.HostAlloc, or pin it with Register"
		switch {
		case call != "":
			return r.g.callError(op, r, call, c)
		case asked == api.InvalidValue: // the driver does not know it
			return argument(op, r.index, "host memory at %p %s: %w", p, advice, hook.Error(r.g.drv, r.cc, "cuPointerGetAttribute", asked))
		case asked != api.Success:
			return r.g.callError(op, r, "cuPointerGetAttribute", asked)
		case kind != api.MemTypeHost:
			return argument(op, r.index, "host memory at %p %s", p, advice)
		}
	}
	return nil
}

// hostAsPtr is the address as cuPointerGetAttribute wants it: with unified
// addressing it takes any address of the process.
func hostAsPtr(p unsafe.Pointer) api.Ptr { return api.Ptr(uintptr(p)) }
