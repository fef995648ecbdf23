// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/gp/lowlevel"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/api/tap"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
)

// A fault is a way in which a driver call fails.
type fault struct {
	name string
	code api.Code
	kind faultKind
}

type faultKind uint8

const (
	refusal faultKind = iota // the call does nothing and answers the code
	poison                   // a kernel has faulted: the contexts of the process are lost
	loss                     // a GPU falls off the bus: what is behind its context is gone for good
)

var faults = [...]fault{
	{"out of memory", api.OutOfMemory, refusal},
	{"invalid value", api.InvalidValue, refusal},
	{"launch failure", api.LaunchFailed, poison},
	{"illegal address", api.IllegalAddress, poison},
	{"device lost", api.Unknown, loss},
}

// An outcome is what a fault came to.
type outcome uint8

const (
	unharmed outcome = iota // the operation was right all the same
	usable                  // an error, and the group as good as before
	failed                  // an error, which later calls answer with
	outcomes
)

// A scene is an operation that is swept: each of its driver calls fails in turn.
type scene struct {
	name  string
	peers bool // on a machine with P2P
	// ownStreams says that destinations are on their ranks' own streams too.
	ownStreams bool
	edit       func(*gp.Options)
	// even tells whether it is there for groups of so many ranks.
	even func(n int) bool
	// set makes its buffers, fill what they hold, call does the operation to its
	// end, and holds looks at every byte.
	set   func(s *trial)
	fill  func(s *trial)
	call  func(s *trial) error
	holds func(s *trial)
}

// A trial is a group on a machine of its own, on which a scene is run.
type trial struct {
	t        testing.TB
	c        *scene
	n        int
	m        *sim.Machine
	below    api.Driver // the machine's
	d        *cuda.Driver
	tap      *tap.Tap
	contexts []api.Context // by GPU
	g        *gp.Group
	before   sim.Held

	dst, src, beside []gp.Buffer
	whole            [2][]gp.Buffer // dst and src with what surrounds them
	host             *cuda.HostMem
	streams          []*cuda.Stream
	plot             *plot
	chunk            int
	poisoned         bool
	cause            error
	released         bool
	kept             string // the call that was to free something and was refused
}

// frees are the calls that give something back.
var frees = map[string]bool{
	"MemFree": true, "MemFreeHost": true, "StreamDestroy": true, "EventDestroy": true, "ModuleUnload": true, "DevicePrimaryCtxRelease": true,
}

var specs struct {
	sync.Mutex
	of map[string]sim.Spec
}

// trialSpec is a machine of n GPUs.
func trialSpec(t testing.TB, n int, peers bool) sim.Spec {
	specs.Lock()
	defer specs.Unlock()
	key := fmt.Sprint(n, peers)
	if s, ok := specs.of[key]; ok {
		return s
	}
	name := "8x4090"
	switch {
	case peers:
		name = "8x4090-p2p"
	case n <= 2:
		name = "2x4090"
	case n <= 4:
		name = "4x4090"
	}
	s, err := sim.Builtin(name)
	require.NoError(t, err)
	if specs.of == nil {
		specs.of = map[string]sim.Spec{}
	}
	specs.of[key] = s
	return s
}

func newTrial(t testing.TB, c *scene, n int) *trial {
	m, err := sim.New(trialSpec(t, n, c.peers), sim.Reuse())
	require.NoError(t, err)
	s := &trial{t: t, c: c, n: n, m: m, below: seam(m.Driver())}
	// Somebody else who uses the GPUs keeps the contexts.
	for i := range n {
		h, code := s.below.DevicePrimaryCtxRetain(api.Device(i))
		require.Zero(t, code)
		s.contexts = append(s.contexts, h)
	}
	s.d, s.tap = gputest.Tapped(t, m.Driver())
	s.before = m.Held()
	return s
}

func (s *trial) options() gp.Options {
	o := gp.Options{Driver: s.d, PinnedBytes: small, P2P: gp.P2POff, Logger: discard}
	for i := range s.n {
		o.Devices = append(o.Devices, i)
	}
	if s.c.peers {
		o.P2P = gp.P2PTrust
	}
	if s.c.edit != nil {
		s.c.edit(&o)
	}
	return o
}

// open opens the group and makes what the scene needs.
func (s *trial) open() {
	g, err := gp.Open(s.options())
	require.NoError(s.t, err)
	s.g = g
	s.t.Cleanup(func() {
		if s.t.Failed() { // or its leaks would be reported too
			_ = g.Close()
		}
	})
	for _, r := range g.Ranks() {
		b := alloc(s.t, r, gp.TypeUint8, besideBytes)
		require.NoError(s.t, b.Write(background, pattern(besideBytes, r.Index())))
		s.beside = append(s.beside, b)
	}
	if s.c.set != nil {
		s.c.set(s)
	}
	if s.c.fill != nil {
		s.c.fill(s)
	}
}

