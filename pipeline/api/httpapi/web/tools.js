// The tools, and a form for each that is made from its schema.
import {$, el, empty, facts, put, quote, shell, tag, tell} from "./dom.js";
import {ask, exact, failed, curl, nats, root, send} from "./api.js";
import {emit} from "./live.js";
import {open} from "./story.js";

export const path = "/v1/tools";
let tools = [],
  policies = {},
  chosen = "";

export const start = () => shown();

// shown reads the list again: it changes seldom, and nobody tells of it.
export async function shown() {
  let held = [];
  try {
    ({data: tools, policies, held = []} = await ask("/v1/tools"));
  } catch (e) {
    tell(e.message, true);
    return;
  }
  const own = t =>
    policies[t.function.name]
      ? t.function.name
      : Object.keys(policies).find(n => n.endsWith(t.function.name)) || t.function.name;
  const button = t =>
    el(
      "li",
      {},
      el(
        "button",
        {
          type: "button",
          "data-tool": t.function.name,
          "aria-current": t.function.name === chosen ? "true" : false,
          onclick: () => pick(t, policies[own(t)] || {}),
        },
        el("b", {}, t.function.name),
        el("small", {}, t.function.description || "no description"),
      ),
    );
  $("tool-list").replaceChildren(...tools.map(button));
  $("tools-held").replaceChildren(...held.map(quarantined));
  if (!tools.length && !held.length)
    $("tool-form").replaceChildren(
      empty(
        "No tools",
        "Tools come from the configuration, from MCP servers, from NATS services, or by POST /v1/tools.",
      ),
    );
  else if (!chosen && tools.length) pick(tools[0], policies[own(tools[0])] || {});
}

function quarantined(t) {
  const yes = async () => {
    try {
      await ask(`/v1/tools/${encodeURIComponent(t.name)}/approve`, {
        method: "POST",
        body: JSON.stringify({hash: t.hash}),
      });
      await shown();
    } catch (e) {
      tell(e.message, true);
    }
  };
  return el(
    "article",
    {class: "card"},
    el("header", {}, el("h3", {}, t.name), tag("held", "state-held")),
    el("p", {class: "soft"}, t.reason),
    el("pre", {}, JSON.stringify({description: t.description, parameters: t.parameters}, null, 2)),
    el("button", {type: "button", onclick: yes}, "Approve this definition"),
  );
}

function pick(t, policy) {
  chosen = t.function.name;
  for (const b of $("tool-list").querySelectorAll("button"))
    b.toggleAttribute("aria-current", b.dataset.tool === chosen);
  const schema = t.function.parameters || {},
    required = schema.required || [];
  const fields = Object.entries(schema.properties || {}).map(([name, s]) =>
    field(name, s, required.includes(name)),
  );
  const more = el("textarea", {id: "tool-more", spellcheck: "false", placeholder: "{}", rows: 3});
  const open = schema.additionalProperties === true || !schema.properties;
  const form = el(
    "form",
    {id: "tool-call"},
    fields.map(f => f.box),
    open
      ? el(
          "div",
          {class: "field"},
          el("label", {for: "tool-more"}, fields.length ? "More arguments, as JSON" : "Arguments, as JSON"),
          more,
        )
      : null,
    el("p", {class: "bad", role: "status", id: "tool-note"}),
    el("button", {class: "main"}, "Call"),
  );
  form.noValidate = true;
  form.addEventListener("submit", e => {
    e.preventDefault();
    call(form, fields, open ? more : null);
  });
  form.addEventListener("input", () => showShell(fields, open ? more : null));
  $("tool-form").replaceChildren(
    el("header", {}, el("h3", {}, chosen), [
      policy.effect && tag(policy.effect, policy.effect === "read" ? "ok" : "tier"),
      policy.approval && tag("approval " + policy.approval, "state-held"),
      policy.source && tag(policy.source),
    ]),
    el("p", {}, t.function.description || ""),
    form,
    el("div", {id: "tool-out"}),
    el("div", {id: "tool-shell"}),
  );
  showShell(fields, open ? more : null);
}

