// SPDX-License-Identifier: Apache-2.0

package libcuda_test

import (
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/gang"
)

// TestBlockingCallsWaitForGangs: what may wait for a GPU inside the driver does not
// get there between the launches of kernels that wait for each other.
func TestBlockingCallsWaitForGangs(t *testing.T) {
	d, hooks := standIn(t)
	ctx := current(t, d, 0)
	free, code := d.MemAlloc(16)
	require.Equal(t, api.Success, code)
	host, code := d.MemHostAlloc(16, 0)
	require.Equal(t, api.Success, code)
	stream, code := d.StreamCreate(api.StreamNonBlocking)
	require.Equal(t, api.Success, code)
	own := make([]byte, 4096)
	for symbol, call := range map[string]func() api.Code{
		"cuMemAlloc_v2":                func() api.Code { _, c := d.MemAlloc(16); return c },
		"cuMemFree_v2":                 func() api.Code { return d.MemFree(free) },
		"cuMemHostAlloc":               func() api.Code { _, c := d.MemHostAlloc(16, 0); return c },
		"cuMemFreeHost":                func() api.Code { return d.MemFreeHost(host) },
		"cuMemHostRegister_v2":         func() api.Code { return d.MemHostRegister(unsafe.Pointer(&own[0]), 4096, 0) },
		"cuStreamDestroy_v2":           func() api.Code { return d.StreamDestroy(stream) },
		"cuDevicePrimaryCtxRetain":     func() api.Code { _, c := d.DevicePrimaryCtxRetain(1); return c },
		"cuCtxEnablePeerAccess":        func() api.Code { return d.CtxEnablePeerAccess(ctx) },
		"cuModuleUnload":               func() api.Code { return d.ModuleUnload(0) },
		"cuDevicePrimaryCtxRelease_v2": func() api.Code { return d.DevicePrimaryCtxRelease(1) },
	} {
		before := hooks.Calls(symbol)
		began, ended := make(chan struct{}), make(chan struct{})
		gang.Launch(func() {
			go func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				d.CtxSetCurrent(ctx)
				close(began)
				call()
				close(ended)
			}()
			<-began
			time.Sleep(5 * time.Millisecond)
			require.Equal(t, before, hooks.Calls(symbol), "%s between the launches of a gang", symbol)
			require.Equal(t, api.Success, d.CtxSetCurrent(ctx), "what a launch takes passes")
		})
		<-ended
		require.Equal(t, before+1, hooks.Calls(symbol), symbol)
	}
}
