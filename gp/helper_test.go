// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/gp/internal/plan"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
)

var background = context.Background()

const machine = "2x4090"

// each runs f on a simulated machine with two GPUs, and on the machine's own.
func each(t *testing.T, f func(t *testing.T, d *cuda.Driver)) {
	t.Helper()
	gputest.Each(t, machine, f)
}

// eachSeed is each with as many simulated machines, which differ in the order
// in which independent work runs.
func eachSeed(t *testing.T, seeds uint64, f func(t *testing.T, d *cuda.Driver)) {
	t.Helper()
	each(t, func(t *testing.T, d *cuda.Driver) {
		if !d.Modelled() {
			f(t, d)
			return
		}
		for seed := range seeds {
			t.Run(fmt.Sprintf("seed=%d", seed+1), func(t *testing.T) { f(t, simulated(t, sim.Seed(seed+1))) })
		}
	})
}

// simulated is a machine of its own, whose leaks fail the test when it ends.
func simulated(t testing.TB, opts ...sim.Option) *cuda.Driver {
	t.Helper()
	m, err := sim.Open(machine, append([]sim.Option{sim.Watch(), sim.KeepSites()}, opts...)...)
	require.NoError(t, err)
	closeMachine(t, m)
	return m.Driver()
}

func closeMachine(t testing.TB, m *sim.Machine) {
	t.Cleanup(func() {
		if err := m.Close(); err != nil && !t.Failed() {
			t.Error(err)
		}
	})
}

// small is the least pinned memory: 1 MiB of it is for the slots.
const small = gp.MinPinnedBytes

var discard = slog.New(slog.DiscardHandler)

// options are those of a group of n ranks, round robin over the driver's GPUs,
// with little pinned memory.
func options(t testing.TB, d *cuda.Driver, n int) gp.Options {
	t.Helper()
	count, err := d.DeviceCount()
	require.NoError(t, err)
	o := gp.Options{Driver: d, AllowSameGPU: n > count, PinnedBytes: small, P2P: gp.P2POff, Logger: discard}
	for i := range n {
		o.Devices = append(o.Devices, i%count)
	}
	return o
}

// open opens a group and closes it when the test ends.
func open(t testing.TB, o gp.Options) *gp.Group {
	t.Helper()
	g, err := gp.Open(o)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := g.Close(); err != nil && !t.Failed() {
			t.Error(err)
		}
	})
	return g
}

// group is a group of n ranks.
func group(t testing.TB, d *cuda.Driver, n int) *gp.Group {
	t.Helper()
	return open(t, options(t, d, n))
}

func alloc(t testing.TB, r *gp.Rank, typ gp.Type, n int) gp.Buffer {
	t.Helper()
	b, err := r.Alloc(typ, n)
	require.NoError(t, err)
	return b
}

func newStream(t testing.TB, r *gp.Rank) *cuda.Stream {
	t.Helper()
	s, err := r.Context().NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func wait(t testing.TB, w gp.Work, err error) {
	t.Helper()
	require.NoError(t, err)
	require.NoError(t, w.Wait(background))
}

// seam is the driver's, for what package cuda does not export.
func seam(d *cuda.Driver) api.Driver { return hook.Seam(d) }

// as wraps device memory of a uint8 buffer as another type, off bytes behind
// its start, on the rank's own stream.
func as(t testing.TB, b gp.Buffer, typ gp.Type, off, n int) gp.Buffer {
	t.Helper()
	v, err := b.Rank().Wrap(b.Ptr()+cuda.Ptr(off), typ, n, b.Stream())
	require.NoError(t, err)
	return v
}

func generator(parts ...any) *rand.Rand {
	h := uint64(14695981039346656037)
	for _, c := range []byte(fmt.Sprint(parts...)) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return rand.New(rand.NewPCG(h, 7))
}

func randomBytes(r *rand.Rand, n int) []byte {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], r.Uint64())
	b := make([]byte, n)
	rand.NewChaCha8(seed).Read(b)
	return b
}

// specials are float32 bits that every type's conversion has something to say about.
var specials = []uint32{
	0, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f800001, 1, 0x80000001, 0x7f7fffff, 0xff7fffff, 0x00800000, 0x477ff000, 0x38800000, 0x33000000,
}

