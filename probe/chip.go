// SPDX-License-Identifier: Apache-2.0

package probe

// A chip is what a PCI device id says about the silicon. NVIDIA gives out ids
// by chip, in ranges of 128 or 256; the driver pairs GPUs of one chip only.
type chip struct {
	first, last Hex
	name        string
	// minSeries is the first driver series that knows the chip; 0 where a branch
	// of any series does.
	minSeries int
	open      bool // the open kernel modules support it
	reported  bool // a GeForce pair of this chip is reported to work with the patch
}

// chips by ascending id. Ids of chips that are not listed are of an unknown
// chip, and are then compared by id and compute capability.
var chips = []chip{
	{0x1b00, 0x1b7f, "GP102", 0, false, false},
	{0x1b80, 0x1bff, "GP104", 0, false, false},
	{0x1d80, 0x1dff, "GV100", 0, false, false},
	{0x1e00, 0x1e7f, "TU102", 0, true, false},
	{0x1e80, 0x1eff, "TU104", 0, true, false},
	{0x1f00, 0x1f7f, "TU106", 0, true, false},
	{0x1f80, 0x1fff, "TU117", 0, true, false},
	{0x2080, 0x20ff, "GA100", 0, true, false},
	{0x2180, 0x21ff, "TU116", 0, true, false},
	{0x2200, 0x227f, "GA102", 0, true, true},
	{0x2300, 0x237f, "GH100", 0, true, false},
	{0x2400, 0x247f, "GA103", 0, true, false},
	{0x2480, 0x24ff, "GA104", 0, true, false},
	{0x2500, 0x257f, "GA106", 0, true, false},
	{0x2580, 0x25ff, "GA107", 0, true, false},
	{0x2680, 0x26ff, "AD102", 0, true, true},
	{0x2700, 0x277f, "AD103", 0, true, false},
	{0x2780, 0x27ff, "AD104", 0, true, false},
	{0x2800, 0x287f, "AD106", 0, true, false},
	{0x2880, 0x28ff, "AD107", 0, true, false},
	{0x2b80, 0x2bff, "GB202", 570, true, true},
	{0x2c00, 0x2c7f, "GB203", 570, true, false},
	{0x2d00, 0x2d7f, "GB206", 570, true, true},
	{0x2d80, 0x2dff, "GB207", 570, true, false},
	{0x2f00, 0x2f7f, "GB205", 570, true, false},
}

func chipOf(id Hex) *chip {
	for i := range chips {
		if c := &chips[i]; id >= c.first && id <= c.last {
			return c
		}
	}
	return nil
}
