// SPDX-License-Identifier: Apache-2.0

package cuda_test

import (
	"errors"
	"fmt"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
)

// On a GPU host, cuda.Open takes the place of the simulated machine.
func Example() {
	m, err := sim.Open("2x4090")
	if err != nil {
		fmt.Println(err)
		return
	}
	dev, err := m.Driver().Device(0)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, err := dev.Primary()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ctx.Close()

	mem, err := ctx.Alloc(16)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer mem.Close()
	if err := ctx.MemcpyHtoD(mem.Ptr(), []byte("sixteen bytes...")); err != nil {
		fmt.Println(err)
		return
	}
	back := make([]byte, 16)
	if err := ctx.MemcpyDtoH(back, mem.Ptr()); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s\n", back)

	_, err = dev.Driver().Device(99)
	fmt.Println(errors.Is(err, cuda.ErrInvalidDevice))
	// Output:
	// sixteen bytes...
	// true
}
