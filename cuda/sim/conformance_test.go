// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/gputest"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// The conformance test makes the same driver calls on a simulated machine and,
// where there is one, on a real GPU, and compares the answers call by call. On
// hardware every program runs in a process of its own: some of them lose their
// context, and some hold what others may not see.

// A program is a row of calls. What it is given is current on the thread and is
// not given back by it.
type conformance struct {
	name string
	gpus int
	run  func(c *trial)
}

// A trial is a program being run. It notes each answer.
type trial struct {
	d     api.Driver
	ctx   []api.Context
	Calls []answer
}

type answer struct {
	Call string   `json:"call"`
	Want api.Code `json:"want"` // what the simulator is held to
	Got  api.Code `json:"got"`
}

// is notes an answer and what it should be.
func (c *trial) is(want api.Code, call string, got api.Code) {
	c.Calls = append(c.Calls, answer{call, want, got})
}

// ok is is for what must succeed for the rest to make sense.
func (c *trial) ok(call string, got api.Code) {
	c.is(api.Success, call, got)
	if got != api.Success {
		panic(errBroken)
	}
}

var errBroken = errors.New("a call that the rest needs has failed")

func (c *trial) use(gpu int) { c.ok("CtxSetCurrent", c.d.CtxSetCurrent(c.ctx[gpu])) }

func (c *trial) device(n uint64) api.Ptr {
	p, code := c.d.MemAlloc(n)
	c.ok("MemAlloc", code)
	return p
}

func (c *trial) pinned(n uint64) unsafe.Pointer {
	p, code := c.d.MemHostAlloc(n, api.HostPortable|api.HostDeviceMap)
	c.ok("MemHostAlloc", code)
	return p
}

func (c *trial) stream(flags api.StreamFlag) api.Stream {
	s, code := c.d.StreamCreate(flags)
	c.ok("StreamCreate", code)
	return s
}

func (c *trial) event(flags api.EventFlag) api.Event {
	e, code := c.d.EventCreate(flags)
	c.ok("EventCreate", code)
	return e
}

func (c *trial) function(entry string) (api.Module, api.Function) {
	m, code := c.d.ModuleLoadData([]byte(conformancePTX+"\x00"), nil)
	c.ok("ModuleLoadData", code)
	f, code := c.d.ModuleGetFunction(m, entry)
	c.ok("ModuleGetFunction", code)
	return m, f
}

func shot(s api.Stream, params ...uint64) *api.Launch {
	l := &api.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Stream: s}
	for _, p := range params {
		l.Params = binary.LittleEndian.AppendUint64(l.Params, p)
	}
	return l
}

const conformancePTX = `
.version 7.0
.target sm_80
.address_size 64
.visible .entry gp_conform_nop()
{
	ret;
}
.visible .entry gp_conform_store(.param .u64 at)
{
	.reg .b64 %rd<2>;
	.reg .b32 %r<2>;
	ld.param.u64 %rd1, [at];
	mov.u32 %r1, 7;
	st.global.u32 [%rd1], %r1;
	ret;
}
.visible .entry gp_conform_trap()
{
	trap;
	ret;
}
.visible .entry gp_conform_spin(.param .u64 clocks)
{
	.reg .pred %p<2>;
	.reg .b64 %rd<5>;
	ld.param.u64 %rd1, [clocks];
	mov.u64 %rd2, %clock64;
$again:
	mov.u64 %rd3, %clock64;
	sub.s64 %rd4, %rd3, %rd2;
	setp.lt.s64 %p1, %rd4, %rd1;
	@%p1 bra $again;
	ret;
}
`

func init() {
	word := func(p []byte) uint64 { return binary.LittleEndian.Uint64(p) }
	sim.RegisterKernel("gp_conform_nop", sim.Kernel{Run: func([]byte, sim.Memory) error { return nil }})
	sim.RegisterKernel("gp_conform_trap", sim.Kernel{Run: func([]byte, sim.Memory) error { return errors.New("trap") }})
	sim.RegisterKernel("gp_conform_store", sim.Kernel{Run: func(p []byte, m sim.Memory) error {
		if word(p)%4 != 0 {
			return kernel.ErrMisaligned
		}
		b, err := m.Bytes(word(p), 4)
		if err == nil {
			binary.LittleEndian.PutUint32(b, 7)
		}
		return err
	}})
	sim.RegisterKernel("gp_conform_spin", sim.Kernel{
		Run:   func([]byte, sim.Memory) error { return nil },
		Takes: func(p []byte) time.Duration { return time.Duration(word(p)/2) * time.Nanosecond },
	})
}

// spinClocks is a fifth of a second or so: longer than the calls behind it take.
const spinClocks = 400_000_000

// big keeps allocations apart, so that what lies behind one is nobody's.
const big = 4 << 20

