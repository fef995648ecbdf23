// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Sizes of the configuration space.
const (
	headerSize   = 64   // what anybody may read
	standardSize = 256  // of conventional PCI
	extendedSize = 4096 // of PCI Express
)

// Registers and capabilities (linux/pci_regs.h).
const (
	regStatus       = 0x06
	statusCapList   = 0x10
	regCapabilities = 0x34
	capExpress      = 0x10
	extCapACS       = 0x000d
)

// Control bits of Access Control Services.
const (
	ACSSourceValidation    = 1 << 0
	ACSTranslationBlocking = 1 << 1
	ACSRequestRedirect     = 1 << 2
	ACSCompletionRedirect  = 1 << 3
	ACSUpstreamForwarding  = 1 << 4
	ACSEgressControl       = 1 << 5
	ACSDirectTranslated    = 1 << 6
)

// ErrConfigShort says that the kernel gave less of the configuration space than
// was needed: it gives all of it to root only, and only the first 64 bytes to
// anybody else.
var ErrConfigShort = errors.New("the configuration space is shorter than needed (the kernel gives all of it to root only)")

// Config is as much of the device's configuration space as the kernel gives.
func (d Device) Config() (Config, error) {
	b, err := readFile(d.fsys, d.name("config"), extendedSize)
	return Config(b), err
}

// Config is the first bytes of a configuration space: 64, 256 or 4096 of them.
type Config []byte

// A PortType is what the PCI Express capability says a device is.
type PortType int

// The port types in use.
const (
	PortEndpoint   PortType = 0
	PortRoot       PortType = 4
	PortUpstream   PortType = 5 // of a switch, towards the root
	PortDownstream PortType = 6
)

// PortType finds the device's type. ok is false for a device that is not PCI
// Express. Less than 256 bytes are ErrConfigShort.
func (c Config) PortType() (t PortType, ok bool, err error) {
	at, err := c.capability(capExpress)
	if err != nil || at == 0 {
		return 0, false, err
	}
	if at+4 > standardSize {
		return 0, false, fmt.Errorf("the PCI Express capability is at %#x", at)
	}
	return PortType(binary.LittleEndian.Uint16(c[at+2:]) >> 4 & 0xf), true, nil
}

// capability finds a capability of the first 256 bytes; 0 is none.
func (c Config) capability(id byte) (int, error) {
	if len(c) < standardSize {
		return 0, ErrConfigShort
	}
	if binary.LittleEndian.Uint16(c) == 0xffff {
		return 0, errors.New("the device does not answer")
	}
	if binary.LittleEndian.Uint16(c[regStatus:])&statusCapList == 0 {
		return 0, nil
	}
	at := int(c[regCapabilities]) &^ 3
	for range (standardSize - headerSize) / 4 {
		if at == 0 {
			return 0, nil
		}
		if at < headerSize {
			return 0, fmt.Errorf("a capability at %#x", at)
		}
		if c[at] == id {
			return at, nil
		}
		at = int(c[at+1]) &^ 3
	}
	return 0, errors.New("the list of capabilities has no end")
}

// ACS finds the control word of Access Control Services. present is false for a
// device without the capability. Where the extended configuration space, which
// holds it, was not given, the error is ErrConfigShort.
func (c Config) ACS() (control uint16, present bool, err error) {
	express, err := c.capability(capExpress)
	switch {
	case err != nil:
		return 0, false, err
	case express == 0:
		return 0, false, nil // conventional PCI has none
	case len(c) < standardSize+4:
		return 0, false, ErrConfigShort
	}
	at := standardSize
	for range (extendedSize - standardSize) / 8 {
		if at+4 > len(c) {
			return 0, false, ErrConfigShort
		}
		header := binary.LittleEndian.Uint32(c[at:])
		if header == 0 || header == 0xffffffff {
			return 0, false, nil
		}
		if header&0xffff == extCapACS {
			if at+8 > len(c) {
				return 0, false, ErrConfigShort
			}
			return binary.LittleEndian.Uint16(c[at+6:]), true, nil
		}
		next := int(header>>20) &^ 3
		if next == 0 {
			return 0, false, nil
		}
		if next < standardSize {
			return 0, false, fmt.Errorf("an extended capability at %#x", next)
		}
		at = next
	}
	return 0, false, errors.New("the list of extended capabilities has no end")
}
