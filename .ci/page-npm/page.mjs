// The page in a real browser, at two widths and in both themes: it loads from the gateway alone, shows calls as they
// come, opens a waterfall, switches stages, calls tools, decides about calls that wait, and redrives a dead letter. Each
// tab is checked by axe. SHALLOT_URL is the gateway, NATS_PORT its NATS server, KEYED_URL a gateway that wants KEY,
// CHROME the browser, SHOTS a directory for screenshots.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { once } from "node:events";
import { createServer } from "node:http";
import { chromium } from "playwright-core";
import { bury } from "./nats.mjs";

const url = process.env.SHALLOT_URL;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const flags = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--disable-dev-shm-usage",
];
const wide = { width: 1280, height: 860 },
  phone = { width: 390, height: 844 };

// A user-data-dir of its own, given as such: nothing of the person who runs this is read or left behind.
const context = await chromium.launchPersistentContext(process.env.PROFILE, {
  executablePath: process.env.CHROME,
  headless: true,
  args: flags,
  viewport: wide,
  colorScheme: "light",
  reducedMotion: "reduce",
});
const page = context.pages()[0] ?? (await context.newPage());
const wrong = [],
  asked = new Set(),
  paths = [];
page.on("pageerror", (e) => wrong.push(`script: ${e.message}`));
page.on("console", (m) => {
  if (m.type() === "error") wrong.push(`console: ${m.text()}`);
});
page.on("request", (r) => {
  const u = new URL(r.url());
  asked.add(u.origin);
  paths.push(u.pathname);
});

const $ = (css, options) => page.locator(css, options);
const tab = (name) => page.click(`#tab-${name}`);
const stage = (name) => $(`#flow tr[data-stage="${name}"]`);
const shot = async (name) => process.env.SHOTS && page.screenshot({ path: `${process.env.SHOTS}/${name}.png` });
const attr = (css, name, value) => $(`${css}[${name}="${value}"]`).waitFor();
const send = async (path, body) => {
  const r = await fetch(url + path, { method: "POST", headers: { "Content-Type": "application/json" }, body });
  return { status: r.status, text: await r.text(), place: r.headers.get("location") };
};

let checks = 0;
// clean fails if axe finds anything in what is shown, or if the page can be scrolled sideways.
async function clean(what) {
  await page.evaluate(() => Promise.all(document.getAnimations().map((a) => a.finished.catch(() => {}))));
  const found = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
  const said = found.violations.map(
    (v) =>
      `${v.id}: ${v.help}\n  ${v.nodes
        .slice(0, 4)
        .map((n) => n.html.slice(0, 160) + "\n    " + (n.any[0]?.message || ""))
        .join("\n  ")}`,
  );
  assert.deepEqual(said, [], `axe, ${what}`);
  const sideways = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(sideways <= 0, `${what}: ${sideways} pixels can be scrolled sideways`);
  const cut = await $(".panel:visible").evaluateAll((all) =>
    all.filter((p) => p.scrollWidth > p.clientWidth + 1).map((p) => p.id),
  );
  assert.deepEqual(cut, [], `${what}: cut off at the side`);
  checks++;
}

async function loads() {
  await page.goto(url + "/");
  assert.equal(new URL(page.url()).pathname, "/ui/", "/ leads to the page");
  await $("#state.ok").waitFor();
  await $("html[data-ready]").waitFor();
  await stage("audit").waitFor();
  const stages = await $("#flow tr[data-stage]").evaluateAll((rows) => rows.map((r) => r.dataset.stage));
  const tabs = await $("#tabs [role=tab]:visible").evaluateAll((all) => all.map((t) => t.dataset.tab));
  for (const name of ["flow", "calls", "playground", "approvals", "tools", "agents", "todo", "dead", "system"])
    assert.ok(tabs.includes(name), `the tab ${name} is missing`);
  assert.equal(stages[0], "audit", "the outermost stage comes first");
  assert.equal(stages.at(-1), "logging", "the innermost stage comes last");
  await page.evaluate(axe);
}

