package approval

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/vm"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// facts are the names that a predicate can use.
type facts struct {
	Args    map[string]any `expr:"args"`
	Tool    toolFacts      `expr:"tool"`
	Tenant  string         `expr:"tenant"`
	Role    string         `expr:"role"`
	User    string         `expr:"user"`
	Session string         `expr:"session"`
	Run     string         `expr:"run"`
	Agent   string         `expr:"agent"`
}

type toolFacts struct {
	Name    string `expr:"name"`
	Version string `expr:"version"`
	Effect  string `expr:"effect"`
	Source  string `expr:"source"`
	Class   string `expr:"class"`
}

// predicate is a compiled when.
type predicate struct{ program *vm.Program }

// compile checks a predicate: its names, its types, and that it gives true or false. Functions that would turn a large
// number into another one do not exist.
func compile(text string) (*predicate, error) {
	o := []expr.Option{expr.Env(facts{}), expr.AsBool(), expr.MaxNodes(1000)}
	var found forbidden
	_, err := expr.Compile(text, append(o, expr.Patch(&found))...) // first without our own operators, which take any type
	if err == nil && found != "" {
		err = fmt.Errorf("the function %s cannot be used in a predicate; "+
			"its result may not be exact, or not the same twice", string(found))
	}
	var p *vm.Program
	if err == nil {
		p, err = expr.Compile(text, append(append(o, operators()...), expr.Patch(exactly{}))...)
	}
	if err != nil {
		return nil, fmt.Errorf("%s", strings.TrimSpace(err.Error())) // its second line points at the place
	}
	return &predicate{p}, nil
}

// holds evaluates the predicate for a call. An error means that it has no value. A nil predicate always holds.
func (p *predicate) holds(d *tool.Definition, c *messages.Call) (bool, error) {
	if p == nil {
		return true, nil
	}
	args, err := decode(tool.Arguments(c))
	if err != nil {
		return false, err
	}
	v, err := vm.Run(p.program, facts{
		Args: args, Tool: toolFacts{d.Name, d.Version, d.Effect, string(d.Source), d.Class()},
		Tenant: c.Tenant, Role: c.Role, User: c.User, Session: c.Session, Run: c.Run, Agent: c.Agent,
	})
	if err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		return false, fmt.Errorf("%s", first)
	}
	yes, ok := v.(bool)
	if !ok {
		return false, fmt.Errorf("it gave %T instead of true or false", v)
	}
	return yes, nil
}

// huge is a number that neither an int nor a float64 holds exactly. It can be compared but not calculated with.
type huge struct{ r *big.Rat }

// String writes the number in digits.
func (h huge) String() string {
	if h.r.IsInt() {
		return h.r.Num().String()
	}
	return h.r.RatString()
}

// decode reads arguments without changing any number, and refuses a name that comes twice: the tool might take the
// other value.
func decode(raw []byte) (map[string]any, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	v, err := value(dec)
	if err != nil {
		return nil, fmt.Errorf("the arguments cannot be read: %w", err)
	}
	args, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the arguments are not an object")
	}
	return args, nil
}

func value(dec *json.Decoder) (any, error) {
	t, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Number:
		return number(t.String())
	case json.Delim:
		if t == '[' {
			list := []any{}
			for dec.More() {
				v, err := value(dec)
				if err != nil {
					return nil, err
				}
				list = append(list, v)
			}
			_, err := dec.Token()
			return list, err
		}
		out := map[string]any{}
		for dec.More() {
			k, err := dec.Token()
			if err != nil {
				return nil, err
			}
			name, ok := k.(string)
			if _, twice := out[name]; twice || !ok {
				return nil, fmt.Errorf("the name %q comes twice", name)
			}
			if out[name], err = value(dec); err != nil {
				return nil, err
			}
		}
		if _, err := dec.Token(); err != nil && err != io.EOF {
			return nil, err
		}
		return out, nil
	}
	return t, nil
}

// number reads a JSON number: as an int if it is whole and fits, else as a float64 if that is below 2^53, else as a
// huge.
func number(text string) (any, error) {
	if n, err := strconv.Atoi(text); err == nil {
		return n, nil
	}
	exponent := 0
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		n, err := strconv.Atoi(text[i+1:])
		if err != nil || n > 1000 || n < -1000 {
			return nil, fmt.Errorf("the number %.40s is out of range", text)
		}
		exponent = n
	}
	if len(text)+max(exponent, -exponent) > 2000 {
		return nil, fmt.Errorf("the number %.40s... is too long", text)
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		return nil, fmt.Errorf("%.40s is not a number", text)
	}
	if r.IsInt() {
		if n := r.Num(); n.IsInt64() && int64(int(n.Int64())) == n.Int64() {
			return int(n.Int64()), nil
		}
		return huge{r}, nil
	}
	if f, _ := r.Float64(); math.Abs(f) < 1<<53 {
		return f, nil
	}
	return huge{r}, nil
}
