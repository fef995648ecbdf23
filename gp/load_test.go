// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/internal/api/tap"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// TestLoad has 64 goroutines do at random, on groups that share GPUs, all that a
// program may do: copies, batches, collectives by every algorithm, spoken for
// together or by a goroutine a rank, transfers, allocations, frees, waits that are
// given up, and groups that are closed and opened anew under the others. Every byte
// is held to the host's idea of it.
//
// It runs in rounds, at whose ends all is closed and the driver holds what it held
// before. Go's heap and the threads are looked at after a third of the rounds and
// after the last. GP_LOAD is how long it runs, GP_SEED makes the same choices again
// (not the same interleaving), and GP_MEASURE_DIR takes the record of a run on
// hardware, load.json.
func TestLoad(t *testing.T) {
	seed := number(t, "GP_SEED", rand.Uint64())
	t.Logf("GP_SEED=%d", seed)
	t.Run("sim", func(t *testing.T) {
		long, round := 2*time.Second, time.Second
		if testenv.Race {
			long, round = 30*time.Second, 5*time.Second
		}
		l := &load{t: t, seed: seed, long: loadTime(t, long), round: round, pieceBytes: pieceBytes, most: 8}
		machines := []string{"8x4090", "8x4090-p2p"}
		l.machine = func(round int) (*cuda.Driver, func() error) {
			m, err := sim.Open(machines[round%len(machines)], sim.Watch(), sim.KeepSites(), sim.Seed(seed+uint64(round)))
			require.NoError(t, err)
			return m.Driver(), m.Close
		}
		l.run()
		t.Logf("%+v", l.rec)
		l.hold()
	})
	t.Run("gpu", func(t *testing.T) {
		d := gputest.Hardware(t)
		devs, err := d.Devices()
		require.NoError(t, err)
		for _, dev := range devs { // else a round's end would free what a round leaks
			gputest.Primary(t, dev)
		}
		long := loadTime(t, 9*time.Second)
		l := &load{t: t, seed: seed, long: long, round: min(10*time.Second, long/3), pieceBytes: 192 << 10, most: 4}
		l.machine = func(int) (*cuda.Driver, func() error) { return d, func() error { return nil } }
		l.run()
		rec := &l.rec
		for _, dev := range devs {
			name, err := dev.Name()
			require.NoError(t, err)
			rec.GPUs = append(rec.GPUs, name)
		}
		text, err := json.MarshalIndent(rec, "", "  ")
		require.NoError(t, err)
		t.Logf("%s", text)
		if dir := os.Getenv("GP_MEASURE_DIR"); dir != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "load.json"), append(text, '\n'), 0o666))
		}
		l.hold()
	})
}

// loadTime is how long to run.
func loadTime(t *testing.T, otherwise time.Duration) time.Duration {
	s := os.Getenv("GP_LOAD")
	if s == "" {
		return otherwise
	}
	d, err := time.ParseDuration(s)
	require.NoError(t, err, "GP_LOAD")
	return d
}

// loadRecord is what came of it.
type loadRecord struct {
	GPUs       []string `json:"gpus"`
	Seed       uint64   `json:"seed"`
	Seconds    float64  `json:"seconds"`
	Rounds     int      `json:"rounds"`
	Goroutines int      `json:"goroutines"`
	// As the groups counted them:
	Copies         uint64 `json:"copies"`
	Collectives    uint64 `json:"collectives"`
	BytesMoved     uint64 `json:"copied_bytes"`
	BytesOfRanks   uint64 `json:"collective_bytes_a_rank"`
	Waits          uint64 `json:"waits"`
	GroupsOpened   uint64 `json:"groups_opened"`
	DriverCalls    uint64 `json:"driver_calls"`
	MostPinned     uint64 `json:"most_pinned_bytes_at_once"`
	Cancellations  uint64 `json:"cancellations"`
	ClosedUnder    uint64 `json:"calls_refused_since_the_group_closed"`
	BytesVerified  uint64 `json:"verified_bytes"`
	Exchanges      int    `json:"collectives_by_kernels_that_wait_for_each_other"`
	Joined         uint64 `json:"collectives_by_a_goroutine_a_rank"`
	BuffersAlloced uint64 `json:"buffers_allocated"`
	// After a third of the rounds and after the last, with all closed:
	Threads   [2]int    `json:"threads_at_a_third_and_at_the_end"`
	HeapBytes [2]uint64 `json:"heap_bytes_at_a_third_and_at_the_end"`
	// Of each GPU, after the first round and after the last:
	DeviceFree [][2]uint64 `json:"device_free_bytes_after_the_first_round_and_at_the_end"`
}

