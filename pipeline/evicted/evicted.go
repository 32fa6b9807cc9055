// Package evicted stores large tool results and reads them back in parts. A stage writes them; a tool and the APIs read
// them. APIs must not import stages, so this package is below both.
package evicted

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	slash "path"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// Objects keeps large values by name, shared by all processes; on the bus it is a JetStream object store. It is safe
// for concurrent use. The store decides how long values stay; evicted results need 24 hours, longer than any cache
// entry that names them.
type Objects interface {
	// Put writes a value, replacing one of the same name.
	Put(ctx context.Context, name string, data []byte) error
	// Get returns a value, or pipeline.ErrNotFound.
	Get(ctx context.Context, name string) ([]byte, error)
}

const (
	keptFor = 24 * time.Hour
	// scheme precedes the name of an object in summaries.
	scheme    = "shallot-evicted/"
	keyPrefix = "evicted."
	// MaxPart is the largest number of characters that Read returns, so that a part is not evicted again.
	MaxPart     = 80000
	defaultPart = 8000
)

// Keeper saves results, each under a name of its own. It is safe for concurrent use.
type Keeper interface {
	// Save returns the path to show. taken says that another result has the name. owner identifies the call, so that a
	// store can recognise its redelivery.
	Save(ctx context.Context, name, owner string, data []byte) (path string, taken bool, err error)
	// Path returns the path that Save shows for a name.
	Path(name string) string
}

// Name is [<tenant>/]<agent>/<tool>_<ms>[_<n>].txt. The parts are tokens without dots or slashes, so their number says
// whether the name has a tenant.
func Name(tenant, agent, tool string, ms int64, n int) string {
	if agent == "" {
		agent = "default"
	}
	file := messages.Token(tool) + "_" + strconv.FormatInt(ms, 10)
	if n > 0 {
		file += "_" + strconv.Itoa(n+1)
	}
	name := messages.Token(agent) + "/" + file + ".txt"
	if tenant != "" && tenant != "default" {
		name = messages.Token(tenant) + "/" + name
	}
	return name
}

// sharedTenant replaces the tenant in the name of a result that all tenants may read, because the tool's cache is
// shared. It cannot be the token of a tenant.
const sharedTenant = "=shared"

// SharedName is Name for a result that all tenants may read. It does not say whose call it was.
func SharedName(tool string, ms int64, n int) string {
	return sharedTenant + "/" + Name("", "", tool, ms, n)
}

