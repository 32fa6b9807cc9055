// The story of one call: what it passed, how long that took, who answered, and what each step changed.
import {$, el, facts, put, size, tag, time, table, clock, empty} from "./dom.js";
import {ask} from "./api.js";
import {on} from "./live.js";

let shown = ""; // the id of the call in the dialog

export function start() {
  $("story").addEventListener("close", () => {
    shown = "";
    if (location.hash.startsWith("#call/")) history.replaceState(null, "", "#calls");
  });
  on("end part held", s => {
    if (s.call === shown) load(shown);
  });
}

// open shows the story of a call. It fails if nothing is known of it.
export async function open(id) {
  const told = await ask("/api/calls/" + encodeURIComponent(id));
  shown = told.call;
  draw(told);
  if (!$("story").open) $("story").showModal();
  history.replaceState(null, "", "#call/" + told.call);
}
async function load(id) {
  try {
    draw(await ask("/api/calls/" + encodeURIComponent(id)));
  } catch {
    /* it stays as it was */
  }
}

export function badge(s) {
  if (s.state !== "ended") return tag(s.state || "running", "state-" + s.state);
  return s.outcome === "ok" ? tag("ok", "ok") : tag(s.outcome || "ended", "bad");
}
export const about = s => s.tool || s.model || s.agent || s.kind;
export const tokens = u => (u ? `${u.input ?? 0} in, ${u.output ?? 0} out` : "");

function draw(s) {
  put($("story-title"), about(s));
  $("story-badge").replaceChildren(tag(s.kind, "kind-" + s.kind), badge(s));
  const by = s.answeredBy || {};
  const list = facts([
    ["call", el("code", {}, s.call)],
    ["took", s.us ? time(s.us) : ""],
    ["accepted", `${clock(s.accepted)}`],
    ["now", s.state === "ended" ? "" : s.at],
    ["answered by", [by.provider, by.model].filter(Boolean).join(" · ")],
    ["process", by.member || s.owner],
    ["tokens", tokens(s.usage)],
    ["attempts", s.attempts > 1 ? s.attempts : ""],
    ["tenant", s.tenant],
    ["session", s.session],
    ["run", link(s.run, s.call)],
    ["part of", link(s.parent, s.call)],
    ["request", s.requestId === s.call ? "" : s.requestId],
    ["trace", s.trace && el("code", {}, s.trace)],
    ["cache", s.cache],
    ["stopped by", s.stoppedBy],
    ["degraded", s.degraded],
    [
      "kind of call",
      [s.stream && "streamed", s.durable && "stored", s.again && "run again"].filter(Boolean).join(", "),
    ],
  ]);
  const parts = [...(s.before || []), s];
  const sections = parts.map((p, i) =>
    part(
      p,
      parts.length > 1
        ? `Part ${i + 1} of ${parts.length}: ${p.state === "held" ? "until it waited" : p.state}`
        : "",
    ),
  );
  $("story-body").replaceChildren(
    ...[
      fault(s),
      list,
      ...sections,
      changes(parts),
      s.stepsLeftOut ? el("p", {class: "soft"}, `${s.stepsLeftOut} more steps are not told.`) : null,
      el("div", {id: "story-inner"}),
    ].filter(Boolean),
  );
  if (s.kind === "agent") inner(s);
}

const link = (id, own) =>
  id && id !== own
    ? el("button", {type: "button", class: "link", onclick: () => open(id)}, el("code", {}, id))
    : "";

function fault(s) {
  if (!s.outcome || s.outcome === "ok") return null;
  return el(
    "div",
    {class: "fault"},
    el("strong", {}, `${s.outcome}${s.origin ? ", from " + s.origin : ""}`),
    el("p", {}, s.message),
    s.reason && s.reason !== s.message ? el("p", {class: "soft"}, s.reason) : null,
  );
}

