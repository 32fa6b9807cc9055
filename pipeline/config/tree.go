package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/shallot-nats/shallot/pipeline/files"
)

// source is the file being read.
type source struct {
	name    string
	lines   []string
	secrets []string
	env     map[string]string
	used    map[string]bool // variables named by ${VAR}
	found   []*Problem
	anchors map[string]*node
	plain   bool // ${VAR} is text
}

const (
	maxFile  = 1 << 20
	maxDepth = 100
	maxNodes = 200_000
)

// place is a place in the file, or, with a source, a variable or flag. The zero value is no place.
type place struct {
	line, column int
	source       string
}

func placeAt(p *token.Position) place { return place{line: p.Line, column: p.Column} }

// bad records a problem. Reading goes on, so that one run reports all of them.
func (s *source) bad(at place, path, format string, args ...any) {
	s.found = append(s.found, &Problem{
		File: s.name, Line: at.line, Column: at.column, Source: at.source, Path: path,
		Text: fmt.Sprintf(format, args...),
	})
}

// read opens and parses the file; nil is an empty one.
func (s *source) read(file string) *node {
	raw, err := files.Read(file, maxFile)
	if err != nil {
		why := err.Error()
		if at, ok := errors.AsType[*fs.PathError](err); ok {
			why = at.Err.Error()
		}
		s.bad(place{}, "", "%s; name an existing file, or none for the defaults", why)
		return nil
	}
	return s.parse(raw)
}

// parse never panics, whatever the bytes are: the parser's own panics become a problem.
func (s *source) parse(raw []byte) (root *node) {
	raw = bytes.TrimPrefix(raw, []byte("\xef\xbb\xbf"))
	if len(raw) > maxFile {
		s.bad(place{}, "", "the file has %d bytes; at most %d", len(raw), maxFile)
		return nil
	}
	s.lines = strings.Split(string(raw), "\n")
	defer func() {
		if r := recover(); r != nil {
			root = nil
			s.bad(place{}, "", "not readable as YAML: %v", r)
		}
	}()
	toks := lexer.Tokenize(string(raw))
	if t := tooDeep(toks); t != nil {
		s.bad(placeAt(t.Position), "", "nested more than %d deep", maxDepth)
		return nil
	}
	f, err := parser.Parse(toks, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		s.syntax(err)
		return nil
	}
	var body ast.Node
	for _, d := range f.Docs {
		if d.Body == nil || slices.Contains(nothing, d.Body.Type()) {
			continue
		}
		if body != nil {
			s.bad(placeAt(d.Body.GetToken().Position), "", "a second YAML document; the configuration is one")
			return nil
		}
		body = d.Body
	}
	if body == nil {
		return nil
	}
	root = s.node(body, "", false, 0)
	if left := maxNodes; !root.count(&left, 0) {
		s.bad(root.place, "", "nesting or aliases make the file grow beyond %d values or %d levels",
			maxNodes, maxDepth)
		return nil
	}
	return root
}

// nothing lists the types of nodes that hold no value.
var nothing = []ast.NodeType{ast.CommentType, ast.CommentGroupType, ast.DirectiveType}

func (s *source) syntax(err error) {
	var y yaml.Error
	if !errors.As(err, &y) || y.GetToken() == nil || y.GetToken().Position == nil {
		s.bad(place{}, "", "not readable as YAML: %v", err)
		return
	}
	p, hint := y.GetToken().Position, ""
	if p.Line >= 1 && p.Line <= len(s.lines) {
		line := s.lines[p.Line-1]
		switch {
		case strings.Contains(line, "${"):
			hint = `; in { } and [ ] write "${VAR}" with quotes`
		case strings.Contains(line, "\t"):
			hint = "; indent with spaces, not tabs"
		}
	}
	s.bad(placeAt(p), "", "not readable as YAML: %s%s", y.GetMessage(), hint)
}

// tooDeep returns the first token that is nested too deeply for the parser, which recurses; nil if there is none.
func tooDeep(toks token.Tokens) *token.Token {
	flow, line, inline := 0, 0, 0
	for _, t := range toks {
		if t.Position == nil {
			continue
		}
		if t.Position.Line != line {
			line, inline = t.Position.Line, 0
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow--
		case token.SequenceEntryType, token.MappingKeyType, token.TagType, token.AnchorType:
			inline++
		}
		if flow > maxDepth || inline > maxDepth {
			return t
		}
	}
	return nil
}

