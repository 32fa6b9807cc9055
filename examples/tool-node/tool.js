// A tool for Shallot: a NATS micro endpoint that gets its arguments as JSON and answers with its result.
// The metadata "shallot.tool" makes it a tool of every Shallot on this server; docs/tools.md has the keys.
import { setTimeout as sleep } from "node:timers/promises";
import { connect } from "nats";

const nc = await connect({ servers: process.env.NATS_URL ?? "127.0.0.1:4222" });
const definition = {
  name: "word_count",
  description: "Counts the words of a text, after waiting the given milliseconds.",
  "input-schema": { type: "object", properties: { text: { type: "string" }, ms: { type: "integer", default: 0 } }, required: ["text"] },
  policy: { effect: "read" },
};

async function handle(err, msg) {
  if (err) return;
  // Either subject says that the work is given up: the caller left, or this attempt's time is over.
  const stop = new AbortController();
  const subs = [`shallot.v1.cancel.${msg.headers?.get("Shallot-Call")}`, msg.headers?.get("Shallot-Cancel")]
    .filter((s) => s && !s.endsWith("."))
    .map((s) => nc.subscribe(s, { max: 1, callback: () => stop.abort() }));
  try {
    const { text, ms } = msg.json();
    await sleep(ms ?? 0, null, { signal: stop.signal });
    msg.respond(JSON.stringify({ words: text.split(/\s+/).filter(Boolean).length, pid: process.pid }));
  } catch (e) {
    msg.respondError(stop.signal.aborted ? 499 : 500, e.message);
  } finally {
    subs.forEach((s) => s.unsubscribe());
  }
}

const service = await nc.services.add({ name: "word-count", version: "1.0.0", description: definition.description });
service.addEndpoint("word_count", { subject: "tools.word_count", metadata: { "shallot.tool": JSON.stringify(definition) }, handler: handle });
console.log("word_count is served on tools.word_count");
await nc.closed();
