// The page in a real browser: it loads from the gateway alone, shows the stages, switches one, asks before a mandatory
// one, sends a streamed chat, and decides about calls that wait. SHALLOT_URL is the gateway, CHROME the browser, SHOTS a
// directory for screenshots.
import assert from "node:assert/strict";
import { chromium } from "playwright-core";

const url = process.env.SHALLOT_URL;
const flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"];

// A user-data-dir of its own, given as such: nothing of the person who runs this is read or left behind.
const context = await chromium.launchPersistentContext(process.env.PROFILE, {
  executablePath: process.env.CHROME, headless: true, args: flags, viewport: { width: 1500, height: 1250 }, colorScheme: "light",
});
const shot = async name => process.env.SHOTS && page.screenshot({ path: `${process.env.SHOTS}/${name}.png`, fullPage: true });
const page = context.pages()[0] ?? await context.newPage();
const wrong = [], asked = new Set();
page.on("pageerror", e => wrong.push(`script: ${e.message}`));
page.on("console", m => { if (m.type() === "error") wrong.push(`console: ${m.text()}`); });
page.on("request", r => asked.add(new URL(r.url()).origin));

try {
  await page.goto(url + "/");
  assert.equal(page.url(), url + "/ui/", "/ leads to the page");
  const row = stage => page.locator(`#flow tr[data-stage="${stage}"]`);
  await row("audit").waitFor();
  const stages = await page.locator("#flow tr[data-stage]").evaluateAll(rows => rows.map(r => r.dataset.stage));
  assert.equal(stages[0], "audit", "the outermost stage comes first");
  assert.equal(stages.at(-1), "logging", "the innermost stage comes last");
  await page.locator("#state.ok").waitFor();

  // A chat, streamed, sent with the keyboard.
  await page.locator("#model option", { hasText: "demo/echo" }).waitFor({ state: "attached" });
  await page.selectOption("#model", "demo/echo");
  await page.fill("#text", "one two <b>three</b>");
  await page.press("#text", "Enter");
  await page.locator("#answer", { hasText: "one two <b>three</b>" }).waitFor();
  await page.locator("#facts", { hasText: "shallot-call" }).waitFor();
  await page.locator("#send:enabled").waitFor();
  assert.match(await page.locator("#chat-cmd").innerText(), /curl -N .*demo\/echo[\s\S]*nats .*model\.request/);
  await row("logging").locator("td").filter({ hasText: /^1( \(\+1\))?$/ }).waitFor();
  await shot("chat");

  // Not streamed: the headers carry the path, which is marked in the flow.
  await page.uncheck("#stream");
  await page.click("#send");
  await page.locator("#facts", { hasText: "shallot-path" }).waitFor();
  await row("logging").locator(".hop.hit").first().waitFor();

  // An optional stage goes off and on, by keyboard.
  const logging = page.locator("#switch-model-logging");
  await logging.focus();
  await page.keyboard.press("Enter");
  await page.locator("#switch-model-logging[aria-checked=false]").waitFor();
  assert.match(await page.locator("#switch-cmd").innerText(), /interceptor\/logging\/disable[\s\S]*kv put shallot_control stage\.model\.logging\.enabled false/);
  await page.click("#send");
  await page.locator("#send:enabled").waitFor();
  assert.doesNotMatch(await page.locator("#facts").innerText(), /logging\.beforeModel/, "a stage that is off is not passed");
  await logging.click();
  await page.locator("#switch-model-logging[aria-checked=true]").waitFor();

  // A mandatory stage asks for its name first.
  await page.locator("#switch-model-audit").click();
  await page.locator("dialog[open]").waitFor();
  assert.equal(await page.locator("#confirm-yes").isEnabled(), false);
  await shot("confirm");
  await page.keyboard.press("Escape");
  await page.locator("dialog[open]").waitFor({ state: "detached" });
  assert.equal(await page.locator("#switch-model-audit").getAttribute("aria-checked"), "true", "Escape leaves it on");
  await page.locator("#switch-model-audit").click();
  await page.fill("#confirm-input", "audit");
  await page.press("#confirm-input", "Enter");
  await page.locator("#switch-model-audit[aria-checked=false]").waitFor();
  await page.locator("#switch-model-audit").click();
  await page.locator("#switch-model-audit[aria-checked=true]").waitFor();

  // The other kinds, and a fault.
  await page.locator("#tab-model").focus();
  await page.keyboard.press("ArrowRight");
  await page.locator(`#flow tr[data-stage="tool-arguments"]`).waitFor();
  await page.locator("#tab-model").click();
  await page.selectOption("#model", "demo/fail");
  await page.fill("#text", "fail 500");
  await page.click("#send");
  await page.locator("#answer.bad").waitFor();
  await page.locator("#facts", { hasText: "shallot-fault" }).waitFor();
  assert.ok(await page.locator("#queues tr").count() > 5, "the queues are listed");
  await shot("fault");

  // Calls that wait for a person: shown exactly, decided here.
  const json = { "Content-Type": "application/json" };
  const post = async (path, body) => { const r = await fetch(url + path, { method: "POST", headers: json, body }); return { status: r.status, body: await r.text(), place: r.headers.get("location") }; };
  assert.ok(await page.locator("#ask").isHidden(), "nothing waits");
  assert.equal((await post("/v1/tools", '{"name":"careful_echo","description":"Says <i>it</i> again.","executor":"go:echo","effect":"read","approval":"always","cache":"off"}')).status, 201);
  const call = async args => { const r = await post("/v1/tools/careful_echo/call", args); assert.equal(r.status, 202, r.body); return r.place; };
  const ended = async (place, status) => {
    const r = await fetch(url + place, { headers: { Prefer: "wait=10" } });
    const text = await r.text();
    assert.equal(r.status, status, text);
    return text;
  };
  const ask = () => page.locator(".ask").first();
  let place = await call('{"n":9007199254740993,"html":"<b>x</b>"}');
  await ask().locator("pre", { hasText: "9007199254740993" }).waitFor();
  await shot("approval");
  await ask().locator("[data-decision=approve]").click();
  assert.equal(await ended(place, 200), '{"n":9007199254740993,"html":"<b>x</b>"}');
  await page.locator("#ask").waitFor({ state: "hidden" });
  place = await call('{"n":1}');
  await ask().locator("[data-decision=edit]").click();
  await ask().locator("textarea").fill("{");
  await ask().locator("[data-decision=edit]").click();
  await ask().locator(".bad", { hasText: "no JSON" }).waitFor();
  await ask().locator("textarea").fill('{"n":9007199254740995}');
  await shot("approval-edit");
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
  await page.locator("#ask").waitFor({ state: "hidden" });
  await call('{"n":4}'); // stays, for the pictures
  await ask().waitFor();
  await page.emulateMedia({ colorScheme: "dark" });
  await shot("dark");
  await page.setViewportSize({ width: 420, height: 900 });
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "no sideways scrolling on a narrow window");
  await shot("narrow");

  // The one failed chat is reported by the browser itself; nothing else may be.
  assert.deepEqual(wrong.filter(w => !/Failed to load resource: .*(500|502|503)/.test(w)), []);
  assert.deepEqual([...asked], [url], "nothing is loaded from elsewhere");
  console.log(`page: ${stages.length} model stages, a chat, two switches, a fault, four decisions`);
} catch (e) {
  await shot("failed").catch(() => {});
  console.error(await page.locator("body").innerText().catch(() => ""));
  throw e;
} finally {
  await context.close();
}
