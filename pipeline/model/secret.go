package model

import (
	"fmt"
	"log/slog"
)

// Secret is a text that is never printed: not by any verb of fmt, not by slog or JSON, and not by printers that read
// unexported fields, because it holds a function. The zero value is the empty secret.
type Secret struct{ reveal func() string }

const redacted = "[redacted]"

// NewSecret wraps a text.
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{reveal: func() string { return text }}
}

// Empty reports whether the text is empty.
func (s Secret) Empty() bool { return s.reveal == nil }

// Reveal returns the text. Put it only into a header of a request to the provider.
func (s Secret) Reveal() string {
	if s.reveal == nil {
		return ""
	}
	return s.reveal()
}

// String returns a placeholder, or nothing for the empty secret.
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