// randomElements is n elements: numbers of everyday size, any bits at all, and,
// of the floats, the special ones.
func randomElements(r *rand.Rand, typ gp.Type, n int) []byte {
	size := typ.Size()
	if n > 1<<16+1 { // that many again and again
		return tile(randomElements(r, typ, 1<<16+1), n*size)
	}
	b := randomBytes(r, n*size)
	for i := range n {
		at := b[i*size:]
		pick := r.IntN(16)
		if pick < 2 {
			continue
		}
		f := float32(r.NormFloat64() * 4)
		if typ.Float() && pick == 2 {
			f = math.Float32frombits(specials[r.IntN(len(specials))])
		}
		switch typ {
		case gp.TypeFloat64:
			binary.LittleEndian.PutUint64(at, math.Float64bits(float64(f)))
		case gp.TypeFloat32:
			binary.LittleEndian.PutUint32(at, math.Float32bits(f))
		case gp.TypeFloat16:
			binary.LittleEndian.PutUint16(at, uint16(gp.ToFloat16(f)))
		case gp.TypeBFloat16:
			binary.LittleEndian.PutUint16(at, uint16(gp.ToBFloat16(f)))
		default:
			v := uint64(r.IntN(33))
			if typ == gp.TypeInt8 || typ == gp.TypeInt32 || typ == gp.TypeInt64 {
				v -= 16
			}
			for k := range size {
				at[k] = byte(v >> (8 * k))
			}
		}
	}
	return b
}

// tile is n bytes of b's, over and over.
func tile(b []byte, n int) []byte {
	out := make([]byte, n)
	for at := 0; at < n; {
		at += copy(out[at:], b)
	}
	return out
}

func isNaN(typ gp.Type, e []byte) bool {
	switch typ {
	case gp.TypeFloat64:
		return math.IsNaN(math.Float64frombits(binary.LittleEndian.Uint64(e)))
	case gp.TypeFloat32:
		return binary.LittleEndian.Uint32(e)&0x7fffffff > 0x7f800000
	case gp.TypeFloat16:
		return binary.LittleEndian.Uint16(e)&0x7fff > 0x7c00
	case gp.TypeBFloat16:
		return binary.LittleEndian.Uint16(e)&0x7fff > 0x7f80
	}
	return false
}

// requireElements holds a result to its reference, bit by bit but for the NaNs
// of sums, products and averages.
func requireElements(t testing.TB, typ gp.Type, op gp.Op, want, got []byte, what string, args ...any) {
	t.Helper()
	if bytes.Equal(want, got) {
		return
	}
	require.Len(t, got, len(want), what, args)
	size := typ.Size()
	wrong, first := 0, -1
	for i := 0; i < len(want); i += size {
		w, g := want[i:i+size], got[i:i+size]
		if bytes.Equal(w, g) || op != gp.Min && op != gp.Max && isNaN(typ, w) && isNaN(typ, g) {
			continue
		}
		if wrong++; first < 0 {
			first = i
		}
	}
	if wrong > 0 {
		t.Fatalf("%s: %d of %d elements of %v differ, the first is %d: got %x, want %x", fmt.Sprintf(what, args...), wrong, len(want)/size, typ,
			first/size, got[first:first+size], want[first:first+size])
	}
}

// requireBytes says where bytes differ, without printing all of them.
func requireBytes(t testing.TB, want, got []byte, what string, args ...any) {
	t.Helper()
	if at, n := differ(want, got); n > 0 {
		t.Fatalf("%s: %d of %d bytes differ, the first at %d: got %#x, want %#x", fmt.Sprintf(what, args...), n, len(want), at, got[at], want[at])
	}
}

func differ(want, got []byte) (first, n int) {
	if len(want) != len(got) {
		return 0, max(len(want), len(got))
	}
	if bytes.Equal(want, got) {
		return 0, 0
	}
	first = -1
	for i := range want {
		if want[i] != got[i] {
			if n++; first < 0 {
				first = i
			}
		}
	}
	return first, n
}

// folded is an all_reduce on the host, in the order of the ring.
func folded(t testing.TB, ins [][]byte, typ gp.Type, op gp.Op) []byte {
	t.Helper()
	p, err := plan.RingAllReduce(plan.Args{Ranks: len(ins), Count: uint64(len(ins[0]) / typ.Size()), Type: typ, Op: op})
	require.NoError(t, err)
	order, err := plan.FoldOrder(p)
	require.NoError(t, err)
	return plan.Reference(ins, typ, op, order)
}

// A producer is a kernel that keeps its GPU busy for a time and then fills
// memory with a pattern: what a copy of it must wait for.
type producer struct {
	t  testing.TB
	fn *cuda.Function
}

const produceEntry = "gp_test_produce"

