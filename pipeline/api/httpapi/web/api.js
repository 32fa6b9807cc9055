// How the page speaks with its gateway: with a key if there is one, and it asks for one where that is needed.
import {$, put, quote} from "./dom.js";

const meta = name => document.querySelector(`meta[name="shallot-${name}"]`).content;
export const version = meta("version"),
  root = meta("root") + ".v1";
export const nats = rest => `nats -s ${meta("nats")} ${rest}`;

// curl is how a request is made from a shell.
export function curl(path, {flags = "-s", method, headers = {}, body} = {}) {
  const sent = {...headers, ...(body ? {"Content-Type": "application/json"} : {})};
  const parts = [`curl ${flags}`, key() && '-H "Authorization: Bearer $SHALLOT_KEY"', method && `-X ${method}`];
  parts.push(quote(location.origin + path), ...Object.entries(sent).map(([k, v]) => `-H ${quote(`${k}: ${v}`)}`));
  return [...parts, body && `-d ${quote(body)}`].filter(Boolean).join(" ");
}

const key = () => sessionStorage.getItem("shallot-key") || "";
let asking = null;

// askKey opens the dialog for the key, once however many requests want one. It resolves to whether there is a new one.
export function askKey(why = "") {
  return (asking ??= new Promise(done => {
    const d = $("key-dialog");
    put($("key-why"), why);
    $("key").value = key();
    d.returnValue = "";
    d.showModal();
    d.onclose = () => {
      asking = null;
      const given = d.returnValue === "yes";
      if (given) sessionStorage.setItem("shallot-key", $("key").value.trim());
      done(given);
    };
  }));
}

// Failed is an answer that is an error, with the words of the gateway.
export class Failed extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function failed(r) {
  const text = await r.text();
  try {
    const e = JSON.parse(text).error;
    return new Failed(r.status, e.message, e.code);
  } catch {
    return new Failed(r.status, text.slice(0, 300) || r.statusText);
  } // not ours: shown as it is
}

// send makes a request and returns its answer, whatever that is. Without a valid key it asks for one and tries again.
export async function send(path, {method = "GET", body, headers = {}, signal} = {}) {
  for (;;) {
    const used = key();
    const h = {
      ...headers,
      ...(used ? {Authorization: "Bearer " + used} : {}),
      ...(body ? {"Content-Type": "application/json"} : {}),
    };
    const r = await fetch(path, {method, body, headers: h, signal, cache: "no-store"});
    if (r.status !== 401) return r;
    if (used !== key()) continue; // another request has asked meanwhile
    if (!(await askKey(used ? "The gateway does not know this key." : ""))) throw await failed(r);
  }
}

// ask returns the JSON of an answer; an error is a Failed.
export async function ask(path, how) {
  const r = await send(path, how);
  if (!r.ok) throw await failed(r);
  return exact((await r.text()) || "null");
}
export {failed};

// exact reads JSON without turning a long number into another one: what is approved must be what is shown.
export function exact(text) {
  return JSON.parse(text, (_, v, c) =>
    typeof v === "number" && c?.source && !Number.isSafeInteger(v) && /^-?\d+$/.test(c.source) && JSON.rawJSON
      ? JSON.rawJSON(c.source)
      : v,
  );
}

// there reports whether the gateway has a path and lets this key use it.
export async function there(path) {
  try {
    const r = await send(path);
    await r.body?.cancel();
    return r.status !== 404 && r.status !== 403 && r.status !== 405;
  } catch {
    return false;
  }
}

// events reads server-sent events from an answer and tells of each, and of comments with the name "".
export async function events(response, tell) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const chunk = await reader.read();
    if (chunk.done) return;
    buffer += chunk.value;
    for (let at; (at = buffer.indexOf("\n\n")) >= 0; buffer = buffer.slice(at + 2)) {
      const event = {name: "message", data: "", id: ""};
      let comment = true;
      for (const line of buffer.slice(0, at).split("\n")) {
        const [, field, value] = /^([a-z]*): ?(.*)$/.exec(line) || [];
        if (field === "data") {
          event.data += (event.data ? "\n" : "") + value;
          comment = false;
        } else if (field === "event") event.name = value;
        else if (field === "id") event.id = value;
      }
      tell(comment ? {name: "", data: ""} : event);
    }
  }
}
