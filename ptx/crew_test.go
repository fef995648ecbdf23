// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// A stage is a device with ranks on it, each a stream of one context.
type stage struct {
	*crew
	cc      *cuda.Context
	streams []*cuda.Stream
	loader  *Loader
	gpu     *cuda.Memory
	real    bool
	doing   string // what was launched last
	told    map[*cuda.Function]bool
}

func newStage(t *testing.T, d *cuda.Driver, mode Mode, n, most, out, off int) *stage {
	cc := gputest.Primary(t, gputest.Devices(t, d, 1)[0])
	l := New(d, Options{Mode: mode, CacheDir: testCache, Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	if mode == NVRTC {
		if _, err := l.Function(cc, f32, f32Sum); err != nil {
			t.Skipf("no NVRTC rung here: %v", err)
		}
	}
	a := crewArena(n, most+32, out+32)
	mem, err := cc.Alloc(len(a.dev))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, mem.Close()) })
	host, err := cc.HostAlloc(len(a.host), cuda.HostPortable|cuda.HostDeviceMap)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, host.Close()) })
	at, err := host.DevicePtr(cc)
	require.NoError(t, err)
	a.devAt, a.hostAt, a.host = uint64(mem.Ptr()), uint64(at), host.Bytes()
	s := &stage{crew: newCrew(t, n, most, out, off, a), cc: cc, loader: l, gpu: mem, real: !d.Modelled(), told: map[*cuda.Function]bool{}}
	for range n {
		st, err := cc.NewStream()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, st.Close()) })
		s.streams = append(s.streams, st)
	}
	s.together()
	return s
}

// together skips the test where the ranks' kernels do not run at once, as with
// more streams than the driver has connections to the device (eight, unless
// CUDA_DEVICE_MAX_CONNECTIONS says more).
func (s *stage) together() {
	s.epoch++
	for rank := range s.n {
		x := s.exchange(kernel.Handshake, 0, 1, 0, rank)
		x.DeadlineNs = 20e6
		s.launch(s.function(kernel.Handshake, 0), 1, kernel.BlockThreads, rank, x.Append(nil, 0))
	}
	s.wait()
	for rank := range s.n {
		if c := s.status(rank); c.Code != kernel.StatusDone {
			s.t.Skipf("the kernels of %d ranks do not run at once here: rank %d's ended with %+v", s.n, rank, c)
		}
		clear(s.at(s.control[rank], kernel.ControlBytes))
	}
}

// upload makes the device hold what the arena does, and download the reverse.
func (s *stage) upload() {
	require.NoError(s.t, s.cc.MemcpyHtoD(s.gpu.Ptr(), s.device()))
	require.NoError(s.t, s.cc.Synchronize())
}

func (s *stage) download() { require.NoError(s.t, s.cc.MemcpyDtoH(s.device(), s.gpu.Ptr())) }

func (s *stage) device() []byte { return s.mem.dev[:s.mem.devN] }

func (s *stage) function(k kernel.Kind, typ dtype.Type) *cuda.Function {
	f, err := s.loader.Function(s.cc, kernel.ExchangeModule(k, typ), kernel.ExchangeEntry(k, typ))
	require.NoError(s.t, err)
	if s.real && !s.told[f] {
		s.told[f] = true
		regs, err := f.Attribute(cuda.FuncNumRegs)
		require.NoError(s.t, err)
		local, err := f.Attribute(funcLocalSizeBytes)
		require.NoError(s.t, err)
		s.t.Logf("%s: %d registers, %d bytes of local memory", kernel.ExchangeEntry(k, typ), regs, local)
	}
	return f
}

// funcLocalSizeBytes is CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES.
const funcLocalSizeBytes cuda.FunctionAttribute = 3

func (s *stage) launch(f *cuda.Function, grid, block uint32, rank int, params []byte) {
	cfg := cuda.LaunchConfig{Grid: [3]uint32{grid}, Block: [3]uint32{block}}
	require.NoError(s.t, f.Launch(cfg, s.streams[rank], params))
}

