// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

const (
	crewBytes    = 4096 // of each rank's buffer
	crewDeadline = 10 * time.Millisecond
)

// A crew is ranks that exchange, each a stream of its own.
type crew struct {
	*rig
	n       int
	gpu     []int
	streams []api.Stream
	in, out []api.Ptr
	areas   [kernel.MaxInputs]uint64
	host    []unsafe.Pointer // of the areas
	control []unsafe.Pointer
	page    []api.Ptr
	funcs   map[string]api.Function // by GPU and entry
	epoch   uint64
}

func newCrew(t testing.TB, machine string, gpus []int, opts ...Option) *crew {
	m, err := Open(machine, opts...)
	require.NoError(t, err)
	c := &crew{rig: newRigOf(t, m), n: len(gpus), gpu: gpus, funcs: map[string]api.Function{}}
	for r, g := range gpus {
		c.streams = append(c.streams, c.stream(g))
		c.in, c.out = append(c.in, c.device(g, crewBytes)), append(c.out, c.device(g, crewBytes*uint64(len(gpus))))
		_, area := c.pinned(c.areaBytes())
		_, page := c.pinned(kernel.ControlBytes)
		c.host, c.control = append(c.host, area), append(c.control, page)
		p, code := c.d.MemHostGetDevicePointer(area)
		c.ok(code)
		c.areas[r] = uint64(p)
		p, code = c.d.MemHostGetDevicePointer(page)
		c.ok(code)
		c.page = append(c.page, p)
		// Loading takes longer than the deadline.
		c.use(g)
		for _, k := range []kernel.Kind{kernel.OneShot, kernel.TwoShot, kernel.Gather, kernel.Handshake, kernel.EchoBulk} {
			if name := c.entry(r, k); c.funcs[name] == 0 {
				c.funcs[name] = c.function(kernel.ExchangeEntry(k, typeOf(k)))
			}
		}
	}
	return c
}

// typeOf is the element type of a kind here.
func typeOf(k kernel.Kind) dtype.Type {
	if k.Reduces() {
		return dtype.Int32
	}
	return 0
}

func (c *crew) entry(r int, k kernel.Kind) string {
	return fmt.Sprint(c.gpu[r], " ", kernel.ExchangeEntry(k, typeOf(k)))
}

func (c *crew) areaBytes() uint64 {
	return max(kernel.AreaNeed(kernel.OneShot, crewBytes, c.n), kernel.AreaNeed(kernel.TwoShot, crewBytes, c.n))
}

// launch launches one rank's part of the current epoch.
func (c *crew) launch(r int, k kernel.Kind, s api.Stream) api.Code {
	c.t.Helper()
	x := kernel.Exchange{
		Kind: k, In: uint64(c.in[r]), Out: uint64(c.out[r]), Rank: uint64(r), N: uint64(c.n), Count: 1, Epoch: c.epoch,
		DeadlineNs: uint64(crewDeadline), Control: uint64(c.page[r]), AreaBytes: c.areaBytes(), Area: c.areas,
	}
	switch {
	case k.Reduces():
		x.Count = crewBytes / 4
	case k == kernel.Gather:
		x.Count = crewBytes
	}
	c.use(c.gpu[r])
	return c.run(r, x, s)
}

func (c *crew) run(r int, x kernel.Exchange, s api.Stream) api.Code {
	return c.d.LaunchKernel(c.funcs[c.entry(r, x.Kind)], &api.Launch{
		Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{kernel.BlockThreads, 1, 1}, Stream: s, Params: x.Append(nil, typeOf(x.Kind)),
	})
}

// exchange launches all ranks' parts of the next epoch, in any order.
func (c *crew) exchange(k kernel.Kind) {
	c.t.Helper()
	c.epoch++
	for _, r := range rand.New(rand.NewPCG(c.epoch, 5)).Perm(c.n) {
		c.ok(c.launch(r, k, c.streams[r]))
	}
}

func (c *crew) sync(r int) {
	c.t.Helper()
	c.ok(c.d.StreamSynchronize(c.streams[r]))
}

