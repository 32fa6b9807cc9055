package tool

import "github.com/shallot-nats/shallot/pipeline/tool/args"

// ParseArguments reads the arguments of a call of this tool: see [Parser.Parse]. What the tool says of itself, its
// coercion and the names that may be blank, goes before what o says.
func (d *Definition) ParseArguments(p *args.Parser, raw []byte, o args.Options) (*args.Parsed, *args.Faults) {
	o.Tool, o.Coercion = d.Name, d.coercion(o.Coercion)
	o.AllowBlank = append(o.AllowBlank[:len(o.AllowBlank):len(o.AllowBlank)], d.AllowBlank...)
	return p.Parse(d.InputSchema, raw, o)
}

// coercion is the tool's own mode, else the global one. The wide rules guess, and a tool that says of itself that it
// destroys is not called on a guess: for it they hold only if it is named with them.
func (d *Definition) coercion(global string) string {
	a := d.Annotations
	switch {
	case d.Coercion != "":
		return d.Coercion
	case global == "", global == args.Extended && a != nil && is(a.Destructive) && !is(a.ReadOnly):
		return args.Documents
	}
	return global
}
