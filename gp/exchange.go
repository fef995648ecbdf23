// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/gang"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
	"github.com/geforce-p2p/geforce-p2p/ptx"
)

// exchanges is what a group keeps for kernels that wait for each other: one
// launch a rank does a whole collective, through areas of mapped pinned memory
// that nothing else uses. Small messages are a matter of driver calls, and this
// is the fewest.
//
// No such kernel ends before all have begun. So all ranks are enqueued under the
// group's lock, in one order; kernels are loaded on all ranks before the first
// is launched; and the first use proves with a handshake that the ranks run at
// once. A kernel that waits too long, or whose abort word is set, gives up.
//
// The group's lock guards it.
type exchanges struct {
	state exchangeState
	why   string // if off
	tries int    // that failed, of callers who did not ask for it
	epoch uint32 // of the latest
	// deadline is how long a kernel waits for its peers.
	deadline time.Duration
	// last is the end of each rank's latest exchange: the next one comes behind it,
	// whichever stream it is on.
	last   []*mark
	launch []exchangeLaunch
	used   atomic.Bool // the areas are there
	grid   uint32      // of every launch, where a test says so
}

type exchangeState uint8

const (
	exchangesUntried exchangeState = iota
	exchangesOn
	exchangesOff
)

// exchangeLaunch is a rank's launch, filled in anew by each exchange.
type exchangeLaunch struct {
	params kernel.Exchange
	buf    []byte
	launch api.Launch
	queue  api.Stream
	fns    map[module]api.Function
	fn     api.Function // of the run
}

// The deadlines of a kernel that waits for its peers. A display watchdog kills
// the whole context, so there the kernel gives up well before.
const (
	DefaultKernelDeadline = 10 * time.Second
	watchdogDeadline      = 500 * time.Millisecond
	handshakeDeadline     = 5 * time.Millisecond
)

// controlBytes is the rank's control page, before its area.
const controlBytes = arenaAlign

// maxEpoch is the last number that a flag holds.
const maxEpoch = math.MaxUint32

// control is the rank's control page.
func (r *Rank) control() unsafe.Pointer { return unsafe.Add(r.pinnedBase, r.pinned.size) }

func (r *Rank) status() *uint64 {
	return (*uint64)(unsafe.Add(r.control(), kernel.StatusWord))
}

// area is the bytes of a rank's area, without its control page; 0 where the
// budget of pinned memory has no room for one.
func (g *Group) area() uint64 {
	if all := g.stride - g.ranks[0].pinned.size; all > controlBytes {
		return (all - controlBytes) / 512 * 512
	}
	return 0
}

// hasAreas tells whether the areas hold any exchange at all.
func (g *Group) hasAreas() bool { return g.fits(kernel.OneShot, 1) }

// exchangePart is the bytes of each exchange by which an operation of so many is
// done: all of them if the areas hold that, or else, of a kind whose elements do
// not depend on each other, equal parts that they do hold. 0 if that is too many.
func (g *Group) exchangePart(k kernel.Kind, bytes uint64) uint64 {
	const align = 256
	parts := uint64(1)
	if k == kernel.TwoShot {
		parts = kernel.MaxParts
	}
	for n := uint64(1); n <= parts && bytes > 0; n++ {
		part := bytes
		if n > 1 {
			part = alignUp((bytes+n-1)/n, align)
		}
		if kernel.AreaNeed(k, part, len(g.ranks)) <= g.area() {
			return part
		}
	}
	return 0
}

// fits tells whether the areas hold an exchange, or its parts.
func (g *Group) fits(k kernel.Kind, bytes uint64) bool { return g.exchangePart(k, bytes) > 0 }

// abort ends the kernels that wait, within some 10 microseconds: what they wait
// for may never come.
func (g *Group) abort() {
	if !g.exchanges.used.Load() {
		return
	}
	for _, r := range g.ranks {
		atomic.StoreUint32((*uint32)(unsafe.Add(r.control(), kernel.AbortWord)), 1)
	}
}