func (c *crew) status(r int) kernel.Status {
	return kernel.ParseStatus(*(*uint64)(unsafe.Add(c.control[r], kernel.StatusWord)))
}

func (c *crew) fill() (sum []int32, all []byte) {
	sum = make([]int32, crewBytes/4)
	for r := range c.n {
		b := make([]byte, crewBytes)
		for i := range sum {
			v := int32(i*(r+3) + int(c.epoch))
			binary.LittleEndian.PutUint32(b[4*i:], uint32(v))
			sum[i] += v
		}
		all = append(all, b...)
		c.use(c.gpu[r])
		c.ok(c.d.MemcpyHtoD(c.in[r], unsafe.Pointer(&b[0]), crewBytes))
		c.ok(c.d.CtxSynchronize())
	}
	return sum, all
}

func (c *crew) holds(r, n int) []byte {
	b := make([]byte, n)
	c.use(c.gpu[r])
	c.ok(c.d.MemcpyDtoH(unsafe.Pointer(&b[0]), c.out[r], uint64(n)))
	return b
}

var crews = []struct {
	machine string
	gpus    []int
}{
	{"2x4090", []int{0, 1}},
	{"8x4090", []int{0, 1, 2, 3, 4, 5, 6, 7}},
	{"1xh200", []int{0, 0, 0, 0}},
	{"2x4090", []int{0, 1, 1}},
	{"1xh200", []int{0}},
}

// Kernels of different ranks wait for each other, on one GPU and on several, and
// all get what is right, whatever the order.
func TestGang(t *testing.T) {
	for i, w := range crews {
		t.Run(fmt.Sprint(w.machine, w.gpus), func(t *testing.T) {
			c := newCrew(t, w.machine, w.gpus, Watch(), Seed(uint64(i)))
			for round := range 3 {
				for _, k := range []kernel.Kind{kernel.OneShot, kernel.TwoShotLL, kernel.TwoShot, kernel.Gather, kernel.Handshake} {
					sum, all := c.fill()
					c.exchange(k)
					for r := range c.n {
						c.sync((r + round) % c.n)
					}
					for r := range c.n {
						switch k {
						case kernel.Handshake:
							require.Equal(t, kernel.Status{Code: kernel.StatusDone, Epoch: uint32(c.epoch)}, c.status(r))
						case kernel.Gather:
							require.True(t, bytes.Equal(all, c.holds(r, len(all))))
						default:
							got := unsafe.Slice((*int32)(unsafe.Pointer(&c.holds(r, crewBytes)[0])), len(sum))
							require.True(t, slices.Equal(sum, got), "%v, rank %d", k, r)
						}
					}
				}
			}
			require.NoError(t, c.m.Race())
		})
	}
}

// Two halves by parity are enough, over any number of epochs without a wait of
// the host's between, and events in between carry the order on.
func TestGangParity(t *testing.T) {
	for _, w := range crews {
		c := newCrew(t, w.machine, w.gpus, Watch())
		var last []api.Event
		other := make([]api.Stream, c.n)
		for r := range c.n {
			last, other[r] = append(last, c.event(c.gpu[r])), c.stream(c.gpu[r])
		}
		for i := range 60 {
			c.epoch++
			k := []kernel.Kind{kernel.OneShot, kernel.TwoShot, kernel.TwoShotLL}[i%3]
			for r := range c.n {
				// By turns on two streams, ordered by an event that is recorded before
				// the others have been launched.
				c.use(c.gpu[r])
				s := c.streams[r]
				if i%4 == 3 {
					s = other[r]
				}
				if i > 0 {
					c.ok(c.d.StreamWaitEvent(s, last[r]))
				}
				c.ok(c.launch(r, k, s))
				c.ok(c.d.EventRecord(last[r], s))
			}
		}
		for r := range c.n {
			c.ok(c.d.EventSynchronize(last[r]))
			require.Zero(t, c.status(r))
		}
		require.NoError(t, c.m.Race())
	}
}

