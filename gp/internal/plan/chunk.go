// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"math"
	"time"
)

// Bounds and defaults of the chunk.
const (
	MinChunk = 256 << 10
	MaxChunk = 8 << 20

	// DefaultRate, in bytes a second, is used where a link's rate is unknown.
	DefaultRate = 25e9
	// DefaultPerCopy is what a chunk costs on top of its bytes.
	DefaultPerCopy = 5 * time.Microsecond
	// DefaultSlots is the slots a lane pair: two lose overlap, more gain nothing.
	DefaultSlots = 3
)

// Chunk is the chunk, in bytes, that moves so many bytes soonest over a
// pipeline of two stages with the given rate in bytes a second, when a chunk
// costs perCopy on top of its bytes. With n chunks the time is
// (n+1) * (bytes/n/rate + perCopy), least near bytes/n = sqrt(bytes*rate*perCopy).
// The result is a power of two between MinChunk and MaxChunk; the optimum is
// flat. A rate or perCopy that is not positive means the default.
func Chunk(bytes uint64, rate float64, perCopy time.Duration) uint64 {
	if !(rate > 0) {
		rate = DefaultRate
	}
	if perCopy <= 0 {
		perCopy = DefaultPerCopy
	}
	best := math.Sqrt(float64(bytes) * rate * perCopy.Seconds())
	if best <= MinChunk {
		return MinChunk
	}
	if best >= MaxChunk {
		return MaxChunk
	}
	return 1 << int(math.Round(math.Log2(best)))
}

// quantum is the granularity in bytes of chunks and slots, and of a ring's
// shards where the length allows: it is a whole number of elements of any
// type, and what a kernel's thread moves at once.
const quantum = 16

// maxSteps bounds a plan: a budget of some bytes for gigabytes of data is an
// error rather than all of the host's memory.
const maxSteps = 1 << 20

func roundUp(n uint64) uint64 { return (n + quantum - 1) / quantum * quantum }

func ceilDiv(a, b uint64) uint64 { return a/b + min(a%b, 1) }

// need is what a choice of chunk and slots costs the rank that needs most.
type need struct {
	host, scratch uint64 // bytes
	steps         uint64 // of the whole plan
}

// fit finds a chunk and a number of slots within the budgets (0: no limit),
// starting from what was asked for (0: the cost model's for that many bytes,
// and DefaultSlots). The chunk shrinks first, down to MinChunk, since the
// optimum is flat; then the slots, down to two; then the chunk again.
func fit(chunk uint64, slots int, bytes, hostBudget, scratchBudget uint64, cost func(chunk uint64, slots int) need) (uint64, int, error) {
	if chunk == 0 {
		chunk = Chunk(bytes, 0, 0)
	}
	if slots == 0 {
		slots = DefaultSlots
	}
	chunk = max(chunk/quantum*quantum, quantum)
	slots = max(slots, 2)
	fits := func() bool {
		n := cost(chunk, slots)
		return (hostBudget == 0 || n.host <= hostBudget) && (scratchBudget == 0 || n.scratch <= scratchBudget)
	}
	asked := chunk
	halve := func() { chunk = max(chunk/2/quantum*quantum, quantum) }
	for !fits() && chunk > MinChunk {
		halve()
	}
	for !fits() && slots > 2 {
		slots--
	}
	for !fits() && chunk > quantum {
		halve()
	}
	// What is left may do for more than half.
	for half, part := chunk, uint64(15); chunk < asked && part > 8; part-- {
		if chunk = min(half/8*part/quantum*quantum, asked); fits() {
			break
		}
		chunk = half
	}
	n := cost(chunk, slots)
	if !fits() {
		return 0, 0, fmt.Errorf("budget too small: at least %d bytes of host memory and %d bytes of device scratch a rank are needed (given: %d and %d)",
			n.host, n.scratch, hostBudget, scratchBudget)
	}
	if n.steps > maxSteps {
		return 0, 0, fmt.Errorf("chunk too small: chunks of %d bytes would take %d steps (limit: %d)", chunk, n.steps, maxSteps)
	}
	return chunk, slots, nil
}
