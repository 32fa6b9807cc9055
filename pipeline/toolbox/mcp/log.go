package mcp

//lint:file-ignore SA1019 logging is deprecated since 2026-07-28 and kept for at least a year

import (
	"context"
	"encoding/json"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// Log messages do not name their request. On HTTP, a message on the stream of a request's answer is about that request
// and goes to its caller. On stdio all callers share one stream: nobody can know whose a message is, so it is dropped.

// logMark is put before a request's mark to listen for its log messages.
const logMark = "log/"

// maxLog is the size of the largest log message that is passed on, in bytes.
const maxLog = 32 << 10

// askLogs asks for the log messages of one call, at the level that its caller wants, if they can be told apart from
// those of other calls. stop ends the listening.
func (s *server) askLogs(params *mcp.CallToolParams, mark string, inv toolbox.Invocation) (stop func()) {
	if inv.MCP == nil || inv.MCP.LogLevel == "" || s.URL == "" {
		return func() {}
	}
	params.Meta[mcp.MetaKeyLogLevel] = inv.MCP.LogLevel
	s.listen(logMark+mark, inv.Progress)
	return func() { s.listen(logMark+mark, nil) }
}

// heardLog passes a log message on to the call whose stream it came on.
func (s *server) heardLog(mark string, message json.RawMessage) {
	s.mu.Lock()
	f := s.progress[logMark+mark]
	s.mu.Unlock()
	if f == nil || len(message) > maxLog || !gjson.ParseBytes(message).IsObject() {
		return
	}
	f(rawjson.Encode(map[string]json.RawMessage{"log": message}))
}

// wantLogs asks a server of a revision with sessions for all messages, because callers with different levels share the
// session. Since 2026-07-28 each request names its level.
func (s *server) wantLogs(ctx context.Context, session *mcp.ClientSession) {
	info := session.InitializeResult()
	if s.URL == "" || info == nil || info.ProtocolVersion >= "2026-07-28" ||
		info.Capabilities == nil || info.Capabilities.Logging == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, min(s.Timeout, 5*time.Second))
	defer cancel()
	if err := session.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: "debug"}); err != nil {
		s.log.Debug("the MCP server does not take a log level", "err", err)
	}
}
