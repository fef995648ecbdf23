// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A Link is a generation (1 to 7) and a width in lanes.
type Link struct{ Gen, Width int }

// speeds is a generation's transfers a second of one lane, in GT/s as sysfs
// writes it.
var speeds = [...]string{1: "2.5", 2: "5", 3: "8", 4: "16", 5: "32", 6: "64", 7: "128"}

// laneRates is a generation's bytes a second of one lane one way, after the
// line code and before the headers of packets: 8b/10b to generation 2,
// 128b/130b to 5, flits with 242 of 256 bytes for packets from 6.
var laneRates = [...]float64{
	1: 2.5e9 / 8 * 8 / 10,
	2: 5e9 / 8 * 8 / 10,
	3: 8e9 / 8 * 128 / 130,
	4: 16e9 / 8 * 128 / 130,
	5: 32e9 / 8 * 128 / 130,
	6: 64e9 / 8 * 242 / 256,
	7: 128e9 / 8 * 242 / 256,
}

// Rate is the link's bytes a second one way, before the headers of packets: a
// copy reaches about nine tenths of it. 0 for a generation that is not known.
func (l Link) Rate() float64 {
	if l.Gen < 1 || l.Gen >= len(laneRates) || l.Width < 0 {
		return 0
	}
	return laneRates[l.Gen] * float64(l.Width)
}

// String is "gen 4 x16".
func (l Link) String() string { return fmt.Sprintf("gen %d x%d", l.Gen, l.Width) }

// LinkGen is the generation at which the link runs now. An idle GPU lowers its
// link to generation 1: only under load does this say anything about the slot.
func (d Device) LinkGen() (int, error) { return d.gen("current_link_speed") }

// MaxLinkGen is the highest generation of the device. It says nothing about the
// port above.
func (d Device) MaxLinkGen() (int, error) { return d.gen("max_link_speed") }

// LinkWidth is the lanes in use now. GPUs do not change it when idle.
func (d Device) LinkWidth() (int, error) { return d.width("current_link_width") }

// MaxLinkWidth is the most lanes of the device, which its slot may not have.
func (d Device) MaxLinkWidth() (int, error) { return d.width("max_link_width") }

// Link is the link as it runs now; see LinkGen.
func (d Device) Link() (Link, error) { return both(d.LinkGen, d.LinkWidth) }

// MaxLink is the most that the device can.
func (d Device) MaxLink() (Link, error) { return both(d.MaxLinkGen, d.MaxLinkWidth) }

func both(gen, width func() (int, error)) (Link, error) {
	g, err := gen()
	if err != nil {
		return Link{}, err
	}
	w, err := width()
	if err != nil {
		return Link{}, err
	}
	return Link{g, w}, nil
}

// Rate is the bytes a second that the way from the root port to the device can
// carry one way: the lowest maximum of the device and the ports above it, which
// is where a card sits in a slot of fewer lanes or behind a slower switch. The
// maximum counts, not what an idle link runs at. It is before the headers of
// packets, as Link.Rate.
//
// Where the ports above cannot be read it is the device's own maximum. Bridges
// that are emulated in a guest may claim less than what runs through them: the
// result is never below what the device's own link runs at now.
func (d Device) Rate() (float64, error) {
	own, err := d.MaxLink()
	if err != nil {
		return 0, err
	}
	rate := own.Rate()
	// Without the path, or behind ports that do not tell, only the device speaks.
	bridges, _ := d.Upstream()
	for _, b := range bridges {
		if l, err := b.MaxLink(); err == nil {
			rate = min(rate, l.Rate())
		}
	}
	if now, err := d.Link(); err == nil {
		rate = max(rate, now.Rate())
	}
	return rate, nil
}

func (d Device) gen(file string) (int, error) {
	s, err := d.text(file)
	if err != nil {
		return 0, err
	}
	gen, err := ParseLinkSpeed(s)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", d.Path(file), err)
	}
	return gen, nil
}

// ParseLinkSpeed is the generation of a speed as sysfs writes it: "16.0 GT/s
// PCIe", "16 GT/s" in older kernels. "Unknown", which is what a device without
// a link says, is an error.
func ParseLinkSpeed(s string) (gen int, err error) {
	number, unit, _ := strings.Cut(strings.TrimSpace(s), " ")
	number = strings.TrimSuffix(number, ".0")
	if unit, _, _ = strings.Cut(unit, " "); unit == "GT/s" {
		for gen, speed := range speeds {
			if speed == number && gen > 0 {
				return gen, nil
			}
		}
	}
	return 0, fmt.Errorf("not the speed of a link: %s", quote(s))
}

func (d Device) width(file string) (int, error) {
	s, err := d.text(file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%s: %s", d.Path(file), quote(s))
	}
	// 0 and 255 are the kernel's words for "no link" and "unknown".
	if n == 0 || n > 32 {
		return 0, fmt.Errorf("%s: %w", d.Path(file), errors.New("no width: "+s))
	}
	return int(n), nil
}
