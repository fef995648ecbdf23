// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
	"github.com/geforce-p2p/geforce-p2p/internal/ptxvm"
)

// lengths are the elements of the folds under test.
var lengths = []int{0, 1, 2, 3, 7, 17, 255, 4096}

const longLength = 1<<20 + 3

// A shape is how a fold's buffers lie, in elements off a multiple of 256 bytes.
type shape struct {
	name    string
	inputs  int
	dstOff  int
	inOff   func(k int) int
	dstWide bool
	inWide  uint32
	inPlace bool // the destination is input 0
	partial bool // avg without a divisor
}

// shapes covers vectors with all addresses alike, heads and tails, addresses
// that never become aligned together, one to sixteen inputs, and wide operands
// in each place. Those of the wide ones are for types that have another wide type.
func shapes(t dtype.Type) []shape {
	all := func(o int) func(int) int { return func(int) int { return o } }
	per := 16 / t.Size()
	ss := []shape{
		{name: "aligned", inputs: 2, inOff: all(0)},
		{name: "one input", inputs: 1, dstOff: 1, inOff: all(1)},
		{name: "before a vector", inputs: 3, dstOff: per - 1, inOff: all(per - 1)},
		{name: "incongruent", inputs: 5, dstOff: 1, inOff: func(k int) int { return k }},
		{name: "sixteen", inputs: 16, inOff: all(0), partial: true},
		{name: "sixteen incongruent", inputs: 16, inOff: all(1)},
		{name: "in place", inputs: 2, dstOff: 1, inOff: all(1), inPlace: true},
	}
	if t.Wide() != t {
		ss = append(ss,
			shape{name: "wide destination", inputs: 4, dstOff: 1, inOff: all(1), dstWide: true, partial: true},
			shape{name: "wide first", inputs: 2, dstOff: 3, inOff: all(3), inWide: 1},
			shape{name: "wide last", inputs: 5, inOff: all(0), inWide: 1 << 4},
			shape{name: "all wide", inputs: 3, dstOff: 1, inOff: all(1), inWide: 7, dstWide: true},
			shape{name: "wide in place", inputs: 2, inOff: all(0), inWide: 1, dstWide: true, inPlace: true, partial: true},
			shape{name: "wide incongruent", inputs: 16, dstOff: 1, inOff: func(k int) int { return k % 3 }, inWide: 0x5a5a, dstWide: true},
			shape{name: "wide sixteen", inputs: 16, dstOff: 2, inOff: all(2), inWide: 0xa5a5},
		)
	}
	return ss
}

// special is values that reductions get wrong: infinities, denormals, zeros of
// both signs, NaNs with payloads and signs; the ends of the integers.
func special(t dtype.Type) []uint64 {
	switch t {
	case dtype.Float64:
		return []uint64{0, 1 << 63, 0x7ff0000000000000, 0xfff0000000000000, 1, 1<<63 | 1, 0x000fffffffffffff,
			0x7ff8000000000000, 0xfff8000000000123, 0x7ff0000000000001, 0xffffffffffffffff,
			math.Float64bits(1), math.Float64bits(-1), math.Float64bits(math.MaxFloat64), 0x0010000000000000}
	case dtype.Float32:
		return []uint64{0, 1 << 31, 0x7f800000, 0xff800000, 1, 1<<31 | 1, 0x007fffff,
			0x7fc00000, 0xffc00123, 0x7f800001, 0xffffffff, 0x3f800000, 0xbf800000, 0x7f7fffff, 0x00800000}
	case dtype.Float16:
		return []uint64{0, 1 << 15, 0x7c00, 0xfc00, 1, 1<<15 | 1, 0x03ff,
			0x7e00, 0xfe01, 0x7c01, 0xffff, 0x3c00, 0xbc00, 0x7bff, 0x0400}
	case dtype.BFloat16:
		return []uint64{0, 1 << 15, 0x7f80, 0xff80, 1, 1<<15 | 1, 0x007f,
			0x7fc0, 0xffc1, 0x7f81, 0xffff, 0x3f80, 0xbf80, 0x7f7f, 0x0080}
	}
	n := 8 * t.Size()
	return []uint64{0, 1, ^uint64(0), 1 << (n - 1), 1<<(n-1) - 1, 2, ^uint64(0) - 1}
}

