// SPDX-License-Identifier: Apache-2.0

// Package gputest gives tests their GPUs: simulated ones everywhere, and the
// machine's own where it has any. Only tests import it.
package gputest

import (
	"errors"
	"sync"
	"testing"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/cuda/sim"
	"github.com/geforce-p2p/geforce-p2p/internal/api/tap"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
)

// hardware is opened once a process: initialising a driver takes a tenth of a
// second, and it keeps its state for the process anyway.
var hardware = sync.OnceValues(cuda.Open)

// Hardware is the machine's real driver, the same one on every call. Where
// there is no driver library, or the driver shows no device, the test is
// skipped; any other failure is a broken GPU host and fails it.
func Hardware(t testing.TB) *cuda.Driver {
	t.Helper()
	d, err := hardware()
	switch {
	case err == nil:
		return d
	case absent(err):
		t.Skipf("no GPU: %v", err)
	default:
		t.Fatalf("this machine's driver does not work: %v", err)
	}
	return nil
}

// Parallel has a test run beside others of its package (t.Parallel) where there is
// no GPU: simulated machines share nothing, and what a real one is asked at once
// by several tests is nobody's plan.
func Parallel(t *testing.T) {
	if _, err := hardware(); err != nil && absent(err) {
		t.Parallel()
	}
}

// absent tells whether an error of cuda.Open means that there is no GPU to test
// on, rather than that one does not work.
func absent(err error) bool {
	return errors.Is(err, cuda.ErrNoLibrary) || errors.Is(err, cuda.ErrNoDevice)
}

// Sim is the driver of a new simulated machine, named as for sim.Open. The
// machine is closed when the test ends, after what the test itself registered
// with Cleanup; what is still allocated then fails the test, unless it has
// failed already, and so do races: see sim.Watch.
func Sim(t testing.TB, machine string) *cuda.Driver {
	t.Helper()
	return simulated(t, machine)
}

// Interpreted is Sim on a machine that runs the PTX which is loaded into it: see
// sim.Interpret.
func Interpreted(t testing.TB, machine string) *cuda.Driver {
	t.Helper()
	return simulated(t, machine, sim.Interpret())
}

func simulated(t testing.TB, machine string, opts ...sim.Option) *cuda.Driver {
	t.Helper()
	m, err := sim.Open(machine, append(opts, sim.Watch(), sim.KeepSites())...)
	if err != nil {
		t.Fatalf("simulated machine %s: %v", machine, err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil && !t.Failed() {
			t.Errorf("simulated machine %s: %v", machine, err)
		}
	})
	return m.Driver()
}

// Each runs f twice: as subtest "sim" on a simulated machine and as subtest
// "gpu" on the machine's own GPUs, which is skipped where there are none.
func Each(t *testing.T, machine string, f func(t *testing.T, d *cuda.Driver)) {
	t.Helper()
	t.Run("sim", func(t *testing.T) { f(t, Sim(t, machine)) })
	t.Run("gpu", func(t *testing.T) { f(t, Hardware(t)) })
}

// Tapped puts a tap in front of a driver and makes a new Driver of it. What is
// made from the new one passes the tap, what is made from d does not. The
// counters start at 0.
func Tapped(t testing.TB, d *cuda.Driver) (*cuda.Driver, *tap.Tap) {
	t.Helper()
	tp := tap.New(hook.Seam(d))
	tapped, err := hook.NewDriver(tp)
	if err != nil {
		t.Fatalf("a driver behind a tap: %v", err)
	}
	tp.Reset()
	return tapped.(*cuda.Driver), tp
}

// Devices is the first n devices of a driver. The test is skipped where the
// machine has fewer.
func Devices(t testing.TB, d *cuda.Driver, n int) []cuda.Device {
	t.Helper()
	devs, err := d.Devices()
	if err != nil {
		t.Fatal(err)
	}
	if len(devs) < n {
		t.Skipf("the machine has %d GPUs, the test needs %d", len(devs), n)
	}
	return devs[:n]
}

// Primary is a device's primary context, closed when the test ends.
func Primary(t testing.TB, dev cuda.Device) *cuda.Context {
	t.Helper()
	cc, err := dev.Primary()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cc.Close(); err != nil {
			t.Errorf("closing the context of %v: %v", dev, err)
		}
	})
	return cc
}