const loaders = 64 // goroutines

type load struct {
	t          *testing.T
	seed       uint64
	long       time.Duration
	round      time.Duration // at most
	pieceBytes int
	most       int // ranks of a group
	machine    func(round int) (d *cuda.Driver, closed func() error)
	rec        loadRecord

	joined, canceled, refused, verified, alloced atomic.Uint64
}

// run is the rounds.
func (l *load) run() {
	t := l.t
	cores(t, max(4, runtime.GOMAXPROCS(0)))
	leaks := goleak.IgnoreCurrent()
	rounds := max(3, int((l.long+l.round-1)/l.round))
	began := time.Now()
	ran := 0
	for i := range rounds {
		if i >= 3 && time.Since(began) >= l.long {
			break // what a round does after its time is long on a busy machine
		}
		ran++
		free := l.oneRound(i, l.long/time.Duration(rounds))
		if i == 0 {
			for _, f := range free {
				l.rec.DeviceFree = append(l.rec.DeviceFree, [2]uint64{f})
			}
		}
		at := 1
		if i < (rounds+2)/3 {
			at = 0
		}
		l.rec.Threads[at], l.rec.HeapBytes[at] = threads(), heap()
		for i, f := range free {
			l.rec.DeviceFree[i][1] = f
		}
	}
	r := &l.rec
	r.Seed, r.Seconds, r.Rounds, r.Goroutines = l.seed, time.Since(began).Seconds(), ran, loaders
	r.Joined, r.Cancellations, r.ClosedUnder = l.joined.Load(), l.canceled.Load(), l.refused.Load()
	r.BytesVerified, r.BuffersAlloced = l.verified.Load(), l.alloced.Load()
	goleak.VerifyNone(t, leaks)
}

// hold is what must hold after them.
func (l *load) hold() {
	t, r := l.t, &l.rec
	for i, f := range r.DeviceFree {
		// The driver has pools of its own, which grow with what was in use at once.
		require.GreaterOrEqual(t, f[1]+16<<20, f[0], "free memory of GPU %d after the first round and at the end", i)
	}
	require.LessOrEqual(t, r.HeapBytes[1], r.HeapBytes[0]+r.HeapBytes[0]/10+4<<20, "Go's heap after a third and at the end")
	// As many threads as goroutines that are in the driver at once, which is a
	// matter of luck.
	require.LessOrEqual(t, r.Threads[1], max(r.Threads[0]+16, loaders+runtime.GOMAXPROCS(0)+16), "threads after a third and at the end")
	for what, n := range map[string]uint64{
		"copies": r.Copies, "collectives": r.Collectives, "waits": r.Waits, "buffers allocated": r.BuffersAlloced, "bytes verified": r.BytesVerified,
		"groups opened under the others": r.GroupsOpened - 3*uint64(r.Rounds),
	} {
		require.NotZero(t, n, what)
	}
	if l.long < 9*time.Second {
		return // too short for the rest to come up for certain
	}
	for what, n := range map[string]uint64{
		"joined collectives": r.Joined, "cancellations": r.Cancellations, "collectives by kernels that wait": uint64(r.Exchanges),
	} {
		require.NotZero(t, n, what)
	}
}

// threads are the process's, where the system tells, or those that Go has made.
func threads() int {
	if tasks, err := os.ReadDir("/proc/self/task"); err == nil {
		return len(tasks)
	}
	return pprof.Lookup("threadcreate").Count()
}

