package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/tidwall/gjson"
)

// callsCommand lists calls.
func callsCommand() *cobra.Command {
	var limit int
	filters := map[string]*string{}
	c := asking("calls", "Show calls, the newest first", cobra.NoArgs,
		func(c *cobra.Command, k *client, _ []string) error {
			q := url.Values{"limit": {strconv.Itoa(limit)}}
			for name, v := range filters {
				if *v != "" {
					q.Set(name, *v)
				}
			}
			v, err := k.ask(c.Context(), http.MethodGet, "/api/calls", q, nil)
			if err != nil {
				return err
			}
			return k.show(c, v, callsTable)
		})
	fs := c.Flags()
	for name, about := range map[string]string{
		"id":      "with this `id`: of a call, a request, a session, a run, a trace",
		"request": "of this request `id`",
		"session": "of this `session`",
		"run":     "of this `run`",
		"parent":  "made by this `call`",
		"kind":    "of this `kind`: model, tool, agent",
		"model":   "for this `model`, as asked for or as answered",
		"tool":    "of this `tool`",
		"state":   "in this `state`: running, queued, held, ended",
		"outcome": "that ended so: ok, fault, or the `code` of a fault",
		"since":   "that ended since this `time` (RFC 3339), or since so long ago (15m)",
		"until":   "that ended until this `time`, or until so long ago",
	} {
		filters[name] = fs.String(name, "", about)
	}
	fs.IntVar(&limit, "limit", 50, "at most so many")
	return c
}

func callsTable(v gjson.Result) table {
	t := table{heads: callHeads, none: "no calls"}
	for _, one := range v.Get("data").Array() {
		t.rows = append(t.rows, callRow(one))
	}
	return t
}

const callHeads = "call,age,state,kind,tenant,what,time,outcome"

func callRow(v gjson.Result) []string {
	return []string{v.Get("call").Str, ago(v.Get("accepted")), or(v.Get("state").Str, "-"),
		v.Get("kind").Str, v.Get("tenant").Str, or(v.Get("model").Str+v.Get("tool").Str, "-"),
		word(v.Get("us").Exists(), micros(v.Get("us")), "-"), or(v.Get("outcome").Str, or(v.Get("at").Str, "-"))}
}

// trace shows the way of one call.
func trace() *cobra.Command {
	return asking("trace CALL", "Show the way of a call: its stages, attempts, waits and faults", cobra.ExactArgs(1),
		func(c *cobra.Command, k *client, args []string) error {
			v, err := k.ask(c.Context(), http.MethodGet, "/api/calls/"+url.PathEscape(args[0]), nil, nil)
			if err != nil {
				return err
			}
			if k.form == "table" {
				head := table{heads: callHeads, rows: [][]string{callRow(v)}}
				if err := head.print(c.OutOrStdout()); err != nil {
					return err
				}
				if why := or(v.Get("reason").Str, v.Get("message").Str); why != "" {
					fmt.Fprintln(c.OutOrStdout(), plain(why))
				}
				if err := blank(c); err != nil {
					return err
				}
			}
			return k.show(c, v, steps)
		})
}

func steps(v gjson.Result) table {
	t := table{heads: "at,step,took,waited,verdict,who,what", none: "nothing is told of its steps"}
	parts := append(v.Get("before").Array(), v)
	for _, part := range parts {
		for _, s := range part.Get("steps").Array() {
			name := s.Get("stage").Str + "." + s.Get("phase").Str
			if s.Get("class").Exists() {
				name = "target " + s.Get("class").Str
			}
			if n := s.Get("attempt").Int(); n > 1 {
				name += fmt.Sprintf(" #%d", n)
			}
			who := strings.TrimSpace(s.Get("provider").Str + " " + s.Get("model").Str)
			t.add("+"+micros(s.Get("at")), name, micros(s.Get("us")),
				word(s.Get("waitedUs").Exists(), micros(s.Get("waitedUs")), "-"),
				or(s.Get("verdict").Str, or(s.Get("outcome").Str, "-")), or(who, or(s.Get("member").Str, "-")), told(s))
		}
	}
	return t
}

// told is what there is to say of a step: what failed, or what it changed.
func told(s gjson.Result) string {
	if why := s.Get("error").Str; why != "" {
		return why
	}
	var out []string
	for _, one := range s.Get("changes").Array() {
		out = append(out, strings.TrimSpace(one.Get("op").Str+" "+one.Get("body").Str+" "+one.Get("at").Str))
	}
	return or(strings.Join(out, ", "), "-")
}

// tail shows calls as they happen.
func tail() *cobra.Command {
	return asking("tail", "Show calls as they come and end, until ^C", cobra.NoArgs,
		func(c *cobra.Command, k *client, _ []string) error {
			a, err := k.request(c.Context(), http.MethodGet, "/api/events", nil, nil)
			if err != nil {
				return err
			}
			defer func() { _ = a.Body.Close() }()
			if a.StatusCode != http.StatusOK {
				return fmt.Errorf("%s serves no events (status %d)", k.url, a.StatusCode)
			}
			lines := bufio.NewScanner(a.Body)
			lines.Buffer(nil, 4<<20)
			event := ""
			for lines.Scan() {
				name, value, _ := strings.Cut(lines.Text(), ": ")
				switch name {
				case "event":
					event = value
				case "data":
					k.happened(c, event, gjson.Parse(value))
				}
			}
			if c.Context().Err() != nil { // by ^C
				return nil
			}
			return lines.Err()
		})
}

func (k *client) happened(c *cobra.Command, event string, v gjson.Result) {
	if k.form == "json" {
		fmt.Fprintf(c.OutOrStdout(), "{\"event\":%s,\"data\":%s}\n", quoted(event), v.Raw)
		return
	}
	if v.Get("call").Exists() {
		v = gjson.Parse(v.Raw)
		r := callRow(v)
		r[1] = time.Now().Format(time.TimeOnly)
		fmt.Fprintln(c.OutOrStdout(), plain(event+"  "+strings.Join(r, "  ")))
		return
	}
	fmt.Fprintln(c.OutOrStdout(), plain(event+"  "+v.Raw))
}

// until is how long it is until a time of an answer.
func until(v gjson.Result) string {
	t, err := time.Parse(time.RFC3339Nano, v.Str)
	if err != nil {
		return "-"
	}
	return age(time.Until(t))
}

// shorten cuts a text that would fill the screen.
func shorten(s string) string {
	const most = 80
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "..."
	}
	return or(s, "-")
}

func quoted(s string) string {
	b, _ := json.Marshal(s) // never fails
	return string(b)
}
