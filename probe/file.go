// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// What a facts file may hold. A file comes from somebody else: these bounds are
// checked before anything is decoded, so that a hostile one costs an error and
// not memory.
const (
	maxFileBytes = 8 << 20
	maxDevices   = 64
	maxString    = 64 << 10 // bytes of one string or number
	maxDepth     = 24
	maxList      = maxDevices * maxDevices // elements of one list, or names of one object
	maxElements  = 1 << 15                 // elements of all lists
	maxNames     = 1 << 20                 // names of all objects
)

// ErrFacts is matched by every error of Load and Parse that lies in the file.
var ErrFacts = errors.New("not a facts file")

// Load reads facts in JSON, at most 8 MiB. Every error that lies in the content
// matches ErrFacts.
func Load(r io.Reader) (*Facts, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	return Parse(b)
}

// Parse is Load of what has been read already.
func Parse(b []byte) (*Facts, error) {
	f, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFacts, err)
	}
	return f, nil
}

func parse(b []byte) (*Facts, error) {
	if err := bounded(b); err != nil {
		return nil, err
	}
	// The schema first: a newer file may differ in anything else.
	var head struct {
		Schema *int `json:"schema"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return nil, err
	}
	switch {
	case head.Schema == nil:
		return nil, errors.New(`it has no "schema"`)
	case *head.Schema < 1:
		return nil, fmt.Errorf("there is no schema %d", *head.Schema)
	case *head.Schema > Schema:
		return nil, fmt.Errorf("it has schema %d, this program knows up to %d: use a newer one", *head.Schema, Schema)
	}
	f := new(Facts)
	if err := json.Unmarshal(b, f); err != nil {
		return nil, err
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	return f, nil
}

// bounded looks at the bytes alone, in one pass that allocates nothing.
func bounded(b []byte) error {
	if len(b) > maxFileBytes {
		return fmt.Errorf("it is larger than %d MiB", maxFileBytes>>20)
	}
	if i := bytes.IndexByte(b, 0); i >= 0 {
		return fmt.Errorf("there is a NUL at byte %d", i)
	}
	var (
		list            [maxDepth]bool // an open bracket at this depth is a list's
		count           [maxDepth]int
		depth           int
		elements, names int
		token           int // start of the string or number, if in one
	)
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			for token = i; ; {
				if i++; i >= len(b) {
					return errors.New("a string does not end")
				}
				if b[i] == '\\' {
					i++
				} else if b[i] == '"' {
					break
				}
			}
			if i-token > maxString {
				return fmt.Errorf("a string at byte %d is longer than %d bytes", token, maxString)
			}
			token = i
		case '[', '{':
			if depth == maxDepth {
				return fmt.Errorf("it is nested more than %d deep", maxDepth)
			}
			list[depth], count[depth] = b[i] == '[', 0
			depth++
			// The first element has no comma in front: count it here.
			if list[depth-1] {
				elements++
			} else {
				names++
			}
			token = i
		case ']', '}':
			if depth == 0 {
				return fmt.Errorf("a bracket at byte %d closes nothing", i)
			}
			depth--
			token = i
		case ',':
			token = i
			if depth == 0 {
				continue // not JSON: the decoder says so
			}
			if count[depth-1]++; count[depth-1] >= maxList {
				return fmt.Errorf("a list or object at byte %d has more than %d entries", i, maxList)
			}
			if list[depth-1] {
				elements++
			} else {
				names++
			}
		case ' ', '\t', '\n', '\r', ':':
			token = i
		default:
			if i-token > maxString {
				return fmt.Errorf("a word at byte %d is longer than %d bytes", token, maxString)
			}
		}
		if elements > maxElements {
			return fmt.Errorf("it has more than %d entries in lists", maxElements)
		}
		if names > maxNames {
			return fmt.Errorf("it has more than %d names", maxNames)
		}
	}
	return nil
}

// check holds what the types cannot: numbers that are used as indices.
func (f *Facts) check() error {
	if len(f.Devices) > maxDevices {
		return fmt.Errorf("it has %d devices: at most %d are judged", len(f.Devices), maxDevices)
	}
	seen := make(map[[2]int]bool, len(f.Pairs))
	for _, p := range f.Pairs {
		if p.From < 0 || p.To < 0 || p.From >= len(f.Devices) || p.To >= len(f.Devices) {
			return fmt.Errorf("a pair is of devices %d and %d, and there are %d devices", p.From, p.To, len(f.Devices))
		}
		if p.From == p.To {
			return fmt.Errorf("device %d is paired with itself", p.From)
		}
		if k := [2]int{p.From, p.To}; seen[k] {
			return fmt.Errorf("the pair of devices %d and %d is there twice", p.From, p.To)
		} else {
			seen[k] = true
		}
	}
	return nil
}

// Save writes facts in JSON, as Load reads them. Serial numbers and the like
// are in it unless f is the result of Masked.
func Save(w io.Writer, f *Facts) error {
	b, err := f.encode()
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

func (f *Facts) encode() ([]byte, error) {
	out := *f
	out.Schema = Schema
	if out.Devices == nil {
		out.Devices = []Device{}
	}
	if out.Pairs == nil {
		out.Pairs = []Pair{}
	}
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(&out); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
