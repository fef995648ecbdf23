// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"embed"
	"fmt"
	"strings"

	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

//go:embed *.cu
var sources embed.FS

//go:embed embedded/*.ptx
var embedded embed.FS

// Source is the CUDA C++ of a module and the -D options that choose the module
// out of it. It is several files joined, and includes nothing.
func Source(m kernel.Module) (name, text string, defines []string, err error) {
	if len(m.Sources()) == 0 {
		return "", "", nil, fmt.Errorf("ptx: no kernel %q", m.Kernel)
	}
	var b strings.Builder
	for _, name := range m.Sources() {
		part, err := sources.ReadFile(name)
		if err != nil {
			return "", "", nil, fmt.Errorf("ptx: kernel %q: %w", m.Kernel, err)
		}
		b.Write(part)
	}
	return m.Kernel + ".cu", b.String(), m.Defines(), nil
}

// Embedded is the ready PTX of a module: version 7.0, target sm_80.
func Embedded(m kernel.Module) (string, error) {
	b, err := embedded.ReadFile("embedded/" + m.Name() + ".ptx")
	if err != nil {
		return "", fmt.Errorf("ptx: no embedded module %q", m.Name())
	}
	return string(b), nil
}

// Entries are the entry points of a module.
func Entries(m kernel.Module) []string { return m.Entries() }
