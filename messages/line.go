package messages

import (
	"strconv"
	"time"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// This file has the objects of line 1. Each writer stands beside its reader: what one writes the other reads.

// call writes the facts of a call, its version first; stored adds what only the stored form has.
func (w *writer) call(c *Call, version int, stored bool) {
	w.Int("v", int64(version))
	w.Always("id", c.ID)
	w.Always("kind", string(c.Kind))
	w.Text("wire", string(c.Wire))
	w.Always("tenant", c.Tenant)
	w.Text("role", c.Role)
	w.Text("session", c.Session)
	w.Text("run", c.Run)
	w.Text("user", c.User)
	w.Text("agent", c.Agent)
	w.Text("tool", c.Tool)
	w.Text("request_id", c.RequestID)
	w.Texts("models", c.Models)
	if stored {
		w.Text("idempotency_key", c.IdempotencyKey)
		w.Text("fingerprint", c.Fingerprint)
	}
	w.Text("parent", c.Parent)
	if stored {
		w.Texts("skip", c.Skip)
	}
	w.Flag("stream", c.Stream)
	w.Text("cache", c.Cache)
	w.Flag("explain", c.Explain)
	w.time("accepted", c.Accepted)
	w.time("deadline", c.Deadline)
	w.Key("generation")
	w.B = strconv.AppendUint(w.B, c.Generation, 10)
	if stored && c.Return != (Return{}) {
		w.Open("return", '{')
		w.Text("inbox", c.Return.Inbox)
		w.Text("caller", c.Return.Caller)
		w.Flag("record", c.Return.Record)
		w.Close('}')
	}
	w.trace(c.Trace)
}

// field reads a field of a stored call or of a question; known says whether it is one.
func (r *reader) field(c *Call, key string) (known bool) {
	switch key {
	case "id":
		c.ID = r.text()
	case "kind":
		c.Kind = Kind(r.text())
	case "wire":
		c.Wire = Wire(r.text())
	case "tenant":
		c.Tenant = r.text()
	case "role":
		c.Role = r.text()
	case "models":
		c.Models = r.texts()
	case "session":
		c.Session = r.text()
	case "run":
		c.Run = r.text()
	case "user":
		c.User = r.text()
	case "agent":
		c.Agent = r.text()
	case "tool":
		c.Tool = r.text()
	case "request_id":
		c.RequestID = r.text()
	case "parent":
		c.Parent = r.text()
	case "stream":
		c.Stream = r.flag()
	case "cache":
		c.Cache = r.text()
	case "explain":
		c.Explain = r.flag()
	case "accepted":
		c.Accepted = r.time()
	case "deadline":
		c.Deadline = r.time()
	case "generation":
		c.Generation = r.uint64()
	case "trace":
		c.Trace = r.trace()
	case "slip":
		c.Slip = r.slip()
	case "notes":
		c.Notes = r.notes()
	case "fault":
		c.Fault = r.fault()
	default:
		return false
	}
	return true
}

// storedField reads what only a stored call has.
func (r *reader) storedField(c *Call, key string) (known bool) {
	switch key {
	case "idempotency_key":
		c.IdempotencyKey = r.text()
	case "fingerprint":
		c.Fingerprint = r.text()
	case "skip":
		c.Skip = r.texts()
	case "return":
		r.object(func(key string) bool {
			switch key {
			case "inbox":
				c.Return.Inbox = r.text()
			case "caller":
				c.Return.Caller = r.text()
			case "record":
				c.Return.Record = r.flag()
			default:
				return false
			}
			return true
		})
	default:
		return false
	}
	return true
}

func (w *writer) trace(t Trace) {
	if t == (Trace{}) {
		return
	}
	w.Open("trace", '{')
	w.Text("parent", t.Parent)
	w.Text("state", t.State)
	w.Close('}')
}

func (r *reader) trace() (t Trace) {
	r.object(func(key string) bool {
		switch key {
		case "parent":
			t.Parent = r.text()
		case "state":
			t.State = r.text()
		default:
			return false
		}
		return true
	})
	return t
}

// slip writes a slip. states says whether the private state of every frame is written, or only that of the innermost.
func (w *writer) slip(s *Slip, states bool) {
	w.Open("slip", '{')
	if s.Stops == nil {
		w.Key("stops")
		w.B = append(w.B, "null"...)
	} else {
		w.Open("stops", '[')
		for i := range s.Stops {
			w.stop(&s.Stops[i])
		}
		w.Close(']')
	}
	w.Int("at", int64(s.At))
	w.Flag("back", s.Back)
	if len(s.Frames) > 0 {
		w.Open("frames", '[')
		for i := range s.Frames {
			w.frame(&s.Frames[i], states || s.Back && i == len(s.Frames)-1)
		}
		w.Close(']')
	}
	w.raw("scratch", s.Scratch)
	w.Number("hops", int64(s.Hops))
	w.Number("tries", int64(s.Tries))
	w.Number("runs", int64(s.Runs))
	w.Texts("path", s.Path)
	w.Close('}')
}

func (r *reader) slip() (s Slip) {
	r.object(func(key string) bool {
		switch key {
		case "stops":
			if r.space() == '[' {
				s.Stops = make([]Stop, 0, 12)
			}
			r.list(func() { s.Stops = append(s.Stops, r.stop()) })
		case "at":
			s.At = r.int()
		case "back":
			s.Back = r.flag()
		case "frames":
			s.Frames = make([]Frame, 0, cap(s.Stops))
			r.list(func() { s.Frames = append(s.Frames, r.frame()) })
		case "scratch":
			s.Scratch = r.raw()
		case "hops":
			s.Hops = r.int()
		case "tries":
			s.Tries = r.int()
		case "runs":
			s.Runs = r.int()
		case "path":
			s.Path = r.texts()
		default:
			return false
		}
		return true
	})
	return s
}

func (w *writer) stop(s *Stop) {
	w.Comma()
	w.B = append(w.B, `{"name":`...)
	w.B = rawjson.AppendQuoted(w.B, s.Name)
	w.Int("order", int64(s.Order))
	w.Flag("before", s.Before)
	w.Flag("after", s.After)
	w.Flag("mandatory", s.Mandatory)
	w.Flag("finally", s.Finally)
	w.Flag("keep", s.Keep)
	w.Flag("skippable", s.Skippable)
	w.Flag("filter", s.Filter)
	w.Flag("rewrites", s.Rewrites)
	if t := s.Tally; t != (Tally{}) {
		w.Open("tally", '{')
		w.Number("n", t.Count)
		w.Number("ns", t.Nanos)
		w.Number("errs", t.Errors)
		w.Text("err", t.Err)
		w.Close('}')
	}
	w.Close('}')
}

func (r *reader) stop() (s Stop) {
	r.object(func(key string) bool {
		switch key {
		case "name":
			s.Name = r.text()
		case "order":
			s.Order = r.int()
		case "before":
			s.Before = r.flag()
		case "after":
			s.After = r.flag()
		case "mandatory":
			s.Mandatory = r.flag()
		case "finally":
			s.Finally = r.flag()
		case "keep":
			s.Keep = r.flag()
		case "durable":
			r.flag() // written by earlier versions; it has no effect
		case "skippable":
			s.Skippable = r.flag()
		case "filter":
			s.Filter = r.flag()
		case "rewrites":
			s.Rewrites = r.flag()
		case "tally":
			s.Tally = r.tally()
		default:
			return false
		}
		return true
	})
	return s
}

func (r *reader) tally() (t Tally) {
	r.object(func(key string) bool {
		switch key {
		case "n":
			t.Count = r.int64()
		case "ns":
			t.Nanos = r.int64()
		case "errs":
			t.Errors = r.int64()
		case "err":
			t.Err = r.text()
		default:
			return false
		}
		return true
	})
	return t
}

func (w *writer) frame(f *Frame, state bool) {
	w.Comma()
	w.B = append(w.B, '{')
	w.Int("stop", int64(f.Stop))
	w.Int("attempt", int64(f.Attempt))
	if state {
		w.raw("state", f.State)
	}
	w.Number("ns", f.Nanos)
	w.Text("err", f.Err)
	w.Close('}')
}

func (r *reader) frame() (f Frame) {
	r.object(func(key string) bool {
		switch key {
		case "stop":
			f.Stop = r.int()
		case "attempt":
			f.Attempt = r.int()
		case "state":
			f.State = r.raw()
		case "ns":
			f.Nanos = r.int64()
		case "err":
			f.Err = r.text()
		default:
			return false
		}
		return true
	})
	return f
}

func (w *writer) fault(key string, f *Fault) {
	w.Open(key, '{')
	w.Always("code", string(f.Code))
	w.Always("message", f.Message)
	w.Text("detail", f.Detail)
	w.Text("origin", f.Origin)
	w.Text("param", f.Param)
	w.Number("status", int64(f.Status))
	w.Text("type", f.Type)
	w.Text("openai_code", f.OpenAICode)
	w.Number("retry_after", int64(f.RetryAfter))
	w.Text("last", string(f.Last))
	w.headers(f.Headers)
	w.Flag("unsent", f.Unsent)
	w.Close('}')
}

func (r *reader) fault() *Fault {
	f := &Fault{}
	r.object(func(key string) bool {
		switch key {
		case "code":
			f.Code = Code(r.text())
		case "message":
			f.Message = r.text()
		case "detail":
			f.Detail = r.text()
		case "origin":
			f.Origin = r.text()
		case "param":
			f.Param = r.text()
		case "status":
			f.Status = r.int()
		case "type":
			f.Type = r.text()
		case "openai_code":
			f.OpenAICode = r.text()
		case "retry_after":
			f.RetryAfter = time.Duration(r.int64())
		case "last":
			f.Last = Code(r.text())
		case "headers":
			f.Headers = r.headers()
		case "unsent":
			f.Unsent = r.flag()
		default:
			return false
		}
		return true
	})
	return f
}
