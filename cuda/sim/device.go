// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"sync/atomic"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// seam is the machine as a driver. Every method locks the machine, charges what
// the call costs, and answers by the driver's rules.
type seam struct{ m *Machine }

var _ api.Driver = seam{}

func (s seam) Host() api.Host { return s.m.host }

// lock enters a call that costs f. The caller defers m.mu.Unlock().
func (s seam) lock(f Figure) *Machine {
	s.m.mu.Lock()
	s.m.called = s.m.clock
	s.m.charge(f)
	return s.m
}

// other enters a call that has no figure of its own.
func (s seam) other() *Machine { return s.lock(s.m.spec.Calls.Other) }

// up tells whether the driver answers at all.
func (m *Machine) up() api.Code {
	switch {
	case m.closed:
		return api.Deinitialized
	case !m.inited:
		return api.NotInitialized
	}
	return api.Success
}

// handles are unique in the process, so that one machine's mean nothing to
// another, and are never used again.
var handles atomic.Uint64

func newHandle() uint64 { return 0x5a0000000000 + handles.Add(1)<<6 }

// gpu is one simulated GPU.
type gpu struct {
	ordinal int
	spec    GPU
	bus     busID
	uuid    api.UUID

	primary  *context
	retained int
	used     uint64   // bytes of memory
	lost     api.Code // what it answers since it was lost
	gate     *node    // while it stalls: what all that is new waits for

	node                          *numa
	d2h, h2d, duplex, mem         link
	outEngine, inEngine, cpEngine *engine
}

func newGPU(ordinal int, s GPU) *gpu {
	g := &gpu{ordinal: ordinal, spec: s}
	g.bus, _ = parseBusID(s.PCIBusID)
	g.uuid, _ = parseUUID(s.UUID)
	g.d2h.rate, g.h2d.rate = s.D2H.perSecond(), s.H2D.perSecond()
	g.duplex.rate = s.Duplex.Value * (g.d2h.rate + g.h2d.rate)
	g.mem.rate = s.Memory.perSecond()
	g.outEngine, g.cpEngine = &engine{}, &engine{}
	g.inEngine = g.outEngine
	if s.CopyEngines > 1 {
		g.inEngine = &engine{}
	}
	return g
}

func (g *gpu) busID() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", g.bus.domain, g.bus.bus, g.bus.device, g.bus.function)
}

func (s seam) Init(flags uint32) api.Code {
	m := s.lock(s.m.spec.Calls.Init)
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return api.Deinitialized
	case flags != 0:
		return api.InvalidValue
	}
	m.inited = true
	return api.Success
}

func (s seam) DriverGetVersion() (int, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	return m.spec.DriverVersion, api.Success
}

func (s seam) GetErrorName(c api.Code) string { return "" }

// GetErrorString is the race for the code that stands for one, a fault of an
// interpreted kernel for its code, and leaves all else to who asks.
func (s seam) GetErrorString(c api.Code) string {
	if err := s.m.KernelFault(); err != nil && fault(err) == c {
		return err.Error()
	}
	if c == raceCode {
		if err := s.m.Race(); err != nil {
			return err.Error()
		}
	}
	return ""
}

func (s seam) DeviceGetCount() (int, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	if c := m.up(); c != api.Success {
		return 0, c
	}
	return len(m.gpus), api.Success
}

func (s seam) DeviceGet(ordinal int) (api.Device, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	_, c := m.gpu(api.Device(ordinal))
	return api.Device(ordinal), c
}

// gpu looks a device up.
func (m *Machine) gpu(d api.Device) (*gpu, api.Code) {
	if c := m.up(); c != api.Success {
		return nil, c
	}
	if d < 0 || int(d) >= len(m.gpus) {
		return nil, api.InvalidDevice
	}
	return m.gpus[d], api.Success
}

func (s seam) DeviceGetName(d api.Device) (string, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	g, c := m.gpu(d)
	if c != api.Success {
		return "", c
	}
	return g.spec.Name, c
}