async function chats() {
  await tab("calls");
  await $("#calls-list .empty").waitFor();
  await clean("no calls yet");
  await tab("playground");
  await page.selectOption("#model", "demo/echo");
  await page.fill("#session", "page");
  await page.fill("#text", "one two <b>three</b>");
  await page.press("#text", "Enter");
  await $("#answer", { hasText: "one two <b>three</b>" }).waitFor();
  await $("#way-note", { hasText: "answered after" }).waitFor();
  const way = await $("#way li").allInnerTexts();
  assert.match(way[0], /^audit/);
  assert.ok(
    way.some((w) => w === "demo/echo"),
    "the target is on the way",
  );
  assert.match(way.at(-1), /^audit/, "a call comes back through the outermost stage");
  await clean("playground");
  await shot("playground");
  await tab("flow");
  await stage("audit").locator(".hop.mine").first().waitFor();
  await stage("audit")
    .locator(".rate small", { hasText: /^[1-9]/ })
    .waitFor();
  // It stands in the list without a reload, and its waterfall opens by keyboard.
  await tab("calls");
  const row = $("#calls-list tr", { hasText: "demo/echo" }).first();
  await row.locator(".tag.ok").waitFor();
  await row.locator("button").focus();
  await page.keyboard.press("Enter");
  await $("#story[open] .waterfall").waitFor();
  assert.ok((await $("#story .waterfall .at-target").count()) === 1, "one run of the target");
  assert.match(await $("#story-body").innerText(), /todo-list before[\s\S]*\/messages\/0/, "what a stage changed");
  await clean("waterfall");
  await shot("waterfall");
  await page.keyboard.press("Escape");
  await $("#story[open]").waitFor({ state: "detached" });
  // A fault, with the provider's own words, found by its filter and by its id.
  const bad = JSON.parse(
    (await send("/v1/chat/completions", '{"model":"demo/fail","messages":[{"role":"user","content":"fail 500"}]}'))
      .text,
  );
  assert.equal(bad.error.code, "provider_error");
  await $("#calls-list .tag.bad", { hasText: "provider_error" }).waitFor();
  await page.selectOption("#filter-outcome", "fault");
  await $("#calls-count", { hasText: /^1 shown/ }).waitFor();
  await $("#calls-list [data-call]").click();
  await $("#story .fault", { hasText: "demo/fail was asked for status 500" }).waitFor();
  const id = await $("#story .facts code").first().innerText();
  await page.keyboard.press("Escape");
  await page.click("#filters [type=reset]");
  await page.keyboard.press("Tab");
  await page.fill("#search-id", id);
  await page.press("#search-id", "Enter");
  await $("#story .fault").waitFor();
  await page.keyboard.press("Escape");
  await shot("calls");
}

async function switches() {
  await tab("flow");
  await $("#switch-model-logging").focus();
  await page.keyboard.press("Enter");
  await attr("#switch-model-logging", "aria-checked", "false");
  assert.match(
    (await $("#switch-shell").innerText()) + (await $("#switch-shell pre").first().textContent()),
    /interceptor\/logging\/disable/,
  );
  await send("/v1/chat/completions", '{"model":"demo/echo","messages":[{"role":"user","content":"off"}]}');
  await tab("calls");
  await $("#calls-list [data-call]").first().click();
  await $("#story .waterfall").waitFor();
  assert.doesNotMatch(await $("#story .waterfall").innerText(), /logging/, "a stage that is off is not passed");
  await page.keyboard.press("Escape");
  await tab("flow");
  await $("#switch-model-logging").click();
  await attr("#switch-model-logging", "aria-checked", "true");
  // A mandatory stage asks for its name first.
  await $("#switch-model-audit").click();
  await $("#confirm[open]").waitFor();
  assert.equal(await $("#confirm-yes").isEnabled(), false);
  await clean("confirm");
  await page.keyboard.press("Escape");
  await attr("#switch-model-audit", "aria-checked", "true");
  await $("#switch-model-audit").click();
  await page.fill("#confirm-input", "audit");
  await page.press("#confirm-input", "Enter");
  await attr("#switch-model-audit", "aria-checked", "false");
  await $("#switch-model-audit").click();
  await attr("#switch-model-audit", "aria-checked", "true");
  await $("#kind-model").focus();
  await page.keyboard.press("ArrowRight");
  await stage("tool-arguments").waitFor();
  await page.keyboard.press("Home");
  await stage("logging").waitFor();
}

async function tools() {
  await tab("tools");
  await $("#tool-list [data-tool=add]").click();
  await page.fill("#arg-a", "9007199254740993");
  await page.click("#tool-call .main");
  await $("#tool-note", { hasText: "b is required" }).waitFor();
  await page.fill("#arg-b", "1");
  await page.click("#tool-call .main");
  await $("#tool-out pre", { hasText: "9007199254740994" }).waitFor();
  await clean("tools");
  await shot("tools");
  // What is in work at the target is shown while it is.
  const slow = send("/v1/tools/slow/call", '{"ms":6000}');
  await tab("flow");
  await $("#kind-tool").click();
  await $("#end-target .rate", { hasText: "1 in work" }).waitFor();
  assert.equal((await slow).status, 200);
  await $("#end-target .rate", { hasText: "nothing waits" }).waitFor();
  await $("#kind-model").click();
  await stage("logging").waitFor();
}

