// Package config reads the configuration of Shallot: one YAML file, read strictly, with overrides from the environment
// and from flags. It does not know the stages: the sections under agent.interceptor are decoded into structs that the
// caller brings.
//
// Struct tags say what a key is: yaml (its name), doc (one sentence for people and editors), enum, min, max, pattern,
// required, secret, and env:"-" for what only the operator's file may hold. Loader, validation and JSON Schema all read
// these tags, so they cannot disagree. The structs of stages use the same tags.
package config

import (
	"time"
)

// Config is the whole configuration except the stages' own sections. [Default] returns it with the defaults.
type Config struct {
	Version   int           `yaml:"version" doc:"Version of this format." enum:"1"`
	Agent     Agent         `yaml:"agent" doc:"Interceptors and agents."`
	Stages    []RemoteStage `yaml:"stages" doc:"Stages that programs elsewhere serve; see writing-a-stage.md." env:"-"`
	Tool      Tooling       `yaml:"tool" doc:"Tools: execution, timeouts, arguments, definitions."`
	Models    Models        `yaml:"models" doc:"Model providers."`
	HTTP      HTTP          `yaml:"http" doc:"The gateway's HTTP listeners."`
	NATS      NATS          `yaml:"nats" doc:"Connection to NATS, or the embedded server."`
	Bus       Bus           `yaml:"bus" doc:"Times and limits of the bus."`
	Texts     string        `yaml:"texts" doc:"Language of what Shallot itself says to models and in results: English, or the Chinese of the design documents." enum:"en,zh"`
	Explain   Explain       `yaml:"explain" doc:"The stories of calls, by which one can be looked up."`
	Telemetry Telemetry     `yaml:"telemetry" doc:"Traces and metrics."`
}

// Agent holds the interceptors and the agents.
type Agent struct {
	// Interceptor is where the stages' sections go; see [Options].
	Interceptor Interceptors `yaml:"interceptor" doc:"The stages, one section each."`
	Agents      []AgentSpec  `yaml:"agents" doc:"Agents that callers can run by name." env:"-"`
}

// Interceptors marks the place of the stages' sections; the values are in the pointers of [Options].
type Interceptors struct{}

// ToolLimit is agent.interceptor.tool-limit: how many tools the runs of agents may call. The section has no stage,
// because the agent loop counts, before it sends a call. A limit that is null does not apply.
type ToolLimit struct {
	RunLimit     *int                  `yaml:"run-limit" doc:"Tool calls of one agent run; null: no limit." min:"0"`
	ThreadLimit  *int                  `yaml:"thread-limit" doc:"Tool calls of one session; null: no limit." min:"0"`
	ExitBehavior string                `yaml:"exit-behavior" doc:"At the limit: continue gives the model an error as the result, end ends the run, error fails it." enum:"continue,end,error"`
	Tools        map[string]ToolLimits `yaml:"tools" doc:"Limits by name of the tool, beside those of all together."`
}

// ToolLimits are the limits of one tool.
type ToolLimits struct {
	RunLimit    *int `yaml:"run-limit" doc:"Calls of one agent run; null: no limit." min:"0"`
	ThreadLimit *int `yaml:"thread-limit" doc:"Calls of one session; null: no limit." min:"0"`
}

// AgentSpec is one agent.
type AgentSpec struct {
	Name         string      `yaml:"name" doc:"Unique; callers write agent/<name> as the model." required:"true" pattern:"^[A-Za-z0-9_-]{1,64}$"`
	Description  string      `yaml:"description" doc:"What it is good for; other agents and callers read it."`
	Instructions string      `yaml:"instructions" doc:"System prompt of each run."`
	Model        string      `yaml:"model" doc:"Model of each run; empty: the first that a provider names."`
	Tools        []string    `yaml:"tools" doc:"Names of the tools that the agent may call; * stands for any text, and agent/<name> for another agent."`
	Stages       []string    `yaml:"stages" doc:"Optional stages of its model calls; empty: the default chain."`
	Limits       AgentLimits `yaml:"limits" doc:"Limits of one run."`
	OutputSchema JSON        `yaml:"output-schema" doc:"JSON Schema of the final answer."`
	// TodoList says which todo list the models of its runs see and write.
	TodoList string `yaml:"todo-list" doc:"Todo list of a run. auto: that of its session; a sub-agent has its own if the run that calls it has one. own: one of its own, without a session too. shared: a sub-agent works on the list of the run that calls it." enum:"auto,own,shared"`
	// State says how values that stages keep in a run are joined.
	State map[string]string `yaml:"state" doc:"How updates of the run's state by stages are joined, by key: append or replace; a key that is not named is replaced."`
}