// field makes the input of one property. Its read returns the value as JSON text, or nothing if it is left out.
function field(name, s, required) {
  const id = "arg-" + name,
    type = Array.isArray(s.type) ? s.type[0] : s.type,
    hint =
      s.description ||
      [s.minimum != null && "from " + s.minimum, s.maximum != null && "to " + s.maximum].filter(Boolean).join(" ");
  let input, read;
  const text = () => input.value.trim();
  if (s.enum) {
    input = el(
      "select",
      {id},
      required ? null : el("option", {value: ""}, "left out"),
      s.enum.map(v => el("option", {value: JSON.stringify(v), selected: v === s.default}, String(v))),
    );
    read = () => input.value;
  } else if (type === "boolean") {
    input = el(
      "select",
      {id},
      required ? null : el("option", {value: ""}, "left out"),
      ["true", "false"].map(v => el("option", {selected: String(s.default) === v}, v)),
    );
    read = () => input.value;
  } else if (type === "integer" || type === "number") {
    input = el("input", {
      id,
      type: "text",
      inputmode: type === "integer" ? "numeric" : "decimal",
      autocomplete: "off",
      placeholder: s.default ?? false,
    });
    read = () => {
      if (text() && !(type === "integer" ? /^-?\d+$/ : /^-?\d+(\.\d+)?([eE][+-]?\d+)?$/).test(text()))
        throw new Error(`${name}: write ${type === "integer" ? "a whole number" : "a number"}`);
      return text().replace(/^(-?)0+(?=\d)/, "$1"); // the digits as they are typed, however many
    };
  } else if (type === "string") {
    const long = /text|content|message|query|prompt/i.test(name);
    input = el(long ? "textarea" : "input", {
      id,
      type: long ? false : "text",
      rows: long ? 2 : false,
      autocomplete: "off",
      placeholder: s.default ?? false,
    });
    read = () => (input.value || required ? JSON.stringify(input.value) : "");
  } else {
    input = el("textarea", {id, spellcheck: "false", rows: 3, placeholder: type === "array" ? "[]" : "{}"});
    read = () => {
      if (text()) check(name, text());
      return text();
    };
  }
  if (required) input.setAttribute("aria-required", "true");
  if (hint) input.setAttribute("aria-describedby", id + "-hint");
  const box = el(
    "div",
    {class: "field"},
    el("label", {for: id}, name, required ? el("span", {class: "soft"}, " required") : ""),
    input,
    hint ? el("small", {id: id + "-hint"}, hint) : null,
  );
  return {name, required, box, input, read};
}
function check(name, text) {
  try {
    return exact(text);
  } catch (e) {
    throw new Error(`${name} is not JSON: ${e.message}`);
  }
}

// argumentsOf writes the arguments; digits and texts stay as they were typed.
function argumentsOf(fields, more) {
  const pairs = fields.map(f => {
    const v = f.read();
    if (!v && f.required) {
      f.input.focus();
      throw new Error(`${f.name} is required`);
    }
    return v ? `${JSON.stringify(f.name)}:${v}` : "";
  });
  const rest = more?.value.trim() || "";
  if (rest) {
    const v = check("the JSON", rest);
    if (v === null || typeof v !== "object" || Array.isArray(v)) throw new Error("the arguments are a JSON object");
    pairs.push(rest.slice(1, -1).trim());
  }
  return "{" + pairs.filter(Boolean).join(",") + "}";
}

function showShell(fields, more) {
  let body;
  try {
    body = argumentsOf(
      fields.map(f => ({...f, required: false})),
      more,
    );
  } catch {
    return;
  }
  shell($("tool-shell"), [
    curl(`/v1/tools/${chosen}/call`, {body}),
    nats(`req ${root}.tool.request.${chosen} ${quote(body)}`),
  ]);
}

async function call(form, fields, more) {
  const note = $("tool-note"),
    out = $("tool-out"),
    button = form.querySelector("button.main");
  put(note, "");
  let body;
  try {
    body = argumentsOf(fields, more);
  } catch (e) {
    put(note, e.message);
    return;
  }
  button.disabled = true;
  try {
    const r = await send(`/v1/tools/${encodeURIComponent(chosen)}/call`, {method: "POST", body});
    const id = r.headers.get("Shallot-Call"),
      whole =
        id &&
        el(
          "button",
          {type: "button", class: "link", onclick: () => open(id).catch(e => put(note, e.message))},
          "its way",
        );
    if (r.status === 202) {
      out.replaceChildren(
        el(
          "p",
          {class: "warn"},
          "It waits for a person. ",
          el("button", {type: "button", class: "link", onclick: () => emit("go", "approvals")}, "Decide about it"),
        ),
      );
      return;
    }
    const bad = r.ok ? null : await failed(r),
      text = bad ? `${bad.code || bad.status}: ${bad.message}` : await r.text();
    let pretty = text;
    if (!bad)
      try {
        pretty = JSON.stringify(exact(text), null, 2);
      } catch {
        /* shown as it is */
      }
    out.replaceChildren(
      el("h4", {}, bad ? "Failed" : "Result"),
      el("pre", {class: bad ? "bad" : ""}, pretty),
      facts([
        ["call", whole],
        ["took", r.headers.get("Shallot-Duration-Ms") && r.headers.get("Shallot-Duration-Ms") + " ms"],
        ["cache", r.headers.get("Shallot-Cache")],
        ["attempts", r.headers.get("Shallot-Attempts")],
      ]),
    );
  } catch (e) {
    put(note, e.message);
  } finally {
    button.disabled = false;
  }
}
