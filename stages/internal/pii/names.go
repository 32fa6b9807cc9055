package pii

import (
	"bytes"
	"encoding/json"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

// Placeholders gives placeholders: under one key and in one scope the same value always has the same one, whichever
// call it is in. What keeps a text with a placeholder in it - a list of tasks, a summary, a cache - can show it to a
// later call, where it means the same value or none, and never another person's.
type Placeholders struct {
	Values map[string]string // placeholder to value
	key    []byte
	scope  []string
	byVal  map[string]string // label and value to placeholder
	taken  map[string]bool   // what stands in the request already and looks like a placeholder
}

var lookAlike = regexp.MustCompile(`[A-Z][A-Z0-9_]*_[` + letters + `]+`)

// letters spell a placeholder: none of them is a digit, which a detector or a pattern could take for a number.
const letters = "bcdfghjklmnpqrst"

// NewPlaceholders prepares placeholders for a request. scope says whose they are: tenant, session. A text that looks
// like one and is in the request as the caller wrote it is never given out, so putting values back cannot touch it.
func NewPlaceholders(request, key []byte, scope ...string) *Placeholders {
	n := &Placeholders{
		Values: map[string]string{}, key: key, scope: scope, byVal: map[string]string{}, taken: map[string]bool{},
	}
	take := func(s string) string {
		for _, like := range lookAlike.FindAllString(s, -1) {
			n.taken["<"+like+">"] = true
		}
		return s
	}
	take(string(request))
	if bytes.IndexByte(request, '\\') >= 0 { // escapes may hide one, also in the JSON within a JSON string
		MapStrings(request, func(s string) string {
			take(s)
			MapStrings([]byte(s), take)
			return s
		})
	}
	return n
}

func (n *Placeholders) name(label, value string) string {
	if p, ok := n.byVal[label+"\x00"+value]; ok {
		return p
	}
	for i := 0; ; i++ {
		p := "<" + label + "_" + n.spell(label, value, i) + ">"
		if n.taken[p] || n.Values[p] != "" {
			continue
		}
		n.Values[p], n.byVal[label+"\x00"+value] = value, p
		return p
	}
}

// spell is the part of a placeholder that tells values apart: 40 bits of a keyed hash, so that nobody who reads it can
// try values out.
func (n *Placeholders) spell(label, value string, i int) string {
	sum := keyed(n.key, append([]string{"placeholder", label, value, strconv.Itoa(i)}, n.scope...)...)
	out := make([]byte, 0, 10)
	for _, b := range sum[:5] {
		out = append(out, letters[b>>4], letters[b&15])
	}
	return string(out)
}

// Back puts values back in the place of placeholders. In arguments, which are JSON text, the value is written as
// JSON writes it, and the brackets may be escaped.
type Back struct {
	texts, args []form
}

type form struct{ from, to string }

// BackOf reads what before left, here or where the chunk filter runs.
func BackOf(c *messages.Call) (Back, error) {
	var st State
	if _, err := c.State(&st); err != nil {
		return Back{}, err
	}
	if len(st.Values) == 0 && !c.Slip.Back {
		if f, ok := c.Slip.Frame("pii"); ok && len(f.State) > 0 {
			if err := json.Unmarshal(f.State, &st); err != nil {
				return Back{}, err
			}
		}
	}
	var b Back
	for p, v := range st.Values {
		b.texts = append(b.texts, form{p, v})
		esc := string(rawjson.Encode(v))
		esc = esc[1 : len(esc)-1]
		inner := p[1 : len(p)-1]
		b.args = append(b.args, form{p, esc})
		for _, o := range []string{`\u003c`, `\u003C`} {
			for _, e := range []string{`\u003e`, `\u003E`} {
				b.args = append(b.args, form{o + inner + e, esc})
			}
		}
	}
	for _, forms := range [][]form{b.texts, b.args} {
		sort.Slice(forms, func(i, j int) bool { return forms[i].from < forms[j].from })
	}
	return b, nil
}

// putBack puts values back in one text that may come in pieces; it holds back only what may begin a placeholder.
type putBack struct {
	forms []form
	args  bool
	held  string
}

func (p *putBack) text(piece string) string { return p.scan(p.held+piece, false) }
func (p *putBack) flush() string            { return p.scan(p.held, true) }

func (p *putBack) scan(s string, final bool) string {
	p.held = ""
	if len(p.forms) == 0 {
		return s
	}
	var out strings.Builder
	for i := 0; i < len(s); {
		stop := "<"
		if p.args {
			stop = `<\`
		}
		j := strings.IndexAny(s[i:], stop)
		if j < 0 {
			out.WriteString(s[i:])
			break
		}
		out.WriteString(s[i : i+j])
		i += j
		rest := s[i:]
		k := sort.Search(len(p.forms), func(k int) bool { return p.forms[k].from > rest }) - 1
		if k >= 0 && strings.HasPrefix(rest, p.forms[k].from) {
			out.WriteString(p.forms[k].to)
			i += len(p.forms[k].from)
			continue
		}
		if !final && (k+1 < len(p.forms) && strings.HasPrefix(p.forms[k+1].from, rest) || rest == `\`) {
			p.held = rest
			break
		}
		n := 1
		if rest[0] == '\\' && len(rest) > 1 { // an escape is two characters; its second begins nothing
			n = 2
		}
		out.WriteString(rest[:n])
		i += n
	}
	return out.String()
}

// Filter is the stage's chunk filter: it hides what output rules find, then puts placeholders back. It holds back
// a value that is not yet certain, at most 16 KiB of a private key and otherwise a few hundred bytes.
type Filter struct {
	editor *Editor // nil: output is not looked at
	back   Back
	texts  map[pipeline.ChunkKey]*textStream
}

var _ pipeline.ChunkFilter = (*Filter)(nil)

type textStream struct {
	buf string
	pos int // what stands before it is released and kept only for looking back
	put putBack
}

// NewFilter makes the filter of one streamed reply; without an editor it only puts values back.
func NewFilter(back Back, e *Editor) *Filter {
	return &Filter{back: back, editor: e, texts: map[pipeline.ChunkKey]*textStream{}}
}

// Text implements pipeline.ChunkFilter.
func (f *Filter) Text(at pipeline.ChunkKey, piece string) string {
	st := f.stream(at)
	if f.editor != nil && at.Tool < 0 {
		piece = f.hide(st, piece, false)
	}
	return st.put.text(piece)
}

// Flush implements pipeline.ChunkFilter.
func (f *Filter) Flush(at pipeline.ChunkKey) string {
	st := f.stream(at)
	out := ""
	if f.editor != nil && at.Tool < 0 {
		out = st.put.text(f.hide(st, "", true))
	}
	return out + st.put.flush()
}

func (f *Filter) stream(at pipeline.ChunkKey) *textStream {
	st := f.texts[at]
	if st == nil {
		st = &textStream{put: putBack{forms: f.back.texts}}
		if at.Tool >= 0 {
			st.put = putBack{forms: f.back.args, args: true}
		}
		f.texts[at] = st
	}
	return st
}

func (f *Filter) hide(st *textStream, piece string, final bool) string {
	st.buf += piece
	var out strings.Builder
	for st.pos < len(st.buf) {
		find, upTo, ok := f.editor.Rules.next(st.buf, st.pos, final)
		if !ok {
			out.WriteString(st.buf[st.pos:upTo])
			st.pos = upTo
			break
		}
		out.WriteString(st.buf[st.pos:find.from])
		out.WriteString(f.editor.hide(find, st.buf[find.from:find.to], func() int { return 0 }))
		st.pos = find.to
	}
	if drop := st.pos - 2*lookBack; drop > 0 {
		st.buf, st.pos = st.buf[drop:], st.pos-drop
	}
	return out.String()
}