// heap is the bytes of live objects.
func heap() uint64 {
	for range 3 { // cleanups, and what they let go of
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A loadRound is what the goroutines of a round share.
type loadRound struct {
	*load
	d       *cuda.Driver
	gpus    int
	streams [][]*cuda.Stream // by GPU; everybody's
	own     []*cuda.Context
	groups  [3]atomic.Pointer[loadGroup]
	opening sync.Mutex
	end     time.Time
	failed  atomic.Bool
}

// A loadGroup is a group and who of those that bring a goroutine a rank has it.
type loadGroup struct {
	*gp.Group
	joining sync.Mutex
}

// oneRound opens everything, has the goroutines work, and closes everything. It
// returns the free memory of each GPU of a real machine.
func (l *load) oneRound(round int, long time.Duration) (free []uint64) {
	t := l.t
	below, closed := l.machine(round)
	d, tp := gputest.Tapped(t, below)
	devs, err := d.Devices()
	require.NoError(t, err)
	x := &loadRound{load: l, d: d, gpus: len(devs), streams: make([][]*cuda.Stream, len(devs))}
	for i, dev := range devs {
		cc, err := dev.Primary()
		require.NoError(t, err)
		x.own = append(x.own, cc)
		x.streams[i] = []*cuda.Stream{cc.LegacyStream()}
		for range 5 {
			s, err := cc.NewStream()
			require.NoError(t, err)
			x.streams[i] = append(x.streams[i], s)
		}
	}
	r := rand.New(rand.NewPCG(l.seed, uint64(round)<<32))
	for i := range x.groups {
		g, err := x.open(r)
		require.NoError(t, err)
		x.groups[i].Store(g)
	}
	sharing := min(2, l.most)
	if x.gpus == 1 {
		sharing = l.most
	}
	var workers [loaders]*loader
	for i := range workers {
		w := &loader{x: x, first: 99 * i / (loaders - 1), r: rand.New(rand.NewPCG(l.seed, uint64(round)<<32+uint64(i)+1))}
		w.m = &mix{t: t, r: w.r, own: x.own, streams: x.streams, bytes: l.pieceBytes, chunks: []int{0, 0, 0, l.pieceBytes / 4}, busy: true}
		require.NoError(t, w.m.fill(2*sharing))
		workers[i] = w
	}
	x.end = time.Now().Add(long)
	errs := make(chan string, loaders) // the first is the one that counts
	var wg sync.WaitGroup
	for i, w := range workers {
		wg.Go(func() {
			if err := w.work(); err != nil {
				log := w.m.log
				errs <- fmt.Sprintf("goroutine %d: %v\nits latest calls:\n%s", i, err, strings.Join(log[max(0, len(log)-20):], "\n"))
			}
		})
	}
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(long + time.Minute):
		var all strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&all, 1)
		t.Fatalf("round %d hangs:\n%s", round, all.String())
	}
	if len(errs) > 0 {
		t.Fatalf("round %d: %s", round, <-errs)
	}
	for i := range x.groups {
		require.NoError(t, x.close(x.groups[i].Load(), 1))
	}
	for _, w := range workers {
		l.rec.Exchanges += w.m.exchanges
		require.NoError(t, w.check())
		require.NoError(t, w.m.free())
	}
	for _, ss := range x.streams {
		for _, s := range ss[1:] {
			require.NoError(t, s.Close())
		}
	}
	if !d.Modelled() {
		for _, cc := range x.own {
			n, _, err := cc.MemInfo()
			require.NoError(t, err)
			free = append(free, uint64(n))
		}
	}
	for _, cc := range x.own {
		require.NoError(t, cc.Close())
	}
	l.rec.DriverCalls += uint64(tp.Total())
	requireBalance(t, tp)
	require.NoError(t, closed(), "round %d", round)
	return free
}

