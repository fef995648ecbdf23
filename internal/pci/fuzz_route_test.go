// SPDX-License-Identifier: Apache-2.0

package pci

import "testing"

// FuzzRoute reads whatever a device's link in sysfs says: an error, or bus ids
// that are bus ids.
func FuzzRoute(f *testing.F) {
	f.Add("../../../devices/pci0000:00/0000:00:01.1/0000:01:00.0/0000:02:00.0")
	f.Add("../../../devices/pci0000:00/0000:00:06.0")
	f.Add("/sys/devices/pci10000:e0/10000:e0:06.0/10000:e1:00.0")
	f.Add("../../../devices/LNXSYSTM:00")
	f.Fuzz(func(t *testing.T, to string) {
		_, ids, err := parseRoute(to)
		if err != nil && len(ids) > 0 {
			t.Fatal("bridges and an error")
		}
		for _, id := range ids {
			if !IsBusID(id) {
				t.Fatalf("%q is no bus id", id)
			}
		}
	})
}

// FuzzLinkSpeed reads whatever sysfs says of a link.
func FuzzLinkSpeed(f *testing.F) {
	f.Add("16.0 GT/s PCIe")
	f.Add("2.5 GT/s")
	f.Add("Unknown")
	f.Fuzz(func(t *testing.T, s string) {
		if gen, err := ParseLinkSpeed(s); err == nil && (gen < 1 || gen > 9) {
			t.Fatalf("%q is generation %d", s, gen)
		}
	})
}
