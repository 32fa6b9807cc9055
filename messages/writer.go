package messages

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// writer writes line 1 of a wire form by appending. The text is what encoding/json writes without its HTML escapes.
type writer struct {
	rawjson.Writer
	err error
}

func newWriter(b []byte) writer { return writer{Writer: rawjson.Writer{B: append(b, '{')}} }

// time writes a time, even the zero time.
func (w *writer) time(key string, t time.Time) {
	if err := w.Time(key, t); err != nil {
		w.fail(fmt.Errorf("%s: %w", key, err))
	}
}

// raw writes a field that is JSON already.
func (w *writer) raw(key string, raw []byte) {
	if len(raw) == 0 {
		return
	}
	w.Key(key)
	w.json(key, raw)
}

func (w *writer) json(key string, raw []byte) {
	valid, spaced := inspect(raw)
	switch {
	case !valid:
		w.fail(fmt.Errorf("%s is not JSON", key))
	case spaced:
		w.B = appendCompact(w.B, raw)
	default:
		w.B = append(w.B, raw...)
	}
}

// notes writes a map of raw values, its keys sorted. A nil value is null.
func (w *writer) notes(key string, n Notes) {
	if len(n) == 0 {
		return
	}
	w.Open(key, '{')
	for _, k := range slices.Sorted(maps.Keys(n)) {
		w.Comma()
		w.B = append(rawjson.AppendQuoted(w.B, k), ':')
		if n[k] == nil {
			w.B = append(w.B, "null"...)
			continue
		}
		w.json(k, n[k])
	}
	w.Close('}')
}

// headers writes the answer headers of a fault.
func (w *writer) headers(h map[string]string) {
	if len(h) == 0 {
		return
	}
	w.Open("headers", '{')
	for _, k := range slices.Sorted(maps.Keys(h)) {
		w.Comma()
		w.B = append(rawjson.AppendQuoted(w.B, k), ':')
		w.B = rawjson.AppendQuoted(w.B, h[k])
	}
	w.Close('}')
}

func (w *writer) fail(err error) {
	if w.err == nil {
		w.err = fmt.Errorf("wire: %w", err)
	}
}
