// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
)

// cacheMagic begins a file of the cache: a SHA-256 of its key and of what follows
// comes next, then the CUBIN. The driver is never handed a file that was cut short,
// or one that was made for another kernel, compiler or GPU.
const cacheMagic = "gp-cubin-2\n"

// A cache keeps CUBINs in files, so that only the first process on a machine
// compiles. It is an optimisation: whatever goes wrong with it is logged once
// and otherwise ignored. Files appear whole, by rename, so that processes may
// share it. It is safe for concurrent use.
type cache struct {
	log  *slog.Logger
	once sync.Once // trouble is logged once

	dir    string // "" where there is none
	create func(dir, pattern string) (*os.File, error)
	write  func(f *os.File, b []byte) (int, error)
}

// newCache uses dir, or the user's cache directory if dir is "". It creates
// nothing yet.
func newCache(dir string, log *slog.Logger) *cache {
	c := &cache{log: log, dir: dir, create: os.CreateTemp, write: (*os.File).Write}
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			c.trouble(err)
			return c
		}
		c.dir = filepath.Join(base, "geforce-p2p", "kernels")
	}
	return c
}

func (c *cache) trouble(err error) {
	c.once.Do(func() {
		c.log.Warn("ptx: compiled kernels are not kept, each process compiles them anew", "cause", err)
	})
}

// cacheKey is the name of what was made from parts. No two lists of parts have one.
func cacheKey(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// cacheSum is the sum in the file of a key. Keys have one length.
func cacheSum(key string, image []byte) [sha256.Size]byte {
	return sha256.Sum256(append([]byte(key), image...))
}

// load returns what was stored under a key. A file that is not whole, or
// is not the key's, is removed.
func (c *cache) load(key string) ([]byte, bool) {
	if !c.usable() {
		return nil, false
	}
	file := filepath.Join(c.dir, key+".cubin")
	b, err := os.ReadFile(file)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			c.trouble(err)
		}
		return nil, false
	}
	rest, ok := bytes.CutPrefix(b, []byte(cacheMagic))
	if ok && len(rest) > sha256.Size {
		image := rest[sha256.Size:]
		if sum := cacheSum(key, image); bytes.Equal(sum[:], rest[:sha256.Size]) {
			return image, true
		}
	}
	c.log.Warn("ptx: a compiled kernel in the cache is corrupt: it is discarded and compiled anew", "file", file)
	c.remove(key)
	return nil, false
}

// store keeps an image under a key.
func (c *cache) store(key string, image []byte) {
	sum := cacheSum(key, image)
	c.put(key+".cubin", bytes.Join([][]byte{[]byte(cacheMagic), sum[:], image}, nil))
}

// remove forgets a key.
func (c *cache) remove(key string) {
	if err := os.Remove(filepath.Join(c.dir, key+".cubin")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.trouble(err)
	}
}

// usable tells whether files of the cache may be believed: what lies in it is
// run on the GPU, so nobody else may write there.
func (c *cache) usable() bool {
	if c.dir == "" {
		return false
	}
	fi, err := os.Stat(c.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false // nothing there yet
	case err != nil:
		c.trouble(err)
		return false
	case !fi.IsDir():
		c.trouble(fmt.Errorf("%s is not a directory", c.dir))
		return false
	case runtime.GOOS != "windows" && fi.Mode().Perm()&0o022 != 0:
		c.trouble(fmt.Errorf("%s can be written by others (mode %v)", c.dir, fi.Mode().Perm()))
		return false
	}
	return true
}

// put writes a file whole or not at all.
func (c *cache) put(name string, b []byte) {
	if c.dir == "" {
		return
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		c.trouble(err)
		return
	}
	if !c.usable() {
		return
	}
	f, err := c.create(c.dir, "tmp-*") // mode 0600
	if err != nil {
		c.trouble(err)
		return
	}
	_, err = c.write(f, b)
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(c.dir, name))
	}
	if err != nil {
		os.Remove(f.Name())
		c.trouble(err)
	}
}

// An identity is which NVRTC made a CUBIN: its version, and its file's size
// and time of change, since a file can be replaced by another build of one
// version.
type identity struct {
	Path    string `json:"path"`
	Size    int64  `json:"size"`
	MTime   int64  `json:"mtime_ns"`
	Version string `json:"version"`
	Archs   []int  `json:"archs"`
}

// identify looks at the compiler's file. ok is false where there is none to be
// found, and then nothing is cached: two builds could not be told apart.
func identify(c compiler) (id identity, ok bool) {
	id = identity{Path: c.Path(), Version: c.Version(), Archs: c.Archs()}
	fi, err := os.Stat(id.Path)
	if err != nil || !fi.Mode().IsRegular() {
		return id, false
	}
	id.Size, id.MTime = fi.Size(), fi.ModTime().UnixNano()
	return id, true
}

// identityFile says which NVRTC was last used. With it a process that finds all
// its kernels in the cache need not load NVRTC, which is a large library.
const identityFile = "nvrtc.json"

// lastIdentity is the NVRTC that was used last, if its file is still the same.
func (c *cache) lastIdentity() (id identity, ok bool) {
	if !c.usable() {
		return id, false
	}
	b, err := os.ReadFile(filepath.Join(c.dir, identityFile))
	if err != nil || json.Unmarshal(b, &id) != nil {
		return id, false
	}
	fi, err := os.Stat(id.Path)
	return id, err == nil && fi.Size() == id.Size && fi.ModTime().UnixNano() == id.MTime
}

// keepIdentity notes which NVRTC is in use.
func (c *cache) keepIdentity(id identity) {
	b, err := json.Marshal(id)
	if err != nil {
		c.trouble(err)
		return
	}
	c.put(identityFile, append(b, '\n'))
}
