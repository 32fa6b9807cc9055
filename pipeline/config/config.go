// Package config reads the configuration of Shallot: one YAML file, read strictly, with overrides from the environment
// and from flags. It does not know the stages: the sections under agent.interceptor are decoded into structs that the
// caller brings.
//
// Struct tags say what a key is: yaml (its name), enum, min, max, pattern, required, secret, and env:"-" for what only
// the operator's file may hold. The comment of a field is what people and editors read about its key; structs of other
// packages, such as those of the stages, have that sentence in the tag doc. Loader, validation and JSON Schema all read
// these, so they cannot disagree.
package config

import (
	"time"
)

// Config is the whole configuration except the stages' own sections. [Default] returns it with the defaults.
type Config struct {
	// Version of this format.
	Version int `yaml:"version" enum:"1"`
	// Interceptors and agents.
	Agent Agent `yaml:"agent"`
	// Stages that programs elsewhere serve; see writing-a-stage.md.
	Stages []RemoteStage `yaml:"stages" env:"-"`
	// Tools: execution, timeouts, arguments, definitions.
	Tool Tooling `yaml:"tool"`
	// Model providers.
	Models Models `yaml:"models"`
	// The gateway's HTTP listeners.
	HTTP HTTP `yaml:"http"`
	// Connection to NATS, or the embedded server.
	NATS NATS `yaml:"nats"`
	// Times and limits of the bus.
	Bus Bus `yaml:"bus"`
	// Language of what Shallot itself says to models and in results: English, or the Chinese of the design documents.
	Texts string `yaml:"texts" enum:"en,zh"`
	// The stories of calls, by which one can be looked up.
	Explain Explain `yaml:"explain"`
	// Traces and metrics.
	Telemetry Telemetry `yaml:"telemetry"`
	// What is for workers only.
	Worker Worker `yaml:"worker"`
}

// Agent holds the interceptors and the agents.
type Agent struct {
	// The stages, one section each.
	Interceptor Interceptors `yaml:"interceptor"`
	// Agents that callers can run by name.
	Agents []AgentSpec `yaml:"agents" env:"-"`
}

// Interceptors marks the place of the stages' sections; the values are in the pointers of [Options].
type Interceptors struct{}

// ToolLimit is agent.interceptor.tool-limit: how many tools the runs of agents may call. The section has no stage,
// because the agent loop counts, before it sends a call. A limit that is null does not apply.
type ToolLimit struct {
	// Tool calls of one agent run; null: no limit.
	RunLimit *int `yaml:"run-limit" min:"0"`
	// Tool calls of one session; null: no limit.
	ThreadLimit *int `yaml:"thread-limit" min:"0"`
	// At the limit: continue gives the model an error as the result, end ends the run, error fails it.
	ExitBehavior string `yaml:"exit-behavior" enum:"continue,end,error"`
	// Limits by name of the tool, beside those of all together.
	Tools map[string]ToolLimits `yaml:"tools"`
}

// ToolLimits are the limits of one tool.
type ToolLimits struct {
	// Calls of one agent run; null: no limit.
	RunLimit *int `yaml:"run-limit" min:"0"`
	// Calls of one session; null: no limit.
	ThreadLimit *int `yaml:"thread-limit" min:"0"`
}

// AgentSpec is one agent.
type AgentSpec struct {
	// Unique; callers write agent/<name> as the model.
	Name string `yaml:"name" required:"true" pattern:"^[A-Za-z0-9_-]{1,64}$"`
	// What it is good for; other agents and callers read it.
	Description string `yaml:"description"`
	// System prompt of each run.
	Instructions string `yaml:"instructions"`
	// Model of each run; empty: the first that a provider names.
	Model string `yaml:"model"`
	// Names of the tools that the agent may call; * stands for any text, and agent/<name> for another agent.
	Tools []string `yaml:"tools"`
	// Optional stages of its model calls; empty: the default chain.
	Stages []string `yaml:"stages"`
	// Limits of one run.
	Limits AgentLimits `yaml:"limits"`
	// JSON Schema of the final answer.
	OutputSchema JSON `yaml:"output-schema"`
	// How updates of the run's state by stages are joined, by key: append or replace; a key that is not named is
	// replaced.
	State map[string]string `yaml:"state"`
}

