package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/tidwall/gjson"
)

// Names of the environment for commands that ask a gateway.
const (
	envURL = "SHALLOT_URL"
	envKey = "SHALLOT_KEY" // a key, which does not stand on a command line, where others read it
)

// client asks a running gateway over HTTP.
type client struct {
	url, tenant string
	// patience is how long an answer may take; 0: as long as it takes. Who waits too long thinks that the command hangs.
	patience time.Duration
	output
}

// usualPatience is more than a gateway takes whose own checks run out of time.
const usualPatience = 15 * time.Second

// asking makes a command that asks a gateway, with the flags that all of these have.
func asking(use, short string, args cobra.PositionalArgs,
	run func(c *cobra.Command, k *client, args []string) error) *cobra.Command {
	k := &client{patience: usualPatience}
	c := &cobra.Command{Use: use, Short: short, Args: args}
	at := os.Getenv(envURL)
	if at == "" {
		at = "http://127.0.0.1:8080"
	}
	fs := c.Flags()
	fs.StringVar(&k.url, "url", at,
		"`URL` of the gateway; beyond loopback its admin listener ("+envURL+"; a key: "+envKey+")")
	fs.StringVar(&k.tenant, "tenant", "", "ask about this `tenant` only")
	k.flag(c, "table")
	c.PreRunE = k.check
	c.RunE = func(c *cobra.Command, args []string) error { return run(c, k, args) }
	return c
}

// request makes a request; body nil sends none.
func (k *client) request(ctx context.Context, method, path string, query url.Values, body []byte) (
	*http.Response, error) {
	to, err := k.gateway()
	if err != nil {
		return nil, err
	}
	at := strings.TrimSuffix(to.String(), "/") + path
	if len(query) > 0 {
		at += "?" + query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, method, at, bytes.NewReader(body))
	if err != nil {
		return nil, Usage("--url %s: %w", k.url, err)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if key := os.Getenv(envKey); key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	if k.tenant != "" {
		r.Header.Set("Shallot-Tenant", k.tenant)
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%s cannot be reached: %w; does a gateway listen there? Name another with --url", to, cause(err))
	}
	return a, err
}

// cause is what a person needs to know of why a connection failed, without the operations that led there.
func cause(err error) error {
	if one, is := errors.AsType[*url.Error](err); is {
		err = one.Err
	}
	if one, is := errors.AsType[syscall.Errno](err); is {
		return one
	}
	return err
}

// gateway is the URL of the gateway; a bare address is one of HTTP.
func (k *client) gateway() (*url.URL, error) {
	at := k.url
	if !strings.Contains(at, "://") {
		at = "http://" + at
	}
	to, err := url.Parse(at)
	if err == nil && to.Host == "" {
		err = errors.New("it names no host")
	}
	if err != nil {
		return nil, Usage("--url %s: %w", k.url, err)
	}
	return to, nil
}

// ask makes a request and returns the JSON of its answer; an error says what the gateway said.
func (k *client) ask(ctx context.Context, method, path string, query url.Values, body []byte) (gjson.Result, error) {
	status, v, err := k.answer(ctx, method, path, query, body)
	if err == nil && status >= http.StatusBadRequest {
		err = refusedBy(status, v)
	}
	return v, err
}

func (k *client) answer(ctx context.Context, method, path string, query url.Values, body []byte) (
	int, gjson.Result, error) {
	limit, cancel := ctx, context.CancelFunc(func() {})
	if k.patience > 0 {
		limit, cancel = context.WithTimeout(ctx, k.patience)
	}
	defer cancel()
	var raw []byte
	a, err := k.request(limit, method, path, query, body)
	if err == nil {
		defer func() { _ = a.Body.Close() }()
		raw, err = io.ReadAll(io.LimitReader(a.Body, 64<<20))
	}
	if err != nil && ctx.Err() == nil && limit.Err() != nil {
		err = k.silent()
	}
	if err != nil {
		return 0, gjson.Result{}, err
	}
	if !json.Valid(raw) {
		err = fmt.Errorf("%s answers what is not JSON (status %d): %.100q", k.url, a.StatusCode, raw)
	}
	return a.StatusCode, gjson.ParseBytes(raw), err
}

func (k *client) silent() error {
	return fmt.Errorf("%s has not answered within %s; does it hang?", k.url, k.patience)
}

func refusedBy(status int, v gjson.Result) error {
	text := v.Get("error.message").Str
	if text == "" {
		text = http.StatusText(status)
	}
	switch status {
	case http.StatusUnauthorized:
		text += "; set " + envKey
	case http.StatusForbidden:
		text += "; " + envKey + " must be a key with the role operator"
	}
	err := fmt.Errorf("%s (status %d)", text, status)
	if status == http.StatusBadRequest { // what was asked for stood on the command line
		err = usage{error: err}
	}
	return err
}

// table is what people see of an answer.
type table struct {
	heads string // by comma
	rows  [][]string
	none  string // instead of a table without rows
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// show prints an answer: as it came, or as a table.
func (k *client) show(c *cobra.Command, v gjson.Result, view func(v gjson.Result) table) error {
	out := c.OutOrStdout()
	if k.form == "json" {
		return printJSON(out, []byte(v.Raw))
	}
	return view(v).print(out)
}

func (t table) print(out io.Writer) error {
	if len(t.rows) == 0 {
		_, err := fmt.Fprintln(out, t.none)
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if t.heads != "" {
		fmt.Fprintln(w, strings.ReplaceAll(strings.ToUpper(t.heads), ",", "\t"))
	}
	for _, r := range t.rows {
		for i, cell := range r {
			r[i] = plain(cell)
		}
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	return w.Flush()
}

// plain keeps what others wrote from moving the cursor of a terminal.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, s)
}

// get makes a command that shows what is at a path.
func get(use, short, path string, view func(v gjson.Result) table) *cobra.Command {
	return asking(use, short, cobra.NoArgs, func(c *cobra.Command, k *client, _ []string) error {
		v, err := k.ask(c.Context(), http.MethodGet, path, nil, nil)
		if err != nil {
			return err
		}
		return k.show(c, v, view)
	})
}

// ago is how long ago a time of an answer is.
func ago(v gjson.Result) string {
	t, err := time.Parse(time.RFC3339Nano, v.Str)
	if err != nil {
		return "-"
	}
	return age(time.Since(t))
}

// age is a duration for people: two digits of the largest unit that fits.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "now"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 2*time.Minute:
		return d.Round(time.Second).String()
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// micros is a number of microseconds as a duration with its unit.
func micros(v gjson.Result) string {
	d, exact := time.Duration(v.Num*float64(time.Microsecond)), time.Microsecond
	if d >= time.Millisecond {
		exact = 10 * time.Microsecond
	}
	return d.Round(exact).String()
}

// some is a number of things with their name.
func some(n int64, one string) string {
	if n != 1 {
		one += "s"
	}
	return fmt.Sprintf("%d %s", n, one)
}

func word(b bool, yes, no string) string {
	if b {
		return yes
	}
	return no
}

func or(s, instead string) string {
	if s == "" {
		return instead
	}
	return s
}
