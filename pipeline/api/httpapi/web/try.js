// The playground: a chat with a model, streamed or not, whose call's way is marked as it goes.
import {$, el, facts, put, quote, shell, tag, time} from "./dom.js";
import {ask, events, failed, curl, nats, root, send} from "./api.js";
import {on} from "./live.js";
import {mark} from "./flow.js";
import {open} from "./story.js";

export const path = "/v1/models";
let abort = null,
  mine = null; // mine is the call that was sent last, with its steps
const early = new Map(); // what was told of calls before their answer came

export async function start() {
  $("chat").addEventListener("submit", e => {
    e.preventDefault();
    chat();
  });
  $("stop").addEventListener("click", () => abort?.abort());
  $("text").addEventListener("keydown", e => {
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
      e.preventDefault();
      if (!$("send").disabled) chat();
    }
  });
  $("chat").addEventListener("input", showShell);
  on("hop target", step);
  on("end part", step);
  await models();
}

async function models() {
  const {data} = await ask("/v1/models");
  $("model").replaceChildren(...data.map(m => el("option", {}, m.id)));
  showShell();
}

const body = () =>
  JSON.stringify({
    model: $("model").value,
    messages: [{role: "user", content: $("text").value}],
    ...($("stream").checked ? {stream: true} : {}),
  });

function showShell() {
  const session = $("session").value.trim();
  const wait = $("stream").checked ? " --replies 0 --reply-timeout 5s" : "";
  const named = session ? ` -H ${quote("Shallot-Session:" + session)}` : "";
  shell($("chat-shell"), [
    curl("/v1/chat/completions", {
      flags: "-N -i",
      headers: session ? {"Shallot-Session": session} : {},
      body: body(),
    }),
    nats(`req${wait} ${root}.model.request${named} ${quote(body())}`),
  ]);
}

// step notes a step of a call: the feed may be faster than the answer that says which call is ours.
function step(s) {
  if (s.call === mine?.id) {
    passed(s);
    return;
  }
  if (!abort) return;
  early.set(s.call, [...(early.get(s.call) || []), s]);
  if (early.size > 50) early.delete(early.keys().next().value);
}

// passed takes a step of our call, or its story at the end.
function passed(s) {
  if (s.state) {
    mine.steps = s.steps || mine.steps;
    put($("way-note"), `${s.outcome === "ok" ? "answered" : s.outcome || s.state} after ${time(s.us)}`);
  } else mine.steps.push(s);
  drawWay();
}

function sent(r) {
  const id = r.headers.get("Shallot-Call");
  mine = {id, steps: []};
  $("way-open").hidden = !id;
  $("way-open").onclick = () => open(id).catch(e => put($("way-note"), e.message));
  const skip = new Set(["shallot-path"]);
  $("facts").replaceChildren(
    ...facts([
      ["status", r.status],
      ...[...r.headers].filter(
        ([k]) =>
          /^(shallot-|x-request-id|x-should-retry|retry-after|location)/i.test(k) && !skip.has(k.toLowerCase()),
      ),
    ]).childNodes,
  );
  for (const s of early.get(id) || []) passed(s);
  early.clear();
}

function drawWay() {
  const chip = s =>
    el(
      "li",
      {class: s.stage ? s.phase : "target", title: time(s.us)},
      s.stage ? [s.stage, el("small", {}, s.phase === "before" ? " ↓" : " ↑")] : s.model || s.class || "target",
    );
  $("way").replaceChildren(...mine.steps.map(chip));
  mark("model", mine.steps);
}

async function chat() {
  showShell();
  abort?.abort();
  const own = (abort = new AbortController());
  mine = null;
  $("send").disabled = true;
  $("stop").disabled = false;
  $("answer").replaceChildren();
  $("answer").className = "busy";
  $("way").replaceChildren();
  $("way-open").hidden = true;
  put($("way-note"), "");
  $("facts").replaceChildren();
  const session = $("session").value.trim(),
    begin = performance.now();
  const bad = text => {
    $("answer").className = "bad";
    $("answer").append(text);
  };
  try {
    const r = await send("/v1/chat/completions", {
      method: "POST",
      signal: own.signal,
      body: body(),
      headers: session ? {"Shallot-Session": session} : {},
    });
    sent(r);
    if (!r.ok) bad((await failed(r)).message);
    else if ((r.headers.get("Content-Type") || "").startsWith("text/event-stream")) await stream(r, bad);
    else reply(await r.json());
    $("facts").append(el("dt", {}, "in this page"), el("dd", {}, Math.round(performance.now() - begin) + " ms"));
  } catch (e) {
    if (own.signal.aborted) $("answer").append(tag("stopped: the call is cancelled", "state-held"));
    else bad(" " + e.message);
  } finally {
    $("answer").classList.remove("busy");
    if (abort === own) {
      $("send").disabled = false;
      $("stop").disabled = true;
    }
  }
}

function reply(r) {
  const m = r.choices?.[0]?.message || {};
  $("answer").append(m.content || m.refusal || "");
  for (const c of m.tool_calls || [])
    $("answer").append(el("div", {}, tag("asks for"), ` ${c.function?.name}(${c.function?.arguments})`));
}

async function stream(r, bad) {
  let done = false;
  await events(r, e => {
    if (!e.name || !e.data) return;
    if (e.data === "[DONE]") {
      done = true;
      return;
    }
    let c;
    try {
      c = JSON.parse(e.data);
    } catch {
      return;
    }
    if (c.error) {
      bad(`\n${c.error.code || "error"}: ${c.error.message}`);
      return;
    }
    const d = c.choices?.[0]?.delta || {};
    if (d.content || d.refusal) $("answer").append(d.content || d.refusal);
    for (const t of d.tool_calls || [])
      $("answer").append(
        (t.function?.name ? `\nasks for ${t.function.name} ` : "") + (t.function?.arguments || ""),
      );
  });
  if (!done && !$("answer").classList.contains("bad")) bad("\n[the stream ended without its end mark]");
}