// part draws the steps of one part as bars over its time: what was waited is pale, what ran is full.
function part(p, title) {
  const steps = p.steps || [];
  if (!steps.length)
    return empty(
      "No steps are told",
      p.state === "queued"
        ? "The call is stored and waits for a process."
        : "Stories keep their steps for calls that are sampled.",
    );
  const length = Math.max(...steps.map(s => s.at + (s.waitedUs || 0) + s.us), 1);
  const pct = n => ((100 * n) / length).toFixed(3) + "%";
  const bar = s => {
    const track = el("div", {class: "track", "aria-hidden": "true"}),
      waited = s.waitedUs || 0;
    const block = (cls, from, width) => {
      const b = el("i", {class: cls});
      b.style.left = pct(from);
      b.style.width = `max(${pct(width)}, 2px)`;
      track.append(b);
    };
    if (waited) block("wait", s.at, waited + s.us);
    block(
      s.error || (s.outcome && s.outcome !== "ok") ? "run bad" : s.class ? "run target" : "run " + s.phase,
      s.at + waited / 2,
      s.us,
    );
    if (s.firstTokenUs) block("first", s.at + waited / 2 + s.firstTokenUs, 0);
    return track;
  };
  const name = s =>
    s.stage
      ? [s.stage, " ", el("small", {}, s.phase)]
      : [el("b", {}, s.model || s.class || "target"), " ", el("small", {}, s.provider || "target")];
  const what = s => [
    s.verdict && s.verdict !== "Continue" ? tag(s.verdict, "verdict") : null,
    s.attempt > 1 ? tag("attempt " + s.attempt) : null,
    s.member ? tag("in " + s.member) : null,
    s.changes?.length ? tag(s.changes.length + (s.changes.length === 1 ? " change" : " changes"), "changed") : null,
    s.firstTokenUs ? tag("first token " + time(s.firstTokenUs)) : null,
    s.delayUs ? tag("again in " + time(s.delayUs)) : null,
    s.error ? el("small", {class: "bad"}, s.error) : null,
  ];
  const t = table(
    title || "Steps",
    ["step", "-over time", "#ran", "#waited"],
    steps.map(s =>
      el(
        "tr",
        {class: s.class ? "at-target" : ""},
        el("th", {scope: "row"}, name(s), el("div", {class: "tags"}, what(s))),
        el("td", {class: "wide bar"}, bar(s)),
        el("td", {class: "num"}, time(s.us)),
        el("td", {class: "num soft"}, time(s.waitedUs)),
      ),
    ),
  );
  t.classList.add("waterfall");
  return el(
    "section",
    {class: "part"},
    el("h3", {}, title || "Way"),
    t,
    el(
      "p",
      {class: "legend soft", "aria-hidden": "true"},
      el("i", {class: "wait"}),
      "waited, with the way there and back",
      el("i", {class: "run before"}),
      "before",
      el("i", {class: "run target"}),
      "target",
      el("i", {class: "run after"}),
      "after",
      el("i", {class: "first"}),
      "first token",
    ),
  );
}

// changes is what each step changed of the bodies.
function changes(parts) {
  const all = parts
    .flatMap(p => p.steps || [])
    .flatMap(s => (s.changes || []).map(c => ({...c, by: s.stage ? `${s.stage} ${s.phase}` : s.class})));
  const text = v => (v === undefined ? "" : el("pre", {class: "value"}, JSON.stringify(v, null, 2)));
  const head = el("h3", {}, "What changed");
  if (!all.length)
    return el("section", {}, head, el("p", {class: "soft"}, "No step changed the request or the reply."));
  const row = c => [
    c.by,
    el("span", {class: "op op-" + c.op}, c.op),
    [el("code", {}, c.body + (c.at || "")), text(c.value)],
    c.wasBytes ? size(c.wasBytes) : "–",
    c.bytes ? size(c.bytes) : "–",
  ];
  return el(
    "section",
    {},
    head,
    table("What changed", ["by", "what", "where", "#was", "#is"], all.map(row)),
    all.some(c => c.value !== undefined)
      ? null
      : el(
          "p",
          {class: "soft"},
          "Texts are kept only where explain.bodies is on, or for calls that ask to be explained.",
        ),
  );
}

// inner lists the calls of a run.
async function inner(s) {
  try {
    const {data} = await ask("/api/calls?limit=100&run=" + encodeURIComponent(s.run || s.call));
    const rows = data.filter(c => c.call !== s.call).reverse();
    if (shown !== s.call || !rows.length) return;
    $("story-inner").replaceChildren(
      el("h3", {}, "Calls of this run"),
      table(
        "Calls of this run",
        ["call", "kind", "came to", "#took", "#-tokens"],
        rows.map(c => [
          el("button", {type: "button", class: "link", onclick: () => open(c.call)}, about(c)),
          tag(c.kind, "kind-" + c.kind),
          badge(c),
          time(c.us),
          tokens(c.usage),
        ]),
      ),
    );
  } catch {
    /* the story stands without them */
  }
}
