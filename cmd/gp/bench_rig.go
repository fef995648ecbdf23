// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/cuda"
)

// A port is one GPU's link with what it takes to load it in both directions: a
// buffer on each side for each, random where the bytes come from.
type port struct {
	gpu      int
	node     int // of the host memory, -1 where the driver puts it
	cc       *cuda.Context
	up, down *cuda.Stream
	src, dst *cuda.Memory  // on the GPU: of up, and for down
	to, from *cuda.HostMem // on the host: for up, and of down
	start    *cuda.Event
	ends     [2]*cuda.Event // of up and down
	n        int            // bytes of each buffer
	at       int            // where the next transfer begins
}

// A rig is the ports of a machine, and the data that they move.
type rig struct {
	b    *bench
	want []byte
	gate *gate // nil: no gate here
}

// newPort makes a port whose host memory lies on a NUMA node. like, if not nil,
// is a port of the same GPU, whose streams and device memory it shares.
func (r *rig) newPort(gpu, node, n int, like *port) (p *port, err error) {
	b := r.b
	p = &port{gpu: gpu, node: node, n: n}
	if like != nil {
		p.cc, p.up, p.down, p.src, p.dst, p.start, p.ends = like.cc, like.up, like.down, like.src, like.dst, like.start, like.ends
	} else if err := p.openDevice(b, n); err != nil {
		return nil, err
	}
	for _, m := range []**cuda.HostMem{&p.to, &p.from} {
		if *m, err = r.hostAlloc(p.cc, node, n); err != nil {
			return nil, err
		}
	}
	copy(p.from.Bytes(), r.want)
	if like == nil {
		if err := p.down.MemcpyHtoD(p.src.Ptr(), p.from.Pointer(), n); err != nil {
			return nil, err
		}
		return p, p.down.Synchronize()
	}
	return p, nil
}

func (p *port) openDevice(b *bench, n int) error {
	cc, err := b.devices[p.gpu].Primary()
	if p.cc, err = closing(b, cc, err); err != nil {
		return err
	}
	for _, s := range []**cuda.Stream{&p.up, &p.down} {
		v, err := p.cc.NewStream()
		if *s, err = closing(b, v, err); err != nil {
			return err
		}
	}
	for _, m := range []**cuda.Memory{&p.src, &p.dst} {
		v, err := p.cc.Alloc(n)
		if *m, err = closing(b, v, err); err != nil {
			return err
		}
	}
	for _, e := range []**cuda.Event{&p.start, &p.ends[0], &p.ends[1]} {
		v, err := p.cc.NewTimingEvent(0)
		if *e, err = closing(b, v, err); err != nil {
			return err
		}
	}
	return nil
}

// prefers tells why host memory cannot be had on a node of the machine's.
func (r *rig) prefers(node int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	restore, err := r.b.host.PreferNode(node)
	if err != nil {
		return err
	}
	restore()
	return nil
}

// hostAlloc pins host memory on a node: its pages are taken by the calling
// thread, by that thread's memory policy.
func (r *rig) hostAlloc(cc *cuda.Context, node, n int) (*cuda.HostMem, error) {
	if node >= 0 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		restore, err := r.b.host.PreferNode(node)
		if err != nil {
			return nil, fmt.Errorf("host memory on NUMA node %d: %w", node, err)
		}
		defer restore()
	}
	m, err := cc.HostAlloc(n, 0)
	return closing(r.b, m, err)
}

// A move is one transfer of a port's. down is towards the GPU.
type move struct {
	p    *port
	down bool
}

func (m *move) stream() *cuda.Stream {
	if m.down {
		return m.p.down
	}
	return m.p.up
}

func (m *move) end() *cuda.Event {
	if m.down {
		return m.p.ends[1]
	}
	return m.p.ends[0]
}