// fillPeriod is the elements after which fill repeats itself, which makes long
// buffers cheap. It is a prime, so that no vector or block repeats.
const fillPeriod = 8191

// repeat fills b with its first n bytes.
func repeat(b []byte, n int) {
	for ; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// fill writes elements of t: a quarter special, a quarter any bits, half small
// numbers, which is where rounding shows.
func fill(b []byte, t dtype.Type, r *rand.Rand) {
	if period := fillPeriod * t.Size(); len(b) > period {
		fill(b[:period], t, r)
		repeat(b, period)
		return
	}
	sp := special(t)
	for i := 0; i < len(b); i += t.Size() {
		var v uint64
		switch r.IntN(4) {
		case 0:
			v = sp[r.IntN(len(sp))]
		case 1:
			v = r.Uint64()
		default:
			x := r.NormFloat64()
			switch t {
			case dtype.Float64:
				v = math.Float64bits(x)
			case dtype.Float32:
				v = uint64(math.Float32bits(float32(x)))
			case dtype.Float16:
				v = uint64(dtype.Float16FromFloat32(float32(x)))
			case dtype.BFloat16:
				v = uint64(dtype.BFloat16FromFloat32(float32(x)))
			default:
				v = uint64(int64(100 * x))
			}
		}
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], v)
		copy(b[i:i+t.Size()], w[:])
	}
}

// settle gives all NaNs of a float type one look.
func settle(b []byte, t dtype.Type) {
	le := binary.LittleEndian
	for i := 0; t.Float() && i+t.Size() <= len(b); i += t.Size() {
		e := b[i : i+t.Size()]
		switch t {
		case dtype.Float64:
			if v := math.Float64frombits(le.Uint64(e)); v != v {
				le.PutUint64(e, dtype.NaNFloat64)
			}
		case dtype.Float32:
			if v := math.Float32frombits(le.Uint32(e)); v != v {
				le.PutUint32(e, dtype.NaNFloat32)
			}
		case dtype.Float16:
			if v := dtype.Float16ToFloat32(le.Uint16(e)); v != v {
				le.PutUint16(e, dtype.NaNFloat16)
			}
		case dtype.BFloat16:
			if v := dtype.BFloat16ToFloat32(le.Uint16(e)); v != v {
				le.PutUint16(e, dtype.NaNBFloat16)
			}
		}
	}
}

// arena is memory for the buffers of a case, at made-up or real addresses. It
// is kernel.Memory over dev and host, and ptxvm.Memory over the buffers alone.
type arena struct {
	devAt, hostAt uint64
	dev, host     []byte
	devN, hostN   int // bytes in use
	regions       []ptxvm.Region
}

// reset forgets all buffers.
func (a *arena) reset() { a.devN, a.hostN, a.regions = 0, 0, a.regions[:0] }

func (a *arena) Region(addr uint64) (ptxvm.Region, error) {
	for _, g := range a.regions {
		if addr-g.Base < uint64(len(g.Bytes)) {
			return g, nil
		}
	}
	return ptxvm.Region{}, fmt.Errorf("no buffer at %#x", addr)
}

// unwritten says of the buffer that begins at an address that nothing wrote it.
func (a *arena) unwritten(addr uint64) {
	for i := range a.regions {
		if g := &a.regions[i]; g.Base == addr {
			g.Written = ptxvm.NewWritten(uint64(len(g.Bytes)))
		}
	}
}