// gaveUp is what a rank's kernel wrote when it gave up, or nil.
func (g *Group) gaveUp(op string) error {
	for _, r := range g.ranks {
		s := kernel.ParseStatus(atomic.LoadUint64(r.status()))
		switch s.Code {
		case kernel.StatusTimedOut:
			return &Error{op, r.index, fmt.Errorf("%w: its kernel waited %v for rank %d in vain", ErrTimeout, g.exchanges.deadline, s.Peer)}
		case kernel.StatusAborted:
			return &Error{op, r.index, fmt.Errorf("%w: its kernel was told to give up waiting for rank %d", ErrFailed, s.Peer)}
		}
	}
	return nil
}

// mayExchange tells whether the group can use kernels that wait for each other,
// and finds it out on the first call: that takes the streams to be idle, and
// unless patient says so, it does not wait for it. The group's lock is held, and
// no context of the run is bound.
func (g *Group) mayExchange(patient bool) (bool, error) {
	e := &g.exchanges
	if e.state != exchangesUntried {
		return e.state == exchangesOn, nil
	}
	off := func(why string) (bool, error) {
		e.state, e.why = exchangesOff, why
		g.log.Info("gp: kernels that wait for each other are not used in this group", "because", why)
		return false, nil
	}
	if g.opts.NoExchange {
		return off("the options say so")
	}
	if !g.hasAreas() {
		return off(fmt.Sprintf("areas of pinned memory have no room in a budget of %d bytes a rank", g.stride+2*bounceHalf))
	}
	if runtime.GOOS == "windows" && !g.host.Modelled() {
		return off("Windows may hold launches back")
	}
	if b, err := fs.ReadFile(g.host.FS(), "proc/version"); err == nil && strings.Contains(strings.ToLower(string(b)), "microsoft") {
		return off("WSL2 may hold launches back")
	}
	e.deadline = g.opts.KernelDeadline
	if e.deadline == 0 {
		e.deadline = DefaultKernelDeadline
	}
	for _, r := range g.ranks {
		if watched, err := r.device.Attribute(api.AttrKernelExecTimeout); err == nil && watched != 0 {
			e.deadline = min(e.deadline, watchdogDeadline)
		}
	}
	for _, r := range g.ranks {
		idle := false
		var err error
		g.relaxed(func() {
			if patient {
				idle, err = true, r.stream.Synchronize()
			} else {
				idle, err = r.stream.Query()
			}
		})
		if err != nil {
			return false, g.rankError("handshake", r, err)
		}
		if !idle {
			return false, nil // another time
		}
	}
	if e.launch == nil {
		e.launch = make([]exchangeLaunch, len(g.ranks))
		e.last = make([]*mark, len(g.ranks))
		for i := range e.launch {
			e.launch[i].buf, e.launch[i].fns = make([]byte, 0, kernel.ExchangeBytes), map[module]api.Function{}
		}
		for _, r := range g.ranks {
			clear(unsafe.Slice((*byte)(r.control()), g.stride-r.pinned.size))
		}
		e.used.Store(true)
	}
	return g.handshake(patient, off)
}

// notNow is mayExchange's answer where something failed that says nothing about the
// next time: an error for who asked for such kernels, and for others, while the
// group is well, that they are to take another algorithm. They try it some times
// and no more.
func (g *Group) notNow(patient bool, err error, off func(why string) (bool, error)) (bool, error) {
	switch e := &g.exchanges; {
	case patient, g.Err() != nil:
		return false, err
	case e.tries == maxTries:
		return off(err.Error())
	default:
		e.tries++
		return false, nil
	}
}

const maxTries = 8