const producePTX = `
.version 7.0
.target sm_80
.address_size 64

.visible .entry gp_test_produce(
	.param .u64 dst,
	.param .u64 count,
	.param .u64 seed,
	.param .u64 clocks
)
{
	.reg .pred %p<3>;
	.reg .b32 %r<10>;
	.reg .b64 %rd<10>;

	ld.param.u64 %rd1, [dst];
	ld.param.u64 %rd2, [count];
	ld.param.u64 %rd3, [seed];
	ld.param.u64 %rd4, [clocks];
	cvta.to.global.u64 %rd1, %rd1;
	mov.u64 %rd5, %clock64;
$spin:
	mov.u64 %rd6, %clock64;
	sub.s64 %rd7, %rd6, %rd5;
	setp.lt.s64 %p1, %rd7, %rd4;
	@%p1 bra $spin;

	mov.u32 %r1, %ctaid.x;
	mov.u32 %r2, %ntid.x;
	mov.u32 %r3, %tid.x;
	mad.lo.s32 %r4, %r1, %r2, %r3;
	mov.u32 %r5, %nctaid.x;
	mul.lo.s32 %r5, %r5, %r2;
	cvt.u32.u64 %r6, %rd2;
	cvt.u32.u64 %r7, %rd3;
	mul.lo.s32 %r7, %r7, 29;
$loop:
	setp.ge.u32 %p2, %r4, %r6;
	@%p2 bra $done;
	rem.u32 %r9, %r4, 65521;
	mul.lo.s32 %r8, %r9, 131;
	shr.u32 %r9, %r9, 8;
	mad.lo.s32 %r8, %r9, 7, %r8;
	add.s32 %r8, %r8, %r7;
	cvt.u64.u32 %rd8, %r4;
	add.s64 %rd9, %rd1, %rd8;
	st.global.u8 [%rd9], %r8;
	add.s32 %r4, %r4, %r5;
	bra $loop;
$done:
	ret;
}
`

// clockRate is taken for the clocks of a GPU in a second.
const clockRate = 1.7e9

func init() {
	word := func(p []byte, i int) uint64 { return binary.LittleEndian.Uint64(p[8*i:]) }
	sim.RegisterKernel(produceEntry, sim.Kernel{
		Run: func(p []byte, m sim.Memory) error {
			b, err := m.Bytes(word(p, 0), word(p, 1))
			if err != nil {
				return err
			}
			copy(b, pattern(len(b), int(word(p, 2))))
			return nil
		},
		Takes: func(p []byte) time.Duration { return time.Duration(float64(word(p, 3)) / clockRate * 1e9) },
		Touches: func(p []byte) []sim.Touch {
			return []sim.Touch{{Addr: word(p, 0), Bytes: word(p, 1), Write: true}}
		},
	})
}

// patternPeriod is a prime: two pieces of a pattern, at multiples of a round
// number, are never the same.
const patternPeriod = 65521

// pattern is what a producer leaves: byte i is k*131 + k/256*7 + seed*29, where
// k is i modulo the period.
func pattern(n, seed int) []byte {
	patterns.Lock()
	defer patterns.Unlock()
	p := &patterns.of[byte(seed)]
	if *p == nil {
		*p = make([]byte, patternPeriod)
		for i := range *p {
			(*p)[i] = byte(i*131 + (i>>8)*7 + seed*29)
		}
	}
	return tile(*p, n)
}

var patterns struct {
	sync.Mutex
	of [256][]byte // by seed, of which as much counts
}

func newProducer(t testing.TB, cc *cuda.Context) *producer {
	t.Helper()
	mod, err := cc.LoadModule([]byte(producePTX))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, mod.Close()) })
	fn, err := mod.Function(produceEntry)
	require.NoError(t, err)
	return &producer{t, fn}
}

// fill enqueues on s: after that time, n bytes at p hold the pattern of the seed.
func (p *producer) fill(s *cuda.Stream, at cuda.Ptr, n, seed int, after time.Duration) {
	p.t.Helper()
	require.NoError(p.t, p.enqueue(s, at, n, seed, after))
}

func (p *producer) enqueue(s *cuda.Stream, at cuda.Ptr, n, seed int, after time.Duration) error {
	var args cuda.Params
	args.Ptr(at).Uint64(uint64(n)).Uint64(uint64(seed)).Uint64(uint64(after.Seconds() * clockRate))
	return p.fn.Launch(cuda.LaunchConfig{Grid: [3]uint32{16}, Block: [3]uint32{256}}, s, args.Bytes())
}

// cores makes the test run on as many threads as n, also where the machine has fewer.
func cores(t testing.TB, n int) {
	old := runtime.GOMAXPROCS(n)
	t.Cleanup(func() { runtime.GOMAXPROCS(old) })
}

var allTypes, allOps = dtype.Types, dtype.Ops
