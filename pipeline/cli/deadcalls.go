package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/tidwall/gjson"
)

// filter are the flags that choose dead letters.
type filter struct {
	kind, call, reason, since string
	all                       bool
	limit                     int
}

func (f *filter) flags(fs *pflag.FlagSet, all bool) {
	fs.StringVar(&f.kind, "kind", "", "of this `kind`: model, tool, agent, hop")
	fs.StringVar(&f.call, "call", "", "of this `call`")
	fs.StringVar(&f.reason, "reason", "", "with this `text` in the reason")
	fs.StringVar(&f.since, "since", "", "since this `time` (RFC 3339), or so long ago (2h)")
	if all {
		fs.BoolVar(&f.all, "all", false, "every letter")
	} else {
		fs.IntVar(&f.limit, "limit", 100, "at most this `number`")
	}
}

func (f *filter) query() (url.Values, error) {
	q := url.Values{}
	since := f.since
	if d, err := time.ParseDuration(since); err == nil {
		since = time.Now().Add(-d).UTC().Format(time.RFC3339)
	} else if _, err := time.Parse(time.RFC3339, since); since != "" && err != nil {
		return nil, Usage("--since %q; write a time like 2026-01-02T15:04:05Z, or how long ago, like 2h", since)
	}
	for name, v := range map[string]string{"kind": f.kind, "call": f.call, "reason": f.reason, "since": since} {
		if v != "" {
			q.Set(name, v)
		}
	}
	if f.all {
		q.Set("all", "true")
	}
	if f.limit > 0 {
		q.Set("limit", strconv.Itoa(f.limit))
	}
	return q, nil
}

// dead lists dead letters, shows one, deletes some.
func dead() *cobra.Command {
	var f filter
	c := asking("dead", "Show dead letters: what could not be carried out", cobra.NoArgs,
		func(c *cobra.Command, k *client, _ []string) error {
			q, err := f.query()
			if err != nil {
				return err
			}
			v, err := k.ask(c.Context(), http.MethodGet, "/api/dead", q, nil)
			if err != nil {
				return err
			}
			err = k.show(c, v, letters)
			if v.Get("next").Exists() && k.form == "table" {
				fmt.Fprintln(c.ErrOrStderr(), "there are more; raise --limit or choose with --kind, --reason, --since")
			}
			return err
		})
	f.flags(c.Flags(), false)
	c.AddCommand(asking("show NUMBER", "Show a dead letter with what it holds", cobra.ExactArgs(1),
		func(c *cobra.Command, k *client, args []string) error {
			v, err := k.ask(c.Context(), http.MethodGet, "/api/dead/"+url.PathEscape(args[0]), nil, nil)
			if err != nil {
				return err
			}
			k.form = "json" // it is one document
			return k.show(c, v, nil)
		}), many("delete [NUMBER]...", "Delete dead letters", "deleted", http.MethodDelete, ""))
	return c
}

func letters(v gjson.Result) table {
	t := table{heads: "number,age,kind,tenant,call,reason", none: "no dead letters"}
	for _, l := range v.Get("data").Array() {
		t.add(l.Get("sequence").Raw, ago(l.Get("time")), or(l.Get("kind").Str, "-"), or(l.Get("tenant").Str, "-"),
			or(l.Get("call").Str, "-"), l.Get("reason").Str)
	}
	return t
}

// redrive puts dead calls into the queue again.
func redrive() *cobra.Command {
	return many("redrive [NUMBER]...", "Run the calls of dead letters again, each as a new call",
		"redriven", http.MethodPost, "/redrive")
}

// many makes a command that does something with dead letters, by number or by filter, until none is left.
func many(use, short, done, method, path string) *cobra.Command {
	var f filter
	c := asking(use, short, cobra.ArbitraryArgs, func(c *cobra.Command, k *client, args []string) error {
		q, err := f.query()
		if err != nil {
			return err
		}
		if len(args) > 0 && len(q) > 0 {
			return Usage("name letters by number or by filter, not both")
		}
		if len(args)+len(q) == 0 {
			return Usage(
				"which letters? Name them by number, choose them with --kind, --call, --reason or --since, or write --all")
		}
		k.patience = 2 * time.Minute // for one page of letters, each of which is stored
		sum := deeds{c: c, name: done, progress: progressOn(c.ErrOrStderr())}
		defer sum.progress.end()
		for _, number := range args {
			v, err := k.ask(c.Context(), method, "/api/dead/"+url.PathEscape(number)+path, nil, nil)
			if err != nil {
				return sum.cut(k, fmt.Errorf("letter %s: %w", number, err))
			}
			sum.take(v)
		}
		for more := len(args) == 0; more; {
			v, err := k.ask(c.Context(), method, "/api/dead"+path, q, nil)
			if err != nil {
				return sum.cut(k, err)
			}
			sum.take(v)
			more = v.Get("next").Exists()
			q.Set("after", v.Get("next").Raw)
		}
		return sum.end(k)
	})
	f.flags(c.Flags(), true)
	return c
}

// deeds add up what was done with letters, and show how far it is.
type deeds struct {
	c        *cobra.Command
	name     string // of what is done with letters
	progress *progress
	Done     []json.RawMessage `json:"done"`
	Not      []json.RawMessage `json:"refused"`
}

func (d *deeds) take(v gjson.Result) {
	for _, one := range v.Get("done").Array() {
		d.Done = append(d.Done, json.RawMessage(one.Raw))
	}
	for _, one := range v.Get("refused").Array() {
		d.Not = append(d.Not, json.RawMessage(one.Raw))
	}
	d.progress.say("%d %s, %d refused", len(d.Done), d.name, len(d.Not))
}

// cut ends before all was done: what was done is shown.
func (d *deeds) cut(k *client, err error) error {
	if len(d.Done)+len(d.Not) > 0 {
		err = errors.Join(err, d.end(k))
	}
	return err
}

func (d *deeds) end(k *client) error {
	d.progress.end()
	whole, err := json.Marshal(struct {
		Done []json.RawMessage `json:"done"`
		Not  []json.RawMessage `json:"refused"`
	}{append([]json.RawMessage{}, d.Done...), append([]json.RawMessage{}, d.Not...)})
	if err != nil {
		return err
	}
	err = k.show(d.c, gjson.ParseBytes(whole), func(v gjson.Result) table {
		t := table{heads: "number,call,came of it", none: "no dead letters"}
		for _, one := range v.Get("done").Array() {
			t.add(one.Get("sequence").Raw, or(one.Get("call").Str, "-"),
				word(one.Get("as").Exists(), d.name+" as "+one.Get("as").Str, d.name))
		}
		for _, one := range v.Get("refused").Array() {
			t.add(one.Get("sequence").Raw, or(one.Get("call").Str, "-"), "refused: "+one.Get("reason").Str)
		}
		return t
	})
	if err == nil && len(d.Not) > 0 {
		err = fmt.Errorf("%d of %d letters were refused", len(d.Not), len(d.Not)+len(d.Done))
	}
	return err
}
