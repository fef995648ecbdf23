// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
	"github.com/geforce-p2p/geforce-p2p/nvrtc"
)

// ladderDriver is a driver with two devices that does nothing but load
// modules, as it is told. The embedded api.Driver is nil: any other call fails
// the test by a panic.
type ladderDriver struct {
	api.Driver
	version     int
	arch        int
	refuseCUBIN func(image []byte) api.Code
	refusePTX   api.Code
	mu          sync.Mutex
	loads       []string // "cubin" or "ptx", in order
	live        int      // modules that are loaded
	next        uint64
	loadDelay   time.Duration
}

func (d *ladderDriver) Host() api.Host                         { return realHost{} }
func (d *ladderDriver) Init(uint32) api.Code                   { return api.Success }
func (d *ladderDriver) DriverGetVersion() (int, api.Code)      { return d.version, api.Success }
func (d *ladderDriver) GetErrorName(api.Code) string           { return "" }
func (d *ladderDriver) GetErrorString(api.Code) string         { return "" }
func (d *ladderDriver) DeviceGetCount() (int, api.Code)        { return 2, api.Success }
func (d *ladderDriver) CtxGetCurrent() (api.Context, api.Code) { return 0, api.Success }
func (d *ladderDriver) CtxSetCurrent(api.Context) api.Code     { return api.Success }
func (d *ladderDriver) CtxPushCurrent(api.Context) api.Code    { return api.Success }
func (d *ladderDriver) CtxPopCurrent() (api.Context, api.Code) { return 0, api.Success }
func (d *ladderDriver) DeviceGet(o int) (api.Device, api.Code) {
	return api.Device(o), api.Success
}
func (d *ladderDriver) DeviceGetAttribute(a api.DeviceAttribute, _ api.Device) (int, api.Code) {
	switch a {
	case api.AttrComputeCapabilityMajor:
		return d.arch / 10, api.Success
	case api.AttrComputeCapabilityMinor:
		return d.arch % 10, api.Success
	}
	return 0, api.InvalidValue
}
func (d *ladderDriver) DevicePrimaryCtxRetain(v api.Device) (api.Context, api.Code) {
	return api.Context(100 + v), api.Success
}
func (d *ladderDriver) DevicePrimaryCtxRelease(api.Device) api.Code { return api.Success }
func (d *ladderDriver) ModuleLoadData(image, log []byte) (api.Module, api.Code) {
	time.Sleep(d.loadDelay)
	d.mu.Lock()
	defer d.mu.Unlock()
	kind, refuse := "cubin", api.Success
	if bytes.Contains(image, []byte(".version")) {
		kind, refuse = "ptx", d.refusePTX
		if image[len(image)-1] != 0 {
			refuse = api.InvalidPTX
		}
	} else if d.refuseCUBIN != nil {
		refuse = d.refuseCUBIN(image)
	}
	d.loads = append(d.loads, kind)
	if refuse != api.Success {
		copy(log, "the driver's own words\x00")
		return 0, refuse
	}
	d.live++
	d.next++
	return api.Module(d.next), api.Success
}
func (d *ladderDriver) ModuleUnload(api.Module) api.Code {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.live--
	return api.Success
}
func (d *ladderDriver) ModuleGetFunction(m api.Module, name string) (api.Function, api.Code) {
	if !strings.HasPrefix(name, "gp_") {
		return 0, api.NotFound
	}
	return api.Function(m), api.Success
}
func (d *ladderDriver) FuncGetAttribute(api.FunctionAttribute, api.Function) (int, api.Code) {
	return 1024, api.Success
}

// realHost is a host only in so far as it is not modelled.
type realHost struct{ api.Host }

func (realHost) Modelled() bool { return false }

// fakeNVRTC compiles everything into a text of its own.
type fakeNVRTC struct {
	version  string
	file     string
	archs    []int
	err      error
	options  atomic.Pointer[[]string]
	compiles atomic.Int32
	delay    time.Duration
}

func (f *fakeNVRTC) Version() string { return f.version }
func (f *fakeNVRTC) Path() string    { return f.file }
func (f *fakeNVRTC) Archs() []int    { return f.archs }
func (f *fakeNVRTC) Compile(source, name string, options ...string) ([]byte, string, error) {
	f.compiles.Add(1)
	f.options.Store(&options)
	time.Sleep(f.delay)
	if f.err != nil {
		return nil, "fold.cu(1): error: no", f.err
	}
	return []byte(fmt.Sprintf("\x7fELF of %s by %s with %v", name, f.version, options)), "", nil
}

