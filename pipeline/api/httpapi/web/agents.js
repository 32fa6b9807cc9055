// Agents and their runs: one is started here, and its events are followed.
import {$, clock, el, empty, put, shell, table, tell, time, tag} from "./dom.js";
import {ask, events, exact, curl, send} from "./api.js";
import {on} from "./live.js";
import {badge, open, tokens} from "./story.js";

export const path = "/v1/agents";
let following = null;

export async function start() {
  $("run-form").addEventListener("submit", e => {
    e.preventDefault();
    run();
  });
  on("accepted end part", s => {
    if (s.kind === "agent") list();
  });
  const {data} = await ask("/v1/agents");
  $("agent").replaceChildren(
    ...data.map(a => el("option", {value: a.name}, a.name + (a.description ? " – " + a.description : ""))),
  );
  $("run-form").hidden = !data.length;
  if (!data.length)
    $("run-out").replaceChildren(
      empty(
        "No agents",
        "An agent is a model with instructions and tools. Name one under agent.agents in the configuration.",
      ),
    );
  list();
}

async function list() {
  let runs;
  try {
    ({data: runs} = await ask("/api/calls?kind=agent&limit=30"));
  } catch {
    return;
  }
  $("runs").replaceChildren(
    runs.length
      ? table(
          "Runs",
          ["time", "agent", "came to", "#took", "-#tokens", ""],
          runs.map(c => [
            el("td", {class: "clock"}, clock(c.accepted)),
            el(
              "button",
              {type: "button", class: "link", onclick: () => open(c.call).catch(e => tell(e.message, true))},
              c.agent,
            ),
            badge(c),
            c.us ? time(c.us) : "",
            tokens(c.usage),
            el("button", {type: "button", class: "small", onclick: () => follow(c.agent, c.call)}, "Events"),
          ]),
        )
      : empty("No runs yet", "Runs appear here, from this page and from anywhere else."),
  );
}

async function run() {
  const agent = $("agent").value,
    session = $("run-session").value.trim();
  shell($("run-shell"), [
    curl(`/v1/agents/${agent}/runs`, {
      flags: "-N",
      body: JSON.stringify({input: $("run-input").value, stream: true}),
    }),
  ]);
  try {
    const r = await ask(`/v1/agents/${encodeURIComponent(agent)}/runs`, {
      method: "POST",
      body: JSON.stringify({input: $("run-input").value, background: true}),
      headers: session ? {"Shallot-Session": session} : {},
    });
    await follow(agent, r.id);
  } catch (e) {
    tell(e.message, true);
  }
}

// follow shows the events of a run, those that were and those to come.
async function follow(agent, id) {
  following?.abort();
  const own = (following = new AbortController());
  const path = `/v1/agents/${encodeURIComponent(agent)}/runs/${id}`;
  const log = el("ol", {class: "log"}),
    said = el("pre", {class: "said", hidden: true});
  const cancel = el(
    "button",
    {
      type: "button",
      class: "small",
      onclick: () => ask(path + "/cancel", {method: "POST"}).catch(e => tell(e.message, true)),
    },
    "Cancel the run",
  );
  $("run-out").replaceChildren(
    el(
      "header",
      {},
      el("h3", {}, agent),
      el(
        "button",
        {type: "button", class: "link", onclick: () => open(id).catch(e => tell(e.message, true))},
        el("code", {}, id),
      ),
      cancel,
    ),
    log,
    said,
  );
  try {
    const r = await send(path + "/events", {signal: own.signal});
    if (!r.ok) {
      put(said, `The run's events cannot be read: ${r.status}`);
      said.hidden = false;
      return;
    }
    await events(r, e => {
      if (e.name) event(log, said, e.name, exact(e.data));
    });
  } catch (e) {
    if (!own.signal.aborted) tell(e.message, true);
  }
  cancel.disabled = true;
}

const calls = d =>
  d.name || d.tool || d.message?.tool_calls?.map(c => c.function?.name).join(", ") || d.reason || "";

function event(log, said, name, data) {
  if (name === "text.delta") {
    said.hidden = false;
    said.append(data.text ?? data.delta ?? data.content ?? "");
    return;
  }
  if (name === "message") (said.replaceChildren(), (said.hidden = true));
  const text = data.message?.content || data.content || data.text || data.output || "";
  const bad = data.reason === "failed" || data.error;
  log.append(
    el(
      "li",
      {},
      tag(name.replace(".", " "), name === "run.ended" ? (bad ? "bad" : "ok") : ""),
      " ",
      el("b", {}, calls(data)),
      " ",
      typeof text === "string" ? el("span", {}, text) : "",
      el("details", {}, el("summary", {}, "data"), el("pre", {}, JSON.stringify(data, null, 2))),
    ),
  );
}
