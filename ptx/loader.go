// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// ErrNoKernels says that no rung of the ladder gave a kernel that the device
// runs. Copies by the copy engines still work. It matches
// errors.ErrUnsupported.
var ErrNoKernels = fmt.Errorf("no kernels for this device: %w", errors.ErrUnsupported)

// MinDriver is the CUDA version (1000*major + 10*minor) from which a driver
// takes the embedded PTX.
const MinDriver = 11000

// MinArch is the lowest compute capability, times ten, that the kernels are
// written for.
const MinArch = 80

// EnvKernels names the environment variable that forces a rung: "nvrtc" or "ptx".
const EnvKernels = "GP_KERNELS"

// Mode chooses among the rungs of the ladder.
type Mode uint8

const (
	Auto  Mode = iota // what GP_KERNELS says, else NVRTC and then the embedded PTX
	NVRTC             // CUBINs of NVRTC only
	PTX               // the embedded PTX only
)

// Options are a Loader's. The zero value is right.
type Options struct {
	Logger   *slog.Logger // slog.Default() if nil
	CacheDir string       // "" for geforce-p2p/kernels in the user's cache directory
	Mode     Mode         // other than Auto, it goes before GP_KERNELS
}

// The rungs, as Rung names them.
const (
	RungCompiled = "nvrtc"          // a CUBIN that this process compiled
	RungCached   = "nvrtc (cached)" // a CUBIN out of the cache
	RungPTX      = "ptx"            // the embedded PTX, compiled by the driver
)

// A LoadError is why a module could not be loaded by any rung.
type LoadError struct {
	Module string // "fold_f32"
	Device string // "device 0 (sm_75)"
	NVRTC  error  // why not by NVRTC; nil where that rung was not tried
	PTX    error  // why not by the embedded PTX; nil where that rung was not tried
}

// Error is one line, but for compilers' logs.
func (e *LoadError) Error() string {
	s := fmt.Sprintf("ptx: no kernels for %s: module %s", e.Device, e.Module)
	if e.NVRTC != nil {
		s += fmt.Sprintf("; by NVRTC: %v", e.NVRTC)
	}
	if e.PTX != nil {
		s += fmt.Sprintf("; by the embedded PTX: %v", e.PTX)
	}
	return s
}

