// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"fmt"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
)

// A Kind is what an Exchange does.
type Kind uint8

// The kinds. LL words are aligned 8 bytes of mapped host memory, four of data
// and four of flag, which arrive together: they need no fence and twice the
// bytes. The bulk kinds write plain data and then a flag.
const (
	OneShot   Kind = iota + 1 // all_reduce: all ranks write all as LL words, each reads all and folds all
	TwoShotLL                 // all_reduce: each rank folds its shard of LL words and publishes the result likewise
	TwoShot                   // all_reduce: as TwoShotLL, in bulk
	Gather                    // all_gather of bytes, as LL words
	Handshake                 // each rank posts its flag and waits for all others'
	EchoWords                 // a GPU answers the CPU's LL words: for tests of the helpers that all of these share
	EchoBulk                  // the same in bulk
)

var kindNames = [...]string{
	OneShot: "one_shot", TwoShotLL: "two_shot_ll", TwoShot: "two_shot", Gather: "gather", Handshake: "handshake",
	EchoWords: "echo_words", EchoBulk: "echo_bulk",
}

// Kinds lists all of them.
var Kinds = []Kind{OneShot, TwoShotLL, TwoShot, Gather, Handshake, EchoWords, EchoBulk}

// MaxLL is the bytes up to which an all_reduce in two shots is better off with words
// that carry their own flags, in spite of twice the traffic, than in bulk.
const MaxLL = 32 << 10

// MaxParts is how many exchanges, one behind the other, do one operation at most.
const MaxParts = 8

// Valid tells whether k is one of the kinds.
func (k Kind) Valid() bool { return k >= OneShot && k <= EchoBulk }

// String is the kind's name: "two_shot_ll".
func (k Kind) String() string {
	if !k.Valid() {
		return fmt.Sprintf("Kind(%d)", uint8(k))
	}
	return kindNames[k]
}

// Reduces tells whether a kind is of one element type and reduction.
func (k Kind) Reduces() bool { return k == OneShot || k == TwoShotLL || k == TwoShot }

// Exchange is the parameters of a kernel that waits for its peers: N ranks
// launch one each, with the same Kind, Op, Count, Divisor, N, Epoch, AreaBytes,
// Area and shape (see ExchangeShape): at most MaxExchangeBlocks blocks of at most
// BlockThreads threads, a multiple of 32. None ends before all have begun,
// so each must be able to run while the others do: load the modules of all
// ranks before the first launch, and prove it once by a Handshake.
//
//   - OneShot, TwoShotLL, TwoShot: Out = Op over all ranks' In, folded in rank
//     order and rounded once, as Fold does it, with Divisor as there. The
//     addresses are aligned to an element; Count is elements.
//   - Gather: Count bytes at each rank's In go to Out + rank*Count of every
//     rank, its own included. In may be at its own place there. Any alignment.
//   - Handshake: nothing moves; StatusDone is written when all were there. One
//     block. Count is 1.
//   - EchoWords, EchoBulk: rank 0 is the CPU and launches nothing; rank 1 waits
//     for Count bytes, a multiple of 16, in area 0, and puts their complement
//     into area 1; In times (a number here), with Epoch, Epoch+1 and so on. The
//     CPU posts the next when it has read the answer.
//
// In and Out are memory of the launching GPU, Out is In or does not overlap it.
//
// # Areas
//
// Area[r] is AreaBytes of mapped pinned host memory that rank r alone writes
// and all read. It begins as zeros and belongs to these kernels. The lower half
// serves the even epochs, the upper half the odd ones; either is
//
//	flags     FlagBytes: a word of eight bytes for each block, FlagStride apart
//	words     LLBytes: LL words and never anything else, so that no payload is
//	          taken for a flag
//	bulk      the rest
//
// Word or byte i of the message lies at the same place in each area: a rank's
// own shard of its own area holds no input, hence takes the result.
//
// # Epochs
//
// Epoch is what a flag holds when it is set, from 1 to 2^32-1, and every
// exchange over the same areas has the next one. Flags are never reset. Before
// the number starts again at 1 the areas must be made zero with all idle, or a
// word that nobody has written since would be taken for a new one.
//
// Two halves are enough: rank r writes for epoch e+2 where p may have read for
// epoch e. r's kernel of e+1 has ended by then (its stream orders its exchanges),
// and what it waited for comes of every rank: what any rank puts out in one of
// these kernels is made of all ranks' inputs, or for a handshake of their flags.
// So p had begun e+1, hence ended e, and with it its reading. This needs Count
// of at least 1, one order of exchanges on every rank, and none that failed.
//
// # Failure
//
// A kernel that waits looks at AbortWord of its control page, and whether it
// has waited for DeadlineNs, about every LookNs (each block does, by its own
// clock, so that it may be half or twice that). Then it writes StatusWord and
// ends. Its Out is undefined then, and the areas are not to be used again.
type Exchange struct {
	Kind       Kind
	Op         dtype.Op
	In, Out    uint64
	Count      uint64
	Divisor    uint64
	Rank, N    uint64
	Epoch      uint64
	DeadlineNs uint64
	Control    uint64 // the rank's own control page, mapped host memory
	AreaBytes  uint64 // of each area: a multiple of 512, at least AreaNeed
	Area       [MaxInputs]uint64
}

