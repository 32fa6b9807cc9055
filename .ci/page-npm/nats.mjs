// As much of the protocol of NATS as the test of the page needs to make a dead letter.
import net from "node:net";

// bury sends a request to be carried out later, and makes a dead letter of the call that is stored for it, as another
// call that was never run.
export async function bury(port, subject, body, other) {
  const socket = net.connect(port, "127.0.0.1");
  let buffer = Buffer.alloc(0);
  const stored = new Promise((done, fail) => {
    socket.on("error", fail);
    socket.on("data", (chunk) => {
      buffer = Buffer.concat([buffer, chunk]);
      for (let end; (end = buffer.indexOf("\r\n")) >= 0; ) {
        const [op, ...args] = buffer.subarray(0, end).toString().split(" ");
        if (op === "-ERR") return fail(new Error(args.join(" ")));
        if (op !== "MSG" && op !== "HMSG") {
          if (op === "PING") socket.write("PONG\r\n");
          buffer = buffer.subarray(end + 2);
          continue;
        }
        const total = Number(args.at(-1)),
          head = op === "HMSG" ? Number(args.at(-2)) : 0;
        if (buffer.length < end + 2 + total + 2) return;
        const data = buffer.subarray(end + 2, end + 2 + total);
        buffer = buffer.subarray(end + 2 + total + 2);
        if (head)
          done({ subject: args[0], head: data.subarray(0, head).toString(), body: data.subarray(head).toString() });
      }
    });
  });
  try {
    socket.write('CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n');
    socket.write("SUB shallot.v1.call.entry.> 1\r\nSUB _INBOX.page 2\r\n");
    socket.write(`PUB shallot.v1.${subject} _INBOX.page ${Buffer.byteLength(body)}\r\n${body}\r\n`);
    const letter = await stored;
    const field = (name) => new RegExp(`^${name}: ?(.*)$`, "mi").exec(letter.head)?.[1].trim();
    const call = field("Shallot-Call");
    const lines = letter.head
      .trimEnd()
      .split("\r\n")
      .filter((l) => !/^Nats-Msg-Id:/i.test(l));
    const head = [
      ...lines,
      "Shallot-Dead-Reason: deliveries used up",
      `Shallot-Dead-Subject: ${letter.subject}`,
      "",
      "",
    ]
      .join("\r\n")
      .replaceAll(call, other);
    const text = letter.body.replaceAll(call, other);
    const [h, all] = [Buffer.byteLength(head), Buffer.byteLength(head) + Buffer.byteLength(text)];
    const flushed = new Promise((done) =>
      socket.on("data", (d) => {
        if (d.includes("PONG")) done();
      }),
    );
    socket.write(`HPUB shallot.v1.dead.${field("Shallot-Kind")}.none ${h} ${all}\r\n${head}${text}\r\nPING\r\n`);
    await flushed;
  } finally {
    socket.end();
  }
}