func (a *arena) Bytes(addr, n uint64) ([]byte, error) {
	switch {
	case addr >= a.devAt && addr+n <= a.devAt+uint64(len(a.dev)):
		return a.dev[addr-a.devAt:][:n], nil
	case addr >= a.hostAt && addr+n <= a.hostAt+uint64(len(a.host)):
		return a.host[addr-a.hostAt:][:n], nil
	}
	return nil, fmt.Errorf("no memory at %#x, %d bytes", addr, n)
}

// guard is the bytes around each buffer that no kernel may touch.
const guard = 64

const guardByte = 0xa5

// place reserves n bytes, off bytes behind a multiple of 256.
func (a *arena) place(n, off int, host bool) (addr uint64, b []byte) {
	mem, used, base := a.dev, &a.devN, a.devAt
	if host {
		mem, used, base = a.host, &a.hostN, a.hostAt
	}
	at := (*used+guard+255)/256*256 + off
	*used = at + n + guard
	addr, b = base+uint64(at), mem[at:at+n:at+n]
	a.regions = append(a.regions, ptxvm.Region{Base: addr, Bytes: b})
	return addr, b
}

// A foldCase is one launch with what it must leave behind.
type foldCase struct {
	t     dtype.Type
	op    dtype.Op
	f     kernel.Fold
	dst   []byte // in the arena
	want  []byte
	exact bool // bits of NaN count too
}

// newFold lays a case out in the arena, which it uses from its start. Inputs
// alternate between host and device memory if hosts is set.
func (a *arena) newFold(t dtype.Type, op dtype.Op, count int, s shape, hosts bool, r *rand.Rand) *foldCase {
	a.reset()
	size := func(wide bool) int {
		if wide {
			return t.Wide().Size()
		}
		return t.Size()
	}
	typ := func(wide bool) dtype.Type {
		if wide {
			return t.Wide()
		}
		return t
	}
	c := &foldCase{t: t, op: op, exact: !t.Float() || op == dtype.Min || op == dtype.Max}
	c.f = kernel.Fold{Count: uint64(count), DstWide: s.dstWide, InWide: s.inWide, N: s.inputs}
	if op == dtype.Avg && !s.partial {
		c.f.Divisor = uint64(s.inputs)
	}
	var bufs [][]byte
	for k := range s.inputs {
		wide := s.inWide>>k&1 != 0
		addr, b := a.place(count*size(wide), s.inOff(k)*size(wide), hosts && k%2 == 0 && !(s.inPlace && k == 0))
		fill(b, typ(wide), r)
		c.f.In[k], bufs = addr, append(bufs, b)
	}
	if s.inPlace {
		c.f.Dst, c.dst = c.f.In[0], bufs[0]
	} else {
		c.f.Dst, c.dst = a.place(count*size(s.dstWide), s.dstOff*size(s.dstWide), false)
		for i := range c.dst {
			c.dst[i] = 0xee
		}
		a.unwritten(c.f.Dst)
	}
	c.want = make([]byte, len(c.dst))
	kernel.Reduce(t, op, c.want, s.dstWide, bufs, s.inWide, c.f.Divisor)
	if !c.exact {
		settle(c.want, typ(s.dstWide))
	}
	return c
}

// check compares the destination with what is wanted. Everything else of the
// arena is the caller's to compare.
func (c *foldCase) check(t testing.TB, name string) {
	t.Helper()
	require.NoError(t, c.compare(), name)
}

func (c *foldCase) compare() error {
	typ := c.t
	if c.f.DstWide {
		typ = c.t.Wide()
	}
	got := bytes.Clone(c.dst)
	if !c.exact {
		settle(got, typ)
	}
	if bytes.Equal(got, c.want) {
		return nil
	}
	n := typ.Size()
	for i := 0; i < len(got); i += n {
		if !bytes.Equal(got[i:i+n], c.want[i:i+n]) {
			return fmt.Errorf("element %d of %d is %x, want %x (little-endian)", i/n, len(got)/n, got[i:i+n], c.want[i:i+n])
		}
	}
	return nil
}
