// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/geforce-p2p/geforce-p2p/probe/nvml"
)

// The GPUs as NVML counts them, by the bus id that tells which ones they are.
func Example() {
	lib, err := nvml.Open()
	if errors.Is(err, nvml.ErrLibraryNotFound) {
		fmt.Println("no NVIDIA driver here:", err) // every place that was tried
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	defer lib.Close()
	n, err := lib.Count()
	if err != nil {
		log.Fatal(err)
	}
	for i := range n {
		d, err := lib.Device(i)
		if err != nil {
			fmt.Println(i, err) // one that fell off the bus
			continue
		}
		pci, err := d.PCI()
		fmt.Println(i, pci.BusID, err)
	}
}