var conformances = []conformance{
	{"without a current context", 1, func(c *trial) {
		c.ok("CtxSetCurrent(0)", c.d.CtxSetCurrent(0))
		_, code := c.d.CtxGetCurrent()
		c.is(api.Success, "CtxGetCurrent", code)
		_, code = c.d.MemAlloc(64)
		c.is(api.InvalidContext, "MemAlloc", code)
		_, code = c.d.MemHostAlloc(64, 0)
		c.is(api.InvalidContext, "MemHostAlloc", code)
		_, _, code = c.d.MemGetInfo()
		c.is(api.InvalidContext, "MemGetInfo", code)
		_, code = c.d.StreamCreate(0)
		c.is(api.InvalidContext, "StreamCreate", code)
		_, code = c.d.EventCreate(0)
		c.is(api.InvalidContext, "EventCreate", code)
		_, code = c.d.CtxGetDevice()
		c.is(api.InvalidContext, "CtxGetDevice", code)
		c.is(api.InvalidContext, "CtxSynchronize", c.d.CtxSynchronize())
		c.is(api.InvalidContext, "StreamSynchronize(0)", c.d.StreamSynchronize(api.StreamNull))
		_, code = c.d.ModuleLoadData([]byte(conformancePTX+"\x00"), nil)
		c.is(api.InvalidContext, "ModuleLoadData", code)
	}},
	{"the stack of contexts", 1, func(c *trial) {
		c.is(api.Success, "CtxPushCurrent", c.d.CtxPushCurrent(c.ctx[0]))
		c.is(api.Success, "CtxPushCurrent", c.d.CtxPushCurrent(c.ctx[0]))
		for range 3 {
			_, code := c.d.CtxPopCurrent()
			c.is(api.Success, "CtxPopCurrent", code)
		}
		_, code := c.d.CtxPopCurrent()
		c.is(api.InvalidContext, "CtxPopCurrent of nothing", code)
		c.is(api.InvalidValue, "CtxPushCurrent(0)", c.d.CtxPushCurrent(0))
	}},
	{"explicit streams with no context current", 1, func(c *trial) {
		s, e, p, h := c.stream(api.StreamNonBlocking), c.event(0), c.device(64), c.pinned(64)
		c.ok("CtxSetCurrent(0)", c.d.CtxSetCurrent(0))
		c.is(api.Success, "MemcpyHtoDAsync", c.d.MemcpyHtoDAsync(p, h, 64, s))
		c.is(api.Success, "MemcpyDtoHAsync", c.d.MemcpyDtoHAsync(h, p, 64, s))
		c.is(api.Success, "EventRecord", c.d.EventRecord(e, s))
		c.is(api.Success, "StreamWaitEvent", c.d.StreamWaitEvent(s, e))
		c.is(api.Success, "StreamSynchronize", c.d.StreamSynchronize(s))
		c.is(api.Success, "StreamQuery", c.d.StreamQuery(s))
		c.is(api.Success, "EventQuery", c.d.EventQuery(e))
		c.is(api.Success, "EventSynchronize", c.d.EventSynchronize(e))
	}},
	{"explicit streams with another context current", 2, func(c *trial) {
		s, e, p, h := c.stream(api.StreamNonBlocking), c.event(0), c.device(64), c.pinned(64)
		c.use(1)
		c.is(api.Success, "MemcpyHtoDAsync", c.d.MemcpyHtoDAsync(p, h, 64, s))
		c.is(api.Success, "EventRecord", c.d.EventRecord(e, s))
		c.is(api.Success, "StreamWaitEvent", c.d.StreamWaitEvent(s, e))
		c.is(api.Success, "StreamSynchronize", c.d.StreamSynchronize(s))
	}},
	{"events are recorded in their own context", 2, func(c *trial) {
		s0, e := c.stream(api.StreamNonBlocking), c.event(0)
		c.use(1)
		s1 := c.stream(api.StreamNonBlocking)
		c.is(api.InvalidHandle, "EventRecord on a stream of another context", c.d.EventRecord(e, s1))
		c.is(api.Success, "EventRecord", c.d.EventRecord(e, s0))
		c.is(api.Success, "StreamWaitEvent from another context", c.d.StreamWaitEvent(s1, e))
		c.is(api.Success, "StreamSynchronize", c.d.StreamSynchronize(s1))
	}},
	{"events that were never recorded", 1, func(c *trial) {
		s, e, f := c.stream(0), c.event(0), c.event(0)
		c.is(api.Success, "EventQuery", c.d.EventQuery(e))
		c.is(api.Success, "EventSynchronize", c.d.EventSynchronize(e))
		c.is(api.Success, "StreamWaitEvent", c.d.StreamWaitEvent(s, e))
		_, code := c.d.EventElapsedTime(e, f)
		c.is(api.InvalidHandle, "EventElapsedTime", code)
	}},
	{"elapsed time", 1, func(c *trial) {
		s, a, b, quiet := c.stream(0), c.event(0), c.event(0), c.event(api.EventDisableTiming)
		_, spin := c.function("gp_conform_spin")
		c.ok("EventRecord", c.d.EventRecord(a, s))
		c.ok("LaunchKernel", c.d.LaunchKernel(spin, shot(s, spinClocks)))
		c.ok("EventRecord", c.d.EventRecord(b, s))
		c.ok("EventRecord", c.d.EventRecord(quiet, s))
		_, code := c.d.EventElapsedTime(a, b)
		c.is(api.NotReady, "EventElapsedTime", code)
		c.is(api.NotReady, "EventQuery", c.d.EventQuery(b))
		c.is(api.NotReady, "StreamQuery", c.d.StreamQuery(s))
		c.is(api.Success, "EventSynchronize", c.d.EventSynchronize(b))
		_, code = c.d.EventElapsedTime(a, b)
		c.is(api.Success, "EventElapsedTime", code)
		c.is(api.Success, "StreamSynchronize", c.d.StreamSynchronize(s))
		_, code = c.d.EventElapsedTime(a, quiet)
		c.is(api.InvalidHandle, "EventElapsedTime without timing", code)
		_, code = c.d.EventCreate(1 << 20)
		c.is(api.InvalidValue, "EventCreate with unknown flags", code)
		_, code = c.d.StreamCreate(1 << 20)
		c.is(api.InvalidValue, "StreamCreate with unknown flags", code)
	}},
	{"the legacy default stream waits for blocking streams", 1, func(c *trial) {
		blocking, free := c.stream(api.StreamDefault), c.stream(api.StreamNonBlocking)
		_, spin := c.function("gp_conform_spin")
		p := c.device(64)
		c.ok("LaunchKernel", c.d.LaunchKernel(spin, shot(blocking, spinClocks)))
		c.ok("MemsetD8Async", c.d.MemsetD8Async(p, 1, 64, api.StreamNull))
		c.ok("MemsetD8Async", c.d.MemsetD8Async(p, 1, 64, free))
		c.is(api.Success, "StreamSynchronize of a non-blocking stream", c.d.StreamSynchronize(free))
		c.is(api.NotReady, "StreamQuery(0)", c.d.StreamQuery(api.StreamNull))
		c.is(api.NotReady, "StreamQuery(1)", c.d.StreamQuery(api.StreamLegacy))
		c.is(api.Success, "StreamSynchronize(0)", c.d.StreamSynchronize(api.StreamNull))
		c.is(api.Success, "StreamQuery", c.d.StreamQuery(blocking))
	}},
	{"sizes and pointers that are wrong", 1, func(c *trial) {
		s, p, q, h := c.stream(api.StreamNonBlocking), c.device(big), c.device(big), c.pinned(64)
		c.is(api.InvalidValue, "MemsetD8Async of a byte too many", c.d.MemsetD8Async(p, 0, big+1, s))
		c.is(api.InvalidValue, "MemsetD32Async at an odd address", c.d.MemsetD32Async(p+1, 0, 1, s))
		c.is(api.InvalidValue, "MemcpyDtoDAsync of a byte too many", c.d.MemcpyDtoDAsync(p, q, big+1, s))
		c.is(api.InvalidValue, "MemcpyHtoDAsync to 0", c.d.MemcpyHtoDAsync(0, h, 64, s))
		c.is(api.InvalidValue, "MemcpyDtoHAsync from 0", c.d.MemcpyDtoHAsync(h, 0, 64, s))
		c.is(api.InvalidValue, "MemcpyDtoHAsync to nil", c.d.MemcpyDtoHAsync(nil, p, 64, s))
		c.is(api.Success, "MemcpyHtoDAsync of nothing", c.d.MemcpyHtoDAsync(p, h, 0, s))
		c.is(api.Success, "MemsetD8Async of nothing", c.d.MemsetD8Async(p, 0, 0, s))
		c.is(api.Success, "StreamSynchronize", c.d.StreamSynchronize(s))
	}},
	{"freeing", 1, func(c *trial) {
		p, h := c.device(big), c.pinned(4096)
		c.is(api.InvalidValue, "MemFree in the middle", c.d.MemFree(p+512))
		c.is(api.Success, "MemFree", c.d.MemFree(p))
		c.is(api.InvalidValue, "MemFree again", c.d.MemFree(p))
		c.is(api.InvalidValue, "MemFreeHost in the middle", c.d.MemFreeHost(unsafe.Add(h, 64)))
		c.is(api.Success, "MemFreeHost", c.d.MemFreeHost(h))
		c.is(api.InvalidValue, "MemFreeHost again", c.d.MemFreeHost(h))
		_, code := c.d.MemAlloc(0)
		c.is(api.InvalidValue, "MemAlloc(0)", code)
		_, code = c.d.MemAlloc(1 << 50)
		c.is(api.OutOfMemory, "MemAlloc(1 << 50)", code)
		_, code = c.d.MemHostAlloc(0, 0)
		c.is(api.Success, "MemHostAlloc(0)", code)
		_, code = c.d.MemHostAlloc(64, 1<<20)
		c.is(api.InvalidValue, "MemHostAlloc with unknown flags", code)
		c.is(api.Success, "CtxSynchronize", c.d.CtxSynchronize())
	}},
	{"pointers", 1, func(c *trial) {
		p, h := c.device(big), c.pinned(4096)
		attr := func(want api.Code, what string, a api.PointerAttribute, p api.Ptr) {
			_, code := c.d.PointerGetAttribute(a, p)
			c.is(want, "PointerGetAttribute "+what, code)
		}
		attr(api.Success, "memory type", api.PtrMemoryType, p+1)
		attr(api.Success, "device ordinal", api.PtrDeviceOrdinal, p)
		attr(api.Success, "context", api.PtrContext, p)
		attr(api.InvalidValue, "host pointer of device memory", api.PtrHostPointer, p)
		attr(api.InvalidValue, "memory type of 8", api.PtrMemoryType, 8)
		dev, code := c.d.MemHostGetDevicePointer(h)
		c.is(api.Success, "MemHostGetDevicePointer", code)
		attr(api.Success, "memory type of host memory", api.PtrMemoryType, dev)
		attr(api.Success, "host pointer", api.PtrHostPointer, dev)
		_, code = c.d.MemHostGetFlags(h)
		c.is(api.Success, "MemHostGetFlags", code)
		_, _, code = c.d.MemGetAddressRange(p + 100)
		c.is(api.Success, "MemGetAddressRange", code)
		_, _, code = c.d.MemGetAddressRange(8)
		c.is(api.NotFound, "MemGetAddressRange(8)", code)
		var pageable [64]byte
		_, code = c.d.MemHostGetDevicePointer(unsafe.Pointer(&pageable))
		c.is(api.InvalidValue, "MemHostGetDevicePointer of pageable memory", code)
		_, code = c.d.MemHostGetFlags(unsafe.Pointer(&pageable))
		c.is(api.InvalidValue, "MemHostGetFlags of pageable memory", code)
	}},
	{"registering", 1, func(c *trial) {
		b := make([]byte, 5*4096)
		p := unsafe.Pointer(&b[4096-int(uintptr(unsafe.Pointer(&b[0]))%4096)])
		c.is(api.HostMemoryNotRegistered, "MemHostUnregister", c.d.MemHostUnregister(p))
		c.is(api.Success, "MemHostRegister", c.d.MemHostRegister(p, 2*4096, api.RegisterPortable))
		c.is(api.HostMemoryAlreadyReg, "MemHostRegister of a part", c.d.MemHostRegister(unsafe.Add(p, 4096), 2*4096, 0))
		c.is(api.InvalidValue, "MemFreeHost of registered memory", c.d.MemFreeHost(p))
		c.is(api.Success, "MemHostUnregister", c.d.MemHostUnregister(p))
		c.is(api.InvalidValue, "MemHostRegister of nil", c.d.MemHostRegister(nil, 4096, 0))
		c.is(api.InvalidValue, "MemHostRegister of nothing", c.d.MemHostRegister(p, 0, 0))
		c.is(api.InvalidValue, "MemHostRegister with unknown flags", c.d.MemHostRegister(p, 4096, 1<<20))
		runtime.KeepAlive(b)
	}},
	{"2D copies", 1, func(c *trial) {
		s, p, h := c.stream(api.StreamNonBlocking), c.device(big), c.pinned(4096)
		good := api.Copy2D{SrcHost: h, SrcPitch: 64, DstDevice: p, DstPitch: 128, Width: 32, Height: 8}
		run := func(want api.Code, what string, change func(c *api.Copy2D)) {
			bad := good
			change(&bad)
			c.is(want, "Memcpy2DAsync"+what, c.d.Memcpy2DAsync(&bad, s))
		}
		run(api.Success, "", func(*api.Copy2D) {})
		run(api.InvalidValue, " with a pitch below the width", func(c *api.Copy2D) { c.SrcPitch = 31 })
		run(api.Success, " of a row with a pitch beyond MAX_PITCH", func(c *api.Copy2D) { c.DstPitch, c.Height = 1<<31, 1 })
		run(api.Success, " of no rows", func(c *api.Copy2D) { c.Height = 0 })
		run(api.InvalidValue, " beyond the memory", func(c *api.Copy2D) { c.DstDevice = p + big - 64 })
		c.is(api.Success, "StreamSynchronize", c.d.StreamSynchronize(s))
	}},
	{"modules", 1, func(c *trial) {
		load := func(want api.Code, what, image string) {
			_, code := c.d.ModuleLoadData([]byte(image+"\x00"), nil)
			c.is(want, "ModuleLoadData of "+what, code)
		}
		load(api.UnsupportedPTXVersion, "PTX of the future", ".version 99.9\n.target sm_80\n.address_size 64\n")
		load(api.InvalidPTX, "PTX for a newer GPU", strings.Replace(conformancePTX, "sm_80", "sm_999", 1))
		m, f := c.function("gp_conform_nop")
		_, code := c.d.ModuleGetFunction(m, "gp_conform_nothing")
		c.is(api.NotFound, "ModuleGetFunction of what is not there", code)
		_, code = c.d.FuncGetAttribute(api.FuncPTXVersion, f)
		c.is(api.Success, "FuncGetAttribute", code)
		_, code = c.d.FuncGetAttribute(1000, f)
		c.is(api.InvalidValue, "FuncGetAttribute of 1000", code)
		c.is(api.Success, "ModuleUnload", c.d.ModuleUnload(m))
	}},
	{"launches", 1, func(c *trial) {
		s := c.stream(api.StreamNonBlocking)
		_, f := c.function("gp_conform_nop")
		c.is(api.Success, "LaunchKernel", c.d.LaunchKernel(f, shot(s)))
		l := shot(s)
		l.Block = [3]uint32{1024, 2, 1}
		c.is(api.InvalidValue, "LaunchKernel of a block that is too large", c.d.LaunchKernel(f, l))
		l = shot(s)
		l.Grid[1] = 0
		c.is(api.InvalidValue, "LaunchKernel of no blocks", c.d.LaunchKernel(f, l))
		c.is(api.Success, "StreamSynchronize", c.d.StreamSynchronize(s))
	}},
	{"launches on a stream of another context", 2, func(c *trial) {
		_, f := c.function("gp_conform_nop")
		s := c.stream(api.StreamNonBlocking)
		c.use(1)
		other := c.stream(api.StreamNonBlocking)
		c.is(api.InvalidHandle, "LaunchKernel", c.d.LaunchKernel(f, shot(other)))
		c.is(api.Success, "LaunchKernel with another context current", c.d.LaunchKernel(f, shot(s)))
		c.is(api.Success, "StreamSynchronize", c.d.StreamSynchronize(s))
	}},
	{"devices", 1, func(c *trial) {
		_, code := c.d.DeviceGet(99)
		c.is(api.InvalidDevice, "DeviceGet(99)", code)
		_, code = c.d.DeviceGet(-1)
		c.is(api.InvalidDevice, "DeviceGet(-1)", code)
		_, code = c.d.DeviceGetAttribute(9999, 0)
		c.is(api.InvalidValue, "DeviceGetAttribute(9999)", code)
		_, code = c.d.DeviceGetByPCIBusId("0000:ff:1f.0")
		c.is(api.InvalidDevice, "DeviceGetByPCIBusId of nobody", code)
		_, code = c.d.DeviceGetByPCIBusId("no")
		c.is(api.InvalidValue, "DeviceGetByPCIBusId of no address", code)
		id, code := c.d.DeviceGetPCIBusId(0)
		c.is(api.Success, "DeviceGetPCIBusId", code)
		_, code = c.d.DeviceGetByPCIBusId(id)
		c.is(api.Success, "DeviceGetByPCIBusId", code)
		_, code = c.d.DeviceGetP2PAttribute(api.P2PAccessSupported, 0, 0)
		c.is(api.InvalidDevice, "DeviceGetP2PAttribute of one device", code)
		c.is(api.InvalidValue, "Init(1)", c.d.Init(1))
	}},
	{"primary contexts are counted", 1, func(c *trial) {
		_, code := c.d.DevicePrimaryCtxRetain(0)
		c.is(api.Success, "DevicePrimaryCtxRetain", code)
		c.is(api.Success, "DevicePrimaryCtxRelease", c.d.DevicePrimaryCtxRelease(0))
		_, active, code := c.d.DevicePrimaryCtxGetState(0)
		c.is(api.Success, fmt.Sprintf("DevicePrimaryCtxGetState (active: %t)", active), code)
		c.is(api.Success, "DevicePrimaryCtxRelease of the last", c.d.DevicePrimaryCtxRelease(0))
		_, active, code = c.d.DevicePrimaryCtxGetState(0)
		c.is(api.Success, fmt.Sprintf("DevicePrimaryCtxGetState (active: %t)", active), code)
		c.is(api.InvalidContext, "DevicePrimaryCtxRelease of none", c.d.DevicePrimaryCtxRelease(0))
		_, code = c.d.MemAlloc(64)
		c.is(api.ContextIsDestroyed, "MemAlloc with the dead one current", code)
	}},
	{"peer access to oneself", 1, func(c *trial) {
		c.is(api.PeerAccessUnsupported, "CtxEnablePeerAccess", c.d.CtxEnablePeerAccess(c.ctx[0]))
		c.is(api.PeerAccessNotEnabled, "CtxDisablePeerAccess", c.d.CtxDisablePeerAccess(c.ctx[0]))
	}},
	{"peer access", 2, func(c *trial) {
		can, code := c.d.DeviceCanAccessPeer(0, 1)
		c.is(api.Success, "DeviceCanAccessPeer", code)
		p, s := c.device(big), c.stream(api.StreamNonBlocking)
		c.use(1)
		q := c.device(big)
		c.use(0)
		if !can {
			c.is(api.PeerAccessUnsupported, "CtxEnablePeerAccess", c.d.CtxEnablePeerAccess(c.ctx[1]))
			c.is(api.PeerAccessNotEnabled, "CtxDisablePeerAccess", c.d.CtxDisablePeerAccess(c.ctx[1]))
		} else {
			c.is(api.Success, "CtxEnablePeerAccess", c.d.CtxEnablePeerAccess(c.ctx[1]))
			c.is(api.PeerAccessAlreadyEnabled, "CtxEnablePeerAccess again", c.d.CtxEnablePeerAccess(c.ctx[1]))
			c.is(api.Success, "CtxDisablePeerAccess", c.d.CtxDisablePeerAccess(c.ctx[1]))
			c.is(api.PeerAccessNotEnabled, "CtxDisablePeerAccess again", c.d.CtxDisablePeerAccess(c.ctx[1]))
		}
		c.is(api.Success, "MemcpyPeerAsync without access", c.d.MemcpyPeerAsync(q, c.ctx[1], p, c.ctx[0], big, s))
		c.is(api.Success, "MemcpyDtoDAsync without access", c.d.MemcpyDtoDAsync(q, p, big, s))
		c.is(api.Success, "StreamSynchronize", c.d.StreamSynchronize(s))
	}},
	{"kernels reach other GPUs one way", 2, func(c *trial) {
		f := c.pair()
		if f.can {
			c.is(api.Success, "CtxEnablePeerAccess", c.d.CtxEnablePeerAccess(c.ctx[1]))
			c.is(api.Success, "LaunchKernel", c.d.LaunchKernel(f.near, shot(f.s, uint64(f.q))))
			c.is(api.Success, "StreamSynchronize", c.d.StreamSynchronize(f.s))
		}
		c.use(1)
		c.is(api.Success, "LaunchKernel the other way", c.d.LaunchKernel(f.far, shot(f.t, uint64(f.p))))
		c.is(api.IllegalAddress, "StreamSynchronize", c.d.StreamSynchronize(f.t))
		c.use(0)
		c.is(api.IllegalAddress, "StreamSynchronize of the other GPU", c.d.StreamSynchronize(f.s))
	}},
	{"an illegal address loses the other GPU's context", 2, func(c *trial) { c.loseBoth("gp_conform_store", api.IllegalAddress, 8) }},
	{"a trap loses the other GPU's context", 2, func(c *trial) { c.loseBoth("gp_conform_trap", api.LaunchFailed) }},
	{"capture: a stream that is captured", 1, func(c *trial) {
		s, p := c.stream(api.StreamNonBlocking), c.device(64)
		c.is(api.Success, "StreamBeginCapture", c.d.StreamBeginCapture(s, api.CaptureThreadLocal))
		c.is(api.IllegalState, "StreamBeginCapture again", c.d.StreamBeginCapture(s, api.CaptureThreadLocal))
		_, code := c.d.StreamIsCapturing(s)
		c.is(api.Success, "StreamIsCapturing", code)
		c.is(api.Success, "MemsetD8Async", c.d.MemsetD8Async(p, 1, 64, s))
		g, code := c.d.StreamEndCapture(s)
		c.is(api.Success, "StreamEndCapture", code)
		c.is(api.Success, "GraphDestroy", c.d.GraphDestroy(g))
		_, code = c.d.StreamEndCapture(s)
		c.is(api.IllegalState, "StreamEndCapture without a capture", code)
		c.is(api.CaptureUnsupported, "StreamBeginCapture(0)", c.d.StreamBeginCapture(api.StreamNull, api.CaptureGlobal))
		c.is(api.InvalidValue, "StreamBeginCapture in mode 7", c.d.StreamBeginCapture(s, 7))
		_, code = c.d.ThreadExchangeStreamCaptureMode(7)
		c.is(api.Success, "ThreadExchangeStreamCaptureMode(7)", code)
		c.d.ThreadExchangeStreamCaptureMode(api.CaptureGlobal)
	}},
	{"capture: calls that are not safe", 1, func(c *trial) {
		s, other, e := c.stream(api.StreamNonBlocking), c.stream(api.StreamNonBlocking), c.event(0)
		for _, call := range []struct {
			name string
			f    func() api.Code
		}{
			{"MemAlloc", func() api.Code { _, code := c.d.MemAlloc(64); return code }},
			{"MemHostAlloc", func() api.Code { _, code := c.d.MemHostAlloc(64, 0); return code }},
			{"EventQuery", func() api.Code { return c.d.EventQuery(e) }},
			{"EventSynchronize", func() api.Code { return c.d.EventSynchronize(e) }},
			{"StreamQuery", func() api.Code { return c.d.StreamQuery(other) }},
			{"StreamSynchronize", func() api.Code { return c.d.StreamSynchronize(other) }},
			{"CtxSynchronize", func() api.Code { return c.d.CtxSynchronize() }},
		} {
			c.is(api.Success, "StreamBeginCapture", c.d.StreamBeginCapture(s, api.CaptureGlobal))
			_, code := c.d.ThreadExchangeStreamCaptureMode(api.CaptureRelaxed)
			c.is(api.Success, "ThreadExchangeStreamCaptureMode", code)
			relaxed := api.Success
			if call.name == "CtxSynchronize" {
				relaxed = api.CaptureUnsupported
			}
			c.is(relaxed, call.name+" of a relaxed thread", call.f())
			_, code = c.d.ThreadExchangeStreamCaptureMode(api.CaptureGlobal)
			c.is(api.Success, "ThreadExchangeStreamCaptureMode", code)
			c.is(api.CaptureUnsupported, call.name, call.f())
			c.is(api.CaptureInvalid, "EventRecord", c.d.EventRecord(e, s))
			_, code = c.d.StreamEndCapture(s)
			c.is(api.CaptureInvalid, "StreamEndCapture", code)
		}
	}},
	{"capture: waiting for what is captured", 1, func(c *trial) {
		s := c.stream(api.StreamDefault)
		for _, wait := range []struct {
			name string
			want api.Code
			f    func() api.Code
		}{
			{"StreamQuery", api.CaptureUnsupported, func() api.Code { return c.d.StreamQuery(s) }},
			{"StreamSynchronize", api.CaptureUnsupported, func() api.Code { return c.d.StreamSynchronize(s) }},
			{"StreamQuery(0)", api.CaptureImplicit, func() api.Code { return c.d.StreamQuery(api.StreamNull) }},
			{"StreamSynchronize(0)", api.CaptureImplicit, func() api.Code { return c.d.StreamSynchronize(api.StreamNull) }},
		} {
			c.is(api.Success, "StreamBeginCapture", c.d.StreamBeginCapture(s, api.CaptureRelaxed))
			c.is(wait.want, wait.name, wait.f())
			_, code := c.d.StreamEndCapture(s)
			c.is(api.CaptureInvalid, "StreamEndCapture", code)
		}
	}},
	{"capture: the default stream beside it", 1, func(c *trial) {
		s, p := c.stream(api.StreamDefault), c.device(64)
		c.is(api.Success, "StreamBeginCapture", c.d.StreamBeginCapture(s, api.CaptureRelaxed))
		_, code := c.d.StreamIsCapturing(api.StreamNull)
		c.is(api.CaptureImplicit, "StreamIsCapturing(0)", code)
		_, code = c.d.StreamIsCapturing(s)
		c.is(api.Success, "StreamIsCapturing", code)
		c.is(api.CaptureImplicit, "MemsetD8Async on stream 0", c.d.MemsetD8Async(p, 1, 64, api.StreamNull))
		_, code = c.d.StreamEndCapture(s)
		c.is(api.CaptureInvalid, "StreamEndCapture", code)
		free := c.stream(api.StreamNonBlocking)
		c.is(api.Success, "StreamBeginCapture of a non-blocking stream", c.d.StreamBeginCapture(free, api.CaptureRelaxed))
		c.is(api.Success, "MemsetD8Async on stream 0", c.d.MemsetD8Async(p, 1, 64, api.StreamNull))
		_, code = c.d.StreamEndCapture(free)
		c.is(api.Success, "StreamEndCapture", code)
	}},
	{"capture: streams that join", 1, func(c *trial) {
		a, b, out := c.stream(api.StreamNonBlocking), c.stream(api.StreamNonBlocking), c.stream(api.StreamNonBlocking)
		fork, join, outside, p := c.event(0), c.event(0), c.event(0), c.device(64)
		begin := func() {
			c.is(api.Success, "StreamBeginCapture", c.d.StreamBeginCapture(a, api.CaptureRelaxed))
			c.is(api.Success, "MemsetD8Async", c.d.MemsetD8Async(p, 1, 64, a))
			c.is(api.Success, "EventRecord", c.d.EventRecord(fork, a))
			c.is(api.Success, "StreamWaitEvent", c.d.StreamWaitEvent(b, fork))
		}
		end := func(want api.Code) {
			_, code := c.d.StreamEndCapture(a)
			c.is(want, "StreamEndCapture", code)
		}
		begin()
		end(api.Success)
		begin()
		c.is(api.Success, "MemsetD8Async", c.d.MemsetD8Async(p, 2, 64, b))
		c.is(api.Success, "EventRecord", c.d.EventRecord(join, b))
		c.is(api.Success, "StreamWaitEvent", c.d.StreamWaitEvent(a, join))
		end(api.Success)
		begin()
		c.is(api.Success, "MemsetD8Async", c.d.MemsetD8Async(p, 2, 64, b))
		end(api.CaptureUnjoined)
		begin()
		_, code := c.d.StreamEndCapture(b)
		c.is(api.CaptureUnmatched, "StreamEndCapture of the other", code)
		c.d.StreamEndCapture(a)
		c.is(api.Success, "EventRecord", c.d.EventRecord(outside, out))
		begin()
		c.is(api.CaptureIsolation, "StreamWaitEvent for what is outside", c.d.StreamWaitEvent(a, outside))
		end(api.CaptureInvalid)
		c.is(api.InvalidValue, "EventQuery of an event of a capture that is over", c.d.EventQuery(fork))
		c.is(api.Success, "EventRecord", c.d.EventRecord(fork, out))
		c.is(api.Success, "EventSynchronize", c.d.EventSynchronize(fork))
	}},
	{"capture: two captures do not merge", 1, func(c *trial) {
		a, b, e := c.stream(api.StreamNonBlocking), c.stream(api.StreamNonBlocking), c.event(0)
		c.is(api.Success, "StreamBeginCapture", c.d.StreamBeginCapture(a, api.CaptureRelaxed))
		c.is(api.Success, "StreamBeginCapture", c.d.StreamBeginCapture(b, api.CaptureRelaxed))
		c.is(api.Success, "EventRecord", c.d.EventRecord(e, a))
		c.is(api.CaptureMerge, "StreamWaitEvent", c.d.StreamWaitEvent(b, e))
		for _, s := range []api.Stream{a, b} {
			_, code := c.d.StreamEndCapture(s)
			c.is(api.CaptureInvalid, "StreamEndCapture", code)
		}
	}},
	{"capture: another thread", 1, func(c *trial) {
		s := c.stream(api.StreamNonBlocking)
		for _, m := range []struct {
			mode  api.CaptureMode
			alloc api.Code
			end   api.Code
		}{{api.CaptureGlobal, api.CaptureUnsupported, api.CaptureInvalid}, {api.CaptureThreadLocal, api.Success, api.CaptureWrongThread}, {api.CaptureRelaxed, api.Success, api.Success}} {
			c.is(api.Success, "StreamBeginCapture", c.d.StreamBeginCapture(s, m.mode))
			var alloc, end api.Code
			done := make(chan struct{})
			go func() {
				defer close(done)
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				c.d.CtxSetCurrent(c.ctx[0])
				_, alloc = c.d.MemAlloc(64)
				_, end = c.d.StreamEndCapture(s)
				c.d.CtxSetCurrent(0)
			}()
			<-done
			c.is(m.alloc, "MemAlloc of another thread", alloc)
			c.is(m.end, "StreamEndCapture of another thread", end)
			if m.end != api.Success {
				c.d.StreamEndCapture(s)
			}
		}
	}},
	{"an illegal address loses the context", 1, func(c *trial) { c.lose("gp_conform_store", api.IllegalAddress, 8) }},
	{"a misaligned address loses the context", 1, func(c *trial) {
		c.lose("gp_conform_store", api.MisalignedAddress, uint64(c.device(big))+1)
	}},
	{"a trap loses the context", 1, func(c *trial) { c.lose("gp_conform_trap", api.LaunchFailed) }},
}

