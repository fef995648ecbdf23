// SPDX-License-Identifier: Apache-2.0

// Command foreign copies between device memory that this library did not allocate,
// in the order of streams that it did not make: what another CUDA library of the
// process holds stays where it is. Here a few lines stand in for that library. What
// it gives away are two numbers, as any CUDA library can: a device address (a
// CUdeviceptr, or what cudaMalloc returned) and a stream handle (a CUstream or a
// cudaStream_t). With cgo they convert so:
//
//	cuda.Ptr(uintptr(unsafe.Pointer(p)))
//	cuda.StreamHandle(uintptr(unsafe.Pointer(s)))
package main

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
)

func main() {
	machine := flag.String("sim", "", "run on the simulated machine `NAME` (2x4090, 8x4090, ...) instead of this one's GPUs")
	flag.Parse()
	if err := run(*machine); err != nil {
		log.Fatal(err)
	}
}

const n = 1 << 20 // elements

func run(machine string) (err error) {
	var o gp.Options
	if machine != "" {
		m, err := sim.Open(machine)
		if err != nil {
			return err
		}
		o.Driver = m.Driver()
	}
	g, err := gp.Open(o)
	if err != nil {
		return fmt.Errorf("%w (-sim 2x4090 runs without a GPU)", err)
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	if len(g.Ranks()) < 2 {
		return errors.New("this takes two GPUs (-sim 2x4090 has them)")
	}

	producer, err := newLibrary(g.Driver(), 0)
	if err != nil {
		return err
	}
	defer producer.close()
	consumer, err := newLibrary(g.Driver(), 1)
	if err != nil {
		return err
	}
	defer consumer.close()

	// Wrapping asks the driver what the numbers are, once: do it when the other
	// library allocates, not for each copy.
	src, err := wrap(g.Ranks()[0], producer)
	if err != nil {
		return err
	}
	dst, err := wrap(g.Ranks()[1], consumer)
	if err != nil {
		return err
	}

	// The producer enqueues, and nobody waits for it on the host: the copy is
	// behind what its stream holds, and the consumer's stream behind the copy.
	for value := range uint32(3) {
		if err := producer.produce(value); err != nil {
			return err
		}
		if _, err := g.Copy(dst, src); err != nil {
			return err
		}
		got, err := consumer.consume()
		if err != nil {
			return err
		}
		for i := range n {
			if v := binary.LittleEndian.Uint32(got[4*i:]); v != value {
				return fmt.Errorf("element %d is %d where %d was produced", i, v, value)
			}
		}
		fmt.Printf("%d elements of value %d passed from GPU 0 to GPU 1\n", n, value)
	}
	return nil
}

// wrap makes a buffer of what another library holds on the rank's GPU. The library
// goes on owning both, and keeps them until the work on them is done.
func wrap(r *gp.Rank, l *library) (gp.Buffer, error) {
	address, handle := l.export()
	stream, err := r.Context().WrapStream(handle)
	if err != nil {
		return gp.Buffer{}, err
	}
	return r.Wrap(address, gp.TypeUint32, n, stream)
}

// A library is CUDA code that knows nothing of package gp.
type library struct {
	ctx    *cuda.Context
	mem    *cuda.Memory
	stream *cuda.Stream
}

func newLibrary(d *cuda.Driver, gpu int) (*library, error) {
	dev, err := d.Device(gpu)
	if err != nil {
		return nil, err
	}
	l := &library{}
	if l.ctx, err = dev.Primary(); err != nil { // as the CUDA runtime does
		return nil, err
	}
	if l.mem, err = l.ctx.Alloc(4 * n); err != nil {
		return nil, errors.Join(err, l.ctx.Close())
	}
	if l.stream, err = l.ctx.NewStream(); err != nil {
		return nil, errors.Join(err, l.mem.Close(), l.ctx.Close())
	}
	return l, nil
}

func (l *library) export() (cuda.Ptr, cuda.StreamHandle) { return l.mem.Ptr(), l.stream.Handle() }

func (l *library) produce(v uint32) error { return l.stream.MemsetD32(l.mem.Ptr(), v, n) }

func (l *library) consume() ([]byte, error) {
	got := make([]byte, 4*n)
	err := l.stream.Synchronize()
	return got, errors.Join(err, l.ctx.MemcpyDtoH(got, l.mem.Ptr()))
}

func (l *library) close() { _ = errors.Join(l.stream.Close(), l.mem.Close(), l.ctx.Close()) }
