// Dead letters: messages that nobody could carry out. They are looked at, put into the queue again, or deleted.
import {$, confirm, el, empty, facts, put, shell, size, table, tag, tell} from "./dom.js";
import {ask, curl} from "./api.js";
import {on, stats} from "./live.js";
import {open} from "./story.js";

export const path = "/api/dead";
let letters = [],
  next = 0,
  known = -1;

export function start() {
  $("dead-filters").addEventListener("submit", e => {
    e.preventDefault();
    read();
  });
  $("dead-filters").addEventListener("change", () => read());
  $("dead-more").addEventListener("click", () => read(next));
  $("dead-redrive").addEventListener("click", () => all("redrive"));
  $("dead-delete").addEventListener("click", () => all("delete"));
  on("stats", s => {
    put($("tab-dead").querySelector(".count"), s.deadLetters || "");
    if (s.deadLetters !== known) {
      known = s.deadLetters;
      read();
    }
  });
  if (!stats) read();
}

const query = () => new URLSearchParams([...new FormData($("dead-filters"))].filter(([, v]) => v.trim()));

async function read(after = 0) {
  const q = query();
  if (after) q.set("after", after);
  try {
    const page = await ask("/api/dead?" + q);
    letters = after ? [...letters, ...(page.data || [])] : page.data || [];
    next = page.next || 0;
  } catch (e) {
    tell(e.message, true);
    return;
  }
  draw();
}

function draw() {
  $("dead-more").hidden = !next;
  $("dead-redrive").disabled = $("dead-delete").disabled = !letters.length;
  const filtered = [...query()].length > 0;
  put($("dead-redrive"), filtered ? "Redrive all that fit" : "Redrive all");
  put($("dead-delete"), filtered ? "Delete all that fit" : "Delete all");
  shell($("dead-shell"), [
    curl("/api/dead"),
    curl(`/api/dead/${letters[0]?.sequence ?? "SEQUENCE"}/redrive`, {method: "POST"}),
  ]);
  if (!letters.length) {
    $("dead-list").replaceChildren(
      filtered
        ? empty("No letter fits", "")
        : empty(
            "No dead letters",
            "A call whose deliveries are used up, or a message that nobody can read, is kept here instead of being lost.",
          ),
    );
    return;
  }
  $("dead-list").replaceChildren(
    table(
      "Dead letters",
      ["time", "letter", "-kind", "why", "-#size", ""],
      letters.map(l => [
        new Date(l.time).toLocaleString(),
        el("button", {type: "button", class: "link", onclick: () => look(l)}, "#" + l.sequence),
        l.kind ? tag(l.kind, "kind-" + l.kind) : "",
        l.reason,
        size(l.bytes),
        el(
          "span",
          {class: "acts"},
          el(
            "button",
            {
              type: "button",
              class: "small",
              "data-redrive": l.sequence,
              "aria-label": "Redrive letter " + l.sequence,
              onclick: () => act("redrive", `/api/dead/${l.sequence}`),
            },
            "Redrive",
          ),
          el(
            "button",
            {type: "button", class: "small", "aria-label": "Delete letter " + l.sequence, onclick: () => remove(l)},
            "Delete",
          ),
        ),
      ]),
    ),
  );
}

async function look(l) {
  try {
    const whole = await ask("/api/dead/" + l.sequence);
    put($("letter-title"), "Dead letter #" + l.sequence);
    $("letter-body").replaceChildren(
      facts([
        ["why", whole.reason],
        ["was at", whole.subject],
        ["tenant", whole.tenant],
        [
          "call",
          whole.call &&
            el(
              "button",
              {
                type: "button",
                class: "link",
                onclick: () => {
                  $("letter").close();
                  open(whole.call).catch(e => tell(e.message, true));
                },
              },
              el("code", {}, whole.call),
            ),
        ],
        ["deliveries", whole.deliveries],
        ["begun", whole.begun],
      ]),
      el(
        "pre",
        {tabindex: 0, "aria-label": "Message"},
        typeof whole.message === "string" ? whole.message : JSON.stringify(whole.message, null, 2),
      ),
    );
    $("letter").showModal();
  } catch (e) {
    tell(e.message, true);
  }
}

async function remove(l) {
  if (
    await confirm({title: `Delete letter ${l.sequence}?`, text: "What it holds is gone for good.", yes: "Delete"})
  )
    act("delete", `/api/dead/${l.sequence}`);
}

async function all(what) {
  const q = query(),
    n = next ? "more than " + letters.length : letters.length;
  if (![...q].length) q.set("all", "true");
  const text =
    what === "redrive"
      ? "Each becomes a new call, once. Work that must not run twice stays, unless it is proved that it had not begun."
      : "What they hold is gone for good.";
  if (
    await confirm({
      title: `${what === "redrive" ? "Redrive" : "Delete"} ${n} letters?`,
      text,
      yes: what === "redrive" ? "Redrive" : "Delete",
    })
  )
    act(what, "/api/dead", "?" + q);
}

async function act(what, path, q = "") {
  try {
    const did = await ask(path + (what === "redrive" ? "/redrive" : "") + q, {
      method: what === "redrive" ? "POST" : "DELETE",
    });
    const done = did.done?.length || 0,
      refused = did.refused || [];
    $("dead-done").replaceChildren(
      ...[
        done
          ? el(
              "p",
              {class: "ok"},
              `${done} ${what === "redrive" ? "redriven" : "deleted"}. `,
              did.done
                .filter(d => d.as)
                .slice(0, 5)
                .map(d => [
                  el(
                    "button",
                    {type: "button", class: "link", onclick: () => open(d.as).catch(e => tell(e.message, true))},
                    "new call ",
                    el("code", {}, d.as),
                  ),
                  " ",
                ])
                .flat(),
            )
          : null,
        ...refused.map(d => el("p", {class: "warn"}, `Letter ${d.sequence} stays: ${d.reason}`)),
      ].filter(Boolean),
    );
  } catch (e) {
    tell(e.message, true);
  }
  await read();
}