// wait is until all ranks' streams are idle, at most some deadlines' time. A
// kernel that does not end would hold up all that the test does from then on,
// the end of the process included: that is said, and the process left.
func (s *stage) wait() {
	if !s.real {
		for _, st := range s.streams {
			require.NoError(s.t, st.Synchronize())
		}
		return
	}
	start := time.Now()
	for i, st := range s.streams {
		for {
			idle, err := st.Query()
			require.NoError(s.t, err, s.doing)
			if idle {
				break
			}
			if time.Since(start) > 5*crewDeadline {
				s.leave(i)
			}
		}
	}
}

func (s *stage) leave(rank int) {
	fmt.Fprintf(os.Stderr, "%s: %s: rank %d's kernel has not ended\n", s.t.Name(), s.doing, rank)
	report := func(when string) (busy int) {
		for r, st := range s.streams {
			idle, err := st.Query()
			if !idle {
				busy++
			}
			flags, words, bulk := kernel.Half(s.bytes, s.epoch)
			fmt.Fprintf(os.Stderr, "%s: rank %d: idle %t, %v, status %+v, area: flags %x, words %x, bulk %x\n", when, r, idle, err, s.status(r),
				s.at(s.area[r]+flags, 16), s.at(s.area[r]+words, 64), s.at(s.area[r]+bulk, 32))
		}
		return busy
	}
	report("as found")
	for r := range s.n {
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&s.at(s.control[r]+kernel.AbortWord, 4)[0])), 1)
	}
	time.Sleep(time.Second)
	if report("1 s after the abort word") == 0 {
		s.t.Fatal("ended by the abort word alone")
	}
	os.Exit(1)
}

// eachStage runs f on a simulated machine, on twins and on the PTX itself, and on
// the hardware by both rungs.
func eachStage(t *testing.T, f func(t *testing.T, d *cuda.Driver, mode Mode)) {
	t.Run("sim", func(t *testing.T) { f(t, gputest.Sim(t, "1xh200"), PTX) })
	t.Run("interpreted", func(t *testing.T) { f(t, interpreted(t, "1xh200"), PTX) })
	t.Run("gpu ptx", func(t *testing.T) { f(t, gputest.Hardware(t), PTX) })
	t.Run("gpu nvrtc", func(t *testing.T) { f(t, gputest.Hardware(t), NVRTC) })
}

// Every kind, type and op, by ranks on one device, against the reference.
func TestExchange(t *testing.T) {
	eachStage(t, func(t *testing.T, d *cuda.Driver, mode Mode) {
		for ni, n := range []int{1, 2, 3, 4, 8, 16} {
			const most = 17_001 * 8
			off := []int{0, 8}[ni%2]
			if (slow || isInterpreted(d)) && n > 3 {
				continue
			}
			t.Run(fmt.Sprint(n, " ranks"), func(t *testing.T) {
				s := newStage(t, d, mode, n, most, most, off)
				r := rand.New(rand.NewPCG(uint64(n), 21))
				for ti, typ := range dtype.Types {
					for ki, k := range reducing {
						f := s.function(k, typ)
						for i, count := range []int{1, 7, 1023, 5_000, 17_000} {
							if (slow || isInterpreted(d)) && count > 2000 || d.Modelled() && count > 2000 && (ti+ki+i+n)%6 != 0 {
								continue // the twin is slow
							}
							if isInterpreted(d) && (count > 1000 && (ti+ki+n)%3 != 0 || slow && (count > 7 || n > 2)) {
								continue
							}
							s.epoch++
							op := dtype.Ops[(ti+ki+i+n)%5]
							divisor := uint64(0)
							if op == dtype.Avg && i%2 == 0 {
								divisor = uint64(n)
							}
							bytesOf := count * typ.Size()
							inPlace := (i+ki)%2 == 0
							shift := uint64((i + ti) % 3 * typ.Size())
							ins := make([][]byte, n)
							for r2 := range n {
								b := s.at(s.in[r2]+shift, bytesOf)
								fill(b, typ, r)
								ins[r2] = bytes.Clone(b)
							}
							want := make([]byte, bytesOf)
							kernel.Reduce(typ, op, want, false, ins, 0, divisor)
							s.upload()
							before := bytes.Clone(s.device())
							grid, block := kernel.ExchangeShape(k, uint64(bytesOf), n, n)
							if i == 2 {
								grid = kernel.MaxExchangeBlocks / uint32(max(n/4, 1)) // also blocks without work
							}
							out := func(r int) uint64 {
								if inPlace {
									return s.in[r] + shift
								}
								return s.out[r]
							}
							name := fmt.Sprintf("%v %v of %d %v by %d ranks, offset %d, in place %t, epoch %d, %d blocks of %d", k, op, count, typ, n, off+int(shift), inPlace, s.epoch, grid, block)
							if s.doing = name; s.real && i == 0 {
								t.Log(name)
							}
							for _, rank := range r.Perm(n) {
								x := s.exchange(k, op, count, divisor, rank)
								x.In, x.Out = x.In+shift, out(rank)
								s.launch(f, grid, block, rank, x.Append(nil, typ))
							}
							s.wait()
							s.download()
							for r2 := range n {
								got := s.at(out(r2), bytesOf)
								if typ.Float() && op != dtype.Min && op != dtype.Max {
									settle(got, typ)
									settle(want, typ)
								}
								require.True(t, bytes.Equal(want, got), "%s: rank %d", name, r2)
								require.Zero(t, s.status(r2), name)
								copy(got, before[out(r2)-s.mem.devAt:])
							}
							require.True(t, bytes.Equal(before, s.device()), "%s: wrote outside", name)
						}
					}
				}
			})
		}
	})
}

