package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// JSON is a value kept as JSON, with the order of its keys and the text of its numbers.
type JSON = json.RawMessage

// Size is a number of bytes. In the file it is a plain number or has a unit: KiB, MiB, GiB, TiB (1024) or kB, MB, GB,
// TB (1000).
type Size int64

// The units of 1024.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
)

var sizeUnits = []struct {
	name string
	n    Size
}{
	{"TiB", 1 << 40}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1},
}

// UnmarshalText reads a size. Negative ones and those beyond 63 bits are refused.
func (s *Size) UnmarshalText(b []byte) error {
	text, unit := strings.TrimSpace(string(b)), Size(1)
	for _, u := range sizeUnits {
		if len(text) > len(u.name) && strings.EqualFold(text[len(text)-len(u.name):], u.name) {
			text, unit = strings.TrimSpace(text[:len(text)-len(u.name)]), u.n
			break
		}
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= 0 && n <= math.MaxInt64/int64(unit) {
		*s = Size(n) * unit
		return nil
	}
	if f, err := strconv.ParseFloat(text, 64); err == nil && unit > 1 && f >= 0 && f*float64(unit) < math.MaxInt64 {
		*s = Size(f * float64(unit))
		return nil
	}
	return fmt.Errorf("no size; write a number of bytes, or 256KiB, 32MiB, 4GiB")
}

// MarshalText writes the size with the largest unit of 1024 that divides it.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// String is the text of MarshalText.
func (s Size) String() string {
	for _, u := range sizeUnits[:4] {
		if s != 0 && s%u.n == 0 {
			return strconv.FormatInt(int64(s/u.n), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// Duration is a time.Duration that is text in JSON too; 0 means not set. Records that are passed on as JSON use it.
type Duration time.Duration

// UnmarshalText reads "30s"; negative ones are refused.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := parseDuration(string(b))
	if err == nil && v < 0 {
		err = fmt.Errorf("a duration must not be negative")
	}
	if err == nil {
		*d = Duration(v)
	}
	return err
}

// MarshalText writes "30s".
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err == nil {
		return d, nil
	}
	if _, nerr := strconv.ParseFloat(s, 64); nerr == nil {
		return 0, fmt.Errorf("a duration needs a unit; write %ss, %sms or %sm", s, s, s)
	}
	return 0, fmt.Errorf("no duration; write 500ms, 10s, 5m or 1h30m")
}

// hidden is printed in place of a secret.
const hidden = "[hidden]"

// Secret is text that is never printed: formatting, logs, JSON and YAML show a mark. [Secret.Reveal] gives the text.
type Secret string

// Reveal returns the text.
func (s Secret) Reveal() string { return string(s) }

// String hides the text, also from %v, %s and %q.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// GoString hides the text from %#v.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// LogValue hides the text from slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText hides the text from JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText takes the text as it is.
func (s *Secret) UnmarshalText(b []byte) error { *s = Secret(b); return nil }

// URL is an address, or several separated by commas, whose user and password are never printed. [URL.Reveal] gives the
// text.
type URL string

// Reveal returns the address with its user and password.
func (u URL) Reveal() string { return string(u) }

// String hides user and password.
func (u URL) String() string { return hideUserinfo(string(u)) }

// GoString hides user and password from %#v.
func (u URL) GoString() string { return strconv.Quote(u.String()) }

// LogValue hides user and password from slog.
func (u URL) LogValue() slog.Value { return slog.StringValue(u.String()) }

// MarshalText hides user and password from JSON and YAML.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText takes the text as it is; it is validated later.
func (u *URL) UnmarshalText(b []byte) error { *u = URL(b); return nil }

// web returns what is wrong with an http(s) address, without showing the address; empty if nothing is.
func (u URL) web() string {
	p, err := url.Parse(string(u))
	switch {
	case err != nil || p.Host == "" || p.Scheme != "http" && p.Scheme != "https":
		return "no http or https URL with a host; it looks like https://host/v1"
	case p.User != nil:
		return "a URL must not hold a user or password; use headers with ${VAR}"
	}
	return ""
}

// Sync says when the embedded server calls fsync.
type Sync struct {
	Always   bool
	Interval time.Duration
}

// UnmarshalText reads always or an interval.
func (s *Sync) UnmarshalText(b []byte) error {
	if string(b) == "always" {
		*s = Sync{Always: true}
		return nil
	}
	d, err := time.ParseDuration(string(b))
	if err != nil || d <= 0 {
		return fmt.Errorf("write always, or an interval above 0 such as 1s")
	}
	*s = Sync{Interval: d}
	return nil
}

// MarshalText writes always or the interval.
func (s Sync) MarshalText() ([]byte, error) {
	if s.Always {
		return []byte("always"), nil
	}
	return []byte(s.Interval.String()), nil
}

// Auto is auto, true or false.
type Auto string

// UnmarshalYAML takes the words with and without quotes.
func (a *Auto) UnmarshalYAML(decode func(any) error) error {
	var on bool
	if decode(&on) == nil {
		*a = Auto(strconv.FormatBool(on))
		return nil
	}
	var s string
	if err := decode(&s); err != nil || s != "auto" && s != "true" && s != "false" {
		return fmt.Errorf("write auto, true or false")
	}
	*a = Auto(s)
	return nil
}
