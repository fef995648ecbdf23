// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

var benchPeersCommand = &command{
	name:     "bench peers",
	synopsis: "the library's copy on one GPU, against other programs that do the same",
	usage:    "bench peers --peer COMMAND [--peer COMMAND] [--bytes SIZES | -b SIZE -e SIZE [-f N]] [--gpus N] [--rounds N] [--time TIME] [--json | --csv] [--save FILE] [--html FILE]",
	text: `Copies between two ranks of one GPU, in turn with other programs on the same GPU: round by round, each size by
the library, then by each method of each peer. Ratios are medians of those of a round, so what changes from one
minute to the next does not count. A COMMAND is split at spaces; it speaks the protocol of bench/peers/README.md,
where a program in C++ and one for PyTorch lie.

A method that takes chunks of its own choosing is tried with many before the rounds, and keeps the best at each
size; one that follows is given the library's.`,
	setup: func(fl *flag.FlagSet) func(context.Context, *environment) error {
		b := &bench{}
		p := &peersBench{copyBench: &copyBench{bench: b, rig: &rig{b: b}, sameGPU: true}}
		b.declare(fl, copySizesText)
		fl.Func("peer", "a `COMMAND` to measure against; may be given more than once", func(v string) error {
			if len(strings.Fields(v)) == 0 {
				return errors.New("no command")
			}
			p.commands = append(p.commands, strings.Fields(v))
			return nil
		})
		return func(ctx context.Context, e *environment) error {
			b.given(fl)
			if len(p.commands) == 0 {
				return usagef("measure against what? Name programs with --peer")
			}
			if b.sim != "" {
				return usagef("--sim: the peers run on a real GPU, and a model is not compared with it")
			}
			if len(b.gpus) > 1 {
				return usagef("--gpus: the peers are measured on one GPU, not %d", len(b.gpus))
			}
			if err := b.start(e, "peers"); err != nil {
				return err
			}
			if b.machine.modelled() {
				return b.giveUp(errors.New("the peers run on a real GPU, and there is none here"))
			}
			return p.run(ctx)
		}
	},
}

var peerCases = []*benchCase{
	{"peers.gp", "the library's staged copy on one GPU, in turn with the peers", noPeers},
	{"peers.NAME.METHOD", "a peer's copy by one of its methods", noPeers},
}

func noPeers(b *bench) string {
	if b.machine.modelled() {
		return "peers run on a real GPU"
	}
	return ""
}

// peersBench is one run. What the library does is a copyBench's.
type peersBench struct {
	*copyBench
	commands [][]string
	peers    []*peer
	own      map[uint64]*series // by size
	theirs   []*theirs
}

// theirs is one method of a peer at one size.
type theirs struct {
	peer   *peer
	method peerMethod
	chunk  uint64
	slots  int
	*series
}

func (p *peersBench) run(ctx context.Context) error {
	p.route, p.beside = routeStaged, uint64(len(p.commands))
	if err := p.plan(); err != nil {
		return p.giveUp(err)
	}
	return p.measure(ctx, p.sum, p.prepare)
}

func (p *peersBench) prepare(ctx context.Context) ([]*series, error) {
	if _, err := p.copyBench.prepare(ctx); err != nil {
		return nil, err
	}
	for _, words := range p.commands {
		p.step("starting "+words[0], 0)
		one, err := startPeer(ctx, words, p.pair[0], p.stderr)
		if one, err = closing(p.bench, one, err); err != nil {
			return nil, err
		}
		p.peers = append(p.peers, one)
	}
	p.own = map[uint64]*series{}
	var all []*series
	for _, s := range p.series {
		switch s.row.Case {
		case "copy.bare.one_way":
			all = append(all, s)
			continue
		case "copy.staged.one_way":
		default:
			continue
		}
		s.row.Case = "peers.gp"
		size := s.row.Bytes
		p.own[size] = s
		all = append(all, s)
		for _, one := range p.peers {
			for _, m := range one.hello.Methods {
				t := &theirs{peer: one, method: m, chunk: *s.row.ChunkBytes, slots: max(s.slots, 2)}
				if m.Tuned {
					var err error
					if t.chunk, err = p.tune(ctx, t, size); err != nil {
						return nil, err
					}
				}
				t.series = p.peerSeries(t, size)
				p.theirs = append(p.theirs, t)
				all = append(all, t.series)
			}
		}
	}
	return all, nil
}