// SetDefaults fills a new entry before the file's keys are read into it.
func (a *AgentSpec) SetDefaults() { a.Limits.ExitBehavior = "end" }

// AgentLimits bounds one run; nil and 0 mean the default of the agent loop.
type AgentLimits struct {
	// Model calls of one run, those of its sub-agents included; null: 50.
	ModelCalls *int `yaml:"model-calls" min:"0"`
	// Tool calls of one run, those of its sub-agents included; null: 200, or tool-limit.run-limit.
	ToolCalls *int `yaml:"tool-calls" min:"0"`
	// Tokens of one run, those of its sub-agents included; null: no limit.
	Tokens *int64 `yaml:"tokens" min:"0"`
	// Money of one run in US dollars, that of its sub-agents included, by agent.interceptor.budget.prices; null: no
	// limit.
	USD *float64 `yaml:"usd" min:"0"`
	// At the limit of model calls, tokens or money: end ends the run with a message, error fails it.
	ExitBehavior string `yaml:"exit-behavior" enum:"end,error"`
	// Time of one run; 0: an hour.
	Timeout time.Duration `yaml:"timeout" min:"0s"`
}

// RemoteStage is a stage that a program elsewhere serves.
type RemoteStage struct {
	// Unique within its kind, and not the name of a built-in stage of that kind.
	Name string `yaml:"name" required:"true" pattern:"^[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?$"`
	// Kind of calls.
	Kind string `yaml:"kind" required:"true" enum:"model,tool,agent"`
	// Whether all calls pass it; calls of tools that name it always do.
	Enabled bool `yaml:"enabled"`
	// Place in the chain; low is outermost.
	Order int `yaml:"order" min:"0" max:"1000000"`
	// How firmly it is on the route; mandatory needs an order of 0 to 9.
	Tier string `yaml:"tier" enum:"optional,fixed,mandatory"`
	// Phases that it has.
	Phases []string `yaml:"phases" enum:"before,after"`
	// NATS subject of its program; empty: <bus.root>.v1.stage.<kind>.<name>.
	Subject string `yaml:"subject" pattern:"^([^\\s.*>]+(\\.[^\\s.*>]+)*)?$"`
	// Time limit of one answer.
	Timeout time.Duration `yaml:"timeout" min:"1ms" max:"1h"`
	// How often a question is asked, with the same key, before on-error decides.
	Tries int `yaml:"tries" min:"1" max:"10"`
	// If no program or worker serves it: wait until the deadline, or skip (optional stages only).
	OnAbsent string `yaml:"on-absent" enum:"wait,skip"`
	// If its program gives no answer: open lets the call go on, closed fails it; auto: open for optional stages that no
	// tool makes mandatory.
	OnError string `yaml:"on-error" enum:"auto,open,closed"`
	// Whether its after may ask for another attempt; the request is kept for it.
	Again bool `yaml:"again"`
	// Targets that it may jump to.
	Jumps []string `yaml:"jumps" enum:"model,tool,end"`
	// Classes of model calls; empty: all.
	ApplyTo []string `yaml:"apply-to" enum:"agent,session,bare"`
	// Whether its after runs also for a call whose time is over, because it gives something back.
	Finally bool `yaml:"finally"`
	// What it reads; request and reply are sent only if they or a part of them are named. Empty: both are sent.
	Reads []string `yaml:"reads" pattern:"^[a-z][A-Za-z0-9_.-]*$"`
	// Fields of request and reply that its answers may change, such as request.messages or reply; anything else is
	// refused.
	Writes []string `yaml:"writes" pattern:"^[a-z][A-Za-z0-9_.-]*$"`
}

// SetDefaults fills a new entry before the file's keys are read into it.
func (s *RemoteStage) SetDefaults() {
	*s = RemoteStage{Enabled: true, Order: 100, Tier: "optional", Phases: []string{"before", "after"},
		Timeout: 5 * time.Second, Tries: 2, OnAbsent: "wait", OnError: "auto"}
}