// SetDefaults fills a new entry before the file's keys are read into it.
func (a *AgentSpec) SetDefaults() { a.Limits.ExitBehavior, a.TodoList = "end", "auto" }

// AgentLimits bounds one run; nil and 0 mean the default of the agent loop.
type AgentLimits struct {
	ModelCalls   *int          `yaml:"model-calls" doc:"Model calls of one run, those of its sub-agents included; null: 50." min:"0"`
	ToolCalls    *int          `yaml:"tool-calls" doc:"Tool calls of one run, those of its sub-agents included; null: 200, or tool-limit.run-limit." min:"0"`
	Tokens       *int64        `yaml:"tokens" doc:"Tokens of one run, those of its sub-agents included; null: no limit." min:"0"`
	USD          *float64      `yaml:"usd" doc:"Money of one run in US dollars, that of its sub-agents included, by agent.interceptor.budget.prices; null: no limit." min:"0"`
	ExitBehavior string        `yaml:"exit-behavior" doc:"At the limit of model calls, tokens or money: end ends the run with a message, error fails it." enum:"end,error"`
	Timeout      time.Duration `yaml:"timeout" doc:"Time of one run; 0: an hour." min:"0s"`
}

// RemoteStage is a stage that a program elsewhere serves.
type RemoteStage struct {
	Name     string        `yaml:"name" doc:"Unique within its kind, and not the name of a built-in stage of that kind." required:"true" pattern:"^[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?$"`
	Kind     string        `yaml:"kind" doc:"Kind of calls." required:"true" enum:"model,tool,agent"`
	Enabled  bool          `yaml:"enabled" doc:"Whether all calls pass it; calls of tools that name it always do."`
	Order    int           `yaml:"order" doc:"Place in the chain; low is outermost." min:"0" max:"1000000"`
	Tier     string        `yaml:"tier" doc:"How firmly it is on the route; mandatory needs an order of 0 to 9." enum:"optional,fixed,mandatory"`
	Phases   []string      `yaml:"phases" doc:"Phases that it has." enum:"before,after"`
	Subject  string        `yaml:"subject" doc:"NATS subject of its program; empty: <bus.root>.v1.stage.<kind>.<name>." pattern:"^([^\\s.*>]+(\\.[^\\s.*>]+)*)?$"`
	Timeout  time.Duration `yaml:"timeout" doc:"Time limit of one answer." min:"1ms" max:"1h"`
	Tries    int           `yaml:"tries" doc:"How often a question is asked, with the same key, before on-error decides." min:"1" max:"10"`
	OnAbsent string        `yaml:"on-absent" doc:"If no program or worker serves it: wait until the deadline, or skip (optional stages only)." enum:"wait,skip"`
	OnError  string        `yaml:"on-error" doc:"If its program gives no answer: open lets the call go on, closed fails it; auto: open for optional stages that no tool makes mandatory." enum:"auto,open,closed"`
	Again    bool          `yaml:"again" doc:"Whether its after may ask for another attempt; the request is kept for it."`
	Jumps    []string      `yaml:"jumps" doc:"Targets that it may jump to." enum:"model,tool,end"`
	ApplyTo  []string      `yaml:"apply-to" doc:"Classes of model calls; empty: all." enum:"agent,session,bare"`
	Finally  bool          `yaml:"finally" doc:"Whether its after runs also for a call whose time is over, because it gives something back."`
	Reads    []string      `yaml:"reads" doc:"What it reads; request and reply are sent only if they or a part of them are named. Empty: both are sent." pattern:"^[a-z][A-Za-z0-9_.-]*$"`
	Writes   []string      `yaml:"writes" doc:"Fields of request and reply that its answers may change, such as request.messages or reply; anything else is refused." pattern:"^[a-z][A-Za-z0-9_.-]*$"`
}

// SetDefaults fills a new entry before the file's keys are read into it.
func (s *RemoteStage) SetDefaults() {
	*s = RemoteStage{Enabled: true, Order: 100, Tier: "optional", Phases: []string{"before", "after"},
		Timeout: 5 * time.Second, Tries: 2, OnAbsent: "wait", OnError: "auto"}
}

// Models holds the providers.
type Models struct {
	Providers []Provider    `yaml:"providers" doc:"Model providers; the first that serves a name is asked. OPENAI_API_KEY and OPENAI_BASE_URL make one before these." env:"-"`
	Timeouts  ModelTimeouts `yaml:"timeouts" doc:"Times allowed for one request to a provider."`
}

