// The list of calls, which fills as they come, with filters.
import {$, clock, el, empty, put, short, table, tag, tell, time, shell} from "./dom.js";
import {ask, curl, nats, root} from "./api.js";
import {emit, on} from "./live.js";
import {about, badge, open, tokens} from "./story.js";

const most = 200;
let rows = new Map(),
  next = "",
  reading = 0; // calls by id; where the list goes on

export const path = "/api/calls";

export function start() {
  $("filters").addEventListener("input", () => {
    clearTimeout(reading);
    reading = setTimeout(read, 250);
  });
  $("filters").addEventListener("submit", e => {
    e.preventDefault();
    read();
  });
  $("filters").addEventListener("reset", () => setTimeout(read));
  $("calls-more").addEventListener("click", () => read(next));
  on("accepted end part held", take);
  read();
}

// find shows what an id belongs to: the call itself, or the calls of a request, a session, a run or a trace.
export async function find(id) {
  try {
    await open(id);
  } catch (e) {
    if (e.status !== 404) throw e;
    $("filters").reset();
    $("filter-id").value = id;
    emit("go", "calls");
    await read();
    if (!rows.size) tell(`Nothing is known of ${id}. Stories are kept for a while only.`, true);
  }
}

const filters = () => [...new FormData($("filters"))].filter(([, v]) => v.trim()).map(([k, v]) => [k, v.trim()]);

async function read(before = "") {
  before = typeof before === "string" ? before : "";
  const query = new URLSearchParams([...filters(), ["limit", "50"], ...(before ? [["before", before]] : [])]);
  shell($("calls-shell"), [
    curl("/api/calls?" + query),
    nats(`req ${root}.calls.list '${JSON.stringify(Object.fromEntries(filters()))}'`),
    nats(`sub '${root}.event.end.>'`),
  ]);
  try {
    const page = await ask("/api/calls?" + query);
    if (!before) rows = new Map();
    for (const c of page.data) rows.set(c.call, c);
    next = page.next || "";
    put($("filter-note"), page.incomplete ? "Some process did not say in time what runs there." : "");
  } catch (e) {
    put($("filter-note"), e.message);
  }
  draw();
}

// take puts what was told of a call into the list, if it is looked for.
function take(s, what) {
  if (what === "held") return; // the part of the story says the same
  if (what === "part" && rows.get(s.call)?.state === "ended") return;
  const {steps, ...row} = s;
  if (matches(row)) rows.set(s.call, {...row, steps: undefined});
  else rows.delete(s.call);
  if (!due) due = requestAnimationFrame(draw);
}
let due = 0;

function matches(s) {
  for (const [k, v] of filters()) {
    const fits = {
      id: () => [s.call, s.requestId, s.session, s.run, s.trace].includes(v),
      kind: () => s.kind === v,
      state: () => s.state === v,
      tool: () => s.tool === v,
      model: () => s.model === v || s.answeredBy?.model === v,
      outcome: () => (v === "fault" ? s.outcome && s.outcome !== "ok" : s.outcome === v),
      session: () => s.session === v,
      tenant: () => s.tenant === v,
      since: () => true,
    }[k];
    if (fits && !fits()) return false;
  }
  return true;
}

function draw() {
  due = 0;
  const all = [...rows.values()].sort((a, b) => (b.accepted < a.accepted ? -1 : b.accepted > a.accepted ? 1 : 0));
  for (const old of all.slice(most)) rows.delete(old.call);
  $("calls-more").hidden = !next;
  put($("calls-count"), all.length ? `${Math.min(all.length, most)} shown, the newest first` : "");
  const where = $("calls-list");
  if (!all.length) {
    where.replaceChildren(
      filters().length
        ? empty("No call fits", "Calls that fit appear here as they come.")
        : empty(
            "No calls yet",
            "Each call appears here while it runs. Send one from the playground, or with any OpenAI client.",
          ),
    );
    return;
  }
  const focused = document.activeElement?.dataset?.call;
  const t = table(
    "Calls",
    ["time", "call", "-kind", "came to", "#took", "-#tokens", "-session", "-id"],
    all.slice(0, most).map(row),
  );
  where.replaceChildren(t);
  if (focused) where.querySelector(`[data-call="${CSS.escape(focused)}"]`)?.focus();
}

function row(c) {
  const td = (cls, ...in_) => el("td", {class: cls}, in_);
  return el(
    "tr",
    {
      class: "go" + (c.state === "running" ? " running" : ""),
      onclick: e => {
        if (!e.target.closest("button") && !getSelection().toString()) open(c.call).catch(lost);
      },
    },
    td("soft clock", clock(c.accepted)),
    td(
      "",
      el(
        "button",
        {type: "button", class: "link", "data-call": c.call, onclick: () => open(c.call).catch(lost)},
        about(c),
      ),
      c.stream ? el("small", {}, " streamed") : null,
    ),
    td("wide", tag(c.kind, "kind-" + c.kind)),
    td("", badge(c)),
    td("num", c.us ? time(c.us) : ""),
    td("num wide soft", tokens(c.usage)),
    td("wide soft", c.session || ""),
    td("wide", el("code", {title: c.call}, short(c.call))),
  );
}
const lost = e => tell(e.message, true);