func TestGather(t *testing.T) {
	eachStage(t, func(t *testing.T, d *cuda.Driver, mode Mode) {
		for _, n := range []int{2, 3, 8} {
			const most = 20_000
			s := newStage(t, d, mode, n, most, most*n, 3)
			f := s.function(kernel.Gather, 0)
			r := rand.New(rand.NewPCG(uint64(n), 22))
			for _, count := range []int{1, 8, 9, 4096, 19_999, most} {
				if isInterpreted(d) && count > 4096 {
					continue
				}
				s.epoch++
				var want []byte
				for r2 := range n {
					b := s.at(s.in[r2], count)
					fill(b, dtype.Uint8, r)
					want = append(want, b...)
				}
				s.upload()
				grid, block := kernel.ExchangeShape(kernel.Gather, uint64(count), n, n)
				s.doing = fmt.Sprintf("gather of %d bytes by %d ranks", count, n)
				for _, rank := range r.Perm(n) {
					x := s.exchange(kernel.Gather, 0, count, 0, rank)
					s.launch(f, grid, block, rank, x.Append(nil, 0))
				}
				s.wait()
				s.download()
				for r2 := range n {
					require.True(t, bytes.Equal(want, s.at(s.out[r2], len(want))), "%d bytes of %d ranks, rank %d", count, n, r2)
				}
			}
		}
	})
}

func TestHandshake(t *testing.T) {
	eachStage(t, func(t *testing.T, d *cuda.Driver, mode Mode) {
		s := newStage(t, d, mode, 8, 64, 64, 0)
		f := s.function(kernel.Handshake, 0)
		grid, block := kernel.ExchangeShape(kernel.Handshake, 1, s.n, s.n)
		for s.epoch = 2; s.epoch < 20; s.epoch++ {
			s.doing = fmt.Sprint("handshake ", s.epoch)
			for rank := range s.n {
				x := s.exchange(kernel.Handshake, 0, 1, 0, rank)
				s.launch(f, grid, block, rank, x.Append(nil, 0))
			}
			s.wait()
			for rank := range s.n {
				require.Equal(t, kernel.Status{Code: kernel.StatusDone, Epoch: uint32(s.epoch)}, s.status(rank))
			}
		}
	})
}

