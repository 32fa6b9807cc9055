package messages

// The keys of the shared context ([Call.Note]): facts that one part of a call's way leaves for another. Each constant
// says what the note holds, who writes it, and who reads it. The reader "callers" means an API or its response headers;
// "outside" means nothing in this module.
const (
	// How the call went.

	// NoteStopper names the stage that ended the call before its target. Writer: pipeline.Step. Readers: audit, budget,
	// retries, tool-fallback, remote stages, callers.
	NoteStopper = "stoppedBy"
	// NoteExecutorReached is true once the target ran. Writers: pipeline.RunTarget, the bus where it may have run.
	// Readers: call-limit, audit, remote stages, the bus when it parks the call.
	NoteExecutorReached = "executorReached"
	// NoteEdited lists what stages have changed of the call; it becomes the header Shallot-Edited. Writer: [Call.Edited].
	// Readers: [Call.Edits], remote stages.
	NoteEdited = "edited"
	// NoteSessionLabel is what the caller's body calls its session (metadata.session_id): a label, never a session.
	// Writer: the entry. Readers: audit, logging.
	NoteSessionLabel = "session.label"
	// NoteDegraded says by what the reply is degraded; it becomes the header Shallot-Degraded. Writers: model-fallback,
	// tool-fallback. Readers: caches, audit, callers.
	NoteDegraded = "degraded"
	// NoteIsFallback is true where the call goes to a standby model. Writer: model-fallback. Readers: itself, the bus.
	NoteIsFallback = "CTX_IS_FALLBACK"
	// NoteEmptied names the stage that took the last words out of a reply which did say something (todo directives
	// alone): such a reply does not count as an empty reply of the target. Writer: todo-list. Readers: model-fallback,
	// remote stages.
	NoteEmptied = "emptiedBy"
	// NoteUpstreamHeaders holds answer headers of the upstream worth passing on with a success, as Fault.Headers does
	// with a failure: a JSON object of strings, by lower-case name (x-ratelimit-*, retry-after-ms,
	// x-upstream-request-id). Writer: the model endpoint. Readers: remote stages, callers.
	NoteUpstreamHeaders = "upstream.headers"
	// NoteUpstreamError is the provider's own error body where it refused a request in the caller's own wire, without
	// our secrets. Writer: the model endpoint. Readers: the faces.
	NoteUpstreamError = "upstream.error"
	// NoteWireHeaders holds headers of the caller that belong to the body in its wire (anthropic-version,
	// anthropic-beta): a JSON object of strings. Writers: the faces. Reader: the model endpoint.
	NoteWireHeaders = "wire.headers"
	// NoteDropped lists what the provider's wire could not say of the request; it becomes the header Shallot-Dropped.
	// Writer: the model endpoint. Readers: callers.
	NoteDropped = "wire.dropped"
	// NoteTargetRun says of the last run of the target how long it took and who was asked; see [TargetRun]. It is there
	// until the call is back with its owner. Writers: the model endpoint, the bus. Reader: the bus.
	NoteTargetRun = "target.run"
	// NoteTargetSpan is the trace context of the target's last run, where it is traced: the next run links to it. Writer
	// and reader: whoever traces.
	NoteTargetSpan = "target.span"
	// NoteJumpTo says where the run that a model call belongs to goes on: model, tool or end. Writers: pipeline.Step for a
	// stage that jumps, call-limit. Reader: the agent loop.
	NoteJumpTo = "jump_to"

	// Retries.

	// NoteShouldRetry says whether the caller may try again. Writers: model-retry, tool-retry. Readers: model-retry,
	// callers.
	NoteShouldRetry = "retry.shouldRetry"
	// NoteSuggestedDelay is how many milliseconds the caller should wait before. Writers: model-retry, tool-retry.
	// Readers: callers.
	NoteSuggestedDelay = "retry.suggestedDelayMs"
	// NoteMaxRetries is how often the caller may try again. Writer: tool-retry. Readers: outside.
	NoteMaxRetries = "retry.maxRetries"

	// Streams.

	// NoteStreamShown is true once a part of this result was sent to the caller: nothing may run again for it, and no
	// other result may replace it. Writer: the tool target. Readers: pipeline.Step, tool-retry, tool-fallback.
	NoteStreamShown = "stream.shown"
	// NoteStreamEmitted counts the chunks that the last run of the target sent to the caller; it is absent where none of
	// them showed anything. Writer and reader: the bus.
	NoteStreamEmitted = "stream.emitted"
	// NoteStreamTail holds the raw chunks that end a stream: finish reasons and usage. Writer: the model endpoint.
	// Readers: stream.Follower, remote stages.
	NoteStreamTail = "stream.tail"

	// Parked calls and the bus.

	// NoteStored marks a call that is stored, so that another process may run its stages again. Writer: the bus. Readers:
	// stages that keep records.
	NoteStored = "bus.stored"
	// NoteWorks is the number of the last run of the target before the call was parked, so that the next one is another.
	// Writer and reader: the bus.
	NoteWorks = "bus.works"
	// NoteRanWith is a checksum of the request that a target which may not run twice has run with. Writer and reader: the
	// bus.
	NoteRanWith = "bus.ranWith"

	// NoteAnswer is where a stage finds the answer to its Hold when its phase runs again. Writer: the bus. Reader: the
	// stage that held the call (approval).
	NoteAnswer = "hold.answer"
	// NoteSuspended holds the question of a target that waits for an answer. Writer and reader: pipeline.
	NoteSuspended = "target.suspended"
	// NoteUnanswered holds the fault that says why a suspended target gets no answer. Writer: the bus. Reader: the target.
	NoteUnanswered = "hold.unanswered"
	// NoteResumed marks a call that goes on after its hold, until a process takes it; its value is the generation of
	// the hold. Writer and reader: the bus.
	NoteResumed = "hold.resumed"
	// NoteWaiting is where a call waits for an absent stage: it goes into the fault if the stage never comes. Writer
	// and reader: the bus.
	NoteWaiting = "bus.waiting"

	// Agent runs.

	// NoteRunState holds the state of the run that a call belongs to: an object of values by key. Writer: the agent loop.
	// Readers: stages of model and tool calls.
	NoteRunState = "run.state"
	// NoteRunUpdate lists the updates that stages make to the state of the run, in order, each an object of values by key.
	// Writers: hooks and other stages. Reader: the agent loop.
	NoteRunUpdate = "run.update"
	// NoteBought holds what stages have bought for a call of a run: what each model call has used that they made, by its
	// id. Writer: pipeline. Reader: the agent loop, whose run pays for it.
	NoteBought = "run.bought"
	// NoteToolCall is the model's own id of the tool call that a call of a run carries out. Writer: the agent loop.
	// Reader: approval, which binds a grant to it.
	NoteToolCall = "run.toolCall"

	// Model stages.

	// NoteModelCache is "hit" or "miss" where a cache was asked, for tools too; it becomes the header Shallot-Cache.
	// Writers: model-cache, tool-cache. Readers: audit, callers.
	NoteModelCache = "modelCache"
	// NotePII counts findings by side, type and strategy. It never holds a value. Writers: pii, tool-pii. Reader: pii.
	NotePII = "pii"
	// NotePairRepair says what pair repair changed; it is absent where nothing was wrong. Writer: pair-repair. Readers:
	// outside.
	NotePairRepair = "pairRepair"
	// NoteContextEditing lists what each strategy did that was over its threshold. Writer and reader: context-editing.
	NoteContextEditing = "contextEditing"
	// NoteCleared holds the ids of the tool results that were cleared in this call. Writer and reader: context-editing.
	NoteCleared = "contextEditing.cleared"
	// NoteToolsAllowed lists, in the order of the request, the tools that the model was offered; set only where some
	// were left out. Writer: tool-selection. Readers: outside.
	NoteToolsAllowed = "toolSelection.allowed"
	// NoteToolsBlocked lists tools that the model called although they were left out; only strict mode sets it. Writer
	// and reader: tool-selection.
	NoteToolsBlocked = "toolSelection.blocked"
	// NoteTodoList names the todo list of a call that works on another than its session's; empty: on none. Writer: the
	// agent loop. Reader: todo-list.
	NoteTodoList = "todo.list"
	// NoteTodo says what was done with a reply's directives. Writer and reader: todo-list.
	NoteTodo = "todo"
	// NoteStageTools holds the tools that stages added to a model call: tool name -> stage name. Writer and reader:
	// pipeline.
	NoteStageTools = "stageTools"

	// Tool stages and the tool target.

	// NoteCacheHit is true where the result came from the cache. Writer: tool-cache. Readers: tool-fallback, audit,
	// callers.
	NoteCacheHit = "caching.tool.cacheHit"
	// NoteToolKey is the key of the call's identity as the cache saw it. Writer: tool-cache. Reader: tool-fallback.
	NoteToolKey = "tool.key"
	// NoteToolVersion is the version that the name was resolved to, so that a call keeps it to its end. Writer:
	// tool-arguments. Readers: the tool stages, the tool target.
	NoteToolVersion = "tool.version"
	// NoteArgumentChanges lists what argument parsing changed. Writers: tool-arguments, approval. Readers:
	// approval, audit, the faces.
	NoteArgumentChanges = "tool.changes"
	// NoteArgumentIssues lists what was wrong with the arguments, for callers that read more than text. Writer:
	// tool-arguments. Readers: outside.
	NoteArgumentIssues = "tool.issues"
	// NoteGrant holds the grant of a call: it proves that these arguments passed the approval. Writer: approval.
	// Reader: approval, when the call comes again.
	NoteGrant = "approval.grant"
	// NoteDecision says how a call that had to wait was decided: {decision, by, at}. Writer: approval. Reader: audit.
	NoteDecision = "approval.decision"
	// NoteToolTimeout is the time limit of the attempt in milliseconds. Writer: timeout. Reader: the tool target.
	NoteToolTimeout = "tool.timeoutMs"
	// NoteToolStarted is true once a tool that may not run twice was started for this call. Whatever fails after that,
	// the caller must not be told to try again. Writer: the tool target. Readers: tool-fallback, the tool target, the
	// bus.
	NoteToolStarted = "tool.started"
	// NoteIsError is true where the reply is the tool's own error result, which is passed on as it is and never cached.
	// Writers: the tool target, approval, tool-fallback. Readers: the tool stages, callers.
	NoteIsError = "tool.isError"
	// NoteMetadata holds the result's metadata as an object: from_cache, fallback, and the executor's own. Writers: the
	// tool target, the tool stages. Readers: the tool stages, the MCP face.
	NoteMetadata = "tool.metadata"
	// NoteStructured holds the result's structured content, where it has one beside the reply. Writers: the tool
	// target, tool-pii, tool-cache. Readers: the tool stages, the MCP face.
	NoteStructured = "tool.structured"
	// NoteEvicted is true where the reply is the summary of an evicted result. Writer: large-result-eviction. Readers:
	// itself, tool-cache.
	NoteEvicted = "tool.evicted"
	// NoteEvictedPassed is how many characters of a streamed result the filter let pass; the after begins its reply
	// with them. Writer and reader: large-result-eviction.
	NoteEvictedPassed = "tool.evictedPassed"
	// NoteToolFault holds the fault that a degraded tool result replaces: {code, message, origin, last}. Writer:
	// tool-fallback. Reader: stream.ToolFollower.
	NoteToolFault = "tool.fallbackFault"
	// NoteMCP holds what an MCP caller said beside the arguments; see tool.MCPCall. Writer: the MCP face. Reader: the
	// tool target.
	NoteMCP = "mcp.call"
)

// MarkField is the field that a degraded result which is a JSON object gets, so that the model sees the mark too:
// {"fallback": "stale_cache", "stored": "<time>"}. A text gets a last line "[fallback=stale_cache]"; any other JSON
// value v becomes {"result": v, "_shallot": {...}}. Writer: tool-fallback. Reader: the MCP face, which takes it off.
const MarkField = "_shallot"

// StandbyMark is the Shallot-Degraded text of a reply that a standby model gave.
func StandbyMark(model string) string { return "model-fallback;model=" + model }