async function decides() {
  assert.equal(
    (
      await send(
        "/v1/tools",
        '{"name":"careful_echo","description":"Says <i>it</i> again.","executor":"go:echo","effect":"read","approval":"always","cache":"off"}',
      )
    ).status,
    201,
  );
  const call = async (args) => {
    const r = await send("/v1/tools/careful_echo/call", args);
    assert.equal(r.status, 202, r.text);
    return r.place;
  };
  // A call that waits for a person is answered at once, so the decision has to be there first.
  const ended = async (place, status) => {
    await ask().waitFor({ state: "detached" });
    const r = await fetch(url + place, { headers: { Prefer: "wait=10" } });
    const text = await r.text();
    assert.equal(r.status, status, text);
    return text;
  };
  let place = "";
  const ask = () => $(`[id="ask-${place.split("/").at(-1)}"]`);
  await tab("approvals");
  await $("#asks-empty .empty").waitFor();
  const first = '{"n":9007199254740993,"html":"<b>x</b>"}';
  place = await call(first);
  await ask().locator("pre", { hasText: "9007199254740993" }).waitFor();
  await $("#tab-approvals .count", { hasText: "1" }).waitFor();
  await clean("approvals");
  await shot("approvals");
  await ask().locator("[data-decision=approve]").click();
  assert.equal(await ended(place, 200), first);
  place = await call('{"n":1}');
  await ask().locator("[data-decision=edit]").click();
  await ask().locator("textarea").fill("{");
  await ask().locator("[data-decision=edit]").click();
  await ask().locator(".note", { hasText: "not JSON" }).waitFor();
  await ask().locator("textarea").fill('{"n":9007199254740995}');
  await ask().locator("[data-decision=edit]").click();
  assert.equal(await ended(place, 200), '{"n":9007199254740995}');
  place = await call('{"n":2}');
  await ask().locator("input").fill("not <today>");
  await ask().locator("[data-decision=reject]").click();
  assert.match(await ended(place, 422), /not <today>|not .u003ctoday/);
  place = await call('{"n":3}');
  await ask().locator("input").fill("three");
  await ask().locator("[data-decision=respond]").click();
  assert.equal(await ended(place, 200), '"three"');
}

// batch decides the two calls of one answer of a run, one in each way.
async function batch() {
  const call = (id) => ({ id, type: "function", function: { name: "careful_echo", arguments: `{"bill":"${id}"}` } });
  const script = createServer(async (req, res) => {
    let body = "";
    for await (const piece of req) body += piece;
    const last = body && JSON.parse(body).messages?.at(-1);
    const message = last?.role === "tool" ? { role: "assistant", content: "both are paid" }
      : { role: "assistant", content: null, tool_calls: [call("one"), call("two")] };
    res.setHeader("Content-Type", "application/json");
    res.end(JSON.stringify({ id: "x", object: "chat.completion", model: "scripted", data: [],
      choices: [{ index: 0, message, finish_reason: last?.role === "tool" ? "stop" : "tool_calls" }] }));
  }).listen(Number(process.env.SCRIPT_PORT), "127.0.0.1");
  await once(script, "listening");
  const run = JSON.parse((await send("/v1/agents/payer/runs", '{"input":"pay"}')).text);
  assert.equal(run.status, "waiting", JSON.stringify(run));
  await tab("approvals");
  const card = (id) => $(`[id="ask-${run.id}-${id}"]`);
  await $("#tab-approvals .count", { hasText: "2" }).waitFor();
  await card("two").locator("pre", { hasText: '"two"' }).waitFor();
  await clean("a batch");
  await shot("batch");
  await card("two").locator("input").fill("not this one");
  await card("two").locator("[data-decision=reject]").click();
  await card("two").waitFor({ state: "detached" });
  await card("one").locator("[data-decision=approve]").click();
  await card("one").waitFor({ state: "detached" });
  const events = await (await fetch(`${url}${run.location}/events`)).text();
  assert.match(events, /both are paid/);
  assert.match(events, /not this one/);
  script.close();
}

async function runs() {
  await tab("agents");
  await page.fill("#run-input", "Add one and one.");
  await page.click("#run-form .main");
  await $("#run-out .tag.ok", { hasText: "run ended" }).waitFor();
  await $("#runs .tag.ok").first().waitFor();
  await clean("agents");
  await $("#runs button.link").first().click();
  await $("#story-inner table").waitFor();
  await clean("a run");
  await page.keyboard.press("Escape");
}

async function lists() {
  await tab("todo");
  await page.fill("#todo-session", "page");
  await page.press("#todo-session", "Enter");
  await $("#todo-add").waitFor();
  await page.fill("#todo-title", "peel");
  await page.press("#todo-title", "Enter");
  await $(".todo", { hasText: "peel" }).locator("select").selectOption("COMPLETED");
  await $(".todo.completed").waitFor();
  await clean("todo");
}

