// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/geforce-p2p/geforce-p2p/cuda"
	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/hook"
	"github.com/geforce-p2p/geforce-p2p/internal/libcuda"
	"github.com/geforce-p2p/geforce-p2p/probe/nvml"
)

// DefaultPatience is how long Collect waits for a driver library.
const DefaultPatience = 30 * time.Second

// Options says where Collect looks. The zero value means this machine.
type Options struct {
	// Driver is a CUDA driver that is open already; nil opens the machine's.
	Driver *cuda.Driver
	// NVML is a source that is open already, and that Collect does not close;
	// nil opens the machine's NVML, or none beside a simulated Driver.
	NVML nvml.Source
	// SkipCUDA and SkipNVML leave a library out.
	SkipCUDA, SkipNVML bool

	// FS is the machine's files, rooted at "/", which must be Linux's; nil means
	// the Driver's own (a simulated machine has its own), else this system's.
	FS fs.FS
	// OpenNode opens a device node, "/dev/nvidia0", for reading and writing, and
	// closes it. nil means the system's open, or that of FS where it is set.
	OpenNode func(path string) error
	// LookupEnv is os.LookupEnv if nil, or no variables beside a simulated Driver.
	LookupEnv func(name string) (value string, set bool)

	// Patience is how long each of the two libraries may take for everything
	// that is asked of it; 0 means DefaultPatience. A library that takes longer
	// is given up: its goroutine stays in it, because a call into a driver that
	// hangs cannot be ended, and its facts say so.
	Patience time.Duration

	openSeam func() (api.Driver, error)  // tests: in place of libcuda.Open
	openNVML func() (nvml.Source, error) // tests: in place of nvml.Open
	goos     string                      // tests: in place of runtime.GOOS
}

// Collect asks CUDA, NVML and the files of the machine for everything that a
// diagnosis needs. It creates no context and changes nothing, except that the
// libraries may load kernel modules and create device nodes, as they do for
// every program.
//
// What cannot be read is a fact like any other: a machine without CUDA, without
// NVML or without either gives facts and no error. The error is ctx's if ctx
// ends first, with the facts so far, or says that there are more GPUs than can
// be judged.
func Collect(ctx context.Context, o Options) (*Facts, error) {
	c := &collector{o: o}
	if c.o.goos == "" {
		c.o.goos = runtime.GOOS
	}
	if o.Patience <= 0 {
		c.o.Patience = DefaultPatience
	}
	c.linux = c.o.goos == "linux"
	c.join.windows = c.o.goos == "windows"
	modelled := o.Driver != nil && o.Driver.Modelled()
	switch {
	case o.FS != nil:
		c.files.fsys, c.linux = o.FS, true
	case modelled:
		c.files.fsys, c.linux = hook.Seam(o.Driver).Host().FS(), true
	default:
		c.files.fsys = os.DirFS("/")
	}
	if c.o.OpenNode == nil {
		c.o.OpenNode = openNode
		if o.FS != nil || modelled {
			c.o.OpenNode = c.files.open
		}
	}
	if c.o.LookupEnv == nil {
		c.o.LookupEnv = os.LookupEnv
		if modelled {
			c.o.LookupEnv = func(string) (string, bool) { return "", false }
		}
	}
	if modelled {
		c.facts.Note = "a simulated machine"
		c.o.SkipNVML = o.SkipNVML || o.NVML == nil
	}
	if c.o.openSeam == nil {
		c.o.openSeam = func() (api.Driver, error) { return libcuda.Open() }
	}
	if c.o.openNVML == nil {
		c.o.openNVML = func() (nvml.Source, error) { return nvml.Open() }
	}
	err := c.collect(ctx)
	return &c.facts, err
}

// collector is one run of Collect.
type collector struct {
	o     Options
	files files
	linux bool // the files are Linux's
	facts Facts
	join  joiner
}

func (c *collector) collect(ctx context.Context) error {
	f := &c.facts
	f.Schema = Schema
	f.Taken = time.Now().UTC().Format(time.RFC3339)
	f.Devices, f.Pairs = []Device{}, []Pair{}
	f.Machine.OS, f.Machine.Arch = c.o.goos, runtime.GOARCH
	f.Environment.Variables = c.variables()
	var devices procDevices
	if c.linux {
		c.machine()
		c.environment()
	}

	// One library after the other: each takes the driver's locks, and the time
	// of one's start would be part of the other's. CUDA first, because its start
	// makes the device nodes that are missing and can be made.
	var cu cudaResult
	if c.o.SkipCUDA {
		cu.lib = skipped()
	} else {
		result, err := waitFor(ctx, c.o.Patience, func() cudaResult { return openAndAskCUDA(&c.o) })
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			result.lib.Error = "libcuda: " + err.Error()
		}
		cu = result
	}
	f.CUDA = cu.lib
	var nv nvmlResult
	if c.o.SkipNVML {
		nv.lib = skipped()
	} else {
		result, err := waitFor(ctx, c.o.Patience, func() nvmlResult { return openAndAskNVML(&c.o) })
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			result.lib.Error = "NVML: " + err.Error()
		}
		nv = result
	}
	f.NVML = nv.lib

	if c.linux {
		devices = c.procDevices()
		c.module(devices)
	}
	f.Driver.UserVersion = userVersion(nv, cu)
	f.Driver.ConfidentialCompute = nv.confidential

	// NVML's UUIDs are those of whole GPUs, CUDA's may be those of MIG
	// instances: CUDA's devices come last and find theirs by bus id.
	if err := c.join.nvml(nv); err != nil {
		return err
	}
	if c.linux {
		if err := c.join.proc(c.information()); err != nil {
			return err
		}
		if err := c.join.sysfs(c.files.fsys); err != nil {
			return err
		}
	}
	if err := c.join.cuda(cu); err != nil {
		return err
	}
	c.join.finish()
	if c.linux {
		c.sysfs()
	}
	f.Devices = c.join.list()
	c.pairs(cu, nv)
	if c.linux && !f.Environment.WSL2.Or(false) {
		f.Nodes = c.nodes(ctx, devices)
	}
	return ctx.Err()
}

func skipped() Library { return Library{Skipped: true, Error: "not asked"} }

// waitFor runs ask, which calls into a driver, on a goroutine of its own and
// waits for it so long. The error says that it took longer.
func waitFor[T any](ctx context.Context, patience time.Duration, ask func() T) (T, error) {
	done := make(chan T, 1) // with room, so that an ask that was given up still ends
	go func() { done <- ask() }()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case v := <-done:
		return v, nil
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	case <-timer.C:
		var none T
		return none, fmt.Errorf("it did not answer within %v and was given up", patience)
	}
}

// variables are the environment variables that change what the driver shows or
// how it and NCCL behave.
func (c *collector) variables() map[string]string {
	vars := map[string]string{}
	for _, name := range []string{
		"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_DISABLE_PEER_ACCESS", "CUDA_MODULE_LOADING",
		"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
		"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
		"NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_IGNORE_DISABLED_P2P", "NCCL_SHM_DISABLE",
		"LD_LIBRARY_PATH", libcuda.EnvLibrary, nvml.EnvLibrary,
	} {
		if v, set := c.o.LookupEnv(name); set {
			vars[name] = short(v, maxText)
		}
	}
	if len(vars) == 0 {
		return nil
	}
	return vars
}

// short cuts what is too long to be worth keeping, and what JSON cannot hold.
func short(s string, most int) string {
	if len(s) > most {
		s = s[:most] + "..."
	}
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", " "), "?")
}
