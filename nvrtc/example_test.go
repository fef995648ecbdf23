// SPDX-License-Identifier: Apache-2.0

package nvrtc_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/geforce-p2p/geforce-p2p/nvrtc"
)

// Machine code for an RTX 4090 (sm_89). A host without NVRTC is told apart from
// source that does not compile.
func Example() {
	lib, err := nvrtc.Load()
	if errors.Is(err, nvrtc.ErrNoLibrary) {
		fmt.Println("no NVRTC here:", err) // every place that was tried, and why it was not that
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	const source = `extern "C" __global__ void one(int *p) { *p = 1; }`
	cubin, _, err := lib.Compile(source, "one.cu", "--gpu-architecture=sm_89")
	if err != nil {
		log.Fatal(err) // with the compiler's text
	}
	fmt.Println(len(cubin), "bytes for cuda.Context.LoadModule")
}