// requireBalance holds that all was given back that was taken from the driver.
func requireBalance(t *testing.T, tp *tap.Tap) {
	t.Helper()
	for take, give := range map[string]string{
		"MemAlloc": "MemFree", "MemHostAlloc": "MemFreeHost", "StreamCreate": "StreamDestroy", "EventCreate": "EventDestroy",
		"ModuleLoadData": "ModuleUnload", "DevicePrimaryCtxRetain": "DevicePrimaryCtxRelease",
	} {
		require.Equal(t, tp.Count(take), tp.Count(give), "calls of %s and of %s", take, give)
	}
}

// open opens a group of random ranks and options.
func (x *loadRound) open(r *rand.Rand) (*loadGroup, error) {
	n := min([]int{2, 2, 3, 4, 8}[r.IntN(5)], x.most)
	o := gp.Options{
		Driver: x.d, PinnedBytes: []int64{small, 5 << 20, 10 << 20, roomy}[r.IntN(4)], P2P: []gp.P2PMode{gp.P2POff, gp.P2PTrust}[r.IntN(2)],
		LowLatency: r.IntN(4) == 0, Logger: discard,
	}
	if x.d.Modelled() {
		// Simulated time passes with everybody's calls: those that load kernels take it
		// on by ten seconds while the goroutine that launches an exchange is not running.
		// A hang shows as the round's.
		o.KernelDeadline = 1000 * time.Hour
	}
	switch {
	case x.gpus == 1:
		o.AllowSameGPU, o.Devices = true, make([]int, n)
	case x.gpus < n || r.IntN(3) == 0: // at most two on one
		n = min(n, 2*x.gpus)
		o.AllowSameGPU = true
		for _, i := range r.Perm(2 * x.gpus)[:n] {
			o.Devices = append(o.Devices, i%x.gpus)
		}
	default:
		o.Devices = r.Perm(x.gpus)[:n]
	}
	g, err := gp.Open(o)
	if err != nil {
		return nil, err
	}
	return &loadGroup{Group: g}, nil
}

// close closes a group, by as many goroutines at once, and adds up what it did.
func (x *loadRound) close(g *loadGroup, closers int) error {
	errs := make([]error, closers)
	var wg sync.WaitGroup
	for i := range closers {
		wg.Go(func() { errs[i] = g.Close() })
	}
	wg.Wait()
	s := g.Stats()
	if s.PinnedBytes != 0 || s.ScratchBytes != 0 {
		errs = append(errs, fmt.Errorf("a closed group has %d bytes of pinned memory and %d of scratch", s.PinnedBytes, s.ScratchBytes))
	}
	x.opening.Lock()
	defer x.opening.Unlock()
	x.rec.GroupsOpened++
	x.rec.Copies += s.Copies
	x.rec.Collectives += s.Collectives
	x.rec.BytesMoved += s.StagedBytes + s.DirectBytes + s.LocalBytes
	x.rec.BytesOfRanks += s.CollectiveBytes
	x.rec.Waits += s.Waits
	return errors.Join(errs...)
}

// reopen puts a new group in the place of one, which is closed while the others
// go on calling it. One does so at a time.
func (x *loadRound) reopen(r *rand.Rand) error {
	if !x.opening.TryLock() {
		return nil
	}
	g, err := x.open(r)
	var old *loadGroup
	if err == nil {
		old = x.groups[r.IntN(len(x.groups))].Swap(g)
		pinned := old.Stats().PinnedBytes
		for i := range x.groups {
			pinned += x.groups[i].Load().Stats().PinnedBytes
		}
		x.rec.MostPinned = max(x.rec.MostPinned, pinned)
	}
	x.opening.Unlock()
	if err != nil {
		return err
	}
	return x.close(old, 1+r.IntN(2))
}

// A loader is one of the goroutines, with memory of its own.
type loader struct {
	x *loadRound
	r *rand.Rand
	m *mix

	first int // kind of step
}

