package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

// Log keeps runs, the sessions that they belong to, and the counters of sessions. It is safe for concurrent use, in
// any number of processes at once.
type Log struct {
	Store pipeline.Store
	// Keep is how long a record is kept from its writing; 0: 30 days. A run must not wait for a person for longer.
	Keep time.Duration
}

func (l Log) keep() time.Duration {
	if l.Keep > 0 {
		return l.Keep
	}
	return 30 * 24 * time.Hour
}

// RunKey is what the keys of a run's records begin with, without the last dot; the number of the record follows.
func RunKey(tenant, run string) string { return messages.Key("run", tenant, run) }

// pieceSize is the largest part of a record that goes into one entry of the store.
const pieceSize = 512 << 10

// pieces stands in place of a record that is too large for one entry.
type pieces struct {
	Name string `json:"pieces"`
	N    int    `json:"n"`
}

// Read returns the records of a run from number from on; none if there is no such run.
func (l Log) Read(ctx context.Context, tenant, run string, from int) (out []Record, err error) {
	for n := from; ; n++ {
		r, err := l.one(ctx, RunKey(tenant, run)+"."+strconv.Itoa(n))
		if errors.Is(err, pipeline.ErrNotFound) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("record %d of run %s: %w", n, run, err)
		}
		out = append(out, r)
	}
}

func (l Log) one(ctx context.Context, key string) (r Record, err error) {
	e, err := l.Store.Get(ctx, key)
	if err != nil {
		return r, err
	}
	return l.Open(ctx, key, e.Value)
}

// Open reads the record that an entry of the store holds, with its pieces if it has some.
func (l Log) Open(ctx context.Context, key string, raw []byte) (r Record, err error) {
	var p pieces
	if json.Unmarshal(raw, &p) == nil && p.N > 0 {
		raw = nil
		for i := range p.N {
			e, err := l.Store.Get(ctx, pieceKey(key, p.Name, i))
			if err != nil {
				return r, fmt.Errorf("piece %d: %v", i, err) // not ErrNotFound: the record is there
			}
			raw = append(raw, e.Value...)
		}
	}
	return r, json.Unmarshal(raw, &r)
}

func pieceKey(key, name string, i int) string {
	return "piece." + key + "." + name + "." + strconv.Itoa(i)
}

// Add stores record n of a run and returns the record that counts: the first that was stored under this number. Two
// processes that both think that they own a run so go on with the same one.
func (l Log) Add(ctx context.Context, tenant, run string, n int, r Record) (Record, error) {
	err := l.add(ctx, RunKey(tenant, run)+"."+strconv.Itoa(n), &r)
	return r, err
}

func (l Log) add(ctx context.Context, key string, r *Record) error {
	r.At = time.Now().UTC()
	raw := rawjson.Encode(r)
	if len(raw) > pieceSize {
		p := pieces{Name: randomName()}
		for ; p.N*pieceSize < len(raw); p.N++ {
			piece := raw[p.N*pieceSize : min((p.N+1)*pieceSize, len(raw))]
			if _, err := l.Store.Put(ctx, pieceKey(key, p.Name, p.N), piece, l.keep(), pipeline.Always()); err != nil {
				return err
			}
		}
		raw = rawjson.Encode(p)
	}
	_, err := l.Store.Put(ctx, key, raw, l.keep(), pipeline.IfAbsent())
	if errors.Is(err, pipeline.ErrExists) || errors.Is(err, pipeline.ErrChanged) {
		*r, err = l.one(ctx, key)
	}
	return err
}

func randomName() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
