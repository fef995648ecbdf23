// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/pci"
)

// A block is one allocation of pinned host memory (cuMemHostAlloc, PORTABLE and
// DEVICEMAP). Where the ranks' GPUs hang off one NUMA node, or nobody knows
// which, all ranks have their shares in one block, at equal distances: then one
// strided copy reads what several ranks have written. Otherwise each rank has a
// block of its own on its GPU's node, since memory on another one is slower.
type block struct {
	base unsafe.Pointer
	n    uint64
	// dev is the address by which each rank's kernels reach it, which is not
	// assumed to be the host address.
	dev []api.Ptr
}

// anyNode stands for a NUMA node that is not known, or does not matter.
const anyNode = -1

// minRing is the least pinned memory for the slots.
const minRing = 1 << 20

// The share of a rank's pinned memory through which kernels that wait for each
// other exchange data. It never holds anything else. Of a small budget there is
// none.
const (
	maxArea     = 4 << 20
	areaOf      = 5 // parts, of which the area is one
	minAreaRing = 8 << 20
)

func areaBytes(share uint64) uint64 {
	if share < minAreaRing {
		return 0
	}
	return min(share/areaOf/arenaAlign*arenaAlign, maxArea)
}

// locate finds out where the rank's GPU is: its NUMA node and what its link can
// carry. What is not known is 0 or anyNode; it costs speed and no more.
func (r *Rank) locate() {
	r.node = anyNode
	id, err := r.device.PCIBusID()
	if err != nil {
		return
	}
	d, err := pci.At(r.g.host.FS(), id)
	if err != nil {
		return
	}
	if rate, err := d.Rate(); err == nil {
		r.rate = rate
	}
	if node, err := d.NUMANode(); err == nil && severalNodes(r.g.host.FS()) {
		r.node = node
	}
	r.g.log.Debug("gp: rank", "rank", r.index, "gpu", id, "name", r.name, "numa_node", r.node, "link_gb_per_s", r.rate/1e9)
}

// severalNodes tells whether the machine has more than one NUMA node.
func severalNodes(root fs.FS) bool {
	b, err := fs.ReadFile(root, "sys/devices/system/node/online")
	return err == nil && strings.ContainsAny(string(b), ",-")
}

// onNode runs f, which allocates host memory, with the thread's memory policy
// set to a node.
func (g *Group) onNode(node int, f func() error) (err error) {
	g.relaxed(func() { // and so locked to the thread
		if node != anyNode {
			restore, e := g.host.PreferNode(node)
			if e != nil {
				g.log.Warn("gp: pinned memory cannot be put on the GPU's NUMA node: copies may be slower", "numa_node", node, "error", e)
			} else {
				defer restore()
			}
		}
		err = f()
	})
	return err
}

// takePinned takes the pinned memory of all ranks: the budget of each, or an
// equal share of less where the driver refuses that, half and half again. Less
// is slower, but it works. The first rank must not leave the last one without.
func (g *Group) takePinned(op string) error {
	budget := alignUp(uint64(g.opts.PinnedBytes), arenaAlign)
	var first error
	for n := budget; ; n = max(alignUp(n/2, arenaAlign), MinPinnedBytes) {
		err := g.tryPinned(op, n)
		if err == nil {
			if n < budget {
				g.log.Warn("gp: less pinned memory than asked for", "asked", budget, "got", n, "error", first)
			}
			return nil
		}
		if e := g.freePinned(); e != nil {
			return errors.Join(err, e)
		}
		if !errors.Is(err, cuda.ErrOutOfMemory) && !errors.Is(err, cuda.ErrOperatingSystem) && !errors.Is(err, cuda.ErrInvalidValue) {
			return err
		}
		if first == nil {
			first = err
		}
		g.stats.Retries++
		if n == MinPinnedBytes {
			return &Error{op, -1, fmt.Errorf("the driver gives no pinned host memory, not even %d bytes a rank where %d are the budget: look at RLIMIT_MEMLOCK (ulimit -l), "+
				"the cgroup's memory.max and, on Windows, the share of RAM that WDDM pins: %w", n, budget, first)}
		}
	}
}