// lose launches what loses the context, and asks it everything.
// A pair is what a program needs on each of two GPUs: memory, a stream and the
// storing kernel. can: the first may have access to the second.
type pair struct {
	can       bool
	p, q      api.Ptr
	s, t      api.Stream
	near, far api.Function
}

// pair ends with the first GPU's context current.
func (c *trial) pair() (f pair) {
	var code api.Code
	f.can, code = c.d.DeviceCanAccessPeer(0, 1)
	c.is(api.Success, "DeviceCanAccessPeer", code)
	f.p, f.s = c.device(big), c.stream(api.StreamNonBlocking)
	_, f.near = c.function("gp_conform_store")
	c.use(1)
	f.q, f.t = c.device(big), c.stream(api.StreamNonBlocking)
	_, f.far = c.function("gp_conform_store")
	c.use(0)
	return f
}

// loseBoth loses the first GPU's context by a kernel, and looks at the second's,
// which has nothing to do with it; and whether new ones are to be had.
func (c *trial) loseBoth(entry string, want api.Code, params ...uint64) {
	f := c.pair()
	_, bad := c.function(entry)
	c.is(api.Success, "LaunchKernel", c.d.LaunchKernel(bad, shot(f.s, params...)))
	c.is(want, "StreamSynchronize", c.d.StreamSynchronize(f.s))
	c.use(1)
	c.is(want, "StreamSynchronize of the other GPU", c.d.StreamSynchronize(f.t))
	_, code := c.d.MemAlloc(64)
	c.is(want, "MemAlloc there", code)
	c.is(want, "LaunchKernel there", c.d.LaunchKernel(f.far, shot(f.t, uint64(f.q))))
	for i := range 2 {
		c.is(api.Success, "DevicePrimaryCtxRelease", c.d.DevicePrimaryCtxRelease(api.Device(i)))
	}
	for i := range 2 {
		fresh, code := c.d.DevicePrimaryCtxRetain(api.Device(i))
		c.is(want, "DevicePrimaryCtxRetain", code)
		c.is(api.Success, "CtxSetCurrent of none", c.d.CtxSetCurrent(fresh))
		_, code = c.d.MemAlloc(64)
		c.is(api.InvalidContext, "MemAlloc without one", code)
	}
}

