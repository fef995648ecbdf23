// SPDX-License-Identifier: Apache-2.0

package libcuda

import (
	"io/fs"
	"os"
	"time"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// host is the real machine.
type host struct {
	fs    fs.FS
	start time.Time
}

func newHost() api.Host { return &host{fs: os.DirFS("/"), start: time.Now()} }

func (h *host) FS() fs.FS             { return h.fs }
func (h *host) Now() time.Duration    { return time.Since(h.start) }
func (h *host) Sleep(d time.Duration) { sleep(d) }
func (h *host) Modelled() bool        { return false }

func (h *host) PreferNode(node int) (restore func(), err error) { return preferNode(h.fs, node) }
