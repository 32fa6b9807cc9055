package tool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/goccy/go-yaml"
)

// Duration is a time.Duration that is written as text ("30s") in YAML and JSON alike.
type Duration time.Duration

// D is the duration as the standard library knows it.
func (d Duration) D() time.Duration { return time.Duration(d) }

// MarshalText writes "30s".
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads "30s"; negative ones are refused.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("%q is not a duration; write it as 500ms, 15s or 2m", b)
	}
	if v < 0 {
		return fmt.Errorf("the duration %s is negative", b)
	}
	*d = Duration(v)
	return nil
}

// JSON is a JSON value in its own bytes. In YAML it is written as YAML, which keeps the order of keys, or as a string
// that holds a JSON object or array.
type JSON []byte

// MarshalJSON writes the bytes; no bytes are null.
func (j JSON) MarshalJSON() ([]byte, error) {
	if len(j) == 0 {
		return []byte("null"), nil
	}
	return j, nil
}

// UnmarshalJSON keeps the bytes, compacted.
func (j *JSON) UnmarshalJSON(b []byte) error {
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		return err
	}
	if *j = out.Bytes(); out.String() == "null" {
		*j = nil
	}
	return nil
}

// UnmarshalYAML turns YAML into JSON.
func (j *JSON) UnmarshalYAML(b []byte) error {
	var s string
	if yaml.Unmarshal(b, &s) == nil {
		if t := bytes.TrimSpace([]byte(s)); len(t) > 0 && (t[0] == '{' || t[0] == '[') && json.Valid(t) {
			return j.UnmarshalJSON(t)
		}
	}
	raw, err := yaml.YAMLToJSON(b)
	if err != nil {
		return err
	}
	return j.UnmarshalJSON(bytes.TrimSpace(raw))
}

// MarshalYAML writes the value as YAML.
func (j JSON) MarshalYAML() ([]byte, error) {
	if len(j) == 0 {
		return []byte("null\n"), nil
	}
	return yaml.JSONToYAML(j)
}