func (w *loader) work() error {
	// The first steps are of all kinds, however few there is time for.
	for kind := w.first; ; kind = w.r.IntN(100) {
		err := w.step(w.x.groups[w.r.IntN(len(w.x.groups))].Load(), kind)
		switch {
		case errors.Is(err, gp.ErrClosed):
			w.x.refused.Add(1)
		case gaveUp(err):
			w.x.canceled.Add(1)
		case err != nil:
			w.x.failed.Store(true)
			return err
		}
		if !time.Now().Before(w.x.end) || w.x.failed.Load() {
			return nil
		}
	}
}

// gaveUp tells whether a call ended since its context did.
func gaveUp(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// soon is a context that is done already, or before long.
func (w *loader) soon() (context.Context, context.CancelFunc) {
	return context.WithTimeout(background, []time.Duration{0, 300 * time.Microsecond, 3 * time.Millisecond}[w.r.IntN(3)])
}

// step does something of a kind: see its cases.
func (w *loader) step(g *loadGroup, k int) error {
	switch {
	case k < 56:
		work, err := w.m.enqueue(g.Group)
		if err != nil {
			return err
		}
		return w.after(work)
	case k < 64:
		if !g.joining.TryLock() {
			return nil
		}
		defer g.joining.Unlock()
		if w.r.IntN(4) == 0 {
			return w.desert(g.Group)
		}
		work, err := w.m.collective(g.Group, w.apart, "broadcast", "reduce")
		if err != nil {
			return err
		}
		w.x.joined.Add(1)
		return w.after(work)
	case k < 76:
		return w.buffers(g.Group)
	case k < 82:
		return w.transfer(g.Group)
	case k < 88:
		ctx, cancel := w.soon()
		defer cancel()
		if w.r.IntN(2) == 0 {
			ctx = background
		}
		g.Stats()
		return g.Synchronize(ctx)
	case k < 98:
		return w.check()
	}
	return w.x.reopen(w.r)
}

// check reads all of the goroutine's memory back.
func (w *loader) check() error {
	if err := w.m.check(); err != nil {
		return err
	}
	w.x.verified.Add(uint64(len(w.m.pieces) * len(w.m.pieces[0]) * w.m.bytes))
	return nil
}

// after does with the work what a program may do.
func (w *loader) after(work gp.Work) error {
	switch w.r.IntN(7) {
	case 0, 1:
		return wentWell(work.Wait(background))
	case 2, 3:
		ctx, cancel := w.soon()
		defer cancel()
		return wentWell(work.Wait(ctx))
	case 4:
		gpu := w.r.IntN(w.x.gpus)
		return wentWell(work.Before(w.m.streams[gpu][w.r.IntN(len(w.m.streams[gpu]))]))
	case 5:
		work.Done()
	}
	return nil
}

// wentWell is err, unless it says that the group is closed: Close waits for what
// was enqueued.
func wentWell(err error) error {
	if errors.Is(err, gp.ErrClosed) {
		return fmt.Errorf("of work that was enqueued: %s", err)
	}
	return err
}

// transfer writes or reads a piece of memory, perhaps not to the end.
func (w *loader) transfer(g *gp.Group) error {
	ctx, cancel := w.soon()
	defer cancel()
	w.m.unused()
	ranks := g.Ranks()
	p, err := w.m.take(ranks[w.r.IntN(len(ranks))], gp.TypeUint8, w.r.IntN(w.m.bytes+1))
	if err != nil {
		return err
	}
	if w.r.IntN(2) == 0 {
		return w.m.write(ctx, p)
	}
	got := make([]byte, p.bytes)
	if err := p.b.Read(ctx, got); err != nil {
		return err
	}
	return w.same(p.held(), got)
}

func (w *loader) same(want, got []byte) error {
	if at, n := differ(want, got); n > 0 {
		return fmt.Errorf("%d of %d bytes differ, the first at %d: got %#x, want %#x", n, len(want), at, got[at], want[at])
	}
	w.x.verified.Add(uint64(len(want)))
	return nil
}

// buffers allocates, copies, reads back and frees, or leaves that to Close.
func (w *loader) buffers(g *gp.Group) error {
	ranks := g.Ranks()
	data := randomBytes(w.r, 1+w.r.IntN(w.m.bytes))
	leave := w.r.IntN(20) == 0
	if leave {
		data = data[:min(len(data), 1024)]
	}
	w.m.note("upload of %d bytes", len(data))
	ctx := background
	if w.r.IntN(4) == 0 {
		var cancel func()
		ctx, cancel = w.soon()
		defer cancel()
	}
	src, err := gp.Upload(ctx, ranks[w.r.IntN(len(ranks))], data)
	if err != nil {
		return err
	}
	w.x.alloced.Add(1)
	dst, err := ranks[w.r.IntN(len(ranks))].Alloc(gp.TypeUint8, len(data))
	if err != nil {
		return errors.Join(err, src.Free())
	}
	w.x.alloced.Add(1)
	work, err := g.Copy(dst, src)
	if err != nil {
		return errors.Join(err, src.Free(), dst.Free())
	}
	switch err := w.after(work); {
	case gaveUp(err):
		w.x.canceled.Add(1)
	case err != nil:
		return err
	}
	if !leave {
		if err := src.Free(); err != nil {
			return err
		}
		if _, err := g.Copy(dst, src); !errors.Is(err, gp.ErrClosed) {
			return fmt.Errorf("a copy from freed memory: %v", err)
		}
	}
	got := make([]byte, len(data))
	if err := dst.Read(background, got); err != nil {
		return errors.Join(err, dst.Free())
	}
	if leave {
		return w.same(data, got)
	}
	return errors.Join(w.same(data, got), dst.Free(), dst.Free())
}

// apart calls a collective by a goroutine a rank. All get the same answer.
func (w *loader) apart(g *gp.Group, c operation, o gp.CallOptions, dst, src []gp.Buffer) (gp.Work, error) {
	ctx := background
	if w.r.IntN(4) == 0 {
		var cancel func()
		ctx, cancel = w.soon()
		defer cancel()
	}
	n := len(g.Ranks())
	works, errs := make([]gp.Work, n), make([]error, n)
	var wg sync.WaitGroup
	for i, rk := range g.Ranks() {
		with := rk.With(o)
		wg.Go(func() {
			switch c.op {
			case "all_reduce":
				works[i], errs[i] = with.AllReduceTo(ctx, dst[i], src[i], c.red)
			case "all_gather":
				works[i], errs[i] = with.AllGather(ctx, dst[i], src[i])
			case "reduce_scatter":
				works[i], errs[i] = with.ReduceScatter(ctx, dst[i], src[i], c.red)
			case "broadcast":
				works[i], errs[i] = with.Broadcast(ctx, dst[i], c.root)
			case "reduce":
				works[i], errs[i] = with.Reduce(ctx, src[i], c.root, c.red)
			case "all_to_all":
				works[i], errs[i] = with.AllToAll(ctx, dst[i], src[i])
			}
		})
	}
	wg.Wait()
	for i, err := range errs {
		if (err == nil) != (errs[0] == nil) || works[i] != works[0] {
			return gp.Work{}, fmt.Errorf("%v: rank %d's answer is %v, and rank 0's is %v", c, i, err, errs[0])
		}
	}
	return works[0], errs[0]
}

// desert has all ranks but one call a collective and give up.
func (w *loader) desert(g *gp.Group) error {
	w.m.unused()
	ctx, cancel := w.soon()
	defer cancel()
	ranks := g.Ranks()
	errs := make([]error, len(ranks)-1)
	var wg sync.WaitGroup
	for i := range errs {
		p, err := w.m.take(ranks[i+1], gp.TypeFloat32, w.r.IntN(w.m.bytes/4))
		if err != nil {
			cancel()
			wg.Wait()
			return err
		}
		wg.Go(func() { _, errs[i] = ranks[i+1].AllReduce(ctx, p.b, gp.Sum) })
	}
	wg.Wait()
	for i, err := range errs {
		if !gaveUp(err) && !errors.Is(err, gp.ErrClosed) {
			return fmt.Errorf("rank %d's all_reduce without rank 0: %v", i+1, err)
		}
	}
	return errs[0]
}