// tryPinned takes n bytes for each rank: the bounce, and the rest for the slots
// and the area.
func (g *Group) tryPinned(op string, n uint64) error {
	g.stride = n - 2*bounceHalf
	together := true
	for _, r := range g.ranks {
		together = together && r.node == g.ranks[0].node
		err := g.onNode(r.node, func() (err error) { r.bounce, err = newBounce(r.cc); return err })
		if err != nil {
			return &Error{op, r.index, err}
		}
	}
	for i, r := range g.ranks {
		if !together || i == 0 {
			b := &block{n: g.stride}
			if together {
				b.n *= uint64(len(g.ranks))
			}
			if err := g.onNode(r.node, func() error { return b.alloc(op, r) }); err != nil {
				return err
			}
			g.blocks = append(g.blocks, b)
		}
		r.block, r.blockOff = g.blocks[len(g.blocks)-1], 0
		if together {
			r.blockOff = uint64(i) * g.stride
		}
		area := areaBytes(g.stride)
		r.pinnedBase = unsafe.Add(r.block.base, r.blockOff)
		r.pinned = arena{size: g.stride - area}
	}
	g.oneBlock = together
	return nil
}

// alloc takes the block and asks, for each rank, by which address its kernels
// reach it.
func (b *block) alloc(op string, r *Rank) error {
	call, c := r.bound(func(d api.Driver) (string, api.Code) {
		var c api.Code
		b.base, c = d.MemHostAlloc(b.n, api.HostPortable|api.HostDeviceMap)
		return "cuMemHostAlloc", c
	})
	if c != api.Success {
		err := r.g.callError(op, r, call, c)
		if b.base != nil { // what failed came behind it
			err = errors.Join(err, b.free(r.g))
		}
		return err
	}
	for _, reader := range r.g.ranks {
		call, c := reader.bound(func(d api.Driver) (string, api.Code) {
			p, c := d.MemHostGetDevicePointer(b.base)
			b.dev = append(b.dev, p)
			return "cuMemHostGetDevicePointer", c
		})
		if c != api.Success {
			return errors.Join(r.g.callError(op, reader, call, c), b.free(r.g))
		}
	}
	return nil
}

// free gives the block back. The memory is no context's own, so any context will
// do that is not lost. Where all are, it goes with them.
func (b *block) free(g *Group) (err error) {
	for _, r := range g.ranks {
		if r.cc.Err() != nil {
			continue
		}
		call, c := r.boundToFree(func(d api.Driver) (string, api.Code) { return "cuMemFreeHost", d.MemFreeHost(b.base) })
		if c == api.Success {
			return nil
		}
		e := g.callError("close", r, call, c)
		if r.cc.Err() == nil && c != api.Unknown && c != api.DeviceUnavailable { // as a GPU that is lost answers
			return e
		}
		if err == nil {
			err = e
		}
	}
	return err
}

// freePinned gives back what takePinned took. Nothing uses it any more.
func (g *Group) freePinned() error {
	var errs []error
	for _, b := range g.blocks {
		errs = append(errs, b.free(g))
	}
	g.blocks = nil
	for _, r := range g.ranks {
		r.block, r.pinnedBase, r.pinned = nil, nil, arena{}
		if r.bounce != nil {
			var err error
			if g.relaxed(func() { err = r.bounce.close() }); err != nil {
				errs = append(errs, &Error{"close", r.index, err})
			}
		}
	}
	return errors.Join(errs...)
}

// mappedPinned is the address by which kernels of rank reader reach the byte of
// the rank's pinned memory.
func (r *Rank) mappedPinned(reader *Rank, off uint64) api.Ptr {
	return r.block.dev[reader.index] + api.Ptr(r.blockOff+off)
}