const besideBytes = 64

// settle lets the machine do all that it has to, so that who asks finds it done.
func (s *trial) settle() { s.below.Host().Sleep(time.Second) }

// sick are the GPUs whose context is lost.
func (s *trial) sick() (list []int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i, h := range s.contexts {
		require.Zero(s.t, s.below.CtxPushCurrent(h))
		if _, _, c := s.below.MemGetInfo(); c != api.Success {
			list = append(list, i)
		}
		_, c := s.below.CtxPopCurrent()
		require.Zero(s.t, c)
	}
	return list
}

// arm makes the k-th call from now fail. at becomes the rank whose context was
// current then, or -1.
func (s *trial) arm(k int, f fault, at *int) *tap.Rule {
	s.tap.Reset()
	s.tap.Log()
	*at = -1
	s.tap.At("", k, func() {
		if h, c := s.below.CtxGetCurrent(); c == api.Success && h != 0 {
			*at = slices.Index(s.contexts, h)
		}
	})
	switch f.kind {
	case poison:
		return s.tap.At("", k, func() { s.m.Fault(cuda.Code(f.code)) })
	case loss:
		return s.tap.At("", k, func() { s.m.Lose(k%s.n, cuda.Code(f.code)) })
	}
	return s.tap.Fail("", k, f.code)
}

// binds are calls about another context than the thread's.
var binds = regexp.MustCompile(`^(Ctx(Get|Set|Push)Current|Event(Query|Destroy)|Stream(Destroy|Query)|Thread|DevicePrimary|Device|Module|Func|DriverGetVersion|PointerGetAttribute)`)

var namesCall = regexp.MustCompile(`\bcu[A-Z][A-Za-z0-9]+`)

// visit lets the k-th driver call of the scene fail and looks at what is left.
func (c *scene) visit(t testing.TB, n, k int, f fault) (got outcome) {
	s := newTrial(t, c, n)
	s.open()
	goroutines := runtime.NumGoroutine()
	var at int
	rule := s.arm(k, f, &at)
	var err error
	within(t, "the call", func() { err = keeps(s.below, 0, func() error { return c.call(s) }) })
	calls := s.tap.Calls()
	s.m.Fault(0)
	s.tap.Reset()
	require.Equal(t, 1, rule.Hits(), "there is no such call")
	call := calls[k-1]
	sick := s.sick()
	s.poisoned, s.cause = f.kind == poison && len(sick) > 0, cuda.Code(f.code)
	s.settle()
	switch {
	case err == nil && len(sick) == 0:
		require.NoError(t, s.g.Err())
		c.holds(s)
	case err == nil:
		// Nobody asked after the GPU any more. The next call does.
		if err = c.call(s); err == nil && f.kind != loss {
			t.Errorf("nobody notices that GPU %v has lost its context", sick)
		}
	case f.kind == refusal:
		got = usable
		require.ErrorIs(t, err, cuda.Code(f.code))
		require.Contains(t, err.Error(), "cu"+call, "the error names the call")
	}
	var e *gp.Error
	if err != nil {
		got = usable
		if s.g.Err() != nil {
			got = failed
		}
		require.ErrorAs(t, err, &e)
		require.Regexp(t, namesCall, err.Error(), "the error names a call")
		require.ErrorIs(t, err, cuda.Code(f.code))
		switch {
		case len(sick) > 0:
			require.Contains(t, sick, e.Rank, "the error names the rank: %v", err)
			require.Equal(t, failed, got, "the context is lost: %v", err)
		case at >= 0 && !binds.MatchString(call):
			require.Equal(t, at, e.Rank, "the error names the rank: %v", err)
		}
		require.GreaterOrEqual(t, e.Rank, 0, "the error names a rank: %v", err)
	}
	if got == failed {
		first := s.g.Err()
		require.ErrorIs(t, first, cuda.Code(f.code))
		s.tap.Reset()
		again := c.call(s)
		require.ErrorIs(t, again, gp.ErrFailed)
		require.ErrorContains(t, again, first.Error(), "later calls answer with the first failure")
		require.Zero(t, enqueuing(s.tap))
	} else if len(sick) == 0 {
		if c.fill != nil {
			c.fill(s)
		}
		require.NoError(t, c.call(s), "%s answered %s, the group did not fail, and then", call, f.name)
		c.holds(s)
	}
	s.bystanders(sick)
	if f.kind == refusal && err != nil && frees[call] {
		s.kept = call // by the driver, which has refused to take it back
	}
	s.close(sick)
	wind := time.Now()
	for runtime.NumGoroutine() > goroutines {
		if time.Since(wind) > 5*time.Second {
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
			t.Fatalf("%d goroutines, and %d before", runtime.NumGoroutine(), goroutines)
		}
		time.Sleep(100 * time.Microsecond)
	}
	return got
}

