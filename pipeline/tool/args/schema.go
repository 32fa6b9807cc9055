package args

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// Parser reads arguments. It keeps compiled schemas by the hash of their content. The zero value is ready for use; it
// is safe for concurrent use.
type Parser struct {
	mu   sync.Mutex
	kept map[schemaKey]*schema
}

// schemaKey is a schema's content and whether its formats are checked.
type schemaKey struct {
	sum    [sha256.Size]byte
	assert bool
}

// maxSchemas bounds the compiled schemas. When it is reached all are dropped, and compiled again when needed.
const maxSchemas = 4096

const schemaURL = "tool:///schema"

// schema is a compiled schema together with what the library does not tell: the order of properties, formats and
// unknown type names, found by a subschema's place.
type schema struct {
	root *jsonschema.Schema
	doc  *value
	// unknown holds type names that JSON Schema does not define, by the pointer of their schema.
	unknown map[string]string
	// lax lists patterns that are not checked: Go cannot read them (look-around), or they are too large to be run.
	lax []string
	err error
	at  string // where err is, as a JSON pointer

	bulk  int  // see measure
	rings bool // it leads back into itself

	seen sync.Map // *jsonschema.Schema -> *extra
}

// extra is what the library does not tell of one subschema.
type extra struct {
	names   []string // properties in order
	format  string
	unknown string // the unknown type name, if it has one
	fixed   *value // the default, if there is one that is not null
}

func (s *schema) extra(sub *jsonschema.Schema) *extra {
	if e, ok := s.seen.Load(sub); ok {
		return e.(*extra)
	}
	e := &extra{names: s.names(sub), format: s.format(sub), unknown: s.unknown[place(sub)]}
	if n := s.node(sub); n != nil {
		if d := n.get("default"); d != nil && d.kind != kNull {
			e.fixed = d
		}
	}
	s.seen.Store(sub, e)
	return e
}

func (p *Parser) schema(raw []byte, assert bool) *schema {
	sum := schemaKey{sha256.Sum256(raw), assert}
	p.mu.Lock()
	s, ok := p.kept[sum]
	p.mu.Unlock()
	if ok {
		return s
	}
	s = compile(raw, assert)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept == nil || len(p.kept) >= maxSchemas {
		p.kept = map[schemaKey]*schema{}
	}
	p.kept[sum] = s
	return s
}

// CheckSchema compiles a schema. If it is refused, it returns the place (a JSON pointer) and the reason. The arguments
// of a tool are an object, so an input schema must be able to accept one. An empty schema is accepted.
func (p *Parser) CheckSchema(raw []byte, input bool) (at string, err error) {
	if len(raw) == 0 {
		return "", nil
	}
	s := p.schema(raw, false)
	if s.err != nil {
		return s.at, s.err
	}
	if input {
		if t := resolve(s.root).Types; t != nil && !slices.Contains(t.ToStrings(), "object") {
			return "/type", fmt.Errorf("arguments are an object; the schema wants %s", strings.Join(t.ToStrings(), " or "))
		}
	}
	return "", nil
}

