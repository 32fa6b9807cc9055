//go:build unix

package golden

import "strings"

func ask(subject, body string, headers ...string) string {
	for i := range headers {
		headers[i] += "\n"
	}
	return "NATS shallot.v1." + subject + "\n" + strings.Join(headers, "") + "\n" + body
}

func streamed(subject, body string, headers ...string) string {
	return strings.Replace(ask(subject, body, headers...), "NATS ", "NATS-STREAM ", 1)
}

var natsRows = []row{
	one("nats-model", ask("model.request", hello)),
	one("nats-model-streamed", streamed("model.request", flow)),
	one("nats-model-session-streamed", streamed("model.request", flow, "Shallot-Session: any text, 会话")),
	one("nats-model-tenant", ask("tenant.acme.model.request", hello, "Shallot-Session: s1")),
	one("nats-model-no-json", ask("model.request", `{`)),
	one("nats-model-unknown", ask("model.request", strings.Replace(hello, "demo/echo", "nobody/knows", 1))),
	one("nats-model-unknown-streamed", streamed("model.request",
		strings.Replace(flow, "demo/echo", "nobody/knows", 1))),
	one("nats-model-bad-timeout", ask("model.request", hello, "Shallot-Timeout: soon")),
	one("nats-model-bad-version", ask("model.request", hello, "Shallot-Wire: 99")),
	one("nats-model-misspelled-header", ask("model.request", hello, "Shallot-Sesion: s1")),
	one("nats-tool-misspelled-header-streamed",
		streamed("tool.request.echo", `{"message":"x"}`, "Shallot-Stream: on", "shallot-tiemout: 1s")),
	one("nats-switch-misspelled-header", ask("control.disable", "logging", "Shallot-Confirm: logging")),
	one("nats-model-only", ask("model.request", hello, "Shallot-Only: logging")),
	one("nats-model-fails", ask("model.request",
		`{"model":"demo/fail","messages":[{"role":"user","content":"fail 500"}]}`)),
	{"nats-idempotency", []string{
		ask("model.request", hello, "Idempotency-Key: n1"), ask("model.request", hello, "idempotency-key: n1"),
		ask("model.request", strings.Replace(hello, "hello", "other", 1), "Nats-Msg-Id: n1"),
	}},
	one("nats-submit", ask("model.submit", hello)),
	one("nats-submit-tenant", ask("tenant.acme.tool.submit.add", `{"a":1,"b":2}`)),
	one("nats-result-unknown", ask("result.01a201e6-54b9-7d9c-9c8c-6230f84b6237", "")),
	one("nats-result-other-tenant", ask("tenant.acme.result.01a201e6-54b9-7d9c-9c8c-6230f84b6237", "")),
	one("nats-tool", ask("tool.request.add", `{"a":50,"b":60}`)),
	one("nats-tool-empty", ask("tool.request.echo", "")),
	one("nats-tool-bad-arguments", ask("tool.request.add", `{"a":"x"}`)),
	one("nats-tool-no-json", ask("tool.request.add", `{`)),
	one("nats-tool-unknown", ask("tool.request.nobody", `{}`)),
	one("nats-tool-bad-name", ask("tool.request.a=ZZ", `{}`)),
	one("nats-tool-fails", ask("tool.request.failing", `{}`)),
	one("nats-tool-streamed", streamed("tool.request.echo", `{"message":"over NATS"}`, "Shallot-Stream: on")),
	one("nats-agent-unknown", ask("agent.request",
		`{"model":"agent/nobody","messages":[{"role":"user","content":"hi"}]}`)),
	{"nats-approval", []string{
		ask("tenant.held.tool.request.sendNote", note), ask("tenant.held.approval.list", ""),
		ask("tenant.held.approval.answer", `{"call":"$call","decision":"perhaps"}`),
		ask("tenant.held.approval.answer", `{"call":"$call","decision":"respond","content":"done"}`,
			"Shallot-User: bob"),
		ask("tenant.held.approval.answer", `{"call":"$call","decision":"approve"}`),
	}},
	one("nats-approvals-none", ask("tenant.none.approval.list", "")),
	one("nats-approval-unknown", ask("approval.answer", `{"call":"nobody","decision":"approve"}`)),
	one("nats-approval-nothing", ask("approval.answer", ``)),
	{"nats-todo", []string{
		ask("tenant.acme.todo.get", "", "Shallot-Session: n1"),
		ask("tenant.acme.todo.put", `{"items":[{"title":"write"}]}`,
			"Shallot-Session: n1"),
		ask("tenant.acme.todo.get", "", "Shallot-Session: n1"), ask("tenant.acme.todo.put", `{`,
			"Shallot-Session: n1"),
		ask("todo.get", ""),
	}},
	one("nats-cancel-unknown", ask("cancel.01a201e6-54b9-7d9c-9c8c-6230f84b6237", "")),
	one("nats-cancel-tenant-unknown", ask("tenant.acme.cancel.01a201e6-54b9-7d9c-9c8c-6230f84b6237", "")),
	{"nats-cancel-ended", []string{
		ask("tenant.acme.model.request", hello, "Idempotency-Key: c1"), ask("tenant.acme.cancel.$call", ""),
	}},
	one("nats-cancel-unknown-echo", ask("echo", "as it is", "X-Mine: 1")),
	one("nats-switch-unknown", ask("control.disable", "nobody")),
	one("nats-switch-mandatory", ask("control.disable", "audit")),
	one("nats-switch-nothing", ask("control.enable", "")),
	one("nats-ping", "NATS $SRV.PING\n\n"), one("nats-info", "NATS $SRV.INFO.shallot\n\n"),
	one("nats-streams", "NATS $JS.API.STREAM.NAMES\n\n"),
}
