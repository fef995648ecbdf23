// SPDX-License-Identifier: Apache-2.0

// Package kernel is the contract between the CUDA kernels that ship (package
// ptx), their Go twins (used by the simulator and as the tests' reference) and
// those who launch them (package gp): names, parameters, launch shapes.
//
// All parameters are 64-bit, so a parameter buffer is a row of little-endian
// uint64 and has no padding.
package kernel

import (
	"encoding/binary"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
)

// MaxInputs is the most inputs that one fold takes.
const MaxInputs = 16

// Fold is the parameters of the kernel "gp_fold_<type>_<op>":
//
//	acc = wide(in[0]); for k in 1..len-1: acc = op(acc, wide(in[k]))
//	if Divisor != 0: acc = acc / Divisor          (used by avg only)
//	dst = round(acc)
//
// element by element, for Count elements. Accumulation is in dtype.Type.Wide.
// An input, or the destination, whose flag is set holds elements of the wide
// type instead of the type itself: that is how partial results travel.
//
// Avg accumulates as sum does; the division is only done where Divisor says.
// Min and max propagate NaN as its canonical bits and order -0 below +0; with
// one input they only canonicalise NaN.
//
// The destination may be one of the inputs if both have the same element type
// (the fold is element-wise), and may not overlap any input otherwise. Each
// address is aligned to its element; no further alignment is needed. A device
// pointer of mapped host memory is as good as one of device memory.
type Fold struct {
	Dst     uint64
	Count   uint64
	Divisor uint64
	DstWide bool
	InWide  uint32 // bit k: In[k] is wide
	N       int    // inputs in use, 1..MaxInputs
	In      [MaxInputs]uint64
}

// foldWords is the 64-bit words of a Fold's parameter buffer:
// dst, count, divisor, n, flags (bit 63: dst is wide; bits 0..15: inputs), in[16].
const foldWords = 5 + MaxInputs

// FoldBytes is the size of a Fold's parameter buffer.
const FoldBytes = foldWords * 8

// Append adds the parameter buffer to b and returns it.
func (f *Fold) Append(b []byte) []byte {
	flags := uint64(f.InWide)
	if f.DstWide {
		flags |= 1 << 63
	}
	for _, w := range [...]uint64{f.Dst, f.Count, f.Divisor, uint64(f.N), flags} {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	for _, p := range f.In {
		b = binary.LittleEndian.AppendUint64(b, p)
	}
	return b
}

// ParseFold is the inverse of Append.
func ParseFold(b []byte) (f Fold, ok bool) {
	if len(b) != FoldBytes {
		return f, false
	}
	w := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	f.Dst, f.Count, f.Divisor, f.N = w(0), w(1), w(2), int(w(3))
	f.DstWide, f.InWide = w(4)>>63 != 0, uint32(w(4)&0xffff)
	for i := range f.In {
		f.In[i] = w(5 + i)
	}
	return f, f.N >= 1 && f.N <= MaxInputs
}

// Copy is the parameters of the kernel "gp_copy": Bytes bytes from Src to Dst,
// any alignment, no overlap. Either may be mapped host memory.
type Copy struct {
	Dst, Src, Bytes uint64
}

// CopyBytes is the size of a Copy's parameter buffer.
const CopyBytes = 3 * 8

// Append adds the parameter buffer to b and returns it.
func (c *Copy) Append(b []byte) []byte {
	for _, w := range [...]uint64{c.Dst, c.Src, c.Bytes} {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// ParseCopy is the inverse of Append.
func ParseCopy(b []byte) (c Copy, ok bool) {
	if len(b) != CopyBytes {
		return c, false
	}
	w := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	return Copy{w(0), w(1), w(2)}, true
}

// A Module is one compilation unit: one image, one file of embedded PTX.
type Module struct {
	Kernel string     // "fold", "ll", "bulk", "copy", "gather", "handshake", "echo"
	Type   dtype.Type // of those that reduce; 0 for the others
}

// Name is the module's name: "fold_f32", "copy".
func (m Module) Name() string {
	if m.Type == 0 {
		return m.Kernel
	}
	return m.Kernel + "_" + m.Type.Tag()
}

// sources are the files that a module's source is joined from.
var sources = map[string][]string{
	"copy":      {"copy.cu"},
	"fold":      {"base.cu", "element.cu", "fold.cu"},
	"ll":        {"base.cu", "element.cu", "exchange.cu", "unit.cu", "ll.cu"},
	"bulk":      {"base.cu", "element.cu", "exchange.cu", "unit.cu", "bulk.cu"},
	"gather":    {"base.cu", "element.cu", "exchange.cu", "unit.cu", "gather.cu"},
	"handshake": {"base.cu", "exchange.cu", "handshake.cu"},
	"echo":      {"base.cu", "exchange.cu", "echo.cu"},
}

// Sources are the files that the module's source is joined from, in order; none
// for a module that does not ship.
func (m Module) Sources() []string { return sources[m.Kernel] }

// Defines are the options that choose the module out of its source.
func (m Module) Defines() []string {
	t := m.Type
	if m.Kernel == "gather" {
		t = dtype.Uint8
	}
	if t == 0 {
		return nil
	}
	return []string{"-DGP_TYPE_" + t.Tag()}
}

// Entries are the module's entry points.
func (m Module) Entries() []string {
	if m.Kernel != "fold" {
		return []string{"gp_" + m.Name()}
	}
	var es []string
	for _, o := range dtype.Ops {
		es = append(es, FoldEntry(m.Type, o))
	}
	return es
}

// FoldModule is the module that holds all reductions of a type.
func FoldModule(t dtype.Type) Module { return Module{"fold", t} }

// CopyModule is the module of gp_copy.
func CopyModule() Module { return Module{Kernel: "copy"} }

// Modules lists every module that ships.
func Modules() []Module {
	ms := []Module{CopyModule(), ExchangeModule(Gather, 0), ExchangeModule(Handshake, 0), ExchangeModule(EchoWords, 0)}
	for _, t := range dtype.Types {
		ms = append(ms, FoldModule(t), ExchangeModule(OneShot, t), ExchangeModule(TwoShot, t))
	}
	return ms
}

// FoldEntry is the entry point of a fold: "gp_fold_f32_sum".
func FoldEntry(t dtype.Type, o dtype.Op) string { return "gp_fold_" + t.Tag() + "_" + o.String() }

// CopyEntry is the entry point of the copy kernel.
const CopyEntry = "gp_copy"

// BlockThreads is the threads a block that the kernels are written for. They
// loop over a grid of any size.
const BlockThreads = 512

// MaxBlocks bounds a launch's grid. Some tens of blocks saturate device memory
// bandwidth for a fold, and eight saturate a PCIe 5.0 link.
const MaxBlocks = 256

// Blocks is the grid for a kernel that handles n bytes of its destination,
// sixteen a thread.
func Blocks(n uint64) uint32 {
	b := (n + BlockThreads*16 - 1) / (BlockThreads * 16)
	return uint32(min(max(b, 1), MaxBlocks))
}