// tune finds the chunk with which a method is best at a size.
func (p *peersBench) tune(ctx context.Context, t *theirs, size uint64) (best uint64, err error) {
	t.slots = tunedSlots
	least := 0.0
	// Chunks below a thousandth have never been near the best.
	for chunk := max(uint64(128<<10), size>>10); ; chunk *= 2 {
		p.step(fmt.Sprintf("%s %s, chunk of %d bytes", t.peer.hello.Peer, t.method.Name, chunk), 4*size)
		// The first call pays for what a chunk needs.
		var a peerAnswer
		for range 2 {
			if a, err = t.ask(ctx, size, min(chunk, size), min(3, p.batch(size))); err != nil {
				return 0, err
			}
		}
		if took := quantile(a.Seconds, 0.5); best == 0 || took < least {
			best, least = min(chunk, size), took
		}
		if chunk >= size || chunk >= maxTunedChunk {
			return best, nil
		}
	}
}

const (
	maxTunedChunk = 32 << 20
	tunedSlots    = 4 // what the method came with
)

func (t *theirs) ask(ctx context.Context, bytes, chunk uint64, count int) (peerAnswer, error) {
	return t.peer.ask(ctx, t.method.Name, bytes, chunk, t.slots, count)
}

func (p *peersBench) peerSeries(t *theirs, size uint64) *series {
	s := &series{ways: 1, bus: 1}
	s.row = benchResult{
		Op: "copy", Algorithm: t.peer.hello.Peer + "." + t.method.Name, Type: "uint8", Ranks: 2, Bytes: size,
		Case: "peers." + t.peer.hello.Peer + "." + t.method.Name, GPUs: p.waysOf(1), Clock: "wall",
	}
	if !t.method.Unchunked {
		s.row.ChunkBytes = &t.chunk
	}
	s.sample = func(ctx context.Context, s *series) error {
		a, err := t.ask(ctx, size, t.chunk, p.batch(size))
		if err != nil {
			return err
		}
		s.wrong += a.Wrong
		s.add(a.Seconds, nil, a.Enqueue, nil, p.ceilings[1])
		return nil
	}
	return s
}

// A peerResult compares the library with one method of a peer at one size.
type peerResult struct {
	Bytes      uint64  `json:"bytes"`
	Peer       string  `json:"peer"`
	Method     string  `json:"method"`
	ChunkBytes uint64  `json:"chunk_bytes"` // the method's; 0 where it has none
	OwnChunk   uint64  `json:"gp_chunk_bytes"`
	OwnUS      float64 `json:"gp_us"` // medians
	PeerUS     float64 `json:"peer_us"`
	// Ratio is the library's time over the peer's: the median, the least and the
	// most of the rounds'.
	Ratio      float64 `json:"gp_time_over_peer_time"`
	RatioLeast float64 `json:"ratio_least"`
	RatioMost  float64 `json:"ratio_most"`
	Rounds     int     `json:"rounds"`
	Best       bool    `json:"best"` // of the peer's methods at this size
}

func (p *peersBench) sum(d *benchDoc) {
	for _, t := range p.theirs {
		own := p.own[t.row.Bytes]
		r := ratios(own.rounds, t.rounds)
		if len(r) == 0 {
			continue
		}
		one := peerResult{
			Bytes: t.row.Bytes, Peer: t.peer.hello.Peer, Method: t.method.Name, OwnChunk: *own.row.ChunkBytes,
			OwnUS: quantile(own.seconds, 0.5) * 1e6, PeerUS: quantile(t.seconds, 0.5) * 1e6,
			Ratio: quantile(r, 0.5), RatioLeast: slices.Min(r), RatioMost: slices.Max(r), Rounds: len(r),
		}
		if !t.method.Unchunked {
			one.ChunkBytes = t.chunk
		}
		d.Peers = append(d.Peers, one)
	}
	for i := range d.Peers {
		r := &d.Peers[i]
		r.Best = !slices.ContainsFunc(d.Peers, func(o peerResult) bool {
			return o.Peer == r.Peer && o.Bytes == r.Bytes && o.PeerUS < r.PeerUS
		})
	}
	for _, one := range p.peers {
		p.note("peer %s: %s", one.hello.Peer, one.hello.About)
	}
}

