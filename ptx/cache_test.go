// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// logBuffer is a logger and what it was told.
func logBuffer() (*slog.Logger, *bytes.Buffer) {
	var b bytes.Buffer
	return slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug})), &b
}

func lines(b *bytes.Buffer) int { return strings.Count(b.String(), "\n") }

func TestCacheRoundTrip(t *testing.T) {
	log, out := logBuffer()
	dir := filepath.Join(t.TempDir(), "a", "b")
	c := newCache(dir, log)
	_, ok := c.load("k")
	require.False(t, ok)
	c.store("k", []byte("image"))
	got, ok := newCache(dir, log).load("k")
	require.True(t, ok)
	require.Equal(t, "image", string(got))
	c.remove("k")
	_, ok = c.load("k")
	require.False(t, ok)
	c.remove("k")
	require.Empty(t, out.String())
}

func TestCacheModes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no Unix modes")
	}
	log, _ := logBuffer()
	dir := filepath.Join(t.TempDir(), "cache")
	c := newCache(dir, log)
	c.store("k", []byte("image"))
	fi, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), fi.Mode().Perm())
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 1, "no temporary file stays")
	fi, err = files[0].Info()
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), fi.Mode().Perm())
}

// A file of the cache that is not what was written is discarded and said so.
func TestCacheCorrupt(t *testing.T) {
	image := bytes.Repeat([]byte("cubin"), 100)
	for name, spoil := range map[string]func(b []byte) []byte{
		"empty":          func(b []byte) []byte { return nil },
		"cut short":      func(b []byte) []byte { return b[:len(b)-1] },
		"only a header":  func(b []byte) []byte { return b[:len(cacheMagic)+32] },
		"a flipped bit":  func(b []byte) []byte { b[len(b)-7] ^= 1; return b },
		"a flipped hash": func(b []byte) []byte { b[len(cacheMagic)] ^= 1; return b },
		"other magic":    func(b []byte) []byte { b[0] ^= 1; return b },
		"longer":         func(b []byte) []byte { return append(b, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			log, out := logBuffer()
			dir := filepath.Join(t.TempDir(), "cache")
			c := newCache(dir, log)
			c.store("k", image)
			file := filepath.Join(dir, "k.cubin")
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(file, spoil(b), 0o600))
			_, ok := c.load("k")
			require.False(t, ok)
			require.Equal(t, 1, lines(out))
			require.Contains(t, out.String(), "corrupt")
			require.NoFileExists(t, file)
			c.store("k", image)
			got, ok := c.load("k")
			require.True(t, ok)
			require.Equal(t, image, got)
		})
	}
}

// Without a home directory there is no cache; that is said once.
func TestCacheNoHome(t *testing.T) {
	for _, v := range []string{"HOME", "XDG_CACHE_HOME", "LocalAppData", "home"} {
		t.Setenv(v, "")
	}
	if _, err := os.UserCacheDir(); err == nil {
		t.Skip("this system has a cache directory without a home directory")
	}
	log, out := logBuffer()
	c := newCache("", log)
	for range 3 {
		c.store("k", []byte("image"))
		_, ok := c.load("k")
		require.False(t, ok)
	}
	require.Equal(t, 1, lines(out), out.String())
}

// A cache that can be read but not written is read; that it is not written is
// said once.
func TestCacheReadOnly(t *testing.T) {
	log, out := logBuffer()
	dir := filepath.Join(t.TempDir(), "cache")
	newCache(dir, log).store("k", []byte("image"))
	require.NoError(t, os.Chmod(dir, 0o500))
	t.Cleanup(func() { os.Chmod(dir, 0o700) })
	if f, err := os.CreateTemp(dir, "probe"); err == nil {
		f.Close()
		os.Remove(f.Name())
		t.Skip("this user writes to read-only directories")
	}
	c := newCache(dir, log)
	for range 3 {
		got, ok := c.load("k")
		require.True(t, ok)
		require.Equal(t, "image", string(got))
		c.store("l", []byte("other"))
	}
	require.Equal(t, 1, lines(out), out.String())
}

// A directory that cannot be made is said once, also for a user who may do
// anything.
func TestCacheNoDirectory(t *testing.T) {
	log, out := logBuffer()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, dir := range []string{file, filepath.Join(file, "below")} {
		out.Reset()
		c := newCache(dir, log)
		for range 3 {
			c.store("k", []byte("image"))
			_, ok := c.load("k")
			require.False(t, ok)
		}
		require.Equal(t, 1, lines(out), out.String())
	}
}

// A full disk leaves no file behind, whole or not, and is said once.
func TestCacheFullDisk(t *testing.T) {
	log, out := logBuffer()
	dir := filepath.Join(t.TempDir(), "cache")
	c := newCache(dir, log)
	c.write = func(f *os.File, b []byte) (int, error) {
		n, _ := f.Write(b[:len(b)/2])
		return n, syscall.ENOSPC
	}
	for range 3 {
		c.store("k", []byte("image"))
	}
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, files)
	require.Equal(t, 1, lines(out), out.String())
	require.Contains(t, out.String(), "level=WARN")
}

// What others can write is not run on the GPU.
func TestCacheWritableByOthers(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no Unix modes")
	}
	log, out := logBuffer()
	dir := filepath.Join(t.TempDir(), "cache")
	newCache(dir, log).store("k", []byte("image"))
	require.NoError(t, os.Chmod(dir, 0o777))
	c := newCache(dir, log)
	_, ok := c.load("k")
	require.False(t, ok)
	require.Equal(t, 1, lines(out))
	require.Contains(t, out.String(), "written by others")
}

func TestCacheKey(t *testing.T) {
	require.Equal(t, cacheKey("a", "b"), cacheKey("a", "b"))
	require.NotEqual(t, cacheKey("a", "b"), cacheKey("ab"))
	require.NotEqual(t, cacheKey("a", "b"), cacheKey("ab", ""))
	require.NotEqual(t, cacheKey("a", "b"), cacheKey("b", "a"))
}
