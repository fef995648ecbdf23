// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
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

// A file that was put in the place of another, whole as it is, is not loaded.
func TestCacheSwapped(t *testing.T) {
	log, out := logBuffer()
	dir := filepath.Join(t.TempDir(), "cache")
	c := newCache(dir, log)
	c.store("k", []byte("image of k"))
	c.store("l", []byte("image of l"))
	require.NoError(t, os.Rename(filepath.Join(dir, "l.cubin"), filepath.Join(dir, "k.cubin")))
	_, ok := c.load("k")
	require.False(t, ok)
	require.Equal(t, 1, lines(out))
	require.Contains(t, out.String(), "corrupt")
	require.NoFileExists(t, filepath.Join(dir, "k.cubin"))
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

// The same for a user who may write everywhere, on a file system that may not be
// written to.
func TestCacheReadOnlyFileSystem(t *testing.T) {
	log, out := logBuffer()
	dir := filepath.Join(t.TempDir(), "cache")
	newCache(dir, log).store("k", []byte("image"))
	c := newCache(dir, log)
	c.create = func(dir, pattern string) (*os.File, error) {
		return nil, &os.PathError{Op: "open", Path: dir, Err: syscall.EROFS}
	}
	for range 3 {
		got, ok := c.load("k")
		require.True(t, ok)
		require.Equal(t, "image", string(got))
		c.store("l", []byte("other"))
	}
	require.Equal(t, 1, lines(out), out.String())
	require.Contains(t, out.String(), "not kept")
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

// starter is the cache of the children of TestCacheTenProcesses.
const starter = "GP_TEST_CACHE"

// manyKeys are what they compile, with images long enough to be seen half written.
func manyKeys() (keys []string, images [][]byte) {
	for i := range 5 {
		keys = append(keys, cacheKey("module", strconv.Itoa(i)))
		images = append(images, bytes.Repeat([]byte{byte('a' + i)}, 300_000+i))
	}
	return keys, images
}

// TestCacheStarter is such a child: it loads or stores every key, some times over.
func TestCacheStarter(t *testing.T) {
	dir := os.Getenv(starter)
	if dir == "" {
		t.Skip("the child of another test")
	}
	log, out := logBuffer()
	keys, images := manyKeys()
	_, err := io.Copy(io.Discard, os.Stdin) // ends when all are there
	require.NoError(t, err)
	for range 3 {
		c := newCache(dir, log)
		for i, k := range keys {
			got, ok := c.load(k)
			if ok {
				require.True(t, bytes.Equal(images[i], got), "key %d", i)
			}
			c.store(k, images[i])
			got, ok = c.load(k)
			require.True(t, ok, "key %d is gone", i)
			require.True(t, bytes.Equal(images[i], got), "key %d", i)
		}
	}
	if runtime.GOOS != "windows" { // where a file that somebody reads is not replaced
		require.Empty(t, out.String())
	}
}

// Ten processes that start at once on an empty cache, not even a directory, all
// find what they or others stored, whole, and leave nothing else.
func TestCacheTenProcesses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	const processes = 10
	cmds := make([]*exec.Cmd, processes)
	outs := make([]bytes.Buffer, processes)
	var gates []io.Closer
	for i := range cmds {
		cmds[i] = exec.Command(os.Args[0], "-test.run=^TestCacheStarter$")
		cmds[i].Env = append(os.Environ(), starter+"="+dir)
		cmds[i].Stdout, cmds[i].Stderr = &outs[i], &outs[i]
		in, err := cmds[i].StdinPipe()
		require.NoError(t, err)
		require.NoError(t, cmds[i].Start())
		gates = append(gates, in)
	}
	for _, g := range gates {
		require.NoError(t, g.Close())
	}
	for i, cmd := range cmds {
		require.NoError(t, cmd.Wait(), outs[i].String())
	}
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	keys, images := manyKeys()
	require.Len(t, files, len(keys), "nothing but the images")
	log, out := logBuffer()
	c := newCache(dir, log)
	for i, k := range keys {
		got, ok := c.load(k)
		require.True(t, ok)
		require.True(t, bytes.Equal(images[i], got))
	}
	require.Empty(t, out.String())
	if runtime.GOOS == "windows" {
		return
	}
	for _, f := range files {
		fi, err := f.Info()
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), fi.Mode().Perm())
	}
	fi, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), fi.Mode().Perm())
}
