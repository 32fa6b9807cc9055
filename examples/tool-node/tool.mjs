// A tool in Node: a NATS micro service that gets the arguments as JSON and answers with the result as JSON.
// shallot.yaml beside it makes it known. Run: npm install && node tool.mjs
import { connect } from "nats";

const nc = await connect({ servers: process.env.NATS_URL ?? "nats://127.0.0.1:4222" });
const service = await nc.services.add({ name: "text-tools", version: "1.0.0", description: "tools that work on text" });

// The queue group of the service spreads calls over as many copies of this process as you start.
service.addEndpoint("reverse", {
  subject: "tools.reverse",
  handler: (err, m) => {
    if (err) return console.error(err);
    try {
      const { text } = m.json(); // parsed and checked against input-schema already
      const key = m.headers?.get("Idempotency-Key"); // the same for every attempt of one call
      if (text === "fail") return m.respondError(500, "it fails, as was asked for");
      m.respond(JSON.stringify({ text: [...text].reverse().join(""), key }));
    } catch (e) {
      m.respondError(400, e.message);
    }
  },
});
console.log("serving tools.reverse");

for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => nc.drain()); // finish what is under way
await nc.closed();
