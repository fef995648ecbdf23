// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
)

// A logQueue keeps what is logged while locks are held, until the call that
// holds them has let go: then the call hands it to the caller's handler, which
// may do anything, write to a slow disk or call the group.
type logQueue struct {
	some    atomic.Bool // records may be there
	mu      sync.Mutex
	records []logged
}

type logged struct {
	h slog.Handler
	r slog.Record
}

// logger returns a logger whose records reach l with the next flush.
func (q *logQueue) logger(l *slog.Logger) *slog.Logger {
	return slog.New(logHandler{l.Handler(), q})
}

// flush hands on what was logged. No lock of the group's is held.
func (q *logQueue) flush() {
	if !q.some.Load() {
		return
	}
	q.mu.Lock()
	records := q.records
	q.records = nil
	q.some.Store(false)
	q.mu.Unlock()
	for _, l := range records {
		_ = l.h.Handle(context.Background(), l.r)
	}
}

// logHandler is a handler that queues.
type logHandler struct {
	next  slog.Handler
	queue *logQueue
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
	q.some.Store(true)
	return nil
}
