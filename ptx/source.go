// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"embed"
	"fmt"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

//go:embed fold.cu copy.cu
var sources embed.FS

//go:embed embedded/*.ptx
var embedded embed.FS

// Source is the CUDA C++ of a module and the -D options that choose the module
// out of it. The source includes nothing.
func Source(m kernel.Module) (name, text string, defines []string, err error) {
	name = m.Kernel + ".cu"
	b, err := sources.ReadFile(name)
	if err != nil {
		return "", "", nil, fmt.Errorf("ptx: no kernel %q", m.Kernel)
	}
	if m.Type != 0 {
		defines = []string{"-DGP_TYPE_" + m.Type.Tag()}
	}
	return name, string(b), defines, nil
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
func Entries(m kernel.Module) []string {
	if m.Type == 0 {
		return []string{kernel.CopyEntry}
	}
	var es []string
	for _, o := range dtype.Ops {
		es = append(es, kernel.FoldEntry(m.Type, o))
	}
	return es
}