func (c *trial) lose(entry string, want api.Code, params ...uint64) {
	s, other, e, p := c.stream(api.StreamNonBlocking), c.stream(api.StreamNonBlocking), c.event(0), c.device(64)
	m, f := c.function(entry)
	c.ok("EventRecord", c.d.EventRecord(e, other))
	c.ok("LaunchKernel", c.d.LaunchKernel(f, shot(s, params...)))
	c.is(want, "StreamSynchronize", c.d.StreamSynchronize(s))
	c.is(want, "StreamSynchronize again", c.d.StreamSynchronize(s))
	c.is(want, "StreamQuery of another stream", c.d.StreamQuery(other))
	c.is(want, "EventQuery", c.d.EventQuery(e))
	c.is(want, "CtxSynchronize", c.d.CtxSynchronize())
	_, code := c.d.MemAlloc(64)
	c.is(want, "MemAlloc", code)
	c.is(want, "MemsetD8Async", c.d.MemsetD8Async(p, 0, 64, other))
	var b [64]byte
	c.is(want, "MemcpyDtoH", c.d.MemcpyDtoH(unsafe.Pointer(&b), p, 64))
	c.is(want, "EventRecord", c.d.EventRecord(e, other))
	c.is(want, "LaunchKernel", c.d.LaunchKernel(f, shot(other, params...)))
	c.is(want, "MemFree", c.d.MemFree(p))
	c.is(want, "EventDestroy", c.d.EventDestroy(e))
	c.is(want, "StreamDestroy", c.d.StreamDestroy(other))
	c.is(want, "ModuleUnload", c.d.ModuleUnload(m))
	_, code = c.d.CtxGetCurrent()
	c.is(api.Success, "CtxGetCurrent", code)
	_, code = c.d.DeviceGetCount()
	c.is(api.Success, "DeviceGetCount", code)
}

