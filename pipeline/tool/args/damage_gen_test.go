package args_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
)

// sample is a schema with arguments that are good, and where they can be damaged.
type sample struct {
	*rand.Rand
	schema string
	text   string   // the arguments as JSON
	names  []string // in order
	kinds  map[string]string
	values map[string]string // as JSON
	needs  map[string]bool   // required
}

var sampleWords = []string{"query", "read_only", "max_rows", "user_id", "start_date", "file_path", "time_zone",
	"order_by", "is_active", "page_size"}

func newSample(r *rand.Rand) *sample {
	s := &sample{Rand: r, kinds: map[string]string{}, values: map[string]string{}, needs: map[string]bool{}}
	var props, required []string
	add := func(kind string) {
		name := sampleWords[len(s.names)]
		def, value := "", ""
		switch kind {
		case "string":
			def, value = `{"type":"string"}`, fmt.Sprintf(`"text %d of it, with: signs"`, r.IntN(100))
		case "integer":
			def, value = `{"type":"integer"}`, fmt.Sprint(r.IntN(1000)+10)
		case "number":
			def, value = `{"type":"number"}`, fmt.Sprintf("%d.25", r.IntN(100)+1)
		case "boolean":
			def, value = `{"type":"boolean"}`, fmt.Sprint(r.IntN(2) == 0)
		case "enum":
			def, value = `{"type":"string","enum":["Celsius","Kelvin"]}`, `"Celsius"`
		case "list":
			def, value = `{"type":"array","items":{"type":"integer"}}`, fmt.Sprintf("[%d,%d]", r.IntN(50), r.IntN(50))
		case "rows":
			def = `{"type":"array","items":{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}}`
			value = fmt.Sprintf(`[{"id":%d}]`, r.IntN(50))
		case "inner":
			def = `{"type":"object","properties":{"deep_name":{"type":"integer"}},"required":["deep_name"],` +
				`"additionalProperties":false}`
			value = fmt.Sprintf(`{"deep_name":%d}`, r.IntN(50))
		}
		if s.needs[name] = len(s.names) == 0 || r.IntN(2) == 0; s.needs[name] {
			required = append(required, fmt.Sprintf("%q", name))
		}
		s.names, s.kinds[name], s.values[name] = append(s.names, name), kind, value
		props = append(props, fmt.Sprintf("%q:%s", name, def))
	}
	kinds := []string{"string", "integer", "number", "boolean", "enum", "list", "rows", "inner"}
	for range r.IntN(6) + 3 {
		add(kinds[r.IntN(len(kinds))])
	}
	s.schema = fmt.Sprintf(`{"type":"object","properties":{%s},"required":[%s]}`, strings.Join(props, ","),
		strings.Join(required, ","))
	s.text = s.object(nil)
	return s
}

// object writes the arguments with some members replaced: "name" -> `"other":value`, or left out if that is empty.
func (s *sample) object(with map[string]string) string {
	var out []string
	for _, n := range s.names {
		member, ok := with[n]
		if !ok {
			member = fmt.Sprintf("%q:%s", n, s.values[n])
		}
		if member != "" {
			out = append(out, member)
		}
	}
	return "{" + strings.Join(out, ",") + "}"
}

// one chooses a member of a kind, required or not as wanted; empty if there is none.
func (s *sample) one(kind string, required ...bool) string {
	for _, n := range s.names {
		if (kind == "" || s.kinds[n] == kind) && (len(required) == 0 || s.needs[n] == required[0]) {
			return n
		}
	}
	return ""
}

// What becomes of damaged arguments under the extended rules.
type fate int

const (
	restored fate = iota // they are what was meant
	refused
	told // another value may come of them, and that is said
)

// damage makes something of good arguments; empty: it cannot. about is the name that a refusal has to say.
type damage struct {
	name   string
	make   func(s *sample) (raw, about string)
	fate   fate
	always bool // the rules of the specification do the same
}

// text is a damage of the arguments' text.
func text(name string, f fate, change func(string) string) damage {
	return damage{name: name, fate: f, make: func(s *sample) (string, string) {
		if out := change(s.text); out != s.text {
			return out, ""
		}
		return "", ""
	}}
}

// member is a damage of one member of a kind.
func member(name, kind string, f fate, change func(s *sample, name, value string) string) damage {
	return damage{name: name, fate: f, make: func(s *sample) (string, string) {
		n := s.one(kind)
		if n == "" {
			return "", ""
		}
		return s.object(map[string]string{n: change(s, n, s.values[n])}), n
	}}
}