// SchemaWarnings lists what will not work as the author of a schema may think.
func (p *Parser) SchemaWarnings(raw []byte) []string {
	if len(raw) == 0 {
		return nil
	}
	s := p.schema(raw, false)
	var out []string
	for at, t := range s.unknown {
		out = append(out, fmt.Sprintf("%s/type: %q is not a type of JSON Schema; every value given for it will be refused",
			at, t))
	}
	for _, l := range s.lax {
		out = append(out, fmt.Sprintf("pattern %q is not checked: Go's regexp cannot read it, or it is too large to be run",
			Clip(l)))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// noLoader refuses to fetch: a schema must never make this process read a file or use the network.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("the reference %s leaves the schema; only local references are followed", url)
}

type anyText struct{ source string }

func (anyText) MatchString(string) bool { return true }
func (a anyText) String() string        { return a.source }

func compile(raw []byte, assert bool) *schema {
	s := &schema{unknown: map[string]string{}}
	doc, err := parseValue(raw)
	if err != nil {
		s.err = err
		return s
	}
	if doc.kind != kObject && doc.kind != kBool {
		s.err = fmt.Errorf("a schema is an object, not %s", article(kindNames[doc.kind]))
		return s
	}
	s.doc = doc
	clean := doc.clone()
	s.strip(clean, "", true)
	if assert {
		onlyFormats(clean, true)
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	if assert {
		c.AssertFormat()
	}
	c.UseRegexpEngine(func(p string) (jsonschema.Regexp, error) {
		if len(p) > 4096 {
			return nil, fmt.Errorf("a pattern of %d bytes", len(p))
		}
		r, ok := readPattern(p)
		if !ok {
			s.lax = append(s.lax, p)
			return anyText{p}, nil
		}
		return r, nil
	})
	if err := c.AddResource(schemaURL, clean.plain()); err != nil {
		s.err = err
		return s
	}
	if s.root, err = c.Compile(schemaURL); err != nil {
		s.at, s.err = schemaPlace(err)
		return s
	}
	s.measure()
	return s
}

// formats are those that can be asserted, because all implementations agree on what they accept.
var formats = []string{"date", "date-time", "time", "email", "uuid", "uri"}

// onlyFormats removes all other formats, so that they are not checked.
func onlyFormats(v *value, isSchema bool) {
	for i, k := range v.keys {
		if isSchema && slices.Contains(dataKeys, k) {
			continue
		}
		onlyFormats(v.vals[i], !isSchema || !slices.Contains(mapKeys, k))
	}
	if v.kind == kArray {
		for _, x := range v.vals {
			onlyFormats(x, isSchema)
		}
	}
	if f := v.get("format"); isSchema && f != nil && !slices.Contains(formats, f.str) {
		v.keep(func(k string) bool { return k != "format" })
	}
}

// dataKeys hold data, not schemas, so nothing in them is a keyword.
var dataKeys = []string{"enum", "const", "default", "examples", "example"}

// mapKeys hold maps from names to schemas.
var mapKeys = []string{"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}

var knownTypes = []string{"null", "boolean", "number", "integer", "string", "array", "object"}

// strip removes unknown type names and notes them, so that the rest of the schema still works; each value given for
// such a type is refused later. A null default counts as none. Unknown keywords, such as OpenAPI's, are left alone.
func (s *schema) strip(v *value, at string, isSchema bool) {
	switch v.kind {
	case kArray:
		for i, x := range v.vals {
			s.strip(x, at+"/"+strconv.Itoa(i), isSchema)
		}
	case kObject:
		if t := v.get("type"); isSchema && t != nil {
			s.stripType(v, t, at)
		}
		for i, k := range v.keys {
			if isSchema && slices.Contains(dataKeys, k) {
				continue
			}
			s.strip(v.vals[i], pointer(at, k), !isSchema || !slices.Contains(mapKeys, k))
		}
	}
}

func (s *schema) stripType(v, t *value, at string) {
	drop := func() { v.keep(func(k string) bool { return k != "type" }) }
	switch {
	case t.kind == kString && !slices.Contains(knownTypes, t.str):
		s.unknown[at] = t.str
		drop()
	case t.kind == kArray:
		var known []*value
		bad := ""
		for _, x := range t.vals {
			if x.kind == kString && !slices.Contains(knownTypes, x.str) {
				bad = x.str
				continue
			}
			known = append(known, x)
		}
		if bad == "" {
			return
		}
		if t.vals = known; len(known) == 0 {
			s.unknown[at] = bad
			drop()
		}
	}
}

func schemaPlace(err error) (at string, reason error) {
	var inv *jsonschema.SchemaValidationError
	if errors.As(err, &inv) {
		var v *jsonschema.ValidationError
		if errors.As(inv.Err, &v) {
			leaf := v
			for len(leaf.Causes) > 0 {
				leaf = leaf.Causes[0]
			}
			for _, p := range leaf.InstanceLocation {
				at = pointer(at, p)
			}
			return at, errors.New(sayKind(leaf.ErrorKind))
		}
		return "", inv.Err
	}
	text := strings.ReplaceAll(err.Error(), schemaURL, "")
	if _, frag, ok := strings.Cut(text, "#"); ok {
		word := func(r rune) bool { return r == ' ' || r == '"' || r == '\'' }
		at = strings.Trim(strings.FieldsFunc(frag, word)[0], ":,")
		if !strings.HasPrefix(at, "/") {
			at = ""
		}
	}
	return at, errors.New(text)
}

// resolve follows local references. A ring of references ends where it began.
func resolve(s *jsonschema.Schema) *jsonschema.Schema {
	for range MaxDepth {
		if s == nil || s.Ref == nil || s.Types != nil || s.Properties != nil || s.AnyOf != nil || s.OneOf != nil {
			return s
		}
		s = s.Ref
	}
	return s
}

// place is the JSON pointer of a subschema within its document.
func place(s *jsonschema.Schema) string {
	_, frag, _ := strings.Cut(s.Location, "#")
	if at, err := url.PathUnescape(frag); err == nil {
		return at
	}
	return frag
}

// node is the subschema as it was written.
func (s *schema) node(sub *jsonschema.Schema) *value {
	v := s.doc
	at := place(sub)
	if at == "" {
		return v
	}
	for _, part := range strings.Split(strings.TrimPrefix(at, "/"), "/") {
		part = unpoint(part)
		switch {
		case v == nil:
			return nil
		case v.kind == kArray:
			i, err := strconv.Atoi(part)
			if err != nil || i < 0 || i >= len(v.vals) {
				return nil
			}
			v = v.vals[i]
		default:
			v = v.get(part)
		}
	}
	return v
}

// names lists the properties of a subschema in the order in which it is written.
func (s *schema) names(sub *jsonschema.Schema) []string {
	var out []string
	if n := s.node(sub); n != nil {
		if p := n.get("properties"); p != nil {
			for _, k := range p.keys {
				if sub.Properties[k] != nil {
					out = append(out, k)
				}
			}
		}
	}
	if len(out) == len(sub.Properties) {
		return out
	}
	out = out[:0] // a place that could not be followed (an $id inside): any fixed order is good
	for k := range sub.Properties {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func (s *schema) format(sub *jsonschema.Schema) string {
	if sub.Format != nil {
		return sub.Format.Name
	}
	if n := s.node(sub); n != nil {
		if f := n.get("format"); f != nil && f.kind == kString {
			return f.str
		}
	}
	return ""
}

func sayKind(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.Type:
		return "is " + article(k.Got) + "; a schema wants " + strings.Join(k.Want, " or ") + " here"
	case *kind.Enum:
		return "has a value that JSON Schema does not know here"
	}
	return "is not as JSON Schema wants it (" + strings.Join(k.KeywordPath(), "/") + ")"
}

func article(s string) string {
	if s != "" && strings.ContainsRune("aeiou", rune(s[0])) {
		return "an " + s
	}
	if s == "null" {
		return s
	}
	return "a " + s
}
