// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"
)

// timeSpan is a time as a flag: "30s".
type timeSpan time.Duration

func (t *timeSpan) String() string { return time.Duration(*t).String() }

func (t *timeSpan) Set(v string) error {
	d, err := time.ParseDuration(v)
	if err != nil {
		return fmt.Errorf("not a time: want numbers with a unit of ms, s, m or h, such as 30s or 1m30s")
	}
	*t = timeSpan(d)
	return nil
}
