// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

var (
	// A UUID in any of the ways in which drivers, environment variables and
	// command lines write one.
	uuidPattern = regexp.MustCompile(`(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`)
	// CUDA_VISIBLE_DEVICES takes the first digits of one too.
	prefixPattern = regexp.MustCompile(`(?i)\b(GPU|MIG)-[0-9a-f]{2,8}(?:-[0-9a-f]{1,12}){0,4}\b`)
	// Who built a kernel or a module, and where: "(user@host)".
	builderPattern = regexp.MustCompile(`\([^()@\s"\\]*@[^()\s"\\]*\)`)
	// Where a person's files lie, in the path of a library.
	homePattern = regexp.MustCompile(`/(home|Users)/[^/\s"\\]+|\\\\Users\\\\[^\\"]+`)
)

const hidden = "masked"

// Masked returns a copy without serial numbers, UUIDs, the user and host that
// built the kernel and its module, and names of home directories. UUIDs are
// replaced by numbered ones, the same one everywhere, so that the copy's
// devices still join and the diagnosis is the same.
func (f *Facts) Masked() (*Facts, error) {
	b, err := f.encode()
	if err != nil {
		return nil, err
	}
	text := string(b)
	number := map[string]string{}
	for _, d := range f.Devices {
		if d.UUID != "" {
			name(number, strings.ToLower(uuidPattern.FindString(d.UUID)))
		}
	}
	text = uuidPattern.ReplaceAllStringFunc(text, func(s string) string { return name(number, strings.ToLower(s)) })
	text = prefixPattern.ReplaceAllStringFunc(text, func(s string) string {
		kind, digits, _ := strings.Cut(s, "-")
		if strings.HasPrefix(digits, maskedUUID[:8]) {
			return s
		}
		for _, whole := range slices.Sorted(maps.Keys(number)) {
			if strings.HasPrefix(whole, strings.ToLower(digits)) {
				return kind + "-" + number[whole]
			}
		}
		return kind + "-" + hidden
	})
	text = builderPattern.ReplaceAllString(text, "("+hidden+")")
	text = homePattern.ReplaceAllString(text, "/home/"+hidden)
	for _, d := range f.Devices {
		// Shorter ones would replace other numbers, and no serial number is.
		if s, ok := d.Serial.Get(); ok && len(s) >= 6 {
			text = strings.ReplaceAll(text, s, hidden)
		}
	}
	out, err := Parse([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("masking: %w", err)
	}
	for i := range out.Devices {
		d := &out.Devices[i]
		if d.Serial.known {
			d.Serial.value = hidden
		}
		if d.UUID != "" && uuidPattern.FindString(d.UUID) == "" {
			d.UUID = fmt.Sprintf("GPU-%s", name(number, fmt.Sprintf("device %d", i)))
		}
	}
	return out, nil
}

const maskedUUID = "00000000-0000-0000-0000-%012d"

// name is the replacement of a UUID: the same for the same one, numbered from 1.
func name(number map[string]string, uuid string) string {
	if uuid == "" {
		return hidden
	}
	to, ok := number[uuid]
	if !ok {
		to = fmt.Sprintf(maskedUUID, len(number)+1)
		number[uuid] = to
	}
	return to
}
