// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
	"github.com/geforce-p2p/geforce-p2p/internal/ptxvm"
)

// Memory is what a kernel sees of its GPU's address space.
type Memory = kernel.Memory

// A Kernel is what a simulated GPU runs in place of an entry point of PTX.
type Kernel struct {
	// Run does what the kernel does to memory, given its packed parameters. An
	// error loses the context: with ILLEGAL_ADDRESS if it comes from the Memory.
	// It is called with the machine locked and must not call the driver.
	Run func(params []byte, m Memory) error
	// Takes is what a launch costs in time, beside what every launch costs. It
	// may be nil.
	Takes func(params []byte) time.Duration
	// Touches is the memory that a launch reads and writes, for a machine that
	// watches for races. If it is nil, what Run asks the Memory for counts as
	// written, from when it runs.
	Touches func(params []byte) []Touch

	coop func(params []byte) kernel.Coop // of those that ship and wait for each other
}

// A Touch is bytes that a kernel reads, or may also write.
type Touch struct {
	Addr, Bytes uint64
	Write       bool
}

var (
	kernelsMu sync.RWMutex
	kernels   = map[string]Kernel{}
)

// RegisterKernel makes an entry point known to all machines of the process,
// beside those of the kernels that ship, for tests that launch kernels of their
// own: PTX that declares the entry point can then be loaded.
func RegisterKernel(entry string, k Kernel) {
	kernelsMu.Lock()
	defer kernelsMu.Unlock()
	kernels[entry] = k
}

// registered is a kernel that RegisterKernel made known.
func registered(entry string) (Kernel, bool) {
	kernelsMu.RLock()
	defer kernelsMu.RUnlock()
	k, ok := kernels[entry]
	return k, ok
}

func findKernel(entry string) (Kernel, bool) {
	if k, ok := registered(entry); ok {
		return k, true
	}
	if c, ok := kernel.CoopTwin(entry); ok {
		return Kernel{coop: c}, true
	}
	run, ok := kernel.Twin(entry)
	return Kernel{Run: run, Touches: func(params []byte) []Touch { return touches(entry, params) }}, ok
}

// touches is the memory that a kernel that ships reads and writes.
func touches(entry string, params []byte) (ts []Touch) {
	if entry == kernel.CopyEntry {
		if c, ok := kernel.ParseCopy(params); ok {
			ts = append(ts, Touch{c.Src, c.Bytes, false}, Touch{c.Dst, c.Bytes, true})
		}
		return ts
	}
	t, _, ok := kernel.ParseEntry(entry)
	if !ok {
		return nil
	}
	p, ok := kernel.ParseFold(params)
	if !ok {
		return nil
	}
	size := func(wide bool) uint64 {
		if wide {
			return p.Count * uint64(t.Wide().Size())
		}
		return p.Count * uint64(t.Size())
	}
	for i := range p.N {
		ts = append(ts, Touch{p.In[i], size(p.InWide>>i&1 != 0), false})
	}
	return append(ts, Touch{p.Dst, size(p.DstWide), true})
}

// PTX is a module's text that declares entry points, for loading kernels that
// RegisterKernel made known. It says nothing about their parameters, which are
// then not checked.
func PTX(entries ...string) []byte {
	var b bytes.Buffer
	b.WriteString(".version 7.0\n.target sm_80\n.address_size 64\n")
	for _, e := range entries {
		fmt.Fprintf(&b, ".visible .entry %s()\n{\n\tret;\n}\n", e)
	}
	b.WriteByte(0)
	return b.Bytes()
}

// module is PTX that has been loaded into a context.
type module struct {
	h     api.Module
	ctx   *context
	site  site
	ptx   int // version, as 10*major + minor
	entry map[string]*function
}

// function is an entry point of a module.
type function struct {
	h      api.Function
	name   string
	mod    *module
	params int // bytes that the PTX declares
	k      Kernel
	prog   *ptxvm.Program // if the machine interprets it
}

var (
	ptxComment = regexp.MustCompile(`//[^\n]*|(?s:/\*.*?\*/)`)
	ptxVersion = regexp.MustCompile(`(?m)^\s*\.version\s+(\d+)\.(\d+)`)
	ptxTarget  = regexp.MustCompile(`(?m)^\s*\.target\s+sm_(\d+)`)
	ptxEntry   = regexp.MustCompile(`\.visible\s+\.entry\s+([A-Za-z_$%][\w$]*)\s*(?:\(([^)]*)\))?`)
	ptxParam   = regexp.MustCompile(`\.param\s+(?:\.align\s+(\d+)\s+)?\.(?:ptr\s+)?([a-z])(\d+)[^,\[]*(?:\[(\d+)\])?`)
)

// ptxOf is the newest PTX that a driver takes, as 10*major + minor.
func ptxOf(driver int) int {
	major, minor := driver/1000, driver%1000/10
	switch {
	case major < 11:
		return 65
	case major == 12 && minor > 5:
		minor-- // CUDA 12.5 and 12.6 share PTX 8.5
	}
	return (major-4)*10 + minor
}

