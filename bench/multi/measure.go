// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// measure runs the course and joins what it finds. The document is what there
// is, also beside an error.
func measure(ctx context.Context, o *options, log io.Writer) (*document, error) {
	began := time.Now()
	if o.gpus == 0 {
		n, err := countGPUs(ctx, o)
		if err != nil {
			return nil, err
		}
		o.gpus = n
	}
	if o.gpus < 2 {
		return nil, fmt.Errorf("%d GPU here: it takes two", o.gpus)
	}
	if o.limit == 0 {
		o.limit = defaultTime(o.gpus)
	}
	work, err := os.MkdirTemp("", "multi")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	d := &document{
		Version: version, Date: began.UTC().Format(time.RFC3339), Command: "multi -time " + o.limit.String(), GPUs: o.gpus, Modelled: o.sim != "",
		Notes: []string{}, Children: []childReport{}, Bench: map[string]json.RawMessage{}, Peers: []peerRun{}, docs: map[string]*benchDoc{},
	}
	c := &courseRun{options: o, document: d, work: work, log: log, scale: o.limit.Seconds() / defaultTime(o.gpus).Seconds(), end: began.Add(o.limit - 2*time.Second)}
	if o.sim != "" {
		d.Command = "multi -sim " + filepath.Base(o.sim)
		c.scale, c.tools = 1, &toolbox{}
	} else {
		c.tools = openToolbox(ctx, o.peers, work)
		d.Notes = append(d.Notes, c.tools.about...)
	}
	var failed []error
	for _, k := range course(o.gpus, o.most, c.scale) {
		if ctx.Err() != nil {
			failed = append(failed, errors.New("interrupted"))
			break
		}
		if err := c.one(ctx, &k); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", k.name, err))
		}
	}
	d.join()
	if n := d.wrong(); n > 0 {
		failed = append(failed, fmt.Errorf("%d results moved wrong data", n))
	}
	d.Seconds = math.Round(time.Since(began).Seconds()*10) / 10
	return d, errors.Join(failed...)
}

// countGPUs asks the simulated machine, or the driver's tool.
func countGPUs(ctx context.Context, o *options) (int, error) {
	const limit = 30 * time.Second
	if o.sim != "" {
		out, err := runChild(ctx, limit, nil, o.gp, "sim", "show", o.sim, "--json")
		if err != nil {
			return 0, err
		}
		var spec struct {
			GPUs []json.RawMessage `json:"gpus"`
		}
		err = json.Unmarshal(out, &spec)
		return len(spec.GPUs), err
	}
	out, err := runChild(ctx, limit, nil, "nvidia-smi", "--query-gpu=index", "--format=csv,noheader")
	if err != nil {
		return 0, fmt.Errorf("counting GPUs (-gpus says how many): %w", err)
	}
	return len(strings.Fields(string(out))), nil
}

// A courseRun is the state of a run.
type courseRun struct {
	*options
	*document
	tools *toolbox
	work  string
	log   io.Writer
	scale float64
	end   time.Time // nothing runs beyond
}