// The control page, ControlBytes of mapped pinned host memory that begin as
// zeros: four bytes that the host sets to end a kernel, and eight in which the
// kernel says how it ended (see Status).
const (
	AbortWord    = 0
	StatusWord   = 64
	ControlBytes = 128
)

// LookNs is about how often a waiting kernel looks at its abort word and at the
// deadline.
const LookNs = 10_000

// Of an area's half.
const (
	FlagStride        = 64
	FlagBytes         = FlagStride * MaxExchangeBlocks
	MaxExchangeBlocks = 32 // so many blocks are resident on any GPU beside other ranks'
)

// unitBytes is the payload that a thread moves at a time: two LL words of four
// bytes each, or sixteen bytes in bulk.
func (k Kind) unitBytes() uint64 {
	switch k {
	case TwoShot, EchoBulk:
		return 16
	}
	return 8
}

// LLBytes is the size of the words section of a half.
func LLBytes(areaBytes uint64) uint64 { return (areaBytes/2 - FlagBytes) / 4 &^ 255 }

// Half is where the sections that serve an epoch begin, from the area's start.
func Half(areaBytes, epoch uint64) (flags, words, bulk uint64) {
	flags = epoch & 1 * (areaBytes / 2)
	words = flags + FlagBytes
	return flags, words, words + LLBytes(areaBytes)
}

// AreaNeed is the bytes that an area must have at least for messages of so many
// bytes (what Count stands for) among n ranks. It grows with bytes, so that the
// largest message's serves all.
func AreaNeed(k Kind, bytes uint64, n int) uint64 {
	section := func(n uint64) uint64 { return (n + 255) &^ 255 }
	switch k {
	case Handshake:
		return 2 * FlagBytes
	case TwoShot, EchoBulk:
		// The words take a quarter, so the bulk has at least three.
		bulk := section((bytes + 15) &^ 15)
		return 2 * (FlagBytes + section((bulk+2)/3)*4)
	}
	return 2 * (FlagBytes + 4*section((bytes+7)/8*16))
}

// ExchangeShape is the grid and the threads a block for a message of so many
// bytes among n ranks, of which crowd share a GPU at most. All ranks launch the
// same.
//
// The shapes are the best of sweeps on an H200 that all ranks share and on two
// that have one each (exchange and shapes in docs/measured). Where many ranks
// wait on one link, fewer blocks are better than a thread for each unit: what
// polls takes the link from what it waits for. All blocks of the ranks of a GPU
// fit one of a hundred multiprocessors.
func ExchangeShape(k Kind, bytes uint64, n, crowd int) (blocks, threads uint32) {
	units := (bytes + k.unitBytes() - 1) / k.unitBytes()
	most, per := min(uint64(8), 96/uint64(max(crowd, 1))), uint64(1) // units a thread
	switch k {
	case Handshake:
		units = MaxInputs // a thread waits for a peer
	case OneShot, Gather:
		if n >= 4 {
			per = 2
		}
	case TwoShotLL:
		units = (units + uint64(n) - 1) / uint64(n)
	case TwoShot:
		units = (units + uint64(n) - 1) / uint64(n)
		switch {
		case n > 4:
			most = 4
		case n > 2:
			most = 10
		}
		if n >= 4 {
			units *= 2 // two blocks where one has enough threads
		}
	}
	// A block of fewer threads is launched sooner.
	t := min((max(units, 1)+warpThreads-1)/warpThreads*warpThreads, BlockThreads)
	b := (units + t*per - 1) / (t * per)
	return uint32(min(max(b, 1), most)), uint32(t)
}

// warpThreads is the threads that run together: a block has a multiple.
const warpThreads = 32