// ladder is a set-up of one test.
type ladder struct {
	drv   *ladderDriver
	nvrtc *fakeNVRTC // nil: there is none
	opens atomic.Int32
	opts  Options
	log   *bytes.Buffer
}

func newLadder(t *testing.T) *ladder {
	t.Setenv(EnvKernels, "")
	t.Setenv(nvrtc.EnvLibrary, "")
	dir := t.TempDir()
	file := filepath.Join(dir, "libnvrtc.so")
	require.NoError(t, os.WriteFile(file, []byte("library"), 0o600))
	l := &ladder{
		drv:   &ladderDriver{version: 12040, arch: 89},
		nvrtc: &fakeNVRTC{version: "12.6", file: file, archs: []int{80, 86, 89, 90}},
	}
	l.opts.Logger, l.log = logBuffer()
	l.opts.CacheDir = filepath.Join(dir, "cache")
	return l
}

var errNoNVRTC = errors.New("tried libnvrtc.so.13, libnvrtc.so.12: not found")

// start makes a Loader, as a new process would, and a context.
func (l *ladder) start(t *testing.T) (*Loader, *cuda.Context) {
	d, err := hook.NewDriver(l.drv)
	require.NoError(t, err)
	drv := d.(*cuda.Driver)
	ld := newLoader(drv, l.opts, func() (compiler, error) {
		l.opens.Add(1)
		if l.nvrtc == nil {
			return nil, errNoNVRTC
		}
		return l.nvrtc, nil
	})
	t.Cleanup(func() { require.NoError(t, ld.Close()) })
	return ld, primary(t, drv, 0)
}

func primary(t testing.TB, drv *cuda.Driver, ordinal int) *cuda.Context {
	dev, err := drv.Device(ordinal)
	require.NoError(t, err)
	cc, err := dev.Primary()
	require.NoError(t, err)
	t.Cleanup(func() { cc.Close() })
	return cc
}

var (
	f32    = kernel.FoldModule(dtype.Float32)
	f32Sum = kernel.FoldEntry(dtype.Float32, dtype.Sum)
	f32Max = kernel.FoldEntry(dtype.Float32, dtype.Max)
)

func TestLadderNVRTC(t *testing.T) {
	l := newLadder(t)
	ld, cc := l.start(t)
	require.Empty(t, ld.Rung(cc, f32))
	f, err := ld.Function(cc, f32, f32Sum)
	require.NoError(t, err)
	require.Equal(t, f32Sum, f.Name())
	require.Equal(t, RungCompiled, ld.Rung(cc, f32))
	require.Equal(t, []string{"--gpu-architecture=sm_89", "--fmad=false", "--ftz=false", "--prec-div=true", "-DGP_TYPE_f32"}, *l.nvrtc.options.Load())
	again, err := ld.Function(cc, f32, f32Sum)
	require.NoError(t, err)
	require.Same(t, f, again)
	_, err = ld.Function(cc, f32, f32Max)
	require.NoError(t, err)
	require.Equal(t, []string{"cubin"}, l.drv.loads)
	require.EqualValues(t, 1, l.nvrtc.compiles.Load())

	// Another device of the same architecture does not compile again.
	other := primary(t, ld.drv, 1)
	_, err = ld.Function(other, f32, f32Sum)
	require.NoError(t, err)
	require.EqualValues(t, 1, l.nvrtc.compiles.Load())
	require.Equal(t, 2, l.drv.live)
	require.NoError(t, ld.Close())
	require.NoError(t, ld.Close())
	require.Zero(t, l.drv.live)
	_, err = ld.Function(cc, f32, f32Sum)
	require.ErrorIs(t, err, cuda.ErrClosed)
}

