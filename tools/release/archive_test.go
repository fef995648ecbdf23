// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"io"
	"testing"
	"time"
)

// What goes into an archive comes out of it, with the modes and the one time that
// it is to have, and twice the same bytes.
func TestPack(t *testing.T) {
	files := []file{{"command", bytes.Repeat([]byte("binary"), 1000), true}, {"LICENSE", []byte("text"), false}}
	at := time.Unix(1700000000, 0).UTC()
	type entry struct {
		name, data string
		mode       int64
	}
	want := []entry{{"x_v1/command", string(files[0].data), 0o755}, {"x_v1/LICENSE", "text", 0o644}}
	check := func(i int, name string, mode int64, when time.Time, r io.Reader) {
		t.Helper()
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if got := (entry{name, string(b), mode}); got != want[i] || !when.Equal(at) {
			t.Fatalf("%q, mode %o, %d bytes, %v", name, mode, len(b), when)
		}
	}

	b, err := pack(tarred, "x_v1", files, at)
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(z)
	for i := range want {
		h, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		check(i, h.Name, h.Mode, h.ModTime, r)
	}
	if _, err := r.Next(); err != io.EOF {
		t.Fatal(err)
	}

	c, err := pack(zipped, "x_v1", files, at)
	if err != nil {
		t.Fatal(err)
	}
	a, err := zip.NewReader(bytes.NewReader(c), int64(len(c)))
	if err != nil || len(a.File) != len(want) {
		t.Fatal(err, len(a.File))
	}
	for i, f := range a.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		check(i, f.Name, int64(f.Mode().Perm()), f.Modified, r)
	}

	for first, form := range map[*[]byte]func(io.Writer, string, []file, time.Time) error{&b: tarred, &c: zipped} {
		again, err := pack(form, "x_v1", files, at)
		if err != nil || !bytes.Equal(*first, again) {
			t.Fatal(err, "other bytes the second time")
		}
	}
}