// paramBytes is the size of a parameter buffer, each parameter aligned by itself.
func paramBytes(list string) int {
	n := 0
	for _, p := range ptxParam.FindAllStringSubmatch(list, -1) {
		bits, _ := strconv.Atoi(p[3])
		size, count := bits/8, 1
		align := size
		if p[4] != "" {
			count, _ = strconv.Atoi(p[4])
		}
		if p[1] != "" {
			align, _ = strconv.Atoi(p[1])
		}
		n = (n+align-1)/align*align + size*count
	}
	return n
}

// reading is what the machine wants to know of PTX.
type reading struct {
	version, target int // 10*major + minor; 0 if it does not say
	entries         []entryPoint
}

type entryPoint struct {
	name   string
	params int // bytes
}

// readings are kept: the same few texts are loaded again and again, and reading
// them takes most of the time of loading.
var readings struct {
	sync.Mutex
	of map[[sha256.Size]byte]reading
}

const maxReadings = 256

func read(ptx []byte) reading {
	key := sha256.Sum256(ptx)
	readings.Lock()
	r, ok := readings.of[key]
	readings.Unlock()
	if ok {
		return r
	}
	num := func(b []byte) int { n, _ := strconv.Atoi(string(b)); return n }
	// A comment becomes a space and keeps its lines apart.
	text := ptxComment.ReplaceAll(ptx, []byte(" "))
	if v := ptxVersion.FindSubmatch(text); v != nil {
		r.version = 10*num(v[1]) + num(v[2])
	}
	if t := ptxTarget.FindSubmatch(text); t != nil {
		r.target = num(t[1])
	}
	for _, e := range ptxEntry.FindAllSubmatch(text, -1) {
		r.entries = append(r.entries, entryPoint{string(e[1]), paramBytes(string(e[2]))})
	}
	readings.Lock()
	defer readings.Unlock()
	if readings.of == nil || len(readings.of) >= maxReadings {
		readings.of = map[[sha256.Size]byte]reading{}
	}
	readings.of[key] = r
	return r
}

// load is what the driver makes of an image: a module, or a code and what its
// error log says.
func (m *Machine) load(c *context, image []byte) (*module, api.Code, string) {
	switch {
	case len(image) == 0:
		return nil, api.InvalidValue, ""
	case bytes.HasPrefix(image, []byte("\x7fELF")), bytes.HasPrefix(image, []byte{0x50, 0xed, 0x55, 0xba}):
		return nil, api.NoBinaryForGPU, ""
	case image[len(image)-1] != 0:
		return nil, api.InvalidPTX, "sim: PTX is not terminated by NUL"
	}
	text := read(image[:len(image)-1])
	if text.version == 0 || text.target == 0 {
		return nil, api.InvalidImage, "sim: no .version or .target"
	}
	mod := &module{h: api.Module(newHandle()), ctx: c, ptx: text.version, entry: map[string]*function{}}
	if most := ptxOf(m.spec.DriverVersion); mod.ptx > most {
		return nil, api.UnsupportedPTXVersion, fmt.Sprintf("sim: Unsupported .version %d.%d; current version is '%d.%d'", mod.ptx/10, mod.ptx%10, most/10, most%10)
	}
	if sm := 10*c.g.spec.ComputeMajor + c.g.spec.ComputeMinor; text.target > sm {
		return nil, api.InvalidPTX, fmt.Sprintf("sim: .target sm_%d is above sm_%d", text.target, sm)
	}
	for _, e := range text.entries {
		k, ok := findKernel(e.name)
		if !ok && !m.options.interpret {
			return nil, api.InvalidPTX, fmt.Sprintf("sim: no Go function stands for entry %s", e.name)
		}
		mod.entry[e.name] = &function{h: api.Function(newHandle()), name: e.name, mod: mod, params: e.params, k: k}
	}
	if m.options.interpret {
		if err := m.interpreted(mod, string(image[:len(image)-1])); err != nil {
			return nil, api.InvalidPTX, err.Error()
		}
	}
	return mod, api.Success, ""
}

func (s seam) ModuleLoadData(image []byte, errorLog []byte) (api.Module, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	c, code := m.ctx()
	if code != api.Success {
		return 0, code
	}
	if code := m.unsafeCall(); code != api.Success {
		return 0, code
	}
	mod, code, log := m.load(c, image)
	if len(errorLog) > 0 {
		errorLog[copy(errorLog[:len(errorLog)-1], log)] = 0
	}
	if code != api.Success {
		return 0, code
	}
	m.charge(m.spec.Calls.ModuleLoad)
	mod.site = m.site()
	m.modules[mod.h] = mod
	for _, f := range mod.entry {
		m.funcs[f.h] = f
	}
	return mod.h, api.Success
}

func (m *Machine) unload(mod *module) {
	delete(m.modules, mod.h)
	for _, f := range mod.entry {
		delete(m.funcs, f.h)
	}
}

func (s seam) ModuleUnload(h api.Module) api.Code {
	m := s.other()
	defer m.mu.Unlock()
	if _, code := m.ctx(); code != api.Success {
		return code
	}
	if code := m.unsafeCall(); code != api.Success {
		return code
	}
	mod := m.modules[h]
	if mod == nil {
		return api.InvalidHandle
	}
	m.drain(mod.ctx)
	m.unload(mod)
	return mod.ctx.fault
}