// conduct runs a program on a driver. Its error is that of a program that could
// not go on.
func conduct(d api.Driver, p conformance) (calls []answer, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := &trial{d: d}
	for i := range p.gpus {
		ctx, code := d.DevicePrimaryCtxRetain(api.Device(i))
		if code != api.Success {
			return nil, fmt.Errorf("GPU %d: code %d", i, code)
		}
		c.ctx = append(c.ctx, ctx)
	}
	if code := d.CtxPushCurrent(c.ctx[0]); code != api.Success {
		return nil, fmt.Errorf("CtxPushCurrent: code %d", code)
	}
	defer func() {
		if r := recover(); r != nil && r != errBroken {
			panic(r)
		} else if r != nil {
			calls, err = c.Calls, errBroken
		}
		d.CtxSetCurrent(0)
	}()
	p.run(c)
	return c.Calls, nil
}

// The simulator answers as the table says, on machines with and without P2P.
func TestConformanceOfTheSimulator(t *testing.T) {
	for _, machine := range []string{"2x4090", "8x4090-p2p"} {
		for _, p := range conformances {
			t.Run(machine+"/"+p.name, func(t *testing.T) {
				t.Parallel()
				for _, a := range simulatedAnswers(t, machine, p) {
					require.Equal(t, a.Want, a.Got, a.Call)
				}
			})
		}
	}
}

