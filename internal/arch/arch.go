// SPDX-License-Identifier: Apache-2.0

// Package arch holds no code: its test holds the layering of the module, that
// is, which package may import which.
package arch