func writePeers(w io.Writer, d *benchDoc) {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(out, "bytes\tpeer\tchunk\tgp's chunk\tpeer\tgp\tgp over peer\tleast\tmost\t\t\n\t\t\t\tus\tus\t\t\t\t\t\n")
	for i := range d.Peers {
		r := &d.Peers[i]
		chunk := "-"
		if r.ChunkBytes > 0 {
			chunk = formatSize(r.ChunkBytes)
		}
		best := ""
		if r.Best {
			best = "best of " + r.Peer
		}
		fmt.Fprintf(out, "%s\t%s.%s\t%s\t%s\t%.2f\t%.2f\t%.3f\t%.3f\t%.3f\t%s\t\n",
			formatSize(r.Bytes), r.Peer, r.Method, chunk, formatSize(r.OwnChunk), r.PeerUS, r.OwnUS, r.Ratio, r.RatioLeast, r.RatioMost, best)
	}
	out.Flush()
}

// A peer is another program that copies when it is asked to.
type peer struct {
	hello peerHello
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan []byte
}

// peerVersion is of the protocol.
const peerVersion = 1

// peerHello is the first line of a peer.
type peerHello struct {
	Peer    string       `json:"peer"`
	Version int          `json:"version"`
	About   string       `json:"about"`
	Methods []peerMethod `json:"methods"`
}

type peerMethod struct {
	Name string `json:"name"`
	// Tuned: it is measured with its own best chunk, not with the library's.
	Tuned bool `json:"tuned"`
	// Unchunked: it has no chunks.
	Unchunked bool `json:"unchunked"`
}

// peerAnswer is the line that answers a request.
type peerAnswer struct {
	Seconds []float64 `json:"seconds"`
	Enqueue []float64 `json:"enqueue_seconds"`
	Wrong   uint64    `json:"wrong"`
	Error   string    `json:"error"`
}

// How long a peer may take: to start, compiling and importing included, and to
// answer.
const (
	peerStart = 2 * time.Minute
	peerReply = time.Minute
)

// startPeer starts a program on a GPU, and reads what it offers.
func startPeer(ctx context.Context, words []string, gpu int, stderr io.Writer) (p *peer, err error) {
	p = &peer{cmd: exec.CommandContext(ctx, words[0], append(words[1:len(words):len(words)], fmt.Sprint(gpu))...), lines: make(chan []byte)}
	p.cmd.Stderr = stderr
	p.cmd.WaitDelay = time.Second
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("peer %s: %w", words[0], err)
	}
	go func() {
		defer close(p.lines)
		for s := bufio.NewReader(out); ; {
			line, err := s.ReadBytes('\n')
			if err != nil {
				return
			}
			p.lines <- line
		}
	}()
	if err := p.read(ctx, peerStart, &p.hello); err != nil {
		return nil, errors.Join(fmt.Errorf("peer %s does not start: %w", words[0], err), p.Close())
	}
	if p.hello.Version != peerVersion {
		return nil, errors.Join(fmt.Errorf("peer %s speaks version %d of the protocol, and this program version %d", words[0], p.hello.Version, peerVersion), p.Close())
	}
	return p, nil
}

func (p *peer) read(ctx context.Context, d time.Duration, v any) error {
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case line, ok := <-p.lines:
		if !ok {
			return errors.New("it has ended")
		}
		if err := json.Unmarshal(line, v); err != nil {
			return fmt.Errorf("its line %q: %w", strings.TrimSpace(string(line)), err)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-late.C:
		return fmt.Errorf("no answer in %v", d)
	}
}

// ask has the peer copy bytes count times, in pieces of chunk through slots.
func (p *peer) ask(ctx context.Context, method string, bytes, chunk uint64, slots, count int) (a peerAnswer, err error) {
	_, err = fmt.Fprintf(p.in, "%s %d %d %d %d\n", method, bytes, chunk, slots, count)
	if err == nil {
		err = p.read(ctx, peerReply, &a)
	}
	switch {
	case err != nil:
	case a.Error != "":
		err = errors.New(a.Error)
	case len(a.Seconds) != count:
		err = fmt.Errorf("%d times instead of %d", len(a.Seconds), count)
	}
	if err != nil {
		err = fmt.Errorf("peer %s, %s of %d bytes: %w", p.hello.Peer, method, bytes, err)
	}
	return a, err
}

// Close ends the program: its input ends, and it is killed if that does not
// help.
func (p *peer) Close() error {
	p.in.Close()
	kill := time.AfterFunc(5*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	for range p.lines { // so that it is not stuck writing
	}
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("peer %s: %w", p.hello.Peer, err)
	}
	return err
}