func simulatedAnswers(t *testing.T, machine string, p conformance) []answer {
	m, err := sim.Open(machine)
	require.NoError(t, err)
	calls, err := conduct(hook.Seam(m.Driver()), p)
	require.NoError(t, err)
	require.NotEmpty(t, calls)
	_ = m.Close() // what programs leave behind is theirs
	return calls
}

const (
	conformanceEnv = "GP_CONFORMANCE_PROGRAM" // in the child: which one
	conformanceOut = "GP_CONFORMANCE_OUT"     // and where its answers go
)

// TestConformanceChild is the other process of TestConformanceOfHardware.
func TestConformanceChild(t *testing.T) {
	name := os.Getenv(conformanceEnv)
	if name == "" {
		t.Skip("only run by TestConformanceOfHardware")
	}
	d, err := cuda.Open()
	require.NoError(t, err)
	for _, p := range conformances {
		if p.name == name {
			calls, err := conduct(hook.Seam(d), p)
			b, _ := json.Marshal(calls)
			require.NoError(t, os.WriteFile(os.Getenv(conformanceOut), b, 0o666))
			require.NoError(t, err)
		}
	}
}

// A finding is a program's answers on both.
type finding struct {
	Program string     `json:"program"`
	Error   string     `json:"error,omitempty"`
	Calls   []compared `json:"calls"`
}

