// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// compiler is what the first rung needs of NVRTC.
type compiler interface {
	Version() string // "12.6"
	Path() string    // the library's file
	Archs() []int    // compute capabilities times ten, ascending; empty: it cannot tell
	// Compile makes a CUBIN. log is the compiler's, also where it failed.
	Compile(source, name string, options ...string) (cubin []byte, log string, err error)
}

// builder makes CUBINs: from the cache, or by NVRTC. Devices of one
// architecture share them. It is safe for concurrent use.
type builder struct {
	open  func() (compiler, error) // the library, loaded when first needed
	cache *cache

	mu      sync.Mutex
	cubins  map[cubinKey]*cubin
	refused map[string]bool // keys of cached images that a driver did not take
}

type cubinKey struct {
	module kernel.Module
	arch   int
}

// A cubin is built once; who else asks for it meanwhile waits on its mutex.
type cubin struct {
	mu     sync.Mutex
	done   bool
	image  []byte
	key    string // in the cache, "" if it is not there
	cached bool   // it came out of the cache
	err    error
}

func newBuilder(open func() (compiler, error), c *cache) *builder {
	return &builder{open: sync.OnceValues(open), cache: c, cubins: map[cubinKey]*cubin{}, refused: map[string]bool{}}
}

// options are NVRTC's for a module. Contraction and flushing of denormals are
// off, and division is exact, as in the embedded PTX: both give the same bits.
func options(arch int, defines []string) []string {
	return append([]string{
		fmt.Sprintf("--gpu-architecture=sm_%d", arch),
		"--fmad=false", "--ftz=false", "--prec-div=true",
	}, defines...)
}

// build returns the module's CUBIN for an architecture (89 for sm_89). A
// failure is kept too: the same source would fail again.
func (b *builder) build(m kernel.Module, arch int) *cubin {
	b.mu.Lock()
	k := cubinKey{m, arch}
	c := b.cubins[k]
	if c == nil {
		c = &cubin{}
		b.cubins[k] = c
	}
	b.mu.Unlock()

	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.done {
		c.done = true
		b.fill(c, m, arch)
	}
	return c
}

// discard forgets a CUBIN that came out of the cache and that the driver
// refused. The next build compiles it.
func (b *builder) discard(m kernel.Module, arch int, c *cubin) {
	b.cache.remove(c.key)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused[c.key] = true // it may still be there: the cache may be read-only
	if k := (cubinKey{m, arch}); b.cubins[k] == c {
		delete(b.cubins, k)
	}
}

func (b *builder) fill(c *cubin, m kernel.Module, arch int) {
	name, source, defines, err := Source(m)
	if err != nil {
		c.err = err
		return
	}
	opts := options(arch, defines)
	key := func(id identity) string {
		return cacheKey(source, strings.Join(opts, "\x00"), id.Version, fmt.Sprint(id.Size), fmt.Sprint(id.MTime))
	}
	find := func(id identity) bool {
		c.key = key(id)
		b.mu.Lock()
		refused := b.refused[c.key]
		b.mu.Unlock()
		if !refused {
			c.image, c.cached = b.cache.load(c.key)
		}
		return c.cached
	}
	last, known := b.cache.lastIdentity()
	known = known && wanted(last.Path)
	if known && find(last) {
		return
	}
	lib, err := b.open()
	if err != nil {
		c.key, c.err = "", err
		return
	}
	id, keep := identify(lib)
	same := known && last.Path == id.Path && last.Size == id.Size && last.MTime == id.MTime && last.Version == id.Version
	if keep && !same {
		b.cache.keepIdentity(id)
		if find(id) {
			return
		}
	}
	if !keep {
		c.key = ""
	}
	if archs := lib.Archs(); len(archs) > 0 && !slices.Contains(archs, arch) {
		c.err = fmt.Errorf("NVRTC %s (%s) does not know sm_%d, only up to sm_%d", lib.Version(), lib.Path(), arch, slices.Max(archs))
		return
	}
	image, log, err := lib.Compile(source, name, opts...)
	switch {
	case err != nil:
		c.err = fmt.Errorf("NVRTC %s (%s) does not compile %s: %w", lib.Version(), lib.Path(), m.Name(), err)
		if log = strings.TrimSpace(log); log != "" && !strings.Contains(err.Error(), log) {
			c.err = fmt.Errorf("%w\n%s", c.err, log)
		}
	case len(image) == 0:
		c.err = errors.New("NVRTC gave an empty CUBIN")
	default:
		c.image = image
		if c.key != "" {
			b.cache.store(c.key, image)
		}
	}
}
