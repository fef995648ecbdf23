// SPDX-License-Identifier: Apache-2.0

// Package tap stands in front of any driver and counts the calls that pass. It
// can also make one fail, or leave one out, which is how tests reach the
// library's failure points and show that each call is needed.
package tap

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// method is an index into the counters.
type method uint8

// A Tap is an api.Driver in front of another. It is safe for concurrent use,
// and a call through an idle one costs two atomic additions and no allocation.
type Tap struct {
	next   api.Driver
	total  atomic.Uint64
	counts [methods]atomic.Uint64

	armed atomic.Bool // a rule or the log wants to see each call
	mu    sync.Mutex
	rules []*rule
	log   []method
	logOn bool
}

var _ api.Driver = (*Tap)(nil)

// A rule ends calls before they reach the driver, or does something in front of them.
type rule struct {
	only  method // or methods, for any
	left  int    // calls to let pass before; the rule acts when it is 0
	every bool   // act on each call from then on, not once
	code  api.Code
	do    func() // what to do in front of the call, which then goes on; nil to end it
	hits  int
}

// New puts a tap in front of a driver.
func New(next api.Driver) *Tap { return &Tap{next: next} }

// Next is the driver behind the tap.
func (t *Tap) Next() api.Driver { return t.next }

// Path is the library path of the driver behind the tap, if it has one.
func (t *Tap) Path() string {
	if p, ok := t.next.(interface{ Path() string }); ok {
		return p.Path()
	}
	return ""
}

// Total is the calls since New or Reset. Asking for error texts and the host
// does not count.
func (t *Tap) Total() uint64 { return t.total.Load() }

// Count is the calls of one method, named as in api.Driver: "MemcpyDtoHAsync".
func (t *Tap) Count(name string) uint64 { return t.counts[find(name)].Load() }

// Counts is the calls by method, without those that were not called.
func (t *Tap) Counts() map[string]uint64 {
	m := map[string]uint64{}
	for i := range t.counts {
		if n := t.counts[i].Load(); n > 0 {
			m[methodNames[i]] = n
		}
	}
	return m
}

// Reset sets all counters to 0, forgets the log, and takes back what Fail, Skip,
// At, Each and Log asked for.
func (t *Tap) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.armed.Store(false)
	t.rules, t.log, t.logOn = nil, nil, false
	t.total.Store(0)
	for i := range t.counts {
		t.counts[i].Store(0)
	}
}

// Fail makes the k-th call from now, counted from 1, answer with a code instead
// of reaching the driver. name limits it to one method; with "" every counted
// call counts.
func (t *Tap) Fail(name string, k int, code api.Code) *Rule {
	return t.add(name, k, code, false)
}

// FailFrom is Fail for the k-th call and all that follow it.
func (t *Tap) FailFrom(name string, k int, code api.Code) *Rule {
	return t.add(name, k, code, true)
}

// Skip makes the k-th call from now answer success without reaching the driver;
// its results are zero.
func (t *Tap) Skip(name string, k int) *Rule { return t.add(name, k, api.Success, false) }

// SkipFrom is Skip for the k-th call and all that follow it.
func (t *Tap) SkipFrom(name string, k int) *Rule { return t.add(name, k, api.Success, true) }

// At calls f in front of the k-th call from now, on the thread that makes it, and
// lets the call pass. f may call the driver behind the tap.
func (t *Tap) At(name string, k int, f func()) *Rule { return t.put(name, k, &rule{do: f}) }

// Each calls f in front of each call from now, as At does.
func (t *Tap) Each(f func()) *Rule { return t.put("", 1, &rule{do: f, every: true}) }

func (t *Tap) add(name string, k int, code api.Code, every bool) *Rule {
	return t.put(name, k, &rule{every: every, code: code})
}

func (t *Tap) put(name string, k int, r *rule) *Rule {
	if k < 1 {
		panic(fmt.Sprintf("tap: calls count from 1, not %d", k))
	}
	r.only, r.left = methods, k-1
	if name != "" {
		r.only = find(name)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rules = append(t.rules, r)
	t.armed.Store(true)
	return &Rule{t, r}
}

// A Rule is what Fail, Skip, At and Each put in place.
type Rule struct {
	t *Tap
	r *rule
}

// Hits is how often the rule acted: 0 means that the call never came.
func (r *Rule) Hits() int {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	return r.r.hits
}

// Remove takes the rule back.
func (r *Rule) Remove() {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	if i := slices.Index(r.t.rules, r.r); i >= 0 {
		r.t.rules = slices.Delete(r.t.rules, i, i+1)
	}
	r.t.armed.Store(r.t.logOn || len(r.t.rules) > 0)
}

// Log starts keeping the sequence of calls, also of those that a rule ends.
func (t *Tap) Log() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.log, t.logOn = nil, true
	t.armed.Store(true)
}

// Calls is the sequence of calls since Log, by method name.
func (t *Tap) Calls() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	names := make([]string, len(t.log))
	for i, m := range t.log {
		names[i] = methodNames[m]
	}
	return names
}

// enter counts a call, and says whether it ends here and with which code.
func (t *Tap) enter(m method) (c api.Code, stop bool) {
	t.counts[m].Add(1)
	if m == mGetErrorName || m == mGetErrorString {
		return api.Success, false
	}
	t.total.Add(1)
	if !t.armed.Load() {
		return api.Success, false
	}
	return t.consult(m)
}

func (t *Tap) consult(m method) (c api.Code, stop bool) {
	c, stop, do := t.rule(m)
	for _, f := range do {
		f()
	}
	return c, stop
}

// rule asks the rules after a call.
func (t *Tap) rule(m method) (c api.Code, stop bool, do []func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.logOn {
		t.log = append(t.log, m)
	}
	for _, r := range t.rules {
		if r.only != methods && r.only != m || !r.every && r.hits > 0 {
			continue
		}
		if r.left > 0 {
			r.left--
			continue
		}
		r.hits++
		switch {
		case r.do != nil:
			do = append(do, r.do)
		case !stop:
			c, stop = r.code, true
		}
	}
	return c, stop, do
}

func find(name string) method {
	i := slices.Index(methodNames[:], name)
	if i < 0 {
		panic("tap: api.Driver has no method " + name)
	}
	return method(i)
}