type compared struct {
	Call      string   `json:"call"`
	Simulator api.Code `json:"simulator"`
	Hardware  api.Code `json:"hardware"`
}

// TestConformanceOfHardware compares the real driver with the simulator, call by
// call. It writes all answers to conformance.json in GP_MEASURE_DIR, if that is
// set.
func TestConformanceOfHardware(t *testing.T) {
	d := gputest.Hardware(t)
	devs := gputest.Devices(t, d, 1)
	name, err := devs[0].Name()
	require.NoError(t, err)
	version, err := d.Version()
	require.NoError(t, err)
	all, err := d.Devices()
	require.NoError(t, err)
	machine := "2x4090"
	if len(all) > 1 {
		if can, err := all[0].CanAccessPeer(all[1]); err == nil && can {
			machine = "8x4090-p2p"
		}
	}
	report := struct {
		GPU         string    `json:"gpu"`
		GPUs        int       `json:"gpus"`
		Driver      int       `json:"driver_version"`
		Skipped     []string  `json:"skipped"`
		Differences int       `json:"differences"`
		Calls       int       `json:"calls"`
		Programs    []finding `json:"programs"`
	}{GPU: name, GPUs: len(all), Driver: version, Skipped: []string{}}
	for _, p := range conformances {
		if p.gpus > len(all) {
			report.Skipped = append(report.Skipped, p.name)
			continue
		}
		want := simulatedAnswers(t, machine, p)
		got, err := hardwareAnswers(t, p)
		f := finding{Program: p.name}
		if err != nil {
			f.Error = err.Error()
			report.Differences++
			t.Errorf("%s: %v", p.name, err)
		}
		for i, a := range got {
			if i >= len(want) || want[i].Call != a.Call {
				report.Differences++
				t.Errorf("%s: call %d is %s on hardware and not on the simulator", p.name, i, a.Call)
				break
			}
			f.Calls = append(f.Calls, compared{a.Call, want[i].Got, a.Got})
			report.Calls++
			if want[i].Got != a.Got {
				report.Differences++
				t.Errorf("%s: call %d, %s: the simulator answers %d, the driver %d", p.name, i, a.Call, want[i].Got, a.Got)
			}
		}
		report.Programs = append(report.Programs, f)
	}
	t.Logf("%s, driver %d: %d calls compared, %d differences, %d programs need more GPUs", name, version, report.Calls, report.Differences, len(report.Skipped))
	if dir := os.Getenv("GP_MEASURE_DIR"); dir != "" {
		b, err := json.MarshalIndent(report, "", "  ")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "conformance.json"), append(b, '\n'), 0o666))
	}
}

// hardwareAnswers runs a program in a process of its own, which may die of it.
func hardwareAnswers(t *testing.T, p conformance) ([]answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out := filepath.Join(t.TempDir(), "answers")
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, exe, "-test.run=^TestConformanceChild$", "-test.count=1")
	cmd.Env = append(os.Environ(), conformanceEnv+"="+p.name, conformanceOut+"="+out)
	text, err := cmd.CombinedOutput()
	b, readErr := os.ReadFile(out)
	if readErr != nil {
		return nil, fmt.Errorf("no answers: %w: %s", err, text)
	}
	var calls []answer
	if jsonErr := json.Unmarshal(b, &calls); jsonErr != nil {
		return nil, jsonErr
	}
	if err != nil {
		return calls, fmt.Errorf("%w: %s", err, text)
	}
	return calls, nil
}
