// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"errors"
	"io"
	"time"
)

// A file goes into an archive, below its one folder.
type file struct {
	name       string
	data       []byte
	executable bool
}

func (f *file) mode() int64 {
	if f.executable {
		return 0o755
	}
	return 0o644
}

// pack writes an archive whose files lie in folder and have one time, no owner and
// a fixed mode each. The bytes depend on its arguments alone.
func pack(form func(io.Writer, string, []file, time.Time) error, folder string, files []file, at time.Time) ([]byte, error) {
	var b bytes.Buffer
	if err := form(&b, folder, files, at); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// tarred is a .tar.gz.
func tarred(w io.Writer, folder string, files []file, at time.Time) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression) // its header has no name and no time
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	for _, f := range files {
		h := &tar.Header{
			Typeflag: tar.TypeReg, Name: folder + "/" + f.name, Size: int64(len(f.data)), Mode: f.mode(), ModTime: at, Format: tar.FormatUSTAR,
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(f.data); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}

// zipped is a .zip.
func zipped(w io.Writer, folder string, files []file, at time.Time) error {
	z := zip.NewWriter(w)
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, flate.BestCompression) })
	for _, f := range files {
		h := &zip.FileHeader{Name: folder + "/" + f.name, Method: zip.Deflate, Modified: at}
		h.ExternalAttrs = uint32(0o100000|f.mode()) << 16
		h.CreatorVersion = 3 << 8 // Unix, where the modes mean something
		e, err := z.CreateHeader(h)
		if err != nil {
			return err
		}
		if _, err := e.Write(f.data); err != nil {
			return err
		}
	}
	return z.Close()
}