// Unwrap gives ErrNoKernels and the reasons.
func (e *LoadError) Unwrap() []error {
	errs := []error{ErrNoKernels}
	for _, err := range []error{e.NVRTC, e.PTX} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// A Loader loads kernels into contexts of one driver, each module once a
// context. It is safe for concurrent use.
//
// Each module comes by the first rung that works: (1) NVRTC, if it is there
// and knows the device's architecture, compiles a CUBIN, which is kept in a
// cache on disk; (2) the embedded PTX, which the driver compiles and may keep
// in a cache of its own; (3) else a LoadError.
type Loader struct {
	drv     *cuda.Driver
	log     *slog.Logger
	mode    Mode
	builder *builder

	mu     sync.Mutex
	closed bool
	slots  map[slotKey]*slot
}

type slotKey struct {
	ctx    cuda.ContextHandle
	module kernel.Module
}

// A slot is a module of a context. Its mutex is held while it is loaded, so
// that others who want it wait for that instead of loading it too.
type slot struct {
	mu   sync.Mutex
	mod  *cuda.Module
	fns  map[string]*cuda.Function
	rung string
}

// New makes a Loader. It loads nothing.
func New(drv *cuda.Driver, opts Options) *Loader {
	open := openNVRTC
	if drv.Modelled() {
		// What is installed on the machine beneath must not reach a simulated one.
		open = func() (compiler, error) { return nil, errors.New("the driver is simulated and takes no CUBIN") }
	}
	return newLoader(drv, opts, open)
}

func newLoader(drv *cuda.Driver, opts Options, open func() (compiler, error)) *Loader {
	log := opts.Logger
	if log == nil {
		log = slog.Default()
	}
	return &Loader{
		drv: drv, log: log, mode: opts.Mode,
		builder: newBuilder(open, newCache(opts.CacheDir, log)),
		slots:   map[slotKey]*slot{},
	}
}

// Function returns the kernel of that name, after loading its module into the
// context if it is not there yet (cuModuleLoadDataEx, cuModuleGetFunction).
//
// Loading takes from tens of milliseconds to a second (NVRTC compiles), and it
// may wait for all work of the context: load on every rank before the first
// launch of kernels that wait for each other. While a stream of the process
// captures a graph it may fail, or spoil the capture, unless the caller has put
// its thread into cuThreadExchangeStreamCaptureMode RELAXED; Function leaves
// that to the caller, and makes its driver calls on the calling thread.
//
// The function is valid until Close. A failure to take any image is a
// *LoadError, which matches ErrNoKernels; other failures (out of memory, a lost
// context) are returned as they are, and the next call tries again.
func (l *Loader) Function(cc *cuda.Context, m kernel.Module, entry string) (*cuda.Function, error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, fmt.Errorf("ptx: the loader is closed: %w", cuda.ErrClosed)
	}
	k := slotKey{cc.Handle(), m}
	s := l.slots[k]
	if s == nil {
		s = &slot{fns: map[string]*cuda.Function{}}
		l.slots[k] = s
	}
	l.mu.Unlock()

	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.fns[entry]; f != nil {
		return f, nil
	}
	if s.mod == nil {
		if err := l.load(s, cc, m); err != nil {
			return nil, err
		}
	}
	f, err := s.mod.Function(entry)
	if err != nil {
		return nil, fmt.Errorf("ptx: module %s: %w", m.Name(), err)
	}
	// With lazy loading, the driver's default since CUDA 12.2, the code is moved to
	// the device when the function is first used. The question makes that now.
	n, err := f.Attribute(cuda.FuncMaxThreadsPerBlock)
	if err != nil {
		return nil, fmt.Errorf("ptx: module %s: %s: %w", m.Name(), entry, err)
	}
	if n < kernel.BlockThreads {
		return nil, fmt.Errorf("ptx: module %s: %s takes blocks of %d threads at most, not of %d", m.Name(), entry, n, kernel.BlockThreads)
	}
	s.fns[entry] = f
	return f, nil
}

// Rung tells by which rung the module came into the context: RungCompiled,
// RungCached, RungPTX, or "" if it is not loaded.
func (l *Loader) Rung(cc *cuda.Context, m kernel.Module) string {
	l.mu.Lock()
	s := l.slots[slotKey{cc.Handle(), m}]
	l.mu.Unlock()
	if s == nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rung
}

// Close unloads all modules (cuModuleUnload). The caller has waited for their
// kernels. A second Close does nothing.
func (l *Loader) Close() error {
	l.mu.Lock()
	slots := l.slots
	l.slots, l.closed = nil, true
	l.mu.Unlock()
	var errs []error
	for _, s := range slots {
		errs = append(errs, s.close())
	}
	return errors.Join(errs...)
}

// Release is Close for the modules of one context. What is asked for afterwards is
// loaded anew.
func (l *Loader) Release(cc *cuda.Context) error {
	l.mu.Lock()
	var slots []*slot
	for k, s := range l.slots {
		if k.ctx == cc.Handle() {
			slots = append(slots, s)
			delete(l.slots, k)
		}
	}
	l.mu.Unlock()
	var errs []error
	for _, s := range slots {
		errs = append(errs, s.close())
	}
	return errors.Join(errs...)
}

func (s *slot) close() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mod != nil {
		err = s.mod.Close()
	}
	s.mod, s.fns, s.rung = nil, map[string]*cuda.Function{}, ""
	return err
}

// forced is the mode that counts.
func (l *Loader) forced() (Mode, error) {
	if l.mode != Auto {
		return l.mode, nil
	}
	switch v := os.Getenv(EnvKernels); v {
	case "":
		return Auto, nil
	case "nvrtc":
		return NVRTC, nil
	case "ptx":
		return PTX, nil
	default:
		return 0, fmt.Errorf("ptx: %s=%q: it can be nvrtc, ptx or unset", EnvKernels, v)
	}
}