// replaced is a damage of the value of one member.
func replaced(name, kind, value string, f fate) damage {
	return member(name, kind, f, func(_ *sample, n, _ string) string { return fmt.Sprintf("%q:%s", n, value) })
}

func (d damage) anyway() damage { d.always = true; return d }

func quoted(s string) string { b, _ := json.Marshal(s); return string(b) }

func camel(s string) string {
	parts := strings.Split(s, "_")
	for i := 1; i < len(parts); i++ {
		parts[i] = strings.ToUpper(parts[i][:1]) + parts[i][1:]
	}
	return strings.Join(parts, "")
}

func cutAfter(s, sign string) string {
	if i := strings.LastIndex(s, sign); i >= 0 {
		return s[:i+len(sign)]
	}
	return s
}

func damages() []damage {
	renamed := func(name string, f fate, spell func(string) string) damage {
		return damage{name: name, fate: f, make: func(s *sample) (string, string) {
			for _, n := range s.names {
				if spell(n) != n {
					return s.object(map[string]string{n: fmt.Sprintf("%q:%s", spell(n), s.values[n])}), n
				}
			}
			return "", ""
		}}
	}
	return []damage{
		text("fence", restored, func(t string) string { return "```json\n" + t + "\n```" }),
		text("bare fence", restored, func(t string) string { return "```\n" + t + "\n```\n" }),
		text("words before", restored, func(t string) string { return "Here are the arguments: " + t }),
		text("words after", restored, func(t string) string { return t + "\nI hope this helps." }),
		text("words around", restored, func(t string) string { return "Sure!\n" + t + "\nDone." }),
		text("line comment", restored, func(t string) string { return strings.Replace(t, "{", "{ // the {input}\n", 1) }),
		text("block comment", restored, func(t string) string { return strings.Replace(t, ":", ": /* it's */ ", 1) }),
		text("hash comment", restored, func(t string) string { return strings.Replace(t, "{", "{ # \"input\"\n", 1) }),
		text("trailing comma", restored, func(t string) string { return t[:len(t)-1] + ",}" }),
		text("trailing comma in a list", restored, func(t string) string { return strings.ReplaceAll(t, "]", ",]") }),
		text("single quotes", restored, func(t string) string { return strings.ReplaceAll(t, `"`, "'") }),
		text("bare names", restored, func(t string) string {
			for _, w := range append(sampleWords, "id", "deep_name") {
				t = strings.ReplaceAll(t, `"`+w+`":`, w+":")
			}
			return t
		}),
		text("Python's words", restored, func(t string) string {
			return strings.ReplaceAll(strings.ReplaceAll(t, ":true", ":True"), ":false", ":False")
		}),
		text("last bracket missing", restored, func(t string) string { return t[:len(t)-1] }),
		text("all last brackets missing", restored, func(t string) string { return strings.TrimRight(t, "}]") }),
		text("all of it", restored, func(t string) string {
			return "OK:\n```\n" + strings.TrimRight(strings.ReplaceAll(t, `"`, "'"), "}]") + " // end\n"
		}),
		text("cut in a text", refused, func(t string) string { return cutAfter(t, "of it") }),
		text("cut after a colon", refused, func(t string) string { return cutAfter(t, ":") }),
		text("cut after a comma", refused, func(t string) string { return cutAfter(t, ",") }),
		text("cut in a name", refused, func(t string) string { return cutAfter(t, `,"`) }),
		text("cut in a word", refused, func(t string) string {
			return strings.Replace(cutAfter(t, ":tru"), ":fals", ":fals",
				1)
		}),
		text("two objects", refused, func(t string) string { return t + t }),
		text("two objects and words", refused, func(t string) string { return t + " or " + t }),
		text("a comma missing", refused, func(t string) string { return strings.Replace(t, `,"`, ` "`, 1) }),
		text("two commas", refused, func(t string) string { return strings.Replace(t, `,"`, `,,"`, 1) }),
		text("a colon missing", refused, func(t string) string { return strings.Replace(t, `":`, `" `, 1) }),
		text("no JSON", refused, func(string) string { return "call it with the usual arguments" }),
		text("typographic quotes", refused, func(t string) string { return strings.ReplaceAll(t, `"`, "”") }),
		text("a list around it", refused, func(t string) string { return "[" + t + "]" }).anyway(),
		text("in a text, twice", restored, func(t string) string { return quoted(quoted(t)) }).anyway(),
		text("in a text", restored, quoted).anyway(),
		text("a mark before it", restored, func(t string) string { return "\ufeff" + t }).anyway(),
		text("in arguments", restored, func(t string) string { return `{"arguments":` + t + `}` }).anyway(),
		text("in parameters, as a text", restored,
			func(t string) string { return `{"parameters":` + quoted(t) + `}` }).anyway(),
		text("a whole call", restored, func(t string) string { return `{"name":"tool","arguments":` + t + `}` }).anyway(),
		text("another tool's call", refused,
			func(t string) string { return `{"name":"other","arguments":` + t + `}` }).anyway(),
		replaced("not a number", "number", "NaN", refused),
		replaced("a variable", "string", "data", refused),
		replaced("arithmetic", "number", "1/6", refused),
		replaced("leading zeros", "integer", "007", refused),
		replaced("no digit before the point", "number", ".5", refused),
		replaced("hexadecimal", "integer", "0x10", refused),
		replaced("concatenated texts", "string", `"a" + "b"`, refused),
		replaced("a tuple", "list", "(1, 2)", refused),
		replaced("half a number", "integer", "3.5", refused).anyway(),
		replaced("a huge number", "integer", `"99999999999999999999"`, refused).anyway(),
		replaced("a number as a word", "integer", `"seven"`, refused).anyway(),
		replaced("one for true", "boolean", "1", refused).anyway(),
		replaced("yes for true", "boolean", `"yes"`, refused).anyway(),
		replaced("an object for a number", "number", `{"value":1}`, refused).anyway(),
		replaced("a member that is not allowed", "enum", `"Fahrenheit"`, refused).anyway(),
		replaced("a number for a text", "string", "1234567890123456789", told).anyway(),
		member("a number as a text", "integer", restored,
			func(_ *sample, n, v string) string { return fmt.Sprintf("%q:%q", n, v) }).anyway(),
		member("a decimal as a text", "number", restored,
			func(_ *sample, n, v string) string { return fmt.Sprintf("%q:%q", n, " "+v+" ") }).anyway(),
		member("a boolean as a text", "boolean", restored,
			func(_ *sample, n, v string) string { return fmt.Sprintf("%q:%q", n, strings.ToUpper(v)) }).anyway(),
		member("another case of a member", "enum", restored,
			func(_ *sample, n, v string) string { return fmt.Sprintf("%q:%s", n, strings.ToLower(v)) }),
		member("a list as a text", "list", restored, func(_ *sample, n,
			v string) string {
			return fmt.Sprintf("%q:%s", n, quoted(v))
		}),
		member("a lone object", "rows", restored, func(_ *sample, n,
			v string) string {
			return fmt.Sprintf("%q:%s", n, strings.Trim(v, "[]"))
		}),
		member("an inner name in another spelling", "inner", restored, func(_ *sample, n, v string) string {
			return fmt.Sprintf("%q:%s", n, strings.Replace(v, "deep_name", "deepName", 1))
		}),
		member("an inner name too many", "inner", refused, func(_ *sample, n, v string) string {
			return fmt.Sprintf("%q:%s", n, strings.Replace(v, "{", `{"dry_run":true,`, 1))
		}).anyway(),
		member("twice", "integer", told, func(_ *sample, n,
			v string) string {
			return fmt.Sprintf("%q:1,%q:%s", n, n, v)
		}).anyway(),
		renamed("camel case", restored, camel),
		renamed("capitals", restored, strings.ToUpper),
		renamed("dashes", restored, func(s string) string { return strings.ReplaceAll(s, "_", "-") }),
		renamed("a slip in a name", refused, func(s string) string { return s[:len(s)-1] + "x" }).anyway(),
		renamed("a name and more", refused, func(s string) string { return "my_own_" + s + "_value" }).anyway(),
		{name: "a name too many", fate: refused, always: true, make: func(s *sample) (string, string) {
			return strings.Replace(s.text, "{", `{"dry_run":true,`, 1), "dry_run"
		}},
		{name: "a needed one missing", fate: refused, always: true, make: func(s *sample) (string, string) {
			n := s.one("", true)
			return s.object(map[string]string{n: ""}), n
		}},
		{name: "a needed one null", fate: refused, always: true, make: func(s *sample) (string, string) {
			n := s.one("", true)
			return s.object(map[string]string{n: fmt.Sprintf("%q:null", n)}), n
		}},
		{name: "another one null", fate: told, always: true, make: func(s *sample) (string, string) {
			n := s.one("", false)
			if n == "" {
				return "", ""
			}
			return s.object(map[string]string{n: fmt.Sprintf("%q:null", n)}), n
		}},
	}
}
