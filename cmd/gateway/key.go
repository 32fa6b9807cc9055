package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/httpapi"
)

// runKey is the command "gateway key": it prints a new key, which is not stored, and its record for the keys file.
func runKey(args []string, pepper string, out io.Writer) error {
	fs := flag.NewFlagSet("gateway key", flag.ContinueOnError)
	fs.SetOutput(out)
	var r httpapi.KeyRecord
	var models, agents, tools string
	fs.StringVar(&r.ID, "id", "", "name of the key, for logs and audit (required)")
	fs.StringVar(&r.Tenant, "tenant", "default", "tenant of its calls")
	fs.StringVar(&r.Role, "role", api.RoleCaller, "caller or operator")
	fs.StringVar(&r.User, "user", "", "user of its calls, whatever the caller says")
	fs.StringVar(&models, "models", "", "patterns of models it may use, by comma; empty: all")
	fs.StringVar(&agents, "agents", "", "patterns of agents it may use, by comma; empty: all")
	fs.StringVar(&tools, "tools", "", "patterns of tools it may call, by comma; empty: all")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if r.ID == "" {
		return fmt.Errorf("gateway key: --id is missing; it names the key in logs")
	}
	list := func(s string) []string {
		return strings.FieldsFunc(s, func(c rune) bool { return c == ',' || c == ' ' })
	}
	r.Models, r.Agents, r.Tools = list(models), list(agents), list(tools)
	key := httpapi.NewKey()
	r.Hash = httpapi.HashKey(key, []byte(pepper))
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("gateway key: %w", err)
	}
	if _, err := httpapi.ParseKeys([]byte(`{"keys":[`+string(line)+`]}`), pepper); err != nil {
		return fmt.Errorf("gateway key: %w", err)
	}
	_, err = fmt.Fprintf(out, "key (shown once, stored nowhere): %s\nrecord for http.keys-file, under "+
		"keys:\n  - %s\n", key, line)
	return err
}
