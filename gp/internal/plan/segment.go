// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math"
	"time"
)

// Where a segment is one of a pipeline. A rank that runs alone on its link and
// one that shares it have the same best segment, since the time of the bytes and
// the time of the copies grow alike; what does not is the time that one thread
// takes to enqueue a segment on all ranks.
const (
	// enqueue is what a segment costs a rank in driver calls, measured with eight
	// ranks.
	enqueue = 25 * time.Microsecond
	// minSegment is the bytes of a rank below which cutting them is in vain.
	minSegment = 512 << 10
	// maxSegment bounds the regions: the optimum is flat above.
	maxSegment = 16 << 20
)

// segment is the bytes of a rank's buffer that move together through a
// pipeline whose start costs fill of them and whose every segment costs so many
// copies on a link's busier direction: least near sqrt(bytes * rate * cost / fill).
func (a *Args) segment(bytes uint64, fill, copies float64) uint64 {
	rate, perCopy, share := a.Rate, a.PerCopy, max(a.Share, 1)
	if !(rate > 0) {
		rate = DefaultRate
	}
	if perCopy <= 0 {
		perCopy = DefaultPerCopy
	}
	// What a chunk costs on its way out and what it costs on its way in are at the
	// same time, each on its direction of the link.
	cost := perCopy.Seconds() * copies
	best := math.Sqrt(float64(bytes) * rate * cost / fill)
	best = max(best, float64(a.Ranks)*enqueue.Seconds()*rate/float64(share))
	best = min(max(best, minSegment), maxSegment)
	return uint64(best)
}

// cut gives the lengths of segments of at most most bytes, multiples of unit
// but for the last, which together are bytes. If ramp is set the first ones are
// shorter and grow by half from one to the next: where the way in carries more
// than the way out, that many bytes less go out before the first can come in.
func cut(bytes, most, unit uint64, ramp bool) []uint64 {
	whole := func(n uint64) uint64 { return max(n/unit, 1) * unit }
	most = whole(most)
	var ls []uint64
	if n := most; ramp && bytes > most && most >= 4*minSegment {
		for n = whole(most / 4); n < most && n < bytes; n = whole(n + n/2 + unit/2) {
			ls = append(ls, n)
			bytes -= n
		}
	}
	if bytes == 0 {
		return ls
	}
	// Equal ones, so that the last is not a short one that costs as much.
	n := ceilDiv(bytes, most)
	each := min(ceilDiv(ceilDiv(bytes, n), unit)*unit, most)
	for bytes > 0 {
		n := min(each, bytes)
		ls = append(ls, n)
		bytes -= n
	}
	return ls
}