async function redrives() {
  await tab("dead");
  await $("#dead-list .empty").waitFor();
  await bury(
    Number(process.env.NATS_PORT),
    "model.submit",
    '{"model":"demo/echo","messages":[{"role":"user","content":"again"}]}',
    crypto.randomUUID(),
  );
  await send("/v1/tools/echo/call", '{"message":"news"}'); // something happens, so the statistics are read
  await $("#dead-list [data-redrive]").waitFor();
  await clean("dead letters");
  await shot("dead-letters");
  await $("#dead-list button.link").click();
  await $("#letter[open] pre", { hasText: "again" }).waitFor();
  await clean("a dead letter");
  await page.keyboard.press("Escape");
  await $("#dead-list [data-redrive]").click();
  await $("#dead-done", { hasText: "1 redriven" }).waitFor();
  await $("#dead-list .empty").waitFor();
}

// traffic is some calls at once, so that the flow has something to show.
async function traffic() {
  const one = (i) => {
    const fails = i % 12 === 7,
      messages = [{ role: "user", content: fails ? "fail 500" : `call ${i}` }];
    const headers = { "Content-Type": "application/json", ...(i % 3 ? { "Shallot-Session": `s${i % 5}` } : {}) };
    const body = JSON.stringify({ model: fails ? "demo/fail" : "demo/echo", messages });
    return fetch(`${url}/v1/chat/completions`, { method: "POST", headers, body }).then((r) => r.text());
  };
  for (let i = 0; i < 60; i += 3) await Promise.all([one(i), one(i + 1), one(i + 2)]);
  await tab("flow");
  await stage("audit").locator(".rate b", { hasText: /[1-9]/ }).waitFor();
}

// looks goes through every tab in a theme and a width.
async function looks(size, colorScheme) {
  await page.setViewportSize(size);
  await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
  for (const name of await $("#tabs [role=tab]:visible").evaluateAll((all) => all.map((t) => t.dataset.tab))) {
    await tab(name);
    await clean(`${name}, ${size.width} pixels, ${colorScheme}`);
    if (name === "flow" && size === wide) await shot(`flow-${colorScheme}`);
    if (name === "flow" && size === phone && colorScheme === "light") await shot("phone");
  }
  await tab("calls");
  await $("#calls-list [data-call]").first().click();
  await $("#story .waterfall").waitFor();
  await clean(`waterfall, ${size.width} pixels, ${colorScheme}`);
  if (size === phone && colorScheme === "dark") await shot("phone-dark");
  await page.keyboard.press("Escape");
}

// keyed opens the page of a gateway that wants a key: it asks for one, and works with it.
async function keyed() {
  const other = await context.newPage();
  try {
    await other.goto(process.env.KEYED_URL + "/");
    await other.locator("#key-dialog[open]").waitFor();
    await other.fill("#key", "wrong");
    await other.press("#key", "Enter");
    await other.locator("#key-why", { hasText: "does not know" }).waitFor();
    await other.fill("#key", process.env.KEY);
    await other.press("#key", "Enter");
    await other.locator("#state.ok").waitFor();
    await other.locator('#flow tr[data-stage="audit"]').waitFor();
  } finally {
    await other.close();
  }
  const guest = await context.newPage();
  try {
    await guest.goto(process.env.KEYED_URL + "/");
    await guest.fill("#key", process.env.CALLER_KEY);
    await guest.press("#key", "Enter");
    await guest.locator("html[data-ready]").waitFor();
    const tabs = await guest.locator("#tabs [role=tab]:visible").evaluateAll((all) => all.map((t) => t.dataset.tab));
    assert.deepEqual(tabs, ["playground", "tools", "agents", "todo"], "what a caller may use");
  } finally {
    await guest.close();
  }
}

const begun = Date.now();
page.setDefaultTimeout(15_000);
try {
  await loads();
  await chats();
  await switches();
  await tools();
  await decides();
  await lists();
  await runs();
  await batch();
  await redrives();
  await traffic();
  for (const [size, scheme] of [
    [wide, "dark"],
    [phone, "dark"],
    [phone, "light"],
    [wide, "light"],
  ])
    await looks(size, scheme);
  if (process.env.KEYED_URL) await keyed();
  // Nothing is asked in intervals: for four seconds in which nothing happens, only signs of life lead to a question.
  paths.length = 0;
  await page.waitForTimeout(4000);
  assert.ok(paths.length <= 2, `asked while nothing happened: ${paths}`);
  assert.deepEqual([...asked], [url], "nothing is loaded from elsewhere");
  assert.deepEqual(wrong, []);
  console.log(`page: ${checks} views without a finding of axe, ${Math.round((Date.now() - begun) / 1000)} s`);
} catch (e) {
  await shot("failed").catch(() => {});
  console.error(
    wrong.join("\n"),
    await page
      .locator("body")
      .innerText()
      .catch(() => ""),
  );
  throw e;
} finally {
  await context.close();
}