func (s seam) DeviceGetAttribute(a api.DeviceAttribute, d api.Device) (int, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	g, c := m.gpu(d)
	if c != api.Success {
		return 0, c
	}
	yes := func(b bool) (int, api.Code) {
		if b {
			return 1, api.Success
		}
		return 0, api.Success
	}
	switch a {
	case api.AttrMaxThreadsPerBlock:
		return maxThreads, api.Success
	case api.AttrMaxPitch:
		return maxPitch, api.Success
	case api.AttrMultiprocessorCount:
		return g.spec.Multiprocessors, api.Success
	case api.AttrCanMapHostMemory, api.AttrConcurrentKernels, api.AttrUnifiedAddressing:
		return 1, api.Success
	case api.AttrKernelExecTimeout, api.AttrIntegrated, api.AttrComputeMode, api.AttrTCCDriver,
		api.AttrHostNativeAtomic, api.AttrPageableMemoryAccess:
		return 0, api.Success
	case api.AttrPCIBusID:
		return g.bus.bus, api.Success
	case api.AttrPCIDeviceID:
		return g.bus.device, api.Success
	case api.AttrPCIDomainID:
		return g.bus.domain, api.Success
	case api.AttrAsyncEngineCount:
		return g.spec.CopyEngines, api.Success
	case api.AttrComputeCapabilityMajor:
		return g.spec.ComputeMajor, api.Success
	case api.AttrComputeCapabilityMinor:
		return g.spec.ComputeMinor, api.Success
	case api.AttrCanUseHostPointer:
		return yes(m.options.equalHost)
	case api.AttrHostNUMAID:
		return g.spec.NUMANode, api.Success
	}
	return 0, api.InvalidValue
}

func (s seam) DeviceTotalMem(d api.Device) (uint64, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	g, c := m.gpu(d)
	if c != api.Success {
		return 0, c
	}
	return g.spec.MemoryBytes, c
}

func (s seam) DeviceGetUuid(d api.Device) (api.UUID, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	g, c := m.gpu(d)
	if c != api.Success {
		return api.UUID{}, c
	}
	return g.uuid, c
}

func (s seam) DeviceGetPCIBusId(d api.Device) (string, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	g, c := m.gpu(d)
	if c != api.Success {
		return "", c
	}
	return g.busID(), c
}

func (s seam) DeviceGetByPCIBusId(id string) (api.Device, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	if c := m.up(); c != api.Success {
		return 0, c
	}
	want, err := parseBusID(id)
	if err != nil {
		return 0, api.InvalidValue
	}
	for i, g := range m.gpus {
		if g.bus == want {
			return api.Device(i), api.Success
		}
	}
	return 0, api.InvalidDevice
}

// canAccess tells whether the driver lets one GPU reach another's memory.
func (m *Machine) canAccess(from, to int) bool { return from != to && m.spec.PeerAccess[from][to] }

func (s seam) DeviceCanAccessPeer(d, peer api.Device) (bool, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	if _, c := m.gpu(d); c != api.Success {
		return false, c
	}
	if _, c := m.gpu(peer); c != api.Success {
		return false, c
	}
	return m.canAccess(int(d), int(peer)), api.Success
}

func (s seam) DeviceGetP2PAttribute(a api.P2PAttribute, src, dst api.Device) (int, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	if _, c := m.gpu(src); c != api.Success {
		return 0, c
	}
	if _, c := m.gpu(dst); c != api.Success {
		return 0, c
	}
	if src == dst {
		return 0, api.InvalidDevice
	}
	switch a {
	case api.P2PAccessSupported:
		if m.canAccess(int(src), int(dst)) {
			return 1, api.Success
		}
		return 0, api.Success
	case api.P2PPerformanceRank, api.P2PNativeAtomic, api.P2PArrayAccess:
		return 0, api.Success
	}
	return 0, api.InvalidValue
}
