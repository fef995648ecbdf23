// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// Watch makes the machine look for races: two accesses to the same bytes of
// device or pinned memory, one of them a write, that nothing orders. What
// orders is what the driver promises: a stream's own order, an event's record
// and the waits for it, the legacy default stream's rule, and a host that has
// seen the one done before it enqueued the other. That they happened one after
// the other is not order, so a race is found whatever the seed, when the second
// of the two is enqueued.
//
// A race ends the run as a lost context does, on all GPUs: the call that races
// and every later one answer ASSERT, with the race as the error's text, and
// Race and Close return the *RaceError.
//
// All threads of the host count as one: that a goroutine enqueues behind what
// another has waited for is seen as order, since how goroutines are ordered
// among themselves is Go's own race detector's to tell. See WatchThreads.
//
// What the host itself does to pinned memory is not seen, except by synchronous
// copies and where HostRead and HostWrite declare it. Nor is the access of a
// kernel that RegisterKernel made known without Touches, before it runs; it is
// taken for a write then.
//
// Of kernels that wait for each other, each writes its own area from when it has
// begun and reads the others' from when all have; what follows one is behind the
// begin of all. For this to be seen, all ranks' launches of one exchange must
// come before any launch of the next over the same areas.
func Watch() Option { return func(o *options) { o.watch = true } }

// WatchThreads is Watch with each OS thread as a host of its own: what one has
// waited for is not known to another. It suits tests whose goroutines are locked
// to threads and share no memory.
func WatchThreads() Option {
	return func(o *options) { o.watch, o.watchThreads = true, true }
}

// raceCode is what calls answer once a race has ended the run. Nothing else of
// a simulated machine answers it.
const raceCode = api.Assert

// A RaceError is two accesses to the same bytes that nothing orders.
type RaceError struct {
	Machine string
	Memory  string // what it is and where it was allocated
	Offset  uint64 // first byte that both touch
	Bytes   uint64 // that both touch, in a row
	First   Access // the one that was enqueued first
	Second  Access
}

// Error is several lines: the memory, both accesses, and where they are from.
func (e *RaceError) Error() string {
	return fmt.Sprintf("sim: %s: race for bytes %d to %d of %s\n\tbetween %v\n\tand %v",
		e.Machine, e.Offset, e.Offset+e.Bytes, strings.ReplaceAll(e.Memory, "\n", "\n\t"), e.First, e.Second)
}

// An Access is one side of a race.
type Access struct {
	Op     string // "copy of 4096 bytes", "kernel gp_copy"
	Write  bool
	Stream string // "stream 3 of GPU 0"
	Site   string // the frames of the call, each on a line; see site.String
}

func (a Access) String() string {
	verb := "read"
	if a.Write {
		verb = "write"
	}
	return fmt.Sprintf("the %s by a %s on %s%s", verb, a.Op, a.Stream, strings.ReplaceAll(a.Site, "\n", "\n\t"))
}

// A clock says of each actor how much of what it did has happened: actors are
// the streams and the host, or the host's threads.
type clock []uint32

// join takes in what another clock knows.
func (c *clock) join(o clock) {
	if len(*c) < len(o) {
		*c = append(*c, make(clock, len(o)-len(*c))...)
	}
	for i, v := range o {
		if v > (*c)[i] {
			(*c)[i] = v
		}
	}
}

// tick is an actor's next step.
func (c *clock) tick(actor int) {
	if len(*c) <= actor {
		*c = append(*c, make(clock, actor+1-len(*c))...)
	}
	(*c)[actor]++
}

func (c clock) at(actor int) uint32 {
	if actor < len(c) {
		return c[actor]
	}
	return 0
}

// watch is what a machine that looks for races knows.
type watch struct {
	threads bool
	actors  int
	hosts   map[uint64]*caller                  // by thread, or one
	orders  map[[kernel.MaxInputs]uint64]*order // of kernels that wait for each other, by their areas
}

// caller is a host thread, or all of them.
type caller struct {
	actor int
	clock clock
}

func newWatch(o options) *watch {
	if !o.watch {
		return nil
	}
	return &watch{threads: o.watchThreads, hosts: map[uint64]*caller{}, orders: map[[kernel.MaxInputs]uint64]*order{}}
}

// newActor numbers a stream or a caller.
func (w *watch) newActor() int {
	if w == nil {
		return 0
	}
	w.actors++
	return w.actors - 1
}

// host is the caller of the call in progress.
func (w *watch) host() *caller {
	var t uint64
	if w.threads {
		t = threadID()
	}
	c := w.hosts[t]
	if c == nil {
		c = &caller{actor: w.newActor()}
		c.clock.tick(c.actor)
		w.hosts[t] = c
	}
	return c
}

// enqueued orders a stream's next command: behind the stream's last, behind
// what the caller knows to have happened, and as the legacy default stream's
// rule says. What the caller does next is not before it.
func (w *watch) enqueued(s *stream) {
	if w == nil {
		return
	}
	h := w.host()
	s.clock.join(h.clock)
	h.clock.tick(h.actor)
	switch c := s.ctx; {
	case s == c.legacy:
		for _, o := range c.streams {
			if !o.nonBlocking {
				s.clock.join(o.clock)
			}
		}
		s.clock.join(c.goneBlocking)
	case !s.nonBlocking:
		s.clock.join(c.legacy.clock)
	}
	w.expand(&s.clock)
	s.clock.tick(s.actor)
}