// What is not ordered is a race: exchanges of one rank, and a copy into an area.
func TestGangRaces(t *testing.T) {
	race := func(name string, f func(c *crew) api.Code) {
		t.Run(name, func(t *testing.T) {
			c := newCrew(t, "2x4090", []int{0, 1}, Watch())
			for range 3 {
				c.exchange(kernel.OneShot)
			}
			require.NoError(t, c.m.Race())
			require.Equal(t, raceCode, f(c))
			var e *RaceError
			require.ErrorAs(t, c.m.Race(), &e)
			require.Contains(t, e.Error(), "gp_ll_i32")
		})
	}
	race("a copy into an area", func(c *crew) api.Code {
		s := c.stream(0)
		return c.d.MemcpyDtoHAsync(unsafe.Add(c.host[0], kernel.FlagBytes+64), c.in[0], 64, s)
	})
	race("a copy into an area that is read", func(c *crew) api.Code {
		// Ordered behind the owner's begin by an event in front of the next launch,
		// but not behind the peer's reading.
		s, e := c.stream(1), c.event(1)
		c.epoch++
		c.ok(c.launch(0, kernel.OneShot, c.streams[0]))
		c.ok(c.launch(1, kernel.OneShot, c.streams[1]))
		c.ok(c.d.EventRecord(e, c.streams[1]))
		c.ok(c.d.StreamWaitEvent(s, e))
		_, words, _ := kernel.Half(c.areaBytes(), c.epoch)
		// Rank 1's own area, which rank 0 still reads.
		return c.d.MemcpyDtoHAsync(unsafe.Add(c.host[1], words), c.in[1], 64, s)
	})
	race("a half that is used again", func(c *crew) api.Code {
		// Behind the rank's last but one exchange, not behind its last: the peer may
		// still read for the last but one. No memory but the areas is shared.
		s, e := c.stream(0), c.event(0)
		c.ok(c.d.EventRecord(e, c.streams[0]))
		c.exchange(kernel.OneShot)
		c.ok(c.d.StreamWaitEvent(s, e))
		c.out[0] = c.device(0, crewBytes)
		c.epoch++
		return c.launch(0, kernel.OneShot, s)
	})
	race("a buffer of a rank that is only known to have begun", func(c *crew) api.Code {
		s, e := c.stream(0), c.event(1)
		c.exchange(kernel.OneShot)
		c.ok(c.d.EventRecord(e, c.streams[1]))
		c.ok(c.d.StreamWaitEvent(s, e))
		return c.d.MemsetD8Async(c.in[0], 0, 64, s)
	})
	race("a buffer that is written early", func(c *crew) api.Code {
		s := c.stream(0)
		return c.d.MemsetD8Async(c.in[0], 0, 64, s)
	})
}

// A rank that is never launched: the others end at their deadline and say so.
// A thread that waits ends with them, and what follows goes on.
func TestGangDeadline(t *testing.T) {
	for _, k := range []kernel.Kind{kernel.OneShot, kernel.TwoShotLL, kernel.TwoShot, kernel.Gather, kernel.Handshake} {
		c := newCrew(t, "1xh200", []int{0, 0, 0, 0}, Watch())
		c.epoch = 7
		for r := range c.n {
			if r != 2 {
				c.ok(c.launch(r, k, c.streams[r]))
			}
		}
		c.ok(c.d.MemsetD8Async(c.in[1], 3, 8, c.streams[1]))
		real := time.Now()
		took := c.timed(func() {
			for _, r := range []int{0, 1, 3} {
				c.sync(r)
			}
		})
		require.InDelta(t, crewDeadline, took, float64(crewDeadline)/10, "%v", k)
		require.Less(t, time.Since(real), 5*time.Second)
		for _, r := range []int{0, 1, 3} {
			s := c.status(r)
			require.Equal(t, kernel.StatusTimedOut, s.Code, "%v, rank %d", k, r)
			require.EqualValues(t, 7, s.Epoch)
			require.NotEqual(t, uint8(r), s.Peer)
		}
		require.Equal(t, kernel.StatusNone, c.status(2).Code)
		// The one that comes late finds nobody.
		c.ok(c.launch(2, k, c.streams[2]))
		require.InDelta(t, crewDeadline, c.timed(func() { c.sync(2) }), float64(crewDeadline)/10)
	}
}

