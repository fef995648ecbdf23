// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// A Fold says of a range of bytes of a reduction's result in which order the
// ranks' contributions are folded. Each rank occurs once. The bytes are counted
// in In: a reduce_scatter's Outs are its shards.
type Fold struct {
	Off, Len uint64
	Ranks    []int
}

func (f Fold) equal(g Fold) bool {
	return f.Off == g.Off && f.Len == g.Len && slices.Equal(f.Ranks, g.Ranks)
}

// FoldOrder tells of every byte of the result of an all_reduce, reduce or
// reduce_scatter in which order it is folded, by running the plan's steps on symbols. The ranges are in rising
// order, without gap. The plan is checked on the way. All arithmetic being in
// the wide type or exact, and rounded once, the order is all that a reference
// needs: see Reference.
func FoldOrder(p *Plan) ([]Fold, error) {
	if !p.folds() {
		return nil, fmt.Errorf("plan %s %s folds nothing", p.Op, p.Algorithm)
	}
	c, err := check(p)
	if err != nil {
		return nil, err
	}
	switch p.Op {
	case "reduce":
		return c.order(p.Root), nil
	case "reduce_scatter":
		var fs []Fold
		for r := range p.Ranks {
			for _, f := range c.order(r) {
				f.Off += uint64(r) * p.OutBytes[r]
				fs = append(fs, f)
			}
		}
		return fs, nil
	}
	return c.order(0), nil
}

func (c *checker) order(rank int) []Fold {
	var fs []Fold
	for _, seg := range c.out(rank) {
		f := Fold{seg.lo, seg.hi - seg.lo, slices.Clone(c.folds.ranks(seg.state.fold))}
		if n := len(fs); n > 0 && slices.Equal(fs[n-1].Ranks, f.Ranks) {
			fs[n-1].Len += f.Len
			continue
		}
		fs = append(fs, f)
	}
	return fs
}

// Reference computes a reduction on the host: the bytes that every rank's Out
// must hold, or the root's, or all Outs of a reduce_scatter one behind the
// other, given every rank's In and the order of the folds. One rank's input
// comes back as it is.
func Reference(inputs [][]byte, t dtype.Type, op dtype.Op, order []Fold) []byte {
	out := slices.Clone(inputs[0])
	if len(inputs) == 1 {
		return out
	}
	divisor := uint64(0)
	if op == dtype.Avg {
		divisor = uint64(len(inputs))
	}
	for _, f := range order {
		ins := make([][]byte, len(f.Ranks))
		for k, r := range f.Ranks {
			ins[k] = inputs[r][f.Off : f.Off+f.Len]
		}
		// More inputs than one fold takes go through wide partial results.
		inWide := uint32(0)
		for len(ins) > kernel.MaxInputs {
			part := make([]byte, f.Len/uint64(t.Size())*uint64(t.Wide().Size()))
			kernel.Reduce(t, op, part, true, ins[:kernel.MaxInputs], inWide, 0)
			ins = append([][]byte{part}, ins[kernel.MaxInputs:]...)
			inWide = 1
		}
		kernel.Reduce(t, op, out[f.Off:f.Off+f.Len], false, ins, inWide, divisor)
	}
	return out
}