// load climbs down the ladder. s.mu is held.
func (l *Loader) load(s *slot, cc *cuda.Context, m kernel.Module) error {
	mode, err := l.forced()
	if err != nil {
		return err
	}
	text, err := Embedded(m)
	if err != nil {
		return err
	}
	major, minor, err := cc.Device().ComputeCapability()
	if err != nil {
		return fmt.Errorf("ptx: %w", err)
	}
	arch := 10*major + minor
	fail := &LoadError{Module: m.Name(), Device: fmt.Sprintf("%v (sm_%d)", cc.Device(), arch)}
	if arch < MinArch {
		fail.PTX = fmt.Errorf("compute capability %d.%d is below %d.%d, which the kernels need", major, minor, MinArch/10, MinArch%10)
		return fail
	}
	if mode != PTX {
		if fail.NVRTC = l.loadCUBIN(s, cc, m, arch); fail.NVRTC == nil {
			return l.kept(s)
		}
		if plain(cc, fail.NVRTC) {
			return fmt.Errorf("ptx: module %s: %w", m.Name(), fail.NVRTC)
		}
		if mode == NVRTC {
			return fail
		}
	}
	if fail.PTX = l.loadPTX(s, cc, text); fail.PTX == nil {
		if fail.NVRTC != nil {
			l.log.Debug("ptx: embedded PTX in place of a CUBIN", "module", m.Name(), "device", fail.Device, "cause", fail.NVRTC)
		}
		return l.kept(s)
	}
	// There is no rung below: what may be of the moment is not taken for the image's fault.
	if plain(cc, fail.PTX) || passing(fail.PTX) {
		return fmt.Errorf("ptx: module %s: %w", m.Name(), fail.PTX)
	}
	return fail
}

// kept is the end of a load that went well, unless the loader was closed in
// the meantime: then nobody would unload the module.
func (l *Loader) kept(s *slot) error {
	l.mu.Lock()
	closed := l.closed
	l.mu.Unlock()
	if !closed {
		return nil
	}
	err := s.mod.Close()
	s.mod, s.rung = nil, ""
	return errors.Join(fmt.Errorf("ptx: the loader is closed: %w", cuda.ErrClosed), err)
}

// plain tells errors that say nothing about the image.
func plain(cc *cuda.Context, err error) bool {
	return cc.Err() != nil || errors.Is(err, cuda.ErrOutOfMemory) || errors.Is(err, cuda.ErrClosed)
}

// passing tells errors that drivers do not answer to an image that they cannot take.
func passing(err error) bool {
	return errors.Is(err, cuda.ErrInvalidValue) || errors.Is(err, cuda.ErrUnknown) || errors.Is(err, cuda.ErrDeviceUnavailable)
}

func (l *Loader) loadCUBIN(s *slot, cc *cuda.Context, m kernel.Module, arch int) error {
	for {
		c := l.builder.build(m, arch)
		if c.err != nil {
			return c.err
		}
		mod, err := cc.LoadModule(c.image)
		if err == nil {
			s.mod, s.rung = mod, RungCompiled
			if c.cached {
				s.rung = RungCached
			}
			return nil
		}
		if !c.cached || plain(cc, err) {
			return err
		}
		// Whole, and refused all the same: an older or a newer driver's doing, or
		// another's file. What NVRTC makes now is the last word.
		l.log.Warn("ptx: the driver refuses a compiled kernel out of the cache: it is discarded and compiled anew", "module", m.Name(), "cause", err)
		l.builder.discard(m, arch, c)
	}
}

func (l *Loader) loadPTX(s *slot, cc *cuda.Context, text string) error {
	v, err := l.drv.Version()
	if err != nil {
		return err
	}
	if v < MinDriver {
		return fmt.Errorf("it needs a driver for CUDA %d.%d or newer (release 450), this one is for CUDA %d.%d",
			MinDriver/1000, MinDriver%1000/10, v/1000, v%1000/10)
	}
	mod, err := cc.LoadModule(append([]byte(text), 0))
	if err != nil {
		return err
	}
	s.mod, s.rung = mod, RungPTX
	return nil
}
