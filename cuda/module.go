// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// A Module is a loaded kernel image of one context.
type Module struct {
	ctx    *Context
	h      api.Module
	closed atomic.Bool
	leak   runtime.Cleanup
}

// A Function is a kernel of a module. It is valid as long as the module is.
type Function struct {
	m    *Module
	h    api.Function
	name string
}

// errorLogBytes is what the JIT's error log may take.
const errorLogBytes = 8 << 10

// LoadModule loads a CUBIN or PTX text into the context (cuModuleLoadDataEx).
// PTX is compiled by the driver, which takes tens of milliseconds; where that
// fails, Error.Detail holds the compiler's log. An image that this driver or
// device cannot take is errors.ErrUnsupported. Loading may wait for all work of
// the context.
func (c *Context) LoadModule(image []byte) (m *Module, err error) {
	const op = "cuModuleLoadDataEx"
	if len(image) == 0 {
		return nil, c.st.d.newError(op, api.InvalidImage, "the image is empty")
	}
	if text := !bytes.HasPrefix(image, []byte("\x7fELF")); text && image[len(image)-1] != 0 {
		// The driver reads PTX up to a NUL.
		image = append(image[:len(image):len(image)], 0)
	}
	b, err := c.enterToMake(op)
	if err != nil {
		return nil, err
	}
	defer settle(c, &m, &err)
	defer b.exit(&err)
	log := make([]byte, errorLogBytes)
	h, code := b.seam().ModuleLoadData(image, log)
	if code != api.Success {
		if i := bytes.IndexByte(log, 0); i >= 0 {
			log = log[:i]
		}
		return nil, c.st.checkDetail(op, code, strings.TrimSpace(string(log)))
	}
	m = &Module{ctx: c, h: h}
	m.leak = watchLeak(m, "module", 0)
	return m, nil
}

func (m *Module) enter(op string) (binding, error) {
	if m.closed.Load() {
		return binding{}, closedError(op, "module")
	}
	return m.ctx.st.enter(op)
}

// Context is the module's context.
func (m *Module) Context() *Context { return m.ctx }

// Function finds a kernel by its name (cuModuleGetFunction).
func (m *Module) Function(name string) (f *Function, err error) {
	const op = "cuModuleGetFunction"
	b, err := m.enter(op)
	if err != nil {
		return nil, err
	}
	defer b.exit(&err)
	h, code := b.seam().ModuleGetFunction(m.h, name)
	if code != api.Success {
		return nil, m.ctx.st.checkDetail(op, code, name)
	}
	return &Function{m: m, h: h, name: name}, nil
}

// Close unloads the module (cuModuleUnload). The caller has waited for its
// kernels. A second Close does nothing.
func (m *Module) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	m.leak.Stop()
	return m.ctx.st.destroy("cuModuleUnload", func(d api.Driver) api.Code { return d.ModuleUnload(m.h) })
}

// Name is the kernel's name.
func (f *Function) Name() string { return f.name }

// Module is the module that holds the kernel.
func (f *Function) Module() *Module { return f.m }

// Handle is the CUfunction.
func (f *Function) Handle() FunctionHandle { return f.h }

// Attribute asks for one attribute of the kernel (cuFuncGetAttribute).
func (f *Function) Attribute(a FunctionAttribute) (n int, err error) {
	const op = "cuFuncGetAttribute"
	b, err := f.m.enter(op)
	if err != nil {
		return 0, err
	}
	defer b.exit(&err)
	n, code := b.seam().FuncGetAttribute(a, f.h)
	return n, b.check(op, code)
}

// LaunchConfig is the shape of a launch. A dimension of 0 counts as 1.
type LaunchConfig struct {
	Grid, Block [3]uint32 // blocks, and threads a block
	Shared      uint32    // dynamic shared memory, bytes a block
}

var launches = sync.Pool{New: func() any { return new(api.Launch) }}

// Launch enqueues the kernel on s (cuLaunchKernel). params is the packed
// parameter buffer, see Params; it is read before the call returns. The stream
// is of the module's context: ErrWrongContext otherwise.
func (f *Function) Launch(cfg LaunchConfig, s *Stream, params []byte) (err error) {
	const op = "cuLaunchKernel"
	st := f.m.ctx.st
	if st.h != s.ctx.st.h {
		return st.d.wrongContext(op, "the kernel "+f.name+" and the stream belong to different contexts")
	}
	if s.closed.Load() {
		return closedError(op, "stream")
	}
	b, err := f.m.enter(op)
	if err != nil {
		return err
	}
	defer b.exit(&err)
	l := launches.Get().(*api.Launch)
	*l = api.Launch{Grid: atLeastOne(cfg.Grid), Block: atLeastOne(cfg.Block), Shared: cfg.Shared, Stream: s.h, Params: params}
	code := b.seam().LaunchKernel(f.h, l)
	l.Params = nil
	launches.Put(l)
	if code != api.Success {
		return st.checkDetail(op, code, fmt.Sprintf("kernel %s, grid %v, block %v, %d bytes of shared memory", f.name, cfg.Grid, cfg.Block, cfg.Shared))
	}
	return nil
}

func atLeastOne(d [3]uint32) [3]uint32 { return [3]uint32{max(d[0], 1), max(d[1], 1), max(d[2], 1)} }

// Params packs kernel parameters as the kernel's ABI lays them out: in order,
// little-endian, each at its natural alignment. The zero value is ready; Reset
// makes it so again and keeps the space.
type Params struct{ b []byte }

func (p *Params) align(n int) {
	for len(p.b)%n != 0 {
		p.b = append(p.b, 0)
	}
}

// Ptr adds a device address.
func (p *Params) Ptr(v Ptr) *Params { return p.Uint64(uint64(v)) }

// Uint64 adds a parameter of eight bytes.
func (p *Params) Uint64(v uint64) *Params {
	p.align(8)
	p.b = binary.LittleEndian.AppendUint64(p.b, v)
	return p
}

// Uint32 adds a parameter of four bytes.
func (p *Params) Uint32(v uint32) *Params {
	p.align(4)
	p.b = binary.LittleEndian.AppendUint32(p.b, v)
	return p
}

// Uint16 adds a parameter of two bytes.
func (p *Params) Uint16(v uint16) *Params {
	p.align(2)
	p.b = binary.LittleEndian.AppendUint16(p.b, v)
	return p
}

// Uint8 adds a parameter of one byte.
func (p *Params) Uint8(v uint8) *Params {
	p.b = append(p.b, v)
	return p
}

// Float64 adds a double.
func (p *Params) Float64(v float64) *Params { return p.Uint64(math.Float64bits(v)) }

// Float32 adds a float.
func (p *Params) Float32(v float32) *Params { return p.Uint32(math.Float32bits(v)) }

// Bytes is the packed buffer, valid until the next change.
func (p *Params) Bytes() []byte { return p.b }

// Reset empties the buffer.
func (p *Params) Reset() *Params {
	p.b = p.b[:0]
	return p
}
