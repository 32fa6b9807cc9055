package messages

import "time"

// This file has the objects of line 1. Each writer stands beside its reader: what one writes the other reads.

// call writes the facts of a call, its version first; stored adds what only the stored form has.
func (w *writer) call(c *Call, version int, stored bool) {
	w.always("v", int64(version))
	w.key("id")
	w.b = appendQuoted(w.b, c.ID)
	w.key("kind")
	w.b = appendQuoted(w.b, string(c.Kind))
	w.text("wire", string(c.Wire))
	w.key("tenant")
	w.b = appendQuoted(w.b, c.Tenant)
	w.text("role", c.Role)
	w.text("session", c.Session)
	w.text("run", c.Run)
	w.text("user", c.User)
	w.text("agent", c.Agent)
	w.text("tool", c.Tool)
	w.text("request_id", c.RequestID)
	w.texts("models", c.Models)
	if stored {
		w.text("idempotency_key", c.IdempotencyKey)
		w.text("fingerprint", c.Fingerprint)
	}
	w.text("parent", c.Parent)
	if stored {
		w.texts("skip", c.Skip)
	}
	w.flag("stream", c.Stream)
	w.text("cache", c.Cache)
	w.flag("explain", c.Explain)
	w.time("accepted", c.Accepted)
	w.time("deadline", c.Deadline)
	w.key("generation")
	w.b = appendUint(w.b, c.Generation)
	if stored && c.Return != (Return{}) {
		w.open("return", '{')
		w.text("inbox", c.Return.Inbox)
		w.text("caller", c.Return.Caller)
		w.flag("record", c.Return.Record)
		w.close('}')
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
	w.open("trace", '{')
	w.text("parent", t.Parent)
	w.text("state", t.State)
	w.close('}')
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
	w.open("slip", '{')
	if s.Stops == nil {
		w.key("stops")
		w.b = append(w.b, "null"...)
	} else {
		w.open("stops", '[')
		for i := range s.Stops {
			w.stop(&s.Stops[i])
		}
		w.close(']')
	}
	w.always("at", int64(s.At))
	w.flag("back", s.Back)
	if len(s.Frames) > 0 {
		w.open("frames", '[')
		for i := range s.Frames {
			w.frame(&s.Frames[i], states || s.Back && i == len(s.Frames)-1)
		}
		w.close(']')
	}
	w.raw("scratch", s.Scratch)
	w.number("hops", int64(s.Hops))
	w.number("tries", int64(s.Tries))
	w.number("runs", int64(s.Runs))
	w.texts("path", s.Path)
	w.close('}')
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
	w.comma()
	w.b = append(w.b, `{"name":`...)
	w.b = appendQuoted(w.b, s.Name)
	w.always("order", int64(s.Order))
	w.flag("before", s.Before)
	w.flag("after", s.After)
	w.flag("mandatory", s.Mandatory)
	w.flag("finally", s.Finally)
	w.flag("keep", s.Keep)
	w.flag("skippable", s.Skippable)
	w.flag("filter", s.Filter)
	w.flag("rewrites", s.Rewrites)
	if t := s.Tally; t != (Tally{}) {
		w.open("tally", '{')
		w.number("n", t.Count)
		w.number("ns", t.Nanos)
		w.number("errs", t.Errors)
		w.text("err", t.Err)
		w.close('}')
	}
	w.close('}')
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
	w.comma()
	w.b = append(w.b, '{')
	w.always("stop", int64(f.Stop))
	w.always("attempt", int64(f.Attempt))
	if state {
		w.raw("state", f.State)
	}
	w.number("ns", f.Nanos)
	w.text("err", f.Err)
	w.close('}')
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
	w.open(key, '{')
	w.key("code")
	w.b = appendQuoted(w.b, string(f.Code))
	w.key("message")
	w.b = appendQuoted(w.b, f.Message)
	w.text("detail", f.Detail)
	w.text("origin", f.Origin)
	w.text("param", f.Param)
	w.number("status", int64(f.Status))
	w.text("type", f.Type)
	w.text("openai_code", f.OpenAICode)
	w.number("retry_after", int64(f.RetryAfter))
	w.text("last", string(f.Last))
	w.headers(f.Headers)
	w.flag("unsent", f.Unsent)
	w.close('}')
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
