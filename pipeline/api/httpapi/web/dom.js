// What every part of the page makes its elements with. Texts go in as text, never as markup.

export const $ = id => document.getElementById(id);

// el makes an element. An attribute that begins with "on" is a listener; false and null leave an attribute out.
export function el(tag, attrs = {}, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attrs)) {
    if (k === "class") e.className = v;
    else if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else if (v !== false && v != null) e.setAttribute(k, v === true ? "" : v);
  }
  e.append(
    ...children
      .flat()
      .filter(c => c != null && c !== false)
      .map(c => (c instanceof Node ? c : String(c))),
  );
  return e;
}

export function svg(tag, attrs = {}, ...children) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [k, v] of Object.entries(attrs)) e.setAttribute(k, v);
  e.append(...children);
  return e;
}

// put writes a text only where it differs, so that a selection or the focus is not lost.
export function put(e, text) {
  text = String(text);
  if (e.textContent !== text) e.textContent = text;
}

export const tag = (text, cls = "") => el("span", {class: "tag " + cls}, text);

// empty is what stands where nothing is yet: what will be here, and what to do for it.
export const empty = (title, ...what) => el("div", {class: "empty"}, el("strong", {}, title), el("p", {}, ...what));

// table makes a table. A head that begins with "#" is over numbers, one with "-" is left out on narrow windows.
export function table(label, heads, rows) {
  const cols = heads.map(h => ({
    text: h.replace(/^[#-]+/, ""),
    cls: (h.includes("#") ? "num " : "") + (h.startsWith("-") ? "wide" : ""),
  }));
  const row = cells =>
    cells instanceof Node
      ? cells
      : el(
          "tr",
          {},
          cells.map((c, i) => (c instanceof HTMLTableCellElement ? c : el("td", {class: cols[i].cls}, c))),
        );
  return el(
    "table",
    {"aria-label": label},
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        cols.map(c => el("th", {scope: "col", class: c.cls}, c.text || el("span", {class: "hidden"}, "actions"))),
      ),
    ),
    el("tbody", {}, rows.map(row)),
  );
}

// facts is a list of names and values, without those that are empty.
export const facts = pairs =>
  el(
    "dl",
    {class: "facts"},
    pairs
      .filter(([, v]) => v !== "" && v != null && v !== false)
      .flatMap(([k, v]) => [el("dt", {}, k), el("dd", {}, v)]),
  );

// time is a number of microseconds as people read it.
export function time(us) {
  if (us == null) return "";
  if (us < 1000) return us + " µs";
  if (us < 1e6) return (us / 1e3).toFixed(us < 1e4 ? 2 : us < 1e5 ? 1 : 0) + " ms";
  if (us < 6e7) return (us / 1e6).toFixed(us < 1e7 ? 2 : 1) + " s";
  return Math.floor(us / 6e7) + " min " + Math.round((us % 6e7) / 1e6) + " s";
}
export const clock = t =>
  new Date(t).toLocaleTimeString([], {hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false});
export const size = n =>
  n < 1000 ? n + " B" : n < 1e6 ? (n / 1e3).toFixed(1) + " kB" : (n / 1e6).toFixed(1) + " MB";
export const short = id => (id.length > 14 ? id.slice(-12) : id);

const quoted = s => "'" + String(s).replaceAll("'", `'\\''`) + "'";

// shell shows how the same is done from a shell, folded away.
export function shell(where, lines) {
  const key = lines.join("\n");
  if (where.dataset.lines === key) return;
  where.dataset.lines = key;
  const open = where.querySelector("details")?.open;
  const copy = line => e =>
    navigator.clipboard?.writeText(line).then(
      () => put(e.target, "Copied"),
      () => put(e.target, "Not allowed"),
    );
  where.replaceChildren(
    el(
      "details",
      {class: "shell", open},
      el("summary", {}, "The same from a shell"),
      lines.map(line =>
        el(
          "div",
          {class: "cmd"},
          el("pre", {}, line),
          el(
            "button",
            {type: "button", class: "small", "aria-label": "Copy: " + line, onclick: copy(line)},
            "Copy",
          ),
        ),
      ),
    ),
  );
}
export {quoted as quote};

// confirm asks before something that cannot be taken back. With a name, that must be typed first.
export function confirm({title, text, yes, name}) {
  const d = $("confirm"),
    input = $("confirm-input");
  put($("confirm-title"), title);
  put($("confirm-text"), text);
  put($("confirm-yes"), yes);
  $("confirm-name").hidden = !name;
  put($("confirm-label"), `Write ${name} to confirm`);
  const fits = () => !name || input.value.trim() === name;
  input.value = "";
  input.oninput = () => {
    $("confirm-yes").disabled = !fits();
  };
  input.oninput();
  d.returnValue = "no";
  d.showModal();
  return new Promise(done => {
    d.onclose = () => done(d.returnValue === "yes" && fits());
  });
}

// tell shows a message for a while, and to screen readers.
let hide;
export function tell(text, bad = false) {
  const t = $("toast");
  t.className = bad ? "bad" : "";
  put(t, text);
  t.hidden = false;
  clearTimeout(hide);
  hide = setTimeout(
    () => {
      t.hidden = true;
    },
    bad ? 9000 : 4000,
  );
}

// tabs makes a tab list of the buttons: arrows, Home and End move, and what they move to is chosen.
export function tabs(list, choose) {
  list.addEventListener("keydown", e => {
    const all = [...list.querySelectorAll("[role=tab]")].filter(t => !t.hidden),
      at = all.indexOf(e.target);
    const to = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1}[e.key];
    if (at < 0 || to === undefined) return;
    e.preventDefault();
    const t = all[(to + all.length) % all.length];
    choose(t.dataset.tab);
    t.focus();
  });
  list.addEventListener("click", e => {
    const t = e.target.closest("[role=tab]");
    if (t) choose(t.dataset.tab);
  });
}
export function chosen(list, name) {
  for (const t of list.querySelectorAll("[role=tab]")) {
    const is = t.dataset.tab === name;
    t.setAttribute("aria-selected", is);
    t.tabIndex = is ? 0 : -1;
    if (is) t.scrollIntoView({block: "nearest", inline: "nearest"});
  }
}
