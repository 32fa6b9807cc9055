// The feed of what happens, and what follows from it: who wants to know is told. Nothing is asked in intervals: the
// statistics are read again when something has happened, and with the signs of life of the feed.
import {ask, events, exact, send, Failed} from "./api.js";
import {$, put} from "./dom.js";

const wanted = new Map(); // by the name of the news
export function on(names, f) {
  for (const n of names.split(" ")) wanted.set(n, [...(wanted.get(n) || []), f]);
}
export function emit(name, data) {
  for (const f of wanted.get(name) || []) f(data, name);
}

function state(text, cls) {
  put($("state"), text);
  $("state").className = "pill " + cls;
}

// noFeed says that what happens is not for this key.
export const noFeed = () => state("for operators only", "warn");

// follow reads the feed until the page is left, and begins again when it breaks.
export async function follow() {
  for (let wait = 500; ; wait = Math.min(wait * 2, 8000)) {
    const quiet = new AbortController();
    let alarm;
    const heard = () => {
      clearTimeout(alarm);
      alarm = setTimeout(() => quiet.abort(), 20_000);
    };
    try {
      heard();
      const r = await send("/api/events", {signal: quiet.signal});
      if (!r.ok) throw new Failed(r.status, "events: status " + r.status);
      state("live", "ok");
      wait = 500;
      refresh();
      await events(r, e => {
        heard();
        if (e.name) emit(e.name, exact(e.data));
        if (e.name !== "hop" && e.name !== "lost") later(e.name);
      });
      state("reconnecting", "warn");
    } catch (e) {
      if (e.status === 404) {
        state("no live feed here", "warn");
        await refresh();
        return;
      }
      state(e.status ? "no access" : "no answer", "bad");
    } finally {
      clearTimeout(alarm);
    }
    await new Promise(r => setTimeout(r, wait));
  }
}

export let stats = null; // the last diagnostics
const history = []; // of the counts, the latest last
let due = 0,
  last = 0,
  reading = false;

// later reads the statistics soon, at most every second and a half; switches at once.
function later(what) {
  const at = what === "switch" ? 0 : Math.max(0, last + 1500 - performance.now());
  if (due && what !== "switch") return;
  clearTimeout(due);
  due = setTimeout(refresh, at);
}

export async function refresh() {
  clearTimeout(due);
  due = 0;
  if (reading || document.hidden) return;
  reading = true;
  last = performance.now();
  try {
    stats = await ask("/api/debug/interceptor/diagnostics");
    history.push({
      at: performance.now(),
      counts: new Map(stats.interceptors.map(i => [i.type + "/" + i.stage, i])),
    });
    if (history.length > 24) history.shift();
    emit("stats", stats);
  } catch (e) {
    emit("trouble", e);
  } finally {
    reading = false;
  }
}

// rates are how often a stage ran in a second, between each two readings, and over the last ten seconds.
export function rates(key) {
  const count = h => h.counts.get(key)?.invocationCount ?? 0;
  const line = history
    .slice(1)
    .map((h, i) => (1000 * Math.max(0, count(h) - count(history[i]))) / Math.max(200, h.at - history[i].at));
  const now = history.at(-1),
    from = history.find(h => now.at - h.at <= 10_500);
  const span = now && from ? now.at - from.at : 0;
  return {line, now: span > 400 ? (1000 * (count(now) - count(from))) / span : 0};
}

const samples = new Map(); // times of steps, by kind/stage
function note(key, step) {
  const s = samples.get(key) || {us: [], waited: []};
  samples.set(key, s);
  s.us.push(step.us);
  s.waited.push(step.waitedUs || 0);
  if (s.us.length > 200) {
    s.us.shift();
    s.waited.shift();
  }
}
on("hop", h => note(h.kind + "/" + h.stage, h));
on("target", t => note(t.kind + "/", t));

// quantile of what was seen since the page was opened; null if nothing was.
export function quantile(key, q, what = "us") {
  const all = samples.get(key)?.[what];
  if (!all?.length) return null;
  const sorted = [...all].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))];
}
