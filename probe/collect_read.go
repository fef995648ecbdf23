// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/probe/nvml"
)

// Bounds of the files of /proc and /sys that are read. A longer one was not
// written by a kernel that we know.
const (
	maxText  = 4096
	maxTable = 64 << 10
	maxLine  = 8 << 10
)

// files is a machine's file system, rooted at "/". Names are paths without the
// leading slash.
type files struct{ fsys fs.FS }

// text reads a file of at most limit bytes, without white space around it. A
// longer one, or one that holds a NUL, is an error.
func (f files) text(name string, limit int) (string, error) {
	s, whole, err := f.head(name, limit)
	if err != nil {
		return "", err
	}
	if !whole {
		return "", fmt.Errorf("longer than %d bytes", limit)
	}
	if strings.IndexByte(s, 0) >= 0 {
		return "", errors.New("holds a NUL")
	}
	return strings.TrimSpace(s), nil
}

// head reads the first limit bytes of a file, and tells whether that is all.
func (f files) head(name string, limit int) (s string, whole bool, err error) {
	file, err := f.fsys.Open(name)
	if err != nil {
		return "", false, err
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, int64(limit)+1))
	if err != nil {
		return "", false, err
	}
	if len(b) > limit {
		return string(b[:limit]), false, nil
	}
	return string(b), true, nil
}

// has tells whether a name exists. An error is one that left it open.
func (f files) has(name string) (bool, error) {
	_, err := fs.Stat(f.fsys, name)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	}
	return false, err
}

// open opens and closes a name, with a leading slash.
func (f files) open(path string) error {
	file, err := f.fsys.Open(strings.TrimPrefix(path, "/"))
	if err != nil {
		return err
	}
	return file.Close()
}

// textValue is a file's text as a fact.
func (f files) textValue(name string, limit int) Value[string] {
	s, err := f.text(name, limit)
	return valueOf(s, err, "/"+name)
}

// valueOf is a fact out of a value and an error.
func valueOf[T any](v T, err error, source string) Value[T] {
	if err != nil {
		return failed[T](err, source)
	}
	return Known(v, source)
}

// failed is an unknown fact. The source is not repeated in the reason, and the
// code of the library is kept.
func failed[T any](err error, source string) Value[T] {
	code, text := 0, err.Error()
	var (
		ofCUDA *cuda.Error
		ofNVML *nvml.Error
		ofPath *fs.PathError
	)
	switch {
	case errors.As(err, &ofCUDA):
		code = int(ofCUDA.Code)
		if ofCUDA.Code == cuda.ErrSymbolMissing {
			code = 0 // our own code, not one of the driver's
		}
	case errors.As(err, &ofNVML):
		code, text = int(ofNVML.Code), ofNVML.Code.Error()
	case errors.As(err, &ofPath):
		text = ofPath.Err.Error()
	}
	text = strings.TrimPrefix(text, source+": ")
	return Failed[T](source, short(text, maxReason), code)
}

// attempt is a library that did not load, with the reason. The loader's own text
// often starts with the name.
func attempt(name string, err error) string {
	return short(name+": "+strings.TrimPrefix(err.Error(), name+": "), maxReason)
}

// maxReason bounds why a value is unknown; a driver's words are shorter.
const maxReason = 500

// first is the first fact that is known, else the first that somebody asked for.
func first[T any](vs ...Value[T]) Value[T] {
	for _, v := range vs {
		if v.IsKnown() {
			return v
		}
	}
	for _, v := range vs {
		if v.Asked() {
			return v
		}
	}
	return Value[T]{}
}

// as makes a fact of another type.
func as[T, S any](v Value[S], convert func(S) T) Value[T] {
	s, ok := v.Get()
	if !ok {
		return Value[T]{Source: v.Source, Error: v.Error, Code: v.Code}
	}
	return Known(convert(s), v.Source)
}
