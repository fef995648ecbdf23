// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp/internal/plan"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

func simulatedGroup(t *testing.T, d *cuda.Driver, h slog.Handler) *Group {
	g, err := Open(Options{Driver: d, P2P: P2POff, PinnedBytes: MinPinnedBytes, Logger: slog.New(h)})
	require.NoError(t, err)
	t.Cleanup(func() { _ = g.Close() })
	return g
}

func machine(t *testing.T, o ...sim.Option) *sim.Machine {
	m, err := sim.Open("2x4090", o...)
	require.NoError(t, err)
	return m
}

// TestFreeBesideCall: a buffer that is freed while a call on it waits for its
// turn is used by the call or refused by it, and never used after.
func TestFreeBesideCall(t *testing.T) {
	for _, freeFirst := range []bool{false, true} {
		g := simulatedGroup(t, machine(t).Driver(), slog.DiscardHandler)
		a, err := g.ranks[0].Alloc(TypeUint8, 1<<20)
		require.NoError(t, err)
		b, err := g.ranks[1].Alloc(TypeUint8, 1<<20)
		require.NoError(t, err)
		g.mu.Lock() // somebody enqueues something long
		copied, freed := make(chan error, 1), make(chan error, 1)
		cp := func() { w, err := g.Copy(b, a); copied <- errors.Join(err, w.Wait(context.Background())) }
		free := func() { freed <- a.Free() }
		first, second := cp, free
		if freeFirst {
			first, second = free, cp
		}
		go first()
		time.Sleep(20 * time.Millisecond)
		go second()
		time.Sleep(20 * time.Millisecond)
		g.mu.Unlock()
		if err := <-copied; err != nil {
			require.ErrorIs(t, err, ErrClosed)
		}
		require.NoError(t, <-freed)
		require.NoError(t, g.Err())
	}
}

// TestHostKernelThatFailsIsOver: a launch that went out is over when its call
// reports that something behind it failed.
func TestHostKernelThatFailsIsOver(t *testing.T) {
	d, tp := gputest.Tapped(t, machine(t).Driver())
	g := simulatedGroup(t, d, slog.DiscardHandler)
	r := g.ranks[0]
	b, err := Upload(context.Background(), r, make([]uint8, 4096))
	require.NoError(t, err)
	h, err := r.cc.HostAlloc(4096, 0)
	require.NoError(t, err)
	defer h.Close()
	host := unsafe.Slice(&h.Bytes()[0], 4096)
	for i := range host {
		host[i] = 7
	}
	_, err = hostKernel("copy_to_host", b, unsafe.Pointer(&host[0]), 4096, Sum) // loads the kernel
	require.NoError(t, err)
	require.NoError(t, r.stream.Synchronize())
	for i := range host {
		host[i] = 7
	}
	tp.Fail("EventRecord", 1, api.OutOfMemory)
	_, err = hostKernel("copy_to_host", b, unsafe.Pointer(&host[0]), 4096, Sum)
	require.ErrorIs(t, err, cuda.ErrOutOfMemory)
	require.NoError(t, g.Err())
	seen := host[0]
	require.NoError(t, r.stream.Synchronize())
	require.Equal(t, seen, host[0], "the kernel wrote after the call had failed")
}

var lateOnce sync.Once

// late is a test kernel that takes an hour.
func late(t *testing.T) func(r *Rank) {
	const entry = "gp_test_late"
	lateOnce.Do(func() {
		sim.RegisterKernel(entry, sim.Kernel{Run: func([]byte, kernel.Memory) error { return nil }, Takes: func([]byte) time.Duration { return time.Hour }})
	})
	return func(r *Rank) {
		mod, err := r.cc.LoadModule(sim.PTX(entry))
		require.NoError(t, err)
		t.Cleanup(func() { _ = mod.Close() })
		f, err := mod.Function(entry)
		require.NoError(t, err)
		require.NoError(t, f.Launch(cuda.LaunchConfig{}, r.stream, nil))
	}
}