// Models holds the providers.
type Models struct {
	// Model providers; the first that serves a name is asked. OPENAI_API_KEY and OPENAI_BASE_URL make one before these.
	Providers []Provider `yaml:"providers" env:"-"`
	// Times allowed for one request to a provider.
	Timeouts ModelTimeouts `yaml:"timeouts"`
}

// Provider is one model provider.
type Provider struct {
	// Unique; names its class of work.
	Name string `yaml:"name" required:"true" pattern:"^[A-Za-z0-9_-]{1,64}$"`
	// http or https URL up to /v1; empty: that of OpenAI.
	BaseURL URL `yaml:"base-url"`
	// Environment variable that holds the key; never the key itself.
	APIKeyEnv string `yaml:"api-key-env" pattern:"^([A-Za-z_][A-Za-z0-9_]*)?$"`
	// Names that it serves; * stands for any text.
	Models []string `yaml:"models" required:"true"`
	// APIs that it speaks: chat, responses, messages. Callers of another one are translated to the first. Empty: found by
	// the address.
	Wires []string `yaml:"wires"`
	// Tokens of an answer where a request to an Anthropic API names no limit; 0: 8192.
	OutputLimit int64 `yaml:"output-limit" min:"0"`
	// Inputs in one request for embeddings; larger requests are split. 0: 2048.
	EmbedBatch int `yaml:"embed-batch" min:"0"`
	// Headers added to each request.
	Headers map[string]Secret `yaml:"headers"`
	// Times of this provider; 0: as in models.timeouts.
	Timeouts ProviderTimeouts `yaml:"timeouts"`
}

// ModelTimeouts bounds one request to a provider.
type ModelTimeouts struct {
	// Until a connection stands.
	Connect time.Duration `yaml:"connect" min:"1ms"`
	// Until the answer begins. Without stream that is when the model has finished.
	FirstByte time.Duration `yaml:"first-byte" min:"1ms"`
	// Of a stream: until the model says something.
	FirstToken time.Duration `yaml:"first-token" min:"1ms"`
	// Between two pieces of an answer.
	Idle time.Duration `yaml:"idle" min:"1ms"`
	// Of a stream: how long thoughts wait for the first word where a stage filters texts; elsewhere they are shown as
	// they come.
	FirstTokenHold time.Duration `yaml:"first-token-hold" min:"1ms"`
	// One request with its whole answer; while standby models are left, at most its share of the call's time.
	Attempt time.Duration `yaml:"attempt" min:"1ms"`
	// The whole answer; also the longest deadline of a model call.
	Total time.Duration `yaml:"total" min:"1ms"`
}

// ProviderTimeouts bounds requests to one provider; a 0 means the value of ModelTimeouts.
type ProviderTimeouts struct {
	// Until a connection stands.
	Connect time.Duration `yaml:"connect" min:"0s"`
	// Until the answer begins.
	FirstByte time.Duration `yaml:"first-byte" min:"0s"`
	// Of a stream: until the model says something.
	FirstToken time.Duration `yaml:"first-token" min:"0s"`
	// Between two pieces of an answer.
	Idle time.Duration `yaml:"idle" min:"0s"`
	// Of a stream: how long thoughts wait for the first word where a stage filters texts.
	FirstTokenHold time.Duration `yaml:"first-token-hold" min:"0s"`
	// One request with its whole answer.
	Attempt time.Duration `yaml:"attempt" min:"0s"`
}

// HTTP holds the gateway's listeners.
type HTTP struct {
	// Listener of callers, host:port. Beyond loopback it needs a keys-file.
	Addr string `yaml:"addr"`
	// Listener of operators, host:port; empty: none.
	Admin string `yaml:"admin"`
	// File of the callers' keys (hashes); empty: no keys, loopback only.
	KeysFile string `yaml:"keys-file"`
	// Largest request body.
	BodyLimit Size `yaml:"body-limit" min:"1KiB" max:"1GiB"`
	// Further origins of browsers: scheme://host[:port].
	AllowedOrigins []string `yaml:"allowed-origins"`
}