// node copies the parser's tree: aliases resolved (shared, not copied), merge keys merged, ${VAR} replaced in values.
func (s *source) node(a ast.Node, path string, secret bool, depth int) *node {
	if a == nil {
		return &node{}
	}
	n := &node{}
	if t := a.GetToken(); t != nil && t.Position != nil {
		n.place = placeAt(t.Position)
	}
	if depth > maxDepth {
		s.bad(n.place, path, "nested more than %d deep", maxDepth)
		return n
	}
	switch a := a.(type) {
	case *ast.NullNode:
	case *ast.BoolNode:
		n.kind, n.text = boolean, strconv.FormatBool(a.Value)
	case *ast.IntegerNode:
		n.kind, n.text = integer, a.Token.Value
	case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		n.kind, n.text = float, a.GetToken().Value
	case *ast.StringNode:
		n.kind, n.text = text, a.Value
		s.scalar(n, path, secret)
	case *ast.LiteralNode:
		n.kind = text
		if a.Value != nil {
			n.text = a.Value.Value
		}
		s.scalar(n, path, secret)
	case *ast.MappingNode:
		n.kind = mapping
		s.mapping(n, a.Values, path, secret, depth)
	case *ast.MappingValueNode:
		n.kind = mapping
		s.mapping(n, []*ast.MappingValueNode{a}, path, secret, depth)
	case *ast.SequenceNode:
		n.kind = sequence
		for i, v := range a.Values {
			n.items = append(n.items, s.node(v, fmt.Sprintf("%s[%d]", path, i), secret, depth+1))
		}
	case *ast.AnchorNode:
		v := s.node(a.Value, path, secret, depth+1)
		if a.Name != nil {
			s.anchors[a.Name.GetToken().Value] = v
		}
		return v
	case *ast.AliasNode:
		name := ""
		if a.Value != nil {
			name = a.Value.GetToken().Value
		}
		if v := s.anchors[name]; v != nil {
			return v
		}
		s.bad(n.place, path, "alias *%s: no anchor &%s above", name, name)
	case *ast.TagNode:
		v := s.node(a.Value, path, secret, depth+1)
		switch a.Start.Value {
		case "!!str":
			if v.kind != mapping && v.kind != sequence {
				v.kind = text
			}
		case "!!int", "!!float", "!!bool", "!!map", "!!seq", "!!null":
		default:
			s.bad(n.place, path, "tag %s is not known here; leave it out", a.Start.Value)
		}
		return v
	default:
		s.bad(n.place, path, "a %s cannot stand here", a.Type())
	}
	return n
}

func (s *source) mapping(n *node, values []*ast.MappingValueNode, path string, secret bool, depth int) {
	first := map[string]entry{}
	var merges []*node
	if len(values) > 0 && values[0].Key != nil {
		if t := values[0].Key.GetToken(); t != nil && t.Position != nil {
			n.place = placeAt(t.Position)
		}
	}
	for _, v := range values {
		if v.Key.IsMergeKey() {
			m := s.node(v.Value, path, secret, depth+1)
			if m.kind == sequence {
				merges = append(merges, m.items...)
			} else {
				merges = append(merges, m)
			}
			continue
		}
		t := v.Key.GetToken()
		if k, ok := v.Key.(*ast.MappingKeyNode); ok && k.Value != nil {
			t = k.Value.GetToken()
		}
		e := entry{key: t.Value, place: placeAt(t.Position)}
		below := secret || secretKey(e.key) || e.key == "headers" || e.key == "env"
		e.value = s.node(v.Value, dot(path, e.key), below, depth+1)
		if old, twice := first[e.key]; twice {
			s.bad(e.place, dot(path, e.key), "the key stands here twice; the first is in line %d. Keep one",
				old.line)
			continue
		}
		first[e.key] = e
		n.entries = append(n.entries, e)
	}
	for _, m := range merges {
		if m.kind != mapping {
			s.bad(m.place, path, "<< takes a mapping, not %s", m.kind)
			continue
		}
		for _, e := range m.entries {
			if _, own := first[e.key]; !own {
				first[e.key] = e
				n.entries = append(n.entries, e)
			}
		}
	}
}

// toolHeader is the path of a header of a tool.
var toolHeader = regexp.MustCompile(`^tool\.tools\[[0-9]+\]\.executor\.headers\.`)

// scalar replaces ${VAR} and $$, and notes secrets.
func (s *source) scalar(n *node, path string, secret bool) {
	if secret && !strings.HasPrefix(n.text, "${") {
		for line := range strings.Lines(n.text) {
			if l := strings.TrimSpace(line); len(l) >= 4 {
				s.secrets = append(s.secrets, l)
			}
		}
	}
	if s.plain {
		return
	}
	if toolHeader.MatchString(path) { // it is kept as it is written, and resolved by whoever sends it
		for _, part := range strings.Split(n.text, "${")[1:] {
			name, _, _ := strings.Cut(part, "}")
			s.used[name] = true
			if value := s.env[name]; len(value) >= 6 {
				s.secrets = append(s.secrets, value)
			}
		}
		return
	}
	rest, b := n.text, strings.Builder{}
	for {
		before, after, ok := strings.Cut(rest, "$")
		b.WriteString(before)
		if !ok {
			break
		}
		rest = after
		switch {
		case strings.HasPrefix(rest, "$"):
			b.WriteByte('$')
			rest = rest[1:]
		case strings.HasPrefix(rest, "{"):
			name, tail, closed := strings.Cut(rest[1:], "}")
			value, set := s.env[name]
			switch {
			case !closed || !isVariable(name):
				s.bad(n.place, path,
					"${...} takes the name of a variable, such as ${HOME}; write $$ for a plain $")
			case !set:
				s.used[name] = true
				s.bad(n.place, path, "variable %s is not set; set it, or write $$ for a plain $", name)
			default:
				s.used[name] = true
				n.loose = true
				b.WriteString(value)
				if len(value) >= 6 { // a variable may hold a secret, whatever its name
					s.secrets = append(s.secrets, value)
				}
			}
			rest = tail
		default:
			b.WriteByte('$')
		}
	}
	n.text = b.String()
}

func isVariable(s string) bool {
	for i, r := range s {
		if r != '_' && !(r >= 'A' && r <= 'Z') && !(r >= 'a' && r <= 'z') && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}
