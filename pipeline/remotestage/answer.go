package remotestage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// Bounds of an answer. Notes and state travel in line 1 of the call on every hop.
const (
	maxDelay = 30 * 24 * time.Hour
	maxExtra = 64 << 10 // bytes of notes and state
	maxNote  = 128      // characters of a note's name
)

// answer is a program's answer, decoded and not yet judged.
type answer struct {
	verdict        string // in lower case
	request, reply []byte // whole bodies; nil: not given
	text           []string
	set            []edit
	remove         []string
	notes          []note
	state          json.RawMessage
	delay          *time.Duration
	question       json.RawMessage
	target         string
	fault          *said
}

type edit struct {
	path string
	raw  []byte
}

type note struct {
	key string
	raw []byte // null removes it
}

// said is an error that the program answered with.
type said struct {
	code           messages.Code
	message, param string
	retryAfter     time.Duration
}

// of makes it the stage's error. Without a code it is an ordinary error, which becomes stage_error.
func (s *said) of(stage string) error {
	if s.code == "" {
		return errors.New(s.message)
	}
	f := messages.NewFault(s.code, "%s", s.message).From(stage).At(s.param)
	f.RetryAfter = s.retryAfter
	return f
}

const answerKeys = "version, verdict, request, reply, text, set, remove, notes, state, delay_ms, question, " +
	"target, error"

// decode reads an answer. An empty one is Continue. The error tells the author of the program what is wrong.
func decode(body []byte) (a answer, err error) {
	body = bytes.TrimSpace(body)
	if len(body) == 0 {
		return answer{verdict: "continue"}, nil
	}
	if !utf8.Valid(body) || !json.Valid(body) {
		return a, fmt.Errorf("it is no JSON: %s", clip(body))
	}
	err = object(body, "it", func(key string, raw []byte) error {
		switch key {
		case "version":
			if string(raw) != strconv.Itoa(Version) {
				return fmt.Errorf("version is %s; this Shallot speaks version %d", clip(raw), Version)
			}
		case "verdict":
			s, ok := rawjson.IsString(raw)
			if !ok {
				return fmt.Errorf("verdict is %s", clip(raw))
			}
			a.verdict = strings.ToLower(s)
		case "request":
			a.request = raw
		case "reply":
			a.reply = raw
		case "text":
			if a.text, err = texts(raw); err != nil {
				return fmt.Errorf("text: %w", err)
			}
			for _, name := range a.text {
				if name != messages.RequestBody && name != messages.ReplyBody {
					return fmt.Errorf("text names %q; known: request, reply", name)
				}
			}
		case "set":
			return object(raw, "set", func(path string, value []byte) error {
				a.set = append(a.set, edit{path, value})
				return nil
			})
		case "remove":
			if a.remove, err = texts(raw); err != nil {
				return fmt.Errorf("remove: %w", err)
			}
		case "notes":
			return object(raw, "notes", func(key string, value []byte) error {
				if key == "" || len(key) > maxNote || reservedNote(key) {
					return fmt.Errorf("notes: %q is reserved, empty or too long; notes of your own begin with "+
						"your stage's name", clip([]byte(key)))
				}
				a.notes = append(a.notes, note{key, value})
				return nil
			})
		case "state":
			a.state = raw
		case "delay_ms":
			if a.delay, err = millis(raw); err != nil {
				return fmt.Errorf("delay_ms: %w", err)
			}
		case "question":
			a.question = raw
		case "target":
			s, ok := rawjson.IsString(raw)
			if !ok || s == "" {
				return fmt.Errorf("target is %s", clip(raw))
			}
			a.target = s
		case "error":
			a.fault, err = readError(raw)
			return err
		default:
			return fmt.Errorf("it has the key %q; known: %s", clip([]byte(key)), answerKeys)
		}
		return nil
	})
	if err != nil {
		return answer{}, err
	}
	if a.fault == nil && a.verdict == "" {
		return answer{}, errors.New("it has no verdict")
	}
	if a.fault != nil && a.verdict != "" {
		return answer{}, errors.New("it has a verdict and an error; one of them")
	}
	extra := len(a.state)
	for _, n := range a.notes {
		extra += len(n.key) + len(n.raw)
	}
	if extra > maxExtra {
		return answer{}, fmt.Errorf("notes and state have %d bytes, at most %d; keep more in a store of your own",
			extra, maxExtra)
	}
	return a, nil
}

func readError(raw []byte) (*said, error) {
	s := &said{}
	if text, ok := rawjson.IsString(raw); ok {
		s.message = text
	} else if err := object(raw, "error", func(key string, raw []byte) error {
		text, isText := rawjson.IsString(raw)
		switch {
		case rawjson.IsNull(raw) && key != "message":
		case key == "code" && isText:
			s.code = messages.Code(text)
		case key == "message" && isText:
			s.message = text
		case key == "param" && isText:
			s.param = text
		case key == "retry_after_ms":
			d, err := millis(raw)
			if err != nil {
				return fmt.Errorf("error.retry_after_ms: %w", err)
			}
			s.retryAfter = *d
		default:
			return fmt.Errorf("error.%s is %s; an error has code, message, param and retry_after_ms",
				clip([]byte(key)), clip(raw))
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if s.message == "" {
		return nil, errors.New("error.message is missing")
	}
	if s.code == messages.StageError {
		s.code = "" // the code of an error without one
	}
	if s.code != "" && !s.code.Known() {
		return nil, fmt.Errorf("error.code is %q, which is not in the list of codes", clip([]byte(s.code)))
	}
	return s, nil
}

// object calls f for each pair; a repeated key is an error, because two readers could choose different values.
func object(raw []byte, what string, f func(key string, raw []byte) error) error {
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || raw[0] != '{' {
		return fmt.Errorf("%s is %s, no object", what, clip(raw))
	}
	var err error
	seen := map[string]bool{}
	rawjson.EachField(raw, func(key string, value []byte) {
		switch {
		case err != nil:
		case seen[key]:
			err = fmt.Errorf("%s has the key %q twice", what, clip([]byte(key)))
		default:
			seen[key] = true
			err = f(key, value)
		}
	})
	return err
}

func texts(raw []byte) ([]string, error) {
	var out []string
	if err := json.Unmarshal(raw, &out); err != nil || out == nil {
		return nil, fmt.Errorf("%s is not a list of strings", clip(raw))
	}
	return out, nil
}

// millis reads a number of milliseconds, from 0 to 30 days.
func millis(raw []byte) (*time.Duration, error) {
	ms, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || ms < 0 || ms > float64(maxDelay/time.Millisecond) {
		return nil, fmt.Errorf("%s is not a number of milliseconds from 0 to 30 days", clip(raw))
	}
	d := time.Duration(math.Ceil(ms * float64(time.Millisecond)))
	return &d, nil
}

// clip shortens what a program wrote for an error text.
func clip(b []byte) string {
	const maxShown = 80
	s := strings.ToValidUTF8(string(b[:min(len(b), maxShown)]), "?")
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	if len(b) > maxShown {
		return s + "..."
	}
	return s
}
