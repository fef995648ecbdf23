// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
)

// Memory is what a twin sees of a GPU's address space.
type Memory interface {
	// Bytes returns the n bytes of memory at a device address, to be read and
	// written in place. It fails where the GPU could not reach all of them.
	Bytes(addr, n uint64) ([]byte, error)
}

// What a twin answers where the kernel would fault or give garbage. An error
// of the Memory comes back as it is.
var (
	// ErrParams says that the parameter buffer is not what the kernel takes.
	ErrParams = errors.New("kernel: malformed parameters")
	// ErrMisaligned says that an address is not aligned to its element.
	ErrMisaligned = errors.New("kernel: misaligned address")
	// ErrOverlap says that the destination overlaps an input that it may not.
	ErrOverlap = errors.New("kernel: destination overlaps an input")
)

type foldKey struct {
	t  dtype.Type
	op dtype.Op
}

var foldEntries = func() map[string]foldKey {
	m := map[string]foldKey{}
	for _, t := range dtype.Types {
		for _, o := range dtype.Ops {
			m[FoldEntry(t, o)] = foldKey{t, o}
		}
	}
	return m
}()

// ParseEntry tells which fold an entry point is.
func ParseEntry(entry string) (t dtype.Type, o dtype.Op, ok bool) {
	k, ok := foldEntries[entry]
	return k.t, k.op, ok
}

// Twin returns the Go function that does to memory exactly what the kernel of
// that name does, given its packed parameters; false if no such kernel ships.
func Twin(entry string) (func(params []byte, m Memory) error, bool) {
	if entry == CopyEntry {
		return runCopy, true
	}
	k, ok := foldEntries[entry]
	if !ok {
		return nil, false
	}
	return func(params []byte, m Memory) error { return runFold(k, params, m) }, true
}

func runCopy(params []byte, m Memory) error {
	c, ok := ParseCopy(params)
	if !ok {
		return fmt.Errorf("%w: %s: %d bytes", ErrParams, CopyEntry, len(params))
	}
	if c.Bytes == 0 {
		return nil
	}
	if overlap(c.Dst, c.Bytes, c.Src, c.Bytes) {
		return fmt.Errorf("%w: %s: %d bytes, %#x to %#x", ErrOverlap, CopyEntry, c.Bytes, c.Src, c.Dst)
	}
	dst, err := m.Bytes(c.Dst, c.Bytes)
	if err != nil {
		return err
	}
	src, err := m.Bytes(c.Src, c.Bytes)
	if err != nil {
		return err
	}
	copy(dst, src)
	return nil
}

func runFold(k foldKey, params []byte, m Memory) error {
	f, ok := ParseFold(params)
	if !ok {
		return fmt.Errorf("%w: %s: %d bytes", ErrParams, FoldEntry(k.t, k.op), len(params))
	}
	if f.Count == 0 {
		return nil
	}
	at := func(addr uint64, wide bool) ([]byte, error) {
		s := uint64(size(k.t, wide))
		if addr%s != 0 {
			return nil, fmt.Errorf("%w: %s: %#x for elements of %d bytes", ErrMisaligned, FoldEntry(k.t, k.op), addr, s)
		}
		return m.Bytes(addr, f.Count*s)
	}
	dst, err := at(f.Dst, f.DstWide)
	if err != nil {
		return err
	}
	ins := make([][]byte, f.N)
	for i := range ins {
		wide := f.InWide>>i&1 != 0
		if ins[i], err = at(f.In[i], wide); err != nil {
			return err
		}
		same := f.In[i] == f.Dst && len(ins[i]) == len(dst)
		if !same && overlap(f.Dst, uint64(len(dst)), f.In[i], uint64(len(ins[i]))) {
			return fmt.Errorf("%w: %s: input %d at %#x, destination at %#x", ErrOverlap, FoldEntry(k.t, k.op), i, f.In[i], f.Dst)
		}
	}
	Reduce(k.t, k.op, dst, f.DstWide, ins, f.InWide, f.Divisor)
	return nil
}

func overlap(a, na, b, nb uint64) bool { return a < b+nb && b < a+na }
