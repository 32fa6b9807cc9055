package stages

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"sort"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

// piiNames gives placeholders: the same value the same one, numbered by type in the order of appearance.
type piiNames struct {
	values map[string]string // placeholder to value
	byVal  map[string]string // label and value to placeholder
	next   map[string]int
	taken  map[string]bool // what stands in the request already and looks like a placeholder
}

var piiLike = regexp.MustCompile(`[A-Z][A-Z0-9_]*_[0-9]+`)

// newPIINames prepares placeholders for a request. A text that looks like one and is in the request as the caller
// wrote it is never given out, so putting values back cannot touch it.
func newPIINames(request []byte) *piiNames {
	n := &piiNames{values: map[string]string{}, byVal: map[string]string{}, next: map[string]int{}, taken: map[string]bool{}}
	take := func(s string) string {
		for _, like := range piiLike.FindAllString(s, -1) {
			n.taken["<"+like+">"] = true
		}
		return s
	}
	take(string(request))
	if bytes.IndexByte(request, '\\') >= 0 { // escapes may hide one, also in the JSON within a JSON string
		piiMapStrings(request, func(s string) string {
			take(s)
			piiMapStrings([]byte(s), take)
			return s
		})
	}
	return n
}

func (n *piiNames) name(label, value string) string {
	if p, ok := n.byVal[label+"\x00"+value]; ok {
		return p
	}
	for {
		n.next[label]++
		p := fmt.Sprintf("<%s_%d>", label, n.next[label])
		if n.taken[p] || n.values[p] != "" {
			continue
		}
		n.values[p], n.byVal[label+"\x00"+value] = value, p
		return p
	}
}

// piiBackTo puts values back in the place of placeholders. In arguments, which are JSON text, the value is written as
// JSON writes it, and the brackets may be escaped.
type piiBackTo struct {
	texts, args []piiForm
}

type piiForm struct{ from, to string }

// piiBack reads what before left, here or where the chunk filter runs.
func piiBack(c *messages.Call) (piiBackTo, error) {
	var st piiState
	if _, err := c.State(&st); err != nil {
		return piiBackTo{}, err
	}
	if len(st.Values) == 0 && !c.Slip.Back {
		if f, ok := c.Slip.Frame("pii"); ok && len(f.State) > 0 {
			if err := json.Unmarshal(f.State, &st); err != nil {
				return piiBackTo{}, err
			}
		}
	}
	var b piiBackTo
	for p, v := range st.Values {
		b.texts = append(b.texts, piiForm{p, v})
		esc := string(rawjson.Encode(v))
		esc = esc[1 : len(esc)-1]
		inner := p[1 : len(p)-1]
		b.args = append(b.args, piiForm{p, esc})
		for _, o := range []string{`\u003c`, `\u003C`} {
			for _, e := range []string{`\u003e`, `\u003E`} {
				b.args = append(b.args, piiForm{o + inner + e, esc})
			}
		}
	}
	for _, forms := range [][]piiForm{b.texts, b.args} {
		sort.Slice(forms, func(i, j int) bool { return forms[i].from < forms[j].from })
	}
	return b, nil
}

func (b piiBackTo) message(m chat.Msg) (chat.Msg, bool) {
	if len(b.texts) == 0 {
		return m, false
	}
	m, changed := m.MapText(func(s string) string {
		p := piiPut{forms: b.texts}
		return p.text(s) + p.flush()
	})
	calls := m.ToolCalls()
	edited := false
	for i, t := range calls {
		p := piiPut{forms: b.args, args: true}
		old := t.Arguments()
		if s := p.text(old) + p.flush(); s != old {
			calls[i], edited = t.WithArguments(s), true
		}
	}
	if edited {
		m, changed = m.WithToolCalls(calls), true
	}
	return m, changed
}

// piiPut puts values back in one text that may come in pieces; it holds back only what may begin a placeholder.
type piiPut struct {
	forms []piiForm
	args  bool
	held  string
}

func (p *piiPut) text(piece string) string { return p.scan(p.held+piece, false) }
func (p *piiPut) flush() string            { return p.scan(p.held, true) }

func (p *piiPut) scan(s string, final bool) string {
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

// piiFilter is the stage's chunk filter: it hides what output rules find, then puts placeholders back. It holds back
// a value that is not yet certain, at most 16 KiB of a private key and otherwise a few hundred bytes.
type piiFilter struct {
	editor *piiEditor // nil: output is not looked at
	back   piiBackTo
	texts  map[pipeline.ChunkKey]*piiStream
}

var _ pipeline.ChunkFilter = (*piiFilter)(nil)

type piiStream struct {
	buf string
	pos int // what stands before it is released and kept only for looking back
	put piiPut
}

// newPIIFilter makes the filter of one streamed reply; without an editor it only puts values back.
func newPIIFilter(back piiBackTo, e *piiEditor) *piiFilter {
	return &piiFilter{back: back, editor: e, texts: map[pipeline.ChunkKey]*piiStream{}}
}

// Text implements pipeline.ChunkFilter.
func (f *piiFilter) Text(at pipeline.ChunkKey, piece string) string {
	st := f.stream(at)
	if f.editor != nil && at.Tool < 0 {
		piece = f.hide(st, piece, false)
	}
	return st.put.text(piece)
}

// Flush implements pipeline.ChunkFilter.
func (f *piiFilter) Flush(at pipeline.ChunkKey) string {
	st := f.stream(at)
	out := ""
	if f.editor != nil && at.Tool < 0 {
		out = st.put.text(f.hide(st, "", true))
	}
	return out + st.put.flush()
}

func (f *piiFilter) stream(at pipeline.ChunkKey) *piiStream {
	st := f.texts[at]
	if st == nil {
		st = &piiStream{put: piiPut{forms: f.back.texts}}
		if at.Tool >= 0 {
			st.put = piiPut{forms: f.back.args, args: true}
		}
		f.texts[at] = st
	}
	return st
}

func (f *piiFilter) hide(st *piiStream, piece string, final bool) string {
	st.buf += piece
	var out strings.Builder
	for st.pos < len(st.buf) {
		find, upTo, ok := f.editor.rules.next(st.buf, st.pos, final)
		if !ok {
			out.WriteString(st.buf[st.pos:upTo])
			st.pos = upTo
			break
		}
		out.WriteString(st.buf[st.pos:find.from])
		out.WriteString(f.editor.hide(find, st.buf[find.from:find.to], func() int { return 0 }))
		st.pos = find.to
	}
	if drop := st.pos - 2*piiLook; drop > 0 {
		st.buf, st.pos = st.buf[drop:], st.pos-drop
	}
	return out.String()
}
