package host

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

const (
	// toolsPause is how long changes of tools are gathered before the registry is read again: they come in groups.
	toolsPause = 100 * time.Millisecond
	// toolsAgain is when the registry is read although no change was seen, in case one was missed.
	toolsAgain = 5 * time.Minute
)

// refresh reads the registry again when its bucket has changed, so that a tool that another process registered is
// known. It watches the bucket: a process at rest asks for nothing.
func (t *Tools) refresh(ctx context.Context) {
	for ctx.Err() == nil {
		if err := t.follow(ctx); err != nil && ctx.Err() == nil {
			t.log.Debug("the tool registry cannot be followed", "err", err)
		}
		pause(ctx, 2*time.Second)
	}
}

var errToolsWatch = errors.New("the watch of the tools ended")

// follow returns when the bucket can be watched or read no more. The watch begins before the first reading, so no
// change falls between the two.
func (t *Tools) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the watch
	kv, err := t.audit.js.KeyValue(ctx, jet.ToolsBucket)
	if err != nil {
		return err
	}
	w, err := kv.WatchAll(ctx, jetstream.UpdatesOnly(), jetstream.MetaOnly())
	if err != nil {
		return err
	}
	defer func() { _ = w.Stop() }()
	again := time.NewTicker(toolsAgain)
	defer again.Stop()
	for {
		if err := t.Registry.Refresh(ctx); err != nil {
			return err
		}
		select {
		case _, open := <-w.Updates():
			if !open {
				return errToolsWatch
			}
			pause(ctx, toolsPause)
			for len(w.Updates()) > 0 {
				<-w.Updates()
			}
		case <-again.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pause waits, and less if ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
