// SPDX-License-Identifier: Apache-2.0

// Package tools is a module of its own that pins the programs which check this
// repository, so that their versions never reach a program that imports the
// library. Run one from the repository root with
//
//	go tool -modfile=tools/go.mod staticcheck ./...
package tools