// handshake launches a kernel on each rank that waits 5 ms for the others'.
func (g *Group) handshake(patient bool, off func(why string) (bool, error)) (bool, error) {
	const op = "handshake"
	e := &g.exchanges
	x := &g.run
	x.reset(op, nil, len(g.ranks))
	for i, r := range g.ranks {
		x.rank[i], x.stream[i] = r, r.queue()
	}
	x.kind, x.count = kernel.Handshake, 1
	switch err := g.loadExchange(x); {
	case errors.Is(err, ptx.ErrNoKernels):
		return off(err.Error())
	case err != nil:
		return g.notNow(patient, err, off)
	}
	was := e.deadline
	e.deadline = handshakeDeadline
	for i := range e.launch {
		e.launch[i].queue = x.stream[i]
	}
	g.pass(true)
	call, at, c := g.launchAll(x)
	g.passed(true)
	e.deadline = was
	if c != api.Success {
		g.abort()
	}
	var first error
	g.relaxed(func() {
		x.bind.restore()
		for _, r := range g.ranks {
			if err := r.stream.Synchronize(); err != nil && first == nil {
				first = g.rankError(op, r, err)
			}
		}
	})
	if c != api.Success {
		first = g.callError(op, x.at(at), call, c)
		g.fail(first)
	}
	if first != nil {
		return false, first
	}
	missed := -1
	for _, r := range g.ranks {
		if s := kernel.ParseStatus(atomic.LoadUint64(r.status())); s.Code != kernel.StatusDone {
			missed = r.index
		}
		atomic.StoreUint64(r.status(), 0)
	}
	if missed >= 0 {
		return off(fmt.Sprintf("the kernels of all ranks do not run at once: rank %d's did not see all others within %v", missed, handshakeDeadline))
	}
	e.state = exchangesOn
	return true, nil
}

// loadExchange loads the run's kernel on every rank: before the first launch,
// since loading may wait for all that a context does.
func (g *Group) loadExchange(x *run) (err error) {
	m := kernel.ExchangeModule(x.kind, x.typ)
	loaded := true
	for i := range g.ranks {
		l := &g.exchanges.launch[i]
		l.fn = l.fns[m]
		loaded = loaded && l.fn != 0
	}
	if loaded {
		return nil
	}
	entry := kernel.ExchangeEntry(x.kind, x.typ)
	g.relaxed(func() {
		for i, r := range g.ranks {
			l := &g.exchanges.launch[i]
			if l.fn, err = g.function(r, m, entry); err != nil {
				err = g.rankError(x.op, r, err)
				return
			}
			l.fns[m] = l.fn
		}
	})
	return err
}

// exchangeElements is the elements of each exchange by which a run is done, and the
// bytes of one.
func (g *Group) exchangeElements(x *run) (part, size uint64) {
	size = 1
	if x.kind.Reduces() {
		size = uint64(x.typ.Size())
	}
	return g.exchangePart(x.kind, x.count*size) / size, size
}

// launchAll launches each rank's kernels on its queue: part by part, so that no
// rank waits for another's later ones to be enqueued. No call that waits for a GPU
// gets between a part's launches. It tells at which rank it failed.
func (g *Group) launchAll(x *run) (call string, at int, c api.Code) {
	part, size := g.exchangeElements(x)
	for off := uint64(0); off < x.count && c == api.Success; off += part {
		gang.Launch(func() { call, at, c = g.launchPart(x, off*size, min(part, x.count-off), size) })
	}
	return call, at, c
}

// launchPart launches each rank's kernel for count elements of so many bytes,
// from a byte of the buffers on.
func (g *Group) launchPart(x *run, off, count, size uint64) (call string, at int, c api.Code) {
	e := &g.exchanges
	n := len(g.ranks)
	divisor := uint64(0)
	if x.kind.Reduces() && x.red == dtype.Avg {
		divisor = uint64(n)
	}
	if !x.dry {
		e.epoch++
	}
	grid, threads := kernel.ExchangeShape(x.kind, count*size, n, g.share)
	if e.grid > 0 && x.kind != kernel.Handshake {
		grid = e.grid
	}
	area := g.area()
	for i, r := range g.ranks {
		l := &e.launch[i]
		p := &l.params
		*p = kernel.Exchange{
			Kind: x.kind, Op: x.red, In: uint64(x.in[i]) + off, Out: uint64(x.out[i]) + off, Count: count, Divisor: divisor, Rank: uint64(i), N: uint64(n),
			Epoch: uint64(e.epoch), DeadlineNs: uint64(e.deadline), Control: uint64(r.mappedPinned(r, r.pinned.size)), AreaBytes: area,
		}
		for o, owner := range g.ranks {
			p.Area[o] = uint64(owner.mappedPinned(r, owner.pinned.size+controlBytes))
		}
		l.buf = p.Append(l.buf[:0], x.typ)
		l.launch = api.Launch{Grid: [3]uint32{grid, 1, 1}, Block: [3]uint32{threads, 1, 1}, Stream: l.queue, Params: l.buf}
		if call, c := x.bind.to(r.ctx); c != api.Success {
			return call, i, c
		}
		if c := x.api.LaunchKernel(l.fn, &l.launch); c != api.Success {
			return "cuLaunchKernel", i, c
		}
	}
	return "", 0, api.Success
}

