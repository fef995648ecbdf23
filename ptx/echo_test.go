// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"sync/atomic"
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// An echo is the CPU's side of gp_echo, on areas that it sees as its own memory.
type echo struct {
	x         kernel.Exchange // of rank 1
	grid      uint64
	mine, its unsafe.Pointer
	next      uint64 // the first word that has not been taken
}

// newEcho makes x the parameters of a kernel that answers so many batches.
func newEcho(x kernel.Exchange, batches, grid uint64, mine, its []byte) *echo {
	x.In, x.Out = batches, 0
	return &echo{x: x, grid: grid, mine: unsafe.Pointer(unsafe.SliceData(mine)), its: unsafe.Pointer(unsafe.SliceData(its))}
}

// word is the i-th word of data of a batch.
func (e *echo) word(batch, i uint64) uint32 {
	return uint32((batch<<20 + i + 1) * 0x9e3779b97f4a7c15 >> 29)
}

// words is how many words of data a batch has.
func (e *echo) words() uint64 { return e.x.Count / 4 }

func word64(p unsafe.Pointer, off uint64) *uint64 { return (*uint64)(unsafe.Add(p, off)) }
func word32(p unsafe.Pointer, off uint64) *uint32 { return (*uint32)(unsafe.Add(p, off)) }

// post writes a batch: LL words each at once, or plain words and then the flags
// of all blocks.
func (e *echo) post(batch uint64) {
	epoch := e.x.Epoch + batch
	flags, words, bulk := kernel.Half(e.x.AreaBytes, epoch)
	if e.x.Kind == kernel.EchoWords {
		for i := range e.words() {
			atomic.StoreUint64(word64(e.mine, words+8*i), uint64(e.word(batch, i))|epoch<<32)
		}
		return
	}
	for i := range e.words() {
		*word32(e.mine, bulk+4*i) = e.word(batch, i)
	}
	for b := range e.grid {
		atomic.StoreUint64(word64(e.mine, flags+b*kernel.FlagStride), epoch<<32|1)
	}
}

// take reads as much of a batch's answer as is there: whether it was all, and the
// first word that is not what it should be, or -1. A word of LL is judged by the
// very load that found its flag.
func (e *echo) take(batch uint64) (all bool, wrong int) {
	epoch := e.x.Epoch + batch
	flags, words, bulk := kernel.Half(e.x.AreaBytes, epoch)
	for ; e.x.Kind == kernel.EchoWords && e.next < e.words(); e.next++ {
		v := atomic.LoadUint64(word64(e.its, words+8*e.next))
		if v>>32 != epoch {
			return false, -1
		}
		if uint32(v) != ^e.word(batch, e.next) {
			return false, int(e.next)
		}
	}
	if e.x.Kind == kernel.EchoBulk {
		for b := range e.grid {
			if atomic.LoadUint64(word64(e.its, flags+b*kernel.FlagStride)) != epoch<<32|1 {
				return false, -1
			}
		}
		for i := range e.words() {
			if *word32(e.its, bulk+4*i) != ^e.word(batch, i) {
				return false, int(i)
			}
		}
	}
	e.next = 0
	return true, -1
}
