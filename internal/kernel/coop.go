// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"fmt"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
)

// A Coop is one launch of a kernel that waits for its peers, as it acts on
// memory: the twin of an Exchange, in steps.
type Coop interface {
	// Step goes on as far as the peers' flags allow. It tells whether the kernel
	// has ended, and whether it did anything. After an error it must not be
	// called again.
	Step(m Memory) (done, moved bool, err error)
	// GiveUp is what the kernel does when it finds that it has to end early: it
	// says why, and for whom it waited, in its control page.
	GiveUp(m Memory, c StatusCode) error
}

// coopEntries is the type of each entry point that waits for peers, 0 for those
// without one.
var coopEntries = func() map[string]dtype.Type {
	m := map[string]dtype.Type{}
	for _, k := range Kinds {
		if !k.Reduces() {
			m[ExchangeEntry(k, 0)] = 0
			continue
		}
		for _, t := range dtype.Types {
			m[ExchangeEntry(k, t)] = t
		}
	}
	return m
}()

// ParseCoop reads the packed parameters of an entry point that waits for its
// peers: false if the entry is none, or would not take them.
func ParseCoop(entry string, params []byte) (x Exchange, t dtype.Type, ok bool) {
	t, ok = coopEntries[entry]
	if !ok {
		return x, t, false
	}
	x, ok = ParseExchange(params, t)
	return x, t, ok && ExchangeEntry(x.Kind, t) == entry
}

// CoopTwin is Twin for a kernel that waits for its peers; false if no such
// kernel of that name ships. Malformed parameters are the first Step's error.
func CoopTwin(entry string) (func(params []byte) Coop, bool) {
	if _, ok := coopEntries[entry]; !ok {
		return nil, false
	}
	return func(params []byte) Coop {
		c := &coop{}
		var ok bool
		if c.x, c.t, ok = ParseCoop(entry, params); !ok {
			c.stage = func(Memory) (bool, error) { return false, fmt.Errorf("%w: %s", ErrParams, entry) }
			return c
		}
		c.stage = c.post
		return c
	}, true
}

// A Span is bytes at an offset.
type Span struct{ Off, Bytes uint64 }

// elem is the bytes of what Count counts.
func (x *Exchange) elem(t dtype.Type) uint64 {
	if x.Kind.Reduces() {
		return uint64(t.Size())
	}
	return 1
}

// Bytes is the bytes at In that a kernel reads and at Out that it writes.
func (x *Exchange) Bytes(t dtype.Type) (in, out uint64) {
	n := x.Count * x.elem(t)
	switch x.Kind {
	case Handshake, EchoWords, EchoBulk:
		return 0, 0
	case Gather:
		return n, n * x.N
	}
	return n, n
}

// units is the units of the whole message.
func (x *Exchange) units(t dtype.Type) uint64 {
	if x.Kind == Handshake {
		return 0
	}
	u := x.Kind.unitBytes()
	return (x.Count*x.elem(t) + u - 1) / u
}

// words tells whether a kind moves LL words.
func (k Kind) words() bool { return k != TwoShot && k != Handshake && k != EchoBulk }

// sharded tells whether each rank folds a part only.
func (k Kind) sharded() bool { return k == TwoShot || k == TwoShotLL }

// Touched is the parts of an area that its owner writes in an exchange. Peers
// read no others.
func (x *Exchange) Touched(t dtype.Type) []Span {
	flags, words, bulk := Half(x.AreaBytes, x.Epoch)
	n := 16 * x.units(t)
	switch {
	case x.Kind.words():
		return []Span{{words, n}}
	case n == 0:
		return []Span{{flags, FlagBytes}}
	}
	return []Span{{flags, FlagBytes}, {bulk, n}}
}

// Traffic is the bytes that a rank writes into its own area, and that it reads
// from each peer's, but for flags and for what it reads again while it waits.
func (x *Exchange) Traffic(t dtype.Type) (write, read uint64) {
	units := x.units(t)
	if x.Kind.sharded() {
		return 16 * units, 32 * min(x.shard(x.elem(t)), units)
	}
	return 16 * units, 16 * units
}

// Rounds is how often in an exchange a rank waits for what its peers write.
func (k Kind) Rounds() int {
	if k.sharded() {
		return 2
	}
	return 1
}

// coop is the twin of all kinds. Where the kernel has blocks that wait for
// themselves, it is one block.
type coop struct {
	x     Exchange
	t     dtype.Type
	stage func(m Memory) (moved bool, err error) // nil when it has ended
	next  uint64                                 // the peer, or the echo's batch, that is waited for
	ins   [][]byte                               // by rank, of the shard
}

func (c *coop) Step(m Memory) (done, moved bool, err error) {
	for c.stage != nil {
		on, err := c.stage(m)
		if err != nil {
			return false, moved, err
		}
		if !on {
			return false, moved, nil
		}
		moved = true
	}
	return true, moved, nil
}

