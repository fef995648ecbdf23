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
	// ContextHandle is the handle of a *cuda.Context.
	ContextHandle func(ctx any) api.Context
	// StreamHandle is the handle of a *cuda.Stream.
	StreamHandle func(stream any) api.Stream
	// Error turns the code that a seam call answered into the error that package
	// cuda's own methods return, nil for success. driver is a *cuda.Driver. ctx is
	// the *cuda.Context that the call ran on, or nil; a sticky code is kept as
	// the cause of its loss.
	Error func(driver any, ctx any, op string, c api.Code) error
	// Lose keeps a code that a seam call answered as the cause of the loss of ctx,
	// a *cuda.Context, whatever the code: for who knows that every call on the
	// context answers it. A first cause stays.
	Lose func(driver any, ctx any, op string, c api.Code)
)
