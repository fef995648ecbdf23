// SPDX-License-Identifier: Apache-2.0

// Package sim is the CUDA driver over simulated GPUs, for machines that have
// none and for tests:
//
//	m, err := sim.Open("2x4090")
//	...
//	defer m.Close()
//	g, err := gp.Open(gp.Options{Driver: m.Driver()})
//
// Everything above the driver runs unchanged on it, on real bytes and with the
// driver's rules.
//
// # Order
//
// A driver call only enqueues. What it enqueued runs later: when the host asks
// for something, or when a stream is full; in an order that is drawn from the
// machine's seed among all those that streams and events allow. A wait that is
// missing therefore shows as wrong bytes with some seed, sooner or later. With
// one thread of calls, one seed gives one run.
//
// # Races and faults
//
// With Watch a missing wait is an error, whatever the seed, at the call that it
// should have been in front of: see RaceError. PeerZeros, PeerMirror, PinnedLimit,
// Fault, Lose and Stall make a machine that is broken in ways that real ones are.
//
// The error of a kernel is sticky on every GPU of the process, and for good: no
// new context gets out of it. So it is on two H200, peers or not.
//
// # Time
//
// Time is virtual: calls cost what the machine's description says, copies and
// kernels take what their links give, sleeping costs nothing. There is one clock
// for all threads: what one waits for, the others find done. No figure that is
// taken by this clock is a measurement.
//
// # Not here
//
// The per-thread default stream, arrays, managed memory, several processes, and
// CUBIN: a kernel is known by the entry points of its PTX, and runs as a Go
// function, or with Interpret as what its PTX says.
package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
)

// A Machine is a host with simulated GPUs. It is safe for concurrent use, and
// any number of machines can live in one process.
type Machine struct {
	spec    Spec
	options options
	host    *host
	driver  *cuda.Driver

	mu       sync.Mutex
	rng      *rand.Rand
	clock    time.Duration // the host's, at which calls are made
	called   time.Duration // when the latest call began
	line     timeline
	inited   bool
	closed   bool
	gpus     []*gpu
	fault    api.Code // of a kernel, with which the process is over
	contexts map[api.Context]*context
	streams  map[api.Stream]*stream
	events   map[api.Event]*event
	modules  map[api.Module]*module
	funcs    map[api.Function]*function
	graphs   map[api.Graph]bool
	current  map[uint64][]*context // by thread, the top last
	memory   []*alloc              // by device address
	pinned   []*alloc              // by host address
	locked   uint64                // bytes pinned
	nodes    []*numa
	sockets  map[[2]int]*link // by from and to
	prefer   map[uint64]*numa // by thread
	staging  engine           // the driver's own, for copies between GPUs without peer access
	stageway link
	stagers  map[[2]int]*stager // by from and to, where directions are independent
	active   []*stream          // those with commands whose bytes have not run
	captures []*capture
	modes    map[uint64]api.CaptureMode // by thread, where not global
	leaks    []string                   // what died with its context
	watch    *watch                     // nil if it does not look for races
	race     *RaceError
	broke    error      // of the first interpreted kernel that failed
	gates    int        // GPUs that stall
	opened   *sync.Cond // one of them goes on
	faulting api.Code   // see Fault
}

type options struct {
	seed         uint64
	sites        bool
	pinnedLimit  uint64
	equalHost    bool
	watch        bool
	watchThreads bool
	interpret    bool
	reuse        bool
	peer         peerFault
}

// An Option sets something about a Machine that is not a property of the hardware.
type Option func(*options)

// Seed chooses the order in which independent work runs. It is 1 if not set.
func Seed(seed uint64) Option { return func(o *options) { o.seed = seed } }

// KeepSites makes Close name the places in the code where leaked resources
// were made.
func KeepSites() Option { return func(o *options) { o.sites = true } }

