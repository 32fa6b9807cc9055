// A tool worker in Node that gives its result in pieces, and callers who read it while it is made.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { connect, createInbox, headers } from '@nats-io/transport-node'
import { base, natsURL, unique } from './helpers.mjs'

let nc, name
const gates = {}
const head = fields => {
  const h = headers()
  for (const [k, v] of Object.entries(fields)) h.set(k, String(v))
  return { headers: h }
}

before(async () => {
  nc = await connect({ servers: natsURL, timeout: 5000 })
  name = unique('feed')
  const registered = await fetch(`${base}/v1/tools`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({
    name, description: 'says a text again and again', executor: { kind: 'nats', name: `tools.${name}` }, effect: 'read', cache: 'off', 'input-schema': { type: 'object' } }) })
  assert.equal(registered.status, 201, await registered.clone().text())
  nc.subscribe(`tools.${name}`, { callback: async (err, msg) => {
    const { text, times, gate, fail } = msg.json()
    const to = msg.headers.get('Shallot-Chunks')
    for (let n = 1; n <= times; n++) {
      nc.publish(to, text, head({ 'Shallot-Chunk': n }))
      if (n === 1 && gate) await gates[gate].promise
    }
    msg.respond('', head(fail ? { 'Nats-Service-Error-Code': 500, 'Nats-Service-Error': fail } : { 'Shallot-Chunks': times }))
  } })
  await nc.flush()
})
after(() => nc?.close())

const events = raw => raw.split('\n\n').filter(e => e && !e.startsWith(':')).map(e => {
  const [, event, data] = /^event: (.*)\ndata: (.*)$/.exec(e)
  return { event, data: JSON.parse(data) }
})
const texts = list => list.filter(e => e.event === 'chunk').map(e => e.data.text).join('')

/** Reads a streamed call over HTTP; seen gets what has come so far. */
async function http(args, seen = () => {}) {
  const res = await fetch(`${base}/v1/tools/${name}/call`, { method: 'POST', headers: { accept: 'text/event-stream', 'content-type': 'application/json' }, body: JSON.stringify(args) })
  assert.equal(res.status, 200)
  assert.equal(res.headers.get('content-type'), 'text/event-stream')
  let raw = ''
  for await (const piece of res.body.pipeThrough(new TextDecoderStream())) seen(raw += piece)
  return events(raw)
}

test('the first piece is read while the tool waits', async () => {
  gates.http = Promise.withResolvers?.() ?? defer()
  const all = await http({ text: 'Zwiebel 🧅 ', times: 3, gate: 'http' }, raw => { if (raw.includes('Zwiebel')) gates.http.resolve() })
  assert.equal(texts(all), 'Zwiebel 🧅 '.repeat(3))
  assert.deepEqual(all.at(-1).event, 'result')
  assert.equal(all.at(-1).data.result, 'Zwiebel 🧅 '.repeat(3))
})

test('pieces pass up to the limit, the rest is replaced and can be read (EV-13)', async () => {
  const all = await http({ text: '洋葱'.repeat(500), times: 90 })
  const shown = texts(all), whole = '洋葱'.repeat(45000)
  assert.equal(shown, all.at(-1).data.result)
  const [, begin, path] = /^([^.]*)\.\.\.\n\[The full result is saved at: (.*)\]\n\[Original size: 90000 chars, Token≈22500\]$/.exec(shown)
  assert.ok(whole.startsWith(begin) && begin.length > 79000 && shown.length <= 80003, `${begin.length} ${shown.length}`)
  let read = ''
  for (let next = 0, more = true; more; more = next > 0) {
    const part = await (await fetch(`${base}/v1/evicted/${path.replace('shallot-evicted/', '')}?offset=${next}&limit=50000`)).json()
    read += part.text
    next = part.next ?? 0
  }
  assert.equal(read, whole)
})

test('an error after the limit is an error (EV-13)', async () => {
  const all = await http({ text: 'x'.repeat(1000), times: 90, fail: 'the disk is gone' })
  assert.equal(all.at(-1).event, 'error')
  assert.equal(all.at(-1).data.error.code, 'stream_cut')
  assert.match(all.at(-1).data.error.message, /the disk is gone/)
  assert.ok(!all.some(e => e.event === 'result'))
})

test('over NATS: a message for each piece, an empty one at the end', async () => {
  gates.nats = Promise.withResolvers?.() ?? defer()
  const inbox = createInbox(), sub = nc.subscribe(inbox, { timeout: 15_000 }), got = []
  nc.publish(`shallot.v1.tool.request.${name}`, JSON.stringify({ text: 'a b ', times: 4, gate: 'nats' }), { reply: inbox, ...head({ 'Shallot-Stream': 'on' }) })
  for await (const m of sub) {
    got.push(m)
    gates.nats.resolve()
    if (m.data.length === 0) break
  }
  assert.deepEqual(got.map(m => m.string()), ['a b ', 'a b ', 'a b ', 'a b ', ''])
  assert.match(got.at(-1).headers.get('Shallot-Call'), /^[0-9a-f-]{36}$/)
})

function defer() {
  const d = {}
  d.promise = new Promise(resolve => { d.resolve = resolve })
  return d
}