// A second process loads what the first one compiled, and not even NVRTC.
func TestLadderCached(t *testing.T) {
	l := newLadder(t)
	ld, cc := l.start(t)
	_, err := ld.Function(cc, f32, f32Sum)
	require.NoError(t, err)

	ld, cc = l.start(t)
	_, err = ld.Function(cc, f32, f32Sum)
	require.NoError(t, err)
	require.Equal(t, RungCached, ld.Rung(cc, f32))
	require.EqualValues(t, 1, l.nvrtc.compiles.Load())
	require.EqualValues(t, 1, l.opens.Load(), "a warm cache needs no NVRTC")

	// A module that is not in the cache brings NVRTC in.
	_, err = ld.Function(cc, kernel.CopyModule(), kernel.CopyEntry)
	require.NoError(t, err)
	require.Equal(t, RungCompiled, ld.Rung(cc, kernel.CopyModule()))
	require.EqualValues(t, 2, l.opens.Load())

	// An NVRTC that the user names is asked, unless it is the one known.
	for name, opens := range map[string]int32{l.nvrtc.file: 2, filepath.Join(t.TempDir(), "other"): 3} {
		t.Setenv(nvrtc.EnvLibrary, name)
		l.opens.Store(2)
		ld, cc = l.start(t)
		_, err = ld.Function(cc, f32, f32Sum)
		require.NoError(t, err)
		require.EqualValues(t, opens, l.opens.Load(), name)
	}
	t.Setenv(nvrtc.EnvLibrary, "")

	// Another NVRTC file, and another architecture, are other keys.
	require.NoError(t, os.Chtimes(l.nvrtc.file, time.Time{}, time.Unix(1e9, 0)))
	ld, cc = l.start(t)
	_, err = ld.Function(cc, f32, f32Sum)
	require.NoError(t, err)
	require.Equal(t, RungCompiled, ld.Rung(cc, f32))
	l.nvrtc.version = "12.8"
	require.NoError(t, os.WriteFile(l.nvrtc.file, []byte("another library"), 0o600))
	ld, cc = l.start(t)
	_, err = ld.Function(cc, f32, f32Sum)
	require.NoError(t, err)
	require.Equal(t, RungCompiled, ld.Rung(cc, f32))
	l.drv.arch = 90
	ld, cc = l.start(t)
	_, err = ld.Function(cc, f32, f32Sum)
	require.NoError(t, err)
	require.Equal(t, RungCompiled, ld.Rung(cc, f32))
	require.Empty(t, l.log.String())
}

// A corrupt file in the cache is discarded, rebuilt and logged.
func TestLadderCorruptCache(t *testing.T) {
	l := newLadder(t)
	ld, cc := l.start(t)
	_, err := ld.Function(cc, f32, f32Sum)
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(l.opts.CacheDir, "*.cubin"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	b, err := os.ReadFile(files[0])
	require.NoError(t, err)
	b[len(b)-1] ^= 1
	require.NoError(t, os.WriteFile(files[0], b, 0o600))

	ld, cc = l.start(t)
	_, err = ld.Function(cc, f32, f32Sum)
	require.NoError(t, err)
	require.Equal(t, RungCompiled, ld.Rung(cc, f32))
	require.Equal(t, 1, lines(l.log), l.log.String())
	require.Contains(t, l.log.String(), "corrupt")

	ld, cc = l.start(t)
	_, err = ld.Function(cc, f32, f32Sum)
	require.NoError(t, err)
	require.Equal(t, RungCached, ld.Rung(cc, f32))
}

// A cached image that is whole but that the driver refuses is compiled anew.
func TestLadderRefusedCache(t *testing.T) {
	l := newLadder(t)
	ld, cc := l.start(t)
	_, err := ld.Function(cc, f32, f32Sum)
	require.NoError(t, err)
	first := true
	l.drv.refuseCUBIN = func([]byte) api.Code {
		if first {
			first = false
			return api.InvalidImage
		}
		return api.Success
	}
	ld, cc = l.start(t)
	_, err = ld.Function(cc, f32, f32Sum)
	require.NoError(t, err)
	require.Equal(t, RungCompiled, ld.Rung(cc, f32))
	require.Equal(t, 1, lines(l.log), l.log.String())

	// It ends also where the file cannot be removed, or where all are refused.
	l.drv.refuseCUBIN = func([]byte) api.Code { return api.NoBinaryForGPU }
	ld, cc = l.start(t)
	_, err = ld.Function(cc, f32, f32Sum)
	require.NoError(t, err)
	require.Equal(t, RungPTX, ld.Rung(cc, f32))
}

// No NVRTC: the embedded PTX, whatever the reason was.
func TestLadderPTX(t *testing.T) {
	for name, set := range map[string]func(l *ladder){
		"no NVRTC":         func(l *ladder) { l.nvrtc = nil },
		"device too new":   func(l *ladder) { l.drv.arch = 120 },
		"does not compile": func(l *ladder) { l.nvrtc.err = errors.New("NVRTC_ERROR_BUILTIN_OPERATION_FAILURE") },
		"CUBIN refused":    func(l *ladder) { l.drv.refuseCUBIN = func([]byte) api.Code { return api.NoBinaryForGPU } },
		"oldest driver":    func(l *ladder) { l.nvrtc, l.drv.version = nil, 11000 },
		"forced":           func(l *ladder) { l.opts.Mode = PTX },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLadder(t)
			set(l)
			ld, cc := l.start(t)
			_, err := ld.Function(cc, f32, f32Sum)
			require.NoError(t, err)
			require.Equal(t, RungPTX, ld.Rung(cc, f32))
			require.Equal(t, "ptx", l.drv.loads[len(l.drv.loads)-1])
		})
	}
}

