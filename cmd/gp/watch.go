// SPDX-License-Identifier: Apache-2.0

package main

import (
	"sync"
	"time"
)

// A watch runs out when a step takes longer than it was given. It sees what a
// context cannot end: a driver call that does not return. It is safe for
// concurrent use.
type watch struct {
	out chan struct{} // closed when it has run out

	mu    sync.Mutex
	timer *time.Timer
	step  string
	given time.Duration
	last  bool // no later step gets more time
}

// newWatch starts a watch on a first step.
func newWatch(step string, d time.Duration) *watch {
	w := &watch{out: make(chan struct{}), step: step, given: d}
	w.timer = time.AfterFunc(d, func() { close(w.out) })
	return w
}

// next gives the time d to the step that begins.
func (w *watch) next(step string, d time.Duration) { w.set(step, d, false) }

// end gives the time d to all that is still to come.
func (w *watch) end(d time.Duration) { w.set("", d, true) }

func (w *watch) set(step string, d time.Duration, last bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if step != "" {
		w.step = step
	}
	// One that has run out stays so: the channel is closed once.
	if w.last || !w.timer.Stop() {
		return
	}
	w.given, w.last = d, last
	w.timer.Reset(d)
}

// at is the step that runs, and the time that it was given.
func (w *watch) at() (step string, given time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.step, w.given
}

func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = true
	w.timer.Stop()
}
