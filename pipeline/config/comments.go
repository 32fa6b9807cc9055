package config

import (
	"embed"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strings"
	"sync"
)

// sources hold the structs of the configuration, whose comments say what the keys mean.
//
//go:embed config.go tools.go
var sources embed.FS

// comments are the comments of the fields in sources, by type and field: "Bus.Root". They are read when the first is
// asked for, because a process that starts needs none.
var comments = sync.OnceValue(func() map[string]string {
	out := map[string]string{}
	for _, name := range []string{"config.go", "tools.go"} {
		src, _ := sources.ReadFile(name)
		file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			continue // impossible: this package was compiled from it
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if record, ok := spec.Type.(*ast.StructType); ok {
				for _, f := range record.Fields.List {
					for _, id := range f.Names {
						out[spec.Name.Name+"."+id.Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
					}
				}
			}
			return false
		})
	}
	return out
})

// meaning is one sentence about a key for people and editors: the tag doc, or the comment of a field of this package.
func (f field) meaning() string {
	if f.doc != "" || f.owner.PkgPath() != reflect.TypeFor[Config]().PkgPath() {
		return f.doc
	}
	return comments()[f.owner.Name()+"."+f.goName]
}
