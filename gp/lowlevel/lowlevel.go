// SPDX-License-Identifier: Apache-2.0

// Package lowlevel is the parts that the collectives are made of, for who
// builds others: a staged copy through the caller's own pinned memory, and
// kernels that read and write pinned host memory in place.
//
// Host memory is a slice of pinned, device-mapped memory (cuda.HostMem.Bytes,
// or memory that other code of the process pinned). Anything else is refused
// before a driver call could fault on it. The caller keeps it, and does not
// touch what is being written or change what is being read, until the Work is
// done.
package lowlevel

import (
	"unsafe"

	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/gp/internal/bridge"
)

// StagedCopy copies src to dst, which are on different ranks and have the same
// type and length, through a ring of slots in staging: chunk bytes a slot, as
// many slots as fit, two at least. A chunk's copy to the host runs on the
// source rank, its copy from there on the destination rank, and both links are
// busy at once. It is ordered with the streams of both buffers as gp.Ops.Copy
// is. Two copies that are in flight at the same time need stagings of their own.
func StagedCopy(dst, src gp.Buffer, staging []byte, chunk int) (gp.Work, error) {
	w, err := bridge.StagedCopy(dst, src, bridge.Staging{Host: pointer(staging), Bytes: uint64(len(staging))}, chunk)
	return work(w), err
}

// ReduceFromHost folds pinned host memory into dst in place:
// dst[i] = op(dst[i], host[i]), in one pass and without scratch (kernel on
// dst's stream, host memory read over the link). host has dst's length in bytes
// and is aligned to its element. Avg divides by two, the number of inputs.
func ReduceFromHost(dst gp.Buffer, host []byte, op gp.Op) (gp.Work, error) {
	w, err := bridge.HostKernel("reduce_from_host", dst, pointer(host), len(host), op)
	return work(w), err
}

// CopyToHost copies src to pinned host memory of its length in bytes, by a
// kernel on src's stream that writes it in place.
func CopyToHost(host []byte, src gp.Buffer) (gp.Work, error) {
	w, err := bridge.HostKernel("copy_to_host", src, pointer(host), len(host), gp.Sum)
	return work(w), err
}

// CopyFromHost copies pinned host memory to dst, which has its length in bytes,
// by a kernel on dst's stream that reads it in place.
func CopyFromHost(dst gp.Buffer, host []byte) (gp.Work, error) {
	w, err := bridge.HostKernel("copy_from_host", dst, pointer(host), len(host), gp.Sum)
	return work(w), err
}

func pointer(b []byte) unsafe.Pointer {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Pointer(&b[0])
}

func work(w any) gp.Work {
	v, _ := w.(gp.Work)
	return v
}
