package pipeline

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// Handler passes a request on to the inner stages and the target, and returns their reply. The error is the fault in
// which they ended.
type Handler func(request []byte) (reply []byte, err error)

// Wrapper is a whole stage as one function: it gets the request, calls next none, one or several times, and returns the
// reply. c is the call for reading; what is changed in it is lost. If next was not called, the reply answers the call.
// An error fails the call; the error of next, returned as it is, is passed on as it is.
//
// No process waits in the function while next runs. The function runs from its beginning for each reply that comes, and
// is given the earlier replies again: up to its first next, then up to the second, and so on to its end. So what it
// does before a next must be free of effects or safe to repeat, and must lead to the same request. A function that
// comes with another request than before fails the call with stage_error. next must be called by the function's own
// goroutine; it does not return where there is no reply yet, but deferred functions run.
type Wrapper func(ctx context.Context, c *messages.Call, next Handler) (reply []byte, err error)

// Wrap makes a stage of a function, for model and tool calls alike. s gives its name, kind, order and the rest; the
// phases are set here. The stage may ask for several runs of what is inside it, so it keeps the request.
func Wrap(s Stage, f Wrapper) Stage {
	w := wrapped{s.Name, f}
	s.Before, s.After, s.Keep, s.Rewrites, s.FailClosed = w.before, w.after, true, true, true
	for _, body := range []string{messages.RequestBody, messages.ReplyBody, ReadKept} {
		if !slices.Contains(s.Reads, body) {
			s.Reads = append(slices.Clip(s.Reads), body)
		}
	}
	for _, body := range []string{messages.RequestBody, messages.ReplyBody} {
		if !slices.Contains(s.Writes, body) {
			s.Writes = append(slices.Clip(s.Writes), body)
		}
	}
	return s
}

type wrapped struct {
	name string
	f    Wrapper
}

// wrapState is what a wrapped stage keeps of a call.
type wrapState struct {
	// Request is what the function was given, if that is not what it passed on first.
	Request json.RawMessage `json:"request,omitempty"`
	Asked   []string        `json:"asked"`          // a hash of each request that it passed on
	Ends    []wrapEnd       `json:"ends,omitempty"` // what came of all but the last
}

// wrapEnd is what came of one next.
type wrapEnd struct {
	Reply json.RawMessage `json:"reply,omitempty"`
	Text  bool            `json:"text,omitempty"` // the reply is a text, and Reply that text as a JSON string
	Fault *messages.Fault `json:"fault,omitempty"`
}

// played is how far the function came.
type played struct {
	asked   bool
	request []byte // of the next that has no reply yet
	reply   []byte
	err     error
}

// play runs the function up to the first next whose reply is not there, or to its end. It runs in a goroutine of its
// own, because that is how it can be left there.
func (w wrapped) play(ctx context.Context, c *messages.Call, request []byte, st wrapState) (p played) {
	c = c.Clone()
	c.SetRequest(request)
	c.DropReply()
	c.Fault = nil
	n := 0
	next := func(body []byte) ([]byte, error) {
		i := n
		n++
		switch {
		case i < len(st.Asked) && st.Asked[i] != hashOf(body):
			p = played{err: messages.NewFault(messages.StageError, "stage %s does not repeat itself: its call %d of next came "+
				"with another request than before", w.name, i+1).From(w.name)}
		case i < len(st.Ends) && st.Ends[i].Fault != nil:
			return nil, st.Ends[i].Fault
		case i < len(st.Ends):
			return bytes.Clone(st.Ends[i].Reply), nil
		default:
			p = played{asked: true, request: bytes.Clone(body)}
		}
		runtime.Goexit()
		return nil, nil
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if cause := recover(); cause != nil {
				p = played{err: fmt.Errorf("panic: %v", cause)}
			}
		}()
		reply, err := w.f(ctx, c, next)
		p = played{reply: reply, err: err}
	}()
	<-done
	return p
}

func hashOf(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:16])
}

func (w wrapped) before(ctx context.Context, c *messages.Call) (Verdict, error) {
	request := c.Request()
	switch p := w.play(ctx, c, request, wrapState{}); {
	case p.err != nil:
		return Verdict{}, p.err
	case !p.asked && p.reply == nil:
		return refuse(Stage{Name: w.name}, "the function gave neither a reply nor an error, and did not call next")
	case !p.asked:
		c.SetReply(p.reply)
		return Answer(), nil
	default:
		st := wrapState{Asked: []string{hashOf(p.request)}}
		if !bytes.Equal(p.request, request) {
			st.Request = request
			c.SetRequest(p.request)
		}
		return Continue(), c.SetState(st)
	}
}

func (w wrapped) after(ctx context.Context, c *messages.Call) (Verdict, error) {
	var st wrapState
	if _, err := c.State(&st); err != nil {
		return Verdict{}, err
	}
	end := wrapEnd{Reply: c.Reply(), Fault: c.Fault}
	_, end.Text = c.ReplyText()
	st.Ends = append(st.Ends, end)
	request := []byte(st.Request)
	if request == nil {
		request = c.Kept(w.name)
	}
	p := w.play(ctx, c, request, st)
	switch {
	case p.asked:
		st.Asked = append(st.Asked, hashOf(p.request))
		return AgainWith(0, p.request), c.SetState(st)
	case p.err != nil:
		return w.failed(c, st, p.err)
	case p.reply == nil:
		return refuse(Stage{Name: w.name}, "the function gave neither a reply nor an error")
	}
	w.replied(c, st, p.reply)
	return Continue(), nil
}

// failed gives the call the error of the function. A fault that came from next stays whose it was.
func (w wrapped) failed(c *messages.Call, st wrapState, err error) (Verdict, error) {
	f, _ := errors.AsType[*messages.Fault](err)
	for _, end := range st.Ends {
		if f != nil && end.Fault == f {
			c.Fail(f)
			return Continue(), nil
		}
	}
	if c.Fault == nil {
		return Verdict{}, Closed(err)
	}
	c.Fail(messages.AsFault(err, w.name))
	return Continue(), nil
}

// replied gives the call the function's reply. A reply that came from next stays what it was.
func (w wrapped) replied(c *messages.Call, st wrapState, reply []byte) {
	if c.Fault == nil && bytes.Equal(reply, c.Reply()) {
		return
	}
	for _, end := range st.Ends {
		if text, ok := rawjson.IsString(end.Reply); end.Text && ok && bytes.Equal(reply, end.Reply) {
			c.SetReplyText(text)
			return
		}
	}
	c.SetReply(reply)
}
