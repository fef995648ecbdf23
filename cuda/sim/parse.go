// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

//go:embed machines/*.json
var machines embed.FS

// Names lists the machines that Open knows.
func Names() []string {
	files, _ := machines.ReadDir("machines")
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f.Name(), ".json"))
	}
	slices.Sort(names)
	return names
}

// Builtin returns the description of a machine that Open knows. An unknown
// name's error lists the names.
func Builtin(name string) (Spec, error) {
	b, err := builtin(name)
	if err != nil {
		return Spec{}, err
	}
	s, err := ParseSpec(b)
	if err != nil {
		return Spec{}, fmt.Errorf("sim: machine %q: %w", name, err)
	}
	return s, nil
}

func builtin(name string) ([]byte, error) {
	if !slices.Contains(Names(), name) {
		return nil, fmt.Errorf("sim: no machine %q (known: %s; or the path of a JSON file)", name, strings.Join(Names(), " "))
	}
	return machines.ReadFile(path.Join("machines", name+".json"))
}

// maxSpec bounds a machine's JSON form; that of eight GPUs is a few tens of KiB.
const maxSpec = 4 << 20

// Load returns the description of a machine: one that Open knows, by its name,
// or that of a JSON file, by its path, which has a slash in it or ends in
// ".json".
func Load(name string) (Spec, error) {
	if !strings.ContainsAny(name, `/\`) && !strings.HasSuffix(name, ".json") {
		return Builtin(name)
	}
	f, err := os.Open(name)
	if err != nil {
		return Spec{}, fmt.Errorf("sim: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSpec+1))
	if err != nil {
		return Spec{}, fmt.Errorf("sim: %w", err)
	}
	s, err := ParseSpec(b)
	if err != nil {
		return Spec{}, fmt.Errorf("sim: %s: %w", name, err)
	}
	return s, nil
}

// ParseSpec reads a machine's JSON form: that of Spec, and two shorthands.
//
// "base" names a machine that Open knows, and the rest of the file says what
// differs: objects are merged, anything else, and a figure as a whole, replaces
// what the base has, and null removes it. "card" is an object that every one of "gpus" is merged
// onto: what all GPUs have in common.
//
// A field that is unknown, missing, of the wrong type or out of range is named
// in the error by its path; an error of the JSON itself by line and column.
func ParseSpec(b []byte) (Spec, error) {
	doc, err := document(b, 0)
	if err != nil {
		return Spec{}, err
	}
	if card, ok := doc["card"]; ok {
		common, ok := card.(map[string]any)
		if !ok {
			return Spec{}, errors.New("card: want an object")
		}
		gpus, _ := doc["gpus"].([]any)
		for i, g := range gpus {
			if one, ok := g.(map[string]any); ok {
				gpus[i] = merge(common, one)
			}
		}
		delete(doc, "card")
	}
	if err := fits("", doc, reflect.TypeFor[Spec]()); err != nil {
		return Spec{}, err
	}
	whole, err := json.Marshal(doc)
	if err != nil {
		return Spec{}, err
	}
	var s Spec
	if err := json.Unmarshal(whole, &s); err != nil {
		return Spec{}, err
	}
	if err := s.check(); err != nil {
		return Spec{}, err
	}
	for i, g := range s.GPUs {
		known := slices.ContainsFunc(s.Host.Nodes, func(n Node) bool { return n.ID == g.NUMANode })
		if g.NUMANode != -1 && !known {
			return Spec{}, fmt.Errorf("gpus[%d].numa_node: the host has no node %d", i, g.NUMANode)
		}
	}
	return s, nil
}

// maxBases is how many machines may lie below one another.
const maxBases = 4

// document reads a JSON object, on top of its base.
func document(b []byte, depth int) (map[string]any, error) {
	if len(b) > maxSpec {
		return nil, fmt.Errorf("longer than %d bytes", maxSpec)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber() // bytes do not fit a float64
	var doc map[string]any
	if err := d.Decode(&doc); err != nil {
		var syntax *json.SyntaxError
		var typ *json.UnmarshalTypeError
		switch {
		case errors.As(err, &syntax):
			return nil, fmt.Errorf("%s: %w", position(b, syntax.Offset-1), err)
		case errors.As(err, &typ):
			return nil, fmt.Errorf("%s: want an object, not %s", position(b, typ.Offset-1), typ.Value)
		}
		return nil, fmt.Errorf("%s: %w", position(b, int64(len(b))), err)
	}
	behind := d.InputOffset()
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		behind += int64(len(b[behind:]) - len(bytes.TrimLeft(b[behind:], " \t\r\n")))
		return nil, fmt.Errorf("%s: there is something behind the JSON object", position(b, behind))
	}
	base, ok := doc["base"]
	if !ok {
		return doc, nil
	}
	name, ok := base.(string)
	if !ok || depth == maxBases {
		return nil, errors.New("base: want the name of a built-in machine")
	}
	below, err := builtin(name)
	if err != nil {
		return nil, fmt.Errorf("base: %w", err)
	}
	under, err := document(below, depth+1)
	if err != nil {
		return nil, fmt.Errorf("base: %w", err)
	}
	delete(doc, "base")
	return merge(under, doc), nil
}

// position is where in a text byte i is, as an editor counts: both from 1 on,
// columns in characters.
func position(b []byte, i int64) string {
	b = b[:min(max(i, 0), int64(len(b)))]
	start := bytes.LastIndexByte(b, '\n') + 1
	return fmt.Sprintf("line %d, column %d", bytes.Count(b, []byte("\n"))+1, utf8.RuneCount(b[start:])+1)
}

// merge puts over onto under. A figure is one thing: its value must not come
// from one place and its source from another.
func merge(under, over map[string]any) map[string]any {
	out := maps.Clone(under)
	for k, v := range over {
		a, ok1 := out[k].(map[string]any)
		b, ok2 := v.(map[string]any)
		if _, figure := b["value"]; ok1 && ok2 && !figure {
			v = merge(a, b)
		}
		if v == nil {
			delete(out, k)
			continue
		}
		out[k] = v
	}
	return out
}

// fits tells whether a decoded JSON value is one of a Go type, by the names of
// its json tags. encoding/json would not say at which path it is not.
func fits(at string, v any, t reflect.Type) error {
	want := func(what string) error { return fmt.Errorf("%s: want %s", at, what) }
	switch t.Kind() {
	case reflect.Struct:
		m, ok := v.(map[string]any)
		if !ok {
			return want("an object")
		}
		fields := map[string]reflect.Type{}
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			fields[name] = t.Field(i).Type
		}
		for _, k := range slices.Sorted(maps.Keys(m)) {
			below := k
			if at != "" {
				below = at + "." + k
			}
			f, ok := fields[k]
			if !ok {
				return fmt.Errorf("%s: unknown field %q", below, k)
			}
			if err := fits(below, m[k], f); err != nil {
				return err
			}
		}
	case reflect.Slice:
		list, ok := v.([]any)
		if !ok {
			return want("a list")
		}
		for i, x := range list {
			if err := fits(fmt.Sprintf("%s[%d]", at, i), x, t.Elem()); err != nil {
				return err
			}
		}
	case reflect.Map:
		m, ok := v.(map[string]any)
		if !ok {
			return want("an object")
		}
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if err := fits(at+"."+k, m[k], t.Elem()); err != nil {
				return err
			}
		}
	case reflect.String:
		if _, ok := v.(string); !ok {
			return want("a string")
		}
	case reflect.Bool:
		if _, ok := v.(bool); !ok {
			return want("true or false")
		}
	default: // numbers
		n, ok := v.(json.Number)
		if !ok {
			return want("a number")
		}
		if err := json.Unmarshal([]byte(n), reflect.New(t).Interface()); err != nil {
			return want(fmt.Sprintf("a number of type %s, not %s", t, n))
		}
	}
	return nil
}
