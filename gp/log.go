// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"context"
	"log/slog"
	"sync"
)

// A logQueue hands records on to the caller's handler from a goroutine of its
// own, in order. Much is logged while locks are held, and a handler may do
// anything: write to a slow disk, or call the group.
type logQueue struct {
	mu      sync.Mutex
	records []logged
	running bool
}

type logged struct {
	h slog.Handler
	r slog.Record
}

// logHandler is a handler that queues.
type logHandler struct {
	next  slog.Handler
	queue *logQueue
}

// behind returns a logger whose records reach l by way of a queue.
func behind(l *slog.Logger) *slog.Logger {
	return slog.New(logHandler{l.Handler(), &logQueue{}})
}

func (h logHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

func (h logHandler) WithAttrs(a []slog.Attr) slog.Handler {
	return logHandler{h.next.WithAttrs(a), h.queue}
}

func (h logHandler) WithGroup(name string) slog.Handler {
	return logHandler{h.next.WithGroup(name), h.queue}
}

func (h logHandler) Handle(_ context.Context, r slog.Record) error {
	q := h.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	q.records = append(q.records, logged{h.next, r.Clone()})
	if !q.running {
		q.running = true
		go q.run()
	}
	return nil
}

func (q *logQueue) run() {
	for {
		q.mu.Lock()
		records := q.records
		q.records = nil
		if len(records) == 0 {
			q.running = false
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		for _, l := range records {
			_ = l.h.Handle(context.Background(), l.r)
		}
	}
}
