// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"strconv"
	"strings"
)

// NormalBusID writes a bus id as the kernel does, "0000:01:00.0", lower case.
// NVML writes the domain with 8 digits, CUDA and the kernel with 4, or more
// where it needs them; a missing domain is 0, or else a missing function is. It
// is false for what is no bus id.
func NormalBusID(s string) (id string, ok bool) {
	parts := strings.Split(strings.TrimSpace(s), ":")
	short := len(parts) == 2
	if short {
		parts = append([]string{"0"}, parts...)
	}
	if len(parts) != 3 {
		return "", false
	}
	device, function, dotted := strings.Cut(parts[2], ".")
	if !dotted {
		if short {
			return "", false // "0000:01" is no more than a domain and a bus
		}
		function = "0"
	}
	var n [4]uint64
	for i, f := range [4]struct {
		text string
		bits int
	}{{parts[0], 32}, {parts[1], 8}, {device, 5}, {function, 3}} {
		var err error
		if n[i], err = strconv.ParseUint(f.text, 16, f.bits); err != nil {
			return "", false
		}
	}
	return fmt.Sprintf("%04x:%02x:%02x.%x", n[0], n[1], n[2], n[3]), true
}
