// A stage for Shallot: a NATS endpoint that is asked before and after each call what becomes of it.
// docs/writing-a-stage.md has what it gets and what it may answer. The configuration names it:
//   stages: [{name: house-rules, kind: model, order: 40, writes: [request.messages, reply.choices]}]
import { connect } from "nats";

const nc = await connect({ servers: process.env.NATS_URL ?? "127.0.0.1:4222" });
const key = /\bsk-[A-Za-z0-9]{16,}\b/g;

const phases = {
  before({ request }) {
    if (JSON.stringify(request.messages).match(key)) {
      return { error: { code: "blocked", message: "the request holds an API key; take it out and ask again" } };
    }
    const end = `request.messages.${request.messages.length}`; // one after the last: appended
    return { verdict: "continue", set: { [end]: { role: "system", content: "Answer politely." } }, state: Date.now() };
  },
  after({ reply, state }) {
    const set = {};
    reply?.choices?.forEach(({ message }, i) => {
      if (message.content?.match(key)) set[`reply.choices.${i}.message.content`] = message.content.replace(key, "[key]");
    });
    return { verdict: "continue", set, notes: { "house-rules.ms": Date.now() - state } };
  },
};

const service = await nc.services.add({ name: "house-rules", version: "1.0.0", description: "House rules for model calls" });
service.addEndpoint("house-rules", {
  subject: "shallot.v1.stage.model.house-rules",
  handler(err, msg) {
    if (err) return;
    try {
      msg.respond(JSON.stringify(phases[msg.json().phase](msg.json())));
    } catch (e) {
      msg.respondError(500, e.message); // the stage's error
    }
  },
});
console.log("house-rules is served on shallot.v1.stage.model.house-rules");
await nc.closed();
