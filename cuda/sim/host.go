// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io/fs"
	"runtime"
	"time"
)

// host is the machine beside the driver: files of its own and the virtual clock.
type host struct {
	m     *Machine
	files fs.FS
}

// newHost lays out the little of /sys that the machine's description says
// something about: where each GPU is and what link it has. The files are a zip
// archive in memory, which is a complete fs.FS.
func newHost(m *Machine) (*host, error) {
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for _, g := range m.gpus {
		dir := fmt.Sprintf("sys/bus/pci/devices/%s/", g.busID())
		speed := fmt.Sprintf("%s GT/s PCIe\n", map[int]string{1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}[g.spec.PCIeGen])
		for _, f := range [][2]string{
			{"vendor", "0x10de\n"},
			{"class", "0x030000\n"},
			{"numa_node", fmt.Sprintln(g.spec.NUMANode)},
			{"max_link_speed", speed},
			{"current_link_speed", speed},
			{"max_link_width", fmt.Sprintln(g.spec.PCIeWidth)},
			{"current_link_width", fmt.Sprintln(g.spec.PCIeWidth)},
		} {
			w, err := z.Create(dir + f[0])
			if err != nil {
				return nil, err
			}
			if _, err := w.Write([]byte(f[1])); err != nil {
				return nil, err
			}
		}
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	files, err := zip.NewReader(bytes.NewReader(buf.Bytes()), int64(buf.Len()))
	if err != nil {
		return nil, err
	}
	return &host{m, files}, nil
}

func (h *host) FS() fs.FS { return h.files }

func (h *host) Modelled() bool { return true }

// Now is the host's virtual clock: driver calls and sleeping advance it.
func (h *host) Now() time.Duration {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	return h.m.clock
}

// Sleep advances the clock and returns at once.
func (h *host) Sleep(d time.Duration) {
	h.m.mu.Lock()
	h.m.clock += max(d, 0)
	h.m.mu.Unlock()
	// Whoever polls with a sleep in between lets others go on meanwhile.
	runtime.Gosched()
}

// PreferNode has nothing to do: the host's memory has no distance yet.
func (h *host) PreferNode(node int) (restore func(), err error) { return func() {}, nil }
