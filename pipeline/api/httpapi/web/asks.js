// Calls that wait for a person, shown exactly, and decided here.
import {$, clock, el, empty, put, shell, tag} from "./dom.js";
import {ask, exact, curl, nats, root} from "./api.js";
import {on} from "./live.js";
import {open} from "./story.js";

export const path = "/v1/approvals";

export function start() {
  on("held answered end", (s, what) => {
    if (what !== "end" || $("asks").querySelector(`[data-call="${s.call}"]`)) read();
  });
  read();
}

let reading = null,
  stale = false;

// read shows what waits now. One answer after the other is shown: an older one would take the card away in which a
// person types.
async function read() {
  stale = true;
  reading ??= (async () => {
    try {
      while (stale) {
        stale = false;
        await show();
      }
    } finally {
      reading = null;
    }
  })();
  return reading;
}

async function show() {
  let list;
  try {
    list = (await ask("/v1/approvals")).data.flatMap(parts);
  } catch (e) {
    put($("asks-note"), e.message);
    return;
  }
  put($("asks-note"), "");
  const tab = $("tab-approvals").querySelector(".count");
  put(tab, list.length || "");
  for (const old of [...$("asks").querySelectorAll(".ask")])
    if (!list.some(a => a.id === old.id)) old.remove();
  // A card is made once, so that what a person types is not lost.
  for (const a of list) if (!$(a.id)) $("asks").append(card(a));
  $("asks-empty").replaceChildren(
    ...(list.length
      ? []
      : [
          empty(
            "Nothing waits for you",
            "Tool calls whose policy wants a person's yes appear here, with their exact arguments.",
          ),
        ]),
  );
  shell(
    $("asks-shell"),
    list.length
      ? [
          curl("/v1/approvals"),
          curl("/v1/approvals/" + list[0].call, {body: JSON.stringify(decision(list[0], "approve"))}),
          nats(`req ${root}.tenant.${list[0].tenant}.approval.answer '${JSON.stringify(answer(list[0], "approve"))}'`),
        ]
      : [curl("/v1/approvals")],
  );
}

// parts are what of a held call is decided: the call itself, or each open call of the batch that a run asks about. A
// run that waits for another call has none.
function parts(a) {
  const q = a.question || {};
  if (!q.calls) return [{...a, id: "ask-" + a.call}];
  const open = q.calls.filter(c => c.question && !q.decided?.[c.id]);
  return open.map(c => ({
    ...a,
    id: `ask-${a.call}-${c.id}`,
    part: c.id,
    tool: c.tool,
    question: {...c.question, note: c.question.note || (q.calls.length > 1 && BATCH)},
  }));
}

const BATCH = "One of the tool calls of an answer: none of them runs before all are decided.";

const decision = (a, what) => ({...(a.part && {id: a.part}), decision: what});
const answer = (a, what) => ({call: a.call, answer: decision(a, what)});

function card(a) {
  const q = a.question || {},
    what = a.tool || a.stage,
    may = d => (q.decisions || ["approve", "reject"]).includes(d);
  const shown =
    q.arguments !== undefined
      ? JSON.stringify(q.arguments, null, 2)
      : q.arguments_preview
        ? q.arguments_preview + "…"
        : JSON.stringify(q, null, 2);
  const note = el("p", {class: "bad note", role: "status"});
  const words = el("input", {
    type: "text",
    autocomplete: "off",
    placeholder: "reason, or what to respond",
    "aria-label": `Reason or response for ${what}`,
  });
  const args = el("textarea", {hidden: true, spellcheck: "false", "aria-label": `Arguments for ${what}`});
  args.value = shown;
  const label = what + " waits for a decision";
  const box = el("article", {class: "card ask", id: a.id, "data-call": a.call, "aria-label": label});
  async function decide(what, more) {
    const body =
      JSON.stringify(decision(a, what)).slice(0, -1) +
      Object.entries(more)
        .map(([k, v]) => `,"${k}":${v}`)
        .join("") +
      "}";
    for (const b of box.querySelectorAll("button")) b.disabled = true;
    try {
      await ask("/v1/approvals/" + a.call, {method: "POST", body, headers: {"Shallot-Tenant": a.tenant}});
      box.remove();
      await read();
      return;
    } catch (e) {
      put(note, e.message);
    }
    for (const b of box.querySelectorAll("button")) b.disabled = false;
  }
  const reason = () => (words.value.trim() ? {reason: JSON.stringify(words.value.trim())} : {});
  const act = (decision, text, cls, run) =>
    may(decision)
      ? el("button", {type: "button", class: cls, "data-decision": decision, onclick: run}, text)
      : null;
  function edit() {
    if (args.hidden) {
      args.hidden = false;
      args.focus();
      put(box.querySelector("[data-decision=edit]"), "Run edited");
      for (const b of box.querySelectorAll("[data-decision=approve]")) put(b, "Approve unedited");
      return;
    }
    try {
      exact(args.value);
    } catch (e) {
      put(note, "These arguments are not JSON: " + e.message);
      return;
    }
    decide("edit", {arguments: args.value, ...reason()});
  }
  const respond = () =>
    words.value.trim()
      ? decide("respond", {content: JSON.stringify(words.value.trim())})
      : put(note, "Write what to respond.");
  const meta = [
    `tenant ${a.tenant}`,
    q.user && "user " + q.user,
    q.agent && "agent " + q.agent,
    q.session && "session " + q.session,
    "since " + clock(a.since),
    "until " + new Date(a.expires).toLocaleString(),
  ];
  box.append(
    el(
      "header",
      {},
      el("h3", {}, what),
      tag("policy " + (q.policy || "none"), "tier"),
      el(
        "button",
        {type: "button", class: "link", onclick: () => open(a.call).catch(e => put(note, e.message))},
        "its way so far",
      ),
    ),
    el("p", {class: "soft"}, meta.filter(Boolean).join(" · ")),
  );
  if (q.description) box.append(el("p", {}, q.description));
  if (q.note) box.append(el("p", {class: "warn"}, q.note));
  box.append(
    el("pre", {}, shown),
    args,
    el(
      "div",
      {class: "acts"},
      ...[
        act("approve", "Approve", "main", () => decide("approve", reason())),
        act("edit", "Edit", "", edit),
        act("reject", "Reject", "", () => decide("reject", reason())),
        act("respond", "Respond", "", respond),
      ].filter(Boolean),
      words,
    ),
    note,
  );
  return box;
}
