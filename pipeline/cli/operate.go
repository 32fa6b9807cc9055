package cli

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/tidwall/gjson"
)

// Clients are the commands that ask a running installation.
func Clients() []*cobra.Command {
	return []*cobra.Command{statusCommand(), Health(), stats(), stages(), tools(), approvals(), dead(), redrive(),
		callsCommand(), trace(), tail(), loadCommand()}
}

// groups are the commands as help shows them, each with an example of what people do with it most.
var groups = []struct {
	id, title string
	examples  map[string]string // by command
}{
	{"run", "Run:", map[string]string{"serve": "serve --config shallot.yaml", "mcp": "mcp --config shallot.yaml",
		"provision": "provision --nats nats://127.0.0.1:4222", "config": "config check shallot.yaml",
		"key": "key --id billing --tenant acme"}},
	{"look", "Look:", map[string]string{"status": "status", "health": "health --url http://127.0.0.1:8080",
		"stats": "stats -o json", "calls": "calls --outcome fault --since 15m",
		"trace": "trace 01a20353-b030-7e96-a751-67ff8788a5a1", "tail": "tail --tenant acme"}},
	{"steer", "Steer:", map[string]string{"stages": "stages off logging", "tools": `tools call add '{"a":1,"b":2}'`,
		"approvals": "approvals approve 01a20353-b030-7e96-a751-67ff8788a5a1", "dead": "dead --reason deliveries",
		"redrive": "redrive --since 2h", "load": "load --callers 1,16 --for 10s"}},
}

// Arrange puts the subcommands of a command into the groups of its help, and has all of them refuse arguments that they
// do not understand. Call it after the last was added.
func Arrange(root *cobra.Command) {
	strict(root)
	for _, g := range groups {
		for _, c := range root.Commands() {
			example, ours := g.examples[c.Name()]
			if !ours {
				continue
			}
			if !root.ContainsGroup(g.id) {
				root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
			}
			c.GroupID, c.Example = g.id, "  "+root.Name()+" "+example
		}
	}
}

// errNotReady ends status and health of an installation that is not ready: its checks are printed.
var errNotReady = errors.New("not ready")

func ready(c *cobra.Command, k *client) (gjson.Result, error) {
	status, v, err := k.answer(c.Context(), http.MethodGet, "/readyz", nil, nil)
	if err == nil && status != http.StatusOK {
		err = errNotReady
		if !v.Get("checks").Exists() {
			err = refusedBy(status, v)
		}
	}
	return v, err
}

func checks(v gjson.Result) table {
	t := table{heads: "check,state,what", none: "no checks"}
	for _, one := range v.Get("checks").Array() {
		state := word(one.Get("ok").Bool(), "ok", "failed")
		t.add(one.Get("name").Str, or(one.Get("state").Str, state), or(one.Get("reason").Str, "-"))
	}
	return t
}

// statusCommand shows the readiness of the gateway and who is there.
func statusCommand() *cobra.Command {
	return asking("status", "Show whether the installation can serve, and what is missing", cobra.NoArgs,
		func(c *cobra.Command, k *client, _ []string) error {
			v, notReady := ready(c, k)
			if notReady != nil && !errors.Is(notReady, errNotReady) {
				return notReady
			}
			d, err := k.ask(c.Context(), http.MethodGet, "/api/debug/interceptor/diagnostics", nil, nil)
			if err != nil {
				return errors.Join(k.show(c, v, checks), notReady, err)
			}
			if k.form == "json" {
				whole := gjson.Parse(`{"ready":` + v.Raw + `,"diagnostics":` + d.Raw + `}`)
				return errors.Join(k.show(c, whole, nil), notReady)
			}
			err = errors.Join(checks(v).print(c.OutOrStdout()), blank(c), processes(d).print(c.OutOrStdout()), blank(c),
				backlog(d).print(c.OutOrStdout()))
			if n := d.Get("deadLetters").Int(); n > 0 {
				fmt.Fprintf(c.OutOrStdout(), "\n%s; see gateway dead\n", some(n, "dead letter"))
			}
			return errors.Join(err, notReady)
		})
}

func blank(c *cobra.Command) error {
	_, err := fmt.Fprintln(c.OutOrStdout())
	return err
}

func processes(d gjson.Result) table {
	t := table{heads: "process,name,entry,stages,targets,calls", none: "no process answers"}
	for _, p := range d.Get("processes").Array() {
		var targets []string
		for _, one := range p.Get("targets").Array() {
			targets = append(targets, one.Str)
		}
		t.add(p.Get("id").Str, p.Get("name").Str, word(p.Get("entry").Bool(), "yes", "no"),
			fmt.Sprint(len(p.Get("hosts").Array())), or(strings.Join(targets, " "), "-"), p.Get("held").Raw)
	}
	return t
}