// enqueue copies n bytes at the port's offset, in pieces.
func (m *move) enqueue(n, piece int) error {
	for off := 0; off < n; off += piece {
		k, at := min(piece, n-off), m.p.at+off
		var err error
		if m.down {
			err = m.p.down.MemcpyHtoD(m.p.dst.Ptr()+cuda.Ptr(at), unsafe.Add(m.p.from.Pointer(), at), k)
		} else {
			err = m.p.up.MemcpyDtoH(unsafe.Add(m.p.to.Pointer(), at), m.p.src.Ptr()+cuda.Ptr(at), k)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// advance puts each port's next transfer of n bytes behind the last one, and
// fills its destinations.
func advance(moves []move, n int) error {
	seen := map[*port]bool{}
	for _, m := range moves {
		if p := m.p; !seen[p] {
			seen[p] = true
			if p.at += n; p.at+n > p.n {
				p.at = 0
			}
		}
		if !m.down {
			poisonHost(m.p.to.Bytes()[m.p.at : m.p.at+n])
			continue
		}
		if err := m.p.down.MemsetD8(m.p.dst.Ptr()+cuda.Ptr(m.p.at), poisonByte, n); err != nil {
			return err
		}
		if err := m.p.down.Synchronize(); err != nil {
			return err
		}
	}
	return nil
}

// byWall runs the moves, n bytes each, and returns the time from the first call
// to the end of the last move.
func (r *rig) byWall(moves []move, n, piece int) (time.Duration, error) {
	began := r.b.now()
	for i := range moves {
		if err := moves[i].enqueue(n, piece); err != nil {
			return 0, err
		}
	}
	for i := range moves {
		if err := moves[i].stream().Synchronize(); err != nil {
			return 0, err
		}
	}
	return r.b.now() - began, nil
}

// gateTries is how often a gate that opened too early is shut again.
const gateTries = 4

// byEvents runs the moves, n bytes each, and returns the time that the GPUs'
// own events tell: on each GPU from its start to the end of its last move, of
// all GPUs the longest. gated says that all were enqueued before the first began.
func (r *rig) byEvents(moves []move, n int) (d time.Duration, gated bool, err error) {
	for range gateTries {
		if gated, err = r.enqueueTimed(moves, n); err != nil {
			return 0, false, err
		}
		held := true
		if gated {
			if held, err = r.gate.held(); err != nil {
				return 0, false, err
			}
		}
		for i := range moves {
			if err := moves[i].stream().Synchronize(); err != nil {
				return 0, false, err
			}
		}
		if gated = gated && held; held {
			break
		}
	}
	for i := range moves {
		took, err := cuda.Elapsed(moves[i].p.start, moves[i].end())
		if err != nil {
			return 0, false, err
		}
		d = max(d, took)
	}
	return d, gated, nil
}

func (r *rig) enqueueTimed(moves []move, n int) (gated bool, err error) {
	if r.gate != nil {
		// A stream's wait, its start, the copy and its end; the gate's own.
		if gated, err = r.gate.shut(4 * len(moves)); err != nil {
			return false, err
		}
	}
	if gated {
		for i := range moves {
			if err := moves[i].stream().Wait(r.gate.open); err != nil {
				return false, err
			}
		}
	}
	started := map[*port]bool{}
	for i := range moves {
		if p := moves[i].p; !started[p] {
			started[p] = true
			if err := p.start.Record(moves[i].stream()); err != nil {
				return false, err
			}
		}
	}
	for i := range moves {
		if err := moves[i].enqueue(n, n); err != nil {
			return false, err
		}
	}
	for i := range moves {
		if err := moves[i].end().Record(moves[i].stream()); err != nil {
			return false, err
		}
	}
	return gated, nil
}

// verify counts the wrong bytes of the moves' last n bytes. What went down is
// read back through the port's other host buffer, with a plain copy.
func (r *rig) verify(moves []move, n int) (wrong uint64, err error) {
	for i := range moves {
		p := moves[i].p
		got, want := p.to.Bytes()[p.at:p.at+n], r.want[p.at:p.at+n]
		if !moves[i].down {
			wrong += differing(got, want)
		}
	}
	for i := range moves {
		p := moves[i].p
		if !moves[i].down {
			continue
		}
		got, want := p.to.Bytes()[p.at:p.at+n], r.want[p.at:p.at+n]
		poisonHost(got)
		if err := p.down.MemcpyDtoH(unsafe.Add(p.to.Pointer(), p.at), p.dst.Ptr()+cuda.Ptr(p.at), n); err != nil {
			return 0, err
		}
		if err := p.down.Synchronize(); err != nil {
			return 0, err
		}
		wrong += differing(got, want)
	}
	return wrong, nil
}

// ceiling is bare traffic: the moves as large copies started together, or as
// queues of pieces, whichever is faster, for on some days the host does better
// with pieces. It returns bytes a second of one move, while all run.
func (r *rig) ceiling(moves []move, n int) (rate float64, wrong uint64, err error) {
	for _, piece := range []int{n, ceilingPiece} {
		if err := advance(moves, n); err != nil {
			return 0, 0, err
		}
		d, err := r.byWall(moves, n, piece)
		if err != nil {
			return 0, 0, err
		}
		bad, err := r.verify(moves, n)
		if err != nil {
			return 0, 0, err
		}
		wrong += bad
		rate = max(rate, float64(n)/d.Seconds())
	}
	return rate, wrong, nil
}

const ceilingPiece = 8 << 20

// differing counts the bytes in which a and b differ.
func differing(a, b []byte) uint64 {
	if bytes.Equal(a, b) {
		return 0
	}
	_, n := firstDifference(a, b)
	return uint64(n)
}
