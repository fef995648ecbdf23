// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A peerRow is one line of nccl_bench.
type peerRow struct {
	Op      string   `json:"op"`
	Bytes   uint64   `json:"bytes"`
	Ranks   int      `json:"ranks"`
	Proto   string   `json:"proto"`
	Seconds float64  `json:"seconds"` // from the call to done, the median
	P5      float64  `json:"p5_seconds"`
	P95     float64  `json:"p95_seconds"`
	Count   int      `json:"count"`
	Train   float64  `json:"train_seconds"` // a call of a train
	Trains  int      `json:"train_count"`
	Event   *float64 `json:"event_seconds,omitempty"` // by the GPUs' events
	Wrong   uint64   `json:"wrong"`                   // bytes
}

// A peerRun is what one child with NCCL has said.
type peerRun struct {
	Name        string         `json:"name"`
	Environment []string       `json:"environment"`
	About       string         `json:"about"`
	NCCL        string         `json:"nccl"`
	CUDA        string         `json:"cuda"`
	Transports  map[string]int `json:"transports"` // channels, by what NCCL's log calls the transport
	Rows        []peerRow      `json:"rows"`
	// Invalid says why the rows are no figures of what the child is for, with the end
	// of NCCL's log. No ratio is taken of them.
	Invalid string   `json:"invalid,omitempty"`
	Log     []string `json:"log,omitempty"`
}

// parsePeer reads a child's lines.
func parsePeer(out []byte, r *peerRun) error {
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 || line[0] != '{' {
			continue // what a library has to say
		}
		var l struct {
			About string `json:"about"`
			NCCL  string `json:"nccl"`
			CUDA  string `json:"cuda"`
			Error string `json:"error"`
			peerRow
		}
		if err := json.Unmarshal(line, &l); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
		switch {
		case l.Error != "":
			return errors.New(l.Error)
		case l.About != "":
			r.About, r.NCCL, r.CUDA = l.About, l.NCCL, l.CUDA
		case l.Op != "":
			r.Rows = append(r.Rows, l.peerRow)
		}
	}
	return lines.Err()
}

var viaTransport = regexp.MustCompile(`Channel \S+ : .* via (\S+)`)

// logLines is what of a log is kept.
const logLines = 40

// transports counts what the logs in a folder say that channels go through, and
// returns the end of one of them.
func transports(folder string) (count map[string]int, end []string, err error) {
	names, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil {
		return nil, nil, err
	}
	count = map[string]int{}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, nil, err
		}
		end = strings.Split(strings.TrimSpace(string(b)), "\n")
		end = end[max(len(end)-logLines, 0):]
		for _, m := range viaTransport.FindAllSubmatch(b, -1) {
			count[string(m[1])]++
		}
	}
	return count, end, nil
}

// onlyShared tells whether all channels go through shared memory.
func onlyShared(count map[string]int) error {
	var other []string
	shared := 0
	for t, n := range count {
		if strings.HasPrefix(t, "SHM/") {
			shared += n
			continue
		}
		other = append(other, t)
	}
	slices.Sort(other)
	switch {
	case len(other) > 0:
		return fmt.Errorf("NCCL went via %s", strings.Join(other, ", "))
	case shared == 0:
		return errors.New("NCCL's log does not say that it went via SHM")
	}
	return nil
}

// A toolbox is what the host has to measure NCCL with.
type toolbox struct {
	python string // with PyTorch
	bench  string // nccl_bench
	lib    string // libnccl
	about  []string
}

// findNCCL prints where NCCL's header and library are, without the seconds that
// importing PyTorch takes, and whether PyTorch is there.
const findNCCL = `
import glob, importlib.util, json
torch = importlib.util.find_spec("torch")
spec = importlib.util.find_spec("nvidia")
roots = list(spec.submodule_search_locations) if spec and spec.submodule_search_locations else []
found = {"torch": torch is not None, "include": "", "lib": ""}
for root in roots:
    for header in glob.glob(root + "/**/include/nccl.h", recursive=True):
        base = header[: -len("/include/nccl.h")]
        for lib in glob.glob(base + "/lib/libnccl.so.2"):
            found["include"], found["lib"] = base + "/include", lib
print(json.dumps(found))
`

// openToolbox finds what there is, and builds nccl_bench. What is missing is in
// about.
func openToolbox(ctx context.Context, peers, work string) *toolbox {
	t := &toolbox{}
	if peers == "" {
		t.note("NCCL is left out: no -peers")
		return t
	}
	const limit = 45 * time.Second
	var found struct {
		Torch        bool
		Include, Lib string
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.note("no python3")
	} else {
		out, err := runChild(ctx, limit, nil, python, "-c", findNCCL)
		if err == nil {
			err = json.Unmarshal(out, &found)
		}
		switch {
		case err != nil:
			t.note("looking for PyTorch: %v", err)
		case !found.Torch:
			t.note("python3 has no PyTorch")
		default:
			t.python = python
		}
	}
	if found.Lib == "" { // where a system has it
		for _, h := range []string{"/usr/include", "/usr/local/include"} {
			if _, err := os.Stat(filepath.Join(h, "nccl.h")); err == nil {
				found.Include, found.Lib = h, "libnccl.so.2"
			}
		}
	}
	nvcc, err := exec.LookPath("nvcc")
	if err != nil {
		nvcc, err = exec.LookPath("/usr/local/cuda/bin/nvcc")
	}
	switch {
	case found.Lib == "":
		t.note("NCCL's header and library were not found")
	case err != nil:
		t.note("no nvcc")
	default:
		program := filepath.Join(work, "nccl_bench")
		_, err := runChild(ctx, limit, nil, nvcc, "-O2", "-std=c++17", "-gencode", "arch=compute_80,code=compute_80",
			"-I", found.Include, "-o", program, filepath.Join(peers, "nccl_bench.cu"), "-ldl")
		if err != nil {
			t.note("nvcc nccl_bench.cu: %v", err)
			break
		}
		t.bench, t.lib = program, found.Lib
	}
	return t
}

func (t *toolbox) note(format string, args ...any) {
	t.about = append(t.about, fmt.Sprintf(format, args...))
}