// backlog is what is done and what waits at each class of targets: for a slot of a worker, in line at the owners of the
// calls, and in the store.
func backlog(d gjson.Result) table {
	t := table{heads: "target,in work,free,waits,in line,stored", none: "no process serves a target"}
	type class struct{ busy, free, queued, line, stored int64 }
	sums, names := map[string]*class{}, []string{}
	at := func(name string) *class {
		if sums[name] == nil {
			sums[name], names = &class{}, append(names, name)
		}
		return sums[name]
	}
	for _, one := range d.Get("processes.#.capacity|@flatten").Array() {
		s := at(one.Get("kind").Str + "/" + one.Get("class").Str)
		s.busy, s.free = s.busy+one.Get("busy").Int(), s.free+one.Get("free").Int()
		s.queued, s.line = s.queued+one.Get("queued").Int(), s.line+one.Get("waiting").Int()
	}
	for _, q := range d.Get("queues").Array() {
		if n := q.Get("pending").Int(); n > 0 {
			at(strings.Replace(q.Get("consumer").Str, "-", "/", 1)).stored += n
		}
	}
	slices.Sort(names)
	for _, name := range names {
		s := sums[name]
		t.add(name, fmt.Sprint(s.busy), fmt.Sprint(s.free), fmt.Sprint(s.queued), fmt.Sprint(s.line), fmt.Sprint(s.stored))
	}
	return t
}

// Health is for containers: it says nothing but whether a process is ready.
func Health() *cobra.Command {
	return asking("health", "End with 0 if the process at --url is ready, else with 1; for health checks", cobra.NoArgs,
		func(c *cobra.Command, k *client, _ []string) error {
			v, err := ready(c, k)
			if err != nil {
				var why []string
				for _, one := range v.Get("checks.#(ok==false)#").Array() {
					why = append(why, one.Get("name").Str+": "+one.Get("reason").Str)
				}
				if len(why) > 0 {
					err = fmt.Errorf("%w: %s", err, strings.Join(why, "; "))
				}
				if k.form == "json" && errors.Is(err, errNotReady) {
					err = errors.Join(k.show(c, v, nil), err)
				}
				return err
			}
			return k.show(c, v, func(v gjson.Result) table { return table{none: v.Get("status").Str} })
		})
}

func stats() *cobra.Command {
	return get("stats", "Show how often each stage ran, how long, and what failed", "/api/debug/interceptor-stats",
		func(v gjson.Result) table {
			t := table{heads: "kind,stage,state,runs,average,errors,last error", none: "no stages"}
			for _, s := range v.Get("interceptors").Array() {
				t.add(s.Get("type").Str, s.Get("stage").Str, word(s.Get("enabled").Bool(), "on", "off"),
					s.Get("invocationCount").Raw,
					mean(s), s.Get("errorCount").Raw,
					or(s.Get("lastError.message").Str+s.Get("lastError").Str, "-"))
			}
			return t
		})
}

// mean is how long a run of a stage took.
func mean(s gjson.Result) string {
	if s.Get("invocationCount").Int() == 0 {
		return "-"
	}
	return micros(gjson.Result{Num: s.Get("avgDurationMs").Num * 1000, Type: gjson.Number})
}

// stages lists the stages and switches them.
func stages() *cobra.Command {
	c := get("stages", "Show the stages in their order, and switch them", "/api/debug/interceptor/diagnostics",
		func(v gjson.Result) table {
			t := table{heads: "kind,order,stage,tier,state,processes,asked", none: "no stages"}
			for _, s := range v.Get("stages").Array() {
				id, n := s.Get("type").Str+"/"+s.Get("stage").Str, 0
				var asked int64
				for _, p := range v.Get("processes").Array() {
					for _, host := range p.Get("hosts").Array() {
						n += len(word(host.Str == id, "1", ""))
					}
					asked += p.Get("asked").Map()[id].Int()
				}
				t.add(s.Get("type").Str, s.Get("order").Raw, s.Get("stage").Str, s.Get("tier").Str,
					word(s.Get("enabled").Bool(), "on", "off"), fmt.Sprint(n), fmt.Sprint(asked))
			}
			return t
		})
	for verb, path := range map[string]string{"on": "enable", "off": "disable"} {
		var confirm string
		sub := asking(verb+" STAGE", "Switch a stage "+verb+", in every process", cobra.ExactArgs(1),
			func(c *cobra.Command, k *client, args []string) error {
				q := url.Values{}
				if confirm != "" {
					q.Set("confirm", confirm)
				}
				at := "/api/debug/interceptor/" + url.PathEscape(args[0]) + "/" + path
				status, v, err := k.answer(c.Context(), http.MethodPost, at, q, nil)
				switch {
				case err != nil:
					return err
				case status == http.StatusConflict && confirm == "":
					return fmt.Errorf("%w; add --confirm %s", refusedBy(status, v), args[0])
				case status >= http.StatusBadRequest:
					return refusedBy(status, v)
				}
				return k.show(c, v, func(v gjson.Result) table {
					t := table{heads: "kind,stage,state"}
					for _, s := range v.Get("stages").Array() {
						t.add(s.Get("type").Str, s.Get("stage").Str, word(s.Get("enabled").Bool(), "on", "off"))
					}
					return t
				})
			})
		if verb == "off" {
			sub.Flags().StringVar(&confirm, "confirm", "", "the `name` again, for a stage that is mandatory or fixed")
		}
		c.AddCommand(sub)
	}
	return c
}