// An NVRTC that cannot tell its architectures is tried.
func TestLadderUnknownArchs(t *testing.T) {
	l := newLadder(t)
	l.nvrtc.archs = nil
	ld, cc := l.start(t)
	_, err := ld.Function(cc, f32, f32Sum)
	require.NoError(t, err)
	require.Equal(t, RungCompiled, ld.Rung(cc, f32))
}

// Nothing works: a named error with the reason of each rung.
func TestLadderNothing(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(l *ladder)
		want []string
	}{
		"PTX refused too": {func(l *ladder) { l.nvrtc, l.drv.refusePTX = nil, api.UnsupportedPTXVersion },
			[]string{"fold_f32", "sm_89", "libnvrtc.so.13", "222", "the driver's own words"}},
		"no JIT compiler": {func(l *ladder) { l.nvrtc, l.drv.refusePTX = nil, api.JITCompilerNotFound },
			[]string{"221", "libnvidia-ptxjitcompiler"}},
		"driver too old": {func(l *ladder) { l.nvrtc, l.drv.version = nil, 10020 },
			[]string{"CUDA 11.0 or newer", "this one is for CUDA 10.2"}},
		"device too old": {func(l *ladder) { l.drv.arch = 75 },
			[]string{"compute capability 7.5 is below 8.0"}},
		"NVRTC forced, not there": {func(l *ladder) { l.nvrtc, l.opts.Mode = nil, NVRTC },
			[]string{"libnvrtc.so.12: not found"}},
		"does not compile": {func(l *ladder) {
			l.nvrtc.err, l.drv.refusePTX = errors.New("error 6"), api.InvalidPTX
		}, []string{"12.6", "libnvrtc.so)", "error 6", "fold.cu(1): error: no", "218"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLadder(t)
			c.set(l)
			ld, cc := l.start(t)
			for range 2 {
				_, err := ld.Function(cc, f32, f32Sum)
				require.ErrorIs(t, err, ErrNoKernels)
				require.ErrorIs(t, err, errors.ErrUnsupported)
				var le *LoadError
				require.ErrorAs(t, err, &le)
				for _, w := range c.want {
					require.ErrorContains(t, err, w)
				}
			}
			require.Zero(t, l.drv.live)
			require.Empty(t, ld.Rung(cc, f32))
			if l.nvrtc != nil {
				require.LessOrEqual(t, l.nvrtc.compiles.Load(), int32(1), "what does not compile is not tried again")
			}
		})
	}
}

// Failures that say nothing about the kernels are not dressed up as missing
// kernels, and the next call works.
func TestLadderOutOfMemory(t *testing.T) {
	l := newLadder(t)
	l.nvrtc, l.drv.refusePTX = nil, api.OutOfMemory
	ld, cc := l.start(t)
	_, err := ld.Function(cc, f32, f32Sum)
	require.ErrorIs(t, err, cuda.ErrOutOfMemory)
	require.NotErrorIs(t, err, ErrNoKernels)
	l.drv.refusePTX = api.Success
	_, err = ld.Function(cc, f32, f32Sum)
	require.NoError(t, err)
}