// PinnedLimit bounds the bytes of host memory that can be pinned at a time;
// beyond it cuMemHostAlloc and cuMemHostRegister answer OUT_OF_MEMORY.
func PinnedLimit(bytes uint64) Option { return func(o *options) { o.pinnedLimit = bytes } }

// Reuse gives pinned memory, and the contents of device memory, out again as they
// were given back, by this machine or another one with the option. Fresh memory
// is zero otherwise, but for what the machine poisons. It is for programs that
// open machines by the thousand: clearing takes most of the time then.
func Reuse() Option { return func(o *options) { o.reuse = true } }

// EqualHostPointers makes the device pointer of pinned host memory equal to its
// host address, as it is on most real machines. Without it they differ, so that
// code which takes one for the other fails.
func EqualHostPointers() Option { return func(o *options) { o.equalHost = true } }

// Open makes a machine that the package knows: see Names. An unknown name's
// error lists them.
func Open(name string, opts ...Option) (*Machine, error) {
	s, err := Builtin(name)
	if err != nil {
		return nil, err
	}
	return New(s, opts...)
}

// New makes a machine of a description. An error names the field that is wrong.
func New(spec Spec, opts ...Option) (*Machine, error) {
	if err := spec.check(); err != nil {
		return nil, fmt.Errorf("sim: machine %q: %w", spec.Name, err)
	}
	m := &Machine{
		spec:     spec,
		options:  options{seed: 1},
		contexts: map[api.Context]*context{},
		streams:  map[api.Stream]*stream{},
		events:   map[api.Event]*event{},
		modules:  map[api.Module]*module{},
		funcs:    map[api.Function]*function{},
		graphs:   map[api.Graph]bool{},
		current:  map[uint64][]*context{},
		modes:    map[uint64]api.CaptureMode{},
		stageway: link{rate: spec.Staging.Rate.perSecond()},
		stagers:  map[[2]int]*stager{},
	}
	if d := spec.Staging.Duplex.Value; d != 0 {
		m.stageway.rate *= 2 * d
	}
	for _, o := range opts {
		o(&m.options)
	}
	m.watch = newWatch(m.options)
	m.opened = sync.NewCond(&m.mu)
	m.rng = rand.New(rand.NewPCG(m.options.seed, 0x67656666))
	for i, g := range spec.GPUs {
		m.gpus = append(m.gpus, newGPU(i, g))
	}
	m.layout()
	m.host = newHost(m)
	d, err := hook.NewDriver(seam{m})
	if err != nil {
		return nil, fmt.Errorf("sim: machine %q: %w", spec.Name, err)
	}
	m.driver = d.(*cuda.Driver)
	return m, nil
}

// Driver is the machine's driver.
func (m *Machine) Driver() *cuda.Driver { return m.driver }

// Spec is the machine's description.
func (m *Machine) Spec() Spec { return m.spec }

// Close ends the machine and reports what was never given back: device and
// pinned memory, streams, events, modules, references to contexts, whether they
// are still there or went with their context; or the race that ended the run,
// whose leftovers do not count. Every later call on the driver answers
// DEINITIALIZED. Closing again does nothing.
func (m *Machine) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	for _, g := range m.gpus {
		m.resume(g)
	}
	for _, g := range m.gpus {
		if c := g.primary; c != nil {
			m.drain(c)
			m.leaks = append(m.leaks, fmt.Sprintf("context of GPU %d, retained %d times%s", g.ordinal, g.retained, c.site))
			m.destroy(c)
		}
	}
	m.closed = true
	m.memory, m.pinned, m.active = nil, nil, nil
	if m.race != nil {
		return m.race
	}
	if len(m.leaks) == 0 {
		return nil
	}
	return errors.New(fmt.Sprintf("sim: %s: %d leaked:\n\t", m.spec.Name, len(m.leaks)) + strings.Join(m.leaks, "\n\t"))
}

// charge adds what a call costs to the host's clock.
func (m *Machine) charge(f Figure) {
	m.clock += f.us()
	m.line.gangs.calls++
}
