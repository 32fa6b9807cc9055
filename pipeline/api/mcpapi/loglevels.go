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

// logLevels knows which log messages callers want from the tools of MCP servers. Before 2026-07-28 a session says so,
// since then each request. The zero value is ready for use.
type logLevels struct {
	mu sync.Mutex
	of map[*mcp.ServerSession]string
}

// level is the lowest level that the caller of a tool wants; empty: no log messages.
func (l *logLevels) level(req *mcp.CallToolRequest) string {
	if standsAlone(req.Params) {
		level, _ := req.Params.Meta[mcp.MetaKeyLogLevel].(string)
		return level
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of[req.Session]
}

// set remembers what a session asked for, until it ends.
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

// pass sends a log message of a tool on the stream of the call that it belongs to. The SDK drops messages below the
// caller's level.
func (l *logLevels) pass(ctx context.Context, s *mcp.ServerSession, message gjson.Result, log *slog.Logger) {
	data := message.Get("data")
	if !data.Exists() {
		return // it is empty
	}
	err := s.Log(ctx, &mcp.LoggingMessageParams{
		Level: mcp.LoggingLevel(message.Get("level").Str), Logger: message.Get("logger").Str, Data: json.RawMessage(data.Raw),
	})
	if err != nil {
		log.Debug("a log message was not sent", "err", err)
	}
}