// A thread that waits for a kernel, one of whose peers another thread launches
// late, waits for that: whatever deadlines of kernels that are over lie ahead, and
// also if the thread that launches makes many calls before.
func TestGangLaunchedLate(t *testing.T) {
	c := newCrew(t, "2x4090", []int{0, 1}, Watch())
	c.epoch = 1
	for r := range c.n {
		c.ok(c.launch(r, kernel.OneShot, c.streams[r]))
	}
	c.d.Host().Sleep(crewDeadline / 4)
	c.sync(0)
	c.epoch++
	began := c.d.Host().Now()
	c.ok(c.launch(0, kernel.OneShot, c.streams[0]))
	ended := make(chan api.Code)
	go func() { ended <- c.d.StreamSynchronize(c.streams[0]) }()
	for range 10 {
		time.Sleep(quiet / 4)
		require.Equal(t, api.NotReady, c.d.StreamQuery(c.streams[0]))
	}
	c.ok(c.launch(1, kernel.OneShot, c.streams[1]))
	require.Equal(t, api.Success, <-ended)
	c.sync(1)
	require.Equal(t, kernel.StatusNone, c.status(0).Code)
	require.Less(t, c.d.Host().Now()-began, crewDeadline/2)
}

// The same of a thread that sleeps.
func TestGangSleeper(t *testing.T) {
	c := newCrew(t, "2x4090", []int{0, 1})
	c.epoch = 1
	c.ok(c.launch(0, kernel.OneShot, c.streams[0]))
	slept := make(chan struct{})
	go func() { c.d.Host().Sleep(crewDeadline * 2); close(slept) }()
	time.Sleep(quiet / 4)
	c.ok(c.launch(1, kernel.OneShot, c.streams[1]))
	<-slept
	c.sync(0)
	require.Equal(t, kernel.StatusNone, c.status(0).Code)
}

// The same by polling, where no call waits; and a deadline longer than a test.
func TestGangAbort(t *testing.T) {
	c := newCrew(t, "2x4090", []int{0, 1})
	c.epoch = 1
	begin, end := c.event(0), c.event(0)
	c.ok(c.d.EventRecord(begin, c.streams[0]))
	c.ok(c.launch(0, kernel.TwoShot, c.streams[0]))
	c.ok(c.d.EventRecord(end, c.streams[0]))
	c.d.Host().Sleep(crewDeadline / 2)
	require.Equal(t, api.NotReady, c.d.StreamQuery(c.streams[0]))
	atomic.StoreUint32((*uint32)(c.control[0]), 1)
	took := c.timed(func() { c.sync(0) })
	require.Less(t, took, 3*kernel.LookNs*time.Nanosecond)
	ms, code := c.d.EventElapsedTime(begin, end)
	c.ok(code)
	require.GreaterOrEqual(t, time.Duration(float64(ms)*float64(time.Millisecond)), crewDeadline/2-time.Microsecond, "not before it was set")
	require.Equal(t, kernel.Status{Code: kernel.StatusAborted, Peer: 1, Epoch: 1}, c.status(0))

	// Set before the launch.
	c.epoch++
	require.Less(t, c.timed(func() { c.ok(c.launch(0, kernel.OneShot, c.streams[0])); c.sync(0) }), 3*kernel.LookNs*time.Nanosecond)
	require.Equal(t, kernel.Status{Code: kernel.StatusAborted, Peer: 1, Epoch: 2}, c.status(0))

	// Seen by a query after a sleep.
	c = newCrew(t, "2x4090", []int{0, 1})
	c.epoch = 1
	c.ok(c.launch(0, kernel.TwoShot, c.streams[0]))
	c.d.Host().Sleep(100 * time.Microsecond)
	require.Equal(t, api.NotReady, c.d.StreamQuery(c.streams[0]))
	atomic.StoreUint32((*uint32)(c.control[0]), 1)
	c.d.Host().Sleep(kernel.LookNs + c.m.spec.Calls.Wake.us())
	require.Equal(t, api.Success, c.d.StreamQuery(c.streams[0]))
}

