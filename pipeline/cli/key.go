package cli

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/httpapi"
)

// Key is "gateway key": it prints a new key, which is not stored, and its record for the keys file.
func Key() *cobra.Command {
	c := &cobra.Command{Use: "key --id NAME", Short: "Make an API key and its record for the keys file",
		Args: cobra.NoArgs}
	var r httpapi.KeyRecord
	fs := c.Flags()
	fs.StringVar(&r.ID, "id", "", "`name` of the key, for logs and audit")
	fs.StringVar(&r.Tenant, "tenant", "default", "`tenant` of its calls")
	fs.StringVar(&r.Role, "role", api.RoleCaller, "`role`: caller or operator")
	fs.StringVar(&r.User, "user", "", "`user` of its calls, whatever the caller says")
	fs.StringSliceVar(&r.Models, "models", nil, "`patterns` of models it may use, by comma; none: all")
	fs.StringSliceVar(&r.Agents, "agents", nil, "`patterns` of agents it may use, by comma; none: all")
	fs.StringSliceVar(&r.Tools, "tools", nil, "`patterns` of tools it may call, by comma; none: all")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if r.ID == "" {
			return Usage("--id is missing; name the key, for example: gateway key --id billing")
		}
		pepper, key := os.Getenv(httpapi.PepperEnv), httpapi.NewKey()
		r.Hash = httpapi.HashKey(key, []byte(pepper))
		line, err := json.Marshal(r)
		if err == nil {
			_, err = httpapi.ParseKeys([]byte(`{"keys":[`+string(line)+`]}`), pepper)
		}
		if err != nil {
			return Usage("key: %w", err)
		}
		_, err = fmt.Fprintf(c.OutOrStdout(), "key (shown once, stored nowhere): %s\nrecord for http.keys-file, under "+
			"keys:\n  - %s\n", key, line)
		return err
	}
	return c
}