// bystanders are the buffers that had no part in it.
func (s *trial) bystanders(sick []int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	got := make([]byte, besideBytes)
	for i, b := range s.beside {
		if slices.Contains(sick, i) {
			continue
		}
		require.Zero(s.t, s.below.CtxPushCurrent(s.contexts[i]))
		require.Zero(s.t, s.below.MemcpyDtoH(pointerTo(got), api.Ptr(b.Ptr()), besideBytes))
		_, c := s.below.CtxPopCurrent()
		require.Zero(s.t, c)
		requireBytes(s.t, pattern(besideBytes, i), got, "a buffer of rank %d that had no part in it", i)
	}
}

// close closes the group and holds it to having given everything back: of a lost
// context all but what goes with it. Then a new group is opened on the other GPUs.
func (s *trial) close(sick []int) {
	t := s.t
	for _, x := range s.streams {
		_ = x.Close()
	}
	if s.host != nil {
		_ = s.host.Close()
	}
	unnoticed := len(sick) > 0 && s.g.Err() == nil
	within(t, "Close", func() {
		err := keeps(s.below, 0, s.g.Close)
		if !unnoticed || err == nil {
			require.NoError(t, err)
			return
		}
		var e *gp.Error // it is the first to find out
		require.ErrorAs(t, err, &e)
		require.Contains(t, sick, e.Rank, "%v", err)
	})
	require.NoError(t, s.g.Close())
	s.returned(sick)
	s.anew(sick)
	s.end()
}

// returned holds the machine to having got everything back.
func (s *trial) returned(sick []int) {
	held := s.m.Held()
	if len(sick) < s.n && s.kept != "MemFreeHost" { // any context that is well can give it back
		require.Equal(s.t, s.before.Pinned, held.Pinned, "pinned memory")
	}
	require.Equal(s.t, s.before.Contexts, held.Contexts)
	switch s.kept {
	case "MemFree":
		require.Greater(s.t, held.Device, s.before.Device)
		held.Device = s.before.Device
	case "MemFreeHost":
		require.Greater(s.t, held.Pinned, s.before.Pinned)
		held.Pinned = s.before.Pinned
	case "StreamDestroy":
		held.Streams--
	case "EventDestroy":
		held.Events--
	case "ModuleUnload":
		held.Modules--
	}
	if len(sick) == 0 {
		require.Equal(s.t, s.before, held)
	}
	require.Equal(s.t, s.before.Streams, held.Streams, "streams")
	require.Equal(s.t, s.before.Events, held.Events, "events")
}

// anew opens a group on the GPUs that are well, with the driver that has seen the
// others fail, and moves something.
func (s *trial) anew(sick []int) {
	t := s.t
	if s.poisoned { // the process is over for CUDA, and Open says so
		s.release()
		_, err := gp.Open(gp.Options{Driver: s.d, Devices: []int{0}, PinnedBytes: small, Logger: discard})
		require.ErrorIs(t, err, s.cause)
		return
	}
	o := gp.Options{Driver: s.d, PinnedBytes: small, P2P: gp.P2POff, Logger: discard, AllowSameGPU: true}
	for i := range len(s.m.Spec().GPUs) {
		if !slices.Contains(sick, i) && len(o.Devices) < 2 {
			o.Devices = append(o.Devices, i)
		}
	}
	if len(o.Devices) == 0 {
		return
	}
	if len(o.Devices) == 1 {
		o.Devices = append(o.Devices, o.Devices[0])
	}
	g, err := gp.Open(o)
	require.NoError(t, err, "a new group")
	a, b := alloc(t, g.Ranks()[0], gp.TypeUint8, 100), alloc(t, g.Ranks()[1], gp.TypeUint8, 100)
	require.NoError(t, a.Write(background, pattern(100, 3)))
	w, err := g.Copy(b, a)
	wait(t, w, err)
	got := make([]byte, 100)
	require.NoError(t, b.Read(background, got))
	require.Equal(t, pattern(100, 3), got)
	require.NoError(t, g.Close())
}

