// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// rig is a machine with a current context for each GPU, used from one locked
// thread. What it makes is not given back.
type rig struct {
	t   testing.TB
	m   *Machine
	d   api.Driver
	ctx []api.Context
}

func newRig(t testing.TB, opts ...Option) *rig {
	m, err := Open("2x4090", opts...)
	require.NoError(t, err)
	return newRigOf(t, m)
}

func newRigOf(t testing.TB, m *Machine) *rig {
	runtime.LockOSThread()
	r := &rig{t: t, m: m, d: seam{m}}
	for i := range m.gpus {
		c, code := r.d.DevicePrimaryCtxRetain(api.Device(i))
		require.Equal(t, api.Success, code)
		r.ctx = append(r.ctx, c)
	}
	r.ok(r.d.CtxPushCurrent(r.ctx[0]))
	t.Cleanup(func() {
		for {
			if _, code := r.d.CtxPopCurrent(); code != api.Success {
				break
			}
		}
		runtime.UnlockOSThread()
	})
	return r
}

func (r *rig) ok(c api.Code) {
	r.t.Helper()
	require.Equal(r.t, api.Success, c)
}

func (r *rig) use(gpu int) { r.t.Helper(); r.ok(r.d.CtxSetCurrent(r.ctx[gpu])) }

func (r *rig) stream(gpu int) api.Stream {
	r.t.Helper()
	r.use(gpu)
	s, c := r.d.StreamCreate(api.StreamNonBlocking)
	r.ok(c)
	return s
}

func (r *rig) event(gpu int) api.Event {
	r.t.Helper()
	r.use(gpu)
	e, c := r.d.EventCreate(api.EventDefault)
	r.ok(c)
	return e
}

func (r *rig) device(gpu int, n uint64) api.Ptr {
	r.t.Helper()
	r.use(gpu)
	p, c := r.d.MemAlloc(n)
	r.ok(c)
	return p
}

func (r *rig) pinned(n uint64) ([]byte, unsafe.Pointer) {
	r.t.Helper()
	p, c := r.d.MemHostAlloc(n, api.HostPortable|api.HostDeviceMap)
	r.ok(c)
	return unsafe.Slice((*byte)(p), n), p
}

// function loads PTX that declares an entry and finds it.
func (r *rig) function(entry string) api.Function {
	r.t.Helper()
	mod, c := r.d.ModuleLoadData(PTX(entry), nil)
	r.ok(c)
	f, c := r.d.ModuleGetFunction(mod, entry)
	r.ok(c)
	return f
}

func launch(s api.Stream, params ...byte) *api.Launch {
	return &api.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}, Stream: s, Params: params}
}

func init() {
	// gp_test_spin does nothing for as many microseconds as its parameter says.
	RegisterKernel("gp_test_spin", Kernel{
		Run:   func([]byte, Memory) error { return nil },
		Takes: func(p []byte) time.Duration { return time.Duration(p[0]) * time.Microsecond },
	})
	// gp_test_wild writes where nothing is.
	RegisterKernel("gp_test_wild", Kernel{Run: func(_ []byte, m Memory) error {
		_, err := m.Bytes(1<<49-8, 8)
		return err
	}})
}

func copyParams(dst, src api.Ptr, n uint64) []byte {
	k := kernel.Copy{Dst: uint64(dst), Src: uint64(src), Bytes: n}
	return k.Append(nil)
}

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

func TestStagedCopy(t *testing.T) {
	// The whole path: GPU 0 to pinned memory to GPU 1, ordered by one event.
	for seed := range uint64(20) {
		r := newRig(t, Seed(seed))
		const n = 1 << 20
		host, hp := r.pinned(n)
		src, dst := r.device(0, n), r.device(1, n)
		out, in := r.stream(0), r.stream(1)
		e := r.event(0)
		r.ok(r.d.MemsetD8Async(src, 7, n, out))
		r.ok(r.d.MemcpyDtoHAsync(hp, src, n, out))
		r.ok(r.d.EventRecord(e, out))
		r.ok(r.d.StreamWaitEvent(in, e))
		r.ok(r.d.MemcpyHtoDAsync(dst, hp, n, in))
		r.ok(r.d.StreamSynchronize(in))
		got := make([]byte, n)
		r.use(1)
		r.ok(r.d.MemcpyDtoH(unsafe.Pointer(&got[0]), dst, n))
		want := make([]byte, n)
		fill(want, 7)
		require.Equal(t, want, got)
		require.Equal(t, want, host)
	}
}

func TestMissingWaitShows(t *testing.T) {
	wrong := 0
	for seed := uint64(1); seed <= 20; seed++ {
		r := newRig(t, Seed(seed))
		const n = 4096
		_, hp := r.pinned(n)
		src, dst := r.device(0, n), r.device(1, n)
		out, in := r.stream(0), r.stream(1)
		r.ok(r.d.MemsetD8Async(src, 7, n, out))
		r.ok(r.d.MemcpyDtoHAsync(hp, src, n, out))
		// Here the wait is left out.
		r.ok(r.d.MemcpyHtoDAsync(dst, hp, n, in))
		r.ok(r.d.StreamSynchronize(in))
		got := make([]byte, n)
		r.use(1)
		r.ok(r.d.MemcpyDtoH(unsafe.Pointer(&got[0]), dst, n))
		if got[0] != 7 {
			wrong++
		}
	}
	require.Positive(t, wrong)
}

func TestShippedPTX(t *testing.T) {
	// The embedded modules load, and their parameter lists are what launches pass.
	r := newRig(t)
	for _, mod := range kernel.Modules() {
		b, err := os.ReadFile(filepath.Join("..", "..", "ptx", "embedded", mod.Name()+".ptx"))
		require.NoError(t, err)
		log := make([]byte, 256)
		h, c := r.d.ModuleLoadData(append(b, 0), log)
		require.Equal(t, api.Success, c, "%s: %s", mod.Name(), log)
		for _, f := range r.m.modules[h].entry {
			want := kernel.ExchangeBytes
			switch mod.Kernel {
			case "fold":
				want = kernel.FoldBytes
			case "copy":
				want = kernel.CopyBytes
			}
			require.Equal(t, want, f.params, "%s", f.name)
		}
	}
}
