package args_test

import (
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

// Whatever a model does to good arguments: a tool is never called with another meaning unsaid. They are refused with a
// message that names what was sent and what is wanted, or restored where the rules say so, or the change is told.
func TestDamagedArgumentsAreNeverTakenForOthers(t *testing.T) { // (TL-6, TL-7)
	t.Parallel()
	all := damages()
	require.GreaterOrEqual(t, len(all), 50)
	r := rand.New(rand.NewPCG(20261122, 7))
	var p args.Parser
	made := map[string]int{}
	for i := range 100 {
		s := newSample(r)
		for _, d := range all {
			raw, about := d.make(s)
			if raw == "" {
				continue
			}
			made[d.name]++
			for _, o := range []args.Options{
				{Tool: "tool", Coercion: args.Documents, Undeclared: args.Refuse},
				{Tool: "tool", Coercion: args.Documents, Undeclared: args.Drop},
				{Tool: "tool", Coercion: args.Extended, Undeclared: args.Refuse, Repair: true},
				{Tool: "tool", Coercion: args.Extended, Undeclared: args.Drop, Repair: true},
			} {
				parsed, faults := p.Parse([]byte(s.schema), []byte(raw), o)
				where := fmt.Sprintf("schema %d, %s, %s, %s\n%s\nsent: %s", i, d.name, o.Coercion, o.Undeclared, s.schema, raw)
				judge(t, s, d, o, raw, about, parsed, faults, where)
			}
		}
	}
	for _, d := range all {
		require.Positive(t, made[d.name], "%s was never tried", d.name)
	}
}

func judge(t *testing.T, s *sample, d damage, o args.Options, raw, about string, parsed *args.Parsed,
	faults *args.Faults, where string) {
	t.Helper()
	if faults != nil {
		require.NotEmpty(t, faults.Error(), where)
		if json.Valid([]byte(raw)) {
			require.Contains(t, faults.Error(), about, where)
		} else {
			require.Contains(t, faults.Error(), "not valid JSON", where)
		}
		for _, issue := range faults.Issues {
			require.NotEmpty(t, issue.Message, where)
			if issue.Code == args.CodeTypeMismatch || issue.Code == args.CodeNotAllowed {
				require.NotEmpty(t, issue.Expected, where)
				require.NotEmpty(t, issue.Got, where)
			}
		}
		require.False(t, d.fate != refused && (o.Coercion == args.Extended || d.always), "not restored\n%s\n%s", where,
			faults.Error())
		return
	}
	got := string(parsed.Canonical())
	meant := string(args.Canonical([]byte(s.text)))
	if o.Undeclared == args.Refuse {
		require.False(t, d.fate == refused && (o.Coercion == args.Extended || d.always || !json.Valid([]byte(raw))),
			"taken\n%s\ngot: %s %v", where, got, parsed.Changes)
	}
	if d.fate == restored && (o.Coercion == args.Extended || d.always) {
		require.Equal(t, meant, got, where)
	}
	if got == meant {
		return
	}
	require.True(t, json.Valid([]byte(raw)), "a text that is no JSON became something else\n%s\ngot: %s", where, got)
	require.NotEmpty(t, parsed.Changes, "%s\ngot: %s", where, got)
	explained(t, raw, got, parsed.Changes, where)
}

// explained requires that each difference between what was sent and what came of it is told, and is one of the table's.
func explained(t *testing.T, raw, got string, changes []args.Change, where string) {
	t.Helper()
	told := map[string]bool{}
	for _, c := range changes {
		told[c.Path] = true
		if c.Rule == args.RuleRenamed {
			told["/"+strings.Trim(c.From, `"`)] = true
		}
		require.True(t, allowed(c), "%+v is no change of the table\n%s", c, where)
	}
	var a, b map[string]any
	require.NoError(t, json.Unmarshal([]byte(raw), &a), where)
	require.NoError(t, json.Unmarshal([]byte(got), &b), where)
	for name := range a {
		same := reflect.DeepEqual(a[name], b[name])
		below := slices.ContainsFunc(changes, func(c args.Change) bool { return strings.HasPrefix(c.Path, "/"+name+"/") })
		require.True(t, same || told["/"+name] || below, "%s was changed unsaid\n%s\ngot: %s", name, where, got)
	}
	for name := range b {
		_, sent := a[name]
		require.True(t, sent || told["/"+name], "%s was added unsaid\n%s\ngot: %s", name, where, got)
	}
}

func allowed(c args.Change) bool {
	unquoted := func(s string) string {
		var out string
		if json.Unmarshal([]byte(s), &out) == nil {
			return strings.TrimSpace(out)
		}
		return s
	}
	from, to := unquoted(c.From), unquoted(c.To)
	switch c.Rule {
	case args.RuleToString:
		return from == to
	case args.RuleToInteger, args.RuleToNumber:
		x, ok1 := new(big.Rat).SetString(from)
		y, ok2 := new(big.Rat).SetString(to)
		return ok1 && ok2 && x.Cmp(y) == 0
	case args.RuleToBoolean, args.RuleEnum:
		return strings.EqualFold(from, to)
	case args.RuleWrapped:
		return "["+from+"]" == to
	case args.RuleNull:
		return c.From == "null" && c.To == ""
	case args.RuleDropped, args.RuleTwice, args.RuleUnwrapped, args.RuleRenamed, args.RuleFromJSON:
		return true
	}
	return false
}