func (c *coop) GiveUp(m Memory, code StatusCode) error {
	peer := c.next
	if c.x.Kind == EchoWords || c.x.Kind == EchoBulk {
		peer = 0
	}
	return c.say(m, Status{code, uint8(peer), uint32(c.x.Epoch)})
}

func (c *coop) say(m Memory, s Status) error {
	b, err := m.Bytes(c.x.Control+StatusWord, 8)
	if err != nil {
		return err
	}
	binary.LittleEndian.PutUint64(b, s.Word())
	return nil
}

// own is the shard that a rank folds, in bytes of the message.
func (c *coop) own(rank uint64) (lo, hi uint64) {
	n := c.x.Count * c.x.elem(c.t)
	if !c.x.Kind.sharded() {
		return 0, n
	}
	s := c.x.shard(c.x.elem(c.t)) * c.x.Kind.unitBytes()
	return min(rank*s, n), min((rank+1)*s, n)
}

// put writes bytes of the message, from lo on, into the rank's own area; get
// reads them from another's, or says that they are not all there.
func (c *coop) put(m Memory, lo uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	_, words, bulk := Half(c.x.AreaBytes, c.x.Epoch+c.batch())
	if !c.x.Kind.words() {
		to, err := m.Bytes(c.x.Area[c.x.Rank]+bulk+lo, uint64(len(b)))
		copy(to, b)
		return err
	}
	n := (uint64(len(b)) + 7) / 8 * 2
	to, err := m.Bytes(c.x.Area[c.x.Rank]+words+2*lo, 8*n)
	if err != nil {
		return err
	}
	for i := range n {
		var w [8]byte
		if 4*i < uint64(len(b)) {
			copy(w[:4], b[4*i:])
		}
		binary.LittleEndian.PutUint32(w[4:], uint32(c.x.Epoch+c.batch()))
		copy(to[8*i:], w[:])
	}
	return nil
}

func (c *coop) get(m Memory, peer, lo, hi uint64) (b []byte, ok bool, err error) {
	if lo == hi {
		return nil, true, nil
	}
	_, words, bulk := Half(c.x.AreaBytes, c.x.Epoch+c.batch())
	if !c.x.Kind.words() {
		from, err := m.Bytes(c.x.Area[peer]+bulk+lo, hi-lo)
		return append([]byte(nil), from...), err == nil, err
	}
	n := (hi - lo + 7) / 8 * 2
	from, err := m.Bytes(c.x.Area[peer]+words+2*lo, 8*n)
	if err != nil {
		return nil, false, err
	}
	b = make([]byte, 4*n)
	for i := range n {
		if binary.LittleEndian.Uint32(from[8*i+4:]) != uint32(c.x.Epoch+c.batch()) {
			return nil, false, nil
		}
		copy(b[4*i:4*i+4], from[8*i:])
	}
	return b[:hi-lo], true, nil
}

// flag sets the rank's flag to a round of the epoch, and flagged tells whether a
// peer's has come to it. Kinds that move words have none.
func (c *coop) flag(m Memory, round uint64) error {
	if c.x.Kind.words() {
		return nil
	}
	flags, _, _ := Half(c.x.AreaBytes, c.x.Epoch+c.batch())
	blocks := uint64(1)
	if c.x.Kind == EchoBulk {
		blocks = MaxExchangeBlocks
	}
	for i := range blocks {
		b, err := m.Bytes(c.x.Area[c.x.Rank]+flags+i*FlagStride, 8)
		if err != nil {
			return err
		}
		binary.LittleEndian.PutUint64(b, (c.x.Epoch+c.batch())<<32|round)
	}
	return nil
}

func (c *coop) flagged(m Memory, peer, round uint64) (bool, error) {
	if c.x.Kind.words() {
		return true, nil
	}
	flags, _, _ := Half(c.x.AreaBytes, c.x.Epoch+c.batch())
	b, err := m.Bytes(c.x.Area[peer]+flags, 8)
	if err != nil {
		return false, err
	}
	w := binary.LittleEndian.Uint64(b)
	return w>>32 == c.x.Epoch+c.batch() && w&0xffffffff >= round, nil
}

// batch is how far an echo has come beyond its first epoch.
func (c *coop) batch() uint64 {
	if c.x.Kind == EchoWords || c.x.Kind == EchoBulk {
		return c.next
	}
	return 0
}

// checked is what the kernel may not be given, beside its packed parameters.
func (c *coop) checked() error {
	x, e := &c.x, c.x.elem(c.t)
	in, out := x.Bytes(c.t)
	entry := ExchangeEntry(x.Kind, c.t)
	place := x.In
	if x.Kind == Gather {
		place = x.In - x.Rank*in // where In is at its own place of Out
	}
	switch {
	case out == 0:
	case x.In%e != 0 || x.Out%e != 0:
		return fmt.Errorf("%w: %s: %#x to %#x for elements of %d bytes", ErrMisaligned, entry, x.In, x.Out, e)
	case place != x.Out && overlap(x.In, in, x.Out, out):
		return fmt.Errorf("%w: %s: %d bytes, %#x to %#x", ErrOverlap, entry, in, x.In, x.Out)
	}
	for _, a := range x.Area[:x.N] {
		if a%16 != 0 {
			return fmt.Errorf("%w: %s: area at %#x", ErrMisaligned, entry, a)
		}
	}
	if x.Control%8 != 0 {
		return fmt.Errorf("%w: %s: control page at %#x", ErrMisaligned, entry, x.Control)
	}
	return nil
}