func TestLadderLostContext(t *testing.T) {
	l := newLadder(t)
	l.nvrtc, l.drv.refusePTX = nil, api.IllegalAddress
	ld, cc := l.start(t)
	_, err := ld.Function(cc, f32, f32Sum)
	require.ErrorIs(t, err, cuda.ErrIllegalAddress)
	require.NotErrorIs(t, err, errors.ErrUnsupported)
}

func TestKernelsVariable(t *testing.T) {
	for value, want := range map[string]string{"nvrtc": RungCompiled, "ptx": RungPTX, "": RungCompiled} {
		l := newLadder(t)
		t.Setenv(EnvKernels, value)
		ld, cc := l.start(t)
		_, err := ld.Function(cc, f32, f32Sum)
		require.NoError(t, err)
		require.Equal(t, want, ld.Rung(cc, f32))
	}
	l := newLadder(t)
	t.Setenv(EnvKernels, "cuda")
	ld, cc := l.start(t)
	_, err := ld.Function(cc, f32, f32Sum)
	require.ErrorContains(t, err, `GP_KERNELS="cuda"`)
	require.Empty(t, l.drv.loads)

	// What the program sets goes first.
	l.opts.Mode = PTX
	ld, cc = l.start(t)
	_, err = ld.Function(cc, f32, f32Sum)
	require.NoError(t, err)
	require.Equal(t, RungPTX, ld.Rung(cc, f32))
}

func TestUnknownEntry(t *testing.T) {
	l := newLadder(t)
	ld, cc := l.start(t)
	_, err := ld.Function(cc, f32, "sum")
	require.ErrorIs(t, err, cuda.ErrNotFound)
	_, err = ld.Function(cc, kernel.Module{Kernel: "sort"}, "gp_sort")
	require.ErrorContains(t, err, "sort")
}

// Many goroutines want the same modules: each is compiled and loaded once.
func TestLoaderConcurrent(t *testing.T) {
	l := newLadder(t)
	l.drv.loadDelay, l.nvrtc.delay = 2*time.Millisecond, 2*time.Millisecond
	ld, cc := l.start(t)
	other := primary(t, ld.drv, 1)
	var wg sync.WaitGroup
	errs := make(chan error, 64)
	for i := range 64 {
		wg.Go(func() {
			c, m, e := cc, f32, f32Sum
			if i%2 == 1 {
				c = other
			}
			if i%4 >= 2 {
				m, e = kernel.CopyModule(), kernel.CopyEntry
			}
			_, err := ld.Function(c, m, e)
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.EqualValues(t, 2, l.nvrtc.compiles.Load())
	require.Len(t, l.drv.loads, 4)
}

// Close in the middle of a load leaves no module behind.
func TestLoaderCloseWhileLoading(t *testing.T) {
	l := newLadder(t)
	l.drv.loadDelay = 5 * time.Millisecond
	for range 10 {
		ld, cc := l.start(t)
		done := make(chan error)
		go func() { _, err := ld.Function(cc, f32, f32Sum); done <- err }()
		time.Sleep(2 * time.Millisecond)
		require.NoError(t, ld.Close())
		if err := <-done; err != nil {
			require.ErrorIs(t, err, cuda.ErrClosed)
		}
		require.Zero(t, l.drv.live)
	}
}

// A cache that cannot be used costs nothing but the time to compile.
func TestLadderWithoutCache(t *testing.T) {
	l := newLadder(t)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	l.opts.CacheDir = filepath.Join(file, "cache")
	ld, cc := l.start(t)
	for _, m := range []kernel.Module{f32, kernel.CopyModule()} {
		_, err := ld.Function(cc, m, Entries(m)[0])
		require.NoError(t, err)
		require.Equal(t, RungCompiled, ld.Rung(cc, m))
	}
	require.Equal(t, 1, lines(l.log), l.log.String())

	// An NVRTC whose file is not known is used, and nothing is kept.
	l = newLadder(t)
	l.nvrtc.file = "libnvrtc.so.12"
	for range 2 {
		ld, cc = l.start(t)
		_, err := ld.Function(cc, f32, f32Sum)
		require.NoError(t, err)
		require.Equal(t, RungCompiled, ld.Rung(cc, f32))
	}
}
