// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"math"
	"slices"
)

// A benchNeed is the memory that a run takes, in bytes.
type benchNeed struct {
	device map[int]uint64 // by GPU, beside contexts and kernels
	host   uint64         // pinned and not
}

// fit refuses sizes that the machine cannot hold, before anything runs: need
// says what a largest size takes. The kind's own sizes are left out instead,
// from the largest down, with a note.
func (b *bench) fit(need func(most uint64) benchNeed) error {
	if b.chosen {
		return b.holds(b.sizes.most(), need)
	}
	wanted := b.sizes.most()
	var err error
	for len(b.sizes) > 0 {
		if err = b.holds(b.sizes.most(), need); err == nil {
			if most := b.sizes.most(); most < wanted {
				b.note("sizes above %s, up to %s, are left out: they do not fit here", formatSize(most), formatSize(wanted))
			}
			return nil
		}
		most := b.sizes.most()
		if len(b.sizes) == 1 && most > 1<<20 {
			b.sizes = sizeList{most / 2}
			continue
		}
		b.sizes = slices.DeleteFunc(b.sizes, func(n uint64) bool { return n == most })
	}
	return err
}

// holds tells whether the machine has the memory for sizes up to most.
func (b *bench) holds(most uint64, need func(uint64) benchNeed) error {
	if most > math.MaxInt/64 {
		return usagef("%s is too much for an address space of this size", formatSize(most))
	}
	n := need(most)
	host := n.host
	for gpu, bytes := range n.device {
		total, err := b.devices[gpu].TotalMem()
		if err != nil {
			return err
		}
		if available := total - min(total, 2*rankOverhead); bytes > available {
			return usagef("%s is too much for GPU %d: that takes %s of its %s", formatSize(most), gpu, inGiB(bytes), inGiB(total))
		}
		if b.machine.modelled() { // whose memory is this host's
			host += bytes
		}
	}
	available, ok := availableMemory(b.root)
	if !ok {
		available = hostMemoryUnknown
	}
	if host > available {
		return usagef("%s is too much for the host: that takes %s, and %s are available", formatSize(most), inGiB(host), inGiB(available))
	}
	return nil
}

// joined is errors.Join that keeps a lone error as it is, and so its exit code.
func joined(errs ...error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}