// post is the first stage: what this rank has for the others.
func (c *coop) post(m Memory) (bool, error) {
	if err := c.checked(); err != nil {
		return false, err
	}
	x := &c.x
	if x.Kind == EchoWords || x.Kind == EchoBulk {
		c.stage = c.echo
		return true, nil
	}
	n, _ := x.Bytes(c.t)
	lo, hi := c.own(x.Rank)
	if !x.Kind.sharded() {
		lo, hi = 0, 0
	}
	if n > 0 {
		in, err := m.Bytes(x.In, n)
		if err != nil {
			return false, err
		}
		if err := c.put(m, 0, in[:lo]); err != nil {
			return false, err
		}
		if err := c.put(m, hi, in[hi:]); err != nil {
			return false, err
		}
	}
	if err := c.flag(m, 1); err != nil {
		return false, err
	}
	c.ins = make([][]byte, x.N)
	c.stage = c.gathered
	if x.Kind.Reduces() {
		c.stage = c.fold
	}
	return true, nil
}

// fold waits for the inputs of the shard, folds them and publishes the result.
func (c *coop) fold(m Memory) (bool, error) {
	x := &c.x
	lo, hi := c.own(x.Rank)
	for ; c.next < x.N; c.next++ {
		if c.next == x.Rank && lo == hi {
			continue // the shard of a rank beyond the end may begin where no memory is
		}
		if c.next == x.Rank {
			in, err := m.Bytes(x.In+lo, hi-lo)
			if err != nil {
				return false, err
			}
			c.ins[c.next] = in
			continue
		}
		ok, err := c.flagged(m, c.next, 1)
		if err != nil || !ok {
			return false, err
		}
		in, ok, err := c.get(m, c.next, lo, hi)
		if err != nil || !ok {
			return false, err
		}
		c.ins[c.next] = in
	}
	if hi > lo {
		out := make([]byte, hi-lo)
		Reduce(c.t, x.Op, out, false, c.ins, 0, x.Divisor)
		to, err := m.Bytes(x.Out+lo, hi-lo)
		if err != nil {
			return false, err
		}
		copy(to, out)
		if x.Kind.sharded() {
			if err := c.put(m, lo, out); err != nil {
				return false, err
			}
		}
	}
	if err := c.flag(m, 2); err != nil {
		return false, err
	}
	c.next, c.stage = 0, nil
	if x.Kind.sharded() {
		c.stage = c.gathered
	}
	return true, nil
}

// gathered waits for what the others have published and brings it to its places.
func (c *coop) gathered(m Memory) (bool, error) {
	x := &c.x
	round := uint64(1)
	if x.Kind.sharded() {
		round = 2
	}
	for ; c.next < x.N; c.next++ {
		lo, hi := c.own(c.next)
		to := x.Out + lo
		var from []byte
		var err error
		switch {
		case x.Kind == Gather:
			to = x.Out + c.next*x.Count
			if c.next == x.Rank {
				from, err = m.Bytes(x.In, x.Count)
				break
			}
			fallthrough
		case c.next != x.Rank:
			ok, err := c.flagged(m, c.next, round)
			if err != nil || !ok {
				return false, err
			}
			if x.Kind == Handshake {
				continue
			}
			if from, ok, err = c.get(m, c.next, lo, hi); err != nil || !ok {
				return false, err
			}
		}
		if err != nil {
			return false, err
		}
		if len(from) > 0 {
			b, err := m.Bytes(to, uint64(len(from)))
			if err != nil {
				return false, err
			}
			copy(b, from)
		}
	}
	c.stage = nil
	if x.Kind == Handshake {
		return true, c.say(m, Status{StatusDone, 0, uint32(x.Epoch)})
	}
	return true, nil
}

// echo answers one batch of the CPU's.
func (c *coop) echo(m Memory) (bool, error) {
	x := &c.x
	if c.next == x.In {
		c.stage = nil
		return true, nil
	}
	ok, err := c.flagged(m, 0, 1)
	if err != nil || !ok {
		return false, err
	}
	b, ok, err := c.get(m, 0, 0, x.Count)
	if err != nil || !ok {
		return false, err
	}
	for i := range b {
		b[i] = ^b[i]
	}
	if err := c.put(m, 0, b); err != nil {
		return false, err
	}
	if err := c.flag(m, 1); err != nil {
		return false, err
	}
	c.next++
	return true, nil
}
