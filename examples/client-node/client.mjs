// Asks a model over NATS, plain and streamed. Run a gateway, then: npm install && node client.mjs
import { connect, createInbox, StringCodec } from "nats";

const nc = await connect({ servers: process.env.NATS_URL ?? "nats://127.0.0.1:4222" });
const text = StringCodec();
const body = more => text.encode(JSON.stringify({ model: "demo/echo", messages: [{ role: "user", content: "hello there" }], ...more }));

const reply = await nc.request("shallot.v1.model.request", body(), { timeout: 60_000 });
if (reply.headers?.get("Nats-Service-Error-Code")) throw new Error(text.decode(reply.data));
console.log(reply.json().choices[0].message.content, "| path:", reply.headers.get("Shallot-Path"));

// A streamed reply is one message for each chunk and an empty one at the end.
const inbox = createInbox();
const chunks = nc.subscribe(inbox);
nc.publish("shallot.v1.model.request", body({ stream: true }), { reply: inbox });
for await (const m of chunks) {
  if (m.data.length === 0) break;
  const chunk = m.json();
  if (chunk.error) throw new Error(chunk.error.message);
  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
}
console.log();
await nc.close();
