// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !darwin && !freebsd && !windows

package main

import "time"

// processorTime is not known here.
func processorTime() (time.Duration, bool) { return 0, false }