// shard is the units that a rank folds, or for a kind without shards all.
func (x *Exchange) shard(elem uint64) uint64 {
	u := x.Kind.unitBytes()
	units := (x.Count*elem + u - 1) / u
	if x.Kind == TwoShot || x.Kind == TwoShotLL {
		return (units + x.N - 1) / x.N
	}
	return units
}

// exchangeWords is the 64-bit words of an Exchange's parameter buffer: in, out,
// count, divisor, rank, n, epoch, deadline, control, area bytes, mode (kind in
// bits 0..7, op in bits 8..15), shard, area[16].
const exchangeWords = 12 + MaxInputs

// ExchangeBytes is the size of an Exchange's parameter buffer.
const ExchangeBytes = exchangeWords * 8

// Append adds the parameter buffer, for elements of type t (0 for a kind that
// does not reduce), to b and returns it.
func (x *Exchange) Append(b []byte, t dtype.Type) []byte {
	elem := uint64(1)
	if x.Kind.Reduces() {
		elem = uint64(t.Size())
	}
	for _, w := range [...]uint64{
		x.In, x.Out, x.Count, x.Divisor, x.Rank, x.N, x.Epoch, x.DeadlineNs, x.Control, x.AreaBytes,
		uint64(x.Kind) | uint64(x.Op)<<8, x.shard(elem),
	} {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	for _, p := range x.Area {
		b = binary.LittleEndian.AppendUint64(b, p)
	}
	return b
}

// ParseExchange is the inverse of Append. What no kernel takes is not ok.
func ParseExchange(b []byte, t dtype.Type) (x Exchange, ok bool) {
	if len(b) != ExchangeBytes {
		return x, false
	}
	w := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	x = Exchange{
		Kind: Kind(w(10) & 0xff), Op: dtype.Op(w(10) >> 8 & 0xff),
		In: w(0), Out: w(1), Count: w(2), Divisor: w(3), Rank: w(4), N: w(5), Epoch: w(6), DeadlineNs: w(7), Control: w(8), AreaBytes: w(9),
	}
	for i := range x.Area {
		x.Area[i] = w(12 + i)
	}
	elem := uint64(1)
	switch {
	case !x.Kind.Valid() || x.Kind.Reduces() != t.Valid():
		return x, false
	case x.Kind.Reduces():
		elem = uint64(t.Size())
		ok = x.Op.Valid()
	default:
		ok = x.Op == 0
	}
	return x, ok && x.N >= 1 && x.N <= MaxInputs && x.Rank < x.N && x.Count >= 1 && x.Epoch >= 1 && x.Epoch < 1<<32 &&
		x.Count < 1<<35 && w(11) == x.shard(elem) && x.AreaBytes%512 == 0 && x.AreaBytes >= AreaNeed(x.Kind, x.Count*elem, int(x.N))
}

// A StatusCode is how a kernel ended.
type StatusCode uint8

const (
	StatusNone     StatusCode = iota // nothing was said: it runs, or it ended well
	StatusDone                       // of a Handshake: all were there
	StatusAborted                    // the host set the abort word
	StatusTimedOut                   // the deadline passed
)

// Status is what StatusWord holds. A kernel writes it when it gives up, and a
// Handshake always. Where several threads give up, one of their words stays.
type Status struct {
	Code  StatusCode
	Peer  uint8  // whom it waited for
	Epoch uint32 // the exchange's
}

// Word is the status as the page holds it.
func (s Status) Word() uint64 { return uint64(s.Code) | uint64(s.Peer)<<8 | uint64(s.Epoch)<<32 }

// ParseStatus is the inverse of Word.
func ParseStatus(w uint64) Status {
	return Status{StatusCode(w), uint8(w >> 8), uint32(w >> 32)}
}

// ExchangeModule is the module of a kind, for a kind that reduces that of the
// type; 0 for the others. OneShot and TwoShotLL share one.
func ExchangeModule(k Kind, t dtype.Type) Module {
	switch k {
	case OneShot, TwoShotLL:
		return Module{"ll", t}
	case TwoShot:
		return Module{"bulk", t}
	case EchoWords, EchoBulk:
		return Module{Kernel: "echo"}
	}
	return Module{Kernel: k.String()}
}

// ExchangeEntry is the entry point of a kind: "gp_ll_f32", "gp_handshake". The
// reduction and, where kinds share it, the kind are parameters.
func ExchangeEntry(k Kind, t dtype.Type) string { return "gp_" + ExchangeModule(k, t).Name() }
