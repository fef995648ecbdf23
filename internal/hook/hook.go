// SPDX-License-Identifier: Apache-2.0

// Package hook joins package cuda to the packages of this module that need
// what cuda does not export: the simulator and the tap make a *cuda.Driver out
// of an api.Driver, and gp reaches the api.Driver beneath a *cuda.Driver to
// enqueue whole plans. Package cuda fills the variables in from its init.
package hook

import "github.com/geforce-p2p/geforce-p2p/internal/api"

var (
	// NewDriver wraps a seam as a *cuda.Driver and runs cuInit on it; the
	// result is a *cuda.Driver.
	NewDriver func(api.Driver) (driver any, err error)
	// Seam returns the api.Driver beneath a *cuda.Driver.
	Seam func(driver any) api.Driver
)
