// SPDX-License-Identifier: Apache-2.0

//go:build darwin && (amd64 || arm64) && !ios

package dl

func fileOf(_, addr uintptr) string {
	if addr == 0 {
		return ""
	}
	return dladdr(addr)
}
