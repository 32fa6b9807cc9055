// The flow: the stages of a kind from the outermost to the target, with what they do now, and their switches.
import {$, chosen, confirm, el, put, shell, svg, tabs, tag, tell, time} from "./dom.js";
import {ask, curl, nats, root} from "./api.js";
import {on, quantile, rates, refresh, stats} from "./live.js";

const kinds = ["model", "tool", "agent"];
const api = "/api/debug/interceptor";
export const path = api + "/diagnostics";
let kind = "model",
  way = null;

export function start() {
  $("kinds").append(
    ...kinds.map(k =>
      el(
        "button",
        {type: "button", role: "tab", "data-tab": k, id: "kind-" + k, "aria-controls": "flow-panel"},
        k,
        " calls",
      ),
    ),
  );
  tabs($("kinds"), pick);
  pick(kind);
  on("stats", draw);
  on("hop", pulse);
  on("target", pulse);
}

function pick(k) {
  kind = k;
  chosen($("kinds"), k);
  $("flow-panel").setAttribute("aria-labelledby", "kind-" + k);
  if (stats) draw();
}

// mark shows the way of one call: steps as the feed tells them, of the kind.
export function mark(k, steps) {
  way = {kind: k, steps: new Set(steps.map(s => (s.stage ? `${s.stage}.${s.phase}` : "target")))};
  if (stats) drawWay();
}
function drawWay() {
  for (const hop of $("flow").querySelectorAll(".hop"))
    hop.classList.toggle("mine", way?.kind === kind && way.steps.has(hop.dataset.hop));
}

// pulse lights up what a call is passing.
function pulse(h) {
  if (h.kind !== kind || document.hidden) return;
  const hop = $("flow").querySelector(`[data-hop="${CSS.escape(h.stage ? `${h.stage}.${h.phase}` : "target")}"]`);
  if (!hop || hop.dataset.lit) return;
  hop.dataset.lit = "1";
  hop.classList.add("lit");
  setTimeout(() => {
    hop.classList.remove("lit");
    delete hop.dataset.lit;
  }, 450);
}

function draw() {
  const stages = stats.stages.filter(s => s.type === kind).sort((a, b) => a.order - b.order);
  const id = kind + ":" + stages.map(s => s.stage + s.order).join();
  const body = $("flow");
  if (body.dataset.id !== id) {
    body.dataset.id = id;
    body.replaceChildren(
      end("request", "reply", "entry", "caller"),
      ...stages.map(row),
      end("", "", "target", "target"),
    );
    drawWay();
  }
  for (const s of stages) fill(s);
  fillTarget();
  const off = stages.filter(s => !s.enabled).length;
  put($("flow-sum"), `${stages.length - off} of ${stages.length} stages on`);
}

function end(left, right, name, what) {
  const wide = c => el("td", {class: c, "data-cell": c.split(" ").at(-1)});
  return el(
    "tr",
    {class: "end " + what, id: "end-" + name},
    el("td", {class: "lane"}, left || el("span", {class: "turn", "aria-hidden": "true"}, "↓")),
    el(
      "th",
      {scope: "row", class: "name"},
      el(
        "span",
        {class: what === "target" ? "hop turnaround" : "", "data-hop": what === "target" ? "target" : false},
        what,
      ),
      el("small", {}),
    ),
    wide("num rate"),
    wide("num wide mid"),
    wide("num wide slow"),
    wide("num wide wait"),
    wide("num wide errors"),
    wide("num wide served"),
    el("td", {class: "lane"}, right || el("span", {class: "turn", "aria-hidden": "true"}, "↑")),
    el("td", {}),
  );
}

const cell = (row, name) => row.querySelector(`[data-cell="${name}"]`);
const rowOf = s => $(`stage-${kind}-${s.stage}`);

function row(s) {
  const lane = phase =>
    el(
      "td",
      {class: "lane"},
      s.phases.includes(phase)
        ? el(
            "span",
            {class: "hop", "data-hop": `${s.stage}.${phase}`},
            phase === "after" && s.phases.includes("chunks") ? "after ~" : phase,
          )
        : el("span", {class: "hidden"}, "not here"),
    );
  const does = [
    s.applyTo && "for " + s.applyTo.join(", ") + " calls",
    s.failClosed && "stops the call if it fails",
    s.reads && "reads " + s.reads.join(", "),
    s.writes && "writes " + s.writes.join(", "),
  ]
    .filter(Boolean)
    .join(" · ");
  const c = (name, cls) => el("td", {class: cls, "data-cell": name});
  return el(
    "tr",
    {id: `stage-${kind}-${s.stage}`, "data-stage": s.stage},
    lane("before"),
    el(
      "th",
      {scope: "row", class: "name"},
      s.stage,
      " ",
      s.tier === "optional" ? null : tag(s.tier, "tier"),
      el("small", {title: does}, does),
    ),
    c("rate", "num rate"),
    c("mid", "num wide"),
    c("slow", "num wide"),
    c("wait", "num wide"),
    c("errors", "num wide"),
    c("served", "num wide"),
    lane("after"),
    el(
      "td",
      {class: "sw"},
      el(
        "button",
        {
          type: "button",
          class: "switch",
          role: "switch",
          "aria-checked": "true",
          id: `switch-${kind}-${s.stage}`,
          "aria-label": `${s.stage}, ${kind} calls`,
          onclick: () => toggle(s),
        },
        el("i", {"aria-hidden": "true"}),
      ),
    ),
  );
}