// release gives the contexts back.
func (s *trial) release() {
	if s.released {
		return
	}
	s.released = true
	for i := range s.n {
		require.Zero(s.t, s.below.DevicePrimaryCtxRelease(api.Device(i)))
	}
}

// end gives the contexts back and ends the machine.
func (s *trial) end() {
	s.release()
	if s.kept == "DevicePrimaryCtxRelease" {
		kept := 0
		for i := range s.n {
			if s.below.DevicePrimaryCtxRelease(api.Device(i)) == api.Success {
				kept++
			}
		}
		require.Equal(s.t, 1, kept)
	}
	require.Equal(s.t, sim.Held{}, s.m.Held(), "when nobody has the contexts any more")
	if err := s.m.Close(); s.kept == "" {
		require.NoError(s.t, err)
	}
}

func pointerTo(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// A plot is what the buffers of a scene hold before and after.
type plot struct {
	typ       gp.Type
	ins, outs [][]byte // by rank; nil where it has none
	inPlace   bool
}

// margin is the elements around a buffer that are nobody's.
const margin = 16

// place makes the plot's buffers: sources on the ranks' own streams,
// destinations on their legacy ones.
func (s *trial) place() {
	for side, data := range [2][][]byte{s.plot.outs, s.plot.ins} {
		for i, b := range data {
			var whole, part gp.Buffer
			switch {
			case b == nil:
			case side == 1 && s.plot.inPlace:
				whole, part = s.whole[0][i], s.dst[i]
			default:
				r := s.g.Ranks()[i]
				n := len(b) / s.plot.typ.Size()
				whole = alloc(s.t, r, s.plot.typ, n+2*margin)
				if side == 0 && !s.plot.inPlace && !s.c.ownStreams {
					whole = whole.On(r.Context().LegacyStream())
				}
				part = whole.Sub(margin, margin+n)
			}
			s.whole[side] = append(s.whole[side], whole)
			if side == 0 {
				s.dst = append(s.dst, part)
			} else {
				s.src = append(s.src, part)
			}
		}
	}
}

// framed is data with its margins.
func (s *trial) framed(data []byte, side, rank int) []byte {
	room := margin * s.plot.typ.Size()
	b := pattern(len(data)+2*room, 10*side+rank)
	copy(b[room:], data)
	return b
}

// refill writes what the buffers hold before: destinations hold something else
// than they are to.
func (s *trial) refill() {
	for side := range 2 {
		for i, b := range s.whole[side] {
			if b.Rank() == nil || side == 1 && s.plot.inPlace {
				continue
			}
			data := make([]byte, b.Bytes()-2*margin*s.plot.typ.Size())
			for j := range data {
				data[j] = 0xee
			}
			if side == 1 || s.plot.inPlace {
				data = s.plot.ins[i]
			}
			require.NoError(s.t, b.Write(background, s.framed(data, side, i)))
		}
	}
}

// played holds every byte of the buffers to the plot.
func (s *trial) played() {
	s.t.Helper()
	for side, want := range [2][][]byte{s.plot.outs, s.plot.ins} {
		for i, b := range s.whole[side] {
			if b.Rank() == nil || side == 1 && s.plot.inPlace {
				continue
			}
			got := make([]byte, b.Bytes())
			require.NoError(s.t, b.Read(background, got))
			requireBytes(s.t, s.framed(want[i], side, i), got, "rank %d, %s", i, [2]string{"destination", "source"}[side])
		}
	}
}

// plots are made once.
var plots sync.Map

// plotted is a scene of buffers with contents.
func plotted(name string, write func(t testing.TB, n int) *plot, call func(s *trial) (gp.Work, error)) *scene {
	return &scene{
		name: name,
		set: func(s *trial) {
			key := fmt.Sprint(name, s.n)
			sc, ok := plots.Load(key)
			if !ok {
				sc, _ = plots.LoadOrStore(key, write(s.t, s.n))
			}
			s.plot = sc.(*plot)
			s.place()
		},
		fill:  (*trial).refill,
		holds: (*trial).played,
		call: func(s *trial) error {
			w, err := call(s)
			if err != nil {
				return err
			}
			s.settle()
			return w.Wait(background)
		},
	}
}

// copies is a plot of one copy, from the first rank to the last.
func copies(bytes int) func(t testing.TB, n int) *plot {
	return func(_ testing.TB, n int) *plot {
		sc := &plot{typ: gp.TypeUint8, ins: make([][]byte, n), outs: make([][]byte, n)}
		data := pattern(bytes, 7)
		sc.ins[0], sc.outs[n-1] = data, data
		return sc
	}
}

const bit = 256 // bytes of a chunk

func several(n int) bool { return n > 1 }

func onOne(n int) bool { return n == 1 }

// collectiveScene is a collective by an algorithm, of three segments where it
// has any.
func collectiveScene(op string, alg gp.Algorithm, inPlace bool) *scene {
	name := op + ", " + string(alg)
	if inPlace {
		name += ", in place"
	}
	kernels := alg == gp.AlgorithmOneShot || alg == gp.AlgorithmTwoShot
	write := func(t testing.TB, n int) *plot {
		o := operation{op: op, alg: alg, typ: gp.TypeInt32, red: gp.Sum, n: 168, inPlace: inPlace}
		if op == "all_reduce" || op == "broadcast" || op == "reduce" {
			o.n *= n
		}
		o.root = n - 1
		_, parts := o.parts(n)
		r := generator(name, n)
		sc := &plot{typ: o.typ, inPlace: inPlace}
		for range n {
			sc.ins = append(sc.ins, randomElements(r, o.typ, o.n*parts))
		}
		sc.outs = o.results(t, sc.ins)
		if op == "broadcast" {
			for i := range n {
				if i != o.root {
					sc.ins[i] = nil
				}
			}
		}
		return sc
	}
	c := plotted(name, write, func(s *trial) (gp.Work, error) {
		o := s.g.With(gp.CallOptions{Algorithm: alg, Chunk: s.chunk})
		return s.collective(op, o)
	})
	c.peers = alg == gp.AlgorithmPeer
	if kernels || c.peers {
		c.even = several
	}
	if kernels {
		c.edit = func(o *gp.Options) { o.PinnedBytes = roomy }
	}
	place := c.set
	c.set = func(s *trial) {
		place(s)
		if kernels || c.peers || s.n == 1 {
			s.chunk = bit
			return
		}
		// The chunk that makes three segments depends on how they are shared out.
		for _, chunk := range []int{bit, bit * s.n} {
			var e gp.Explanation
			_, err := s.collective(op, s.g.With(gp.CallOptions{Algorithm: alg, Chunk: chunk, Explain: &e}))
			require.NoError(s.t, err)
			if s.chunk = chunk; e.Slots == 3 {
				return
			}
		}
		s.t.Fatalf("no chunk makes three segments of %s", name)
	}
	return c
}

func (s *trial) collective(op string, o gp.Ops) (gp.Work, error) {
	root := s.n - 1
	switch op {
	case "all_reduce":
		return o.AllReduceTo(s.dst, s.src, gp.Sum)
	case "all_gather":
		return o.AllGather(s.dst, s.src)
	case "reduce_scatter":
		return o.ReduceScatter(s.dst, s.src, gp.Sum)
	case "broadcast":
		return o.Broadcast(s.dst, s.src[root])
	case "reduce":
		return o.Reduce(s.dst[root], s.src, gp.Sum)
	case "all_to_all":
		return o.AllToAll(s.dst, s.src)
	}
	panic(op)
}

// lowlevelScene is a step of package lowlevel.
func lowlevelScene(name string, write func(t testing.TB, n int) *plot, call func(s *trial) (gp.Work, error)) *scene {
	c := plotted(name, write, call)
	place := c.set
	c.set = func(s *trial) {
		place(s)
		var err error
		s.host, err = s.g.Ranks()[0].Context().HostAlloc(4096, 0)
		require.NoError(s.t, err)
	}
	c.even = func(n int) bool { return n == 2 }
	return c
}

// one is a plot of a buffer on the first rank.
func one(bytes int, out func(in []byte) []byte) func(t testing.TB, n int) *plot {
	return func(_ testing.TB, n int) *plot {
		sc := &plot{typ: gp.TypeUint8, ins: make([][]byte, n), outs: make([][]byte, n), inPlace: true}
		sc.ins[0] = pattern(bytes, 7)
		sc.outs[0] = out(sc.ins[0])
		return sc
	}
}

func itself(in []byte) []byte { return in }

// scenes are all operations that are swept.
func scenes() (all []*scene) {
	add := func(c *scene, edit ...func(c *scene)) {
		for _, e := range edit {
			e(c)
		}
		all = append(all, c)
	}
	copyScene := func(name string, bytes int, edit ...func(c *scene)) {
		add(plotted(name, copies(bytes), func(s *trial) (gp.Work, error) {
			return s.g.With(gp.CallOptions{Chunk: bit}).Copy(s.dst[s.n-1], s.src[0])
		}), edit...)
	}
	direct := func(c *scene) { c.peers, c.even = true, several }
	copyScene("copy, staged, one chunk", bit-6, func(c *scene) { c.even = several })
	copyScene("copy, staged, three chunks", 3*bit-6, func(c *scene) { c.even = several })
	copyScene("copy, direct", 3*bit-6, direct)
	copyScene("copy, within a rank", 3*bit-6, func(c *scene) { c.even = onOne })
	copyScene("copy, empty", 0, func(c *scene) { c.even = several })
	for _, k := range []struct {
		op   string
		algs []gp.Algorithm
	}{
		{"all_reduce", []gp.Algorithm{gp.AlgorithmRing, gp.AlgorithmRingZeroCopy, gp.AlgorithmDirect, gp.AlgorithmTwoShot, gp.AlgorithmOneShot, gp.AlgorithmPeer}},
		{"all_gather", []gp.Algorithm{gp.AlgorithmRing, gp.AlgorithmDirect, gp.AlgorithmOneShot, gp.AlgorithmPeer}},
		{"reduce_scatter", []gp.Algorithm{gp.AlgorithmRing, gp.AlgorithmDirect, gp.AlgorithmPeer}},
		{"broadcast", []gp.Algorithm{gp.AlgorithmDirect, gp.AlgorithmPeer}},
		{"reduce", []gp.Algorithm{gp.AlgorithmDirect, gp.AlgorithmPeer}},
		{"all_to_all", []gp.Algorithm{gp.AlgorithmDirect, gp.AlgorithmPeer}},
	} {
		for _, alg := range k.algs {
			add(collectiveScene(k.op, alg, false))
		}
	}
	add(collectiveScene("all_reduce", gp.AlgorithmRing, true))
	add(plotted("all_reduce, a goroutine a rank", totals, func(s *trial) (gp.Work, error) {
		works, errs := make([]gp.Work, s.n), make([]error, s.n)
		var all sync.WaitGroup
		for i, r := range s.g.Ranks()[1:] {
			all.Go(func() {
				works[i+1], errs[i+1] = r.With(gp.CallOptions{Algorithm: gp.AlgorithmDirect}).AllReduceTo(background, s.dst[i+1], s.src[i+1], gp.Sum)
			})
		}
		// The last to come makes the calls: this one, which the fault waits for.
		for s.n > 1 && s.g.Joining() < s.n-1 && s.g.Err() == nil {
			runtime.Gosched()
		}
		works[0], errs[0] = s.g.Ranks()[0].With(gp.CallOptions{Algorithm: gp.AlgorithmDirect}).AllReduceTo(background, s.dst[0], s.src[0], gp.Sum)
		all.Wait()
		for _, err := range errs {
			require.Equal(s.t, errs[0] == nil, err == nil, "%v and %v", errs[0], err)
		}
		return works[0], errs[0]
	}), func(c *scene) { c.even = several })
	add(plotted("send_recv", around, func(s *trial) (gp.Work, error) {
		var ts []gp.Transfer
		for i, b := range s.src {
			ts = append(ts, gp.Transfer{Dst: s.dst[(i+1)%s.n], Src: b})
		}
		return s.g.With(gp.CallOptions{Chunk: bit}).SendRecv(ts...)
	}), func(c *scene) { c.ownStreams = true })
	add(lowlevelScene("lowlevel.StagedCopy", copies(3*bit-6), func(s *trial) (gp.Work, error) {
		return lowlevel.StagedCopy(s.dst[s.n-1], s.src[0], s.host.Bytes(), bit)
	}))
	add(lowlevelScene("lowlevel.CopyFromHost", one(1000, itself), func(s *trial) (gp.Work, error) {
		copy(s.host.Bytes(), s.plot.ins[0])
		return lowlevel.CopyFromHost(s.dst[0], s.host.Bytes()[:1000])
	}))
	add(lowlevelScene("lowlevel.CopyToHost", one(1000, itself), func(s *trial) (gp.Work, error) {
		return lowlevel.CopyToHost(s.host.Bytes()[:1000], s.dst[0])
	}), func(c *scene) {
		c.holds = func(s *trial) {
			s.played()
			requireBytes(s.t, s.plot.outs[0], s.host.Bytes()[:1000], "host memory")
		}
	})
	add(lowlevelScene("lowlevel.ReduceFromHost", one(1000, doubled), func(s *trial) (gp.Work, error) {
		copy(s.host.Bytes(), s.plot.ins[0])
		return lowlevel.ReduceFromHost(s.dst[0], s.host.Bytes()[:1000], gp.Sum)
	}))
	into := func(_ testing.TB, n int) *plot {
		return &plot{typ: gp.TypeUint8, ins: make([][]byte, n), outs: append([][]byte{pattern(5000, 7)}, make([][]byte, n-1)...)}
	}
	add(plotted("Buffer.Write", into, func(s *trial) (gp.Work, error) { return gp.Work{}, s.dst[0].Write(background, s.plot.outs[0]) }),
		func(c *scene) { c.even = onOne })
	add(plotted("Buffer.Read", one(5000, itself), func(s *trial) (gp.Work, error) {
		got := make([]byte, 5000)
		err := s.dst[0].Read(background, got)
		if err == nil {
			requireBytes(s.t, s.plot.outs[0], got, "what was read")
		}
		return gp.Work{}, err
	}), func(c *scene) { c.even = onOne })
	add(&scene{name: "Upload, Free", even: onOne, holds: func(*trial) {}, call: func(s *trial) error {
		b, err := gp.Upload(background, s.g.Ranks()[0], pattern(5000, 7))
		if err != nil {
			return err
		}
		got := make([]byte, 5000)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		require.Zero(s.t, s.below.CtxPushCurrent(s.contexts[0]))
		code := s.below.MemcpyDtoH(pointerTo(got), api.Ptr(b.Ptr()), 5000)
		_, _ = s.below.CtxPopCurrent()
		if code == api.Success {
			requireBytes(s.t, pattern(5000, 7), got, "what was uploaded")
		}
		return b.Free()
	}})
	add(plotted("copy, a stream behind it", copies(3*bit-6), func(s *trial) (gp.Work, error) {
		w, err := s.g.With(gp.CallOptions{Chunk: bit}).Copy(s.dst[s.n-1], s.src[0])
		if err != nil {
			return w, err
		}
		return w, w.Before(s.g.Ranks()[0].Stream())
	}), func(c *scene) { c.even = func(n int) bool { return n == 2 } })
	add(plotted("copy, waited for from its start", copies(3*bit-6), func(s *trial) (gp.Work, error) {
		w, err := s.g.With(gp.CallOptions{Chunk: bit}).Copy(s.dst[s.n-1], s.src[0])
		if err != nil {
			return w, err
		}
		return w, w.Wait(background)
	}), func(c *scene) { c.even = func(n int) bool { return n == 2 } })
	return all
}

// totals is a plot of an all_reduce.
func totals(t testing.TB, n int) *plot {
	o := operation{op: "all_reduce", alg: gp.AlgorithmDirect, typ: gp.TypeInt32, red: gp.Sum, n: 100}
	r := generator("sums", n)
	sc := &plot{typ: o.typ}
	for range n {
		sc.ins = append(sc.ins, randomElements(r, o.typ, o.n))
	}
	sc.outs = o.results(t, sc.ins)
	return sc
}

// around is a plot in which each rank sends to the next.
func around(_ testing.TB, n int) *plot {
	sc := &plot{typ: gp.TypeUint8, outs: make([][]byte, n)}
	for i := range n {
		sc.ins = append(sc.ins, pattern(3*bit-6, i))
		sc.outs[(i+1)%n] = sc.ins[i]
	}
	return sc
}

func doubled(in []byte) []byte {
	out := make([]byte, len(in))
	for i, b := range in {
		out[i] = 2 * b
	}
	return out
}

// places are where in the code each driver call of a scene is made: the lines on
// the way to it.
func (c *scene) places(t testing.TB, n int) (list []string) {
	s := newTrial(t, c, n)
	s.open()
	pcs := make([]uintptr, 64)
	s.tap.Reset()
	s.tap.Each(func() {
		var way strings.Builder
		frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
		for more := true; more; {
			var f runtime.Frame
			f, more = frames.Next()
			if strings.Contains(f.Function, "geforce-p2p/gp.") || strings.Contains(f.Function, "/ptx.") {
				fmt.Fprintln(&way, f.Function, f.Line)
			}
		}
		list = append(list, way.String())
	})
	require.NoError(t, keeps(s.below, 0, func() error { return c.call(s) }))
	s.tap.Reset()
	s.settle()
	c.holds(s)
	s.close(nil)
	return list
}

// A visit is a driver call that is to fail, by its number from 1 on, and how.
type visit struct {
	k int
	f fault
}

// visits says which calls fail how. Of two ranks every call fails: by a code that
// refuses it, and every third one by the loss of its context or its GPU too. Of one
// rank every call fails by one code. Of more ranks a call is made at the same place
// in the code again and again, and each place fails once, of eight ranks one in
// ten. With GP_SOAK it is the whole: every call by every code of two ranks, and by
// one of others.
func visits(c *scene, n int, places []string) (list []visit) {
	salt := len(c.name) + n
	if soak && n == 2 {
		for k := range places {
			for _, f := range faults {
				list = append(list, visit{k + 1, f})
			}
		}
		return list
	}
	seen := map[string]int{}
	for k, place := range places {
		seen[place]++
		f := faults[(k+salt)%len(faults)]
		switch {
		case fewer && (k+salt)%11 != 0:
		case soak || n == 1:
			list = append(list, visit{k + 1, f})
		case n == 2:
			list = append(list, visit{k + 1, faults[(k+salt)%2]})
			if at := k + salt; at%3 == 0 {
				list = append(list, visit{k + 1, faults[2+at/3%3]})
			}
		case seen[place] == 1 && (n < 8 || (len(seen)+salt)%10 == 0):
			list = append(list, visit{k + 1, f})
		}
	}
	return list
}

var soak = os.Getenv("GP_SOAK") != ""

// A tally is what came of a scene's visits.
type tally struct {
	points map[int]int // by ranks
	runs   int
	came   [outcomes]int
}

var sizes = []int{1, 2, 3, 8}

// TestEveryCallFailsOnce lets the driver calls of each operation fail in turn. Each
// time the error names the call and the rank; nothing hangs; buffers that had no
// part in it are as they were; the group either does the same operation well, or
// has failed and says so with its first error; Close gives everything back; a new
// group on the GPUs that are well works; and no goroutine or thread is left over.
func TestEveryCallFailsOnce(t *testing.T) {
	threads := pprof.Lookup("threadcreate").Count()
	var all []*scene
	tallies := map[*scene]*tally{}
	for _, c := range scenes() {
		all = append(all, c)
		sum := &tally{points: map[int]int{}}
		tallies[c] = sum
		for _, n := range sizes {
			if c.even != nil && !c.even(n) {
				continue
			}
			t.Run(fmt.Sprintf("%s/ranks=%d", c.name, n), func(t *testing.T) {
				places := c.places(t, n)
				sum.points[n] = len(places)
				require.Greater(t, len(places), 2)
				visited := map[int]bool{}
				for _, v := range visits(c, n, places) {
					visited[v.k] = true
					sum.runs++
					t.Run(fmt.Sprintf("call=%d/%s", v.k, v.f.name), func(t *testing.T) { sum.came[c.visit(t, n, v.k, v.f)]++ })
				}
				if n <= 2 && !fewer {
					require.Len(t, visited, len(places), "all calls have failed")
				}
			})
		}
	}
	require.Less(t, pprof.Lookup("threadcreate").Count()-threads, 16, "threads")
	page := table(all, tallies)
	t.Log("\n" + page)
	if !fewer && !soak && !t.Failed() {
		compare(t, page)
	}
}

// table is the tallies as the document has them.
func table(all []*scene, tallies map[*scene]*tally) string {
	var b strings.Builder
	b.WriteString("| operation | calls, 1 rank | 2 ranks | 3 ranks | 8 ranks | runs | unharmed | usable | failed |\n|---|---|---|---|---|---|---|---|---|\n")
	sum := tally{points: map[int]int{}}
	row := func(name string, y *tally) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, n := range sizes {
			if y.points[n] == 0 {
				b.WriteString(" |")
				continue
			}
			fmt.Fprintf(&b, " %d |", y.points[n])
		}
		fmt.Fprintf(&b, " %d | %d | %d | %d |\n", y.runs, y.came[unharmed], y.came[usable], y.came[failed])
	}
	for _, c := range all {
		y := tallies[c]
		row(c.name, y)
		for n, k := range y.points {
			sum.points[n] += k
		}
		sum.runs += y.runs
		for o, k := range y.came {
			sum.came[o] += k
		}
	}
	row("all", &sum)
	return b.String()
}

// compare holds the document to the counts, or writes them into it where
// GP_UPDATE is set.
func compare(t *testing.T, page string) {
	const path = "../docs/reliability.md"
	const begin, end = "<!-- faults: written by GP_UPDATE=1 go test ./gp -run TestEveryCallFailsOnce, not by hand -->\n\n", "\n<!-- faults end -->\n"
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	head, rest, ok := strings.Cut(string(text), begin)
	require.True(t, ok, "%s has no place for them", path)
	old, tail, ok := strings.Cut(rest, end)
	require.True(t, ok, "%s has no place for them", path)
	if os.Getenv("GP_UPDATE") != "" {
		require.NoError(t, os.WriteFile(path, []byte(head+begin+page+end+tail), 0o644))
		return
	}
	require.Equal(t, old, page, "%s has other counts: GP_UPDATE=1 go test ./gp -run TestEveryCallFailsOnce writes them", path)
}
