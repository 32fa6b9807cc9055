package model

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/shallot-nats/shallot/messages"
)

// longest is how much of a provider's text is carried about.
const longest = 4096

// mask takes our secrets out of a text of the provider, in each form in which it may have got them, and cuts what is
// too long. What is left is for operators.
func (p Provider) mask(text string) string {
	for _, key := range p.secrets() {
		text = strings.ReplaceAll(text, key, redacted)
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "") + "..."
	}
	return text
}

// secrets are the texts to mask, longest forms first: "Bearer <key>" before the key.
func (p Provider) secrets() (out []string) {
	all := []string{p.APIKey.Reveal()}
	for _, s := range p.Headers {
		whole := s.Reveal()
		all = append(all, whole)
		if _, key, ok := strings.Cut(whole, " "); ok {
			all = append(all, key)
		}
	}
	for _, key := range all {
		const short = 4 // a shorter one would take letters out of words
		if len(key) < short {
			continue
		}
		out = append(out, key)
		for _, form := range []string{
			url.QueryEscape(key), url.PathEscape(key),
			base64.StdEncoding.EncodeToString([]byte(key)), base64.URLEncoding.EncodeToString([]byte(key)),
		} {
			if form != key {
				out = append(out, form)
			}
		}
	}
	return out
}

// hidden stands for an address in a text that a caller reads.
const hidden = "[hidden]"

// addresses are hosts with a port, IP addresses, and names that only a private network knows.
var addresses = regexp.MustCompile(`(?i)\[[0-9a-f]*:[0-9a-f]*:[0-9a-f:.]*\](:\d+)?` +
	`|\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b` +
	`|\b(localhost|[a-z0-9-]+(\.[a-z0-9-]+)+):\d{2,5}\b` +
	`|\b[a-z0-9-]+(\.[a-z0-9-]+)*\.(internal|local|localdomain|svc|lan|corp|intranet|home\.arpa)\b(\.[a-z0-9-]+)*`)

// public is mask for a text that callers read: it also hides where the provider is and how we found its key.
func (p Provider) public(text string) string {
	text = p.mask(text)
	if u, err := url.Parse(p.BaseURL); err == nil && u.Hostname() != "" {
		text = strings.ReplaceAll(text, u.Host, hidden)
		text = strings.ReplaceAll(text, u.Hostname(), hidden)
	}
	if p.KeyEnv != "" {
		text = strings.ReplaceAll(text, p.KeyEnv, hidden)
	}
	return addresses.ReplaceAllString(text, hidden)
}

// explain gives a fault the whole reason for the log and the audit record.
func (p Provider) explain(f *messages.Fault, format string, args ...any) *messages.Fault {
	f.Detail = p.mask(fmt.Sprintf("provider %s at %s: %s", p.Name, p.BaseURL, fmt.Sprintf(format, args...)))
	return f
}
