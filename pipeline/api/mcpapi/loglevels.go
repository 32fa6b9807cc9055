package mcpapi

//lint:file-ignore SA1019 logging is deprecated since 2026-07-28 and kept for at least a year

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/tidwall/gjson"
)

// logLevels knows what log messages of the tools behind callers want to hear of. Before 2026-07-28 a session says so,
// since then each request. The zero value is ready.
type logLevels struct {
	mu sync.Mutex
	of map[*mcp.ServerSession]string
}

// level is the least level that the caller of a tool wants; empty: he wants none.
func (l *logLevels) level(req *mcp.CallToolRequest) string {
	if standsAlone(req.Params) {
		level, _ := req.Params.Meta[mcp.MetaKeyLogLevel].(string)
		return level
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of[req.Session]
}

// set keeps what a session asked for, as long as it lasts.
func (l *logLevels) set(s *mcp.ServerSession, level string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.of[s]; !known {
		if l.of == nil {
			l.of = map[*mcp.ServerSession]string{}
		}
		go func() {
			_ = s.Wait()
			l.mu.Lock()
			defer l.mu.Unlock()
			delete(l.of, s)
		}()
	}
	l.of[s] = level
}

// pass sends a log message of a tool behind on the stream of the call that it came with. The SDK leaves out what is
// below the caller's level.
func (l *logLevels) pass(ctx context.Context, s *mcp.ServerSession, message gjson.Result, log *slog.Logger) {
	data := message.Get("data")
	if !data.Exists() {
		return // it says nothing
	}
	err := s.Log(ctx, &mcp.LoggingMessageParams{
		Level: mcp.LoggingLevel(message.Get("level").Str), Logger: message.Get("logger").Str, Data: json.RawMessage(data.Raw),
	})
	if err != nil {
		log.Debug("a log message was not sent", "err", err)
	}
}