// one runs a child, if there is what it needs and time for it.
func (c *courseRun) one(ctx context.Context, k *child) error {
	r := childReport{Name: k.name, Env: k.env}
	if r.Env == nil {
		r.Env = []string{}
	}
	defer func() {
		c.Children = append(c.Children, r)
		state := fmt.Sprintf("%5.1f s", r.Seconds)
		if r.Skipped != "" {
			state = "skipped: " + r.Skipped
		} else if r.Failed != "" {
			state += " FAILED: " + r.Failed
		}
		fmt.Fprintf(c.log, "%-22s %s\n", k.name, state)
	}()
	if c.sim != "" && (k.kind != kindGP || k.name == "p2p") {
		r.Skipped = "not on a simulated machine"
		return nil
	}
	switch {
	case k.kind == kindNCCL && c.tools.bench == "":
		r.Skipped = "nccl_bench was not built, see notes"
		return nil
	case k.kind == kindTorch && c.tools.python == "":
		r.Skipped = "no PyTorch, see notes"
		return nil
	}
	limit, last := 30*time.Minute, false
	if c.sim == "" {
		left := time.Until(c.end) - childGrace
		if left.Seconds() < 0.6*k.seconds {
			r.Skipped = fmt.Sprintf("of the time %.0f s are left, and it takes %.0f s", max(left.Seconds(), 0), k.seconds)
			return nil
		}
		limit = time.Duration((2.5*k.seconds*max(c.scale, 1) + 10) * float64(time.Second))
		last = limit > left
		limit = min(limit, left)
	}
	began := time.Now()
	err := c.start(ctx, k, &r, limit)
	r.Seconds = math.Round(time.Since(began).Seconds()*10) / 10
	switch {
	case err == nil:
	case errors.Is(err, errNoP2P):
		r.Skipped, err = err.Error(), nil
	case last && errors.Is(err, errLimit):
		r.Failed, err = "cut short: the whole time is over", nil
	default:
		r.Failed = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return err
}

var errNoP2P = errors.New("P2P is not used here")

func (c *courseRun) start(ctx context.Context, k *child, r *childReport, limit time.Duration) error {
	if k.kind == kindGP {
		return c.startBench(ctx, k, r, limit)
	}
	logs := filepath.Join(c.work, "log", k.name)
	if err := os.MkdirAll(logs, 0o777); err != nil {
		return err
	}
	program, args := c.tools.bench, append([]string{"--lib", c.tools.lib}, k.args...)
	if k.kind == kindTorch {
		program = c.tools.python
		args = append([]string{filepath.Join(c.peers, "nccl_bench.py")}, k.args...)
		args = append(args, "--limit", strconv.Itoa(int(limit.Seconds())))
		r.Command = append([]string{"python3", "nccl_bench.py"}, k.args...)
	} else {
		ms := strconv.Itoa(int(min(max(25*c.scale, 10), 200)))
		args = append(args, "--ms", ms)
		r.Command = append([]string{"nccl_bench"}, append(k.args, "--ms", ms)...)
	}
	env := append([]string{"NCCL_DEBUG=INFO", "NCCL_DEBUG_FILE=" + filepath.Join(logs, "%p.log")}, k.env...)
	out, err := runChild(ctx, limit, env, program, args...)
	p := peerRun{Name: k.name, Environment: k.env, Rows: []peerRow{}}
	err = errors.Join(parsePeer(out, &p), err)
	count, end, failed := transports(logs)
	if p.Transports = count; failed == nil && k.denied {
		failed = onlyShared(count)
	}
	if failed != nil {
		// What did not go through shared memory is no figure of it.
		p.Invalid, p.Log = failed.Error(), end
		c.Notes = append(c.Notes, fmt.Sprintf("%s: no ratio is taken of its %d figures: %v", k.name, len(p.Rows), failed))
	}
	c.Peers = append(c.Peers, p)
	return errors.Join(err, failed)
}

func (c *courseRun) startBench(ctx context.Context, k *child, r *childReport, limit time.Duration) error {
	args := append([]string{}, k.args...)
	if c.sim != "" {
		args = append(args, "--sim", c.sim)
		r.Command = append([]string{"gp"}, append(k.args, "--sim", filepath.Base(c.sim))...)
	} else {
		// The rest is preparing, and the round in which the time ends.
		t := fmt.Sprintf("%.1fs", max(0.4*k.seconds*c.scale, 1))
		args = append(args, "--time", t)
		r.Command = append([]string{"gp"}, args...)
	}
	name := filepath.Join(c.work, k.name+".json")
	_, err := runChild(ctx, limit, k.env, c.gp, append(args, "--save", name)...)
	if err != nil && strings.HasPrefix(k.name, "peer.") && strings.Contains(err.Error(), "nothing to measure") {
		return fmt.Errorf("%w: %w", errNoP2P, err)
	}
	b, failed := os.ReadFile(name)
	if failed != nil {
		return errors.Join(err, failed)
	}
	var doc benchDoc
	if failed := json.Unmarshal(b, &doc); failed != nil {
		return errors.Join(err, failed)
	}
	c.docs[k.name] = &doc
	if c.sim == "" { // what a model says can be had again
		c.Bench[k.name] = b
	}
	if c.Machine == nil {
		c.Machine = doc.Machine
		var m struct {
			Modelled bool `json:"modelled"`
		}
		if failed := json.Unmarshal(doc.Machine, &m); failed != nil {
			return errors.Join(err, failed)
		}
		c.Modelled = c.Modelled || m.Modelled
	}
	return err
}