function fill(s) {
  const r = rowOf(s),
    key = kind + "/" + s.stage,
    i = stats.interceptors.find(i => i.type === kind && i.stage === s.stage) || {};
  r.classList.toggle("off", !s.enabled);
  const b = $(`switch-${kind}-${s.stage}`);
  b.setAttribute("aria-checked", s.enabled);
  const asked = sum(p => p.asked?.[key] || 0);
  drawRate(cell(r, "rate"), key, i.invocationCount || 0, asked);
  const mid = quantile(key, 0.5),
    mean = i.invocationCount ? 1000 * i.avgDurationMs : null;
  put(cell(r, "mid"), time(mid ?? (mean == null ? null : Math.round(mean))));
  put(cell(r, "slow"), time(quantile(key, 0.95)));
  put(cell(r, "wait"), time(quantile(key, 0.5, "waited")));
  put(cell(r, "errors"), i.errorCount || "");
  cell(r, "errors").classList.toggle("bad", !!i.errorCount);
  cell(r, "errors").title = i.lastError
    ? "last: " + (typeof i.lastError === "string" ? i.lastError : JSON.stringify(i.lastError))
    : "";
  const served = stats.processes.filter(p => (p.hosts || []).includes(key)).length;
  put(cell(r, "served"), served);
  cell(r, "served").classList.toggle("bad", !served);
}

// drawRate shows how often in a second, the line of that, how often at all, and how many calls wait for an answer now.
function drawRate(where, key, count, asked) {
  const {line, now} = rates(key);
  if (!where.firstChild) where.append(spark(), el("b", {}), el("small", {}));
  const [s, b, small] = where.children;
  const most = Math.max(...line, 0.1);
  s.firstChild.setAttribute(
    "points",
    line
      .map((v, i) => `${(60 - 2.6 * (line.length - 1 - i)).toFixed(1)},${(17 - (15 * v) / most).toFixed(1)}`)
      .join(" "),
  );
  put(b, now >= 10 ? now.toFixed(0) : now > 0 ? now.toFixed(1) : "0");
  const all = count.toLocaleString("en") + (count === 1 ? " call" : " calls");
  put(small, asked ? `${all}, ${asked.toLocaleString("en")} now` : all);
}
const spark = () => svg("svg", {viewBox: "0 0 60 18", class: "spark", "aria-hidden": "true"}, svg("polyline", {}));

// sum adds up what each process says.
const sum = of => stats.processes.reduce((n, p) => n + of(p), 0);

function fillTarget() {
  const r = $("end-target"),
    key = kind + "/";
  const queues = stats.queues.filter(q => q.consumer.startsWith(kind + "-"));
  const names = new Set(
    stats.processes
      .flatMap(p => p.targets || [])
      .filter(t => t.startsWith(key))
      .map(t => t.slice(key.length)),
  );
  const room = what => sum(p => (p.capacity || []).filter(c => c.kind === kind).reduce((n, c) => n + c[what], 0));
  const pending = queues.reduce((n, q) => n + q.pending, 0) + room("waiting") + room("queued"),
    working = room("busy");
  put(
    r.querySelector("small"),
    names.size ? [...names].join(", ") : kind === "agent" ? "runs of agents" : "nobody serves it",
  );
  put(cell(r, "rate"), pending || working ? `${pending} waiting, ${working} in work` : "nothing waits");
  put(cell(r, "mid"), time(quantile(key, 0.5)));
  put(cell(r, "slow"), time(quantile(key, 0.95)));
  put(cell(r, "wait"), time(quantile(key, 0.5, "waited")));
  put(cell(r, "served"), stats.processes.filter(p => (p.targets || []).some(t => t.startsWith(key))).length || "");
}

// toggle switches a stage of every kind that has it, as the API does.
async function toggle(s) {
  const now = stats.stages.find(x => x.type === s.type && x.stage === s.stage),
    on = !now.enabled;
  let query = "";
  if (!on && s.tier !== "optional") {
    const text = `It is ${s.tier}: it is on every route, whatever a caller asks for. Turned off, calls go on without it.`;
    if (!(await confirm({title: `Turn off ${s.stage}?`, text, yes: "Turn off", name: s.stage}))) return;
    query = "?confirm=" + encodeURIComponent(s.stage);
  }
  const url = `${api}/${encodeURIComponent(s.stage)}/${on ? "enable" : "disable"}${query}`;
  shell($("switch-shell"), [
    curl(url, {method: "POST"}),
    ...stats.stages
      .filter(x => x.stage === s.stage)
      .map(x => nats(`kv put shallot_control stage.${x.type}.${x.stage}.enabled ${on}`)),
    nats(`sub '${root}.event.>'`),
  ]);
  try {
    await ask(url, {method: "POST"});
    tell(`${s.stage} is ${on ? "on" : "off"} for calls that enter from now on`);
  } catch (e) {
    tell(e.message, true);
  }
  await refresh();
}
