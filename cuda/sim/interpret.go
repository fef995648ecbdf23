// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"sync"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
	"github.com/geforce-p2p/geforce-p2p/internal/ptxvm"
)

// Interpret makes the machine run the PTX that is loaded into it, instruction by
// instruction, in place of the Go functions that stand for the kernels that
// ship; kernels of RegisterKernel stay Go. Any entry point can be loaded then, if
// its instructions are known: one that is not known is INVALID_PTX, and the error
// log names its line. Time is the model's either way. It is some hundred times
// slower.
//
// What would be an illegal access on a GPU is one here; and so that it does not
// pass for data, a read of device memory that nothing wrote loses the context
// too, with LAUNCH_FAILED. The error's text names the kernel, the block, the
// thread and the line, and KernelFault has it as a value.
//
// A machine that watches for races knows what the kernels that ship touch, and
// of others nothing.
func Interpret() Option { return func(o *options) { o.interpret = true } }

// KernelFault is what ended the first interpreted kernel that did not end by
// itself, or nil.
func (m *Machine) KernelFault() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.broke
}

// programs are the modules that have been compiled, by their text, for all
// machines of the process.
var programs = struct {
	sync.Mutex
	byText map[string]map[string]*ptxvm.Program
}{byText: map[string]map[string]*ptxvm.Program{}}

// maxPrograms bounds how many modules are remembered.
const maxPrograms = 256

func compilePTX(text string) (map[string]*ptxvm.Program, error) {
	programs.Lock()
	defer programs.Unlock()
	if p, ok := programs.byText[text]; ok {
		return p, nil
	}
	p, err := ptxvm.Load(text)
	if err != nil {
		return nil, err
	}
	if len(programs.byText) >= maxPrograms {
		clear(programs.byText)
	}
	programs.byText[text] = p
	return p, nil
}

// interpreted makes a module's functions run their PTX, but for those that tests
// made known.
func (m *Machine) interpreted(mod *module, text string) error {
	var ours []string
	for name := range mod.entry {
		if _, ok := registered(name); !ok {
			ours = append(ours, name)
		}
	}
	if len(ours) == 0 {
		return nil
	}
	ps, err := compilePTX(text)
	if err != nil {
		return err
	}
	for _, name := range ours {
		f := mod.entry[name]
		if f.prog = ps[name]; f.prog == nil {
			return fmt.Errorf("sim: no code for entry %s", name)
		}
		f.params = f.prog.ParamBytes()
	}
	return nil
}

func (f *function) launch(l *api.Launch, params []byte) ptxvm.Launch {
	return ptxvm.Launch{Program: f.prog, Grid: l.Grid, Block: l.Block, Params: params}
}

// runs is what a launch does to memory.
func (f *function) runs(l *api.Launch, params []byte) func(v view) error {
	if f.prog == nil {
		return func(v view) error { return f.k.Run(params, v) }
	}
	p := f.launch(l, params)
	return func(v view) error {
		_, err := ptxvm.Run(p, v)
		return err
	}
}

// coops is that of a launch that waits for its peers, in steps. What no kernel
// takes is the twin's to refuse.
func (f *function) coops(l *api.Launch, params []byte) kernel.Coop {
	x, _, ok := kernel.ParseCoop(f.name, params)
	if f.prog == nil || !ok {
		return f.k.coop(params)
	}
	return ptxvm.NewMember(f.launch(l, params), x.DeadlineNs)
}

// Region makes a view what programs reach: whole allocations.
func (v view) Region(addr uint64) (ptxvm.Region, error) {
	a := v.m.find(api.Ptr(addr))
	if a == nil {
		return ptxvm.Region{}, fmt.Errorf("%w: %#x", errUnreachable, addr)
	}
	if a.g != nil && a.g != v.g && !v.m.peered(v.g, a.g) {
		return ptxvm.Region{}, fmt.Errorf("%w: %#x is memory of GPU %d", errUnreachable, addr, a.g.ordinal)
	}
	r := ptxvm.Region{Base: uint64(a.base), Bytes: v.m.reach(v.g, span{a: a}, a.n)}
	if a.g == v.g || v.m.options.peer == 0 {
		r.Written = a.written
	}
	return r, nil
}

// wrote notes that n bytes from an offset of a span hold something.
func (s span) wrote(off, n uint64) {
	if s.a != nil {
		s.a.written.Mark(s.off+off, n)
	}
}

// fail is the sticky error that a kernel's failure is to the driver.
func (m *Machine) fail(err error) api.Code {
	var f *ptxvm.Fault
	if m.broke == nil && errors.As(err, &f) {
		m.broke = err
	}
	return fault(err)
}