// Provider is one model provider.
type Provider struct {
	Name      string   `yaml:"name" doc:"Unique; names its class of work." required:"true" pattern:"^[A-Za-z0-9_-]{1,64}$"`
	BaseURL   URL      `yaml:"base-url" doc:"http or https URL up to /v1; empty: that of OpenAI."`
	APIKeyEnv string   `yaml:"api-key-env" doc:"Environment variable that holds the key; never the key itself." pattern:"^([A-Za-z_][A-Za-z0-9_]*)?$"`
	Models    []string `yaml:"models" doc:"Names that it serves; * stands for any text." required:"true"`
	Wires     []string `yaml:"wires" doc:"APIs that it speaks: chat, responses, messages. Callers of another one are translated to the first. Empty: found by the address."`
	// OutputLimit fills in what the messages wire demands.
	OutputLimit int64 `yaml:"output-limit" doc:"Tokens of an answer where a request to an Anthropic API names no limit; 0: 8192." min:"0"`
	// EmbedBatch splits requests for embeddings.
	EmbedBatch int               `yaml:"embed-batch" doc:"Inputs in one request for embeddings; larger requests are split. 0: 2048." min:"0"`
	Headers    map[string]Secret `yaml:"headers" doc:"Headers added to each request."`
	Timeouts   ProviderTimeouts  `yaml:"timeouts" doc:"Times of this provider; 0: as in models.timeouts."`
}

// ModelTimeouts bounds one request to a provider.
type ModelTimeouts struct {
	Connect        time.Duration `yaml:"connect" doc:"Until a connection stands." min:"1ms"`
	FirstByte      time.Duration `yaml:"first-byte" doc:"Until the answer begins. Without stream that is when the model has finished." min:"1ms"`
	FirstToken     time.Duration `yaml:"first-token" doc:"Of a stream: until the model says something." min:"1ms"`
	Idle           time.Duration `yaml:"idle" doc:"Between two pieces of an answer." min:"1ms"`
	FirstTokenHold time.Duration `yaml:"first-token-hold" doc:"Of a stream: how long thoughts wait for the first word where a stage filters texts; elsewhere they are shown as they come." min:"1ms"`
	Attempt        time.Duration `yaml:"attempt" doc:"One request with its whole answer; while standby models are left, at most its share of the call's time." min:"1ms"`
	Total          time.Duration `yaml:"total" doc:"The whole answer; also the longest deadline of a model call." min:"1ms"`
}

// ProviderTimeouts bounds requests to one provider; a 0 means the value of ModelTimeouts.
type ProviderTimeouts struct {
	Connect        time.Duration `yaml:"connect" doc:"Until a connection stands." min:"0s"`
	FirstByte      time.Duration `yaml:"first-byte" doc:"Until the answer begins." min:"0s"`
	FirstToken     time.Duration `yaml:"first-token" doc:"Of a stream: until the model says something." min:"0s"`
	Idle           time.Duration `yaml:"idle" doc:"Between two pieces of an answer." min:"0s"`
	FirstTokenHold time.Duration `yaml:"first-token-hold" doc:"Of a stream: how long thoughts wait for the first word where a stage filters texts." min:"0s"`
	Attempt        time.Duration `yaml:"attempt" doc:"One request with its whole answer." min:"0s"`
}

// HTTP holds the gateway's listeners.
type HTTP struct {
	Addr           string   `yaml:"addr" doc:"Listener of callers, host:port. Beyond loopback it needs a keys-file."`
	Admin          string   `yaml:"admin" doc:"Listener of operators, host:port; empty: none."`
	KeysFile       string   `yaml:"keys-file" doc:"File of the callers' keys (hashes); empty: no keys, loopback only."`
	BodyLimit      Size     `yaml:"body-limit" doc:"Largest request body." min:"1KiB" max:"1GiB"`
	AllowedOrigins []string `yaml:"allowed-origins" doc:"Further origins of browsers: scheme://host[:port]."`
}

// NATS says which server is used.
type NATS struct {
	URL               URL           `yaml:"url" doc:"Server or servers, by comma; empty (and no context): an embedded server. NATS_URL fills it."`
	Context           string        `yaml:"context" doc:"Name of a NATS CLI context. NATS_CONTEXT fills it."`
	Creds             string        `yaml:"creds" doc:"Path of a credentials file. NATS_CREDS fills it."`
	TLS               TLS           `yaml:"tls" doc:"TLS of the connection."`
	Wait              time.Duration `yaml:"wait" doc:"How long a start waits for a server that is not there yet; 0: not at all." min:"0s" max:"24h"`
	TrustTenantHeader bool          `yaml:"trust-tenant-header" doc:"Believe a Shallot-Tenant header from outside."`
	BareSubjects      bool          `yaml:"bare-subjects" doc:"Serve subjects without a tenant, as tenant default."`
	InboxPrefixes     []string      `yaml:"inbox-prefixes" doc:"Further prefixes of reply subjects that callers may name, beside _INBOX. and _INBOX_; _R_. for those who come through a service import of another account." pattern:"^[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*[._]$"`
	Provision         string        `yaml:"provision" doc:"Make streams and buckets, or only check them." enum:"create,verify"`
	Replicas          int           `yaml:"replicas" doc:"Copies of each stream and bucket." min:"1" max:"5"`
	Embedded          Embedded      `yaml:"embedded" doc:"The embedded server, used without url and context."`
}

