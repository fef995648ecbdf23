// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/pci"
)

// gpuNode is the NUMA node of a GPU, -1 where the machine does not tell.
func gpuNode(root fs.FS, d cuda.Device) int {
	id, err := d.PCIBusID()
	if err != nil {
		return -1
	}
	dev, err := pci.At(root, id)
	if err != nil {
		return -1
	}
	n, err := dev.NUMANode()
	if err != nil {
		return -1
	}
	return n
}

// nodeOf is the node for the host memory of a GPU's port: its own, or -1, with a
// note, where the process may not choose.
func (r *rig) nodeOf(gpu int) int {
	node := gpuNode(r.b.host.FS(), r.b.devices[gpu])
	if node < 0 {
		return -1
	}
	if err := r.prefers(node); err != nil {
		r.b.note("host memory of GPU %d is where the driver puts it, not on its node %d: %v", gpu, node, err)
		return -1
	}
	return node
}

// memoryNodes are the NUMA nodes that have memory; none where the machine does
// not tell.
func memoryNodes(root fs.FS) []int {
	for _, name := range []string{"has_memory", "online"} {
		b, err := fs.ReadFile(root, "sys/devices/system/node/"+name)
		if err != nil {
			continue
		}
		if nodes, err := parseNodes(string(b)); err == nil && len(nodes) > 0 {
			return nodes
		}
	}
	return nil
}

// maxNode is above what a kernel can be built for (NODES_SHIFT 10).
const maxNode = 1024

// parseNodes reads the kernel's list format: "0-3,8".
func parseNodes(s string) (nodes []int, err error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		if err != nil {
			return nil, fmt.Errorf("node list %q: %w", s, err)
		}
		last := first
		if isRange {
			if last, err = strconv.Atoi(to); err != nil {
				return nil, fmt.Errorf("node list %q: %w", s, err)
			}
		}
		if first < 0 || last >= maxNode {
			return nil, fmt.Errorf("node list %q: not nodes", s)
		}
		for n := first; n <= last; n++ {
			nodes = append(nodes, n)
		}
	}
	return nodes, nil
}

// farNode is the node with memory that is the farthest from node near: by the
// firmware's distances where the machine tells them, else the last other one;
// -1 if there is no other.
func farNode(root fs.FS, near int) int {
	nodes := memoryNodes(root)
	var distances []string
	if b, err := fs.ReadFile(root, fmt.Sprintf("sys/devices/system/node/node%d/distance", near)); err == nil {
		distances = strings.Fields(string(b))
	}
	far, most := -1, -1
	for i, n := range nodes {
		if n == near {
			continue
		}
		distance := 0
		// The file has a column for each online node, in order.
		if len(distances) == len(nodes) {
			distance, _ = strconv.Atoi(distances[i])
		}
		if distance >= most {
			far, most = n, distance
		}
	}
	return far
}
