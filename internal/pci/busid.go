// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// ParseBusID brings the forms of a PCI address to the one of sysfs,
// "dddd:bb:dd.f" in lower case: CUDA writes "0000:C1:00.0", NVML a domain of
// eight digits, people leave the domain or the function out ("c1:00"). A domain
// that needs more than four digits keeps them.
func ParseBusID(s string) (string, error) {
	bad := func() (string, error) { return "", fmt.Errorf("not a PCI bus id: %s", quote(s)) }
	t := strings.TrimSpace(s)
	if len(t) > len("00000000:00:00.0") {
		return bad()
	}
	t, function, dotted := strings.Cut(t, ".")
	if !dotted {
		function = "0"
	}
	parts := strings.Split(t, ":")
	if len(parts) == 2 {
		parts = append([]string{"0"}, parts...)
	}
	if len(parts) != 3 {
		return bad()
	}
	domain, ok := parseHex(parts[0], 8, 32)
	if !ok {
		return bad()
	}
	bus, ok := parseHex(parts[1], 2, 8)
	if !ok {
		return bad()
	}
	device, ok := parseHex(parts[2], 2, 5)
	if !ok {
		return bad()
	}
	fn, ok := parseHex(function, 1, 3)
	if !ok {
		return bad()
	}
	return fmt.Sprintf("%04x:%02x:%02x.%x", domain, bus, device, fn), nil
}

// parseHex reads one to most digits of a number of so many bits. strconv alone
// would take signs and underscores.
func parseHex(s string, most, bits int) (uint64, bool) {
	if s == "" || len(s) > most || s[0] == '+' || s[0] == '-' {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 16, bits)
	return n, err == nil
}

// IsBusID tells whether s is a bus id in the form that ParseBusID returns.
func IsBusID(s string) bool {
	id, err := ParseBusID(s)
	return err == nil && id == s
}

// CompareBusID orders two bus ids as ParseBusID returns them: by domain first,
// which a plain comparison gets wrong for domains of different length.
func CompareBusID(a, b string) int {
	da, ra, _ := strings.Cut(a, ":")
	db, rb, _ := strings.Cut(b, ":")
	return cmp.Or(cmp.Compare(len(da), len(db)), strings.Compare(da, db), strings.Compare(ra, rb))
}
