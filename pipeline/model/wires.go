package model

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/translate"
	"github.com/shallot-nats/shallot/messages/view"
)

// anthropicVersion is what a provider of the messages wire is told where the caller says nothing.
const anthropicVersion = "2023-06-01"

// wiresOf returns the wires of a provider that declares none, by the host of its address.
func wiresOf(base string) []messages.Wire {
	u, err := url.Parse(base)
	if err != nil {
		return []messages.Wire{messages.ChatWire}
	}
	switch host := u.Hostname(); {
	case host == "api.openai.com", strings.HasSuffix(host, ".openai.azure.com"):
		return []messages.Wire{messages.ResponsesWire, messages.ChatWire}
	case host == "anthropic.com" || strings.HasSuffix(host, ".anthropic.com"):
		return []messages.Wire{messages.MessagesWire}
	}
	return []messages.Wire{messages.ChatWire}
}

// wire returns the wire in which a provider is asked for a client's: the same if it speaks that, else its first.
func (p Provider) wire(client messages.Wire) messages.Wire {
	if client = client.Or(); len(p.Wires) == 0 || client == messages.EmbeddingsWire || slices.Contains(p.Wires, client) {
		return client
	}
	return p.Wires[0]
}

// openAI reports whether the provider is OpenAI's own service, or Azure's, whose newer models want the newer names.
func (p Provider) openAI() bool {
	return strings.Contains(p.BaseURL, "api.openai.com") || strings.Contains(p.BaseURL, ".openai.azure.com")
}

// pairOf is the translation of a call for a provider's model.
func pairOf(p Provider, model string, c *messages.Call) translate.Pair {
	return translate.Pair{Client: c.Wire.Or(), Provider: p.wire(c.Wire), Owner: p.Name + "/" + model, ID: c.ID,
		Created: c.Accepted.Unix(), OldLimit: !p.openAI(), OutputLimit: p.OutputLimit}
}

// askedOf is the model that the caller's own request names, before a stage put a standby in its place.
func askedOf(c *messages.Call) string {
	for _, f := range c.Slip.Frames {
		if f.Stop >= 0 && f.Stop < len(c.Slip.Stops) {
			if kept := c.Kept(c.Slip.Stops[f.Stop].Name); kept != nil {
				return view.ModelName(kept)
			}
		}
	}
	return view.ModelName(c.Request())
}

// speak makes the request for the provider: in its wire, with its name of the model. What its wire cannot say is noted.
func (r *run) speak(model string) error {
	body, dropped, err := r.pair.Request(r.call.Request())
	if err != nil {
		return err
	}
	r.call.Unnote(messages.NoteDropped)
	if len(dropped) > 0 {
		r.call.Note(messages.NoteDropped, dropped)
	}
	if r.pair.Client == r.pair.Provider {
		p, name, err := r.Table.Resolve(askedOf(r.call))
		r.standby = err != nil || p.Name != r.provider.Name || name != model
		body = r.pair.Own(body, !r.standby)
	}
	r.body, r.stream = prepare(body, model, r.call.Stream)
	if r.stream && r.pair.Client != r.pair.Provider && r.pair.Provider == messages.ChatWire {
		// the other wires always tell
		r.body = rawjson.SetField(r.body, "stream_options", []byte(`{"include_usage":true}`))
	}
	return nil
}

// send posts the request to the path of its wire and returns the raw response; the caller closes its body.
func (x *exchange) send(ctx context.Context, p Provider, w messages.Wire, stream bool) (*http.Response, error) {
	if w == messages.ChatWire {
		return x.chat(ctx, p, stream)
	}
	path := "/" + string(w)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.BaseURL+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	if stream {
		req.Header.Set("Accept", "text/event-stream")
	}
	p.authorise(req, w)
	err = x.do(req)
	return x.response, err
}

// authorise sets the headers by which a provider of a wire knows who asks.
func (p Provider) authorise(req *http.Request, w messages.Wire) {
	key := p.APIKey.Reveal()
	anthropic := w == messages.MessagesWire && slices.Contains(wiresOf(p.BaseURL), messages.MessagesWire)
	if key != "" && !anthropic {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	if w == messages.MessagesWire {
		req.Header.Set("Anthropic-Version", anthropicVersion)
		if key != "" {
			req.Header.Set("X-Api-Key", key)
		}
	}
}

// forwarded adds the headers of the caller that belong to the body in the provider's wire, if both speak it: a
// feature's header and its field travel together.
func (r *run) forwarded(set func(key, value string)) {
	var h map[string]string
	if r.pair.Client != r.pair.Provider || !r.call.Noted(messages.NoteWireHeaders, &h) {
		return
	}
	for key, value := range h {
		name := strings.ToLower(key)
		if strings.HasPrefix(name, "anthropic-") && r.pair.Provider == messages.MessagesWire ||
			strings.HasPrefix(name, "openai-beta") && r.pair.Provider != messages.MessagesWire {
			set(key, value)
		}
	}
}

// unreadable says what is wrong with the choices of a chat reply, "" if nothing: whoever reads one expects objects.
func unreadable(b []byte) string {
	choices := view.Of(messages.ChatWire).Choices(b)
	for _, ch := range choices {
		message, has := rawjson.Field(ch.Raw, "message")
		object := func(raw []byte) bool { return len(raw) > 0 && raw[0] == '{' }
		if !object(ch.Raw) || has && !rawjson.IsNull(message) && !object(message) {
			return "a choice of its reply cannot be read"
		}
	}
	if len(choices) == 0 {
		return "its reply has no choices"
	}
	return ""
}

// whole checks a reply that came in one piece and returns it in the caller's wire.
func (r *run) whole(b []byte) ([]byte, error) {
	if r.pair.Provider == messages.EmbeddingsWire {
		return b, nil // embed reads it
	}
	if why := unreadable(b); r.pair.Provider == messages.ChatWire && why != "" {
		return nil, r.badReply("%s", why)
	}
	if r.pair.Provider != messages.ChatWire && len(events.Replay(r.pair.Provider, nil, b)) == 0 {
		return nil, r.badReply("its reply has no output")
	}
	if r.pair.Client == r.pair.Provider {
		if r.standby {
			b = r.pair.Seal(b)
		}
		return b, nil
	}
	out, err := r.pair.Reply(r.call.Request(), b)
	if err != nil {
		return nil, r.badReply("its reply cannot be read")
	}
	return out, nil
}
