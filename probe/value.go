// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// Hex is a number that is written in hexadecimal, as sysfs writes it.
type Hex uint64

// String returns the number as "0x2684".
func (h Hex) String() string { return "0x" + strconv.FormatUint(uint64(h), 16) }

// MarshalText implements encoding.TextMarshaler.
func (h Hex) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. It takes "0x" in front of
// hexadecimal digits, or decimal digits.
func (h *Hex) UnmarshalText(b []byte) error {
	n, err := strconv.ParseUint(string(b), 0, 64)
	if err != nil {
		return fmt.Errorf("not a number: %q", b)
	}
	*h = Hex(n)
	return nil
}

// valueJSON is the form of a Value in a file. Value is a pointer so that a
// known zero differs from an unknown value.
type valueJSON[T any] struct {
	Value   *T     `json:"value,omitempty"`
	Source  string `json:"source,omitzero"`
	Error   string `json:"error,omitzero"`
	Code    int    `json:"code,omitzero"`
	Assumed bool   `json:"assumed,omitzero"`
}

// IsZero tells encoding/json that nobody asked.
func (v Value[T]) IsZero() bool { return !v.Asked() }

// MarshalJSON implements json.Marshaler.
func (v Value[T]) MarshalJSON() ([]byte, error) {
	j := valueJSON[T]{Source: v.Source, Error: v.Error, Code: v.Code, Assumed: v.Assumed}
	if v.known {
		j.Value = &v.value
	}
	return json.Marshal(j)
}

// UnmarshalJSON implements json.Unmarshaler.
func (v *Value[T]) UnmarshalJSON(b []byte) error {
	var j valueJSON[T]
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	if j.Value != nil && j.Error != "" {
		return fmt.Errorf("a value cannot be both known and in error: %.100s", b)
	}
	*v = Value[T]{Source: j.Source, Error: j.Error, Code: j.Code, Assumed: j.Assumed}
	if j.Value != nil {
		v.value, v.known = *j.Value, true
	}
	return nil
}
