// Tasks at the gateway's /mcp with the extension's own client: node tasks.mjs URL. Its schemas check every handle and
// every task, and it drives the tasks to their end. The SDK's client has no Tasks, so requests are sent with fetch.
import assert from "node:assert/strict";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { createApplicationInputHandler, createTaskSessionFromClient } from "@modelcontextprotocol/ext-tasks/client";
import { isCreateTaskResultV2, isDetailedTaskV2 } from "@modelcontextprotocol/ext-tasks/core/v2";

const url = process.argv[2];
const protocolVersion = "2026-07-28";
const clientInfo = { name: "tasks", version: "1" };
const clientCapabilities = { elicitation: {}, extensions: { "io.modelcontextprotocol/tasks": {} } };
const seen = new Set(); // what tools/call and tasks/get said

let ids = 0;
async function rawDispatch(request, options) {
  const name = request.params?.taskId ?? request.params?.name;
  const meta = {
    "io.modelcontextprotocol/protocolVersion": protocolVersion,
    "io.modelcontextprotocol/clientInfo": clientInfo,
    "io.modelcontextprotocol/clientCapabilities": clientCapabilities,
    ...request.params?._meta,
  };
  const response = await fetch(url, {
    method: "POST",
    signal: options?.signal,
    headers: {
      "content-type": "application/json",
      accept: "application/json, text/event-stream",
      "mcp-protocol-version": protocolVersion,
      "mcp-method": request.method,
      ...(name ? { "mcp-name": name } : {}),
    },
    body: JSON.stringify({ jsonrpc: "2.0", ...request, id: request.id ?? `raw-${++ids}`, params: { ...request.params, _meta: meta } }),
  });
  const text = await response.text();
  const events = text.split("\n").filter((line) => line.startsWith("data: ")).map((line) => JSON.parse(line.slice(6)));
  const message = text.startsWith("{") ? JSON.parse(text) : events.find((event) => "id" in event);
  const result = message.result;
  if (result && request.method === "tools/call") {
    seen.add(`call ${result.resultType}`);
    assert.ok(result.resultType !== "task" || isCreateTaskResultV2(result), JSON.stringify(result));
  } else if (result && request.method === "tasks/get") {
    seen.add(`get ${result.status}`);
    assert.ok(isDetailedTaskV2(result), JSON.stringify(result));
  }
  return message;
}

const client = new Client(clientInfo, { capabilities: clientCapabilities, versionNegotiation: { mode: "auto" } });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const none = async () => assert.fail("nobody asked for that");
const session = createTaskSessionFromClient(client, {
  endpointId: "gateway",
  rawDispatch,
  v2RequestFraming: { protocolVersion, clientInfo, clientCapabilities },
  onInputRequest: createApplicationInputHandler({
    elicitation: async () => ({ action: "accept", content: { confirm: true, name: "Ada" } }),
    sampling: none,
    roots: none,
  }),
});
const settle = async (tool, args) => (await (await session.callTool(tool, args)).settle()).outcome;
const texts = async (tool, args) => (await settle(tool, args)).result.content.map((block) => block.text).join();

assert.equal(await texts("greet", { name: "World" }), "Hello, World!");
assert.equal(await texts("slow_compute", { seconds: 1, label: "x" }), "computed x in 1 s");
assert.equal((await settle("failing_job", {})).result.isError, true);
assert.equal((await settle("protocol_error_job", {})).status, "failed");
assert.equal(await texts("confirm_delete", { filename: "f" }), "deleted f");
assert.equal(await texts("multi_input", {}), "got both");
assert.equal(await texts("test_tool_with_task", {}), "Hello, Ada!");
const slow = await session.callTool("slow_compute", { seconds: 60, label: "c" });
await slow.cancel();
assert.equal((await slow.settle()).outcome.status, "cancelled");
for (const what of ["call complete", "call task", "call input_required", "get working", "get input_required", "get completed", "get failed"]) {
  assert.ok(seen.has(what), `${what} did not come: ${[...seen]}`);
}
await session.close();
await client.close();
console.log("✓ the Tasks extension's own client");
