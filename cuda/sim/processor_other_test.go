// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !darwin

package sim_test

import "time"

var started = time.Now()

// processorTime stands for what the process has used, where there is no cheap
// call for it.
func processorTime() time.Duration { return time.Since(started) }