// isOf reports whether the tenant may read the name: Name made it for that tenant, or SharedName for all.
func isOf(name, tenant string) bool {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		if i == len(parts)-1 {
			p = strings.TrimSuffix(p, ".txt")
		}
		if p == "" || strings.ContainsAny(p, `.\`+"\x00") {
			return false
		}
	}
	switch {
	case !strings.HasSuffix(name, ".txt"):
		return false
	case len(parts) == 3 && parts[0] == sharedTenant:
		return true
	case tenant == "" || tenant == "default":
		return len(parts) == 2
	}
	return len(parts) == 3 && parts[0] == messages.Token(tenant)
}

// InObjects saves into an object store. The name is reserved in a KV store first, because two writers of one name in an
// object store would both succeed.
type InObjects struct {
	Objects Objects
	Store   func(string) pipeline.Store
}

// Save reserves the name, then stores the object. A redelivery with the same owner writes the object again.
func (e InObjects) Save(ctx context.Context, name, owner string, data []byte) (string, bool, error) {
	if e.Objects == nil {
		return "", false, errors.New("no object store is given here; set eviction-store to dir or run with one")
	}
	store, key := e.Store("cache"), keyPrefix+messages.Key(strings.Split(name, "/")...)
	_, err := store.Put(ctx, key, []byte(owner), keptFor, pipeline.IfAbsent())
	if errors.Is(err, pipeline.ErrExists) {
		old, err := store.Get(ctx, key)
		if err != nil {
			return "", false, err
		}
		if string(old.Value) != owner {
			return "", true, nil
		}
	} else if err != nil {
		return "", false, err
	}
	if err := e.Objects.Put(ctx, name, data); err != nil {
		return "", false, err
	}
	return e.Path(name), false, nil
}

// Path returns "shallot-evicted/" and the name.
func (e InObjects) Path(name string) string { return scheme + name }

// InDir saves into a directory. Names cannot lead out of it (os.Root), and only the owner can read the files.
type InDir struct{ Dir string }

// Save creates the file. It cannot recognise a redelivery, so the owner's own file counts as taken too.
func (e InDir) Save(_ context.Context, name, _ string, data []byte) (string, bool, error) {
	if err := os.MkdirAll(e.Dir, 0o700); err != nil {
		return "", false, err
	}
	root, err := os.OpenRoot(e.Dir)
	if err != nil {
		return "", false, err
	}
	defer func() { _ = root.Close() }()
	if err := root.MkdirAll(slash.Dir(name), 0o700); err != nil {
		return "", false, err
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return "", true, nil
	}
	if err != nil {
		return "", false, err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", false, errors.Join(err, root.Remove(name)) // no result is better than half of one
	}
	return e.Path(name), false, nil
}

// Path returns the path of the file.
func (e InDir) Path(name string) string { return filepath.Join(e.Dir, filepath.FromSlash(name)) }

// Sweep removes results that are older than 24 hours.
func (e InDir) Sweep(context.Context) error {
	root, err := os.OpenRoot(e.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".txt") {
			return nil
		}
		if i, err := d.Info(); err == nil && time.Since(i.ModTime()) >= keptFor {
			_ = root.Remove(name)
		}
		return nil
	})
}

// Part is a piece of an evicted result. Offsets and lengths are characters.
type Part struct {
	Text   string `json:"text"`
	Offset int    `json:"offset"`
	Total  int    `json:"total"`
	// Next is the offset of the next piece; 0 after the last one.
	Next int `json:"next,omitempty"`
}

// Reader reads evicted results: from the object store, and from Dir if it is not empty (eviction-dir).
type Reader struct {
	Objects Objects
	Dir     string
}

// Read returns limit characters from offset on of the result at the path that a summary shows, or at its name without
// the prefix. limit 0 means 8000; more than MaxPart is cut to it. Only results that the tenant may read are found;
// anything else is the fault not_found.
func Read(ctx context.Context, r Reader, tenant, at string, offset, limit int) (Part, error) {
	if offset < 0 || limit < 0 {
		return Part{}, messages.NewFault(messages.InvalidRequest, "offset is %d and limit %d; both are 0 or more",
			offset, limit).At("offset")
	}
	if limit == 0 {
		limit = defaultPart
	}
	raw, err := r.read(ctx, tenant, at)
	if err != nil {
		return Part{}, err
	}
	text := string(raw)
	p := Part{Offset: offset, Total: utf8.RuneCountInString(text)}
	if offset < p.Total {
		rest := text[len(Prefix(text, offset)):]
		p.Text = Prefix(rest, min(limit, MaxPart))
		if len(p.Text) < len(rest) {
			p.Next = offset + utf8.RuneCountInString(p.Text)
		}
	}
	return p, nil
}

func (r Reader) read(ctx context.Context, tenant, at string) ([]byte, error) {
	said := Prefix(at, 200)
	if len(said) < len(at) {
		said += "..."
	}
	gone := messages.NewFault(messages.NotFound, "there is no evicted result at %q; it is kept 24 h, and the "+
		"path is the one that the summary shows", said).At("path")
	name := strings.TrimPrefix(at, scheme)
	if r.Dir != "" {
		for _, at := range []string{at, string(filepath.Separator) + at} { // a path in a URL has lost its first slash
			if in, err := filepath.Rel(r.Dir, at); err == nil && filepath.IsLocal(in) {
				name = filepath.ToSlash(in)
			}
		}
	}
	if !isOf(name, tenant) {
		return nil, gone
	}
	if r.Objects != nil {
		raw, err := r.Objects.Get(ctx, name)
		if err == nil {
			return raw, nil
		}
		if !errors.Is(err, pipeline.ErrNotFound) {
			return nil, messages.NewFault(messages.StoreUnavailable, "evicted results are not readable now: %v", err)
		}
	}
	if r.Dir == "" {
		return nil, gone
	}
	root, err := os.OpenRoot(r.Dir)
	if err != nil {
		return nil, gone
	}
	defer func() { _ = root.Close() }()
	raw, err := root.ReadFile(name)
	if err != nil {
		return nil, gone
	}
	return raw, nil
}

// Tool returns the definition of the tool with which a model reads an evicted result in parts. The toolbox serves it
// with Read, as the Go function of the same name. Its results are never evicted.
func Tool() tool.Definition {
	return tool.Definition{
		Name: "readEvictedResult", Version: "1", Source: tool.Operator,
		Description: "Reads a part of a large tool result that was saved. The path is the one that the " +
			"shortened result shows.",
		InputSchema: tool.JSON(fmt.Sprintf(`{"type":"object","properties":{"path":{"type":"string"},"offset":{`+
			`"type":"integer","minimum":0,"default":0},"limit":{"type":"integer","minimum":1,"maximum":%d,`+
			`"default":%d}},"required":["path"]}`, MaxPart, defaultPart)),
		Executor: tool.Executor{Kind: tool.ExecGo, Name: "readEvictedResult"},
		Policy:   tool.Policy{Effect: tool.EffectRead, Cache: &tool.Cache{Scope: tool.ScopeOff}, MaxResult: -1},
	}
}

// Prefix returns the first n characters.
func Prefix(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}
