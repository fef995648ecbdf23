// SPDX-License-Identifier: Apache-2.0

package gp_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/gp"
)

// TestCloseFailsOnce lets each driver call of a Close, with a reduction in flight,
// fail in turn: the error, if there is one, names the call and the rank, and all is
// given back but what the driver refuses to take.
func TestCloseFailsOnce(t *testing.T) {
	c := collectiveScene("all_reduce", gp.AlgorithmDirect, false)
	flight := func(t *testing.T) *trial {
		s := newTrial(t, c, 2)
		s.open()
		_, err := s.collective("all_reduce", s.g.With(gp.CallOptions{Algorithm: gp.AlgorithmDirect, Chunk: s.chunk}))
		require.NoError(t, err)
		return s
	}
	s := flight(t)
	s.tap.Reset()
	within(t, "Close", func() { require.NoError(t, keeps(s.below, 0, s.g.Close)) })
	calls := int(s.tap.Total())
	s.returned(nil)
	s.end()
	require.Greater(t, calls, 50)
	for k := 1; k <= calls; k++ {
		f := faults[k%len(faults)]
		if fewer && k%11 != 0 {
			continue
		}
		t.Run(fmt.Sprintf("call=%d/%s", k, f.name), func(t *testing.T) {
			s := flight(t)
			var at int
			rule := s.arm(k, f, &at)
			var err error
			within(t, "Close", func() { err = keeps(s.below, 0, s.g.Close) })
			require.Equal(t, 1, rule.Hits())
			call := s.tap.Calls()[k-1]
			s.m.Fault(0)
			s.tap.Reset()
			require.NoError(t, s.g.Close())
			sick := s.sick()
			s.poisoned, s.cause = f.kind == poison && len(sick) > 0, cuda.Code(f.code)
			if err != nil {
				var e *gp.Error
				require.ErrorAs(t, err, &e)
				require.GreaterOrEqual(t, e.Rank, 0, "the error names a rank: %v", err)
				require.ErrorIs(t, err, cuda.Code(f.code))
				require.Regexp(t, namesCall, err.Error())
			}
			if f.kind == refusal {
				if frees[call] {
					require.ErrorContains(t, err, "cu"+call)
					s.kept = call
				}
			}
			s.returned(sick)
			s.anew(sick)
			s.end()
		})
	}
}
