// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
)

// FuzzCalls makes calls of arbitrary types, sizes, offsets and pointers. Each is
// refused with ErrArgument and changes nothing, or does exactly what the host's
// model of it does; which of the two, the model knows. Whatever came before, the
// group works afterwards.
func FuzzCalls(f *testing.F) {
	// Each call is an operation and some buffers: see script.
	wrap := func(rank, base, typ byte, off, n int32) []byte {
		b := []byte{rank, base, typ}
		b = binary.LittleEndian.AppendUint32(b, uint32(off))
		return binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	cat := func(parts ...[]byte) (all []byte) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	f32 := byte(gp.TypeFloat32)
	f.Add(cat([]byte{0, 0}, wrap(0, 0, f32, 0, 100), wrap(1, 1, f32, 16, 100)))                                       // a copy
	f.Add(cat([]byte{0, 0}, wrap(0, 0, f32, 2, 10), wrap(1, 1, f32, 0, 10)))                                          // not aligned
	f.Add(cat([]byte{0, 3}, wrap(0, 0, 5, 0, 4000), wrap(0, 0, 5, 90, 4000)))                                         // overlap
	f.Add(cat([]byte{0, 0}, wrap(0, 0, 5, 4090, 7), wrap(1, 0, 5, 0, 7)))                                             // behind the end
	f.Add(cat([]byte{0, 0}, wrap(0, 0, 5, -1, 1), wrap(1, 0, 5, 0, -1)))                                              // before the start
	f.Add(cat([]byte{0, 0}, wrap(0, 0, 1, 0, math.MaxInt32), wrap(1, 0, 1, 0, math.MaxInt32)))                        // sizes that overflow
	f.Add(cat([]byte{0, 0}, wrap(0, 3, 5, 0, 8), wrap(1, 4, 5, 0, 8)))                                                // host memory, nothing
	f.Add(cat([]byte{1, 0}, wrap(0, 0, 7, 0, 64), wrap(1, 0, 7, 64, 64)))                                             // all_reduce in place
	f.Add(cat([]byte{2, 2}, wrap(0, 0, 7, 0, 64), wrap(1, 0, 7, 64, 64), wrap(0, 1, 7, 0, 64), wrap(1, 1, 7, 0, 64))) // and not
	f.Add(cat([]byte{3, 0}, wrap(0, 0, 5, 0, 200), wrap(1, 0, 5, 0, 200), wrap(0, 1, 5, 0, 100), wrap(1, 1, 5, 0, 100)))
	f.Add(cat([]byte{4, 1}, wrap(0, 0, 7, 0, 16), wrap(1, 0, 7, 0, 16), wrap(0, 1, 7, 0, 32), wrap(1, 1, 7, 0, 32)))
	f.Add(cat([]byte{5, 0}, wrap(0, 0, 5, 1, 99), wrap(1, 0, 5, 0, 99), wrap(0, 0, 5, 1, 99)))
	f.Add(cat([]byte{6, 0}, wrap(1, 0, 7, 0, 9), wrap(0, 1, 7, 0, 9), wrap(1, 1, 7, 0, 9)))
	f.Add(cat([]byte{7, 0}, wrap(0, 0, 5, 0, 20), wrap(1, 0, 5, 0, 20), wrap(0, 1, 5, 0, 20), wrap(1, 1, 5, 0, 20)))
	f.Add(cat([]byte{8, 0}, wrap(0, 0, 5, 0, 20), wrap(1, 0, 5, 0, 20), wrap(1, 1, 5, 0, 9), wrap(0, 1, 5, 0, 9)))
	f.Add(cat([]byte{9, 0}, wrap(0, 0, 5, 0, 20), []byte{10, 0}, wrap(1, 0, 5, 0, 21)))
	f.Add([]byte{11, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})
	// All inputs share a group: opening one takes longer than all that is done with
	// it. One that has gone wrong is not used again.
	var s *script
	f.Cleanup(func() {
		if s != nil {
			require.NoError(f, s.close())
		}
	})
	f.Fuzz(func(t *testing.T, in []byte) {
		if s == nil {
			s = newScript(t)
		}
		s.begin(t, in)
		defer func() {
			if t.Failed() {
				s = nil
			}
		}()
		for range 8 {
			if len(s.in) == 0 {
				break
			}
			s.call()
		}
		s.check("after all calls")
		// It still works.
		s.in = cat([]byte{1, 0}, wrap(0, 0, 7, 0, 64), wrap(1, 0, 7, 64, 64), []byte{0, 0}, wrap(0, 1, 5, 3, 99), wrap(1, 0, 5, 1, 99))
		for range 2 {
			require.True(t, s.call(), "refused")
		}
		s.check("afterwards")
		require.NoError(t, s.g.Err())
	})
}

// A script is calls as bytes say, on a group of two ranks with three allocations
// each.
type script struct {
	t      testing.TB
	in     []byte
	m      *sim.Machine
	g      *gp.Group
	mem    [2][3]gp.Buffer // by rank, of uint8, in the order of their addresses
	data   [2][3][]byte
	pinned *cuda.HostMem
	host   cuda.Ptr // pinned's
	w      gp.Work  // of the latest call
}

const scriptBytes = 4096

func newScript(t testing.TB) *script {
	m, err := sim.Open(machine, sim.Watch())
	require.NoError(t, err)
	s := &script{t: t, m: m}
	s.g, err = gp.Open(options(t, m.Driver(), 2))
	require.NoError(t, err)
	for i, rk := range s.g.Ranks() {
		for k := range s.mem[i] {
			s.mem[i][k], s.data[i][k] = alloc(t, rk, gp.TypeUint8, scriptBytes), make([]byte, scriptBytes)
		}
	}
	cc := s.g.Ranks()[0].Context()
	s.pinned, err = cc.HostAlloc(scriptBytes, 0)
	require.NoError(t, err)
	s.host, err = s.pinned.DevicePtr(cc)
	require.NoError(t, err)
	return s
}

func (s *script) close() error { return errors.Join(s.pinned.Close(), s.g.Close(), s.m.Close()) }

// begin fills all memory anew.
func (s *script) begin(t testing.TB, in []byte) {
	s.t, s.in, s.w = t, in, gp.Work{}
	r := generator("script")
	for i := range s.mem {
		for k, b := range s.mem[i] {
			copy(s.data[i][k], randomBytes(r, scriptBytes))
			require.NoError(t, b.Write(background, s.data[i][k]))
		}
	}
}

func (s *script) byte() byte {
	if len(s.in) == 0 {
		return 0
	}
	b := s.in[0]
	s.in = s.in[1:]
	return b
}

func (s *script) int32() int {
	var b [4]byte
	for i := range b {
		b[i] = s.byte()
	}
	return int(int32(binary.LittleEndian.Uint32(b[:])))
}

// A view is a buffer as the model has it.
type view struct {
	b       gp.Buffer
	rank    int
	typ     gp.Type
	mem     int
	off, n  int
	defined bool // it is a buffer at all
}

func (s *script) held(v view) []byte {
	if v.n == 0 {
		return nil
	}
	return s.data[v.rank][v.mem][v.off : v.off+v.n*v.typ.Size()]
}

func (v view) overlaps(w view) bool {
	return v.n > 0 && w.n > 0 && v.rank == w.rank && v.mem == w.mem && v.off < w.off+w.n*w.typ.Size() && w.off < v.off+v.n*v.typ.Size()
}

func (v view) same(w view) bool {
	return v.rank == w.rank && v.mem == w.mem && v.off == w.off && v.n == w.n
}

// view wraps memory as the bytes say, and holds Wrap to the model.
func (s *script) view() view {
	rank, base, typ := int(s.byte()%2), s.byte()%6, gp.Type(s.byte())
	v := view{rank: rank, typ: typ, off: s.int32(), n: s.int32(), mem: int(base % 2)}
	rk := s.g.Ranks()[rank]
	var p cuda.Ptr
	switch base {
	case 0, 1:
		p = s.mem[rank][v.mem].Ptr()
	case 2: // the other GPU's
		p = s.mem[1-rank][0].Ptr()
	case 3:
		p = s.host
	case 4: // none
	case 5:
		p = math.MaxUint64 - 100
	}
	if v.off > -1<<28 && v.off < 1<<28 { // near by, where nothing but these allocations is
		v.off %= scriptBytes + 64
	}
	p += cuda.Ptr(v.off)
	inside := false
	for k, b := range s.mem[rank] {
		if p >= b.Ptr() && p < b.Ptr()+scriptBytes {
			inside, v.mem, v.off = true, k, int(p-b.Ptr())
		}
	}
	want := typ.Valid() && v.n >= 0
	switch {
	case !want:
	case uint64(p)%uint64(typ.Size()) != 0:
		want = false
	case v.n == 0:
	default:
		want = inside && uint64(v.n)*uint64(typ.Size()) <= uint64(scriptBytes-v.off)
	}
	b, err := rk.Wrap(p, typ, v.n, rk.Stream())
	switch {
	case want:
		require.NoError(s.t, err, "%+v", v)
	default:
		require.ErrorIs(s.t, err, gp.ErrArgument, "%+v", v)
		return view{}
	}
	v.b, v.defined = b, true
	return v
}

func (s *script) views(n int) []view {
	vs := make([]view, n)
	for i := range vs {
		vs[i] = s.view()
	}
	return vs
}

func buffers(vs []view) (bs []gp.Buffer) {
	for _, v := range vs {
		bs = append(bs, v.b)
	}
	return bs
}

// call makes one call and holds it to the model. It tells whether the call was to
// be taken.
func (s *script) call() bool {
	op, arg := s.byte()%12, s.byte()
	red := gp.Op(arg % 8)
	var err error
	var taken bool
	var does func()
	switch op {
	case 0:
		vs := s.views(2)
		dst, src := vs[0], vs[1]
		s.w, err = s.g.With(gp.CallOptions{Chunk: 16 * int(arg)}).Copy(dst.b, src.b)
		taken = dst.defined && src.defined && dst.typ == src.typ && dst.n == src.n && !dst.overlaps(src)
		does = func() { copy(s.held(dst), s.held(src)) }
	case 1:
		vs := s.views(2)
		s.w, err = s.g.AllReduce(buffers(vs), red)
		taken, does = s.collective("all_reduce", vs, vs, red)
	case 2, 3, 4, 7:
		name := map[byte]string{2: "all_reduce", 3: "all_gather", 4: "reduce_scatter", 7: "all_to_all"}[op]
		vs := s.views(4)
		dst, src := vs[:2], vs[2:]
		switch op {
		case 2:
			s.w, err = s.g.AllReduceTo(buffers(dst), buffers(src), red)
		case 3:
			s.w, err = s.g.AllGather(buffers(dst), buffers(src))
		case 4:
			s.w, err = s.g.ReduceScatter(buffers(dst), buffers(src), red)
		case 7:
			s.w, err = s.g.AllToAll(buffers(dst), buffers(src))
		}
		taken, does = s.collective(name, dst, src, red)
	case 5:
		vs := s.views(3)
		s.w, err = s.g.Broadcast(buffers(vs[:2]), vs[2].b)
		taken, does = s.collective("broadcast", vs[:2], vs[2:], red)
	case 6:
		vs := s.views(3)
		s.w, err = s.g.Reduce(vs[0].b, buffers(vs[1:]), red)
		taken, does = s.collective("reduce", vs[:1], vs[1:], red)
	case 8:
		vs := s.views(4)
		s.w, err = s.g.SendRecv(gp.Transfer{Dst: vs[0].b, Src: vs[2].b}, gp.Transfer{Dst: vs[1].b, Src: vs[3].b})
		taken = true
		for i := range 2 {
			d, c := vs[i], vs[i+2]
			taken = taken && d.defined && c.defined && d.typ == c.typ && d.n == c.n
			for j := range 2 {
				taken = taken && !d.overlaps(vs[j+2]) && (i == j || !d.overlaps(vs[j]))
			}
		}
		does = func() {
			copy(s.held(vs[0]), s.held(vs[2]))
			copy(s.held(vs[1]), s.held(vs[3]))
		}
	case 9, 10:
		v := s.view()
		n := int(arg)
		if n%2 == 0 && v.defined {
			n = v.n * v.typ.Size()
		}
		b := randomBytes(generator("given", op, n), n)
		taken = v.defined && n == v.n*v.typ.Size()
		if op == 9 {
			err = v.b.Write(background, b)
			does = func() { copy(s.held(v), b) }
			break
		}
		err = v.b.Read(background, b)
		does = func() { requireBytes(s.t, s.held(v), b, "read") }
	case 11:
		typ, long := gp.Type(arg), int64(s.int32())<<32|int64(s.int32())
		n := int(long)
		if int64(n) != long || long > 1<<20 && long < 1<<45 {
			return true // the simulator would get it from the system
		}
		var b gp.Buffer
		b, err = s.g.Ranks()[0].Alloc(typ, n)
		if !typ.Valid() || n < 0 || uint64(n) > math.MaxInt/2/uint64(typ.Size()) {
			break
		}
		if errors.Is(err, cuda.ErrOutOfMemory) {
			return true
		}
		taken, does = true, func() { require.NoError(s.t, b.Free()) }
	}
	what := fmt.Sprintf("call %d, %d", op, arg)
	if !taken {
		require.ErrorIs(s.t, err, gp.ErrArgument, what)
		return false
	}
	require.NoError(s.t, err, what)
	does()
	return true
}

// collective is the model of one: whether it is taken, and what it does.
func (s *script) collective(name string, dst, src []view, red gp.Op) (taken bool, does func()) {
	c := operation{op: name, red: red, alg: gp.Algorithm(s.w.Algorithm())}
	var outs, ins [2]*view
	for side, vs := range [2][]view{dst, src} {
		for i := range vs {
			v := &vs[i]
			if !v.defined {
				return false, nil
			}
			into := &outs
			if side == 1 {
				into = &ins
			}
			if into[v.rank] != nil {
				return false, nil
			}
			into[v.rank] = v
		}
	}
	if c.reduces() && !red.Valid() {
		return false, nil
	}
	dp, sp := c.parts(2)
	first := ins[0]
	if first == nil {
		first = ins[1]
		c.root = 1
	}
	if name == "reduce" && outs[0] == nil {
		c.root = 1
	}
	if first.n%sp != 0 {
		return false, nil
	}
	c.typ, c.n = first.typ, first.n/sp
	for r := range 2 {
		if v := ins[r]; v != nil && (v.typ != c.typ || v.n != first.n) {
			return false, nil
		}
		if v := outs[r]; v != nil && (v.typ != c.typ || v.n != c.n*dp) {
			return false, nil
		}
	}
	in, both := 0, 0
	for r := range 2 {
		d, a := outs[r], ins[r]
		if d == nil || a == nil {
			continue
		}
		both++
		long, short := *d, *a
		if sp > dp {
			long, short = short, long
		}
		if dp != sp {
			long.off, long.n = long.off+r*short.n*c.typ.Size(), short.n
		}
		switch {
		case c.n == 0 || long.same(short) && name != "all_to_all":
			in++
		case d.overlaps(*a):
			return false, nil
		}
	}
	if in != 0 && in != both {
		return false, nil
	}
	return true, func() {
		var all [][]byte
		for r := range 2 {
			all = append(all, nil)
			if ins[r] != nil {
				all[r] = append(all[r], s.held(*ins[r])...)
			}
		}
		if c.n == 0 {
			return
		}
		for r, out := range c.results(s.t, all) {
			if outs[r] != nil {
				s.settle(*outs[r], c, out)
			}
		}
		if in == both && both > 0 && sp > dp {
			// What a reduction in place leaves in the rest of its source is open.
			for r := range 2 {
				got := make([]byte, len(s.held(*ins[r])))
				require.NoError(s.t, ins[r].b.Read(background, got))
				keep := append([]byte(nil), s.held(*outs[r])...)
				copy(s.held(*ins[r]), got)
				copy(s.held(*outs[r]), keep)
			}
		}
	}
}

// settle puts a result into the model. The bits of a NaN that a sum makes are open:
// they are as the device has them, if it has one there as well.
func (s *script) settle(v view, c operation, want []byte) {
	copy(s.held(v), want)
	if !c.reduces() || !c.typ.Float() {
		return
	}
	got := make([]byte, len(want))
	require.NoError(s.t, v.b.Read(background, got))
	requireElements(s.t, c.typ, c.red, want, got, "%v", c)
	copy(s.held(v), got)
}

// check reads all memory back.
func (s *script) check(when string) {
	for i := range s.mem {
		for k, b := range s.mem[i] {
			got := make([]byte, scriptBytes)
			require.NoError(s.t, b.Read(background, got))
			requireBytes(s.t, s.data[i][k], got, "%s: allocation %d of rank %d", when, k, i)
		}
	}
}
