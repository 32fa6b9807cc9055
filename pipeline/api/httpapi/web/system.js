// What the installation says about itself: processes, queues, advice.
import {$, el, shell, table} from "./dom.js";
import {curl, nats, root} from "./api.js";
import {on} from "./live.js";

export const path = "/api/debug/interceptor/diagnostics";

export function start() {
  on("stats", draw);
}

function draw(d) {
  const sum = f => d.processes.reduce((n, p) => n + (p[f] || 0), 0);
  const cards = [
    ["processes", d.processes.length],
    ["waiting in queues", d.queues.reduce((n, q) => n + q.pending, 0)],
    ["calls held now", sum("held")],
    ["dead letters", d.deadLetters, d.deadLetters && "bad"],
    ["stages without worker", d.stagesWithoutWorker.length, d.stagesWithoutWorker.length && "bad"],
    ["cache hits", (100 * (d.cacheStats.hitRate || 0)).toFixed(0) + " %"],
    ["retries", d.retryStats.totalRetries || 0],
  ];
  $("cards").replaceChildren(
    ...cards.map(([what, n, cls]) =>
      el("div", {class: "stat " + (cls || "")}, el("b", {}, n), el("span", {}, what)),
    ),
  );
  $("advice").replaceChildren(
    ...d.stagesWithoutWorker.map(s =>
      el(
        "p",
        {class: "note bad"},
        `No process serves ${s}: calls wait for it until their deadline. Start a worker with --stages ${s.split("/")[1]}.`,
      ),
    ),
    ...d.advice.map(a => el("p", {class: "note warn"}, a)),
  );
  $("processes").replaceChildren(
    table(
      "Processes",
      ["process", "-what", "entry", "#-stages", "-targets", "#held", "-#late hops"],
      d.processes.map(p => [
        el("code", {}, p.id),
        p.name || "",
        p.entry ? "yes" : "no",
        (p.hosts || []).length,
        (p.targets || []).join(", ") || "none",
        p.held || 0,
        p.lateHops || 0,
      ]),
    ),
  );
  $("queues").replaceChildren(
    table(
      "Queues",
      ["queue", "-stream", "#waiting", "#in work", "-#takers"],
      d.queues.map(q => [q.consumer, q.stream, q.pending, q.ackPending, q.waitingPulls]),
    ),
  );
  shell($("system-shell"), [
    curl("/api/debug/interceptor/diagnostics"),
    nats("micro ls"),
    nats("micro stats shallot"),
    nats("stream report"),
    nats(`sub '${root}.event.>'`),
  ]);
}
