package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
			err = k.show(c, v, callsTable)
			if next := v.Get("next").Str; next != "" && k.form == "table" {
				fmt.Fprintln(c.ErrOrStderr(), "there are older ones; raise --limit, or go on with --before "+next)
			}
			if v.Get("incomplete").Bool() && k.form == "table" {
				fmt.Fprintln(c.ErrOrStderr(), "a process did not say in time what runs there; ask again")
			}
			return err
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
		"before":  "older than those that a list before this ended with: its `next`",
	} {
		filters[name] = fs.String(name, "", about)
	}
	fs.IntVar(&limit, "limit", 50, "at most this `number`")
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
		v.Get("kind").Str, v.Get("tenant").Str, what(v),
		word(v.Get("us").Exists(), micros(v.Get("us")), "-"), came(v)}
}

// what is what a call is for.
func what(v gjson.Result) string {
	return or(v.Get("model").Str, or(v.Get("tool").Str, or(v.Get("agent").Str, "-")))
}

// came is what came of a call, or where it is.
func came(v gjson.Result) string {
	out := or(v.Get("outcome").Str, or(v.Get("at").Str, "-"))
	if why := v.Get("degraded").Str; why != "" {
		out += ", degraded: " + why
	}
	return out
}

// trace shows the way of one call.
func trace() *cobra.Command {
	const about = "Show the way of a call, by its id or that of its request, session, run or trace"
	return asking("trace CALL", about, cobra.ExactArgs(1),
		func(c *cobra.Command, k *client, args []string) error {
			v, err := k.find(c, args[0])
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

// find asks for a call by its id, or by another id that only this call has.
func (k *client) find(c *cobra.Command, id string) (gjson.Result, error) {
	get := func(call string) (int, gjson.Result, error) {
		return k.answer(c.Context(), http.MethodGet, "/api/calls/"+url.PathEscape(call), nil, nil)
	}
	status, v, err := get(id)
	if err != nil || status < http.StatusBadRequest {
		return v, err
	}
	if status != http.StatusNotFound {
		return v, refusedBy(status, v)
	}
	found, err := k.ask(c.Context(), http.MethodGet, "/api/calls", url.Values{"id": {id}}, nil)
	switch calls := found.Get("data.#.call").Array(); {
	case err != nil:
		return v, err
	case len(calls) == 0:
		return v, fmt.Errorf("%w; gateway calls lists those that are known", refusedBy(status, v))
	case len(calls) > 1:
		return v, fmt.Errorf("%d calls or more have the id %s; choose one of gateway calls --id %s",
			len(calls), id, id)
	default:
		id = calls[0].Str
	}
	if status, v, err = get(id); err == nil && status >= http.StatusBadRequest {
		err = refusedBy(status, v)
	}
	return v, err
}

func steps(v gjson.Result) table {
	t := table{heads: "at,step,took,waited,verdict,who,what", none: "nothing is told of its steps"}
	parts := append(v.Get("before").Array(), v)
	for _, part := range parts {
		for _, s := range part.Get("steps").Array() {
			t.add("+"+micros(s.Get("at")), stepName(s), micros(s.Get("us")),
				word(s.Get("waitedUs").Exists(), micros(s.Get("waitedUs")), "-"), verdict(s), or(who(s), "-"), told(s))
		}
	}
	return t
}

// stepName is the phase or the target of a step, and which attempt it was.
func stepName(s gjson.Result) string {
	name := s.Get("stage").Str + "." + s.Get("phase").Str
	if s.Get("class").Exists() {
		name = "target " + s.Get("class").Str
	}
	if n := s.Get("attempt").Int(); n > 1 {
		name += fmt.Sprintf(" #%d", n)
	}
	return name
}

func verdict(s gjson.Result) string { return or(s.Get("verdict").Str, or(s.Get("outcome").Str, "-")) }

// who is who answered a step of a target, else the process that ran it if that is not the owner.
func who(s gjson.Result) string {
	return or(strings.TrimSpace(s.Get("provider").Str+" "+s.Get("model").Str), s.Get("member").Str)
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
			ctx, cancel := context.WithCancel(c.Context())
			defer cancel()
			hangs := time.AfterFunc(k.patience, cancel) // the answer begins at once; how long it lasts, nobody knows
			a, err := k.request(ctx, http.MethodGet, "/api/events", nil, nil)
			if !hangs.Stop() && c.Context().Err() == nil {
				return k.silent()
			}
			if err != nil {
				return err
			}
			defer func() { _ = a.Body.Close() }()
			if a.StatusCode != http.StatusOK {
				raw, _ := io.ReadAll(io.LimitReader(a.Body, 1<<20))
				return refusedBy(a.StatusCode, gjson.ParseBytes(raw))
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
			return errors.Join(lines.Err(), fmt.Errorf("%s has ended what it tells; is it stopping?", k.url))
		})
}

func (k *client) happened(c *cobra.Command, event string, v gjson.Result) {
	if k.form == "json" {
		fmt.Fprintf(c.OutOrStdout(), "{\"event\":%s,\"data\":%s}\n", quoted(event), v.Raw)
		return
	}
	cells := []string{v.Raw}
	if v.Get("call").Exists() {
		cells = append([]string{v.Get("call").Str}, tailed(event, v)...)
	}
	fmt.Fprintf(c.OutOrStdout(), "%s  %-8s  %s\n", time.Now().Format(time.TimeOnly), plain(event),
		strings.TrimSpace(plain(strings.Join(cells, "  "))))
}

// tailed is what an event says of a call beside its id.
func tailed(event string, v gjson.Result) []string {
	if event == "hop" || event == "target" {
		return []string{stepName(v), micros(v.Get("us")), verdict(v), told(v)}
	}
	r := callRow(v)
	return append(r[3:], v.Get("message").Str)
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
