package tool

import (
	"encoding/json"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

// ParseArguments reads the arguments of a call of this tool: see [args.Parser.Parse]. What the tool declares - its
// coercion, what becomes of undeclared names, the names that may be blank - overrides o. e is the tool's policy.
func (d *Definition) ParseArguments(
	p *args.Parser, raw []byte, o args.Options, e Effective,
) (*args.Parsed, *args.Faults) {
	o.Tool, o.Coercion, o.Undeclared = d.Name, d.coercion(o.Coercion), d.undeclared(o.Undeclared, e)
	o.AllowBlank = append(o.AllowBlank[:len(o.AllowBlank):len(o.AllowBlank)], d.AllowBlank...)
	o.Repair = o.Coercion == args.Extended && !d.destructive()
	if o.Formats == "" && o.Coercion == args.Extended {
		o.Formats = args.Assert
	}
	return p.Parse(d.InputSchema, raw, o)
}

// Arguments are the arguments of a tool call: its request, or an empty object if it has none.
func Arguments(c *messages.Call) json.RawMessage {
	if raw := c.Request(); !rawjson.IsNull(raw) {
		return raw
	}
	return json.RawMessage("{}")
}

// coercion is the tool's own mode, else the global one. The extended rules guess, and a tool that declares itself
// destructive is not called on a guess, unless the tool itself asks for them.
func (d *Definition) coercion(global string) string {
	switch {
	case d.Coercion != "":
		return d.Coercion
	case global == "", global == args.Extended && d.destructive():
		return args.Documents
	}
	return global
}

// undeclared says what becomes of names that the schema does not declare. A tool that changes something, or may, is not
// called with a part of what was sent left out: that part may have made the call harmless.
func (d *Definition) undeclared(global string, e Effective) string {
	mode := d.UndeclaredArguments
	if mode == "" {
		mode = global
	}
	switch {
	case mode != "" && mode != args.Auto:
		return mode
	case e.Effect == EffectRead, e.Effect == EffectUnknown && e.Idempotent && !d.destructive():
		return args.Drop
	}
	return args.Refuse
}

// destructive reports whether the tool declares that it destroys something.
func (d *Definition) destructive() bool {
	a := d.Annotations
	return d.Effect == EffectDestructive || a != nil && is(a.Destructive) && !is(a.ReadOnly)
}