// Two ranks in one stream can never run at once; nor can a rank on a GPU that
// hangs or is lost.
func TestGangApart(t *testing.T) {
	c := newCrew(t, "1xh200", []int{0, 0})
	c.epoch = 1
	for r := range 2 {
		c.ok(c.launch(r, kernel.Handshake, c.streams[0]))
	}
	require.InDelta(t, 2*crewDeadline, c.timed(func() { c.sync(0) }), float64(crewDeadline)/10)
	require.Equal(t, kernel.StatusTimedOut, c.status(0).Code)

	c = newCrew(t, "2x4090", []int{0, 1})
	c.epoch = 1
	c.m.Stall(1)
	for r := range 2 {
		c.ok(c.launch(r, kernel.OneShot, c.streams[r]))
	}
	c.sync(0)
	require.Equal(t, kernel.Status{Code: kernel.StatusTimedOut, Peer: 1, Epoch: 1}, c.status(0))
	c.m.Resume(1)

	c = newCrew(t, "2x4090", []int{0, 1})
	c.epoch = 1
	for r := range 2 {
		c.ok(c.launch(r, kernel.OneShot, c.streams[r]))
	}
	c.m.Lose(1, 719)
	c.sync(0)
	require.Equal(t, kernel.Status{Code: kernel.StatusTimedOut, Peer: 1, Epoch: 1}, c.status(0))

	// Different grids are different exchanges: blocks would wait for no block.
	c = newCrew(t, "2x4090", []int{0, 1})
	c.epoch = 1
	c.ok(c.launch(0, kernel.OneShot, c.streams[0]))
	c.epoch = 3
	c.ok(c.launch(1, kernel.OneShot, c.streams[1]))
	c.sync(0)
	c.sync(1)
	require.Equal(t, kernel.StatusTimedOut, c.status(0).Code)
	require.Equal(t, kernel.StatusTimedOut, c.status(1).Code)
}

// A thread that waits lets another launch what is missing.
func TestGangThreads(t *testing.T) {
	c := newCrew(t, "2x4090", []int{0, 1})
	c.epoch = 1
	c.ok(c.launch(0, kernel.OneShot, c.streams[0]))
	done := make(chan api.Code)
	x := kernel.Exchange{
		Kind: kernel.OneShot, In: uint64(c.in[1]), Out: uint64(c.out[1]), Count: crewBytes / 4, Rank: 1, N: 2, Epoch: 1,
		DeadlineNs: uint64(crewDeadline), Control: uint64(c.page[1]), AreaBytes: c.areaBytes(), Area: c.areas,
	}
	go func() { done <- c.run(1, x, c.streams[1]) }()
	c.sync(0)
	c.ok(<-done)
	c.sync(1)
	require.Zero(t, c.status(0))
	require.Zero(t, c.status(1))
}