// NATS says which server is used.
type NATS struct {
	// Server or servers, by comma; empty (and no context): an embedded server. NATS_URL fills it.
	URL URL `yaml:"url"`
	// Name of a NATS CLI context. NATS_CONTEXT fills it.
	Context string `yaml:"context"`
	// Path of a credentials file. NATS_CREDS fills it.
	Creds string `yaml:"creds"`
	// TLS of the connection.
	TLS TLS `yaml:"tls"`
	// How long a start waits for a server that is not there yet; 0: not at all.
	Wait time.Duration `yaml:"wait" min:"0s" max:"24h"`
	// Believe a Shallot-Tenant header from outside.
	TrustTenantHeader bool `yaml:"trust-tenant-header"`
	// Serve subjects without a tenant, as tenant default.
	BareSubjects bool `yaml:"bare-subjects"`
	// Further prefixes of reply subjects that callers may name, beside _INBOX. and _INBOX_; _R_. for those who come
	// through a service import of another account.
	InboxPrefixes []string `yaml:"inbox-prefixes" pattern:"^[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*[._]$"`
	// Make streams and buckets, or only check them.
	Provision string `yaml:"provision" enum:"create,verify"`
	// Copies of each stream and bucket.
	Replicas int `yaml:"replicas" min:"1" max:"5"`
	// The embedded server, used without url and context.
	Embedded Embedded `yaml:"embedded"`
}

// TLS names the files of a TLS connection; all are paths.
type TLS struct {
	// Path of the authorities' certificates.
	CA string `yaml:"ca"`
	// Path of the own certificate; needs key.
	Cert string `yaml:"cert"`
	// Path of the own private key; needs cert.
	Key string `yaml:"key"`
}

// Embedded is the embedded server.
type Embedded struct {
	// Loopback port; 0: none, in-process only; -1: any free one.
	Port int `yaml:"port" min:"-1" max:"65535"`
	// always, or the interval of fsync; a power failure loses what came after the last one.
	Sync Sync `yaml:"sync"`
	// Data directory.
	Data string `yaml:"data" required:"true"`
}

// Bus holds the limits of the bus.
type Bus struct {
	// First tokens of every subject.
	Root string `yaml:"root" pattern:"^[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*$" required:"true"`
	// Run the stages of the owner's own process without hops.
	Fusion bool `yaml:"fusion"`
	// How long a process counts as there after its last mark; 30s is advised on clusters.
	MarkTTL time.Duration `yaml:"mark-ttl" min:"5s" max:"5m"`
	// How long a question to a stage may stay without any sign before it is asked again.
	HopPatience time.Duration `yaml:"hop-patience" min:"50ms" max:"10s"`
	// How long target work that its member shows no more is waited for.
	MemberTimeout time.Duration `yaml:"member-timeout" min:"1s" max:"1h"`
	// How long a stored call waits for a sign of its owner before another one takes it; 30s is advised on clusters.
	AckWait time.Duration `yaml:"ack-wait" min:"1s" max:"1h"`
	// Longest expected wait in line for a target; calls that would wait longer are refused.
	MaxQueueWait time.Duration `yaml:"max-queue-wait" min:"1s" max:"24h"`
	// Accepted calls that are stored; more are refused as overloaded.
	QueueMaxMsgs int64 `yaml:"queue-max-msgs" min:"1"`
	// Bytes of the accepted calls that are stored.
	QueueMaxBytes Size `yaml:"queue-max-bytes" min:"1MiB"`
	// Bodies above this travel as a reference; below the server's max_payload.
	ClaimCheck Size `yaml:"claim-check" min:"1KiB"`
	// How long a gateway that is told to stop serves on while its readiness fails; 0: not at all.
	LameDuck time.Duration `yaml:"lame-duck" min:"0s" max:"1h"`
	// Calls that a process runs at once in each class.
	Slots Slots `yaml:"slots"`
	// How long results and idempotency records are kept.
	ResultTTL time.Duration `yaml:"result-ttl" min:"1m"`
}

