// SPDX-License-Identifier: Apache-2.0

// Command service is an HTTP service on a host with GPUs:
//
//	GET /probe    why P2P is off, for each pair, as JSON
//	GET /healthz  200 while the GPUs answer, 503 with the reason otherwise
//	GET /stats    what has been copied, as JSON
//
// On SIGTERM /healthz answers 503 for a while, so that a load balancer looks
// elsewhere; then requests that are under way end, and the GPUs are given back.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/gp"
	"github.com/geforce-p2p/geforce-p2p/probe"
	"github.com/geforce-p2p/geforce-p2p/probe/nvml/nvmlsim"
)

func main() {
	listen := flag.String("listen", "localhost:8080", "the address to listen on")
	machine := flag.String("sim", "", "serve the simulated machine `NAME` (2x4090, ...) instead of this one's GPUs")
	grace := flag.Duration("grace", 5*time.Second, "how long to answer 503 on SIGTERM before going")
	flag.Parse()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, log, *listen, *machine, *grace); err != nil {
		log.Error("service", "error", err)
		os.Exit(1)
	}
}

// run serves until ctx ends, and then drains.
func run(ctx context.Context, log *slog.Logger, listen, machine string, grace time.Duration) (err error) {
	o := gp.Options{Logger: log}
	s := &service{}
	if machine != "" {
		m, err := sim.Open(machine)
		if err != nil {
			return err
		}
		o.Driver, s.probe.NVML = m.Driver(), nvmlsim.New(m.Spec())
	}
	g, err := gp.Open(o)
	if err != nil {
		return err
	}
	defer func() {
		log.Info("closing", "stats", g.Stats())
		err = errors.Join(err, g.Close()) // waits for what is in flight
	}()
	s.g, s.probe.Driver = g, g.Driver()
	for _, r := range g.Ranks() {
		b, err := r.Alloc(gp.TypeUint64, 1)
		if err != nil {
			return err
		}
		s.words = append(s.words, b)
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: s.routes(), ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	log.Info("serving", "address", l.Addr().String(), "ranks", len(g.Ranks()))
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	s.draining.Store(true)
	log.Info("draining", "grace", grace)
	time.Sleep(grace)
	end, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return server.Shutdown(end) // returns once no request is under way
}

type service struct {
	g        *gp.Group
	words    []gp.Buffer // of health, one a rank
	probe    probe.Options
	draining atomic.Bool
	probing  sync.Mutex // reading facts is some hundred files and calls: one at a time
}

func (s *service) routes() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /probe", func(w http.ResponseWriter, r *http.Request) {
		s.probing.Lock()
		defer s.probing.Unlock()
		facts, err := probe.Collect(r.Context(), s.probe)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = probe.Diagnose(facts, nil).WriteJSON(w) // the client may have gone
	})
	m.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		if err := s.health(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	m.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.g.Stats())
	})
	return m
}

// health passes a number through each rank's memory. A GPU that fell off the bus
// fails the group, which it says from then on; one that hangs runs into the limit.
func (s *service) health(ctx context.Context) error {
	if s.draining.Load() {
		return errors.New("draining")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for _, b := range s.words {
		got := []uint64{42}
		if err := gp.UploadTo(ctx, b, got); err != nil {
			return err
		}
		if err := gp.Download(ctx, got, b); err != nil {
			return err
		}
	}
	return s.g.Err()
}
