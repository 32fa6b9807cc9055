// The todo list of a session, as the model and people write it.
import {$, el, empty, put, shell} from "./dom.js";
import {ask, curl} from "./api.js";
import {on} from "./live.js";

export const path = "/v1/todo/a-session";
const words = {PENDING: "to do", IN_PROGRESS: "doing", COMPLETED: "done", CANCELLED: "dropped"};
const sessions = new Set();
let session = "",
  list = null;

export function start() {
  $("todo-form").addEventListener("submit", e => {
    e.preventDefault();
    show($("todo-session").value.trim());
  });
  $("todo-add").addEventListener("submit", e => {
    e.preventDefault();
    const title = $("todo-title").value.trim();
    if (title)
      edit([{title}]).then(ok => {
        if (ok) $("todo-title").value = "";
      });
  });
  on("accepted end", (s, what) => {
    if (s.session && !sessions.has(s.session)) {
      sessions.add(s.session);
      $("todo-sessions").append(el("option", {value: s.session}));
    }
    if (what === "end" && s.session && s.session === session) show(session);
  });
  $("todo-list").append(
    empty(
      "Whose list?",
      "A todo list belongs to a session. Calls that name one with the header Shallot-Session have theirs.",
    ),
  );
}

const where = () => "/v1/todo/" + encodeURIComponent(session);

async function show(of) {
  session = of;
  if (!session) return;
  shell($("todo-shell"), [
    curl(where()),
    curl(where(), {method: "PUT", body: '{"items":[{"title":"water the shallots"}]}'}),
  ]);
  try {
    list = await ask(where());
  } catch (e) {
    put($("todo-note"), e.message);
    return;
  }
  put($("todo-note"), "");
  draw();
}

async function edit(items) {
  try {
    list = await ask(where(), {method: "PUT", body: JSON.stringify({items})});
    put($("todo-note"), "");
  } catch (e) {
    put($("todo-note"), e.message);
    return false;
  }
  draw();
  return true;
}

function draw() {
  $("todo-add").hidden = false;
  const item = i => {
    const s = el(
      "select",
      {"aria-label": "State of " + i.title, onchange: e => edit([{id: i.id, status: e.target.value}])},
      Object.entries(words).map(([v, text]) => el("option", {value: v, selected: v === i.status}, text)),
    );
    return el("li", {class: "todo " + i.status.toLowerCase()}, s, el("span", {}, i.title));
  };
  $("todo-list").replaceChildren(
    list.items?.length
      ? el("ul", {class: "todos"}, list.items.map(item))
      : empty("The list is empty", "The model fills it with its tool, or you do below."),
  );
}
