// Command stage-go is a stage for Shallot as a program of its own: it writes a line for each call of the tools that
// name it, cache hits and refusals among them. docs/writing-a-stage.md describes the wire format. The configuration:
//
//	stages:
//	  - {name: tool-diary, kind: tool, enabled: false, reads: [call]}
//	tool:
//	  tools:
//	    - {name: pay, executor: "nats:pay", effect: write, stages: {mandatory: [tool-diary]}}
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"os/signal"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// question has the parts of a question that this stage reads. It declares no bodies, so none are sent.
type question struct {
	Phase string
	Key   string // the same if this question was asked before
	Call  struct {
		ID, Tenant, User, Tool string
		Notes                  struct{ ExecutorReached bool }
	}
	Fault *struct{ Code string }
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		slog.Error("stage", "err", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL))
	if err != nil {
		return err
	}
	defer nc.Close()
	diary := slog.New(slog.NewJSONHandler(os.Stdout, nil))
	_, err = micro.AddService(nc, micro.Config{Name: "tool-diary", Version: "1.0.0", Endpoint: &micro.EndpointConfig{
		Subject: "shallot.v1.stage.tool.tool-diary",
		Handler: micro.HandlerFunc(func(r micro.Request) {
			var q question
			if err := json.Unmarshal(r.Data(), &q); err != nil {
				_ = r.Error("400", err.Error(), nil) // the stage's error
				return
			}
			line := []any{"key", q.Key, "tenant", q.Call.Tenant, "user", q.Call.User, "tool", q.Call.Tool, "ran",
				q.Call.Notes.ExecutorReached}
			if q.Fault != nil {
				line = append(line, "fault", q.Fault.Code)
			}
			diary.Info(q.Phase, line...)
			_ = r.Respond(nil) // an empty answer: the call goes on
		}),
	}})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