func tools() *cobra.Command {
	c := get("tools", "Show the tools, and call one", "/v1/tools", func(v gjson.Result) table {
		t := table{heads: "tool,what it does", none: "no tools"}
		for _, one := range v.Get("data").Array() {
			about, _, _ := strings.Cut(one.Get("function.description").Str, "\n")
			t.add(one.Get("function.name").Str, about)
		}
		return t
	})
	c.AddCommand(asking("call TOOL [ARGUMENTS]", "Call a tool with a JSON object", cobra.RangeArgs(1, 2),
		func(c *cobra.Command, k *client, args []string) error {
			body := "{}"
			if len(args) > 1 {
				body = args[1]
			}
			k.patience = 0 // the gateway knows how long the tool may take
			v, err := k.ask(c.Context(), http.MethodPost, "/v1/tools/"+url.PathEscape(args[0])+"/call", nil, []byte(body))
			if err != nil {
				return err
			}
			return errors.Join(k.show(c, v, func(v gjson.Result) table { return table{none: v.Raw} }), instead(c, v))
		}))
	return c
}

// instead says that a result is not the tool's own. One that only tells of an error fails the command.
func instead(c *cobra.Command, v gjson.Result) error {
	switch what := v.Get("_shallot.fallback").Str; what {
	case "":
		return nil
	case "graceful_error":
		return errors.New("the tool has no result")
	default:
		_, err := fmt.Fprintf(c.ErrOrStderr(), "the result is not the tool's own: %s\n", what)
		return err
	}
}

// approvals lists the calls that wait for a person, and decides.
func approvals() *cobra.Command {
	c := get("approvals", "Show the calls that wait for a person, and decide about one", "/v1/approvals",
		func(v gjson.Result) table {
			t := table{heads: "call,tenant,tool,waits,ends in,arguments", none: "nothing waits for a person"}
			for _, a := range v.Get("data").Array() {
				t.add(a.Get("call").Str, a.Get("tenant").Str, or(a.Get("tool").Str, a.Get("stage").Str), ago(a.Get("since")),
					until(a.Get("expires")), shorten(a.Get("question.arguments").Raw))
			}
			return t
		})
	for _, decision := range []string{"approve", "reject"} {
		var reason string
		sub := asking(decision+" CALL", strings.ToUpper(decision[:1])+decision[1:]+" a call that waits", cobra.ExactArgs(1),
			func(c *cobra.Command, k *client, args []string) error {
				body := fmt.Sprintf(`{"decision":%q}`, decision)
				if reason != "" {
					body = fmt.Sprintf(`{"decision":%q,"reason":%s}`, decision, quoted(reason))
				}
				at := "/v1/approvals/" + url.PathEscape(args[0])
				status, v, err := k.answer(c.Context(), http.MethodPost, at, nil, []byte(body))
				switch {
				case err != nil:
					return err
				case status == http.StatusNotFound:
					return fmt.Errorf("%w; gateway approvals lists those that wait", refusedBy(status, v))
				case status >= http.StatusBadRequest:
					return refusedBy(status, v)
				}
				return k.show(c, v, func(v gjson.Result) table {
					return table{none: "call " + v.Get("call").Str + ": " + or(v.Get("decision").Str, v.Get("status").Str)}
				})
			})
		if decision == "reject" {
			sub.Flags().StringVar(&reason, "reason", "", "`text` that the model is told")
		}
		c.AddCommand(sub)
	}
	return c
}
