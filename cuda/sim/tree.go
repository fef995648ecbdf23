// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A tree is the files of a machine, with symbolic links and device nodes as
// /sys and /dev have them. Once it is made it does not change.
type tree struct{ root *entry }

var (
	_ fs.ReadDirFS  = (*tree)(nil)
	_ fs.ReadLinkFS = (*tree)(nil)
	_ fs.StatFS     = (*tree)(nil)
)

// entry is a file, a directory, a link or a device node.
type entry struct {
	name string
	mode fs.FileMode
	data []byte // of a file: what it holds; of a link: where it leads
	sys  any
	dir  map[string]*entry
}

func newTree() *tree {
	return &tree{&entry{name: ".", mode: fs.ModeDir | 0o755, dir: map[string]*entry{}}}
}

// put adds an entry and the directories above it. What is there already stays.
func (t *tree) put(name string, e *entry) {
	at := t.root
	parts := strings.Split(name, "/")
	for i, p := range parts {
		next := at.dir[p]
		if next == nil {
			next = &entry{name: p, mode: fs.ModeDir | 0o755, dir: map[string]*entry{}}
			if i == len(parts)-1 && e != nil {
				next, next.name = e, p
				e.name = p
			}
			at.dir[p] = next
		}
		if at = next; at.dir == nil {
			return
		}
	}
}

func (t *tree) file(name, text string) {
	t.put(name, &entry{mode: 0o444, data: []byte(text)})
}

func (t *tree) directory(name string) { t.put(name, nil) }

// link makes name lead to another name of the tree, as a path relative to where
// the link is.
func (t *tree) link(name, to string) {
	up := strings.Repeat("../", strings.Count(name, "/"))
	t.put(name, &entry{mode: fs.ModeSymlink | 0o777, data: []byte(up + to)})
}

// node makes a character device.
func (t *tree) node(name string, major, minor uint32) {
	t.put(name, &entry{mode: fs.ModeDevice | fs.ModeCharDevice | 0o666, sys: deviceNumber(major, minor)})
}

// maxLinks is how many links a name may lead through, as in Linux.
const maxLinks = 40

// find looks a name up. follow says whether a link at its end is followed.
func (t *tree) find(op, name string, follow bool) (*entry, error) {
	fail := func(err error) (*entry, error) { return nil, &fs.PathError{Op: op, Path: name, Err: err} }
	if !fs.ValidPath(name) {
		return fail(fs.ErrInvalid)
	}
	rest, links := name, 0
	for {
		at, parts := t.root, strings.Split(rest, "/")
		again := false
		for i, p := range parts {
			if p == "." {
				continue
			}
			if at.dir == nil {
				return fail(syscall.ENOTDIR)
			}
			next := at.dir[p]
			if next == nil {
				return fail(fs.ErrNotExist)
			}
			if next.mode&fs.ModeSymlink != 0 && (follow || i < len(parts)-1) {
				if links++; links > maxLinks {
					return fail(syscall.ELOOP)
				}
				before := append(slices.Clone(parts[:i]), string(next.data))
				rest = path.Join(append(before, parts[i+1:]...)...)
				again = true
				break
			}
			at = next
		}
		if !again {
			return at, nil
		}
	}
}

func (t *tree) Open(name string) (fs.File, error) {
	e, err := t.find("open", name, true)
	if err != nil {
		return nil, err
	}
	o := opened{info: e.as(path.Base(name))}
	if e.dir != nil {
		return &openDir{opened: o, list: e.list()}, nil
	}
	return &openFile{o, strings.NewReader(string(e.data))}, nil
}

func (t *tree) Stat(name string) (fs.FileInfo, error) {
	e, err := t.find("stat", name, true)
	if err != nil {
		return nil, err
	}
	return e.as(path.Base(name)), nil
}

func (t *tree) Lstat(name string) (fs.FileInfo, error) {
	e, err := t.find("lstat", name, false)
	if err != nil {
		return nil, err
	}
	return e.as(path.Base(name)), nil
}

func (t *tree) ReadLink(name string) (string, error) {
	e, err := t.find("readlink", name, false)
	if err == nil && e.mode&fs.ModeSymlink == 0 {
		err = &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
	}
	if err != nil {
		return "", err
	}
	return string(e.data), nil
}

func (t *tree) ReadDir(name string) ([]fs.DirEntry, error) {
	e, err := t.find("readdir", name, true)
	if err == nil && e.dir == nil {
		err = &fs.PathError{Op: "readdir", Path: name, Err: syscall.ENOTDIR}
	}
	if err != nil {
		return nil, err
	}
	return e.list(), nil
}

// list is a directory's entries by name.
func (e *entry) list() []fs.DirEntry {
	out := make([]fs.DirEntry, 0, len(e.dir))
	for _, x := range e.dir {
		out = append(out, fs.FileInfoToDirEntry(x.as(x.name)))
	}
	slices.SortFunc(out, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return out
}

// as is the entry's information under the name by which it was found.
func (e *entry) as(name string) fs.FileInfo { return info{e, name} }

type info struct {
	e    *entry
	name string
}

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return int64(len(i.e.data)) }
func (i info) Mode() fs.FileMode  { return i.e.mode }
func (i info) ModTime() time.Time { return time.Time{} }
func (i info) IsDir() bool        { return i.e.dir != nil }
func (i info) Sys() any           { return i.e.sys }

type opened struct{ info fs.FileInfo }

func (o opened) Stat() (fs.FileInfo, error) { return o.info, nil }
func (o opened) Close() error               { return nil }

type openFile struct {
	opened
	*strings.Reader
}

type openDir struct {
	opened
	list []fs.DirEntry
}

func (d *openDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.info.Name(), Err: syscall.EISDIR}
}

func (d *openDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if n <= 0 || n > len(d.list) {
		if n > 0 && len(d.list) == 0 {
			return nil, io.EOF
		}
		n = len(d.list)
	}
	out := d.list[:n:n]
	d.list = d.list[n:]
	return out, nil
}