// TLS names the files of a TLS connection; all are paths.
type TLS struct {
	CA   string `yaml:"ca" doc:"Path of the authorities' certificates."`
	Cert string `yaml:"cert" doc:"Path of the own certificate; needs key."`
	Key  string `yaml:"key" doc:"Path of the own private key; needs cert."`
}

// Embedded is the embedded server.
type Embedded struct {
	Port int    `yaml:"port" doc:"Loopback port; 0: none, in-process only; -1: any free one." min:"-1" max:"65535"`
	Sync Sync   `yaml:"sync" doc:"always, or the interval of fsync; a power failure loses what came after the last one."`
	Data string `yaml:"data" doc:"Data directory." required:"true"`
}

// Bus holds the limits of the bus.
type Bus struct {
	Root          string        `yaml:"root" doc:"First tokens of every subject." pattern:"^[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*$" required:"true"`
	Fusion        bool          `yaml:"fusion" doc:"Run the stages of the owner's own process without hops."`
	MarkTTL       time.Duration `yaml:"mark-ttl" doc:"How long a process counts as there after its last mark; 30s is advised on clusters." min:"5s" max:"5m"`
	HopPatience   time.Duration `yaml:"hop-patience" doc:"How long a question to a stage may stay without any sign before it is asked again." min:"50ms" max:"10s"`
	MemberTimeout time.Duration `yaml:"member-timeout" doc:"How long target work that its member shows no more is waited for." min:"1s" max:"1h"`
	AckWait       time.Duration `yaml:"ack-wait" doc:"How long a stored call waits for a sign of its owner before another one takes it; 30s is advised on clusters." min:"1s" max:"1h"`
	MaxQueueWait  time.Duration `yaml:"max-queue-wait" doc:"Longest expected wait in line for a target; calls that would wait longer are refused." min:"1s" max:"24h"`
	QueueMaxMsgs  int64         `yaml:"queue-max-msgs" doc:"Accepted calls that are stored; more are refused as overloaded." min:"1"`
	QueueMaxBytes Size          `yaml:"queue-max-bytes" doc:"Bytes of the accepted calls that are stored." min:"1MiB"`
	ClaimCheck    Size          `yaml:"claim-check" doc:"Bodies above this travel as a reference; below the server's max_payload." min:"1KiB"`
	LameDuck      time.Duration `yaml:"lame-duck" doc:"How long a gateway that is told to stop serves on while its readiness fails; 0: not at all." min:"0s" max:"1h"`
	Slots         Slots         `yaml:"slots" doc:"Calls that a process runs at once in each class."`
	ResultTTL     time.Duration `yaml:"result-ttl" doc:"How long results and idempotency records are kept." min:"1m"`
}

// Slots bound the work of targets. The slots of tools are under tool.executor.
type Slots struct {
	Model int `yaml:"model" doc:"Calls of models, for each provider." min:"1" max:"100000"`
}

// Explain configures the stories of calls, by which one can be looked up.
type Explain struct {
	Keep     time.Duration `yaml:"keep" doc:"How long they are kept; 0: not at all." min:"0s"`
	MaxBytes Size          `yaml:"max-bytes" doc:"Bytes of all that are kept; above, the oldest go. A story has one to three KiB." min:"1MiB"`
	Sample   float64       `yaml:"sample" doc:"Share of the calls without a fault whose stories are kept, 0 to 1; those with a fault always are." min:"0" max:"1"`
	Changes  bool          `yaml:"changes" doc:"Keep what stages changed: where, and how many bytes."`
	Bodies   bool          `yaml:"bodies" doc:"Keep the texts of what stages changed too; where the stage pii is on, only what it has passed."`
}

// Telemetry configures metrics and traces. Where they go to is said by the variables OTEL_* of OpenTelemetry.
type Telemetry struct {
	Metrics bool `yaml:"metrics" doc:"Serve /metrics for Prometheus with the control surfaces."`
	Prompts bool `yaml:"prompts" doc:"Put prompts and answers into traces."`
}

// Default returns the defaults. The entries of lists and maps get theirs from SetDefaults of their type.
func Default() Config {
	return Config{
		Version: 1,
		Tool: Tooling{
			Executor:       Executor{CorePool: 16, MaxPool: 64, QueueCapacity: 256},
			Timeout:        ToolTimeouts{Default: 15 * time.Second, Prefixes: map[string]time.Duration{"search_": 10 * time.Second, "create_": 30 * time.Second}},
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
