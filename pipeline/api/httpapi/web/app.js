// The beginning: which tabs there are, the tab that is shown, search, and the key.
import {$, chosen, el, put, tabs, tell} from "./dom.js";
import {askKey, there, version} from "./api.js";
import {follow, noFeed, on, refresh} from "./live.js";
import * as flow from "./flow.js";
import * as calls from "./calls.js";
import * as story from "./story.js";
import * as playground from "./try.js";
import * as approvals from "./asks.js";
import * as tools from "./tools.js";
import * as agents from "./agents.js";
import * as todo from "./todo.js";
import * as dead from "./dead.js";
import * as system from "./system.js";

const parts = {flow, calls, playground, approvals, tools, agents, todo, dead, system};
let current = "flow";

function go(name) {
  if (!parts[name] || $("tab-" + name).hidden) name = Object.keys(parts).find(n => !$("tab-" + n).hidden);
  $("nothing").hidden = !!name;
  if (!name) return; // nothing here is for this key
  current = name;
  chosen($("tabs"), name);
  for (const n of Object.keys(parts)) $("panel-" + n).hidden = n !== name;
  if (location.hash !== "#" + name) history.replaceState(null, "", "#" + name);
  parts[name].shown?.();
}

async function address() {
  const [, what, id] = /^#(\w+)(?:\/(.+))?$/.exec(location.hash) || [];
  go(what === "call" ? "calls" : what || current);
  if (what === "call" && id) await find(id);
}

async function find(id) {
  try {
    await calls.find(decodeURIComponent(id));
  } catch (e) {
    tell(e.message, true);
  }
}

for (const b of document.querySelectorAll("dialog .close"))
  b.addEventListener("click", () => b.closest("dialog").close());
for (const d of document.querySelectorAll("dialog"))
  d.addEventListener("click", e => {
    if (e.target === d) d.close();
  }); // beside it
$("search").addEventListener("submit", e => {
  e.preventDefault();
  const id = $("search-id").value.trim();
  $("search-id").value = "";
  if (id) find(id);
});
document.addEventListener("keydown", e => {
  if (
    e.key !== "/" ||
    e.ctrlKey ||
    e.metaKey ||
    e.altKey ||
    e.target.matches("input, textarea, select") ||
    document.querySelector("dialog[open]")
  )
    return;
  e.preventDefault();
  $("search-id").focus();
});
$("key-button").addEventListener("click", () =>
  askKey().then(given => {
    if (given) location.reload();
  }),
);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && served.includes("flow")) refresh();
});
put($("version"), version);
tabs($("tabs"), go);
on("go", go);
on("trouble", e => tell(e.message, true));
addEventListener("hashchange", address);

// A part whose API is not served here, or is not for this key, has no tab.
const served = await Promise.all(
  Object.entries(parts).map(async ([name, p]) => (!p.path || (await there(p.path)) ? name : "")),
);
story.start();
for (const [name, part] of Object.entries(parts)) {
  const is = served.includes(name);
  $("tab-" + name).hidden = !is;
  if (!is) continue;
  try {
    await part.start();
  } catch (e) {
    $("panel-" + name).append(el("p", {class: "bad"}, e.message));
  }
}
$("search").hidden = !served.includes("calls");
document.documentElement.dataset.ready = "yes";
if (served.includes("flow")) follow();
else noFeed();
await address();