// Time: all of a gang end together, after what the links take, and a rank that
// starts late delays the others.
func TestGangTime(t *testing.T) {
	c := newCrew(t, "8x4090", []int{0, 1, 2, 3, 4, 5, 6, 7})
	c.exchange(kernel.OneShot) // loads
	for r := range c.n {
		c.sync(r)
	}
	small := c.timed(func() {
		c.exchange(kernel.OneShot)
		for r := range c.n {
			c.sync(r)
		}
	})
	require.Greater(t, small, hop)
	require.Less(t, small, 300*time.Microsecond)
	// What moves nothing takes the launch and the way of a flag.
	begin, end := c.event(7), c.event(7)
	c.epoch++
	for r := range c.n - 1 {
		c.ok(c.launch(r, kernel.Handshake, c.streams[r]))
	}
	big := c.device(7, 8<<20)
	_, p := c.pinned(8 << 20)
	c.ok(c.d.MemcpyHtoDAsync(big, p, 8<<20, c.streams[7])) // so that the rest is enqueued before it begins
	c.ok(c.d.EventRecord(begin, c.streams[7]))
	c.ok(c.launch(7, kernel.Handshake, c.streams[7]))
	c.ok(c.d.EventRecord(end, c.streams[7]))
	c.sync(7)
	ms, code := c.d.EventElapsedTime(begin, end)
	c.ok(code)
	// The stream comes from its copy to a kernel, which takes it as long as an event.
	require.InDelta(t, float64(c.m.spec.GPUs[7].Event.us()+c.m.spec.GPUs[7].Launch.us()+hop), float64(ms)*1e6, 10)

	// Behind 8 MiB from pinned memory, one rank is late.
	big = c.device(3, 8<<20)
	wait := c.timed(func() {
		c.ok(c.d.MemcpyHtoDAsync(big, p, 8<<20, c.streams[3]))
		c.exchange(kernel.OneShot)
		c.sync(0)
	})
	require.Greater(t, wait, 300*time.Microsecond)
}

// What does not parse, or is not in reach, loses the context as a fault does.
func TestGangFaults(t *testing.T) {
	c := newCrew(t, "2x4090", []int{0, 1})
	c.epoch = 1 << 32
	c.ok(c.launch(0, kernel.OneShot, c.streams[0]))
	require.Equal(t, api.LaunchFailed, c.d.StreamSynchronize(c.streams[0]))

	c = newCrew(t, "2x4090", []int{0, 1})
	c.epoch = 1
	c.in[0] = 64
	for r := range 2 {
		c.ok(c.launch(r, kernel.OneShot, c.streams[r]))
	}
	require.Equal(t, api.IllegalAddress, c.d.StreamSynchronize(c.streams[0]))
	// The fault ends the other GPU's kernel too, which waits for it.
	require.Equal(t, api.IllegalAddress, c.d.StreamSynchronize(c.streams[1]))

	// An area that something else writes while it is in use: no hang.
	c = newCrew(t, "2x4090", []int{0, 1})
	c.epoch = 1
	for r := range 2 {
		c.ok(c.launch(r, kernel.OneShot, c.streams[r]))
	}
	for range 8 {
		// Some of these run between the steps.
		c.ok(c.d.MemcpyHtoDAsync(api.Ptr(c.areas[0]), unsafe.Pointer(unsafe.SliceData(bytes.Repeat([]byte{9}, 4<<10))), 4<<10, c.stream(1)))
	}
	c.sync(0)
	c.sync(1)
}

func TestGangEcho(t *testing.T) {
	for _, k := range []kernel.Kind{kernel.EchoWords, kernel.EchoBulk} {
		c := newCrew(t, "2x4090", []int{0, 0})
		const n = 64
		x := kernel.Exchange{
			Kind: k, In: 1, Count: n, Rank: 1, N: 2, Epoch: 3, DeadlineNs: 1e6, Control: uint64(c.page[1]), AreaBytes: c.areaBytes(), Area: c.areas,
		}
		flags, words, bulk := kernel.Half(x.AreaBytes, 3)
		for i := range n / 4 {
			if k == kernel.EchoWords {
				*(*uint64)(unsafe.Add(c.host[0], words+8*uint64(i))) = uint64(i) | 3<<32
			} else {
				*(*uint32)(unsafe.Add(c.host[0], bulk+4*uint64(i))) = uint32(i)
			}
		}
		*(*uint64)(unsafe.Add(c.host[0], flags)) = 3<<32 | 1
		c.ok(c.run(1, x, c.streams[1]))
		c.sync(1)
		for i := range n / 4 {
			if k == kernel.EchoWords {
				require.Equal(t, uint64(^uint32(i))|3<<32, *(*uint64)(unsafe.Add(c.host[1], words+8*uint64(i))))
			} else {
				require.Equal(t, ^uint32(i), *(*uint32)(unsafe.Add(c.host[1], bulk+4*uint64(i))))
			}
		}
		require.Zero(t, c.status(1))
	}
}