// One launch is left out. The others end at their deadline; or within 50 ms of
// the abort word, and the device is as good as before.
func TestExchangeEnds(t *testing.T) {
	eachStage(t, func(t *testing.T, d *cuda.Driver, mode Mode) {
		now := hook.Seam(d).Host().Now // virtual where the driver is
		for _, k := range []kernel.Kind{kernel.OneShot, kernel.TwoShotLL, kernel.TwoShot, kernel.Gather, kernel.Handshake} {
			typ, count := dtype.Type(0), 40_000
			if k.Reduces() {
				typ, count = dtype.Float32, 10_000
			}
			if isInterpreted(d) {
				count /= 20
			}
			if k == kernel.Handshake {
				count = 1
			}
			for _, want := range []kernel.StatusCode{kernel.StatusTimedOut, kernel.StatusAborted} {
				s := newStage(t, d, mode, 4, 40_000, 160_000, 0)
				s.upload() // the interpreter reads nothing that was not written
				f := s.function(k, typ)
				s.epoch++
				grid, block := kernel.ExchangeShape(k, 40_000, s.n, s.n)
				s.doing = fmt.Sprintf("%v without one of %d ranks, to end with status %v", k, s.n, want)
				deadline := 20 * time.Millisecond
				if want == kernel.StatusAborted {
					deadline = crewDeadline
				}
				start := now()
				for rank := range s.n - 1 {
					x := s.exchange(k, 0, count, 0, rank)
					x.DeadlineNs = uint64(deadline)
					s.launch(f, grid, block, rank, x.Append(nil, typ))
				}
				if want == kernel.StatusAborted {
					if s.real {
						time.Sleep(5 * time.Millisecond) // what the others have put out comes in first
					}
					done, err := s.streams[0].Query()
					require.NoError(t, err)
					require.False(t, done)
					start = now()
					for rank := range s.n {
						atomic.StoreUint32((*uint32)(unsafe.Pointer(&s.at(s.control[rank]+kernel.AbortWord, 4)[0])), 1)
					}
				}
				s.wait()
				took := now() - start
				if want == kernel.StatusAborted {
					require.Less(t, took, 50*time.Millisecond, "%v", k)
				} else {
					require.Greater(t, took, deadline*9/10, "%v", k)
					require.Less(t, took, deadline+50*time.Millisecond, "%v", k)
				}
				for rank := range s.n - 1 {
					require.Equal(t, kernel.Status{Code: want, Peer: uint8(s.n - 1), Epoch: uint32(s.epoch)}, s.status(rank), "%v", k)
				}
			}
		}
	})
}

// The helpers that all of these kernels share, between a GPU and the CPU, which
// one card's cache does not join: ten million words each way, as LL words and in
// bulk, by both rungs.
func TestEcho(t *testing.T) {
	d := gputest.Hardware(t)
	for _, mode := range []Mode{PTX, NVRTC} {
		for _, k := range []kernel.Kind{kernel.EchoWords, kernel.EchoBulk} {
			t.Run(fmt.Sprint(map[Mode]string{PTX: "ptx", NVRTC: "nvrtc"}[mode], " ", k), func(t *testing.T) {
				const size, total, grid = 128 << 10, 10_000_000, 8
				s := newStage(t, d, mode, 2, size, size, 0)
				s.epoch = 1<<31 + 1
				e := newEcho(s.exchange(k, 0, size, 0, 1), (total+size/4-1)/(size/4), grid, s.at(s.area[0], int(s.bytes)), s.at(s.area[1], int(s.bytes)))
				e.x.DeadlineNs = uint64(crewDeadline)
				start := time.Now()
				s.doing = k.String()
				s.launch(s.function(k, 0), grid, kernel.BlockThreads, 1, e.x.Append(nil, 0))
				for b := range e.x.In {
					e.post(b)
					for limit := time.Now().Add(5 * time.Second); ; {
						all, wrong := e.take(b)
						require.Equal(t, -1, wrong, "batch %d of %d", b, e.x.In)
						if all {
							break
						}
						require.True(t, time.Now().Before(limit), "no answer to batch %d", b)
					}
				}
				s.wait()
				require.Zero(t, s.status(1))
				t.Logf("%d words each way, %d at a time: %v", e.x.In*e.words(), e.words(), time.Since(start))
			})
		}
	}
}
