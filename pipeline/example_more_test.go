package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// Many writers of one value lose nothing: whoever came second reads anew and edits again.
func ExampleChange() {
	type counter struct {
		N int `json:"n"`
	}
	ctx, store := context.Background(), &pipeline.Memory{}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			_, _ = pipeline.Change(ctx, store, "acme.calls", time.Hour, func(c *counter) (bool, error) {
				c.N++
				return true, nil
			})
		})
	}
	wg.Wait()
	e, err := store.Get(ctx, "acme.calls")
	fmt.Println(string(e.Value), err)
	// Output:
	// {"n":20} <nil>
}

// A condition says when a value may be written: never over one that is there, or only over the one that was read.
func ExampleCondition() {
	ctx, store := context.Background(), &pipeline.Memory{}
	first, err := store.Put(ctx, "k", []byte(`1`), 0, pipeline.IfAbsent())
	fmt.Println(err)
	_, err = store.Put(ctx, "k", []byte(`2`), 0, pipeline.IfAbsent())
	fmt.Println(errors.Is(err, pipeline.ErrExists))
	_, err = store.Put(ctx, "k", []byte(`3`), 0, pipeline.IfRevision(first))
	fmt.Println(err)
	_, err = store.Put(ctx, "k", []byte(`4`), 0, pipeline.IfRevision(first))
	fmt.Println(errors.Is(err, pipeline.ErrChanged))
	// Output:
	// <nil>
	// true
	// <nil>
	// true
}

// A whole stage as one function, which calls what is inside it as often as it likes.
func ExampleWrap() {
	twice := pipeline.Wrap(pipeline.Stage{Name: "twice", Kind: messages.Model, Order: 20},
		func(_ context.Context, _ *messages.Call, next pipeline.Handler) ([]byte, error) {
			first, err := next([]byte(`"draft"`))
			if err != nil {
				return nil, err
			}
			return next(first)
		})
	model := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		c.SetReply([]byte(`"better than ` + string(c.Request()[1:len(c.Request())-1]) + `"`))
		return nil
	})
	call := messages.NewCall(messages.Model, "acme", []byte(`"anything"`))
	call, err := pipeline.Chain([]pipeline.Stage{twice}, model).Call(context.Background(), call)
	fmt.Println(string(call.Reply()), err)
	// Output:
	// "better than better than draft" <nil>
}

// The checker refuses a chain in which a cache would store what should have been taken out of the request.
func ExampleCheckRoute() {
	pass := func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Continue(), nil }
	cache := pipeline.Stage{Name: "cache", Kind: messages.Model, Order: 20, Role: pipeline.RoleCache, Before: pass,
		Reads: []string{"request"}, Writes: []string{"reply"}}
	redact := pipeline.Stage{Name: "redact", Kind: messages.Model, Order: 30, Role: pipeline.RoleRedact, Before: pass,
		Reads: []string{"request"}, Writes: []string{"request"}}
	for _, f := range pipeline.CheckRoute([]pipeline.Stage{cache, redact}) {
		fmt.Println(f.Level, f.Rule, f.Stages)
	}
	// Output:
	// error cache-outer-to-pii [cache redact]
	// warning edits-every-request [redact]
}