// exchange enqueues a run whose ranks' kernels wait for each other. It has the
// contract of execute.
//
// A rank that has its GPU to itself runs on the caller's stream, for nothing can
// be in its way there. Ranks that share a GPU run on their own streams, which
// the handshake has tried.
func (g *Group) exchange(x *run, o *operation) (enqueued bool, err error) {
	e, d := &g.exchanges, x.api
	part, _ := g.exchangeElements(x)
	if parts := (x.count + part - 1) / part; uint64(e.epoch)+parts > maxEpoch && !x.dry {
		if err := g.restartEpochs(x); err != nil {
			return false, err
		}
	}
	fail := func(r int, call string, c api.Code) (bool, error) {
		if x.dry {
			return false, nil
		}
		g.abort()
		return true, g.callError(x.op, x.at(r), call, c)
	}
	for i, r := range x.rank {
		l := &e.launch[i]
		l.queue = x.stream[i]
		if r.shared {
			l.queue = r.queue()
		}
		if x.otherRank[i] != nil {
			if call, c := x.behind(r, l.queue, x.other[i]); c != api.Success {
				return fail(i, call, c)
			}
		}
		if l.queue != x.stream[i] {
			if call, c := x.behind(r, l.queue, x.stream[i]); c != api.Success {
				return fail(i, call, c)
			}
		}
		if m := e.last[i]; m != nil && !m.isDone() && !(m.queue == l.queue && r.owns(l.queue)) && !x.dry {
			if call, c := x.bind.to(r.ctx); c != api.Success {
				return fail(i, call, c)
			}
			if c := d.StreamWaitEvent(l.queue, m.ev); c != api.Success {
				return fail(i, "cuStreamWaitEvent", c)
			}
		}
	}
	if call, at, c := g.launchAll(x); c != api.Success {
		return fail(at, call, c)
	}
	o.exchange = true
	for i, r := range x.rank {
		if call, c := x.bind.to(r.ctx); c != api.Success {
			return fail(i, call, c)
		}
		m, c := x.newMark(r)
		if c != api.Success {
			return fail(i, "cuEventCreate", c)
		}
		m.on(e.launch[i].queue)
		o.marks = append(o.marks, m)
		if c := d.EventRecord(m.ev, m.queue); c != api.Success {
			return fail(i, "cuEventRecord", c)
		}
		if !x.dry {
			m.refs++
			if e.last[i] != nil {
				e.last[i].release()
			}
			e.last[i] = m
		}
		if call, c := x.release(i, m); c != api.Success {
			return fail(i, call, c)
		}
	}
	return true, nil
}

// behind puts a queue of a rank behind what another stream of the rank holds.
func (x *run) behind(r *Rank, q, s api.Stream) (string, api.Code) {
	if q == s {
		return "", api.Success
	}
	if call, c := x.bind.to(r.ctx); c != api.Success {
		return call, c
	}
	if c := x.api.EventRecord(r.fenceEvent, s); c != api.Success {
		return "cuEventRecord", c
	}
	return "cuStreamWaitEvent", x.api.StreamWaitEvent(q, r.fenceEvent)
}

// restartEpochs makes the areas zero, with no kernel at work on them: a flag
// that nobody has written since the number came round would be taken for a new
// one. That is once in four thousand million exchanges.
func (g *Group) restartEpochs(x *run) (err error) {
	g.relaxed(func() {
		for i, m := range g.exchanges.last {
			if m == nil {
				continue
			}
			r := x.rank[i]
			if call, c := x.bind.to(r.ctx); c != api.Success {
				err = g.callError(x.op, r, call, c)
				return
			}
			if c := g.api.EventSynchronize(m.ev); c != api.Success {
				err = g.callError(x.op, r, "cuEventSynchronize", c)
				return
			}
		}
	})
	if err != nil {
		return err
	}
	for _, r := range g.ranks {
		clear(unsafe.Slice((*byte)(unsafe.Add(r.control(), controlBytes)), g.area()))
	}
	g.exchanges.epoch = 0
	return nil
}