func (s seam) ModuleGetFunction(h api.Module, name string) (api.Function, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	if c := m.up(); c != api.Success {
		return 0, c
	}
	mod := m.modules[h]
	if mod == nil {
		return 0, api.InvalidHandle
	}
	f := mod.entry[name]
	if f == nil {
		return 0, api.NotFound
	}
	return f.h, m.answer(mod.ctx)
}

func (s seam) FuncGetAttribute(a api.FunctionAttribute, h api.Function) (int, api.Code) {
	m := s.other()
	defer m.mu.Unlock()
	if c := m.up(); c != api.Success {
		return 0, c
	}
	f := m.funcs[h]
	if f == nil {
		return 0, api.InvalidHandle
	}
	if code := m.answer(f.mod.ctx); code != api.Success {
		return 0, code
	}
	switch a {
	case api.FuncMaxThreadsPerBlock:
		return maxThreads, api.Success
	case api.FuncPTXVersion:
		return f.mod.ptx, api.Success
	case api.FuncBinaryVersion:
		return 10*f.mod.ctx.g.spec.ComputeMajor + f.mod.ctx.g.spec.ComputeMinor, api.Success
	}
	return 0, api.InvalidValue
}

func (s seam) LaunchKernel(h api.Function, l *api.Launch) api.Code {
	m := s.lock(s.m.spec.Calls.Launch)
	defer m.mu.Unlock()
	if c := m.up(); c != api.Success {
		return c
	}
	f := m.funcs[h]
	if f == nil {
		return api.InvalidHandle
	}
	st, code := m.stream(l.Stream)
	switch {
	case code != api.Success:
		return code
	case st.ctx != f.mod.ctx:
		return api.InvalidHandle
	}
	threads := uint64(l.Block[0]) * uint64(l.Block[1]) * uint64(l.Block[2])
	blocks := uint64(l.Grid[0]) * uint64(l.Grid[1]) * uint64(l.Grid[2])
	if threads == 0 || blocks == 0 || threads > maxThreads || f.params > 0 && len(l.Params) != f.params {
		return api.InvalidValue
	}
	if skip, code := m.admit(st); skip {
		return code
	}
	params := bytes.Clone(l.Params)
	g := st.ctx.g
	w := work{latency: g.spec.Launch.us()}
	if f.k.coop != nil {
		return m.launch(st, f, l, params, w)
	}
	m.cost(&w, g, f, params)
	v := view{m: m, g: g}
	run := f.runs(l, params)
	m.enqueue(st, &node{runs: true, work: w, run: func() api.Code { return m.fail(run(v)) }})
	if t := m.watch.toucher(st, func() string { return "kernel " + f.name }); t != nil && f.k.Touches == nil {
		v.late = t
	} else if t != nil {
		for _, k := range f.k.Touches(params) {
			if at, c := m.device(api.Ptr(k.Addr), k.Bytes); c == api.Success {
				m.touched(t, at, k.Bytes, k.Write)
			}
		}
	}
	return st.ctx.fault
}

// cost adds what a kernel costs in time: the bytes that it moves, for those
// that ship, and what it says itself, for those of tests.
func (m *Machine) cost(w *work, g *gpu, f *function, params []byte) {
	if f.k.Takes != nil {
		w.latency += f.k.Takes(params)
		return
	}
	touch := func(addr, n uint64, write bool) {
		if a := m.find(api.Ptr(addr)); a != nil {
			m.touch(w, g, a.place(), n, write)
		}
	}
	if _, _, ok := kernel.ParseEntry(f.name); !ok && f.name != kernel.CopyEntry {
		return
	}
	for _, k := range f.k.Touches(params) {
		touch(k.Addr, k.Bytes, k.Write)
	}
}

// view is a GPU's address space: its own memory, all pinned host memory, and
// what peer access it has.
type view struct {
	m    *Machine
	g    *gpu
	late *toucher // of a kernel that does not say what it touches
}

var errUnreachable = errors.New("sim: address is not in reach")

func (v view) Bytes(addr, n uint64) ([]byte, error) {
	s, code := v.m.device(api.Ptr(addr), n)
	if code != api.Success {
		return nil, fmt.Errorf("%w: %d bytes at %#x", errUnreachable, n, addr)
	}
	if at := s.gpu(); at != nil && at != v.g && !v.m.peered(v.g, at) {
		return nil, fmt.Errorf("%w: %#x is memory of GPU %d", errUnreachable, addr, at.ordinal)
	}
	v.m.touched(v.late, s, n, true)
	s.wrote(0, n)
	return v.m.reach(v.g, s, n), nil
}

// fault is the sticky error that a kernel's failure is to the driver.
func fault(err error) api.Code {
	switch {
	case err == nil:
		return api.Success
	case errors.Is(err, kernel.ErrMisaligned):
		return api.MisalignedAddress
	case errors.Is(err, errUnreachable), errors.Is(err, ptxvm.ErrBounds):
		return api.IllegalAddress
	}
	return api.LaunchFailed
}
