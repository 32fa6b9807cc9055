package model

import (
	"fmt"
	"log/slog"
)

// Secret is a text that no printer shows: not fmt in any verb, not slog, not JSON, not even a printer that reaches it
// through unexported fields, because what it holds is a function. The zero value is the empty secret.
type Secret struct{ reveal func() string }

const redacted = "[redacted]"

// NewSecret wraps a text.
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{reveal: func() string { return text }}
}

// Empty reports whether there is nothing in it.
func (s Secret) Empty() bool { return s.reveal == nil }

// Reveal returns the text. It belongs only into a header of a request to the provider.
func (s Secret) Reveal() string {
	if s.reveal == nil {
		return ""
	}
	return s.reveal()
}

// String returns a place holder, or nothing for the empty secret.
func (s Secret) String() string {
	if s.Empty() {
		return ""
	}
	return redacted
}

// Format covers every verb of fmt.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// MarshalText covers JSON, YAML and the like.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON covers JSON.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + s.String() + `"`), nil }

// LogValue covers slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
