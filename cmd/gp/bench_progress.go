// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// A progress is one line on a terminal that tells how far a run is. It stands on
// the error output, so that what is written to the output stays clean, and is
// gone before anything else is written. A nil progress shows nothing. It is safe
// for concurrent use: a run that is given up may still go on.
type progress struct {
	mu    sync.Mutex
	over  bool
	w     io.Writer
	every time.Duration // least time between two lines
	last  time.Time
	wide  int // characters that stand there now
	title string
}

// progressEvery is often enough to see that something goes on.
const progressEvery = 200 * time.Millisecond

// newProgress is a line on w if that is a terminal, else nil.
func newProgress(w io.Writer) *progress {
	if f, ok := w.(*os.File); !ok || !isTerminal(f) || os.Getenv("TERM") == "dumb" {
		return nil
	}
	return &progress{w: w, every: progressEvery}
}

// isTerminal tells whether a file is a device of characters other than the null
// device, which nobody reads.
func isTerminal(f *os.File) bool {
	i, err := f.Stat()
	if err != nil || i.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(i, null)
}

// part names what the following steps are of.
func (p *progress) part(title string, i, n int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.title = title; n > 1 {
		p.title = fmt.Sprintf("%d/%d %s", i+1, n, title)
	}
	p.draw(fmt.Sprintf("%s: preparing", p.title))
}

const progressBar = 24

// at shows that done steps of all are over, and which one begins. left is the
// time that the others will take, negative if that is not known.
func (p *progress) at(done, all int, what string, left time.Duration) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.last) < p.every {
		return
	}
	full := progressBar * done / max(all, 1)
	line := fmt.Sprintf("[%s%s] %3d%% %s", strings.Repeat("#", full), strings.Repeat(".", progressBar-full), 100*done/max(all, 1), p.title)
	if left >= 0 {
		line += fmt.Sprintf(", %v left", left.Round(time.Second))
	}
	p.draw(line + ": " + what)
}

// draw writes over the line that stands there. It stays on one line of a
// terminal of the usual width, and does without escape codes.
func (p *progress) draw(line string) {
	if p.over {
		return
	}
	const columns = 79
	if len(line) > columns {
		line = line[:columns]
	}
	pad := max(p.wide-len(line), 0)
	fmt.Fprintf(p.w, "\r%s%s", line, strings.Repeat(" ", pad))
	p.wide, p.last = len(line), time.Now()
}

// end takes the line away, for good.
func (p *progress) end() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over = true; p.wide > 0 {
		fmt.Fprintf(p.w, "\r%s\r", strings.Repeat(" ", p.wide))
		p.wide = 0
	}
}
