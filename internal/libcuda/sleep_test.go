// SPDX-License-Identifier: Apache-2.0

package libcuda

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSleep: a short sleep is never shorter than asked for, and on Linux it is
// no millisecond longer, at least not most of the time.
func TestSleep(t *testing.T) {
	h := newHost()
	var over []time.Duration
	for range 101 {
		const d = 50 * time.Microsecond
		start := h.Now()
		h.Sleep(d)
		took := h.Now() - start
		require.GreaterOrEqual(t, took, d)
		over = append(over, took-d)
	}
	slices.Sort(over)
	t.Logf("50 us of sleep took %v longer, median", over[50])
	if runtime.GOOS == "linux" {
		require.Less(t, over[10], time.Millisecond)
	}
	h.Sleep(0)
	h.Sleep(-time.Second)
}