// Slots bound the work of targets. The slots of tools are under tool.executor.
type Slots struct {
	// Calls of models, for each provider.
	Model int `yaml:"model" min:"1" max:"100000"`
}

// Explain configures the stories of calls, by which one can be looked up.
type Explain struct {
	// How long they are kept; 0: not at all.
	Keep time.Duration `yaml:"keep" min:"0s"`
	// Bytes of all that are kept; above, the oldest go. A story has one to three KiB.
	MaxBytes Size `yaml:"max-bytes" min:"1MiB"`
	// Share of the calls without a fault whose stories are kept, 0 to 1; those with a fault always are.
	Sample float64 `yaml:"sample" min:"0" max:"1"`
	// Keep what stages changed: where, and how many bytes.
	Changes bool `yaml:"changes"`
	// Keep the texts of what stages changed too; where the stage pii is on, only what it has passed.
	Bodies bool `yaml:"bodies"`
}

// Telemetry configures metrics and traces. Where they go to is said by the variables OTEL_* of OpenTelemetry.
type Telemetry struct {
	// Serve /metrics for Prometheus with the control surfaces.
	Metrics bool `yaml:"metrics"`
	// Put prompts and answers into traces.
	Prompts bool `yaml:"prompts"`
	// Serve Go's profiles at /debug/pprof/ on the admin listener, for operators.
	Pprof bool `yaml:"pprof"`
}

// Worker is what a worker has beside its roles.
type Worker struct {
	// Listener of a worker for probes, /metrics and profiles, host:port; empty: none. Beyond loopback it needs
	// http.keys-file.
	Admin string `yaml:"admin"`
}

// Default returns the defaults. The entries of lists and maps get theirs from SetDefaults of their type.
func Default() Config {
	return Config{
		Version: 1,
		Tool: Tooling{
			Executor: Executor{CorePool: 16, MaxPool: 64, QueueCapacity: 256},
			Timeout: ToolTimeouts{
				Default:  15 * time.Second,
				Prefixes: map[string]time.Duration{"search_": 10 * time.Second, "create_": 30 * time.Second},
			},
			MaxDescription: 8 << 10,
			Arguments:      ToolArguments{Coercion: "documents", IntegerBits: 64, Undeclared: "auto", Formats: "annotate"},
			Policy:         ToolPolicy{Undeclared: "careful", Discovered: "strict"},
			Fallback:       ToolFallback{StaleTTL: 30 * time.Minute, StaleMax: 5000, GracefulIsError: "auto"},
		},
		Models: Models{Timeouts: ModelTimeouts{
			Connect: 10 * time.Second, FirstByte: time.Minute, FirstToken: time.Minute, Idle: 30 * time.Second,
			FirstTokenHold: 5 * time.Second, Attempt: 5 * time.Minute, Total: 10 * time.Minute,
		}},
		HTTP: HTTP{Addr: "127.0.0.1:8080", Admin: "127.0.0.1:8081", BodyLimit: 32 * MiB},
		NATS: NATS{
			BareSubjects: true, Provision: "create", Replicas: 1,
			Embedded: Embedded{Port: 4222, Sync: Sync{Interval: time.Second}, Data: "./shallot-data"},
		},
		Bus: Bus{
			Root: "shallot", MarkTTL: 10 * time.Second, HopPatience: 250 * time.Millisecond,
			MemberTimeout: 10 * time.Second, AckWait: 15 * time.Second, MaxQueueWait: 30 * time.Second,
			QueueMaxMsgs: 100_000, QueueMaxBytes: 4 * GiB, ClaimCheck: 64 * KiB, LameDuck: 5 * time.Second,
			Slots: Slots{Model: 1024}, ResultTTL: 24 * time.Hour,
		},
		Texts:     "en",
		Explain:   Explain{Keep: time.Hour, MaxBytes: 256 * MiB, Sample: 1, Changes: true},
		Telemetry: Telemetry{Metrics: true},
	}
}