// TestCancelledUpload returns at once, and its memory is freed when the device
// has got to it.
func TestCancelledUpload(t *testing.T) {
	m := machine(t)
	g := simulatedGroup(t, m.Driver(), slog.DiscardHandler)
	r := g.ranks[0]
	late(t)(r)
	ctx, cancel := context.WithCancel(context.Background())
	began := g.Now()
	go func() { time.Sleep(5 * time.Millisecond); cancel() }()
	_, err := Upload(ctx, r, make([]float32, 1000))
	require.ErrorIs(t, err, context.Canceled)
	require.Less(t, g.Now()-began, time.Hour, "it waited for the device")
	require.Len(t, r.orphans, 1)
	require.Len(t, r.mem, 1)
	require.NoError(t, r.stream.Synchronize())
	b, err := r.Alloc(TypeUint8, 1)
	require.NoError(t, err)
	require.Empty(t, r.orphans)
	require.Len(t, r.mem, 1, "the orphan is freed")
	require.NoError(t, b.Free())
}

// TestLogHandlerMayCallTheGroup: what is logged under a lock does not reach the
// handler there.
func TestLogHandlerMayCallTheGroup(t *testing.T) {
	d, tp := gputest.Tapped(t, machine(t).Driver())
	h := &calling{called: make(chan struct{}, 1)}
	g := simulatedGroup(t, d, h)
	h.g = g
	a, err := g.ranks[0].Alloc(TypeUint8, 100)
	require.NoError(t, err)
	b, err := g.ranks[1].Alloc(TypeUint8, 100)
	require.NoError(t, err)
	tp.Fail("MemcpyDtoHAsync", 1, api.InvalidValue)
	failed := make(chan error, 1)
	go func() { _, err := g.Copy(b, a); failed <- err }()
	for range 2 {
		select {
		case err := <-failed:
			require.ErrorIs(t, err, cuda.ErrInvalidValue)
		case <-h.called:
		case <-time.After(10 * time.Second):
			t.Fatal("deadlock")
		}
	}
}

type calling struct {
	g      *Group
	called chan struct{}
}

func (h *calling) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelError }
func (h *calling) WithAttrs([]slog.Attr) slog.Handler           { return h }
func (h *calling) WithGroup(string) slog.Handler                { return h }
func (h *calling) Handle(context.Context, slog.Record) error {
	h.g.Stats()
	h.called <- struct{}{}
	return nil
}

// TestClosedStream: a buffer on a stream that was closed is refused before its
// handle reaches the driver, which may have given it out again.
func TestClosedStream(t *testing.T) {
	g := simulatedGroup(t, machine(t).Driver(), slog.DiscardHandler)
	a, err := g.ranks[0].Alloc(TypeUint8, 100)
	require.NoError(t, err)
	b, err := g.ranks[1].Alloc(TypeUint8, 100)
	require.NoError(t, err)
	s, err := g.ranks[0].cc.NewStream()
	require.NoError(t, err)
	require.NoError(t, s.Close())
	_, err = g.Copy(b, a.On(s))
	require.ErrorIs(t, err, ErrArgument)
	require.ErrorIs(t, err, ErrClosed)
	w, err := g.Copy(b, a)
	require.NoError(t, err)
	require.NoError(t, w.Wait(context.Background()))
}

// TestPlanCacheIsBounded: many-stepped plans push older ones out.
func TestPlanCacheIsBounded(t *testing.T) {
	gputest.Parallel(t)
	g := simulatedGroup(t, machine(t).Driver(), slog.DiscardHandler)
	g.mu.Lock()
	defer g.mu.Unlock()
	for k := range 8 {
		key := planKey{op: "copy", count: uint64(300+k) << 20, chunk: 16 << 10, budget: MinPinnedBytes}
		_, err := g.program(key, func() (p *plan.Plan, inline bool, err error) { return planCopy(RouteStaged, key) })
		require.NoError(t, err)
		total := 0
		for _, pr := range g.plans {
			total += len(pr.code)
		}
		require.Equal(t, total, g.code)
		require.True(t, total <= maxCode || len(g.plans) == 1)
	}
	require.Less(t, len(g.plans), 8)
}