// follows orders what the stream is given from now on behind a record.
func (w *watch) follows(s *stream, e *event) {
	if w != nil {
		s.clock.join(e.clock)
	}
}

// recorded keeps what an event that has just been recorded stands for.
func (w *watch) recorded(e *event, s *stream) {
	if w != nil {
		e.clock = slices.Clone(s.clock)
	}
}

// knows tells the caller of the call in progress that something has happened.
func (w *watch) knows(c clock) {
	if w != nil {
		w.host().clock.join(c)
	}
}

// knowsStream is knows for all that a stream holds. The legacy default stream's
// is also what the blocking streams hold.
func (w *watch) knowsStream(s *stream) {
	if w == nil {
		return
	}
	w.knows(s.clock)
	if s == s.ctx.legacy {
		for _, o := range s.ctx.streams {
			if !o.nonBlocking {
				w.knows(o.clock)
			}
		}
		w.knows(s.ctx.goneBlocking)
	}
}

// knowsContext is knows for all that a context holds.
func (w *watch) knowsContext(c *context) {
	if w == nil {
		return
	}
	w.knows(c.legacy.clock)
	for _, s := range c.streams {
		w.knows(s.clock)
	}
	w.knows(c.goneClock)
}

// gone keeps the clock of a stream that is being destroyed.
func (w *watch) gone(s *stream) {
	if w == nil {
		return
	}
	s.ctx.goneClock.join(s.clock)
	if !s.nonBlocking {
		s.ctx.goneBlocking.join(s.clock)
	}
}

// A toucher is one command, or the host's code, as the memory that it touches
// remembers it.
type toucher struct {
	actor int
	clock clock // the actor's own step included
	op    func() string
	on    *stream // nil for the host
	site  site
}

// before tells whether t has happened when u begins.
func (t *toucher) before(u *toucher) bool { return u.clock.at(t.actor) >= t.clock[t.actor] }

// toucher describes the command that has just been enqueued on a stream.
func (w *watch) toucher(s *stream, op func() string) *toucher {
	if w == nil {
		return nil
	}
	return &toucher{actor: s.actor, clock: slices.Clone(s.clock), op: op, on: s, site: callers()}
}

// touched notes that t reads or writes n bytes at a span, and ends the run if
// another that did so is not ordered with it. Pageable memory is not watched.
func (m *Machine) touched(t *toucher, at span, n uint64, write bool) {
	if m.watch == nil || t == nil || at.a == nil || n == 0 || m.race != nil {
		return
	}
	if f := at.a.shadow.touch(t, at.off, at.off+n, write); f != nil {
		first, second := f.other, access{t, write}
		if first.t == second.t {
			return
		}
		m.race = &RaceError{
			Machine: m.spec.Name, Memory: at.a.String(), Offset: f.lo, Bytes: f.hi - f.lo, First: first.public(), Second: second.public(),
		}
		for _, c := range m.contexts {
			c.fault = raceCode
		}
	}
}

// touchedRows is touched for the rows of a copy.
func (m *Machine) touchedRows(t *toucher, at span, width, height, pitch uint64, write bool) {
	if pitch == width || height == 1 {
		m.touched(t, at, width*height, write)
		return
	}
	for i := range height {
		row := at
		row.off += i * pitch
		m.touched(t, row, width, write)
	}
}

// access is one touch of one toucher.
type access struct {
	t     *toucher
	write bool
}

func (a access) public() Access {
	p := Access{Op: a.t.op(), Write: a.write, Site: a.t.site.String(), Stream: "the host"}
	if a.t.on != nil {
		p.Stream = a.t.on.String()
	}
	return p
}

// Race is the race that has ended the run, a *RaceError, or nil.
func (m *Machine) Race() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.race == nil {
		return nil
	}
	return m.race
}

// HostRead declares that the calling code reads n bytes of pinned memory now,
// for a machine that watches. It answers as Race does.
func (m *Machine) HostRead(p unsafe.Pointer, n int) error { return m.hostTouch(p, n, false) }

// HostWrite is HostRead for code that writes.
func (m *Machine) HostWrite(p unsafe.Pointer, n int) error { return m.hostTouch(p, n, true) }

func (m *Machine) hostTouch(p unsafe.Pointer, n int, write bool) error {
	m.mu.Lock()
	if s, c := m.hostSpan(p, uint64(max(n, 0))); c == api.Success && m.watch != nil {
		h := m.watch.host()
		m.watch.expand(&h.clock)
		h.clock.tick(h.actor)
		m.touched(&toucher{actor: h.actor, clock: slices.Clone(h.clock), op: func() string { return "declared access" }, site: callers()}, s, uint64(max(n, 0)), write)
	}
	m.mu.Unlock()
	return m.Race()
}
